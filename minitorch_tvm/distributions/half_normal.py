"""Half-normal distributions."""

from __future__ import annotations

import math
from typing import ClassVar

from ..tensor import Tensor
from ..tensor.creation import zeros_like
from ..tensor.functions import where
from . import constraints
from .constraints import Constraint
from .normal import Normal
from .transformed_distribution import TransformedDistribution
from .transforms import AbsTransform
from .utils import violates


class HalfNormal(TransformedDistribution):
    """|x| of a normal x of mean 0 and standard deviation ``scale``.

    Raises ValueError where a scale in memory is not positive.

    >>> import minitorch_tvm as mt
    >>> HalfNormal(1.0).cdf(mt.tensor(1.0))
    tensor(0.6827)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"scale": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, scale: Tensor | float, validate_args: bool | None = None) -> None:
        base = Normal(0, scale, validate_args=False)
        super().__init__(base, AbsTransform(), validate_args=validate_args)

    def _check_parameters(self) -> None:
        if violates(self.scale, constraints.positive):
            condition = f"satisfy the constraint {constraints.positive},"
            raise self._wrong_parameter("scale", self.scale, condition)

    @property
    def scale(self) -> Tensor:
        """The standard deviation of the whole normal distribution."""
        return self.base_dist.scale

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def mode(self) -> Tensor:
        return zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (1 - 2 / math.pi)

    def log_prob(self, value: Tensor) -> Tensor:
        self._checked(value)
        inside = self.base_dist.log_prob(value) + math.log(2)
        return where(value >= 0, inside, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        self._checked(value)
        return (value / (self.scale * math.sqrt(2))).erf()

    def icdf(self, value: Tensor) -> Tensor:
        return self.scale * (math.sqrt(2) * value.erfinv())

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)
