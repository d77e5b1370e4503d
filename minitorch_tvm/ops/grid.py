"""Images and volumes read at places that are computed, between pixels and beyond their edges."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from ..core import dtype as dt
from ..ir.node import Node, apply
from . import build as b
from .composite import composite
from .division import fmod
from .elementary import stepwise
from .gather import take

_SHARPNESS = -0.75
"""The constant of cubic convolution (Keys 1981, there -0.5) that PyTorch uses."""


def _floor(x: Node) -> Node:
    return apply(stepwise("floor"), x)


def _coordinate(g: Node, size: int, corners: bool) -> Node:
    """From [-1, 1] to pixels; ``corners``: both ends are centres of pixels, not their edges."""
    one, half = b.full_like(g, 1.0), b.full_like(g, 0.5)
    if corners:
        return b.mul(b.mul(b.add(g, one), half), b.full_like(g, float(size - 1)))
    return b.mul(b.sub(b.mul(b.add(g, one), b.full_like(g, float(size))), one), half)


def _limited(x: Node, size: int) -> Node:
    """``x`` inside of [0, size - 1], NaN as 0; at the ends and beyond it has no gradient."""
    low, high = b.full_like(x, 0.0), b.full_like(x, float(size - 1))
    inside = b.where(b.lt(x, high), x, high)
    inside = b.where(b.ne(x, x), low, inside)
    return b.where(b.lt(low, inside), inside, low)


def _reflected(x: Node, size: int, corners: bool) -> Node:
    """``x`` mirrored at the edges, or at the centres of the outer pixels, until it is inside."""
    low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
    if not span:
        return b.mul(x, b.full_like(x, 0.0))
    distance = apply(b.ABS, b.sub(x, b.full_like(x, float(low))))
    width = b.full_like(x, float(span))
    rest = fmod(distance, width)
    turns = _floor(b.div(distance, width))
    odd = b.ne(fmod(turns, b.full_like(x, 2.0)), b.full_like(x, 0.0))
    return b.add(b.where(odd, b.sub(width, rest), rest), b.full_like(x, float(low)))


def _padded(x: Node, size: int, padding: str, corners: bool) -> Node:
    if padding == "reflection":
        x = _reflected(x, size, corners)
    return x if padding == "zeros" else _limited(x, size)


def _inside(x: Node, size: int) -> Node:
    return b.logical_and(b.le(b.full_like(x, 0.0), x), b.lt(x, b.full_like(x, float(size))))


def _whole(x: Node, size: int) -> Node:
    """A pixel's number, of a coordinate without a fraction; of one outside the nearest inside."""
    x = apply(b.DETACH, x)
    low, high = b.full_like(x, 0.0), b.full_like(x, float(size - 1))
    x = b.where(b.lt(x, high), x, high)
    return b.cast(b.where(b.lt(low, x), x, low), dt.int64)


class _Pixels:
    """The pixels of [n, c, h, w] or [n, c, d, h, w] as rows, to be read at whole coordinates."""

    def __init__(self, x: Node, padding: str) -> None:
        n, c, *self.size = x.shape
        last = b.permute(x, (0, *range(2, len(x.shape)), 1))
        self.rows = b.reshape(last, (n * math.prod(self.size), c))
        self.padding = padding

    def at(self, places: Sequence[Node]) -> Node:
        """[n, oh, ow, c], at a coordinate for each dimension of the image, in its order."""
        place = b.iota(places[0].shape, 0, dt.int64)
        for coordinate, n in zip(places, self.size, strict=True):
            place = b.add(b.mul(place, b.full_like(place, n)), _whole(coordinate, n))
        found = take(self.rows, place, 0)
        if self.padding != "zeros":
            return found
        insides = [_inside(x, n) for x, n in zip(places, self.size, strict=True)]
        return b.where(_column(_all(insides)), found, b.full_like(found, 0.0))


def _all(conditions: Sequence[Node]) -> Node:
    return functools.reduce(b.logical_and, conditions)


def _column(x: Node) -> Node:
    return b.reshape(x, (*x.shape, 1))


def cubic_weights(t: Node) -> list[Node]:
    """Those of four neighbours in cubic convolution, at a distance ``t`` behind the second."""
    a, one = _SHARPNESS, b.full_like(t, 1.0)

    def near(x: Node) -> Node:
        first = b.sub(b.mul(b.full_like(t, float(a + 2)), x), b.full_like(t, float(a + 3)))
        return b.add(b.mul(b.mul(first, x), x), one)

    def far(x: Node) -> Node:
        first = b.sub(b.mul(b.full_like(t, float(a)), x), b.full_like(t, float(5 * a)))
        second = b.add(b.mul(first, x), b.full_like(t, float(8 * a)))
        return b.sub(b.mul(second, x), b.full_like(t, float(4 * a)))

    left = b.sub(one, t)
    return [far(b.add(t, one)), near(t), near(left), far(b.add(left, one))]


