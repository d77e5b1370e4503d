"""Free functions of :mod:`.special` with PyTorch's names."""

from __future__ import annotations

from typing import Any

from ..ops import pairs
from .core import input_of
from .elementwise_functions import operands, pair
from .tensor import Tensor

# --- of one number --------------------------------------------------------------------------------


def acosh(input: Tensor) -> Tensor:
    """Inverse hyperbolic cosine; NaN below 1."""
    return input_of("acosh", input).acosh()


def asinh(input: Tensor) -> Tensor:
    """Inverse hyperbolic sine."""
    return input_of("asinh", input).asinh()


def atanh(input: Tensor) -> Tensor:
    """Inverse hyperbolic tangent; NaN outside of [-1, 1]."""
    return input_of("atanh", input).atanh()


def arccosh(input: Tensor) -> Tensor:
    """Inverse hyperbolic cosine; NaN below 1."""
    return input_of("arccosh", input).arccosh()


def arcsinh(input: Tensor) -> Tensor:
    """Inverse hyperbolic sine."""
    return input_of("arcsinh", input).arcsinh()


def arctanh(input: Tensor) -> Tensor:
    """Inverse hyperbolic tangent; NaN outside of [-1, 1]."""
    return input_of("arctanh", input).arctanh()


def erfc(input: Tensor) -> Tensor:
    """1 - erf(input), accurate where that is small.

    >>> import minitorch_tvm as mt
    >>> mt.erfc(mt.tensor([0.0, 1.0, 9.0]))
    tensor([1.0000e+00, 1.5730e-01, 4.1370e-37])
    """
    return input_of("erfc", input).erfc()


def erfinv(input: Tensor) -> Tensor:
    """The number of which input is the error function; NaN outside of [-1, 1].

    >>> import minitorch_tvm as mt
    >>> mt.erfinv(mt.erf(mt.tensor([0.5, -1.5])))
    tensor([ 0.5000, -1.5000])
    """
    return input_of("erfinv", input).erfinv()


def lgamma(input: Tensor) -> Tensor:
    """Logarithm of the absolute value of the gamma function; infinite at its poles.

    >>> import minitorch_tvm as mt
    >>> mt.lgamma(mt.tensor([0.5, 5.0, -1.0]))
    tensor([0.5724, 3.1781,    inf])
    """
    return input_of("lgamma", input).lgamma()


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """Logarithm of the gamma function of ``p`` dimensions, see :meth:`Tensor.mvlgamma`."""
    return input_of("mvlgamma", input).mvlgamma(p)


def digamma(input: Tensor) -> Tensor:
    """Derivative of :func:`lgamma`; NaN at negative integers.

    >>> import minitorch_tvm as mt
    >>> mt.digamma(mt.tensor([1.0, 0.5]))
    tensor([-0.5772, -1.9635])
    """
    return input_of("digamma", input).digamma()


def sinc(input: Tensor) -> Tensor:
    """sin(pi input) / (pi input), 1 at 0.

    >>> import minitorch_tvm as mt
    >>> mt.sinc(mt.tensor([0.0, 0.5, 1.5]))
    tensor([ 1.0000,  0.6366, -0.2122])
    """
    return input_of("sinc", input).sinc()


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(input / (1 - input)), of input limited to [eps, 1 - eps]; NaN outside of [0, 1].

    >>> import minitorch_tvm as mt
    >>> mt.logit(mt.tensor([0.25, 0.5, 1.0])), mt.logit(mt.tensor([0.0, 1.0]), eps=0.25)
    (tensor([-1.0986,  0.0000,     inf]), tensor([-1.0986,  1.0986]))
    """
    return input_of("logit", input).logit(eps)


def deg2rad(input: Tensor) -> Tensor:
    """Radians of degrees.

    >>> import minitorch_tvm as mt
    >>> mt.deg2rad(mt.tensor([180, 90]))
    tensor([3.1416, 1.5708])
    """
    return input_of("deg2rad", input).deg2rad()


def rad2deg(input: Tensor) -> Tensor:
    """Degrees of radians."""
    return input_of("rad2deg", input).rad2deg()


# --- signs ----------------------------------------------------------------------------------------


def sgn(input: Tensor) -> Tensor:
    """-1, 0 or 1; 0 of NaN."""
    return input_of("sgn", input).sgn()


def signbit(input: Tensor) -> Tensor:
    """True where an element is negative, -0 or a NaN of that sign.

    >>> import minitorch_tvm as mt
    >>> mt.signbit(mt.tensor([-0.0, 0.0, -1.0]))
    tensor([ True, False,  True])
    """
    return input_of("signbit", input).signbit()


def isposinf(input: Tensor) -> Tensor:
    """True where an element is infinite and positive."""
    return input_of("isposinf", input).isposinf()


def isneginf(input: Tensor) -> Tensor:
    """True where an element is infinite and negative."""
    return input_of("isneginf", input).isneginf()


def copysign(input: Tensor, other: Any) -> Tensor:
    """|input| with the sign of ``other``, a tensor or a number.

    >>> import minitorch_tvm as mt
    >>> mt.copysign(mt.tensor([1.0, -2.0]), mt.tensor([-0.0, 3.0]))
    tensor([-1.,  2.])
    """
    return pair("copysign", input, other).copysign(other)


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below 0, 1 above, ``values`` (of the same dtype) at 0.

    >>> import minitorch_tvm as mt
    >>> mt.heaviside(mt.tensor([-1.5, 0.0, 2.0]), mt.tensor(0.5))
    tensor([0.0000, 0.5000, 1.0000])
    """
    return input_of("heaviside", input).heaviside(values)


