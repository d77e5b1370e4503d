"""Matrix product by dot products along k, for one side too narrow to fill vectors.

Both operands are read as vectors of consecutive k, so nothing is packed and the wide operand, which
is what has to come from memory, is read once and in order.  ``r`` rows times ``c`` columns of
vector accumulators stay in registers; their lanes are added up in a fixed tree at the end.  More
rows take several passes over a few columns, so many k at a time that these stay in the first-level
cache; meanwhile each pass asks memory for its share of the next.
"""

from __future__ import annotations

from dataclasses import replace

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    Builder,
    Expr,
    Stage,
    Stmt,
    Var,
    alloc,
    below,
    bind,
    ceil_div,
    const,
    grid,
    lanes_of,
    load,
    local_buffer,
    minimum,
    number,
    parallel_stage,
    prefetch,
    ramp,
    seq,
    serial,
    splat,
    store,
    vectorized,
    view,
    when,
)
from ...target import CpuTarget
from .gemm_problem import Problem, batch_and_part, zeros

# Tiles of one stage: enough for any thread count, few enough that calls cost nothing.
_TILES = 64
_LONG = 16  # vectors along k
_NEAR = 0.5  # of the first-level cache, for the columns that several passes read
_FAR = 0.5  # of the second-level cache: columns that are more are asked for ahead
_MOST_COLUMNS = 8


# Cycles of a vector of terms if its operands are in registers, of reading them for it, and of
# adding up the lanes of a sum.
_TERM_CYCLES, _READ_CYCLES, _SUM_CYCLES = 0.5, 0.25, 12


