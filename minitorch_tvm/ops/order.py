"""Compositions that search, count and compare elements in order."""

from __future__ import annotations

from typing import Any

from ..core import dtype as dt
from ..core.shape import numel
from ..ir.node import Node, apply
from . import bits
from . import build as b
from . import derived as d
from . import picking as pk
from . import pointwise as pw
from .composite import composite
from .elementary import stepwise
from .gather import take
from .scan import argsort, cumulative_sum, leader

_FEW = 128
"""Elements that are compared with each, instead of being sorted and searched: among a
million values 2.5 ms for 128 and 4.2 by searching, 5.2 and 4.7 for 256."""


# --- searching ----------------------------------------------------------------------------------


def _search(line: Node, values: Node, right: bool) -> Node:
    """A binary search whose steps are halved: [*a, n] (or [n]), [*a, m] -> int64[*a, m]."""
    n, rank = line.shape[-1], len(line.shape)
    found = b.full(values.shape, 0, dt.int64)
    for bit in reversed(range(n.bit_length())):
        ahead = b.add(found, b.full((), 1 << bit, dt.int64))
        inside = b.le(ahead, b.full((), n, dt.int64))
        last = b.where(inside, b.sub(ahead, b.full((), 1, dt.int64)), b.full((), n - 1, dt.int64))
        element = take(line, last, 0) if rank == 1 else pk.gather(line, last, rank - 1)
        # NaN is the largest, in the line as well as among the values.
        known, missing = b.eq(values, values), b.ne(element, element)
        if right:
            stops = b.where(missing, known, b.lt(values, element))
        else:
            stops = b.logical_or(missing, b.le(values, element))
        found = b.where(b.logical_and(inside, b.logical_not(stops)), ahead, found)
    return found


def search(line: Node, values: Node, right: bool) -> Node:
    """How many elements of a sorted line are less than each value; ``right``: or equal to it.

    The line is of one dimension, or has the leading ones of the values.  Both have one dtype.
    """
    if not line.shape[-1]:
        return b.full(values.shape, 0, dt.int64)
    return apply(composite("Searchsorted", _search, bool(right)), line, values)


def _among_few(x: Node, line: Node) -> Node:
    column = b.reshape(x, (*x.shape, 1))
    return d.any_all(b.eq(column, line), len(x.shape), False, every=False)


def _among(x: Node, line: Node, order: Node) -> Node:
    ascending = take(line, order, 0)
    n = line.shape[0]
    place = _search(ascending, x, False)
    last = b.full((), n - 1, dt.int64)
    return b.eq(take(ascending, b.where(b.le(place, last), place, last), 0), x)


def is_in(x: Node, line: Node) -> Node:
    """Whether each element of ``x`` is one of a line of the same dtype; NaN is none."""
    n = line.shape[0]
    if not n:
        return b.full(x.shape, False, dt.bool_)
    if n <= _FEW:
        return apply(composite("IsIn", _among_few), x, line)
    return apply(composite("IsIn", _among), x, line, argsort(line, 0, False))


# --- the middle and the most frequent -----------------------------------------------------------


def _most_frequent(line: Node, order: Node, dim: int) -> Node:
    n = line.shape[dim]
    ascending = pk.gather(line, order, dim)
    number = b.iota(ascending.shape, dim, dt.int64)
    missing = b.ne(ascending, ascending)
    new = missing
    if n > 1:
        left, right = b.narrow(ascending, dim, 0, n - 1), b.narrow(ascending, dim, 1, n)
        first = b.full(b.narrow(ascending, dim, 0, 1).shape, True, dt.bool_)
        new = b.cat([first, b.ne(left, right)], dim)
    start = leader(b.where(new, number, b.full_like(number, -1)), dim, False)
    # Twice how many are equal up to here.  NaN, each of which is another, comes before others of
    # which there is one each.
    count = b.mul(b.sub(number, start), b.full_like(number, 2))
    count = b.add(count, b.cast(missing, dt.int64))
    return pk.gather(order, b.argmax(count, dim, True), dim)


def most_frequent(x: Node, dim: int) -> Node:
    """Where the last of the most frequent (the lowest) elements is along ``dim``, which is kept."""
    line = b.cast(x, dt.uint8) if x.dtype is dt.bool_ else x
    order = argsort(line, dim, False)
    return apply(composite("Mode", _most_frequent, dim), line, order)


