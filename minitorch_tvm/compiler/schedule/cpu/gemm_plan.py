"""How a product on the matrix unit is cut into tiles, and what that is estimated to cost."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from ....core.record import record
from ...loops import LINE_BYTES, ceil_div
from ...target import CpuTarget
from .bfloat_parts import BLOCK_BYTES, EDGE, PRODUCTS, folded_tiles
from .gemm_problem import Problem

# Shares of the second-level cache: for all that a tile keeps there, and for an operand that a core
# packs once, with a panel of the other.
_CACHE_SHARE, _RESIDENT_SHARE = 0.7, 0.45
_SHORTEST_VISIT, _LONGEST_VISIT, _STEP = 4, 32, 1.4  # blocks of k, and between numbers of visits
# How much longer it takes where tiles are columns of the result: rows of 32 elements are finished,
# in lines that other cores read and wrote, since the products before and behind share out rows.
_NARROW = 1.15
# For a line of the result that two cores write parts of.
_SHARED_CYCLES = 150
_LEAST_ROWS = 4  # the fewest that save time
_DELAY = 0.15  # of a tile: what the last ones cost where cores differ in speed
# Measured cycles: of a block of 32 x 32 x 32, of 32 x 32 sums between visits and at the end, of one
# packed element, of an element that is transposed on the way in or out, or computed.
_BLOCK_CYCLES, _SUM_CYCLES, _FINISH_CYCLES = 500, 440, 800
_PACK_CYCLES, _TURN_CYCLES, _ACROSS_CYCLES, _COMPUTED_CYCLES = 1.1, 0.5, 0.6, 1.0


@dataclass(frozen=True, order=True)
class Cut:
    """Panels of rows and of columns in a tile, and the cycles of all cores, idle ones included.

    ``stays``: the operand ("rows" or "columns") that every core packs once, as a whole.
    """

    cycles: float
    rows: int
    columns: int
    stays: str = ""


@record
class Plan:
    """Sizes of parallel tiles, in panels of 32 rows and columns, and of visits, in blocks of k."""

    pb: Problem
    cpu: CpuTarget
    visit: int

    @classmethod
    def of(cls, pb: Problem, cpu: CpuTarget) -> Plan:
        """The plan with the visits that need the fewest cycles.

        Long visits are few, each of which fetches and stores the sums; short ones leave room for
        more columns in a tile, for which its rows are packed once.  Which blocks the unit cannot
        multiply is decided visit by visit, and what is computed must not depend on threads: this
        reckons with two.
        """
        blocks = ceil_div(pb.k, EDGE)
        few, many = (ceil_div(blocks, n) for n in (_LONGEST_VISIT, _SHORTEST_VISIT))
        visits, count = set(), float(few)
        while count < many + 1:
            visits.add(ceil_div(blocks, int(count)))
            count = max(count * _STEP, count + 1)
        two = replace(cpu, workers=2)
        plans = [cls(pb, two, visit) for visit in sorted(visits)]
        fitting = [p for p in plans if p.bytes(1, 1) <= p.limit] or plans[:1]
        return cls(pb, cpu, min(fitting, key=lambda p: p.tiles.cycles).visit)

    @property
    def limit(self) -> int:
        """Bytes of the second-level cache that a tile may use."""
        return int(self.cpu.l2_bytes * _CACHE_SHARE)

    @property
    def panels(self) -> tuple[int, int]:
        """Panels of rows and of columns."""
        return ceil_div(self.pb.m, EDGE), ceil_div(self.pb.n, EDGE)

    @property
    def blocks(self) -> int:
        """Blocks of k."""
        return ceil_div(self.pb.k, EDGE)

    @property
    def work(self) -> tuple[float, float]:
        """Panels of rows, and blocks of k, by what multiplying the last ones costs.

        The unit passes over rows that a panel lacks, and few k are folded.
        """
        rows, rest = divmod(self.pb.m, EDGE)
        height = rows + (max(rest, _LEAST_ROWS) / EDGE if rest else 0)
        folded = folded_tiles(self.pb.k)
        return height, self.blocks - 1 + folded / len(PRODUCTS) if folded else self.blocks

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
        height, depth = self.work
        block = depth * _BLOCK_CYCLES + (visits - 1) * _SUM_CYCLES + _FINISH_CYCLES
        busy = pb.batch * height * self.panels[1] * block + self.pack((across, down))
        busy += pb.batch * pb.m * pb.n * _ACROSS_CYCLES if pb.swapped else 0
        busy += self._shared(down if pb.swapped else across)
        tiles = pb.batch * across * down
        return busy * self._idle(tiles)

    def resident(self, side: int) -> Cut | None:
        """A core packs all rows (0) or columns (1) once, and tiles are panels of the others."""
        stays, moves = self.panels[side], self.panels[1 - side]
        nbytes = (stays + 1) * self.blocks * BLOCK_BYTES
        if self.pb.batch > 1 or moves == 1 or nbytes > _RESIDENT_SHARE * self.cpu.l2_bytes:
            return None
        if self.blocks == 1:
            return None  # handing the sums on is most of the work
        workers = self.cpu.workers
        times = (workers, 1) if side == 0 else (1, workers)
        height, depth = self.work
        busy = height * self.panels[1] * (depth * _BLOCK_CYCLES + _FINISH_CYCLES) + self.pack(times)
        busy += self.pb.m * self.pb.n * _ACROSS_CYCLES if self.pb.swapped else 0
        busy *= self._idle(moves)
        if (side == 0) != self.pb.swapped:
            busy = busy * _NARROW + self._shared(moves)
        return Cut(busy, stays, 1, "rows") if side == 0 else Cut(busy, 1, stays, "columns")

    def _shared(self, parts: int) -> float:
        """Cycles for lines of the result that different tiles write, if its rows are so many's."""
        height, width = (self.pb.n, self.pb.m) if self.pb.swapped else (self.pb.m, self.pb.n)
        if parts == 1 or width * self.pb.itemsize % LINE_BYTES == 0:
            return 0.0
        return self.pb.batch * height * parts * _SHARED_CYCLES

    def _idle(self, tiles: int) -> float:
        """Time of all cores over what they are busy for.

        Cores that differ in speed, or other programs, delay the last tiles.
        """
        rounds = ceil_div(tiles, self.cpu.workers)
        return rounds * self.cpu.workers / tiles + _DELAY / rounds

    @functools.cached_property
    def tiles(self) -> Cut:
        """The tiles that need the fewest cycles, if each packs what it needs."""
        found = []
        for r in _even(self.panels[0]):
            for c in _even(self.panels[1]):
                if (r, c) != (1, 1) and self.bytes(r, c) > self.limit:
                    break
                found.append(Cut(self.cycles(r, c), r, c))
        return min(found)

    @functools.cached_property
    def best(self) -> Cut:
        """What needs the fewest cycles."""
        resident = (cut for cut in map(self.resident, (0, 1)) if cut is not None)
        return min((self.tiles, *resident))


def _even(panels: int) -> list[int]:
    """Sizes of groups that divide so many panels evenly, but for the last."""
    return sorted({ceil_div(panels, groups) for groups in range(1, panels + 1)})
