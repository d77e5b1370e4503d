"""Matrix product by outer products: a tile of accumulators stays in registers while k runs.

One step of k multiplies ``mr`` broadcast scalars of the row operand with ``nv`` vectors of the
column operand.  Columns are packed into panels, so that those vectors are contiguous, unless too
few rows would use them; rows stored along m are packed into blocks, unless those of a block stay in
the first-level cache where they are.  Where that is not much more work, the thread whose tile needs
them packs panels and blocks, unless the tile before had the same: no other core's lines, and no
barrier.  Tiles of all rows, if they are few, pack panels for one block of k after the other.

A parallel tile covers a group of row blocks and a group of panels and runs, for every block of k,
through its row blocks and, innermost, through its panels: the scalars of one row block stay in the
first-level cache while the panels stream from the second, announced by prefetches.  Between blocks
of k the sums wait in memory of the tile.

Row tails start early and recompute rows of the block before (addresses stay constants relative to
one base, and no second body is compiled); only new rows are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    LINE_BYTES,
    PAGE_BYTES,
    Builder,
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    below,
    bind,
    ceil_div,
    const,
    grid,
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
    view,
    when,
)
from ...queues import stage_with_start
from ...target import CpuTarget
from .conv_layout import turn
from .elementwise import GRAIN, tiled
from .gemm_ahead import Ahead, Held, packs_ahead
from .gemm_problem import (
    SQUARE,
    Panels,
    Problem,
    batch_and_part,
    fill_row_blocks,
    materialise_rows,
    pack_rows,
    place,
    row_blocks,
    zeros,
)
from .gemm_requests import Requests
from .gemm_tiling import (
    Tiling,
    familiar,
    fastest,
    keeps_rows,
    own_rows,
    packed_pitch,
    packs_rows,
    pitch_bytes,
    turns,
)
from .gemm_triangles import in_lines, in_turns, reaches

# Steps of k between the prefetch of a panel's line and its use: some 200 cycles.  Fewer where lines
# may be apart by a power of two: the first-level cache has eight places or more for them.
_AHEAD, _AHEAD_APART = 16, 8
# The same for rows stored along m, packed or in place, which come from further away.
_ROWS_AHEAD = 64
# Turns of the loop over k that LLVM unrolls as a whole.
_FEW_TURNS = 16
# Lines of the next rows that are asked for at once; of more, each in a turn of its own, as memory
# answers so many at a time.
_AT_ONCE = 4
# Share of the first-level cache's places for lines at some distance from the start of a page that
# the rows of a block, read in place, may need.
_PLACES = 0.4


def _unroll(vector_bytes: int, nv: int) -> int:
    """Steps of k in one turn of the loop.

    Two halve its overhead, but LLVM needs more registers for them where arithmetic cannot take a
    scalar from memory (all but AVX-512), and spilled sums cost more than the loop does: it loads
    the scalars of both steps first (NEON and SSE), and a scalar that meets one vector only becomes
    the sum, so that every sum exists twice.
    """
    if vector_bytes < 32:
        return 1
    return 2 if vector_bytes > 32 or nv > 1 else 1


@record
class _Panel:
    """One kind of panel: its number, its vectors, its first column, the columns to write."""

    number: Expr
    nv: int
    j0: Expr
    # Of a panel that is not the last, of the last: columns that the panel before has, and the rest.
    parts: tuple[tuple[int, int], ...]


_Write = Callable[[tuple[int, int]], Stmt]
"""Finishes some columns of a panel."""


@record
class Beside:
    """A stage whose tiles those of another compute, too, and what every thread does before."""

    stage: Stage
    start: Sequence[Stmt] = ()


@record
class _Tile:
    """What a parallel tile covers: a batch, some row blocks and some panels (the first, how many).

    ``group`` numbers panels: tiles of one have the same.
    """

    group: Expr
    bt: Expr
    blocks: tuple[Expr, Expr]
    panels: tuple[Expr, Expr]


class _Compute:
    """Builds the compute stage of one product."""

    def __init__(
        self,
        pb: Problem,
        tiling: Tiling,
        columns: Panels | None,
        rows: Memory | None,
        cpu: CpuTarget,
    ) -> None:
        self.pb, self.t, self.columns, self.rows, self.cpu = pb, tiling, columns, rows, cpu
        self.panels = ceil_div(pb.n, tiling.nr)
        self.blocks = ceil_div(pb.m, tiling.mr)
        self.k_parts = ceil_div(pb.k, tiling.k_block)
        self.panel_groups = ceil_div(self.panels, tiling.panel_group)
        self.row_groups = ceil_div(self.blocks, tiling.row_group)
        # The same, and sizes, as the stage is told them.
        own = columns is not None and columns.own
        self.m = pb.told_m
        self.told_blocks = number(self.blocks, "blocks")
        self.told_groups = number(self.row_groups, "groups")
        one = tiling.row_group == 1  # there is no loop then, which compiles faster
        self.row_group = 1 if one else number(tiling.row_group, "group")
        # What a tile keeps of each in memory of its own must be known.
        keeps = self.k_parts > 1 or own or tiling.panel_group == 1
        self.panel_group = tiling.panel_group if keeps else number(tiling.panel_group, "panels")
        self.told_panels = number(self.panel_groups, "across")
        self.k = pb.k if own else pb.told_k
        told = self.k is not pb.k and self.k_parts > 1
        self.k_block = number(tiling.k_block, "k_block") if told else tiling.k_block
        self.last_part = number(self.k_parts - 1, "last") if told else const(self.k_parts - 1)
        self.strip = self._strip()
        told_sizes = self.told_blocks, self.panel_group, self.k_block
        self.requests = Requests(pb, tiling, cpu, columns, *told_sizes)
        # Memory for more panels than a tile has is for the next one.
        self.ahead: Ahead | None = None
        if columns is not None and own and columns.memory.shape[1] > tiling.panel_group:
            parts = ceil_div(tiling.k_block * pb.itemsize, LINE_BYTES)
            self.ahead = Ahead(pb, columns, self.k_parts * self.blocks, parts)
        self.own_rows = own_rows(pb, tiling)
        self.thread_rows = keeps_rows(pb, tiling)
        # Where all columns stay in a core's cache, neighbouring tiles have the same rows: threads
        # then read and write rows of their own, as those do that compute rows or elements.
        whole = pb.k * self.panels * tiling.nr * pb.itemsize <= cpu.l2_bytes // 2
        self.rows_first = whole and (columns is None or not columns.own)

    def _strip(self) -> Memory | None:
        """Memory for a copy of the scalars of one row block, if reading in place is worse."""
        t, pb = self.t, self.pb
        if self.rows is not None or not pb.row_k_inner:
            return None
        # In place, rows a power of two apart would evict each other from the first-level cache.
        pitch = (pb.row_pitch or 0) * pb.itemsize
        apart = t.mr * math.gcd(pitch, PAGE_BYTES) > _PLACES * self.cpu.l1_bytes
        if pb.row_plain and not (apart and t.panel_group > 1):
            return None
        pitch = (ceil_div(t.k_block, t.lanes) | 1) * t.lanes
        return local_buffer((t.mr, pitch), pb.dtype, "strip")

    def stage(self, beside: Beside | None = None) -> Stage:
        """The stage; every tile computes its share of the tiles of ``beside``, too."""
        if beside is None:
            return self._stage(None, [])
        stage = self._stage(beside.stage, [*beside.start])
        return replace(stage, helpers=(*stage.helpers, *beside.stage.helpers))

    def _stage(self, few: Stage | None, start: list[Stmt]) -> Stage:
        """The same, before whose first tile a thread does what is to be done at the ``start``."""
        tiles = self.pb.batch * self.row_groups * self.panel_groups
        own = self.columns if self.columns is not None and self.columns.own else None
        if own is None and not start:
            return parallel_stage(
                "gemm", tiles, lambda tile: self._whole_tile(tile, tiles, few, lambda _: [])
            )
        if own is not None:
            start.append(alloc(own.memory))
        held: Held | None = None
        if own is not None and not self.t.by_part:
            held = Held(own, self.ahead is not None)
            start += held.start()
        if self.rows is not None and self.thread_rows:  # those of all tiles
            every = const(0), (const(0), self.blocks), (const(0), self.k)
            start += [alloc(self.rows), fill_row_blocks(self.pb, self.rows, self.t.mr, *every)]

        def one(taken: Expr) -> Stmt:
            tile, know = bind("tile", taken)

            def first(where: _Tile) -> list[Stmt]:
                return [] if held is None else held.fill(where.bt, where.group, where.panels)

            return seq(know, self._whole_tile(tile, tiles, few, first))

        return stage_with_start("gemm", tiles, (start, []), one)

    def _where(self, tile: Expr) -> tuple[_Tile, list[Stmt]]:
        """What a tile covers, and the statements that find out."""
        known: list[Stmt] = []

        def named(name: str, value: Expr) -> Expr:
            if isinstance(value, int):
                return value
            v, know = bind(name, value)
            known.append(know)
            return v

        groups = (self.told_groups, self.told_panels)
        across, bt, row, column = place(tile, groups, self.rows_first, self.pb.batch > 1, named)
        mb0 = named("block", below(row * self.row_group, self.blocks))
        p0 = named("panel", below(column * self.panel_group, self.panels))
        blocks: Expr = 1
        if self.t.row_group > 1:
            blocks = named("blocks", minimum(self.row_group, self.told_blocks - mb0))
        count = self.panel_group
        if count is not self.t.panel_group or self.panels % count:
            count = named("count", minimum(count, self.panels - p0))
        return _Tile(across, bt, (mb0, blocks), (p0, count)), known

    def _whole_tile(
        self,
        tile: Expr,
        tiles: int,
        beside: Stage | None,
        first: Callable[[_Tile], list[Stmt]],
    ) -> Stmt:
        where, known = self._where(tile)
        body = seq(known, first(where), self._tile(where))
        if beside is None:
            return body
        every, own = number(beside.tiles, "beside"), number(tiles, "tiles")
        begin, end = (quotient((tile + n) * every, own) for n in (0, 1))
        begin, know = bind("begin", begin)

        def share(q: Expr) -> Stmt:
            return seq(tvm().tirx.Bind(beside.tile, begin + q), beside.body)

        return seq(body, know, serial(end - begin, share, "beside"))

    def _tile(self, where: _Tile) -> Stmt:
        t, pb = self.t, self.pb
        bt, (mb0, blocks), (p0, group) = where.bt, where.blocks, where.panels
        partial: Memory | None = None
        if self.k_parts > 1:
            shape = (t.row_group, t.panel_group, t.mr, t.nr)
            partial = local_buffer(shape, pb.dtype, "partial")

        def row_block(kp: Expr, b: Expr) -> Stmt:
            mb, know_block = bind("mb", mb0 + b)
            i0, know_row = bind("i0", self._first_row(mb))
            copy, scalar = self._scalars(bt, (mb, i0), self._first_k(kp))

            def panel(q: Expr) -> Stmt:
                return self._by_kind(
                    p0 + q,
                    lambda kind: self._block(bt, (mb, i0), kind, kp, (partial, b, q), scalar),
                )

            more = [] if self.ahead is None else [self.ahead.pack(self._visit(kp, mb), p0)]
            return seq(know_block, know_row, copy, serial(group, panel, "p"), more)

        parts = self.k_parts if self.k_block is t.k_block else self.last_part + 1

        def part(kp: Expr) -> Stmt:
            products = serial(blocks, lambda b: row_block(kp, b), "b")
            if self.columns is None or not t.by_part:
                return products
            k0 = self._first_k(kp)
            return seq(self.columns.fill_part(bt, where.panels, (k0, self._count(k0))), products)

        body = serial(parts, part, "kp")
        if self.rows is not None and self.own_rows:
            every = (mb0, blocks), (const(0), self.k)
            body = seq(fill_row_blocks(pb, self.rows, t.mr, bt, *every), body)
        return seq([alloc(m) for m in (partial, self.strip) if m is not None], body)

    def _count(self, k0: Expr) -> Expr:
        """Steps of the block of k that starts at ``k0``."""
        if self.k_parts == 1:
            return self.k
        even = self.k_block is self.t.k_block and self.pb.k % self.t.k_block == 0
        return self.k_block if even else minimum(self.k_block, self.k - k0)

    def _unrolls(self, nv: int, turns: int, steps: int) -> bool:
        """Whether LLVM, told how many turns there are, would unroll their loop, and spill sums.

        It does so to few turns, and to those of one step.  A few sums stay in registers even so.
        """
        many = self.t.mr * nv >= self.cpu.vector_registers // 2
        return many and self.cpu.vector_registers < 32 and (steps == 1 or turns <= _FEW_TURNS)

    def _first_k(self, kp: Expr) -> Expr:
        return kp * self.k_block if self.k_parts > 1 else const(0)

    def _visit(self, kp: Expr, mb: Expr) -> Expr:
        """Which of a tile's visits to row blocks, if it has all of these."""
        return kp * self.told_blocks + mb if self.k_parts > 1 else mb

    def _first_row(self, mb: Expr) -> Expr:
        mr = self.t.mr
        return minimum(mb * mr, self.m - mr) if self.t.m_tail else mb * mr

    def _scalars(
        self, bt: Expr, block: tuple[Expr, Expr], k0: Expr
    ) -> tuple[list[Stmt], Callable[[int, Expr], Expr]]:
        """Statements that copy a row block's scalars, and the scalar of (row, k - k0)."""
        t, pb, strip, rows = self.t, self.pb, self.strip, self.rows
        mb, i0 = block
        if rows is not None:
            own = bt if pb.row_batched else 0
            return [], lambda r, k: load(rows, own, mb, k0 + k, r)
        if strip is None:
            pitch = pb.row_pitch
            if pitch is None:
                return [], lambda r, k: pb.row(bt, i0 + r, k0 + k)
            near, declare = view(pb.row(bt, i0, k0), "row")
            if pb.row_k_inner:
                return [declare], lambda r, k: load(near, r * pitch + k)
            return [declare], lambda r, k: load(near, k * pitch + r)
        count = self._count(k0)

        begin, some = in_lines(pb.triangles.steps((i0, t.mr), None, (k0, count)), count)

        def row(r: Expr) -> Stmt:
            i = i0 + r
            return serial(some, lambda k: store(strip, pb.row(bt, i, k0 + k), r, k), first=begin)

        return [serial(t.mr, row, "r")], lambda r, k: load(strip, r, k)

    def _by_kind(self, p: Expr, make: Callable[[_Panel], Stmt]) -> Stmt:
        t, n = self.t, self.pb.n
        width = n - (self.panels - 1) * t.nr
        whole = (0, t.nr)
        last_part = (t.nr - width, width) if t.direct else (0, width)
        if t.direct or t.last_nv == t.nv:
            # Columns read in place cannot run past the end: the last panel starts early instead.
            early = t.direct and width < t.nr
            j0 = minimum(p * t.nr, n - t.nr) if early else p * t.nr
            parts = (whole, last_part) if self.panels > 1 and width < t.nr else (last_part,)
            return make(_Panel(p, t.nv, j0, parts))
        last = _Panel(p, t.last_nv, p * t.nr, (last_part,))
        if self.panels == 1:
            return make(last)
        full = _Panel(p, t.nv, p * t.nr, (whole,))
        return when(tvm().tirx.EQ(p, const(self.panels - 1)), make(last), make(full))

    def _block(
        self,
        bt: Expr,
        rows: tuple[Expr, Expr],
        panel: _Panel,
        kp: Expr,
        sums: tuple[Memory | None, Expr, Expr],
        scalar: Callable[[int, Expr], Expr],
    ) -> Stmt:
        """One register tile over one block of k."""
        t, pb = self.t, self.pb
        lanes = t.lanes
        every = ramp(0, lanes)
        tile = [(r, v * lanes) for r in range(t.mr) for v in range(panel.nv)]
        acc = {at: local_buffer((lanes,), pb.dtype, "acc") for at in tile}
        line = [
            local_buffer((lanes,), pb.dtype, "line") for _ in range(panel.nv if t.direct else 0)
        ]
        partial, *slot = sums
        k0 = self._first_k(kp)
        apart = t.direct and pitch_bytes(pb) >= PAGE_BYTES // 2
        ahead_by = _AHEAD if self.blocks > 1 else _AHEAD_APART
        declare: list[Stmt] = []
        if self.columns is None:
            memory, known = view(pb.col(bt, k0, panel.j0), "column")
            declare.append(known)

        def near(k: Expr, j: int, lanes: int = 1) -> Expr:
            """Columns in place, from ``j`` of the panel on."""
            at = k * pb.col_pitch + j
            return load(memory, ramp(at, lanes) if lanes > 1 else at)

        vector_bytes = lanes * pb.itemsize
        whole_lines = self.columns is not None or pitch_bytes(pb) % LINE_BYTES == 0

        def step(k: Expr) -> list[Stmt]:
            ahead: list[Stmt] = []
            vectors: list[Expr] = []
            for v in range(panel.nv):
                first = not whole_lines or v * vector_bytes % LINE_BYTES == 0  # of its line
                if self.columns is None:
                    vectors.append(load(line[v], every))
                    ahead.append(store(line[v], near(k, v * lanes, lanes), every))
                    if self.blocks == 1 and self.k_parts > 1:  # the next panel's, on the same pages
                        beside = minimum(panel.j0 + (t.nr + v * lanes), pb.n - 1)
                        ahead.append(prefetch(pb.col(bt, k0 + k, beside)))
                    elif (self.blocks > 1 or apart) and first:
                        beyond = ahead_by * pitch_bytes(pb)
                        ahead.append(prefetch(near(k, v * lanes), beyond=beyond))
                    # Else lines are used once and in order, which the hardware foresees.
                    continue
                packed, at = self.columns.memory, self.columns.at(bt, panel.number)
                of = k if t.by_part else k0 + k
                vectors.append(load(packed, *at, of, ramp(v * lanes, lanes)))
                if first:
                    used = load(packed, *at, of, v * lanes)
                    ahead.append(prefetch(used, beyond=_AHEAD * t.nr * pb.itemsize))
            updates = []
            for r in range(t.mr):
                factor = splat(scalar(r, k), lanes)
                for v, vector in enumerate(vectors):
                    target = acc[r, v * lanes]
                    updates.append(store(target, load(target, every) + factor * vector, every))
            return [*ahead, *updates]

        in_place = self.rows is None and self.strip is None
        unroll = _unroll(vector_bytes, panel.nv)
        steps_of_line = LINE_BYTES // pb.itemsize
        turns_of_line = steps_of_line // unroll

        # Rows may come from memory, and are too many streams for the hardware to guess.  The panels
        # of this block share the rows of the next, which are read in place or copied first.
        next_rows = pb.row_plain and pb.row_k_inner and self.blocks > 1
        share = ceil_div(t.mr, t.panel_group)

        def ask_for_row(r: Expr, k: Expr) -> Stmt:
            i = rows[1] + t.mr + slot[1] * share + r
            return prefetch(pb.row(bt, minimum(i, self.m - 1), k))

        def turn(i: Expr) -> Stmt:
            steps = [step(i * unroll + u) for u in range(unroll)]
            asks = []
            if self.rows is not None:
                beyond = _ROWS_AHEAD * self.rows.shape[3] * pb.itemsize
                asks.append(prefetch(scalar(0, i * unroll), beyond=beyond))
            elif in_place and not pb.row_k_inner:  # every k is a line, of blocks that lie apart
                ends = (0, t.mr - 1) if t.mr * pb.itemsize > LINE_BYTES // 2 else (0,)
                assert pb.row_pitch is not None
                beyond = _ROWS_AHEAD * pb.row_pitch * pb.itemsize
                now = (i * unroll + u for u in range(unroll))
                asks += [prefetch(scalar(r, k), beyond=beyond) for k in now for r in ends]
            elif next_rows and share > _AT_ONCE:
                asks.append(ask_for_row(i % (1 << (share - 1).bit_length()), k0 + i * unroll))
            return seq(asks, *steps)

        def asks_of(part: Expr) -> list[Stmt]:
            """Requests for other things than the next steps, made once for so many turns."""
            k = k0 + part * steps_of_line
            asks = self.requests.to_finish(bt, (rows[1], panel.j0), panel.nv, part)
            if self.ahead is not None:
                asks.append(self.ahead.asks(self._visit(kp, rows[0]), panel.number, part))
            else:
                asks += self.requests.for_panels(bt, rows[0], panel.j0, kp, part)
            if next_rows and share <= _AT_ONCE:
                asks.append(serial(share, lambda r: ask_for_row(r, k), "r"))
            return asks

        def some_turns(part: Expr, turns: Expr) -> Stmt:
            begin = part * turns_of_line
            # If LLVM knew how few these are, it would go through all of them to see whether it pays
            # to write them out (it does not), which takes it longer than all the rest.  It writes
            # out some of any number, for which it needs registers.
            few = self.cpu.vector_registers < 32
            some = minimum(turns_of_line if few else number(turns_of_line, "turns"), turns - begin)
            return seq(asks_of(part), serial(some, turn, "turn", first=begin))

        def loop_over(turns: Expr, steps: tuple[Expr, Expr] | None) -> Stmt:
            if not asks_of(const(0)):
                begin, some = in_turns(steps, turns, unroll)
                return serial(some, turn, "k", first=begin)
            parts = quotient(turns + (turns_of_line - 1), turns_of_line)
            begin, some = in_turns(steps, parts, steps_of_line)
            return serial(some, lambda part: some_turns(part, turns), "part", first=begin)

        count = self._count(k0)
        turns = quotient(count, unroll)
        if isinstance(turns, int) and self.k_parts == 1 and self._unrolls(panel.nv, turns, unroll):
            turns = number(turns, "turns")
        columns = (panel.j0, panel.nv * lanes) if self.panels > 1 else (0, pb.n)
        steps = pb.triangles.steps((rows[1], t.mr), columns, (k0, count))
        loop: list[Stmt] = [] if pb.k < unroll else [loop_over(turns, steps)]
        odd = seq(step(count - 1))
        odd = odd if steps is None else when(reaches(steps, count - 1), odd)
        if unroll > 1 and self.k is not pb.k and t.k_tail:
            loop.append(when(count % unroll != 0, odd))
        elif pb.k % unroll:
            # Blocks are of even length but for the last.
            final = tvm().tirx.EQ(kp, self.last_part)
            loop.append(when(final, odd) if self.k_parts > 1 else odd)
        clear: Stmt = seq([store(b, zeros(pb.dtype, lanes), every) for b in acc.values()])
        finish = self._finish(bt, rows, panel, acc)
        if partial is not None:
            resume = [
                store(acc[r, c], load(partial, *slot, r, ramp(c, lanes)), every) for r, c in tile
            ]
            keep = [
                store(partial, load(acc[r, c], every), *slot, r, ramp(c, lanes)) for r, c in tile
            ]
            clear = when(tvm().tirx.EQ(kp, const(0)), clear, seq(resume))
            finish = when(tvm().tirx.EQ(kp, self.last_part), finish, seq(keep))
        return seq([alloc(b) for b in (*acc.values(), *line)], declare, clear, loop, finish)

    def _finish(
        self,
        bt: Expr,
        rows: tuple[Expr, Expr],
        panel: _Panel,
        acc: dict[tuple[int, int], Memory],
    ) -> Stmt:
        """Hand the sums of a tile on to the epilogue.

        They pass through a stack buffer: the epilogue is arbitrary code in a loop, and indexing
        the accumulators with a loop variable would force them out of registers for the whole of
        the k loop.
        """
        t, pb = self.t, self.pb
        mb, i0 = rows
        squares = turns(pb, t.mr, t.lanes)  # whole ones: the last rows have no values
        height = ceil_div(t.mr, self._edge) * self._edge if squares else t.mr
        out = local_buffer((height, panel.nv * t.lanes), pb.dtype, "out")
        spill = [
            store(out, load(sums, ramp(0, t.lanes)), r, ramp(c, t.lanes))
            for (r, c), sums in acc.items()
        ]
        known: Expr = mb * t.mr - i0 if t.m_tail else 0

        def rows_from(first: Expr, value: Callable[[Expr, Expr], Expr]) -> _Write:
            def write(part: tuple[int, int]) -> Stmt:
                skip, width = part
                return pb.write_tile(
                    bt,
                    (i0 + first, panel.j0 + skip),
                    (t.mr - first, width),
                    lambda i, j: value(first + i, skip + j),
                    t.lanes,
                    rolled=True,
                    around=pb.around,
                )

            return write

        turning: list[Stmt] = []
        write = rows_from(0 if pb.swapped else known, lambda i, j: load(out, i, j))
        if squares:
            turned, turning = self._turned(out)
            write = rows_from(0, lambda i, j: load(turned, j, i))

        written = write(panel.parts[0])
        last = tvm().tirx.EQ(panel.number, const(self.panels - 1))
        if len(panel.parts) > 1:
            written = when(last, write(panel.parts[1]), written)
        if not (pb.swapped and t.m_tail):
            return seq(alloc(out), spill, turning, written)
        # The new rows of a last block, element by element.  LLVM must not see how many there are:
        # it would write out every element, and what finishes it, which takes up to ten times as
        # long as to compile all else.
        skip, width = (
            each[0] if len(each) == 1 else tvm().tirx.Select(last, *map(const, each[::-1]))
            for each in zip(*panel.parts, strict=True)
        )

        def one(j: Expr, i: Expr) -> Stmt:
            r, c = known + i, skip + j
            return pb.write(bt, i0 + r, panel.j0 + c, load(out, r, c))

        columns = number(width, "columns") if isinstance(width, int) else width
        # Nor must it look whether they are enough for vectors: what these need, it would keep in
        # registers throughout, instead of sums.
        few = grid((columns, minimum(t.mr - known, t.mr - 1)), one)
        written = when(tvm().tirx.EQ(known, const(0)), written, few)
        return seq(alloc(out), spill, turning, written)

    def _turned(self, out: Memory) -> tuple[Memory, list[Stmt]]:
        """The sums of a tile, transposed: the user's rows are its columns."""
        (rows, columns), edge = out.shape, self._edge
        turned = local_buffer((columns, rows), out.dtype, "turned")

        def square(c: Expr, r: Expr) -> Stmt:
            source = load(out, r * edge, c * edge), columns
            return turn(out.dtype, edge, source, (load(turned, c * edge, r * edge), rows))

        return turned, [alloc(turned), grid((columns // edge, rows // edge), square)]

    @property
    def _edge(self) -> int:
        """Of the squares that are transposed."""
        t = self.t
        return t.lanes if t.mr > SQUARE else min(t.lanes, SQUARE)


def stage_in_place(pb: Problem, tiling: Tiling, cpu: CpuTarget) -> Stage:
    """The product of operands that are read where they are, as it stands."""
    return _Compute(pb, tiling, None, None, cpu).stage()


def outer_stages(
    problem: Problem, builder: Builder, cpu: CpuTarget, beside: Beside | None = None
) -> list[Stage]:
    """Stages of the product, whose tiles compute those of ``beside``, too."""
    stages: list[Stage] = []
    finish: list[Stage] = []
    _, tiling, pb = fastest(problem, cpu)
    if pb.swapped != problem.swapped and problem.costly:
        bare, finish = _finished_apart(problem, builder)
        pb = bare.swap()
    tiling = familiar(pb, cpu, tiling)
    rows: Memory | None = None
    if packs_rows(pb, cpu, tiling.mr):
        kept = None if keeps_rows(pb, tiling) else builder
        rows = row_blocks(pb, kept, tiling.mr, packed_pitch(pb, cpu, tiling))
    elif not pb.row_plain and tiling.panel_group * tiling.nr < pb.n:
        # Every panel group would evaluate the rows again.
        stage, pb = materialise_rows(pb, builder)
        stages.append(stage)
    columns: Panels | None = None
    if not tiling.direct:
        width = (tiling.nr, tiling.last_nv * tiling.lanes)
        if tiling.own_panels:
            depth = tiling.k_block if tiling.by_part else pb.k
            group = 2 if packs_ahead(pb, cpu, tiling) else tiling.panel_group
            columns = Panels.of_thread(pb, cpu, group, depth, *width)
        else:
            columns = Panels.shared(pb, cpu, builder, *width)
            stages.append(columns.stage())
    compute = _Compute(pb, tiling, columns, rows, cpu)
    if rows is not None and not (compute.own_rows or compute.thread_rows):
        stages.append(pack_rows(pb, rows, tiling.mr))
    return [*stages, compute.stage(beside), *finish]


def _finished_apart(pb: Problem, builder: Builder) -> tuple[Problem, list[Stage]]:
    """The problem that gives sums only, and the stage that finishes them.

    A tile of the transposed product is a few elements wide in the user's rows, too few for vectors.
    """
    sums = builder.scratch_buffer((pb.batch, pb.m, pb.n), pb.dtype, "sums")

    def line(flat: Expr) -> Stmt:
        bt, i = batch_and_part(flat, pb.batch, pb.m)
        return serial(pb.n, lambda j: pb.write(bt, i, j, load(sums, bt, i, j)), "j")

    stage = tiled("gemm_finish", pb.batch * pb.m, max(1, GRAIN // pb.n), line)
    bare = replace(pb, write=lambda bt, i, j, value: store(sums, value, bt, i, j))
    return bare, [stage]
