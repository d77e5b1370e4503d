"""Convolution of float32 on a matrix unit that multiplies tiles of bfloat16 (Intel AMX).

Every tap of a convolution is a matrix product, of an image [pixels, channels] that the tap shifts
and of weights [channels, outputs].  An image is copied once (:mod:`.conv_words`), with 32 channels
to a line of bfloat16, a line for each of three parts.  Up to 16 channels leave half of a line free:
then two lines hold two parts each, and three products of tiles take the place of six.

Pixels are numbered through the padded image.  Those between the end of a row of results and the
start of the next are computed for nothing, a share of kernel width over image width.  With stride s
a convolution adds up products of the s x s phases of its image; its input gradient falls apart into
s x s classes of results, each with taps of its own (:class:`.conv_axes.Axis`).

A parallel tile is one image, or a band of its rows: its parts, and its sums of 32 outputs, stay in
the second-level cache.  Up to 16 outputs fill one column of the unit's tiles, and three or four
panels of 16 pixels take turns.  An image, or weights, that the unit would compute wrongly (see
:mod:`.gemm_tiles`) take plain float32 arithmetic.
"""

from __future__ import annotations

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
from ...queues import stage_with_start
from ...target import CpuTarget
from .bfloat_parts import (
    EDGE,
    HALVES,
    LANES,
    MIXED,
    MIXED_PARTS,
    PARTS,
    PRODUCTS,
    Operand,
    Packed,
    Range,
    mixed_words,
    packed_memory,
    parts,
)
from .conv_axes import Axis, Taps
from .conv_layout import Load4, Write4, bounded, div, mod, split, turn
from .conv_words import BLOCK_CYCLES, OTHER_CYCLES, Image, range_of, upper_halves
from .matrix_unit import (
    address,
    configure,
    may_use,
    multiply,
    multiply_column,
    tile,
    unit,
)
from .plain_sums import plain_sums

_VECTORS = 16  # of sums that plain arithmetic computes at once
# Tiles that keep the cores of a desktop machine busy.
_PIECES = 8
# Measured cycles: of a result, of a weight.
_RESULT_CYCLES, _WEIGHT_CYCLES = 1.0, 8


@record
class Correlation:
    """A sum over taps and channels; ``bands`` is how many tiles share an image."""

    images: int
    channels: int
    outputs: int
    y: Axis
    x: Axis
    bands: int = 1

    @property
    def mixed(self) -> bool:
        """True if a line of the unit's operand holds two parts of an element."""
        return self.channels <= LANES

    @property
    def width(self) -> int:
        """Outputs per panel of sums."""
        return LANES if self.outputs <= LANES else EDGE

    @cached_property
    def high(self) -> int:
        """Tiles of 16 pixels that meet one column of weights together."""
        # Four wait for each other less than three do, but fill up more.
        return min((4, 3), key=lambda n: ceil_div(self._results, n * LANES) * n)

    @property
    def panel(self) -> int:
        """Pixels whose sums are computed together."""
        if self.outputs > LANES:
            return EDGE
        return self.high * LANES

    @property
    def groups(self) -> int:
        """Groups of 32 channels."""
        return ceil_div(self.channels, EDGE)

    @property
    def classes(self) -> int:
        """Residues of results."""
        return self.y.stride * self.x.stride

    @property
    def units(self) -> int:
        """Rows of a class that a tile computes."""
        return ceil_div(self.y.units, self.bands)

    @property
    def pitch(self) -> int:
        """Pixels from one row of a phase to the next."""
        return ceil_div(self.x.border()[1], self.x.input_stride)

    @property
    def _results(self) -> int:
        """Pixels from the first result of a class to its last."""
        return (self.units - 1) * self.pitch + self.x.units

    @property
    def panels(self) -> int:
        """Panels of pixels."""
        return ceil_div(self._results, self.panel)

    @property
    def pixels(self) -> int:
        """Lines of sums of a class, what the last row's transposition reads included."""
        return max(self.panels * self.panel, self.units * self.pitch + LANES)

    @cached_property
    def image(self) -> Image:
        """Lines of an image: all that a tile may read."""
        (top, height), (left, _) = self.y.border(), self.x.border()
        down, across = self.y.input_stride, self.x.input_stride
        lost = ceil_div(height, down) - self.y.units  # rows that taps reach beyond the results'
        rows = self.units + lost
        reach = self.panels * self.panel + (lost + 1) * self.pitch
        low, size = (top, left), (self.y.inputs, self.x.inputs)
        return Image(self.channels, size, low, (down, across), rows, self.pitch, reach)

    @property
    def blocks(self) -> int:
        """Blocks of 32 weights per output, or of 16, of all classes."""
        return self.y.kernel * self.x.kernel * self.groups

    @property
    def parts(self) -> int:
        """Lines for 32 channels of a pixel, or 16."""
        return MIXED_PARTS if self.mixed else PARTS

    @property
    def part(self) -> int:
        """Lines of one part of an image."""
        return self.image.phases * self.groups * self.image.pixels

    @property
    def lines(self) -> int:
        """Lines of all parts, and what may be read behind the last."""
        return self.parts * self.part + self.image.slack

    @property
    def bytes(self) -> int:
        """Of an image or band, and its sums."""
        return 2 * EDGE * self.lines + 4 * self.classes * self.pixels * self.width

    @property
    def steps(self) -> int:
        """Blocks of 32 channels, or of 16, and a tap of the results of all classes."""
        total = 0
        for ry in range(self.y.stride):
            for rx in range(self.x.stride):
                rows, columns = self.y.taps(ry).count, self.x.taps(rx).count
                total += rows * columns * self.groups
        return total

    @property
    def cycles(self) -> float:
        """Estimated cycles, all images and cores together."""
        rows = ceil_div(self.outputs, self.width)
        block: float = BLOCK_CYCLES * (1 if self.width == EDGE else self.high / 4)
        if self.mixed:
            block *= len(MIXED) / len(PRODUCTS)
        per_band: float = rows * self.panels * self.steps * block
        per_band += self.image.cycles
        results = self.outputs * self.y.outputs * self.x.outputs * _RESULT_CYCLES
        depth = LANES if self.mixed else EDGE
        weights = rows * EDGE * self.blocks * depth * _WEIGHT_CYCLES
        return self.images * (self.bands * per_band + results) + weights

    @property
    def other_cycles(self) -> float:
        """The same for multiply-adds of vectors."""
        taps = sum(self.y.taps(r).count for r in range(self.y.stride)) * sum(
            self.x.taps(r).count for r in range(self.x.stride)
        )
        terms = self.images * self.y.units * self.x.units * self.outputs * self.channels * taps
        return terms / LANES * OTHER_CYCLES


