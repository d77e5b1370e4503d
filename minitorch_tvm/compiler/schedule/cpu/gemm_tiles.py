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

A parallel tile covers some panels of rows by some panels of columns and packs both itself, visit
after visit of some blocks of k: first its columns, which stay in the second-level cache, then one
panel of rows after the other, which meets all columns while it is near.  Sums wait in memory of the
tile's own.  Nothing packed leaves the core's caches: from the third-level one it would arrive more
slowly than it can be packed again.

If one operand fits into that cache as a whole, every core packs all of it once, before its first
tile, and tiles are panels of the other (:mod:`.gemm_plan` decides).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    LINE_BYTES,
    Expr,
    Memory,
    Stage,
    Stmt,
    Var,
    alloc,
    ask,
    ask_to_write,
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
from ...queues import stage_with_start
from ...target import CpuTarget
from .bfloat_parts import (
    EDGE,
    HALVES,
    LANES,
    PRODUCTS,
    Operand,
    Packed,
    packed_memory,
)
from .bfloat_shared import BLOCK_IN_FLOAT32, call_packer, may_share, strides
from .conv_layout import transpose_rows
from .gemm_plan import Plan
from .gemm_problem import Problem
from .matrix_unit import (
    COLUMN_EXACT,
    ROW_EXACT,
    address,
    configure,
    idle_memory,
    may_use,
    multiply,
    stay_awake,
    tile,
    unit,
)
from .plain_sums import plain_sums

_SQUARE = 8  # transposed at once
_FAR = 4  # second-level caches: results of as many bytes come from memory
_MOST_STORES = 4  # of values for an element, beyond which nobody looks
_GROUP = 16  # panels of sums that are handed on together, in long rows
_ROWS = 8  # that plain arithmetic computes at once


def cycles(pb: Problem, cpu: CpuTarget) -> float:
    """Estimated cycles of a product with these stages (compare: the other schedules' estimate).

    What is computed, and in which order, must not depend on threads: this reckons with two.
    """
    return Plan.of(pb, replace(cpu, workers=2)).best.cycles


def tile_stages(problem: Problem, cpu: CpuTarget) -> list[Stage]:
    """Stages of the product, as it stands or transposed, whichever is estimated to be faster."""
    pb = min(problem, problem.swap(), key=lambda p: cycles(p, cpu))
    plan = Plan.of(pb, cpu)
    cut = replace(plan, cpu=replace(cpu, workers=2)).best
    visit = plan.blocks if cut.stays else plan.visit
    rows = Operand(True, pb.m, pb.k, pb.row_k_inner, pb.row_pitch, pb.row, visit, folds=True)
    columns = Operand(
        False,
        pb.n,
        pb.k,
        not pb.col_k_inner,
        pb.col_pitch,
        lambda bt, line, k: pb.col(bt, k, line),
        visit,
        folds=True,
    )
    if cut.stays:
        return [_Product(pb, rows, columns, (1, 1), False, cpu).resident_stage(cut.stays == "rows")]
    cut = plan.tiles
    return [_Product(pb, rows, columns, (cut.rows, cut.columns), plan.keeps, cpu).stage()]


_Extent = tuple[Expr, Expr, int]  # panels of a tile: their number, the first, the most
# Of the rows and of the columns: packed memory, and the panel in it.
_Places = tuple[tuple[Packed, Expr], tuple[Packed, Expr]]
_Slot = tuple[Memory, Expr, Expr]  # sums [panel, row, column]: the panel, the first column


