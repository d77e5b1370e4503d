"""Which register tile and which loops suit a product by multiply-adds, and what that may cost."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import astuple, replace

from ....core.record import record
from ... import recall
from ...loops import LINE_BYTES, PAGE_BYTES, SHORTEST, ceil_div
from ...target import CpuTarget
from .gemm_problem import LARGE, SQUARE, Problem
from .gemm_triangles import ALL

# Issue limits of current wide cores, per cycle; latency of a fused multiply-add in cycles.
_FMA_PORTS, _LOAD_PORTS, _LATENCY = 2, 2, 4
# Share of the first-level cache for the scalars of one row block; panels stream through the rest.
_STRIP_SHARE = 0.4
# The same where every k of it is a line.
_LINES_SHARE = 0.5
# Share of the second-level cache for the panels of a parallel tile.
_PANEL_SHARE = 0.35
# Share of its places for a block of k of a panel that is read in place, for lines that share few.
_PLACES = 0.5
# What reading them again costs, against the arithmetic of a row block, where they do not fit that.
_FAR_COLUMNS = 1.0
# Where a tile has one panel, the first-level caches that it and a row block may be: only the next
# block reads it again.
_NEAR_PANEL = 1.5
# Bound on the sums that a tile keeps between blocks of k, in memory of its own.
_PARTIAL_BYTES = 120 << 10
_MOST_ROW_BLOCKS = 16
# Rows that come from memory for every group of panels are so many second-level caches.
_FAR_ROWS = 32
# Row blocks that make enough tiles without splitting the panels.
_MANY_BLOCKS = 8
# Of so few, an odd one makes a difference, and each is a tile.
_FEW_BLOCKS = 64
# Columns read in place: of how many pages a tile reads a part before it reads
# the next part of the same ones.  Processors remember where some 64 pages are.
_PAGES, _LONG_PART = 32, 256
_SHORT_LINE = 512  # bytes of a row that is read with its neighbours
# Cycles per line of a panel that comes from the second-level cache, again for every row block, and
# the share of the first-level one within which it does not.
_LINE_CYCLES, _NEAR_SHARE = 2.2, 0.7
# Cycles of packing a vector of a panel, turned in registers or copied (its line must come first),
# and an element of rows that are stored along m.
_PACK_CYCLES, _PACK_ROW_CYCLES = 10, 1.5
# The same where all rows stay in the second-level cache, and the share of it that they may be.
_PACK_NEAR_ROW_CYCLES, _NEAR_ROWS_SHARE = 0.4, 0.3
# Of so many columns at most, by bytes of a vector, packing such rows takes longer than reading them
# for every panel, the first time from another core's cache, too: the larger a tile is, the more
# time it leaves for their lines.  Of twice as many with AVX-512 and so large a second-level cache.
_FEW_COLUMNS, _LARGE_L2 = {64: 256, 32: 96}, 2 << 20
# Cycles that a stage of its own for packing costs every core: a barrier, and lines of other cores.
_STAGE_CYCLES = 6000
# Cycles for a line that two cores write parts of.
_SHARED_CYCLES = 100
# How much longer groups of panels take, by the share that the last one lacks.
_UNEVEN = 0.3
# Cycles per line that another core has packed.
_FOREIGN_CYCLES = 20
# Share of the second-level cache for panels that a thread packs and keeps, and groups of panels for
# every other thread, of which two threads may pack one.
_KEPT_SHARE, _MANY_GROUPS = 0.4, 4
# Share of it for all rows and one panel of a tile that has all rows, and if it is transposed.
_ALONE_SHARE, _TURNED_SHARE = 0.7, 0.5
# Where there is one: what packing it again by every other thread may cost, against the product.
_LITTLE = 0.12
# What the last tiles cost where cores differ in speed, in tiles.
_DELAY = 0.15
_WIDE_PART = 512  # bytes of a row that is packed for one block of k
# Cost of such a part, against its arithmetic, if it is a line (64 bytes) long.
_SHORT_PART = 10
# Cycles of an element of a transposed product's result: of a small one or in a tile of squares that
# are turned in registers, and of another, to lines that the caches have lost meanwhile; of squares
# with AVX-512.
_TURNED_CYCLES, _ACROSS_CYCLES, _WIDE_TURNED_CYCLES = 1.5, 2.25, 0.6
# A narrower last panel is a second register tile to compile; it must save this share of the work.
_WORTH_A_TILE = 0.04
# What reading columns in place must be estimated to save where packing them is cheaper by itself.
_WORTH_NO_COPY = 0.04
# How much slower a tile may be that is compiled already, for how many times the size of a product
# that it was chosen for (of a larger one, estimates are to decide alone: two that they found equal
# took 1 and 1.17), and of how many products tiles are remembered.
_HARDLY, _SIMILAR, _MOST_SHAPES = 0.05, 2, 512


@record
class Tiling:
    """Register tile and loop blocking of one product."""

    mr: int
    nv: int  # vectors in a panel
    last_nv: int  # vectors in the last panel
    lanes: int
    direct: bool  # columns are read in place, not packed
    k_block: int
    row_group: int  # row blocks of one parallel tile
    panel_group: int  # panels of one parallel tile
    own_panels: bool = False  # packed by the thread that needs them, into memory of its own
    by_part: bool = False  # and for one block of k after the other, by a tile with all rows
    # Whether the last row block may overlap the one before, and k be odd: what is compiled for that
    # serves all others, too.
    m_tail: bool = True
    k_tail: bool = True

    @property
    def nr(self) -> int:
        """Columns of a panel."""
        return self.nv * self.lanes


def choose(pb: Problem, cpu: CpuTarget) -> tuple[float, Tiling]:
    """The register tile with the smallest estimated number of cycles, and loops around it.

    Also returns the smallest number.  How many threads there are has a say in the tile, of which
    bits do not depend, but none in the number: it decides between schedules.
    """
    lanes = cpu.lanes(pb.itemsize)
    registers = cpu.vector_registers
    vectors = ceil_div(pb.n, lanes)
    readable = pb.col_plain and not pb.col_k_inner
    best: dict[bool, tuple[float, int, int, int]] = {}
    least = math.inf
    alone: tuple[float, int, int, int] | None = None
    for direct in (False, True):
        for nv in range(1, 9):
            top = min(pb.m, pb.most_sums(registers - nv - 1) // nv)
            if top < 1 or nv > vectors:
                continue
            if direct and not (
                readable and nv * lanes <= pb.n and (pb.m <= top or _stays(pb, cpu))
            ):
                continue
            last = _last(pb, lanes, nv, direct)
            for mr in range(ceil_div(top, 2), top + 1):
                cost = time = _cycles(pb, cpu, mr, (nv, last), direct)
                least = min(least, cost)
                blocks = pb.batch * ceil_div(pb.m, mr)
                if direct and blocks <= _FEW_BLOCKS and _has_all_panels(pb, cpu, mr, nv * lanes):
                    time = cost * _idle(blocks, cpu)
                if direct not in best or time < best[direct][0]:
                    best[direct] = (time, mr, nv, last)
                if not direct and _may_own(pb, cpu, mr, nv * lanes):
                    time = cost * _delay(pb.batch * ceil_div(vectors, nv), cpu)
                    if alone is None or time < alone[0]:
                        alone = (time, mr, nv, last)
    if not best:
        raise AssertionError(f"no tile fits {registers} registers")

    def with_loops(direct: bool) -> Tiling:
        _, mr, nv, last = best[direct]
        return _with_loops(pb, cpu, Tiling(mr, nv, last, lanes, direct, 0, 0, 0))

    if True in best and best[True][0] < best[False][0]:
        return least, with_loops(True)
    packed = with_loops(False)
    few_groups = not _has_many_groups(pb, cpu, packed, packed.panel_group)
    if alone is not None:
        _, mr, nv, last = alone
        other = _alone(pb, cpu, Tiling(mr, nv, last, lanes, False, 0, 0, 0))
        packed = min(packed, other, key=lambda t: _time(pb, cpu, t))
    if True in best and few_groups:
        # In place they need no packing, by a stage or by every thread.
        other = with_loops(True)
        if _time(pb, cpu, other) < (1 - _WORTH_NO_COPY) * _time(pb, cpu, packed):
            return least, other
    return least, packed if packed.own_panels else _kept(pb, cpu, packed)


def _with_loops(pb: Problem, cpu: CpuTarget, t: Tiling) -> Tiling:
    """The register tile with loops around it."""
    k_block = _k_block(pb, cpu, t.mr, t.nr, t.direct)
    row_group, panel_group = _groups(pb, cpu, t, k_block)
    return replace(t, k_block=k_block, row_group=row_group, panel_group=panel_group)


def _alone(pb: Problem, cpu: CpuTarget, t: Tiling) -> Tiling:
    """With tiles of all rows and one panel, which the thread packs that computes it."""
    near = pb.k * (t.mr + t.nr) * pb.itemsize <= _NEAR_PANEL * cpu.l1_bytes
    k_block = pb.k if near else _k_block(pb, cpu, t.mr, t.nr, False)
    blocks = ceil_div(pb.m, t.mr)
    return replace(t, k_block=k_block, row_group=blocks, panel_group=1, own_panels=True)


def is_alone(pb: Problem, t: Tiling) -> bool:
    """Whether the loops are such."""
    one_panel = (t.row_group, t.panel_group) == (ceil_div(pb.m, t.mr), 1)
    return t.own_panels and not t.by_part and one_panel


def _kept(pb: Problem, cpu: CpuTarget, t: Tiling) -> Tiling:
    """With panels that threads pack and keep, or use at once, if that pays."""
    if t.direct or _keeps(pb, cpu, t, t.panel_group):
        return replace(t, own_panels=not t.direct)
    return _by_part(pb, cpu, t) or t


def _by_part(pb: Problem, cpu: CpuTarget, t: Tiling) -> Tiling | None:
    """With tiles of all rows, which pack panels for a block of k and use them at once.

    For rows so few that the sums of a tile stay near.  Nobody else needs those panels, and they
    need not go to memory.  They are as many as make long parts of the lines of memory, if there
    are enough for all threads.
    """
    blocks, panels = ceil_div(pb.m, t.mr), ceil_div(pb.n, t.nr)
    width = t.nr * pb.itemsize  # bytes of one k of a panel
    group = min(ceil_div(_WIDE_PART, width), panels // (_MANY_GROUPS * cpu.workers))
    shared = pb.batch > 1 and not pb.col_batched
    if not group or shared or pb.col_k_inner or blocks * t.mr * group * width > _PARTIAL_BYTES:
        return None
    fits = _PANEL_SHARE * cpu.l2_bytes / (group * width)
    if pb.row_k_inner:
        fits = min(fits, _strip_steps(pb, cpu, t.mr))
    k_block = _even(pb.k, math.ceil(pb.k / fits))
    if k_block >= pb.k:
        return None
    t = replace(t, k_block=k_block, row_group=blocks, panel_group=group)
    return replace(t, own_panels=True, by_part=True)


def _time(pb: Problem, cpu: CpuTarget, t: Tiling) -> float:
    """Estimated cycles of all cores, idle ones included, with these loops."""
    cost = _cycles(pb, cpu, t.mr, (t.nv, t.last_nv), t.direct)
    blocks, vectors = ceil_div(pb.m, t.mr), ceil_div(pb.n, t.lanes)
    if t.direct:
        few = pb.batch * blocks <= _FEW_BLOCKS and _has_all_panels(pb, cpu, t.mr, t.nr)
        return cost * _idle(pb.batch * blocks, cpu) if few else cost
    panels = ceil_div(vectors, t.nv)
    if is_alone(pb, t):
        return cost * _delay(pb.batch * panels, cpu) + _for_rows(pb, cpu, t)
    tiles = pb.batch * ceil_div(panels, t.panel_group) * ceil_div(blocks, t.row_group)
    packed = _stage(pb.k * vectors, cpu) + _for_rows(pb, cpu, t)
    return cost * _delay(tiles, cpu) + packed


@record
class _Shape:
    """What functions of a product depend on, beside its layout."""

    mr: int
    nv: int
    direct: bool
    alone: bool
    by_part: bool
    m_tail: bool
    k_tail: bool

    @classmethod
    def of(cls, pb: Problem, t: Tiling) -> _Shape:
        """That of loops."""
        return cls(t.mr, t.nv, t.direct, is_alone(pb, t), t.by_part, t.m_tail, t.k_tail)

    @property
    def numbers(self) -> list[int]:
        """All of it, see :meth:`again`."""
        return [*map(int, astuple(self))]

    @classmethod
    def again(cls, numbers: Sequence[int]) -> _Shape:
        """That of such numbers."""
        mr, nv, *flags = numbers
        return cls(mr, nv, *map(bool, flags))

    def loops(self, pb: Problem, cpu: CpuTarget) -> Tiling | None:
        """The loops for a problem, if they are possible."""
        lanes = cpu.lanes(pb.itemsize)
        top = min(pb.m, (cpu.vector_registers - self.nv - 1) // self.nv)
        if self.mr > pb.m or (self.direct and not (pb.m <= top or _stays(pb, cpu))):
            return None
        if self.alone and not _may_own(pb, cpu, self.mr, self.nv * lanes):
            return None
        if (pb.m % self.mr and not self.m_tail) or (pb.k % 2 and not self.k_tail):
            return None
        last = _last(pb, lanes, self.nv, self.direct)
        t = Tiling(self.mr, self.nv, last, lanes, self.direct, 0, 0, 0)
        t = replace(t, m_tail=self.m_tail, k_tail=self.k_tail)
        t = _alone(pb, cpu, t) if self.alone else _kept(pb, cpu, _with_loops(pb, cpu, t))
        return t if t.by_part == self.by_part else None


# By layout: for each shape, the largest m * k that it was chosen for.
_SHAPES: OrderedDict[object, dict[_Shape, int]] = OrderedDict()


def familiar(pb: Problem, cpu: CpuTarget, chosen: Tiling) -> Tiling:
    """Loops for a problem's rows that are compiled already, if they are hardly slower.

    A product of other sizes along what is no distance in memory, as of another batch, has the same
    functions if its register tile is the same.  No bit of a result depends on that.
    """
    layout = (pb.row_k_inner, pb.col_k_inner, pb.row_pitch, pb.col_pitch, pb.swapped, pb.costly)
    k = pb.k if pb.told_k is pb.k else None
    key = (cpu, pb.batch > 1, pb.n, k, pb.dtype, layout, pb.row_batched, pb.col_batched)
    shapes = _SHAPES.get(key)
    if shapes is None:
        shapes = {_Shape.again(row[:-1]): row[-1] for row in recall.earlier(key)}
    _SHAPES[key] = shapes
    _SHAPES.move_to_end(key)
    recall.use(key, lambda: [[*shape.numbers, size] for shape, size in shapes.items()])
    if len(_SHAPES) > _MOST_SHAPES:
        _SHAPES.popitem(last=False)
    chosen = replace(chosen, m_tail=pb.m % chosen.mr > 0, k_tail=pb.k % 2 > 0)
    own, most = _Shape.of(pb, chosen), (1 + _HARDLY) * _time(pb, cpu, chosen)
    size = pb.m * pb.k
    if own not in shapes:
        for shape, largest in shapes.items():
            t = shape.loops(pb, cpu) if size <= _SIMILAR * largest else None
            if t is not None and _time(pb, cpu, t) <= most:
                return t
    shapes[own] = max(size, shapes.get(own, 0))
    return chosen


def forget() -> None:
    """Choose as if nothing had been compiled."""
    _SHAPES.clear()


def _last(pb: Problem, lanes: int, nv: int, direct: bool) -> int:
    """Vectors of the last panel: fewer, if that saves enough."""
    vectors = ceil_div(pb.n, lanes)
    last = vectors - (ceil_div(vectors, nv) - 1) * nv
    return nv if direct or nv - last < _WORTH_A_TILE * vectors else last


def _stage(lines: int, cpu: CpuTarget) -> float:
    """Cycles of all cores for a stage that packs so many lines for all threads, beside packing."""
    return _STAGE_CYCLES * cpu.workers + _FOREIGN_CYCLES * (cpu.workers - 1) * lines


def _for_rows(pb: Problem, cpu: CpuTarget, t: Tiling) -> float:
    """The same for rows that a stage packs, or 0: a tile with all panels packs its own."""
    if not packs_rows(pb, cpu, t.mr) or own_rows(pb, t):
        return 0.0
    if keeps_rows(pb, t):
        return _PACK_NEAR_ROW_CYCLES * pb.k * pb.m * (cpu.workers - 1)
    return _stage(pb.k * ceil_div(pb.m, t.lanes), cpu)


def packs_rows(pb: Problem, cpu: CpuTarget, mr: int) -> bool:
    """Whether rows are read from packed blocks."""
    return not (pb.row_k_inner or in_place(pb, cpu, mr))


def own_rows(pb: Problem, t: Tiling) -> bool:
    """Whether a tile packs its own: nobody else needs the rows of one that has all panels."""
    return t.panel_group * t.nr >= pb.n and (pb.row_batched or pb.batch == 1)


def keeps_rows(pb: Problem, t: Tiling) -> bool:
    """Whether every thread packs all rows, for its tiles: each has all of them, and one panel."""
    return is_alone(pb, t) and pb.batch == 1 and not own_rows(pb, t)


def packed_pitch(pb: Problem, cpu: CpuTarget, t: Tiling) -> int:
    """Elements from one k of a packed row block to the next.

    Where a thread packs what it reads and that is little, no part of a block that is stored crosses
    lines of memory: with AVX-512 parts are so large that many would.  Else memory counts.
    """
    part = t.lanes // 2
    pitch = ceil_div(t.mr, part) * part
    near = pb.k * pb.m * pb.itemsize <= _NEAR_ROWS_SHARE * cpu.l2_bytes
    own = own_rows(pb, t) or keeps_rows(pb, t)
    little = 3 * pitch <= 4 * t.mr
    return pitch if cpu.vector_bytes == 64 and near and own and little else t.mr


def _has_many_groups(pb: Problem, cpu: CpuTarget, t: Tiling, panel_group: int) -> bool:
    """Whether threads that pack the panels of their tiles pack few of them twice.

    Neighbouring tiles have the same, and a thread takes neighbours.  Where one takes over tiles of
    another, both pack a panel.
    """
    groups = pb.batch * ceil_div(ceil_div(pb.n, t.nr), panel_group)
    return groups >= _MANY_GROUPS * (cpu.workers - 1)


def _keeps(pb: Problem, cpu: CpuTarget, t: Tiling, panel_group: int) -> bool:
    """Whether threads pack the panels of tiles with so many, and keep them for those with the same.

    Where all tiles have the same, every thread packs all, if that is little: it takes as long as
    getting them from another core, and nobody waits.  Two or three groups are packed by a stage:
    threads with tiles in their order would write columns of what others read by rows.
    """
    near = panel_group * t.nr * pb.k * pb.itemsize <= _KEPT_SHARE * cpu.l2_bytes
    shared = pb.batch > 1 and not pb.col_batched
    if not near or shared or _has_many_groups(pb, cpu, t, panel_group):
        return near and not shared
    told = pb.told_k is not pb.k  # memory of a thread has a size that is known
    if told or pb.batch > 1 or panel_group * t.nr < pb.n:
        return False
    again = _PACK_CYCLES * pb.k * ceil_div(pb.n, t.lanes) * (cpu.workers - 1)
    return again <= _LITTLE * _cycles(pb, cpu, t.mr, (t.nv, t.last_nv), t.direct)


def fastest(pb: Problem, cpu: CpuTarget) -> tuple[float, Tiling, Problem]:
    """Estimated cycles, and loops, as it stands or transposed, whichever takes fewer.

    As in :func:`choose`, threads have a say in the loops only, by rows that each of them packs.
    """

    def cost(found: tuple[float, Tiling, Problem]) -> float:
        cycles, t, p = found
        return cycles + (_for_rows(p, cpu, t) if keeps_rows(p, t) else 0.0)

    ways = [(*choose(p, cpu), p) for p in (pb, pb.swap())]
    return min(cycles for cycles, *_ in ways), *min(ways, key=cost)[1:]


def time_of(pb: Problem, cpu: CpuTarget) -> float:
    """Estimated cycles with these loops, those of packing included.

    What is computed, and in which order, must not depend on threads: this reckons with two.
    """
    two = replace(cpu, workers=2)
    _, tiling, found = fastest(pb, two)
    return _time(found, two, tiling)


def _may_own(pb: Problem, cpu: CpuTarget, mr: int, nr: int) -> bool:
    """Whether a tile may have all rows, and pack the panel that it has of the columns.

    What it walks through for a panel, of the columns and of the rows, stays in its core's cache.
    """
    shared = pb.batch > 1 and not pb.col_batched
    sums = ceil_div(pb.m, mr) * mr * nr * pb.itemsize
    share = _TURNED_SHARE if pb.swapped else _ALONE_SHARE
    near = pb.k * (nr + pb.m) * pb.itemsize <= share * cpu.l2_bytes
    return not shared and near and sums <= _PARTIAL_BYTES


def _has_all_panels(pb: Problem, cpu: CpuTarget, mr: int, nr: int) -> bool:
    """Whether tiles are given all panels, and pack their own rows, or find them near.

    If a transposed product's rows are read in place, its tiles are free to have all rows instead,
    which keeps lines of the result whole.
    """
    panels = ceil_div(pb.n, nr)
    whole = pb.k * panels * nr * pb.itemsize
    many = ceil_div(pb.m, mr) >= _MANY_BLOCKS
    packs = packs_rows(pb, cpu, mr) if pb.swapped else not pb.row_k_inner
    return packs and many and whole <= cpu.l2_bytes // 2


def _idle(tiles: int, cpu: CpuTarget) -> float:
    """How much longer so many equal tiles take than work that can be shared out evenly."""
    return ceil_div(tiles, cpu.workers) * cpu.workers / tiles


def _delay(tiles: int, cpu: CpuTarget) -> float:
    """The same where cores differ in speed."""
    return _idle(tiles, cpu) + _DELAY / ceil_div(tiles, cpu.workers)


def _cycles(pb: Problem, cpu: CpuTarget, mr: int, nv: tuple[int, int], direct: bool) -> float:
    """Estimated cycles of a product; ``nv`` are the vectors of a panel and of the last one.

    The coefficients are measured: what is issued beside the arithmetic delays it, the more so when
    another thread shares the core.
    """
    lanes = cpu.lanes(pb.itemsize)
    vectors, blocks = ceil_div(pb.n, lanes), ceil_div(pb.m, mr)
    panel_bytes = pb.k * nv[0] * lanes * pb.itemsize
    line = _LINE_CYCLES if blocks > 1 and panel_bytes > _NEAR_SHARE * cpu.l1_bytes else 0.0
    per_vector = 0.35
    if direct and blocks > 1:
        # Lines come from many pages, and vectors may cross lines.
        crosses = pitch_bytes(pb) % (lanes * pb.itemsize) > 0
        per_vector = 0.9 if crosses and not _crosses_well(cpu) else 0.5

    def block(v: int) -> float:
        step = max(mr * v / _FMA_PORTS, (mr + v) / _LOAD_PORTS, line * v, _LATENCY)
        return pb.k * (step + 0.2 * mr + per_vector * v) + 3 * mr * v + 20

    full, last = nv
    cost = blocks * ((ceil_div(vectors, full) - 1) * block(full) + block(last))
    if pb.triangles != ALL:
        cost *= pb.triangles.share((pb.m, pb.n, pb.k), (mr, full * lanes))
    if not direct:
        cost += _PACK_CYCLES * pb.k * vectors
    if packs_rows(pb, cpu, mr):
        near = pb.k * pb.m * pb.itemsize <= _NEAR_ROWS_SHARE * cpu.l2_bytes
        cost += (_PACK_NEAR_ROW_CYCLES if near else _PACK_ROW_CYCLES) * pb.k * pb.m
    if pb.row_k_inner and not pb.row_plain and full < vectors:
        cost += pb.k * pb.m + _STAGE_CYCLES  # rows are evaluated by a stage of their own
    if pb.swapped:  # results are written across their rows, or turned in registers
        each = _TURNED_CYCLES
        if pb.m * pb.n * pb.k >= LARGE:
            each = _ACROSS_CYCLES if mr < SQUARE else _turning(pb, cpu, mr)
        cost += pb.m * pb.n * each
    return cost * (1 + _WORTH_A_TILE) if last != full else cost


def _crosses_well(cpu: CpuTarget) -> bool:
    """Whether vectors that cross lines of memory take hardly longer: on Intel's with AVX-512."""
    return cpu.vector_bytes == 64 and not cpu.mcpu.startswith(("znver", "x86-64"))


