"""Convolutions of few channels and their input gradients, with pixels in the lanes of vectors.

:mod:`.conv_correlate` has outputs in the lanes, which leaves some of them empty where outputs do
not fill vectors, and transposes images before and results after.  Here neighbouring pixels share a
vector, and a register tile is some outputs times some vectors of pixels, in the order that images
and results have in memory already.

What a tap reads must then lie in memory pixel by pixel.  Images are copied with their border,
columns of equal residue by the stride together, and a tap reads from its place in the row on.
Where rows would leave too much of their last vector empty, images are copied once for each place
that taps have in a row of the kernel instead: rows without border, one behind the other, so that
vectors go on in the next row (``flat``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ....core.tvm_api import tvm
from ...loops import (
    LINE_BYTES,
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
    view,
    when,
)
from ...target import CpuTarget
from .conv_correlate import Axis
from .conv_layout import bounded_stage, div, maximum, mod, split, vectors_covering
from .conv_spec import Access

_TILES = 16  # that a convolution is cut into at least, by shape alone
# Measured cycles: of a vector of an image that is copied with its border, or to the places of taps.
_BORDER_CYCLES, _COPY_CYCLES = 2.3, 3.0
# Of a vector of results, if it stays as it is, if it is merged with others, if rows are cut from
# vectors, and what comes to that if results are more bytes.
_LINE_CYCLES, _MERGE_CYCLES, _APART_CYCLES, _FAR_CYCLES, _NEAR_BYTES = 0.5, 4.3, 6.0, 2.0, 4096
_READ_CYCLES, _TAP_CYCLES = 0.1, 0.5  # beside multiply-adds, of what they read and of a tap
_SIZES = 16  # of groups that are tried, and some larger ones
_LEAST = 0.4  # of registers for results: fewer wait for themselves


@dataclass(frozen=True)
class _Reach:
    """What the taps of an axis read: ``count`` places from ``lowest`` on, ``step`` apart."""

    lowest: int
    step: int
    count: int


@lru_cache(maxsize=64)
def _reach(axis: Axis) -> _Reach:
    ends = []
    for residue in range(axis.stride):
        taps = axis.taps(residue)
        if taps.count > 0:
            ends += [taps.base, taps.base + (taps.count - 1) * axis.advance]
    lowest, highest = min(ends, default=0), max(ends, default=0)
    step = axis.advance if all((end - lowest) % axis.advance == 0 for end in ends) else 1
    return _Reach(lowest, step, (highest - lowest) // step + 1)


@dataclass(frozen=True)
class PixelCorrelation:
    """A correlation with pixels in vectors of ``lanes``; a tile is ``outputs`` by ``vectors``."""

    images: int
    reduced: int  # channels summed over
    channels: int  # output channels
    y: Axis
    x: Axis
    dtype: str
    itemsize: int
    lanes: int
    outputs: int
    vectors: int
    units: int  # rows, of each residue class, that are finished together
    flat: bool  # vectors go on in the next row
    near: int  # bytes of a core's cache

    @cached_property
    def down(self) -> _Reach:
        """Rows that taps read."""
        return _reach(self.y)

    @cached_property
    def across(self) -> _Reach:
        """Columns that taps read."""
        return _reach(self.x)

    @property
    def blocks(self) -> int:
        """Register tiles' outputs; there may be some behind the last channel."""
        return ceil_div(self.channels, self.outputs)

    @property
    def groups(self) -> int:
        """Of rows, in an image; the last may overlap the one before."""
        return ceil_div(self.y.units, self.units)

    @property
    def lines(self) -> int:
        """Vectors of pixels of a group and residue class."""
        return ceil_div(self.units * self.row, self.lanes)

    @property
    def row(self) -> int:
        """Places of a row of results, in vectors of them."""
        return self.x.units if self.flat else self._whole(self.x.units)

    @property
    def origin(self) -> int:
        """The column that a copied row begins with."""
        return min(self.across.lowest, 0)

    @property
    def pitch(self) -> int:
        """Places from a row to the next, in the copy."""
        if self.flat:
            return self.x.units
        x, across = self.x, self.across
        last = (across.lowest - self.origin + (across.count - 1) * across.step) // x.input_stride
        return max(last + x.units, ceil_div(x.inputs - self.origin, x.input_stride))

    @cached_property
    def per_band(self) -> int:
        """Groups that one tile computes, from a copy of what they read."""
        most = ceil_div(self.groups, ceil_div(_TILES, max(self.images, 1)))
        far = bisect_left(range(2, most + 1), True, key=lambda n: self._copy_bytes(n) > self.near)
        bands = ceil_div(self.groups, far + 1)
        return ceil_div(self.groups, bands)

    @property
    def bands(self) -> int:
        """Tiles of an image."""
        return ceil_div(self.groups, self.per_band)

    def band_units(self, groups: int) -> int:
        """Rows of a residue class in so many groups."""
        return min(groups * self.units, self.y.units)

    def rows(self, groups: int) -> int:
        """Input rows that so many groups read, up to a multiple of the stride."""
        stride, down = self.y.input_stride, self.down
        count = (self.band_units(groups) - 1) * stride + (down.count - 1) * down.step + 1
        return ceil_div(count, stride) * stride

    def copy_shape(self, groups: int) -> tuple[int, int, int, int]:
        """Of a copy: channel, place of taps or residue of columns, residue of rows, pixel.

        Vectors may go on behind the last pixel.
        """
        stride = self.y.input_stride
        pixels = self.rows(groups) // stride * self.pitch
        places = self.across.count if self.flat else self.x.input_stride
        return self.reduced, places, stride, self._whole(pixels) + self.lanes

    def _copy_bytes(self, groups: int) -> int:
        return math.prod(self.copy_shape(groups)) * self.itemsize

    @property
    def width(self) -> int:
        """Of a row with its border, from which copies are made."""
        x, across = self.x, self.across
        read = self._whole(self.pitch) * x.input_stride
        if self.flat:
            read += across.lowest - self.origin + (across.count - 1) * across.step
        return self._whole(max(x.inputs - self.origin, read + x.input_stride - 1))

    def _whole(self, elements: int) -> int:
        return ceil_div(elements, self.lanes) * self.lanes

    @property
    def bytes(self) -> int:
        """Of the memory of a thread."""
        classes = self.y.stride * self.x.stride
        done = 2 * self.outputs * classes * self.lines * self.lanes
        plane = self.rows(self.per_band) * self.width
        return self._copy_bytes(self.per_band) + (done + plane) * self.itemsize

    @property
    def cycles(self) -> float:
        """Estimated cycles, all cores together."""
        tiles = self.images * self.groups * self.blocks * ceil_div(self.lines, self.vectors)
        each = self.y.stride * self.x.stride * self.outputs * self.vectors * self._finish_cycles
        copied = self.images * self.bands * math.prod(self.copy_shape(self.per_band)) / self.lanes
        copy = _COPY_CYCLES if self.flat or self.x.input_stride > 1 else _BORDER_CYCLES
        taps = self.y.every_tap * self.x.every_tap * self.reduced
        step = _step_cycles(self.outputs, self.vectors)
        return tiles * (taps * step + each) + copied * copy

    @property
    def _finish_cycles(self) -> float:
        """Of a vector of results."""
        size = self.outputs * self.lines * self.lanes * self.itemsize
        far = _FAR_CYCLES if size > _NEAR_BYTES else 0.0
        if self.x.stride > 1:
            return far + _MERGE_CYCLES
        return far + (_LINE_CYCLES if self.in_lines or not self.flat else _APART_CYCLES)

    @property
    def in_lines(self) -> bool:
        """Whether the results of a group are one line in memory."""
        even = self.y.units % self.units == 0 and self.row == self.x.units
        return even and self.x.stride == self.y.stride == 1