@record
class _Product:
    """The stage that packs and multiplies."""

    pb: Problem
    rows: Operand
    columns: Operand
    size: tuple[int, int]  # panels of rows and of columns in a tile
    keeps: bool
    cpu: CpuTarget

    def stage(self) -> Stage:
        """The stage."""
        down, across = (
            ceil_div(o.panels, n) for o, n in zip((self.rows, self.columns), self.size, strict=True)
        )

        def body(tile: Var) -> Stmt:
            bt = tile // (down * across) if self.pb.batch > 1 else const(0)
            first = (tile // across % down * self.size[0], tile % across * self.size[1])
            return self._tile(bt, first)

        return parallel_stage("gemm", self.pb.batch * down * across, body)

    def resident_stage(self, rows_stay: bool) -> Stage:
        """The stage, if every core packs all rows, or all columns, once.

        A tile is a panel of the other operand, for all k: nothing waits between visits, and cores
        of different speeds share the work as long as there are panels.
        """
        pb = self.pb
        stays, moves = (self.rows, self.columns) if rows_stay else (self.columns, self.rows)
        # Tiles that are columns of the result have no long rows to hand on.
        group = 1 if rows_stay and not pb.swapped else min(stays.panels, _GROUP)
        high, wide = (group, 1) if rows_stay else (1, group)
        sums = local_buffer((high, EDGE, wide * EDGE + LANES), "float32", "sums")
        turned = local_buffer((EDGE, high * EDGE), "float32", "turned")
        every = packed_memory(stays.panels, stays.blocks, 1, local_buffer)
        one = packed_memory(1, moves.blocks, 1, local_buffer)
        zero = const(0)

        def some(tile: Expr, g: Expr) -> Stmt:
            first = g * group
            count: Expr = minimum(group, stays.panels - first) if stays.panels % group else group

            def block(p: Expr) -> Stmt:
                own, other = (every, first + p), (one, zero)
                if rows_stay:
                    at, places, slot = (first + p, tile), (own, other), (sums, p, zero)
                else:
                    at, places, slot = (tile, first + p), (other, own), (sums, zero, p * EDGE)
                few = self._fewer_rows(first + p) if rows_stay else []
                return seq(few, self._block(zero, at, zero, places, slot, None))

            panels, panel = (count, first, group), (const(1), tile, 1)
            row, column = (panels, panel) if rows_stay else (panel, panels)
            if pb.swapped:
                finish = self._finish_turned(zero, row, column, sums, turned)
            else:
                finish = self._finish(zero, row[1], column, (sums, zero, zero))
            return seq(serial(count, block, "p"), finish)

        def body(tile: Expr) -> Stmt:
            return seq(
                self._rows_of(zero if rows_stay else tile),
                self._pack(moves, one, zero, zero, tile, zero),
                serial(ceil_div(stays.panels, group), lambda g: some(tile, g), "g"),
            )

        start = seq(
            configure(),
            [alloc(m) for m in (sums, every.tiles, every.magnitude, one.tiles, one.magnitude)],
            alloc(turned) if pb.swapped else [],
            serial(stays.panels, lambda p: self._pack(stays, every, zero, zero, p, p), "p"),
        )
        around = (start, unit("tilerelease"))
        return stage_with_start("gemm", moves.panels, around, body)

    def _rows_of(self, panel: Expr) -> Stmt | Sequence[Stmt]:
        """Tell the unit how many rows a panel has, if not all have as many."""
        if self.pb.m % EDGE == 0:
            return []
        return configure(minimum(EDGE, self.pb.m - panel * EDGE))

    def _fewer_rows(self, panel: Expr) -> Stmt | Sequence[Stmt]:
        """The same, where panels follow one another: the last one has fewer rows."""
        if self.pb.m % EDGE == 0 or self.rows.panels == 1:
            return []
        return when(tvm().tirx.EQ(panel, const(self.rows.panels - 1)), self._rows_of(panel))

    def _pack(
        self, operand: Operand, to: Packed, bt: Expr, v: Expr, panel: Expr, place: Expr
    ) -> Stmt:
        """Pack a visit to a panel of an operand into the panel ``place`` of ``to``."""
        if may_share(operand):
            return call_packer(operand, to, bt, (panel, v), place)
        return operand.pack(to, bt, (panel, v), (place, const(0)))

    @property
    def shares(self) -> bool:
        """True if both operands lie in memory."""
        return may_share(self.rows) and may_share(self.columns)

    def _tile(self, bt: Expr, first: tuple[Expr, Expr]) -> Stmt:
        extents: list[_Extent] = []
        for operand, most, start in zip((self.rows, self.columns), self.size, first, strict=True):
            whole = operand.panels % most == 0
            extents.append((most if whole else minimum(most, operand.panels - start), start, most))
        row, column = extents
        visits, swapped = self.rows.visits, self.pb.swapped
        # Lines of sums apart by a multiple of 4 KB would share few places of the cache.
        pitch = column[2] * EDGE + LANES
        sums = local_buffer((row[2] if self.keeps else 1, EDGE, pitch), "float32", "sums")
        turned = local_buffer((EDGE, row[2] * EDGE), "float32", "turned")
        plain = local_buffer((row[2], column[2]), "int32", "plain")
        wide = packed_memory(column[2], self.columns.visit, 1, local_buffer)
        one = packed_memory(1, self.rows.visit, 1, local_buffer)
        zero = const(0)

        def block(v: Expr, r: Expr, c: Expr) -> Stmt:
            slot = (sums, r if self.keeps else zero, c * EDGE)
            at = (row[1] + r, column[1] + c)
            return self._block(bt, at, v, ((one, zero), (wide, c)), slot, (plain, r, c))

        def line(v: Expr, r: Expr) -> Stmt:
            products = [
                seq(self._rows_of(row[1] + r), self._pack(self.rows, one, bt, v, row[1] + r, zero)),
                serial(column[0], lambda c: block(v, r, c), "c"),
            ]
            if swapped:
                return seq(products)
            finish = self._finish(bt, row[1] + r, column, (sums, r if self.keeps else zero, zero))
            if visits > 1:
                finish = when(tvm().tirx.EQ(v, const(visits - 1)), finish)
            return seq(products, finish)

        def columns(v: Expr, c: Expr) -> Stmt:
            return self._pack(self.columns, wide, bt, v, column[1] + c, c)

        def visit(v: Expr) -> Stmt:
            return seq(
                serial(column[0], lambda c: columns(v, c), "c"),
                serial(row[0], lambda r: line(v, r), "r"),
            )

        packed = (wide.tiles, wide.magnitude, one.tiles, one.magnitude)
        return seq(
            configure(),
            # All of it here: TVM would free large memory declared further down before it has it.
            [alloc(m) for m in (sums, plain, *packed, *((turned,) if swapped else ()))],
            grid(plain.shape, lambda r, c: store(plain, zero, r, c)),
            serial(visits, visit, "v"),
            unit("tilerelease"),
            self._finish_turned(bt, row, column, sums, turned) if swapped else [],
        )

    def _block(
        self,
        bt: Expr,
        at: tuple[Expr, Expr],
        v: Expr,
        places: _Places,
        slot: _Slot,
        flag: tuple[Memory, Expr, Expr] | None,
    ) -> Stmt:
        """Add the products of one visit to a block of sums.

        ``flag`` is set once the unit was not used: sums may then be denormal, and the unit would
        take them for zero at the next visit.
        """
        t = tvm().tirx
        visits = self.rows.visits
        largest, smallest, rest = (
            tuple(load(p.magnitude, panel, const(0), i) for p, panel in places) for i in range(3)
        )
        zero = const(0.0, "float32")

        whole: Expr = self.pb.k // EDGE if self.rows.folded else self.rows.blocks
        visit = self.rows.visit
        count = whole if visits == 1 else minimum(visit, whole - v * visit)

        idle = idle_memory()

        def all_of(products: Sequence[tuple[int, int]]) -> Stmt:
            def step(b: Expr) -> Stmt:
                asks = self._ask_to_read(bt, at, b)
                if asks and visits > 1:
                    asks = [when(t.EQ(v, const(visits - 1)), seq(asks))]
                return seq(self._step(b, places, products), stay_awake(idle), asks)

            return serial(count, step, "b")

        steps = when(t.EQ(rest[1], zero), all_of(COLUMN_EXACT), all_of(PRODUCTS))
        steps = when(t.EQ(rest[0], zero), all_of(ROW_EXACT), steps)
        if self.rows.folded:
            last = serial(self.rows.folded, lambda f: self._step(count, places, ((f, f),)), "f")
            if visits > 1:
                last = when(t.EQ(v, const(visits - 1)), last)
            steps = seq(steps, last)
        before, after = self._sums(v, slot)
        if self.shares:
            in_float32 = self._call_in_float32(bt, at, v, slot)
        else:
            in_float32 = self._in_float32(bt, at, v, slot)
        fast, slow = may_use(largest, smallest), in_float32
        if flag is not None:
            fast = t.all(fast, t.EQ(load(*flag), const(0)))
            slow = seq(store(flag[0], const(1), *flag[1:]), in_float32)
        asks = self._ask_to_write(bt, at)
        if asks and visits > 1:
            asks = [when(t.EQ(v, const(visits - 1)), seq(asks))]
        return when(fast, seq(alloc(idle), asks, before, steps, after), slow)

    def _ask_to_write(self, bt: Expr, at: tuple[Expr, Expr]) -> list[Stmt]:
        """Ask for the lines that a block's sums will be handed on to, while the unit works.

        A core has room for some dozen stores to lines that it does not have, and would wait for
        each of a large result.  One that stays in the caches is nearer than this is worth.
        """
        pb, least = self.pb, _FAR * self.cpu.l2_bytes
        nbytes = pb.batch * pb.m * pb.n * pb.itemsize
        if nbytes < least / _MOST_STORES:
            return []
        zero, line = const(0.0, pb.dtype), LINE_BYTES // pb.itemsize

        def ask_for(number: Expr, first: int) -> list[Stmt]:
            i, j = (first, number) if pb.swapped else (number, first)
            return ask_to_write(lambda: pb.write(bt, at[0] * EDGE + i, at[1] * EDGE + j, zero))

        if len(ask_for(const(0), 0)) * nbytes < least:
            return []
        return [serial(EDGE, lambda n: seq(*(ask_for(n, f) for f in range(0, EDGE, line))), "ask")]

    def _ask_to_read(self, bt: Expr, at: tuple[Expr, Expr], b: Expr) -> list[Stmt]:
        """Ask for a share of the lines that finishing a block's sums will read.

        Such as what an optimizer keeps for every weight, last used a step ago: it arrives while the
        unit works.  ``b`` is the number of a block of k in the last visit.
        """
        pb, line = self.pb, LINE_BYTES // self.pb.itemsize
        zero = const(0.0, pb.dtype)
        share = ceil_div(EDGE, self.rows.visit)

        def ask_for(number: Expr, first: int) -> list[Stmt]:
            i, j = (first, number) if pb.swapped else (number, first)
            i, j = at[0] * EDGE + i, at[1] * EDGE + j
            # Not for a bias, of which there is little.
            return ask(lambda: pb.write(bt, i, j, zero), pb.batch * pb.m * pb.n, beyond=True)

        return [
            statement
            for n in range(share)
            for first in range(0, EDGE, line)
            for statement in ask_for(b * share + n, first)
        ]

    def _sums(self, v: Expr, slot: _Slot) -> tuple[Stmt, list[Stmt]]:
        """Statements that bring a block of sums to the unit, and back."""
        sums, r, j0 = slot
        across = const(4 * sums.shape[2], "int64")
        quarters = [
            (tile(n), address(sums, r, n // 2 * LANES, j0 + n % 2 * LANES), across)
            for n in range(4)
        ]
        start = seq([unit("tilezero", tile(n)) for n in range(4)])
        if self.rows.visits > 1:
            again = seq([unit("tileloadd64", *quarter) for quarter in quarters])
            start = when(tvm().tirx.EQ(v, const(0)), start, again)
        return start, [unit("tilestored64", *quarter) for quarter in quarters]

    def _step(self, b: Expr, places: _Places, products: Sequence[tuple[Expr, Expr]]) -> Stmt:
        """Products of one block of k."""

        def fetch(side: int, part: Expr, half: int, number: int) -> Stmt:
            packed, panel = places[side]
            source = address(packed.tiles, panel, b, part, half, 0)
            return unit("tileloadd64", tile(number), source, const(64, "int64"))

        return seq(multiply(fetch, products))

    def _call_in_float32(self, bt: Expr, at: tuple[Expr, Expr], v: Expr, slot: _Slot) -> Stmt:
        """As :meth:`_in_float32`, by the function that products share."""
        zero, depth = const(0), self.rows.visit * EDGE
        operands = (self.rows, self.columns)
        return BLOCK_IN_FLOAT32.call(
            *(tvm().tirx.address_of(o.element(bt, zero, zero)) for o in operands),
            address(slot[0], slot[1], zero, slot[2]),
            *(n for o in operands for n in (o.lines, *strides(o))),
            *(panel * EDGE for panel in at),
            v * depth,
            minimum(depth, self.pb.k - v * depth),
            slot[0].shape[2],
            tvm().tirx.Select(tvm().tirx.EQ(v, zero), const(1), zero),
        )

    def _in_float32(self, bt: Expr, at: tuple[Expr, Expr], v: Expr, slot: _Slot) -> Stmt:
        """The same sums by fused multiply-adds of the operands as they are."""
        pb = self.pb
        sums, slot_row, slot_column = slot
        depth = min(self.rows.visit * EDGE, pb.k)
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
                    functools.partial(serial, count, name="k"),
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

        def write(width: int) -> Stmt:
            return pb.write_tile(
                bt, (i0, j0), (height, width), lambda i, j: load(sums, r, i, j), LANES, rolled=True
            )

        return _sizes(pb.n, column, write)

    def _finish_turned(
        self, bt: Expr, row: _Extent, column: _Extent, sums: Memory, turned: Memory
    ) -> Stmt:
        """Transpose the sums of a tile, whose columns are the user's rows, and hand them on.

        ``turned``: memory for a panel of columns by the rows of the tile.
        """
        pb = self.pb
        every, per_panel = ramp(0, _SQUARE), EDGE // _SQUARE

        def panel(c: Expr) -> Stmt:
            def square(r: Expr, j: Expr, i: Expr) -> Stmt:
                def fill(memory: Memory, n: Expr) -> Stmt:
                    at = ramp(c * EDGE + j * _SQUARE, _SQUARE)
                    return store(memory, load(sums, r, i * _SQUARE + n, at), n, every)

                def put(n: Expr, vector: Expr) -> Stmt:
                    at = ramp(r * EDGE + i * _SQUARE, _SQUARE)
                    return store(turned, vector, j * _SQUARE + n, at)

                return transpose_rows(_SQUARE, "float32", fill, put)

            i0, j0 = row[1] * EDGE, (column[1] + c) * EDGE
            width: Expr = EDGE if pb.n % EDGE == 0 else minimum(EDGE, pb.n - j0)

            def write(height: int) -> Stmt:
                def value(i: Expr, j: Expr) -> Expr:
                    return load(turned, j, i)

                return pb.write_tile(bt, (i0, j0), (height, width), value, LANES, rolled=True)

            return seq(grid((row[0], per_panel, per_panel), square), _sizes(pb.m, row, write))

        return serial(column[0], panel, "c")


def _sizes(size: int, extent: _Extent, write: Callable[[int], Stmt]) -> Stmt:
    """``write`` for as many lines as a tile has, or for those that the last one has."""
    _, first, most = extent
    groups = ceil_div(size, most * EDGE)
    full, last = most * EDGE, size - (groups - 1) * most * EDGE
    if last == full or groups == 1:
        return write(last)
    return when(first < (groups - 1) * most, write(full), write(last))
