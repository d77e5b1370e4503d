"""Learning rate schedules that rise and fall, some of them with the momentum."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from ..ir.node import effect
from .optimizer import Optimizer
from .schedule import LRScheduler, attributes_of, check_optimizer, per_group


class _Cycling(LRScheduler):
    """A schedule that may set the momentum (of Adam, the first of ``betas``), too."""

    cycle_momentum: bool
    use_beta1: bool

    def _find_momentum(self) -> None:
        defaults = self.optimizer.defaults
        if "momentum" not in defaults and "betas" not in defaults:
            raise ValueError(
                "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
            )
        self.use_beta1 = "betas" in defaults

    def _start_momentum(self, low: Sequence[float], high: Sequence[float]) -> None:
        self._set_momentum(high)
        for group, least, most in zip(self.optimizer.param_groups, low, high, strict=True):
            group["max_momentum"], group["base_momentum"] = most, least

    def _set_momentum(self, values: Sequence[float]) -> None:
        for group, value in zip(self.optimizer.param_groups, values, strict=True):
            if self.use_beta1:
                group["betas"] = (value, *group["betas"][1:])
            else:
                group["momentum"] = value


class OneCycleLR(_Cycling):
    """Rise from ``max_lr / div_factor`` to ``max_lr``, then fall far below where it began.

    The rise takes ``pct_start`` of all ``total_steps`` (or epochs * steps_per_epoch), the fall ends
    at ``max_lr / div_factor / final_div_factor``; with ``three_phase`` the fall to the initial rate
    takes as long as the rise.  Both follow half a cosine, or a line (``anneal_strategy``).  With
    ``cycle_momentum`` the momentum goes from ``max_momentum`` to ``base_momentum`` and back.  Call
    :meth:`step` after every batch.  Raises ValueError for wrong arguments, and for more steps than
    there are in total.

    >>> import minitorch_tvm as mt
    >>> opt = mt.optim.SGD([mt.zeros(1, requires_grad=True)], lr=1.0, momentum=0.9)
    >>> schedule = mt.optim.lr_scheduler.OneCycleLR(opt, max_lr=1.0, total_steps=10)
    >>> rates = []
    >>> for _ in range(10):
    ...     opt.step()
    ...     rates += [round(lr, 2) for lr in schedule.get_last_lr()]
    ...     schedule.step()
    >>> rates
    [0.04, 0.52, 1.0, 0.95, 0.81, 0.61, 0.39, 0.19, 0.05, 0.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        if total_steps is not None:
            self.total_steps = _positive("total_steps", total_steps)
        elif epochs is not None and steps_per_epoch is not None:
            rounds = _positive("epochs", epochs)
            self.total_steps = rounds * _positive("steps_per_epoch", steps_per_epoch)
        else:
            raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self._anneal_func_type = anneal_strategy
        rise = float(pct_start * self.total_steps) - 1
        falls = [("max_lr", "initial_lr"), ("initial_lr", "min_lr")]
        if three_phase:
            ends = [rise, float(2 * pct_start * self.total_steps) - 2]
        else:
            ends, falls = [rise], [("max_lr", "min_lr")]
        ends.append(self.total_steps - 1)
        low, high = "base_momentum", "max_momentum"
        momenta = [(high, low), (low, high), (high, high)]
        # In the form that the state of PyTorch's schedule has.
        self._schedule_phases: list[dict[str, Any]] = [
            {
                "end_step": end,
                "start_lr": rates[0],
                "end_lr": rates[1],
                "start_momentum": momentum[0],
                "end_momentum": momentum[1],
            }
            for end, rates, momentum in zip(
                ends, [("initial_lr", "max_lr"), *falls], momenta, strict=False
            )
        ]
        most = per_group("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, most, strict=True):
                group["initial_lr"], group["max_lr"] = lr / div_factor, lr
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._find_momentum()
            upper = per_group("max_momentum", optimizer, max_momentum)
            lower = per_group("base_momentum", optimizer, base_momentum)
            if last_epoch == -1:
                self._start_momentum(lower, upper)
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, share: float) -> float:
        if self._anneal_func_type == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1.0)

    def get_lr(self) -> list[float]:
        self._asked()
        t, phases = self.last_epoch, self._schedule_phases
        if t > self.total_steps:
            raise ValueError(
                f"Tried to step {t} times. The specified number of total steps is "
                f"{self.total_steps}"
            )
        start = 0.0
        for phase in phases[:-1]:
            if t <= phase["end_step"]:
                break
            start = phase["end_step"]
        else:
            phase = phases[-1]
        share = (t - start) / (phase["end_step"] - start)

        def at(group: dict[str, Any], what: str) -> float:
            first, last = (group[phase[f"{side}_{what}"]] for side in ("start", "end"))
            return self._between(first, last, share)

        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            self._set_momentum([at(group, "momentum") for group in groups])
        return [at(group, "lr") for group in groups]


