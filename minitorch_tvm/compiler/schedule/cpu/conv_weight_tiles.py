"""The weight gradient of a convolution on a matrix unit that multiplies tiles of bfloat16.

``dw[o, c, i, j]`` sums ``x[n, c, y + i - top, z + j - left] * ct[n, o, y, z]`` over images and
pixels.  With pixels numbered through the padded image, a tap shifts x by a constant: the products
of one tap are a matrix product of x [channels, pixels] and ct [pixels, outputs] that starts at
another pixel of x.  As in :mod:`.conv_tiles` an image is copied once, as words (:mod:`.conv_words`)
that pair a pixel with the one 16 further on.  ct is packed as any right operand, with zeros for the
pixels between the end of a row of results and the start of the next.

Rows of tiles are (tap, 16 channels), so that few channels waste nothing.  A parallel tile takes
some images and keeps sums of its own; a last stage adds them in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

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
from .bfloat_parts import BLOCK_BYTES, EDGE, LANES, Operand, Packed, packed_memory
from .conv_correlate import Write4
from .conv_layout import Load4, split
from .conv_spec import Conv
from .conv_weight import total_of_parts
from .conv_words import OTHER_CYCLES, Image, range_of
from .matrix_unit import PRODUCTS, address, configure, may_use, multiply, tile, unit
from .plain_sums import plain_sums

_PIECES = 16
_TOGETHER = 2  # blocks of pixels between two visits of a sum
_SQUARE = 4  # channels, and outputs, that plain arithmetic computes at once
# Measured cycles: of a block of four tiles' products, of four tiles' sums fetched and stored, of 16
# words, of an element of ct.
_BLOCK_CYCLES, _SUM_CYCLES, _WORD_CYCLES, _CT_CYCLES = 650, 250, 20, 2.0


@dataclass(frozen=True)
class _Shape:
    """Sizes of the problem as the unit sees it."""

    s: Conv

    @property
    def image(self) -> Image:
        """Lines of an image: all that a tile may read."""
        s = self.s
        reach = self.blocks * EDGE + (s.kh - 1) * (s.w + 2 * s.padding[1]) + s.kw - 1
        return Image(s.c, (s.h, s.w), s.padding, "vector", reach)

    @property
    def blocks(self) -> int:
        """Blocks of 32 pixels, from the first result of an image to its last."""
        s = self.s
        return ceil_div((s.oh - 1) * (s.w + 2 * s.padding[1]) + s.ow, EDGE)

    @property
    def channel_tiles(self) -> int:
        """Groups of 16 channels."""
        return ceil_div(self.s.c, LANES)

    @property
    def groups(self) -> int:
        """Pairs of row tiles."""
        return ceil_div(self.s.kh * self.s.kw * self.channel_tiles, 2)

    @property
    def panels(self) -> int:
        """Panels of 32 outputs."""
        return ceil_div(self.s.o, EDGE)

    @property
    def sums(self) -> tuple[int, int, int]:
        """Shape of the sums: output panels, rows (tap, channel), outputs."""
        return self.panels, self.groups * EDGE, EDGE

    @property
    def bytes(self) -> int:
        """Of an image, its words, ct and packed ct."""
        ct = self.s.o * self.blocks * EDGE * 4
        return self.image.bytes + ct + self.panels * self.blocks * BLOCK_BYTES

    @property
    def cycles(self) -> float:
        """Estimated cycles, all images and cores together."""
        visits = ceil_div(self.blocks, _TOGETHER)
        one = self.blocks * _BLOCK_CYCLES + visits * _SUM_CYCLES
        per_image: float = self.groups * self.panels * one
        per_image += self.channel_tiles * self.image.line * _WORD_CYCLES
        per_image += self.panels * EDGE * self.blocks * EDGE * _CT_CYCLES
        return self.s.n * per_image

    @property
    def other_cycles(self) -> float:
        """The same for multiply-adds of vectors."""
        s = self.s
        return s.n * s.oh * s.ow * s.o * s.c * s.kh * s.kw / LANES * OTHER_CYCLES


def suits(s: Conv, cpu: CpuTarget) -> bool:
    """True if the unit is there, an image fits into the cache and it is worth while.

    Up to 16 outputs would leave half of the unit idle, which then is no faster (measured).
    """
    if not cpu.matrix_unit or s.dtype != "float32" or not s.stride == s.dilation == (1, 1):
        return False
    p = _Shape(s)
    if s.o <= LANES or p.bytes > cpu.l2_bytes * 3 // 4:
        return False
    return p.cycles < p.other_cycles


def outer_products_on_unit(
    s: Conv, load_x: Load4, load_ct: Load4, write: Write4, builder: Builder, cpu: CpuTarget
) -> list[Stage]:
    """The stages."""
    p = _Shape(s)
    size = math.prod(p.sums) * 4
    wanted = _PIECES if _PIECES * size <= cpu.l2_bytes else _PIECES // 2
    per_part = ceil_div(s.n, wanted)
    parts = ceil_div(s.n, per_part)
    sums = builder.scratch_buffer((parts, *p.sums), s.dtype, "sums")
    images = _Images(p, load_x, load_ct, sums)
    depth = p.channel_tiles * LANES

    def vector(part: Expr, o: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        row = (i * s.kw + j) * depth + c
        return load(sums, part, o // EDGE, row, ramp(o % EDGE, LANES))

    def part_stage(part: Var) -> Stmt:
        count = minimum(per_part, s.n - part * per_part)
        return images.add(part, part * per_part, count)

    stage = parallel_stage("conv_dw", parts, part_stage)
    return [stage, total_of_parts(s, parts, LANES, vector, write)]


@dataclass(frozen=True)
class _Images:
    """Builds the stage that sums over some images per tile."""

    p: _Shape
    load_x: Load4
    load_ct: Load4
    sums: Memory

    def add(self, part: Expr, first: Expr, count: Expr) -> Stmt:
        """Fill the sums of a part."""
        p, s = self.p, self.p.s
        image = p.image
        plane, words = image.memory()
        ct = local_buffer((s.o, p.blocks * EDGE), "float32", "ct")
        magnitude = local_buffer((2,), "float32", "magnitude")
        plain = local_buffer((1,), "int32", "plain")
        pixels = p.blocks * EDGE
        operand = Operand(False, s.o, pixels, False, True, lambda _, o, k: load(ct, o, k), p.blocks)
        packed = packed_memory(p.panels, p.blocks, 1, local_buffer)
        zero, nothing = const(0), splat(const(0.0, "float32"), LANES)

        def pack(o: Expr) -> Stmt:
            return operand.pack(packed, zero, (o, zero), (o, zero))

        def ct_row(n: Expr, o: Expr, y: Expr) -> Stmt:
            start = y * image.pitch
            return serial(s.ow, lambda x: store(ct, self.load_ct(n, o, y, x), o, start + x), "x")

        def one(b: Expr) -> Stmt:
            n = first + b
            return seq(
                image.copy(plane, lambda c, y, x: self.load_x(n, c, y, x)),
                image.split(plane, words, magnitude),
                grid((s.o, s.oh), lambda o, y: ct_row(n, o, y)),
                serial(p.panels, pack, "o"),
                self._products(part, (plane, words, magnitude), (ct, packed), plain),
            )

        def clear_sums(panel: Expr, row: Expr) -> Stmt:
            return seq(
                [store(self.sums, nothing, part, panel, row, ramp(v, LANES)) for v in (0, LANES)]
            )

        def clear_ct(o: Expr, v: Expr) -> Stmt:
            return store(ct, nothing, o, ramp(v * LANES, LANES))

        memory = (plane, words, ct, magnitude, plain, packed.tiles, packed.magnitude)
        return seq(
            [alloc(m) for m in memory],
            store(plain, zero, 0),
            configure(),
            grid(p.sums[:2], clear_sums),
            # What copies never write stays zero: borders, and pixels between rows.
            image.clear(plane),
            grid((s.o, pixels // LANES), clear_ct),
            serial(count, one, "b"),
            unit("tilerelease"),
        )

    def _products(
        self,
        part: Expr,
        image: tuple[Memory, Memory, Memory],
        ct: tuple[Memory, Packed],
        plain: Memory,
    ) -> Stmt:
        """Add one image to the sums.

        ``plain`` is set once the unit was not used: sums may then be denormal, and the unit would
        take them for zero with the next image.
        """
        p, t = self.p, tvm().tirx
        plane, words, magnitude = image
        lines, packed = ct
        own = local_buffer((2,), "float32", "own")

        def some(chunk: Expr) -> Stmt:
            # The image's pixels stay in the first-level cache from one tap to the next.
            start = chunk * _TOGETHER
            blocks = start, minimum(_TOGETHER, p.blocks - start)
            return grid(
                (p.groups, p.panels),
                lambda g, o: self._group(part, o, g, words, packed, blocks),
            )

        fast = serial(ceil_div(p.blocks, _TOGETHER), some, "chunk")
        slow = seq(store(plain, const(1), 0), self._in_float32(part, plane, lines))
        largest, smallest = ((load(magnitude, i), load(own, i)) for i in range(2))
        unset = t.EQ(load(plain, 0), const(0))
        return seq(
            alloc(own),
            range_of(packed, p.panels, lambda o: (o, const(0)), own),
            when(t.all(may_use(largest, smallest), unset), fast, slow),
        )

    def _tap(self, tap: Expr) -> Expr:
        """Pixels by which a tap shifts the image (the last tap for tiles past the end)."""
        p, s = self.p, self.p.s
        i, j = split(minimum(tap, s.kh * s.kw - 1), s.kw)
        return i * p.image.pitch + j

    def _group(
        self,
        part: Expr,
        o: Expr,
        g: Expr,
        words: Memory,
        packed: Packed,
        blocks: tuple[Expr, Expr],
    ) -> Stmt:
        """Two row tiles by two column tiles, over some blocks of pixels."""
        p = self.p
        numbers = [g * 2 + r for r in range(2)]
        bound = [bind(f"s{r}", self._tap(n // p.channel_tiles)) for r, n in enumerate(numbers)]
        pitch = const(4 * p.image.line, "int64")

        def step(k: Expr) -> Stmt:
            b = blocks[0] + k

            def fetch(side: int, part: int, half: int, number: int) -> Stmt:
                if side == 1:
                    source = address(packed.tiles, o, b, part, half, 0)
                    return unit("tileloadd64", tile(number), source, const(64, "int64"))
                channel = numbers[half] % p.channel_tiles * LANES
                source = address(words, part, channel, b * EDGE + bound[half][0])
                return unit("tileloadd64", tile(number), source, pitch)

            return seq(multiply(fetch, PRODUCTS))

        across = const(4 * EDGE, "int64")
        corners = [
            address(self.sums, part, o, numbers[k // 2] * LANES, k % 2 * LANES) for k in range(4)
        ]
        sums = [(tile(k), corner, across) for k, corner in enumerate(corners)]
        return seq(
            [statement for _, statement in bound],
            [unit("tileloadd64", *where) for where in sums],
            serial(blocks[1], step, "b"),
            [unit("tilestored64", *where) for where in sums],
        )

    def _in_float32(self, part: Expr, plane: Memory, ct: Memory) -> Stmt:
        """The same sums by multiply-adds of image and ct as they are."""
        p, s = self.p, self.p.s
        image, vectors = p.image, p.blocks * EDGE // LANES
        nothing = splat(const(0.0, "float32"), LANES)
        mask = local_buffer((p.blocks * EDGE,), "float32", "mask")
        lanes = local_buffer((_SQUARE, _SQUARE, LANES), "float32", "lanes")

        def block(oq: Expr, cq: Expr, i: Expr, j: Expr) -> Stmt:
            def left(c: int, v: Expr) -> Expr:
                start = (cq * _SQUARE + c) * image.line + i * image.pitch + j + v * LANES
                # Between rows ct is zero, but x may be infinite: 0 * x would not be 0.
                live = load(mask, ramp(v * LANES, LANES)) > nothing
                return tvm().tirx.Select(live, load(plane, ramp(start, LANES)), nothing)

            def right(r: int, v: Expr) -> Expr:
                return load(ct, minimum(oq * _SQUARE + r, s.o - 1), ramp(v * LANES, LANES))

            def put(c: int, r: int, value: Expr) -> Stmt:
                return store(lanes, value, c, r, ramp(0, LANES))

            def add(c: Expr, r: Expr) -> Stmt:
                row = (i * s.kw + j) * image.lines + cq * _SQUARE + c
                at = (part, oq * _SQUARE // EDGE, row, oq * _SQUARE % EDGE + r)
                total = _total([load(lanes, c, r, k) for k in range(LANES)])
                return store(self.sums, load(self.sums, *at) + total, *at)

            loops = partial(serial, vectors, name="v")
            return seq(
                plain_sums((_SQUARE, _SQUARE), left, right, loops, put),
                grid((_SQUARE, _SQUARE), add),
            )

        def mark(y: Expr, x: Expr) -> Stmt:
            return store(mask, const(1.0, "float32"), y * image.pitch + x)

        groups = (ceil_div(s.o, _SQUARE), ceil_div(s.c, _SQUARE))
        return seq(
            alloc(mask),
            alloc(lanes),
            serial(vectors, lambda v: store(mask, nothing, ramp(v * LANES, LANES)), "v"),
            grid((s.oh, s.ow), mark),
            grid((*groups, s.kh, s.kw), block),
        )


def _total(terms: list[Expr]) -> Expr:
    """Their sum, pair by pair."""
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=True)]
    return terms[0]
