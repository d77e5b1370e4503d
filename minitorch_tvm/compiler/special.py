"""Inverse hyperbolic and error functions, and functions of two numbers, as vector code.

What is float32 is computed in float64 where a sum loses digits or a square overflows.  The
polynomials are minimax fits of relative errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..core.tvm_api import tvm
from . import doubles
from .angles import QUARTER, QUARTER_REST, atan, sine
from .math import log, log1p
from .scalars import (
    Expr,
    Keep,
    bits_of,
    f32,
    f64,
    i32,
    in_doubles,
    is_nan,
    number_of,
    polynomial,
    select,
    with_sign,
)

_ERFCX = (  # e**(x**2) erfc(x) in (x - 3) / (x + 3), to x = 10.3: relative error 2e-9
    5.59683050807e-05,
    2.90013683358e-05,
    -0.000594517331529,
    0.000715673171129,
    0.00426883444456,
    -0.0243942238329,
    0.0716658724555,
    -0.150115782079,
    0.245603797057,
    -0.326233563826,
    0.179001151269,
)
_CENTRAL = (  # erfinv(x) / x in -log(1 - x**2) - 3.125, to 6.25: relative error 4e-9
    1.80955770629e-11,
    6.72974106119e-10,
    -5.08514760295e-09,
    -2.50317731176e-08,
    4.30221437888e-07,
    -1.38529383509e-06,
    -1.39059142533e-05,
    0.000186778011136,
    -0.000740667139911,
    -0.00603370596095,
    0.240158166867,
    1.65365456716,
)
_TAIL = (  # the same in the root of that logarithm, less 4, to 6.1: relative error 4e-8
    3.83249316782e-07,
    -6.31147515049e-07,
    -7.36451055151e-06,
    2.92042361976e-05,
    -4.15612798548e-05,
    4.20211739889e-05,
    -0.000105421213789,
    0.000329443354487,
    -0.000875155504542,
    0.00125770326519,
    1.00949405134,
    3.83978389603,
)
_FARTHEST = 10.3  # beyond, erfc is less than half of the smallest float32

_LOG2 = math.log(2.0)

Call = Callable[..., Expr]
"""A function of the C library, by its name, of operands."""


# --- inverse hyperbolic functions ---------------------------------------------------------------

_LARGE = 1e9  # from there on, a square and one more are that square


def asinh(x: Expr, keep: Keep) -> Expr:
    """log(1 + |x| + (sqrt(x**2 + 1) - 1)), whose last two terms are x**2 / (1 + sqrt(x**2 + 1))."""
    t = tvm().tirx
    size = keep(t.abs(x))
    large = keep(size > f32(_LARGE))
    square = keep(select(large, f32(0.0), size * size))
    more = square / (t.sqrt(square + f32(1.0)) + f32(1.0))
    value = log1p(keep(size + more), keep) + select(large, f32(_LOG2), f32(0.0))
    return with_sign(value, x)


def acosh(x: Expr, keep: Keep) -> Expr:
    """log(1 + u + sqrt(u (x + 1))) where u = x - 1; NaN below 1."""
    t = tvm().tirx
    large = keep(x > f32(_LARGE))
    u = keep(x - f32(1.0))
    root = t.sqrt(keep(select(large, f32(0.0), u * (x + f32(1.0)))))
    value = log1p(keep(u + root), keep) + select(large, f32(_LOG2), f32(0.0))
    return select(x < f32(1.0), f32(float("nan")), value)


def atanh(x: Expr, keep: Keep) -> Expr:
    """Half of log(1 + 2 |x| / (1 - |x|)); NaN beyond 1."""
    size = keep(tvm().tirx.abs(x))
    quotient = keep((size + size) / (f32(1.0) - size))
    return with_sign(log1p(quotient, keep) * f32(0.5), x)


def logit(x: Expr, keep: Keep) -> Expr:
    """log(x / (1 - x)), which is log(1 + (2 x - 1) / (1 - x)); NaN outside of [0, 1]."""
    rest = keep(f32(1.0) - x)
    near = log1p(keep(((x + x) - f32(1.0)) / rest), keep)
    return select(x < f32(0.25), log(keep(x / rest), keep), near)


# --- error functions ----------------------------------------------------------------------------


def _erfc(x: Expr, keep: Keep) -> Expr:
    """e**(-x**2) times a polynomial, and 2 less that of a negative number."""
    t = tvm().tirx
    size = keep(t.min(f64(_FARTHEST), t.abs(x)))
    shifted = keep((size - f64(3.0)) / (size + f64(3.0)))
    value = keep(doubles.exp(keep(-(size * size)), keep) * polynomial(shifted, _ERFCX))
    return select(x < f64(0.0), f64(2.0) - value, value)


erfc = in_doubles(_erfc)


def _erfinv(x: Expr, keep: Keep) -> Expr:
    """x times a polynomial in w = -log(1 - x**2), or in its root where that is large.

    The idea is M. Giles's (Approximating the erfinv function, GPU Computing Gems, 2011).
    """
    t = tvm().tirx
    one, size = f64(1.0), keep(t.abs(x))
    w = keep(-doubles.log(keep((one - size) * (one + size)), keep))
    central = keep(w < f64(6.25))
    u = keep(select(central, w - f64(3.125), t.sqrt(keep(t.max(w, f64(0.0)))) - f64(4.0)))
    value = keep(select(central, polynomial(u, _CENTRAL), polynomial(u, _TAIL)) * x)
    ends = with_sign(t.infinity("float64"), x)
    inside = select(size == one, ends, value)
    return select(size > one, f64(float("nan")), inside)


erfinv = in_doubles(_erfinv)


def erfinv_of_double(x: Expr, call: Call, keep: Keep) -> Expr:
    """As that of float32, and a step of Halley's method."""
    t = tvm().tirx
    near, size = keep(t.abs(_erfinv(x, keep))), keep(t.abs(x))
    below, above = call("erf", near) - size, (f64(1.0) - size) - call("erfc", near)
    off = select(size < f64(0.5), below, above)
    slope = doubles.exp(keep(-(near * near)), keep) * f64(2.0 / math.sqrt(math.pi))
    step = keep(off / slope)
    better = near - step / (near * step + f64(1.0))
    return with_sign(select(size < f64(1.0), better, near), x)


