"""What parameters and values of distributions must be, as ``torch.distributions.constraints``.

A constraint tests numbers element by element, or the last dimensions of them together.

>>> import minitorch_tvm as mt
>>> mt.distributions.constraints.positive.check(mt.tensor([0.0, 2.0]))
tensor([False,  True])
>>> mt.distributions.constraints.simplex.check(mt.tensor([[0.5, 0.5], [0.5, 0.6]]))
tensor([ True, False])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from .. import linalg
from ..tensor import as_tensor

__all__ = [
    "Constraint",
    "MixtureSameFamilyConstraint",
    "boolean",
    "dependent",
    "dependent_property",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "independent",
    "integer_interval",
    "interval",
    "is_dependent",
    "less_than",
    "lower_cholesky",
    "lower_triangular",
    "nonnegative",
    "nonnegative_integer",
    "one_hot",
    "positive",
    "positive_definite",
    "positive_integer",
    "positive_semidefinite",
    "real",
    "real_vector",
    "simplex",
    "square",
    "symmetric",
    "unit_interval",
]


class Constraint:
    """A region in which numbers are; ``event_dim`` is how many last dimensions one test takes."""

    is_discrete = False
    event_dim = 0

    def check(self, value: Any) -> Any:
        """Bools: where ``value`` (a tensor, or a numpy array) is inside."""
        raise NotImplementedError

    def _show(self, *names: str) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{type(self).__name__.lstrip('_')}({shown})"

    def __repr__(self) -> str:
        return self._show()


class _Dependent(Constraint):
    """Follows from parameters, or from other distributions."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete = is_discrete
        self.event_dim = event_dim

    def __call__(self, *, is_discrete: bool | None = None, event_dim: int | None = None) -> Self:
        """The same with other facts."""
        return type(self)(
            is_discrete=self.is_discrete if is_discrete is None else is_discrete,
            event_dim=self.event_dim if event_dim is None else event_dim,
        )

    def check(self, value: Any) -> Any:
        raise ValueError("Cannot determine validity of dependent constraint")


class dependent_property(property, _Dependent):
    """A property whose value is a constraint; the class itself has it as a dependent one.

    >>> class Below:
    ...     top = 3.0
    ...     @dependent_property(is_discrete=False, event_dim=0)
    ...     def support(self):
    ...         return less_than(self.top)
    >>> Below().support, is_dependent(Below.support)
    (LessThan(upper_bound=3.0), True)
    """

    def __init__(
        self,
        fn: Callable[[Any], Any] | None = None,
        *,
        is_discrete: bool = False,
        event_dim: int = 0,
    ) -> None:
        property.__init__(self, fn)
        _Dependent.__init__(self, is_discrete=is_discrete, event_dim=event_dim)

    def __call__(self, fn: Any) -> dependent_property:  # type: ignore[override]
        """That of the function ``fn``: this is how it decorates one."""
        return type(self)(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)

    def __repr__(self) -> str:
        return "DependentProperty()"


def is_dependent(constraint: object) -> bool:
    """True of a constraint that cannot be tested by itself."""
    return isinstance(constraint, _Dependent)


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value == 0) | (value == 1)


class _OneHot(Constraint):
    is_discrete = True
    event_dim = 1

    def check(self, value: Any) -> Any:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class _Real(Constraint):
    def check(self, value: Any) -> Any:
        return value == value  # all but NaN


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Any) -> Any:
        return (value >= 0).all(-1) & (abs(value.sum(-1) - 1) < 1e-6)


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: Any) -> Any:
        return _whole(_lower(value) == value)


class _LowerCholesky(_LowerTriangular):
    def check(self, value: Any) -> Any:
        return super().check(value) & (_diagonal(value) > 0).all(-1)


class _Square(Constraint):
    event_dim = 2

    def check(self, value: Any) -> Any:
        fits = value.shape[-1] == value.shape[-2]
        found = np.full(tuple(value.shape[:-2]), fits)
        return found if isinstance(value, np.ndarray) else as_tensor(found)


class _Symmetric(_Square):
    def check(self, value: Any) -> Any:
        across = value.swapaxes(-1, -2)
        return _whole(abs(value - across) <= 1e-6 + 1e-5 * abs(across))


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: Any) -> Any:
        lowest = linalg.eigvalsh(as_tensor(value)).amin(-1)
        return super().check(value) & _as(value, lowest >= 0)


class _PositiveDefinite(_Symmetric):
    def check(self, value: Any) -> Any:
        info = linalg.cholesky_ex(as_tensor(value)).info
        return super().check(value) & _as(value, info == 0)


def _whole(inside: Any) -> Any:
    """Whether all elements of matrices are inside."""
    return inside.all(-1).all(-1)


def _lower(value: Any) -> Any:
    return np.tril(value) if isinstance(value, np.ndarray) else value.tril()


def _diagonal(value: Any) -> Any:
    return value.diagonal(0, -2, -1)


def _as(value: Any, found: Any) -> Any:
    return found.numpy() if isinstance(value, np.ndarray) else found


class _GreaterThan(Constraint):
    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Any) -> Any:
        return value > self.lower_bound

    def __repr__(self) -> str:
        return self._show("lower_bound")


class _GreaterThanEq(_GreaterThan):
    def check(self, value: Any) -> Any:
        return value >= self.lower_bound


class _IntegerGreaterThan(_GreaterThan):
    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & (value >= self.lower_bound)


class _LessThan(Constraint):
    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Any) -> Any:
        return value < self.upper_bound

    def __repr__(self) -> str:
        return self._show("upper_bound")


class _Interval(Constraint):
    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound

    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value <= self.upper_bound)

    def __repr__(self) -> str:
        return self._show("lower_bound", "upper_bound")


class _HalfOpenInterval(_Interval):
    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value < self.upper_bound)


class _IntegerInterval(_Interval):
    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & super().check(value)


class _IndependentConstraint(Constraint):
    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Any) -> Any:
        inside = self.base_constraint.check(value)
        if inside.ndim < self.reinterpreted_batch_ndims:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {inside.ndim}")
        for _ in range(self.reinterpreted_batch_ndims):
            inside = inside.all(-1)
        return inside

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamilyConstraint(Constraint):
    """Values that are inside of the region of each of several distributions."""

    def __init__(self, base_constraint: Constraint) -> None:
        self.base_constraint = base_constraint
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim

    def check(self, value: Any) -> Any:
        each = (..., None, *(slice(None),) * self.event_dim)
        return self.base_constraint.check(value[each]).all(-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_constraint})"


boolean = _Boolean()
dependent = _Dependent()
greater_than = _GreaterThan
greater_than_eq = _GreaterThanEq
half_open_interval = _HalfOpenInterval
independent = _IndependentConstraint
integer_interval = _IntegerInterval
interval = _Interval
less_than = _LessThan
lower_cholesky = _LowerCholesky()
lower_triangular = _LowerTriangular()
nonnegative = _GreaterThanEq(0.0)
nonnegative_integer = _IntegerGreaterThan(0)
one_hot = _OneHot()
positive = _GreaterThan(0.0)
positive_definite = _PositiveDefinite()
positive_integer = _IntegerGreaterThan(1)
positive_semidefinite = _PositiveSemidefinite()
real = _Real()
real_vector = independent(real, 1)
simplex = _Simplex()
square = _Square()
symmetric = _Symmetric()
unit_interval = _Interval(0.0, 1.0)
