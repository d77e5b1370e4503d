"""Sums of rows into computed places (the gradient of a gather), and who comes last to a place.

Pattern: ScatterAdd, out[index[i]] += ct[i], and LastPosition, out[index[i]] = i.  Strategy: a tile
owns a block of rows and columns of the result; it clears it, walks over all positions in order and
adds those that fall into it.  Nothing is shared between tiles and blocks depend on the shape alone,
so the result has the same bits for every number of threads.  Of many positions a stage before finds
out where the first and the last of some hundred are, and a tile leaves out those of which none can
be its own; the fewer elements there are for each position, the fewer blocks.  Atomic additions were
rejected (their order is not fixed), and so was one comparison per pair of row and position (rows
times the work).
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from ....core.shape import numel
from ....ops.gather import ScatterAdd, clamped
from ....ops.picking import LastPosition
from ...dialect import Scope
from ...loops import (
    Expr,
    Stage,
    Stmt,
    alloc,
    ceil_div,
    const,
    grid,
    load,
    local_buffer,
    maximum,
    minimum,
    number,
    parallel_stage,
    seq,
    serial,
    store,
    when,
    wrapped,
)
from ...lower import KernelCode
from ...target import CpuTarget
from .elementwise import GRAIN, tiled, unravel

_COLUMNS = 64
"""Vectors in a block of columns, most rows have no more: of parts of a row that are neighbours,
cores fetch each other's lines ahead."""

_ROW_BLOCKS, _FAR_BLOCKS = 16, 64
"""Most blocks of rows, and of those that are more than a core's cache holds: each of them walks
over all positions."""


_FEW_BLOCKS = 4
_VISIT = 3
"""To look at a position takes as long as to clear so many elements, or to add them."""

_WRITTEN = 8
"""Turns of a loop around vectors that LLVM may write out."""

_MANY, _TOGETHER = 1024, 256
"""Positions from which on it is found out which rows they are in first, so many at a time."""


def _number(index: tuple[Expr, ...], shape: tuple[int, ...]) -> Expr:
    """That of an element, in row-major order."""
    total: Expr = const(0)
    for i, n in zip(index, shape, strict=True):
        total = total * n + i
    return total


