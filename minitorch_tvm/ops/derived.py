"""PyTorch's functions on nodes: promotion and broadcasting on top of the primitives.

Operands are nodes or Python numbers.  A number becomes a runtime scalar of the result's dtype, so
its value is never part of the program key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..core import dtype as dt
from ..core.arguments import Dims, in_64_bits, unsupported
from ..core.dtype import DType
from ..core.errors import warn
from ..core.shape import (
    Shape,
    broadcast,
    infer_reshape,
    numel,
    swapped_dims,
    wrap_dim,
    wrap_dims,
)
from ..ir.node import Node, apply, scalar
from ..ir.op import Op
from . import build as b
from .composite import composite

Number = bool | int | float
Operand = Node | Number


def _priority(x: Node) -> int:
    return 2 if x.shape else 1


def result_dtype(*operands: Operand) -> DType:
    """``torch.result_type`` of nodes and Python numbers."""
    return dt.result_type(
        (x.dtype, _priority(x)) if isinstance(x, Node) else (dt.of_number(x), 0) for x in operands
    )


_SAFE_FLOAT, _SAFE_INT = 1e38, 1 << 31
_OF_INTS = frozenset((dt.float32, dt.float64, dt.int32, dt.int64))


def _number_like(x: Number, dtype: DType) -> Node | None:
    """``x`` as a runtime scalar of a tensor's own type, where that is plainly what it becomes."""
    kind = type(x)
    if kind is float:
        if dtype.category is not dt.Category.FLOAT or not -_SAFE_FLOAT < x < _SAFE_FLOAT:
            return None
    elif kind is not int or dtype not in _OF_INTS or not -_SAFE_INT <= x < _SAFE_INT:
        return None
    return scalar(x, dtype)


def _like(x: Operand, dtype: DType) -> Node | None:
    """``x`` as a node if it is of this type, or a number that plainly becomes so."""
    if isinstance(x, Node):
        return x if x.dtype is dtype else None
    return _number_like(x, dtype)


def lift(x: Operand, dtype: DType) -> Node:
    """``x`` as a node of ``dtype``; a number becomes a runtime scalar (truncated for integers).

    Raises RuntimeError for a number that ``dtype`` cannot hold, OverflowError for an int that no
    type can.
    """
    if isinstance(x, Node):
        return x if x.dtype is dtype else b.cast(x, dtype)
    known = _number_like(x, dtype)
    if known is not None:
        return known
    if isinstance(x, int):
        in_64_bits(x)
    if not fits(x, dtype):
        raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow: {x}")
    if dtype.category is dt.Category.INT:
        return scalar(int(x), dtype)
    return scalar(bool(x) if dtype is dt.bool_ else x, dtype)


_FLOAT32_END = 2.0**128 - 2.0**103
"""What is rounded to infinity from there on."""


def fits(x: Operand, dtype: DType) -> bool:
    """False for a number outside the range of ``dtype``."""
    if isinstance(x, Node) or dtype is dt.bool_:
        return True
    if dtype.is_floating_point:
        return dtype is not dt.float32 or not _FLOAT32_END <= abs(x) < math.inf
    low, high = dtype.range
    return low <= x < high


def term(x: Operand, dtype: DType) -> Node:
    """:func:`lift` for arithmetic: numbers wrap, or become infinite, as a tensor's elements do."""
    if isinstance(x, float) and dtype.is_floating_point and not fits(x, dtype):
        return lift(math.copysign(math.inf, x), dtype)
    if not (isinstance(x, Node) or fits(x, dtype)):
        if isinstance(x, int):
            in_64_bits(x)
        low, high = dtype.range
        x = (int(x) - low) % (high - low) + low
    return lift(x, dtype)


def _alike(op: Op, x: Operand, y: Operand) -> Node | None:
    """``op`` of operands that need no promotion and are not bool: nearly all that are met."""
    if isinstance(x, Node):
        dtype = x.dtype
        if isinstance(y, Node):
            return apply(op, x, y) if y.dtype is dtype and dtype is not dt.bool_ else None
        other = _number_like(y, dtype)
        return None if other is None else apply(op, x, other)
    if isinstance(y, Node):
        other = _number_like(x, y.dtype)
        return None if other is None else apply(op, other, y)
    return None


