"""Mixtures of distributions of one kind."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from ..autograd import no_grad
from ..core.shape import Size, broadcast
from ..tensor import Tensor
from . import constraints
from .categorical import Categorical
from .constraints import Constraint
from .distribution import Distribution


class MixtureSameFamily(Distribution):
    """Values of one of several distributions: the last dimension of a batch of them.

    Which of them, ``mixture_distribution`` tells.  Raises ValueError unless that is a
    :class:`Categorical` of as many classes, and both batches fit.

    >>> import minitorch_tvm as mt
    >>> from minitorch_tvm.distributions import Normal
    >>> two = Normal(mt.tensor([-2.0, 2.0]), 1.0)
    >>> MixtureSameFamily(Categorical(mt.tensor([0.25, 0.75])), two).mean
    tensor(1.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(
                " The Mixture distribution needs to be an  instance of "
                "torch.distributions.Categorical"
            )
        if not isinstance(component_distribution, Distribution):
            raise ValueError(
                "The Component distribution needs to be an instance of "
                "torch.distributions.Distribution"
            )
        parts = component_distribution.batch_shape
        batch, own = Size(parts[:-1]), mixture_distribution.batch_shape
        try:
            broadcast(batch, own)
        except RuntimeError as error:
            raise ValueError(
                f"`mixture_distribution.batch_shape` ({own}) is not compatible with "
                f"`component_distribution.batch_shape`({batch})"
            ) from error
        classes = mixture_distribution.param_shape[-1]
        if classes != parts[-1]:
            raise ValueError(
                f"`mixture_distribution component` ({classes}) does not equal "
                f"`component_distribution.batch_shape[-1]` ({parts[-1]})"
            )
        self._mixture_distribution = mixture_distribution
        self._component_distribution = component_distribution
        event = component_distribution.event_shape
        super().__init__(batch, event, validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        shape = Size(batch_shape)
        new = copy.copy(self) if _instance is None else _instance
        classes = self._component_distribution.batch_shape[-1]
        vars(new).update(
            vars(self),
            _mixture_distribution=self._mixture_distribution.expand(shape),
            _component_distribution=self._component_distribution.expand((*shape, classes)),
            _batch_shape=shape,
        )
        return new

    @property
    def mixture_distribution(self) -> Categorical:
        """Which of the distributions a value is of."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The distributions, in the last dimension of a batch."""
        return self._component_distribution

    @constraints.dependent_property
    def support(self) -> Constraint:
        inner = self._component_distribution.support
        assert inner is not None
        return constraints.MixtureSameFamilyConstraint(inner)

    def _weights(self) -> Tensor:
        probs = self._mixture_distribution.probs
        return probs.reshape(*probs.shape, *(1,) * len(self._event_shape))

    def _mixed(self, x: Tensor) -> Tensor:
        """The mean of what the distributions have, by their probabilities."""
        return (self._weights() * x).sum(dim=-1 - len(self._event_shape))

    @property
    def mean(self) -> Tensor:
        return self._mixed(self._component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        means = self._component_distribution.mean
        distance = means - self._apart(self._mixed(means))
        return self._mixed(self._component_distribution.variance + distance.square())

    def _apart(self, x: Tensor) -> Tensor:
        """Values with a dimension of size 1 where the distributions are."""
        return x.unsqueeze(-1 - len(self._event_shape))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            x = self._component_distribution.sample(sample_shape)
            events = len(self._event_shape)
            axis = x.ndim - 1 - events
            which = self._mixture_distribution.sample(sample_shape)
            lead = x.shape[:axis]
            while which.ndim < len(lead):  # the mixture's batch may have fewer dimensions
                which = which.unsqueeze(len(Size(sample_shape)))
            which = which.expand(lead).reshape(*lead, *(1,) * (events + 1))
            which = which.expand(*lead, 1, *self._event_shape)
            return x.gather(axis, which).squeeze(axis)

    def log_prob(self, value: Tensor) -> Tensor:
        inner = self._component_distribution.log_prob(self._apart(self._checked(value)))
        return (inner + self._mixture_distribution.logits).logsumexp(dim=-1)

    def cdf(self, value: Tensor) -> Tensor:
        """The mean of those of the distributions."""
        below = self._component_distribution.cdf(self._apart(self._checked(value)))
        return (below * self._mixture_distribution.probs).sum(dim=-1)

    def __repr__(self) -> str:
        inside = f"{self._mixture_distribution},\n  {self._component_distribution}"
        return f"{type(self).__name__}(\n  {inside})"
