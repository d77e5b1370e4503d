"""Vectorisable elementary functions for float32.

TVM lowers exp, log and tanh to one libm call per element; the expressions here are plain
arithmetic, which LLVM turns into vector code.  Each stays within 4 ulp over the whole range,
denormals included, and keeps NaN and infinities.  Reductions of exp, log and tanh, and coefficients
of the latter two, follow S. L. Moshier's Cephes library (expf.c, logf.c, tanhf.c).  float64 goes to
libm, which has the same bound; so do sin, cos, pow and what is not here of both types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.tvm_api import tvm
from .loops import is_nan

Expr = Any
Keep = Callable[[Expr], Expr]


_EXP = (  # (e**r - 1 - r) / r**2, fitted to |r| <= ln 2 / 2: relative error of e**r 4e-9
    1.381453942e-3,
    8.368745446e-3,
    4.166838899e-2,
    1.666652113e-1,
    4.999999404e-1,
)

_ERF_BELOW_ONE = (  # erf(x) / x in x**2: relative error 5e-8
    -5.561852595e-4,
    4.899643827e-3,
    -2.669508383e-2,
    1.127957627e-1,
    -3.761224747e-1,
    1.128379107,
)

_ERFC = (  # in |x| - 2.46: absolute error 3e-8, half a unit of the last place of erf
    9.124463759e-6,
    -2.542017319e-5,
    -5.166466508e-5,
    3.016738046e-4,
    -3.911368258e-4,
    -4.621639091e-4,
    2.96351593e-3,
    -6.797656417e-3,
    9.904822335e-3,
    -9.83299315e-3,
    6.535762921e-3,
    -2.656192984e-3,
    5.033266498e-4,
)

_TWO_POWER = (  # 2**r, fitted to |r| <= 1/2: relative error 9e-8
    1.326473602e-3,
    9.671515848e-3,
    5.550733752e-2,
    2.402224204e-1,
    6.931469776e-1,
    1.0,
)

_BEND = 0.315
_TAIL = (  # in u = x / (1 + _BEND x): e**(x**2 / 2) times the normal distribution at -x: absolute
    # error of the latter 1.4e-8
    4.192801339e-4,
    -1.320812491e-3,
    -1.501784333e-2,
    1.243232386e-1,
    -3.989416059e-1,
    0.5,
)
_FARTHEST = 12.64  # beyond, the normal distribution is less than 1e-36 from 0 or 1


_TURNS = (0xA2F9836, 0xE4E4415, 0x29FC275, 0x7D1F534, 0xDDC0DB6, 0x295993C, 0x439041F)
"""Digits of 2 / pi behind the point, in base 2**28: four times those of turns in a radian."""

_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)  # (sin(x) / x - 1) / x**2 in x**2
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)  # (cos(x) - 1 +
# x**2 / 2) / x**4 in x**2; both to pi / 4


def _f(value: float) -> Expr:
    return tvm().tirx.const(value, "float32")


def _i(value: int) -> Expr:
    return tvm().tirx.const(value, "int32")


def _select(condition: Expr, a: Expr, b: Expr) -> Expr:
    return tvm().tirx.Select(condition, a, b)


def _with_sign(size: Expr, x: Expr) -> Expr:
    """A number that is not negative with the sign of another."""
    t = tvm().tirx
    sign = t.bitwise_and(t.reinterpret("int32", x), _i(-(1 << 31)))
    return t.reinterpret("float32", t.bitwise_or(t.reinterpret("int32", size), sign))


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's scheme, highest power first."""
    y = _f(coefficients[0])
    for c in coefficients[1:]:
        y = y * x + _f(c)
    return y


