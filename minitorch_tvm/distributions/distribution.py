"""What all distributions have: shapes, samples, checks of arguments."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

from ..autograd import no_grad
from ..core.shape import Size
from ..tensor import Tensor
from . import constraints
from .constraints import Constraint
from .utils import violates


class Distribution:
    """A distribution of tensors: ``batch_shape`` independent ones, of values of ``event_shape``.

    Arguments are tested where their values are in memory: ``validate_args`` (by default as
    :meth:`set_default_validate_args` says) evaluates nothing.  What is still to be computed, or
    repeated by ``mt.compile``, is taken as it is.

    Subclasses define ``arg_constraints``, ``support`` and what they can of the methods here; what
    is not defined raises NotImplementedError.

    >>> import minitorch_tvm as mt
    >>> normal = mt.distributions.Normal(mt.zeros(2), 1.0)
    >>> normal.batch_shape, normal.event_shape, normal.sample((3,)).shape
    (torch.Size([2]), torch.Size([]), torch.Size([3, 2]))
    """

    has_rsample = False
    """Whether gradients flow through :meth:`rsample`."""
    has_enumerate_support = False
    _validate_args: bool = __debug__

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether arguments are tested from now on; ValueError unless ``value`` is a bool."""
        if not isinstance(value, bool):
            raise ValueError
        Distribution._validate_args = value

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape = Size(batch_shape)
        self._event_shape = Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_parameters()
        super().__init__()

    def _check_parameters(self) -> None:
        try:
            conditions = self.arg_constraints
        except NotImplementedError:
            conditions = {}
            warnings.warn(
                f"{type(self)} does not define `arg_constraints`. Please set `arg_constraints = "
                "{}` or initialize the distribution with `validate_args=False` to turn off "
                "validation.",
                stacklevel=3,
            )
        for name, condition in conditions.items():
            value = vars(self).get(name)  # what is made when it is asked for is not in there
            if value is None or constraints.is_dependent(condition):
                continue
            if violates(value, condition):
                raise self._wrong_parameter(name, value, f"satisfy the constraint {condition},")

    def _wrong_parameter(
        self, name: str, value: Tensor, wanted: str, wrong: Tensor | None = None
    ) -> ValueError:
        found = value if wrong is None else wrong
        return ValueError(
            f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) of "
            f"distribution {self} to {wanted} but found invalid values:\n{found}"
        )

    @property
    def batch_shape(self) -> Size:
        """How many distributions these are, in which dimensions."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one value."""
        return self._event_shape

    @property
    def arg_constraints(self) -> dict[str, Constraint]:
        """What parameters must be, by name."""
        raise NotImplementedError

    @property
    def support(self) -> Constraint | None:
        """What values are."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """The mean of each of the distributions."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """The most probable value of each."""
        raise NotImplementedError(f"{type(self)} does not implement mode")

    @property
    def variance(self) -> Tensor:
        """The variance of each."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each."""
        return self.variance.sqrt()

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """The same distributions, repeated: their parameters are expanded to ``batch_shape``.

        Raises RuntimeError for shapes to which they do not expand.
        """
        shape, lead = Size(batch_shape), len(self._batch_shape)
        new = copy.copy(self) if _instance is None else _instance
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                vars(new)[name] = value.expand(*shape, *value.shape[lead:])
            elif isinstance(value, Distribution):
                vars(new)[name] = value.expand(shape)
            else:
                vars(new)[name] = value
        new._batch_shape = shape
        return new

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Values drawn, [*sample_shape, *batch_shape, *event_shape], without gradients."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """As :meth:`sample`, as a function of the parameters, to which gradients flow."""
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability (density) of values; they broadcast with the batch.

        Raises ValueError unless ``value`` is a tensor of a shape that fits, and where it is in
        memory if it is outside of the support.
        """
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of values up to ``value``."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        """The value up to which values have the probability ``value``."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of a discrete distribution along a new first dimension.

        Not with ``expand``, the others have size 1.
        """
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """The entropy of each of the distributions, in nats."""
        raise NotImplementedError

    def perplexity(self) -> Tensor:
        """exp(entropy)."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Size:
        """That of so many samples."""
        return Size(Size(sample_shape) + self._batch_shape + self._event_shape)

    def _check_shape(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        given, own, event = value.shape, self._extended_shape(), self._event_shape
        if given == own:
            return
        if tuple(given[len(given) - len(event) :]) != event:
            raise ValueError(
                f"The right-most size of value must match event_shape: {given} vs {event}."
            )
        for i, j in zip(reversed(given), reversed(own), strict=False):
            if i != 1 and j != 1 and i != j:
                raise ValueError(
                    f"Value is not broadcastable with batch_shape+event_shape: {given} vs {own}."
                )

    def _validate_sample(self, value: Tensor) -> None:
        """Raise what :meth:`log_prob` raises for a wrong value."""
        self._check_shape(value)
        try:
            support = self.support
        except NotImplementedError:
            warnings.warn(
                f"{type(self)} does not define `support` to enable sample validation. Please "
                "initialize the distribution with `validate_args=False` to turn off validation.",
                stacklevel=3,
            )
            return
        assert support is not None
        if violates(value, support):
            raise self._outside(value)

    def _outside(self, value: Tensor) -> ValueError:
        return ValueError(
            f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be "
            f"within the support ({self.support}) of the distribution {self}, but found invalid "
            f"values:\n{value}"
        )

    def _checked(self, value: Tensor) -> Tensor:
        """``value``, validated if arguments are."""
        if self._validate_args:
            self._validate_sample(value)
        return value

    def __repr__(self) -> str:
        # Parameters that are made when asked for are shown once they are.
        known = [(name, vars(self)[name]) for name in self.arg_constraints if name in vars(self)]
        shown = [f"{n}: {value if value.numel() == 1 else value.shape}" for n, value in known]
        return f"{type(self).__name__}({', '.join(shown)})"
