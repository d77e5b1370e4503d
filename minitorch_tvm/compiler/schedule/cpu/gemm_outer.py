"""Matrix product by outer products: a tile of accumulators stays in registers while k runs.

One step of k multiplies ``mr`` broadcast scalars of the row operand with ``nv`` vectors of the
column operand.  Column panels are packed so that those vectors are contiguous; the row operand is
read in place.  Row tails start early and recompute rows of the block before (addresses stay
constants relative to one base, and no second body is compiled); only new rows are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....core.tvm_api import tvm
from ...loops import (
    Buffer,
    Builder,
    Expr,
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
    Problem,
    ceil_div,
    materialise_rows,
    pack_columns,
    pack_panel,
    registers,
    zeros,
)

# Issue limits of current wide cores, per cycle; latency of a fused multiply-add in cycles.
_FMA_PORTS, _LOAD_PORTS, _LATENCY = 2, 2, 4
# Largest panel that a tile packs into its own stack rather than into the arena.
_STACK_BYTES = 128 << 10


@dataclass(frozen=True)
class Tiling:
    """Register tile and loop blocking of one product."""

    mr: int
    nv: int  # vectors in a panel
    last_nv: int  # vectors in the last panel
    lanes: int
    direct: bool  # columns are read in place, not packed
    k_block: int
    chunks: int  # groups of row blocks that one parallel tile runs through
    chunk_blocks: int
    group: int  # panels that one parallel tile runs through

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

                def block(v: int, mr: int = mr) -> float:
                    step = max(mr * v / _FMA_PORTS, (mr + v) / _LOAD_PORTS, _LATENCY)
                    # Loads share ports with everything else, and vectors may come from L2.
                    step += 0.06 * (mr + v) + 0.08 * v
                    return pb.k * step + 3 * mr * v + 20

                cost = blocks * ((panels - 1) * block(nv) + block(last))
                if not direct:
                    cost += pb.k * vectors * (6 if pb.col_k_inner else 3)
                if best is None or cost < best[0]:
                    best = (cost, mr, nv, last, direct)
    if best is None:
        raise AssertionError(f"no tile fits {registers} registers")
    _, mr, nv, last, direct = best

    blocks, panels = ceil_div(pb.m, mr), ceil_div(vectors, nv)
    k_block = pb.k
    if pb.k * nv * lanes * pb.itemsize > cpu.l2_bytes // 4:
        parts = ceil_div(pb.k * nv * lanes * pb.itemsize, cpu.l2_bytes // 8)
        k_block = ceil_div(ceil_div(pb.k, parts), lanes) * lanes
    rows = max(mr, cpu.l2_bytes // 2 // (max(1, k_block) * pb.itemsize))
    chunks = max(ceil_div(pb.m, rows), ceil_div(MIN_TILES, pb.batch * panels))
    chunk_blocks = ceil_div(blocks, min(chunks, blocks))
    group = 1
    if k_block < pb.k:
        # Partial sums of a tile live on the stack between blocks of k.
        tile_bytes = mr * nv * lanes * pb.itemsize
        chunk_blocks = max(1, min(chunk_blocks, _STACK_BYTES // tile_bytes))
        group = max(1, min(panels, 4, _STACK_BYTES // (tile_bytes * chunk_blocks)))
    return Tiling(
        mr, nv, last, lanes, direct, k_block, ceil_div(blocks, chunk_blocks), chunk_blocks, group
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
        panels: Buffer | None,
        strips: Buffer | None,
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
        mine: Buffer | None = None
        if self.packed is None and not t.direct:
            mine = local_buffer((pb.k, t.nr), pb.dtype, "panel")
        blocks: Expr = t.chunk_blocks
        if t.chunks > 1 and self.blocks % t.chunk_blocks:
            blocks = minimum(t.chunk_blocks, self.blocks - mb0)
        group: Expr = t.group
        if self.panels % t.group:
            group = minimum(t.group, self.panels - p0)
        partial = local_buffer(
            (t.chunk_blocks if self.k_parts > 1 else 1, t.group, t.mr, t.nr), pb.dtype, "out"
        )

        def panel(kp: Expr, pi: Expr) -> Stmt:
            p = p0 + pi

            def kind(info: _Panel) -> Stmt:
                def block(b: Expr) -> Stmt:
                    slot = (b if self.k_parts > 1 else const(0), pi)
                    return self._block(bt, mb0 + b, p, kp, info, (partial, *slot), mine)

                loop = serial(blocks, block, "b")
                if mine is None:
                    return loop

                def put(value: Expr, k: Expr, j: Expr) -> Stmt:
                    return store(mine, value, k, j)

                shape = (info.nv * t.lanes, info.width)
                pack = pack_panel(pb, self.cpu, put, (bt, info.j0), shape, (const(0), pb.k))
                return seq(pack, loop)

            return self._by_kind(p, kind)

        def k_part(kp: Expr) -> Stmt:
            return serial(group, lambda pi: panel(kp, pi), "p")

        body = serial(self.k_parts, k_part, "kp")
        return seq([alloc(b) for b in (mine, partial) if b is not None], body)

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
        out: tuple[Buffer, Expr, Expr],
        mine: Buffer | None,
    ) -> Stmt:
        t, pb = self.t, self.pb
        lanes = t.lanes
        tile = [(r, v * lanes) for r in range(t.mr) for v in range(panel.nv)]
        acc = {at: registers(lanes, pb.dtype, "acc") for at in tile}
        line = [registers(lanes, pb.dtype, "line") for _ in range(panel.nv if t.direct else 0)]
        every = ramp(0, lanes)
        partial, *slot = out
        i0, skip = mb * t.mr, const(0)
        if pb.m % t.mr:
            i0 = minimum(mb * t.mr, pb.m - t.mr)
            skip = mb * t.mr - i0

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
                if self.strips is not None:
                    scalar = splat(load(self.strips, bt, mb, k, r), lanes)
                else:
                    scalar = splat(pb.row(bt, i0 + r, k), lanes)
                for v in range(panel.nv):
                    target = acc[r, v * lanes]
                    updates.append(store(target, load(target, every) + scalar * vector(v), every))
            return seq([read(v) for v in range(len(line))], updates)

        clear: Stmt = seq([store(b, zeros(pb.dtype, lanes), every) for b in acc.values()])
        count: Expr = t.k_block
        if self.k_parts > 1:
            resume = [
                store(acc[r, c], load(partial, *slot, r, ramp(c, lanes)), every) for r, c in tile
            ]
            clear = when(tvm().tirx.EQ(kp, const(0)), clear, seq(resume))
            if pb.k % t.k_block:
                count = minimum(t.k_block, pb.k - kp * t.k_block)
        keep = [store(partial, load(acc[r, c], every), *slot, r, ramp(c, lanes)) for r, c in tile]
        rows = t.mr - skip if pb.m % t.mr else t.mr
        write = pb.write_tile(
            bt,
            (i0 + skip, panel.j0 + panel.skip),
            (rows, panel.width),
            lambda i, j: load(partial, *slot, skip + i, panel.skip + j),
        )
        if self.k_parts > 1:
            write = when(tvm().tirx.EQ(kp, const(self.k_parts - 1)), write)
        return seq(
            [alloc(b) for b in (*acc.values(), *line)], clear, serial(count, step, "k"), keep, write
        )


def _pack_rows(pb: Problem, builder: Builder, mr: int) -> tuple[Stage, Buffer]:
    """A stage that packs a row operand stored [k, m] into strips ``[batch, block, k, mr]``."""
    blocks = ceil_div(pb.m, mr)
    strips = builder.scratch_buffer((pb.batch, blocks, pb.k, mr), pb.dtype, "strips")
    step = min(pb.k, 32)
    parts = ceil_div(pb.k, step)

    def body(tile: Var) -> Stmt:
        bt, k0 = tile // parts, tile % parts * step
        count: Expr = step if pb.k % step == 0 else minimum(step, pb.k - k0)

        def strip(mb: Expr) -> Stmt:
            i0 = minimum(mb * mr, pb.m - mr) if pb.m % mr else mb * mr
            return serial(
                count,
                lambda k: serial(
                    mr,
                    lambda r: store(strips, pb.row(bt, i0 + r, k0 + k), bt, mb, k0 + k, r),
                    "r",
                ),
                "k",
            )

        return serial(blocks, strip, "mb")

    return parallel_stage("gemm_strips", pb.batch * parts, body), strips


def outer_stages(pb: Problem, builder: Builder, cpu: CpuTarget) -> list[Stage]:
    """Stages of the product."""
    stages: list[Stage] = []
    if pb.row_k_inner and not pb.row_plain:
        stage, pb = materialise_rows(pb, builder)
        stages.append(stage)
    tiling = choose(pb, cpu)
    strips: Buffer | None = None
    # Scalars of one k step are neighbours in [k, m], but the next k is a row of memory away: every
    # step a new page.  A small operand stays in the caches anyway, and a lone panel reads it once.
    scattered = pb.k * pb.m * pb.itemsize > 2 * cpu.l1_bytes and pb.n > tiling.nr
    if not pb.row_k_inner and (scattered or not pb.row_plain):
        stage, strips = _pack_rows(pb, builder, tiling.mr)
        stages.append(stage)
    panels: Buffer | None = None
    panel_bytes = pb.k * tiling.nr * pb.itemsize
    one_user = tiling.chunks == 1 and tiling.group == 1 and panel_bytes <= _STACK_BYTES
    if not tiling.direct and not one_user:
        stage, panels = pack_columns(pb, cpu, builder, tiling.nr, tiling.last_nv * tiling.lanes)
        stages.append(stage)
    stages.append(_Compute(pb, cpu, tiling, panels, strips).stage())
    return stages