def _nearest(y: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """The integer n that is nearest to y, and what to add to a number's bits to multiply by 2**n.

    Adding 1.5 * 2**23 leaves n in the lowest bits of the sum, beside bits that a shift by 23 drops.
    """
    t = tvm().tirx
    magic = _f(12582912.0)
    shifted = keep(y + magic)
    return keep(shifted - magic), keep(t.shift_left(t.reinterpret("int32", shifted), _i(23)))


def _times(p: Expr, power: Expr) -> Expr:
    """p 2**n, of such a power."""
    t = tvm().tirx
    return t.reinterpret("float32", t.reinterpret("int32", p) + power)


def _two_powers(y: Expr, keep: Keep) -> tuple[Expr, Expr, Expr]:
    """e**y = p 2**n: n, what to add to p's bits, and p."""
    n, power = _nearest(y * _f(1.44269504088896341), keep)
    r = keep((y - n * _f(0.693359375)) - n * _f(-2.12194440e-4))
    return n, power, keep(_polynomial(r, [*_EXP, 1.0, 1.0]))


def exp(x: Expr, keep: Keep) -> Expr:
    """e**x: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial in r; n is added to its exponent."""
    t = tvm().tirx
    n, power, p = _two_powers(keep(t.max(x, _f(-104.0))), keep)
    # Processors take some hundred cycles to multiply into a denormal number, whose bits are the
    # nearest integer to p 2**(n + 149).
    scale = t.reinterpret("float32", power + _i(((149 + 127) << 23) - (1 << 32)))
    units = p * scale + _f(0.5)  # anything where n is larger
    denormal = n < _f(-125.0)
    bits = _select(denormal, units.astype("int32"), t.reinterpret("int32", p) + power)
    # Above the largest x whose power is finite, and for NaN.
    beyond = t.Not(x <= _f(88.7228317))
    return _select(beyond, x + t.infinity("float32"), t.reinterpret("float32", bits))


def _exp_between(x: Expr, keep: Keep) -> Expr:
    """e**x where -87 <= x <= 88, and some number elsewhere: seven instructions less than exp."""
    _, power, p = _two_powers(x, keep)
    return _times(p, power)


def expm1(x: Expr, keep: Keep) -> Expr:
    """e**x - 1 = 2**n (e**r - 1) + (2**n - 1), with r and n as exp has them."""
    t = tvm().tirx
    y = keep(t.min(t.max(x, _f(-30.0)), _f(88.7228317)))
    n, power = _nearest(y * _f(1.44269504088896341), keep)
    r = keep((y - n * _f(0.693359375)) - n * _f(-2.12194440e-4))
    near = keep(keep(r * r) * _polynomial(r, _EXP) + r)
    # 2**128 is too large, half of it is not.
    half = keep(t.reinterpret("float32", power + _i(126 << 23)))
    value = keep(near * half + (half - _f(0.5)))
    beyond = t.Not(x <= _f(88.7228317))  # or NaN
    finite = _select(x == _f(0.0), x, value + value)  # the sum would lose the sign of -0
    return _select(beyond, x + t.infinity("float32"), finite)


def log1p(x: Expr, keep: Keep) -> Expr:
    """The logarithm of 1 + x as it is rounded, and what is missing to 1 + x divided by that."""
    t = tvm().tirx
    u = keep(x + _f(1.0))
    rounded = keep(log(u, keep))
    missing = keep(x - keep(u - _f(1.0)))
    inside = t.all(u > _f(0.0), u < t.infinity("float32"))
    value = _select(inside, rounded + missing / u, rounded)
    return _select(x == _f(0.0), x, value)


def fmod(x: Expr, y: Expr, beyond: Expr, keep: Keep) -> Expr:
    """What is left of x by y, exactly; ``beyond`` is that where the quotient is large, or none.

    In float64 the product of y and a whole quotient below 2**28 is exact, and so is the difference.
    A quotient that is no integer is 2**-25 or more away from the next, too far to be rounded to it.
    """
    t = tvm().tirx
    dividend, divisor = keep(x.astype("float64")), keep(y.astype("float64"))
    ratio = keep(dividend / divisor)
    rest = keep(dividend - keep(t.trunc(ratio)) * divisor)
    near = keep(_with_sign(t.abs(rest).astype("float32"), x))
    small = t.abs(ratio) < t.const(float(1 << 28), "float64")
    finite = t.abs(divisor) < t.infinity("float64")
    return t.if_then_else(t.all(small, finite), near, beyond)


def log(x: Expr, keep: Keep) -> Expr:
    """Natural logarithm: x = m 2**e with m in [sqrt(1/2), sqrt(2)), a polynomial in m - 1."""
    t = tvm().tirx
    tiny = x < _f(1.17549435e-38)
    scaled = keep(_select(tiny, x * _f(8388608.0), x))
    bits = keep(t.reinterpret("int32", scaled))
    exponent = t.shift_right(bits, _i(23)) - _i(126) - _select(tiny, _i(23), _i(0))
    mantissa = keep(
        t.reinterpret("float32", t.bitwise_or(t.bitwise_and(bits, _i(0x7FFFFF)), _i(0x3F000000)))
    )
    low = keep(mantissa < _f(0.707106781186547524))
    e = keep((exponent - _select(low, _i(1), _i(0))).astype("float32"))
    m = keep(_select(low, mantissa + mantissa, mantissa) - _f(1.0))
    z = keep(m * m)
    p = _polynomial(
        m,
        [
            7.0376836292e-2,
            -1.1514610310e-1,
            1.1676998740e-1,
            -1.2420140846e-1,
            1.4249322787e-1,
            -1.6668057665e-1,
            2.0000714765e-1,
            -2.4999993993e-1,
            3.3333331174e-1,
        ],
    )
    y = (p * m) * z + e * _f(-2.12194440e-4) - z * _f(0.5)
    result = keep(m + y + e * _f(0.693359375))
    result = _select(x == _f(0.0), -t.infinity("float32"), result)
    bad = _select(x < _f(0.0), _f(float("nan")), result)
    return _select(t.any(is_nan(x), x == t.infinity("float32")), x, bad)


def _quarters(x: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """n and r with x = (4 m + n) pi / 2 + r for some m, and |r| <= pi / 4; n is a small integer.

    As M. Payne and R. Hanek reduce an argument (Radian Reduction for Trigonometric Functions,
    1983), in float64: products of x and a digit have 52 bits, so that whole turns are taken from
    each of them without an error.  Their sum has none that counts: where it is near an integer,
    every sum on the way to it is exact, and the digits end 2**-70 behind the point.
    """
    t = tvm().tirx

    def number(value: float) -> Expr:
        return t.const(value, "float64")

    wide = keep(x.astype("float64"))
    turns = []
    for place, digit in enumerate(_TURNS, 1):
        part = keep(wide * number(digit * 2.0 ** (-28 * place - 2)))
        # x is below 2**128, and its product with a digit so many bits larger than the last one's.
        turns.append(keep(part - t.nearbyint(part)) if 28 * (place - 1) < 126 else part)
    total = turns[0]
    for part in turns[1:]:
        total = total + part
    n = keep(t.nearbyint(total * number(4.0)))
    rest = turns[0] - n * number(0.25)
    for part in turns[1:]:
        rest = rest + part
    r = keep((rest * number(6.283185307179586)).astype("float32"))
    return t.reinterpret("int32", n.astype("float32") + _f(12582912.0)), r


def _sine(n: Expr, r: Expr, keep: Keep) -> Expr:
    """sin(n pi / 2 + r) where |r| <= pi / 4, but for the sign of -0."""
    t = tvm().tirx
    n, z = keep(n), keep(r * r)
    odd = keep(_polynomial(z, _SINE) * (z * r) + r)
    even = keep((_polynomial(z, _COSINE) * z) * z - z * _f(0.5) + _f(1.0))
    size = _select(t.bitwise_and(n, _i(1)).equal(_i(0)), odd, even)
    turned = t.shift_left(t.bitwise_and(n, _i(2)), _i(30))
    return t.reinterpret("float32", t.bitwise_xor(t.reinterpret("int32", size), turned))


def sin(x: Expr, keep: Keep) -> Expr:
    """The sine of x, by that or the cosine of what is left of quarters of a turn."""
    return _select(x == _f(0.0), x, _sine(*_quarters(x, keep), keep))


def cos(x: Expr, keep: Keep) -> Expr:
    """The cosine of x, as :func:`sin`."""
    n, r = _quarters(x, keep)
    return _sine(n + _i(1), r, keep)


def cos_turns(x: Expr, keep: Keep) -> Expr:
    """cos(2 pi x), of which quarters are taken without an error; |x| is below 2**20."""
    t = tvm().tirx
    quarters = keep(x * _f(4.0))
    shifted = keep(quarters + _f(12582912.0))
    r = keep((quarters - (shifted - _f(12582912.0))) * _f(1.5707963267948966))
    return _sine(t.reinterpret("int32", shifted) + _i(1), r, keep)


def tanh(x: Expr, keep: Keep) -> Expr:
    """Odd polynomial below 0.625, 1 - 2 / (exp(2|x|) + 1) above."""
    t = tvm().tirx
    size = keep(t.abs(x))
    square = keep(x * x)
    p = _polynomial(
        square,
        [
            -5.70498872745e-3,
            2.06390887954e-2,
            -5.37397155531e-2,
            1.33314422036e-1,
            -3.33332819422e-1,
        ],
    )
    # Adding a correction of +0 would lose the sign of -0.
    small = _select(size == _f(0.0), x, p * square * x + x)
    # From 9.011 on the quotient is below half a place of 1.
    twice = keep(t.min(size, _f(10.0)) * _f(2.0))
    large = _f(1.0) - _f(2.0) / (_exp_between(twice, keep) + _f(1.0))
    return _select(size >= _f(0.625), _with_sign(large, x), small)  # small: of NaN


def erf(x: Expr, keep: Keep) -> Expr:
    """Odd polynomial below 1; above, 1 minus a polynomial for erfc around the middle of [1, 3.92].

    The result is 1 from 3.92 on.  Both polynomials are minimax fits, of degree 5 in x**2 and 12 in
    |x|, whose coefficients were rounded one by one, the others fitted anew.
    """
    t = tvm().tirx
    size = keep(t.abs(x))
    square = keep(x * x)
    small = keep(x * _polynomial(square, _ERF_BELOW_ONE))
    shifted = keep(t.min(size, _f(3.92)) - _f(2.46))
    large = t.min(_f(1.0) - _polynomial(shifted, _ERFC), _f(1.0))
    return _select(size >= _f(1.0), _with_sign(large, x), small)  # small: of NaN


def _bell(size: Expr, keep: Keep) -> Expr:
    """e**(-size**2 / 2) where that is no denormal number, by powers of two.

    Its relative error grows with size**2, as it is that of the exponent: to 1e-5 where it ends.
    """
    exponent = keep(keep(size * size) * _f(-0.72134752044448170))
    n, power = _nearest(exponent, keep)
    return keep(_times(_polynomial(keep(exponent - n), _TWO_POWER), power))


def normal_cdf(x: Expr, keep: Keep) -> Expr:
    """The tail behind -|x|, or 1 less that: e**(-x**2 / 2) times a polynomial in |x| / (1 + b |x|).

    Its absolute error stays below one unit of the last place of 1, and it is 0 below -12.64.
    Who needs the density, too, has computed most of it.  The idea is that of formula 26.2.17 in
    Abramowitz and Stegun's Handbook of Mathematical Functions, whose argument is 1 / (1 + b |x|):
    this one is known to its last place for small x.
    """
    t = tvm().tirx
    size = keep(t.min(_f(_FARTHEST), t.abs(x)))
    bent = keep(size / (size * _f(_BEND) + _f(1.0)))
    tail = keep(_bell(size, keep) * _polynomial(bent, _TAIL))
    below = _select(x < _f(-_FARTHEST), _f(0.0), tail)
    return _select(x < _f(0.0), below, _f(1.0) - tail)  # of NaN: from the division


def normal_density(x: Expr, keep: Keep) -> Expr:
    """e**(-x**2 / 2) / sqrt(2 pi), 0 beyond 12.64."""
    t = tvm().tirx
    size = keep(t.min(_f(_FARTHEST), t.abs(x)))
    near = _bell(size, keep) * _f(0.398942280401432678)
    beyond = _select(is_nan(x), x, _f(0.0))
    return _select(t.abs(x) <= _f(_FARTHEST), near, beyond)


def sigmoid(x: Expr, keep: Keep) -> Expr:
    """1 / (1 + e**-x), by e**-|x| so that nothing overflows."""
    t = tvm().tirx
    e = keep(exp(-t.abs(x), keep))
    one = _f(1.0)
    return _select(x < _f(0.0), e, one) / (one + e)
