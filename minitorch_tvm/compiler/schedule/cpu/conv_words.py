"""Images as words of the matrix unit: what its convolutions share.

An image is copied as one line of float32 per channel, with zeros around it, its pixels numbered
through rows of the padded width; then every line is split into words, each holding one part
(:mod:`.bfloat_parts`) of an element and of its partner.  A tap of the kernel that shifts the image
is another address in its words: nothing is unfolded.
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
    bind,
    ceil_div,
    const,
    grid,
    load,
    local_buffer,
    ramp,
    seq,
    serial,
    splat,
    store,
    when,
)
from .bfloat_parts import EDGE, LANES, PARTS, Packed, Range, split_pair

# Measured cycles of a multiply-add of vectors in the schedules without the unit.
OTHER_CYCLES = 0.75


@dataclass(frozen=True)
class Image:
    """Lines of an image and of its words.

    The partner of an element is the next pixel, the pixel a vector further on, or the same pixel 16
    channels further on.  ``reach`` is the number of pixels that may be read from the start of a
    line.
    """

    channels: int
    size: tuple[int, int]
    padding: tuple[int, int]
    partner: Literal["next", "vector", "channel"]
    reach: int

    @property
    def pitch(self) -> int:
        """Pixels from one row to the next."""
        return self.size[1] + 2 * self.padding[1]

    @property
    def line(self) -> int:
        """Elements of a line: an odd number of vectors, so that lines share few cache sets."""
        pixels = (self.size[0] + 2 * self.padding[0]) * self.pitch
        return (ceil_div(max(pixels, self.reach), LANES) | 1) * LANES

    @property
    def lines(self) -> int:
        """Lines of elements."""
        if self.partner == "next":
            return self.channels
        step = EDGE if self.partner == "channel" else LANES
        return ceil_div(self.channels, step) * step

    @property
    def word_lines(self) -> int:
        """Lines of words, a multiple of 16."""
        lines = self.lines // 2 if self.partner == "channel" else self.lines
        return ceil_div(lines, LANES) * LANES

    @property
    def bytes(self) -> int:
        """Of elements and words."""
        return 4 * self.line * (self.lines + PARTS * self.word_lines)

    def memory(self) -> tuple[Memory, Memory]:
        """Memory for the elements (a vector more: partners of the last) and the words."""
        return (
            local_buffer((self.lines * self.line + LANES,), "float32", "plane"),
            local_buffer((PARTS, self.word_lines, self.line), "uint32", "words"),
        )

    def clear(self, plane: Memory) -> Stmt:
        """Set all elements to zero; :meth:`copy` leaves borders as they are."""
        nothing = splat(const(0.0, "float32"), LANES)
        vectors = (self.lines * self.line + LANES) // LANES
        return serial(vectors, lambda v: store(plane, nothing, ramp(v * LANES, LANES)), "v")

    def copy(self, plane: Memory, load_x: Callable[[Expr, Expr, Expr], Expr]) -> Stmt:
        """Copy the image inside its borders; ``load_x`` takes channel, row and column."""
        (h, w), (top, left) = self.size, self.padding

        def row(c: Expr, y: Expr) -> Stmt:
            start = c * self.line + (y + top) * self.pitch + left
            return serial(w, lambda x: store(plane, load_x(c, y, x), start + x), "x")

        return grid((self.channels, h), row)

    def split(self, plane: Memory, words: Memory, magnitude: Memory) -> Stmt:
        """Store the words, and the largest and smallest magnitude as in :class:`Packed`."""
        range_ = Range()
        apart = {"next": 1, "vector": LANES, "channel": LANES * self.line}[self.partner]

        def vector(line: Expr, v: Expr) -> Stmt:
            channel = line
            if self.partner == "channel":
                channel = line // LANES * EDGE + line % LANES
            first = channel * self.line + v * LANES

            def put(part: int, word: Expr) -> Stmt:
                return store(words, word, part, line, ramp(v * LANES, LANES))

            pair = [load(plane, ramp(at, LANES)) for at in (first, first + apart)]
            return seq(split_pair(pair[0], pair[1], range_, put))

        # Lines of words that no channel fills.
        used = min(self.lines, self.word_lines)
        nothing = splat(const(0, "uint32"), LANES)

        def rest(line: Expr, v: Expr) -> Stmt:
            at = ramp(v * LANES, LANES)
            return seq([store(words, nothing, part, line + used, at) for part in range(PARTS)])

        vectors = self.line // LANES
        before, (largest, smallest, _) = range_.size()
        return seq(
            range_.start(),
            grid((used, vectors), vector),
            [grid((self.word_lines - used, vectors), rest)] if used < self.word_lines else [],
            before,
            store(magnitude, largest, 0),
            store(magnitude, smallest, 1),
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
