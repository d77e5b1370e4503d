"""How a recurrent layer is divided among threads and into register tiles, and its products."""

from __future__ import annotations

from ....core.dtype import DType
from ....core.record import record
from ...loops import (
    LINE_BYTES,
    Expr,
    Helper,
    Parts,
    Stmt,
    ceil_div,
    load,
    pointer_buffer,
    prefetch,
    serial,
    store,
    var,
)
from ...target import CpuTarget
from .register_tile import Vectors, register_tile

_WIDEST = 4
"""Most vectors of a panel."""

_AHEAD = 16
"""Lines of a panel between the request for one and its use."""

# Bytes that a core reads in a cycle from its second-level cache, and from behind it; cycles that
# threads need to wait for each other.
_NEAR, _FAR, _BARRIER = 40, 8, 6000
# How much longer what all read at a time may take than what each reads alone.
_TOGETHER = 1.1
# Of the second-level cache, for weights that are to stay there, and for what a step makes.
_SHARE, _MADE = 0.75, 0.5


@record
class Sizes:
    """How rows, that is sequences, and columns, their states, are divided."""

    dtype: str
    itemsize: int
    steps: int
    n: int
    h: int
    lanes: int
    blocks: int  # of a panel, so many states beside each other
    panels: int
    gates: int  # vectors of a block
    k: int  # terms of a product
    mr: int
    nv: int
    rows: int  # of a tile
    padded: int
    by_columns: bool  # threads share out states, not sequences
    workers: int

    @classmethod
    def of(
        cls, cpu: CpuTarget, dtype: DType, sizes: tuple[int, int, int], gates: int, k: int
    ) -> Sizes:
        """``gates``: vectors whose sums a cell needs at once; ``k``: terms of each."""
        _, n, h = sizes
        lanes = cpu.lanes(dtype.itemsize)
        count = ceil_div(h, lanes)
        panels = ceil_div(count, max(1, _WIDEST // gates))
        blocks = ceil_div(count, panels)
        width = gates * blocks
        by_columns = _by_columns(cpu, n, k, panels * width, dtype.itemsize)
        # What a step makes of a tile's rows, sums and states, is to be near when it is read.
        most_rows = max(
            cpu.vector_registers, int(_MADE * cpu.l2_bytes) // (k + gates * h) // dtype.itemsize
        )
        tiles = min(n, cpu.workers * ceil_div(n, cpu.workers * most_rows))
        rows = n if by_columns else ceil_div(n, tiles)

        def most(nv: int) -> int:  # rows of a register tile
            return max(1, (cpu.vector_registers - nv - 1) // nv)

        nv = width
        if most(nv) < rows and width % 2 == 0:
            nv = 2  # the fewer columns, the more rows: what is packed is read less often
        tall = ceil_div(rows, most(nv))
        mr = ceil_div(rows, tall)
        return cls(
            dtype.name,
            dtype.itemsize,
            *sizes,
            lanes,
            blocks,
            panels,
            gates,
            k,
            mr,
            nv,
            rows,
            tall * mr,
            by_columns,
            cpu.workers,
        )

    @property
    def width(self) -> int:
        """Vectors of a panel."""
        return self.gates * self.blocks

    @property
    def parts(self) -> int:
        """Into how many a panel's columns are divided for register tiles."""
        return self.width // self.nv

    @property
    def tiles(self) -> int:
        """How many there are."""
        return ceil_div(self.n, self.rows)


def _by_columns(cpu: CpuTarget, n: int, k: int, vectors: int, itemsize: int) -> bool:
    """Whether a step is over sooner if each thread computes some states of all sequences.

    Then each reads its part of the weight only, but waits for the others behind every step.
    """

    def cycles(rows: int, columns: int) -> tuple[float, float]:
        """Of multiply-adds, and of reading the weight."""
        nbytes = columns * cpu.lanes(itemsize) * k * itemsize
        speed = _NEAR if nbytes <= _SHARE * cpu.l2_bytes else _FAR
        return rows * columns * k / 2, nbytes / speed

    if cpu.workers == 1:
        return False
    apart = max(cycles(ceil_div(n, min(cpu.workers, n)), vectors))
    # What all read at a time comes while they multiply; what each reads alone takes its time.
    return sum(cycles(n, ceil_div(vectors, cpu.workers))) + _BARRIER < _TOGETHER * apart


def multiply(z: Sizes) -> Helper:
    """Takes addresses of rows of the state, a panel and sums, and the number of terms.

    A function of its own: beside a cell, LLVM keeps the cell's constants in registers, and sums in
    memory.
    """

    def make() -> Parts:
        state = pointer_buffer((z.mr, z.k), z.dtype, "state")
        panel = pointer_buffer((z.parts, z.k, z.nv * z.lanes), z.dtype, "panel")
        sums = pointer_buffer((z.mr, z.width * z.lanes), z.dtype, "sums")
        terms = var("terms")
        vectors = Vectors(z.dtype, z.lanes)

        def part(left: Expr) -> Stmt:
            def asks(k: Expr) -> list[Stmt]:
                lines = range(0, z.nv * z.lanes * z.itemsize, LINE_BYTES)
                first = load(panel, left, k, 0)
                ahead = _AHEAD * len(lines) * LINE_BYTES
                return [prefetch(first, beyond=at + ahead) for at in lines]

            return register_tile(
                vectors,
                (z.mr, z.nv),
                terms,
                lambda r, k: load(state, r, k),
                lambda k, v: load(panel, left, k, vectors.at(v * z.lanes)),
                lambda r, v: vectors.zero,
                lambda r, v, value: store(sums, value, r, vectors.at((left * z.nv + v) * z.lanes)),
                asks,
            )

        return Parts([state.raw, panel.raw, sums.raw], [terms], serial(z.parts, part, "part"))

    return Helper(f"recurrence_{z.dtype}_{z.mr}_{z.nv}_{z.width}_{z.k}", make)