def _missing(x: Node, dim: int) -> Node:
    return b.sum(b.cast(b.ne(x, x), dt.int64), (dim,), True)


def _middle_present(x: Node, order: Node, dim: int) -> Node:
    n = x.shape[dim]
    zero = b.full((), 0, dt.int64)
    last = b.sub(b.full((), n - 1, dt.int64), _missing(x, dim))
    half = apply(bits.OPS["right"], last, b.full((), 1, dt.int64))
    return pk.gather(order, b.where(b.lt(half, zero), zero, half), dim)


def middle_present(x: Node, dim: int) -> Node:
    """Where the (lower) middle of what is not NaN is along ``dim``, which is kept."""
    return apply(composite("Nanmedian", _middle_present, dim), x, argsort(x, dim, False))


def _quantile(line: Node, order: Node, q: Node, method: str, skip: bool) -> Node:
    last = len(line.shape) - 1
    n = line.shape[last]
    shape = (*line.shape[:last], q.shape[0])
    missing, dtype = _missing(line, last), line.dtype
    zero, end = b.full((), 0.0, dtype), b.full((), float(n - 1), dtype)
    if skip:
        present = b.sub(b.full((), n - 1, dt.int64), missing)
        place = b.mul(q, b.cast(present, dtype))
        place = b.where(b.lt(place, zero), zero, place)
    else:
        # NaN comes last, so that it is found if there is one.
        some = b.lt(b.full((), 0, dt.int64), missing)
        place = b.where(some, end, b.mul(q, end))
    place = b.expand(place, shape)
    down, up = apply(stepwise("floor"), place), apply(stepwise("ceil"), place)
    if method == "lower":
        place = down
    elif method == "higher":
        place = up
    elif method == "nearest":
        place = apply(stepwise("round"), place)

    def at(number: Node) -> Node:
        return pk.gather(line, pk.gather(order, b.cast(number, dt.int64), last), last)

    if method not in ("linear", "midpoint"):
        return at(place)
    weight = b.full((), 0.5, dtype) if method == "midpoint" else b.sub(place, down)
    return pw.lerp(at(down), at(up), weight)


def quantile(line: Node, q: Node, method: str, skip: bool) -> Node:
    """Quantiles ``q`` (a vector) along the last dimension, in its place; ``skip``: without NaN."""
    order = argsort(apply(b.DETACH, line), len(line.shape) - 1, False)
    return apply(composite("Quantile", _quantile, method, skip), line, order, q)


# --- counting -----------------------------------------------------------------------------------


def _histogram(x: Node, low: Node, high: Node, bins: int) -> Node:
    inside = b.logical_and(b.le(low, x), b.le(x, high))
    count = b.full((), float(bins), x.dtype)
    place = b.div(b.mul(b.sub(x, low), count), b.sub(high, low))
    number = b.cast(b.where(inside, place, b.full((), 0.0, x.dtype)), dt.int64)
    last = b.full((), bins - 1, dt.int64)
    number = b.where(b.le(number, last), number, last)
    ones = b.cast(inside, x.dtype)
    return pk.put(b.full((bins,), 0.0, x.dtype), ones, [number], [(0, 1)], True)


def histogram(x: Node, low: Node, high: Node, bins: int) -> Node:
    """How many elements of a vector are in each of the equal parts of [low, high]."""
    return apply(composite("Histc", _histogram, bins), x, low, high)


def _bounds(x: Node, lowest: bool) -> Node:
    low, high = (b.extremum(x, (0,), False, lowest=k) for k in (True, False))
    one = b.full((), 1.0, x.dtype)
    same = b.eq(low, high)
    if lowest:
        return b.where(same, b.sub(low, one), low)
    return b.where(same, b.add(high, one), high)


def bounds(x: Node) -> tuple[Node, Node]:
    """The lowest and the largest element of a vector; of equal ones, 1 less and 1 more."""
    if not numel(x.shape):
        return b.full((), 0.0, x.dtype), b.full((), 1.0, x.dtype)
    low, high = (apply(composite("Bounds", _bounds, k), x) for k in (True, False))
    return low, high


