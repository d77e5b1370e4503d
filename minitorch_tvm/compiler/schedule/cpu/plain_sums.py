"""Sums of products by multiply-adds, for operands that the matrix unit would compute wrongly."""

from __future__ import annotations

from collections.abc import Callable

from ...loops import Expr, Stmt, alloc, const, load, local_buffer, ramp, seq, splat, store
from .bfloat_parts import LANES, register


def plain_sums(
    size: tuple[int, int],
    left: Callable[..., Expr],
    right: Callable[..., Expr],
    loops: Callable[[Callable[..., Stmt]], Stmt],
    put: Callable[[int, int, Expr], Stmt],
    before: Callable[[int, int], Expr] | None = None,
) -> Stmt:
    """``size`` vectors of sums in registers: ``put(i, j, sum of left(i, ...) * right(j, ...))``.

    ``loops`` nests a step's loops around it and hands it their variables, which ``left`` and
    ``right`` take after their number; ``before(i, j)`` are the values that the sums start with.
    """
    every = ramp(0, LANES)
    rows, columns = range(size[0]), range(size[1])
    acc = {(i, j): local_buffer((LANES,), "float32", "acc") for i in rows for j in columns}

    def step(*index: Expr) -> Stmt:
        statements: list[Stmt] = []
        a = [register(left(i, *index), statements) for i in rows]
        b = [register(right(j, *index), statements) for j in columns]
        for (i, j), memory in acc.items():
            statements.append(store(memory, load(memory, every) + a[i] * b[j], every))
        return seq(statements)

    nothing = splat(const(0.0, "float32"), LANES)
    return seq(
        [alloc(memory) for memory in acc.values()],
        [store(m, before(*at) if before else nothing, every) for at, m in acc.items()],
        loops(step),
        [put(*at, load(memory, every)) for at, memory in acc.items()],
    )
