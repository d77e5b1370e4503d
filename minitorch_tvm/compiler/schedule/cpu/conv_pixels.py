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

from collections.abc import Callable
from dataclasses import replace

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
    number,
    ramp,
    seq,
    serial,
    splat,
    store,
    vectorized,
    view,
    when,
)
from .conv_layout import bounded_stage, covering, div, maximum, mod, split, vectors_covering
from .conv_pixels_plan import PixelCorrelation
from .conv_spec import Access

_FEW = 32  # weights of an output: LLVM makes one piece of all


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
        # Of these LLVM must not know how few they are: it would write all of them out in a row, in
        # which it looks at every store for each load.
        every = number(channels, "copied")
        rows = number(p.rows(p.per_band), "rows")
        step, stride = p.across.step, p.x.input_stride
        zero = splat(const(0.0, p.dtype), lanes)

        def behind(c: Expr, place: Expr, residue: Expr) -> Stmt:
            return store(self.copy, zero, c, place, residue, ramp(pixels - lanes, lanes))

        clear = grid((every, places, residues), behind)
        if not p.flat and stride == 1:

            def direct(c: Expr, r: Expr) -> Stmt:
                at = div(r, residues) * p.pitch

                def put(x: Expr, value: Expr) -> Stmt:
                    return store(self.copy, value, c, 0, mod(r, residues), at + x)

                def blank(x: Expr) -> Stmt:
                    to = ramp(at + x, lanes)
                    return store(self.copy, zero, c, 0, mod(r, residues), to)

                return self._row(c, r, p.pitch, put, blank)

            return seq(clear, grid((every, rows), direct))
        if self._in_pairs:
            return seq(clear, grid((every, rows), self._paired_row))

        plane = local_buffer((p.rows(p.per_band), p.width), p.dtype, "plane")

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

        return seq(alloc(plane), clear, serial(every, channel, "c"))

    @property
    def _in_pairs(self) -> bool:
        """Whether two vectors of a row at a time become one of each residue."""
        p, columns = self.p, self.inputs[1]
        whole = columns >= 2 * p.lanes and columns % 2 == 0
        return not p.flat and p.x.input_stride == 2 and whole

    def _paired_row(self, c: Expr, r: Expr) -> Stmt:
        """A row of the image and its border, columns of equal residue together."""
        p, (height, columns), lanes = self.p, self.inputs, self.p.lanes
        residues = p.y.input_stride
        row = div(r, residues) * p.pitch
        y, know = bind("y", self.first * residues + p.down.lowest + r)

        def put(value: Expr, residue: int, at: Expr) -> Stmt:
            to = ramp(row + at, lanes)
            return store(self.copy, value, c, residue, mod(r, residues), to)

        def zeros(residue: int, first: int, end: int) -> Stmt:
            zero = splat(const(0.0, p.dtype), lanes)
            count = ceil_div(max(end - first, 0), lanes)
            return serial(count, lambda q: put(zero, residue, first + q * lanes), "q")

        # Where, among the places of its residue, the image begins.
        begin = {(n - p.origin) % 2: (n - p.origin) // 2 for n in (0, 1)}

        def pair(x: Expr) -> Stmt:
            both = local_buffer((2 * lanes,), p.dtype, "pair")

            def half(n: int) -> Stmt:
                def one(v: Expr) -> Stmt:
                    return store(both, self.read(self.image, c, y, x + n + v), n + v)

                return vectorized(lanes, one)

            def every_other(n: int) -> Stmt:
                halves = [load(both, ramp(first, lanes)) for first in (0, lanes)]
                picked = tvm().tirx.Shuffle(halves, [const(2 * k + n) for k in range(lanes)])
                residue = (n - p.origin) % 2
                return put(picked, residue, begin[residue] + div(x, 2))

            return seq(alloc(both), half(0), half(lanes), every_other(0), every_other(1))

        # What zeros cover of this row is written after them, of the next one by that.
        borders = [
            [zeros(n, 0, first), zeros(n, first + columns // 2, p.pitch)]
            for n, first in sorted(begin.items())
        ]
        inside = seq(*borders, covering(columns, 2 * lanes, pair))
        outside = seq([zeros(n, 0, p.pitch) for n in begin])
        return seq(know, when((y >= 0) & (y < height), inside, outside))

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
        ends, across = (q, q + (p.vectors - 1)), ceil_div(p.x.units, lanes)
        rows = [div(v, across) for v in ends]
        if p.flat:
            rows = [div(v, p.x.units) for v in (ends[0] * lanes, ends[1] * lanes + (lanes - 1))]
        top = self.first + unit
        know, ty = p.y.reached(p.y.taps(0 if p.y.stride == 1 else ry), top + rows[0], top + rows[1])
        tx = p.x.taps(0 if p.x.stride == 1 else rx)
        points = [(k, m) for k in range(p.outputs) for m in range(p.vectors)]
        acc = {point: local_buffer((lanes,), p.dtype, "acc") for point in points}
        stride = p.y.input_stride

        far = replace(self.copy, wide=True)
        line = self.copy.line

        def vector(v: Expr) -> Expr:
            """Where a vector of the group begins, from the first on."""
            return v * lanes if p.flat else div(v, across) * p.pitch + mod(v, across) * lanes

        # Where they are not equally far apart, each has an address of its own.
        places = [
            bind("vector", line.flat((vector(q + m),)))
            for m in range(1 if p.regular else p.vectors)
        ]

        def tap(c: Expr, a: Expr, b: Expr) -> Stmt:
            row = ty.base + a * p.y.advance - p.down.lowest
            column = tx.base + b * p.x.advance
            if p.flat:
                place, shift = div(column - p.across.lowest, p.across.step), 0
            else:
                column = column - p.origin
                place, shift = mod(column, p.x.input_stride), div(column, p.x.input_stride)

            above = (unit + div(row, stride)) * p.pitch
            start = far.flat((c, place, mod(row, stride), above)) + line.flat((shift,))
            i, j = ty.first + a * p.y.step, tx.first + b * p.x.step
            place_in_kernel = (c * p.y.kernel + i) * p.x.kernel + j
            weights, see_weights = view(load(self.weights, block, place_in_kernel, 0), "tap")
            out = [see_weights]
            pixels = []
            for m in range(p.vectors):
                if m < len(places):
                    first, see = bind("first", places[m][0] + start)
                    out.append(see)
                offset = vector(m) if p.regular else 0
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

        # In one piece LLVM would fetch once what taps read in common, and spill it.
        few = p.reduced * p.y.kernel * p.x.kernel < _FEW
        channels = number(p.reduced, "channels") if few else p.reduced
        zero = splat(const(0.0, p.dtype), lanes)
        residues = ry * p.x.stride + rx
        return seq(
            know,
            [statement for _, statement in places],
            [alloc(own) for own in acc.values()],
            [store(own, zero, whole) for own in acc.values()],
            serial(
                channels,
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
        count = number(p.outputs, "outputs") if p.channels % p.outputs == 0 else maximum(live, 0)
        if p.in_lines and self.write_line is not None:
            line = self.write_line

            def pixels(k: Expr) -> Stmt:
                def one(v: Expr) -> Stmt:
                    value = load(self.done, k, 0, v)
                    at = start * p.x.units + v
                    return line(self.image, block * p.outputs + k, at, value)

                return in_vectors(p.units * p.x.units, p.lanes, one, rolled=True)

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

            return in_vectors(outputs[1], p.lanes, one, rolled=True)

        merge = [grid((p.outputs, down, p.lines), merged)] if across == 2 else []
        return seq(
            *out,
            *merge,
            know_skipped,
            know_rows,
            serial(count, lambda k: serial(rows, lambda r: row(k, r), "row"), "k"),
        )
