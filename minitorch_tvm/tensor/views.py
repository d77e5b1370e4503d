"""Views: the methods that show a tensor's elements in another shape or order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core import arguments as arg
from ..core import strides as st
from ..core.arguments import Dims
from ..core.dtype import DType
from ..core.shape import (
    Shape,
    check_permutation,
    flattened,
    infer_reshape,
    squeezed,
    swapped_dims,
    unsqueezed,
    wrap_dim,
    wrap_dims,
)
from ..core.spelling import numpy_names
from ..ops import build as b
from ..ops import derived as d
from . import at_once, indexing
from .core import TensorBase, node_of

if TYPE_CHECKING:
    from .tensor import Tensor


class Views(TensorBase):
    """What :class:`minitorch_tvm.Tensor` offers to look at its elements differently.

    A view follows its base and writes to it.  ``reshape`` and ``flatten`` return views exactly
    where PyTorch's do, and copies elsewhere.

    >>> import minitorch_tvm as mt
    >>> x = mt.zeros(2, 2)
    >>> x.flatten()[0] = 1
    >>> x.T.flatten()[1] = 2
    >>> x
    tensor([[1., 0.],
            [0., 0.]])
    """

    __slots__ = ()

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one size may be -1.

        A view where :meth:`view` is possible, else a copy.
        """
        sizes = infer_reshape(self._node.shape, arg.sizes("reshape", "shape", shape))
        return self._reshaped(sizes, copy=True)

    def _reshaped(self, sizes: Shape, *, copy: bool) -> Tensor:
        known = strides = self._strides
        if known is not None:
            strides = st.viewed(self._node.shape, known, sizes)
            if strides is None:
                if copy:
                    return self._wrap(b.reshape(self.node, sizes))
                raise RuntimeError(
                    "view size is not compatible with input tensor's size and stride (at least one "
                    "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
                )
        return self._same_elements(sizes, strides)

    def view(self, *shape: Any) -> Tensor:
        """The same elements in another shape, never copied; one size may be -1.

        Raises RuntimeError where dimensions to be merged are not evenly spaced in memory (after a
        transpose, for example).  ``view(dtype)`` is not supported.
        """
        if len(shape) == 1 and isinstance(shape[0], DType):
            raise TypeError("view(dtype) is not supported; use to(dtype)")
        sizes = infer_reshape(self._node.shape, arg.sizes("view", "size", shape))
        return self._reshaped(sizes, copy=False)

    def view_as(self, other: Tensor) -> Tensor:
        """This tensor in the shape of ``other``."""
        return self.view(node_of("view_as", "other", 1, other).shape)

    def reshape_as(self, other: Tensor) -> Tensor:
        """As :meth:`reshape`, in the shape of ``other``."""
        return self.reshape(node_of("reshape_as", "other", 1, other).shape)

    def ravel(self) -> Tensor:
        """All elements in one dimension; a view where that is possible."""
        return self.reshape(-1)

    def permute(self, *dims: Any) -> Tensor:
        """Reorder the dimensions."""
        shape = self._node.shape
        order = check_permutation(arg.sizes("permute", "dims", dims), len(shape))
        return self._view(
            lambda x: at_once.permuted(x, order),
            lambda _, v: b.permute(v, [order.index(i) for i in range(len(order))]),
            st.permuted(shape, self._strides, order),
        )

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Swap two dimensions."""
        shape = self._node.shape
        first = wrap_dim(arg.integer("transpose", "dim0", 1, dim0), len(shape))
        second = wrap_dim(arg.integer("transpose", "dim1", 2, dim1), len(shape))
        order = swapped_dims(len(shape), first, second) if first != second else range(len(shape))
        return self._view(
            lambda x: at_once.permuted(x, order),
            lambda _, v: d.transpose(v, first, second),
            st.swapped(shape, self._strides, first, second),
        )

    def t(self) -> Tensor:
        """Transpose of a matrix; of a vector a view that is like it."""
        if self.ndim > 2:
            raise RuntimeError(
                f"t() expects a tensor with <= 2 dimensions, but self is {self.ndim}D"
            )
        return self.transpose(0, 1) if self.ndim == 2 else self._alike()

    @property
    def T(self) -> Tensor:
        """All dimensions reversed."""
        if self.ndim < 2:
            return self._alike()
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self) -> Tensor:
        """The last two dimensions swapped."""
        return self.transpose(-1, -2)

    def expand(self, *sizes: Any) -> Tensor:
        """Repeat dimensions of size one without copying; -1 keeps a size.

        Raises RuntimeError on in-place operations on the result, not on one repetition of it.
        """
        target = arg.sizes("expand", "size", sizes)
        part = self._view(lambda x: d.expand(x, target), d.unexpand, None)
        part._strides = st.expanded(self._node.shape, self._strides, part._node.shape)
        return part

    def expand_as(self, other: Tensor) -> Tensor:
        """This tensor expanded to the shape of ``other``."""
        return self.expand(node_of("expand_as", "other", 1, other).shape)

    def broadcast_to(self, *shape: Any) -> Tensor:
        """As :meth:`expand`."""
        return self.expand(*shape)

    def _alike(self) -> Tensor:
        return self._same_elements(self._node.shape, self._strides)

    def _same_elements(self, sizes: Shape, strides: st.Strides | None) -> Tensor:
        return self._view(
            lambda x: at_once.reshaped(x, sizes), lambda x, v: b.reshape(v, x.shape), strides
        )

    @numpy_names
    def squeeze(self, dim: Dims = None) -> Tensor:
        """Drop dimensions of size one (all, or those listed)."""
        shape, strides = self._node.shape, self._strides
        dims = arg.dims("squeeze", dim)
        if strides is not None:
            strides = st.squeezed(shape, strides, wrap_dims(dims, len(shape)))
        return self._same_elements(squeezed(shape, dims), strides)

    @numpy_names
    def unsqueeze(self, dim: int) -> Tensor:
        """Insert a dimension of size one."""
        shape = self._node.shape
        axis = wrap_dim(arg.integer("unsqueeze", "dim", 1, dim), len(shape) + 1)
        strides = st.unsqueezed(shape, self._strides, axis)
        return self._same_elements(unsqueezed(shape, axis), strides)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """Merge the dimensions start_dim..end_dim into one: a view or a copy, as of reshape."""
        first = arg.integer("flatten", "start_dim", 1, start_dim)
        last = arg.integer("flatten", "end_dim", 2, end_dim)
        return self._reshaped(flattened(self._node.shape, first, last), copy=True)

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Views of consecutive pieces along ``dim``: of one size (the last smaller) or listed."""
        wanted = arg.one_or_several("split", "split_size", 1, split_size)
        shape = self._node.shape
        axis = wrap_dim(arg.integer("split", "dim", 2, dim), len(shape))
        return tuple([self._part(region) for region in indexing.pieces(shape, axis, wanted)])

    @numpy_names
    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """At most ``chunks`` views of equal size (the last may be smaller) along ``dim``."""
        chunks = arg.integer("chunk", "chunks", 1, chunks)
        if chunks <= 0:
            raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
        n = self.shape[wrap_dim(arg.integer("chunk", "dim", 2, dim), self.ndim)]
        return self.split(max(1, -(-n // chunks)), dim)
