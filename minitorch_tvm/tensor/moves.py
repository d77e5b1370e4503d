"""Methods that move and repeat elements, and views of one entry or one diagonal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.arguments import Dims
from ..core.shape import contiguous_strides, infer_reshape, numel, wrap_dim
from ..core.spelling import numpy_names
from ..ir.node import Node
from ..ops import build as b
from ..ops import moves as mo
from . import at_once
from .core import TensorBase, leaf_of
from .gathering import index_select, values_of
from .picks import Picks

if TYPE_CHECKING:
    from .tensor import Tensor


def _dims(function: str, argument: str, position: int, value: Any) -> tuple[int, ...]:
    given = arg.one_or_several(function, argument, position, value)
    return (given,) if isinstance(given, int) else given


class Moves(Picks):
    """What :class:`minitorch_tvm.Tensor` offers to move and repeat its elements.

    >>> import minitorch_tvm as mt
    >>> mt.arange(4).roll(1).flip(0)
    tensor([2, 1, 0, 3])
    """

    __slots__ = ()

    # --- copies -----------------------------------------------------------------------------

    def flip(self, *dims: Any) -> Tensor:
        """A copy in which the elements run backwards along ``dims``."""
        given = arg.sizes("flip", "dims", dims)
        rank = len(self._node.shape)
        wrapped = [wrap_dim(d, rank) for d in given]
        for d in wrapped:
            if wrapped.count(d) > 1:
                raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
        return self._wrap(mo.flip(self.node, wrapped if rank else ()))

    def fliplr(self) -> Tensor:
        """:meth:`flip` along dimension 1."""
        if self.ndim < 2:
            raise RuntimeError("Input must be >= 2-d.")
        return self.flip(1)

    def flipud(self) -> Tensor:
        """:meth:`flip` along dimension 0."""
        if self.ndim < 1:
            raise RuntimeError("Input must be >= 1-d.")
        return self.flip(0)

    def roll(self, shifts: int | tuple[int, ...], dims: Dims = None) -> Tensor:
        """A copy moved by ``shifts`` along ``dims``; what leaves at one end enters at the other.

        Without ``dims`` all elements are moved in row-major order.
        """
        by = _dims("roll", "shifts", 1, shifts)
        x = self.node
        axes = () if dims is None else _dims("roll", "dims", 2, dims)
        if not axes and len(by) == 1:
            flat = b.reshape(x, (numel(x.shape),))
            moved = at_once.rolled(flat, by, (0,)) or mo.roll(flat, by, (0,))
            return self._wrap(b.reshape(moved, x.shape))
        if len(axes) != len(by):
            raise RuntimeError(
                f"shifts and dimensions must align. shifts: {len(by)}, dims:{len(axes)}"
            )
        if not x.shape:
            raise IndexError(f"Dimension specified as {axes[0]} but tensor has no dimensions")
        along = [wrap_dim(d, len(x.shape)) for d in axes]
        return self._wrap(at_once.rolled(x, by, along) or mo.roll(x, by, along))

    def repeat(self, *repeats: Any) -> Tensor:
        """A copy with this tensor so many times along each dimension; new ones come first.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([1, 2]).repeat(2, 2)
        tensor([[1, 2, 1, 2],
                [1, 2, 1, 2]])
        """
        times = arg.sizes("repeat", "repeats", repeats)
        shape = self._node.shape
        if len(times) < len(shape):
            raise RuntimeError(
                "Number of dimensions of repeat dims can not be smaller than number of dimensions "
                "of tensor"
            )
        padded = (1,) * (len(times) - len(shape)) + shape
        arg.bounded(tuple(n * k for n, k in zip(padded, times, strict=True)))
        return self._wrap(mo.repeat(self.node, times))

    def tile(self, *dims: Any) -> Tensor:
        """As :meth:`repeat`; where fewer numbers than dimensions are given, the first are 1."""
        times = arg.sizes("tile", "dims", dims)
        return self.repeat((1,) * (self.ndim - len(times)) + times)

    @numpy_names
    def repeat_interleave(
        self, repeats: int | Tensor, dim: int | None = None, *, output_size: int | None = None
    ) -> Tensor:
        """Every entry of ``dim`` (every element, without it) several times in a row.

        ``repeats`` is an int, or a tensor with a number for each entry; a tensor is evaluated, as
        the shape of the result depends on it.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([1, 2]).repeat_interleave(2)
        tensor([1, 1, 2, 2])
        """
        x = self.node
        if dim is None:
            x, axis = b.reshape(x, (numel(x.shape),)), 0
        else:
            axis = wrap_dim(arg.integer("repeat_interleave", "dim", 2, dim), len(x.shape))
            x = x if x.shape else b.reshape(x, (1,))
        if isinstance(repeats, TensorBase):
            result = index_select(x, axis, _repeated(repeats.node, x.shape[axis]))
        else:
            times = arg.integer("repeat_interleave", "repeats", 1, repeats)
            if times < 0:
                raise RuntimeError("Repeats must be non-negative")
            result = mo.repeat_each(x, times, axis)
        if output_size is not None and result.shape[axis] != output_size:
            raise RuntimeError("allocated size does not match required size")
        return self._wrap(result)

    def diag(self, diagonal: int = 0) -> Tensor:
        """The diagonal of a matrix (a copy), or a matrix with this vector on its diagonal."""
        offset = arg.integer("diag", "diagonal", 1, diagonal)
        if self.ndim == 1:
            return self._wrap(mo.on_diagonal(self.node, offset))
        if self.ndim == 2:
            return self._wrap(mo.diagonal(self.node, offset))
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {self.ndim}D")

    # --- views ------------------------------------------------------------------------------

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """A view of the diagonals of two dimensions, as the last dimension of the result.

        ``offset`` above zero is above the main diagonal.
        """
        shape = self._node.shape
        rank = len(shape)
        k = arg.integer("diagonal", "offset", 1, offset)
        first = wrap_dim(arg.integer("diagonal", "dim1", 2, dim1), rank)
        second = wrap_dim(arg.integer("diagonal", "dim2", 3, dim2), rank)
        if first == second:
            raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
        rest = [d for d in range(rank) if d not in (first, second)]
        order = (*rest, first, second)
        inverse = tuple(order.index(d) for d in range(rank))
        known = self._strides or contiguous_strides(shape)

        def read(x: Node) -> Node:
            return mo.diagonal(b.permute(x, order), k)

        def write(x: Node, value: Node) -> Node:
            if 0 in (known[first], known[second]):
                raise NotImplementedError(
                    "writing to a diagonal of an expanded tensor is not supported: clone() it"
                )
            return b.permute(mo.with_diagonal(b.permute(x, order), value, k), inverse)

        return self._view(read, write, (*[known[d] for d in rest], known[first] + known[second]))

    @numpy_names
    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """A view of ``length`` entries of ``dim`` from ``start`` on."""
        if not self.ndim:
            raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
        axis = wrap_dim(arg.integer("narrow", "dim", 1, dim), self.ndim)
        first = arg.integer("narrow", "start", 2, start)
        count = arg.integer("narrow", "length", 3, length)
        n = self._node.shape[axis]
        if count < 0:
            raise RuntimeError("narrow(): length must be non-negative.")
        if not -n <= first <= n:
            raise IndexError(
                f"start out of range (expected to be in range of [{-n}, {n}], but got {first})"
            )
        first += n if first < 0 else 0
        if first + count > n:
            raise RuntimeError(f"start ({first}) + length ({count}) exceeds dimension size ({n}).")
        return self[(slice(None),) * axis + (slice(first, first + count),)]

    @numpy_names
    def select(self, dim: int, index: int) -> Tensor:
        """A view of entry ``index`` of ``dim``, without that dimension."""
        if not self.ndim:
            raise IndexError("select() cannot be applied to a 0-dim tensor.")
        axis = wrap_dim(arg.integer("select", "dim", 1, dim), self.ndim)
        at = arg.integer("select", "index", 2, index)
        n = self._node.shape[axis]
        if not -n <= at < n:
            raise IndexError(
                f"select(): index {at} out of range for tensor of size "
                f"{list(self._node.shape)} at dimension {axis}"
            )
        return self[(slice(None),) * axis + (at,)]

    @numpy_names
    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """Views of the entries of ``dim``."""
        if not self.ndim:
            raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
        axis = wrap_dim(arg.integer("unbind", "dim", 1, dim), self.ndim)
        return tuple(self.select(axis, i) for i in range(self._node.shape[axis]))

    def movedim(self, source: int | tuple[int, ...], destination: int | tuple[int, ...]) -> Tensor:
        """A view with dimensions moved to other places; the others keep their order."""
        if isinstance(source, (tuple, list)) != isinstance(destination, (tuple, list)):
            forms = [f"({kind} source, {kind} destination)" for kind in ("int", "tuple of ints")]
            raise arg.no_such_form("movedim", [source, destination], forms)
        given = _dims("movedim", "source", 1, source)
        wanted = _dims("movedim", "destination", 2, destination)
        if len(given) != len(wanted):
            raise RuntimeError(
                "movedim: Invalid source or destination dims: source "
                f"({list(given)} dims) should contain the same number of dims as destination "
                f"({list(wanted)} dims)"
            )
        rank = self.ndim
        places = [wrap_dim(d, rank) for d in given], [wrap_dim(d, rank) for d in wanted]
        names = ("source", "destination")
        for name, dims, wrapped in zip(names, (given, wanted), places, strict=True):
            if len(set(wrapped)) != len(wrapped):
                raise RuntimeError(f"movedim: repeated dim in `{name}` ({list(dims)})")
        if not rank:
            return self._same_elements((), None)
        rest = iter(d for d in range(rank) if d not in places[0])
        to = dict(zip(places[1], places[0], strict=True))
        return self.permute([to[d] if d in to else next(rest) for d in range(rank)])

    moveaxis = movedim

    def swapaxes(self, axis0: int, axis1: int) -> Tensor:
        """As :meth:`transpose`."""
        return self.transpose(axis0, axis1)

    swapdims = swapaxes

    def unflatten(self, dim: int, sizes: tuple[int, ...]) -> Tensor:
        """A view in which ``dim`` is several dimensions; one of the sizes may be -1."""
        axis = wrap_dim(arg.integer("unflatten", "dim", 1, dim), self.ndim)
        parts = arg.several("unflatten", "sizes", 2, sizes)
        if not parts:
            raise RuntimeError("unflatten: sizes must be non-empty")
        shape = self._node.shape
        n = shape[axis] if shape else 1
        try:
            parts = infer_reshape((n,), tuple(parts))
        except RuntimeError as error:
            if "only one dimension" in str(error):
                raise
            raise RuntimeError(
                f"unflatten: Provided sizes {list(parts)} don't multiply up to the size of dim "
                f"{axis} ({n}) in the input tensor"
            ) from None
        return self.view((*shape[:axis], *parts, *shape[axis + 1 :]))


def _repeated(repeats: Node, count: int) -> Node:
    """Positions for an index_select that repeats each of ``count`` entries so many times."""
    if repeats.dtype not in (dt.int32, dt.int64):
        raise arg.unsupported("repeat_interleave_cpu", repeats.dtype)
    if len(repeats.shape) > 1:
        raise RuntimeError("repeats must be 0-dim or 1-dim tensor")
    size = numel(repeats.shape)
    if size == 1 and count != 1:
        repeats = b.expand(b.reshape(repeats, (1,)), (count,))
    elif size != count:
        raise RuntimeError(
            "repeats must have the same size as input along dim, but got repeats.size(0) = "
            f"{size} and input.size(0) = {count}"
        )
    times = values_of(repeats, "repeat_interleave").reshape(-1)
    if times.size and times.min() < 0:
        raise RuntimeError("repeats can not be negative")
    places = np.repeat(np.arange(count), times)
    return leaf_of(places, dt.int64)
