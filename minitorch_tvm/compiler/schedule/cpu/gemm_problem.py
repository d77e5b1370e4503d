"""The matrix product as the GEMM schedules see it, and how operands are packed.

``rows`` is the operand read one scalar at a time (broadcast over a vector), ``columns`` the operand
read as vectors.  Either may be the user's A: when the user's B is the narrow one, the two swap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ....core.tvm_api import tvm
from ...loops import (
    Builder,
    Expr,
    Memory,
    Stage,
    Stmt,
    Var,
    alloc,
    bind,
    const,
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
    when,
)
from ...target import CpuTarget

Load = Callable[[Expr, Expr, Expr], Expr]
Write = Callable[[Expr, Expr, Expr, Expr], Stmt]

# Enough equal tiles that a contiguous split over the threads of a small machine is even.
MIN_TILES = 16
# TVM's limit for allocations it leaves on the stack is below 1024 bytes.
STACK_BUFFER_BYTES = 1023


@dataclass(frozen=True)
class Problem:
    """``out[bt, i, j] = sum over k of row(bt, i, k) * col(bt, k, j)``."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    row: Load  # (bt, i, k)
    col: Load  # (bt, k, j)
    row_k_inner: bool  # consecutive k are neighbours in memory
    col_k_inner: bool
    row_plain: bool  # contiguous memory that may be read again and again
    col_plain: bool
    write: Write
    swapped: bool  # rows are the user's columns

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    def swap(self) -> Problem:
        """The transposed problem: the same sums in the same order, roles exchanged."""
        row, col, write = self.row, self.col, self.write
        return replace(
            self,
            m=self.n,
            n=self.m,
            row=lambda bt, i, k: col(bt, k, i),
            col=lambda bt, k, j: row(bt, j, k),
            row_k_inner=self.col_k_inner,
            col_k_inner=self.row_k_inner,
            row_plain=self.col_plain,
            col_plain=self.row_plain,
            write=lambda bt, i, j, value: write(bt, j, i, value),
            swapped=not self.swapped,
        )

    def write_tile(
        self,
        bt: Expr,
        origin: tuple[Expr, Expr],
        extent: tuple[Expr, Expr],
        value: Callable[[Expr, Expr], Expr],
    ) -> Stmt:
        """Finish the elements of a tile, the user's columns innermost (they are contiguous)."""
        (i0, j0), (rows, cols) = origin, extent

        def one(i: Expr, j: Expr) -> Stmt:
            return self.write(bt, i0 + i, j0 + j, value(i, j))

        if self.swapped:
            return serial(cols, lambda j: serial(rows, lambda i: one(i, j), "i"), "j")
        return serial(rows, lambda i: serial(cols, lambda j: one(i, j), "j"), "i")


