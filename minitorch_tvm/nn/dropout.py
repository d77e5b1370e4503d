"""Dropout."""

from __future__ import annotations

from ..tensor import Tensor
from . import functional as F
from .functions import check_probability
from .module import Module


class Dropout(Module):
    """In training, zero each element with probability ``p`` and scale the rest by 1 / (1 - p).

    In evaluation it returns its input.  Raises ValueError unless 0 <= p <= 1.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Dropout(0.5).eval()(mt.ones(3))
    tensor([1., 1., 1.])
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        check_probability(p)
        self.p = p
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.dropout(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"