def scatter(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a scatter-add, or of the last positions."""
    op, anchor, own = code.anchor.op, code.anchor, code.kernel.anchor
    assert isinstance(op, (ScatterAdd, LastPosition))
    assert own is not None
    positions = anchor.inputs[-1]
    places = code.graph.values[positions].shape
    if numel(anchor.shape) == 0:
        return []
    adds = isinstance(op, ScatterAdd)
    dim = op.dim if isinstance(op, ScatterAdd) else 0
    start = 0 if adds else -1
    before, behind = anchor.shape[:dim], anchor.shape[dim + 1 :]
    *middle, inner = behind or (1,)
    width, blocks = min(inner, _COLUMNS * cpu.lanes(anchor.dtype.itemsize)), _ROW_BLOCKS
    row = numel(tuple(middle)) * inner
    if op.size * row >= _ROW_BLOCKS * GRAIN:
        # Whole rows follow each other in memory, and a block stays near until it is finished.
        width = inner
        near = ceil_div(op.size * row * anchor.dtype.itemsize, cpu.l2_bytes // 2)
        blocks = min(max(near, _ROW_BLOCKS), _FAR_BLOCKS)
    columns = ceil_div(inner, width)
    many = numel(places)
    if many:
        walked = ceil_div((op.size + many) * row, _VISIT * many * columns)
        blocks = min(blocks, max(walked, _FEW_BLOCKS))
    height = max(ceil_div(op.size, blocks), min(op.size, GRAIN // (width * numel(tuple(middle)))))
    height = max(1, height)
    rows = ceil_div(op.size, height)
    # With followers, the kernel's outputs may stand on memory that they still have to read.
    alone = code.kernel.members == (own,)
    shape = anchor.shape
    result = (
        code.buffer(own) if alone else code.builder.scratch_buffer(shape, anchor.dtype.name, "rows")
    )

    # LLVM writes out as many turns of a loop around others as it knows of, each with vectors.
    around = len(places) > 1 or (len(places) == 1 and numel(behind) > 1)
    told = (number(places[0], "places"), *places[1:]) if around else places
    between = [number(n, "middle") if n > _WRITTEN else n for n in middle]
    stages: list[Stage] = []
    apart = None
    if rows > 1 and many >= _MANY:
        apart = _Apart(code, positions, places, op.size)
        stages.append(apart.stage())

    def tile(t: Expr) -> Stmt:
        *lead, block, column = unravel(t, (*before, rows, columns))
        first, left = block * height, column * width
        count = height if op.size % height == 0 else minimum(height, op.size - first)
        span = width if inner % width == 0 else minimum(width, inner - left)

        def at(row: Expr, inside: tuple[Expr, ...], c: Expr) -> tuple[Expr, ...]:
            return (*lead, row, *inside, left + c) if behind else (*lead, row)

        def clear(r: Expr, *rest: Expr) -> Stmt:
            *inside, c = rest
            return store(result, const(start, anchor.dtype.name), *at(first + r, tuple(inside), c))

        def add(*i: Expr) -> Stmt:
            scope = Scope()
            if apart is None:
                position = code.evaluator(scope).read(positions, i)
                row = scope.keep(clamped(scope, position, op.size))
            else:
                row = scope.keep(load(apart.rows, *i))

            def element(*rest: Expr) -> Stmt:
                *inside, c = rest
                own = Scope()
                to = at(row, tuple(inside), c)
                if not adds:
                    return store(result, _number(i, places), *to)
                place = (*inside, left + c) if behind else ()
                value = code.evaluator(own).read(anchor.inputs[0], (*lead, *i, *place))
                return own.body(store(result, wrapped(operator.add, load(result, *to), value), *to))

            here = scope.all(row >= first, row < first + count) if rows > 1 else True
            body = grid((*between, span), element, "c")
            return scope.body(body if here is True else when(here, body))

        def finish(r: Expr, *rest: Expr) -> Stmt:
            *inside, c = rest
            index = at(first + r, tuple(inside), c)
            return code.finish(index, load(result, *index))

        block_of = (count, *between, span)
        walk = grid(told, add, "i") if apart is None else apart.walk(first, count, add)
        steps = [grid(block_of, clear, "z"), walk]
        return seq(*steps, *([] if alone else [grid(block_of, finish, "f")]))

    return [*stages, parallel_stage("scatter", numel(before) * rows * columns, tile)]


class _Apart:
    """Rows of all positions, and for some positions each which rows are between theirs.

    Positions are often in order, or nearly: then a block of rows has to look at few of them.
    """

    def __init__(
        self, code: KernelCode, positions: int, places: tuple[int, ...], size: int
    ) -> None:
        self.code, self.positions, self.places, self.size = code, positions, places, size
        outer, *inner = places
        self.each = ceil_div(_TOGETHER, numel(tuple(inner)))
        self.parts = ceil_div(outer, self.each)
        self.rows = code.builder.scratch_buffer(places, "int32", "rows")
        self.ends = code.builder.scratch_buffer((self.parts, 2), "int32", "ends")

    def _some(self, part: Expr, body: Callable[..., Stmt]) -> Stmt:
        """``body`` for the positions of a part."""
        outer, *inner = self.places
        start = part * self.each
        count = minimum(self.each, number(outer, "places") - start)
        return grid((count, *inner), lambda i, *rest: body(start + i, *rest), "i")

    def stage(self) -> Stage:
        """The stage that finds them."""

        def part(q: Expr) -> Stmt:
            ends = [local_buffer((1,), "int32", name) for name in ("least", "most")]
            start = (const(self.size), const(-1))

            def one(*i: Expr) -> Stmt:
                scope = Scope()
                position = self.code.evaluator(scope).read(self.positions, i)
                row = scope.keep(clamped(scope, position, self.size))
                new = (minimum(load(ends[0], 0), row), maximum(load(ends[1], 0), row))
                return scope.body(
                    store(self.rows, row, *i),
                    *[store(e, x, 0) for e, x in zip(ends, new, strict=True)],
                )

            return seq(
                *map(alloc, ends),
                *[store(e, x, 0) for e, x in zip(ends, start, strict=True)],
                self._some(q, one),
                *[store(self.ends, load(e, 0), q, k) for k, e in enumerate(ends)],
            )

        return tiled("places", self.parts, max(1, GRAIN * self.parts // numel(self.places)), part)

    def walk(self, first: Expr, count: Expr, body: Callable[..., Stmt]) -> Stmt:
        """``body`` for all positions of parts in which some may be in these rows."""

        def part(q: Expr) -> Stmt:
            scope = Scope()
            least, most = (scope.keep(load(self.ends, q, k)) for k in range(2))
            near = scope.all(least < first + count, most >= first)
            return scope.body(when(near, self._some(q, body)))

        return serial(number(self.parts, "parts"), part, "q")
