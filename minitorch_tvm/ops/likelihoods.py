"""Log-probabilities, entropies and samples of what policies are made of: few nodes each.

A training loop asks for them at every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..core import dtype as dt
from ..core.shape import Shape
from ..ir.node import Node, apply
from ..ir.op import intern
from . import activations as act
from . import build as b
from . import derived as d
from .composite import composite
from .random import BOX_MULLER, uniform_of
from .special import special

_HALF_LOG_TURN = 0.5 * math.log(2.0 * math.pi)


# --- normal -------------------------------------------------------------------------------------


def _normal(x: Node, loc: Node, scale: Node) -> Node:
    # The square of a quotient: that of a small scale alone would be zero.
    z = b.div(b.sub(x, loc), scale)
    square = b.mul(b.full_like(x, -0.5), b.mul(z, z))
    return b.sub(b.sub(square, b.log(scale)), b.full_like(x, _HALF_LOG_TURN))


def normal(x: Node, loc: Node, scale: Node) -> Node:
    """Logarithm of the normal density at x."""
    return apply(composite("NormalLogProb", _normal), x, loc, scale)


def _normal_entropy(scale: Node) -> Node:
    return b.add(b.log(scale), b.full_like(scale, 0.5 + _HALF_LOG_TURN))


def normal_entropy(scale: Node) -> Node:
    """log(scale) + log(2 pi e) / 2."""
    return apply(composite("NormalEntropy", _normal_entropy), scale)


def _normal_draw(loc: Node, scale: Node, *rest: Any) -> Node:
    *draws, shape = rest
    u, v = (uniform_of(draw, shape, loc.dtype) for draw in (draws[:3], draws[3:]))
    return b.add(b.mul(apply(BOX_MULLER, u, v), scale), loc)


def normal_draw(loc: Node, scale: Node, draws: Sequence[Node], shape: Shape) -> Node:
    """loc + scale times standard normal numbers of that shape, from two draws."""
    return apply(composite("NormalDraw", _normal_draw, shape), loc, scale, *draws)


_FEW = 0.05
_STEPS = 4


def _tail(q: Node) -> Node:
    """The normal quantile of a small probability, by Newton's method for its logarithm."""
    log = b.log(q)
    t = b.mul(b.full_like(q, -2.0), log)
    # Where the density, divided by the distance, is nearly q.
    square = b.sub(t, b.log(b.mul(t, b.full_like(q, 2.0 * math.pi))))
    x = b.neg(apply(b.SQRT, square))
    for _ in range(_STEPS):
        below = apply(b.NORMAL_CDF, x)
        excess = b.mul(b.sub(b.log(below), log), b.div(below, b.normal_density(x)))
        x = b.sub(x, excess)
    return x


def _quantile(p: Node) -> Node:
    # In float64: near the ends, float32 loses what is left of 1.
    y = b.cast(p, dt.float64)
    half, zero = b.full_like(y, 0.5), b.full_like(y, 0.0)
    q = apply(b.MINIMUM, y, b.sub(b.full_like(y, 1.0), y))
    few = b.lt(q, b.full_like(y, _FEW))
    ordinary = b.logical_and(few, b.lt(zero, q))
    tail = _tail(b.where(ordinary, q, b.full_like(y, _FEW)))
    tail = b.where(b.eq(q, zero), b.full_like(y, -math.inf), tail)
    tail = b.where(b.lt(q, zero), b.full_like(y, math.nan), tail)
    centred = b.mul(b.sub(y, half), b.full_like(y, 2.0))
    middle = b.mul(apply(special("erfinv"), centred), b.full_like(y, math.sqrt(2.0)))
    x = b.where(few, b.where(b.lt(y, half), tail, b.neg(tail)), middle)
    return b.cast(x, p.dtype)


def _quantile_slope(p: Node) -> Node:
    return b.div(b.full_like(p, 1.0), b.normal_density(_quantile(p)))


_QUANTILE = intern(act.Pointwise("NormalQuantile", _quantile, _quantile_slope, ()))


def normal_quantile(p: Node) -> Node:
    """The number up to which a standard normal one has probability p; NaN outside [0, 1]."""
    return apply(_QUANTILE, p)


# --- one of several -----------------------------------------------------------------------------


def _shares(x: Node) -> Node:
    return b.div(x, b.sum(x, (len(x.shape) - 1,), True))


