"""Distributions of functions of random variables."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from ..autograd import no_grad
from ..core.shape import Size
from ..tensor import Tensor
from . import constraints
from .constraints import Constraint
from .distribution import Distribution
from .independent import Independent, sum_rightmost
from .transforms import ComposeTransform, Transform


class TransformedDistribution(Distribution):
    """What one transform, or a list of them, makes of values of ``base_distribution``.

    Raises ValueError for what are no transforms, and if values have too few dimensions for them.
    The policy of soft actor-critic (T. Haarnoja et al., 2018) is a normal distribution, squashed:

    >>> import minitorch_tvm as mt
    >>> from minitorch_tvm.distributions import Independent, Normal, TanhTransform
    >>> mean = mt.zeros(5, 2, requires_grad=True)
    >>> normal = Independent(Normal(mean, mt.ones(5, 2)), 1)
    >>> policy = TransformedDistribution(normal, TanhTransform(cache_size=1))
    >>> action = policy.rsample()
    >>> bool((action.abs() <= 1).all())
    True
    >>> policy.log_prob(action).mean().backward()
    >>> mean.grad.shape
    torch.Size([5, 2])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | list[Transform],
        validate_args: bool | None = None,
    ) -> None:
        if isinstance(transforms, Transform):
            self.transforms = [transforms]
        elif isinstance(transforms, list):
            if not all(isinstance(t, Transform) for t in transforms):
                raise ValueError("transforms must be a Transform or a list of Transforms")
            self.transforms = transforms
        else:
            raise ValueError(f"transforms must be a Transform or list, but was {transforms}")
        whole = ComposeTransform(self.transforms)
        base: Any = base_distribution
        before = base.batch_shape + base.event_shape
        dims = whole.domain.event_dim
        if len(before) < dims:
            raise ValueError(
                f"base_distribution needs to have shape with size at least {dims}, but got "
                f"{Size(before)}."
            )
        after = whole.forward_shape(before)
        needed = whole.inverse_shape(after)
        own = len(base.event_shape)
        if needed != before:
            base = base.expand(needed[: len(needed) - own])
        if dims > own:
            base = Independent(base, dims - own)
        self.base_dist = base
        event_dim = whole.codomain.event_dim + max(own - dims, 0)
        split = len(after) - event_dim
        super().__init__(after[:split], after[split:], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        new = copy.copy(self) if _instance is None else _instance
        shape = ComposeTransform(self.transforms).inverse_shape((*batch_shape, *self._event_shape))
        inner = shape[: len(shape) - len(self.base_dist.event_shape)]
        vars(new).update(vars(self), base_dist=self.base_dist.expand(inner))
        new._batch_shape = Size(batch_shape)
        return new

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """As of what is transformed."""
        return bool(self.base_dist.has_rsample)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Constraint:
        if not self.transforms:
            return self.base_dist.support
        inner = self.transforms[-1].codomain
        more = len(self._event_shape) - inner.event_dim
        return constraints.independent(inner, more) if more > 0 else inner

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            x: Tensor = self.base_dist.sample(sample_shape)
            for transform in self.transforms:
                x = transform(x)
            return x

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        x: Tensor = self.base_dist.rsample(sample_shape)
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: Tensor) -> Tensor:
        y = self._checked(value)
        dims = len(self._event_shape)
        slopes: Any = 0.0
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            dims += transform.domain.event_dim - transform.codomain.event_dim
            slope = transform.log_abs_det_jacobian(x, y)
            slopes = slopes + sum_rightmost(slope, dims - transform.domain.event_dim)
            y = x
        inner = sum_rightmost(self.base_dist.log_prob(y), dims - len(self.base_dist.event_shape))
        return inner - slopes

    def _risen(self, value: Tensor) -> Tensor:
        """A probability up to a value as one from there on, where the transforms fall."""
        sign = ComposeTransform(self.transforms).sign
        if isinstance(sign, int) and sign == 1:
            return value
        return sign * (value - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        """As of what is transformed; falling transforms turn it round."""
        x = self._checked(value)
        for transform in reversed(self.transforms):
            x = transform.inv(x)
        return self._risen(self.base_dist.cdf(x))

    def icdf(self, value: Tensor) -> Tensor:
        """As of what is transformed; falling transforms turn it round."""
        x: Tensor = self.base_dist.icdf(self._risen(value))
        for transform in self.transforms:
            x = transform(x)
        return x