def plan(
    images: int, channels: int, outputs: int, y: Axis, x: Axis, dtype: str, cpu: CpuTarget
) -> Correlation | None:
    """The problem in bands, if the unit is there, a band fits the cache and it is worth while."""
    if not cpu.matrix_unit or dtype != "float32":
        return None
    if (y.advance, x.advance) != (1, 1):
        return None
    wanted = max(1, min(y.units // 4, ceil_div(_PIECES, images)))
    for bands in range(wanted, max(wanted, y.units // 4) + 1):
        p = Correlation(images, channels, outputs, y, x, bands)
        if p.bytes <= cpu.l2_bytes // 2:
            return p if p.cycles < p.other_cycles else None
    return None


def correlate_on_unit(
    name: str, p: Correlation, load_x: Load4, load_w: Load4, write: Write4, builder: Builder
) -> list[Stage]:
    """The stages.  ``load_w`` takes the output, the channel and the place in the kernel."""
    t, depth = tvm().tirx, LANES if p.mixed else EDGE

    def weight(_: Expr, o: Expr, k: Expr) -> Expr:
        i, j, group = split(k // depth, p.x.kernel, p.groups)
        channel = k % depth
        if not p.mixed:
            # The unit takes k in pairs, which the operand makes of places 16 apart.
            channel = group * EDGE + (k % LANES * 2 + k % EDGE // LANES)
        if p.channels % depth == 0:
            return load_w(o, channel, i, j)
        zero = const(0.0, "float32")
        return t.if_then_else(channel < p.channels, load_w(o, channel, i, j), zero)

    visit = ceil_div(p.blocks, 4)
    columns = Operand(False, p.outputs, p.blocks * depth, False, None, weight, visit, mixed=p.mixed)
    packed = packed_memory(columns.panels, columns.blocks, columns.visits, builder.scratch_buffer)
    images = _Images(p, columns, packed, load_x, load_w, write)
    return [columns.stage(packed), images.stage(name)]


@record
class _Images:
    """Builds the stage that computes one image, or a band of it, per tile."""

    p: Correlation
    columns: Operand
    packed: Packed
    load_x: Load4
    load_w: Load4
    write: Write4

    def stage(self, name: str) -> Stage:
        """The stage.  A thread computes one image after the other in the same memory."""
        p = self.p
        halves = local_buffer((p.lines, EDGE), "uint16", "halves")
        sums = local_buffer((p.classes, p.pixels, p.width), "float32", "sums")
        zero = splat(const(0, "uint16"), EDGE)
        clear = serial(p.lines, lambda v: store(halves, zero, v, ramp(0, EDGE)), "v")
        # What surrounds a whole image is zero for the next one, too.
        whole = p.bands == 1
        start = seq([alloc(m) for m in (halves, sums)], configure(), clear if whole else [])
        tiles = p.images * p.bands

        def body(tile: Expr) -> Stmt:
            return seq([] if whole else clear, self._band(tile, halves, sums))

        return stage_with_start(name, tiles, (start, unit("tilerelease")), bounded(tiles, body))

    def _band(self, index: Expr, halves: Memory, sums: Memory) -> Stmt:
        """All results of a band."""
        p, image = self.p, self.p.image
        n, band = split(index, p.bands)
        first: Expr = 0 if p.bands == 1 else band * p.units
        magnitude = local_buffer((2,), "float32", "magnitude")
        range_ = Range()

        def load_x(c: Expr, y: Expr, x: Expr) -> Expr:
            return self.load_x(n, c, y, x)

        def put(group: Expr, phase: Expr, pixel: Expr, vector: Expr) -> Stmt:
            if p.mixed:
                line, every = self._line(phase, group, pixel), ramp(0, EDGE)
                statements, words = mixed_words(vector, range_)
                for part, word in enumerate(words):
                    both = tvm().tirx.reinterpret(f"uint16x{EDGE}", word)
                    statements.append(store(halves, both, line + part * p.part, every))
                return seq(statements)
            x, statement = bind("x", vector)
            statements = [statement, *range_.note(x)]
            line = self._line(phase, div(group, HALVES), pixel)
            where = ramp(mod(group, HALVES) * LANES, LANES)
            for part, value in enumerate(parts(x, statements, range_)):
                statements.append(store(halves, upper_halves(value), line + part * p.part, where))
            return seq(statements)

        before, (largest, smallest, _) = range_.size()
        return seq(
            alloc(magnitude),
            range_.start(),
            image.walk(load_x, put, first),
            before,
            store(magnitude, largest, 0),
            store(magnitude, smallest, 1),
            serial(
                self.columns.panels,
                lambda o: self._outputs((n, first), o, halves, sums, magnitude),
                "o",
            ),
        )

    def _line(self, phase: Expr, group: Expr, pixel: Expr) -> Expr:
        """A line of the first part."""
        p = self.p
        return (phase * p.groups + group) * p.image.pixels + pixel

    def _outputs(
        self,
        where: tuple[Expr, Expr],
        o: Expr,
        halves: Memory,
        sums: Memory,
        magnitude: Memory,
    ) -> Stmt:
        """The results of 32 output channels."""
        p = self.p
        weight = local_buffer((2,), "float32", "weight")
        fast = serial(
            p.classes,
            lambda c: serial(p.panels, lambda q: self._panel(o, c, q, halves, sums), "q"),
            "class",
        )
        largest, smallest = ((load(weight, i), load(magnitude, i)) for i in range(2))
        return seq(
            alloc(weight),
            range_of(self.packed, self.columns.visits, lambda v: (o, v), weight),
            when(may_use(largest, smallest), fast, self._in_float32(where, o, sums)),
            serial(p.width // LANES, lambda m: self._finish(where, o, m, sums), "m"),
        )

    def _taps(self, index: Expr) -> tuple[Taps, Taps]:
        """Taps of a class of results."""
        ay, ax = self.p.y, self.p.x
        ry, rx = split(index, ax.stride)
        return ay.taps(0 if ay.stride == 1 else ry), ax.taps(0 if ax.stride == 1 else rx)

    def _place(self, ty: Taps, tx: Taps, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Phase and pixel that a class's first result reads with tap (a, b)."""
        p = self.p
        down, across = p.y.input_stride, p.x.input_stride
        row, column = ty.base + a + p.y.border()[0], tx.base + b + p.x.border()[0]
        phase = mod(row, down) * across + mod(column, across)
        return phase, div(row, down) * p.pitch + div(column, across)

    def _panel(self, o: Expr, index: Expr, q: Expr, halves: Memory, sums: Memory) -> Stmt:
        """Sums of one panel of pixels on the unit."""
        p = self.p
        ty, tx = self._taps(index)
        pitch = const(4 * LANES, "int64")

        def step(a: Expr, b: Expr, group: Expr) -> Stmt:
            i, j = ty.first + a * p.y.step, tx.first + b * p.x.step
            block = (i * p.x.kernel + j) * p.groups + group
            phase, pixel = self._place(ty, tx, a, b)
            start = q * p.panel + pixel

            def fetch(side: int, part: int, number: int, register: int) -> Stmt:
                if side == 0:
                    line = self._line(phase, group, start + number * LANES)
                    source = address(halves, line + part * p.part, 0)
                else:
                    source = address(self.packed.tiles, o, block, part, number, 0)
                return unit("tileloadd64", tile(register), source, pitch)

            products = MIXED if p.mixed else PRODUCTS
            if p.width == EDGE:
                return seq(multiply(fetch, products))
            return seq(multiply_column(p.high, fetch, products))

        across = const(4 * p.width, "int64")
        beside = p.width // LANES
        corners = [
            address(sums, index, q * p.panel + k // beside * LANES, k % beside * LANES)
            for k in range(p.panel * p.width // LANES**2)
        ]
        return seq(
            [unit("tilezero", tile(k)) for k in range(len(corners))],
            grid((ty.count, tx.count, p.groups), step),
            [unit("tilestored64", tile(k), corner, across) for k, corner in enumerate(corners)],
        )

    def _in_float32(self, where: tuple[Expr, Expr], o: Expr, sums: Memory) -> Stmt:
        """The same sums by multiply-adds of image and weights as they are."""
        p, image, (n, first) = self.p, self.p.image, where
        plane = local_buffer((image.lines + image.slack, LANES), "float32", "plane")
        halves = p.width // LANES
        pixels = _VECTORS // halves
        extents = (p.channels, p.y.kernel, p.x.kernel)
        flat = local_buffer((*extents, p.width), "float32", "flat")

        def gather(c: Expr, i: Expr, j: Expr, lane: Expr) -> Stmt:
            output = minimum(o * p.width + lane, p.outputs - 1)
            return store(flat, self.load_w(output, c, i, j), c, i, j, lane)

        def block(index: Expr, g: Expr) -> Stmt:
            ty, tx = self._taps(index)

            def left(r: int, c: Expr, a: Expr, b: Expr) -> Expr:
                phase, pixel = self._place(ty, tx, a, b)
                line = image.line(phase, div(c, LANES), g * pixels + r + pixel)
                return splat(load(plane, line, mod(c, LANES)), LANES)

            def right(half: int, c: Expr, a: Expr, b: Expr) -> Expr:
                i, j = ty.first + a * p.y.step, tx.first + b * p.x.step
                return load(flat, c, i, j, ramp(half * LANES, LANES))

            def put(r: int, half: int, value: Expr) -> Stmt:
                return store(sums, value, index, g * pixels + r, ramp(half * LANES, LANES))

            counts = (p.channels, ty.count, tx.count)
            return plain_sums((pixels, halves), left, right, lambda step: grid(counts, step), put)

        return seq(
            alloc(plane),
            alloc(flat),
            image.fill(plane, lambda c, y, x: self.load_x(n, c, y, x), first),
            grid((*extents, p.width), gather),
            grid((p.classes, p.panels * p.panel // pixels), block),
        )

    def _finish(self, where: tuple[Expr, Expr], o: Expr, m: Expr, sums: Memory) -> Stmt:
        """Turn sums of 16 outputs to rows of pixels, and hand these on to the epilogue."""
        p, (n, first) = self.p, where
        down, across = p.y.stride, p.x.stride
        squares = ceil_div(p.x.units, LANES)
        planes = local_buffer((across, LANES, squares * LANES), "float32", "planes")
        rows = local_buffer((LANES, across * squares * LANES), "float32", "rows")
        channel0 = o * p.width + m * LANES
        count: Expr = LANES if p.outputs % p.width == 0 else minimum(LANES, p.outputs - channel0)

        def square(ry: Expr, v: Expr, rx: Expr, b: Expr) -> Stmt:
            line = v * p.pitch + b * LANES
            source = load(sums, ry * across + rx, line, m * LANES), sums.shape[-1]
            to = load(planes, rx, 0, b * LANES), squares * LANES
            return turn("float32", LANES, source, to)

        def mingle(k: Expr, b: Expr) -> Stmt:
            # Neighbours belong to different residues.
            vectors = [load(planes, r, k, ramp(b * LANES, LANES)) for r in range(across)]
            lanes = [const(i % across * LANES + i // across) for i in range(across * LANES)]
            mixed = tvm().tirx.Shuffle(vectors, lanes)
            return store(rows, mixed, k, ramp(b * (across * LANES), across * LANES))

        def row(ry: Expr, v: Expr) -> Stmt:
            y = (first + v) * down + ry

            def element(k: Expr, x: Expr) -> Stmt:
                value = load(planes, 0, k, x) if across == 1 else load(rows, k, x)
                return self.write(n, channel0 + k, y, x, value)

            return seq(
                grid((across, squares), lambda rx, b: square(ry, v, rx, b)),
                grid((LANES, squares), mingle) if across > 1 else [],
                serial(
                    count, lambda k: in_vectors(p.x.outputs, LANES, lambda x: element(k, x)), "k"
                ),
            )

        def residue(ry: Expr) -> Stmt:
            # Rows of this class inside the result: y < outputs.
            inside = div(p.y.outputs - ry + (down - 1), down) - first
            exact = p.y.outputs == p.units * p.bands * down
            return serial(p.units if exact else minimum(p.units, inside), lambda v: row(ry, v), "v")

        return seq(
            [alloc(planes)], [alloc(rows)] if across > 1 else [], serial(down, residue, "ry")
        )
