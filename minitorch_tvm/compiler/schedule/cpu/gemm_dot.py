"""Matrix product by dot products along k, for one side too narrow to fill vectors.

Both operands are read as vectors of consecutive k, so nothing is packed and the wide operand, which
is what has to come from memory, is read once and in order.  ``r`` rows times ``c`` columns of
vector accumulators stay in registers; their lanes are added up in a fixed tree at the end.
"""

from __future__ import annotations

from dataclasses import replace

from ....core.tvm_api import tvm
from ...loops import (
    Builder,
    Expr,
    Stage,
    Stmt,
    Var,
    alloc,
    bind,
    ceil_div,
    const,
    lanes_of,
    load,
    local_buffer,
    minimum,
    parallel_stage,
    ramp,
    seq,
    serial,
    splat,
    store,
    vectorized,
)
from ...target import CpuTarget
from .gemm_problem import Problem, zeros

# Tiles of one stage: enough for any thread count, few enough that calls cost nothing.
_TILES = 64


def suits(pb: Problem, cpu: CpuTarget) -> bool:
    """Whether ``rows`` is narrow and ``columns`` can be streamed along k."""
    lanes = cpu.lanes(pb.itemsize)
    narrow = max(1, lanes * 5 // 8)
    return pb.m <= narrow and lanes > 1 and pb.k >= 2 * lanes and pb.col_k_inner and pb.col_plain


def rows_along_k(pb: Problem, builder: Builder) -> tuple[Stage, Problem]:
    """Copy the narrow operand so that consecutive k are neighbours."""
    copy = builder.scratch_buffer((pb.batch, pb.m, pb.k), pb.dtype, "narrow")
    row = pb.row

    def body(bt: Var) -> Stmt:
        return serial(
            pb.m, lambda i: serial(pb.k, lambda k: store(copy, row(bt, i, k), bt, i, k), "k"), "i"
        )

    stage = parallel_stage("gemm_narrow", pb.batch, body)

    def again(bt: Expr, i: Expr, k: Expr) -> Expr:
        return load(copy, bt, i, k)

    return stage, replace(pb, row=again, row_k_inner=True, row_pitch=pb.k)


def _add_lanes(vector: Expr, lanes: int, name: str) -> tuple[list[Stmt], Expr]:
    statements: list[Stmt] = []
    while lanes > 1:
        lanes //= 2
        halves = lanes_of(vector, 0, lanes) + lanes_of(vector, lanes, lanes)
        vector, statement = bind(f"{name}_{lanes}", halves)
        statements.append(statement)
    return statements, vector


def dot_stages(pb: Problem, builder: Builder, cpu: CpuTarget) -> list[Stage]:
    """Stages of the product; call only where :func:`suits` holds."""
    stages: list[Stage] = []
    if not (pb.row_k_inner and pb.row_plain):
        stage, pb = rows_along_k(pb, builder)
        stages.append(stage)
    lanes = cpu.lanes(pb.itemsize)
    free = cpu.vector_registers - 1
    most = max(r for r in range(1, free) if r * (r + 1) <= free)
    passes = ceil_div(pb.m, most)
    nr = ceil_div(pb.m, passes)
    nc = min(8, free // (nr + 1), pb.n)
    blocks = ceil_div(pb.n, nc)
    group = max(1, blocks * pb.batch // _TILES)
    groups = ceil_div(blocks, group)
    every = ramp(0, lanes)
    rest = pb.k % lanes

    def tile(bt: Expr, i0: Expr, i_skip: Expr, j0: Expr, j_skip: Expr) -> Stmt:
        acc = {
            (r, c): local_buffer((lanes,), pb.dtype, "acc") for r in range(nr) for c in range(nc)
        }
        row = [local_buffer((lanes,), pb.dtype, "row") for _ in range(nr)]
        col = [local_buffer((lanes,), pb.dtype, "col") for _ in range(nc)]
        out = local_buffer((nr * nc,), pb.dtype, "out")

        def step(k: Expr, fresh: int) -> Stmt:
            # Only the last ``fresh`` lanes count: the final step starts early and overlaps.
            def take(buffer: Expr) -> Expr:
                value = load(buffer, every)
                if fresh == lanes:
                    return value
                new = tvm().tirx.GE(every, splat(const(lanes - fresh), lanes))
                return tvm().tirx.Select(new, value, zeros(pb.dtype, lanes))

            def read_row(r: int) -> Stmt:
                return vectorized(lanes, lambda x: store(row[r], pb.row(bt, i0 + r, k + x), x))

            def read_col(c: int) -> Stmt:
                return vectorized(lanes, lambda x: store(col[c], pb.col(bt, k + x, j0 + c), x))

            reads = [*map(read_row, range(nr)), *map(read_col, range(nc))]
            updates = [
                store(b, load(b, every) + take(row[r]) * take(col[c]), every)
                for (r, c), b in acc.items()
            ]
            return seq(reads, updates)

        # The lanes of all sums are added by one loop: written out, they would be half of the code.
        wide = local_buffer((nr * nc, lanes), pb.dtype, "wide")

        def narrow(i: Expr) -> Stmt:
            sums, total = _add_lanes(load(wide, i, every), lanes, "s")
            return seq(sums, store(out, total, i))

        finish = [store(wide, load(b, every), i, every) for i, b in enumerate(acc.values())]
        write = pb.write_tile(
            bt,
            (i0 + i_skip, j0 + j_skip),
            (nr - i_skip, nc - j_skip),
            lambda i, j: load(out, (i_skip + i) * nc + j_skip + j),
            lanes,
        )
        return seq(
            [alloc(b) for b in (*acc.values(), *row, *col, wide, out)],
            [store(b, zeros(pb.dtype, lanes), every) for b in acc.values()],
            serial(pb.k // lanes, lambda kb: step(kb * lanes, lanes), "k"),
            [step(const(pb.k - lanes), rest)] if rest else [],
            finish,
            serial(nr * nc, narrow, "i"),
            write,
        )

    def start(block: Expr, size: int, extent: int) -> tuple[Expr, Expr]:
        """First index of a block and how many of its leading entries are another block's."""
        if extent % size == 0:
            return block * size, const(0)
        first = minimum(block * size, extent - size)
        return first, block * size - first

    def body(t: Var) -> Stmt:
        bt = t // groups
        first = t % groups * group
        count: Expr = group if blocks % group == 0 else minimum(group, blocks - first)

        def column_block(b: Expr) -> Stmt:
            j = start(first + b, nc, pb.n)
            return serial(passes, lambda q: tile(bt, *start(q, nr, pb.m), *j), "q")

        return serial(count, column_block, "b")

    stages.append(parallel_stage("gemm_dot", pb.batch * groups, body))
    return stages