def _step_cycles(outputs: int, vectors: int) -> float:
    """Of the multiply-adds of a tap, of which each has to wait for one four cycles before, or of
    what they read: most vectors lie in two lines."""
    reads = outputs + 2 * vectors
    return (max(outputs * vectors, reads, 8) + _READ_CYCLES * reads + _TAP_CYCLES) / 2


def plan(
    images: int,
    reduced: int,
    channels: int,
    y: Axis,
    x: Axis,
    dtype: str,
    itemsize: int,
    cpu: CpuTarget,
) -> PixelCorrelation | None:
    """The problem, if what a thread holds fits its caches, and a tile's weights the first level's.

    That is so for few channels.
    """
    lanes = cpu.lanes(itemsize)
    if x.stride > 2 or x.input_stride > 2 or lanes < 4:
        return None
    weights = reduced * y.kernel * x.kernel * itemsize
    ways = [
        (outputs, vectors, units, flat)
        for outputs in range(1, min(channels, 16) + 1)
        for vectors in range(1, 9)
        if outputs * vectors + vectors + 2 <= cpu.vector_registers
        if _LEAST * cpu.vector_registers <= outputs * vectors
        if outputs * weights <= cpu.l1_bytes // 4
        for units in _group_sizes(y, x, outputs, itemsize, cpu)
        for flat in (False, True)
        if (
            (x.units % lanes or x.input_stride > 1) and units * x.units > (vectors - 1) * lanes
            if flat
            else _fits(units, ceil_div(x.units, lanes), vectors)
        )
    ]
    problems = [
        PixelCorrelation(
            images, reduced, channels, y, x, dtype, itemsize, lanes, *way, cpu.l2_bytes // 2
        )
        for way in ways
    ]
    return _fastest([p for p in problems if p.bytes <= cpu.l2_bytes])


