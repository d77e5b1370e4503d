"""In-place methods that fill a tensor with random numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

from .. import random as rng
from ..core import arguments as arg
from ..core import dtype as dt
from ..core.dtype import DType
from ..core.shape import Shape
from ..ir.node import Node
from ..ops import build as b
from ..ops import derived as d
from .core import TensorBase

if TYPE_CHECKING:
    from .tensor import Tensor

_NOT_GIVEN: Any = object()


class Draws(TensorBase):
    """What :class:`minitorch_tvm.Tensor` offers to be filled with random numbers.

    They depend on the generator's seed and on how many draws it has made before.

    >>> import minitorch_tvm as mt
    >>> x = mt.empty(1000).uniform_(2, 3)
    >>> bool((x >= 2).all() and (x <= 3).all())
    True
    """

    __slots__ = ()

    def uniform_(
        self, start: float = 0, to: float = 1, *, generator: rng.Generator | None = None
    ) -> Self:
        """Fill with uniform numbers from [start, to).

        Raises NotImplementedError for dtypes that are not floating point, RuntimeError if ``to``
        is less than ``start``.
        """
        kind = self.dtype
        start, to = uniform_ends(kind, start, to)
        x = rng.uniform(self._node.shape, kind, generator)
        scaled = b.mul(x, d.lift(to - start, kind))
        return self._assign(b.add(scaled, d.lift(start, kind)), "uniform_")

    def normal_(
        self, mean: float = 0, std: float = 1, *, generator: rng.Generator | None = None
    ) -> Self:
        """Fill with normally distributed numbers.

        Raises NotImplementedError for dtypes that are not floating point, RuntimeError if ``std``
        is negative.
        """
        node = scaled_normal(self._node.shape, self.dtype, mean, std, generator)
        return self._assign(node, "normal_")

    def exponential_(self, lambd: float = 1, *, generator: rng.Generator | None = None) -> Self:
        """Fill with numbers of density lambd * exp(-lambd * x).

        Raises RuntimeError for dtypes that are not floating point and unless ``lambd`` is positive.
        """
        kind = self.dtype
        if not kind.is_floating_point:
            raise RuntimeError(
                "Exponential distribution is a continuous probability distribution. dtype must be "
                f"a floating point but you specified {kind.torch_name}"
            )
        lambd = arg.number("exponential_", "lambd", 1, lambd, "float")
        if not lambd > 0:
            raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd:g}")
        x = rng.exponential(self._node.shape, kind, generator)
        return self._assign(b.div(x, d.lift(lambd, kind)), "exponential_")

    def bernoulli_(self, p: Any = 0.5, *, generator: rng.Generator | None = None) -> Self:
        """Fill with ones, of probability ``p`` (a number, or a tensor of them), and zeros.

        Raises RuntimeError for a number outside [0, 1]; elements of a tensor that are outside give
        NaN in a floating point tensor, and act as the nearer end in others.
        """
        shape, kind = self._node.shape, self.dtype
        if isinstance(p, TensorBase):
            arg.floating(p.dtype, "bernoulli_tensor_cpu_self_")
            node = chances(b.expand(p.node, shape), kind, generator)
        else:
            node = self.bernoulli(p, generator=generator).node
        return self._assign(node, "bernoulli_")

    def bernoulli(
        self, p: float | None = None, *, generator: rng.Generator | None = None
    ) -> Tensor:
        """A tensor of ones, with the probability that each element (or ``p``) says, and zeros.

        Raises NotImplementedError for probabilities that are not floating point, RuntimeError for
        a ``p`` outside [0, 1]; elements outside give NaN.
        """
        kind = self.dtype
        if p is None:
            arg.floating(kind, "bernoulli_tensor_cpu_p_")
            return self._wrap(chances(self.node, kind, generator))
        probability = d.lift(chance(p), dt.float32)
        drawn = rng.uniform(self._node.shape, dt.float32, generator)
        return self._wrap(b.cast(b.lt(drawn, probability), kind))

    def random_(
        self,
        start: int | None = None,
        to: Any = _NOT_GIVEN,
        *,
        generator: rng.Generator | None = None,
    ) -> Self:
        """Fill with integers from [start, to), or from [0, start) if one number is given.

        ``to=None`` is the first number that the dtype cannot hold.

        With none, from those not negative that the dtype can hold, but below 2**24 for float32
        and below 2**53 for float64.  Raises NotImplementedError for other ranges of more than
        2**32 integers, RuntimeError for empty ranges and for those beyond the dtype.
        """
        kind = self.dtype
        low, high = start, to
        if high is _NOT_GIVEN:
            low, high = 0, _ends(kind)[1] if start is None else start
        elif high is None:
            high = _ends(kind)[1]
        low, high = arg.integer("random_", "from", 1, low), arg.integer("random_", "to", 2, high)
        if low >= high:
            raise RuntimeError(
                f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
            )
        first, end = (-(1 << 63), 1 << 63) if kind.is_floating_point else _ends(kind)
        for name, value in (("from", low), ("to - 1", high - 1)):
            if not first <= value < end:
                raise RuntimeError(f"{name} is out of bounds for {kind.scalar_name}")
        return self._assign(rng.integers(self._node.shape, low, high, kind, generator), "random_")


def _ends(kind: DType) -> tuple[int, int]:
    """The least integer of a dtype, and the first that it cannot hold, or not with certainty."""
    if kind.is_floating_point:
        end = 1 << (24 if kind is dt.float32 else 53)
        return -end, end
    return (0, 2) if kind is dt.bool_ else kind.range


def chance(p: Any) -> float:
    """``p`` as a probability; RuntimeError unless it is one."""
    p = arg.number("bernoulli_", "p", 1, p, "float")
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p:g}")
    return p


def chances(p: Node, kind: DType, generator: rng.Generator | None) -> Node:
    """1 with the probability that each element of ``p`` says, else 0; NaN for what is none."""
    hit = b.cast(b.lt(rng.uniform(p.shape, p.dtype, generator), p), kind)
    if not kind.is_floating_point:
        return hit
    zero, one = b.full((), 0, p.dtype), b.full((), 1, p.dtype)
    sound = b.logical_and(b.le(zero, p), b.le(p, one))
    return b.where(sound, hit, b.full((), math.nan, kind))


def uniform_ends(kind: DType, start: Any, to: Any) -> tuple[float, float]:
    """From where to where uniform numbers are to be; RuntimeError for what a dtype cannot hold."""
    arg.floating(kind, "check_uniform_bounds")
    start = arg.number("uniform_", "from", 1, start, "float")
    to = arg.number("uniform_", "to", 2, to, "float")
    lowest, highest = kind.least, -kind.least
    for name, value in (("from", start), ("to", to)):
        if not lowest <= value <= highest:
            raise RuntimeError(f"{name} is out of bounds for {kind.scalar_name}")
    if start > to:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={start:g} > to={to:g}"
        )
    if to - start > highest:
        raise RuntimeError(
            "uniform_ expects to-from <= std::numeric_limits"
            f"<{kind.torch_name}>::max(), but found to={to:g} and from={start:g} which result "
            "in to-from to exceed the limit"
        )
    return start, to


def check_std(std: float) -> None:
    """RuntimeError if a standard deviation is negative."""
    if not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")


def scaled_normal(
    shape: Shape, kind: DType, mean: float, std: float, generator: rng.Generator | None
) -> Node:
    """Normally distributed numbers."""
    mean = arg.number("normal_", "mean", 1, mean, "float")
    std = arg.number("normal_", "std", 2, std, "float")
    check_std(std)
    x = rng.normal(shape, kind, generator)
    return b.add(b.mul(x, d.lift(std, kind)), d.lift(mean, kind))
