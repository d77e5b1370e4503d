"""Volumes [n, c, d, h, w] by what there is for images.

A convolution has d images per volume, with the channels of all the slices that the kernel reaches
from there, one behind the other: then it is one of images with so many more channels.  That is
faster than a convolution per slice of the kernel, whose results would have to be added up; volumes
often have few channels, of which convolutions of images make little.  A window's largest element,
or its sum, is that over its depth of those over its images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.shape import Shape
from ..ir.node import Node, apply
from ..ir.op import op_of
from . import build as b
from . import conv as cv
from . import network as net
from .composite import composite
from .moves import padded


def _slices_first(x: Node) -> Node:
    """[n, c, d, ...] as [n, d, c, ...], and the other way round."""
    return b.permute(x, (0, 2, 1, *range(3, len(x.shape))))


def conv3d(
    x: Node,
    weight: Node,
    bias: Node | None,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    groups: int,
) -> Node:
    """Cross-correlation of x [n, c, d, h, w] with weight [o, c / groups, kd, kh, kw]."""
    given = (x, weight) if bias is None else (x, weight, bias)
    return apply(composite("Conv3d", _conv3d, stride, padding, dilation, groups), *given)


def _conv3d(*given: Any) -> Node:
    x, weight, *rest, stride, padding, dilation, groups = given
    bias = rest[0] if rest else None
    o, c, kd, kh, kw = weight.shape
    n, _, _, h, w = x.shape
    slices = padded(_slices_first(x), (*[0] * 6, padding[0], padding[0]))
    depth = (slices.shape[1] - dilation[0] * (kd - 1) - 1) // stride[0] + 1
    slices = b.reshape(slices, (n, slices.shape[1], groups, c, h, w))
    reached = []
    for k in range(kd):
        first = k * dilation[0]
        stops = (n, first + (depth - 1) * stride[0] + 1, *slices.shape[2:])
        steps = (1, stride[0], 1, 1, 1, 1)
        reached.append(b.slice(slices, (0, first, 0, 0, 0, 0), stops, steps))
    images = b.reshape(b.cat(reached, 3), (n * depth, groups * kd * c, h, w))
    flat = b.reshape(_slices_first(weight), (o, kd * c, kh, kw))
    y = net.conv2d(images, flat, bias, stride[1:], padding[1:], dilation[1:], groups)
    return _slices_first(b.reshape(y, (n, depth, *y.shape[1:])))


def conv_transpose3d(
    x: Node,
    weight: Node,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    groups: int,
    size: Shape,
) -> Node:
    """The gradient, of ``size``, of a convolution with weight [c, o / groups, kd, kh, kw]."""
    op = composite("ConvTranspose3d", _conv_transpose3d, stride, padding, dilation, groups, size)
    return apply(op, x, weight)


def _conv_transpose3d(
    x: Node,
    weight: Node,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    groups: int,
    size: Shape,
) -> Node:
    c, o, kd, kh, kw = weight.shape
    n, _, depth, h, w = x.shape
    images = b.reshape(_slices_first(x), (n * depth, c, h, w))
    flat = b.reshape(_slices_first(weight), (c, kd * o, kh, kw))
    op = op_of(cv.ConvGradInput, stride[1:], padding[1:], dilation[1:], groups, size[1:])
    parts = b.reshape(apply(op, images, flat), (n, depth, groups, kd, o, *size[1:]))
    zeros = b.full((n, size[0], groups * o, *size[1:]), 0.0, x.dtype)
    y = zeros
    for k in range(kd):
        # Slice i gives to i * stride + ahead, unless that is outside.
        ahead = k * dilation[0] - padding[0]
        first = max(0, -(ahead // stride[0]))
        stop = min(depth, (size[0] - 1 - ahead) // stride[0] + 1)
        if first < stop:
            starts = (0, first, 0, k, 0, 0, 0)
            stops = (n, stop, groups, k + 1, o, *size[1:])
            part = b.slice(parts, starts, stops, (1,) * 7)
            part = b.reshape(part, (n, stop - first, groups * o, *size[1:]))
            place = (0, first * stride[0] + ahead, 0, 0, 0)
            y = b.add(y, b.insert(zeros, part, place, (1, stride[0], 1, 1, 1)))
    return _slices_first(y)


def max_pool3d(x: Node, window: net.Window, ceil_mode: bool) -> Node:
    """Window maxima."""
    return apply(composite("MaxPool3d", _max_pool3d, window, ceil_mode), x)


def _max_pool3d(x: Node, window: net.Window, ceil_mode: bool) -> Node:
    return _pooled(x, window, lambda y, part: net.max_pool2d(y, part, ceil_mode))


def _pooled(x: Node, window: net.Window, pool: Callable[[Node, net.Window], Node]) -> Node:
    """``pool`` of the images of all slices, then of what they give along the depth.

    In this order the first of equal elements is the first in memory.
    """
    images = tuple(part[1:] for part in window)
    depth = tuple((part[0], usual) for part, usual in zip(window, (1, 1, 0, 1), strict=True))
    return _images_then_depth(x, lambda y: pool(y, images), lambda y: pool(y, depth))


def _images_then_depth(
    x: Node, images: Callable[[Node], Node], depth: Callable[[Node], Node]
) -> Node:
    n, c, d, h, w = x.shape
    y = images(b.reshape(x, (n, c * d, h, w)))
    size = y.shape[2:]
    y = depth(b.reshape(y, (n, c, d, size[0] * size[1])))
    return b.reshape(y, (n, c, y.shape[2], *size))


def avg_pool3d(
    x: Node, window: net.Window, ceil_mode: bool, count_include_pad: bool, divisor: int
) -> Node:
    """Window means; see :func:`network.avg_pool2d`."""
    options = window, ceil_mode, count_include_pad, divisor
    return apply(composite("AvgPool3d", _avg_pool3d, *options), x)


def _avg_pool3d(
    x: Node, window: net.Window, ceil_mode: bool, count_include_pad: bool, divisor: int
) -> Node:
    total = _pooled(x, window, lambda y, part: net.sum_pool2d(y, part, ceil_mode))
    return net.window_means(total, x, window, ceil_mode, count_include_pad, divisor)


def adaptive_avg_pool3d(x: Node, out: Shape) -> Node:
    """Means over a grid of ``out`` windows; see :func:`network.adaptive_avg_pool2d`."""
    return apply(composite("AdaptiveAvgPool3d", _adaptive_avg_pool3d, out), x)


def _adaptive_avg_pool3d(x: Node, out: Shape) -> Node:
    return _adaptive(x, net.adaptive_avg_pool2d, out)


def adaptive_max_pool3d(x: Node, out: Shape) -> Node:
    """Largest elements of the windows of :func:`adaptive_avg_pool3d`."""
    return apply(composite("AdaptiveMaxPool3d", _adaptive_max_pool3d, out), x)


def _adaptive_max_pool3d(x: Node, out: Shape) -> Node:
    return _adaptive(x, net.adaptive_max_pool2d, out)


def _adaptive(x: Node, pool: Callable[[Node, tuple[int, int]], Node], out: Shape) -> Node:
    along = out[1] * out[2]
    return _images_then_depth(
        x, lambda y: pool(y, (out[1], out[2])), lambda y: pool(y, (out[0], along))
    )