def shares(x: Node) -> Node:
    """x divided by its sum over the last dimension."""
    return apply(composite("Shares", _shares), x)


def _logarithms(probs: Node, eps: float, binary: bool) -> Node:
    limited = d.clamp(probs, b.full_like(probs, eps), b.full_like(probs, 1.0 - eps))
    log = b.log(limited)
    return b.sub(log, act.log1p(b.neg(limited))) if binary else log


def logarithms(probs: Node, eps: float, binary: bool) -> Node:
    """log(p), or log(p / (1 - p)), of probabilities at least ``eps`` away from 0 and 1."""
    return apply(composite("Logarithms", _logarithms, eps, binary), probs)


def _category(logits: Node, positions: Node) -> Node:
    n, axis = logits.shape[-1], len(positions.shape)
    wanted = b.reshape(positions, (*positions.shape, 1))
    hit = b.eq(b.iota((n,), 0, dt.int64), wanted)
    return b.sum(b.where(hit, logits, b.full_like(logits, 0.0)), (axis,), False)


def category(logits: Node, positions: Node) -> Node:
    """``logits`` of the last dimension at the int64 ``positions``, which broadcast to the others.

    A position that is not there gives 0.
    """
    lead = len(logits.shape) - 1 - len(positions.shape)
    if lead > 0:
        positions = b.reshape(positions, ((1,) * lead) + positions.shape)
    return apply(composite("CategoryLogProb", _category), logits, positions)


def _category_entropy(logits: Node, probs: Node) -> Node:
    # As in PyTorch, no logarithm is below the least number: what is impossible counts 0 times that.
    finite = d.clamp(logits, b.full_like(logits, logits.dtype.least), None)
    return b.neg(b.sum(b.mul(finite, probs), (len(logits.shape) - 1,), False))


def category_entropy(logits: Node, probs: Node) -> Node:
    """-sum(probs * logits) over the last dimension, where a probability of 0 counts nothing."""
    return apply(composite("CategoryEntropy", _category_entropy), logits, probs)


# --- yes or no ----------------------------------------------------------------------------------


def binary(logits: Node, x: Node) -> Node:
    """x log(p) + (1 - x) log(1 - p) of log(p / (1 - p)) = ``logits``; x is 0, 1 or between.

    Both logarithms are exact where they are small, and so are their derivatives.
    """
    yes, no = act.log_sigmoid(logits), act.log_sigmoid(b.neg(logits))
    return b.add(b.mul(x, yes), b.mul(b.sub(b.full_like(x, 1.0), x), no))


def _binary_draw(probs: Node, k0: Node, k1: Node, draw: Node, shape: Shape) -> Node:
    unit = uniform_of((k0, k1, draw), shape, probs.dtype)
    zero, one = b.full_like(probs, 0.0), b.full_like(probs, 1.0)
    sound = b.logical_and(b.le(zero, probs), b.le(probs, one))
    return b.where(sound, b.cast(b.lt(unit, probs), probs.dtype), b.full_like(probs, math.nan))


def binary_draw(probs: Node, shape: Shape, *draw: Node) -> Node:
    """1 with these probabilities, else 0, in that shape; NaN for what is no probability."""
    return apply(composite("BinaryDraw", _binary_draw, shape), probs, *draw)


# --- squashed by tanh ---------------------------------------------------------------------------


def _log_tanh_slope(x: Node) -> Node:
    size = apply(b.ABS, x)
    # log(1 - tanh(x)**2) loses nothing near 0; far from it tanh is 1.
    t = apply(b.TANH, x)
    near = act.log1p(b.neg(b.mul(t, t)))
    two = b.full_like(x, 2.0)
    tail = act.log1p(b.exp(b.neg(b.mul(two, size))))
    far = b.mul(two, b.sub(b.sub(b.full_like(x, math.log(2.0)), size), tail))
    return b.where(b.lt(size, b.full_like(x, 0.5)), near, far)


def _minus_twice_tanh(x: Node) -> Node:
    return b.mul(b.full_like(x, -2.0), apply(b.TANH, x))


_LOG_TANH_SLOPE = intern(act.Pointwise("LogTanhSlope", _log_tanh_slope, _minus_twice_tanh, ()))


def log_tanh_slope(x: Node) -> Node:
    """log(1 - tanh(x)**2), the logarithm of the slope of tanh."""
    return apply(_LOG_TANH_SLOPE, x)
