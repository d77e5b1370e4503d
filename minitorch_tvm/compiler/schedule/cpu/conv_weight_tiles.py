"""The weight gradient of a convolution on a matrix unit that multiplies tiles of bfloat16.

``dw[o, c, i, j]`` sums ``ct[n, o, y, z] * x[n, c, y + i - top, z + j - left]`` over images and
pixels.  With pixels numbered through the padded image, a tap shifts x by a constant: the products
of one tap are a matrix product of ct [outputs, pixels] and x [pixels, channels] that starts at
another pixel of x.  Two images, or bands of one, are summed at once: a word holds parts of both,
so that no shift takes a pixel from its partner.  Images of x are copied with channels last
(:mod:`.conv_words`).  Rows of ct are split into blocks of 16 pixels; where that takes more of them,
rows follow each other as those of x do, with zeros between them.

Columns of tiles are (tap, 16 channels), so that few channels waste nothing; up to 16 outputs are
one row of tiles, which meets three columns at a time.  A parallel tile takes some pairs of images,
and keeps sums of its own; a last stage adds them in order.
"""

from __future__ import annotations

import math
from functools import cached_property

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    Builder,
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    ask,
    bind,
    ceil_div,
    const,
    grid,
    in_vectors,
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
from .bfloat_parts import LANES, PARTS, PRODUCTS, Range, split_pair
from .conv_axes import Axis, forward_axes, share
from .conv_layout import AHEAD, Load4, bounded_stage, div, mod, split, transpose_rows
from .conv_spec import Access, Conv
from .conv_words import BLOCK_CYCLES, OTHER_CYCLES, Image, nothing
from .matrix_unit import (
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
_ROWS = 16  # outputs that plain arithmetic computes at once
# Measured cycles: of a tile's sums fetched and stored, of 16 words of ct.
_SUM_CYCLES, _CT_CYCLES = 60, 25
# Of a byte of sums that comes from the third-level cache and returns there, as more of them do.
_FAR_CYCLES = 0.6


@record
class _Shape:
    """Sizes of the problem as the unit sees it.

    ``bands`` is how many pieces an image is cut in, ``near`` how many bytes of sums stay in a
    core's cache.
    """

    s: Conv
    bands: int = 1
    near: int = 1 << 20

    @cached_property
    def axes(self) -> tuple[Axis, Axis]:
        """How rows and columns are read."""
        return forward_axes(self.s)

    @property
    def units(self) -> int:
        """Rows of ct in a band."""
        return ceil_div(self.s.oh, self.bands)

    @property
    def pitch(self) -> int:
        """Pixels from one row to the next."""
        return ceil_div(self.axes[1].border()[1], self.s.stride[1])

    @property
    def across(self) -> int:
        """Blocks of 16 pixels that cover a row of ct."""
        return ceil_div(self.s.ow, LANES)

    @property
    def by_rows(self) -> bool:
        """True if rows of ct start blocks of their own; else they follow each other with gaps."""
        return self.units * self.across <= self._blocks_with_gaps

    @property
    def _blocks_with_gaps(self) -> int:
        return ceil_div((self.units - 1) * self.pitch + self.s.ow, LANES)

    @property
    def blocks(self) -> int:
        """Blocks of 16 pixels, from the first result of an image to its last."""
        return self.units * self.across if self.by_rows else self._blocks_with_gaps

    @property
    def row(self) -> int:
        """Elements from one row of ct to the next."""
        return self.across * LANES if self.by_rows else self.pitch

    def first_pixel(self, block: Expr) -> Expr:
        """Pixel of x that a block of ct starts with."""
        if not self.by_rows:
            return block * LANES
        v, b = split(block, self.across)
        return v * self.pitch + b * LANES

    def together(self, cpu: CpuTarget) -> int:
        """Blocks between two visits of a sum: what they read stays in the first-level cache."""
        lost = self.image.rows - self.units
        line = 4 * LANES * PARTS * self.image.groups * self.image.phases
        block = LANES * (line + 4 * LANES * PARTS * self.height)
        room = cpu.l1_bytes * 3 // 4 - (lost * self.pitch + self.s.kw) * line
        return max(2, min(self.blocks, room // block))

    @property
    def items(self) -> int:
        """Images or bands."""
        return self.s.n * self.bands

    @property
    def even(self) -> bool:
        """True if all items have as many rows, and each has a partner."""
        return self.units * self.bands == self.s.oh and self.items % 2 == 0

    @cached_property
    def image(self) -> Image:
        """Lines of an image: all that a tile may read."""
        s, (y, x) = self.s, self.axes
        (top, height), (left, _) = y.border(), x.border()
        lost = ceil_div(height, s.stride[0]) - s.oh  # rows that taps reach beyond the results'
        reach = (self.units + lost + 1) * self.pitch + 2 * LANES
        low, size = (top, left), (s.h, s.w)
        return Image(s.c, size, low, s.stride, self.units + lost, self.pitch, reach)

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
        """Of two images, their words, and those of ct."""
        lines = (PARTS + 2) * (self.image.lines + self.image.slack)
        return 4 * LANES * (lines + PARTS * self.sums[0] * self.blocks * LANES)

    @property
    def cycles(self) -> float:
        """Estimated cycles, all images and cores together."""
        block = THREE_CYCLES if self.height == 1 else BLOCK_CYCLES
        visit = self.blocks * block + self.height * self.width * _SUM_CYCLES
        per_pair: float = self.groups * self.panels * visit + 2 * self.image.cycles
        per_pair += self.s.o * self.blocks * _CT_CYCLES
        size = 4 * math.prod(self.sums)
        if size > self.near:
            per_pair += size * _FAR_CYCLES
        # Two cores: what is computed must not depend on how many there are.
        return ceil_div(ceil_div(self.items, 2), 2) * 2 * per_pair


def vector_cycles(s: Conv, cpu: CpuTarget) -> float:
    """The same for multiply-adds of vectors."""
    y, x = forward_axes(s)
    outputs = ceil_div(s.o, cpu.lanes(s.itemsize))  # in vectors
    terms = s.n * s.oh * s.ow * outputs * s.c * s.kh * s.kw * share(y, 1)
    if s.c >= LANES:  # else register tiles have columns of many taps
        terms *= share(x, 1)
    return terms * OTHER_CYCLES


def plan(s: Conv, cpu: CpuTarget) -> _Shape | None:
    """The problem in bands, if the unit is there, a band fits the cache and it is worth while."""
    if not cpu.matrix_unit or s.dtype != "float32" or s.dilation != (1, 1):
        return None
    wanted = max(1, min(s.oh // 4, ceil_div(_PIECES // 2, s.n)))
    for bands in range(wanted, max(wanted, s.oh // 4) + 1):
        p = _Shape(s, bands, cpu.l2_bytes // 2)
        if p.bytes <= cpu.l2_bytes * 3 // 4:
            return p if p.cycles < vector_cycles(s, cpu) else None
    return None


def outer_products_on_unit(
    p: _Shape, access: Access, builder: Builder, cpu: CpuTarget
) -> list[Stage]:
    """The stages."""
    size = math.prod(p.sums) * 4
    wanted = _PIECES if _PIECES * size <= cpu.l2_bytes else _PIECES // 2
    pairs = ceil_div(p.items, 2)
    per_part = ceil_div(pairs, wanted)
    count = ceil_div(pairs, per_part)
    sums = builder.scratch_buffer((count, *p.sums), p.s.dtype, "sums")
    images = _Images(p, access.left, access.right, sums, p.together(cpu))

    def part_stage(part: Expr) -> Stmt:
        first = part * per_part
        return images.add(part, first, minimum(per_part, pairs - first))

    return [bounded_stage("conv_dw", count, part_stage), _total(p, count, sums, access)]


@record
class _Images:
    """Builds the stage that sums over some pairs of images per tile."""

    p: _Shape
    load_x: Load4
    load_ct: Load4
    sums: Memory
    together: int

    def add(self, part: Expr, first: Expr, count: Expr) -> Stmt:
        """Fill the sums of a part."""
        p, image = self.p, self.p.image
        lines = image.lines + image.slack
        planes = local_buffer((2, lines, LANES), "float32", "planes")
        words = local_buffer((PARTS * image.lines + image.slack, LANES), "uint32", "words")
        ct = local_buffer((PARTS, p.sums[0], p.blocks, LANES, LANES), "uint32", "ct")
        magnitude = local_buffer((2,), "float32", "magnitude")
        own = local_buffer((2,), "float32", "own")
        plain = local_buffer((1,), "int32", "plain")
        every = ramp(0, LANES)
        zero = splat(const(0, "uint32"), LANES)

        def clear_planes() -> Stmt:
            return grid((2, lines), lambda i, n: store(planes, nothing(), i, n, every))

        def copy(pair: Expr, side: Expr) -> Stmt:
            n, row0, _ = self._item(pair, side)

            def put(group: Expr, phase: Expr, pixel: Expr, vector: Expr) -> Stmt:
                return store(planes, vector, side, image.line(phase, group, pixel), every)

            return image.walk(lambda c, y, x: self.load_x(n, c, y, x), put, row0)

        def one(b: Expr) -> Stmt:
            pair = first + b
            return seq(
                clear_planes() if p.bands > 1 else [],
                serial(2, lambda side: copy(pair, side), "side"),
                self._split_x(planes, words, magnitude),
                self._split_ct(pair, ct, own),
                self._products((part, pair), (planes, words, magnitude), (ct, own), plain),
            )

        def clear(*index: Expr) -> Stmt:
            return store(self.sums, nothing(), part, *index, every)

        return seq(
            [alloc(m) for m in (planes, words, ct, magnitude, own, plain)],
            store(plain, const(0), 0),
            configure(),
            grid(p.sums[:3], clear),
            # Borders stay zero, and so do lines behind the last.
            clear_planes() if p.bands == 1 else [],
            serial(image.slack, lambda n: store(words, zero, PARTS * image.lines + n, every), "n"),
            serial(count, one, "b"),
            unit("tilerelease"),
        )

    def _item(self, pair: Expr, side: Expr) -> tuple[Expr, Expr, Expr]:
        """Image, first row, and number of rows of one of a pair; without a partner, no rows."""
        p = self.p
        index = pair * 2 + side
        n, band = split(minimum(index, p.items - 1), p.bands)
        row0: Expr = 0 if p.bands == 1 else band * p.units
        if p.even:
            return n, row0, p.units
        rows = minimum(p.units, p.s.oh - row0)
        return n, row0, tvm().tirx.Select(index < p.items, rows, const(0))

    def _split_x(self, planes: Memory, words: Memory, magnitude: Memory) -> Stmt:
        """Store words of both images, and the largest and smallest magnitude."""
        range_, every, lines = Range(), ramp(0, LANES), self.p.image.lines

        def line(n: Expr) -> Stmt:
            def put(part: int, word: Expr) -> Stmt:
                return store(words, word, part * lines + n, every)

            low, high = (load(planes, side, n, every) for side in range(2))
            return seq(split_pair(low, high, range_, put))

        return seq(range_.start(), serial(lines, line, "n"), _note(range_, magnitude))

    def _split_ct(self, pair: Expr, ct: Memory, own: Memory) -> Stmt:
        """Store words of both ct, and the largest and smallest magnitude."""
        p, range_ = self.p, Range()
        # Rows that start blocks of their own are taken one by one, for 16 outputs, whose words are
        # neighbours: those of one output lie so far apart that they share few places of the cache.
        strips, rows = (p.units, 1) if p.by_rows else (1, p.units)
        blocks = p.blocks // strips
        # Between rows it stays zero.
        line = local_buffer((2, LANES, blocks * LANES), "float32", "line")

        def copy(strip: Expr, oq: Expr, side: Expr, r: Expr) -> Stmt:
            n, row0, count = self._item(pair, side)
            o = oq * LANES + r

            def element(v: Expr, x: Expr) -> Stmt:
                value = self.load_ct(n, o, row0 + strip * rows + v, x)
                return store(line, value, side, r, v * p.row + x)

            def row(v: Expr) -> Stmt:
                ahead = minimum(row0 + strip * rows + v + AHEAD, p.s.oh - 1)
                lines = [const(x) for x in range(0, p.s.ow, LANES)]
                asks = ask(lambda: [self.load_ct(n, o, ahead, x) for x in lines])
                return seq(asks, in_vectors(p.s.ow, LANES, lambda x: element(v, x)))

            return serial(minimum(rows, count - strip * rows), row, "v")

        def words(strip: Expr, oq: Expr, b: Expr, r: Expr) -> Stmt:
            def put(part: int, word: Expr) -> Stmt:
                return store(ct, word, part, oq, strip * blocks + b, r, ramp(0, LANES))

            low, high = (load(line, side, r, ramp(b * LANES, LANES)) for side in range(2))
            return seq(split_pair(low, high, range_, put))

        def clear() -> Stmt:
            def vector(side: Expr, r: Expr, b: Expr) -> Stmt:
                return store(line, nothing(), side, r, ramp(b * LANES, LANES))

            return grid((2, LANES, blocks), vector)

        def part(oq: Expr, strip: Expr) -> Stmt:
            high = LANES if p.s.o % LANES == 0 else minimum(LANES, p.s.o - oq * LANES)
            return seq(
                [] if p.even else clear(),  # a side may have fewer rows
                grid((2, high), lambda side, r: copy(strip, oq, side, r)),
                grid((blocks, high), lambda b, r: words(strip, oq, b, r)),
            )

        return seq(
            alloc(line),
            clear(),
            range_.start(),
            grid((ceil_div(p.s.o, LANES), strips), part),
            _note(range_, own),
        )

    def _products(
        self,
        where: tuple[Expr, Expr],
        image: tuple[Memory, Memory, Memory],
        ct: tuple[Memory, Memory],
        plain: Memory,
    ) -> Stmt:
        """Add a pair of images to the sums.

        ``plain`` is set once the unit was not used: sums may then be denormal, and the unit would
        take them for zero with the next pair.
        """
        p, t = self.p, tvm().tirx
        (planes, words, magnitude), (lines, own) = image, ct

        def some(chunk: Expr) -> Stmt:
            first = chunk * self.together
            blocks = first, minimum(self.together, p.blocks - first)
            return grid(
                (p.panels, p.groups),
                lambda o, g: self._tiles(where[0], o, g, words, lines, blocks),
            )

        fast = serial(ceil_div(p.blocks, self.together), some, "chunk")
        slow = seq(
            store(plain, const(1), 0),
            serial(2, lambda side: self._in_float32(where, side, planes), "side"),
        )
        largest, smallest = ((load(magnitude, i), load(own, i)) for i in range(2))
        unset = t.EQ(load(plain, 0), const(0))
        return when(t.all(may_use(largest, smallest), unset), fast, slow)

    def _column(self, number: Expr) -> Expr:
        """Line of the first pixel that a column reads; columns past the end repeat the last."""
        p, s = self.p, self.p.s
        groups = p.image.groups
        tap, group = split(minimum(number, s.kh * s.kw * groups - 1), groups)
        i, j = split(tap, s.kw)
        down, across = s.stride
        phase = mod(i, down) * across + mod(j, across)
        return p.image.line(phase, group, div(i, down) * p.pitch + div(j, across))

    def _tiles(
        self,
        part: Expr,
        o: Expr,
        g: Expr,
        words: Memory,
        ct: Memory,
        blocks: tuple[Expr, Expr],
    ) -> Stmt:
        """Sums of a group of outputs and one of columns, over some blocks of two images."""
        p = self.p
        across = const(4 * LANES, "int64")
        columns = [bind("column", self._column(g * p.width + k)) for k in range(p.width)]

        def step(k: Expr) -> Stmt:
            b = blocks[0] + k
            pixel, bind_pixel = bind("pixel", p.first_pixel(b))

            def left(part: int, number: int, register: int) -> Stmt:
                source = address(ct, part, o * p.height + number, b, 0, 0)
                return unit("tileloadd64", tile(register), source, across)

            def right(part: int, number: int, register: int) -> Stmt:
                line = columns[number][0] + pixel + part * p.image.lines
                return unit("tileloadd64", tile(register), address(words, line, 0), across)

            if p.height == 1:

                def of_three(side: int, *where: int) -> Stmt:
                    return right(*where) if side == 0 else left(*where)

                return seq(bind_pixel, multiply_three(of_three))

            def of_square(side: int, *where: int) -> Stmt:
                return left(*where) if side == 0 else right(*where)

            return seq(bind_pixel, multiply(of_square, PRODUCTS))

        sums = []
        for k in range(p.height * p.width):
            place = (o * p.height + k // p.width, g * p.width + k % p.width)
            sums.append((tile(k), address(self.sums, part, *place, 0, 0), across))
        return seq(
            [statement for _, statement in columns],
            [unit("tileloadd64", *where) for where in sums],
            serial(blocks[1], step, "k"),
            [unit("tilestored64", *where) for where in sums],
        )

    def _in_float32(self, where: tuple[Expr, Expr], side: Expr, planes: Memory) -> Stmt:
        """The same sums of one image by multiply-adds of x and ct as they are."""
        p, every = self.p, ramp(0, LANES)
        part, pair = where
        n, row0, count = self._item(pair, side)

        def block(oq: Expr, column: Expr) -> Stmt:
            first = self._column(column)

            def left(r: int, v: Expr, x: Expr) -> Expr:
                o = minimum(oq * _ROWS + r, p.s.o - 1)
                return splat(self.load_ct(n, o, row0 + v, x), LANES)

            def right(_: int, v: Expr, x: Expr) -> Expr:
                return load(planes, side, first + v * p.pitch + x, every)

            def place(r: int) -> tuple[Expr, ...]:
                o = oq * _ROWS + r
                return part, div(o, LANES), column, mod(o, LANES), every

            return plain_sums(
                (_ROWS, 1),
                left,
                right,
                lambda step: grid((count, p.s.ow), step),
                lambda r, _, value: store(self.sums, value, *place(r)),
                lambda r, _: load(self.sums, *place(r)),
            )

        columns = p.s.kh * p.s.kw * p.image.groups
        return grid((p.sums[0] * LANES // _ROWS, columns), block)


def _note(range_: Range, magnitude: Memory) -> Stmt:
    """Store the largest and smallest magnitude."""
    before, (largest, smallest, _) = range_.size()
    return seq(before, store(magnitude, largest, 0), store(magnitude, smallest, 1))


def _total(p: _Shape, count: int, sums: Memory, access: Access) -> Stage:
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
                apart=True,
            )

        def element(k: Expr, i: Expr, j: Expr) -> Stmt:
            value = load(flat, (k * s.kh + i) * s.kw + j)
            return access.write(o, group * LANES + k, i, j, value)

        line = access.write_line
        if s.c % LANES == 0 and line is not None:
            # As they lie in memory; of short rows LLVM would take elements apart.
            first = group * (LANES * taps)
            put = in_vectors(LANES * taps, LANES, lambda q: line(o, first + q, load(flat, q)))
        else:
            put = grid((minimum(LANES, s.c - group * LANES), s.kh, s.kw), element)
        return seq(alloc(flat), serial(ceil_div(taps, LANES), turn, "b"), put)

    return bounded_stage("conv_dw_sum", s.o * groups, body)