def _sample(x: Node, grid: Node, mode: str, padding: str, corners: bool) -> Node:
    size, last = x.shape[2:], len(grid.shape) - 1
    places: list[Node] = []  # in the order of the image's dimensions, which is not the grid's
    for n, k in zip(size, reversed(range(len(size))), strict=True):
        part = b.reshape(b.narrow(grid, last, k, k + 1), grid.shape[:-1])
        places.append(_coordinate(part, n, corners))
    pixels = _Pixels(x, padding)
    if mode == "bicubic":
        total = _bicubic(pixels, places, padding, corners)
    else:
        places = [_padded(p, n, padding, corners) for p, n in zip(places, size, strict=True)]
        if mode == "nearest":
            total = pixels.at([apply(stepwise("round"), p) for p in places])
        else:
            total = _linear(pixels, places)
    return b.permute(total, (0, last, *range(1, last)))


def _linear(pixels: _Pixels, places: Sequence[Node]) -> Node:
    """Between the two pixels on both sides of a place, in every dimension."""
    lows = [_floor(p) for p in places]
    shares = []
    for p, low in zip(places, lows, strict=True):
        behind = b.sub(p, low)
        shares.append((b.sub(b.full_like(behind, 1.0), behind), behind))
    terms = []
    for corner in itertools.product((0, 1), repeat=len(places)):
        at = [b.add(low, b.full_like(low, float(k))) for low, k in zip(lows, corner, strict=True)]
        weight = functools.reduce(b.mul, [s[k] for s, k in zip(shares, corner, strict=True)])
        terms.append(b.mul(pixels.at(at), _column(weight)))
    return _sum(terms)


def _bicubic(pixels: _Pixels, places: Sequence[Node], padding: str, corners: bool) -> Node:
    (down, across), (height, width) = places, pixels.size
    left, top = _floor(across), _floor(down)
    lines = []
    for i, down_share in enumerate(cubic_weights(b.sub(down, top)), -1):
        y = b.add(top, b.full_like(top, float(i)))
        terms = []
        for j, across_share in enumerate(cubic_weights(b.sub(across, left)), -1):
            at_x = b.add(left, b.full_like(left, float(j)))
            at_x = _padded(at_x, width, padding, corners)
            at_y = _padded(y, height, padding, corners)
            terms.append(b.mul(pixels.at((at_y, at_x)), _column(across_share)))
        lines.append(b.mul(_sum(terms), _column(down_share)))
    return _sum(lines)


def _sum(terms: list[Node]) -> Node:
    return functools.reduce(b.add, terms)


def sample(x: Node, grid: Node, mode: str, padding: str, corners: bool) -> Node:
    """Images [n, c, h, w] at places [n, oh, ow, 2] in [-1, 1] (across, down): [n, c, oh, ow].

    Or volumes [n, c, d, h, w] at places [n, od, oh, ow, 3].
    """
    title = f"GridSampler{len(x.shape) - 2}D"
    return apply(composite(title, _sample, mode, padding, corners), x, grid)


def _affine(theta: Node, shape: tuple[int, ...], corners: bool) -> Node:
    kind = theta.dtype

    def places(dim: int) -> Node:
        n = shape[dim]
        place = b.cast(b.iota(shape, dim, dt.int32), kind)
        if n == 1:
            return b.mul(place, b.full_like(place, 0.0))
        # 2 k - (n - 1) is exact, and of both signs at both ends.
        twice = b.sub(b.mul(place, b.full_like(place, 2.0)), b.full_like(place, float(n - 1)))
        return b.div(twice, b.full_like(place, float(n - 1 if corners else n)))

    count, dims, n = math.prod(shape), len(shape), theta.shape[0]
    ones = b.full(shape, 1.0, kind)
    columns = [b.reshape(p, (count, 1)) for p in (*map(places, reversed(range(dims))), ones)]
    base = b.expand(b.reshape(b.cat(columns, 1), (1, count, dims + 1)), (n, count, dims + 1))
    return b.reshape(b.matmul(base, theta, False, True), (n, *shape, dims))


def affine(theta: Node, shape: tuple[int, ...], corners: bool) -> Node:
    """Places [n, *shape, 2] of pixels after affine maps [n, 2, 3] of [-1, 1] squared.

    Or [n, *shape, 3] after maps [n, 3, 4] of [-1, 1] cubed.
    """
    return apply(composite("AffineGridGenerator", _affine, shape, corners), theta)