def _turning(pb: Problem, cpu: CpuTarget, mr: int) -> float:
    """Cycles of an element that is turned in registers.

    With AVX-512 squares take less, if rows are whole or half ones but for a twelfth and the caches
    keep lines of the result until they are whole.  Counted where turning spares both packing rows
    and transposing columns: where it spares neither, it was slower with this figure, by 3 %.
    """
    spares = pb.row_k_inner and not pb.col_k_inner
    near = pb.m * pb.n * pb.itemsize <= cpu.l2_bytes and cpu.vector_bytes == 64
    even = mr % (SQUARE // 2) <= mr // 12
    return _WIDE_TURNED_CYCLES if spares and near and even else _TURNED_CYCLES


def turns(pb: Problem, mr: int, lanes: int) -> bool:
    """Whether tiles of a transposed product are turned in registers.

    Elements written across rows are single ones, or LLVM would gather them one by one; of so many
    rows half a vector is filled, and one of a few elements.
    """
    return pb.swapped and mr >= max(lanes // 2, SHORTEST) and pb.m * pb.n * pb.k >= LARGE


def pitch_bytes(pb: Problem) -> int:
    """Bytes between the lines of columns that are read in place."""
    assert pb.col_pitch is not None
    return pb.col_pitch * pb.itemsize


def _lines_in_l2(pb: Problem, cpu: CpuTarget) -> float:
    """Of how many k the second-level cache can hold lines of columns where they lie in memory.

    Lines whose distance is a large power of two share few of its places.
    """
    return cpu.l2_bytes / math.gcd(pitch_bytes(pb), cpu.l2_bytes // 16)


def evict_each_other(pb: Problem, cpu: CpuTarget) -> bool:
    """Whether lines of a panel of columns, asked for in advance, have no places to wait in.

    Of columns stored along k they are few, and lie anywhere.
    """
    return not pb.col_k_inner and pb.k > _PLACES * _lines_in_l2(pb, cpu)


def _stays(pb: Problem, cpu: CpuTarget) -> bool:
    """True if the second-level cache can hold a panel of columns read in place."""
    return pb.k <= _lines_in_l2(pb, cpu)


def _k_block(pb: Problem, cpu: CpuTarget, mr: int, nr: int, direct: bool) -> int:
    """How many k are summed before the sums go to memory."""
    if nr >= pb.n:
        return pb.k  # nothing reads the same scalars again
    if direct and pb.m <= mr:
        # Every k is on another page where lines are that far apart, and the hardware foresees only
        # parts that are long.
        short = nr * pb.itemsize < _LONG_PART and pitch_bytes(pb) >= PAGE_BYTES // 2
        return min(pb.k, _PAGES) if short else pb.k
    if _stays_for_panels(pb, cpu):
        parts = max(1, round(pb.k / _strip_steps(pb, cpu, mr)))
    else:
        # Packed blocks stream like the panels, from a cache.
        fits = _PANEL_SHARE * cpu.l2_bytes / (nr * pb.itemsize)
        if direct:
            fits = min(fits, _PLACES * _lines_in_l2(pb, cpu))
        parts = math.ceil(pb.k / fits)
    return _even(pb.k, parts)


def _even(k: int, parts: int) -> int:
    """Steps of k in each of so many parts: the loop takes two at a time."""
    return min(k, ceil_div(ceil_div(k, parts), 2) * 2)


def _strip_steps(pb: Problem, cpu: CpuTarget, mr: int) -> float:
    """Of how many steps of k the scalars of a row block stay in the first-level cache."""
    return max(1.0, _STRIP_SHARE * cpu.l1_bytes / (mr * pb.itemsize))


def _stays_for_panels(pb: Problem, cpu: CpuTarget) -> bool:
    """Whether a row block is to stay in the first-level cache for the panels of a tile.

    Packed ones, which are read in order, need not, unless all rows are too many for any cache.
    """
    return pb.row_k_inner or pb.m * pb.k * pb.itemsize > _FAR_ROWS * cpu.l2_bytes


def _groups(pb: Problem, cpu: CpuTarget, t: Tiling, k_block: int) -> tuple[int, int]:
    """Row blocks and panels of a parallel tile.

    Large enough that what is loaded is used again, small enough that the panels stay in the
    second-level cache and that no thread waits long for the last tile of another.  With so few that
    a thread can keep them for all k, it packs them itself.
    """
    mr, nr = t.mr, t.nr
    blocks, panels = ceil_div(pb.m, mr), ceil_div(pb.n, nr)
    panel_bytes = min(pb.k, k_block) * nr * pb.itemsize
    stay = max(1, int(_PANEL_SHARE * cpu.l2_bytes) // panel_bytes)
    # Cost of reading a row block for another panel group.
    again = 0.25 if _stays_for_panels(pb, cpu) else 0.05
    # Columns in place are so many that the cache does not hold them for another group of rows.
    far = t.direct and blocks > 1 and k_block < pb.k and not _stays_for_panels(pb, cpu)
    if blocks == 1 and k_block < pb.k:
        again = _SHORT_PART * LINE_BYTES / (nr * pb.itemsize)
    best: tuple[float, int, int] | None = None
    work = pb.m * pb.n * pb.k / (_FMA_PORTS * cpu.lanes(pb.itemsize))
    # Where lines of the result do not begin with its rows, two threads write parts of one.
    ragged = pb.result_pitch * pb.itemsize % LINE_BYTES > 0
    if _has_all_panels(pb, cpu, mr, nr):
        choices = [panels]
    else:
        choices = list(range(1, min(panels, stay) + 1))
    for panel_group in choices:
        # Threads own equal numbers of neighbouring tiles: with a smaller last group, one finishes
        # early and goes on with the other's, whose lines are in the other's cache.
        uneven = 1 + _UNEVEN * (ceil_div(panels, panel_group) * panel_group / panels - 1)
        shared = 0.0
        if not pb.swapped and panel_group < panels and ragged:
            shared = _SHARED_CYCLES * pb.m / work
        if not t.direct and not _keeps(pb, cpu, t, panel_group):
            shared += _FOREIGN_CYCLES / (blocks * mr / _FMA_PORTS)
        most = min(blocks, _MOST_ROW_BLOCKS)
        if k_block < pb.k:
            most = max(1, min(most, _PARTIAL_BYTES // (panel_group * mr * nr * pb.itemsize)))
        for row_group in range(1, most + 1):
            tiles = pb.batch * panels / panel_group * blocks / row_group
            column = 0.05 / row_group
            if far:
                column = _FAR_COLUMNS * ceil_div(blocks, row_group) / blocks
            cost = (1 + again / panel_group + column) * (1 + 2 / tiles)
            within = ragged or mr * row_group * pb.itemsize % LINE_BYTES  # tiles end within lines
            ends = min(2, ceil_div(blocks, row_group) - 1) if pb.swapped else 0
            cut = _SHARED_CYCLES * pb.n / work * ends
            cost *= uneven + shared + (cut if within else 0.0)
            if best is None or cost < best[0]:
                best = (cost, row_group, panel_group)
    if best is None:
        raise AssertionError("a product has at least one tile")
    return best[1:]


def in_place(pb: Problem, cpu: CpuTarget, mr: int) -> bool:
    """Whether rows stored along m are read where they are.

    All of them may be few enough for the first-level cache, or are so short that the hardware sees
    one stream in them; of longer ones every k would be another page of memory.  For every panel a
    block reads its part of each k again: lines that must have places in that cache, of which those
    a large power of two apart share few, or come from the second-level cache, if panels are few.
    """
    if pb.row_pitch is None:
        return False
    line = pb.row_pitch * pb.itemsize
    near = pb.k * pb.m * pb.itemsize <= _STRIP_SHARE * cpu.l1_bytes
    stay = pb.k * max(LINE_BYTES, math.gcd(line, PAGE_BYTES)) <= _LINES_SHARE * cpu.l1_bytes
    twice = cpu.vector_bytes == 64 and cpu.l2_bytes >= _LARGE_L2
    few = pb.n <= _FEW_COLUMNS.get(cpu.vector_bytes, 0) * (1 + twice)
    again = few and pb.k * pb.m * pb.itemsize <= _NEAR_ROWS_SHARE * cpu.l2_bytes
    return mr == pb.m or near or (line <= _SHORT_LINE and (stay or again))