def ceil_div(a: int, b: int) -> int:
    """Quotient rounded up."""
    return -(-a // b)


def zeros(dtype: str, lanes: int) -> Expr:
    """A vector of zeros."""
    return splat(const(0.0, dtype), lanes)


def materialise_rows(pb: Problem, builder: Builder) -> tuple[Stage, Problem]:
    """Evaluate a fused row operand once, in its own order, so that later reads are plain."""
    outer, inner = (pb.m, pb.k) if pb.row_k_inner else (pb.k, pb.m)
    name = "cols" if pb.swapped else "rows"
    copy = builder.scratch_buffer((pb.batch, outer, inner), pb.dtype, name)
    row, k_inner = pb.row, pb.row_k_inner
    step = max(1, min(outer, ceil_div(4096, inner)))
    parts = ceil_div(outer, step)

    def body(tile: Var) -> Stmt:
        bt, first = tile // parts, tile % parts * step
        count: Expr = step if outer % step == 0 else minimum(step, outer - first)

        def element(o: Expr, i: Expr) -> Stmt:
            value = row(bt, first + o, i) if k_inner else row(bt, i, first + o)
            return store(copy, value, bt, first + o, i)

        return serial(count, lambda o: serial(inner, lambda i: element(o, i), "i"), "o")

    def again(bt: Expr, i: Expr, k: Expr) -> Expr:
        return load(copy, bt, i, k) if k_inner else load(copy, bt, k, i)

    stage = parallel_stage(f"gemm_{name}", pb.batch * parts, body)
    return stage, replace(pb, row=again, row_plain=True)


def _transpose(vectors: list[Expr], lanes: int) -> tuple[list[Stmt], list[Expr]]:
    """Transpose a lanes x lanes block held in registers.

    Exchanges the off-diagonal halves of ever smaller diagonal blocks, log2(lanes) rounds of
    two-operand shuffles.
    """
    t = tvm()
    statements: list[Stmt] = []
    half = lanes // 2
    while half:
        low = [c if c & half == 0 else lanes + c - half for c in range(lanes)]
        high = [c + half if c & half == 0 else lanes + c for c in range(lanes)]
        after = list(vectors)
        for i in range(lanes):
            if i & half:
                continue
            pair = [vectors[i], vectors[i + half]]
            for target, picks in ((i, low), (i + half, high)):
                shuffled = t.tirx.Shuffle(pair, [const(p) for p in picks])
                after[target], statement = bind(f"t{half}_{target}", shuffled)
                statements.append(statement)
        vectors = after
        half //= 2
    return statements, vectors


def pack_panel(
    pb: Problem,
    cpu: CpuTarget,
    put: Callable[[Expr, Expr, Expr], Stmt],
    where: tuple[Expr, Expr],
    widths: tuple[int, int],
    k_range: tuple[Expr, Expr],
) -> Stmt:
    """Pack one panel of columns as lines of neighbours, one line per k.

    ``put(value, k, j)`` stores into the panel; ``where`` is (batch, panel), ``widths`` the padded
    width of a panel and of the last one, ``k_range`` is (first, count).  Padding never reaches the
    result, but must not hold garbage: arithmetic on denormal numbers is slow.
    """
    (bt, p), (nr, last_nr), (k0, count) = where, widths, k_range
    lanes = cpu.lanes(pb.itemsize)
    if pb.col_k_inner and pb.k >= lanes and lanes > 1:
        vectors: Expr = nr // lanes
        if last_nr != nr:
            vectors = minimum(vectors, ceil_div(pb.n, lanes) - p * (nr // lanes))
        return _pack_transposed(pb, lanes, put, (bt, p * nr), vectors, k_range)

    def lines(padded: int, width: int) -> Stmt:
        def line(kk: Expr) -> Stmt:
            k = k0 + kk
            start = width // lanes * lanes
            clear = [
                put(zeros(pb.dtype, lanes), k, ramp(v, lanes)) for v in range(start, padded, lanes)
            ]
            copy = serial(width, lambda j: put(pb.col(bt, k, p * nr + j), k, j), "j")
            return seq(clear, copy)

        return serial(count, line, "k")

    panels = ceil_div(pb.n, nr)
    width = pb.n - (panels - 1) * nr
    if panels == 1 or width == nr:
        return lines(last_nr, width)
    return when(tvm().tirx.EQ(p, const(panels - 1)), lines(last_nr, width), lines(nr, nr))


def _pack_transposed(
    pb: Problem,
    lanes: int,
    put: Callable[[Expr, Expr, Expr], Stmt],
    where: tuple[Expr, Expr],
    vectors: Expr,
    k_range: tuple[Expr, Expr],
) -> Stmt:
    (bt, j0), (k0, count) = where, k_range
    ragged = pb.n % lanes != 0

    def block(jb: Expr, kb: Expr) -> Stmt:
        square = [local_buffer((lanes,), pb.dtype, f"row{r}") for r in range(lanes)]
        # The last block starts early instead of running past the end: rows are written twice.
        k = minimum(k0 + kb * lanes, pb.k - lanes) if pb.k % lanes else k0 + kb * lanes

        def line(r: int) -> Stmt:
            j = j0 + jb * lanes + r
            column = minimum(j, pb.n - 1) if ragged else j
            fill = vectorized if pb.col_plain else serial
            return fill(lanes, lambda c: store(square[r], pb.col(bt, k + c, column), c), "c")

        rows = [load(line, ramp(0, lanes)) for line in square]
        shuffles, columns = _transpose(rows, lanes)
        puts = [put(v, k + c, ramp(jb * lanes, lanes)) for c, v in enumerate(columns)]
        return seq([alloc(b) for b in square], [line(r) for r in range(lanes)], shuffles, puts)

    blocks = (count + lanes - 1) // lanes
    return serial(vectors, lambda jb: serial(blocks, lambda kb: block(jb, kb), "kb"), "jb")


def pack_columns(
    pb: Problem, cpu: CpuTarget, builder: Builder, nr: int, last_nr: int
) -> tuple[Stage, Memory]:
    """A stage that packs all panels ``[batch, panel, k, nr]``; the last is ``last_nr`` wide."""
    panels = ceil_div(pb.n, nr)
    lanes = cpu.lanes(pb.itemsize)
    packed = builder.scratch_buffer((pb.batch, panels, pb.k, nr), pb.dtype, "panels")
    parts = min(ceil_div(MIN_TILES, pb.batch * panels), ceil_div(pb.k, 4 * lanes))
    step = ceil_div(ceil_div(pb.k, parts), lanes) * lanes
    parts = ceil_div(pb.k, step)

    def body(tile: Var) -> Stmt:
        bt, p, k0 = tile // (panels * parts), tile // parts % panels, tile % parts * step
        count: Expr = step if pb.k % step == 0 else minimum(step, pb.k - k0)

        def put(value: Expr, k: Expr, j: Expr) -> Stmt:
            return store(packed, value, bt, p, k, j)

        return pack_panel(pb, cpu, put, (bt, p), (nr, last_nr), (k0, count))

    return parallel_stage("gemm_pack", pb.batch * panels * parts, body), packed


def pack_rows(pb: Problem, builder: Builder, mr: int) -> tuple[Stage, Memory]:
    """A stage that packs a row operand stored [k, m] into strips ``[batch, block, k, mr]``."""
    blocks = ceil_div(pb.m, mr)
    strips = builder.scratch_buffer((pb.batch, blocks, pb.k, mr), pb.dtype, "strips")
    step = min(pb.k, 32)
    parts = ceil_div(pb.k, step)
    put = strip_writer(pb, mr, strips)

    def body(tile: Var) -> Stmt:
        bt, k0 = tile // parts, tile % parts * step
        count: Expr = step if pb.k % step == 0 else minimum(step, pb.k - k0)
        return serial(
            count, lambda k: serial(blocks, lambda mb: put(bt, mb, (bt, mb), k0 + k), "mb"), "k"
        )

    return parallel_stage("gemm_strips", pb.batch * parts, body), strips


def strip_writer(
    pb: Problem, mr: int, strips: Memory
) -> Callable[[Expr, Expr, tuple[Expr, Expr], Expr], Stmt]:
    """A function (batch, block, slot in ``strips``, k) -> statement that packs one line."""

    def put(bt: Expr, mb: Expr, slot: tuple[Expr, Expr], k: Expr) -> Stmt:
        i0 = minimum(mb * mr, pb.m - mr) if pb.m % mr else mb * mr

        def element(r: Expr) -> Stmt:
            return store(strips, pb.row(bt, i0 + r, k), *slot, k, r)

        def piece(at: int, width: int) -> Stmt:
            if width == 1:
                return element(const(at))
            return vectorized(width, lambda r: element(at + r))

        if not pb.row_plain:
            return serial(mr, element, "r")
        pieces: list[Stmt] = []
        for width in (1 << bit for bit in reversed(range(mr.bit_length()))):
            if mr & width:
                # The pieces before this one are the higher bits of mr.
                pieces.append(piece(mr & ~(2 * width - 1), width))
        return seq(pieces)

    return put
