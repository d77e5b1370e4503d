"""Learning rate schedules.  The rate is a runtime number, so no schedule compiles anything."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .cycles import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from .optimizer import Optimizer
from .plateau import ReduceLROnPlateau
from .schedule import ChainedScheduler, LRScheduler, SequentialLR, attributes_of

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

_LRScheduler = LRScheduler
"""Its name in older versions of PyTorch, which schedules of users still derive from."""


class StepLR(LRScheduler):
    """Multiply the rate by ``gamma`` every ``step_size`` epochs.

    >>> import minitorch_tvm as mt
    >>> opt = mt.optim.SGD([mt.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = mt.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     opt.step()
    ...     rates += schedule.get_last_lr()
    ...     schedule.step()
    >>> rates
    [1.0, 1.0, 0.5, 0.5]
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        self._asked()
        drop = self.last_epoch != 0 and self.last_epoch % self.step_size == 0
        return [lr * self.gamma if drop else lr for lr in self._current()]

    def _get_closed_form_lr(self) -> list[float]:
        factor = self.gamma ** (self.last_epoch // self.step_size)
        return [base * factor for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """Multiply the rate by ``gamma`` at each of the epochs ``milestones``."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        self._asked()
        drops = self.milestones[self.last_epoch]
        return [lr * self.gamma**drops if drops else lr for lr in self._current()]

    def _get_closed_form_lr(self) -> list[float]:
        drops = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**drops for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        # A dict, which mt.save takes.
        return {**super().state_dict(), "milestones": dict(self.milestones)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        milestones = Counter(state_dict["milestones"])
        super().load_state_dict({**state_dict, "milestones": milestones})


class ExponentialLR(LRScheduler):
    """Multiply the rate by ``gamma`` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        self._asked()
        return [lr if self._is_initial else lr * self.gamma for lr in self._current()]

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """The rate times ``factor``, until epoch ``total_iters``.

    Raises ValueError unless ``factor`` is in [0, 1].
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= factor <= 1:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        self._asked()
        change = 1.0
        if self.last_epoch == 0:
            change = self.factor
        elif self.last_epoch == self.total_iters:
            change = 1.0 / self.factor
        return [lr * change for lr in self._current()]

    def _get_closed_form_lr(self) -> list[float]:
        factor = 1.0 if self.last_epoch >= self.total_iters else self.factor
        return [base * factor for base in self.base_lrs]


class LinearLR(LRScheduler):
    """The rate times a factor that goes from ``start_factor`` to ``end_factor``.

    It does so in ``total_iters`` equal steps, and stays there.  Raises ValueError for a
    ``start_factor`` outside (0, 1] and an ``end_factor`` outside [0, 1].

    >>> import minitorch_tvm as mt
    >>> opt = mt.optim.SGD([mt.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = LinearLR(opt, start_factor=0.25, total_iters=3)
    >>> rates = []
    >>> for _ in range(5):
    ...     opt.step()
    ...     rates += schedule.get_last_lr()
    ...     schedule.step()
    >>> rates
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(
                "Starting multiplicative factor expected to be greater than 0 and less or equal "
                "to 1."
            )
        if not 0 <= end_factor <= 1:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        self._asked()
        t, rise = self.last_epoch, self.end_factor - self.start_factor
        change = 1.0
        if t == 0:
            change = self.start_factor
        elif not self._is_initial and t <= self.total_iters:
            change += rise / (self.total_iters * self.start_factor + (t - 1) * rise)
        return [lr * change for lr in self._current()]

    def _get_closed_form_lr(self) -> list[float]:
        share = min(self.total_iters, self.last_epoch) / self.total_iters
        factor = self.start_factor + (self.end_factor - self.start_factor) * share
        return [base * factor for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """The rate times (1 - epoch / total_iters) ** power, until that is 0."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch: int) -> float:
        return 1.0 - epoch / self.total_iters

    def get_lr(self) -> list[float]:
        self._asked()
        t, rates = self.last_epoch, self._current()
        if self._is_initial or t > self.total_iters:
            return rates
        change = (self._height(t) / self._height(t - 1)) ** self.power
        return [lr * change for lr in rates]

    def _get_closed_form_lr(self) -> list[float]:
        factor = self._height(min(self.total_iters, self.last_epoch)) ** self.power
        return [base * factor for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """From the initial rate to ``eta_min`` along half a cosine of ``T_max`` epochs, and back.

    eta_t = eta_min + (eta_0 - eta_min) (1 + cos(pi t / T_max)) / 2 (Loshchilov and Hutter 2017),
    as a recursion on the current rate, so that it combines with other changes of the rate.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch: int) -> float:
        return 1.0 + math.cos(math.pi * epoch / self.T_max)

    def get_lr(self) -> list[float]:
        self._asked()
        t, low = self.last_epoch, self.eta_min
        if self._is_initial:
            return self._current()
        if self._step_count == 1 and t > 0:  # its state was loaded
            return self._get_closed_form_lr()
        if (t - 1 - self.T_max) % (2 * self.T_max) == 0:
            # The last rate was eta_min, which no factor can leave.
            climb = (1.0 - math.cos(math.pi / self.T_max)) / 2
            pairs = zip(self._current(), self.base_lrs, strict=True)
            return [lr + (base - low) * climb for lr, base in pairs]
        ratio = self._height(t) / self._height(t - 1)
        return [low + (lr - low) * ratio for lr in self._current()]

    def _get_closed_form_lr(self) -> list[float]:
        share = self._height(self.last_epoch) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class _OfFunctions(LRScheduler):
    """A schedule that functions of the epoch decide."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        count = len(optimizer.param_groups) if isinstance(optimizer, Optimizer) else 1
        self.lr_lambdas: list[Any] = (
            list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * count
        )
        if len(self.lr_lambdas) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        state = {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}
        state["lr_lambdas"] = [attributes_of(f) for f in self.lr_lambdas]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rest = {k: v for k, v in state_dict.items() if k != "lr_lambdas"}
        super().load_state_dict(rest)
        for f, attributes in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if attributes:
                f.__dict__.update(attributes)


class LambdaLR(_OfFunctions):
    """The initial rate times ``lr_lambda(epoch)`` (one function, or one per group).

    Functions are not part of ``state_dict``; callable objects are, by their attributes.  Raises
    ValueError if the number of functions does not fit.
    """

    def get_lr(self) -> list[float]:
        self._asked()
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * f(self.last_epoch) for base, f in pairs]


class MultiplicativeLR(_OfFunctions):
    """Multiply the rate by ``lr_lambda(epoch)`` (one function, or one per group) every epoch.

    State and errors are those of :class:`LambdaLR`; TypeError for what is no function.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        given = lr_lambda if isinstance(lr_lambda, (list, tuple)) else [lr_lambda]
        for f in given:
            if not callable(f):
                raise TypeError(f"lr_lambda should be a function, but got {type(f).__name__}")
        super().__init__(optimizer, lr_lambda, last_epoch)

    def get_lr(self) -> list[float]:
        self._asked()
        rates = self._current()
        if self._is_initial:
            return rates
        return [lr * f(self.last_epoch) for lr, f in zip(rates, self.lr_lambdas, strict=True)]
