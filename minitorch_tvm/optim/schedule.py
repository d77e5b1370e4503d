"""The base class of learning rate schedules, and those made of others."""

from __future__ import annotations

import functools
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..ir.node import MODE, effect
from .optimizer import Optimizer

ORDER = (
    "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in "
    "the opposite order: `optimizer.step()` before `lr_scheduler.step()`. Otherwise "
    "the first value of the learning rate schedule is skipped."
)
EPOCH = (
    "The epoch parameter in `scheduler.step()` is deprecated: the closed form of the schedule is "
    "used where there is one. Call `scheduler.step()` without it."
)


def check_optimizer(optimizer: Any) -> None:
    """TypeError unless it is an optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def per_group(name: str, optimizer: Optimizer, value: Any) -> list[float]:
    """One number for each group: ``value`` itself, if it is several, or its repetition."""
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has "
            f"{len(value)} values, param_groups has {count}."
        )
    return list(value)


class LRScheduler:
    """Base class: counts epochs and sets ``lr`` of every group to what :meth:`get_lr` returns.

    ``last_epoch`` resumes; the groups then need the ``initial_lr`` that a scheduler leaves there.
    Raises TypeError if ``optimizer`` is none, KeyError if ``initial_lr`` is missing.
    """

    _is_initial: bool = False  # the first step, which the constructor makes
    _get_lr_called_within_step: bool = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming "
                    "scheduler with last_epoch >= 0.\nLoad the optimizer's state first, or start "
                    "with last_epoch=-1"
                )
        self.optimizer = optimizer
        self.base_lrs: list[float] = [g["initial_lr"] for g in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._step_count = 0
        self._last_lr: list[float] = []
        self._start()

    def _start(self) -> None:
        """Make the first step, to the epoch that the schedule begins with."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[float]:
        """Rates of the groups at ``last_epoch``, from the current ones."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr")

    def _get_closed_form_lr(self) -> list[float] | None:
        """Rates of the groups at ``last_epoch``, from the initial ones; None if not known."""
        return None

    def get_last_lr(self) -> list[float]:
        """The rates set last, one per group."""
        return self._last_lr

    def _current(self) -> list[float]:
        return [g["lr"] for g in self.optimizer.param_groups]

    def _asked(self) -> None:
        """Warn of a :meth:`get_lr` that was not called by :meth:`step`."""
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use "
                "`get_last_lr()`.",
                stacklevel=3,
            )

    def _advance(self, epoch: int | None = None) -> None:
        self._step_count += 1
        self._go_to(epoch)

    def _go_to(self, epoch: int | None) -> None:
        """Set the rates of ``epoch``, or of the next one."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        with self._within_step():
            rates = None if epoch is None else self._get_closed_form_lr()
            self._set(self.get_lr() if rates is None else rates)

    @contextmanager
    def _within_step(self) -> Iterator[None]:
        self._get_lr_called_within_step = True
        try:
            yield
        finally:
            self._get_lr_called_within_step = False

    def _set(self, rates: Sequence[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        self._last_lr = self._current()

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch.  Warns if the optimizer has not made a step yet.

        To name the ``epoch`` is deprecated, and warns.
        """
        if self._step_count == 1 and not self.optimizer._steps_done:
            warnings.warn(ORDER, stacklevel=2)
        if epoch is None:
            effect(self._advance)
        else:
            warnings.warn(EPOCH, stacklevel=2)
            effect(functools.partial(self._advance, epoch))

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.__dict__.update(state_dict)


def attributes_of(function: Any) -> dict[str, Any] | None:
    """What of a function that was given to a schedule is part of its state: objects have some."""
    return dict(getattr(function, "__dict__", {})) or None


@contextmanager
def _unwatched() -> Iterator[None]:
    """While it lasts, what is done is not taken down by a function that is being compiled."""
    trace = MODE.trace
    before, trace.capture = trace.capture, None
    try:
        yield
    finally:
        trace.capture = before


class _Combined(LRScheduler):
    """A schedule made of others."""

    _schedulers: Sequence[LRScheduler]

    def _check(self, schedulers: Sequence[Any], optimizer: Any) -> None:
        name = type(self).__name__
        for i, schedule in enumerate(schedulers):
            if not hasattr(schedule, "optimizer"):
                raise TypeError(f"{name} at index {i} should have `optimizer` as its attribute.")
            if getattr(schedule, "needs_metrics", False):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau` scheduler as it requires "
                    "additional kwargs to be specified when calling `step`, but got one at index "
                    f"{i} in the given schedulers sequence."
                )
            if schedule.optimizer is not optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer, but got "
                    f"scheduler {type(schedule).__name__} at index {i} has {schedule.optimizer}, "
                    f"which is different from {type(optimizer).__name__}."
                )

    def step(self) -> None:  # type: ignore[override]
        """Go to the next epoch."""
        effect(self._advance)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer; of the schedules, what they say."""
        kept = {k: v for k, v in super().state_dict().items() if k != "_schedulers"}
        return {**kept, "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for schedule, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            schedule.load_state_dict(state)


class SequentialLR(_Combined):
    """One schedule after the other: the next one starts, at its epoch 0, at each milestone.

    Raises ValueError unless there is one milestone less than schedules and all are of
    ``optimizer``.

    >>> import minitorch_tvm as mt
    >>> opt = mt.optim.SGD([mt.zeros(1, requires_grad=True)], lr=1.0)
    >>> warm = mt.optim.lr_scheduler.LinearLR(opt, start_factor=0.5, total_iters=2)
    >>> fade = mt.optim.lr_scheduler.ExponentialLR(opt, gamma=0.5)
    >>> schedule = SequentialLR(opt, [warm, fade], milestones=[2])
    >>> rates = []
    >>> for _ in range(4):
    ...     opt.step()
    ...     rates += schedule.get_last_lr()
    ...     schedule.step()
    >>> rates
    [0.5, 0.75, 1.0, 0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
    ) -> None:
        if len(schedulers) < 1:
            raise ValueError(
                f"{type(self).__name__} expects at least one scheduler, but got no scheduler."
            )
        self._check(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than "
                "the number of milestone points, but got number of schedulers "
                f"{len(schedulers)} and the number of milestones to be equal to {len(milestones)}"
            )
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # What the constructors of the schedules have set does not count.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for schedule in schedulers:
            _take_back(schedule)
        first = schedulers[bisect_right(milestones, 0)]
        first._start()
        self._last_lr = first.get_last_lr()

    def _advance(self, epoch: int | None = None) -> None:
        self.last_epoch += 1
        number = bisect_right(self._milestones, self.last_epoch)
        schedule = self._schedulers[number]
        with _unwatched():
            if number and self._milestones[number - 1] == self.last_epoch:
                schedule._go_to(0)
            else:
                schedule.step()
        self._last_lr = schedule.get_last_lr()


def _take_back(schedule: LRScheduler) -> None:
    if isinstance(schedule, _Combined):
        for part in schedule._schedulers:
            _take_back(part)
    else:
        schedule.last_epoch -= 1


class ChainedScheduler(_Combined):
    """Several schedules at once: each changes the rate that the one before it has set.

    Raises ValueError for no schedules, and for schedules of several optimizers.
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if len(schedulers) < 1:
            raise ValueError(
                f"{type(self).__name__} expects at least one scheduler to be chained, but got no "
                "scheduler."
            )
        if optimizer is None:
            optimizer = schedulers[0].optimizer
        self._check(schedulers, optimizer)
        self._schedulers = schedulers
        self.optimizer = optimizer
        self._last_lr = self._current()

    def _advance(self, epoch: int | None = None) -> None:
        with _unwatched():
            for schedule in self._schedulers:
                schedule.step()
        self._last_lr = self._current()
