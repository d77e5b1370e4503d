"""Dropout, of elements and of channels."""

from __future__ import annotations

from ..tensor import Tensor
from . import functional as F
from .functions import check_probability
from .module import Module


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        check_probability(p)
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """In training, zero each element with probability ``p`` and scale the rest by 1 / (1 - p).

    In evaluation it returns its input.  Raises ValueError unless 0 <= p <= 1.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Dropout(0.5).eval()(mt.ones(3))
    tensor([1., 1., 1.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """In training, zero channels of [n, c, l] (or [c, l]); see :class:`Dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """In training, zero channels of [n, c, h, w] (or [n, c, l]); see :class:`Dropout`.

    >>> import minitorch_tvm as mt
    >>> y = mt.nn.Dropout2d(0.5)(mt.ones(8, 4, 2, 2))
    >>> bool((y.amax((2, 3)) == y.amin((2, 3))).all())
    True
    """

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """In training, zero channels of [n, c, d, h, w] (or [c, d, h, w]); see :class:`Dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean and variance behind SELU; see :func:`functional.alpha_dropout`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.AlphaDropout(0.5).eval()(mt.ones(3))
    tensor([1., 1., 1.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """As :class:`AlphaDropout`, of whole channels [n, c, ...]."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.feature_alpha_dropout(input, self.p, self.training, self.inplace)
