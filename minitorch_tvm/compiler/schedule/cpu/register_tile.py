"""Sums of products in registers: what functions that are compiled apart from their callers do."""

from __future__ import annotations

from collections.abc import Callable

from ....core.record import record
from ...loops import (
    Expr,
    Stmt,
    alloc,
    bind,
    const,
    load,
    local_buffer,
    ramp,
    seq,
    serial,
    splat,
    store,
)


@record
class Vectors:
    """Vectors of ``lanes`` elements, or single ones."""

    dtype: str
    lanes: int

    def at(self, first: Expr) -> Expr:
        """Index of the vector from an element on."""
        return ramp(first, self.lanes) if self.lanes > 1 else first

    def of(self, value: Expr) -> Expr:
        """A vector of one value."""
        return splat(value, self.lanes) if self.lanes > 1 else value

    @property
    def zero(self) -> Expr:
        """One of zeros."""
        return self.of(const(0.0, self.dtype))


def register_tile(
    vectors: Vectors,
    size: tuple[int, int],
    terms: Expr,
    left: Callable[[int, Expr], Expr],
    right: Callable[[Expr, int], Expr],
    start: Callable[[int, int], Expr],
    put: Callable[[int, int, Expr], Stmt],
    asks: Callable[[Expr], list[Stmt]] = lambda k: [],
) -> Stmt:
    """``start(r, v)`` and the sum over k of ``left(r, k) * right(k, v)``, for r rows and v vectors.

    ``left`` is an element, the others are vectors; ``asks`` for lines are made before each term.
    """
    mr, nv = size
    whole = vectors.at(0)
    tile = [(r, v) for r in range(mr) for v in range(nv)]
    acc = {at: local_buffer((vectors.lanes,), vectors.dtype, "acc") for at in tile}

    def term(k: Expr) -> Stmt:
        columns = [bind("column", right(k, v)) for v in range(nv)]
        updates = []
        for r in range(mr):
            value = vectors.of(left(r, k))
            for v, (column, _) in enumerate(columns):
                own = acc[r, v]
                updates.append(store(own, load(own, whole) + value * column, whole))
        return seq(asks(k), [know for _, know in columns], updates)

    return seq(
        [alloc(own) for own in acc.values()],
        [store(own, start(*at), whole) for at, own in acc.items()],
        serial(terms, term, "k"),
        [put(*at, load(own, whole)) for at, own in acc.items()],
    )
