"""Convolution of float32 on a matrix unit that multiplies tiles of bfloat16 (Intel AMX).

Every tap of a convolution is a matrix product, of weights [out, channels] and an image
[channels, pixels] that the tap shifts.  An image is copied once, as words (:mod:`.conv_words`) that
pair a channel with the one 16 further on, or, if there are at most 16 channels, a pixel with the
next, so that one step takes two taps.  The lines of 16 words then are the unit's right operand
wherever a tile starts.

Pixels are numbered through the padded image.  Those between the end of a row of results and the
start of the next are computed for nothing, a share of kernel width over image width.

A parallel tile is one image: its words, and the sums of 32 channels, stay in the second-level
cache.  An image, or weights, that the unit would compute wrongly (see :mod:`.gemm_tiles`) take
plain float32 arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....core.tvm_api import tvm
from ...loops import (
    Builder,
    Expr,
    Memory,
    Stage,
    Stmt,
    Var,
    alloc,
    ceil_div,
    const,
    grid,
    load,
    local_buffer,
    minimum,
    parallel_stage,
    ramp,
    seq,
    serial,
    splat,
    store,
    when,
)
from ...target import CpuTarget
from .bfloat_parts import EDGE, LANES, PARTS, Operand, Packed, packed_memory
from .conv_correlate import Write4
from .conv_layout import Load4, split
from .conv_words import OTHER_CYCLES, Image, range_of
from .matrix_unit import PRODUCTS, address, configure, may_use, multiply, tile, unit
from .plain_sums import plain_sums

_ROWS = 8  # of results that plain arithmetic computes at once
# Measured cycles: of a block of 32 x 32 x 32, of 16 words of an image, of a result, of a weight.
_BLOCK_CYCLES, _WORD_CYCLES, _RESULT_CYCLES, _WEIGHT_CYCLES = 650, 4.0, 1.0, 8


@dataclass(frozen=True)
class Correlation:
    """``y[n, o] = sum over c, i, j of x[n, c, y + i - top, x + j - left] * w[o, c, i, j]``."""

    images: int
    channels: int
    size: tuple[int, int]
    outputs: int
    kernel: tuple[int, int]
    padding: tuple[int, int]

    @property
    def image(self) -> Image:
        """Lines of an image: all that a tile may read."""
        pitch = self.size[1] + 2 * self.padding[1]
        kh, kw = self.kernel
        reach = self.panels * EDGE + (kh - 1) * pitch + kw
        return Image(
            self.channels,
            self.size,
            self.padding,
            partner="next" if self.paired else "channel",
            reach=reach,
        )

    @property
    def result(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        h, w = (
            size + 2 * pad - kernel + 1
            for size, pad, kernel in zip(self.size, self.padding, self.kernel, strict=True)
        )
        return h, w

    @property
    def paired(self) -> bool:
        """True if a word holds two pixels of one channel rather than two channels of one pixel."""
        return self.channels <= LANES

    @property
    def groups(self) -> int:
        """Groups of 32 channels."""
        return 1 if self.paired else ceil_div(self.channels, EDGE)

    @property
    def across(self) -> int:
        """Steps for the taps of one row of the kernel and one group of channels."""
        return ceil_div(self.kernel[1], 2) if self.paired else self.kernel[1]

    @property
    def steps(self) -> int:
        """Blocks of 32 products per result."""
        return self.kernel[0] * self.across * self.groups

    @property
    def panels(self) -> int:
        """Panels of 32 pixels, from the first result of an image to its last."""
        h, w = self.result
        return ceil_div((h - 1) * (self.size[1] + 2 * self.padding[1]) + w, EDGE)

    @property
    def pitch(self) -> int:
        """Elements of a line of sums; a multiple of 4 KB would use few places of the cache."""
        return self.panels * EDGE + LANES

    @property
    def cycles(self) -> float:
        """Estimated cycles, all images and cores together."""
        rows, image = ceil_div(self.outputs, EDGE), self.image
        per_image: float = rows * self.panels * self.steps * _BLOCK_CYCLES
        per_image += image.word_lines * image.line * PARTS / LANES * _WORD_CYCLES
        per_image += self.outputs * self.result[0] * self.result[1] * _RESULT_CYCLES
        return self.images * per_image + rows * EDGE * self.steps * EDGE * _WEIGHT_CYCLES

    @property
    def other_cycles(self) -> float:
        """The same for multiply-adds of vectors."""
        h, w = self.result
        kh, kw = self.kernel
        terms = self.images * h * w * self.outputs * self.channels * kh * kw
        return terms / LANES * OTHER_CYCLES


def suits(p: Correlation, dtype: str, cpu: CpuTarget) -> bool:
    """True if the unit is there, an image fits into the cache and it is worth while.

    Up to 16 outputs would leave half of the unit idle, which then is no faster (measured).
    """
    if not cpu.matrix_unit or dtype != "float32" or min(p.padding) < 0 or min(p.result) < 1:
        return False
    if p.outputs <= LANES or p.image.bytes + EDGE * p.pitch * 4 > cpu.l2_bytes // 2:
        return False
    return p.cycles < p.other_cycles


def correlate_on_unit(
    name: str, p: Correlation, load_x: Load4, load_w: Load4, write: Write4, builder: Builder
) -> list[Stage]:
    """The stages."""
    kw = p.kernel[1]

    def weight(_: Expr, o: Expr, k: Expr) -> Expr:
        i, j, group = split(k // EDGE, p.across, p.groups)
        place = k % EDGE
        channel = place % LANES if p.paired else group * EDGE + place
        tap = j * 2 + place // LANES if p.paired else j
        t = tvm().tirx
        conditions = []
        if channels_padded:
            conditions.append(channel < p.channels)
        if p.paired and kw % 2:
            conditions.append(tap < kw)
        if not conditions:
            return load_w(o, channel, i, tap)
        inside = t.all(*conditions)
        return t.if_then_else(inside, load_w(o, channel, i, tap), const(0.0, "float32"))

    channels_padded = p.channels % (LANES if p.paired else EDGE) != 0
    visit = ceil_div(p.steps, 4)
    rows = Operand(True, p.outputs, p.steps * EDGE, True, False, weight, visit)
    packed = packed_memory(rows.panels, rows.blocks, rows.visits, builder.scratch_buffer)
    images = _Images(p, rows, packed, load_x, load_w, write)
    return [rows.stage(packed), parallel_stage(name, p.images, images.image)]


@dataclass(frozen=True)
class _Images:
    """Builds the stage that computes one image per tile."""

    p: Correlation
    rows: Operand
    packed: Packed
    load_x: Load4
    load_w: Load4
    write: Write4

    def image(self, n: Var) -> Stmt:
        """All results of image ``n``."""
        p, image = self.p, self.p.image
        plane, words = image.memory()
        sums = local_buffer((EDGE, p.pitch), "float32", "sums")
        magnitude = local_buffer((2,), "float32", "magnitude")
        return seq(
            [alloc(m) for m in (plane, words, sums, magnitude)],
            configure(),
            image.clear(plane),
            image.copy(plane, lambda c, y, x: self.load_x(n, c, y, x)),
            image.split(plane, words, magnitude),
            serial(
                self.rows.panels,
                lambda o: self._outputs(n, o, (plane, words, sums), magnitude),
                "o",
            ),
            unit("tilerelease"),
        )

    def _outputs(
        self, n: Expr, o: Expr, memory: tuple[Memory, Memory, Memory], magnitude: Memory
    ) -> Stmt:
        """The results of 32 output channels."""
        plane, words, sums = memory
        weight = local_buffer((2,), "float32", "weight")
        fast = serial(self.p.panels, lambda q: self._panel(o, q, words, sums), "q")
        largest, smallest = ((load(weight, i), load(magnitude, i)) for i in range(2))
        return seq(
            alloc(weight),
            range_of(self.packed, self.rows.visits, lambda v: (o, v), weight),
            when(may_use(largest, smallest), fast, self._in_float32(o, plane, sums)),
            self._finish(n, o, sums),
        )

    def _panel(self, o: Expr, q: Expr, words: Memory, sums: Memory) -> Stmt:
        """Sums of one panel of pixels on the unit."""
        p, image = self.p, self.p.image
        pitch = const(4 * image.line, "int64")

        def step(i: Expr, j: Expr, group: Expr) -> Stmt:
            block = (i * p.across + j) * p.groups + group
            start = q * EDGE + i * image.pitch + j * (2 if p.paired else 1)

            def fetch(side: int, part: int, half: int, number: int) -> Stmt:
                if side == 0:
                    source = address(self.packed.tiles, o, block, part, half, 0)
                    return unit("tileloadd64", tile(number), source, const(64, "int64"))
                source = address(words, part, group * LANES, start + half * LANES)
                return unit("tileloadd64", tile(number), source, pitch)

            return seq(multiply(fetch, PRODUCTS))

        across = const(4 * p.pitch, "int64")
        corners = [address(sums, k // 2 * LANES, q * EDGE + k % 2 * LANES) for k in range(4)]
        return seq(
            [unit("tilezero", tile(k)) for k in range(4)],
            grid((p.kernel[0], p.across, p.groups), step),
            [unit("tilestored64", tile(k), corner, across) for k, corner in enumerate(corners)],
        )

    def _in_float32(self, o: Expr, plane: Memory, sums: Memory) -> Stmt:
        """The same sums by multiply-adds of image and weights as they are."""
        p, image = self.p, self.p.image

        def block(g: Expr, q: Expr) -> Stmt:
            def left(r: int, c: Expr, i: Expr, j: Expr) -> Expr:
                channel = minimum(o * EDGE + g * _ROWS + r, p.outputs - 1)
                return splat(self.load_w(channel, c, i, j), LANES)

            def right(half: int, c: Expr, i: Expr, j: Expr) -> Expr:
                start = c * image.line + q * EDGE + half * LANES + i * image.pitch + j
                return load(plane, ramp(start, LANES))

            def put(r: int, half: int, value: Expr) -> Stmt:
                return store(sums, value, g * _ROWS + r, ramp(q * EDGE + half * LANES, LANES))

            extents = (p.channels, *p.kernel)
            return plain_sums((_ROWS, 2), left, right, lambda step: grid(extents, step), put)

        return grid((EDGE // _ROWS, p.panels), block)

    def _finish(self, n: Expr, o: Expr, sums: Memory) -> Stmt:
        """Hand the sums on to the epilogue."""
        p = self.p
        h, w = p.result
        count: Expr = EDGE if p.outputs % EDGE == 0 else minimum(EDGE, p.outputs - o * EDGE)

        def element(r: Expr, y: Expr, x: Expr) -> Stmt:
            return self.write(n, o * EDGE + r, y, x, load(sums, r, y * p.image.pitch + x))

        return grid((count, h, w), element)
