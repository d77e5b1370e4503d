"""Averages of a model's weights over training (Izmailov et al. 2018)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

from ..autograd import no_grad
from ..core import dtype as dt
from ..core.dtype import DType
from ..nn.module import Module
from ..nn.normalization import _BatchNorm
from ..tensor import Tensor, tensor
from ..tensor.functions import where
from .optimizer import Optimizer
from .schedule import LRScheduler, per_group

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

Average = Callable[[Tensor, Tensor, Tensor], Tensor]
Averages = Callable[[list[Tensor], list[Tensor], Tensor], None]


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(
            f"Invalid decay value {decay} provided. Please provide a value in [0,1] range."
        )


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """An ``avg_fn``: decay * average + (1 - decay) * parameter."""
    _check_decay(decay)

    @no_grad()
    def ema_update(ema_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        return ema_param * decay + current_param * (1 - decay)

    return ema_update


def get_swa_avg_fn() -> Average:
    """An ``avg_fn``: the mean of all parameters so far."""

    @no_grad()
    def swa_update(averaged_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return swa_update


def _for_several(average: Average) -> Averages:
    @no_grad()
    def update(averages: list[Tensor], current: list[Tensor], num_averaged: Any) -> None:
        for old, new in zip(averages, current, strict=True):
            old.copy_(average(old, new, num_averaged))

    return update


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """A ``multi_avg_fn``: decay * average + (1 - decay) * parameter."""
    return _for_several(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Averages:
    """A ``multi_avg_fn``: the mean of all parameters so far."""
    return _for_several(get_swa_avg_fn())


class AveragedModel(Module):
    """A copy of ``model`` whose parameters are averages: of all updates, unless told otherwise.

    ``avg_fn(average, parameter, count)`` returns the new average of one parameter,
    ``multi_avg_fn(averages, parameters, count)`` changes those of one dtype in place; the first
    update copies.  With ``use_buffers`` buffers are averaged, too, else copied.  ``count`` is a
    tensor, so that nothing is evaluated: updates join the next step's program.  Raises
    AssertionError if both functions are given.

    >>> import minitorch_tvm as mt
    >>> from minitorch_tvm.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    >>> model = mt.nn.Linear(1, 1, bias=False)
    >>> ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    >>> for value in (1.0, 3.0):
    ...     _ = model.requires_grad_(False).weight.fill_(value)
    ...     ema.update_parameters(model)
    >>> ema.module.weight.item(), ema.n_averaged.item()
    (2.0, 2)
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model).to(device=device)
        self.register_buffer("n_averaged", tensor(0, dt.int64, device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged model makes of the arguments."""
        return self.module(*args, **kwargs)

    @no_grad()
    def update_parameters(self, model: Module) -> None:
        """Let the parameters (and buffers) of ``model`` enter the averages."""
        count = self.n_averaged
        # Chosen by the program: whether this is the first update is not asked here.
        first = count == 0
        averages: list[Tensor] = list(self.module.parameters())
        current: list[Tensor] = list(model.parameters())
        old_buffers, buffers = list(self.module.buffers()), list(model.buffers())
        if self.use_buffers:
            averages, current = averages + old_buffers, current + buffers
        if self.multi_avg_fn is None:
            average = self.avg_fn or get_swa_avg_fn()
            for old, new in zip(averages, current, strict=True):
                old.copy_(where(first, new, average(old, new, count).to(old.dtype)))
        else:
            groups: dict[DType, tuple[list[Tensor], list[Tensor]]] = {}
            for old, new in zip(averages, current, strict=True):
                olds, news = groups.setdefault(old.dtype, ([], []))
                olds.append(old)
                news.append(new)
            for olds, news in groups.values():
                self.multi_avg_fn(olds, news, count)
                for old, new in zip(olds, news, strict=True):
                    old.copy_(where(first, new, old))
        if not self.use_buffers:
            for old, new in zip(old_buffers, buffers, strict=True):
                old.copy_(new)
        self.n_averaged += 1


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the running statistics of all BatchNorm layers anew, as means over ``loader``.

    The first entry of batches that are tuples or lists is given to the model.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    was_training = model.training
    model.train()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    for batch in loader:
        entry = batch[0] if isinstance(batch, (list, tuple)) else batch
        model(entry.to(device))
        for layer in layers:
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked.realize("update_bn")  # with all else that is pending
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """From the present rate to ``swa_lr`` (one, or one per group) in ``anneal_epochs`` epochs.

    Along half a cosine or a line (``anneal_strategy``), and staying there.  Raises ValueError for
    other strategies and for negative epochs.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float,
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        for group, lr in zip(
            optimizer.param_groups, per_group("swa_lr", optimizer, swa_lr), strict=True
        ):
            group["swa_lr"] = lr
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self._anneal_strategy = anneal_strategy
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        """How much of the way has been gone after so many steps."""
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return t if self._anneal_strategy == "linear" else (1.0 - math.cos(math.pi * t)) / 2.0

    def get_lr(self) -> list[float]:
        self._asked()
        step = self._step_count - 1
        if not self.anneal_epochs:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self.optimizer.param_groups:
            goal = group["swa_lr"]
            start = goal if before == 1 else (group["lr"] - before * goal) / (1.0 - before)
            rates.append(goal * now + start * (1.0 - now))
        return rates
