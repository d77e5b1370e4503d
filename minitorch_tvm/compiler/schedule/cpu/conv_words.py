"""Images as words of the matrix unit: what its convolutions share.

An image is copied with channels last, 16 of them to a line, with zeros around it; then lines are
split into words, each holding one part (:mod:`.bfloat_parts`) of an element and of its partner.  A
line of 16 words is a row of the unit's left operand, or of its right one: neighbouring rows belong
to neighbouring pixels, so a tap that shifts the image is another address in its words, always at
the start of a cache line, and nothing is unfolded.  (With pixels innermost a shifted tile's rows
lie across two cache lines each, which takes the unit 1.3 to 1.5 times as long.)

A convolution of stride s reads pixels s apart.  The copy keeps pixels of equal residue together:
its s x s *phases* are images of their own, in which those pixels are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ....core.tvm_api import tvm
from ...loops import (
    Expr,
    Memory,
    Stmt,
    alloc,
    bind,
    ceil_div,
    grid,
    const,
    load,
    local_buffer,
    minimum,
    ramp,
    seq,
    serial,
    splat,
    store,
    when,
)
from .bfloat_parts import LANES, PARTS, Packed, Range, parts, split_pair
from .conv_layout import div, maximum, mod, split, transpose_tile

# Measured cycles of a multiply-add of vectors in the schedules without the unit.
OTHER_CYCLES = 0.75
# Of a block of 32 x 32 x 32 on the unit, and of copying and splitting a line of words.
BLOCK_CYCLES, LINE_CYCLES = 460, 20


@dataclass(frozen=True)
class Image:
    """Lines of an image, or of a band of its rows, and of its words.

    The partner of an element is the next pixel of its phase, or the same pixel 16 channels further
    on.  ``low`` is how many zeros come before the first row and column, ``rows`` and ``pitch`` are
    the rows of a phase and its pixels per row; ``reach`` is how many pixels of a phase may be read.
    """

    channels: int
    size: tuple[int, int]
    low: tuple[int, int]
    stride: tuple[int, int]
    rows: int
    pitch: int
    partner: Literal["next", "channel"]
    reach: int

    @property
    def phases(self) -> int:
        """Residues of rows and columns."""
        return self.stride[0] * self.stride[1]

    @property
    def groups(self) -> int:
        """Groups of 16 channels, filled up with zeros; an even number if they are partners."""
        groups = ceil_div(self.channels, LANES)
        return groups + groups % 2 if self.partner == "channel" else groups

    @property
    def word_groups(self) -> int:
        """Groups of lines of words."""
        return self.groups // 2 if self.partner == "channel" else self.groups

    @property
    def lines(self) -> int:
        """Pixels of a phase; an odd number, so that groups share few places of the cache."""
        return (self.rows * self.pitch) | 1

    @property
    def slack(self) -> int:
        """Lines behind the last: what is read past the end of others is the next ones' start."""
        return max(self.reach - self.lines, 0) + 1

    @property
    def word_lines(self) -> int:
        """Lines of words of one part."""
        return self.phases * self.word_groups * self.lines

    @property
    def bytes(self) -> int:
        """Of elements and words."""
        lines = self.phases * self.groups * self.lines + PARTS * self.word_lines + 2 * self.slack
        return 4 * LANES * lines

    @property
    def cycles(self) -> float:
        """Estimated cycles of copying and splitting."""
        return LINE_CYCLES * self.lines * self.phases * self.groups

    def memory(self) -> tuple[Memory, Memory]:
        """Memory for the elements and the words."""
        lines = self.phases * self.groups * self.lines
        return (
            local_buffer((lines + self.slack, LANES), "float32", "plane"),
            local_buffer((PARTS * self.word_lines + self.slack, LANES), "uint32", "words"),
        )

    def line(self, phase: Expr, group: Expr, pixel: Expr) -> Expr:
        """Number of a line of elements."""
        return (phase * self.groups + group) * self.lines + pixel

    def word_line(self, part: int, phase: Expr, group: Expr, pixel: Expr) -> Expr:
        """Number of a line of words."""
        line = (phase * self.word_groups + group) * self.lines + pixel
        return line + part * self.word_lines

    def copy(
        self, plane: Memory, load_x: Callable[[Expr, Expr, Expr], Expr], first: Expr = 0
    ) -> Stmt:
        """Copy rows of phases from ``first`` on; ``load_x`` takes channel, row and column."""
        (h, w), (top, left), (down, across) = self.size, self.low, self.stride
        nothing = splat(const(0.0, "float32"), LANES)
        every = ramp(0, LANES)
        if isinstance(first, int):
            begin = max(first * down - top, 0)
            end: Expr = max(min((first + self.rows) * down - top, h), begin)
            whole = (end - begin) * w >= LANES
        else:
            begin = maximum(first * down - top, 0)
            end = maximum(minimum((first + self.rows) * down - top, h), begin)
            # A band has at least one row of the image.
            whole = w >= LANES

        def at(group: Expr, y: Expr, x: Expr) -> Expr:
            row, column = y + top, x + left
            phase = mod(row, down) * across + mod(column, across)
            pixel = (div(row, down) - first) * self.pitch + div(column, across)
            return self.line(phase, group, pixel)

        def tile(group: Expr, p0: Expr) -> Stmt:
            def get(r: Expr, k: Expr) -> Expr:
                return load_x(group * LANES + r, *split(p0 + k, w))

            def put(k: Expr, vector: Expr) -> Stmt:
                return store(plane, vector, at(group, *split(p0 + k, w)), every)

            return transpose_tile(LANES, "float32", get, put)

        def slab(group: Expr) -> Stmt:
            count = (end - begin) * w

            def block(b: Expr) -> Stmt:
                return tile(group, begin * w + minimum(b * LANES, count - LANES))

            blocks = ceil_div(count, LANES) if isinstance(count, int) else div(count + 15, LANES)
            return serial(blocks, block, "b")

        slabs = self.channels // LANES if whole else 0
        rest = self.channels - slabs * LANES

        def single(y: Expr, k: Expr, x: Expr) -> Stmt:
            c = slabs * LANES + k
            value = load_x(c, begin + y, x)
            return store(plane, value, at(div(c, LANES), begin + y, x), mod(c, LANES))

        return seq(
            serial(plane.shape[0], lambda line: store(plane, nothing, line, every), "line"),
            serial(slabs, slab, "group") if slabs else [],
            grid((end - begin, rest, w), single) if rest else [],
        )

    def split(self, plane: Memory, words: Memory, magnitude: Memory) -> Stmt:
        """Store the words, and the largest and smallest magnitude as in :class:`Packed`."""
        range_ = Range()
        every = ramp(0, LANES)
        body = self._beside if self.partner == "channel" else self._behind
        before, (largest, smallest, _) = range_.size()
        nothing = splat(const(0, "uint32"), LANES)
        end = PARTS * self.word_lines
        return seq(
            range_.start(),
            body(plane, words, range_, every),
            serial(self.slack, lambda n: store(words, nothing, end + n, every), "n"),
            before,
            store(magnitude, largest, 0),
            store(magnitude, smallest, 1),
        )

    def _beside(self, plane: Memory, words: Memory, range_: Range, every: Expr) -> Stmt:
        """Words of a pixel's channels and those of the next group."""

        def line(phase: Expr, group: Expr, pixel: Expr) -> Stmt:
            def put(part: int, word: Expr) -> Stmt:
                return store(words, word, self.word_line(part, phase, group, pixel), every)

            low, high = (
                load(plane, self.line(phase, group * 2 + k, pixel), every) for k in range(2)
            )
            return seq(split_pair(low, high, range_, put))

        return grid((self.phases, self.word_groups, self.lines), line)

    def _behind(self, plane: Memory, words: Memory, range_: Range, every: Expr) -> Stmt:
        """Words of a pixel and the next, whose parts the next word needs again."""
        carried = [local_buffer((LANES,), "uint32", "carried") for _ in range(PARTS)]

        def next_parts(line: Expr) -> tuple[list[Stmt], list[Expr]]:
            x, statement = bind("x", load(plane, line, every))
            statements = [statement, *range_.note(x)]
            found = parts(x, statements, range_)
            return statements, [tvm().tirx.reinterpret(f"uint32x{LANES}", v) for v in found]

        def line(n: Expr) -> Stmt:
            statements, high = next_parts(n + 1)
            for part, (memory, bits) in enumerate(zip(carried, high, strict=True)):
                word = (load(memory, every) >> splat(const(16, "uint32"), LANES)) | bits
                statements.append(store(words, word, n + part * self.word_lines, every))
                statements.append(store(memory, bits, every))
            return seq(statements)

        statements, start = next_parts(const(0))
        return seq(
            [alloc(memory) for memory in carried],
            statements,
            [store(memory, bits, every) for memory, bits in zip(carried, start, strict=True)],
            serial(self.word_lines, line, "n"),
        )


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
        larger = t.any(x > load(magnitude, 0), t.isnan(x))
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
