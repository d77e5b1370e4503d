"""Running sums: y[k] = factor[k] * y[k - 1] + x[k] along one dimension.

Pattern: Scan.  Strategy: a tile owns some lines; it walks along them, a block of neighbouring lines
at a time where the dimension is not the last, which LLVM makes vectors of.  One line is not divided
among threads: its sums would depend on where it is cut.
"""

from __future__ import annotations

from ....core.shape import numel
from ....ops.scan import Scan
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
