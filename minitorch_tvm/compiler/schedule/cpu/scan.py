"""Running sums, y[k] = factor[k] * y[k - 1] + x[k], and running extremes along one dimension.

Patterns: Scan and Leader.  Strategy: a tile owns some lines; it walks along them, a block of
neighbouring lines at a time where the dimension is not the last, which LLVM makes vectors of.  One
line is not divided among threads: its sums would depend on where it is cut.
"""

from __future__ import annotations

from ....core.shape import numel
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


def scan(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a scan."""
    if code.kernel.anchor is None or not isinstance(code.anchor.op, Scan):
        return None
    op, shape, dtype = code.anchor.op, code.anchor.shape, code.anchor.dtype
    if numel(shape) == 0:
        return []
    lead, n, behind = shape[: op.dim], shape[op.dim], shape[op.dim + 1 :]
    inner = numel(behind)
    width = min(inner, _LINES)
    blocks = -(-inner // width)
    wide = "float64" if dtype.is_floating_point else dtype.name

    def lines(flat: Expr) -> Stmt:
        *before, block = unravel(flat, (*lead, blocks))
        left = block * width
        span = width if inner % width == 0 else minimum(width, inner - left)
        total = local_buffer((width,), wide, "total")

        def step(k: Expr) -> Stmt:
            place = n - 1 - k if op.reverse else k

            def one(c: Expr) -> Stmt:
                scope = Scope()
                index = (*before, place, *unravel(left + c, behind))
                values = code.evaluator(scope)
                term, *factor = (
                    scope.keep(values.read(v, index)).astype(wide) for v in code.anchor.inputs
                )
                held = load(total, c)
                new = scope.keep(scope.add(scope.mul(factor[0], held) if factor else held, term))
                done = code.finish(index, new.astype(dtype.name))
                return scope.body(store(total, new, c), done)

            return serial(span, one, "c")

        clear = serial(width, lambda c: store(total, const(0, wide), c), "z")
        return seq(alloc(total), clear, serial(n, step, "k"))

    return [tiled("scan", numel(lead) * blocks, max(1, GRAIN // (n * width)), lines)]


def leader(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a search for the largest, or lowest, of the elements up to each."""
    if code.kernel.anchor is None or not isinstance(code.anchor.op, Leader):
        return None
    op, shape = code.anchor.op, code.anchor.shape
    if numel(shape) == 0:
        return []
    (source,) = code.anchor.inputs
    dtype = code.graph.values[source].dtype
    lead, n, behind = shape[: op.dim], shape[op.dim], shape[op.dim + 1 :]
    inner = numel(behind)
    width = min(inner, _LINES)
    blocks = -(-inner // width)

    def lines(flat: Expr) -> Stmt:
        *before, block = unravel(flat, (*lead, blocks))
        left = block * width
        span = width if inner % width == 0 else minimum(width, inner - left)
        best = local_buffer((width,), dtype.name, "best")
        place = local_buffer((width,), "int32", "place")

        def step(k: Expr) -> Stmt:
            def one(c: Expr) -> Stmt:
                t, scope = tvm().tirx, Scope()
                index = (*before, k, *unravel(left + c, behind))
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

            return serial(span, one, "c")

        def clear(c: Expr) -> Stmt:
            return seq(store(best, const(0, dtype.name), c), store(place, const(-1), c))

        start = serial(width, clear, "z")
        return seq(alloc(best), alloc(place), start, serial(n, step, "k"))

    return [tiled("leader", numel(lead) * blocks, max(1, GRAIN // (n * width)), lines)]
