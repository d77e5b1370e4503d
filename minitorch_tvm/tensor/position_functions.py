"""Free functions with PyTorch's names: positions, movement, order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import arguments as arg
from ..core.dtype import DType
from ..core.errors import warn
from ..core.spelling import numpy_names
from ..random import Generator
from .core import Number, TensorBase, input_of
from .functions import cat
from .pairs import ValuesIndices
from .tensor import Tensor

concat = concatenate = cat


def tensors_of(function: str, tensors: Any) -> list[Tensor]:
    """The elements of a sequence of tensors; TypeError for others, RuntimeError for none."""
    if not isinstance(tensors, (tuple, list)):
        raise arg.wrong_kind(function, "tensors", 1, "tuple of Tensors", tensors)
    for i, t in enumerate(tensors):
        if not isinstance(t, TensorBase):
            raise TypeError(
                f"expected Tensor as element {i} in argument 0, but got {type(t).__name__}"
            )
    if not tensors:
        raise RuntimeError(f"{function} expects a non-empty TensorList")
    return list(tensors)


# --- positions ----------------------------------------------------------------------------------


@numpy_names
def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Elements at ``index`` along ``dim``, see :meth:`Tensor.gather`.

    >>> import minitorch_tvm as mt
    >>> mt.gather(mt.tensor([[1, 2], [3, 4]]), 1, mt.tensor([[0, 0], [1, 0]]))
    tensor([[1, 1],
            [4, 3]])
    """
    return input_of("gather", input).gather(dim, index)


@numpy_names
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """As :func:`gather`, but other dimensions broadcast; without ``dim`` of all elements."""
    return input_of("take_along_dim", input).take_along_dim(indices, dim)


def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements at ``index`` (int64), counted in row-major order."""
    return input_of("take", input).take(index)


@numpy_names
def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | Number | None = None,
    *,
    value: Number | None = None,
    reduce: str | None = None,
) -> Tensor:
    """A copy with ``src`` (or a number) written at ``index``, see :meth:`Tensor.scatter`."""
    return input_of("scatter", input).scatter(dim, index, src, value=value, reduce=reduce)


@numpy_names
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy with ``src`` added at ``index`` along ``dim``.

    >>> import minitorch_tvm as mt
    >>> mt.scatter_add(mt.zeros(3), 0, mt.tensor([2, 0, 2]), mt.ones(3))
    tensor([1., 0., 2.])
    """
    return input_of("scatter_add", input).scatter_add(dim, index, src)


@numpy_names
def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1
) -> Tensor:
    """A copy with alpha * ``source`` added to the entries ``index`` of ``dim``."""
    return input_of("index_add", input).index_add(dim, index, source, alpha=alpha)


@numpy_names
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy with ``source`` written to the entries ``index`` of ``dim``."""
    return input_of("index_copy", input).index_copy(dim, index, source)


def index_put(
    input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False
) -> Tensor:
    """A copy with ``values`` written at, or added to, ``indices`` of the first dimensions."""
    return input_of("index_put", input).index_put(indices, values, accumulate)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where ``mask`` (bool, evaluated) holds, as a vector."""
    return input_of("masked_select", input).masked_select(mask)


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Where elements are not zero (evaluates), see :meth:`Tensor.nonzero`."""
    return input_of("nonzero", input).nonzero(as_tuple=as_tuple)


# --- movement -----------------------------------------------------------------------------------


def flip(input: Tensor, dims: Sequence[int]) -> Tensor:
    """A copy in which the elements run backwards along ``dims``.

    >>> import minitorch_tvm as mt
    >>> mt.flip(mt.tensor([[1, 2], [3, 4]]), (0, 1))
    tensor([[4, 3],
            [2, 1]])
    """
    return input_of("flip", input).flip(arg.several("flip", "dims", 2, dims))


def fliplr(input: Tensor) -> Tensor:
    """:func:`flip` along dimension 1."""
    return input_of("fliplr", input).fliplr()


def flipud(input: Tensor) -> Tensor:
    """:func:`flip` along dimension 0."""
    return input_of("flipud", input).flipud()


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """A copy moved by ``shifts`` along ``dims``; what leaves at one end enters at the other."""
    return input_of("roll", input).roll(shifts, dims)


def tile(input: Tensor, dims: Sequence[int]) -> Tensor:
    """A copy with ``input`` so many times along each of the last dimensions."""
    return input_of("tile", input).tile(arg.several("tile", "dims", 2, dims))


@numpy_names
def repeat_interleave(
    input: Tensor,
    repeats: int | Tensor | None = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Tensor:
    """Every entry of ``dim`` several times in a row; of ``repeats`` alone, the entries' numbers."""
    x = input_of("repeat_interleave", input)
    if repeats is None:
        count = x.shape[0] if x.ndim else 1
        numbers = Tensor(range(count)).long() if count else x.long()
        return numbers.repeat_interleave(x, 0, output_size=output_size)
    return x.repeat_interleave(repeats, dim, output_size=output_size)


