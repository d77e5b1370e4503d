"""Normalisation by mean and variance, each recorded as one node.

Variances are means of squared distances to the mean (two passes): the shorter formula
E[x**2] - E[x]**2 loses all digits where the mean is large against the spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.shape import Shape, numel
from ..ir.node import Node, apply
from . import build as b
from .composite import composite, record


def _moments(x: Node, dims: Sequence[int]) -> tuple[Node, Node, Node]:
    """(mean, x - mean, variance) over ``dims``, which are kept with size one."""
    count = b.full_like(x, float(numel(tuple(x.shape[d] for d in dims))))
    mean = b.div(b.sum(x, dims, True), count)
    centred = b.sub(x, mean)
    return mean, centred, b.div(b.sum(b.mul(centred, centred), dims, True), count)


def _scaled(centred: Node, variance: Node, eps: float) -> Node:
    root = apply(b.SQRT, b.add(variance, b.full_like(variance, eps)))
    return b.mul(centred, b.div(b.full_like(root, 1.0), root))


def _affine(y: Node, affine: Sequence[Node | None], shape: Shape | None = None) -> Node:
    """y * weight + bias, both seen in ``shape``."""
    weight, bias = affine
    if weight is not None:
        y = b.mul(y, weight if shape is None else b.reshape(weight, shape))
    if bias is not None:
        y = b.add(y, bias if shape is None else b.reshape(bias, shape))
    return y


def _present(nodes: Sequence[Node | None]) -> tuple[list[Node], tuple[bool, ...]]:
    """The nodes that exist, and which of them do: composites take no None."""
    return [n for n in nodes if n is not None], tuple(n is not None for n in nodes)


def _spread(nodes: Sequence[Node], present: tuple[bool, ...]) -> list[Node | None]:
    """Inverse of :func:`_present`."""
    rest = iter(nodes)
    return [next(rest) if there else None for there in present]


# --- layer and group ----------------------------------------------------------------------------


def layer_norm(x: Node, rank: int, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last ``rank`` dimensions."""
    given, present = _present((weight, bias))
    return record(composite("LayerNorm", _layer_norm, rank, eps, present), x, *given)


def _layer_norm(x: Node, *rest: Any) -> Node:
    *given, rank, eps, present = rest
    total = len(x.shape)
    _, centred, variance = _moments(x, range(total - rank, total))
    return _affine(_scaled(centred, variance, eps), _spread(given, present))


def group_norm(x: Node, groups: int, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """As :func:`layer_norm`, over each of ``groups`` blocks of the channels of x [n, c, ...]."""
    given, present = _present((weight, bias))
    return record(composite("GroupNorm", _group_norm, groups, eps, present), x, *given)


def _group_norm(x: Node, *rest: Any) -> Node:
    *given, groups, eps, present = rest
    n, c = x.shape[:2]
    blocks = b.reshape(x, (n, groups, c // groups * numel(x.shape[2:])))
    _, centred, variance = _moments(blocks, (2,))
    y = b.reshape(_scaled(centred, variance, eps), x.shape)
    return _affine(y, _spread(given, present), _channels(x))


# --- batch --------------------------------------------------------------------------------------


def _channels(x: Node) -> Shape:
    """The shape in which a vector over the channels of x [n, c, ...] broadcasts to it."""
    return (x.shape[1], *(1,) * (len(x.shape) - 2))


def _over_batch(x: Node) -> tuple[int, ...]:
    return (0, *range(2, len(x.shape)))


def batch_norm(x: Node, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """x [n, c, ...] normalised by the statistics of each channel over this batch."""
    given, present = _present((weight, bias))
    return record(composite("BatchNorm", _batch_norm, eps, present), x, *given)


def _batch_norm(x: Node, *rest: Any) -> Node:
    *given, eps, present = rest
    _, centred, variance = _moments(x, _over_batch(x))
    return _affine(_scaled(centred, variance, eps), _spread(given, present), _channels(x))


def batch_norm_fixed(
    x: Node, mean: Node, variance: Node, weight: Node | None, bias: Node | None, eps: float
) -> Node:
    """x [n, c, ...] normalised by given statistics [c]."""
    given, present = _present((weight, bias))
    op = composite("BatchNormFixed", _batch_norm_fixed, eps, present)
    return record(op, x, mean, variance, *given)


def _batch_norm_fixed(x: Node, mean: Node, variance: Node, *rest: Any) -> Node:
    *given, eps, present = rest
    shape = _channels(x)
    centred = b.sub(x, b.reshape(mean, shape))
    y = _scaled(centred, b.reshape(variance, shape), eps)
    return _affine(y, _spread(given, present), shape)


def running_mean(running: Node, x: Node, factor: Node) -> Node:
    """(1 - factor) * running + factor * the mean of each channel of x."""
    return record(_RUNNING_MEAN, running, x, factor)


def running_variance(running: Node, x: Node, factor: Node) -> Node:
    """(1 - factor) * running + factor * the unbiased variance of each channel of x."""
    return record(_RUNNING_VARIANCE, running, x, factor)


def _blend(running: Node, new: Node, factor: Node) -> Node:
    new = b.cast(b.reshape(new, running.shape), running.dtype)
    keep = b.sub(b.full_like(factor, 1.0), factor)
    return b.add(b.mul(factor, new), b.mul(keep, running))


def _running_mean(running: Node, x: Node, factor: Node) -> Node:
    # The same values as in _batch_norm: the compiler computes them once.
    mean, _, _ = _moments(x, _over_batch(x))
    return _blend(running, mean, factor)


def _running_variance(running: Node, x: Node, factor: Node) -> Node:
    _, _, variance = _moments(x, _over_batch(x))
    count = numel(x.shape) // x.shape[1]
    unbiased = b.mul(variance, b.full_like(variance, count / (count - 1)))
    return _blend(running, unbiased, factor)


_RUNNING_MEAN = composite("RunningMean", _running_mean)
_RUNNING_VARIANCE = composite("RunningVariance", _running_variance)