# --- of two numbers -------------------------------------------------------------------------------


def atan2(input: Tensor, other: Tensor) -> Tensor:
    """The angle, from -pi to pi, of the point that is ``other`` to the right and input up.

    >>> import minitorch_tvm as mt
    >>> mt.atan2(mt.tensor([1.0, 1.0, -0.0]), mt.tensor([1.0, -1.0, -1.0]))
    tensor([ 0.7854,  2.3562, -3.1416])
    """
    return input_of("atan2", input).atan2(other)


def arctan2(input: Tensor, other: Tensor) -> Tensor:
    """The angle of the point that is ``other`` to the right and input up."""
    return input_of("arctan2", input).arctan2(other)


def hypot(input: Tensor, other: Tensor) -> Tensor:
    """sqrt(input**2 + other**2), whose squares may overflow; not of two integers.

    >>> import minitorch_tvm as mt
    >>> mt.hypot(mt.tensor([3e30]), mt.tensor([4e30]))
    tensor([5.0000e+30])
    """
    return input_of("hypot", input).hypot(other)


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """log(exp(input) + exp(other)), whose powers may overflow; not of two integers.

    >>> import minitorch_tvm as mt
    >>> mt.logaddexp(mt.tensor([-200.0, 200.0]), mt.tensor([-200.0, 0.0]))
    tensor([-199.3069,  200.0000])
    """
    return input_of("logaddexp", input).logaddexp(other)


def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """log2(2**input + 2**other), whose powers may overflow; not of two integers."""
    return input_of("logaddexp2", input).logaddexp2(other)


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next number from input towards ``other``; not of two integers.

    >>> import minitorch_tvm as mt
    >>> mt.nextafter(mt.tensor([1.0]), mt.tensor([2.0])) - 1
    tensor([1.1921e-07])
    """
    return input_of("nextafter", input).nextafter(other)


def xlogy(input: Any, other: Any) -> Tensor:
    """input * log(other), 0 where input is 0 (unless ``other`` is NaN); one may be a number.

    >>> import minitorch_tvm as mt
    >>> mt.xlogy(mt.tensor([0.0, 2.0]), mt.tensor([0.0, 1.0]))
    tensor([0., 0.])
    """
    return Tensor._wrap(pairs.xlogy(*operands("xlogy", input, other)))


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """Elementwise larger; NaN only if both are.

    >>> import minitorch_tvm as mt
    >>> mt.fmax(mt.tensor([1.0, float('nan')]), mt.tensor([3.0, 2.0]))
    tensor([3., 2.])
    """
    return input_of("fmax", input).fmax(other)


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """Elementwise smaller; NaN only if both are."""
    return input_of("fmin", input).fmin(other)


def float_power(input: Any, exponent: Any) -> Tensor:
    """input ** exponent in float64; one of them may be a number.

    >>> import minitorch_tvm as mt
    >>> mt.float_power(mt.tensor([2, 3]), -1)
    tensor([0.5000, 0.3333], dtype=mt.float64)
    """
    return Tensor._wrap(pairs.float_power(*operands("float_power", input, exponent)))


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input * 2**other, also where that power is too large or too small for itself.

    >>> import minitorch_tvm as mt
    >>> mt.ldexp(mt.tensor([1.0, 1e-10]), mt.tensor([3, 130]))
    tensor([8.0000e+00, 1.3611e+29])
    """
    return input_of("ldexp", input).ldexp(other)
