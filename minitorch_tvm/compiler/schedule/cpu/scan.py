"""Running sums, y[k] = factor[k] * y[k - 1] + x[k], and running extremes along one dimension.

Patterns: Scan, Leader and Paths.  Strategy: a tile owns some lines; it walks along them, a block of
neighbouring lines at a time where the dimension is not the last, which LLVM makes vectors of.  One
line is not divided among threads: its sums would depend on where it is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ....core.dtype import float64 as FLOAT64
from ....core.shape import Shape, numel
from ....core.tvm_api import tvm
from ....ops.scan import Leader, Scan
from ...dialect import Scope
from ...loops import (
    Expr,
    Stage,
    Stmt,
    alloc,
    const,
    load,
    local_buffer,
    minimum,
    seq,
    serial,
    store,
)
from ...lower import KernelCode
from ...target import CpuTarget
from .elementwise import GRAIN, tiled, unravel

_LINES = 64
"""Most lines that are walked along at once."""
_COST = 40
"""Simple instructions that a place of a path costs."""


Step = Callable[[Expr, Callable[[Expr, tuple[Expr, ...]], Stmt]], Stmt]
"""A place along the lines and what to do there, of (which line, index): a step of all lines."""


def _walked(
    name: str, shape: Shape, dim: int, walk: Callable[[int, Step], tuple[Stmt, ...]]
) -> list[Stage]:
    """Stages that walk along ``dim``: ``walk`` is given how many lines at most, and a ``Step``."""
    if numel(shape) == 0:
        return []
    lead, n, behind = shape[:dim], shape[dim], shape[dim + 1 :]
    inner = numel(behind)
    width = min(inner, _LINES)
    blocks = -(-inner // width)

    def lines(flat: Expr) -> Stmt:
        *before, block = unravel(flat, (*lead, blocks))
        left = block * width
        span = width if inner % width == 0 else minimum(width, inner - left)

        def step(place: Expr, one: Callable[[Expr, tuple[Expr, ...]], Stmt]) -> Stmt:
            return serial(span, lambda c: one(c, (*before, place, *unravel(left + c, behind))), "c")

        return seq(*walk(width, step))

    return [tiled(name, numel(lead) * blocks, max(1, GRAIN // (n * width)), lines)]


def scan(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a scan."""
    op, shape, dtype = code.anchor.op, code.anchor.shape, code.anchor.dtype
    assert isinstance(op, Scan)
    wide = "float64" if dtype.is_floating_point else dtype.name

    def walk(width: int, step: Step) -> tuple[Stmt, ...]:
        n, total = shape[op.dim], local_buffer((width,), wide, "total")

        def one(c: Expr, index: tuple[Expr, ...]) -> Stmt:
            scope = Scope()
            values = code.evaluator(scope)
            term, *factor = (
                scope.keep(values.read(v, index)).astype(wide) for v in code.anchor.inputs
            )
            held = load(total, c)
            new = scope.keep(scope.add(scope.mul(factor[0], held) if factor else held, term))
            done = code.finish(index, new.astype(dtype.name))
            return scope.body(store(total, new, c), done)

        clear = serial(width, lambda c: store(total, const(0, wide), c), "z")
        along = serial(n, lambda k: step(n - 1 - k if op.reverse else k, one), "k")
        return alloc(total), clear, along

    return _walked("scan", shape, op.dim, walk)


def leader(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a search for the largest, or lowest, of the elements up to each."""
    op, shape = code.anchor.op, code.anchor.shape
    assert isinstance(op, Leader)
    (source,) = code.anchor.inputs
    dtype = code.graph.values[source].dtype

    def walk(width: int, step: Step) -> tuple[Stmt, ...]:
        best = local_buffer((width,), dtype.name, "best")
        place = local_buffer((width,), "int32", "place")

        def one(c: Expr, index: tuple[Expr, ...]) -> Stmt:
            t, scope, k = tvm().tirx, Scope(), index[op.dim]
            x = scope.keep(code.evaluator(scope).read(source, index))
            held, at = scope.keep(load(best, c)), scope.keep(load(place, c))
            further = t.Or(at < 0, x <= held if op.lowest else x >= held)
            new = t.Select(further, k, at)
            if dtype.is_floating_point:
                # Not the negation of a comparison, which TVM's own passes take for another.
                most = t.infinity(dtype.name)
                new = t.Select(x <= most, t.Select(held <= most, new, at), k)
            new = scope.keep(new)
            done = code.finish(index, new.astype("int64"))
            keep = store(best, t.Select(t.EQ(new, k), x, held), c)
            return scope.body(keep, store(place, new, c), done)

        def clear(c: Expr) -> Stmt:
            return seq(store(best, const(0, dtype.name), c), store(place, const(-1), c))

        along = serial(shape[op.dim], lambda k: step(k, one), "k")
        return alloc(best), alloc(place), serial(width, clear, "z"), along

    return _walked("leader", shape, op.dim, walk)


def paths(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of sums along paths: a tile owns some samples, whose last frame it keeps."""
    times, samples, places = code.anchor.shape
    if numel(code.anchor.shape) == 0:
        return []
    source, skip = code.anchor.inputs
    dtype, wide = code.anchor.dtype, FLOAT64

    def sample(n: Expr) -> Stmt:
        before = local_buffer((places + 2,), wide.name, "before")
        now = local_buffer((places,), wide.name, "now")

        def step(k: Expr) -> Stmt:
            def one(s: Expr) -> Stmt:
                t, scope = tvm().tirx, Scope()
                values = code.evaluator(scope)
                least = const(-math.inf, wide.name)
                jumps = scope.keep(values.read(skip, (n, s)))
                x = scope.keep(values.read(source, (k, n, s))).astype(wide.name)
                stay, move = (scope.keep(load(before, s + m)) for m in (2, 1))
                jump = scope.keep(t.Select(jumps, load(before, s), least))
                top = scope.keep(scope.maximum(scope.maximum(stay, move), jump))
                base = scope.keep(t.Select(top > least, top, const(0.0, wide.name)))
                total = scope.exp(scope.sub(stay, base))
                for term in (move, jump):
                    total = scope.keep(scope.add(total, scope.exp(scope.sub(term, base))))
                first = t.Select(s < 2, const(0.0, wide.name), least)
                reached = scope.keep(scope.add(scope.log(total), base))
                new = scope.keep(scope.add(t.Select(k < 1, first, reached), x))
                done = code.finish((k, n, s), new.astype(dtype.name))
                return scope.body(store(now, new, s), done)

            keep = serial(places, lambda s: store(before, load(now, s), s + 2), "c")
            return seq(serial(places, one, "s"), keep)

        clear = serial(places + 2, lambda s: store(before, const(-math.inf, wide.name), s), "z")
        return seq(alloc(before), alloc(now), clear, serial(times, step, "k"))

    return [tiled("paths", samples, max(1, GRAIN // (_COST * times * places)), sample)]
