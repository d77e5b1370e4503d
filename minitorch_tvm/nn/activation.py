"""Activation functions as modules."""

from __future__ import annotations

from ..tensor import Tensor
from . import functional as F
from .module import Module


class ReLU(Module):
    """max(x, 0), elementwise.

    >>> import minitorch_tvm as mt
    >>> mt.nn.ReLU()(mt.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    _plain = ("inplace",), ()

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.relu(input, self.inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Tanh(Module):
    """Hyperbolic tangent, elementwise."""

    _plain = (), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return input.tanh()


class Sigmoid(Module):
    """1 / (1 + exp(-x)), elementwise."""

    _plain = (), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return input.sigmoid()


class GELU(Module):
    """x times the standard normal distribution function at x, elementwise.

    ``approximate="tanh"`` uses the approximation by tanh (:func:`functional.gelu`).

    >>> import minitorch_tvm as mt
    >>> mt.nn.GELU()(mt.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """

    _plain = ("approximate",), ()

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Softmax(Module):
    """exp(x) normalised to sum to one along ``dim``.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Softmax(dim=0)(mt.zeros(4))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.softmax(input, self.dim, _stacklevel=5)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """Logarithm of the softmax along ``dim``."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.log_softmax(input, self.dim, _stacklevel=5)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