def _fastest(problems: Sequence[PixelCorrelation]) -> PixelCorrelation | None:
    return min(problems, key=lambda p: p.cycles, default=None)


def _fits(units: int, across: int, vectors: int) -> bool:
    """Whether register tiles are parts of rows of ``across`` vectors, or some whole ones."""
    if vectors < across:
        return across % vectors == 0
    return vectors % across == 0 and vectors <= units * across


def _group_sizes(y: Axis, x: Axis, outputs: int, itemsize: int, cpu: CpuTarget) -> list[int]:
    """Rows of a group whose results stay in the first-level cache."""
    row = outputs * x.outputs * y.stride * itemsize
    most = max(1, min(y.units, cpu.l1_bytes // 2 // row))
    sizes = [*range(1, min(most, _SIZES) + 1), *(most >> n for n in range(most.bit_length()))]
    return sorted({ceil_div(y.units, ceil_div(y.units, units)) for units in sizes if units})


def correlate_pixels(
    name: str,
    problem: PixelCorrelation,
    inputs: tuple[int, int],
    access: Access,
    builder: Builder,
) -> list[Stage]:
    """The stages.

    ``access.left(image, channel, y, x)`` is an input element, ``inputs`` its height and width;
    ``access.right(output, channel, i, j)`` a weight.
    """
    p = problem
    taps = p.reduced * p.y.kernel * p.x.kernel
    weights = builder.scratch_buffer((p.blocks, taps, p.outputs), p.dtype, "weights")

    def pack(block: Expr) -> Stmt:
        def one(q: Expr, k: Expr) -> Stmt:
            o = block * p.outputs + k
            # Behind the last channel its weights again: what they make is not written.
            value = access.right(minimum(o, p.channels - 1), *split(q, p.y.kernel, p.x.kernel))
            return store(weights, value, block, q, k)

        return grid((taps, p.outputs), one)

    def band_stage(index: Expr) -> Stmt:
        image, band = split(index, p.bands)
        return _Band(p, inputs, image, band, weights, access).statement()

    return [
        bounded_stage("w_pack", p.blocks, pack),
        bounded_stage(name, p.images * p.bands, band_stage),
    ]


class _Band:
    """Some groups of rows of an image: one parallel tile."""

    def __init__(
        self,
        p: PixelCorrelation,
        inputs: tuple[int, int],
        image: Expr,
        band: Expr,
        weights: Memory,
        access: Access,
    ) -> None:
        self.p, self.inputs = p, inputs
        self.image, self.band, self.weights = image, band, weights
        self.read, self.write, self.write_line = access.left, access.write, access.write_line
        self.copy = local_buffer(p.copy_shape(p.per_band), p.dtype, "copy")
        self.whole = ramp(0, p.lanes)
        classes = p.y.stride * p.x.stride
        self.done = local_buffer((p.outputs, classes, p.lines * p.lanes), p.dtype, "done")
        # The last band may overlap the one before.
        units = p.band_units(p.per_band)
        self.first, self.know_first = bind(
            "first", minimum(band * p.per_band * p.units, p.y.units - units)
        )

    def statement(self) -> Stmt:
        """All of it."""
        p = self.p
        count, know_count = bind("count", minimum(p.groups - self.band * p.per_band, p.per_band))
        return seq(
            self.know_first,
            know_count,
            alloc(self.copy),
            self._copied(),
            alloc(self.done),
            serial(maximum(count, 1), lambda g: self._group(self.band * p.per_band + g), "group"),
        )

    def _copied(self) -> Stmt:
        """Copy what taps read."""
        p, lanes = self.p, self.p.lanes
        channels, places, residues, pixels = self.copy.shape
        rows, step, stride = p.rows(p.per_band), p.across.step, p.x.input_stride
        zero = splat(const(0.0, p.dtype), lanes)

        def behind(c: Expr, place: Expr, residue: Expr) -> Stmt:
            return store(self.copy, zero, c, place, residue, ramp(pixels - lanes, lanes))

        clear = grid((channels, places, residues), behind)
        if not p.flat and stride == 1:

            def direct(c: Expr, r: Expr) -> Stmt:
                at = div(r, residues) * p.pitch

                def put(x: Expr, value: Expr) -> Stmt:
                    return store(self.copy, value, c, 0, mod(r, residues), at + x)

                def blank(x: Expr) -> Stmt:
                    to = ramp(at + x, lanes)
                    return store(self.copy, zero, c, 0, mod(r, residues), to)

                return self._row(c, r, p.pitch, put, blank)

            return seq(clear, grid((channels, rows), direct))

        plane = local_buffer((rows, p.width), p.dtype, "plane")

        def line(c: Expr, r: Expr) -> Stmt:
            def put(x: Expr, value: Expr) -> Stmt:
                return store(plane, value, r, x)

            def blank(x: Expr) -> Stmt:
                return store(plane, zero, r, ramp(x, lanes))

            return self._row(c, r, p.width, put, blank)

        def placed(c: Expr, r: Expr, place: Expr, q: Expr) -> Stmt:
            first = p.across.lowest - p.origin + place * step if p.flat else place
            at = q * (lanes * stride) + first
            value = load(plane, r, ramp(at, lanes))
            if stride == 2:
                even = [const(2 * k) for k in range(lanes)]
                after = load(plane, r, ramp(at + lanes, lanes))
                value = tvm().tirx.Shuffle([value, after], even)
            # What is behind the row's end is written over by the next row.
            to = div(r, residues) * p.pitch + q * lanes
            return store(self.copy, value, c, place, mod(r, residues), ramp(to, lanes))

        def channel(c: Expr) -> Stmt:
            vectors = ceil_div(p.pitch, lanes)
            return seq(
                serial(rows, lambda r: line(c, r), "r"),
                grid((rows, places, vectors), lambda r, place, q: placed(c, r, place, q)),
            )

        return seq(alloc(plane), clear, serial(channels, channel, "c"))

    def _row(
        self,
        c: Expr,
        r: Expr,
        width: int,
        put: Callable[[Expr, Expr], Stmt],
        blank: Callable[[Expr], Stmt],
    ) -> Stmt:
        """A row of the image and its border, as ``width`` elements.

        ``put(x, value)`` stores an element, ``blank(x)`` a vector of zeros from x on, which goes on
        behind the row if its width is no whole number of vectors.
        """
        p, (height, columns) = self.p, self.inputs
        start = -p.origin
        count = min(columns, width - start)
        y, know = bind("y", self.first * p.y.input_stride + p.down.lowest + r)

        def pixel(x: Expr) -> Stmt:
            return put(start + x, self.read(self.image, c, y, x))

        def zeros(first: int, end: int) -> Stmt:
            count = ceil_div(max(end - first, 0), p.lanes)
            return serial(count, lambda q: blank(first + q * p.lanes), "q")

        end = (start + count) // p.lanes * p.lanes
        filled = vectors_covering(count, p.lanes, pixel)
        inside = seq(zeros(0, start), zeros(end, width), filled)
        return seq(know, when((y >= 0) & (y < height), inside, zeros(0, width)))

    def _group(self, group: Expr) -> Stmt:
        p = self.p
        start, know = bind("start", minimum(group * p.units, p.y.units - p.units))
        tiles = ceil_div(p.lines, p.vectors)

        def block(b: Expr) -> Stmt:
            def tile(index: Expr) -> Stmt:
                ry, rx, t = split(index, p.x.stride, tiles)
                q = minimum(t * p.vectors, p.lines - p.vectors)

                def asks(c: Expr) -> list[Stmt]:
                    return self._ask_to_finish(b, start, index * p.reduced + c)

                return self._register_tile(b, ry, rx, start - self.first, q, asks)

            return seq(
                serial(p.y.stride * p.x.stride * tiles, tile, "tile"),
                self._finish(b, group * p.units, start),
            )

        return seq(know, serial(p.blocks, block, "block"))

    def _ask_to_finish(self, block: Expr, start: Expr, turn: Expr) -> list[Stmt]:
        """Prefetches of what finishing the next block's results will read, some lines per turn.

        A channel's part of them is too short for the hardware to follow.
        """
        p = self.p
        height, width, line = p.y.outputs, p.x.outputs, LINE_BYTES // p.itemsize
        each = ceil_div(p.units * p.y.stride * width, line)  # lines of a channel
        turns = p.y.stride * p.x.stride * ceil_div(p.lines, p.vectors) * p.reduced
        share = ceil_div(p.outputs * each, turns)
        after = block + 1
        start = start + div(after, p.blocks) * p.units
        zero = const(0.0, p.dtype)

        def asks(number: Expr) -> list[Stmt]:
            k, q = split(number, each)
            channel = minimum(mod(after, p.blocks) * p.outputs + k, p.channels - 1)
            y = minimum(start * p.y.stride + div(q * line, width), height - 1)
            element = (self.image, channel, y, mod(q * line, width))
            return ask(lambda: self.write(*element, zero), p.images * p.channels * height * width)

        last = p.outputs * each - 1
        every = (asks(minimum(turn * share + n, last)) for n in range(share))
        return [statement for some in every for statement in some]

    def _register_tile(
        self,
        block: Expr,
        ry: Expr,
        rx: Expr,
        unit: Expr,
        q: Expr,
        asks: Callable[[Expr], list[Stmt]],
    ) -> Stmt:
        """A block's outputs for vectors ``q`` onwards of residue class (ry, rx).

        ``asks`` for what comes later are made once for each channel that is summed over.
        """
        p, whole, lanes = self.p, self.whole, self.p.lanes
        ty = p.y.taps(0 if p.y.stride == 1 else ry)
        tx = p.x.taps(0 if p.x.stride == 1 else rx)
        points = [(k, m) for k in range(p.outputs) for m in range(p.vectors)]
        acc = {point: local_buffer((lanes,), p.dtype, "acc") for point in points}
        stride, across = p.y.input_stride, ceil_div(p.x.units, lanes)

        far = replace(self.copy, wide=True)
        line = replace(far, shape=(math.prod(far.shape),))

        def tap(c: Expr, a: Expr, b: Expr) -> Stmt:
            row = ty.base + a * p.y.advance - p.down.lowest
            column = tx.base + b * p.x.advance
            if p.flat:
                place, at = div(column - p.across.lowest, p.across.step), q * lanes
            else:
                column = column - p.origin
                place, at = mod(column, p.x.input_stride), div(column, p.x.input_stride)
                at = at + div(q, across) * p.pitch + mod(q, across) * lanes
            pixel = (unit + div(row, stride)) * p.pitch + at
            # Of positions in 64 bits LLVM sees which are some places apart.
            position = far.flat((c, place, mod(row, stride), pixel))
            first, see = bind("first", position)
            i, j = ty.first + a * p.y.step, tx.first + b * p.x.step
            number = (c * p.y.kernel + i) * p.x.kernel + j
            weights, see_weights = view(load(self.weights, block, number, 0), "tap")
            out = [see, see_weights]
            pixels = []
            for m in range(p.vectors):
                offset = m * lanes
                if not p.flat and p.vectors >= across:
                    offset = m // across * p.pitch + m % across * lanes
                value, statement = bind("s", load(line, ramp(first + offset, lanes)))
                pixels.append(value)
                out.append(statement)
            for k in range(p.outputs):
                value, statement = bind("w", splat(load(weights, k), lanes))
                out.append(statement)
                for m in range(p.vectors):
                    own = acc[k, m]
                    out.append(store(own, load(own, whole) + value * pixels[m], whole))
            return seq(out)

        zero = splat(const(0.0, p.dtype), lanes)
        residues = ry * p.x.stride + rx
        return seq(
            [alloc(own) for own in acc.values()],
            [store(own, zero, whole) for own in acc.values()],
            serial(
                p.reduced,
                lambda c: seq(asks(c), grid((ty.count, tx.count), lambda a, b: tap(c, a, b))),
                "c",
            ),
            [
                store(self.done, load(acc[k, m], whole), k, residues, ramp((q + m) * lanes, lanes))
                for k, m in points
            ],
        )

    def _finish(self, block: Expr, first_row: Expr, start: Expr) -> Stmt:
        """Run the epilogue on a block's results.

        Rows before unit ``first_row`` belong to the group before and are not written again: an
        epilogue may update its output in place.
        """
        p = self.p
        outputs = p.y.outputs, p.x.outputs
        live = minimum(p.channels - block * p.outputs, p.outputs)
        count = p.outputs if p.channels % p.outputs == 0 else maximum(live, 0)
        if p.in_lines and self.write_line is not None:
            line = self.write_line

            def pixels(k: Expr) -> Stmt:
                def one(v: Expr) -> Stmt:
                    value = load(self.done, k, 0, v)
                    at = start * p.x.units + v
                    return line(self.image, block * p.outputs + k, at, value)

                return in_vectors(p.units * p.x.units, p.lanes, one, start)

            return serial(count, pixels, "k")

        across, down = p.x.stride, p.y.stride
        done = self.done
        out: list[Stmt] = []
        if across == 2:
            done = local_buffer((p.outputs, down, 2 * p.lines * p.lanes), p.dtype, "rows")
            out = [alloc(done)]

        def merged(k: Expr, ry: Expr, q: Expr) -> Stmt:
            """Columns of both residues side by side."""
            lanes = p.lanes
            pair = [load(self.done, k, ry * 2 + rx, ramp(q * lanes, lanes)) for rx in range(2)]
            a, know_a = bind("a", pair[0])
            b, know_b = bind("b", pair[1])
            halves = []
            for half in range(2):
                order = [
                    const(half * (lanes // 2) + i + side * lanes)
                    for i in range(lanes // 2)
                    for side in range(2)
                ]
                value = tvm().tirx.Shuffle([a, b], order)
                halves.append(store(done, value, k, ry, ramp((2 * q + half) * lanes, lanes)))
            return seq(know_a, know_b, halves)

        skipped, know_skipped = bind("skipped", maximum(first_row - start, 0) * down)
        rows, know_rows = bind(
            "rows", maximum(minimum(p.units * down, outputs[0] - start * down) - skipped, 0)
        )

        def row(k: Expr, r: Expr) -> Stmt:
            own = skipped + r

            def one(x: Expr) -> Stmt:
                at = div(own, down) * (p.row * across) + x
                value = load(done, k, mod(own, down), at)
                return self.write(self.image, block * p.outputs + k, start * down + own, x, value)

            return in_vectors(outputs[1], p.lanes, one, r)

        merge = [grid((p.outputs, down, p.lines), merged)] if across == 2 else []
        return seq(
            *out,
            *merge,
            know_skipped,
            know_rows,
            serial(count, lambda k: serial(rows, lambda r: row(k, r), "row"), "k"),
        )
