"""Several distributions as one of vectors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from ..core.shape import Size
from ..tensor import Tensor
from . import constraints
from .constraints import Constraint
from .distribution import Distribution


def sum_rightmost(x: Tensor, count: int) -> Tensor:
    """The sum over the last ``count`` dimensions."""
    return x.sum(dim=tuple(range(-count, 0))) if count else x


class Independent(Distribution):
    """The last ``reinterpreted_batch_ndims`` dimensions of a batch as dimensions of an event.

    Log-probabilities and entropies are sums over them.  Raises ValueError if there are not so many.

    >>> import minitorch_tvm as mt
    >>> from minitorch_tvm.distributions import Normal
    >>> policy = Independent(Normal(mt.zeros(2, 3), 1.0), 1)
    >>> policy.batch_shape, policy.event_shape
    (torch.Size([2]), torch.Size([3]))
    >>> policy.log_prob(mt.zeros(2, 3))
    tensor([-2.7568, -2.7568])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        lead = len(base_distribution.batch_shape)
        if reinterpreted_batch_ndims > lead:
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                f"{reinterpreted_batch_ndims} vs {lead}"
            )
        shape = base_distribution.batch_shape + base_distribution.event_shape
        split = lead - reinterpreted_batch_ndims
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        super().__init__(shape[:split], shape[split:], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        shape = Size(batch_shape)
        new = copy.copy(self) if _instance is None else _instance
        inner = self._event_shape[: self.reinterpreted_batch_ndims]
        vars(new).update(vars(self), base_dist=self.base_dist.expand(shape + inner))
        new._batch_shape = shape
        return new

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """As of what it is made of."""
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """As of what it is made of; only if no dimension is reinterpreted."""
        return self.reinterpreted_batch_ndims == 0 and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Constraint:
        inner = self.base_dist.support
        assert inner is not None
        count = self.reinterpreted_batch_ndims
        return constraints.independent(inner, count) if count else inner

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist}, {self.reinterpreted_batch_ndims})"
