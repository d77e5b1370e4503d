"""Gradients of maxima of two by two, where such windows cover an image exactly.

Two rows of an image are taken apart into the first and second elements of windows, by shuffles of
whole vectors; what each window's winner gets is put together the same way.  Left to LLVM, such a
loop is not vectorised.
"""

from __future__ import annotations

from ....core.tvm_api import tvm
from ....ops.pool import MaxPoolGrad
from ...dialect import Scope
from ...loops import (
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    const,
    in_vectors,
    load,
    local_buffer,
    ramp,
    seq,
    serial,
    splat,
    store,
    vectorized,
)
from ...lower import KernelCode
from ...target import CpuTarget
from .conv_layout import covering
from .elementwise import GRAIN, tiled, unravel


def half_stages(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a gradient of maxima of two by two; None for others, and some sums in place."""
    op, (images, channels, height, width) = code.anchor.op, code.anchor.shape
    assert isinstance(op, MaxPoolGrad)
    size = 16 if width >= 16 else 8  # columns that are taken at once
    half = size // 2
    if not op.halves(op.size) or (code.overwrites and width % size):
        return None  # blocks would overlap
    dtype = code.anchor.dtype.name
    ct, x = code.anchor.inputs

    def block(head: tuple[Expr, Expr], y: Expr, c0: Expr) -> Stmt:
        rows, shares = (local_buffer((2, size), dtype, name) for name in ("rows", "shares"))
        given = local_buffer((half,), dtype, "given")

        def copy(v: int, index: tuple[Expr, ...], to: Memory, *place: Expr) -> Stmt:
            scope = Scope()
            value = code.evaluator(scope).tensor(v)[index]
            return scope.body(store(to, value, *place))

        def row(r: Expr) -> Stmt:
            return vectorized(size, lambda i: copy(x, (*head, 2 * y + r, c0 + i), rows, r, i))

        def finish(r: Expr) -> Stmt:
            def element(i: Expr) -> Stmt:
                return code.finish((*head, 2 * y + r, c0 + i), load(shares, r, i))

            return in_vectors(size, cpu.lanes(code.anchor.dtype.itemsize), element)

        return seq(
            [alloc(m) for m in (rows, shares, given)],
            serial(2, row, "r"),
            vectorized(half, lambda i: copy(ct, (*head, y, c0 // 2 + i), given, i)),
            _shares(rows, given, shares),
            serial(2, finish, "r"),
        )

    def line(flat: Expr) -> Stmt:
        image, channel, y = unravel(flat, (images, channels, height // 2))
        return covering(width, size, lambda c0: block((image, channel), y, c0))

    per_tile = max(1, GRAIN // (4 * width))
    return [tiled("window_halves", images * channels * height // 2, per_tile, line)]


def _shares(rows: Memory, given: Memory, shares: Memory) -> Stmt:
    """What each of two rows' elements gets of what its window is ``given``."""
    t = tvm().tirx
    size, half, dtype = rows.shape[1], given.shape[0], rows.dtype
    every, whole = ramp(0, half), ramp(0, size)
    statements: list[Stmt] = []

    def named(value: Expr, kind: str = dtype) -> Expr:
        memory = local_buffer((half,), kind, "v")
        statements.extend((alloc(memory), store(memory, value, every)))
        return load(memory, every)

    def number(k: int) -> Expr:
        return splat(const(k, "int32"), half)

    def elements(r: int, first: int) -> Expr:
        lanes = [const(2 * i + first) for i in range(half)]
        return named(t.Shuffle([load(rows, r, whole)], lanes))

    infinity = splat(t.infinity(dtype), half)

    def counted(value: Expr) -> Expr:
        # Infinity for a NaN: min gives the second of two if the first is one.
        return t.min(value, infinity)

    best, winner = named(counted(elements(0, 0))), number(0)
    for k in (1, 2, 3):
        value = elements(*divmod(k, 2))
        # More, or the last NaN: to later ones it is infinity.
        winner = named(t.Select(value <= best, winner, number(k)), "int32")
        best = named(t.max(best, counted(value)))
    amount, nothing = named(load(given, every)), splat(const(0, dtype), half)
    parts = [named(t.Select(t.EQ(winner, number(k)), amount, nothing)) for k in range(4)]
    # Lane i of the first part, lane i of the second, and so on.
    lanes = [const(i // 2 + half * (i % 2)) for i in range(size)]
    for r in (0, 1):
        joined = t.Shuffle([parts[2 * r], parts[2 * r + 1]], lanes)
        statements.append(store(shares, joined, r, whole))
    return seq(statements)
