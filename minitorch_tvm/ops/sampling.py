"""Drawing positions with given weights."""

from __future__ import annotations

from ..core import dtype as dt
from ..core.shape import Shape, numel
from ..ir.node import Node, apply
from ..ir.op import Op, op_of
from . import build as b
from .composite import Composite, composite
from .gather import take
from .random import RandomBits
from .scan import argsort, cumulative_sum


def _uniform(bits: Node) -> Node:
    """float64 numbers inside (0, 1) from 32 random bits each."""
    half = b.add(b.cast(bits, dt.float64), b.full((), 0.5, dt.float64))
    return b.mul(half, b.full((), 2.0**-32, dt.float64))


def _without(weights: Node, bits: Node, count: int) -> Node:
    # Of exponential variables with these rates, the order of arrival: first E(w) = E(1) / w.
    x = b.cast(weights, dt.float64)
    waiting = b.neg(b.log(_uniform(bits)))
    never = b.full((), -1.0, dt.float64)
    score = b.where(b.lt(b.full((), 0.0, dt.float64), x), b.div(x, waiting), never)
    if count == 1:
        return b.argmax(score, 1, True)
    return argsort(score, 1, True, count)


def without_replacement(weights: Node, bits: Node, count: int) -> Node:
    """``count`` different columns for each row of weights (those of weight 0 come last)."""
    return apply(composite("Multinomial", _without, count), weights, bits)


def _with(weights: Node, bits: Node) -> Node:
    rows, n = weights.shape
    sums = cumulative_sum(b.cast(weights, dt.float64), 1)
    total = b.slice(sums, (0, n - 1), (rows, n), (1, 1))
    goal = b.mul(_uniform(bits), total)
    line = b.reshape(sums, (rows * n,))
    start = b.mul(b.iota(bits.shape, 0, dt.int64), b.full((), n, dt.int64))
    # How many sums are at most the goal, by halves: that is the position of the first above it.
    found = b.full(bits.shape, 0, dt.int64)
    step = 1 << (n.bit_length() - 1)
    while step:
        end = b.add(found, b.full((), step, dt.int64))
        inside = b.le(end, b.full((), n, dt.int64))
        last = b.sub(b.where(inside, end, b.full((), n, dt.int64)), b.full((), 1, dt.int64))
        below = b.le(take(line, b.add(start, last), 0), goal)
        found = b.where(b.logical_and(inside, below), end, found)
        step >>= 1
    most = b.full((), n - 1, dt.int64)
    return b.where(b.lt(found, most), found, most)


def with_replacement(weights: Node, bits: Node) -> Node:
    """As many columns as there are bits for each row of weights, independent of each other."""
    return apply(composite("Multinomial", _with), weights, bits)


def no_weights() -> RuntimeError:
    """The error of whoever draws where no weight is above zero."""
    return RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")


def _classes(
    x: Node, k0: Node, k1: Node, draw: Node, logits: bool, samples: Shape, batch: Shape
) -> Node:
    n, rows, count = x.shape[-1], numel(batch), numel(samples)
    weights = b.reshape(x, (rows, n))
    if logits:
        weights = b.exp(weights)
    bits = apply(op_of(RandomBits, (rows, n if count == 1 else count)), k0, k1, draw)
    if count == 1:
        return b.reshape(_without(weights, bits, 1), (*samples, *batch))
    return b.reshape(b.permute(_with(weights, bits), (1, 0)), (*samples, *batch))


def classes(x: Node, logits: bool, samples: Shape, *draw: Node) -> Node:
    """Positions in the last dimension, [*samples, *batch], by probabilities or their ``logits``.

    Rows that are no such (NaN) give any position.  Raises RuntimeError if there is none.
    """
    batch, n = x.shape[:-1], x.shape[-1]
    if not numel((*samples, *batch)):
        return b.full((*samples, *batch), 0, dt.int64)
    if not n:
        raise no_weights()
    return apply(composite("CategoryDraw", _classes, logits, samples, batch), x, *draw)


def is_draw(op: Op) -> bool:
    """True of what :func:`classes` records; what the others do is computed at once."""
    return isinstance(op, Composite) and op.function is _classes


def _flaw(weights: Node) -> Node:
    def number(value: int) -> Node:
        return b.full((), value, dt.int64)

    zero, infinite = b.full_like(weights, 0.0), b.full_like(weights, float("inf"))
    fine, finite = b.le(zero, weights), b.lt(weights, infinite)
    total = b.sum(b.where(b.logical_and(fine, finite), weights, zero), (1,), False)
    row = b.where(b.lt(b.full_like(total, 0.0), total), number(0), number(1))
    each = b.where(fine, b.where(finite, number(0), number(2)), number(3))
    worst = b.extremum(each, (1,), False)
    return b.extremum(b.where(b.lt(worst, row), row, worst), (0,), False)


def flaw(weights: Node) -> Node:
    """0 if rows are weights; 1: the sum of one is 0, 2: some are infinite, 3: negative or NaN."""
    return apply(composite("Flaw", _flaw), weights)
