"""The register kernel behind a convolution and its input gradient.

Both are one *correlation*: an output pixel sums, over taps and channels, an input pixel of a
channel-last, zero-bordered copy times a weight row.  Output channels fill vector lanes, a small
rectangle of output pixels shares each weight vector, and every accumulator stays in a register
over the whole reduction.  Finished pixels are collected for a block of output rows, transposed back
to NCHW in vectors, and only then handed to the epilogue.

With stride s the input gradient falls apart into s*s classes of output pixels (their residues),
each a dense correlation with a subset of the taps; one kernel serves all classes, its tap range
computed from the residue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
    when,
)
from ...target import CpuTarget
from .conv_axes import Axis, share
from .conv_layout import (
    AHEAD,
    ChannelsLast,
    Images,
    Write4,
    bounded_stage,
    covering,
    maximum,
    split,
    stays_cached,
    transpose_rows,
    turn,
)

# Measured: a multiply-add of vectors, what it takes more where its broadcast is not used again, a
# broadcast where that is an instruction of its own, and what copying a vector of pixels and
# finishing one of results take.
_STEP_CYCLES, _ALONE_CYCLES, _BROADCAST_CYCLES, _VECTOR_CYCLES = 0.51, 0.12, 0.18, 4.0
_L2_RATE = 20  # bytes a cycle that come from the second-level cache


@record
class Tile:
    """Register tile: ``rows`` by ``columns`` output units, ``vectors`` of output channels."""

    rows: int
    columns: int
    vectors: int


def broadcast_cycles(vector_bytes: int) -> float:
    """Of a broadcast, or 0 where multiply-adds broadcast a factor from memory themselves.

    AVX-512's do.
    """
    return _BROADCAST_CYCLES if vector_bytes < 64 else 0.0


def pick_tile(height: int, width: int, channel_vectors: int, taps: int, cpu: CpuTarget) -> Tile:
    """The tile with the smallest modelled time per useful multiply-add.

    A step costs the larger of its multiply-adds and its loads (one weight vector per channel
    vector, one broadcast per pixel, two of either kind a cycle), and at least the eight that hide
    the multiply-adds' latency.  Whole vectors often come from the second-level cache, so they
    weigh more than broadcasts.  Lanes and pixels outside the output count as cost.

    Where broadcasts are instructions of their own they cost more, and so many vectors that the
    second-level cache cannot keep up are no way to need fewer of them.
    """
    registers, vector_bytes = cpu.vector_registers, cpu.vector_bytes
    broadcast = broadcast_cycles(vector_bytes)
    best, best_cost = Tile(1, 1, 1), float("inf")
    for vectors in range(1, min(channel_vectors, 8) + 1):
        # Neighbouring taps share broadcasts when there is one channel vector; their weights then
        # stay in registers together.
        shared = taps if channel_vectors == 1 and taps <= 5 else 1
        limit = (registers - 2 - vectors * shared) // vectors
        waste = ceil_div(channel_vectors, vectors) * vectors / channel_vectors
        for columns in range(1, min(width, max(limit, 1)) + 1):
            if columns != ceil_div(width, ceil_div(width, columns)):
                continue
            rows = max(1, min(height, limit // columns)) if columns == width else 1
            rows = ceil_div(height, ceil_div(height, rows))
            pixels = rows * columns
            work = pixels * vectors
            if work + vectors * shared + 2 > registers:
                continue
            broadcasts = (pixels + shared - 1) / shared
            step = max(work, vectors + broadcasts, 8) + 0.1 * (pixels + 6 * vectors)
            if broadcast:
                step = max(step, 2 * vectors * vector_bytes / _L2_RATE)
                step += 2 * broadcast * broadcasts
            covered = ceil_div(width, columns) * columns * ceil_div(height, rows) * rows
            cost = step / work * waste * covered / (width * height)
            if cost < best_cost - 1e-9:
                best, best_cost = Tile(rows, columns, vectors), cost
    return best


# Of the taps in a row, those that pixels need: with fewer, tiles at its ends get code of their own.
_WORTH_A_COPY = 0.98
# Share of finishing results in a convolution's time.
_FINISH = 0.2


def _pick_rows(axis: Axis, row_pixels: int, tile: Tile, lanes: int) -> int:
    """Units per row block: about a hundred pixels, few of them computed twice.

    Rounding up to whole vectors costs less: only what finishes results goes through them.
    """
    best, best_cost = tile.rows, float("inf")
    for units in range(tile.rows, axis.units + 1, tile.rows):
        pixels = units * axis.stride * row_pixels
        rounding = ceil_div(pixels, lanes) * lanes / pixels
        overlap = ceil_div(axis.units, units) * units / axis.units
        cost = (1 + _FINISH * (rounding - 1)) * overlap * (1 + 8 / pixels)
        if cost < best_cost - 1e-9:
            best, best_cost = units, cost
        if pixels >= 8 * lanes:
            break
    return best


@record
class Correlation:
    """Everything about one correlation but its buffers and its epilogue."""

    images: int
    reduced: int  # channels summed over
    channels: int  # output channels
    y: Axis
    x: Axis
    dtype: str
    itemsize: int
    lanes: int
    tile: Tile

    @property
    def width(self) -> int:
        """Output channels of one register tile."""
        return self.tile.vectors * self.lanes

    @property
    def blocks(self) -> int:
        """Register tiles that cover the output channels."""
        return ceil_div(self.channels, self.width)

    @property
    def starts(self) -> tuple[int, ...]:
        """Columns at which tiles that get code of their own start; none if all share theirs.

        At both ends of a row there are taps that some pixels do not need.
        """
        rest = self.x.units - self.tile.columns
        if self.x.stride > 1 or rest > self.tile.columns or share(self.x, 1) > _WORTH_A_COPY:
            return ()
        return (0, rest) if rest else (0,)

    @property
    def _covered(self) -> int:
        """Units of a row that are computed, some of them twice."""
        return ceil_div(self.x.units, self.tile.columns) * self.tile.columns

    def cycles(self, inputs: tuple[int, int]) -> float:
        """Estimated cycles, all cores together, for images of ``inputs``."""
        step = _STEP_CYCLES
        if self.tile.vectors == 1 and self.x.stride > 1:  # no two taps share a broadcast
            step += _ALONE_CYCLES
        step += broadcast_cycles(self.lanes * self.itemsize) / self.tile.vectors
        taps = self.y.every_tap * self.x.every_tap * self.reduced * share(self.y, self.tile.rows)
        if self.starts:
            taps *= share(self.x, 1)
        pixels = self.images * self.y.units * self._covered
        steps = pixels * taps * ceil_div(self.channels, self.lanes)
        elements = self.reduced * math.prod(inputs)
        elements += self.channels * self.y.outputs * self.x.outputs
        return step * steps + _VECTOR_CYCLES / self.lanes * self.images * elements


def correlation(
    images: int,
    reduced: int,
    channels: int,
    y: Axis,
    x: Axis,
    dtype: str,
    itemsize: int,
    cpu: CpuTarget,
) -> Correlation:
    """Choose the tile for a problem."""
    lanes = cpu.lanes(itemsize)
    tile = pick_tile(
        y.units,
        x.units,
        ceil_div(channels, lanes),
        x.kernel if x.stride == 1 else 1,
        cpu,
    )
    return Correlation(images, reduced, channels, y, x, dtype, itemsize, lanes, tile)


def pack_weights(
    name: str,
    problem: Correlation,
    extents: tuple[int, int],
    row_of: Callable[[Expr], Expr],
    read: Callable[[Expr, Expr], Expr],
    builder: Builder,
) -> tuple[list[Stage], Memory]:
    """Copy weights into ``[block][row][width]``, zero beyond ``channels``.

    ``read(k, q)`` is the weight of vector channel k at flat position q of ``extents``, the inner of
    which neighbours in memory have; it goes to row ``row_of(q)``.
    """
    p = problem
    blocks, width, lanes, channels, dtype = p.blocks, p.width, p.lanes, p.channels, p.dtype
    outer, inner = extents
    flat = outer * inner
    buffer = builder.scratch_buffer((blocks, flat, width), dtype, name)
    zero = const(0.0, dtype)
    per_block = width // lanes

    def body(tile: Expr) -> Stmt:
        block, part = split(tile, per_block)
        first = block * width + part * lanes
        filled = minimum(maximum(channels - first, 0), lanes)

        def put(q: Expr, vector: Expr) -> Stmt:
            return store(buffer, vector, block, row_of(q), ramp(part * lanes, lanes))

        def scalars() -> Stmt:
            def row(q: Expr) -> Stmt:
                def set_(k: Expr, value: Expr) -> Stmt:
                    return store(buffer, value, block, row_of(q), part * lanes + k)

                return seq(
                    serial(filled, lambda k: set_(k, read(first + k, q)), "k"),
                    serial(lanes - filled, lambda k: set_(filled + k, zero), "k"),
                )

            return serial(flat, row, "q")

        def squares(u: Expr) -> Stmt:
            """Of inner positions, transposed as squares, asking for what comes later."""
            columns = min(lanes, inner)

            def square(q0: Expr) -> Stmt:
                later = q0 + AHEAD * lanes if outer == 1 else q0 + AHEAD * inner

                def fill(to: Memory, r: Expr) -> Stmt:
                    def copy(k: Expr) -> Stmt:
                        return store(to, read(first + r, q0 + k), r, k)

                    asks = ask(lambda: read(first + r, minimum(later, flat - 1)))
                    return seq(asks, serial(columns, copy, "k"))

                return transpose_rows(
                    lanes, dtype, fill, lambda k, v: put(q0 + k, v), columns, apart=True
                )

            return covering(inner, columns, lambda q0: square(u * inner + q0))

        if channels % lanes or lanes == 1 or (inner < lanes and outer == 1):
            return scalars()
        shuffles = serial(outer, squares, "u")
        if per_block * blocks * lanes == channels:
            return shuffles
        return tvm().tirx.IfThenElse(first < channels, shuffles, scalars())

    return [bounded_stage(f"{name}_pack", blocks * per_block, body)], buffer


def correlate(
    name: str,
    problem: Correlation,
    inputs: tuple[int, int],
    of: Images,
    weights: Memory,
    write: Write4,
    builder: Builder,
    cpu: CpuTarget,
) -> list[Stage]:
    """The stages that compute ``problem`` from packed weights.

    ``of`` are the inputs, of height and width ``inputs``; ``weights`` is
    ``[block][(i * kw + j) * reduced + channel][width]``.
    """
    p = problem
    (top, height), (left, width) = p.y.border(), p.x.border()
    layout = ChannelsLast(
        p.reduced, inputs, (top, left), (height, width), p.reduced, p.dtype, p.lanes
    )
    units = _pick_rows(p.y, p.x.units * p.x.stride, p.tile, p.lanes)
    row_blocks = ceil_div(p.y.units, units)
    geometry = (p, weights, write, (top, left), units)

    if stays_cached(p.images, layout.image_shape, p.itemsize, cpu):

        def image_stage(image: Expr) -> Stmt:
            packed = local_buffer((1, *layout.image_shape), p.dtype, "packed")

            def piece(index: Expr) -> Stmt:
                block, row_block = split(index, row_blocks)
                return _row_block(*geometry, packed, const(0), image, block, row_block)

            return seq(
                alloc(packed),
                layout.image(packed, of, image, const(0)),
                serial(p.blocks * row_blocks, piece, "piece"),
            )

        return [bounded_stage(name, p.images, image_stage)]

    stages, source = layout.stages("x", p.images, of, builder)

    def stage(index: Expr) -> Stmt:
        image, block, row_block = split(index, p.blocks, row_blocks)
        return _row_block(*geometry, source, image, image, block, row_block)

    return [*stages, bounded_stage(name, p.images * p.blocks * row_blocks, stage)]


def _row_block(
    p: Correlation,
    weights: Memory,
    write: Write4,
    border: tuple[int, int],
    units: int,
    source: Memory,
    slot: Expr,
    image: Expr,
    block: Expr,
    row_block: Expr,
) -> Stmt:
    """A block of output rows for one block of channels; ``source[slot]`` is the packed image."""
    ay, ax = p.y, p.x
    pitch = ax.units * ax.stride  # pixels per collected row, at least the output's width
    rows = units * ay.stride
    pixels = ceil_div(rows * pitch, p.lanes) * p.lanes
    unit0, bind_unit0 = bind("u0", minimum(row_block * units, ay.units - units))
    done = local_buffer((pixels, p.width), p.dtype, "done")
    down, across = ceil_div(units, p.tile.rows), ceil_div(ax.units, p.tile.columns)

    def tile(index: Expr) -> Stmt:
        ry, rx, ut, vt = split(index, ax.stride, down, across)
        u = minimum(ut * p.tile.rows, units - p.tile.rows)
        v = minimum(vt * p.tile.columns, ax.units - p.tile.columns)
        return _register_tile(
            p, source, border, weights, done, slot, block, unit0, pitch, ry, rx, u, v
        )

    # One loop over all tiles: as a nest, LLVM would unroll the residues and double the code.
    return seq(
        bind_unit0,
        alloc(done),
        serial(ay.stride * ax.stride * down * across, tile, "tile"),
        _finish(p, done, image, block, row_block * rows, unit0 * ay.stride, rows, pitch, write),
    )


def _register_tile(
    p: Correlation,
    source: Memory,
    border: tuple[int, int],
    weights: Memory,
    done: Memory,
    image: Expr,
    block: Expr,
    unit0: Expr,
    pitch: int,
    ry: Expr,
    rx: Expr,
    u: Expr,
    v: Expr,
) -> Stmt:
    """Output units (u, v) onwards of residue class (ry, rx), over the whole reduction."""
    tile, lanes, ay, ax = p.tile, p.lanes, p.y, p.x
    top = unit0 + u
    know, ty = ay.reached(ay.taps(0 if ay.stride == 1 else ry), top, top + (tile.rows - 1))
    tx = ax.taps(0 if ax.stride == 1 else rx)
    points = [(dy, dx) for dy in range(tile.rows) for dx in range(tile.columns)]
    acc = [
        [local_buffer((lanes,), p.dtype, f"acc{k}_{m}") for m in range(tile.vectors)]
        for k in range(len(points))
    ]
    whole = ramp(0, lanes)

    def reads(start: int | None, dx: int, b: Expr) -> bool:
        """Whether a pixel of the tile may need a tap, which is a number where that is known."""
        if start is None or not isinstance(b, int):
            return True
        return 0 <= (start + dx) * ax.input_stride + tx.base + b * ax.advance < ax.inputs

    def steps(start: int | None, a: Expr, c: Expr, taps: Sequence[Expr]) -> list[Stmt]:
        """One channel of one kernel row; input columns shared by the taps are loaded once."""
        i = ty.first + a * ay.step
        y0 = top * ay.input_stride + ty.base + a * ay.advance + border[0]
        x0 = (v if start is None else start) * ax.input_stride + tx.base + border[1]
        x0 = x0 + taps[0] * ax.advance
        out: list[Stmt] = []
        vectors: list[list[Expr]] = []
        for b in taps:
            j = tx.first + b * ax.step
            row = (i * ax.kernel + j) * p.reduced + c
            named = [
                bind("w", load(weights, block, row, ramp(m * lanes, lanes)))
                for m in range(tile.vectors)
            ]
            out += [s for _, s in named]
            vectors.append([w for w, _ in named])
        columns: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for k, (dy, dx) in enumerate(points):
            for t, b in enumerate(taps):
                shift = dx * ax.input_stride + (t * ax.advance if len(taps) > 1 else 0)
                if reads(start, dx, b):
                    columns.setdefault((dy, shift), []).append((k, t))
        for (dy, shift), uses in sorted(columns.items()):
            value, statement = bind(
                "s", load(source, image, 0, y0 + dy * ay.input_stride, x0 + shift, c)
            )
            out.append(statement)
            for k, t in uses:
                for m in range(tile.vectors):
                    product = splat(value, lanes) * vectors[t][m]
                    out.append(store(acc[k][m], load(acc[k][m], whole) + product, whole))
        return out

    def kernel_columns(a: Expr, start: int | None) -> Stmt:
        """One kernel row, of a tile that starts at that column."""
        count = tx.count
        work = len(points) * tile.vectors
        unroll = isinstance(count, int) and ((tile.vectors == 1 and p.blocks == 1) or p.reduced < 8)
        if unroll and count * work <= 160:
            if not count:
                return seq()
            return serial(p.reduced, lambda c: seq(steps(start, a, c, range(count))), "c")

        def column(b: Expr) -> Stmt:
            return serial(p.reduced, lambda c: seq(steps(start, a, c, [b])), "c")

        if start is None or not isinstance(count, int):
            return serial(count, column, "b")
        # Taps that some pixels do not need have code of their own.
        needed = [sum(reads(start, dx, b) for dx in range(tile.columns)) for b in range(count)]
        middle = needed.count(tile.columns)
        first = needed.index(tile.columns) if middle else count
        return seq(
            [column(b) for b in range(first) if needed[b]],
            serial(middle, lambda b: column(first + b), "b") if middle else [],
            [column(b) for b in range(first + middle, count) if needed[b]],
        )

    def kernel_row(a: Expr) -> Stmt:
        made = [kernel_columns(a, start) for start in p.starts or (None,)]
        return made[0] if len(made) == 1 else when(tvm().tirx.EQ(v, const(0)), *made)

    def collect(k: int, m: int) -> Stmt:
        dy, dx = points[k]
        y, x = (u + dy) * ay.stride + ry, (v + dx) * ax.stride + rx
        return store(done, load(acc[k][m], whole), y * pitch + x, ramp(m * lanes, lanes))

    every = [(k, m) for k in range(len(points)) for m in range(tile.vectors)]
    zero = splat(const(0.0, p.dtype), lanes)
    return seq(
        know,
        [alloc(acc[k][m]) for k, m in every],
        [store(acc[k][m], zero, whole) for k, m in every],
        serial(ty.count, kernel_row, "a"),
        [collect(k, m) for k, m in every],
    )


def _finish(
    p: Correlation,
    done: Memory,
    image: Expr,
    block: Expr,
    first_row: Expr,
    row0: Expr,
    rows: int,
    pitch: int,
    write: Write4,
) -> Stmt:
    """Transpose the collected pixels to channel-major and run the epilogue on them.

    Rows before ``first_row`` belong to the block before this one and are not written again: an
    epilogue may update its output in place.
    """
    lanes = p.lanes
    height, width = p.y.outputs, p.x.outputs
    pixels = ceil_div(rows * pitch, lanes) * lanes
    first, bind_first = bind("r0", maximum(first_row - row0, 0))
    last, bind_last = bind("r1", minimum(rows, height - row0))

    def group(m: Expr) -> Stmt:
        planes = local_buffer((lanes, pixels), p.dtype, "planes")
        channel0 = block * p.width + m * lanes

        def shuffle(q: Expr) -> Stmt:
            source = load(done, q * lanes, m * lanes), done.shape[-1]
            return turn(p.dtype, lanes, source, (load(planes, 0, q * lanes), pixels))

        def plane(k: Expr) -> Stmt:
            channel = channel0 + k

            def one(y: Expr, x: Expr) -> Stmt:
                value = load(planes, k, (first + y) * pitch + x)
                return write(image, channel, row0 + first + y, x, value)

            def row(y: Expr) -> Stmt:
                return in_vectors(width, lanes, lambda x: one(y, x), rolled=True)

            return serial(last - first, row, "y")

        live = minimum(maximum(p.channels - channel0, 0), lanes)
        return seq(
            alloc(planes),
            serial(pixels // lanes, shuffle, "q"),
            serial(number(lanes, "lanes") if p.channels % p.width == 0 else live, plane, "k"),
        )

    return seq(bind_first, bind_last, serial(p.tile.vectors, group, "m"))
