"""Exponential distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from .. import random as rng
from ..tensor import Tensor
from ..tensor.creation import zeros_like
from . import constraints
from .constraints import Constraint
from .distribution import Distribution
from .utils import broadcast_all


class Exponential(Distribution):
    """Numbers of density rate * exp(-rate * x) above 0.

    Raises ValueError where a rate in memory is not positive.

    >>> import minitorch_tvm as mt
    >>> Exponential(2.0).cdf(mt.tensor([0.0, 1.0]))
    tensor([0.0000, 0.8647])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, rate: Tensor | float, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        return zeros_like(self.rate)

    @property
    def stddev(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.rate.pow(-2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = tuple(self._extended_shape(sample_shape))
        return Tensor._wrap(rng.exponential(shape, self.rate.dtype)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        self._checked(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        self._checked(value)
        return -(-self.rate * value).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1.0 - self.rate.log()
