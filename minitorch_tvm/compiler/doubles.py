"""Exponential, logarithm, tanh and sigmoid of float64 as vector code (see :mod:`.math`)."""

from __future__ import annotations

from ..core.tvm_api import tvm
from .scalars import (
    Expr,
    Keep,
    f64,
    i64,
    nearest,
    of_positive,
    polynomial,
    select,
    times_power,
    with_sign,
)

_LN2, _LN2_REST = 6.93147180369123816490e-1, 1.90821492927058770002e-10  # the first of 32 bits
_EXP = (  # (e**r - 1 - r) / r**2, fitted to |r| <= ln 2 / 2: relative error of e**r 4e-18
    2.5000061626239511e-8,
    2.7630248384996741e-7,
    2.7557586373781501e-6,
    2.4801493098888392e-5,
    1.984126950657873e-4,
    1.3888888943630133e-3,
    8.3333333334944617e-3,
    4.1666666666530158e-2,
    0.16666666666666413,
    0.50000000000000106,
)
_LOG = (  # (log((1 + s) / (1 - s)) / s - 2) / s**2 in s**2, to sqrt(2): relative error 1e-18
    0.14796105556250247,
    0.15314035814292225,
    0.18183564867956134,
    0.22222198563449262,
    0.28571428742475384,
    0.39999999999414318,
    0.66666666666667345,
)
_TANH = (  # (tanh(x) / x - 1) / x**2 in x**2, to 0.625: relative error of tanh 1e-17
    -1.6072549573602042e-5,
    7.7144320926397596e-5,
    -2.2856416598273225e-4,
    5.8631651499273473e-4,
    -1.4549588690779162e-3,
    3.5919891717823054e-3,
    -8.8632210023287373e-3,
    2.1869487576066181e-2,
    -5.3968253931266109e-2,
    0.13333333333262087,
    -0.33333333333332855,
)


def _parts(x: Expr, keep: Keep) -> tuple[Expr, Expr, Expr]:
    """e**x = p 2**n: n, what to add to p's bits, and p."""
    n, power = nearest(x * f64(1.44269504088896340736), keep)
    r = keep((x - n * f64(_LN2)) - n * f64(_LN2_REST))
    return n, power, keep(keep(keep(r * r) * polynomial(r, _EXP) + r) + f64(1.0))


def exp(x: Expr, keep: Keep) -> Expr:
    """e**x, as that of float32; denormal results are rounded by a multiplication."""
    t = tvm().tirx
    gone = keep(x < f64(-745.1332191019412))  # of masked scores, which must not be slow
    n, power, p = _parts(keep(select(gone, f64(0.0), x)), keep)
    low = keep(n < f64(-1000.0))
    value = times_power(p, power + select(low, i64(64 << 52), i64(0)))
    value = value * select(low, f64(2.0**-64), f64(1.0))
    beyond = t.Not(x <= f64(709.782712893384))  # or NaN
    return select(beyond, x + t.infinity("float64"), select(gone, f64(0.0), value))


def log(x: Expr, keep: Keep) -> Expr:
    """x = 2**e (1 + f), of which the latter's logarithm is that of (1 + s) / (1 - s).

    As K. C. Ng has it in fdlibm (e_log.c): f and f**2 / 2 are exact, or nearly so.
    """
    t = tvm().tirx
    tiny = keep(x < f64(2.2250738585072014e-308))
    bits = keep(t.reinterpret("uint64", select(tiny, x * f64(2.0**54), x)))
    lowest = t.const((1 << 52) - 1, "uint64")
    exponent = t.bitwise_or(
        t.shift_right(bits, t.const(52, "uint64")), t.reinterpret("uint64", f64(2.0**52))
    )
    one = t.bitwise_or(t.bitwise_and(bits, lowest), t.reinterpret("uint64", f64(1.0)))
    m = keep(t.reinterpret("float64", one))
    high = keep(m > f64(1.4142135623730951))
    less = select(tiny, f64(2.0**52 + 1023 + 54), f64(2.0**52 + 1023))
    e = keep(t.reinterpret("float64", exponent) - less + select(high, f64(1.0), f64(0.0)))
    f = keep(select(high, m * f64(0.5), m) - f64(1.0))
    s = keep(f / (f + f64(2.0)))
    z = keep(s * s)
    half = keep(f * f * f64(0.5))
    rest = s * (half + z * polynomial(z, _LOG)) + e * f64(_LN2_REST)
    value = e * f64(_LN2) - ((half - rest) - f)
    return of_positive(x, value)


def tanh(x: Expr, keep: Keep) -> Expr:
    """Odd polynomial below 0.625, 1 - 2 / (exp(2|x|) + 1) above."""
    t = tvm().tirx
    size = keep(t.abs(x))
    square = keep(x * x)
    small = select(x == f64(0.0), x, polynomial(square, _TANH) * (square * x) + x)
    # From 19.1 on the quotient is below half a place of 1.
    _, power, p = _parts(keep(t.min(size, f64(20.0)) * f64(2.0)), keep)
    large = f64(1.0) - f64(2.0) / (times_power(p, power) + f64(1.0))
    return select(size >= f64(0.625), with_sign(large, x), small)  # small: of NaN


def sigmoid(x: Expr, keep: Keep) -> Expr:
    """1 / (1 + e**-x), by e**-|x| so that nothing overflows."""
    e = keep(exp(keep(-tvm().tirx.abs(x)), keep))
    return select(x < f64(0.0), e, f64(1.0)) / (f64(1.0) + e)
