"""Pooling and the maps that carry its gradients: a few terms per element, written out.

Pattern: a reduction over a window of at most 64 elements.  Strategy: the terms become one
expression, so that the innermost output dimension is an ordinary loop that LLVM can vectorise.

Gradients walk over windows, not over the elements they go to: which elements of which windows reach
one depends on its place between two strides only, and is known when the loop body is written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ....core.shape import numel
from ....ops.pool import BackToInput, MaxPoolGrad
from ...dialect import Scope
from ...loops import Expr, Stage, Stmt, ceil_div, const, seq, serial, when
from ...lower import KernelCode
from ...target import CpuTarget
from .combine import Combine
from .conv_layout import covering
from .elementwise import GRAIN, tiled, unravel
from .window_halves import half_stages

_LARGEST = 64
_SHORTEST, _LONGEST = 8, 4  # elements of a vector, vectors of a row


def window(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a pooling kernel; None for large windows."""
    shape = code.anchor.shape
    if numel(shape) == 0:
        return []
    if isinstance(code.anchor.op, MaxPoolGrad):
        stages = half_stages(code, cpu)
        if stages is not None:
            return stages
    plain = code.anchor_reduce()
    terms = numel(plain.extents)
    if not 0 < terms <= _LARGEST:
        return None
    if isinstance(code.anchor.op, BackToInput) and numel(code.anchor.op.stride) <= _LARGEST:
        return [_back(code, code.anchor.op, cpu)]
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
        return _columns(code, cpu, inner, lambda j: element((*head, j)))

    return [tiled("window", numel(outer), max(1, GRAIN // (inner * terms)), row)]


def _columns(code: KernelCode, cpu: CpuTarget, count: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """``body`` for each of ``count`` columns.

    Vectors that may overlap cover a short row: LLVM would leave up to half of it to scalars.
    """
    width = min(cpu.lanes(code.anchor.dtype.itemsize), 1 << count.bit_length() - 1)
    if code.overwrites or width < _SHORTEST or count > _LONGEST * width:
        return serial(count, body, "x")
    return covering(count, width, lambda x: serial(width, lambda j: body(x + j), "j"))


def _back(code: KernelCode, op: BackToInput, cpu: CpuTarget) -> Stage:
    """For each step of the strides, the elements of the input from it to the next."""
    images, channels, *size = code.anchor.shape
    strides = op.stride
    steps = [ceil_div(n, s) for n, s in zip(size, strides, strict=True)]
    whole = [n // s for n, s in zip(size, strides, strict=True)]
    rest = [n % s for n, s in zip(size, strides, strict=True)]

    def element(head: tuple[Expr, Expr], step: tuple[Expr, Expr], phase: tuple[int, int]) -> Stmt:
        scope = Scope()
        e = code.evaluator(scope)
        inputs = tuple(e.tensor(x) for x in code.anchor.inputs)
        zero = const(0, code.anchor.dtype.name)
        total: Expr = zero
        for (ry, dy), (rx, dx) in itertools.product(*(op.taps(a, phase[a]) for a in (0, 1))):
            place = (step[0] + dy, step[1] + dx)
            inside = []
            for axis, shift in enumerate((dy, dx)):
                if shift < 0:
                    inside.append(place[axis] >= 0)
                if steps[axis] - 1 + shift >= op.out[axis]:
                    inside.append(place[axis] < op.out[axis])

            def share(place: tuple[Expr, Expr] = place, r: tuple[int, int] = (ry, rx)) -> Expr:
                return op.share(scope, inputs, (*head, *place), r)

            term = scope.guard(scope.all(*inside), share, zero) if inside else share()
            total = scope.keep(total + term)
        index = (*head, *(s * i + p for s, i, p in zip(strides, step, phase, strict=True)))
        return scope.body(code.finish(index, total))

    def rows(head: tuple[Expr, Expr], y: Expr, count: int) -> Stmt:
        def column(x: Expr, width: int) -> list[Stmt]:
            phases = itertools.product(range(count), range(width))
            return [element(head, (y, x), phase) for phase in phases]

        last = column(const(whole[1]), rest[1])
        if not whole[1]:
            return seq(last)
        return seq(_columns(code, cpu, whole[1], lambda x: seq(column(x, strides[1]))), last)

    def line(flat: Expr) -> Stmt:
        image, channel, y = unravel(flat, (images, channels, steps[0]))
        head = (image, channel)
        full = rows(head, y, strides[0]) if whole[0] else None
        if not rest[0]:
            assert full is not None
            return full
        last = rows(head, y, rest[0])
        return last if full is None else when(y < whole[0], full, last)

    per_tile = max(1, GRAIN // (strides[0] * size[1] * numel(op.kernel)))
    return tiled("window", images * channels * steps[0], per_tile, line)
