"""Normalisation by mean and variance, each recorded as one node.

Variances are means of squared distances to the mean (two passes): the shorter formula
E[x**2] - E[x]**2 loses all digits where the mean is large against the spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.record import record
from ..core.shape import Shape, numel
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Spec, intern
from ..ir.te import TE, Tensor
from . import build as b
from . import elementwise as ew
from .composite import composite
from .derived import mean_over

_SAMPLE = 64
"""Elements of a sample's channel from which on it has moments of its own."""

Moments = tuple[Node, Node, Node]
"""(mean, x - mean, variance) over some dimensions, which are kept with size one."""


def _moments(x: Node, dims: Sequence[int]) -> Moments:
    mean = mean_over(x, dims, True)
    centred = b.sub(x, mean)
    return mean, centred, mean_over(b.mul(centred, centred), dims, True)


def _moments_over_batch(x: Node) -> Moments:
    """Of each channel of x [n, c, ...].

    First those of every sample, a piece of memory that lies near the core that has written it;
    whole channels would come from all cores.  Then of the samples: the mean of equally many
    elements is that of the means, and the variance that within samples, on average, plus that
    between their means (T. Chan, G. Golub, R. LeVeque, Updating Formulae and a Pairwise Algorithm
    for Computing Sample Variances, 1979).
    """
    inner = tuple(range(2, len(x.shape)))
    if not _has_moments(x.shape, inner):
        return _moments(x, (0, *inner))
    means, _, within = _moments(x, inner)
    mean, _, between = _moments(means, (0,))
    return mean, b.sub(x, mean), b.add(mean_over(within, (0,), True), between)


def _has_moments(shape: Shape, inner: Sequence[int]) -> bool:
    """Whether every sample's channels have moments of their own."""
    return shape[0] >= 2 and numel(tuple(shape[d] for d in inner)) >= _SAMPLE


def _reciprocal_root(variance: Node, eps: float) -> Node:
    root = apply(b.SQRT, b.add(variance, b.full_like(variance, eps)))
    return b.div(b.full_like(root, 1.0), root)


def _affine(y: Node, weight: Node | None, bias: Node | None) -> Node:
    y = y if weight is None else b.mul(y, weight)
    return y if bias is None else b.add(y, bias)


@record(eq=False)
class Normalised(ew.Clone, kind=Kind.INJECTIVE):
    """normalised(y, x, unit, r, *affine) -> y, with the cotangents of a normalisation.

    y = unit * weight + bias, unit = (x - mean(x)) * r, r = 1 / sqrt(var(x) + eps); ``affine`` holds
    weight and bias as far as they are ``present``.  Going back through mean and variance step by
    step would take two sums that depend on each other and a pass between them.  Written out,

        g = ct * weight,  dx = r * (g - mean(g) - unit * mean(g * unit)),

    the sums are independent, and those of a weight that is the same all over ``dims`` are the
    gradients of weight and bias as well.  unit and r keep their own history, so that derivatives
    of derivatives are exact.  Canonicalisation removes the op, as every copy.
    """

    dims: tuple[int, ...]
    present: tuple[bool, ...]

    def infer(self, *inputs: Spec) -> Spec:
        return inputs[0]

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        return super().compute(te, xs[0])

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        _, x, unit, r, *affine = xs
        weight, bias = _spread(affine, self.present)
        along = f.mul(ct, unit)
        d_x = None
        if x.requires_grad:
            g, gu = ct, along
            if weight is not None:
                lead = len(x.shape) - len(weight.shape)
                if any(d >= lead and weight.shape[d - lead] != 1 for d in self.dims):
                    g, gu = f.mul(ct, weight), f.mul(along, weight)
                else:
                    r = f.mul(r, weight)
            count = f.full_like(x, float(numel(tuple(x.shape[d] for d in self.dims))))
            kept = self._kept(x.shape)

            def mean(value: Node) -> Node:
                return f.div(f.reshape(self._total(f, value), kept), count)

            d_x = f.mul(r, f.sub(f.sub(g, mean(g)), f.mul(unit, mean(gu))))
        d_weight = None if weight is None else self._gradient(f, along, weight.shape)
        d_bias = None if bias is None else self._gradient(f, ct, bias.shape)
        rest = [n for n, there in zip((d_weight, d_bias), self.present, strict=True) if there]
        return None, d_x, None, None, *rest

    def _kept(self, shape: Shape) -> Shape:
        return tuple(1 if d in self.dims else n for d, n in enumerate(shape))

    def _total(self, f: Build, value: Node) -> Node:
        """The sum over all that is normalised together, of every sample first as its moments are:
        both sums are then taken from it at once."""
        first, *inner = self.dims
        if first == 0 and _has_moments(value.shape, inner):
            return f.sum(f.sum(value, tuple(inner), False), (0,), False)
        return f.sum(value, self.dims, False)

    def _gradient(self, f: Build, value: Node, shape: Shape) -> Node:
        """The same for what is the same all over that only; else as broadcasting has it."""
        kept = self._kept(value.shape)
        if kept == (1,) * (len(kept) - len(shape)) + shape:
            return f.reshape(self._total(f, value), shape)
        return f.unbroadcast(value, shape)


