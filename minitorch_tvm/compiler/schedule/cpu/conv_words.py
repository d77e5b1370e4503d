"""Images with channels last: what convolutions on the matrix unit share.

An image is read once, transposed to lines of 16 channels, and its lines are split into parts
(:mod:`.bfloat_parts`).  One line or two, side by side or interleaved, make a row of the unit's left
operand, or of its right one: neighbouring rows belong to neighbouring pixels, so a tap that shifts
the image is another address among its lines, and nothing is unfolded.  (With pixels innermost the
rows of a shifted tile lie across two cache lines each: 1.3 to 1.5 times as long, measured.)

A convolution of stride s reads pixels s apart.  The copy keeps pixels of equal residue together:
its s x s *phases* are images of their own, in which those pixels are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    Expr,
    Memory,
    Stmt,
    ask,
    bind,
    ceil_div,
    const,
    grid,
    load,
    minimum,
    ramp,
    seq,
    serial,
    splat,
    store,
    when,
)
from ...scalars import is_nan
from .bfloat_parts import LANES, Packed
from .conv_layout import AHEAD, div, maximum, mod, split, transpose_rows

# Measured cycles of a multiply-add of vectors in the schedules without the unit.
OTHER_CYCLES = 0.9
# Of a block of 32 x 32 x 32 on the unit, and of copying and splitting a line.
BLOCK_CYCLES, LINE_CYCLES = 460, 16


# What is done with a line of 16 channels: its group, phase and pixel, and the vector.
Visit = Callable[[Expr, Expr, Expr, Expr], Stmt]
Load3 = Callable[[Expr, Expr, Expr], Expr]


@record
class Image:
    """Lines of an image, or of a band of its rows, in the order [phase, group, pixel].

    ``low`` is how many zeros come before the first row and column, ``rows`` and ``pitch`` are the
    rows of a phase and its pixels per row; ``reach`` is how many pixels of a phase may be read.
    """

    channels: int
    size: tuple[int, int]
    low: tuple[int, int]
    stride: tuple[int, int]
    rows: int
    pitch: int
    reach: int

    @property
    def phases(self) -> int:
        """Residues of rows and columns."""
        return self.stride[0] * self.stride[1]

    @property
    def groups(self) -> int:
        """Groups of 16 channels, the last filled up with zeros."""
        return ceil_div(self.channels, LANES)

    @property
    def pixels(self) -> int:
        """Pixels of a phase; an odd number, so that groups share few places of the cache."""
        return (self.rows * self.pitch) | 1

    @property
    def lines(self) -> int:
        """Of all phases and groups."""
        return self.phases * self.groups * self.pixels

    @property
    def slack(self) -> int:
        """Lines behind the last: what is read past the end of others is the next ones' start."""
        return max(self.reach - self.pixels, 0)

    @property
    def cycles(self) -> float:
        """Estimated cycles of copying and splitting."""
        return LINE_CYCLES * self.lines

    def line(self, phase: Expr, group: Expr, pixel: Expr) -> Expr:
        """Number of a line."""
        return (phase * self.groups + group) * self.pixels + pixel

    def _rows(self, first: Expr) -> tuple[Expr, Expr]:
        """Rows of the image, from and to, that the rows of phases from ``first`` on hold."""
        top, down, h = self.low[0], self.stride[0], self.size[0]
        begin, end = first * down - top, (first + self.rows) * down - top
        if isinstance(begin, int):
            begin = max(begin, 0)
            return begin, max(min(end, h), begin)
        begin = maximum(begin, 0)
        return begin, maximum(minimum(end, h), begin)

    def _at(self, place: tuple[Expr, Expr], first: Expr) -> tuple[Expr, Expr]:
        """Phase and pixel of an element."""
        (top, left), (down, across) = self.low, self.stride
        row, column = place[0] + top, place[1] + left
        phase = mod(row, down) * across + mod(column, across)
        return phase, (div(row, down) - first) * self.pitch + div(column, across)

    def walk(self, load_x: Load3, visit: Visit, first: Expr = 0) -> Stmt:
        """Visit the lines of rows of phases from ``first`` on, those outside the image excepted.

        ``load_x`` takes channel, row and column.  A line may be visited twice.
        """
        w = self.size[1]
        begin, end = self._rows(first)
        count = (end - begin) * w
        short = count < LANES if isinstance(count, int) else w < LANES

        def block(group: Expr, b: Expr) -> Stmt:
            # The last block overlaps the one before, or repeats the last pixel.
            p0 = begin * w + (b * LANES if short else minimum(b * LANES, count - LANES))

            def place(k: Expr) -> tuple[Expr, Expr]:
                y, x = split(minimum(p0 + k, end * w - 1) if short else p0 + k, w)
                return y, x

            ahead = split(minimum(p0 + AHEAD * LANES, end * w - 1), w)

            def fill(square: Memory, r: Expr) -> Stmt:
                c = group * LANES + r
                fetch = serial(LANES, lambda k: store(square, load_x(c, *place(k)), r, k), "k")
                copy = seq(ask(lambda: load_x(c, *ahead)), fetch)
                if self.channels % LANES == 0:
                    return copy
                return when(c < self.channels, copy, store(square, nothing(), r, ramp(0, LANES)))

            def line(k: Expr, vector: Expr) -> Stmt:
                return visit(group, *self._at(place(k), first), vector)

            return transpose_rows(LANES, "float32", fill, line)

        blocks = div(count + (LANES - 1), LANES)
        return grid((self.groups, blocks), block)

    def fill(self, plane: Memory, load_x: Load3, first: Expr = 0) -> Stmt:
        """Copy elements to a plane of lines one by one, with the least code."""
        begin, end = self._rows(first)

        def element(c: Expr, y: Expr, x: Expr) -> Stmt:
            phase, pixel = self._at((begin + y, x), first)
            line = self.line(phase, div(c, LANES), pixel)
            return store(plane, load_x(c, begin + y, x), line, mod(c, LANES))

        return seq(
            serial(plane.shape[0], lambda n: store(plane, nothing(), n, ramp(0, LANES)), "n"),
            grid((self.channels, end - begin, self.size[1]), element),
        )


def nothing() -> Expr:
    """A line of zeros."""
    return splat(const(0.0, "float32"), LANES)


def upper_halves(part: Expr) -> Expr:
    """A vector of bfloat16, held as float32, as bits of 16."""
    bits = tvm().tirx.reinterpret(f"uint32x{LANES}", part)
    return (bits >> splat(const(16, "uint32"), LANES)).astype(f"uint16x{LANES}")


def range_of(
    packed: Packed, count: int, place: Callable[[Expr], tuple[Expr, Expr]], magnitude: Memory
) -> Stmt:
    """The largest and smallest magnitude of ``count`` (panel, visit) of a packed operand."""
    t = tvm().tirx

    def one(i: Expr) -> Stmt:
        at = place(i)
        x, set_x = bind("x", load(packed.magnitude, *at, 0))
        y, set_y = bind("y", load(packed.magnitude, *at, 1))
        # A NaN stays: nothing is larger, and only other NaNs replace it.
        larger = t.any(x > load(magnitude, 0), is_nan(x))
        smaller = y < load(magnitude, 1)
        return seq(
            set_x,
            set_y,
            when(larger, store(magnitude, x, 0)),
            when(smaller, store(magnitude, y, 1)),
        )

    return seq(
        store(magnitude, const(0.0, "float32"), 0),
        store(magnitude, t.infinity("float32"), 1),
        serial(count, one, "i"),
    )
