"""Kullback-Leibler divergences of pairs of distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..linalg import solve_triangular
from ..nn.functional import logsigmoid
from ..tensor import Tensor
from ..tensor.functions import where
from .bernoulli import Bernoulli
from .categorical import Categorical
from .distribution import Distribution
from .exponential import Exponential
from .geometric import Geometric
from .gumbel import EULER, Gumbel
from .half_normal import HalfNormal
from .independent import Independent, sum_rightmost
from .laplace import Laplace
from .multivariate_normal import MultivariateNormal, log_of_size, squared_distance
from .normal import Normal
from .one_hot_categorical import OneHotCategorical
from .transformed_distribution import TransformedDistribution
from .uniform import Uniform

__all__ = ["kl_divergence", "register_kl"]

Divergence = Callable[[Any, Any], Tensor]

_KNOWN: dict[tuple[type, type], Divergence] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Divergence], Divergence]:
    """Decorates a function ``(p, q)``: what :func:`kl_divergence` returns for these types.

    It is for subclasses, too, unless there is one nearer to them.  Raises TypeError for types that
    are no distributions.

    >>> class Sharp(Normal):
    ...     pass
    >>> @register_kl(Sharp, Sharp)
    ... def _(p, q):
    ...     return p.loc * 0
    >>> kl_divergence(Sharp(0.0, 1.0), Sharp(1.0, 1.0))
    tensor(0.)
    >>> kl_divergence(Sharp(0.0, 1.0), Normal(1.0, 1.0))
    tensor(0.5000)
    """
    for kind, name in ((type_p, "type_p"), (type_q, "type_q")):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise TypeError(f"Expected {name} to be a Distribution subclass but got {kind}")

    def register(function: Divergence) -> Divergence:
        _KNOWN[type_p, type_q] = function
        return function

    return register


def _nearest(p: type, q: type) -> Divergence | None:
    """The function for the nearest base of p, and for it the nearest base of q."""
    for left in p.__mro__:
        for right in q.__mro__:
            found = _KNOWN.get((left, right))
            if found is not None:
                return found
    return None


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The mean, under p, of log p(x) - log q(x).

    Raises NotImplementedError for pairs of types for which nobody has registered a function.

    >>> kl_divergence(Normal(0.0, 1.0), Normal(1.0, 2.0))
    tensor(0.4431)
    """
    function = _nearest(type(p), type(q))
    if function is None:
        raise NotImplementedError(
            f"No KL(p || q) is implemented for p type {type(p).__name__} and q type "
            f"{type(q).__name__}"
        )
    return function(p, q)


def infinite_like(x: Tensor) -> Tensor:
    """The divergence of what reaches where the other does not, of each of ``x``."""
    return x.detach() * 0 + math.inf


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    yes = p.probs * (logsigmoid(p.logits) - logsigmoid(q.logits))
    no = (1 - p.probs) * (logsigmoid(-p.logits) - logsigmoid(-q.logits))
    yes = where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, yes))
    no = where(p.probs == 1, 0.0, where(q.probs == 1, math.inf, no))
    return yes + no


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    # Chosen before it is multiplied: infinite logarithms have no gradient then.
    difference = where(p.probs == 0, 0.0, p.logits - q.logits)
    possible = (p.probs > 0) & (q.probs == 0)
    return where(possible, math.inf, p.probs * difference).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categorical(p._categorical, q._categorical)


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    distance = ((p.loc - q.loc) / q.scale).square()
    return 0.5 * (ratio + distance - 1 - ratio.log())


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two Multivariate Normals with different event shapes cannot be "
            "computed"
        )
    own, other = p._factor, q._factor
    ratio = solve_triangular(other, own, upper=False).square().sum((-2, -1))
    distance = squared_distance(other, q.loc - p.loc)
    sizes = log_of_size(other) - log_of_size(own)
    return sizes + 0.5 * (ratio + distance - p.event_shape[0])


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return _normal(p.base_dist, q.base_dist)


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio = p.scale / q.scale
    shift, other = q.loc / q.scale, p.loc / q.scale
    tail = (shift + (1 + ratio).lgamma() - other).exp()
    return -ratio.log() - shift + other + ratio * EULER + tail - (1 + EULER)


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio = p.scale / q.scale
    distance = (p.loc - q.loc).abs()
    return -ratio.log() + distance / q.scale + ratio * (-distance / p.scale).exp() - 1


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    result = ((q.high - q.low) / (p.high - p.low)).log()
    return where((q.low > p.low) | (q.high < p.high), math.inf, result)


@register_kl(Normal, Uniform)
@register_kl(Laplace, Uniform)
@register_kl(Gumbel, Uniform)
@register_kl(Normal, Exponential)
@register_kl(Laplace, Exponential)
@register_kl(Gumbel, Exponential)
def _beyond(p: Any, q: Distribution) -> Tensor:
    return infinite_like(p.loc)


@register_kl(Exponential, Uniform)
def _exponential_uniform(p: Exponential, q: Uniform) -> Tensor:
    return infinite_like(p.rate)


@register_kl(Uniform, Exponential)
def _uniform_exponential(p: Uniform, q: Exponential) -> Tensor:
    result = q.rate * p.mean - (q.rate * (p.high - p.low)).log()
    return where(p.low < 0, math.inf, result)


def _minus_normal(mean: Tensor, variance: Tensor, q: Normal) -> Tensor:
    """The mean of -log q(x) for x of that mean and variance."""
    square = (variance + (mean - q.loc).square()) / q.scale.square()
    return q.scale.log() + 0.5 * math.log(2 * math.pi) + 0.5 * square


@register_kl(Uniform, Normal)
@register_kl(Laplace, Normal)
@register_kl(Gumbel, Normal)
@register_kl(Exponential, Normal)
def from_normal(p: Any, q: Normal) -> Tensor:
    """From a normal distribution of one that has a mean, a variance and an entropy."""
    return _minus_normal(p.mean, p.variance, q) - p.entropy()


def minus_gumbel(mean: Tensor, exponential: Tensor, q: Gumbel) -> Tensor:
    """The same, of that mean and that of exp(-(x - loc) / scale)."""
    return q.scale.log() + (mean - q.loc) / q.scale + exponential


@register_kl(Normal, Gumbel)
def _normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    shift = (q.loc - p.loc) / q.scale
    exponential = (shift + 0.5 * (p.scale / q.scale).square()).exp()
    return minus_gumbel(p.loc, exponential, q) - p.entropy()


@register_kl(Exponential, Gumbel)
def _exponential_gumbel(p: Exponential, q: Gumbel) -> Tensor:
    steep = p.rate * q.scale
    exponential = (q.loc / q.scale).exp() * steep / (steep + 1)
    return minus_gumbel(p.mean, exponential, q) - p.entropy()


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    width = (p.high - p.low) / q.scale
    exponential = ((q.loc - p.low) / q.scale).exp() * -(-width).expm1() / width
    return minus_gumbel(p.mean, exponential, q) - p.entropy()


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Tensor:
    # The mean of |x - loc| is that of a folded normal distribution.
    shift = (p.loc - q.loc) / p.scale
    density = math.sqrt(2 / math.pi) * (-0.5 * shift.square()).exp()
    folded = p.scale * (density + shift * (shift * math.sqrt(0.5)).erf())
    return folded / q.scale + (2 * q.scale).log() - p.entropy()


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    """As before a transform that both share."""
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError
    result = kl_divergence(p.base_dist, q.base_dist)
    return sum_rightmost(result, len(p.event_shape) - len(p.base_dist.event_shape))


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
