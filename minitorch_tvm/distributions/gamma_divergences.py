"""Kullback-Leibler divergences of pairs with gamma, beta and Dirichlet distributions."""

from __future__ import annotations

import math
from typing import Any

from ..tensor import Tensor
from ..tensor.functions import where
from .dirichlet import Beta, Dirichlet
from .distribution import Distribution
from .exponential import Exponential
from .gamma import Gamma
from .gumbel import EULER, Gumbel
from .kl import from_normal, infinite_like, minus_gumbel, register_kl
from .laplace import Laplace
from .normal import Normal
from .uniform import Uniform

register_kl(Gamma, Normal)(from_normal)
register_kl(Beta, Normal)(from_normal)


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    count, other = p.concentration, q.concentration
    rates = other * (p.rate / q.rate).log() + (q.rate - p.rate) * (count / p.rate)
    return rates + other.lgamma() - count.lgamma() + (count - other) * count.digamma()


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    slopes = a.digamma() - total.digamma().unsqueeze(-1)
    sums = total.lgamma() - b.sum(-1).lgamma()
    return sums - (a.lgamma() - b.lgamma()).sum(-1) + ((a - b) * slopes).sum(-1)


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    return _dirichlet(p._dirichlet, q._dirichlet)


def _minus_gamma(mean: Tensor, logarithm: Tensor, q: Gamma) -> Tensor:
    """The mean of -log q(x) for x of that mean, and of that mean of log x."""
    count = q.concentration
    powers = (count - 1) * logarithm
    return count.lgamma() - count * q.rate.log() - powers + q.rate * mean


@register_kl(Beta, Gamma)
def _beta_gamma(p: Beta, q: Gamma) -> Tensor:
    logarithm = p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()
    return _minus_gamma(p.mean, logarithm, q) - p.entropy()


@register_kl(Exponential, Gamma)
def _exponential_gamma(p: Exponential, q: Gamma) -> Tensor:
    return _minus_gamma(p.mean, -p.rate.log() - EULER, q) - p.entropy()


def _mean_logarithm(low: Tensor, high: Tensor) -> Tensor:
    """Of numbers in between, at the same rate."""
    return (high.xlogy(high) - low.xlogy(low)) / (high - low) - 1


@register_kl(Uniform, Gamma)
def _uniform_gamma(p: Uniform, q: Gamma) -> Tensor:
    result = _minus_gamma(p.mean, _mean_logarithm(p.low, p.high), q) - p.entropy()
    return where(p.low < 0, math.inf, result)


@register_kl(Uniform, Beta)
def _uniform_beta(p: Uniform, q: Beta) -> Tensor:
    one, zero = q.concentration1, q.concentration0
    constant = one.lgamma() + zero.lgamma() - (one + zero).lgamma()
    below, above = _mean_logarithm(p.low, p.high), _mean_logarithm(1 - p.high, 1 - p.low)
    result = constant - (one - 1) * below - (zero - 1) * above - p.entropy()
    return where((p.high > 1) | (p.low < 0), math.inf, result)


@register_kl(Beta, Uniform)
def _beta_uniform(p: Beta, q: Uniform) -> Tensor:
    result = (q.high - q.low).log() - p.entropy()
    return where((q.low > 0) | (q.high < 1), math.inf, result)


@register_kl(Gamma, Exponential)
@register_kl(Beta, Exponential)
def _of_exponential(p: Any, q: Exponential) -> Tensor:
    return q.rate * p.mean - q.rate.log() - p.entropy()


@register_kl(Gamma, Gumbel)
def _gamma_gumbel(p: Gamma, q: Gumbel) -> Tensor:
    steep = p.rate * q.scale
    exponential = (q.loc / q.scale).exp() * (1 + steep.reciprocal()).pow(-p.concentration)
    return minus_gumbel(p.mean, exponential, q) - p.entropy()


@register_kl(Normal, Gamma)
@register_kl(Laplace, Gamma)
@register_kl(Gumbel, Gamma)
@register_kl(Normal, Beta)
@register_kl(Laplace, Beta)
@register_kl(Gumbel, Beta)
@register_kl(Exponential, Beta)
@register_kl(Gamma, Beta)
@register_kl(Gamma, Uniform)
def _beyond(p: Any, q: Distribution) -> Tensor:
    return infinite_like(p.mean)
