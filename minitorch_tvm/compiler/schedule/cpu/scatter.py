"""Sums of rows into computed places (the gradient of a gather), and who comes last to a place.

Pattern: ScatterAdd, out[index[i]] += ct[i], and LastPosition, out[index[i]] = i.  Strategy: a tile
owns a block of rows and columns of the result; it clears it, walks over all positions in order and
adds those that fall into it.  Nothing is shared between tiles and blocks depend on the shape alone,
so the result has the same bits for every number of threads.  Atomic additions were rejected (their
order is not fixed), and so was one comparison per pair of row and position (rows times the work).
"""

from __future__ import annotations

import operator

from ....core.shape import numel
from ....ops.gather import ScatterAdd, clamped
from ....ops.picking import LastPosition
from ...dialect import Scope
from ...loops import (
    Expr,
    Stage,
    Stmt,
    ceil_div,
    const,
    grid,
    load,
    minimum,
    number,
    parallel_stage,
    seq,
    store,
    when,
    wrapped,
)
from ...lower import KernelCode
from ...target import CpuTarget
from .elementwise import GRAIN, unravel

_COLUMNS = 4
"""Vectors in a block of columns: two cache lines and more, so that tiles do not share lines."""

_ROW_BLOCKS, _FAR_BLOCKS = 16, 64
"""Most blocks of rows, and of those that are more than a core's cache holds: each of them walks
over all positions."""


def _number(index: tuple[Expr, ...], shape: tuple[int, ...]) -> Expr:
    """That of an element, in row-major order."""
    total: Expr = const(0)
    for i, n in zip(index, shape, strict=True):
        total = total * n + i
    return total


def scatter(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a scatter-add, or of the last positions."""
    if code.kernel.anchor is None or not isinstance(code.anchor.op, (ScatterAdd, LastPosition)):
        return None
    op, anchor = code.anchor.op, code.anchor
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
    height = max(ceil_div(op.size, blocks), min(op.size, GRAIN // (width * numel(tuple(middle)))))
    height = max(1, height)
    rows = ceil_div(op.size, height)
    # With followers, the kernel's outputs may stand on memory that they still have to read.
    alone = code.kernel.members == (code.kernel.anchor,)
    shape = anchor.shape
    result = (
        code.buffer(code.kernel.anchor)
        if alone
        else code.builder.scratch_buffer(shape, anchor.dtype.name, "rows")
    )

    # Several positions of the outermost dimension, or what is told would be in the innermost loop.
    told = (number(places[0], "places"), *places[1:]) if len(places) > 1 else places

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
            position = code.evaluator(scope).read(positions, i)
            row = scope.keep(clamped(scope, position, op.size))

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
            body = grid((*middle, span), element, "c")
            return scope.body(body if here is True else when(here, body))

        def finish(r: Expr, *rest: Expr) -> Stmt:
            *inside, c = rest
            index = at(first + r, tuple(inside), c)
            return code.finish(index, load(result, *index))

        block_of = (count, *middle, span)
        steps = [grid(block_of, clear, "z"), grid(told, add, "i")]
        return seq(*steps, *([] if alone else [grid(block_of, finish, "f")]))

    return [parallel_stage("scatter", numel(before) * rows * columns, tile)]