@numpy_names
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of the entries of ``dim``."""
    return input_of("unbind", input).unbind(dim)


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """A view with dimensions moved to other places; the others keep their order."""
    return input_of("movedim", input).movedim(source, destination)


moveaxis = movedim


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """A view with two dimensions swapped."""
    return input_of("swapaxes", input).swapaxes(axis0, axis1)


swapdims = swapaxes


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix (a copy), or a matrix with a vector on its diagonal.

    >>> import minitorch_tvm as mt
    >>> mt.diag(mt.tensor([1, 2]))
    tensor([[1, 0],
            [0, 2]])
    """
    return input_of("diag", input).diag(diagonal)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the diagonals of two dimensions, as the last dimension of the result."""
    return input_of("diagonal", input).diagonal(offset, dim1, dim2)


@numpy_names
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A view of ``length`` entries of ``dim`` from ``start`` on."""
    return input_of("narrow", input).narrow(dim, start, length)


@numpy_names
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """A view of entry ``index`` of ``dim``, without that dimension."""
    return input_of("select", input).select(dim, index)


def unflatten(input: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """A view in which ``dim`` is several dimensions; one of the sizes may be -1."""
    return input_of("unflatten", input).unflatten(dim, sizes)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along dimension 1; vectors and numbers along dimension 0."""
    parts = [t if t.ndim else t.reshape(1) for t in tensors_of("hstack", tensors)]
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along dimension 0, vectors as rows.

    >>> import minitorch_tvm as mt
    >>> mt.vstack([mt.tensor([1, 2]), mt.tensor([3, 4])])
    tensor([[1, 2],
            [3, 4]])
    """
    parts = tensors_of("vstack", tensors)
    return cat([t if t.ndim > 1 else t.reshape(1, t.numel()) for t in parts], 0)


def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """Views of vectors, each along a dimension of its own, repeated along those of the others.

    ``indexing`` "ij": in the order given; "xy": the first two dimensions swapped.

    >>> import minitorch_tvm as mt
    >>> rows, columns = mt.meshgrid(mt.arange(2), mt.arange(3), indexing="ij")
    >>> columns
    tensor([[0, 1, 2],
            [0, 1, 2]])
    """
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
    lines = tensors_of("meshgrid", list(given))
    if indexing is None:
        warn(
            "meshgrid: newer versions of PyTorch require the argument indexing; without it, "
            '"ij" is meant'
        )
        indexing = "ij"
    for t in lines:
        if t.ndim > 1:
            raise RuntimeError(
                "torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: "
                f"{list(t.shape)}"
            )
        if t.dtype is not lines[0].dtype:
            raise RuntimeError("meshgrid expects all tensors to have the same dtype")
    if arg.text("meshgrid", "indexing", None, indexing) not in ("ij", "xy"):
        raise RuntimeError(
            'torch.meshgrid: indexing must be one of "xy" or "ij", but received: ' + indexing
        )
    swap = indexing == "xy" and len(lines) > 1
    if swap:
        lines[:2] = lines[1::-1]
    shape = [t.numel() for t in lines]
    grids = []
    for i, t in enumerate(lines):
        place = [1] * len(lines)
        place[i] = t.numel()
        grids.append(t.reshape(place).expand(shape))
    if swap:
        grids[:2] = grids[1::-1]
    return tuple(grids)


# --- order --------------------------------------------------------------------------------------


@numpy_names
def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Sums of the elements up to each along ``dim``."""
    return input_of("cumsum", input).cumsum(dim, dtype=dtype)


@numpy_names
def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Products of the elements up to each along ``dim``."""
    return input_of("cumprod", input).cumprod(dim, dtype=dtype)


@numpy_names
def sort(
    input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> ValuesIndices:
    """(values, indices) in order along ``dim``; equal elements keep theirs.

    >>> import minitorch_tvm as mt
    >>> mt.sort(mt.tensor([3, 1, 2]))[0]
    tensor([1, 2, 3])
    """
    return input_of("sort", input).sort(dim, descending, stable=stable)


@numpy_names
def argsort(
    input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> Tensor:
    """Positions along ``dim`` in the order of the elements; equal elements keep theirs."""
    return input_of("argsort", input).argsort(dim, descending, stable=stable)


@numpy_names
def topk(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> ValuesIndices:
    """(values, indices) of the ``k`` largest (or smallest) along ``dim``, in order."""
    return input_of("topk", input).topk(k, dim, largest, sorted)


@numpy_names
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """(values, indices) of the ``k``-th smallest element along ``dim``, counted from 1."""
    return input_of("kthvalue", input).kthvalue(k, dim, keepdim)


@numpy_names
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The element in the middle, the lower one of two; with ``dim`` a (values, indices) pair."""
    return input_of("median", input).median(dim, keepdim)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The different elements in ascending order (evaluates), see :meth:`Tensor.unique`."""
    return input_of("unique", input).unique(sorted, return_inverse, return_counts, dim)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each of 0, 1, ... occurs in a vector of integers (evaluates it).

    >>> import minitorch_tvm as mt
    >>> mt.bincount(mt.tensor([0, 2, 2]))
    tensor([1, 0, 2])
    """
    return input_of("bincount", input).bincount(weights, minlength)


def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Positions drawn with these weights (which are evaluated), see :meth:`Tensor.multinomial`."""
    x = input_of("multinomial", input)
    return x.multinomial(num_samples, replacement, generator=generator)
