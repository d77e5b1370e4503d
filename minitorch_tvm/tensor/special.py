"""Methods of each element: more of angles and signs, error functions, functions of two numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

from ..core import arguments as arg
from ..core import dtype as dt
from ..ir.node import Node
from ..ops import build as b
from ..ops import derived as d
from ..ops import pairs, signs
from ..ops import pointwise as pw
from ..ops import special as sp
from .core import node_of
from .elementwise import Elementwise

if TYPE_CHECKING:
    from .tensor import Tensor

Operand = Any


def _eps(given: Any) -> float | None:
    return None if given is None else arg.number("logit", "eps", None, given, "float")


class Special(Elementwise):
    """More functions of each element, of :class:`minitorch_tvm.Tensor`.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([3.0, 5.0])
    >>> x.hypot(mt.tensor([4.0, 12.0])), x.copysign(-1)
    (tensor([ 5., 13.]), tensor([-3., -5.]))
    """

    __slots__ = ()

    def _special(self, name: str) -> Node:
        return d.unary_float(sp.special(name), self.node)

    def _two(self, name: str, function: str, other: Any) -> Node:
        return pairs.of_two(name, self.node, node_of(function, "other", 1, other))

    def _two_floats(self, name: str, function: str, other: Any) -> Node:
        return pairs.of_two_floats(name, self.node, node_of(function, "other", 1, other))

    # --- of one number ----------------------------------------------------------------------

    def acosh(self) -> Tensor:
        """Inverse hyperbolic cosine; NaN below 1."""
        return self._wrap(self._special("acosh"))

    def acosh_(self) -> Self:
        """Inverse hyperbolic cosine, in place."""
        return self._assign(self._special("acosh"), "acosh_")

    def asinh(self) -> Tensor:
        """Inverse hyperbolic sine."""
        return self._wrap(self._special("asinh"))

    def asinh_(self) -> Self:
        """Inverse hyperbolic sine, in place."""
        return self._assign(self._special("asinh"), "asinh_")

    def atanh(self) -> Tensor:
        """Inverse hyperbolic tangent; NaN outside of [-1, 1]."""
        return self._wrap(self._special("atanh"))

    def atanh_(self) -> Self:
        """Inverse hyperbolic tangent, in place."""
        return self._assign(self._special("atanh"), "atanh_")

    def erfc(self) -> Tensor:
        """1 - erf(self), accurate where that is small."""
        return self._wrap(self._special("erfc"))

    def erfc_(self) -> Self:
        """1 - erf(self), in place."""
        return self._assign(self._special("erfc"), "erfc_")

    def erfinv(self) -> Tensor:
        """The number of which self is the error function; NaN outside of [-1, 1]."""
        return self._wrap(self._special("erfinv"))

    def erfinv_(self) -> Self:
        """The inverse of the error function, in place."""
        return self._assign(self._special("erfinv"), "erfinv_")

    def lgamma(self) -> Tensor:
        """Logarithm of the absolute value of the gamma function; infinite at its poles."""
        return self._wrap(self._special("lgamma"))

    def lgamma_(self) -> Self:
        """Logarithm of the absolute value of the gamma function, in place."""
        return self._assign(self._special("lgamma"), "lgamma_")

    def digamma(self) -> Tensor:
        """Derivative of :meth:`lgamma`; NaN at negative integers.  It can be
        differentiated once."""
        return self._wrap(self._special("digamma"))

    def digamma_(self) -> Self:
        """Derivative of :meth:`lgamma`, in place."""
        return self._assign(self._special("digamma"), "digamma_")

    def mvlgamma(self, p: int) -> Tensor:
        """Logarithm of the gamma function of ``p`` dimensions.

        That is p (p - 1) / 4 * log(pi) plus the sum of lgamma(self - j / 2) for j from 0 to p - 1,
        computed in float64.  Raises RuntimeError for bools, and unless p is at least 1.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([2.0, 5.0]).mvlgamma(2)
        tensor([0.4516, 6.2042])
        """
        count = arg.integer("mvlgamma", "p", 1, p)
        if self.dtype is dt.bool_:
            raise RuntimeError("The input tensor may not be a boolean tensor.")
        if count < 1:
            raise RuntimeError("p has to be greater than or equal to 1")
        x = d.cast_float(self.node)
        wide = self._wrap(b.cast(x, dt.float64))
        total = wide.lgamma()
        for j in range(1, count):
            total = total + (wide - 0.5 * j).lgamma()
        return (total + count * (count - 1) / 4 * math.log(math.pi)).to(x.dtype)

    def mvlgamma_(self, p: int) -> Self:
        """Logarithm of the gamma function of ``p`` dimensions, in place."""
        return self._assign(self.mvlgamma(p).node, "mvlgamma_")

    def sinc(self) -> Tensor:
        """sin(pi self) / (pi self), 1 at 0."""
        return self._wrap(self._special("sinc"))

    def sinc_(self) -> Self:
        """sin(pi self) / (pi self), in place."""
        return self._assign(self._special("sinc"), "sinc_")

    arccosh, arccosh_ = acosh, acosh_
    arcsinh, arcsinh_ = asinh, asinh_
    arctanh, arctanh_ = atanh, atanh_

    def logit(self, eps: float | None = None) -> Tensor:
        """log(self / (1 - self)), accurate near 1/2; self is limited to [eps, 1 - eps] before.

        Without ``eps``, NaN outside of [0, 1].
        """
        return self._wrap(pairs.logit(self.node, _eps(eps)))

    def logit_(self, eps: float | None = None) -> Self:
        """log(self / (1 - self)), in place."""
        return self._assign(pairs.logit(self.node, _eps(eps)), "logit_")

    def deg2rad(self) -> Tensor:
        """Radians of degrees."""
        return self._wrap(pairs.scaled(self.node, math.pi / 180.0))

    def deg2rad_(self) -> Self:
        """Radians of degrees, in place."""
        return self._assign(pairs.scaled(self.node, math.pi / 180.0), "deg2rad_")

    def rad2deg(self) -> Tensor:
        """Degrees of radians."""
        return self._wrap(pairs.scaled(self.node, 180.0 / math.pi))

    def rad2deg_(self) -> Self:
        """Degrees of radians, in place."""
        return self._assign(pairs.scaled(self.node, 180.0 / math.pi), "rad2deg_")

    # --- signs ------------------------------------------------------------------------------

    def sgn(self) -> Tensor:
        """-1, 0 or 1; 0 of NaN."""
        return self._wrap(pw.sign(self.node))

    def sgn_(self) -> Self:
        """-1, 0 or 1, in place."""
        return self._assign(pw.sign(self.node), "sgn_")

    def signbit(self) -> Tensor:
        """True where an element is negative, -0 or a NaN of that sign."""
        return self._wrap(signs.signbit(self.node))

    def isposinf(self) -> Tensor:
        """True where an element is infinite and positive."""
        return self._wrap(signs.is_infinity(self.node, True))

    def isneginf(self) -> Tensor:
        """True where an element is infinite and negative."""
        return self._wrap(signs.is_infinity(self.node, False))

    def copysign(self, other: Operand) -> Tensor:
        """|self| with the sign of ``other``, a tensor or a number; -0 and NaN have one, too."""
        return self._wrap(signs.copysign(self.node, self._other("copysign", other)))

    def copysign_(self, other: Operand) -> Self:
        """|self| with the sign of ``other``, in place."""
        value = self._other("copysign_", other)
        return self._assign(signs.copysign(self.node, value), "copysign_")

    def _step(self, function: str, values: Any) -> Node:
        return pairs.heaviside(self.node, node_of(function, "values", 1, values))

    def heaviside(self, values: Tensor) -> Tensor:
        """0 below 0, 1 above, ``values`` (of the same dtype) at 0.

        Raises RuntimeError for another dtype.
        """
        return self._wrap(self._step("heaviside", values))

    def heaviside_(self, values: Tensor) -> Self:
        """0 below 0, 1 above, ``values`` at 0, in place."""
        return self._assign(self._step("heaviside_", values), "heaviside_")

    # --- of two numbers ---------------------------------------------------------------------

    def atan2(self, other: Tensor) -> Tensor:
        """The angle, from -pi to pi, of the point that is ``other`` to the right and self up."""
        return self._wrap(self._two("atan2", "atan2", other))

    def atan2_(self, other: Tensor) -> Self:
        """The angle of the point (other, self), in place."""
        return self._assign(self._two("atan2", "atan2_", other), "atan2_")

    def arctan2(self, other: Tensor) -> Tensor:
        """The angle of the point that is ``other`` to the right and self up."""
        return self._wrap(self._two("atan2", "arctan2", other))

    def arctan2_(self, other: Tensor) -> Self:
        """The angle of the point (other, self), in place."""
        return self._assign(self._two("atan2", "arctan2_", other), "arctan2_")

    def hypot(self, other: Tensor) -> Tensor:
        """sqrt(self**2 + other**2), whose squares may overflow; not of two integers."""
        return self._wrap(self._two_floats("hypot", "hypot", other))

    def hypot_(self, other: Tensor) -> Self:
        """sqrt(self**2 + other**2), in place."""
        return self._assign(self._two_floats("hypot", "hypot_", other), "hypot_")

    def logaddexp(self, other: Tensor) -> Tensor:
        """log(exp(self) + exp(other)), whose powers may overflow; not of two integers."""
        return self._wrap(self._two_floats("logaddexp", "logaddexp", other))

    def logaddexp2(self, other: Tensor) -> Tensor:
        """log2(2**self + 2**other), whose powers may overflow; not of two integers."""
        return self._wrap(self._two_floats("logaddexp2", "logaddexp2", other))

    def nextafter(self, other: Tensor) -> Tensor:
        """The next number from self towards ``other``; not of two integers."""
        return self._wrap(self._two_floats("nextafter", "nextafter", other))

    def nextafter_(self, other: Tensor) -> Self:
        """The next number towards ``other``, in place."""
        return self._assign(self._two_floats("nextafter", "nextafter_", other), "nextafter_")

    def xlogy(self, other: Operand) -> Tensor:
        """self * log(other), 0 where self is 0 (unless ``other`` is NaN)."""
        return self._wrap(pairs.xlogy(self.node, self._other("xlogy", other)))

    def xlogy_(self, other: Operand) -> Self:
        """self * log(other), in place."""
        return self._assign(pairs.xlogy(self.node, self._other("xlogy_", other)), "xlogy_")

    def fmax(self, other: Tensor) -> Tensor:
        """Elementwise larger; NaN only if both are."""
        node = node_of("fmax", "other", 1, other)
        return self._wrap(pairs.known_extreme(self.node, node, lowest=False))

    def fmin(self, other: Tensor) -> Tensor:
        """Elementwise smaller; NaN only if both are."""
        node = node_of("fmin", "other", 1, other)
        return self._wrap(pairs.known_extreme(self.node, node, lowest=True))

    def float_power(self, exponent: Operand) -> Tensor:
        """self ** exponent in float64."""
        value = self._other("float_power", exponent)
        return self._wrap(pairs.float_power(self.node, value))

    def float_power_(self, exponent: Operand) -> Self:
        """self ** exponent, in place; RuntimeError unless self is float64."""
        value = self._other("float_power_", exponent)
        if self.dtype is not dt.float64:
            raise RuntimeError(
                f"the base given to float_power_ has dtype {self.dtype.torch_name} but the "
                "operation's result requires dtype Double"
            )
        return self._assign(pairs.float_power(self.node, value), "float_power_")

    def ldexp(self, other: Tensor) -> Tensor:
        """self * 2**other, also where that power is too large or too small for itself."""
        return self._wrap(pairs.ldexp(self.node, node_of("ldexp", "other", 1, other)))

    def ldexp_(self, other: Tensor) -> Self:
        """self * 2**other, in place."""
        new = pairs.ldexp(self.node, node_of("ldexp_", "other", 1, other))
        if not self.dtype.is_floating_point:
            raise RuntimeError(
                f"ldexp can't be cast to the desired output type {self.dtype.torch_name}"
            )
        return self._assign(new, "ldexp_")
