"""Free functions with PyTorch's names: order, searches, counts, and statistics of vectors."""

from __future__ import annotations

from typing import Any

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.bounds import Bounds
from ..core.shape import numel
from ..core.spelling import numpy_names
from ..ir.node import Node
from ..ops import build as b
from ..ops import derived as d
from ..ops import order as od
from ..ops import picking as pk
from .core import Number, TensorBase, input_of, node_of
from .gathering import checked
from .pairs import MinMax, ValuesIndices
from .tensor import Tensor

# --- searching ----------------------------------------------------------------------------------

_SEARCH = (
    "bool out_int32 = False, bool right = False, str side = None, Tensor sorter = None, "
    "Tensor out = None)"
)
_BUCKETS = "Tensor boundaries, *, bool out_int32 = False, bool right = False"
_ISIN = "*, bool assume_unique = False, bool invert = False, Tensor out = None)"


def searchsorted(
    sorted_sequence: Tensor,
    values: Tensor | Number,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many elements of a sorted sequence are less than each value: where it could be inserted.

    ``right``, or ``side`` "right": how many are less or equal.  The sequence is a vector, or has
    the leading dimensions of the values.  ``sorter`` (int64) brings it into order.

    >>> import minitorch_tvm as mt
    >>> mt.searchsorted(mt.tensor([1, 3, 5]), mt.tensor([3, 4]), right=True)
    tensor([2, 2])
    """
    name = "torch.searchsorted():"
    if not isinstance(sorted_sequence, TensorBase) or not isinstance(
        values, (TensorBase, int, float)
    ):
        forms = (f"(Tensor sorted_sequence, {kind}, *, {_SEARCH}" for kind in _KINDS)
        raise arg.no_such_form("searchsorted", [sorted_sequence, values], list(forms))
    arg.flag("searchsorted", "right", None, right)
    line = sorted_sequence.node
    x = values.node if isinstance(values, TensorBase) else None
    if side is not None:
        if side not in ("left", "right"):
            raise RuntimeError(f"{name} side can only be 'left' or 'right' but got {side}")
        if side == "left" and right:
            raise RuntimeError(
                f"{name} side and right can't be set to opposites, got side of left while right "
                "was True"
            )
        right = side == "right"
    if not line.shape:
        raise RuntimeError(
            f"{name} boundaries tensor should have positive dimension, but got 0 dimension"
        )
    shape = () if x is None else x.shape
    if not shape and len(line.shape) != 1:
        raise RuntimeError(
            f"{name} input value can be a scalar only when boundaries tensor dimension is 1, but "
            f"we got boundaries tensor dim({len(line.shape)}) and input value's dim(0) numel(1)"
        )
    if len(line.shape) > 1 and line.shape[:-1] != shape[:-1]:
        raise RuntimeError(
            f"{name} boundaries tensor should be 1 dimension or the first N-1 dimensions of "
            "boundaries tensor and input value tensor must match, but we got boundaries tensor "
            f"{list(line.shape)} and input value tensor {list(shape)}"
        )
    arg.flag("searchsorted", "out_int32", None, out_int32)
    if sorter is not None:
        line = _in_order(line, node_of("searchsorted", "sorter", 3, sorter))
    return _positions(line, values, right, out_int32, "searchsorted_out_cpu")


_KINDS = ("Tensor input", "Number self")


def _in_order(line: Node, order: Node) -> Node:
    name = "torch.searchsorted():"
    if order.shape != line.shape:
        raise RuntimeError(
            f"{name} boundary and sorter must have the same size, but got boundary tensor "
            f"{list(line.shape)}and got sorter tensor {list(order.shape)}"
        )
    if order.dtype is not dt.int64:
        raise RuntimeError(
            f"{name} sorter must be a tensor of long dtype but got dtype {order.dtype.torch_name}"
        )
    last = len(line.shape) - 1

    def outside(_: int) -> Exception:
        return RuntimeError(f"{name} sorter index out of range")

    return pk.gather(line, checked(order, Bounds(0, line.shape[last], outside)), last)


def _positions(line: Node, values: Any, right: bool, narrow: bool, kernel: str) -> Tensor:
    """Where values are in a sorted line, of the type to which both promote."""
    given = values.node if isinstance(values, TensorBase) else values
    dtype = d.result_dtype(line, given)
    if dtype is dt.bool_:
        raise arg.unsupported(kernel, dtype)
    found = od.search(d.lift(line, dtype), d.term(given, dtype), right)
    return Tensor._wrap(b.cast(found, dt.int32) if narrow else found)


def bucketize(
    input: Tensor | Number, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """In which of the intervals between sorted ``boundaries`` (a vector) each element is.

    Interval k ends with boundary k, or begins with boundary k - 1 if ``right``.

    >>> import minitorch_tvm as mt
    >>> mt.bucketize(mt.tensor([0.5, 1.0, 9.0]), mt.tensor([1.0, 2.0]))
    tensor([0, 0, 2])
    """
    if not isinstance(boundaries, TensorBase) or not isinstance(input, (TensorBase, int, float)):
        forms = [f"(Tensor input, {_BUCKETS}, Tensor out = None)", f"(Number self, {_BUCKETS})"]
        raise arg.no_such_form("bucketize", [input, boundaries], forms)
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    arg.flag("bucketize", "out_int32", None, out_int32)
    arg.flag("bucketize", "right", None, right)
    return _positions(boundaries.node, input, right, out_int32, "searchsorted_out_cpu")


def isin(
    elements: Tensor | Number,
    test_elements: Tensor | Number,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Whether each element is one of ``test_elements``; ``invert``: whether it is none.

    ``assume_unique`` changes nothing.  One of the two may be a number.

    >>> import minitorch_tvm as mt
    >>> mt.isin(mt.tensor([1, 2, 3]), mt.tensor([3, 1]))
    tensor([ True, False,  True])
    """
    given = [x.node if isinstance(x, TensorBase) else x for x in (elements, test_elements)]
    if not all(isinstance(x, (Node, int, float)) for x in given) or not any(
        isinstance(x, Node) for x in given
    ):
        kinds = (
            "Tensor elements, Tensor test_elements",
            "Number element, Tensor test_elements",
            "Tensor elements, Number test_element",
        )
        forms = [f"({kind}, {_ISIN}" for kind in kinds]
        raise arg.no_such_form("isin", [elements, test_elements], forms)
    arg.flag("isin", "assume_unique", None, assume_unique)
    arg.flag("isin", "invert", None, invert)
    for x in given:
        if isinstance(x, bool) or (isinstance(x, Node) and x.dtype is dt.bool_):
            raise RuntimeError("Unsupported input type encountered for isin(): Bool")
    dtype = d.result_dtype(*given)
    x, line = (d.term(n, dtype) for n in given)
    found = od.is_in(x, b.reshape(line, (numel(line.shape),)))
    return Tensor._wrap(b.logical_not(found) if invert else found)


# --- order --------------------------------------------------------------------------------------


@numpy_names
def cummax(input: Tensor, dim: int) -> ValuesIndices:
    """(values, indices) of the largest element up to each along ``dim``.

    >>> import minitorch_tvm as mt
    >>> mt.cummax(mt.tensor([1, 3, 2]), 0).indices
    tensor([0, 1, 1])
    """
    return input_of("cummax", input).cummax(dim)


@numpy_names
def cummin(input: Tensor, dim: int) -> ValuesIndices:
    """(values, indices) of the lowest element up to each along ``dim``."""
    return input_of("cummin", input).cummin(dim)


@numpy_names
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Logarithms of the sums of e ** input up to each element along ``dim``."""
    return input_of("logcumsumexp", input).logcumsumexp(dim)


@numpy_names
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """(min, max) along ``dim``, or of all elements.

    >>> import minitorch_tvm as mt
    >>> mt.aminmax(mt.tensor([3, 1, 2])).max
    tensor(3)
    """
    return input_of("aminmax", input).aminmax(dim=dim, keepdim=keepdim)


def msort(input: Tensor) -> Tensor:
    """The elements in ascending order along dimension 0."""
    return input_of("msort", input).msort()


@numpy_names
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """(values, indices) of the most frequent element along ``dim``, see :meth:`Tensor.mode`."""
    return input_of("mode", input).mode(dim, keepdim)


@numpy_names
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The element in the middle of what is not NaN; with ``dim`` a (values, indices) pair."""
    return input_of("nanmedian", input).nanmedian(dim, keepdim)


@numpy_names
def quantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """What a part ``q`` of the elements along ``dim`` is not above, see :meth:`Tensor.quantile`."""
    return input_of("quantile", input).quantile(q, dim, keepdim, interpolation=interpolation)


@numpy_names
def nanquantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """As :func:`quantile`, of what is not NaN."""
    return input_of("nanquantile", input).nanquantile(q, dim, keepdim, interpolation=interpolation)


def histc(input: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:
    """How many elements are in each of ``bins`` equal parts, see :meth:`Tensor.histc`."""
    return input_of("histc", input).histc(bins, min, max)


def unique_consecutive(
    input: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The elements that differ from the one before (evaluates)."""
    return input_of("unique_consecutive", input).unique_consecutive(
        return_inverse, return_counts, dim
    )


@numpy_names
def scatter_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """A copy in which what goes to one place is reduced, see :meth:`Tensor.scatter_reduce`.

    >>> import minitorch_tvm as mt
    >>> index, source = mt.tensor([0, 0, 1]), mt.tensor([2.0, 4.0, 5.0])
    >>> mt.scatter_reduce(mt.ones(2), 0, index, source, "mean", include_self=False)
    tensor([3., 5.])
    """
    return input_of("scatter_reduce", input).scatter_reduce(
        dim, index, src, reduce, include_self=include_self
    )


@numpy_names
def index_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """A copy in which entries of ``source`` are reduced per place of ``dim``."""
    return input_of("index_reduce", input).index_reduce(
        dim, index, source, reduce, include_self=include_self
    )


@numpy_names
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Entries of ``dim`` made no longer than ``maxnorm``, see :meth:`Tensor.renorm`."""
    return input_of("renorm", input).renorm(p, dim, maxnorm)
