"""Functions of random variables, with their inverses and the logarithms of their slopes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, Self

from ..core.limits import finfo
from ..core.shape import Size, broadcast
from ..nn.functional import logsigmoid, softplus
from ..ops import likelihoods as lk
from ..tensor import Tensor
from ..tensor.creation import full_like
from . import constraints
from .constraints import Constraint
from .independent import sum_rightmost

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "ComposeTransform",
    "ExpTransform",
    "SigmoidTransform",
    "SoftplusTransform",
    "TanhTransform",
    "Transform",
    "identity_transform",
]


class Transform:
    """A function y = f(x), and ``inv``, the function that undoes it.

    With ``cache_size=1`` the last x and y are kept: the inverse of a y that was made by this very
    transform is its x, with nothing lost.  Subclasses define ``_call``, ``_inverse``,
    ``log_abs_det_jacobian``, ``domain`` and ``codomain``.  Raises ValueError for other sizes than
    0 and 1.

    >>> import minitorch_tvm as mt
    >>> f = TanhTransform(cache_size=1)
    >>> x = mt.tensor(20.0)
    >>> f.inv(f(x)) is x
    True
    """

    bijective = False
    """Whether each y has one x."""
    domain: Constraint
    codomain: Constraint

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size = cache_size
        self._kept: tuple[Any, Any] = (None, None)
        self._inv: weakref.ref[Transform] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_inv": None}

    @property
    def event_dim(self) -> int:
        """How many last dimensions are transformed together."""
        if self.domain.event_dim == self.codomain.event_dim:
            return self.domain.event_dim
        raise ValueError("Please use either .domain.event_dim or .codomain.event_dim")

    @property
    def inv(self) -> Transform:
        """The function from y to x."""
        known = None if self._inv is None else self._inv()
        if known is None:
            known = _InverseTransform(self)
            self._inv = weakref.ref(known)
        return known

    @property
    def sign(self) -> Any:
        """1 if the function rises, -1 if it falls."""
        raise NotImplementedError

    def with_cache(self, cache_size: int = 1) -> Self:
        """The same function, with a cache of that size."""
        if self._cache_size == cache_size:
            return self
        if type(self).__init__ is Transform.__init__:
            return type(self)(cache_size=cache_size)
        raise NotImplementedError(f"{type(self)}.with_cache is not implemented")

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __call__(self, x: Tensor) -> Tensor:
        """f(x)."""
        if self._cache_size == 0:
            return self._call(x)
        known, y = self._kept
        if known is not x:
            y = self._call(x)
            self._kept = x, y
        return y

    def _inv_call(self, y: Tensor) -> Tensor:
        if self._cache_size == 0:
            return self._inverse(y)
        x, known = self._kept
        if known is not y:
            x = self._inverse(y)
            self._kept = x, y
        return x

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |dy / dx|, of ``event_dim`` dimensions together."""
        raise NotImplementedError

    def forward_shape(self, shape: Sequence[int]) -> Size:
        """The shape of y for an x of that shape."""
        return Size(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Size:
        """The shape of x for a y of that shape."""
        return Size(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _InverseTransform(Transform):
    def __init__(self, transform: Transform) -> None:
        super().__init__(cache_size=transform._cache_size)
        self._forward = transform

    @property
    def inv(self) -> Transform:
        return self._forward

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return self._forward.codomain

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return self._forward.domain

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return self._forward.bijective

    @property
    def sign(self) -> Any:
        return self._forward.sign

    def with_cache(self, cache_size: int = 1) -> Any:
        return self._forward.with_cache(cache_size).inv

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InverseTransform) and self._forward == other._forward

    __hash__ = object.__hash__

    def __call__(self, x: Tensor) -> Tensor:
        return self._forward._inv_call(x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self._forward(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._forward.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> Size:
        return self._forward.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Size:
        return self._forward.forward_shape(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._forward})"


def _widened(constraint: Constraint, event_dim: int) -> Constraint:
    """The constraint as one of ``event_dim`` dimensions together."""
    more = event_dim - constraint.event_dim
    return constraints.independent(constraint, more) if more > 0 else constraint


class ComposeTransform(Transform):
    """Several transforms, the first of a list first.

    >>> import minitorch_tvm as mt
    >>> ComposeTransform([ExpTransform(), AffineTransform(1.0, 2.0)])(mt.tensor(0.0))
    tensor(3.)
    """

    def __init__(self, parts: list[Transform], cache_size: int = 0) -> None:
        if cache_size:
            parts = [part.with_cache(cache_size) for part in parts]
        super().__init__(cache_size=cache_size)
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = object.__hash__

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        """Where x is."""
        if not self.parts:
            return constraints.real
        dims = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            dims += part.domain.event_dim - part.codomain.event_dim
            dims = max(dims, part.domain.event_dim)
        return _widened(self.parts[0].domain, dims)

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        """Where y is."""
        if not self.parts:
            return constraints.real
        dims = self.parts[0].domain.event_dim
        for part in self.parts:
            dims += part.codomain.event_dim - part.domain.event_dim
            dims = max(dims, part.codomain.event_dim)
        return _widened(self.parts[-1].codomain, dims)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(part.bijective for part in self.parts)

    @property
    def sign(self) -> Any:
        sign = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    @property
    def inv(self) -> Transform:
        known = None if self._inv is None else self._inv()
        if known is None:
            known = ComposeTransform([part.inv for part in reversed(self.parts)])
            self._inv = weakref.ref(known)
            known._inv = weakref.ref(self)
        return known

    def with_cache(self, cache_size: int = 1) -> Any:
        if self._cache_size == cache_size:
            return self
        return ComposeTransform(self.parts, cache_size=cache_size)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return full_like(x, 0.0)
        total: Any = 0
        dims = self.domain.event_dim
        for number, part in enumerate(self.parts):
            last = number == len(self.parts) - 1
            after = y if last else part(x)
            slope = part.log_abs_det_jacobian(x, after)
            total = total + sum_rightmost(slope, dims - part.domain.event_dim)
            dims += part.codomain.event_dim - part.domain.event_dim
            x = after
        return total

    def forward_shape(self, shape: Sequence[int]) -> Size:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return Size(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Size:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return Size(shape)

    def __repr__(self) -> str:
        inside = ",\n    ".join(map(repr, self.parts))
        return f"{type(self).__name__}(\n    {inside}\n)"


identity_transform = ComposeTransform([])


class _OfKind(Transform):
    """A rising transform without parameters: any two of a kind are equal."""

    bijective = True
    domain = constraints.real

    @property
    def sign(self) -> Any:
        return 1

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))


class ExpTransform(_OfKind):
    """y = exp(x)."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class SigmoidTransform(_OfKind):
    """y = 1 / (1 + exp(-x)), at least the least normal number and at most 1 - eps."""

    codomain = constraints.unit_interval

    @staticmethod
    def _inside(y: Tensor) -> Tensor:
        kind = finfo(y.dtype)
        return y.clamp(min=kind.tiny, max=1.0 - kind.eps)

    def _call(self, x: Tensor) -> Tensor:
        return self._inside(x.sigmoid())

    def _inverse(self, y: Tensor) -> Tensor:
        y = self._inside(y)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return logsigmoid(x) + logsigmoid(-x)


class SoftplusTransform(_OfKind):
    """y = log(1 + exp(x))."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return logsigmoid(x)


class TanhTransform(_OfKind):
    """y = tanh(x).

    The inverse of a y that rounding has made 1 is inf: ``cache_size=1`` keeps its x, or use what
    was drawn before the transform.

    >>> import minitorch_tvm as mt
    >>> TanhTransform().log_abs_det_jacobian(mt.tensor([0.5, 50.0]), None)
    tensor([ -0.2402, -98.6137])
    """

    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return Tensor._wrap(lk.log_tanh_slope(x.node))


class AbsTransform(Transform):
    """y = |x|; its inverse is the positive x."""

    domain = constraints.real
    codomain = constraints.positive

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbsTransform)

    __hash__ = object.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


