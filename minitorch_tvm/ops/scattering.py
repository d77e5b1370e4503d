"""Writing at computed positions where what goes to one place is multiplied, averaged or compared.

Sums are in :mod:`.picking`.  Where only the largest counts, values are written in ascending order:
of several for one position the last counts.
"""

from __future__ import annotations

from typing import Any, cast

from ..core import dtype as dt
from ..ir.node import Node, apply
from ..ir.op import Kind, op_of
from . import build as b
from . import derived as d
from . import division
from . import picking as pk
from .composite import Composite, composite
from .scan import argsort

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _counts(x: Node, index: Node, dim: int, dtype: dt.DType) -> Node:
    """How many positions say each place of ``x``."""
    none, one = b.full(x.shape, 0, dtype), b.full((), 1, dtype)
    return pk.scatter(none, index, one, dim, True)


def _written(x: Node, index: Node, dim: int) -> Node:
    return b.lt(b.full((), 0, dt.int32), _counts(x, index, dim, dt.int32))


def _sum(x: Node, index: Node, source: Node, dim: int) -> Node:
    """Sums without what was there, where anything is written."""
    start = b.where(_written(x, index, dim), _constant(x, 0), x)
    return pk.scatter(start, index, source, dim, True)


def _constant(x: Node, value: int) -> Node:
    return b.full((), bool(value) if x.dtype is dt.bool_ else value, x.dtype)


def _mean(x: Node, index: Node, source: Node, dim: int, include_self: bool) -> Node:
    if include_self:
        total = pk.scatter(x, index, source, dim, True)
        count = b.add(_counts(x, index, dim, x.dtype), _constant(x, 1))
    else:
        total = _sum(x, index, source, dim)
        count = d.maximum(_counts(x, index, dim, x.dtype), _constant(x, 1))
    if x.dtype.is_floating_point:
        return b.div(total, count)
    return division.quotient(total, count, True)


def _product(x: Node, index: Node, source: Node, dim: int, include_self: bool) -> Node:
    """Positions are brought together, then each value takes those before it for the same place.

    It takes twice as many at each step (Hillis and Steele, "Data parallel algorithms").
    """
    order = argsort(index, dim, False)
    places = pk.gather(index, order, dim)
    terms = pk.gather(pk.part(source, index), order, dim)
    n, step = places.shape[dim], 1
    one = _constant(x, 1)
    while step < n:
        same = b.eq(b.narrow(places, dim, 0, n - step), b.narrow(places, dim, step, n))
        before = b.where(same, b.narrow(terms, dim, 0, n - step), one)
        product = d.mul(b.narrow(terms, dim, step, n), before)
        terms = b.cat([b.narrow(terms, dim, 0, step), product], dim)
        step *= 2
    ones = b.expand(one, x.shape)
    total = pk.scatter(ones, places, terms, dim, False)
    if not include_self:
        x = b.where(_written(x, index, dim), one, x)
    return d.mul(x, total)


def _extreme(
    x: Node, index: Node, source: Node, dim: int, lowest: bool, include_self: bool
) -> Node:
    part = pk.part(source, index)
    # NaN comes last in ascending order only, and counts as an extreme of either kind.
    turned = lowest and x.dtype.is_floating_point
    order = argsort(b.neg(part) if turned else part, dim, lowest and not turned)
    places, values = pk.gather(index, order, dim), pk.gather(part, order, dim)
    written = pk.scatter(x, places, values, dim, False)
    if not include_self:
        return written
    return d.minimum(x, written) if lowest else d.maximum(x, written)


class ScatterExtreme(Composite, kind=Kind.COMPOSITE):
    """scatter_reduce(x, index, source): the largest or lowest; those that tie share a gradient."""

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node | None:
        x, where, source = inputs
        dim, _, include_self = cast("tuple[int, bool, bool]", self.static)
        best = self.function(*inputs, *self.static)
        part = pk.part(source, where)
        own = _equal(x, best)
        if not include_self:
            own = b.logical_and(own, b.logical_not(_written(x, where, dim)))
        hits = b.cast(_equal(part, pk.gather(best, where, dim)), ct.dtype)
        ties = pk.scatter(b.cast(own, ct.dtype), where, hits, dim, True)
        share = b.div(ct, ties)
        if index == 0:
            return b.where(own, share, b.full_like(ct, 0.0))
        if index == 1:
            return None
        return pk.of_part(b.mul(hits, pk.gather(share, where, dim)), source)


def _equal(x: Node, y: Node) -> Node:
    return b.logical_or(b.eq(x, y), b.logical_and(b.ne(x, x), b.ne(y, y)))


def scatter_reduce(
    x: Node, index: Node, source: Node, dim: int, reduce: str, include_self: bool
) -> Node:
    """``x`` with what ``source`` has for each position (in range) reduced, with or without x's own.

    ``reduce`` is one of :data:`REDUCTIONS`.
    """
    if 0 in index.shape:
        return pk.scatter(x, index, source, dim, False)
    static: tuple[Any, ...]
    if reduce == "sum":
        if include_self:
            return pk.scatter(x, index, source, dim, True)
        return apply(composite("ScatterReduce", _sum, dim), x, index, source)
    if reduce in ("amax", "amin"):
        static = dim, reduce == "amin", include_self
        return apply(op_of(ScatterExtreme, "ScatterReduce", _extreme, static), x, index, source)
    function = _mean if reduce == "mean" else _product
    return apply(composite("ScatterReduce", function, dim, include_self), x, index, source)