def _renorm(x: Node, norm: Node, most: Node) -> Node:
    # PyTorch's 1e-7, so that the result is not longer for a rounding error.
    factor = b.div(most, b.add(norm, b.full((), 1e-7, x.dtype)))
    return b.mul(x, b.where(b.lt(most, norm), factor, b.full((), 1.0, x.dtype)))


def renorm(x: Node, norm: Node, most: Node) -> Node:
    """``x`` times what makes a norm (which broadcasts) no larger than ``most``."""
    return apply(composite("Renorm", _renorm), x, norm, most)


def slices_differ(x: Node, dim: int) -> Node:
    """Whether each entry of ``dim`` differs from the one before; of the first it is True."""
    return apply(composite("SlicesDiffer", _slices_differ, dim), x)


def _slices_differ(x: Node, dim: int) -> Node:
    n = x.shape[dim]
    first = b.full((min(n, 1),), True, dt.bool_)
    if n < 2:
        return first
    other = d.compare("ne", b.narrow(x, dim, 0, n - 1), b.narrow(x, dim, 1, n))
    dims = [k for k in range(len(x.shape)) if k != dim]
    if dims:
        other = d.any_all(other, dims, False, every=False)
    return b.cat([first, other], 0)


def _column_ranks(x: Node) -> Node:
    """How many different elements of each column are less: int64[n, m]; every NaN is different."""
    n, m = x.shape
    order = argsort(x, 0, False)
    line = pk.gather(x, order, 0)
    more = b.cast(b.ne(b.narrow(line, 0, 0, n - 1), b.narrow(line, 0, 1, n)), dt.int64)
    ranks = cumulative_sum(b.cat([b.full((1, m), 0, dt.int64), more], 0), 0)
    return pk.scatter(b.full((n, m), 0, dt.int64), order, ranks, 0, False)


def _row_ranks(x: Node) -> Node:
    n = x.shape[0]
    ranks = _column_ranks(x)
    while (m := ranks.shape[1]) > 1:  # of pairs of columns, until one is left
        ends, steps = (n, m - m % 2), (1, 2)
        left = b.slice(ranks, (0, 0), ends, steps)
        pairs = b.add(b.mul(left, b.full((), n, dt.int64)), b.slice(ranks, (0, 1), ends, steps))
        pairs = b.cat([pairs, b.narrow(ranks, 1, m - 1, m)], 1) if m % 2 else pairs
        ranks = _column_ranks(pairs)
    return b.reshape(ranks, (n,))


def row_ranks(x: Node) -> Node:
    """Of the rows of ``x`` [n, m], how many different ones are less: int64[n].

    The first elements that differ decide; NaN is the largest.
    """
    if x.shape[0] < 2:
        return b.full((x.shape[0],), 0, dt.int64)
    numbers = b.cast(x, dt.uint8) if x.dtype is dt.bool_ else x
    return apply(composite("RowRanks", _row_ranks), numbers)


# --- covariances --------------------------------------------------------------------------------


def _covariance(x: Node, *rest: Any) -> Node:
    *weights, correction = rest
    n = x.shape[1]
    if weights:
        w = b.cast(weights[0], x.dtype)
        total = b.sum(w, (0,), False)
        middle = b.div(b.sum(b.mul(x, w), (1,), True), total)
        lost = b.full((), correction, x.dtype)
        if len(weights) == 2:
            squares = b.mul(w, b.cast(weights[1], x.dtype))
            lost = b.mul(lost, b.div(b.sum(squares, (0,), False), total))
        freedom = b.sub(total, lost)
    else:
        total = b.sum(x, (1,), True)
        middle = b.div(total, b.full((), float(n), x.dtype))
        freedom = b.full((), n - correction, x.dtype)
    centred = b.sub(x, middle)
    other = b.mul(centred, w) if weights else centred
    zero = b.full((), 0.0, x.dtype)
    freedom = b.where(b.lt(freedom, zero), zero, freedom)
    return b.div(b.matmul(centred, other, False, True), freedom)


def covariance(x: Node, weights: Node | None, importance: Node | None, correction: float) -> Node:
    """Covariances of rows of floating point numbers; the sum of products over what is free.

    Of ``weights``, in which ``importance`` is a factor, that is less than their sum by
    ``correction`` times the mean of the importance.
    """
    given = [n for n in (weights, importance) if n is not None]
    return apply(composite("Cov", _covariance, correction), x, *given)
