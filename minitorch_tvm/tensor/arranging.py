"""Methods that take differences, turn, window, split and write parts of tensors."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.bounds import Bounds
from ..core.shape import broadcast, contiguous_strides, numel, wrap_dim
from ..core.spelling import numpy_names
from ..ir.node import Node
from ..ops import arranging as ar
from ..ops import build as b
from ..ops import derived as d
from ..ops import moves as mo
from ..ops import picking as pk
from ..ops.gather import take
from .core import Number, TensorBase, node_of, tensor_of
from .gathering import checked, values_of
from .sorts import Sorts

if TYPE_CHECKING:
    from .tensor import Tensor

_SPLIT_FORMS = (
    "(tuple of ints indices, int dim = 0)",
    "(Tensor tensor_indices_or_sections, int dim = 0)",
    "(int sections, int dim = 0)",
)


class Arranging(Sorts):
    """What :class:`minitorch_tvm.Tensor` offers for parts that are compared, turned or replaced.

    >>> import minitorch_tvm as mt
    >>> mt.tensor([1, 4, 9]).diff()
    tensor([3, 5])
    """

    __slots__ = ()

    # --- sums and products of neighbours ----------------------------------------------------

    def trace(self) -> Tensor:
        """The sum of the diagonal of a matrix; integers sum as int64.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([[1, 2], [3, 4]]).trace()
        tensor(5)
        """
        x = self.node
        if len(x.shape) != 2:
            raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {len(x.shape)}")
        if x.dtype is dt.bool_:
            raise arg.unsupported("trace", x.dtype)
        return self._wrap(ar.trace(x if x.dtype.is_floating_point else b.cast(x, dt.int64)))

    @numpy_names
    def cross(self, other: Tensor, dim: int | None = None) -> Tensor:
        """Cross products of vectors of three elements along ``dim``; other dimensions broadcast.

        Without ``dim`` along the first dimension of size 3.  Raises RuntimeError if there is none.
        """
        y = tensor_of("cross", "other", 1, other)
        if dim is None:
            if 3 not in self.shape:
                raise RuntimeError("no dimension of size 3 in input")
            dim = self.shape.index(3)
        return self._cross(y, arg.integer("cross", "dim", 2, dim))

    def _cross(self, other: Tensor, dim: int) -> Tensor:
        x, y = self.node, other.node
        if len(x.shape) != len(y.shape):
            raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
        if not x.shape:
            raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
        axis = wrap_dim(dim, len(x.shape))
        if x.shape[axis] != 3 or y.shape[axis] != 3:
            raise RuntimeError(
                f"linalg.cross: inputs dimension {dim} must have length 3. Got {x.shape[axis]} and "
                f"{y.shape[axis]}"
            )
        shape = broadcast(x.shape, y.shape)
        if x.dtype is not y.dtype:
            raise RuntimeError(
                f"expected scalar type {x.dtype.torch_name} but found {y.dtype.torch_name}"
            )
        if x.dtype is dt.bool_:
            raise arg.unsupported("cross", x.dtype)
        return self._wrap(ar.cross(b.expand(x, shape), b.expand(y, shape), axis))

    @numpy_names
    def diff(
        self,
        n: int = 1,
        dim: int = -1,
        prepend: Tensor | None = None,
        append: Tensor | None = None,
    ) -> Tensor:
        """Each entry of ``dim`` less the one before it, ``n`` times; of bools, if they differ.

        ``prepend`` and ``append`` are joined to this tensor first.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([1, 4, 9]).diff(prepend=mt.tensor([0]))
        tensor([1, 3, 5])
        """
        x = self.node
        if not x.shape:
            raise RuntimeError("diff expects input to be at least one-dimensional")
        times = arg.integer("diff", "n", 1, n)
        if times < 0:
            raise RuntimeError(f"order must be non-negative but got {times}")
        axis = wrap_dim(arg.integer("diff", "dim", 2, dim), len(x.shape))
        parts = [x]
        for name, more in (("prepend", prepend), ("append", append)):
            if more is not None:
                node = node_of("diff", name, 3, more)
                _joins(x, node, axis)
                parts.insert(0 if name == "prepend" else len(parts), node)
        if times == 0:
            return self._wrap(d.clone(x))
        line = mo.cat(parts, axis) if len(parts) > 1 else x
        return self._wrap(ar.difference(line, axis, times))

    def sum_to_size(self, *size: Any) -> Tensor:
        """Sums over dimensions along which ``size`` would be repeated to have this shape.

        >>> import minitorch_tvm as mt
        >>> mt.ones(2, 3).sum_to_size(1, 3)
        tensor([[2., 2., 2.]])
        """
        x, wanted = self.node, arg.sizes("sum_to_size", "size", size)
        behind = x.shape[len(x.shape) - len(wanted) :]
        fits = len(wanted) <= len(x.shape)
        if not fits or any(n not in (1, m) for n, m in zip(wanted, behind, strict=True)):
            raise RuntimeError(
                f"size {{{list(wanted)}}} is not expandable to size {{{list(x.shape)}}}."
            )
        if wanted == x.shape:
            return self._wrap(d.clone(x))
        if not x.dtype.is_floating_point:  # as sums are
            x = b.cast(x, dt.int64)
        return self._wrap(b.unbroadcast(x, wanted))

    # --- diagonals --------------------------------------------------------------------------

    def diagflat(self, offset: int = 0) -> Tensor:
        """A matrix with all elements of this tensor on a diagonal."""
        return self._wrap(b.reshape(self.node, (self.numel(),))).diag(
            arg.integer("diagflat", "offset", 1, offset)
        )

    def diag_embed(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
        """Matrices, in two new dimensions, with the last dimension of this tensor on a diagonal.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([1, 2]).diag_embed(1)
        tensor([[0, 1, 0],
                [0, 0, 2],
                [0, 0, 0]])
        """
        rank = self.ndim + 1
        first = wrap_dim(arg.integer("diag_embed", "dim1", 2, dim1), rank)
        second = wrap_dim(arg.integer("diag_embed", "dim2", 3, dim2), rank)
        if first == second:
            raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
        x = self.node
        found = mo.on_diagonal(x, arg.integer("diag_embed", "offset", 1, offset))
        rest = iter(range(rank - 2))
        places = {first: rank - 2, second: rank - 1}
        order = [places[k] if k in places else next(rest) for k in range(rank)]
        return self._wrap(b.permute(found, order))

    def fill_diagonal_(self, fill_value: Number, wrap: bool = False) -> Self:
        """Write a number where the positions in all dimensions are equal.

        ``wrap``: in a matrix with more rows than columns the diagonal begins again below.  Raises
        RuntimeError for less than two dimensions, and for more that are not of one size.
        """
        x = self.node
        fill_value = arg.number("fill_diagonal_", "fill_value", 1, fill_value)
        arg.flag("fill_diagonal_", "wrap", 2, wrap)
        if len(x.shape) < 2:
            raise RuntimeError("dimensions must larger than 1")
        if len(x.shape) > 2 and len(set(x.shape)) > 1:
            raise RuntimeError("all dimensions of input must be of equal length")
        new = b.where(ar.on_diagonals(x, wrap), d.lift(fill_value, x.dtype), x)
        return self._assign(new, "fill_diagonal_")

    # --- copies with a part replaced --------------------------------------------------------

    def _with(self, function: str, part: Any, src: Any) -> Tensor:
        """A copy of this tensor in which what ``part`` shows of it is ``src``."""
        source = tensor_of(function, "src", 1, src)
        new = self._wrap(d.clone(self.node))
        view = part(new)
        if view.shape != source.shape:
            raise RuntimeError(
                "expected src to have a size equal to the slice of self. src size = "
                f"{list(source.shape)}, slice size = {list(view.shape)}"
            )
        view.copy_(source)
        return new

    def tril_(self, diagonal: int = 0) -> Self:
        """:meth:`tril` in place."""
        edge = arg.integer("tril_", "diagonal", 1, diagonal)
        return self._assign(d.triangle(self.node, edge, True), "tril_")

    def triu_(self, diagonal: int = 0) -> Self:
        """:meth:`triu` in place."""
        edge = arg.integer("triu_", "diagonal", 1, diagonal)
        return self._assign(d.triangle(self.node, edge, False), "triu_")

    @numpy_names
    def select_scatter(self, src: Tensor, dim: int, index: int) -> Tensor:
        """A copy in which entry ``index`` of ``dim`` is ``src``.

        >>> import minitorch_tvm as mt
        >>> mt.zeros(2, 2).select_scatter(mt.ones(2), 0, 1)
        tensor([[0., 0.],
                [1., 1.]])
        """
        return self._with("select_scatter", lambda x: x.select(dim, index), src)

    @numpy_names
    def slice_scatter(
        self,
        src: Tensor,
        dim: int = 0,
        start: int | None = None,
        end: int | None = None,
        step: int = 1,
    ) -> Tensor:
        """A copy in which the entries ``start:end:step`` of ``dim`` are ``src``."""
        axis = wrap_dim(arg.integer("slice_scatter", "dim", 2, dim), self.ndim)
        if arg.integer("slice_scatter", "step", 5, step) <= 0:
            raise RuntimeError("slice step must be positive")
        index = (slice(None),) * axis + (slice(start, end, step),)
        return self._with("slice_scatter", lambda x: x[index], src)

    def diagonal_scatter(
        self, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
    ) -> Tensor:
        """A copy in which the diagonals of two dimensions are ``src``."""
        return self._with("diagonal_scatter", lambda x: x.diagonal(offset, dim1, dim2), src)

    @numpy_names
    def index_fill(self, dim: int, index: Tensor, value: Number | Tensor) -> Tensor:
        """A copy in which the entries ``index`` (int64, a vector) of ``dim`` are one value.

        Raises IndexError for positions outside of [-size, size).

        >>> import minitorch_tvm as mt
        >>> mt.zeros(2, 3).index_fill(1, mt.tensor([0, 2]), 7.0)
        tensor([[7., 0., 7.],
                [7., 0., 7.]])
        """
        x, places = self.node, node_of("index_fill", "index", 2, index)
        axis = wrap_dim(arg.integer("index_fill", "dim", 1, dim), len(x.shape))
        if not isinstance(value, (TensorBase, bool, int, float)):
            raise arg.no_such_form(
                "index_fill",
                [dim, index, value],
                [f"(int dim, Tensor index, {kind} value)" for kind in ("Tensor", "Number")],
            )
        filler = d.lift(self._operand(value), x.dtype)
        if filler.shape:
            raise RuntimeError(
                "index_fill_ only supports a 0-dimensional value tensor, but got tensor with "
                f"{len(filler.shape)} dimension(s)."
            )
        if places.dtype is not dt.int64:
            raise IndexError("index_fill_(): Expected dtype int64 for index.")
        if len(places.shape) > 1:
            raise RuntimeError("Index has to be a vector/scalar")
        line = x if x.shape else b.reshape(x, (1,))
        size = line.shape[axis]

        def outside(bad: int) -> Exception:
            return IndexError(f"index {bad} is out of bounds for dimension {axis} with size {size}")

        places = checked(b.reshape(places, (numel(places.shape),)), Bounds(-size, size, outside))
        new = pk.put(line, filler, [places], [(axis, 1)], False)
        return self._wrap(b.reshape(new, x.shape))

    @numpy_names
    def index_fill_(self, dim: int, index: Tensor, value: Number | Tensor) -> Self:
        """:meth:`index_fill` in place."""
        return self._assign(self.index_fill(dim, index, value).node, "index_fill_")

    def put(self, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
        """A copy with ``source`` written to, or added at, positions in row-major order (int64).

        Negative ones count from the end.  Raises IndexError for positions out of range.

        >>> import minitorch_tvm as mt
        >>> mt.zeros(2, 2).put(mt.tensor([1, -1]), mt.tensor([5.0, 6.0]))
        tensor([[0., 5.],
                [0., 6.]])
        """
        x, places = self.node, node_of("put", "index", 1, index)
        values = node_of("put", "source", 2, source)
        arg.flag("put", "accumulate", 3, accumulate)
        if places.dtype is not dt.int64:
            raise RuntimeError(
                f"put_(): Expected a long tensor for index, but got {places.dtype.torch_name}"
            )
        if x.dtype is not values.dtype:
            raise RuntimeError(
                "put_(): self and source expected to have the same dtype, but got self.dtype = "
                f"{x.dtype.torch_name} and source.dtype = {values.dtype.torch_name}"
            )
        count, size = numel(places.shape), numel(x.shape)
        if numel(values.shape) != count:
            raise IndexError(
                "put_(): Expected source and index to have the same number of elements, but got "
                f"source.numel() = {numel(values.shape)}, index.numel() = {count}"
            )
        if count and not size:
            raise IndexError("put_(): Tried to put elements into an empty tensor")

        def outside(bad: int) -> Exception:
            return IndexError(
                f"out of range: tried to access index {bad} on a tensor of {size} elements."
            )

        places = checked(b.reshape(places, (count,)), Bounds(-size, size, outside))
        line, values = b.reshape(x, (size,)), b.reshape(values, (count,))
        new = pk.put(line, values, [places], [(0, 1)], accumulate)
        return self._wrap(b.reshape(new, x.shape))

    def put_(self, index: Tensor, source: Tensor, accumulate: bool = False) -> Self:
        """:meth:`put` in place."""
        return self._assign(self.put(index, source, accumulate).node, "put_")

    def masked_scatter(self, mask: Tensor, source: Tensor) -> Tensor:
        """A copy that has the elements of ``source``, in order, where ``mask`` (bool) holds.

        Both broadcast.  Raises RuntimeError if there are fewer, at the next evaluation where the
        mask is itself still to be computed.

        >>> import minitorch_tvm as mt
        >>> mt.zeros(3).masked_scatter(mt.tensor([True, False, True]), mt.tensor([1.0, 2.0, 3.0]))
        tensor([1., 0., 2.])
        """
        x, chosen = self.node, node_of("masked_scatter", "mask", 1, mask)
        given = node_of("masked_scatter", "source", 2, source)
        shape = broadcast(chosen.shape, x.shape)
        if x.dtype is not given.dtype:
            raise RuntimeError(
                "masked_scatter: expected self and source to have same dtypes but got"
                f"{x.dtype.torch_name} and {given.dtype.torch_name}"
            )
        if chosen.dtype is not dt.bool_:
            raise RuntimeError(
                "masked_scatter_ only supports boolean masks, but got mask with dtype "
                f"{chosen.dtype.torch_name}"
            )
        x, chosen = b.expand(x, shape), b.expand(chosen, shape)
        size = numel(given.shape)
        if not numel(shape):
            return self._wrap(d.clone(x))

        def error(_: int) -> Exception:
            return RuntimeError("Number of elements of source < number of ones in mask")

        counts = checked(ar.ranks(chosen), Bounds(0, size + 1, error))
        if not size:  # so no element is chosen
            return self._wrap(b.where(b.eq(b.reshape(counts, shape), b.full_like(counts, 0)), x, x))
        return self._wrap(ar.masked_scatter(x, chosen, given, counts))

    def masked_scatter_(self, mask: Tensor, source: Tensor) -> Self:
        """:meth:`masked_scatter` in place."""
        return self._assign(self.masked_scatter(mask, source).node, "masked_scatter_")

    # --- turning and windows ----------------------------------------------------------------

    def rot90(self, k: int = 1, dims: Any = (0, 1)) -> Tensor:
        """A copy turned by ``k`` times 90 degrees, from the first of two dimensions to the second.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([[1, 2], [3, 4]]).rot90()
        tensor([[2, 4],
                [1, 3]])
        """
        times = arg.integer("rot90", "k", 1, k)
        pair = arg.several("rot90", "dims", 2, dims)
        rank = self.ndim
        if len(pair) != 2:
            raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(pair)}")
        if rank < 2:
            raise RuntimeError(f"expected total dims >= 2, but got total dims = {rank}")
        if pair[0] == pair[1] or abs(pair[0] - pair[1]) == rank:
            raise RuntimeError(
                "expected rotation dims to be different, but got dim0 = "
                f"{pair[0]} and dim1 = {pair[1]}"
            )
        first, second = (wrap_dim(axis, rank) for axis in pair)
        if times % 4 == 1:
            return self.flip(second).transpose(first, second)
        if times % 4 == 2:
            return self.flip(first, second)
        if times % 4 == 3:
            return self.flip(first).transpose(first, second)
        return self._wrap(d.clone(self.node))

    def unfold(self, dimension: int, size: int, step: int) -> Tensor:
        """A view of every ``step``-th window of ``size`` entries; what is in them comes last.

        >>> import minitorch_tvm as mt
        >>> mt.arange(5).unfold(0, 3, 2)
        tensor([[0, 1, 2],
                [2, 3, 4]])
        """
        axis = wrap_dim(arg.integer("unfold", "dimension", 1, dimension), self.ndim)
        wide = arg.integer("unfold", "size", 2, size)
        apart = arg.integer("unfold", "step", 3, step)
        shape = self._node.shape or (1,)
        strides = self._strides or contiguous_strides(shape)
        n = shape[axis]
        if wide < 0:
            raise RuntimeError(f"size is {wide} but must be >= 0")
        if wide > n:
            raise RuntimeError(
                f"maximum size for tensor at dimension {axis} is {n} but size is {wide}"
            )
        if apart <= 0:
            raise RuntimeError(f"step is {apart} but must be > 0")
        count = (n - wide) // apart + 1
        scalar = not self.ndim

        def read(x: Node) -> Node:
            line = b.reshape(x, shape)
            found = ar.windows(line, axis, count, wide, apart)
            return b.reshape(found, (wide,)) if scalar else found

        def write(x: Node, value: Node) -> Node:
            if wide > apart and count > 1:
                raise NotImplementedError(
                    "writing to windows that overlap is not supported: clone() them"
                )
            if scalar:
                return b.reshape(value, x.shape) if wide else x
            return ar.written_windows(x, value, axis, apart)

        steps = [*strides, strides[axis] if self.ndim else 1]
        steps[axis] *= apart
        return self._view(read, write, tuple(steps[1:] if scalar else steps))

    def as_strided(
        self, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
    ) -> Tensor:
        """A view of elements that lie so far apart in memory: i at offset + sum(i * stride).

        It is for reading.  Raises NotImplementedError when it is written to, for tensors that are
        not contiguous, and for places beyond a part of another tensor; RuntimeError for places that
        are not there, and for negative strides.

        >>> import minitorch_tvm as mt
        >>> mt.arange(5).as_strided((3, 3), (1, 1))
        tensor([[0, 1, 2],
                [1, 2, 3],
                [2, 3, 4]])
        """
        sizes = arg.several("as_strided", "size", 1, size)
        steps = arg.several("as_strided", "stride", 2, stride)
        start = 0
        if storage_offset is not None:
            start = arg.integer("as_strided", "storage_offset", 3, storage_offset)
        if len(sizes) != len(steps):
            raise RuntimeError("mismatch in length of strides and shape")
        if any(n < 0 for n in steps):
            raise RuntimeError(
                "as_strided: Negative strides are not supported at the moment, got strides: "
                f"{[*steps]}"
            )
        if start < 0:
            raise RuntimeError(f"Tensor: invalid storage offset {start}")
        arg.bounded(sizes)
        count = self.numel()
        last = start + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
        beyond = numel(sizes) > 0 and last >= count
        part = self._base is not None and self._base.holder.numel() != count
        if not self.is_contiguous() or (part and (beyond or storage_offset is not None)):
            raise NotImplementedError(
                "as_strided(): only of a contiguous tensor that has its memory for itself: call "
                "contiguous() or clone(), whose elements follow each other"
            )
        if beyond:
            item = self.element_size()
            raise RuntimeError(
                f"setStorage: sizes {[*sizes]}, strides {[*steps]}, storage offset {start}, and "
                f"itemsize {item} requiring a storage size of {(last + 1) * item} are out of "
                f"bounds for storage of size {count * item}"
            )

        def read(x: Node) -> Node:
            places = b.full(sizes, start, dt.int64)
            for dim, step in enumerate(steps):
                along = b.iota(sizes, dim, dt.int64)
                places = b.add(places, b.mul(along, b.full_like(along, step)))
            return take(b.reshape(x, (count,)), places, 0)

        def write(x: Node, value: Node) -> Node:
            raise NotImplementedError("writing to what as_strided() shows is not supported")

        return self._view(read, write, steps)

    # --- pieces -----------------------------------------------------------------------------

    @numpy_names
    def tensor_split(self, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
        """Views of ``n`` pieces whose sizes differ by one at most, or of those between positions.

        A tensor of positions is evaluated.

        >>> import minitorch_tvm as mt
        >>> [t.tolist() for t in mt.arange(5).tensor_split(2)]
        [[0, 1, 2], [3, 4]]
        >>> [t.tolist() for t in mt.arange(5).tensor_split((1, 3))]
        [[0], [1, 2], [3, 4]]
        """
        if not self.ndim:
            raise RuntimeError(
                "tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 "
                "dims"
            )
        axis = wrap_dim(arg.integer("tensor_split", "dim", 2, dim), self.ndim)
        given = indices_or_sections
        if isinstance(given, TensorBase):
            if given.dtype is not dt.int64:
                raise RuntimeError(
                    "tensor_split expected tensor_indices_or_sections to have dtype of long, but "
                    f"got {given.dtype.torch_name}"
                )
            if given.ndim > 1:
                raise RuntimeError(
                    "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or "
                    f"one-dimensional tensor, but got a tensor with {given.ndim} dims"
                )
            given = values_of(given.node, "tensor_split").tolist()
        if not (isinstance(given, (tuple, list)) or hasattr(given, "__index__")):
            raise arg.no_such_form("tensor_split", [given], _SPLIT_FORMS)
        cuts = arg.one_or_several("tensor_split", "indices_or_sections", 1, given)
        n = self.shape[axis]
        if isinstance(cuts, builtins.int):
            if cuts <= 0:
                raise RuntimeError(f"number of sections must be larger than 0, got {cuts}")
            small, more = divmod(n, cuts)
            cuts = tuple(k * small + min(k, more) for k in range(1, cuts))
        ends: list[int | None] = [*cuts, None]
        pieces, start = [], 0
        for end in ends:
            pieces.append(self[(slice(None),) * axis + (slice(start, end),)])
            start = end or 0
        return tuple(pieces)

    def hsplit(self, *indices_or_sections: Any) -> tuple[Tensor, ...]:
        """:meth:`tensor_split` along dimension 1, of a vector along dimension 0."""
        return self._split_along("hsplit", 1 if self.ndim > 1 else 0, indices_or_sections)

    def vsplit(self, *indices_or_sections: Any) -> tuple[Tensor, ...]:
        """:meth:`tensor_split` along dimension 0, of two dimensions and more."""
        return self._split_along("vsplit", 0, indices_or_sections)

    def dsplit(self, *indices_or_sections: Any) -> tuple[Tensor, ...]:
        """:meth:`tensor_split` along dimension 2, of three dimensions and more."""
        return self._split_along("dsplit", 2, indices_or_sections)

    def _split_along(self, name: str, axis: int, given: tuple[Any, ...]) -> tuple[Tensor, ...]:
        least = {"hsplit": 1, "vsplit": 2, "dsplit": 3}[name]
        if self.ndim < least:
            raise RuntimeError(
                f"torch.{name} requires a tensor with at least {least} dimension, but got a tensor "
                f"with {self.ndim} dimensions!"
            )
        if len(given) == 1 and not isinstance(given[0], (tuple, list)):
            count = arg.integer(name, "sections", 1, given[0])
            n = self.shape[axis]
            if count <= 0 or n % count:
                raise RuntimeError(
                    f"torch.{name} attempted to split along dimension {axis}, but the size of the "
                    f"dimension {n} is not divisible by the split_size {count}!"
                )
            return self.tensor_split(count, axis)
        return self.tensor_split(arg.sizes(name, "indices", given), axis)

    def argwhere(self) -> Tensor:
        """Where elements are not zero, int64 [count, dimensions] (evaluates)."""
        return self.nonzero()


def _joins(x: Node, more: Node, axis: int) -> None:
    """RuntimeError unless ``more`` can be joined to x along ``axis``."""
    if len(more.shape) != len(x.shape):
        raise RuntimeError("diff expects prepend or append to be the same dimension as input")
    for k, (n, m) in enumerate(zip(x.shape, more.shape, strict=True)):
        if k != axis and n != m:
            raise RuntimeError(
                "diff expects the shape of tensor to prepend or append to match that of input "
                f"except along the differencing dimension; input.size({k}) = {n}, but got "
                f"tensor.size({k}) = {m}"
            )
