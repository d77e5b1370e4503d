"""Convolution of float32 on a matrix unit that multiplies tiles of bfloat16 (Intel AMX).

Every tap of a convolution is a matrix product, of weights [out, channels] and an image
[channels, pixels] that the tap shifts.  An image is copied once, with zeros around it, as lines of
words: the word of a channel and a pixel holds one part (:mod:`.bfloat_parts`) of that channel and
of the one 16 further on, or, if there are at most 16 channels, of that pixel and the next, so that
one step takes two taps.  The lines of 16 words then are the unit's right operand wherever a tile
starts: a shift is an address, and nothing is unfolded.

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
    bind,
    const,
    grid,
    load,
    local_buffer,
    minimum,
    parallel_stage,
    prefetch,
    ramp,
    seq,
    serial,
    splat,
    store,
    when,
)
from ...target import CpuTarget
from .bfloat_parts import EDGE, LANES, PARTS, Operand, Packed, Range, packed_memory, split_pair
from .conv_correlate import Write4
from .conv_layout import Load4, split
from .gemm_problem import ceil_div
from .matrix_unit import (
    PRODUCTS,
    address,
    configure,
    may_use,
    multiply,
    multiply_four,
    tile,
    unit,
)

# Memory of a worker: words of an image, sums of its results.
_WORD_BYTES, _SUM_BYTES = 448 << 10, 256 << 10
# Measured cycles: of a block of 32 x 32 x 32 (twice that if narrow), of 16 words of an image, of a
# result, of a weight; of a multiply-add of a vector in the other schedule.
_BLOCK_CYCLES, _WORD_CYCLES, _RESULT_CYCLES, _WEIGHT_CYCLES, _OTHER_CYCLES = 650, 4.0, 1.0, 8, 0.75


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
    def padded(self) -> tuple[int, int]:
        """Rows and columns of the padded image."""
        (h, w), (top, left) = self.size, self.padding
        return h + 2 * top, w + 2 * left

    @property
    def result(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        return self.padded[0] - self.kernel[0] + 1, self.padded[1] - self.kernel[1] + 1

    @property
    def paired(self) -> bool:
        """True if a word holds two pixels of one channel rather than two channels of one pixel."""
        return self.channels <= LANES

    @property
    def groups(self) -> int:
        """Groups of 32 channels."""
        return 1 if self.paired else ceil_div(self.channels, EDGE)

    @property
    def planes(self) -> int:
        """Lines of words."""
        return LANES * self.groups

    @property
    def across(self) -> int:
        """Steps for the taps of one row of the kernel and one group of channels."""
        return ceil_div(self.kernel[1], 2) if self.paired else self.kernel[1]

    @property
    def steps(self) -> int:
        """Blocks of 32 products per result."""
        return self.kernel[0] * self.across * self.groups

    @property
    def narrow(self) -> bool:
        """True if the results fill one tile's rows: then four tiles stand side by side."""
        return self.outputs <= LANES

    @property
    def width(self) -> int:
        """Pixels of a panel."""
        return 4 * LANES if self.narrow else EDGE

    @property
    def panels(self) -> int:
        """Panels of pixels, from the first result of an image to its last."""
        (h, w), pitch = self.result, self.padded[1]
        return ceil_div((h - 1) * pitch + w, self.width)

    @property
    def line(self) -> int:
        """Words of a line: all that a tile may read, an odd number of vectors."""
        (h, w), (kh, kw) = self.padded, self.kernel
        reach = max(h * w, self.panels * self.width + (kh - 1) * w + kw)
        return (ceil_div(reach, LANES) | 1) * LANES

    @property
    def cycles(self) -> float:
        """Estimated cycles, all images and cores together."""
        rows = ceil_div(self.outputs, EDGE)
        per_image: float = (
            rows * self.panels * self.steps * _BLOCK_CYCLES * (2 if self.narrow else 1)
        )
        per_image += self.planes * self.line * PARTS / LANES * _WORD_CYCLES
        per_image += self.outputs * self.result[0] * self.result[1] * _RESULT_CYCLES
        return self.images * per_image + rows * EDGE * self.steps * EDGE * _WEIGHT_CYCLES

    @property
    def other_cycles(self) -> float:
        """The same for multiply-adds of vectors."""
        h, w = self.result
        kh, kw = self.kernel
        terms = self.images * h * w * self.outputs * self.channels * kh * kw
        return terms / LANES * _OTHER_CYCLES


