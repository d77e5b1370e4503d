"""Gumbel distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import random as rng
from ..ops import build as b
from ..tensor import Tensor
from .families import LocationScale

EULER = 0.57721566490153286061
"""The Euler-Mascheroni constant, the mean of the standard Gumbel distribution."""


class Gumbel(LocationScale):
    """Numbers of distribution function exp(-exp(-(x - loc) / scale)): of maxima of many.

    Raises ValueError where a scale in memory is not positive.

    >>> import minitorch_tvm as mt
    >>> Gumbel(0.0, 1.0).cdf(mt.tensor(0.0))
    tensor(0.3679)
    """

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * EULER

    @property
    def stddev(self) -> Tensor:
        return math.pi / math.sqrt(6) * self.scale

    @property
    def variance(self) -> Tensor:
        return self.stddev.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        wait = Tensor._wrap(b.log(rng.exponential(shape, self.loc.dtype)))
        return self.loc - self.scale * wait

    def log_prob(self, value: Tensor) -> Tensor:
        y = (self.loc - self._checked(value)) / self.scale
        return (y - y.exp()) - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        return (-((self.loc - self._checked(value)) / self.scale).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + EULER)
