"""Powers and logarithms of other bases than e, and hyperbolic functions, as vector code of float32.

As :mod:`.math`, of which they are made.
"""

from __future__ import annotations

from ..core.tvm_api import tvm
from .math import log_rest, mantissa, power_of_e, scaled, two_powers
from .scalars import (
    Expr,
    Keep,
    f32,
    f64,
    i32,
    is_nan,
    nearest,
    of_positive,
    polynomial,
    select,
    times_power,
    with_sign,
)

_SINH = (2.037219427e-4, 8.330283720e-3, 1.666671602e-1)  # (sinh(x) / x - 1) / x**2 in x**2, to 1:
# relative error of sinh 2e-8

_LOG2 = (  # log2((1 + s) / (1 - s)) / s in s**2, to sqrt(2): relative error 4e-12
    0.34073010740623475,
    0.41167271871438355,
    0.57708358497640573,
    0.96179667334168198,
    2.8853900817900863,
)
_EXP2 = (  # 2**r to |r| <= 1/2: relative error 2e-9
    1.534581216131163e-4,
    1.3399931177239738e-3,
    9.6184889563311816e-3,
    5.5503287771053248e-2,
    0.24022646890645521,
    0.69314720573719575,
    1.0000000005541648,
)


def exp2(x: Expr, keep: Keep) -> Expr:
    """2**x = 2**n e**(r ln 2), where n is the integer nearest to x and r the rest."""
    t = tvm().tirx
    y = keep(t.max(x, f32(-151.0)))
    n, power = nearest(y, keep)
    p = keep(power_of_e(keep((y - n) * f32(0.693147180559945309))))
    beyond = t.Not(x < f32(128.0))  # or NaN
    return select(beyond, x + t.infinity("float32"), scaled(p, n, power))


def log2(x: Expr, keep: Keep) -> Expr:
    """The exponent of x, exactly, and log2(e) = 1 + 0.44 times the logarithm of the rest."""
    m, e = mantissa(x, keep)
    z = keep(m * m)
    y = keep(log_rest(m, z) - z * f32(0.5))
    part = f32(0.44269504088896340735992)
    return of_positive(x, y * part + m * part + y + m + e)


def log10(x: Expr, keep: Keep) -> Expr:
    """As :func:`log2`, with the leading digits of constants apart from the others."""
    m, e = mantissa(x, keep)
    z = keep(m * m)
    y = keep(log_rest(m, z) - z * f32(0.5))
    low = (m + y) * f32(7.00731903251827651129e-4) + e * f32(2.48745663981195213739e-4)
    high = y * f32(0.43359375) + low + m * f32(0.43359375)
    return of_positive(x, high + e * f32(0.30078125))


def _halves(x: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """e**|x| / 2 and e**-|x| / 2; the first is infinite beyond 89.4."""
    t = tvm().tirx
    size = keep(t.abs(x))
    _, power, p = two_powers(keep(t.min(size, f32(89.5))), keep)
    finite = times_power(p, power - i32(1 << 23))
    half = keep(select(size <= f32(89.4159851), finite, size + t.infinity("float32")))
    return half, keep(f32(0.25) / half)


def sinh(x: Expr, keep: Keep) -> Expr:
    """An odd polynomial to 1, half of e**|x| - e**-|x| above."""
    half, other = _halves(x, keep)
    z = keep(x * x)
    near = select(x == f32(0.0), x, polynomial(z, _SINH) * (z * x) + x)
    return select(tvm().tirx.abs(x) < f32(1.0), near, with_sign(half - other, x))


def cosh(x: Expr, keep: Keep) -> Expr:
    """Half of e**|x| + e**-|x|."""
    half, other = _halves(x, keep)
    return half + other


def power(x: Expr, y: Expr, keep: Keep) -> Expr:
    """x**y = 2**(y log2 |x|), in float64, which is rounded once; and C's rules for what is special.

    log2 of 1 + m is made of s = m / (2 + m), so that its relative error is as small near 1, where y
    may be large.
    """
    t = tvm().tirx

    zero, one, infinity = f32(0.0), f32(1.0), t.infinity("float32")
    size = keep(t.abs(x))
    m, e = mantissa(size, keep)
    wide = keep(m.astype("float64"))
    s = keep(wide / (wide + f64(2.0)))
    logarithm = polynomial(keep(s * s), _LOG2) * s + e.astype("float64")
    exponent = keep(y.astype("float64") * logarithm)
    # What is beyond becomes 0 or infinite where it is made a float32.
    inside = keep(t.max(t.min(exponent, f64(200.0)), f64(-200.0)))
    n, raised = nearest(inside, keep)
    p = keep(polynomial(keep(inside - n), _EXP2))
    value = keep(times_power(p, raised).astype("float32"))

    # Of 0 and infinity, which have no such logarithm, and of NaN.
    rising = y > zero
    end = select(rising, size, select(size == zero, infinity, zero))
    special = t.any(size == zero, size == infinity)
    value = select(special, end, value)
    value = select(t.any(is_nan(x), is_nan(y)), x + y, value)
    whole = keep(t.trunc(y))
    half = keep(whole * f32(0.5))
    integer = keep(t.EQ(whole, y))
    odd = t.all(integer, t.Not(t.EQ(t.trunc(half), half)))
    value = select(size == one, select(is_nan(y), y, one), value)
    negative = t.reinterpret("int32", x) < i32(0)
    value = select(t.all(negative, odd), -value, value)
    outside = t.all(x < zero, size < infinity, t.Not(integer))
    value = select(outside, f32(float("nan")), value)
    return select(t.any(y == zero, x == one), one, value)
