"""Flatten and Unflatten."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.shape import infer_reshape, wrap_dim
from ..tensor import Tensor
from .module import Module


class Flatten(Module):
    """Merge the dimensions start_dim..end_dim (by default all but the first).

    >>> import minitorch_tvm as mt
    >>> mt.nn.Flatten()(mt.zeros(2, 3, 4)).shape
    torch.Size([2, 12])
    """

    _plain = ("start_dim", "end_dim"), ()

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        """``input`` with fewer dimensions."""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Split dimension ``dim`` into ``unflattened_size`` (one size may be -1).

    >>> import minitorch_tvm as mt
    >>> mt.nn.Unflatten(1, (3, 4))(mt.zeros(2, 12)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        """``input`` with more dimensions."""
        at = wrap_dim(self.dim, input.ndim)
        sizes = infer_reshape((input.shape[at],), tuple(self.unflattened_size))
        return input.reshape(*input.shape[:at], *sizes, *input.shape[at + 1 :])

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
