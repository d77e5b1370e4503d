"""Layout changes between PyTorch's NCHW and the channel-last copies that convolutions read.

A convolution keeps channels in vector lanes, so its operands are copied with channels innermost and
with their zero border written out.  Transposing element by element costs about a cycle each, which
is a third of the time of a 16 -> 16 channel 3x3 convolution; the blocks here are transposed with
vector shuffles instead, at a quarter of a cycle per element.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    Builder,
    Expr,
    Helper,
    Memory,
    Parts,
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
    parallel_stage,
    pointer_buffer,
    ramp,
    seq,
    serial,
    splat,
    store,
    var,
    vectorized,
    view,
    when,
)
from ...target import CpuTarget

Load4 = Callable[[Expr, Expr, Expr, Expr], Expr]
Images = tuple[Load4, Callable[..., Expr] | None]
"""Elements by image, channel, y and x; and by image, channel and pixel, if images lie in memory as
they are."""
Write4 = Callable[[Expr, Expr, Expr, Expr, Expr], Stmt]

AHEAD = 2
"""Blocks of pixels that transpositions ask for ahead: lines of different channels lie on different
pages, where the hardware follows nothing."""


def maximum(a: Expr, b: Expr) -> Expr:
    """Larger of two index expressions."""
    left, right = (const(v) if isinstance(v, int) else v for v in (a, b))
    return tvm().tirx.max(left, right)


def div(a: Expr, b: int) -> Expr:
    """Floor division of an index expression."""
    return a // b if isinstance(a, int) else tvm().tirx.floordiv(a, const(b))


def mod(a: Expr, b: int) -> Expr:
    """Floor modulus of an index expression."""
    return a % b if isinstance(a, int) else tvm().tirx.floormod(a, const(b))


# Tiles up to which they are as if there were so many.
_RANGES = (1, 8, 256, 2048)


def bounded(
    tiles: int, body: Callable[[Expr], Stmt], exactly: bool = False
) -> Callable[[Expr], Stmt]:
    """``body`` of a tile, with a number whose range TVM can see.

    Its simplifier otherwise reckons with all of int32 and overflows on products of indices.  The
    range is that of similar numbers of tiles, which share what is compiled, unless it is to be told
    ``exactly``.
    """
    most = tiles if exactly else next((n for n in _RANGES if tiles <= n), tiles)

    def piece(tile: Expr) -> Stmt:
        index, statement = bind("piece", minimum(maximum(tile, 0), most - 1))
        return seq(statement, body(index))

    return piece


def bounded_stage(
    name: str, tiles: int, body: Callable[[Expr], Stmt], exactly: bool = False
) -> Stage:
    """A stage of ``bounded`` tiles."""
    return parallel_stage(name, tiles, bounded(tiles, body, exactly))


def split(index: Expr, *extents: int) -> tuple[Expr, ...]:
    """The coordinates of a row-major flat index; the first extent is not needed."""
    parts: list[Expr] = []
    for extent in reversed(extents):
        parts.append(mod(index, extent) if extent > 1 else const(0))
        index = div(index, extent) if extent > 1 else index
    return (index, *reversed(parts))


def transpose_tile(
    lanes: int,
    dtype: str,
    read: Callable[[Expr, Expr], Expr],
    write: Callable[[Expr, Expr], Stmt],
) -> Stmt:
    """Transpose one block of ``lanes`` by ``lanes`` scalars.

    ``read(r, k)`` is the scalar in row r at position k (contiguous in k); ``write(k, vector)``
    stores the vector that holds position k of every row.
    """

    def fill(block: Memory, r: Expr) -> Stmt:
        return serial(lanes, lambda k: store(block, read(r, k), r, k), "k")

    return transpose_rows(lanes, dtype, fill, write)


def transpose_rows(
    lanes: int,
    dtype: str,
    fill: Callable[[Memory, Expr], Stmt],
    write: Callable[[Expr, Expr], Stmt],
    columns: int | None = None,
    apart: bool = False,
) -> Stmt:
    """As :func:`transpose_tile`, with ``fill(block, r)`` the statement that stores row r.

    Of a row, that may be the first ``columns`` only; so many vectors are written then.
    ``apart``: by :func:`turn`, where it matters less how long that takes than to compile it.
    """
    block, whole = local_buffer((lanes, lanes), dtype, "block"), ramp(0, lanes)
    turned = local_buffer((lanes, lanes), dtype, "turned") if apart else block
    return seq(
        alloc(block),
        alloc(turned) if apart else [],
        serial(lanes, lambda r: fill(block, r), "r"),
        turn(dtype, lanes, (load(block, 0, 0), lanes), (load(turned, 0, 0), lanes))
        if apart
        else _exchanges(lanes, block),
        serial(columns or lanes, lambda k: write(k, load(turned, k, whole)), "k"),
    )


def turn(dtype: str, lanes: int, source: tuple[Expr, int], to: tuple[Expr, int]) -> Stmt:
    """Transpose a block of ``lanes`` by ``lanes`` elements from memory to other memory.

    Both are given by the first element and how many there are from a row to the next.  A function
    of its own does it, compiled once for all: the steps in between take LLVM some 20 ms.
    """

    def make() -> Parts:
        left, right = (pointer_buffer((1 << 16,), dtype, name) for name in ("left", "right"))
        own_pitch, other_pitch = var("own_pitch"), var("other_pitch")
        block, whole = local_buffer((lanes, lanes), dtype, "block"), ramp(0, lanes)

        def fetch(r: Expr) -> Stmt:
            return store(block, load(left, ramp(r * own_pitch, lanes)), r, whole)

        def put(k: Expr) -> Stmt:
            return store(right, load(block, k, whole), ramp(k * other_pitch, lanes))

        body = seq(
            alloc(block),
            serial(lanes, fetch, "r"),
            _exchanges(lanes, block),
            serial(lanes, put, "k"),
        )
        return Parts([left.raw, right.raw], [own_pitch, other_pitch], body)

    places = [tvm().tirx.address_of(element) for element, _ in (source, to)]
    return Helper(f"turn_{dtype}_{lanes}", make).call(*places, source[1], to[1])


def _exchanges(lanes: int, block: Memory) -> list[Stmt]:
    """Transpose a block in place.

    Each step exchanges the off-diagonal halves of blocks of twice its distance (Eklundh's method),
    log2(lanes) steps in all.  The steps are loops, which LLVM unrolls into registers; unrolled
    here, the shuffle masks would cost TVM's passes 40 ms a stage.
    """
    whole = ramp(0, lanes)
    shuffle = tvm().tirx.Shuffle
    steps: list[Stmt] = []
    distance = lanes // 2
    while distance:
        low = [const(k if not k & distance else lanes + k - distance) for k in range(lanes)]
        high = [const(k + distance if not k & distance else lanes + k) for k in range(lanes)]

        def exchange(
            p: Expr, distance: int = distance, low: list[Expr] = low, high: list[Expr] = high
        ) -> Stmt:
            r = div(p, distance) * (2 * distance) + mod(p, distance)
            a, bind_a = bind("a", load(block, r, whole))
            b, bind_b = bind("b", load(block, r + distance, whole))
            return seq(
                bind_a,
                bind_b,
                store(block, shuffle([a, b], low), r, whole),
                store(block, shuffle([a, b], high), r + distance, whole),
            )

        steps.append(serial(lanes // 2, exchange, "p"))
        distance //= 2
    return steps


def sum_lanes(
    lanes: int, dtype: str, fill: Callable[[Memory, Expr], Stmt]
) -> tuple[list[Stmt], Expr]:
    """Statements, and the vector whose lane k they make the sum of vector k's lanes.

    ``fill(block, r)`` stores vector r, of ``lanes`` of them.  Halves of two vectors make one, which
    takes half the shuffles of a transposition.  The steps are loops for the reason given above.
    """
    block = local_buffer((lanes, lanes), dtype, "block")
    whole = ramp(0, lanes)
    steps: list[Stmt] = []
    distance = lanes // 2
    while distance:
        own = [(k & ~distance) + (lanes if k & distance else 0) for k in range(lanes)]

        def meet(r: Expr, distance: int = distance, own: list[int] = own) -> Stmt:
            a, bind_a = bind("a", load(block, r, whole))
            b, bind_b = bind("b", load(block, r + distance, whole))
            halves = [
                tvm().tirx.Shuffle([a, b], [const(k + offset) for k in own])
                for offset in (0, distance)
            ]
            return seq(bind_a, bind_b, store(block, halves[0] + halves[1], r, whole))

        steps.append(serial(distance, meet, "r"))
        distance //= 2
    filled = serial(lanes, lambda r: fill(block, r), "r")
    return [alloc(block), filled, *steps], load(block, 0, whole)


def covering(extent: int, step: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """Cover ``range(extent)`` by blocks of ``step <= extent``; the last one may overlap."""
    return serial(ceil_div(extent, step), lambda b: body(minimum(b * step, extent - step)), "b")


def vectors_covering(extent: int, lanes: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """``body`` of all of ``range(extent)``, in vectors; the last may overlap the one before."""
    if extent < lanes:
        return in_vectors(extent, lanes, body)
    return covering(extent, lanes, lambda at: vectorized(lanes, lambda v: body(at + v)))


@record
class ChannelsLast:
    """A copy ``[image][group][y][x][channel]`` of NCHW data, with zeros around and behind it.

    ``low`` is the border before the first row and column, ``extent`` the size with borders;
    channels are followed by zeros up to ``padded``, and fall into that many ``groups``, which are
    whole vectors if there are several.
    """

    channels: int
    size: tuple[int, int]
    low: tuple[int, int]
    extent: tuple[int, int]
    padded: int
    dtype: str
    lanes: int
    groups: int = 1

    @property
    def image_shape(self) -> tuple[int, int, int, int]:
        """Shape of one image of the copy."""
        return (self.groups, *self.extent, self.padded // self.groups)

    def _place(self, image: Expr, y: Expr, x: Expr, channel: Expr) -> tuple[Expr, ...]:
        """Where an element of the copy is."""
        group, place = split(channel, self.padded // self.groups)
        return image, group, y, x, place

    def stages(
        self, name: str, images: int, of: Images, builder: Builder
    ) -> tuple[list[Stage], Memory]:
        """Stages that copy all images into a new scratch buffer."""
        buffer = builder.scratch_buffer((images, *self.image_shape), self.dtype, name)
        stages = []
        if self._slabs:

            def slab(tile: Expr) -> Stmt:
                image, block = split(tile, self._slabs)
                return self._slab(buffer, of, image, image, block)

            stages.append(bounded_stage(f"{name}_pack", images * self._slabs, slab, images == 1))
        if self._live or self._rest:
            rest = bounded_stage(
                f"{name}_pack_rest", images, lambda t: self._last(buffer, of, t, t)
            )
            stages.append(rest)
        return stages, buffer

    def image(self, buffer: Memory, of: Images, source: Expr, image: Expr) -> Stmt:
        """Copy image ``source`` into ``buffer[image]``."""
        parts = []
        if self._slabs:
            parts.append(
                serial(self._slabs, lambda b: self._slab(buffer, of, source, image, b), "b")
            )
        if self._live or self._rest:
            parts.append(self._last(buffer, of, source, image))
        return seq(*parts)

    @property
    def _usable(self) -> bool:
        """Whether squares of pixels and channels can be transposed by shuffles."""
        return self.lanes > 1 and self.size[0] * self.size[1] >= self.lanes

    @property
    def _overlaps(self) -> bool:
        """Whether the last slab has channels of the one before, too, and none are left."""
        more = self.channels > self.lanes and self.channels % self.lanes > 0
        return self._usable and more and not self._live and self.groups == 1

    @property
    def _slabs(self) -> int:
        """Groups of a vector's worth of channels that can be transposed by shuffles."""
        return self.channels // self.lanes + self._overlaps if self._usable else 0

    @property
    def _live(self) -> int:
        """Channels of another slab, which zeros fill, or 0."""
        filled = self._usable and self.padded % self.lanes == 0
        return self.channels % self.lanes if filled else 0

    @property
    def _covered(self) -> int:
        """Channels of all slabs."""
        if self._overlaps:
            return self.channels
        return (self._slabs + (1 if self._live else 0)) * self.lanes

    @property
    def _rest(self) -> int:
        """Channels after the last slab, zeros included."""
        return self.padded - self._covered

    def _last(self, buffer: Memory, of: Images, source: Expr, image: Expr) -> Stmt:
        """What is behind the slabs of live channels."""
        parts = []
        if self._live:
            parts.append(self._slab(buffer, of, source, image, const(self._slabs), self._live))
        if self._rest:
            parts.append(self._remainder(buffer, of[0], source, image))
        return seq(*parts)

    def _slab(
        self,
        buffer: Memory,
        of: Images,
        source: Expr,
        image: Expr,
        block: Expr,
        live: int | None = None,
    ) -> Stmt:
        """A vector's worth of channels, of which there are only so many ``live`` ones."""
        read, line = of
        start = block * self.lanes
        if self._overlaps:
            start = minimum(start, self.channels - self.lanes)
        (h, w), (top, left), lanes = self.size, self.low, self.lanes
        nothing = splat(const(0.0, self.dtype), lanes)
        # Whether pixels of a square are neighbours in the copy, too.
        in_row = w % lanes == 0 or self.extent == self.size

        def vector_at(y: Expr, x: Expr) -> tuple[Expr, ...]:
            *pixel, first = self._place(image, y, x, start)
            return *pixel, ramp(first, lanes)

        def tile(p0: Expr) -> Stmt:
            def put(k: Expr, vector: Expr) -> Stmt:
                y, x = split(p0 + k, w)
                return store(buffer, vector, *vector_at(y + top, x + left))

            def fill(square: Memory, r: Expr) -> Stmt:
                def get(at: Expr) -> Expr:
                    return read(source, start + r, *split(at, w))

                return seq(asks(r), serial(lanes, lambda k: store(square, get(p0 + k), r, k), "k"))

            def asks(r: Expr) -> list[Stmt]:
                later = minimum(p0 + AHEAD * lanes, h * w - 1)
                return ask(lambda: read(source, start + r, *split(later, w)))

            def row(square: Memory, r: Expr) -> Stmt:
                if line is None:
                    return fill(square, r)
                own, know = view(line(source, start + r, p0), "own")
                vector = load(own, ramp(0, lanes))
                return seq(asks(r), know, store(square, vector, r, ramp(0, lanes)))

            def some(square: Memory, r: Expr) -> Stmt:
                return when(r < live, row(square, r), store(square, nothing, r, ramp(0, lanes)))

            if live is not None:
                return transpose_rows(lanes, self.dtype, some, put, apart=True)
            if line is None or not in_row:
                return transpose_rows(lanes, self.dtype, row, put)
            y, x = split(p0, w)
            to = load(buffer, *self._place(image, y + top, x + left, start))
            pitch = self.padded // self.groups
            first = line(source, start, p0), h * w
            return seq(
                serial(lanes, lambda r: seq(asks(r)), "r"),
                turn(self.dtype, lanes, first, (to, pitch)),
            )

        def clear(y: Expr) -> Stmt:
            """The whole row above and below the image, else the pixels on both sides of it."""
            t = tvm().tirx
            inside = t.all(y >= top, y < top + h)
            beside, know = bind("beside", t.Select(inside, const(w), const(0)))

            def pixel(n: Expr) -> Stmt:
                x = n + t.Select(n >= left, beside, const(0))
                return store(buffer, nothing, *vector_at(y, x))

            return seq(know, serial(self.extent[1] - beside, pixel, "x"))

        copy = covering(h * w, lanes, tile)
        if self.extent == self.size:
            return copy
        return seq(serial(self.extent[0], clear, "y"), copy)

    def _remainder(self, buffer: Memory, read: Load4, source: Expr, image: Expr) -> Stmt:
        (h, w), (top, left) = self.size, self.low
        first = self._covered
        nothing = const(0.0, self.dtype)
        parts = []

        def told(*extents: int) -> list[Expr]:
            # LLVM writes out, and scatters, as many elements as it knows of.
            return [n if n == 1 else number(n, "extent") for n in extents]

        if self.extent != self.size or self.padded > self.channels:
            parts.append(
                grid(
                    (*told(*self.extent), self._rest),
                    lambda y, x, k: store(buffer, nothing, *self._place(image, y, x, first + k)),
                )
            )
        if first < self.channels:
            # With one channel both sides are contiguous in x; otherwise neither order is better.
            parts.append(
                grid(
                    told(h, self.channels - first, w),
                    lambda y, k, x: store(
                        buffer,
                        read(source, first + k, y, x),
                        *self._place(image, y + top, x + left, first + k),
                    ),
                )
            )
        return seq(*parts)


def stays_cached(images: int, shape: tuple[int, ...], itemsize: int, cpu: CpuTarget) -> bool:
    """Whether images are better copied one at a time, by the tile that uses the copy.

    The copy then stays in the core's own cache; that needs enough images to keep all cores busy.
    """
    return images >= 8 and math.prod(shape) * itemsize <= cpu.l2_bytes // 2
