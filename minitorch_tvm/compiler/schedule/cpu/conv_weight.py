"""The weight gradient: outer products of input pixels and ct pixels.

For one kernel row the gradient is a matrix, (tap column and input channel) by output channel, that
sums ``x[pixel + tap] * ct[pixel]`` over all output pixels.  Output channels fill vector lanes and a
tile of the matrix stays in registers while pixels stream by.  Pixel rows are taken in blocks that
fit the second-level cache, and the sum is cut into a number of parts that depends on the shape
alone, so every thread count gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

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
    in_vectors,
    load,
    local_buffer,
    minimum,
    number,
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
from .conv_correlate import pick_tile
from .conv_layout import (
    ChannelsLast,
    bounded_stage,
    div,
    maximum,
    split,
    turn,
)
from .conv_spec import Access, Conv

# Enough independent pieces for a good balance over the cores of a desktop machine.
_PIECES = 16
# Pixels per batch of images: enough to hide the loading and storing of a register tile.
_BATCH_PIXELS = 128
# Weights of an output that a tile adds up: sixteen outputs' stay in the first-level cache.
_TOTAL_POSITIONS = 256


def outer_products(spec: Conv, access: Access, builder: Builder, cpu: CpuTarget) -> list[Stage]:
    """The stages of a weight gradient with at least one element and one pixel."""
    s = spec
    x_of, ct_of = (access.left, access.left_line), (access.right, access.right_line)
    lanes = cpu.lanes(s.itemsize)
    # Without dilation the taps of a kernel row and their channels are one contiguous run.
    groups, run = (1, s.kw * s.c) if s.dilation[1] == 1 else (s.kw, s.c)
    tile = pick_tile(1, run, ceil_div(s.o, lanes), 1, cpu)
    height, width = tile.columns, tile.vectors * lanes
    blocks = ceil_div(s.o, width)
    run_tiles = ceil_div(run, height)

    y, x = forward_axes(s)
    (top, rows), (left, columns) = y.border(), x.border()
    # The last tile may read past its run: into neighbouring pixels, or into these extra rows.
    rows += ceil_div(height, columns * s.c)
    size, low = (s.h, s.w), (top, left)
    layout_x = ChannelsLast(s.c, size, low, (rows, columns), s.c, s.dtype, lanes)
    size = (s.oh, s.ow)
    layout_ct = ChannelsLast(s.o, size, (0, 0), size, blocks * width, s.dtype, lanes, blocks)
    image_bytes = s.itemsize * sum(
        math.prod(layout.image_shape) for layout in (layout_x, layout_ct)
    )
    sums_shape = (blocks, s.kh, groups, run_tiles * height, width)
    sums_bytes = math.prod(sums_shape) * s.itemsize
    whole = ramp(0, lanes)
    points = [(r, m) for r in range(height) for m in range(tile.vectors)]

    def sweep(
        sums: Memory, where: tuple[Expr, ...], source: Memory, ct: Memory, first: Expr, count: Expr
    ) -> Stmt:
        """Add ``count`` pixel rows from ``first`` to the matrix ``sums[where]``."""
        _, block, i, group = where
        far_ct, far_x = (replace(memory, wide=True) for memory in (ct, source))
        line_ct, line_x = ct.line, source.line

        def run_tile(t: Expr) -> Stmt:
            acc = {(r, m): local_buffer((lanes,), s.dtype, f"acc{r}_{m}") for r, m in points}

            def at(r: int, m: int) -> tuple[Expr, ...]:
                return *where, t * height + r, ramp(m * lanes, lanes)

            taps = (group, group)
            if groups == 1:
                last = minimum(div(t * height + (height - 1), s.c), s.kw - 1)
                taps = (div(t * height, s.c), last)
            begin, end = x.reading(*taps)
            begin, know_begin = bind("begin", begin)
            wide, know_wide = bind("wide", maximum(end - begin, 0))
            upper, lower = y.reading(i, i)

            def row(q: Expr) -> Stmt:
                """Pixels of which a tap reads the image."""
                image, oy = split(first + q, s.oh)
                iy = oy * s.stride[0] - s.padding[0] + i * s.dilation[0] + top
                ix = begin * s.stride[1] - s.padding[1] + group * s.dilation[1] + left
                at_ct, know_ct = bind("at_ct", far_ct.flat((image, block, oy, begin, 0)))
                at_x, know_x = bind("at_x", far_x.flat((image, 0, iy, ix, t * height)))
                inner = serial(wide, lambda ox: pixel(at_ct, at_x, ox.astype("int64")), "ox")
                inside = (oy >= upper) & (oy < lower)
                return when(inside, seq(know_ct, know_x, inner))

            def pixel(at_ct: Expr, at_x: Expr, ox: Expr) -> Stmt:
                at_ct, at_x = at_ct + ox * width, at_x + ox * (s.stride[1] * s.c)
                vectors = [
                    bind("g", load(line_ct, ramp(at_ct + m * lanes, lanes)))
                    for m in range(tile.vectors)
                ]
                out = [statement for _, statement in vectors]
                for r in range(height):
                    value, statement = bind("s", load(line_x, at_x + r))
                    out.append(statement)
                    for m, (vector, _) in enumerate(vectors):
                        product = splat(value, lanes) * vector
                        out.append(store(acc[r, m], load(acc[r, m], whole) + product, whole))
                return seq(*out)

            return seq(
                [alloc(acc[p]) for p in points],
                [store(acc[p], load(sums, *at(*p)), whole) for p in points],
                know_begin,
                know_wide,
                serial(count, row, "q"),
                [store(sums, load(acc[p], whole), *at(*p)) for p in points],
            )

        return serial(run_tiles, run_tile, "t")

    def clear(sums: Memory, where: tuple[Expr, ...]) -> Stmt:
        def row(r: Expr) -> Stmt:
            zero = splat(const(0.0, s.dtype), lanes)
            return seq(
                [store(sums, zero, *where, r, ramp(m * lanes, lanes)) for m in range(tile.vectors)]
            )

        return serial(run_tiles * height, row, "r")

    def total(sums: Memory, parts: int) -> Stage:
        def element(part: Expr, o: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
            group, row = (const(0), j * s.c + c) if groups == 1 else (j, c)
            block = div(o, width)
            return load(sums, part, block, i, group, row, o - block * width)

        return _total_of_parts(s, parts, lanes, (element, width), access)

    if s.n >= 8 and image_bytes <= cpu.l2_bytes // 2 and sums_bytes <= cpu.l2_bytes // 4:
        # Each part packs its own images, a few at a time, so the copies stay in cache.
        wanted = _PIECES if _PIECES * sums_bytes <= cpu.l2_bytes else _PIECES // 2
        per_part = ceil_div(s.n, wanted)
        parts = ceil_div(s.n, per_part)
        enough = ceil_div(_BATCH_PIXELS, s.oh * s.ow)
        batch = max(1, min(per_part, enough, cpu.l2_bytes // 2 // image_bytes))
        sums = builder.scratch_buffer((parts, *sums_shape), s.dtype, "sums")
        images, each = number(s.n, "images"), number(per_part, "each")

        def part_stage(part: Expr) -> Stmt:
            source = local_buffer((batch, *layout_x.image_shape), s.dtype, "xs")
            ct = local_buffer((batch, *layout_ct.image_shape), s.dtype, "cts")
            size, bind_size = bind("size", minimum(images - part * each, each))

            def one_batch(b: Expr) -> Stmt:
                first = part * each + b * batch
                count = minimum(size - b * batch, batch)

                def pack(image: Expr) -> Stmt:
                    return seq(
                        layout_x.image(source, x_of, first + image, image),
                        layout_ct.image(ct, ct_of, first + image, image),
                    )

                def matrix(index: Expr) -> Stmt:
                    where = (part, *split(index, s.kh, groups))
                    return sweep(sums, where, source, ct, const(0), count * s.oh)

                return seq(
                    serial(count, pack, "image"),
                    serial(blocks * s.kh * groups, matrix, "matrix"),
                )

            return seq(
                bind_size,
                alloc(source),
                alloc(ct),
                serial(
                    blocks * s.kh * groups,
                    lambda index: clear(sums, (part, *split(index, s.kh, groups))),
                    "matrix",
                ),
                serial(div(size + (batch - 1), batch), one_batch, "b"),
            )

        return [bounded_stage("conv_dw", parts, part_stage), total(sums, parts)]

    stages, packed_x = layout_x.stages("x", s.n, x_of, builder)
    more, packed_ct = layout_ct.stages("ct", s.n, ct_of, builder)
    pixel_rows = s.n * s.oh
    parts = 1
    while parts * blocks * s.kh * groups < _PIECES and 2 * parts <= pixel_rows:
        parts *= 2
    part_rows = ceil_div(pixel_rows, parts)
    parts = ceil_div(pixel_rows, part_rows)
    sums = builder.scratch_buffer((parts, *sums_shape), s.dtype, "sums")
    row_bytes = (s.ow * s.stride[1] * s.c + s.ow * width) * s.itemsize
    step = max(1, cpu.l2_bytes // 4 // row_bytes)

    tell = const if s.n == 1 else number  # of one image nothing is told: little is to be done
    every_row, each = tell(pixel_rows), tell(part_rows)

    def matrix_stage(index: Expr) -> Stmt:
        part, block, i, group = split(index, blocks, s.kh, groups)
        where = (part, block, i, group)
        begin, bind_begin = bind("begin", part * each)
        size, bind_size = bind("size", minimum(every_row - begin, each))

        def row_block(b: Expr) -> Stmt:
            count = minimum(size - b * step, step)
            return sweep(sums, where, packed_x, packed_ct, begin + b * step, count)

        return seq(
            bind_begin,
            bind_size,
            clear(sums, where),
            serial(div(size + (step - 1), step), row_block, "b"),
        )

    pieces = parts * blocks * s.kh * groups
    return [
        *stages,
        *more,
        bounded_stage("conv_dw", pieces, matrix_stage, s.n == 1),
        total(sums, parts),
    ]


def _total_of_parts(
    s: Conv,
    parts: int,
    lanes: int,
    sums: tuple[Callable[[Expr, Expr, Expr, Expr, Expr], Expr], int],
    access: Access,
) -> Stage:
    """Add the parts in order and hand the result to the epilogue in OIHW order.

    ``sums`` loads the sum of (part, o, c, i, j), behind which lie those of more o, and says how far
    those of the next c are away.
    """
    element, apart = sums
    window, every_part = s.kh * s.kw, number(parts, "parts")
    chunks = ceil_div(s.c, max(1, _TOTAL_POSITIONS // window))
    most = ceil_div(s.c, chunks)  # channels per tile
    span = ceil_div(most * window, lanes) * lanes

    def body(index: Expr) -> Stmt:
        group, chunk = split(index, chunks)
        o0, c0 = group * lanes, chunk * most
        channels: Expr = most if s.c % most == 0 else minimum(most, s.c - c0)
        summed = local_buffer((span, lanes), s.dtype, "summed")
        planes = local_buffer((lanes, span), s.dtype, "planes")
        whole, every = ramp(0, lanes), every_part * window

        def taps(first: Expr, count: Expr, put: Callable[[Expr, Expr], Stmt]) -> Stmt:
            """``put(place, sums)`` of all channels for some taps, those of all parts in a row."""

            def tap(n: Expr) -> Stmt:
                # Sums of neighbouring channels are neighbours, those of other taps and parts lie
                # apart: the next tap's are asked for.
                at = first + n
                places = [split(t, window) for t in (at, minimum(at + 1, every - 1))]
                (own, know), (later, know_later) = (
                    view(element(part, o0, c0, *split(of_part, s.kw)), "sums")
                    for part, of_part in places
                )

                def channel(c: Expr) -> Stmt:
                    value = load(own, ramp(c * apart, lanes))
                    return seq(
                        prefetch(load(later, c * apart)), put(c * window + places[0][1], value)
                    )

                return seq(know, know_later, serial(channels, channel, "c"))

            return serial(count, tap, "n")

        def begin(place: Expr, own: Expr) -> Stmt:
            return store(summed, own, place, whole)

        def add(place: Expr, more: Expr) -> Stmt:
            return store(summed, load(summed, place, whole) + more, place, whole)

        def square(b: Expr) -> Stmt:
            first = b * lanes
            to = load(planes, 0, first), span
            return turn(s.dtype, lanes, (load(summed, first, 0), lanes), to)

        def plane(k: Expr) -> Stmt:
            def one(q: Expr) -> Stmt:
                value, flat = load(planes, k, q), c0 * window + q
                if access.write_line is not None:
                    return access.write_line(o0 + k, flat, value)
                c, i, j = split(flat, s.kh, s.kw)
                return access.write(o0 + k, c, i, j, value)

            if isinstance(channels, int) and access.write_line is not None:
                return in_vectors(channels * window, lanes, one, rolled=True)
            return serial(channels * window, one, "q")

        live = number(lanes, "lanes") if s.o % lanes == 0 else minimum(maximum(s.o - o0, 0), lanes)
        return seq(
            alloc(summed),
            alloc(planes),
            taps(const(0), window, begin),
            taps(const(window), every - window, add) if parts > 1 else [],
            serial(span // lanes, square, "b"),
            serial(live, plane, "k"),
        )

    return bounded_stage("conv_dw_sum", ceil_div(s.o, lanes) * chunks, body)
