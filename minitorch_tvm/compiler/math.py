"""Vectorisable elementary functions for float32.

TVM lowers exp, log and tanh to one libm call per element; the expressions here are plain
arithmetic, which LLVM turns into vector code.  Each stays within 4 ulp over the whole range,
denormals included, and keeps NaN and infinities.  Reductions of exp, log and tanh, and coefficients
of the latter two, follow S. L. Moshier's Cephes library (expf.c, logf.c, tanhf.c).  float64 goes to
libm, which has the same bound; so do sin, cos and pow of both types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.tvm_api import tvm

Expr = Any
Keep = Callable[[Expr], Expr]


_EXP = (  # (e**r - 1 - r) / r**2, fitted to |r| <= ln 2 / 2: relative error of e**r 4e-9
    1.381453942e-3,
    8.368745446e-3,
    4.166838899e-2,
    1.666652113e-1,
    4.999999404e-1,
)

_ERF_BELOW_ONE = (
    7.8758750627e-5,
    -8.0168642872e-4,
    5.1890874234e-3,
    -2.6854212011e-2,
    1.1283594715e-1,
    -3.7612626667e-1,
    1.1283791658,
)

_ERFC = (  # in |x| - 2.46
    -1.0989251045e-6,
    -8.3181555819e-8,
    1.7363989929e-5,
    -2.4786983369e-5,
    -7.591610574e-5,
    2.9983210688e-4,
    -3.5577906923e-4,
    -4.5960713323e-4,
    2.937091639e-3,
    -6.7993736564e-3,
    9.9142081432e-3,
    -9.8325029654e-3,
    6.5345179889e-3,
    -2.6562335679e-3,
    5.0335364056e-4,
)


def _f(value: float) -> Expr:
    return tvm().tirx.const(value, "float32")


def _i(value: int) -> Expr:
    return tvm().tirx.const(value, "int32")


def _select(condition: Expr, a: Expr, b: Expr) -> Expr:
    return tvm().tirx.Select(condition, a, b)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's scheme, highest power first."""
    y = _f(coefficients[0])
    for c in coefficients[1:]:
        y = y * x + _f(c)
    return y


def exp(x: Expr, keep: Keep) -> Expr:
    """e**x: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial in r; n is added to its exponent.

    Adding 1.5 * 2**23 leaves n in the lowest bits of the sum, beside bits that a shift by 23 drops.
    """
    t = tvm().tirx
    magic = _f(12582912.0)
    y = keep(t.max(t.min(x, _f(89.0)), _f(-104.0)))  # of NaN: 89
    shifted = keep(y * _f(1.44269504088896341) + magic)
    n = keep(shifted - magic)
    r = keep((y - n * _f(0.693359375)) - n * _f(-2.12194440e-4))
    p = keep(_polynomial(r, [*_EXP, 1.0, 1.0]))
    power = keep(t.shift_left(t.reinterpret("int32", shifted), _i(23)))
    bits = t.reinterpret("int32", p) + power
    # Processors take some hundred cycles to multiply into a denormal number, whose bits are the
    # nearest integer to p 2**(n + 149).
    scale = t.reinterpret("float32", power + _i(((149 + 127) << 23) - (1 << 32)))
    units = p * scale + _f(0.5)  # anything where n is larger
    denormal = n < _f(-125.0)
    bits = _select(denormal, units.astype("int32"), t.min(bits, _i(0x7F800000)))
    return _select(t.isnan(x), x, t.reinterpret("float32", bits))


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
    return _select(t.any(t.isnan(x), x == t.infinity("float32")), x, bad)


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
    large = _f(1.0) - _f(2.0) / (exp(size + size, keep) + _f(1.0))
    return _select(size < _f(0.625), small, _select(x < _f(0.0), -large, large))


def erf(x: Expr, keep: Keep) -> Expr:
    """Odd polynomial below 1; above, 1 minus a polynomial for erfc around the middle of [1, 3.92].

    The result is 1 from 3.92 on.  Both polynomials are Chebyshev interpolants of degree 6 in x**2
    (relative error 2e-9) and 14 in |x| (absolute error 8e-9), fitted to 40 digits.
    """
    t = tvm().tirx
    size = keep(t.abs(x))
    square = keep(x * x)
    small = keep(x * _polynomial(square, _ERF_BELOW_ONE))
    shifted = keep(t.min(size, _f(3.92)) - _f(2.46))
    large = keep(t.min(_f(1.0) - _polynomial(shifted, _ERFC), _f(1.0)))
    signed = _select(x < _f(0.0), -large, large)
    return _select(t.isnan(x), x, _select(size < _f(1.0), small, signed))


def sigmoid(x: Expr, keep: Keep) -> Expr:
    """1 / (1 + e**-x), by e**-|x| so that nothing overflows."""
    t = tvm().tirx
    e = keep(exp(-t.abs(x), keep))
    one = _f(1.0)
    return _select(x < _f(0.0), e, one) / (one + e)