def _promoted(op: Op, x: Operand, y: Operand) -> Node:
    dtype = result_dtype(x, y)
    return apply(op, term(x, dtype), term(y, dtype))


def _is_bool(x: Operand) -> bool:
    return x.dtype is dt.bool_ if isinstance(x, Node) else isinstance(x, bool)


def add(x: Operand, y: Operand) -> Node:
    """x + y (logical or of two bools)."""
    return _alike(b.ADD, x, y) or _promoted(b.OR if _is_bool(x) and _is_bool(y) else b.ADD, x, y)


def sub(x: Operand, y: Operand) -> Node:
    """x - y; raises RuntimeError for two bools."""
    known = _alike(b.SUB, x, y)
    if known is not None:
        return known
    no_bools(x, y)
    return _promoted(b.SUB, x, y)


def no_bools(x: Operand, y: Operand) -> None:
    """RuntimeError if one of the operands of a difference is bool."""
    if _is_bool(x) and _is_bool(y):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` "
            "or `logical_xor()` operator instead."
        )
    if _is_bool(x) or _is_bool(y):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are "
            "trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )


def mul(x: Operand, y: Operand) -> Node:
    """x * y (logical and of two bools)."""
    return _alike(b.MUL, x, y) or _promoted(b.AND if _is_bool(x) and _is_bool(y) else b.MUL, x, y)


def to_float(x: Operand, *others: Operand) -> DType:
    """Result dtype of a function that is floating point whatever its operands."""
    dtype = result_dtype(x, *others)
    return dtype if dtype.is_floating_point else dt.float32


def div(x: Operand, y: Operand) -> Node:
    """x / y; integers divide as floating point."""
    if (x if isinstance(x, Node) else y).dtype.is_floating_point:  # type: ignore[union-attr]
        known = _alike(b.DIV, x, y)
        if known is not None:
            return known
    dtype = to_float(x, y)
    return apply(b.DIV, term(x, dtype), term(y, dtype))


def neg(x: Node) -> Node:
    """-x; raises RuntimeError for bool."""
    if x.dtype is dt.bool_:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead."
        )
    if x.dtype.is_unsigned:
        return b.sub(b.full_like(x, 0), x)
    return b.neg(x)


def maximum(x: Operand, y: Operand) -> Node:
    """Elementwise larger; NaN if either is."""
    if _both_bool(x, y):
        return b.logical_or(x, y)  # type: ignore[arg-type]
    return _alike(b.MAXIMUM, x, y) or _promoted(b.MAXIMUM, x, y)


def minimum(x: Operand, y: Operand) -> Node:
    """Elementwise smaller; NaN if either is."""
    if _both_bool(x, y):
        return b.logical_and(x, y)  # type: ignore[arg-type]
    return _alike(b.MINIMUM, x, y) or _promoted(b.MINIMUM, x, y)


def _both_bool(x: Operand, y: Operand) -> bool:
    return isinstance(x, Node) and isinstance(y, Node) and _is_bool(x) and _is_bool(y)


def compare(kind: str, x: Operand, y: Operand) -> Node:
    """One of eq, ne, lt, le, gt, ge; the result is bool."""
    op, turned = _COMPARISONS[kind]
    if turned:
        if isinstance(x, Node) and isinstance(y, Node) and x.shape != y.shape:
            broadcast(x.shape, y.shape)  # whose error names the operands in this order
        x, y = y, x
    known = _alike(op, x, y)
    if known is not None:
        return known
    dtype = result_dtype(x, y)
    if dtype is dt.bool_:
        dtype = dt.uint8
    if not (dtype.is_floating_point or (fits(x, dtype) and fits(y, dtype))):
        dtype = dt.int64  # a number beyond the tensor's type still compares as a number
    return apply(op, _for_compare(x, dtype), _for_compare(y, dtype))


_COMPARISONS = {
    "eq": (b.EQ, False),
    "ne": (b.NE, False),
    "lt": (b.LT, False),
    "le": (b.LE, False),
    "gt": (b.LT, True),
    "ge": (b.LE, True),
}


def _for_compare(x: Operand, dtype: DType) -> Node:
    if isinstance(x, bool):
        x = int(x)
    return term(x, dtype) if dtype.is_floating_point else lift(x, dtype)


def logical_xor(x: Node, y: Node) -> Node:
    """Exactly one of two bools."""
    return b.logical_and(b.logical_or(x, y), b.logical_not(b.logical_and(x, y)))


def cast_float(x: Node) -> Node:
    """x, converted to float32 if it is not floating point."""
    return x if x.dtype.is_floating_point else b.cast(x, dt.float32)


def unary_float(op: Op, x: Node) -> Node:
    """A floating point function; integers are converted to float32 first."""
    return apply(op, cast_float(x))


def absolute(x: Node) -> Node:
    """|x|; raises NotImplementedError for bool, as PyTorch does."""
    if x.dtype is dt.bool_:
        raise unsupported("abs_cpu", x.dtype)
    return apply(b.ABS, x)


def _relu(x: Node) -> Node:
    return apply(b.RELU, x)


_RELU = composite("Relu", _relu)


def relu(x: Node) -> Node:
    """max(x, 0)."""
    if x.dtype is dt.bool_:
        raise RuntimeError("Boolean inputs not supported for relu")
    return apply(_RELU, x)


def where(c: Node, x: Operand, y: Operand) -> Node:
    """x where c holds, else y.  A condition of uint8 is taken for a bool, with a warning."""
    if c.dtype is dt.uint8:
        warn(
            "where received a uint8 condition tensor. This behavior is deprecated and will be "
            "removed in a future version of PyTorch. Use a boolean condition instead."
        )
        c = b.cast(c, dt.bool_)
    given = x if isinstance(x, Node) else y
    if isinstance(given, Node):
        first, second = _like(x, given.dtype), _like(y, given.dtype)
        if first is not None and second is not None:
            return b.where(c, first, second)
    dtype = result_dtype(x, y)
    return b.where(c, lift(x, dtype), lift(y, dtype))


def clamp(x: Node, low: Operand | None, high: Operand | None) -> Node:
    """x limited to [low, high]; the gradient passes where low <= x <= high; NaN stays NaN."""
    if low is None and high is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    given = [e for e in (low, high) if e is not None]
    bounds = [_like(e, x.dtype) for e in given]
    if None in bounds or x.dtype is dt.bool_:
        dtype = result_dtype(x, *given)
        x = b.cast(x, dtype)
        if dtype is dt.bool_:
            return _clamp_bool(x, low, high)
        bounds = [lift(e, dtype) for e in given]
    return apply(composite("Clamp", _clamp, low is not None), x, *bounds)  # type: ignore[arg-type]


def _clamp(y: Node, *rest: Any) -> Node:
    *bounds, has_low = rest
    # Where y is inside, it passes with its gradient; elsewhere the result is the bound, or NaN if
    # either is, and y gets no gradient.
    if has_low:
        bound = bounds.pop(0)
        y = b.where(b.le(bound, y), y, apply(b.MAXIMUM, apply(b.DETACH, y), bound))
    for bound in bounds:
        y = b.where(b.le(y, bound), y, apply(b.MINIMUM, apply(b.DETACH, y), bound))
    return y


def _clamp_bool(x: Node, low: Operand | None, high: Operand | None) -> Node:
    if not all(e is None or isinstance(e, Node) for e in (low, high)):
        bound = "min_" if high is None else "max_" if low is None else ""
        raise unsupported(f"clamp_{bound}scalar_cpu", dt.bool_)
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


def _triangle(x: Node, diagonal: int, lower: bool) -> Node:
    matrix = x.shape[-2:]
    row, column = b.iota(matrix, 0, dt.int32), b.iota(matrix, 1, dt.int32)
    edge = b.add(row, b.full_like(row, diagonal))
    return b.where(b.le(column, edge) if lower else b.le(edge, column), x, b.full_like(x, 0))


def triangle(x: Node, diagonal: int, lower: bool) -> Node:
    """x with zeros above (below) the ``diagonal`` of its last two dimensions."""
    if len(x.shape) < 2:
        name = "tril" if lower else "triu"
        raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")
    # A diagonal beyond the matrix changes nothing; limiting it keeps the sum an int32.
    rows, columns = x.shape[-2:]
    edge = min(max(diagonal, -rows), columns)
    return apply(composite("Triangle", _triangle, edge, lower), x)


# --- reductions ---------------------------------------------------------------------------------


def sum(x: Node, dims: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Node:
    """Sum over ``dims`` (all if None); bool and integers sum as int64."""
    wrapped = wrap_dims(dims, len(x.shape))
    own = x.dtype if x.dtype.is_floating_point else dt.int64
    y = b.cast(x, own if dtype is None else dt.as_dtype(dtype))
    if wrapped:
        return b.sum(y, wrapped, keepdim)
    return clone(x) if y is x else y


def _float_only(dtype: DType, name: str, which: str) -> None:
    if not dtype.is_floating_point:
        raise RuntimeError(
            f"{name}(): could not infer output dtype. {which} dtype must be either a floating "
            f"point or complex dtype. Got: {dtype.torch_name}"
        )


def mean(x: Node, dims: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Node:
    """Mean over ``dims``; NaN over no elements.  Raises RuntimeError for integers."""
    if dtype is not None:
        dtype = dt.as_dtype(dtype)
        _float_only(dtype, "mean", "Optional")
        x = b.cast(x, dtype)
    _float_only(x.dtype, "mean", "Input")
    wrapped = wrap_dims(dims, len(x.shape))
    if not wrapped:
        return clone(x)
    return apply(composite("Mean", mean_over, wrapped, bool(keepdim)), x)


def mean_over(x: Node, dims: Sequence[int], keepdim: bool) -> Node:
    """The ops of a mean over some wrapped dimensions, for what is made of such."""
    total = b.sum(x, dims, keepdim)
    count = numel(tuple(x.shape[d] for d in dims))
    if not count:
        return b.mul(total, b.full_like(x, math.nan))
    return b.div(total, b.full_like(x, float(count)))


def var(
    x: Node, dims: Dims = None, correction: float = 1, keepdim: bool = False, name: str = "var"
) -> Node:
    """Variance over ``dims``: squared distances to the mean over (count - correction).

    Warns, as ``name``, when that divisor is not positive.
    """
    if not x.dtype.is_floating_point:
        raise RuntimeError("std and var only support floating point and complex dtypes")
    wrapped = wrap_dims(dims, len(x.shape))
    freedom = float(numel(tuple(x.shape[d] for d in wrapped)) - correction)
    if freedom <= 0:
        warn(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the "
            "reduction factor (input numel divided by output numel)."
        )
    options = wrapped, freedom, bool(keepdim)
    return apply(composite(name.title(), _std if name == "std" else _var, *options), x)


def _var(x: Node, dims: tuple[int, ...], freedom: float, keepdim: bool) -> Node:
    centred = b.sub(x, mean_over(x, dims, True)) if dims else b.sub(x, x)
    square = b.mul(centred, centred)
    total = b.sum(square, dims, keepdim) if dims else square
    if not freedom > 0:  # infinite, and NaN where all elements are equal
        return b.mul(total, b.full_like(x, math.inf))
    return b.div(total, b.full_like(x, freedom))


def _std(x: Node, *options: Any) -> Node:
    variance = _var(x, *options)
    zero, one = b.full_like(variance, 0.0), b.full_like(variance, 1.0)
    flat = b.eq(variance, zero)
    return b.where(flat, zero, apply(b.SQRT, b.where(flat, one, variance)))


def std(x: Node, dims: Dims = None, correction: float = 1, keepdim: bool = False) -> Node:
    """Square root of :func:`var`; where that is 0 the gradient is 0, as in PyTorch."""
    return var(x, dims, correction, keepdim, "std")


def extremum(x: Node, dims: Dims, keepdim: bool, lowest: bool, name: str) -> Node:
    """Largest (lowest) element over ``dims``; ties share the gradient; errors say ``name``."""
    if dims is None and numel(x.shape) == 0:
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify "
            "the reduction dim with the 'dim' argument."
        )
    wrapped = wrap_dims(dims, len(x.shape))
    if not wrapped:
        return clone(x)
    _nonempty(x.shape, wrapped, name)
    boolean = x.dtype is dt.bool_
    y = b.extremum(b.cast(x, dt.uint8) if boolean else x, wrapped, keepdim, lowest=lowest)
    return b.cast(y, dt.bool_) if boolean else y


def _nonempty(shape: Shape, dims: Sequence[int], name: str) -> None:
    for axis in dims:
        if shape[axis] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {axis} to have non-zero size.")


def arg_extremum(x: Node, dim: int | None, keepdim: bool, lowest: bool) -> Node:
    """Index (int64) of the largest (lowest) element, over all elements if dim is None."""
    name = "argmin" if lowest else "argmax"
    if numel(x.shape) == 0 and dim is None:
        raise IndexError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0."
        )
    if x.dtype is dt.bool_:
        raise RuntimeError(f"{name}(): does not support bool input")
    if dim is None:
        rank = len(x.shape)
        flat = b.argmax(b.reshape(x, (numel(x.shape),)), 0, False, lowest=lowest)
        return b.reshape(flat, (1,) * rank) if keepdim else flat
    axis = wrap_dim(dim, len(x.shape))
    if not x.shape:
        return b.full((), 0, dt.int64)
    return b.argmax(x, axis, keepdim, lowest=lowest)


def any_all(x: Node, dims: Dims, keepdim: bool, every: bool) -> Node:
    """Whether any (every) element over ``dims`` is nonzero, over () each: a bool, or a uint8."""
    wrapped = () if dims in ((), []) else wrap_dims(dims, len(x.shape))
    op = composite("All" if every else "Any", _any_all, wrapped, bool(keepdim), every)
    return apply(op, x)


def _any_all(x: Node, dims: tuple[int, ...], keepdim: bool, every: bool) -> Node:
    truth = b.cast(b.cast(x, dt.bool_), dt.int32)
    kind = dt.uint8 if x.dtype is dt.uint8 else dt.bool_
    if not dims:
        return b.cast(truth, kind)
    hits = b.sum(truth, dims, keepdim)
    count = b.full_like(hits, numel(tuple(x.shape[i] for i in dims)))
    return b.cast(b.eq(hits, count) if every else b.ne(hits, b.full_like(hits, 0)), kind)


def take_along(x: Node, index: Node, dim: int) -> Node:
    """x at ``index`` (keepdim form, int64 in range) along ``dim``; the result keeps that dim."""
    return apply(composite("TakeAlong", _take_along, dim), x, index)


def _take_along(x: Node, index: Node, dim: int) -> Node:
    places = b.iota(x.shape, dim, dt.int64)
    hit = b.eq(places, index)
    return b.sum(b.where(hit, x, b.full_like(x, 0)), (dim,), True)


def extremum_with_index(x: Node, dim: int, keepdim: bool, lowest: bool) -> tuple[Node, Node]:
    """(values, indices) along ``dim``; the gradient goes to the chosen element."""
    axis = wrap_dim(dim, len(x.shape))
    if not x.shape:
        return clone(x), b.full((), 0, dt.int64)
    _nonempty(x.shape, (axis,), "min" if lowest else "max")
    boolean = x.dtype is dt.bool_
    y = b.cast(x, dt.uint8) if boolean else x
    index = b.argmax(y, axis, True, lowest=lowest)
    values = take_along(y, index, axis)
    if boolean:
        values = b.cast(values, dt.bool_)
    if not keepdim:
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        values, index = b.reshape(values, shape), b.reshape(index, shape)
    return values, index


# --- shapes -------------------------------------------------------------------------------------


def reshape(x: Node, shape: Sequence[int]) -> Node:
    """x in another shape; one size may be -1."""
    return b.reshape(x, infer_reshape(x.shape, tuple(shape)))


def transpose(x: Node, d0: int, d1: int) -> Node:
    """x with two dimensions swapped."""
    rank = len(x.shape)
    d0, d1 = wrap_dim(d0, rank), wrap_dim(d1, rank)
    return x if d0 == d1 else b.permute(x, swapped_dims(rank, d0, d1))


def expand(x: Node, sizes: Sequence[int]) -> Node:
    """x broadcast to ``sizes``; -1 keeps a size."""
    lead = len(sizes) - len(x.shape)
    shape = []
    for i, n in enumerate(sizes):
        if n == -1:
            if i < lead:
                raise RuntimeError(
                    f"The expanded size of the tensor ({n}) isn't allowed in a leading, "
                    f"non-existing dimension {i}"
                )
            n = x.shape[i - lead]
        shape.append(n)
    return b.expand(x, tuple(shape))


def unexpand(x: Node, value: Node) -> Node:
    """What a write of ``value`` to ``expand(x, ...)`` leaves in x: the first of each repetition."""
    if value.shape == x.shape:
        return value
    if not numel(value.shape):
        return x
    zeros, ones = (0,) * len(value.shape), (1,) * len(value.shape)
    stops = (*ones[len(x.shape) :], *x.shape)
    return b.reshape(b.slice(value, zeros, stops, ones), x.shape)


def clone(x: Node) -> Node:
    """A value equal to x with memory of its own."""
    return apply(b.CLONE, x)


# --- products -----------------------------------------------------------------------------------


def _check_vectors(x: Node, y: Node) -> None:
    """Refuse a vector ``y`` that does not fit x, in the words of PyTorch's dot and mv."""
    names = x.dtype.torch_name, y.dtype.torch_name
    if len(x.shape) == 1:
        kernel = "dot"
        if x.dtype is not y.dtype:
            raise RuntimeError(
                "dot : expected both vectors to have same dtype, but found "
                f"{names[0]} and {names[1]}"
            )
        if x.shape != y.shape:
            n, m = x.shape[0], y.shape[0]
            raise RuntimeError(
                f"inconsistent tensor size, expected tensor [{n}] and src [{m}] to have the same "
                f"number of elements, but got {n} and {m} elements respectively"
            )
    else:
        kernel = "addmv_impl_cpu"
        n, m = numel(x.shape[:-1]), x.shape[-1]
        if m != y.shape[0]:
            raise RuntimeError(f"size mismatch, got input ({n}), mat ({n}x{m}), vec ({y.shape[0]})")
        if x.dtype is not y.dtype:
            raise RuntimeError(
                "addmv input tensors must have the same dtype, but got "
                f"{names[1]}, {names[0]}, and {names[1]}"
            )
    if x.dtype is dt.bool_:
        raise unsupported(kernel, x.dtype)


def matmul(x: Node, y: Node) -> Node:
    """``torch.matmul``: vectors, matrices and batches of them."""
    if not x.shape or not y.shape:
        raise RuntimeError(
            "both arguments to matmul need to be at least 1D, but they are "
            f"{len(x.shape)}D and {len(y.shape)}D"
        )
    if len(y.shape) == 1:
        _check_vectors(x, y)
    rows = x if len(x.shape) > 1 else b.reshape(x, (1, x.shape[0]))
    columns = y if len(y.shape) > 1 else b.reshape(y, (y.shape[0], 1))
    if len(rows.shape) > 2 and len(columns.shape) == 2:
        # One large product instead of a batch of small ones.
        lead = rows.shape[:-1]
        flat = b.reshape(rows, (numel(lead), rows.shape[-1]))
        out = b.reshape(b.matmul(flat, columns, False, False), (*lead, columns.shape[-1]))
    else:
        out = b.matmul(rows, columns, False, False)
    shape = list(out.shape)
    if len(y.shape) == 1:
        del shape[-1]
    if len(x.shape) == 1:
        del shape[-1 if len(y.shape) == 1 else -2]
    return b.reshape(out, tuple(shape))


def _of_rank(x: Node, rank: int, name: str) -> None:
    if len(x.shape) != rank:
        raise RuntimeError(f"{name} must be a {'matrix' if rank == 2 else '3D tensor'}")


def mm(x: Node, y: Node) -> Node:
    """``torch.mm``: the product of two matrices.  Raises RuntimeError for other ranks."""
    _of_rank(x, 2, "self")
    _of_rank(y, 2, "mat2")
    return b.matmul(x, y, False, False)


def bmm(x: Node, y: Node) -> Node:
    """``torch.bmm``: one product per entry of a batch.  Raises RuntimeError for other ranks."""
    _of_rank(x, 3, "batch1")
    _of_rank(y, 3, "batch2")
    if x.shape[0] != y.shape[0]:
        raise RuntimeError(
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"[{x.shape[0]}, {x.shape[2]}] but got: [{y.shape[0]}, {y.shape[1]}]."
        )
    return b.matmul(x, y, False, False)
