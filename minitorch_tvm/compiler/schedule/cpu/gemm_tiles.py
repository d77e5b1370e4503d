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
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....core.tvm_api import tvm
from ...loops import (
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
from .bfloat_shared import BLOCK_IN_FLOAT32, call_packer, may_share, packer, strides
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

# Shares of the second-level cache: for all that a tile keeps there, and for the columns of a long
# visit, of which there are this many panels at most.
_CACHE_SHARE, _VISIT_SHARE, _MOST_PANELS = 0.7, 0.43, 16
_LONGEST_VISIT = 16  # blocks of k
_ROW_SHARE = 0.5  # of the first-level cache, for the rows of a short visit
_DELAY = 0.15  # of a tile: what the last ones cost where cores differ in speed
_SQUARE = 8  # transposed at once
_ROWS = 8  # that plain arithmetic computes at once
# Measured cycles: of a block of 32 x 32 x 32, of 32 x 32 sums between visits and at the end, of one
# packed element, of an element that is transposed on the way in or out, or computed.
_BLOCK_CYCLES, _SUM_CYCLES, _FINISH_CYCLES = 500, 300, 800
_PACK_CYCLES, _TURN_CYCLES, _ACROSS_CYCLES, _COMPUTED_CYCLES = 1.1, 0.5, 0.6, 1.0


@dataclass(frozen=True)
class _Plan:
    """Sizes of parallel tiles, in panels of 32 rows and columns, and of visits, in blocks of k."""

    pb: Problem
    cpu: CpuTarget

    @property
    def panels(self) -> tuple[int, int]:
        """Panels of rows and of columns."""
        return ceil_div(self.pb.m, EDGE), ceil_div(self.pb.n, EDGE)

    @property
    def blocks(self) -> int:
        """Blocks of k."""
        return ceil_div(self.pb.k, EDGE)

    @property
    def visit(self) -> int:
        """Blocks of k in a visit; the sums' values do not depend on it, but for irregular ones.

        Long visits, where there are few columns, save visits to the sums; short ones keep their
        rows in the first-level cache.  What lies between does neither, and is slower than both.
        """
        many = ceil_div(self.blocks, ceil_div(self.blocks, _LONGEST_VISIT))
        panel = (min(self.panels[1], _MOST_PANELS) + 1) * BLOCK_BYTES
        if many * panel <= _VISIT_SHARE * self.cpu.l2_bytes:
            return many
        few = max(int(self.cpu.l1_bytes * _ROW_SHARE) // BLOCK_BYTES, 1)
        return ceil_div(self.blocks, ceil_div(self.blocks, few))

    @property
    def keeps(self) -> bool:
        """True if a tile keeps the sums of all its rows, False if of one panel after the other."""
        return self.blocks > self.visit or self.pb.swapped

    def bytes(self, rows: int, columns: int) -> int:
        """What a tile of so many panels keeps in the second-level cache."""
        sums = (rows if self.keeps else 1) * columns * EDGE**2 * 4
        return sums + (columns + 1) * self.visit * BLOCK_BYTES

    def pack(self, times: tuple[int, int]) -> float:
        """Cycles of packing the rows and the columns so many times."""
        pb, depth = self.pb, self.blocks * EDGE
        row = _PACK_CYCLES + (0 if pb.row_k_inner else _TURN_CYCLES)
        column = _PACK_CYCLES + (_TURN_CYCLES if pb.col_k_inner else 0)
        row += 0 if pb.row_plain else _COMPUTED_CYCLES
        column += 0 if pb.col_plain else _COMPUTED_CYCLES
        lines = [panels * EDGE * count for panels, count in zip(self.panels, times, strict=True)]
        return pb.batch * depth * (lines[0] * row + lines[1] * column)

    def cycles(self, rows: int, columns: int) -> float:
        """Estimated cycles of all cores, idle ones included, with tiles of so many panels."""
        pb = self.pb
        across, down = ceil_div(self.panels[1], columns), ceil_div(self.panels[0], rows)
        visits = ceil_div(self.blocks, self.visit)
        block = self.blocks * _BLOCK_CYCLES + (visits - 1) * _SUM_CYCLES + _FINISH_CYCLES
        busy = pb.batch * self.panels[0] * self.panels[1] * block + self.pack((across, down))
        busy += pb.batch * pb.m * pb.n * _ACROSS_CYCLES if pb.swapped else 0
        tiles = pb.batch * across * down
        # Cores that differ in speed, or other programs, delay the last tiles.
        rounds = ceil_div(tiles, self.cpu.workers)
        return busy * (rounds * self.cpu.workers / tiles + _DELAY / rounds)

    @functools.cached_property
    def best(self) -> tuple[float, int, int]:
        """Fewest cycles, and the panels of rows and columns in a tile that need them."""
        limit = int(self.cpu.l2_bytes * _CACHE_SHARE)
        found = []
        for r in _even(self.panels[0]):
            for c in _even(self.panels[1]):
                if (r, c) != (1, 1) and self.bytes(r, c) > limit:
                    break
                found.append((self.cycles(r, c), r, c))
        return min(found)


def _even(panels: int) -> list[int]:
    """Sizes of groups that divide so many panels evenly, but for the last."""
    return sorted({ceil_div(panels, groups) for groups in range(1, panels + 1)})


def cycles(pb: Problem, cpu: CpuTarget) -> float:
    """Estimated cycles of a product with these stages (compare: the other schedules' estimate).

    What is computed, and in which order, must not depend on threads: this reckons with two.
    """
    return _Plan(pb, replace(cpu, workers=2)).best[0]


def suits(pb: Problem, cpu: CpuTarget) -> bool:
    """True if the machine has the unit and it computes this type."""
    return cpu.matrix_unit and pb.dtype == "float32"


def tile_stages(problem: Problem, cpu: CpuTarget) -> list[Stage]:
    """Stages of the product, as it stands or transposed, whichever is estimated to be faster."""
    pb = min(problem, problem.swap(), key=lambda p: cycles(p, cpu))
    plan = _Plan(pb, cpu)
    rows = Operand(True, pb.m, pb.k, pb.row_k_inner, pb.row_plain, pb.row, plan.visit)
    columns = Operand(
        False,
        pb.n,
        pb.k,
        not pb.col_k_inner,
        pb.col_plain,
        lambda bt, line, k: pb.col(bt, k, line),
        plan.visit,
    )
    return [_Product(pb, rows, columns, plan.best[1:], plan.keeps).stage()]


_Extent = tuple[Expr, Expr, int]  # panels of a tile: their number, the first, the most
# Of the rows and of the columns: packed memory, and the panel in it.
_Places = tuple[tuple[Packed, Expr], tuple[Packed, Expr]]
_Slot = tuple[Memory, Expr, Expr]  # sums [panel, row, column]: the panel, the first column


@dataclass(frozen=True)
class _Product:
    """The stage that packs and multiplies."""

    pb: Problem
    rows: Operand
    columns: Operand
    size: tuple[int, int]  # panels of rows and of columns in a tile
    keeps: bool

    def stage(self) -> Stage:
        """The stage."""
        down, across = (
            ceil_div(o.panels, n) for o, n in zip((self.rows, self.columns), self.size, strict=True)
        )

        def body(tile: Var) -> Stmt:
            bt = tile // (down * across) if self.pb.batch > 1 else const(0)
            first = (tile // across % down * self.size[0], tile % across * self.size[1])
            return self._tile(bt, first)

        shared = dict.fromkeys(packer(o) for o in (self.rows, self.columns) if may_share(o))
        if self.shares:
            shared[BLOCK_IN_FLOAT32] = None
        stage = parallel_stage("gemm", self.pb.batch * down * across, body)
        return replace(stage, helpers=tuple(shared))

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
        plain = local_buffer((row[2], column[2]), "int32", "plain")
        wide = packed_memory(column[2], self.columns.visit, 1, local_buffer)
        one = packed_memory(1, self.rows.visit, 1, local_buffer)
        zero = const(0)

        def pack(operand: Operand, to: Packed, v: Expr, panel: Expr, place: Expr) -> Stmt:
            if may_share(operand):
                return call_packer(operand, to, bt, (panel, v), place)
            return operand.pack(to, bt, (panel, v), (place, zero))

        def block(v: Expr, r: Expr, c: Expr) -> Stmt:
            slot = (sums, r if self.keeps else zero, c * EDGE)
            at = (row[1] + r, column[1] + c)
            return self._block(bt, at, v, ((one, zero), (wide, c)), slot, (plain, r, c))

        def line(v: Expr, r: Expr) -> Stmt:
            products = [
                pack(self.rows, one, v, row[1] + r, zero),
                serial(column[0], lambda c: block(v, r, c), "c"),
            ]
            if swapped:
                return seq(products)
            finish = self._finish(bt, row[1] + r, column, (sums, r if self.keeps else zero, zero))
            if visits > 1:
                finish = when(tvm().tirx.EQ(v, const(visits - 1)), finish)
            return seq(products, finish)

        def visit(v: Expr) -> Stmt:
            return seq(
                serial(column[0], lambda c: pack(self.columns, wide, v, column[1] + c, c), "c"),
                serial(row[0], lambda r: line(v, r), "r"),
            )

        packed = (wide.tiles, wide.magnitude, one.tiles, one.magnitude)
        return seq(
            configure(),
            [alloc(m) for m in (sums, plain, *packed)],
            grid(plain.shape, lambda r, c: store(plain, zero, r, c)),
            serial(visits, visit, "v"),
            unit("tilerelease"),
            self._finish_turned(bt, row, column, sums) if swapped else [],
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
            tuple(load(p.magnitude, panel, const(0), i) for p, panel in places) for i in range(3)
        )
        zero = const(0.0, "float32")

        def all_of(products: Sequence[tuple[int, int]]) -> Stmt:
            return serial(self.rows.count(v), lambda b: self._step(b, places, products), "b")

        steps = when(t.EQ(rest[1], zero), all_of(COLUMN_EXACT), all_of(PRODUCTS))
        steps = when(t.EQ(rest[0], zero), all_of(ROW_EXACT), steps)
        before, after = self._sums(v, slot)
        if self.shares:
            in_float32 = self._call_in_float32(bt, at, v, slot)
        else:
            in_float32 = self._in_float32(bt, at, v, slot)
        slow = seq(store(flag[0], const(1), *flag[1:]), in_float32)
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
        if self.rows.visits > 1:
            again = seq([unit("tileloadd64", *quarter) for quarter in quarters])
            start = when(tvm().tirx.EQ(v, const(0)), start, again)
        return start, [unit("tilestored64", *quarter) for quarter in quarters]

    def _step(self, b: Expr, places: _Places, products: Sequence[tuple[int, int]]) -> Stmt:
        """Products of one block of k."""

        def fetch(side: int, part: int, half: int, number: int) -> Stmt:
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

        def write(width: Expr) -> Stmt:
            return pb.write_tile(bt, (i0, j0), (height, width), lambda i, j: load(sums, r, i, j))

        return _sizes(pb.n, column, write)

    def _finish_turned(self, bt: Expr, row: _Extent, column: _Extent, sums: Memory) -> Stmt:
        """Transpose the sums of a tile, whose columns are the user's rows, and hand them on."""
        pb = self.pb
        turned = local_buffer((EDGE, row[2] * EDGE), "float32", "turned")
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

            def write(height: Expr) -> Stmt:
                def value(i: Expr, j: Expr) -> Expr:
                    return load(turned, j, i)

                return pb.write_tile(bt, (i0, j0), (height, width), value)

            return seq(grid((row[0], per_panel, per_panel), square), _sizes(pb.m, row, write))

        return seq(alloc(turned), serial(column[0], panel, "c"))


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
