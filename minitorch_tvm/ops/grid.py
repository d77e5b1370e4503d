"""Images read at places that are computed, between pixels and beyond their edges."""

from __future__ import annotations

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
    """The pixels of images [n, c, h, w] as rows, to be read at whole coordinates."""

    def __init__(self, x: Node, padding: str) -> None:
        n, c, self.height, self.width = x.shape
        self.rows = b.reshape(b.permute(x, (0, 2, 3, 1)), (n * self.height * self.width, c))
        self.padding = padding

    def at(self, across: Node, down: Node) -> Node:
        """[n, oh, ow, c]."""
        image = b.iota(across.shape, 0, dt.int64)
        line = b.add(b.mul(image, b.full_like(image, self.height)), _whole(down, self.height))
        place = b.add(b.mul(line, b.full_like(line, self.width)), _whole(across, self.width))
        found = take(self.rows, place, 0)
        if self.padding != "zeros":
            return found
        inside = b.logical_and(_inside(across, self.width), _inside(down, self.height))
        column = b.reshape(inside, (*inside.shape, 1))
        return b.where(column, found, b.full_like(found, 0.0))


def _column(x: Node) -> Node:
    return b.reshape(x, (*x.shape, 1))


def _weights(t: Node) -> list[Node]:
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
    n, oh, ow, _ = grid.shape
    height, width = x.shape[2:]

    def part(k: int) -> Node:
        return b.reshape(b.narrow(grid, 3, k, k + 1), (n, oh, ow))

    across, down = _coordinate(part(0), width, corners), _coordinate(part(1), height, corners)
    pixels = _Pixels(x, padding)
    if mode != "bicubic":
        across = _padded(across, width, padding, corners)
        down = _padded(down, height, padding, corners)
    if mode == "nearest":
        rounded = (apply(stepwise("round"), c) for c in (across, down))
        total = pixels.at(*rounded)
        return b.permute(total, (0, 3, 1, 2))
    left, top = _floor(across), _floor(down)
    right, below = b.sub(across, left), b.sub(down, top)
    if mode == "bilinear":
        shares = [[b.sub(b.full_like(w, 1.0), w), w] for w in (right, below)]
        first = 0
    else:
        shares, first = [_weights(right), _weights(below)], -1
    lines = []
    for i, down_share in enumerate(shares[1], first):
        y = b.add(top, b.full_like(top, float(i)))
        terms = []
        for j, across_share in enumerate(shares[0], first):
            at_x, at_y = b.add(left, b.full_like(left, float(j))), y
            if mode == "bicubic":
                at_x = _padded(at_x, width, padding, corners)
                at_y = _padded(at_y, height, padding, corners)
            weight = b.mul(across_share, down_share) if mode == "bilinear" else across_share
            terms.append(b.mul(pixels.at(at_x, at_y), _column(weight)))
        line = _sum(terms)
        lines.append(line if mode == "bilinear" else b.mul(line, _column(down_share)))
    return b.permute(_sum(lines), (0, 3, 1, 2))


def _sum(terms: list[Node]) -> Node:
    total = terms[0]
    for term in terms[1:]:
        total = b.add(total, term)
    return total


def sample(x: Node, grid: Node, mode: str, padding: str, corners: bool) -> Node:
    """Images [n, c, h, w] at places [n, oh, ow, 2] in [-1, 1] (across, down): [n, c, oh, ow]."""
    return apply(composite("GridSampler2D", _sample, mode, padding, corners), x, grid)


def _affine(theta: Node, height: int, width: int, corners: bool) -> Node:
    shape = (height, width)
    kind = theta.dtype

    def places(dim: int) -> Node:
        n = shape[dim]
        place = b.cast(b.iota(shape, dim, dt.int32), kind)
        if n == 1:
            return b.mul(place, b.full_like(place, 0.0))
        # 2 k - (n - 1) is exact, and of both signs at both ends.
        twice = b.sub(b.mul(place, b.full_like(place, 2.0)), b.full_like(place, float(n - 1)))
        return b.div(twice, b.full_like(place, float(n - 1 if corners else n)))

    ones = b.full(shape, 1.0, kind)
    columns = [b.reshape(p, (height * width, 1)) for p in (places(1), places(0), ones)]
    count = height * width
    base = b.expand(b.reshape(b.cat(columns, 1), (1, count, 3)), (theta.shape[0], count, 3))
    found = b.matmul(base, theta, False, True)
    return b.reshape(found, (theta.shape[0], height, width, 2))


def affine(theta: Node, height: int, width: int, corners: bool) -> Node:
    """Places [n, height, width, 2] of pixels after affine maps [n, 2, 3] of [-1, 1] squared."""
    return apply(composite("AffineGridGenerator", _affine, height, width, corners), theta)