def _normalised(
    x: Node,
    dims: tuple[int, ...],
    moments: Moments,
    affine: tuple[Node | None, Node | None],
    eps: float,
) -> Node:
    (_, centred, variance), (weight, bias) = moments, affine
    r = _reciprocal_root(variance, eps)
    unit = b.mul(centred, r)
    given, present = _present((weight, bias))
    op = intern(Normalised(dims, present))
    return apply(op, _affine(unit, weight, bias), x, unit, r, *given)


def _present(nodes: Sequence[Node | None]) -> tuple[list[Node], tuple[bool, ...]]:
    """The nodes that exist, and which of them do: composites take no None."""
    if None not in nodes:
        return list(nodes), (True,) * len(nodes)  # type: ignore[arg-type]
    return [n for n in nodes if n is not None], tuple(n is not None for n in nodes)


def _spread(nodes: Sequence[Node], present: tuple[bool, ...]) -> tuple[Node | None, Node | None]:
    """Inverse of :func:`_present`: weight and bias."""
    rest = iter(nodes)
    weight, bias = (next(rest) if there else None for there in present)
    return weight, bias


def _channels(x: Node) -> Shape:
    """The shape in which a vector over the channels of x [n, c, ...] broadcasts to it."""
    return (x.shape[1], *(1,) * (len(x.shape) - 2))


def _over_channels(
    x: Node, given: Sequence[Node], present: tuple[bool, ...]
) -> tuple[Node | None, Node | None]:
    """Weight and bias [c], as they broadcast to x [n, c, ...]."""
    weight, bias = _spread([b.reshape(v, _channels(x)) for v in given], present)
    return weight, bias


# --- layer and group ----------------------------------------------------------------------------


def layer_norm(x: Node, rank: int, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last ``rank`` dimensions."""
    given, present = _present((weight, bias))
    return apply(composite("LayerNorm", _layer_norm, rank, eps, present), x, *given)


def _layer_norm(x: Node, *rest: Any) -> Node:
    *given, rank, eps, present = rest
    total = len(x.shape)
    dims = tuple(range(total - rank, total))
    return _normalised(x, dims, _moments(x, dims), _spread(given, present), eps)


def group_norm(x: Node, groups: int, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """As :func:`layer_norm`, over each of ``groups`` blocks of the channels of x [n, c, ...]."""
    given, present = _present((weight, bias))
    return apply(composite("GroupNorm", _group_norm, groups, eps, present), x, *given)


def _group_norm(x: Node, *rest: Any) -> Node:
    *given, groups, eps, present = rest
    n, c = x.shape[:2]
    blocks = b.reshape(x, (n, groups, c // groups * numel(x.shape[2:])))
    unit = _normalised(blocks, (2,), _moments(blocks, (2,)), (None, None), eps)
    y = b.reshape(unit, x.shape)
    return _affine(y, *_over_channels(x, given, present))


# --- batch --------------------------------------------------------------------------------------


def batch_norm(x: Node, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """x [n, c, ...] normalised by the statistics of each channel over this batch."""
    given, present = _present((weight, bias))
    return apply(composite("BatchNorm", _batch_norm, eps, present), x, *given)


def _batch_norm(x: Node, *rest: Any) -> Node:
    *given, eps, present = rest
    dims = (0, *range(2, len(x.shape)))
    affine = _over_channels(x, given, present)
    return _normalised(x, dims, _moments_over_batch(x), affine, eps)


def batch_norm_fixed(
    x: Node, mean: Node, variance: Node, weight: Node | None, bias: Node | None, eps: float
) -> Node:
    """x [n, c, ...] normalised by given statistics [c]."""
    given, present = _present((weight, bias))
    op = composite("BatchNormFixed", _batch_norm_fixed, eps, present)
    return apply(op, x, mean, variance, *given)


def _batch_norm_fixed(x: Node, mean: Node, variance: Node, *rest: Any) -> Node:
    *given, eps, present = rest
    shape = _channels(x)
    centred = b.sub(x, b.reshape(mean, shape))
    y = b.mul(centred, _reciprocal_root(b.reshape(variance, shape), eps))
    return _affine(y, *_over_channels(x, given, present))


def running_mean(running: Node, x: Node, factor: Node) -> Node:
    """(1 - factor) * running + factor * the mean of each channel of x."""
    return apply(_RUNNING_MEAN, running, x, factor)


def running_variance(running: Node, x: Node, factor: Node) -> Node:
    """(1 - factor) * running + factor * the unbiased variance of each channel of x."""
    return apply(_RUNNING_VARIANCE, running, x, factor)


def _blend(running: Node, new: Node, factor: Node) -> Node:
    new = b.cast(b.reshape(new, running.shape), running.dtype)
    keep = b.sub(b.full_like(factor, 1.0), factor)
    return b.add(b.mul(factor, new), b.mul(keep, running))


def _running_mean(running: Node, x: Node, factor: Node) -> Node:
    # The same values as in _batch_norm: the compiler computes them once.
    mean, _, _ = _moments_over_batch(x)
    return _blend(running, mean, factor)


def _running_variance(running: Node, x: Node, factor: Node) -> Node:
    _, _, variance = _moments_over_batch(x)
    count = numel(x.shape) // x.shape[1]
    unbiased = b.mul(variance, b.full_like(variance, count / (count - 1)))
    return _blend(running, unbiased, factor)


_RUNNING_MEAN = composite("RunningMean", _running_mean)
_RUNNING_VARIANCE = composite("RunningVariance", _running_variance)
