"""The weight gradient of a convolution on a matrix unit that multiplies tiles of bfloat16.

``dw[o, c, i, j]`` sums ``x[n, c, y + i - top, z + j - left] * ct[n, o, y, z]`` over images and
pixels.  With pixels numbered through the padded image, a tap shifts x by a constant: the products
of one tap are a matrix product of x [channels, pixels] and ct [pixels, outputs] that starts at
another pixel of x.  As in :mod:`.conv_tiles` an image is copied once, as words whose parts belong
to a pixel and the one 16 further on, and a shift is an address.  ct is packed as any right operand,
with zeros for the pixels between the end of a row of results and the start of the next.

Rows of tiles are (tap, 16 channels), so that few channels waste nothing.  A parallel tile takes
some images and keeps sums of its own; a last stage adds them in order.
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
    ramp,
    seq,
    serial,
    splat,
    store,
    when,
)
from ...target import CpuTarget
from .bfloat_parts import (
    BLOCK_BYTES,
    EDGE,
    LANES,
    PARTS,
    Operand,
    Packed,
    Range,
    packed_memory,
    split_pair,
)
from .conv_correlate import Write4
from .conv_layout import Load4, ceil_div, split
from .conv_spec import Conv
from .conv_weight import total_of_parts
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

_PIECES = 16
_TOGETHER = 2  # blocks of pixels between two visits of a sum
# Memory of a worker: words of an image, its packed ct.
_WORD_BYTES, _PACKED_BYTES = 448 << 10, 448 << 10
# Measured cycles: of a block of four tiles' products (twice that if they share an operand), of four
# tiles' sums fetched and stored, of 16 words, of an element of ct; of a multiply-add of a vector in
# the other schedule.
_BLOCK_CYCLES, _SUM_CYCLES, _WORD_CYCLES, _CT_CYCLES, _OTHER_CYCLES = 650, 250, 20, 2.0, 0.75


@dataclass(frozen=True)
class _Shape:
    """Sizes of the problem as the unit sees it."""

    s: Conv

    @property
    def pitch(self) -> int:
        """Pixels from one row of the padded image to the next."""
        return self.s.w + 2 * self.s.padding[1]

    @property
    def pixels(self) -> int:
        """Pixels from the first result of an image to its last."""
        return (self.s.oh - 1) * self.pitch + self.s.ow

    @property
    def blocks(self) -> int:
        """Blocks of 32 pixels."""
        return ceil_div(self.pixels, EDGE)

    @property
    def line(self) -> int:
        """Words of a line: all that a tile may read, an odd number of vectors."""
        s = self.s
        height = s.h + 2 * s.padding[0]
        reach = max(height * self.pitch, self.blocks * EDGE + (s.kh - 1) * self.pitch + s.kw - 1)
        return (ceil_div(reach, LANES) | 1) * LANES

    @property
    def channel_tiles(self) -> int:
        """Groups of 16 channels."""
        return ceil_div(self.s.c, LANES)

    @property
    def tall(self) -> bool:
        """True if the outputs fill one tile's columns: then four row tiles share them."""
        return self.s.o <= LANES

    @property
    def together(self) -> int:
        """Row tiles computed at once."""
        return 4 if self.tall else 2

    @property
    def groups(self) -> int:
        """Groups of row tiles."""
        return ceil_div(self.s.kh * self.s.kw * self.channel_tiles, self.together)

    @property
    def panels(self) -> int:
        """Panels of 32 outputs."""
        return ceil_div(self.s.o, EDGE)

    @property
    def sums(self) -> tuple[int, int, int]:
        """Shape of the sums: output panels, rows (tap, channel), outputs."""
        return self.panels, self.groups * self.together * LANES, LANES if self.tall else EDGE

    @property
    def cycles(self) -> float:
        """Estimated cycles, all images and cores together."""
        s = self.s
        visits = ceil_div(self.blocks, _TOGETHER)
        one = self.blocks * _BLOCK_CYCLES * (2 if self.tall else 1) + visits * _SUM_CYCLES
        per_image: float = self.groups * self.panels * one
        per_image += self.channel_tiles * self.line * _WORD_CYCLES
        per_image += self.panels * EDGE * self.blocks * EDGE * _CT_CYCLES
        return s.n * per_image

    @property
    def other_cycles(self) -> float:
        """The same for multiply-adds of vectors."""
        s = self.s
        return s.n * s.oh * s.ow * s.o * s.c * s.kh * s.kw / LANES * _OTHER_CYCLES


def suits(s: Conv, cpu: CpuTarget) -> bool:
    """True if the unit is there, an image fits into the cache and it is worth while."""
    if not cpu.matrix_unit or s.dtype != "float32" or not s.stride == s.dilation == (1, 1):
        return False
    p = _Shape(s)
    if p.channel_tiles * LANES * p.line * PARTS * 4 > _WORD_BYTES:
        return False
    if p.panels * p.blocks * BLOCK_BYTES > _PACKED_BYTES:
        return False
    return p.cycles < p.other_cycles