def _equal(x: Any, y: Any) -> bool:
    same = x == y
    return bool(same.all()) if isinstance(same, Tensor) else same is True


class AffineTransform(Transform):
    """y = loc + scale * x, of numbers or tensors.

    ``event_dim`` last dimensions are one event.

    >>> import minitorch_tvm as mt
    >>> AffineTransform(1.0, 2.0).inv(mt.tensor(5.0))
    tensor(2.)
    """

    bijective = True

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, event_dim: int = 0, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size=cache_size)
        self.loc: Any = loc
        self.scale: Any = scale
        self._event_dim = event_dim

    @property
    def event_dim(self) -> int:
        return self._event_dim

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        """Where x is."""
        return _widened(constraints.real, self._event_dim)

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        """Where y is."""
        return _widened(constraints.real, self._event_dim)

    @property
    def sign(self) -> Any:
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return (self.scale > 0) - (self.scale < 0)

    def with_cache(self, cache_size: int = 1) -> Any:
        if self._cache_size == cache_size:
            return self
        return AffineTransform(self.loc, self.scale, self._event_dim, cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        """The same parameters; those of two tensors are compared, which evaluates them."""
        return isinstance(other, AffineTransform) and all(
            mine is theirs or _equal(mine, theirs)
            for mine, theirs in ((self.loc, other.loc), (self.scale, other.scale))
        )

    __hash__ = object.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.scale, Tensor):
            slope = self.scale.abs().log().expand(broadcast(x.shape, self.scale.shape))
        else:
            slope = full_like(x, math.log(abs(self.scale)))
        return sum_rightmost(slope, self._event_dim)

    def forward_shape(self, shape: Sequence[int]) -> Size:
        shapes = [t.shape for t in (self.loc, self.scale) if isinstance(t, Tensor)]
        for other in shapes:
            shape = broadcast(tuple(shape), other)
        return Size(shape)

    inverse_shape = forward_shape
