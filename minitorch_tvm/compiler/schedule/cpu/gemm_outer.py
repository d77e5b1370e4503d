"""Matrix product by outer products: a tile of accumulators stays in registers while k runs.

One step of k multiplies ``mr`` broadcast scalars of the row operand with ``nv`` vectors of the
column operand.  Column panels are packed so that those vectors are contiguous; the row operand is
read in place.  Row tails start early and recompute rows of the block before (addresses stay
constants relative to one base, and no second body is compiled); only new rows are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ....core.tvm_api import tvm
from ...loops import (
    Builder,
    Expr,
    Memory,
    Stage,
    Stmt,
    Var,
    alloc,
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
from .gemm_problem import (
    MIN_TILES,
    STACK_BUFFER_BYTES,
    Problem,
    ceil_div,
    materialise_rows,
    pack_columns,
    pack_panel,
    pack_rows,
    strip_writer,
    zeros,
)

# Issue limits of current wide cores, per cycle; latency of a fused multiply-add in cycles.
_FMA_PORTS, _LOAD_PORTS, _LATENCY = 2, 2, 4
# Bound on the partial sums that a tile keeps between blocks of k.
_PARTIAL_BYTES = 128 << 10
# Up to this many tiles each pack the same panel for themselves: reading it several times costs
# less than fetching what another core has just written.
_OWN_PANEL_CHUNKS = 4


@dataclass(frozen=True)
class Tiling:
    """Register tile and loop blocking of one product."""

    mr: int
    nv: int  # vectors in a panel
    last_nv: int  # vectors in the last panel
    lanes: int
    direct: bool  # columns are read in place, not packed
    k_block: int = 0
    chunks: int = 1  # parallel tiles along rows
    chunk_blocks: int = 1  # row blocks of one parallel tile
    group: int = 1  # panels of one parallel tile
    own_panels: bool = False  # a tile packs its panels itself
    pack_rows: bool = False
    own_strips: bool = False  # a tile packs its row blocks itself

    @property
    def nr(self) -> int:
        """Columns of a panel."""
        return self.nv * self.lanes


def _aliasing(pb: Problem) -> bool:
    """Whether the rows of a tile fall on one set of a virtually indexed first-level cache."""
    return pb.row_k_inner and pb.k * pb.itemsize % 4096 == 0


def choose(pb: Problem, cpu: CpuTarget) -> Tiling:
    """The tiling with the smallest estimated number of cycles."""
    lanes = cpu.lanes(pb.itemsize)
    registers = cpu.vector_registers
    most_rows = pb.m
    if _aliasing(pb):
        most_rows = min(most_rows, max(4, cpu.l1_bytes // 4096 - 2))
    vectors = ceil_div(pb.n, lanes)

    best: tuple[float, int, int, int, bool] | None = None
    for direct in (False, True):
        for nv in range(1, 9):
            top = min(most_rows, (registers - nv - 1) // nv)
            if top < 1 or nv > vectors:
                continue
            if direct and (pb.col_k_inner or not pb.col_plain or pb.m > top or pb.n < nv * lanes):
                continue
            panels = ceil_div(vectors, nv)
            last = nv if direct else vectors - (panels - 1) * nv
            for mr in range(ceil_div(top, 2), top + 1):
                blocks = ceil_div(pb.m, mr)

                def block(v: int, mr: int = mr, nv: int = nv) -> float:
                    step = max(mr * v / _FMA_PORTS, (mr + v) / _LOAD_PORTS, _LATENCY)
                    # Loads compete with everything else, more so when a panel streams from L2.
                    far = pb.k * nv * lanes * pb.itemsize > cpu.l1_bytes // 2
                    step += 0.06 * (mr + v) + (0.15 if far else 0.08) * v
                    return pb.k * step + 3 * mr * v + 20

                cost = blocks * ((panels - 1) * block(nv) + block(last))
                if not direct:
                    cost += pb.k * vectors * (6 if pb.col_k_inner else 3)
                if best is None or cost < best[0]:
                    best = (cost, mr, nv, last, direct)
    if best is None:
        raise AssertionError(f"no tile fits {registers} registers")
    _, mr, nv, last, direct = best

    return _block(pb, cpu, Tiling(mr, nv, last, lanes, direct))


def _block(pb: Problem, cpu: CpuTarget, tile: Tiling) -> Tiling:
    """Choose the loops around a register tile so that what is read again stays in the caches."""
    blocks, panels = ceil_div(pb.m, tile.mr), ceil_div(pb.n, tile.nr)
    panel_bytes = pb.k * tile.nr * pb.itemsize
    k_block = pb.k
    if panel_bytes > cpu.l2_bytes // 4:
        parts = ceil_div(panel_bytes, cpu.l2_bytes // 8)
        k_block = ceil_div(ceil_div(pb.k, parts), tile.lanes) * tile.lanes
    whole_k = k_block == pb.k
    row_bytes = k_block * pb.itemsize
    # Scalars of one k step are neighbours in [k, m], but the next k is a row of memory away: every
    # step a new page.  A small operand stays in the caches anyway, and a lone panel reads it once.
    pack_rows = not pb.row_k_inner and (
        not pb.row_plain or (pb.k * pb.m * pb.itemsize > cpu.l2_bytes // 4 and panels > 1)
    )
    # A tile that packs its own rows must run through all panels, so these should stay in L2.
    small_columns = pb.k * pb.n * pb.itemsize <= cpu.l2_bytes // 2
    own_strips = pack_rows and small_columns and row_bytes * tile.mr <= cpu.l2_bytes // 4
    share = cpu.l2_bytes // 4 if own_strips else cpu.l2_bytes
    rows = max(tile.mr, share // row_bytes)
    columns = 1 if own_strips else panels
    chunks = max(ceil_div(pb.m, rows), ceil_div(MIN_TILES, pb.batch * columns))
    chunk_blocks = ceil_div(blocks, min(chunks, blocks))
    group = panels if own_strips else 1
    if not whole_k:
        # Partial sums of a tile are kept between blocks of k.
        tile_bytes = tile.mr * tile.nr * pb.itemsize
        chunk_blocks = max(1, min(chunk_blocks, _PARTIAL_BYTES // tile_bytes))
        group = max(1, min(panels, 4, _PARTIAL_BYTES // (tile_bytes * chunk_blocks)))
    chunks = ceil_div(blocks, chunk_blocks)
    # Packing a panel again for every chunk reads it again, but a shared copy is written and read.
    own_panels = not tile.direct and whole_k and chunks <= _OWN_PANEL_CHUNKS
    return replace(
        tile,
        k_block=k_block,
        chunks=chunks,
        chunk_blocks=chunk_blocks,
        group=group,
        own_panels=own_panels,
        pack_rows=pack_rows,
        own_strips=own_strips,
    )


@dataclass(frozen=True)
class _Panel:
    """One kind of panel: its vectors, its first column, and the columns it has to write."""

    nv: int
    j0: Expr
    skip: int
    width: int


class _Compute:
    """Builds the compute stage of one product."""

    def __init__(
        self,
        pb: Problem,
        cpu: CpuTarget,
        tiling: Tiling,
        panels: Memory | None,
        strips: Memory | None,
    ) -> None:
        self.pb, self.cpu, self.t, self.packed, self.strips = pb, cpu, tiling, panels, strips
        self.panels = ceil_div(pb.n, tiling.nr)
        self.blocks = ceil_div(pb.m, tiling.mr)
        self.k_parts = ceil_div(pb.k, tiling.k_block)

    def stage(self) -> Stage:
        t = self.t
        groups = ceil_div(self.panels, t.group)

        def body(tile: Var) -> Stmt:
            bt = tile // (t.chunks * groups) if self.pb.batch > 1 else const(0)
            chunk = tile // groups % t.chunks if t.chunks > 1 else const(0)
            group = tile % groups if groups > 1 else const(0)
            return self._tile(bt, chunk * t.chunk_blocks, group * t.group)

        return parallel_stage("gemm", self.pb.batch * t.chunks * groups, body)

    def _tile(self, bt: Expr, mb0: Expr, p0: Expr) -> Stmt:
        t, pb = self.t, self.pb
        mine: Memory | None = None
        if t.own_panels:
            mine = local_buffer((pb.k, t.nr), pb.dtype, "panel")
        blocks: Expr = t.chunk_blocks
        if t.chunks > 1 and self.blocks % t.chunk_blocks:
            blocks = minimum(t.chunk_blocks, self.blocks - mb0)
        group: Expr = t.group
        if self.panels % t.group:
            group = minimum(t.group, self.panels - p0)
        strips = self.strips
        if t.own_strips:
            strips = local_buffer((1, t.chunk_blocks, pb.k, t.mr), pb.dtype, "strips")
        partial: Memory | None = None
        if self.k_parts > 1:
            partial = local_buffer((t.chunk_blocks, t.group, t.mr, t.nr), pb.dtype, "partial")

        def panel(kp: Expr, pi: Expr) -> Stmt:
            p = p0 + pi

            def kind(info: _Panel) -> Stmt:
                def block(b: Expr) -> Stmt:
                    return self._block(bt, mb0 + b, p, kp, info, (partial, b, pi), mine, strips)

                return serial(blocks, block, "b")

            compute = self._by_kind(p, kind)
            if mine is None:
                return compute

            def put(value: Expr, k: Expr, j: Expr) -> Stmt:
                return store(mine, value, k, j)

            widths = (t.nr, t.last_nv * t.lanes)
            return seq(pack_panel(pb, self.cpu, put, (bt, p), widths, (const(0), pb.k)), compute)

        def k_part(kp: Expr) -> Stmt:
            return serial(group, lambda pi: panel(kp, pi), "p")

        body = serial(self.k_parts, k_part, "kp")
        if t.own_strips:
            put = strip_writer(pb, t.mr, strips)
            # k outermost: memory is read in order.
            pack_strips = serial(
                pb.k,
                lambda k: serial(blocks, lambda b: put(bt, mb0 + b, (const(0), b), k), "b"),
                "k",
            )
            body = seq(pack_strips, body)
        buffers = (mine, partial, strips if t.own_strips else None)
        return seq([alloc(b) for b in buffers if b is not None], body)

    def _by_kind(self, p: Expr, make: Callable[[_Panel], Stmt]) -> Stmt:
        t, n = self.t, self.pb.n
        full = _Panel(t.nv, p * t.nr, 0, t.nr)
        width = n - (self.panels - 1) * t.nr
        if width == t.nr and t.last_nv == t.nv:
            return make(full)
        # Columns read in place cannot run past the end: the last panel starts early instead.
        skip = t.nr - width if t.direct else 0
        last = _Panel(t.last_nv, const((self.panels - 1) * t.nr - skip), skip, width)
        if self.panels == 1:
            return make(last)
        return when(tvm().tirx.EQ(p, const(self.panels - 1)), make(last), make(full))

    def _block(
        self,
        bt: Expr,
        mb: Expr,
        p: Expr,
        kp: Expr,
        panel: _Panel,
        sums: tuple[Memory | None, Expr, Expr],
        mine: Memory | None,
        strips: Memory | None,
    ) -> Stmt:
        t, pb = self.t, self.pb
        lanes = t.lanes
        tile = [(r, v * lanes) for r in range(t.mr) for v in range(panel.nv)]
        acc = {at: local_buffer((lanes,), pb.dtype, "acc") for at in tile}
        line = [
            local_buffer((lanes,), pb.dtype, "line") for _ in range(panel.nv if t.direct else 0)
        ]
        every = ramp(0, lanes)
        partial, *slot = sums
        i0: Expr = minimum(mb * t.mr, pb.m - t.mr) if pb.m % t.mr else mb * t.mr

        def step(kk: Expr) -> Stmt:
            k = kp * t.k_block + kk if self.k_parts > 1 else kk

            def vector(v: int) -> Expr:
                if mine is not None:
                    return load(mine, k, ramp(v * lanes, lanes))
                if self.packed is not None:
                    return load(self.packed, bt, p, k, ramp(v * lanes, lanes))
                return load(line[v], every)

            def read(v: int) -> Stmt:
                j = panel.j0 + v * lanes
                return vectorized(lanes, lambda c: store(line[v], pb.col(bt, k, j + c), c))

            updates = []
            for r in range(t.mr):
                if strips is not None:
                    # A tile's own strips are numbered from its first block.
                    where = (const(0), slot[0]) if t.own_strips else (bt, mb)
                    scalar = splat(load(strips, *where, k, r), lanes)
                else:
                    scalar = splat(pb.row(bt, i0 + r, k), lanes)
                for v in range(panel.nv):
                    target = acc[r, v * lanes]
                    updates.append(store(target, load(target, every) + scalar * vector(v), every))
            return seq([read(v) for v in range(len(line))], updates)

        clear: Stmt = seq([store(b, zeros(pb.dtype, lanes), every) for b in acc.values()])
        count: Expr = t.k_block
        if partial is not None:
            resume = [
                store(acc[r, c], load(partial, *slot, r, ramp(c, lanes)), every) for r, c in tile
            ]
            clear = when(tvm().tirx.EQ(kp, const(0)), clear, seq(resume))
            if pb.k % t.k_block:
                count = minimum(t.k_block, pb.k - kp * t.k_block)
        finish = self._finish(bt, mb * t.mr, 0, panel, acc)
        if pb.m % t.mr:
            # Constant bounds on both sides let LLVM store straight from the accumulators.
            known = self.blocks * t.mr - pb.m
            tail = self._finish(bt, const(pb.m - t.mr), known, panel, acc)
            last = tvm().tirx.EQ(mb, const(self.blocks - 1))
            finish = when(last, tail, finish) if self.blocks > 1 else tail
        if partial is not None:
            keep = [
                store(partial, load(acc[r, c], every), *slot, r, ramp(c, lanes)) for r, c in tile
            ]
            finish = when(tvm().tirx.EQ(kp, const(self.k_parts - 1)), finish, seq(keep))
        return seq(
            [alloc(b) for b in (*acc.values(), *line)], clear, serial(count, step, "k"), finish
        )

    def _finish(
        self,
        bt: Expr,
        i0: Expr,
        skip: int,
        panel: _Panel,
        acc: dict[tuple[int, int], Memory],
    ) -> Stmt:
        """Hand the sums from row ``skip`` on to the epilogue, a few rows at a time.

        They pass through a small stack buffer: the epilogue is arbitrary code in a loop, and
        indexing the accumulators with a loop variable would force them out of registers for the
        whole of the k loop.
        """
        t, pb = self.t, self.pb
        lanes = t.lanes
        at_once = max(1, STACK_BUFFER_BYTES // (panel.nv * lanes * pb.itemsize))
        statements: list[Stmt] = []
        for top in range(skip, t.mr, at_once):
            rows = min(at_once, t.mr - top)
            out = local_buffer((rows, panel.nv * lanes), pb.dtype, "out")
            statements.append(alloc(out))
            for (r, c), sums in acc.items():
                if top <= r < top + rows:
                    value = load(sums, ramp(0, lanes))
                    statements.append(store(out, value, r - top, ramp(c, lanes)))

            def value_at(i: Expr, j: Expr, out: Memory = out) -> Expr:
                return load(out, i, panel.skip + j)

            origin = (i0 + top, panel.j0 + panel.skip)
            statements.append(pb.write_tile(bt, origin, (rows, panel.width), value_at))
        return seq(statements)


def outer_stages(pb: Problem, builder: Builder, cpu: CpuTarget) -> list[Stage]:
    """Stages of the product."""
    stages: list[Stage] = []
    if pb.row_k_inner and not pb.row_plain:
        stage, pb = materialise_rows(pb, builder)
        stages.append(stage)
    tiling = choose(pb, cpu)
    strips: Memory | None = None
    if tiling.pack_rows and not tiling.own_strips:
        stage, strips = pack_rows(pb, builder, tiling.mr)
        stages.append(stage)
    panels: Memory | None = None
    if not tiling.direct and not tiling.own_panels:
        stage, panels = pack_columns(pb, cpu, builder, tiling.nr, tiling.last_nv * tiling.lanes)
        stages.append(stage)
    stages.append(_Compute(pb, cpu, tiling, panels, strips).stage())
    return stages
