"""The fallback: one accumulator per result, terms added in row-major order.

Correct for every anchor (integer products, empty sums); not tuned.
"""

from __future__ import annotations

from ....core.shape import numel
from ...dialect import Scope
from ...loops import Expr, Stage, Stmt, alloc, grid, load, local_buffer, seq, store
from ...lower import KernelCode
from ...target import CpuTarget
from .combine import Combine
from .elementwise import GRAIN, tiled, unravel


def generic(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of any anchored kernel."""
    if code.kernel.anchor is None:
        return None
    shape = code.anchor.shape
    results = numel(shape)
    if results == 0:
        return []
    plain = code.anchor_reduce()
    combine = Combine(plain.combine, plain.dtype)
    terms = max(1, numel(plain.extents))

    def one(flat: Expr) -> Stmt:
        index = unravel(flat, shape)
        acc = [local_buffer((1,), d, f"acc{i}") for i, d in enumerate(combine.dtypes)]

        def term(*r: Expr) -> Stmt:
            scope = Scope()
            value = scope.keep(code.evaluator(scope).reduction().fn(index, r))
            held = tuple(scope.keep(load(b, 0)) for b in acc)
            position: Expr = 0
            for n, i in zip(plain.extents, r, strict=True):
                position = position * n + i
            new = combine.take(held, value, position, scope)
            return scope.body(*[store(b, v, 0) for b, v in zip(acc, new, strict=True)])

        return seq(
            [alloc(b) for b in acc],
            [store(b, v, 0) for b, v in zip(acc, combine.start(), strict=True)],
            *([] if 0 in plain.extents else [grid(plain.extents, term, "r")]),
            code.finish(index, load(acc[-1], 0)),
        )

    return [tiled("generic", results, max(1, GRAIN // terms), one)]
