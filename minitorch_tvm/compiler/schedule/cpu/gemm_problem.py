"""The matrix product as the GEMM schedules see it, and how operands are packed.

``rows`` is the operand read one scalar at a time (broadcast over a vector), ``columns`` the operand
read as vectors.  Either may be the user's A: when the user's B is the narrow one, the two swap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    LINE_BYTES,
    Builder,
    Expr,
    Memory,
    Stage,
    Stmt,
    Var,
    below,
    ceil_div,
    const,
    in_vectors,
    load,
    local_buffer,
    minimum,
    number,
    parallel_stage,
    prefetch,
    quotient,
    ramp,
    seq,
    serial,
    splat,
    store,
    vectorized,
    view,
    when,
)
from ...streams import LINE, Around, streamed
from ...target import CpuTarget
from .conv_layout import transpose_rows, turn
from .gemm_triangles import ALL, Triangles

Load = Callable[[Expr, Expr, Expr], Expr]
Write = Callable[[Expr, Expr, Expr, Expr], Stmt]

# Blocks of this many rows and columns are transposed in registers; larger ones compile slowly.
SQUARE = 8
# Products of fewer terms have so few sums in a tile: they take a microsecond in any case, and LLVM
# as long for a tile of many as for that of a large product.
FEW_TERMS, FEW_SUMS = 1 << 17, 8
# Terms of a product for which compiling more code (some 10 to 50 ms) pays.
LARGE = 1 << 23
# Lines of memory that fall into the same places of a first-level cache and yet stay in it.
_FEW_LINES = 8
# Lines of columns between the request for one and its copy.
_AHEAD = 32
# Enough equal tiles that a contiguous split over the threads of a small machine is even.
MIN_TILES = 16


@record
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
    # Elements between lines of memory that may be read again and again; None if it is computed.
    row_pitch: int | None
    col_pitch: int | None
    write: Write
    row_batched: bool  # every batch has its own
    col_batched: bool
    swapped: bool  # rows are the user's columns
    costly: bool = False  # ``write`` computes elementary functions
    around: Around | None = None  # to which memory ``write`` stores past the caches
    whole: int | None = None  # the user's columns, if these are some of them
    triangles: Triangles = ALL

    @property
    def row_plain(self) -> bool:
        """Whether rows are memory, contiguous along the lines it is stored in."""
        return self.row_pitch is not None

    @property
    def col_plain(self) -> bool:
        """Whether columns are."""
        return self.col_pitch is not None

    @property
    def terms(self) -> int:
        """Multiplications."""
        return self.batch * self.m * self.n * self.k

    def most_sums(self, free: int) -> int:
        """How many sums a tile may have, where so many registers are free for them."""
        return min(free, FEW_SUMS) if self.terms < FEW_TERMS else free

    @cached_property
    def told_m(self) -> Expr:
        """The number of rows, as stages are told it: it is nowhere a distance in memory."""
        return number(self.m, "m")

    @cached_property
    def told_k(self) -> Expr:
        """The same of k, if it is no distance in memory either."""
        return self.k if self.row_k_inner or self.col_k_inner else number(self.k, "k")

    @property
    def result_pitch(self) -> int:
        """Elements from one of the user's rows to the next."""
        return self.whole or (self.m if self.swapped else self.n)

    @cached_property
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
            row_pitch=self.col_pitch,
            col_pitch=self.row_pitch,
            row_batched=self.col_batched,
            col_batched=self.row_batched,
            write=lambda bt, i, j, value: write(bt, j, i, value),
            swapped=not self.swapped,
            triangles=self.triangles.swap(),
        )

    def write_tile(
        self,
        bt: Expr,
        origin: tuple[Expr, Expr],
        extent: tuple[Expr, Expr],
        value: Callable[[Expr, Expr], Expr],
        lanes: int,
        rolled: bool = False,
        around: Around | None = None,
    ) -> Stmt:
        """Finish the elements of a tile, the user's columns innermost (they are contiguous).

        In vectors where the number of these is known: left to LLVM, short rows become vectors of
        elements of different rows, which lie apart.  ``rolled``: see :func:`.loops.in_vectors`; it
        counts where the number of the tile's lines is known, else LLVM does not write them out.
        ``around``: see :func:`.streams.streamed`; where the number of columns is known, and a
        multiple of a line's.
        """
        (i0, j0), (rows, cols) = origin, extent
        rolled = rolled and isinstance(cols if self.swapped else rows, int)

        def one(i: Expr, j: Expr) -> Stmt:
            return self.write(bt, i0 + i, j0 + j, value(i, j))

        def along(size: Expr, body: Callable[[Expr], Stmt], name: str) -> Stmt:
            if isinstance(size, int):
                if around is not None and size % LINE == 0:
                    return serial(size // LINE, lambda q: streamed(body, q * LINE, around), name)
                return in_vectors(size, lanes, body, rolled=rolled)
            return serial(size, body, name)

        def across(size: Expr, inner: Expr) -> Expr:
            # Nor must LLVM know how often what is left is done: it would write that out as often.
            if rolled and isinstance(inner, int) and inner % lanes:
                return number(size, "lines")
            return size

        if self.swapped:
            lines = across(cols, rows)
            return serial(lines, lambda j: along(rows, lambda i: one(i, j), "i"), "j")
        return serial(across(rows, cols), lambda i: along(cols, lambda j: one(i, j), "j"), "i")


def zeros(dtype: str, lanes: int) -> Expr:
    """A vector of zeros."""
    return splat(const(0.0, dtype), lanes)


def materialise_rows(pb: Problem, builder: Builder) -> tuple[Stage, Problem]:
    """Evaluate a fused row operand, k innermost, once, so that later reads are plain."""
    name = "cols" if pb.swapped else "rows"
    batch = pb.batch if pb.row_batched else 1
    copy = builder.scratch_buffer((batch, pb.m, pb.k), pb.dtype, name)
    row = pb.row
    step = max(1, min(pb.m, ceil_div(4096, pb.k)))
    parts = ceil_div(pb.m, step)

    def body(tile: Var) -> Stmt:
        bt, first = tile // parts, tile % parts * step
        count: Expr = step if pb.m % step == 0 else minimum(step, pb.m - first)

        def element(i: Expr, k: Expr) -> Stmt:
            return store(copy, row(bt, first + i, k), bt, first + i, k)

        return serial(count, lambda i: serial(pb.k, lambda k: element(i, k), "k"), "i")

    def again(bt: Expr, i: Expr, k: Expr) -> Expr:
        return load(copy, bt if pb.row_batched else 0, i, k)

    stage = parallel_stage(f"gemm_{name}", batch * parts, body)
    return stage, replace(pb, row=again, row_pitch=pb.k)


def row_blocks(pb: Problem, builder: Builder | None, mr: int, pitch: int) -> Memory:
    """Memory for rows stored ``[k, m]`` as blocks ``[batch, block, k, mr]``, ``pitch`` for each k.

    The last block starts early, at row ``m - mr``.  Rows that all batches share are packed once:
    the batch extent is then 1.  Without a builder it is memory of a thread.
    """
    batch = pb.batch if pb.row_batched else 1
    shape = (batch, ceil_div(pb.m, mr), pb.k, pitch)
    if builder is None:
        return local_buffer(shape, pb.dtype, "blocks")
    memory = builder.scratch_buffer(shape, pb.dtype, "blocks")
    return replace(memory, shape=(*shape[:2], pb.told_k, pitch))


def _told(count: Expr, name: str) -> Expr:
    """A count that the kernel is told: few LLVM would write out, with all their lines."""
    return number(count, name) if isinstance(count, int) and count > 1 else count


def fill_row_blocks(
    pb: Problem,
    packed: Memory,
    mr: int,
    bt: Expr,
    blocks: tuple[Expr, Expr],
    steps: tuple[Expr, Expr],
) -> Stmt:
    """Pack some blocks for some k; both ranges are (first, count).

    A few k of all blocks at a time: so few that their lines of memory stay in the first-level cache
    wherever they lie, and so many that what a block gets of them is whole lines.
    """
    (b0, count), (k0, length) = blocks, steps
    count = _told(count, "count")
    loop = vectorized if pb.row_plain else serial
    last = number(pb.m - mr, "last")
    few = _FEW_LINES
    while few * packed.shape[3] * pb.itemsize % LINE_BYTES:
        few *= 2

    def some(first: Expr, of: Expr) -> Stmt:
        def block(b: Expr) -> Stmt:
            i0 = minimum((b0 + b) * mr, last) if pb.m % mr else (b0 + b) * mr
            start, pitch = k0 + first, pb.row_pitch
            near, know = (None, seq()) if pitch is None else view(pb.row(bt, i0, start), "row")

            def read(k: Expr, r: Expr) -> Expr:
                if near is None:
                    return pb.row(bt, i0 + r, start + k)
                return load(near, k * pitch + r)

            def line(k: Expr) -> Stmt:
                return loop(mr, lambda r: store(packed, read(k, r), bt, b0 + b, start + k, r), "r")

            return seq(know, serial(lines, line, "k"))

        lines = _told(of, "lines")
        return serial(pb.triangles.blocks((b0, count), mr, k0 + first + of), block, "b")

    if isinstance(length, int) and length <= few:
        return some(const(0), length)
    whole = length // few
    rest = length - whole * few
    parts = [serial(whole, lambda q: some(q * few, few), "q")]
    if not isinstance(rest, int) or rest:
        parts.append(some(whole * few, rest))
    return seq(*parts)


def pack_rows(pb: Problem, packed: Memory, mr: int) -> Stage:
    """A stage that fills all row blocks."""
    batch, blocks = packed.shape[:2]
    parts, cut = _parts_of_k(pb, max(1, ceil_div(pb.k, ceil_div(MIN_TILES, batch))))
    every = number(blocks, "blocks")

    def body(tile: Var) -> Stmt:
        bt, part = batch_and_part(tile, batch, parts)
        return fill_row_blocks(pb, packed, mr, bt, (const(0), every), cut(part))

    return parallel_stage("gemm_pack_rows", batch * parts, body)


def batch_and_part(tile: Var, outer: int, inner: int) -> tuple[Expr, Expr]:
    """The two parts of a tile's number, of which there are so many."""
    if outer == 1:
        return 0, tile
    size = number(inner, "inner")
    part = quotient(tile, size)
    return part, tile - part * size


def place(
    tile: Expr,
    groups: tuple[Expr, Expr],
    rows_first: bool,
    batched: bool,
    named: Callable[[str, Expr], Expr] = lambda _, value: value,
) -> tuple[Expr, Expr, Expr, Expr]:
    """Of a tile's number: that of what neighbours have in common, batch, row and panel group."""
    inner, outer = reversed(groups) if rows_first else groups
    across = named("across", quotient(tile, inner))
    along = named("along", tile - across * inner)
    bt: Expr = 0
    rest = across
    if batched:
        bt = named("bt", quotient(across, outer))
        rest = named("rest", across - bt * outer)
    return (across, bt, rest, along) if rows_first else (across, bt, along, rest)


def _parts_of_k(pb: Problem, step: int) -> tuple[int, Callable[[Expr], tuple[Expr, Expr]]]:
    """How many parts of ``step`` k there are; of a part, where it begins, and its length."""
    told = pb.told_k
    each = step if told is pb.k else number(step, "step")

    def part(n: Expr) -> tuple[Expr, Expr]:
        first = below(n * each, pb.k)
        even = told is pb.k and pb.k % step == 0
        return first, (step if even else minimum(each, told - first))

    return ceil_div(pb.k, step), part


@record
class Panels:
    """Memory for columns packed as panels ``[batch, panel, k, nr]``; the last is ``last_nr`` wide.

    Columns that all batches share are packed once: the batch extent is then 1.  Padding never
    reaches the result, but must not hold garbage: arithmetic on denormal numbers is slow.
    """

    pb: Problem
    memory: Memory
    lanes: int
    last_nr: int
    own: bool  # of a thread, and for some neighbouring panels at a time, of one batch

    @classmethod
    def shared(cls, pb: Problem, cpu: CpuTarget, builder: Builder, nr: int, last_nr: int) -> Panels:
        """Uninitialised memory of a kernel, for all panels."""
        batch = pb.batch if pb.col_batched else 1
        shape = (batch, ceil_div(pb.n, nr), pb.k, nr)
        memory = builder.scratch_buffer(shape, pb.dtype, "panels")
        memory = replace(memory, shape=(*shape[:2], pb.told_k, nr))
        return cls(pb, memory, cpu.lanes(pb.itemsize), last_nr, own=False)

    @classmethod
    def of_thread(
        cls, pb: Problem, cpu: CpuTarget, group: int, depth: int, nr: int, last_nr: int
    ) -> Panels:
        """Local memory for ``depth`` k of ``group`` panels.

        The number of the first panel is a multiple of ``group``.
        """
        memory = local_buffer((1, group, depth, nr), pb.dtype, "panels")
        return cls(pb, memory, cpu.lanes(pb.itemsize), last_nr, own=True)

    @property
    def count(self) -> int:
        """How many panels the columns are."""
        return ceil_div(self.pb.n, self.memory.shape[3])

    def at(self, bt: Expr, p: Expr) -> tuple[Expr, Expr]:
        """Where a panel is."""
        if self.own:
            return const(0), p % self.memory.shape[1]
        return (bt if self.pb.col_batched else const(0)), p

    @property
    def _square(self) -> int:
        """Lanes of the blocks that are transposed, or 0 if columns are packed line by line."""
        pb = self.pb
        large = pb.terms >= LARGE and pb.k % self.lanes == 0
        wide = (self._turns and pb.k >= self.lanes) or (self.own and large)
        square = self.lanes if wide else min(self.lanes, SQUARE)
        return square if self.pb.col_k_inner and self.pb.k >= square and square > 1 else 0

    @property
    def _turns(self) -> bool:
        """Whether such blocks lie in memory as they are, with all of their columns."""
        return self.pb.col_plain and self.pb.n % self.memory.shape[3] == 0

    def stage(self) -> Stage:
        """A stage that packs all panels."""
        pb, lanes = self.pb, self.lanes
        batch, panels = self.memory.shape[0], self.count
        # Either way memory is read in order: along k if k is innermost, else along the columns.
        across = panels if self._square else 1
        parts = min(ceil_div(MIN_TILES, batch * across), ceil_div(pb.k, 2 * lanes))
        parts, cut = _parts_of_k(pb, ceil_div(ceil_div(pb.k, parts), lanes) * lanes)

        def body(tile: Var) -> Stmt:
            bt, rest = batch_and_part(tile, batch, across * parts)
            p, part = batch_and_part(rest, across, parts)
            k0, count = cut(part)
            if self._square:
                return self._transposed((bt, p), (k0, count))
            return serial(count, lambda k: self._line(bt, (0, panels), (k0 + k, k0 + k)), "k")

        return parallel_stage("gemm_pack", batch * across * parts, body)

    def fill_part(self, bt: Expr, panels: tuple[Expr, Expr], steps: tuple[Expr, Expr]) -> Stmt:
        """Pack a block of k of some panels: the first and how many, of both."""
        k0, count = steps
        return serial(count, lambda k: self._line(bt, panels, (k0 + k, k)), "k")

    def copy(self, bt: Expr, panels: tuple[Expr, Expr], steps: tuple[Expr, Expr]) -> Stmt:
        """Pack some of all k, which have been asked for before."""
        k0, count = steps
        return serial(count, lambda k: self._line(bt, panels, (k0 + k, k0 + k), asks=False), "k")

    def fill(self, bt: Expr, panels: tuple[Expr, Expr]) -> Stmt:
        """Pack all k of some panels: the first and how many."""
        p0, count = panels
        if self._square:
            every = (const(0), self.pb.k)
            return serial(count, lambda p: self._transposed((bt, p0 + p), every), "p")
        return self.fill_part(bt, panels, (const(0), self.pb.k))

    def _line(
        self, bt: Expr, some: tuple[Expr, Expr], where: tuple[Expr, Expr], asks: bool = True
    ) -> Stmt:
        """Copy the columns of one k to some panels, whose memory may begin at a later one."""
        k, to = where
        pb, packed, lanes = self.pb, self.memory, self.lanes
        panels, nr = self.count, packed.shape[3]
        asks = asks and self.own and pb.col_plain
        width = pb.n - (panels - 1) * nr

        def copy(p: Expr, width: int) -> Stmt:
            def ask_for(j: int) -> Stmt:
                return prefetch(pb.col(bt, k + _AHEAD, p * nr + j))

            def element(j: Expr) -> Stmt:
                return store(packed, pb.col(bt, k, p * nr + j), *self.at(bt, p), to, j)

            # Vectors spelled out compile in half the time that finding them takes.
            whole = width // lanes if pb.col_plain else 0

            def vector(v: int) -> Stmt:
                return vectorized(lanes, lambda c: element(c + v * lanes), "c")

            lines = [vector(v) for v in range(whole)]
            rest = width - whole * lanes
            if rest:
                lines.append(serial(rest, lambda j: element(j + whole * lanes), "j"))
            # Parts of lines that may be pages apart, which the hardware does not foresee.
            apart = range(0, width, LINE_BYTES // pb.itemsize) if asks else ()
            return seq([ask_for(j) for j in apart], lines)

        p0, count = some
        if width == nr:
            return serial(count, lambda p: copy(p0 + p, nr), "p")
        last = const(panels - 1)
        clear = [
            store(packed, zeros(pb.dtype, lanes), *self.at(bt, last), to, ramp(v, lanes))
            for v in range(width // lanes * lanes, self.last_nr, lanes)
        ]
        end = seq(clear, copy(last, width))
        if panels == 1:
            return end
        if some == (0, panels):
            return seq(serial(panels - 1, lambda p: copy(p, nr), "p"), end)
        ends = tvm().tirx.EQ(p0 + count, const(panels))
        whole = tvm().tirx.Select(ends, const(1), const(0))
        return seq(serial(count - whole, lambda p: copy(p0 + p, nr), "p"), when(ends, end))

    def _transposed(self, where: tuple[Expr, Expr], k_range: tuple[Expr, Expr]) -> Stmt:
        """Transpose blocks of columns stored along k into a part of one panel."""
        pb, packed, lanes = self.pb, self.memory, self._square
        (bt, p), (k0, count) = where, k_range
        nr = packed.shape[3]
        vectors: Expr = nr // lanes
        if self.last_nr != nr:
            total = (self.count - 1) * nr + self.last_nr
            vectors = minimum(vectors, total // lanes - p * (nr // lanes))

        def block(jb: Expr, kb: Expr) -> Stmt:
            # The last block starts early instead of running past the end: lines are written twice.
            k = minimum(k0 + kb * lanes, pb.k - lanes) if pb.k % lanes else k0 + kb * lanes
            if self._turns:
                assert pb.col_pitch is not None
                source = pb.col(bt, k, p * nr + jb * lanes), pb.col_pitch
                to = load(packed, *self.at(bt, p), k, jb * lanes), nr
                return turn(pb.dtype, lanes, source, to)

            def fill(square: Memory, r: Expr) -> Stmt:
                j = p * nr + jb * lanes + r
                column = minimum(j, pb.n - 1) if pb.n % nr else j
                loop = vectorized if pb.col_plain else serial
                return loop(lanes, lambda c: store(square, pb.col(bt, k + c, column), r, c), "c")

            def put(c: Expr, line: Expr) -> Stmt:
                return store(packed, line, *self.at(bt, p), k + c, ramp(jb * lanes, lanes))

            return transpose_rows(lanes, pb.dtype, fill, put)

        blocks = (count + lanes - 1) // lanes
        # One loop: LLVM would copy the body of a short inner one as often as that runs.
        return serial(vectors * blocks, lambda b: block(b // blocks, b % blocks), "b")
