"""Learning rate schedules.  The rate is a runtime number, so no schedule compiles anything."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ..ir.node import effect
from .optimizer import Optimizer


class LRScheduler:
    """Base class: counts epochs and sets ``lr`` of every group to what :meth:`get_lr` returns.

    ``last_epoch`` resumes; the groups then need the ``initial_lr`` that a scheduler leaves there.
    Raises TypeError if ``optimizer`` is none, KeyError if ``initial_lr`` is missing.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
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
        self._advance()

    def get_lr(self) -> list[float]:
        """Rates of the groups at ``last_epoch``, from the current ones."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr")

    def get_last_lr(self) -> list[float]:
        """The rates set last, one per group."""
        return self._last_lr

    def _current(self) -> list[float]:
        return [g["lr"] for g in self.optimizer.param_groups]

    def _advance(self) -> None:
        self._step_count += 1
        self.last_epoch += 1
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr
        self._last_lr = self._current()

    def step(self) -> None:
        """Go to the next epoch.  Warns if the optimizer has not made a step yet."""
        if self._step_count == 1 and not self.optimizer._steps_done:
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in "
                "the opposite order: `optimizer.step()` before `lr_scheduler.step()`. Otherwise "
                "the first value of the learning rate schedule is skipped.",
                stacklevel=2,
            )
        effect(self._advance)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.__dict__.update(state_dict)


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
        drop = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
        return [lr * self.gamma if drop else lr for lr in self._current()]


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
        t, low = self.last_epoch, self.eta_min
        if t == 0:
            return self._current()
        if self._step_count == 1:  # resumed
            return [low + (base - low) * self._height(t) / 2 for base in self.base_lrs]
        if (t - 1 - self.T_max) % (2 * self.T_max) == 0:
            # The last rate was eta_min, which no factor can leave.
            climb = (1.0 - math.cos(math.pi / self.T_max)) / 2
            pairs = zip(self._current(), self.base_lrs, strict=True)
            return [lr + (base - low) * climb for lr, base in pairs]
        ratio = self._height(t) / self._height(t - 1)
        return [low + (lr - low) * ratio for lr in self._current()]


class LambdaLR(LRScheduler):
    """The initial rate times ``lr_lambda(epoch)`` (one function, or one per group).

    Functions are not part of ``state_dict``; callable objects are, by their attributes.  Raises
    ValueError if the number of functions does not fit.
    """

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

    def get_lr(self) -> list[float]:
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * f(self.last_epoch) for base, f in pairs]

    def state_dict(self) -> dict[str, Any]:
        state = {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}
        state["lr_lambdas"] = [dict(getattr(f, "__dict__", {})) or None for f in self.lr_lambdas]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rest = {k: v for k, v in state_dict.items() if k != "lr_lambdas"}
        super().load_state_dict(rest)
        for f, attributes in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if attributes:
                f.__dict__.update(attributes)