def suits(p: Correlation, dtype: str, cpu: CpuTarget) -> bool:
    """True if the unit is there, an image fits into the cache and it is worth while."""
    if not cpu.matrix_unit or dtype != "float32" or min(p.padding) < 0 or min(p.result) < 1:
        return False
    if p.planes * p.line * PARTS * 4 > _WORD_BYTES:
        return False
    if EDGE * (p.panels * p.width + LANES) * 4 > _SUM_BYTES:
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
    rows = Operand(True, p.outputs, p.steps * EDGE, True, False, False, weight, visit)
    packed = packed_memory(1, rows.panels, rows.blocks, rows.visits, builder.scratch_buffer)
    images = _Images(p, rows, packed, load_x, load_w, write)
    return [rows.stage(packed, False), parallel_stage(name, p.images, images.image)]


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
        p = self.p
        # A line more, for the vector that starts at the last line's last pixel but one.
        lines = p.channels if p.paired else p.groups * EDGE
        plane = local_buffer((lines * p.line + LANES,), "float32", "plane")
        tiles = local_buffer((PARTS, p.planes, p.line), "uint32", "words")
        sums = local_buffer((EDGE, p.panels * p.width + LANES), "float32", "sums")
        size = local_buffer((2,), "float32", "size")
        memory = (plane, tiles, sums, size)
        return seq(
            [alloc(m) for m in memory],
            configure(),
            self._copy(n, plane, lines),
            self._words(plane, tiles, size),
            serial(
                self.rows.panels, lambda o: self._outputs(n, o, (plane, tiles, sums, size)), "o"
            ),
            unit("tilerelease"),
        )

    def _copy(self, n: Expr, plane: Memory, lines: int) -> Stmt:
        """The image with zeros around it, a line per channel."""
        p = self.p
        (h, w), (top, left), pitch = p.size, p.padding, p.padded[1]
        nothing = splat(const(0.0, "float32"), LANES)
        vectors = (lines * p.line + LANES) // LANES

        def row(c: Expr, y: Expr) -> Stmt:
            start = c * p.line + (y + top) * pitch + left
            return serial(w, lambda x: store(plane, self.load_x(n, c, y, x), start + x), "x")

        return seq(
            serial(vectors, lambda v: store(plane, nothing, ramp(v * LANES, LANES)), "v"),
            grid((p.channels, h), row),
        )

    def _words(self, plane: Memory, tiles: Memory, size: Memory) -> Stmt:
        """The parts of the image, its largest and smallest magnitude."""
        p = self.p
        range_ = Range()

        def vector(line: Expr, v: Expr) -> Stmt:
            channel = line if p.paired else line // LANES * EDGE + line % LANES
            first = channel * p.line + v * LANES
            second = first + (1 if p.paired else LANES * p.line)

            def put(part: int, word: Expr) -> Stmt:
                return store(tiles, word, part, line, ramp(v * LANES, LANES))

            pair = [load(plane, ramp(at, LANES)) for at in (first, second)]
            return seq(split_pair(pair[0], pair[1], range_, put))

        count = p.channels if p.paired else p.planes
        before, (largest, smallest, _) = range_.size()
        nothing = splat(const(0, "uint32"), LANES)

        def clear(line: Expr, v: Expr) -> Stmt:
            at = ramp(v * LANES, LANES)
            return seq([store(tiles, nothing, part, line + count, at) for part in range(PARTS)])

        rest = [grid((p.planes - count, p.line // LANES), clear)] if count < p.planes else []
        return seq(
            range_.start(),
            grid((count, p.line // LANES), vector),
            rest,
            before,
            store(size, largest, 0),
            store(size, smallest, 1),
        )

    def _outputs(self, n: Expr, o: Expr, memory: tuple[Memory, Memory, Memory, Memory]) -> Stmt:
        """The results of 32 output channels."""
        p = self.p
        plane, tiles, sums, size = memory
        t = tvm().tirx
        weight = local_buffer((2,), "float32", "weight")

        def visit(v: Expr) -> Stmt:
            x, set_x = bind("x", load(self.packed.magnitude, const(0), o, v, 0))
            y, set_y = bind("y", load(self.packed.magnitude, const(0), o, v, 1))
            # A NaN stays: nothing is larger, and only other NaNs replace it.
            larger = t.any(x > load(weight, 0), t.isnan(x))
            return seq(
                set_x,
                set_y,
                when(larger, store(weight, x, 0)),
                when(y < load(weight, 1), store(weight, y, 1)),
            )

        fast = serial(p.panels, lambda q: self._panel(o, q, tiles, sums), "q")
        largest, smallest = ((load(weight, i), load(size, i)) for i in range(2))
        return seq(
            alloc(weight),
            store(weight, const(0.0, "float32"), 0),
            store(weight, t.infinity("float32"), 1),
            serial(self.rows.visits, visit, "v"),
            when(may_use(largest, smallest), fast, self._in_float32(o, plane, sums)),
            self._finish(n, o, sums),
        )

    def _panel(self, o: Expr, q: Expr, tiles: Memory, sums: Memory) -> Stmt:
        """Sums of one panel of pixels on the unit."""
        p = self.p
        pitch = const(4 * p.line, "int64")

        def step(i: Expr, j: Expr, group: Expr) -> Stmt:
            block = (i * p.across + j) * p.groups + group
            start = q * p.width + i * p.padded[1] + j * (2 if p.paired else 1)

            def fetch(side: int, part: int, half: int, number: int) -> Stmt:
                if side == 0:
                    source = address(self.packed.tiles, const(0), o, block, part, half, 0)
                    return unit("tileloadd64", tile(number), source, const(64, "int64"))
                source = address(tiles, part, group * LANES, start + half * LANES)
                return unit("tileloadd64", tile(number), source, pitch)

            return seq(multiply_four(fetch, 1) if p.narrow else multiply(fetch, PRODUCTS))

        across = const(4 * sums.shape[1], "int64")

        def corner(number: int) -> Expr:
            i, j = (0, number) if p.narrow else (number // 2, number % 2)
            return address(sums, i * LANES, q * p.width + j * LANES)

        return seq(
            [unit("tilezero", tile(number)) for number in range(4)],
            grid((p.kernel[0], p.across, p.groups), step),
            [unit("tilestored64", tile(k), corner(k), across) for k in range(4)],
        )

    def _in_float32(self, o: Expr, plane: Memory, sums: Memory) -> Stmt:
        """The same sums by multiply-adds of the weights as they are."""
        p = self.p
        every = ramp(0, LANES)

        def pixels(r: Expr, v: Expr) -> Stmt:
            acc = local_buffer((LANES,), "float32", "acc")
            channel = minimum(o * EDGE + r, p.outputs - 1)

            def term(c: Expr, i: Expr, j: Expr) -> Stmt:
                start = c * p.line + v * LANES + i * p.padded[1] + j
                x = load(plane, ramp(start, LANES))
                w = splat(self.load_w(channel, c, i, j), LANES)
                return store(acc, load(acc, every) + w * x, every)

            return seq(
                alloc(acc),
                store(acc, splat(const(0.0, "float32"), LANES), every),
                grid((p.channels, *p.kernel), term),
                store(sums, load(acc, every), r, ramp(v * LANES, LANES)),
            )

        return grid((EDGE, p.panels * p.width // LANES), pixels)

    def _finish(self, n: Expr, o: Expr, sums: Memory) -> Stmt:
        """Hand the sums on to the epilogue."""
        p = self.p
        h, w = p.result
        count: Expr = EDGE if p.outputs % EDGE == 0 else minimum(EDGE, p.outputs - o * EDGE)

        def row(r: Expr, y: Expr) -> Stmt:
            start = y * p.padded[1]
            # The call keeps LLVM from taking the rows for vectors once it has unrolled a row.
            ahead = prefetch(load(sums, r, start + 2 * p.padded[1]))

            def element(x: Expr) -> Stmt:
                return self.write(n, o * EDGE + r, y, x, load(sums, r, start + x))

            return seq(ahead, serial(w, element, "x"))

        return grid((count, h), row)
