"""Gamma and chi-squared distributions, and how their variables are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from .. import random as rng
from ..autograd import is_grad_enabled, no_grad
from ..core.limits import finfo
from ..tensor import Tensor
from ..tensor.functions import where
from . import constraints
from .constraints import Constraint
from .distribution import Distribution
from .utils import broadcast_all

_ROUNDS = 8
"""Of each, one in twenty at most is refused: once in 10**10 draws the last one would have to be."""


@no_grad()
def log_draws(concentration: Tensor, shape: Sequence[int]) -> Tensor:
    """Logarithms of gamma variables of rate 1, which may be too small for a dtype themselves.

    A cube of a normal variable, accepted or refused (Marsaglia and Tsang, "A simple method for
    generating gamma variables", 2000).  Several are drawn at once, of which the first that is
    accepted counts, so that nothing need be evaluated.
    """
    shape, kind = tuple(shape), concentration.dtype
    few = concentration < 1  # drawn of one more, and multiplied by a power of a uniform variable
    third = where(few, concentration + 1, concentration) - 1 / 3
    normal = Tensor._wrap(rng.normal((_ROUNDS, *shape), kind))
    exponential = Tensor._wrap(rng.exponential((_ROUNDS, *shape), kind))
    cube = (1 + normal / (9 * third).sqrt()) ** 3
    log_cube = cube.clamp(min=finfo(kind).tiny).log()
    bound = 0.5 * normal.square() + third * (1 - cube + log_cube)
    accepted = (cube > 0) & (-exponential < bound)
    first = accepted.int().argmax(0, keepdim=True)
    chosen = log_cube.gather(0, first).squeeze(0) + third.log()
    power = Tensor._wrap(rng.exponential(shape, kind)) / concentration
    return where(few, chosen - power, chosen)


def no_gradient(name: str, *parameters: Tensor) -> None:
    """NotImplementedError if a sample were to be differentiated by one of the parameters."""
    if is_grad_enabled() and any(p.requires_grad for p in parameters):
        raise NotImplementedError(
            f"{name}.rsample(): samples are no functions of the concentration that could be "
            "differentiated here: use sample() and log_prob(), or detach it"
        )


class Gamma(Distribution):
    """Numbers of a density like x**(concentration - 1) * exp(-rate * x) above 0.

    Samples can be differentiated by ``rate``.  Raises ValueError where parameters in memory are not
    positive; ``rsample`` raises NotImplementedError where ``concentration`` requires grad.

    >>> import minitorch_tvm as mt
    >>> Gamma(mt.tensor([1.0, 2.0]), 2.0).mean
    tensor([0.5000, 1.0000])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support = constraints.nonnegative
    has_rsample = True

    def __init__(
        self,
        concentration: Tensor | float,
        rate: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        no_gradient("Gamma", self.concentration)
        drawn = log_draws(self.concentration, self._extended_shape(sample_shape)).exp()
        return (drawn / self.rate).clamp(min=finfo(self.rate.dtype).tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        self._checked(value)
        count, rate = self.concentration, self.rate
        return count.xlogy(rate) + (count - 1).xlogy(value) - rate * value - count.lgamma()

    def entropy(self) -> Tensor:
        count = self.concentration
        return count - self.rate.log() + count.lgamma() + (1.0 - count) * count.digamma()


class Chi2(Gamma):
    """Sums of the squares of ``df`` standard normal variables.

    >>> Chi2(3.0).variance
    tensor(6.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"df": constraints.positive}

    def __init__(self, df: Tensor | float, validate_args: bool | None = None) -> None:
        super().__init__(0.5 * df, 0.5, validate_args=validate_args)

    @property
    def df(self) -> Tensor:
        """Degrees of freedom."""
        return self.concentration * 2


class StudentT(Distribution):
    """A normal variable over the root of an independent :class:`Chi2` one over ``df``.

    Samples can be differentiated by ``loc`` and ``scale``.  Raises ValueError where ``df`` or
    ``scale`` in memory are not positive; ``rsample`` raises NotImplementedError where ``df``
    requires grad.

    >>> import minitorch_tvm as mt
    >>> StudentT(mt.tensor([1.0, 3.0])).variance
    tensor([nan, 3.])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(
        self,
        df: Tensor | float,
        loc: Tensor | float = 0.0,
        scale: Tensor | float = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        super().__init__(self.df.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return where(self.df <= 1, math.nan, self.loc)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        finite = self.df > 2
        df = where(finite, self.df, 3.0)
        value = where(finite, self.scale.square() * df / (df - 2), math.inf)
        return where(self.df <= 1, math.nan, value)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        no_gradient("StudentT", self.df)
        shape = self._extended_shape(sample_shape)
        normal = Tensor._wrap(rng.normal(tuple(shape), self.df.dtype))
        half = 0.5 * self.df
        # The chi-squared variable over df is a gamma variable over half of that.
        slower = (0.5 * (half.log() - log_draws(half.detach(), shape))).exp()
        return self.loc + self.scale * (normal * slower)

    def log_prob(self, value: Tensor) -> Tensor:
        self._checked(value)
        y, df = (value - self.loc) / self.scale, self.df
        normal = (
            self.scale.log()
            + 0.5 * df.log()
            + 0.5 * math.log(math.pi)
            + (0.5 * df).lgamma()
            - (0.5 * (df + 1.0)).lgamma()
        )
        return -0.5 * (df + 1.0) * (y.square() / df).log1p() - normal

    def entropy(self) -> Tensor:
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        beta = half.lgamma() + 0.5 * math.log(math.pi) - more.lgamma()
        slopes = more * (more.digamma() - half.digamma())
        return self.scale.log() + slopes + 0.5 * self.df.log() + beta
