"""Convolutions as one matrix product, where that is estimated to be faster.

``q`` numbers channel and tap, ``(c * kh + i) * kw + j``, as weights lie in memory, ``p`` the
pixels of all results, image after image.  With U[q, p] the *unfolded* input, what tap q of pixel p
reads::

    y[o, p] = sum over q of w[o, q] * U[q, p]
    dw[o, q] = sum over p of ct[o, p] * U[q, p]
    dx = fold(Z), Z[q, p] = sum over o of w[o, q] * ct[o, p]

where fold adds each element of Z to the input pixel that U would have read.  (Also called im2col
and col2im.)  Unfolding multiplies an image by its taps, so the other schedules are faster for most
convolutions.  It pays

* where weights are more than a core's cache holds and images are small: the other schedules fetch
  all weights again for every image;
* for the input gradient of few channels, which leave the other schedules' vectors, or tiles of the
  matrix unit, almost empty: here taps fill them, too;
* for a kernel of one pixel, which needs no unfolding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    Builder,
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    ceil_div,
    const,
    grid,
    in_vectors,
    load,
    local_buffer,
    minimum,
    seq,
    serial,
    store,
    when,
)
from ...target import CpuTarget
from .conv_layout import Load4, Write4, bounded_stage, div, mod, split
from .conv_spec import Access, Conv, Line
from .gemm import Gemm, cycles, gemm_stages

# Measured cycles per element: unfolded, folded, and copied to where a product reads or writes it.
_UNFOLD_CYCLES, _FOLD_CYCLES, _COPY_CYCLES = 0.8, 0.7, 0.7
# How many more of unfolded elements that so many second-level caches do not hold.
_FAR_CYCLES, _FAR = 0.8, 2
_STAGE_CYCLES = 8000
_TILES = 64  # of a stage that copies, at most
_UNIT_CYCLES = 0.014  # of a term, on the matrix unit
_FEW_SUMS = 4  # an image's elements, to its product's
_POINTWISE = 0.8  # nothing is copied, nor transposed, of which the other schedules' estimates know
_MOST = 1 << 26  # elements of what is unfolded


@record
class _Images:
    """``n`` images, ``pixels`` results of each; ``merged`` if they are one row of pixels."""

    s: Conv
    merged: bool

    @property
    def pixels(self) -> int:
        """Results of an image and channel."""
        return self.s.oh * self.s.ow

    @property
    def taps(self) -> int:
        """Channels times taps."""
        return self.s.c * self.s.kh * self.s.kw

    @property
    def batch(self) -> int:
        """Products."""
        return 1 if self.merged else self.s.n

    @property
    def columns(self) -> int:
        """Pixels of a product."""
        return self.pixels * self.s.n if self.merged else self.pixels

    @property
    def fits(self) -> bool:
        """Whether what is unfolded is not too much, nor of several groups."""
        return self.s.groups == 1 and self.taps * self.s.n * self.pixels <= _MOST

    def passage(self, cycles: float, cpu: CpuTarget) -> float:
        """Estimated cycles of a pass over all that is unfolded, from those of an element."""
        elements = self.taps * self.s.n * self.pixels
        far = elements * self.s.itemsize > _FAR * cpu.l2_bytes
        return elements * (cycles + _FAR_CYCLES if far else cycles)

    @property
    def plane(self) -> tuple[int, int, int, int]:
        """Pixels of a channel with borders, those of equal residue together.

        Of them, one tap reaches neighbours.
        """
        s = self.s
        rows, columns = (
            max((results - 1) * stride + (kernel - 1) * dilation, size + padding - 1) // stride + 1
            for results, stride, kernel, dilation, size, padding in zip(
                *((s.oh, s.ow), s.stride, (s.kh, s.kw)),
                *(s.dilation, (s.h, s.w), s.padding),
                strict=True,
            )
        )
        return (*s.stride, rows, columns)

    def memory(self, rows: int, name: str, builder: Builder) -> Memory:
        """Memory for ``rows`` lines of pixels."""
        return builder.scratch_buffer((self.batch, rows, self.columns), self.s.dtype, name)

    def at(self, memory: Memory, row: Expr, n: Expr, y: Expr, x: Expr) -> tuple[Expr, ...]:
        """Where pixel (y, x) of image n is."""
        pixel = y * self.s.ow + x
        return (0, row, n * self.pixels + pixel) if self.merged else (n, row, pixel)

    def gathered(self, rows: int, read: Load4, builder: Builder) -> tuple[Stage, Memory]:
        """``rows`` channels of all images as lines of pixels."""
        s, to = self.s, self.memory(rows, "gathered", builder)

        def tile(index: Expr) -> Stmt:
            row, n = split(index, s.n)

            def one(y: Expr, x: Expr) -> Stmt:
                return store(to, read(n, row, y, x), *self.at(to, row, n, y, x))

            return grid((s.oh, s.ow), one)

        return _few_tiles("conv_gather", rows * s.n, tile), to

    def scattered(self, rows: int, source: Memory, write: Write4) -> Stage:
        """Finish ``rows`` channels of all images, from lines of pixels."""
        s = self.s

        def tile(index: Expr) -> Stmt:
            n, row = split(index, rows)

            def one(y: Expr, x: Expr) -> Stmt:
                return write(n, row, y, x, load(source, *self.at(source, row, n, y, x)))

            return grid((s.oh, s.ow), one)

        return _few_tiles("conv_scatter", s.n * rows, tile)

    def unfolded(self, read: Load4, builder: Builder) -> tuple[Stage, Memory]:
        """What every tap of every pixel reads."""
        s, t, to = self.s, tvm().tirx, self.memory(self.taps, "unfolded", builder)
        zero = const(0.0, s.dtype)

        def tile(index: Expr) -> Stmt:
            c, n = split(index, s.n)

            def row(i: Expr, j: Expr, y: Expr) -> Stmt:
                from_y = y * s.stride[0] + (i * s.dilation[0] - s.padding[0])
                from_x = j * s.dilation[1] - s.padding[1]
                q = (c * s.kh + i) * s.kw + j

                def put(value: Callable[[Expr], Expr]) -> Stmt:
                    return serial(
                        s.ow,
                        lambda x: store(to, value(x), *self.at(to, q, n, y, x)),
                        "x",
                    )

                def element(x: Expr) -> Expr:
                    column = x * s.stride[1] + from_x
                    inside = t.all(column >= 0, column < s.w)
                    return t.if_then_else(inside, read(n, c, from_y, column), zero)

                inside = t.all(from_y >= 0, from_y < s.h)
                return when(inside, put(element), put(lambda x: zero))

            return grid((s.kh, s.kw, s.oh), row)

        return _few_tiles("conv_unfold", s.c * s.n, tile), to

    def folded(self, source: Memory, write: Write4, lanes: int) -> Stage:
        """Add what every tap gives to every pixel of the input."""
        s, (down, across) = self.s, self.s.stride
        plane = local_buffer(self.plane, s.dtype, "plane")
        size = math.prod(self.plane)

        def tile(index: Expr) -> Stmt:
            n, c = split(index, s.c)

            def add(i: Expr, j: Expr, y: Expr) -> Stmt:
                q = (c * s.kh + i) * s.kw + j
                a, b = i * s.dilation[0], j * s.dilation[1]

                def one(x: Expr) -> Stmt:
                    place = (mod(a, down), mod(b, across), div(a, down) + y, div(b, across) + x)
                    value = load(source, *self.at(source, q, n, y, x))
                    return store(plane, load(plane, *place) + value, *place)

                return in_vectors(s.ow, lanes, one)

            def finish(y: Expr, x: Expr) -> Stmt:
                a, b = y + s.padding[0], x + s.padding[1]
                place = (mod(a, down), mod(b, across), div(a, down), div(b, across))
                return write(n, c, y, x, load(plane, *place))

            flat = replace(plane, shape=(size,))
            zero = const(0.0, s.dtype)
            return seq(
                alloc(plane),
                serial(size, lambda k: store(flat, zero, k), "k"),
                grid((s.kh, s.kw, s.oh), add),
                grid((s.h, s.w), finish),
            )

        return _few_tiles("conv_fold", s.n * s.c, tile)


def _few_tiles(name: str, count: int, body: Callable[[Expr], Stmt]) -> Stage:
    """A stage that runs ``body(0..count - 1)``, several in a tile.

    One of a small image takes no longer than a thread needs to take the next.
    """
    each = ceil_div(count, _TILES)

    def tile(index: Expr) -> Stmt:
        start = index * each
        own = each if count % each == 0 else minimum(count - start, each)
        return serial(own, lambda k: body(start + k), "k")

    return bounded_stage(name, ceil_div(count, each), tile)


def _pointwise(s: Conv) -> bool:
    """Whether a result reads one pixel of each channel, at its own place."""
    return (s.kh, s.kw, *s.stride, *s.padding, s.groups) == (1, 1, 1, 1, 0, 0, 1)


def _weight(s: Conv, access: Access) -> Line:
    """``w[o, q]``."""
    if access.right_line is not None:
        return access.right_line
    return lambda o, q: access.right(o, *split(q, s.kh, s.kw))


@record
class _Way:
    """One way to compute a convolution: estimated cycles, all cores together, and its stages."""

    cycles: float
    stages: Callable[[], list[Stage]]


def _fastest(ways: list[_Way], below: float) -> list[Stage] | None:
    best = min(ways, key=lambda way: way.cycles, default=None)
    return best.stages() if best is not None and best.cycles < below else None


def forward(
    s: Conv, access: Access, builder: Builder, cpu: CpuTarget, below: float
) -> list[Stage] | None:
    """Stages of ``y``, if in fewer cycles than ``below``; ``access`` reads x and w."""
    weight = _weight(s, access)
    each, merged = _Images(s, False), _Images(s, True)

    def spec(images: _Images) -> Gemm:
        return _with_weights(images, access, s.o, images.taps)

    def product(images: _Images, column: Line, write: Line) -> list[Stage]:
        return _product(spec(images), lambda _, o, q: weight(o, q), column, write, builder, cpu)

    def unfolded() -> list[Stage]:
        unfold, image = merged.unfolded(access.left, builder)
        result = merged.memory(s.o, "result", builder)
        stages = product(merged, _read(image), _write(result))
        return [unfold, *stages, merged.scattered(s.o, result, access.write)]

    ways = []
    read, write = access.left_line, access.write_line
    if _pointwise(s) and read is not None and write is not None:
        estimate = _POINTWISE * cycles(spec(each), cpu)
        ways.append(_Way(estimate, lambda: product(each, read, write)))
    extra = merged.passage(_UNFOLD_CYCLES, cpu) + _COPY_CYCLES * s.o * merged.columns
    extra += 2 * _STAGE_CYCLES
    if merged.fits and _least(s, cpu) + extra < below:
        ways.append(_Way(cycles(spec(merged), cpu) + extra, unfolded))
    return _fastest(ways, below)


def input_gradient(
    s: Conv, access: Access, builder: Builder, cpu: CpuTarget, below: float
) -> list[Stage] | None:
    """Stages of ``dx``, if in fewer cycles than ``below``; ``access`` reads ct and w."""
    weight = _weight(s, access)
    each, merged = _Images(s, False), _Images(s, True)
    ct, write = access.left_line, access.write_line

    def spec(images: _Images) -> Gemm:
        return _with_weights(images, access, images.taps, s.o, turned=True)

    def product(images: _Images, column: Line, write: Line) -> list[Stage]:
        return _product(spec(images), lambda _, q, o: weight(o, q), column, write, builder, cpu)

    def folded(images: _Images, column: Line) -> list[Stage]:
        z = images.memory(images.taps, "taps", builder)
        last = images.folded(z, access.write, cpu.lanes(s.itemsize))
        return [*product(images, column, _write(z)), last]

    def gathered() -> list[Stage]:
        gather, together = merged.gathered(s.o, access.left, builder)
        return [gather, *folded(merged, _read(together))]

    ways = []
    if _pointwise(s) and ct is not None and write is not None:
        ways.append(_Way(_POINTWISE * cycles(spec(each), cpu), lambda: product(each, ct, write)))
    fold = merged.passage(_FOLD_CYCLES, cpu) + _STAGE_CYCLES
    fold += _COPY_CYCLES * s.n * s.c * s.h * s.w
    near = math.prod(merged.plane) * s.itemsize <= cpu.l2_bytes // 4
    if merged.fits and near and _least(s, cpu) + fold < below:
        if ct is not None:
            ways.append(_Way(cycles(spec(each), cpu) + fold, lambda: folded(each, ct)))
        gather = _COPY_CYCLES * s.o * merged.columns + _STAGE_CYCLES
        ways.append(_Way(cycles(spec(merged), cpu) + fold + gather, gathered))
    return _fastest(ways, below)


def weight_gradient(
    s: Conv, access: Access, builder: Builder, cpu: CpuTarget, below: float
) -> list[Stage] | None:
    """Stages of ``dw``, if in fewer cycles than ``below``; ``access`` reads x and ct."""
    write, merged = access.write_line, _Images(s, True)
    x, ct = access.left_line, access.right_line
    pixels = s.oh * s.ow
    few = _FEW_SUMS * s.o * s.c <= (s.o + s.c) * pixels
    if _pointwise(s) and few and x is not None and ct is not None and write is not None:
        each = Gemm(
            s.n,
            s.o,
            s.c,
            pixels,
            s.dtype,
            False,
            True,
            a_pitch=pixels,
            b_pitch=pixels,
            summed=True,
        )
        image, finish = x, write  # not None, for the functions below

        def products() -> list[Stage]:
            return _product(
                each,
                ct,
                lambda n, pixel, c: image(n, c, pixel),
                lambda _, o, c, value: finish(o, c, value),
                builder,
                cpu,
            )

        return _fastest([_Way(_POINTWISE * cycles(each, cpu), products)], below)
    extra = merged.passage(_UNFOLD_CYCLES, cpu) + _COPY_CYCLES * s.o * merged.columns
    extra += 2 * _STAGE_CYCLES
    if write is None or not merged.fits or _least(s, cpu) + extra >= below:
        return None
    spec = Gemm(
        1,
        s.o,
        merged.taps,
        merged.columns,
        s.dtype,
        False,
        True,
        a_pitch=merged.columns,
        b_pitch=merged.columns,
        a_batched=False,
        b_batched=False,
    )

    def stages() -> list[Stage]:
        unfold, image = merged.unfolded(access.left, builder)
        gather, ct = merged.gathered(s.o, access.right, builder)
        product = _product(
            spec,
            _read(ct),
            lambda bt, p, q: load(image, bt, q, p),
            lambda _, o, q, value: write(o, q, value),
            builder,
            cpu,
        )
        return [unfold, gather, *product]

    return _fastest([_Way(cycles(spec, cpu) + extra, stages)], below)


def _with_weights(images: _Images, access: Access, m: int, k: int, *, turned: bool = False) -> Gemm:
    """The product of weights, m x k as they are or ``turned``, and lines of pixels."""
    return Gemm(
        images.batch,
        m,
        images.columns,
        k,
        images.s.dtype,
        turned,
        False,
        a_pitch=None if access.right_line is None else m if turned else k,
        b_pitch=images.columns,
        a_batched=False,
        b_batched=not images.merged,
    )


def _read(memory: Memory) -> Line:
    return lambda *index: load(memory, *index)


def _write(memory: Memory) -> Line:
    return lambda bt, i, j, value: store(memory, value, bt, i, j)


def _least(s: Conv, cpu: CpuTarget) -> float:
    """Cycles that the product takes at least: an estimate proper takes a millisecond."""
    terms = s.n * s.oh * s.ow * s.o * s.c * s.kh * s.kw
    on_unit = cpu.matrix_unit and s.dtype == "float32"
    return terms * (_UNIT_CYCLES if on_unit else 0.5 / cpu.lanes(s.itemsize))


def _product(
    spec: Gemm, load_a: Line, load_b: Line, write: Line, builder: Builder, cpu: CpuTarget
) -> list[Stage]:
    stages = gemm_stages(spec, load_a, load_b, write, builder, cpu)
    assert stages is not None, "convolutions are of floating point, as products are"
    return stages