def _positive(name: str, value: Any) -> int:
    if not isinstance(value, int) or value <= 0:
        raise ValueError(f"Expected positive integer {name}, but got {value}")
    return value


_MODES = ("triangular", "triangular2", "exp_range")


class CyclicLR(_Cycling):
    """Rise from ``base_lr`` to ``max_lr`` and fall again, over and over.

    A rise takes ``step_size_up`` steps, a fall ``step_size_down`` (as many, if None).  The height
    of the cycles stays ("triangular"), is halved every cycle ("triangular2"), is multiplied by
    ``gamma`` every step ("exp_range"), or is what ``scale_fn`` says of the cycle's or (for the
    ``scale_mode`` "iterations") the step's number.  With ``cycle_momentum`` the momentum goes the
    other way, from ``max_momentum`` down.  Call :meth:`step` after every batch.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        lowest = per_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, lowest, strict=True):
                group["lr"] = lr
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        if mode not in _MODES and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        self.mode = mode
        self.gamma = gamma
        self._scale_fn_custom = scale_fn
        if scale_fn is None:
            scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.scale_mode = scale_mode
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._find_momentum()
            self.base_momentums = per_group("base_momentum", optimizer, base_momentum)
            self.max_momentums = per_group("max_momentum", optimizer, max_momentum)
            if last_epoch == -1:
                self._start_momentum(self.base_momentums, self.max_momentums)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lowest

    def scale_fn(self, x: float) -> float:
        """The height of cycle (or step) ``x`` as a share of the full height."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return 2.0 ** (1 - x) if self.mode == "triangular2" else self.gamma**x

    def get_lr(self) -> list[float]:
        self._asked()
        turns = self.last_epoch / self.total_size
        cycle = math.floor(1 + turns)
        x = 1.0 + turns - cycle
        rising = x <= self.step_ratio
        share = x / self.step_ratio if rising else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            momenta = zip(self.base_momentums, self.max_momentums, strict=True)
            self._set_momentum([high - (high - low) * share * scale for low, high in momenta])
        rates = zip(self.base_lrs, self.max_lrs, strict=True)
        return [low + (high - low) * share * scale for low, high in rates]

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["_scale_fn_custom"] = attributes_of(self._scale_fn_custom)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rest = dict(state_dict)
        attributes = rest.pop("_scale_fn_custom")
        super().load_state_dict(rest)
        if attributes:
            self._scale_fn_custom.__dict__.update(attributes)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Fall to ``eta_min`` along half a cosine in ``T_0`` epochs, start again, and so on.

    Every fall takes ``T_mult`` times as long as the one before (Loshchilov and Hutter 2017).
    :meth:`step` may be given the epoch, also as a fraction: ``step(epoch + batch / batches)``.
    Raises ValueError for wrong arguments.

    >>> import minitorch_tvm as mt
    >>> opt = mt.optim.SGD([mt.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = mt.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     opt.step()
    ...     rates += [round(lr, 2) for lr in schedule.get_last_lr()]
    ...     schedule.step()
    >>> rates
    [1.0, 0.5, 1.0, 0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        _positive("T_0", T_0)
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        if not isinstance(eta_min, (float, int)):
            raise ValueError(
                f"Expected float or int eta_min, but got {eta_min} of type {type(eta_min)}"
            )
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        self._asked()
        share = (1.0 + math.cos(math.pi * self.T_cur / self.T_i)) / 2.0
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go to the next epoch, or to ``epoch``."""
        if epoch is not None and epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        effect(functools.partial(self._move, epoch))

    def _move(self, epoch: float | None) -> None:
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        elif epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            # All falls before the n-th take T_0 (T_mult**n - 1) / (T_mult - 1) epochs.
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**n
        self.last_epoch = math.floor(epoch)
        with self._within_step():
            self._set(self.get_lr())
