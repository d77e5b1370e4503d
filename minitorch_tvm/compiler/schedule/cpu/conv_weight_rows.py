"""The weight gradient of few channels: sums of products along rows of pixels.

``dw[o, c, i, j]`` sums ``ct[n, o, y, x] * image[n, c, y + i, x + j]``, in vectors along x: an
output's rows lie in memory as they are needed, where outer products (:mod:`.conv_weight`) have them
transposed, which takes longer than a few channels' multiply-adds.  A register tile is some outputs
times the taps of one kernel row; its vectors are summed up at the end.

Images are copied with their border, columns of equal residue by the stride together, so that a tap
reads neighbours.  Pixels behind the end of a row are zeros in both factors, lest an infinite one
makes NaN of the sum.

Where rows leave many lanes of their last vectors empty, vectors go on in the next row (``flat``):
for every column of taps there is a copy of the image that has rows of ct's length, so that pixels
and what a tap multiplies them by follow each other in the same order, without gaps, and nothing is
behind the end of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from ....core.record import record
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
    load_first,
    local_buffer,
    minimum,
    number,
    parallel_stage,
    prefetch,
    ramp,
    seq,
    serial,
    splat,
    store,
    view,
    when,
)
from ...target import CpuTarget
from .conv_axes import forward_axes
from .conv_layout import bounded, div, maximum, mod, split, sum_lanes, vectors_covering
from .conv_spec import Access, Conv, Line

# What sets up, and what is, the vector of each output of a block in a row of ct: by row, number of
# the vector, and how many lanes it has.
Vectors = Callable[[Expr, Expr, int], tuple[list[Stmt], list[Expr]]]

# Parts that the sum is cut into, by shape alone, and the sums of all groups together.
_PIECES, _OF_GROUPS = 8, 32
_MOST_OUTPUTS = 8  # of a register tile
# Measured cycles: of a multiply-add, of a vector that is fetched for it, of a vector of ct that is
# copied, of one of sums that is fetched and stored again, of one whose elements are summed up, of
# one of a row that is copied for a column of taps.
_TERM_CYCLES, _FETCH_CYCLES, _CT_CYCLES, _AGAIN_CYCLES, _SUM_CYCLES = 0.5, 0.25, 4, 3, 8
_PLACED_CYCLES = 2
_AHEAD = 512  # bytes ahead of which sums of a part are asked for
_SPELLED, _AT_ONCE = 8, 4  # vectors of a row that is written out, and in a turn along a longer one


@record
class RowProducts:
    """Sizes of the problem in vectors of ``lanes``."""

    s: Conv
    lanes: int
    outputs: int  # of a register tile
    near: int  # bytes of ct that are used again at once
    flat: bool = False  # vectors go on in the next row

    @property
    def blocks(self) -> int:
        """Register tiles' outputs; the last block may overlap the one before."""
        return ceil_div(self.s.o, self.outputs)

    @property
    def pieces(self) -> int:
        """Parts that the sum of a group is cut into, at most."""
        return min(_PIECES, ceil_div(_OF_GROUPS, self.s.groups))

    @property
    def bands(self) -> int:
        """Pieces of an image: for all parts, and for rows of ct to stay near."""
        size = self.outputs * self.s.oh * self.vectors * self.lanes * self.s.itemsize
        return min(self.s.oh, max(ceil_div(self.pieces, self.s.n), ceil_div(size, self.near)))

    @property
    def rows(self) -> int:
        """Rows of ct in a band."""
        return ceil_div(self.s.oh, self.bands)

    @property
    def units(self) -> int:
        """Bands of all images."""
        return self.s.n * ceil_div(self.s.oh, self.rows)

    @property
    def vectors(self) -> int:
        """Vectors of a row of ct."""
        return ceil_div(self.s.ow, self.lanes)

    @property
    def lines(self) -> int:
        """Vectors of an output's rows: an odd number, for outputs to share few places of caches."""
        return (self.rows * self.vectors) | 1

    @cached_property
    def image(self) -> tuple[int, int, int, int]:
        """Shape of a copied band: channel, residue of columns, row, column.

        If it is flat: channel, column of taps, 1, pixel.
        """
        s, across = self.s, self.s.stride[1]
        high = self.high
        if self.flat:  # what is behind the end of a row is stored, too
            pixels = (high - 1) * s.ow + self.vectors * self.lanes
            return s.c, s.kw, 1, ceil_div(pixels, self.lanes) * self.lanes
        reach = self.vectors * self.lanes + (s.kw - 1) * s.dilation[1] // across
        wide = max(reach, (s.w + s.padding[1] - 1) // across + 1)
        return s.c, across, high, ceil_div(wide, self.lanes) * self.lanes

    @property
    def high(self) -> int:
        """Rows that a band reads."""
        s = self.s
        return (self.rows - 1) * s.stride[0] + (s.kh - 1) * s.dilation[0] + 1

    @property
    def wide(self) -> int:
        """Columns of a row with its borders, as whole vectors behind any tap."""
        s = self.s
        reach = (s.kw - 1) * s.dilation[1] + self.vectors * self.lanes
        return max(reach, s.padding[1] + ceil_div(s.w, self.lanes) * self.lanes)

    @property
    def may_be_flat(self) -> bool:
        """Whether a copy per column of taps is enough."""
        return self.s.stride == (1, 1) and self.units == self.s.n and self.s.ow % self.lanes > 0

    @property
    def tile(self) -> int:
        """Vectors of sums in a register tile."""
        return self.outputs * self.s.kw

    @property
    def sums(self) -> int:
        """Vectors of sums, a multiple of the lanes."""
        needed = self.blocks * self.s.c * self.s.kh * self.tile
        return ceil_div(needed, self.lanes) * self.lanes

    @property
    def bytes(self) -> int:
        """Of the memory of a thread."""
        c, phases, high, wide = self.image
        ct = self.outputs * self.lines * self.lanes  # where it is copied
        ct, plane = (0, self.wide) if self.flat else (ct, 0)
        image = c * phases * high * wide + plane
        return self.s.itemsize * (image + ct + self.sums * self.lanes)

    @property
    def cycles(self) -> float:
        """Estimated cycles, all cores together."""
        s = self.s
        steps = s.n * s.oh * self.vectors
        copied = 0.0
        if self.flat:
            steps = s.n * ceil_div(s.oh * s.ow, self.lanes)
            copied = _PLACED_CYCLES * s.n * s.c * self.high * (s.kw + 1) * self.vectors
        tiles = steps * self.blocks * s.c * s.kh * _step_cycles(self.outputs, s.kw)
        again = self.units * self.sums * _AGAIN_CYCLES
        last = min(self.pieces, self.units) * self.sums * _SUM_CYCLES
        return tiles + copied + steps * s.o * _CT_CYCLES + again + last


def _step_cycles(outputs: int, taps: int) -> float:
    return outputs * taps * _TERM_CYCLES + (outputs + taps) * _FETCH_CYCLES


def plan(s: Conv, cpu: CpuTarget, in_place: bool = False) -> RowProducts | None:
    """The problem, if a row of taps fits the registers and what a thread holds its caches.

    ``in_place``: ct is memory.  A row of one tap would fetch as many vectors as it multiplies.
    """
    fits = [
        n
        for n in range(1, min(_MOST_OUTPUTS, s.o) + 1)
        if n * s.kw + min(n, s.kw) + 1 <= cpu.vector_registers
    ]
    if s.kw == 1:
        return None
    flat = (False, True) if in_place else (False,)
    near = cpu.l1_bytes * 3 // 4
    ways = [RowProducts(s, cpu.lanes(s.itemsize), n, near, f) for n in fits for f in flat]
    ways = [p for p in ways if p.may_be_flat or not p.flat]
    fitting = [p for p in ways if p.bytes <= cpu.l2_bytes // 2]
    return min(fitting, key=lambda p: p.cycles, default=None)


def row_products(p: RowProducts, access: Access, builder: Builder) -> list[Stage]:
    """The stages."""
    s, load_x, load_ct, write = p.s, access.left, access.right, access.write
    per_part = ceil_div(p.units, p.pieces)
    parts = ceil_div(p.units, per_part)
    partial = builder.scratch_buffer((parts, p.sums), s.dtype, "sums")
    zero = splat(const(0.0, s.dtype), p.lanes)
    whole = ramp(0, p.lanes)
    # Of one image nothing is told: little else is to be done.
    tell = const if s.n == 1 else number
    units, each, every_part = tell(p.units), tell(per_part), tell(parts)

    def part_stage(tile: Expr) -> Stmt:
        return bounded(parts, lambda part: sum_part(part, tile), exactly=s.n == 1)(tile)

    def sum_part(part: Expr, tile: Expr) -> Stmt:
        image = local_buffer(p.image, s.dtype, "image")
        ct = local_buffer((p.outputs, p.lines, p.lanes), s.dtype, "ct")
        flat = replace(ct, shape=(p.outputs, p.lines * p.lanes))
        sums = local_buffer((p.sums, p.lanes), s.dtype, "vectors")
        plane = local_buffer((p.wide,), s.dtype, "plane")

        def clear(memory: Memory) -> Stmt:
            count = memory.count // p.lanes
            lines = replace(memory, shape=(count, p.lanes))
            return serial(count, lambda q: store(lines, zero, q, whole), "q")

        def unit(index: Expr) -> Stmt:
            n, band = split(index, p.units // s.n)
            first, know_first = bind("first", band * p.rows)
            # No more than that, which LLVM does not know: it would unroll few rows, and sums
            # would leave registers.
            here = minimum(s.oh - first, p.rows)
            if p.flat:  # of vectors
                here = const(s.oh * s.ow // p.lanes)
            count, know_count = bind("count", maximum(here, tile - every_part))

            def block(b: Expr) -> Stmt:
                o, know = bind("o", minimum(b * p.outputs, s.o - p.outputs))

                def copied(q: Expr, y: Expr) -> Stmt:
                    line = y * p.vectors

                    def pixel(x: Expr) -> Stmt:
                        return store(flat, load_ct(n, o + q, first + y, x), q, line * p.lanes + x)

                    return serial(s.ow, pixel, "x")

                copy = [
                    serial(p.outputs, lambda q: serial(count, lambda y: copied(q, y), "y"), "q")
                ]
                vectors = _copied_vectors(p, ct)
                if access.right_line is not None:
                    copy, vectors = [], _vectors_in_place(p, access.right_line, n, o, first)
                tiles = grid(
                    (s.c, s.kh),
                    lambda c, i: _register_tile(p, b, c, i, vectors, image, sums, (first, count)),
                )
                return seq(know, *copy, tiles)

            def read(c: Expr, y: Expr, x: Expr) -> Expr:
                return load_x(n, c, y, x)

            if p.flat:
                copied_image = [_placed_image(p, image, plane, read)]
            else:
                copied_image = [clear(image), _copied_band(p, image, read, first)]
            return seq(
                know_first,
                know_count,
                copied_image,
                # Nor does it know how many blocks: it would write out each of a few.
                serial(maximum(p.blocks, tile - every_part), block, "block"),
            )

        def summed(group: Expr) -> Stmt:
            def fill(square: Memory, r: Expr) -> Stmt:
                return store(square, load(sums, group * p.lanes + r, whole), r, whole)

            steps, total = sum_lanes(p.lanes, s.dtype, fill)
            at = ramp(group * p.lanes, p.lanes)
            return seq(steps, store(partial, total, part, at))

        def blank(x: Expr) -> Stmt:
            return store(plane, const(0.0, s.dtype), x)

        begin = part * each
        size, know_size = bind("size", minimum(units - begin, each))
        return seq(
            know_size,
            [alloc(memory) for memory in (image, sums)],
            [alloc(ct), clear(ct)] if access.right_line is None else [],
            [alloc(plane), serial(p.wide, blank, "x")] if p.flat else [],
            clear(sums),
            serial(size, lambda u: unit(begin + u), "unit"),
            serial(p.sums // p.lanes, summed, "group"),
        )

    def total(o: Expr) -> Stmt:
        b = minimum(div(o, p.outputs), p.blocks - 1)
        q = o - minimum(b * p.outputs, s.o - p.outputs)
        rows = s.c * s.kh
        values = local_buffer((rows * s.kw,), s.dtype, "values")

        def of_part(part: Expr, put: Callable[[Expr, Expr], Stmt]) -> Stmt:
            own, know = view(load(partial, part, b * rows * p.tile + q * s.kw), "own")

            def row(r: Expr) -> Stmt:
                taps = serial(s.kw, lambda j: put(r * s.kw + j, load(own, r * p.tile + j)), "j")
                return seq(prefetch(load(own, r * p.tile), beyond=_AHEAD), taps)

            return seq(know, serial(rows, row, "r"))

        def begin(place: Expr, value: Expr) -> Stmt:
            return store(values, value, place)

        def add(place: Expr, value: Expr) -> Stmt:
            return store(values, load(values, place) + value, place)

        def finish(c: Expr, i: Expr, j: Expr) -> Stmt:
            return write(o, c, i, j, load(values, (c * s.kh + i) * s.kw + j))

        return seq(
            alloc(values),
            of_part(const(0), begin),
            serial(every_part - 1, lambda n: of_part(n + 1, add), "part") if parts > 1 else [],
            grid((s.c, s.kh, s.kw), finish),
        )

    return [
        parallel_stage("conv_dw_rows", parts, part_stage),
        parallel_stage("conv_dw_sum", s.o, total),
    ]


def _copied_band(
    p: RowProducts, image: Memory, read: Callable[[Expr, Expr, Expr], Expr], first: Expr
) -> Stmt:
    """Copy what the band from row ``first`` of ct on reads; ``read`` takes channel, row, column."""
    s = p.s
    across, left = s.stride[1], s.padding[1]

    def row(c: Expr, r: Expr) -> Stmt:
        y, know = bind("y", first * s.stride[0] + r - s.padding[0])

        def pixel(x: Expr) -> Stmt:
            column = x + left
            return store(image, read(c, y, x), c, mod(column, across), r, div(column, across))

        inside = (y >= 0) & (y < s.h)
        if across > 1:
            return seq(know, when(inside, serial(number(s.w, "columns"), pixel, "x")))
        return seq(know, when(inside, vectors_covering(s.w, p.lanes, pixel)))

    return grid((s.c, p.image[2]), row)


def _placed_image(
    p: RowProducts, image: Memory, plane: Memory, read: Callable[[Expr, Expr, Expr], Expr]
) -> Stmt:
    """Copy an image for each column of taps, by way of one row with its borders at a time.

    The borders of ``plane`` are zeros from the start.
    """
    s, lanes = p.s, p.lanes
    zero = splat(const(0.0, s.dtype), lanes)

    def row(c: Expr, r: Expr) -> Stmt:
        y, know = bind("y", r - s.padding[0])

        def pixel(x: Expr) -> Stmt:
            return store(plane, read(c, y, x), s.padding[1] + x)

        def placed(value: Callable[[Expr], Expr]) -> Stmt:
            def one(j: Expr, q: Expr) -> Stmt:
                # What is behind the row's end is written over by the next row.
                at = ramp(r * s.ow + q * lanes, lanes)
                return store(image, value(j * s.dilation[1] + q * lanes), c, j, 0, at)

            return grid((s.kw, p.vectors), one)

        inside = placed(lambda x: load(plane, ramp(x, lanes)))
        copy = seq(vectors_covering(s.w, lanes, pixel), inside)
        return seq(know, when((y >= 0) & (y < s.h), copy, placed(lambda x: zero)))

    return grid((s.c, p.high), row)


def _copied_vectors(p: RowProducts, ct: Memory) -> Vectors:
    """Of a block's copy, whose rows are followed by zeros."""

    def at(y: Expr, v: Expr, used: int) -> tuple[list[Stmt], list[Expr]]:
        whole = ramp(0, p.lanes)
        return [], [load(ct, q, y * p.vectors + v, whole) for q in range(p.outputs)]

    return at


def _vectors_in_place(p: RowProducts, line: Line, n: Expr, o: Expr, first: Expr) -> Vectors:
    """Of outputs from ``o`` on, where they lie in memory, from row ``first`` of image n on."""
    s = p.s

    def at(y: Expr, v: Expr, used: int) -> tuple[list[Stmt], list[Expr]]:
        near, declare = view(line(n, o, (first + y) * s.ow + v * p.lanes), "near")

        def vector(q: int) -> Expr:
            place = q * s.oh * s.ow
            if used == p.lanes:
                return load(near, ramp(place, p.lanes))
            return load_first(load(near, place), p.lanes, const(used))

        return [declare], [vector(q) for q in range(p.outputs)]

    return at


def _register_tile(
    p: RowProducts,
    b: Expr,
    c: Expr,
    i: Expr,
    vectors: Vectors,
    image: Memory,
    sums: Memory,
    rows: tuple[Expr, Expr],
) -> Stmt:
    """Add the products of a block's outputs with one row of taps, over some rows of ct: the first,
    and how many; if it is flat, how many whole vectors of the image."""
    s, lanes = p.s, p.lanes
    first, count = rows
    # Rows for which the tap reads above or below the image are left out.
    begin, end = forward_axes(s)[0].reading(i, i)
    if p.flat:
        begin, end = div(begin * s.ow, lanes), div(end * s.ow + (lanes - 1), lanes)
    begin, know_begin = bind("begin", maximum(begin - first, 0))
    inside, know_inside = bind("inside", maximum(minimum(end - first, count) - begin, 0))
    whole = ramp(0, lanes)
    points = [(q, j) for q in range(p.outputs) for j in range(s.kw)]
    acc = {point: local_buffer((lanes,), s.dtype, "acc") for point in points}
    base, know = bind("base", ((b * s.c + c) * s.kh + i) * p.tile)
    rest = (s.oh * s.ow if p.flat else s.ow) % lanes

    def step(y: Expr, v: Expr, used: int) -> Stmt:
        out: list[Stmt] = []
        taps = []
        for j in range(s.kw):
            shift = j * s.dilation[1]
            row = y * s.stride[0] + i * s.dilation[0]
            if p.flat:
                at = (c, j, 0, i * (s.dilation[0] * s.ow) + v * lanes)
            else:
                at = (c, shift % s.stride[1], row, v * lanes + shift // s.stride[1])
            if used == lanes:
                value = load(image, *at[:-1], ramp(at[-1], lanes))
            else:
                value = load_first(load(image, *at), lanes, const(used))
            value, statement = bind("s", value)
            taps.append(value)
            out.append(statement)
        know_place, found = vectors(y, v, used)
        out += know_place
        for q, vector in enumerate(found):
            value, statement = bind("g", vector)
            out.append(statement)
            for j in range(s.kw):
                own = acc[q, j]
                out.append(store(own, load(own, whole) + value * taps[j], whole))
        return seq(out)

    def row(y: Expr) -> Stmt:
        full = s.ow // lanes
        if p.flat:
            return step(const(0), y, lanes)
        # Long rows some vectors at a time: those of a line of sound would take seconds to compile.
        turns = full // _AT_ONCE if full > _SPELLED else 0

        def turn(n: Expr) -> Stmt:
            return seq([step(y, n * _AT_ONCE + k, lanes) for k in range(_AT_ONCE)])

        parts = [serial(number(turns, "turns"), turn, "n")] if turns else []
        parts += [step(y, const(v), lanes) for v in range(turns * _AT_ONCE, full)]
        return seq(parts, [step(y, const(full), rest)] if rest else [])

    return seq(
        know,
        know_begin,
        know_inside,
        [alloc(own) for own in acc.values()],
        [store(acc[q, j], load(sums, base + (q * s.kw + j), whole), whole) for q, j in points],
        serial(inside, lambda y: row(begin + y), "y"),
        [step(const(0), count, rest)] if p.flat and rest else [],
        [store(sums, load(acc[q, j], whole), base + (q * s.kw + j), whole) for q, j in points],
    )
