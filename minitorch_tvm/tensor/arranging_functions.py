"""Free functions with PyTorch's names: tensors taken apart, turned, and put together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.device import require_cpu
from ..core.dtype import DType
from ..core.shape import Shape, Size, broadcast
from ..core.spelling import numpy_names
from ..ops import build as b
from .core import Number, TensorBase, input_of, leaf_of, tensor_of
from .functions import cat, stack
from .position_functions import meshgrid, tensors_of, vstack
from .tensor import Tensor

row_stack = vstack


def _all_tensors(function: str, tensors: tuple[Any, ...]) -> list[Tensor]:
    """The tensors of ``f(x, y)`` or ``f((x, y))``."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    return tensors_of(function, tensors) if tensors else []


def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A view of elements that are so far apart in memory, see :meth:`Tensor.as_strided`."""
    return input_of("as_strided", input).as_strided(size, stride, storage_offset)


# --- parts --------------------------------------------------------------------------------------


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix; integers sum as int64."""
    return input_of("trace", input).trace()


@numpy_names
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """Cross products of vectors of three elements along ``dim``, see :meth:`Tensor.cross`.

    >>> import minitorch_tvm as mt
    >>> mt.cross(mt.tensor([1.0, 0.0, 0.0]), mt.tensor([0.0, 1.0, 0.0]))
    tensor([0., 0., 1.])
    """
    return input_of("cross", input).cross(other, dim)


