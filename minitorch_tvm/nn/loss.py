"""Losses as modules; the formulas stand in :mod:`minitorch_tvm.nn.functional`."""

from __future__ import annotations

from ..tensor import Tensor
from . import functional as F
from .losses import resolve_reduction
from .module import Module


class _Loss(Module):
    reduction: str

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self.reduction = resolve_reduction(size_average, reduce, reduction)


class _WeightedLoss(_Loss):
    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class L1Loss(_Loss):
    """|input - target|, averaged (or summed, or elementwise)."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """A scalar unless ``reduction="none"``."""
        return F.l1_loss(input, target, reduction=self.reduction)


class MSELoss(_Loss):
    """(input - target)**2, averaged (or summed, or elementwise).

    >>> import minitorch_tvm as mt
    >>> mt.nn.MSELoss()(mt.zeros(4), mt.ones(4) * 2)
    tensor(4.)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """A scalar unless ``reduction="none"``."""
        return F.mse_loss(input, target, reduction=self.reduction)


class NLLLoss(_WeightedLoss):
    """Minus the log-probability of each target class; see :func:`functional.nll_loss`."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Log-probabilities [n, c, ...] and int64 targets [n, ...] to a scalar."""
        return F.nll_loss(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


class CrossEntropyLoss(_WeightedLoss):
    """Cross-entropy of softmax(input) and the target; see :func:`functional.cross_entropy`.

    >>> import minitorch_tvm as mt
    >>> loss = mt.nn.CrossEntropyLoss()(mt.zeros(2, 10), mt.tensor([3, 7]))
    >>> round(loss.item(), 4)
    2.3026
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Logits [n, c, ...] and targets (int64 [n, ...] or probabilities) to a scalar."""
        return F.cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy of sigmoid(input), stable for large logits.

    ``weight`` scales the elements, ``pos_weight`` the positive targets (both broadcast).
    """

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Logits and targets in [0, 1] of one shape to a scalar."""
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )
