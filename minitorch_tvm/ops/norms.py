"""Norms, products and other reductions that are compositions."""

from __future__ import annotations

import math

from ..core import dtype as dt
from ..core.arguments import Dims
from ..core.dtype import DType
from ..core.shape import numel, reduced, wrap_dim, wrap_dims
from ..ir.node import Node, apply
from . import build as b
from . import derived as d
from .composite import composite
from .elementary import stepwise


def checked(x: Node, dtype: DType | None, where: str = "linalg.vector_norm:") -> Node:
    """x as the ``dtype`` of its norm; RuntimeError unless that is possible without loss."""
    if not x.dtype.is_floating_point:
        raise RuntimeError(
            f"{where} Expected a floating point or complex tensor as input. Got "
            f"{x.dtype.torch_name}"
        )
    if dtype is None or dtype is x.dtype:
        return x
    dtype = dt.as_dtype(dtype)
    if not dtype.is_floating_point:
        raise RuntimeError(
            f"{where} dtype should be floating point or complex, but got {dtype.torch_name}"
        )
    if dtype.itemsize < x.dtype.itemsize:
        raise RuntimeError(
            f"{where} the dtype of the input ({x.dtype.torch_name}) should be convertible without "
            f"narrowing to the specified dtype ({dtype.torch_name})"
        )
    return b.cast(x, dtype)


def _unless(none: Node, otherwise: Node, total: Node, inverse: Node | None) -> Node:
    """total ** inverse, or its root, and a constant, of no gradient, where ``none`` holds."""
    safe = b.where(none, b.full_like(total, 1.0), total)
    root = apply(b.SQRT, safe) if inverse is None else b.pow(safe, inverse)
    return b.where(none, otherwise, root)


def _euclidean(x: Node, dims: tuple[int, ...], keepdim: bool) -> Node:
    total = b.sum(b.mul(x, x), dims, keepdim)
    zero = b.full_like(x, 0.0)
    return _unless(b.eq(total, zero), zero, total, None)


def _general(
    x: Node, power: Node, inverse: Node, dims: tuple[int, ...], keepdim: bool, positive: bool
) -> Node:
    zero = b.full_like(x, 0.0)
    limit = zero if positive else b.full_like(x, math.inf)
    powers = _unless(b.eq(x, zero), limit, apply(b.ABS, x), power)
    total = b.sum(powers, dims, keepdim)
    return _unless(b.eq(total, zero), limit, total, inverse)


def _simple(x: Node, power: float, dims: tuple[int, ...], keepdim: bool) -> Node:
    if power == 0:
        # The sign, whose gradient is 0, is 0 where the element is.
        one = b.full_like(x, 1.0)
        there = b.ne(x, b.full_like(x, 0.0))
        return b.sum(b.where(there, one, apply(stepwise("sign"), x)), dims, keepdim)
    size = apply(b.ABS, x)
    if power == 1:
        return b.sum(size, dims, keepdim)
    return b.extremum(size, dims, keepdim, lowest=power < 0)


def vector_norm(
    x: Node, power: float, dims: Dims, keepdim: bool, dtype: DType | None = None
) -> Node:
    """(sum of |x|**power)**(1 / power) over ``dims``, with the limits for 0 and the infinities."""
    y = checked(x, dtype)
    wrapped = wrap_dims(dims, len(x.shape))
    if power < 0 or power == math.inf:
        for axis in wrapped:
            if x.shape[axis] == 0:
                on = (
                    f"the dimension {axis}because this dimension is empty and"
                    if numel(reduced(x.shape, wrapped, False)) and dims is not None
                    else "an empty tensor because"
                )
                raise RuntimeError(
                    f"linalg.vector_norm cannot compute the {power:g} norm on {on} the operation "
                    "does not have an identity"
                )
    if not wrapped:
        y, wrapped = b.reshape(y, (1,)), (0,)
        keepdim = False
    if power == 2:
        return apply(composite("VectorNorm", _euclidean, wrapped, keepdim), y)
    if power in (0, 1, math.inf, -math.inf):
        return apply(composite("VectorNorm", _simple, float(power), wrapped, keepdim), y)
    exponents = d.lift(float(power), y.dtype), d.lift(1.0 / power, y.dtype)
    return apply(composite("VectorNorm", _general, wrapped, keepdim, power > 0), y, *exponents)


def matrix_norm(x: Node, order: float | str, dims: tuple[int, int], keepdim: bool) -> Node:
    """Norms of matrices in two dimensions: "fro", 1, -1, inf and -inf."""
    where = "linalg.matrix_norm:"
    if order != "fro" and order not in (1, -1, math.inf, -math.inf):
        raise RuntimeError(f"{where} Order {order} not supported.")
    if order == "fro":
        return vector_norm(x, 2.0, dims, keepdim)
    row, column = (wrap_dim(axis, len(x.shape)) for axis in dims)
    if abs(float(order)) != 1:
        row, column = column, row
    sums = b.sum(apply(b.ABS, x), (row,), True)
    lowest = float(order) < 0
    most = d.extremum(sums, column, True, lowest, "amin" if lowest else "amax")
    return most if keepdim else b.reshape(most, reduced(x.shape, (row, column), False))


# --- others -------------------------------------------------------------------------------------


def _prod(x: Node, axis: int) -> Node:
    """Along a dimension, by halves: its gradient needs no division by what may be 0.

    The dimension stays where it is: what lies along others is multiplied in vectors.
    """
    shape, n = (*x.shape[:axis], *x.shape[axis + 1 :]), x.shape[axis]
    rest: Node | None = None
    while n > 1:
        if n & 1:
            last = b.narrow(x, axis, n - 1, n)
            rest = last if rest is None else b.mul(rest, last)
        n //= 2
        x = b.mul(b.narrow(x, axis, 0, n), b.narrow(x, axis, n, 2 * n))
    return b.reshape(x if rest is None else b.mul(x, rest), shape)


def prod(x: Node, dim: int | None, keepdim: bool, dtype: DType | None = None) -> Node:
    """Product along ``dim``, or of all elements; bools and integers multiply as int64."""
    if dtype is None:
        dtype = x.dtype if x.dtype.is_floating_point else dt.int64
    else:
        dtype = dt.as_dtype(dtype)
    rank = len(x.shape)
    shape: tuple[int, ...] = ()
    axis = 0 if dim is None else wrap_dim(dim, rank)
    y = x
    if dim is None or not rank:
        y = b.reshape(x, (numel(x.shape),))
    else:
        shape = reduced(x.shape, (axis,), keepdim)
    if dtype is dt.bool_:  # a product of bools: whether all hold
        return b.reshape(d.any_all(b.cast(y, dt.bool_), axis, False, every=True), shape)
    if y.shape[axis] == 0:
        nothing = b.sum(b.cast(y, dtype), (axis,), False)  # which keeps the history
        return b.reshape(b.add(nothing, b.full(nothing.shape, 1, dtype)), shape)
    return b.reshape(apply(composite("Prod", _prod, axis), b.cast(y, dtype)), shape)


def _logsumexp(x: Node, dims: tuple[int, ...], keepdim: bool) -> Node:
    zero = b.full_like(x, 0.0)
    top = apply(b.DETACH, b.extremum(x, dims, True))
    infinite = b.eq(apply(b.ABS, top), b.full_like(x, math.inf))
    shift = b.where(infinite, zero, top)
    total = b.log(b.sum(b.exp(b.sub(x, shift)), dims, keepdim))
    return b.add(total, b.reshape(shift, total.shape))


def logsumexp(x: Node, dims: Dims, keepdim: bool) -> Node:
    """Logarithm of the sum of e**x over ``dims``, without overflow."""
    x = d.cast_float(x)
    wrapped = wrap_dims(dims, len(x.shape))
    if not wrapped:
        return d.clone(x)
    if any(x.shape[axis] == 0 for axis in wrapped):
        return b.log(b.sum(b.exp(x), wrapped, keepdim))
    return apply(composite("LogSumExp", _logsumexp, wrapped, keepdim), x)


def count_nonzero(x: Node, dims: Dims) -> Node:
    """How many elements over ``dims`` are not 0, as int64."""
    return d.sum(b.cast(x, dt.bool_), dims)


def _without_nan(x: Node) -> Node:
    return b.where(b.ne(x, x), b.full_like(x, 0), x) if x.dtype.is_floating_point else x


def nansum(x: Node, dims: Dims, keepdim: bool, dtype: DType | None) -> Node:
    """Sum over ``dims`` of what is not NaN."""
    return d.sum(_without_nan(x), dims, keepdim, dtype)


def nanmean(x: Node, dims: Dims, keepdim: bool, dtype: DType | None) -> Node:
    """Mean over ``dims`` of what is not NaN; NaN where that is nothing."""
    if not x.dtype.is_floating_point:
        raise RuntimeError(
            "nanmean(): expected input to have floating point or complex dtype but got "
            f"{x.dtype.torch_name}"
        )
    total = nansum(x, dims, keepdim, dtype)
    there = b.cast(b.eq(x, x), dt.int64)
    return d.div(total, d.sum(there, dims, keepdim))
