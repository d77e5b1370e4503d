"""Vectorisable elementary functions for float32.

TVM lowers exp, log and tanh to one libm call per element; the expressions here are plain
arithmetic, which LLVM turns into vector code.  Each stays within 4 ulp over the whole range,
denormals included, and keeps NaN and infinities.  Reductions of exp, log and tanh, and coefficients
of the latter two, follow S. L. Moshier's Cephes library (expf.c, logf.c, tanhf.c).  Other powers
and logarithms are in :mod:`.powers`, what has to do with angles in :mod:`.angles`.  Some of float64
are in :mod:`.doubles`; the others go to libm, which has the same bound.
"""

from __future__ import annotations

from ..core.tvm_api import tvm
from .scalars import (
    Expr,
    Keep,
    f32,
    i32,
    is_nan,
    nearest,
    of_positive,
    polynomial,
    select,
    times_power,
    with_sign,
)

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

_LOG = (  # (log(1 + m) - m + m**2 / 2) / m**3
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
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


def two_powers(y: Expr, keep: Keep) -> tuple[Expr, Expr, Expr]:
    """e**y = p 2**n: n, what to add to p's bits, and p."""
    n, power = nearest(y * f32(1.44269504088896341), keep)
    r = keep((y - n * f32(0.693359375)) - n * f32(-2.12194440e-4))
    return n, power, keep(power_of_e(r))


def power_of_e(r: Expr) -> Expr:
    """e**r where |r| <= ln 2 / 2."""
    return polynomial(r, [*_EXP, 1.0, 1.0])


def exp(x: Expr, keep: Keep) -> Expr:
    """e**x: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial in r; n is added to its exponent."""
    t = tvm().tirx
    n, power, p = two_powers(keep(t.max(x, f32(-104.0))), keep)
    # Above the largest x whose power is finite, and for NaN.
    beyond = t.Not(x <= f32(88.7228317))
    return select(beyond, x + t.infinity("float32"), scaled(p, n, power))


def scaled(p: Expr, n: Expr, power: Expr) -> Expr:
    """p 2**n, where that is finite; p is between 0.5 and 2, n at least -151."""
    t = tvm().tirx
    # Processors take some hundred cycles to multiply into a denormal number, whose bits are the
    # nearest integer to p 2**(n + 149).
    scale = t.reinterpret("float32", power + i32(((149 + 127) << 23) - (1 << 32)))
    units = p * scale + f32(0.5)  # anything where n is larger
    denormal = n < f32(-125.0)
    bits = select(denormal, units.astype("int32"), t.reinterpret("int32", p) + power)
    return t.reinterpret("float32", bits)


def _exp_between(x: Expr, keep: Keep) -> Expr:
    """e**x where -87 <= x <= 88, and some number elsewhere: seven instructions less than exp."""
    _, power, p = two_powers(x, keep)
    return times_power(p, power)


def expm1(x: Expr, keep: Keep) -> Expr:
    """e**x - 1 = 2**n (e**r - 1) + (2**n - 1), with r and n as exp has them."""
    t = tvm().tirx
    y = keep(t.min(t.max(x, f32(-30.0)), f32(88.7228317)))
    n, power = nearest(y * f32(1.44269504088896341), keep)
    r = keep((y - n * f32(0.693359375)) - n * f32(-2.12194440e-4))
    near = keep(keep(r * r) * polynomial(r, _EXP) + r)
    # 2**128 is too large, half of it is not.
    half = keep(t.reinterpret("float32", power + i32(126 << 23)))
    value = keep(near * half + (half - f32(0.5)))
    beyond = t.Not(x <= f32(88.7228317))  # or NaN
    # Halves of denormal numbers are rounded, and the sum would lose the sign of -0.
    finite = select(t.abs(x) < f32(1e-30), x, value + value)
    return select(beyond, x + t.infinity("float32"), finite)


def log1p(x: Expr, keep: Keep) -> Expr:
    """The logarithm of 1 + x as it is rounded, and what is missing to 1 + x divided by that."""
    t = tvm().tirx
    u = keep(x + f32(1.0))
    rounded = keep(log(u, keep))
    missing = keep(x - keep(u - f32(1.0)))
    inside = t.all(u > f32(0.0), u < t.infinity("float32"))
    value = select(inside, rounded + missing / u, rounded)
    return select(x == f32(0.0), x, value)


def fmod(x: Expr, y: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """What is left of x by y, exactly, and whether it is in doubt: the quotient is large.

    In float64 the product of y and a whole quotient below 2**28 is exact, and so is the difference.
    A quotient that is no integer is 2**-25 or more away from the next, too far to be rounded to it.
    By zero, and of an infinite x, it is infinite or NaN, and what is left is NaN.
    """
    t = tvm().tirx
    dividend, divisor = keep(x.astype("float64")), keep(y.astype("float64"))
    ratio = keep(dividend / divisor)
    rest = keep(dividend - keep(t.trunc(ratio)) * divisor)
    near = keep(with_sign(t.abs(rest).astype("float32"), x))
    size, infinity = keep(t.abs(ratio)), t.infinity("float64")
    doubt = t.all(size >= t.const(float(1 << 28), "float64"), size < infinity)
    # All of a finite x is left of it by infinity.
    whole = t.all(t.abs(divisor) == infinity, t.abs(dividend) < infinity)
    return keep(select(whole, x, near)), doubt


def mantissa(x: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """m and e with x = (1 + m) 2**e and 1 + m in [sqrt(1/2), sqrt(2)), of a positive number."""
    t = tvm().tirx
    tiny = x < f32(1.17549435e-38)
    enough = keep(select(tiny, x * f32(8388608.0), x))
    bits = keep(t.reinterpret("int32", enough))
    exponent = t.shift_right(bits, i32(23)) - i32(126) - select(tiny, i32(23), i32(0))
    half = keep(
        t.reinterpret("float32", t.bitwise_or(t.bitwise_and(bits, i32(0x7FFFFF)), i32(0x3F000000)))
    )
    low = keep(half < f32(0.707106781186547524))
    e = keep((exponent - select(low, i32(1), i32(0))).astype("float32"))
    return keep(select(low, half + half, half) - f32(1.0)), e


def log_rest(m: Expr, z: Expr) -> Expr:
    """log(1 + m) - m + m**2 / 2, of a :func:`mantissa` and its square."""
    return (polynomial(m, _LOG) * m) * z


def log(x: Expr, keep: Keep) -> Expr:
    """Natural logarithm: x = (1 + m) 2**e, a polynomial in m."""
    m, e = mantissa(x, keep)
    z = keep(m * m)
    y = log_rest(m, z) + e * f32(-2.12194440e-4) - z * f32(0.5)
    return of_positive(x, keep(m + y + e * f32(0.693359375)))


def tanh(x: Expr, keep: Keep) -> Expr:
    """Odd polynomial below 0.625, 1 - 2 / (exp(2|x|) + 1) above."""
    t = tvm().tirx
    size = keep(t.abs(x))
    square = keep(x * x)
    p = polynomial(
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
    small = select(size == f32(0.0), x, p * square * x + x)
    # From 9.011 on the quotient is below half a place of 1.
    twice = keep(t.min(size, f32(10.0)) * f32(2.0))
    large = f32(1.0) - f32(2.0) / (_exp_between(twice, keep) + f32(1.0))
    return select(size >= f32(0.625), with_sign(large, x), small)  # small: of NaN


def erf(x: Expr, keep: Keep) -> Expr:
    """Odd polynomial below 1; above, 1 minus a polynomial for erfc around the middle of [1, 3.92].

    The result is 1 from 3.92 on.  Both polynomials are minimax fits, of degree 5 in x**2 and 12 in
    |x|, whose coefficients were rounded one by one, the others fitted anew.
    """
    t = tvm().tirx
    size = keep(t.abs(x))
    square = keep(x * x)
    small = keep(x * polynomial(square, _ERF_BELOW_ONE))
    shifted = keep(t.min(size, f32(3.92)) - f32(2.46))
    large = t.min(f32(1.0) - polynomial(shifted, _ERFC), f32(1.0))
    return select(size >= f32(1.0), with_sign(large, x), small)  # small: of NaN


def _bell(size: Expr, keep: Keep) -> Expr:
    """e**(-size**2 / 2) where that is no denormal number, by powers of two.

    Its relative error grows with size**2, as it is that of the exponent: to 1e-5 where it ends.
    """
    exponent = keep(keep(size * size) * f32(-0.72134752044448170))
    n, power = nearest(exponent, keep)
    return keep(times_power(polynomial(keep(exponent - n), _TWO_POWER), power))


def normal_cdf(x: Expr, keep: Keep) -> Expr:
    """The tail behind -|x|, or 1 less that: e**(-x**2 / 2) times a polynomial in |x| / (1 + b |x|).

    Its absolute error stays below one unit of the last place of 1, and it is 0 below -12.64.
    Who needs the density, too, has computed most of it.  The idea is that of formula 26.2.17 in
    Abramowitz and Stegun's Handbook of Mathematical Functions, whose argument is 1 / (1 + b |x|):
    this one is known to its last place for small x.
    """
    t = tvm().tirx
    size = keep(t.min(f32(_FARTHEST), t.abs(x)))
    bent = keep(size / (size * f32(_BEND) + f32(1.0)))
    tail = keep(_bell(size, keep) * polynomial(bent, _TAIL))
    below = select(x < f32(-_FARTHEST), f32(0.0), tail)
    return select(x < f32(0.0), below, f32(1.0) - tail)  # of NaN: from the division


def normal_density(x: Expr, keep: Keep) -> Expr:
    """e**(-x**2 / 2) / sqrt(2 pi), 0 beyond 12.64."""
    t = tvm().tirx
    size = keep(t.min(f32(_FARTHEST), t.abs(x)))
    near = _bell(size, keep) * f32(0.398942280401432678)
    beyond = select(is_nan(x), x, f32(0.0))
    return select(t.abs(x) <= f32(_FARTHEST), near, beyond)


def sigmoid(x: Expr, keep: Keep) -> Expr:
    """1 / (1 + e**-x), by e**-|x| so that nothing overflows."""
    t = tvm().tirx
    e = keep(exp(-t.abs(x), keep))
    one = f32(1.0)
    return select(x < f32(0.0), e, one) / (one + e)
