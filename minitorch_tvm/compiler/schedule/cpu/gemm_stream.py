"""Product of one row with a large matrix whose rows are contiguous: the matrix is streamed once.

Register tiles would walk down narrow columns of it, a short piece of every row, which the hardware
does not foresee.  Here a tile takes some whole rows, several at a time, and adds them up in a line
of sums that stays in the first-level cache; the lines of all tiles are added at the end, in order.
"""

from __future__ import annotations

from ...loops import (
    Builder,
    Expr,
    Stage,
    Stmt,
    Var,
    bind,
    ceil_div,
    const,
    load,
    minimum,
    parallel_stage,
    seq,
    serial,
    store,
)
from ...target import CpuTarget
from .gemm_problem import Problem

_TOGETHER = 8  # rows that are added to the sums at once: as many streams
_PARTS = 16  # lines of sums
_FINISHED = 1024  # elements that a tile of the last stage finishes
# A smaller matrix stays in the second-level caches, a shorter line of sums is mostly overhead.
_LEAST_SHARE, _LEAST_LINE = 0.25, 256


def suits(pb: Problem, cpu: CpuTarget) -> bool:
    """Whether there is one row, and a matrix that is worth streaming."""
    line = pb.n * pb.itemsize
    large = pb.k * line >= _LEAST_SHARE * cpu.l2_bytes and pb.n >= _LEAST_LINE
    near = line <= cpu.l1_bytes // 2
    plain = pb.col_plain and not pb.col_k_inner
    return pb.m == 1 and plain and large and near and pb.k >= _PARTS * _TOGETHER


def stream_stages(pb: Problem, builder: Builder) -> list[Stage]:
    """Stages of the product; call only where :func:`suits` holds."""
    rows = ceil_div(ceil_div(pb.k, _PARTS), _TOGETHER) * _TOGETHER
    parts = ceil_div(pb.k, rows)
    sums = builder.scratch_buffer((pb.batch, parts, pb.n), pb.dtype, "sums")

    def add(bt: Expr, part: Expr, k: Expr, count: int) -> Stmt:
        read = [bind(f"x{i}", pb.row(bt, 0, k + i)) for i in range(count)]

        def one(j: Expr) -> Stmt:
            value = load(sums, bt, part, j)
            for i, (factor, _) in enumerate(read):
                value = value + factor * pb.col(bt, k + i, j)
            return store(sums, value, bt, part, j)

        return seq([bound for _, bound in read], serial(pb.n, one, "j"))

    def some(tile: Var) -> Stmt:
        bt, part = tile // parts, tile % parts
        first = part * rows
        count = rows if pb.k % rows == 0 else minimum(rows, pb.k - first)
        zero = const(0.0, pb.dtype)
        body = [
            serial(pb.n, lambda j: store(sums, zero, bt, part, j), "j"),
            serial(
                count // _TOGETHER, lambda i: add(bt, part, first + i * _TOGETHER, _TOGETHER), "k"
            ),
        ]
        if pb.k % _TOGETHER:
            whole = count // _TOGETHER * _TOGETHER
            body.append(serial(count - whole, lambda i: add(bt, part, first + whole + i, 1), "k"))
        return seq(*body)

    pieces = ceil_div(pb.n, _FINISHED)

    def finish(tile: Var) -> Stmt:
        bt, first = tile // pieces, tile % pieces * _FINISHED
        width = _FINISHED if pb.n % _FINISHED == 0 else minimum(_FINISHED, pb.n - first)

        def one(j: Expr) -> Stmt:
            value = load(sums, bt, 0, first + j)
            for part in range(1, parts):
                value = value + load(sums, bt, part, first + j)
            return pb.write(bt, 0, first + j, value)

        return serial(width, one, "j")

    return [
        parallel_stage("gemm_stream", pb.batch * parts, some),
        parallel_stage("gemm_stream_sum", pb.batch * pieces, finish),
    ]
