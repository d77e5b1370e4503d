"""Matrix product of float32 on a matrix unit that multiplies tiles of bfloat16 (Intel AMX).

Every float32 is the sum of three bfloat16 (:mod:`.bfloat_parts`).  Of the nine products of two such
sums the unit forms six, smallest first::

    x3 y1, x2 y1, x2 y2, x1 y2, x1 y3, x1 y1

and adds them in float32; products of bfloat16 are exact in float32.  The three left out are at most
2**-23 of ``x y`` together, as much as two roundings.  The unit has 16 times the throughput of fused
multiply-adds, so that six products are still 2.7 times as fast; sums of some dozen terms or more
have smaller errors than those of multiply-adds, being rounded less often (the tests measure both).

The unit treats denormal numbers as zero, and parts of infinity make NaN.  Blocks whose operands are
irregular, or some product of whose elements could leave the range, are computed by plain float32
arithmetic from the operands themselves, at about the speed of multiply-adds.

A parallel tile covers a few panels of the operand that has more of them and many or all of the
other, visit after visit of some blocks of k.  It packs its few panels itself, in memory of its own,
so that they come from the second-level cache; the other operand is packed by a stage before.  What
one core wrote takes another longer to read than to pack again, so that each core has a copy, if
cores are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ....core.tvm_api import tvm
from ...loops import (
    Builder,
    Expr,
    Memory,
    Stage,
    Stmt,
    Var,
    alloc,
    ceil_div,
    const,
    grid,
    load,
    local_buffer,
    minimum,
    parallel_stage,
    ramp,
    seq,
    serial,
    splat,
    store,
    when,
)
from ...queues import first_tile
from ...target import CpuTarget
from .bfloat_parts import (
    BLOCK_BYTES,
    EDGE,
    HALVES,
    LANES,
    Operand,
    Packed,
    packed_memory,
)
from .conv_layout import transpose_rows
from .gemm_problem import Problem
from .matrix_unit import (
    COLUMN_EXACT,
    PRODUCTS,
    ROW_EXACT,
    address,
    configure,
    may_use,
    multiply,
    tile,
    unit,
)
from .plain_sums import plain_sums

# Blocks of k in a visit: few enough that what a tile packs for it stays in the cache.
_VISIT = 16
_MOST_COPIES = 4  # workers, beyond which they share what one of them packed
# Memory of a worker: for the panels that a tile packs, and for its sums between visits.
_OWN_BYTES, _SUMS_BYTES = 400 << 10, 256 << 10
_MOST_PANELS = 16  # of the other operand in a tile
_SQUARE = 8  # transposed at once
_ROWS = 8  # that plain arithmetic computes at once
# Measured cycles: of a block of 32 x 32 x 32, of a finished 32 x 32, of one packed element, of an
# element that is transposed on the way in or out.
_BLOCK_CYCLES, _FINISH_CYCLES, _PACK_CYCLES, _TURN_CYCLES, _ACROSS_CYCLES = 600, 800, 1.1, 0.5, 0.6


def _rows_lead(pb: Problem) -> bool:
    """True if tiles pack their rows themselves, False if their columns."""
    return pb.m >= pb.n


def _copies(pb: Problem, cpu: CpuTarget) -> int:
    """How often the operand that a stage packs is packed."""
    return 1 if pb.batch > 1 or cpu.workers > _MOST_COPIES else cpu.workers


def cycles(pb: Problem) -> float:
    """Estimated cycles of a product with these stages (compare: the other schedules' estimate)."""
    rows, columns, blocks = (ceil_div(size, EDGE) for size in (pb.m, pb.n, pb.k))
    lead = _rows_lead(pb)
    # Tiles pack the leading operand for each batch.  The number of copies of the other one is not
    # the real one: what is computed, and in which order, must not depend on threads.
    copies = [
        pb.batch if lead or pb.row_batched else 1,
        pb.batch if not lead or pb.col_batched else 1,
    ]
    if pb.batch == 1:
        copies[lead] = 2
    packed_rows = copies[0] * rows * blocks * EDGE**2
    packed_columns = copies[1] * columns * blocks * EDGE**2
    cost: float = pb.batch * rows * columns * (blocks * _BLOCK_CYCLES + _FINISH_CYCLES)
    cost += (packed_rows + packed_columns) * _PACK_CYCLES
    cost += 0 if pb.row_k_inner else packed_rows * _TURN_CYCLES
    cost += packed_columns * _TURN_CYCLES if pb.col_k_inner else 0
    return cost + (pb.batch * pb.m * pb.n * _ACROSS_CYCLES if pb.swapped else 0)


def suits(pb: Problem, cpu: CpuTarget) -> bool:
    """True if the machine has the unit and it computes this type."""
    return cpu.matrix_unit and pb.dtype == "float32"


def tile_stages(problem: Problem, builder: Builder, cpu: CpuTarget) -> list[Stage]:
    """Stages of the product, as it stands or transposed, whichever is estimated to be faster."""
    pb = min(problem, problem.swap(), key=cycles)
    visits = ceil_div(ceil_div(pb.k, EDGE), _VISIT)
    visit = ceil_div(ceil_div(pb.k, EDGE), visits)
    rows = Operand(True, pb.m, pb.k, pb.row_k_inner, pb.row_plain, pb.row, visit)
    columns = Operand(
        False,
        pb.n,
        pb.k,
        not pb.col_k_inner,
        pb.col_plain,
        lambda bt, line, k: pb.col(bt, k, line),
        visit,
    )
    rows_lead = _rows_lead(pb)
    lead, other = (rows, columns) if rows_lead else (columns, rows)
    by_batch = pb.batch > 1 and (pb.col_batched if rows_lead else pb.row_batched)
    copies = pb.batch if by_batch else _copies(pb, cpu)
    packed = packed_memory(copies, other.panels, other.blocks, other.visits, builder.scratch_buffer)
    return [other.stage(packed, by_batch), _Product(pb, lead, other, packed, cpu).stage()]


_Extent = tuple[Expr, Expr, int]  # panels of a tile: their number, the first, the most
# Of the rows and of the columns: packed memory, and (copy, panel, first block, visit) in it.
_Places = tuple[
    tuple[Packed, tuple[Expr, Expr, Expr, Expr]], tuple[Packed, tuple[Expr, Expr, Expr, Expr]]
]
_Slot = tuple[Memory, Expr, Expr]  # sums [panel, row, column]: the panel, the first column


@dataclass(frozen=True)
class _Product:
    """The stage that packs the leading operand and multiplies."""

    pb: Problem
    lead: Operand
    other: Operand
    packed: Packed  # the other operand
    cpu: CpuTarget

    def _groups(self) -> tuple[int, int]:
        """Panels of the leading and of the other operand in a parallel tile."""
        lead, other = self.lead.panels, self.other.panels
        own = _OWN_BYTES // (self.lead.visit * BLOCK_BYTES)
        # Each tile reads all of the other operand, from the second-level cache if it fits.
        stays = other * self.lead.blocks * BLOCK_BYTES <= self.cpu.l2_bytes * 3 // 4
        again = 0.05 if stays else 0.3
        blocks = lead * other * self.lead.blocks * _BLOCK_CYCLES
        pack = lead * self.lead.blocks * EDGE**2 * (_PACK_CYCLES + _TURN_CYCLES)
        best: tuple[float, int, int] | None = None
        for r in range(1, min(lead, own) + 1):
            for c in range(1, min(other, _MOST_PANELS) + 1):
                if self.lead.visits > 1 and r * c * EDGE**2 * 4 > _SUMS_BYTES:
                    break
                turns = ceil_div(other, c)
                tiles = self.pb.batch * ceil_div(lead, r) * turns
                even = ceil_div(lead, r) * r * turns * c / (lead * other)
                cost = blocks * (1 + again / r) * (1 + 0.2 * (even - 1)) + pack * turns
                cost *= 1 + 1.5 / tiles
                if best is None or cost < best[0]:
                    best = (cost, r, c)
        assert best is not None
        return best[1:]

    def stage(self) -> Stage:
        """The stage."""
        sizes = self._groups()
        counts = [
            ceil_div(o.panels, n) for o, n in zip((self.lead, self.other), sizes, strict=True)
        ]
        per_batch = counts[0] * counts[1]
        tiles = self.pb.batch * per_batch

        def body(tile: Var) -> Stmt:
            bt = tile // per_batch if self.pb.batch > 1 else const(0)
            first = (tile // counts[1] % counts[0] * sizes[0], tile % counts[1] * sizes[1])
            copy = const(0)
            if self.packed.magnitude.shape[0] > 1:
                copy = bt
                if self.pb.batch == 1:
                    # The copy of the worker that the queues give this tile to.
                    for worker in range(1, self.cpu.workers):
                        start = first_tile(tiles, self.cpu.workers, worker)
                        copy = copy + (tile >= start).astype("int32")
            return self._tile(bt, copy, first, sizes)

        return parallel_stage("gemm", tiles, body)

    def _tile(self, bt: Expr, copy: Expr, first: tuple[Expr, Expr], size: tuple[int, int]) -> Stmt:
        counts: list[Expr] = []
        for operand, step, start in zip((self.lead, self.other), size, first, strict=True):
            whole = operand.panels % step == 0
            counts.append(step if whole else minimum(step, operand.panels - start))
        visits = self.lead.visits
        lead = int(not self.lead.is_row)
        row, column = ((counts[i], first[i], size[i]) for i in (lead, 1 - lead))
        # Lines of sums apart by a multiple of 4 KB would share few places of the cache.
        pitch = column[2] * EDGE + LANES
        keeps = visits > 1 or self.pb.swapped
        sums = local_buffer((row[2] if keeps else 1, EDGE, pitch), "float32", "sums")
        plain = local_buffer((row[2], column[2]), "int32", "plain")
        own = packed_memory(1, size[0], self.lead.visit, 1, local_buffer)
        zero = const(0)

        def pack(v: Expr, p: Expr) -> Stmt:
            return self.lead.pack(own, bt, first[0] + p, v, (zero, p, zero, zero))

        def block(v: Expr, r: Expr, c: Expr) -> Stmt:
            mine, others = (c, r) if lead else (r, c)
            places = (
                (own, (zero, mine, zero, zero)),
                (self.packed, (copy, first[1] + others, v * self.lead.visit, v)),
            )
            slot = (sums, r if keeps else zero, c * EDGE)
            at = (row[1] + r, column[1] + c)
            flag = (plain, r, c)
            return self._block(bt, at, v, places[::-1] if lead else places, slot, flag)

        def line(v: Expr, r: Expr) -> Stmt:
            products = serial(column[0], lambda c: block(v, r, c), "c")
            if self.pb.swapped:
                return products
            slot = (sums, r if keeps else zero, zero)
            finish = self._finish(bt, row[1] + r, column, slot)
            if visits > 1:
                finish = when(tvm().tirx.EQ(v, const(visits - 1)), finish)
            return seq(products, finish)

        def visit(v: Expr) -> Stmt:
            return seq(
                serial(counts[0], lambda p: pack(v, p), "p"),
                serial(row[0], lambda r: line(v, r), "r"),
            )

        finish = [self._finish_turned(bt, row, column, sums)] if self.pb.swapped else []
        return seq(
            configure(),
            [alloc(m) for m in (sums, plain, own.tiles, own.magnitude)],
            grid(plain.shape, lambda r, c: store(plain, zero, r, c)),
            serial(visits, visit, "v"),
            unit("tilerelease"),
            finish,
        )

    def _block(
        self,
        bt: Expr,
        at: tuple[Expr, Expr],
        v: Expr,
        places: _Places,
        slot: _Slot,
        flag: tuple[Memory, Expr, Expr],
    ) -> Stmt:
        """Add the products of one visit to a block of sums.

        ``flag`` is set once the unit was not used: sums may then be denormal, and the unit would
        take them for zero at the next visit.
        """
        t = tvm().tirx
        largest, smallest, rest = (
            tuple(load(p.magnitude, copy, panel, visit, i) for p, (copy, panel, _, visit) in places)
            for i in range(3)
        )
        zero = const(0.0, "float32")

        def all_of(products: Sequence[tuple[int, int]]) -> Stmt:
            return serial(self.lead.count(v), lambda b: self._step(b, places, products), "b")

        steps = when(t.EQ(rest[1], zero), all_of(COLUMN_EXACT), all_of(PRODUCTS))
        steps = when(t.EQ(rest[0], zero), all_of(ROW_EXACT), steps)
        before, after = self._sums(v, slot)
        slow = seq(store(flag[0], const(1), *flag[1:]), self._in_float32(bt, at, v, slot))
        unset = t.EQ(load(*flag), const(0))
        fast = t.all(may_use(largest, smallest), unset)
        return when(fast, seq(before, steps, after), slow)

    def _sums(self, v: Expr, slot: _Slot) -> tuple[Stmt, list[Stmt]]:
        """Statements that bring a block of sums to the unit, and back."""
        sums, r, j0 = slot
        across = const(4 * sums.shape[2], "int64")
        quarters = [
            (tile(n), address(sums, r, n // 2 * LANES, j0 + n % 2 * LANES), across)
            for n in range(4)
        ]
        start = seq([unit("tilezero", tile(n)) for n in range(4)])
        if self.lead.visits > 1:
            again = seq([unit("tileloadd64", *quarter) for quarter in quarters])
            start = when(tvm().tirx.EQ(v, const(0)), start, again)
        return start, [unit("tilestored64", *quarter) for quarter in quarters]

    def _step(self, b: Expr, places: _Places, products: Sequence[tuple[int, int]]) -> Stmt:
        """Products of one block of k."""

        def fetch(side: int, part: int, half: int, number: int) -> Stmt:
            packed, (copy, panel, first, _) = places[side]
            source = address(packed.tiles, copy, panel, first + b, part, half, 0)
            return unit("tileloadd64", tile(number), source, const(64, "int64"))

        return seq(multiply(fetch, products))

    def _in_float32(self, bt: Expr, at: tuple[Expr, Expr], v: Expr, slot: _Slot) -> Stmt:
        """The same sums by fused multiply-adds of the operands as they are."""
        pb = self.pb
        sums, slot_row, slot_column = slot
        depth = min(self.lead.visit * EDGE, pb.k)
        k0 = v * depth
        count: Expr = depth if pb.k % depth == 0 else minimum(depth, pb.k - k0)
        lines = local_buffer((depth, EDGE), "float32", "lines")
        i0, j0 = at[0] * EDGE, at[1] * EDGE

        def copy(k: Expr, j: Expr) -> Stmt:
            return store(lines, pb.col(bt, k0 + k, minimum(j0 + j, pb.n - 1)), k, j)

        gather = serial(count, lambda k: serial(EDGE, lambda j: copy(k, j), "j"), "k")
        nothing = splat(const(0.0, "float32"), LANES)

        def rows(g: Expr) -> Stmt:
            def left(r: int, k: Expr) -> Expr:
                i = minimum(i0 + g * _ROWS + r, pb.m - 1)
                return splat(pb.row(bt, i, k0 + k), LANES)

            def place(r: Expr, half: Expr) -> tuple[Expr, ...]:
                return slot_row, r, ramp(slot_column + half * LANES, LANES)

            def clear(r: Expr, half: Expr) -> Stmt:
                return store(sums, nothing, *place(g * _ROWS + r, half))

            def before(r: int, half: int) -> Expr:
                return load(sums, *place(g * _ROWS + r, half))

            return seq(
                when(tvm().tirx.EQ(v, const(0)), grid((_ROWS, HALVES), clear)),
                plain_sums(
                    (_ROWS, HALVES),
                    left,
                    lambda half, k: load(lines, k, ramp(half * LANES, LANES)),
                    partial(serial, count, name="k"),
                    lambda r, half, value: store(sums, value, *place(g * _ROWS + r, half)),
                    before,
                ),
            )

        return seq(alloc(lines), gather, serial(EDGE // _ROWS, rows, "g"))

    def _finish(self, bt: Expr, panel: Expr, column: _Extent, slot: _Slot) -> Stmt:
        """Hand the sums of a row panel on to the epilogue."""
        pb = self.pb
        sums, r, _ = slot
        i0, j0 = panel * EDGE, column[1] * EDGE
        height: Expr = EDGE if pb.m % EDGE == 0 else minimum(EDGE, pb.m - i0)

        def write(width: Expr) -> Stmt:
            return pb.write_tile(bt, (i0, j0), (height, width), lambda i, j: load(sums, r, i, j))

        return _sizes(pb.n, column, write)

    def _finish_turned(self, bt: Expr, row: _Extent, column: _Extent, sums: Memory) -> Stmt:
        """Transpose all sums of a tile, whose columns are the user's rows, and hand them on."""
        pb = self.pb
        turned = local_buffer((column[2] * EDGE, row[2] * EDGE), "float32", "turned")
        every = ramp(0, _SQUARE)
        per_panel = EDGE // _SQUARE

        def square(r: Expr, j: Expr, i: Expr) -> Stmt:
            def fill(memory: Memory, n: Expr) -> Stmt:
                line = load(sums, r, i * _SQUARE + n, ramp(j * _SQUARE, _SQUARE))
                return store(memory, line, n, every)

            def put(n: Expr, vector: Expr) -> Stmt:
                at = ramp(r * EDGE + i * _SQUARE, _SQUARE)
                return store(turned, vector, j * _SQUARE + n, at)

            return transpose_rows(_SQUARE, "float32", fill, put)

        i0, j0 = row[1] * EDGE, column[1] * EDGE
        width: Expr = column[2] * EDGE
        if pb.n % width:
            width = minimum(width, pb.n - j0)

        def write(height: Expr) -> Stmt:
            return pb.write_tile(bt, (i0, j0), (height, width), lambda i, j: load(turned, j, i))

        return seq(
            alloc(turned),
            grid((row[0], column[0] * per_panel, per_panel), square),
            _sizes(pb.m, row, write),
        )


def _sizes(size: int, extent: _Extent, write: Callable[[Expr], Stmt]) -> Stmt:
    """``write`` for as many lines as a tile has, or for those that the last one has."""
    _, first, most = extent
    groups = ceil_div(size, most * EDGE)
    full, last = most * EDGE, size - (groups - 1) * most * EDGE
    if last == full or groups == 1:
        return write(_opaque(last, first))
    whole, rest = write(_opaque(full, first)), write(_opaque(last, first))
    return when(first < (groups - 1) * most, whole, rest)


def _opaque(size: Expr, number: Expr) -> Expr:
    """A short loop's length as a number that LLVM does not know.

    It would unroll the loop and take the next outer one for vectors, whose elements lie apart.
    ``number`` is not negative, which LLVM does not know either.
    """
    if not isinstance(size, int) or size > 2 * EDGE:
        return size
    return minimum(size, number + size)