def outer_products_on_unit(
    s: Conv, load_x: Load4, load_ct: Load4, write: Write4, builder: Builder, cpu: CpuTarget
) -> list[Stage]:
    """The stages."""
    p = _Shape(s)
    panels, rows, width = p.sums
    wanted = _PIECES if _PIECES * panels * rows * width * 4 <= cpu.l2_bytes else _PIECES // 2
    per_part = ceil_div(s.n, wanted)
    parts = ceil_div(s.n, per_part)
    sums = builder.scratch_buffer((parts, *p.sums), s.dtype, "sums")
    images = _Images(p, load_x, load_ct, sums)
    depth = p.channel_tiles * LANES

    def vector(part: Expr, o: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        row = (i * s.kw + j) * depth + c
        return load(sums, part, o // EDGE, row, ramp(o % width, LANES))

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
        depth = p.channel_tiles * LANES
        # A vector more, for the second pixels of the last words.
        plane = local_buffer((depth * p.line + LANES,), "float32", "plane")
        tiles = local_buffer((PARTS, depth, p.line), "uint32", "words")
        ct = local_buffer((s.o, p.blocks * EDGE), "float32", "ct")
        size = local_buffer((2,), "float32", "size")
        plain = local_buffer((1,), "int32", "plain")
        operand = Operand(
            False,
            s.o,
            p.blocks * EDGE,
            False,
            True,
            False,
            lambda _, o, k: load(ct, o, k),
            p.blocks,
        )
        packed = packed_memory(1, p.panels, p.blocks, 1, local_buffer)
        zero, nothing = const(0), splat(const(0.0, "float32"), LANES)

        def clear(panel: Expr, row: Expr) -> Stmt:
            width = p.sums[2]
            at = [(part, panel, row, ramp(v, LANES)) for v in range(0, width, LANES)]
            return seq([store(self.sums, nothing, *place) for place in at])

        def image(b: Expr) -> Stmt:
            n = first + b
            return seq(
                self._copy(n, plane, ct),
                self._words(plane, tiles, size),
                serial(
                    p.panels,
                    lambda o: operand.pack(packed, zero, o, zero, (zero, o, zero, zero)),
                    "o",
                ),
                self._products(part, (plane, tiles, size), (ct, packed), plain),
            )

        # What copies never write stays zero: borders, and pixels between rows.
        vectors = (depth * p.line + LANES) // LANES
        return seq(
            [alloc(m) for m in (plane, tiles, ct, size, plain, packed.tiles, packed.magnitude)],
            store(plain, zero, 0),
            configure(),
            grid(p.sums[:2], clear),
            serial(vectors, lambda v: store(plane, nothing, ramp(v * LANES, LANES)), "v"),
            grid(
                (s.o, p.blocks * EDGE // LANES),
                lambda o, v: store(ct, nothing, o, ramp(v * LANES, LANES)),
            ),
            serial(count, image, "b"),
            unit("tilerelease"),
        )

    def _copy(self, n: Expr, plane: Memory, ct: Memory) -> Stmt:
        """Image and ct on lines per channel, rows apart by the padded width."""
        p, s = self.p, self.p.s
        top, left = s.padding

        def row(c: Expr, y: Expr) -> Stmt:
            start = c * p.line + (y + top) * p.pitch + left
            return serial(s.w, lambda x: store(plane, self.load_x(n, c, y, x), start + x), "x")

        def ct_row(o: Expr, y: Expr) -> Stmt:
            start = y * p.pitch
            return serial(s.ow, lambda x: store(ct, self.load_ct(n, o, y, x), o, start + x), "x")

        return seq(grid((s.c, s.h), row), grid((s.o, s.oh), ct_row))

    def _words(self, plane: Memory, tiles: Memory, size: Memory) -> Stmt:
        """The parts of the image, its largest and smallest magnitude."""
        p = self.p
        range_ = Range()

        def vector(c: Expr, v: Expr) -> Stmt:
            first = c * p.line + v * LANES

            def put(part: int, word: Expr) -> Stmt:
                return store(tiles, word, part, c, ramp(v * LANES, LANES))

            pair = [load(plane, ramp(first + shift, LANES)) for shift in (0, LANES)]
            return seq(split_pair(pair[0], pair[1], range_, put))

        before, (largest, smallest, _) = range_.size()
        return seq(
            range_.start(),
            grid((p.channel_tiles * LANES, p.line // LANES), vector),
            before,
            store(size, largest, 0),
            store(size, smallest, 1),
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
        plane, tiles, size = image
        lines, packed = ct
        own = local_buffer((2,), "float32", "own")

        def note(o: Expr) -> Stmt:
            x, set_x = bind("x", load(packed.magnitude, const(0), o, const(0), 0))
            y, set_y = bind("y", load(packed.magnitude, const(0), o, const(0), 1))
            return seq(
                set_x,
                set_y,
                when(t.any(x > load(own, 0), t.isnan(x)), store(own, x, 0)),
                when(y < load(own, 1), store(own, y, 1)),
            )

        def some(first: Expr, count: Expr) -> Stmt:
            # The image's pixels stay in the first-level cache from one tap to the next.
            return serial(
                p.groups,
                lambda g: serial(
                    p.panels,
                    lambda o: self._group(part, o, g, tiles, packed, (first, count)),
                    "o",
                ),
                "g",
            )

        chunks = ceil_div(p.blocks, _TOGETHER)
        fast = serial(
            chunks,
            lambda c: some(c * _TOGETHER, minimum(_TOGETHER, p.blocks - c * _TOGETHER)),
            "chunk",
        )
        slow = serial(p.panels, lambda o: self._in_float32(part, o, plane, lines), "o")
        slow = seq(store(plain, const(1), 0), slow)
        largest, smallest = ((load(size, i), load(own, i)) for i in range(2))
        unset = t.EQ(load(plain, 0), const(0))
        return seq(
            alloc(own),
            store(own, const(0.0, "float32"), 0),
            store(own, t.infinity("float32"), 1),
            serial(p.panels, note, "o"),
            when(t.all(may_use(largest, smallest), unset), fast, slow),
        )

    def _tap(self, tap: Expr) -> Expr:
        """Pixels by which a tap shifts the image (the last tap for tiles past the end)."""
        p, s = self.p, self.p.s
        i, j = split(minimum(tap, s.kh * s.kw - 1), s.kw)
        return i * p.pitch + j

    def _group(
        self,
        part: Expr,
        o: Expr,
        g: Expr,
        tiles: Memory,
        packed: Packed,
        blocks: tuple[Expr, Expr],
    ) -> Stmt:
        """Two row tiles by two column tiles, or four by one, over some blocks of pixels."""
        p = self.p
        width = p.sums[2]
        numbers = [g * p.together + r for r in range(p.together)]
        bound = [bind(f"s{r}", self._tap(n // p.channel_tiles)) for r, n in enumerate(numbers)]
        pitch = const(4 * p.line, "int64")

        def step(k: Expr) -> Stmt:
            b = blocks[0] + k

            def fetch(side: int, part: int, half: int, number: int) -> Stmt:
                if side == 1:
                    source = address(packed.tiles, const(0), o, b, part, half, 0)
                    return unit("tileloadd64", tile(number), source, const(64, "int64"))
                channel = numbers[half] % p.channel_tiles * LANES
                source = address(tiles, part, channel, b * EDGE + bound[half][0])
                return unit("tileloadd64", tile(number), source, pitch)

            return seq(multiply_four(fetch, 0) if p.tall else multiply(fetch, PRODUCTS))

        across = const(4 * width, "int64")

        def corner(number: int) -> Expr:
            i, j = (number, 0) if p.tall else (number // 2, number % 2)
            return address(self.sums, part, o, numbers[i] * LANES, j * LANES)

        sums = [(tile(k), corner(k), across) for k in range(4)]
        return seq(
            [statement for _, statement in bound],
            [unit("tileloadd64", *where) for where in sums],
            serial(blocks[1], step, "b"),
            [unit("tilestored64", *where) for where in sums],
        )

    def _in_float32(self, part: Expr, o: Expr, plane: Memory, ct: Memory) -> Stmt:
        """The same sums by multiply-adds."""
        p, s = self.p, self.p.s
        every = ramp(0, LANES)
        depth = p.channel_tiles * LANES
        outputs: Expr = p.sums[2]
        if s.o % p.sums[2]:
            outputs = minimum(outputs, s.o - o * EDGE)
        mask = local_buffer((p.blocks * EDGE,), "float32", "mask")

        def mark(y: Expr, x: Expr) -> Stmt:
            return store(mask, const(1.0, "float32"), y * p.pitch + x)

        def element(c: Expr, i: Expr, j: Expr, r: Expr) -> Stmt:
            acc = local_buffer((LANES,), "float32", "acc")
            total = local_buffer((1,), "float32", "total")
            start = c * p.line + i * p.pitch + j

            def term(v: Expr) -> Stmt:
                x = load(plane, ramp(start + v * LANES, LANES))
                g = load(ct, o * EDGE + r, ramp(v * LANES, LANES))
                # Between rows ct is zero, but x may be infinite: 0 * x would not be 0.
                live = load(mask, ramp(v * LANES, LANES)) > splat(const(0.0, "float32"), LANES)
                product = tvm().tirx.Select(live, x * g, splat(const(0.0, "float32"), LANES))
                return store(acc, load(acc, every) + product, every)

            row = (i * s.kw + j) * depth + c
            at = (part, o, row, r)
            return seq(
                alloc(acc),
                alloc(total),
                store(acc, splat(const(0.0, "float32"), LANES), every),
                serial(p.blocks * EDGE // LANES, term, "v"),
                store(total, load(self.sums, *at), 0),
                serial(LANES, lambda k: store(total, load(total, 0) + load(acc, k), 0), "lane"),
                store(self.sums, load(total, 0), *at),
            )

        nothing = const(0.0, "float32")
        return seq(
            alloc(mask),
            serial(p.blocks * EDGE, lambda q: store(mask, nothing, q), "q"),
            grid((s.oh, s.ow), mark),
            grid((s.c, s.kh, s.kw, outputs), element),
        )