def suits(pb: Problem, cpu: CpuTarget) -> bool:
    """Whether ``rows`` is narrow and ``columns`` can be streamed along k.

    So narrow that nothing else is considered; compare :func:`may_suit`.
    """
    lanes = cpu.lanes(pb.itemsize)
    # A vector's worth of rows, if sums are so long that adding up their lanes costs little.
    narrow = lanes if pb.k >= _LONG * lanes else max(1, lanes * 5 // 8)
    return pb.m <= narrow and pb.k >= 2 * lanes and _streams(pb, cpu)


def may_suit(pb: Problem, cpu: CpuTarget) -> bool:
    """Whether ``rows`` is so narrow that dot products may be faster: compare :func:`cycles`.

    More than a vector's worth, of which outer products leave the second vector partly empty.
    """
    lanes = cpu.lanes(pb.itemsize)
    return pb.m < 2 * lanes and pb.k >= _LONG * lanes and _streams(pb, cpu)


def _streams(pb: Problem, cpu: CpuTarget) -> bool:
    return cpu.lanes(pb.itemsize) > 1 and pb.col_k_inner and pb.col_plain


@record
class _Tile:
    """Rows by columns of sums in registers, and in how many passes all rows get their turn."""

    rows: int
    columns: int
    passes: int

    @property
    def cycles(self) -> float:
        """Of a vector of terms for each row and one column; passes may share rows."""
        reads = 1 / self.rows + 1 / self.columns
        return self.passes * self.rows * (_TERM_CYCLES + _READ_CYCLES * reads)


def _tile(pb: Problem, cpu: CpuTarget) -> _Tile:
    """The fastest; of equals, that which reads rows least often, of which all are used again."""
    free = cpu.vector_registers - 1
    sums = pb.most_sums(free)
    found = []
    for most in range(1, min(pb.m, free // 2, sums) + 1):
        passes = ceil_div(pb.m, most)
        rows = ceil_div(pb.m, passes)
        columns = min(_MOST_COLUMNS, free // (rows + 1), sums // rows, pb.n)
        found.append(_Tile(rows, columns, passes))
    return min(found, key=lambda t: (t.cycles, -t.columns))


def cycles(pb: Problem, cpu: CpuTarget) -> float:
    """Estimated cycles of a product with these stages, all cores together."""
    term = _tile(pb, cpu).cycles * pb.k / cpu.lanes(pb.itemsize)
    return pb.batch * pb.n * (term + _SUM_CYCLES * pb.m)


def rows_along_k(pb: Problem, builder: Builder) -> tuple[Stage, Problem]:
    """Copy the narrow operand so that consecutive k are neighbours."""
    copy = builder.scratch_buffer((pb.batch, pb.m, pb.k), pb.dtype, "narrow")
    row = pb.row

    def body(bt: Var) -> Stmt:
        # Told, lest LLVM writes out, and gathers, all of them.
        rows, steps = number(pb.m, "m"), number(pb.k, "k")
        return serial(
            rows, lambda i: serial(steps, lambda k: store(copy, row(bt, i, k), bt, i, k), "k"), "i"
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
    if pb.col_pitch is None:
        raise AssertionError("columns are memory, or this does not suit")
    lanes, pitch = cpu.lanes(pb.itemsize), pb.col_pitch
    best = _tile(pb, cpu)
    nr, nc, passes = best.rows, best.columns, best.passes
    blocks = ceil_div(pb.n, nc)
    group = max(1, blocks * pb.batch // _TILES)
    groups = ceil_div(blocks, group)
    every = ramp(0, lanes)
    rest, steps = pb.k % lanes, pb.k // lanes
    # Of so many k, what one pass after the other reads of the columns stays in the nearest cache.
    near = max(1, int(_NEAR * cpu.l1_bytes) // (nc * lanes * pb.itemsize))
    depth = steps if passes == 1 else min(steps, near)
    visits = ceil_div(steps, depth)
    far = passes > 1 and pb.n * pb.k * pb.itemsize > _FAR * cpu.l2_bytes
    # A pass hands its sums on at once, unless there are more visits to come.
    sums = local_buffer((passes if visits > 1 else 1, nr * nc, lanes), pb.dtype, "sums")

    def tile(bt: Expr, place: tuple[Expr, Expr], i0: Expr, j0: Expr, kb: Expr) -> Stmt:
        """Add a block of k to the sums of a pass; ``place``: its number and that of its sums."""
        q, own = place
        acc = {
            (r, c): local_buffer((lanes,), pb.dtype, "acc") for r in range(nr) for c in range(nc)
        }
        row = [local_buffer((lanes,), pb.dtype, "row") for _ in range(nr)]
        col = [local_buffer((lanes,), pb.dtype, "col") for _ in range(nc)]
        columns, known = view(pb.col(bt, const(0), j0), "columns")

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
                return store(col[c], load(columns, ramp(c * pitch + k, lanes)), every)

            reads = [*map(read_row, range(nr)), *map(read_col, range(nc))]
            updates = [
                store(b, load(b, every) + take(row[r]) * take(col[c]), every)
                for (r, c), b in acc.items()
            ]
            return seq(reads, updates)

        first = kb * depth
        count: Expr = depth if steps % depth == 0 else minimum(depth, steps - first)
        last: list[Stmt] = [step(const(pb.k - lanes), rest)] if rest else []
        if last and visits > 1:
            last = [when(tvm().tirx.EQ(kb, const(visits - 1)), seq(last))]
        t = tvm().tirx
        over = t.EQ(kb, const(visits - 1))
        later = t.Select(over, const(0), (kb + 1) * depth)

        def asks(k: Expr) -> list[Stmt]:
            """Ask for what the first pass over the next block reads: memory works meanwhile."""
            if not far:
                return []
            found = []
            for c in range(0, nc, passes):
                column = j0 + minimum(q + c, nc - 1) + t.Select(over, const(nc), const(0))
                line = pb.col(bt, (later + k) * lanes, column)
                found.append(prefetch(line, nearest=False))
            return found

        nothing = zeros(pb.dtype, lanes)
        begin = [
            store(b, load(sums, own, i, every) if visits > 1 else nothing, every)
            for i, b in enumerate(acc.values())
        ]
        end = [store(sums, load(b, every), own, i, every) for i, b in enumerate(acc.values())]
        return seq(
            [alloc(b) for b in (*acc.values(), *row, *col)],
            known,
            begin,
            serial(count, lambda k: seq(asks(k), step((first + k) * lanes, lanes)), "k"),
            last,
            end,
        )

    def finish(bt: Expr, own: Expr, i: tuple[Expr, Expr], j: tuple[Expr, Expr]) -> Stmt:
        """Hand the sums of a pass on; the leading ones that another has computed, too, are not."""
        out = local_buffer((nr * nc,), pb.dtype, "out")
        (i0, i_skip), (j0, j_skip) = i, j

        # The lanes of all sums are added by one loop: written out, they would be half of the code.
        def narrow(n: Expr) -> Stmt:
            added, total = _add_lanes(load(sums, own, n, every), lanes, "s")
            return seq(added, store(out, total, n))

        write = pb.write_tile(
            bt,
            (i0 + i_skip, j0 + j_skip),
            (nr - i_skip, nc - j_skip),
            lambda r, c: load(out, (i_skip + r) * nc + j_skip + c),
            lanes,
        )
        return seq(alloc(out), serial(nr * nc, narrow, "i"), write)

    def start(block: Expr, size: int, extent: int, last: Expr) -> tuple[Expr, Expr]:
        """First index of a block and how many of its leading entries are another block's."""
        if extent % size == 0:
            return block * size, const(0)
        first = minimum(block * size, last)
        return first, block * size - first

    each = 1 if group == 1 else number(group, "each")  # of one there is no loop
    every_block = number(blocks, "blocks")
    last_row, last_column = const(pb.m - nr), number(pb.n - nc, "last")

    def body(t: Var) -> Stmt:
        bt, part = batch_and_part(t, pb.batch, groups)
        first = below(part * each, blocks)
        count = 1 if group == 1 else minimum(each, every_block - first)

        def column_block(b: Expr) -> Stmt:
            j = start(first + b, nc, pb.n, last_column)

            def clear(q: Expr, n: Expr) -> Stmt:
                return store(sums, zeros(pb.dtype, lanes), q, n, every)

            def add(kb: Expr, q: Expr) -> Stmt:
                return tile(
                    bt, (q, q if visits > 1 else 0), start(q, nr, pb.m, last_row)[0], j[0], kb
                )

            def end(q: Expr) -> Stmt:
                return finish(bt, q if visits > 1 else 0, start(q, nr, pb.m, last_row), j)

            if visits == 1:
                # One loop: written out twice by LLVM, two would take twice as long to compile.
                return serial(passes, lambda q: seq(add(const(0), q), end(q)), "q")
            return seq(
                grid((passes, nr * nc), clear),
                grid((visits, passes), add),
                serial(passes, end, "q"),
            )

        return seq(alloc(sums), serial(count, column_block, "b"))

    stages.append(parallel_stage("gemm_dot", pb.batch * groups, body))
    return stages
