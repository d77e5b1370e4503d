"""Laplace distributions."""

from __future__ import annotations

from collections.abc import Sequence

from .. import random as rng
from ..ops import build as b
from ..tensor import Tensor
from ..tensor.functions import where
from .families import LocationScale


class Laplace(LocationScale):
    """Numbers of density exp(-|x - loc| / scale) / (2 scale).

    Raises ValueError where a scale in memory is not positive.

    >>> import minitorch_tvm as mt
    >>> Laplace(0.0, 1.0).cdf(mt.tensor([-1.0, 0.0]))
    tensor([0.1839, 0.5000])
    """

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale.square()

    @property
    def stddev(self) -> Tensor:
        return 2**0.5 * self.scale

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape, kind = tuple(self._extended_shape(sample_shape)), self.loc.dtype
        # The difference of two exponential variables.
        left, right = rng.exponential(shape, kind), rng.exponential(shape, kind)
        return self.loc + self.scale * Tensor._wrap(b.sub(left, right))

    def log_prob(self, value: Tensor) -> Tensor:
        self._checked(value)
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        distance = (self._checked(value) - self.loc) / self.scale
        half = 0.5 * (-distance.abs()).exp()
        return where(distance < 0, half, 1 - half)

    def icdf(self, value: Tensor) -> Tensor:
        # From the nearer end, where nothing is lost.
        lower, upper = (2 * value).log(), -(2 * (1 - value)).log()
        return self.loc + self.scale * where(value < 0.5, lower, upper)

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()
