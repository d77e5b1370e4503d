"""What a product by multiply-adds asks memory for, while it multiplies, beside its next terms."""

from __future__ import annotations

from functools import cached_property

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    LINE_BYTES,
    Expr,
    Stmt,
    ask,
    ceil_div,
    const,
    minimum,
    prefetch,
    seq,
    serial,
    when,
)
from ...target import CpuTarget
from .gemm_problem import Panels, Problem
from .gemm_tiling import Tiling, evict_each_other

# What finishing reads is asked for if it is more than this share of the second-level cache.
_FAR_SHARE = 0.5


@record
class Requests:
    """Prefetches for a product, which is told some of its sizes when it runs.

    Each is made once for so many steps of k as a line of memory has elements: one *part*.
    """

    pb: Problem
    t: Tiling
    cpu: CpuTarget
    columns: Panels | None
    told_blocks: Expr
    panel_group: Expr
    k_block: Expr

    @cached_property
    def blocks(self) -> int:
        """Row blocks of the product."""
        return ceil_div(self.pb.m, self.t.mr)

    @cached_property
    def line(self) -> int:
        """Elements of a line of memory."""
        return LINE_BYTES // self.pb.itemsize

    def for_panels(self, bt: Expr, block: Expr, j0: Expr, kp: Expr, part: Expr) -> list[Stmt]:
        """Of what the thread packs next, while a panel that starts at column ``j0`` is used.

        ``block`` of the rows, ``kp`` of k.  Where threads pack their own panels, memory would have
        nothing to do meanwhile.
        """
        t, pb = self.t, self.pb
        own = self.columns is not None and self.columns.own and pb.col_plain
        if not own or ceil_div(pb.n, t.nr) <= t.panel_group:
            return []
        if t.by_part:
            return self._for_next_block(bt, block, j0, kp, part)
        k0 = kp * self.k_block if t.k_block < pb.k else const(0)
        return self._for_next_panels(bt, block, j0, k0 + part * self.line)

    def _for_next_block(self, bt: Expr, block: Expr, j0: Expr, kp: Expr, part: Expr) -> list[Stmt]:
        """Of the same panel's next block of k, after the last the next panels' first.

        Every block of rows asks for as many k; lines may begin anywhere.
        """
        t, pb = self.t, self.pb
        steps = ceil_div(self.line, self.blocks)
        later = (part * self.blocks + block) * steps
        last = tvm().tirx.EQ(kp, const(ceil_div(pb.k, t.k_block) - 1))
        choose = tvm().tirx.Select
        first = choose(last, later, later + (kp + 1) * self.k_block)
        column = choose(last, j0 + self.panel_group * t.nr, j0)

        def of(u: Expr) -> Stmt:
            k = minimum(first + u, pb.k - 1)
            columns = range(0, t.nr, self.line)
            return seq([prefetch(pb.col(bt, k, minimum(column + c, pb.n - 1))) for c in columns])

        # Of more blocks of rows than a line has elements, the first ask for all.
        return [when(later < self.k_block, serial(steps, of, "u"))]

    def _for_next_panels(self, bt: Expr, block: Expr, j0: Expr, k: Expr) -> list[Stmt]:
        """Of the panels of the next tile, made while the last row blocks are computed.

        Of columns stored along n every k is some lines, of which a block asks for one; of those
        stored along k a block asks for a line of each of half as many as a line has elements.
        """
        t, pb, line = self.t, self.pb, self.line
        after = j0 + self.panel_group * t.nr
        # What finishing reads is asked for, too.  Where that is more, memory has enough to do.
        if pb.k <= self.blocks * len(self._reads_to_finish):
            return []
        if evict_each_other(pb, self.cpu):
            return []  # before they are packed, see :mod:`.gemm_ahead`
        each = line // 2 if pb.col_k_inner else line  # columns per block
        shares = ceil_div(t.nr, each)
        share = block - (self.told_blocks - shares)
        first = after + share * each

        def column(c: Expr) -> Stmt:
            return prefetch(pb.col(bt, k, minimum(first + c, pb.n - 1)))

        def row(u: Expr) -> Stmt:
            return prefetch(pb.col(bt, k + u, minimum(first, pb.n - 1)))

        asks = serial(each, column, "c") if pb.col_k_inner else serial(line, row, "u")
        return [when(share >= 0, asks)]

    @cached_property
    def _reads_to_finish(self) -> list[Stmt]:
        """Prefetches, one for each element that finishing a result reads, if they are far."""
        return self._asks_to_finish(const(0), (const(0), const(0)))

    def _asks_to_finish(self, bt: Expr, element: tuple[Expr, Expr]) -> list[Stmt]:
        pb = self.pb
        results = pb.batch * pb.m * pb.n
        # Not for a bias, of which there is little.
        asks = ask(lambda: pb.write(bt, *element, const(0.0, pb.dtype)), results, beyond=True)
        far = len(asks) * results * pb.itemsize >= _FAR_SHARE * self.cpu.l2_bytes
        return asks if far else []

    def to_finish(self, bt: Expr, origin: tuple[Expr, Expr], nv: int, part: Expr) -> list[Stmt]:
        """Prefetches of what finishing a tile's sums will read, some lines per line of k.

        Such as what an optimizer keeps for every weight, last used a step ago: a core would wait
        for each line, at the end of every tile.
        """
        t, pb, line = self.t, self.pb, self.line
        height, width = (nv * t.lanes, t.mr) if pb.swapped else (t.mr, nv * t.lanes)
        across = ceil_div(width, line)
        share = ceil_div(height * across, max(1, t.k_block // line))

        def ask_for(number: Expr) -> list[Stmt]:
            row, first = number // across, number % across * line
            i, j = (first, row) if pb.swapped else (row, first)
            return self._asks_to_finish(bt, (origin[0] + i, origin[1] + j))

        if not self._reads_to_finish:
            return []

        def one(n: Expr) -> Stmt:
            return seq(ask_for(minimum(part * share + n, height * across - 1)))

        return [serial(share, one, "n")]