@numpy_names
def diff(
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Each entry of ``dim`` less the one before it, ``n`` times, see :meth:`Tensor.diff`."""
    return input_of("diff", input).diff(n, dim, prepend, append)


def argwhere(input: Tensor) -> Tensor:
    """Where elements are not zero, int64 [count, dimensions] (evaluates).

    >>> import minitorch_tvm as mt
    >>> mt.argwhere(mt.tensor([0, 3, 4]))
    tensor([[1],
            [2]])
    """
    return input_of("argwhere", input).argwhere()


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """A copy that has the elements of ``source``, in order, where ``mask`` holds."""
    return input_of("masked_scatter", input).masked_scatter(mask, source)


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """A copy with ``source`` written to, or added at, positions in row-major order."""
    return input_of("put", input).put(index, source, accumulate)


@numpy_names
def index_fill(input: Tensor, dim: int, index: Tensor, value: Number | Tensor) -> Tensor:
    """A copy in which the entries ``index`` of ``dim`` are one value."""
    return input_of("index_fill", input).index_fill(dim, index, value)


@numpy_names
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy in which entry ``index`` of ``dim`` is ``src``."""
    return input_of("select_scatter", input).select_scatter(src, dim, index)


@numpy_names
def slice_scatter(
    input: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """A copy in which the entries ``start:end:step`` of ``dim`` are ``src``.

    >>> import minitorch_tvm as mt
    >>> mt.slice_scatter(mt.zeros(4), mt.ones(2), 0, 1, 3)
    tensor([0., 1., 1., 0.])
    """
    return input_of("slice_scatter", input).slice_scatter(src, dim, start, end, step)


def diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """A copy in which the diagonals of two dimensions are ``src``."""
    return input_of("diagonal_scatter", input).diagonal_scatter(src, offset, dim1, dim2)


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last dimension on a diagonal, see :meth:`Tensor.diag_embed`."""
    return input_of("diag_embed", input).diag_embed(offset, dim1, dim2)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements on a diagonal.

    >>> import minitorch_tvm as mt
    >>> mt.diagflat(mt.tensor([[1, 2]]))
    tensor([[1, 0],
            [0, 2]])
    """
    return input_of("diagflat", input).diagflat(offset)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """A copy turned by ``k`` times 90 degrees, see :meth:`Tensor.rot90`."""
    return input_of("rot90", input).rot90(k, dims)


def ravel(input: Tensor) -> Tensor:
    """All elements in one dimension; a view where that is possible."""
    return input_of("ravel", input).ravel()


def t(input: Tensor) -> Tensor:
    """A view of a matrix with its dimensions swapped; vectors and numbers as they are."""
    return input_of("t", input).t()


@numpy_names
def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of pieces of nearly one size, or between positions, see :meth:`Tensor.tensor_split`."""
    return input_of("tensor_split", input).tensor_split(indices_or_sections, dim)


def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """:func:`tensor_split` along dimension 1, of a vector along dimension 0."""
    return input_of("hsplit", input).hsplit(indices_or_sections)


def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """:func:`tensor_split` along dimension 0, of two dimensions and more."""
    return input_of("vsplit", input).vsplit(indices_or_sections)


def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """:func:`tensor_split` along dimension 2, of three dimensions and more."""
    return input_of("dsplit", input).dsplit(indices_or_sections)


# --- dimensions in front and behind -------------------------------------------------------------


def _at_least(function: str, tensors: Any, rank: int) -> Any:
    many = len(tensors) != 1 or isinstance(tensors[0], (tuple, list))
    if not many and not isinstance(tensors[0], TensorBase):
        raise arg.no_such_form(function, tensors, ["(Tensor input)", "(tuple of Tensors tensors)"])
    found = tuple([_padded(t, rank) for t in _all_tensors(function, tensors)])
    return found if many else found[0]


def _padded(t: Tensor, rank: int) -> Tensor:
    """``t`` with ones in front, and of a matrix that is to have three dimensions behind."""
    shape = tuple(t.shape)
    if len(shape) >= rank:
        return t
    if rank == 3 and shape:
        return t.reshape((1, *shape, 1) if len(shape) == 1 else (*shape, 1))
    return t.reshape((1,) * (rank - len(shape)) + shape)


def atleast_1d(*tensors: Any) -> Any:
    """Numbers as vectors of one element; of several tensors (or a sequence) a tuple.

    >>> import minitorch_tvm as mt
    >>> mt.atleast_1d(mt.tensor(2.0))
    tensor([2.])
    """
    return _at_least("atleast_1d", tensors, 1)


def atleast_2d(*tensors: Any) -> Any:
    """Vectors as matrices of one row; of several tensors (or a sequence) a tuple."""
    return _at_least("atleast_2d", tensors, 2)


def atleast_3d(*tensors: Any) -> Any:
    """Matrices with a last dimension of size one, vectors also with a first; of several a tuple."""
    return _at_least("atleast_3d", tensors, 3)


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Views of all tensors in the shape to which they broadcast.

    >>> import minitorch_tvm as mt
    >>> [t.shape for t in mt.broadcast_tensors(mt.ones(3), mt.ones(2, 1))]
    [torch.Size([2, 3]), torch.Size([2, 3])]
    """
    given = _all_tensors("broadcast_tensors", tensors)
    shape: Shape = ()
    for t in given:
        shape = broadcast(shape, tuple(t.shape))
    return tuple([t.expand(shape) for t in given])


def broadcast_shapes(*shapes: Any) -> Size:
    """The shape to which tensors of these shapes (tuples, lists or ints) broadcast.

    Raises RuntimeError for what is no shape and where they do not fit, ValueError for negative
    sizes.

    >>> broadcast_shapes((2, 1), 3)
    torch.Size([2, 3])
    """
    result: Shape = ()
    for number, shape in enumerate(shapes):
        if not isinstance(shape, (int, tuple, list)):
            raise RuntimeError(
                "Input shapes should be of type ints, a tuple of ints, or a list of ints, got "
                f"{shape}"
            )
        sizes = arg.one_or_several("broadcast_shapes", "shapes", 1, shape)
        sizes = (sizes,) if isinstance(sizes, int) else sizes
        for k, n in enumerate(reversed(sizes), 1):
            if n < 0:
                raise ValueError("Attempting to broadcast a dimension with negative length!")
            if k <= len(result) and 1 not in (n, result[-k]) and n != result[-k]:
                raise RuntimeError(
                    f"Attempting to broadcast a dimension of length {n} at -{k}! Mismatching "
                    f"argument at index {number} had {sizes}; but expected shape should be "
                    f"broadcastable to {list(result)}"
                )
        result = broadcast(result, sizes)
    return Size(result)


# --- tensors put together -----------------------------------------------------------------------


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along dimension 1; vectors and numbers as columns.

    >>> import minitorch_tvm as mt
    >>> mt.column_stack((mt.tensor([1, 2]), mt.tensor([3, 4])))
    tensor([[1, 3],
            [2, 4]])
    """
    parts = tensors_of("column_stack", tensors)
    return cat([t if t.ndim > 1 else t.reshape(t.numel(), 1) for t in parts], 1)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along dimension 2, after :func:`atleast_3d`."""
    return cat([_padded(t, 3) for t in tensors_of("dstack", tensors)], 2)


def block_diag(*tensors: Any) -> Tensor:
    """A matrix with these matrices (numbers and vectors are rows) one below and behind another.

    >>> import minitorch_tvm as mt
    >>> mt.block_diag(mt.tensor([[1, 2]]), mt.tensor(3))
    tensor([[1, 2, 0],
            [0, 0, 3]])
    """
    given = _all_tensors("block_diag", tensors)
    for i, t in enumerate(given):
        if t.ndim > 2:
            raise RuntimeError(
                "torch.block_diag: Input tensors must have 2 or fewer dimensions. Input "
                f"{i} has {t.ndim} dimensions"
            )
    nodes = [_padded(t, 2).node for t in given]
    if not nodes:
        return Tensor._wrap(b.full((1, 0), 0.0, dt.float32))
    dtype = dt.result_type((n.dtype, 2) for n in nodes)
    columns = sum(n.shape[1] for n in nodes)
    rows, left = [], 0
    for n in nodes:
        line = b.full((n.shape[0], columns), False if dtype is dt.bool_ else 0, dtype)
        rows.append(b.insert(line, b.cast(n, dtype), (0, left), (1, 1)))
        left += n.shape[1]
    return Tensor._wrap(b.cat(rows, 0) if len(rows) > 1 else rows[0])


def cartesian_prod(*tensors: Any) -> Tensor:
    """All ways to take one element of each vector, as rows; of one vector the vector.

    >>> import minitorch_tvm as mt
    >>> mt.cartesian_prod(mt.tensor([1, 2]), mt.tensor([3, 4]))
    tensor([[1, 3],
            [1, 4],
            [2, 3],
            [2, 4]])
    """
    given = _all_tensors("meshgrid", tensors) or tensors_of("meshgrid", ())
    for t in given:
        if t.ndim != 1:
            raise RuntimeError(f"Expect a 1D vector, but got shape {list(t.shape)}")
    if len(given) == 1:
        return given[0]
    grids = meshgrid(given, indexing="ij")
    return stack([t.flatten() for t in grids], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All ways to take ``r`` elements of a vector, in their order, as rows.

    ``with_replacement``: each may come several times.

    >>> import minitorch_tvm as mt
    >>> mt.combinations(mt.tensor([1, 2, 3]))
    tensor([[1, 2],
            [1, 3],
            [2, 3]])
    """
    x = input_of("combinations", input)
    count = arg.integer("combinations", "r", 2, r)
    arg.flag("combinations", "with_replacement", 3, with_replacement)
    if x.ndim != 1:
        raise RuntimeError(f"Expect a 1D vector, but got shape {list(x.shape)}")
    if count < 0:
        raise RuntimeError(f"Expect a non-negative number, but got {count}")
    if count == 0:
        return Tensor._wrap(b.full((0,), 0, x.dtype))
    ways = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(ways(range(x.numel()), count))
    places = Tensor._wrap(leaf_of(rows or [[]], dt.int64))
    return x[places.reshape(len(rows), count)]


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers N - 1, ..., 1, 0 of a vector's elements as rows, or 0, 1, ... if ``increasing``.

    >>> import minitorch_tvm as mt
    >>> mt.vander(mt.tensor([1, 2, 3]))
    tensor([[1, 1, 1],
            [4, 2, 1],
            [9, 3, 1]])
    """
    line = tensor_of("vander", "x", 1, x)
    if line.ndim != 1:
        raise RuntimeError("x must be a one-dimensional tensor.")
    count = line.numel() if N is None else arg.integer("vander", "N", 2, N)
    arg.flag("vander", "increasing", 3, increasing)
    if count < 0:
        raise RuntimeError("N must be non-negative.")
    kind = line.dtype if line.dtype.is_floating_point else dt.int64
    shape = (line.numel(), count)
    if not count:
        return Tensor._wrap(b.full(shape, 0, kind))
    ones = Tensor._wrap(b.full((shape[0], 1), 1, kind))
    factors = line.reshape(-1, 1).expand(shape[0], count - 1)
    powers = cat([ones, factors.to(kind)], 1).cumprod(1)
    return powers if increasing else powers.flip(1)


def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Positions in row-major order as positions along each dimension of a ``shape``.

    What is outside counts on from the other end.

    >>> import minitorch_tvm as mt
    >>> mt.unravel_index(mt.tensor([5, 7]), (3, 4))
    (tensor([1, 1]), tensor([1, 3]))
    """
    places = tensor_of("unravel_index", "indices", 1, indices)
    if places.dtype.is_floating_point or places.dtype is dt.bool_:
        raise TypeError(
            f"expected 'indices' to be integer dtype, but got torch.{places.dtype.name}"
        )
    sizes = arg.one_or_several("unravel_index", "shape", 2, shape)
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    if any(n < 0 for n in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {sizes}")
    found = []
    for size in reversed(sizes):
        found.append(places % size)
        places = places.div(size, rounding_mode="floor")
    return tuple(reversed(found))


# --- positions in triangles ---------------------------------------------------------------------


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType = dt.int64, device: Any = None
) -> Tensor:
    """Where a matrix of this size is on or below a diagonal, [2, count], row by row.

    >>> import minitorch_tvm as mt
    >>> mt.tril_indices(2, 2)
    tensor([[0, 1, 1],
            [0, 0, 1]])
    """
    return _triangle("tril_indices", row, col, offset, dtype, device, True)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType = dt.int64, device: Any = None
) -> Tensor:
    """Where a matrix of this size is on or above a diagonal, [2, count], row by row."""
    return _triangle("triu_indices", row, col, offset, dtype, device, False)


def _triangle(
    function: str, row: Any, col: Any, offset: Any, dtype: DType, device: Any, lower: bool
) -> Tensor:
    require_cpu(device, function)
    rows, columns = arg.integer(function, "row", 1, row), arg.integer(function, "col", 2, col)
    shift = arg.integer(function, "offset", 3, offset)
    for name, n in (("row", rows), ("col", columns)):
        if n < 0:
            raise RuntimeError(f"{name} must be non-negative, got{n}")
    if dtype not in (dt.int32, dt.int64):
        raise arg.unsupported(function, dtype)
    places = (np.tril_indices if lower else np.triu_indices)(rows, shift, columns)
    return Tensor._wrap(leaf_of(np.stack(places), dtype))
