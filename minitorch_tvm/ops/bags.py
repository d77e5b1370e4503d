"""Rows of a table, added, averaged or compared within bags of positions."""

from __future__ import annotations

import math
from typing import Any

from ..core import dtype as dt
from ..ir.node import Node, apply
from ..ir.op import op_of
from . import build as b
from . import derived as d
from . import gather as ga
from . import order, scattering
from .composite import composite


def numbers(offsets: Node, count: int) -> Node:
    """In which bag each of ``count`` positions is: the last that starts there or before."""
    places = b.iota((count,), 0, dt.int64)
    after = order.search(b.cast(offsets, dt.int64), places, True)
    return b.sub(after, b.full((count,), 1, dt.int64))


def _within(x: Node, bag: Node, bags: int) -> Node:
    """Sums of ``x`` [n, ...] within bags; what belongs to none of the first ``bags`` is dropped."""
    return b.narrow(apply(op_of(ga.ScatterAdd, 0, bags + 1), x, bag), 0, 0, bags)


def _embedding_bag(table: Node, index: Node, *rest: Any) -> Node:
    """Inputs: the table [n, d], positions, then numbers of bags and weights if there are any."""
    *nodes, mode, bags, padding, weighted = rest
    width = table.shape[1]
    weights = nodes.pop() if weighted else None
    rows = ga.take(table, index, 0)
    counted = b.full(index.shape, True, dt.bool_)
    if padding is not None:
        counted = b.ne(index, b.full_like(index, padding))
    column = b.reshape(counted, (*index.shape, 1))
    bag = nodes[0] if nodes else None
    counts = b.cast(counted, rows.dtype)
    counts = b.sum(counts, (1,), False) if bag is None else _within(counts, bag, bags)
    counts = b.reshape(counts, (bags, 1))
    none, one, low = (b.full((), number, rows.dtype) for number in (0.0, 1.0, -math.inf))
    if mode == "max":
        least = b.where(column, rows, low)
        if bag is None:
            best = d.extremum_with_index(least, 1, False, False)[0]
        else:
            start = b.expand(low, (bags + 1, width))
            places = b.expand(b.reshape(bag, (*bag.shape, 1)), rows.shape)
            best = scattering.scatter_reduce(start, places, least, 0, "amax", False)
            best = b.narrow(best, 0, 0, bags)
        return b.where(b.eq(counts, none), none, best)
    rows = b.where(column, rows, none)
    if weights is not None:
        rows = b.mul(rows, b.reshape(weights, (*index.shape, 1)))
    total = b.sum(rows, (1,), False) if bag is None else _within(rows, bag, bags)
    return total if mode == "sum" else b.div(total, d.maximum(counts, one))


def embedding_bag(
    table: Node,
    index: Node,
    bag: Node | None,
    weights: Node | None,
    mode: str,
    bags: int,
    padding: int | None,
) -> Node:
    """Each bag's sum, mean or largest elements [bags, d]; row ``padding`` counts nowhere.

    Bags are the rows of ``index``, or ``bag`` tells (as int64) in which each position is.
    """
    nodes = [x for x in (bag, weights) if x is not None]
    static = (mode, bags, padding, weights is not None)
    return apply(composite("EmbeddingBag", _embedding_bag, *static), table, index, *nodes)
