"""The weight gradient of a convolution on a matrix unit that multiplies tiles of bfloat16.

``dw[o, c, i, j]`` sums ``ct[n, o, y, z] * x[n, c, y + i - top, z + j - left]`` over images and
pixels.  With pixels numbered through the padded image, a tap shifts x by a constant: the products
of one tap are a matrix product of ct [outputs, pixels] and x [pixels, channels] that starts at
another pixel of x.  As in :mod:`.conv_tiles` an image is copied once, as words (:mod:`.conv_words`)
that pair a pixel with the next.  Lines of ct are split into bfloat16 as they are, with zeros for
the pixels between the end of a row of results and the start of the next.

Columns of tiles are (tap, 16 channels), so that few channels waste nothing; up to 16 outputs are
one row of tiles, which meets three columns at a time.  A parallel tile takes some images, or bands
of them, and keeps sums of its own; a last stage adds them in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ....core.tvm_api import tvm
from ...loops import (
    Builder,
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    bind,
    ceil_div,
    const,
    grid,
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
from ...target import CpuTarget
from .bfloat_parts import EDGE, LANES, PARTS, Range, parts
from .conv_correlate import Axis, Write4, forward_axis
from .conv_layout import Load4, bounded_stage, div, mod, split, transpose_rows
from .conv_spec import Conv
from .conv_words import BLOCK_CYCLES, OTHER_CYCLES, Image
from .matrix_unit import (
    PRODUCTS,
    THREE,
    THREE_CYCLES,
    address,
    configure,
    may_use,
    multiply,
    multiply_three,
    tile,
    unit,
)
from .plain_sums import plain_sums

_PIECES = 16
_ROWS = 8  # outputs that plain arithmetic computes at once
# Measured cycles: of a tile's sums fetched and stored, of 16 elements of ct.
_SUM_CYCLES, _CT_CYCLES = 60, 12


@dataclass(frozen=True)
class _Shape:
    """Sizes of the problem as the unit sees it; ``bands`` is how many pieces an image is cut in."""

    s: Conv
    bands: int = 1

    @cached_property
    def axes(self) -> tuple[Axis, Axis]:
        """How rows and columns are read."""
        s = self.s
        y = forward_axis(s.oh, s.h, s.kh, s.stride[0], s.padding[0], s.dilation[0])
        return y, forward_axis(s.ow, s.w, s.kw, s.stride[1], s.padding[1], s.dilation[1])

    @property
    def units(self) -> int:
        """Rows of ct in a band."""
        return ceil_div(self.s.oh, self.bands)

    @property
    def pitch(self) -> int:
        """Pixels from one row to the next."""
        return ceil_div(self.axes[1].border()[1], self.s.stride[1])

    @property
    def blocks(self) -> int:
        """Blocks of 32 pixels, from the first result of an image to its last."""
        return ceil_div((self.units - 1) * self.pitch + self.s.ow, EDGE)

    @property
    def line(self) -> int:
        """Elements of a line of ct: an odd number of blocks, so that lines share few sets."""
        last = (self.units - 1) * self.pitch + ceil_div(self.s.ow, LANES) * LANES
        return (max(self.blocks, ceil_div(last, EDGE)) | 1) * EDGE

    @cached_property
    def image(self) -> Image:
        """Lines of an image: all that a tile may read."""
        s, (y, x) = self.s, self.axes
        (top, height), (left, _) = y.border(), x.border()
        lost = ceil_div(height, s.stride[0]) - s.oh  # rows that taps reach beyond the results'
        reach = self.blocks * EDGE + (lost + 1) * self.pitch
        low, size = (top, left), (s.h, s.w)
        return Image(s.c, size, low, s.stride, self.units + lost, self.pitch, "next", reach)

    @property
    def height(self) -> int:
        """Tiles of 16 outputs that are computed together."""
        return 1 if self.s.o <= LANES else 2

    @property
    def width(self) -> int:
        """Columns that are computed together."""
        return THREE if self.height == 1 else 2

    @property
    def panels(self) -> int:
        """Groups of outputs."""
        return ceil_div(self.s.o, LANES * self.height)

    @property
    def groups(self) -> int:
        """Groups of columns, (tap, 16 channels)."""
        return ceil_div(self.s.kh * self.s.kw * self.image.groups, self.width)

    @property
    def sums(self) -> tuple[int, int, int, int]:
        """Shape of the sums: 16 outputs, column, output, channel."""
        return self.panels * self.height, self.groups * self.width, LANES, LANES

    @property
    def bytes(self) -> int:
        """Of an image, its words, and the parts of ct."""
        return self.image.bytes + self.sums[0] * LANES * self.line * 2 * PARTS

    @property
    def cycles(self) -> float:
        """Estimated cycles, all images and cores together."""
        block = THREE_CYCLES if self.height == 1 else BLOCK_CYCLES
        visit = self.blocks * block + self.height * self.width * _SUM_CYCLES
        per_band: float = self.groups * self.panels * visit + self.image.cycles
        per_band += self.s.o * self.line / LANES * _CT_CYCLES
        return self.s.n * self.bands * per_band

    @property
    def other_cycles(self) -> float:
        """The same for multiply-adds of vectors."""
        s = self.s
        return s.n * s.oh * s.ow * s.o * s.c * s.kh * s.kw / LANES * OTHER_CYCLES


def plan(s: Conv, cpu: CpuTarget) -> _Shape | None:
    """The problem in bands, if the unit is there, a band fits the cache and it is worth while."""
    if not cpu.matrix_unit or s.dtype != "float32" or s.dilation != (1, 1):
        return None
    wanted = max(1, min(s.oh // 4, ceil_div(_PIECES // 2, s.n)))
    for bands in range(wanted, max(wanted, s.oh // 4) + 1):
        p = _Shape(s, bands)
        if p.bytes <= cpu.l2_bytes * 3 // 4:
            return p if p.cycles < p.other_cycles else None
    return None


def outer_products_on_unit(
    p: _Shape, load_x: Load4, load_ct: Load4, write: Write4, builder: Builder, cpu: CpuTarget
) -> list[Stage]:
    """The stages."""
    size = math.prod(p.sums) * 4
    wanted = _PIECES if _PIECES * size <= cpu.l2_bytes else _PIECES // 2
    items = p.s.n * p.bands
    per_part = ceil_div(items, wanted)
    count = ceil_div(items, per_part)
    sums = builder.scratch_buffer((count, *p.sums), p.s.dtype, "sums")
    images = _Images(p, load_x, load_ct, sums)

    def part_stage(part: Expr) -> Stmt:
        first = part * per_part
        return images.add(part, first, minimum(per_part, items - first))

    return [bounded_stage("conv_dw", count, part_stage), _total(p, count, sums, write)]


@dataclass(frozen=True)
class _Images:
    """Builds the stage that sums over some images per tile."""

    p: _Shape
    load_x: Load4
    load_ct: Load4
    sums: Memory

    def add(self, part: Expr, first: Expr, count: Expr) -> Stmt:
        """Fill the sums of a part."""
        p = self.p
        plane, words = p.image.memory()
        outputs = p.sums[0] * LANES
        halves = local_buffer((PARTS, outputs, p.line), "uint16", "halves")
        magnitude = local_buffer((2,), "float32", "magnitude")
        own = local_buffer((2,), "float32", "own")
        plain = local_buffer((1,), "int32", "plain")
        nothing = splat(const(0.0, "float32"), LANES)
        zero = splat(const(0, "uint16"), EDGE)

        def one(b: Expr) -> Stmt:
            n, band = split(first + b, p.bands)
            row0: Expr = 0 if p.bands == 1 else band * p.units
            return seq(
                p.image.copy(plane, lambda c, y, x: self.load_x(n, c, y, x), row0),
                p.image.split(plane, words, magnitude),
                clear_ct() if p.bands > 1 else [],
                self._split_ct(n, row0, halves, own),
                self._products((part, n, row0), (plane, words, magnitude), (halves, own), plain),
            )

        def clear(*index: Expr) -> Stmt:
            return store(self.sums, nothing, part, *index, ramp(0, LANES))

        def clear_ct() -> Stmt:
            def vector(part: Expr, o: Expr, b: Expr) -> Stmt:
                return store(halves, zero, part, o, ramp(b * EDGE, EDGE))

            return grid((PARTS, outputs, p.line // EDGE), vector)

        return seq(
            [alloc(m) for m in (plane, words, halves, magnitude, own, plain)],
            store(plain, const(0), 0),
            configure(),
            grid(p.sums[:3], clear),
            # Between rows ct stays zero.
            clear_ct(),
            serial(count, one, "b"),
            unit("tilerelease"),
        )

    def _rows(self, row0: Expr) -> Expr:
        """Rows of ct in a band."""
        p = self.p
        exact = p.units * p.bands == p.s.oh
        return p.units if exact else minimum(p.units, p.s.oh - row0)

    def _split_ct(self, n: Expr, row0: Expr, halves: Memory, own: Memory) -> Stmt:
        """Store the parts of ct, and the largest and smallest magnitude."""
        p, range_ = self.p, Range()
        across = ceil_div(p.s.ow, LANES)
        # Zeros behind the end of a row go where the next starts, which comes later.
        rows = local_buffer((p.units, across * LANES), "float32", "rows")
        count = self._rows(row0)

        def vector(o: Expr, v: Expr, b: Expr) -> Stmt:
            at = ramp(v * p.pitch + b * LANES, LANES)
            x, set_x = bind("x", load(rows, v, ramp(b * LANES, LANES)))
            statements: list[Stmt] = [set_x, *range_.note(x)]
            for part, value in enumerate(parts(x, statements, range_)):
                bits = tvm().tirx.reinterpret(f"uint32x{LANES}", value)
                half = (bits >> splat(const(16, "uint32"), LANES)).astype(f"uint16x{LANES}")
                statements.append(store(halves, half, part, o, at))
            return seq(statements)

        def line(o: Expr) -> Stmt:
            def copy(v: Expr, x: Expr) -> Stmt:
                return store(rows, self.load_ct(n, o, row0 + v, x), v, x)

            return seq(
                grid((count, p.s.ow), copy), grid((count, across), lambda v, b: vector(o, v, b))
            )

        rest = across * LANES - p.s.ow
        nothing = const(0.0, "float32")
        before, (largest, smallest, _) = range_.size()
        return seq(
            alloc(rows),
            grid((p.units, rest), lambda v, x: store(rows, nothing, v, p.s.ow + x))
            if rest
            else [],
            range_.start(),
            serial(p.s.o, line, "o"),
            before,
            store(own, largest, 0),
            store(own, smallest, 1),
        )

    def _products(
        self,
        where: tuple[Expr, Expr, Expr],
        image: tuple[Memory, Memory, Memory],
        ct: tuple[Memory, Memory],
        plain: Memory,
    ) -> Stmt:
        """Add one image to the sums.

        ``plain`` is set once the unit was not used: sums may then be denormal, and the unit would
        take them for zero with the next image.
        """
        p, t = self.p, tvm().tirx
        (plane, words, magnitude), (halves, own) = image, ct
        fast = grid(
            (p.panels, p.groups), lambda o, g: self._tiles(where[0], o, g, words, halves)
        )
        slow = seq(store(plain, const(1), 0), self._in_float32(where, plane))
        largest, smallest = ((load(magnitude, i), load(own, i)) for i in range(2))
        unset = t.EQ(load(plain, 0), const(0))
        return when(t.all(may_use(largest, smallest), unset), fast, slow)

    def _column(self, number: Expr) -> tuple[Expr, Expr, Expr]:
        """Phase, group of channels, and pixel by which a column shifts the image.

        Columns past the end repeat the last.
        """
        p, s = self.p, self.p.s
        groups = p.image.groups
        tap, group = split(minimum(number, s.kh * s.kw * groups - 1), groups)
        i, j = split(tap, s.kw)
        (down, across), pitch = s.stride, p.pitch
        phase = mod(i, down) * across + mod(j, across)
        return phase, group, div(i, down) * pitch + div(j, across)

    def _tiles(self, part: Expr, o: Expr, g: Expr, words: Memory, halves: Memory) -> Stmt:
        """Sums of a group of outputs and one of columns, over all pixels of the image."""
        p = self.p
        lines = const(2 * p.line, "int64")
        # Rows of a tile are pairs of pixels: every other word.
        pairs, across = const(2 * 4 * LANES, "int64"), const(4 * LANES, "int64")
        bound: list[Stmt] = []
        columns = []
        for k in range(p.width):
            names = zip(("phase", "group", "pixel"), self._column(g * p.width + k), strict=True)
            column = []
            for name, value in names:
                place, statement = bind(name, value)
                column.append(place)
                bound.append(statement)
            columns.append(column)

        def step(k: Expr) -> Stmt:
            def left(part: int, number: int, register: int) -> Stmt:
                source = address(halves, part, (o * p.height + number) * LANES, k * EDGE)
                return unit("tileloadd64", tile(register), source, lines)

            def right(part: int, number: int, register: int) -> Stmt:
                phase, group, pixel = columns[number]
                first = k * EDGE + pixel
                source = address(words, p.image.word_line(part, phase, group, first), 0)
                return unit("tileloadd64", tile(register), source, pairs)

            if p.height == 1:

                def of_three(side: int, *where: int) -> Stmt:
                    return right(*where) if side == 0 else left(*where)

                return seq(multiply_three(of_three, three_left=False))

            def of_square(side: int, *where: int) -> Stmt:
                return left(*where) if side == 0 else right(*where)

            return seq(multiply(of_square, PRODUCTS))

        sums = []
        for k in range(p.height * p.width):
            place = (o * p.height + k // p.width, g * p.width + k % p.width)
            sums.append((tile(k), address(self.sums, part, *place, 0, 0), across))
        return seq(
            bound,
            [unit("tileloadd64", *where) for where in sums],
            serial(p.blocks, step, "k"),
            [unit("tilestored64", *where) for where in sums],
        )

    def _in_float32(self, where: tuple[Expr, Expr, Expr], plane: Memory) -> Stmt:
        """The same sums by multiply-adds of image and ct as they are."""
        p, every = self.p, ramp(0, LANES)
        part, n, row0 = where

        def block(oq: Expr, column: Expr) -> Stmt:
            phase, group, pixel = self._column(column)

            def left(r: int, v: Expr, x: Expr) -> Expr:
                o = minimum(oq * _ROWS + r, p.s.o - 1)
                return splat(self.load_ct(n, o, row0 + v, x), LANES)

            def right(_: int, v: Expr, x: Expr) -> Expr:
                return load(plane, p.image.line(phase, group, v * p.pitch + x + pixel), every)

            def place(r: int) -> tuple[Expr, ...]:
                o = oq * _ROWS + r
                return part, div(o, LANES), column, mod(o, LANES), every

            return plain_sums(
                (_ROWS, 1),
                left,
                right,
                lambda step: grid((self._rows(row0), p.s.ow), step),
                lambda r, _, value: store(self.sums, value, *place(r)),
                lambda r, _: load(self.sums, *place(r)),
            )

        columns = p.s.kh * p.s.kw * p.image.groups
        return grid((p.sums[0] * LANES // _ROWS, columns), block)


def _total(p: _Shape, count: int, sums: Memory, write: Write4) -> Stage:
    """Add the parts in order and hand the result to the epilogue in OIHW order."""
    s, taps, groups = p.s, p.s.kh * p.s.kw, p.image.groups
    every = ramp(0, LANES)

    def body(index: Expr) -> Stmt:
        o, group = split(index, groups)
        flat = local_buffer((LANES * taps + LANES,), s.dtype, "flat")

        def turn(b: Expr) -> Stmt:
            # What a line has beyond its taps is overwritten by the next, or by an earlier block.
            tap0 = (ceil_div(taps, LANES) - 1 - b) * LANES

            def fill(block: Memory, r: Expr) -> Stmt:
                column = minimum(tap0 + r, taps - 1) * groups + group

                def of_part(part: Expr) -> Expr:
                    return load(sums, part, div(o, LANES), column, mod(o, LANES), every)

                def more(part: Expr) -> Stmt:
                    return store(block, load(block, r, every) + of_part(part + 1), r, every)

                return seq(
                    store(block, of_part(const(0)), r, every),
                    serial(count - 1, more, "part") if count > 1 else [],
                )

            return transpose_rows(
                LANES,
                s.dtype,
                fill,
                lambda k, vector: store(flat, vector, ramp(k * taps + tap0, LANES)),
            )

        def element(k: Expr, i: Expr, j: Expr) -> Stmt:
            value = load(flat, (k * s.kh + i) * s.kw + j)
            return write(o, group * LANES + k, i, j, value)

        live: Expr = LANES if s.c % LANES == 0 else minimum(LANES, s.c - group * LANES)
        return seq(
            alloc(flat),
            serial(ceil_div(taps, LANES), turn, "b"),
            grid((live, s.kh, s.kw), element),
        )

    return bounded_stage("conv_dw_sum", s.o * groups, body)
