"""The next panel of columns, packed a few k at a time while one is multiplied.

A thread that packs the panels of its tiles would wait for memory meanwhile.  Usually it asks for
the lines before, but where lines of consecutive k are a large power of two apart, the second-level
cache has places for few of them.  It then has room for another panel instead: behind each block of
rows, the thread copies the lines that it has asked for meanwhile.
"""

from __future__ import annotations

from ....core.record import record
from ...loops import (
    LINE_BYTES,
    Expr,
    Stmt,
    alloc,
    ceil_div,
    const,
    load,
    local_buffer,
    minimum,
    number,
    prefetch,
    seq,
    serial,
    store,
    when,
)
from ...target import CpuTarget
from .gemm_problem import Panels, Problem
from .gemm_tiling import Tiling, evict_each_other, is_alone

# Share of the second-level cache for all rows and two panels.
_TWO_SHARE = 0.8


def packs_ahead(pb: Problem, cpu: CpuTarget, t: Tiling) -> bool:
    """Whether tiles of all rows and one panel pack the next one."""
    if not (is_alone(pb, t) and pb.batch == 1 and pb.col_plain and evict_each_other(pb, cpu)):
        return False
    near = pb.k * (2 * t.nr + pb.m) * pb.itemsize <= _TWO_SHARE * cpu.l2_bytes
    return near and ceil_div(pb.m, t.mr) > 1 and ceil_div(pb.n, t.nr) > cpu.workers


@record
class Ahead:
    """Of a product whose threads have room for two panels.

    A tile visits each block of rows once for every block of k; a *part* of such a visit is as many
    steps of k as a line of rows stored along k has elements.
    """

    pb: Problem
    columns: Panels
    visits: int
    parts: int

    @property
    def _share(self) -> int:
        """Of how many k a visit packs the lines."""
        return ceil_div(self.pb.k, self.visits)

    def _more(self, p: Expr, then: Stmt) -> Stmt:
        return when(p + 1 < self.columns.count, then)

    def asks(self, visit: Expr, p: Expr, part: Expr) -> Stmt:
        """Ask for what is packed behind a visit, in one of its parts."""
        pb, line = self.pb, LINE_BYTES // self.pb.itemsize
        width = self.columns.memory.shape[3]
        every = ceil_div(self._share, self.parts)
        share = number(self._share, "share")

        def of(u: Expr) -> Stmt:
            k = minimum(visit * share + part * every + u, pb.k - 1)
            columns = (minimum((p + 1) * width + c, pb.n - 1) for c in range(0, width, line))
            return seq([prefetch(pb.col(const(0), k, j)) for j in columns])

        some = serial(every, of, "u")
        return self._more(p, when(part * every < share, some))

    def pack(self, visit: Expr, p: Expr) -> Stmt:
        """Pack a visit's share of the panel behind ``p``."""
        share = number(self._share, "share")
        first = visit * share
        count = minimum(share, self.pb.k - minimum(first, self.pb.k))
        steps = self.columns.copy(const(0), (p + 1, const(1)), (first, count))
        return self._more(p, steps)


class Held:
    """Which panels are in the memory that a thread has for them, from one tile to the next.

    Of two that it has room for, that with an even number is the first.
    """

    def __init__(self, columns: Panels, ahead: bool) -> None:
        self._columns, self._ahead = columns, ahead
        self._numbers = local_buffer((columns.memory.shape[1] if ahead else 1,), "int32", "held")

    def start(self) -> list[Stmt]:
        """What a thread does before its first tile."""
        (places,) = self._numbers.shape
        none = [store(self._numbers, const(-1), i) for i in range(places)]
        return [alloc(self._numbers), *none]

    def fill(self, bt: Expr, group: Expr, panels: tuple[Expr, Expr]) -> list[Stmt]:
        """Pack the panels of a group, if they are not there; the next is when its tile is done."""
        held, (places,) = self._numbers, self._numbers.shape
        here = panels[0] % places
        new = seq(self._columns.fill(bt, panels), store(held, group, here))
        known = [when(load(held, here) != group, new)]
        if self._ahead:
            known.append(store(held, group + 1, (panels[0] + 1) % places))
        return known
