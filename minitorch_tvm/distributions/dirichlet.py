"""Dirichlet and beta distributions: shares that add up to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..nn.functional import one_hot
from ..tensor import Tensor
from ..tensor.functions import stack, where
from . import constraints
from .constraints import Constraint
from .distribution import Distribution
from .gamma import log_draws, no_gradient
from .utils import broadcast_all


class Dirichlet(Distribution):
    """Vectors of positive numbers that add up to one, of a density like a product of powers.

    ``concentration`` [..., k] are these powers plus one.  Raises ValueError where it is not
    positive, or has no dimension; ``rsample`` raises NotImplementedError where it requires grad.

    >>> import minitorch_tvm as mt
    >>> Dirichlet(mt.tensor([1.0, 3.0])).mean
    tensor([0.2500, 0.7500])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.independent(constraints.positive, 1)
    }
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        shape = concentration.shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        more = (self.concentration - 1).clamp(min=0.0)
        mode = more / more.sum(-1, True)
        corner = one_hot(mode.argmax(-1), self.concentration.shape[-1]).to(mode.dtype)
        return where((self.concentration < 1).all(-1, True), corner, mode)

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total.square() * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        no_gradient("Dirichlet", self.concentration)
        # Shares of gamma variables, by their logarithms: of small powers all may be near 0.
        drawn = log_draws(self.concentration, self._extended_shape(sample_shape))
        return drawn.softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._checked(value)
        powers = (self.concentration - 1.0).xlogy(value).sum(-1)
        total = self.concentration.sum(-1)
        return powers + total.lgamma() - self.concentration.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        count, total = self.concentration.shape[-1], self.concentration.sum(-1)
        return (
            self.concentration.lgamma().sum(-1)
            - total.lgamma()
            - (count - total) * total.digamma()
            - ((self.concentration - 1.0) * self.concentration.digamma()).sum(-1)
        )


class Beta(Distribution):
    """Numbers of a density like x**(concentration1 - 1) * (1 - x)**(concentration0 - 1) in [0, 1].

    Raises ValueError where parameters in memory are not positive; ``rsample`` raises
    NotImplementedError where they require grad.

    >>> Beta(1.0, 3.0).mean
    tensor(0.2500)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self,
        concentration1: Tensor | float,
        concentration0: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        both = stack(broadcast_all(concentration1, concentration0), -1)
        self._dirichlet = Dirichlet(both, validate_args=validate_args)
        super().__init__(self._dirichlet.batch_shape, validate_args=validate_args)

    @property
    def concentration1(self) -> Tensor:
        """The power of x, plus one."""
        return self._dirichlet.concentration[..., 0]

    @property
    def concentration0(self) -> Tensor:
        """The power of 1 - x, plus one."""
        return self._dirichlet.concentration[..., 1]

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        return self._dirichlet.mode[..., 0]

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total.square() * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._dirichlet.rsample(sample_shape)[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        self._checked(value)
        return self._dirichlet.log_prob(stack([value, 1.0 - value], -1))

    def entropy(self) -> Tensor:
        return self._dirichlet.entropy()
