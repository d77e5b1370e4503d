"""conv2d and its two gradients."""

from __future__ import annotations

import math
from dataclasses import replace

from ...loops import Builder, Expr, Stage, Stmt, const, grid, parallel_stage
from ...target import CpuTarget
from . import (
    conv_pixels,
    conv_pixels_plan,
    conv_tiles,
    conv_unfolded,
    conv_weight_rows,
    conv_weight_tiles,
)
from .conv_axes import forward_axes, gradient_axis
from .conv_correlate import Correlation, correlate, correlation, pack_weights
from .conv_layout import Write4, split
from .conv_spec import Access, Conv
from .conv_weight import outer_products

# Bounds on what packing adds: channels past the last whole tile, and partial weight gradients.
_PADDING = 128
_PARTS = 16
# Cycles of packing for multiply-adds: a weight, one for the input gradient, a pixel, and one of an
# image that stays in the second-level cache.
_WEIGHT_CYCLES, _TURNED_CYCLES, _PIXEL_CYCLES, _NEAR_CYCLES = 2.2, 2.1, 1.5, 0.4
_TOTAL_CYCLES = 2.5  # of adding up a weight's parts and turning them
# What estimates of these schedules are multiplied by before those of products are compared to them:
# products take 0.75 to 0.85 of what is estimated, these 1.0 to 1.1, about that, 1.2 and 0.7 to 1.1.
_ON_UNIT, _IN_VECTORS, _WEIGHTS_ON_UNIT, _WEIGHTS_IN_VECTORS = 1.1, 1.35, 1.25, 0.9
# Of pixels in vectors, before that is compared to outputs in vectors.
_IN_PIXELS = 0.92


def _zeros(name: str, extents: tuple[int, int, int, int], dtype: str, write: Write4) -> list[Stage]:
    """An empty sum for every output."""
    if 0 in extents:
        return []
    a, b, c, d = extents
    zero = const(0.0, dtype)

    def body(t: Expr) -> Stmt:
        return grid((b, c, d), lambda i, j, k: write(t, i, j, k, zero))

    return [parallel_stage(name, a, body)]


def _indexable(s: Conv, *, padded: bool = False) -> bool:
    """Whether every buffer, packed copies included, can be indexed with 32 bits.

    In groups, whose channels are few, only one schedule's copies are ``padded``.
    """
    padding = _PADDING if padded or s.groups == 1 else 0
    reach = tuple(
        size + 2 * pad + kernel * dilation
        for size, pad, kernel, dilation in zip(
            (s.h, s.w), s.padding, (s.kh, s.kw), s.dilation, strict=True
        )
    )
    channels = s.groups * (max(s.c, s.o) + padding)
    activations = s.n * channels * reach[0] * reach[1]
    weights = _PARTS * channels * (min(s.c, s.o) + padding) * s.kh * s.kw
    return max(activations, weights) < 1 << 31


def _sparse(s: Conv, access: Access) -> tuple[Conv, Access]:
    """The same convolution of those pixels only that a kernel of one pixel reads."""
    if (s.kh, s.kw) != (1, 1) or s.stride == (1, 1) or s.padding != (0, 0):
        return s, access
    (down, across), read = s.stride, access.left
    dense = replace(s, h=s.oh, w=s.ow, stride=(1, 1))

    def left(n: Expr, c: Expr, y: Expr, x: Expr) -> Expr:
        return read(n, c, y * down, x * across)

    return dense, replace(access, left=left, left_line=None)


def _in_pixels(
    p: Correlation, inputs: tuple[int, int], cpu: CpuTarget, groups: int = 1
) -> conv_pixels_plan.PixelCorrelation | None:
    """The problem with pixels in vectors, if that is faster than with outputs in them."""
    sizes = (p.images, p.reduced, p.channels)
    found = conv_pixels_plan.plan(*sizes, p.y, p.x, p.dtype, p.itemsize, cpu, groups)
    return found if found is not None and _IN_PIXELS * found.cycles < p.cycles(inputs) else None


def _direct_cycles(
    p: Correlation,
    inputs: tuple[int, int],
    on_unit: conv_tiles.Correlation | None,
    pixels: conv_pixels_plan.PixelCorrelation | None,
) -> float:
    """Cycles of a correlation that is no product, in the measure of products' estimates."""
    if on_unit is not None:
        return _ON_UNIT * on_unit.cycles
    return _IN_VECTORS * (p.cycles(inputs) if pixels is None else _IN_PIXELS * pixels.cycles)


