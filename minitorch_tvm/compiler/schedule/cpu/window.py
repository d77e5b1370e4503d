"""Pooling and the maps that carry its gradients: a few terms per element, written out.

Pattern: a reduction over a window of at most 64 elements.  Strategy: the terms become one
expression, so that the innermost output dimension is an ordinary loop that LLVM can vectorise.
"""

from __future__ import annotations

import itertools

from ....core.shape import numel
from ....ops.pool import PoolBase
from ...dialect import Scope
from ...loops import Expr, Stage, Stmt, serial
from ...lower import KernelCode
from ...target import CpuTarget
from .combine import Combine
from .elementwise import GRAIN, tiled, unravel

_LARGEST = 64


def window(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a pooling kernel; None for large windows."""
    if code.kernel.anchor is None or not isinstance(code.anchor.op, PoolBase):
        return None
    shape = code.anchor.shape
    if numel(shape) == 0:
        return []
    plain = code.anchor_reduce()
    terms = numel(plain.extents)
    if not 0 < terms <= _LARGEST:
        return None
    combine = Combine(plain.combine, plain.dtype)

    def element(index: tuple[Expr, ...]) -> Stmt:
        scope = Scope()
        reduce = code.evaluator(scope).reduction()
        acc: tuple[Expr, ...] = combine.start()
        for position, r in enumerate(itertools.product(*map(range, plain.extents))):
            value = scope.keep(reduce.fn(index, r))
            acc = tuple(scope.keep(a) for a in combine.take(acc, value, position))
        return scope.body(code.finish(index, acc[-1]))

    outer, inner = shape[:-1], shape[-1]

    def row(flat: Expr) -> Stmt:
        head = unravel(flat, outer)
        return serial(inner, lambda j: element((*head, j)), "j")

    return [tiled("window", numel(outer), max(1, GRAIN // (inner * terms)), row)]
