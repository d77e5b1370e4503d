"""Compositions that differ, turn, window and write parts of tensors."""

from __future__ import annotations

from ..core import dtype as dt
from ..core.shape import numel
from ..ir.node import Node, apply
from ..ir.op import intern
from . import build as b
from . import derived as d
from . import moves as mo
from .composite import composite
from .division import remainder
from .gather import ScatterAdd, take
from .scan import cumulative_sum


def _trace(x: Node) -> Node:
    return b.sum(mo.diagonal(x, 0), (0,), False)


def trace(x: Node) -> Node:
    """The sum of the diagonal of a matrix of numbers."""
    return apply(composite("Trace", _trace), x)


def _cross(x: Node, y: Node, dim: int) -> Node:
    ahead, behind = (mo.roll(x, (-1,), (dim,)), mo.roll(y, (-1,), (dim,)))
    further, before = (mo.roll(y, (-2,), (dim,)), mo.roll(x, (-2,), (dim,)))
    return b.sub(b.mul(ahead, further), b.mul(before, behind))


def cross(x: Node, y: Node, dim: int) -> Node:
    """Cross products of the vectors of three elements along ``dim``, of one shape and dtype."""
    return apply(composite("LinalgCross", _cross, dim), x, y)


def _difference(x: Node, dim: int) -> Node:
    n = x.shape[dim]
    right, left = b.narrow(x, dim, 1, n), b.narrow(x, dim, 0, n - 1)
    return d.logical_xor(right, left) if x.dtype is dt.bool_ else b.sub(right, left)


def difference(x: Node, dim: int, times: int) -> Node:
    """x[k + 1] - x[k] along ``dim``, so many times; of bools where they are not equal."""
    n = x.shape[dim]
    if times >= n:
        return b.narrow(x, dim, 0, 0)
    for _ in range(times):
        x = apply(composite("Diff", _difference, dim), x)
    return x


# --- diagonals ----------------------------------------------------------------------------------


def on_diagonals(x: Node, wrap: bool) -> Node:
    """Where a tensor's positions are equal in all dimensions, bool.

    ``wrap``: in a tall matrix the diagonal begins again one row below where it ends.
    """
    shape = x.shape
    first = b.iota(shape, 0, dt.int32)
    if wrap and len(shape) == 2:
        first = remainder(first, b.full_like(first, shape[1] + 1))
    found = b.eq(first, b.iota(shape, 1, dt.int32))
    for dim in range(2, len(shape)):
        found = b.logical_and(found, b.eq(first, b.iota(shape, dim, dt.int32)))
    return found


# --- windows ------------------------------------------------------------------------------------


def _window_positions(count: int, size: int, step: int, apart: int, count_first: bool) -> Node:
    """Where the elements of windows are: [count, size], or [size, count]."""
    shape = (count, size) if count_first else (size, count)
    first = b.iota(shape, 0 if count_first else 1, dt.int32)
    inside = b.iota(shape, 1 if count_first else 0, dt.int32)
    start = b.mul(first, b.full_like(first, step))
    return b.add(start, b.mul(inside, b.full_like(inside, apart)))


def _windows(x: Node, dim: int, count: int, size: int, step: int) -> Node:
    found = take(x, _window_positions(count, size, step, 1, True), dim)
    rank = len(x.shape) + 1
    order = [*(axis for axis in range(rank) if axis != dim + 1), dim + 1]
    return b.permute(found, order)


def windows(x: Node, dim: int, count: int, size: int, step: int) -> Node:
    """Every ``step``-th window of ``size`` entries of ``dim``; what is in them comes last."""
    return apply(composite("Unfold", _windows, dim, count, size, step), x)


def written_windows(x: Node, values: Node, dim: int, step: int) -> Node:
    """What :func:`windows` that do not overlap leave in ``x`` when they are written."""
    count, size = values.shape[dim], values.shape[-1]
    last = len(values.shape) - 1
    order = [*range(dim + 1), last, *range(dim + 1, last)]
    columns = b.permute(values, order)
    for inside in range(size):
        part = b.narrow(columns, dim + 1, inside, inside + 1)
        starts, steps = [0] * len(x.shape), [1] * len(x.shape)
        starts[dim], steps[dim] = inside, step
        lead, behind = x.shape[:dim], x.shape[dim + 1 :]
        x = b.insert(x, b.reshape(part, (*lead, count, *behind)), starts, steps)
    return x


Along = tuple[int, int, int, int]
"""How windows lie along one dimension: how many, their size, their step, their elements' step."""


def _columns(x: Node, rows: Along, columns: Along) -> Node:
    down = take(x, _window_positions(*rows, False), 2)
    both = take(down, _window_positions(*columns, False), 4)
    n, c, kh, oh, kw, ow = both.shape
    return b.reshape(b.permute(both, (0, 1, 2, 4, 3, 5)), (n, c * kh * kw, oh * ow))


def image_to_columns(x: Node, rows: Along, columns: Along) -> Node:
    """The windows of padded images [n, c, h, w] as columns, [n, c * kh * kw, oh * ow]."""
    return apply(composite("Im2Col", _columns, rows, columns), x)


def _image(x: Node, rows: Along, columns: Along, height: int, width: int) -> Node:
    oh, kh, ow, kw = *rows[:2], *columns[:2]
    n, c = x.shape[0], x.shape[1] // (kh * kw)
    windows_ = b.permute(b.reshape(x, (n, c, kh, kw, oh, ow)), (0, 1, 2, 4, 3, 5))
    narrow = intern(ScatterAdd(4, width))
    lines = apply(narrow, windows_, _window_positions(*columns, False))
    return apply(intern(ScatterAdd(2, height)), lines, _window_positions(*rows, False))


def columns_to_image(x: Node, rows: Along, columns: Along, height: int, width: int) -> Node:
    """Padded images of which each element is the sum of what windows have there."""
    return apply(composite("Col2Im", _image, rows, columns, height, width), x)


# --- masks --------------------------------------------------------------------------------------


def ranks(mask: Node) -> Node:
    """How many elements of a mask hold up to each, in row-major order (int64)."""
    line = b.reshape(b.cast(mask, dt.int64), (numel(mask.shape),))
    return cumulative_sum(line, 0)


def _masked_scatter(x: Node, mask: Node, source: Node, counts: Node) -> Node:
    place = b.sub(counts, b.full_like(counts, 1))
    values = take(b.reshape(source, (numel(source.shape),)), place, 0)
    return b.where(mask, b.reshape(values, x.shape), x)


def masked_scatter(x: Node, mask: Node, source: Node, counts: Node) -> Node:
    """``x`` with the elements of ``source``, in order, where ``mask`` holds.

    ``counts`` are its :func:`ranks`, known not to go beyond the source.
    """
    return apply(composite("MaskedScatter", _masked_scatter), x, mask, source, counts)
