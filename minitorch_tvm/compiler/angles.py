"""Trigonometric functions of float32 and their inverses, as vector code (see :mod:`.math`)."""

from __future__ import annotations

from ..core.tvm_api import tvm
from .scalars import Expr, Keep, f32, f64, i32, polynomial, select, with_sign

_TURNS = (0xA2F9836, 0xE4E4415, 0x29FC275, 0x7D1F534, 0xDDC0DB6, 0x295993C, 0x439041F)
"""Digits of 2 / pi behind the point, in base 2**28: four times those of turns in a radian."""

_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)  # (sin(x) / x - 1) / x**2 in x**2
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)  # (cos(x) - 1 +
# x**2 / 2) / x**4 in x**2; both to pi / 4
_TANGENT = (  # (tan(x) / x - 1) / x**2 in x**2, to pi / 4: relative error of tan 2e-8
    9.385643588e-3,
    3.119508098e-3,
    2.443039602e-2,
    5.341120733e-2,
    1.33388003e-1,
    3.333315682e-1,
)
_ARCSINE = (  # (asin(x) / x - 1) / x**2 in x**2, to 1/2: relative error of asin 5e-9
    4.21663205e-2,
    2.417950655e-2,
    4.547037792e-2,
    7.495297624e-2,
    1.666675248e-1,
)
_ARCTANGENT = (  # (atan(x) / x - 1) / x**2 in x**2, to tan(pi / 8): relative error of atan 2e-8
    8.053722617e-2,
    -1.387767869e-1,
    1.997771002e-1,
    -3.333294914e-1,
)
QUARTER = 1.57079637050628662  # the nearest float32 to pi / 2
QUARTER_REST = -4.37113882867379e-8


def _quarters(x: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """n and r with x = (4 m + n) pi / 2 + r for some m, and |r| <= pi / 4; n is a small integer.

    As M. Payne and R. Hanek reduce an argument (Radian Reduction for Trigonometric Functions,
    1983), in float64: products of x and a digit have 52 bits, so that whole turns are taken from
    each of them without an error.  Their sum has none that counts: where it is near an integer,
    every sum on the way to it is exact, and the digits end 2**-70 behind the point.
    """
    t = tvm().tirx

    wide = keep(x.astype("float64"))
    turns = []
    for place, digit in enumerate(_TURNS, 1):
        part = keep(wide * f64(digit * 2.0 ** (-28 * place - 2)))
        # x is below 2**128, and its product with a digit so many bits larger than the last one's.
        turns.append(keep(part - t.nearbyint(part)) if 28 * (place - 1) < 126 else part)
    total = turns[0]
    for part in turns[1:]:
        total = total + part
    n = keep(t.nearbyint(total * f64(4.0)))
    rest = turns[0] - n * f64(0.25)
    for part in turns[1:]:
        rest = rest + part
    r = keep((rest * f64(6.283185307179586)).astype("float32"))
    return t.reinterpret("int32", n.astype("float32") + f32(12582912.0)), r


def sine(n: Expr, r: Expr, keep: Keep) -> Expr:
    """sin(n pi / 2 + r) where |r| <= pi / 4, but for the sign of -0."""
    t = tvm().tirx
    n, z = keep(n), keep(r * r)
    odd = keep(polynomial(z, _SINE) * (z * r) + r)
    even = keep((polynomial(z, _COSINE) * z) * z - z * f32(0.5) + f32(1.0))
    size = select(t.bitwise_and(n, i32(1)).equal(i32(0)), odd, even)
    turned = t.shift_left(t.bitwise_and(n, i32(2)), i32(30))
    return t.reinterpret("float32", t.bitwise_xor(t.reinterpret("int32", size), turned))


def sin(x: Expr, keep: Keep) -> Expr:
    """The sine of x, by that or the cosine of what is left of quarters of a turn."""
    return select(x == f32(0.0), x, sine(*_quarters(x, keep), keep))


def cos(x: Expr, keep: Keep) -> Expr:
    """The cosine of x, as :func:`sin`."""
    n, r = _quarters(x, keep)
    return sine(n + i32(1), r, keep)


def cos_turns(x: Expr, keep: Keep) -> Expr:
    """cos(2 pi x), of which quarters are taken without an error; |x| is below 2**20."""
    t = tvm().tirx
    quarters = keep(x * f32(4.0))
    shifted = keep(quarters + f32(12582912.0))
    r = keep((quarters - (shifted - f32(12582912.0))) * f32(1.5707963267948966))
    return sine(t.reinterpret("int32", shifted) + i32(1), r, keep)


def tan(x: Expr, keep: Keep) -> Expr:
    """The tangent of what is left of quarters of a turn, or -1 divided by it."""
    t = tvm().tirx
    n, r = _quarters(x, keep)
    z = keep(r * r)
    near = keep(polynomial(z, _TANGENT) * (z * r) + r)
    odd = t.bitwise_and(n, i32(1)).equal(i32(1))
    value = keep(select(odd, f32(-1.0), near) / select(odd, near, f32(1.0)))
    return select(x == f32(0.0), x, value)


def _arcsine(size: Expr, keep: Keep) -> tuple[Expr, Expr, Expr]:
    """Whether size > 1/2, and u and v with u + v the arcsine of size, or half of its arccosine."""
    t = tvm().tirx
    above = keep(size > f32(0.5))
    # asin(x) = pi / 2 - 2 asin(sqrt((1 - x) / 2))
    z = keep(select(above, (f32(1.0) - size) * f32(0.5), size * size))
    u = keep(select(above, t.sqrt(z), size))
    return above, u, keep(polynomial(z, _ARCSINE) * (z * u))


def asin(x: Expr, keep: Keep) -> Expr:
    """An odd polynomial to 1/2, and above by the root of (1 - x) / 2; NaN beyond 1."""
    above, u, v = _arcsine(keep(tvm().tirx.abs(x)), keep)
    value = keep(u + v)
    far = f32(QUARTER) - (keep(value + value) + f32(-QUARTER_REST))
    return with_sign(select(above, far, value), x)


def acos(x: Expr, keep: Keep) -> Expr:
    """pi / 2 less the arcsine, and where that is near pi / 2 by the same root; NaN beyond 1."""
    above, u, v = _arcsine(keep(tvm().tirx.abs(x)), keep)
    value = keep(u + v)
    twice = keep(value + value)
    negative = x < f32(0.0)
    far = select(negative, f32(2 * QUARTER) - (twice + f32(-2 * QUARTER_REST)), twice)
    # The nearest numbers to pi / 2 and to what is missing there: the sum is rounded once.
    signed = with_sign(value, x)
    return select(above, far, f32(QUARTER) - (signed + f32(-QUARTER_REST)))


def atan(x: Expr, keep: Keep) -> Expr:
    """Of a number to tan(pi / 8) by an odd polynomial, of others by one quotient to such a one."""
    t = tvm().tirx
    size = keep(t.abs(x))
    large, middle = keep(size > f32(2.41421356)), keep(size > f32(0.41421356))
    over = select(large, f32(-1.0), select(middle, size - f32(1.0), size))
    under = select(large, size, select(middle, size + f32(1.0), f32(1.0)))
    u = keep(over / under)
    z = keep(u * u)
    turned = select(large, f32(QUARTER), select(middle, f32(QUARTER / 2), f32(0.0)))
    rest = select(large, f32(QUARTER_REST), select(middle, f32(QUARTER_REST / 2), f32(0.0)))
    return with_sign(turned + ((polynomial(z, _ARCTANGENT) * (z * u) + rest) + u), x)