def logit_of_double(x: Expr, call: Call, keep: Keep) -> Expr:
    """As that of float32."""
    rest = keep(f64(1.0) - x)
    near = call("log1p", ((x + x) - f64(1.0)) / rest)
    return select(x < f64(0.25), doubles.log(keep(x / rest), keep), near)


# --- sin(pi x) / (pi x) -------------------------------------------------------------------------


def _half_turns(x: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """n and r with x = n / 2 + r + 2 m for some m, |r| <= 1/4, without an error."""
    t = tvm().tirx
    turned = keep(x - f32(2.0) * t.nearbyint(x * f32(0.5)))
    n = keep(t.nearbyint(turned + turned))
    return t.reinterpret("int32", n + f32(12582912.0)), keep(turned - n * f32(0.5))


def sinc(x: Expr, keep: Keep) -> Expr:
    """sin(pi x) / (pi x), of what is left of quarters of a turn; 1 at 0."""
    n, r = _half_turns(x, keep)
    value = sine(n, keep(r * f32(math.pi)), keep) / (x * f32(math.pi))
    return select(x == f32(0.0), f32(1.0), value)


def _slope_terms(count: int) -> list[float]:
    """Coefficients of Taylor's series of the slope over x, in x**2, the last one first."""
    return [
        (-1) ** k * math.pi ** (2 * k) * 2 * k / math.factorial(2 * k + 1)
        for k in range(count, 0, -1)
    ]


def sinc_slope(x: Expr, keep: Keep) -> Expr:
    """(cos(pi x) - sinc(x)) / x, by its series to 1/2."""
    t = tvm().tirx
    n, r = _half_turns(x, keep)
    n, angle = keep(n), keep(r * f32(math.pi))
    ratio = sine(n, angle, keep) / (x * f32(math.pi))
    far = (sine(n + i32(1), angle, keep) - ratio) / x
    return select(t.abs(x) < f32(0.5), polynomial(keep(x * x), _slope_terms(6)) * x, far)


def _turns_of_double(x: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """pi r and the sign of cos(pi n), of x = n + r and |r| <= 1/2."""
    t = tvm().tirx
    n = keep(t.nearbyint(x))
    odd = t.abs(n - f64(2.0) * t.nearbyint(n * f64(0.5)))
    return keep((x - n) * f64(math.pi)), keep(f64(1.0) - f64(2.0) * odd)


def sinc_of_double(x: Expr, call: Call, keep: Keep) -> Expr:
    """As that of float32."""
    angle, sign = _turns_of_double(x, keep)
    value = call("sin", angle) * sign / (x * f64(math.pi))
    return select(x == f64(0.0), f64(1.0), value)


def sinc_slope_of_double(x: Expr, call: Call, keep: Keep) -> Expr:
    """As that of float32."""
    angle, sign = _turns_of_double(x, keep)
    ratio = call("sin", angle) / (x * f64(math.pi))
    far = (call("cos", angle) - ratio) * sign / x
    near = polynomial(keep(x * x), _slope_terms(13)) * x
    return select(tvm().tirx.abs(x) < f64(0.5), near, far)


# --- functions of two numbers -------------------------------------------------------------------


def atan2(y: Expr, x: Expr, keep: Keep) -> Expr:
    """The arc tangent of the smaller over the larger, from the axis that is next."""
    t = tvm().tirx
    height, width = keep(t.abs(y)), keep(t.abs(x))
    steep = keep(height > width)
    low, high = keep(select(steep, width, height)), keep(select(steep, height, width))
    even = select(low == f32(0.0), low, f32(1.0))  # also of two infinities
    angle = keep(atan(keep(select(low == high, even, low / high)), keep))
    angle = keep(select(steep, f32(QUARTER) - (angle + f32(-QUARTER_REST)), angle))
    left = f32(2 * QUARTER) - (angle + f32(-2 * QUARTER_REST))
    return with_sign(select(t.reinterpret("int32", x) < i32(0), left, angle), y)


def _hypot(x: Expr, y: Expr, keep: Keep) -> Expr:
    """The root of x**2 + y**2, which float64 has room for."""
    t = tvm().tirx
    infinity = t.infinity("float64")
    either = t.any(t.abs(x) == infinity, t.abs(y) == infinity)  # the other one may be NaN
    return select(either, infinity, t.sqrt(keep(x * x) + y * y))


hypot = in_doubles(_hypot)


def _log_of_sum(x: Expr, y: Expr, scale: float, keep: Keep) -> Expr:
    """The larger, plus log(1 + exp(-|x - y|)), of a logarithm that is ``scale`` times larger."""
    t = tvm().tirx
    larger = select(x > y, x, y)
    apart = select(x == y, f64(0.0), t.abs(x - y))  # also of two infinities
    e = keep(doubles.exp(keep(apart * f64(-scale)), keep))
    u = keep(e + f64(1.0))
    more = doubles.log(u, keep) * f64(1.0 / scale) + (e - (u - f64(1.0))) / (u * f64(scale))
    return select(t.any(is_nan(x), is_nan(y)), x + y, larger + more)


def logaddexp_of_double(x: Expr, y: Expr, keep: Keep) -> Expr:
    """log(e**x + e**y)."""
    return _log_of_sum(x, y, 1.0, keep)


def logaddexp2_of_double(x: Expr, y: Expr, keep: Keep) -> Expr:
    """log2(2**x + 2**y)."""
    return _log_of_sum(x, y, _LOG2, keep)


logaddexp = in_doubles(logaddexp_of_double)
logaddexp2 = in_doubles(logaddexp2_of_double)


def nextafter(x: Expr, y: Expr, keep: Keep) -> Expr:
    """x moved by one in its bits, away from 0 or towards it; from 0, the smallest number."""
    t, dtype = tvm().tirx, str(x.ty.dtype)
    kind, whole = bits_of(dtype)
    zero, one = number_of(dtype)(0.0), whole(1)
    outwards = t.any(t.all(y > x, x > zero), t.all(y < x, x < zero))
    bits = t.reinterpret(kind, x)
    moved = t.reinterpret(dtype, keep(select(outwards, bits + one, bits - one)))
    least = with_sign(t.reinterpret(dtype, one), y)
    value = select(x == zero, least, moved)
    value = select(x == y, y, value)
    return select(t.any(is_nan(x), is_nan(y)), x + y, value)