def conv_forward_stages(
    spec: Conv, access: Access, builder: Builder, cpu: CpuTarget
) -> list[Stage] | None:
    """Stages of ``y[n, o] = sum over c, i, j of x[n, c] * w[o, c]``."""
    s = spec
    if not _indexable(s):
        return None
    if not all((s.n, s.c, s.o, s.oh, s.ow)):
        return _zeros("conv_empty", (s.n, s.o, s.oh, s.ow), s.dtype, access.write)
    s, access = _sparse(s, access)
    y, x = forward_axes(s)
    on_unit = conv_tiles.plan(s.n, s.c, s.o, y, x, s.dtype, cpu)
    p = correlation(s.n, s.c, s.o, y, x, s.dtype, s.itemsize, cpu)
    pixels = None if on_unit is not None else _in_pixels(p, (s.h, s.w), cpu, s.groups)
    direct = _direct_cycles(p, (s.h, s.w), on_unit, pixels)
    if on_unit is None and pixels is None:
        direct += _WEIGHT_CYCLES * s.o * s.c * s.kh * s.kw
    product = conv_unfolded.forward(s, access, builder, cpu, direct)
    if product is not None:
        return product
    load_x, load_w, write = access.left, access.right, access.write
    images = load_x, access.left_line
    if on_unit is not None:
        return conv_tiles.correlate_on_unit("conv", on_unit, load_x, load_w, write, builder)
    if pixels is not None:
        return conv_pixels.correlate_pixels("conv", pixels, (s.h, s.w), access, builder)
    taps = s.kh * s.kw

    def read(o: Expr, q: Expr) -> Expr:
        c, i, j = split(q, s.kh, s.kw)
        return load_w(o, c, i, j)

    def row_of(q: Expr) -> Expr:
        c, tap = split(q, taps)
        return tap * s.c + c

    packing, weights = pack_weights("w", p, (1, s.c * taps), row_of, read, builder)
    return [
        *packing,
        *correlate("conv", p, (s.h, s.w), images, weights, write, builder, cpu),
    ]


def conv_grad_input_stages(
    spec: Conv, access: Access, builder: Builder, cpu: CpuTarget
) -> list[Stage] | None:
    """Stages of the gradient with respect to x: a correlation of ct with the same weights."""
    s = spec
    if not _indexable(s):
        return None
    if not all((s.n, s.c, s.o, s.oh, s.ow)):
        return _zeros("conv_empty", (s.n, s.c, s.h, s.w), s.dtype, access.write)
    y = gradient_axis(s.h, s.oh, s.kh, s.stride[0], s.padding[0], s.dilation[0])
    x = gradient_axis(s.w, s.ow, s.kw, s.stride[1], s.padding[1], s.dilation[1])
    on_unit = conv_tiles.plan(s.n, s.o, s.c, y, x, s.dtype, cpu)
    p = correlation(s.n, s.o, s.c, y, x, s.dtype, s.itemsize, cpu)
    pixels = None if on_unit is not None else _in_pixels(p, (s.oh, s.ow), cpu, s.groups)
    direct = _direct_cycles(p, (s.oh, s.ow), on_unit, pixels)
    if on_unit is None and pixels is None:
        direct += _TURNED_CYCLES * s.o * s.c * s.kh * s.kw
    product = conv_unfolded.input_gradient(s, access, builder, cpu, direct)
    if product is not None:
        return product
    load_ct, load_w, write = access.left, access.right, access.write
    images = load_ct, access.left_line

    def turned(channel: Expr, o: Expr, i: Expr, j: Expr) -> Expr:
        return load_w(o, channel, i, j)

    if on_unit is not None:
        return conv_tiles.correlate_on_unit("conv_dx", on_unit, load_ct, turned, write, builder)
    if pixels is not None:
        back = replace(access, right=turned, right_line=None)
        return conv_pixels.correlate_pixels("conv_dx", pixels, (s.oh, s.ow), back, builder)
    taps = s.kh * s.kw

    def read(c: Expr, q: Expr) -> Expr:
        o, i, j = split(q, s.kh, s.kw)
        return load_w(o, c, i, j)

    def row_of(q: Expr) -> Expr:
        o, tap = split(q, taps)
        return tap * s.o + o

    packing, weights = pack_weights("w", p, (s.o, taps), row_of, read, builder)
    return [
        *packing,
        *correlate("conv_dx", p, (s.oh, s.ow), images, weights, write, builder, cpu),
    ]


def conv_grad_weight_stages(
    spec: Conv, access: Access, builder: Builder, cpu: CpuTarget
) -> list[Stage] | None:
    """Stages of the gradient with respect to w: products of all output pixels, summed up."""
    s = spec
    if not _indexable(s):
        return None
    if not all((s.n, s.c, s.o, s.kh, s.kw, s.oh, s.ow)):
        return _zeros("conv_empty", (s.o, s.c, s.kh, s.kw), s.dtype, access.write)
    s, access = _sparse(s, access)
    on_unit = conv_weight_tiles.plan(s, cpu)
    if on_unit is not None:
        direct = _WEIGHTS_ON_UNIT * on_unit.cycles
    else:
        pixels = s.c * s.h * s.w + s.o * s.oh * s.ow  # of an image
        near = 2 * pixels * s.itemsize <= cpu.l2_bytes
        direct = _WEIGHTS_IN_VECTORS * conv_weight_tiles.vector_cycles(s, cpu)
        direct += (_NEAR_CYCLES if near else _PIXEL_CYCLES) * s.n * pixels
        direct += _TOTAL_CYCLES * s.o * s.c * s.kh * s.kw
    rows = conv_weight_rows.plan(s, cpu, access.right_line is not None)
    along_rows = math.inf if rows is None else rows.cycles
    if along_rows >= direct:
        rows = None
    direct = min(direct, along_rows)
    product = conv_unfolded.weight_gradient(s, access, builder, cpu, direct)
    if product is not None:
        return product
    if rows is not None:
        return conv_weight_rows.row_products(rows, access, builder)
    if on_unit is not None:
        return conv_weight_tiles.outer_products_on_unit(on_unit, access, builder, cpu)
    if not _indexable(s, padded=True):
        return None
    return outer_products(s, access, builder, cpu)


__all__ = [
    "Access",
    "Conv",
    "conv_forward_stages",
    "conv_grad_input_stages",
    "conv_grad_weight_stages",
]
