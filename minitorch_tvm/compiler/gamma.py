"""The logarithm of the gamma function and its derivatives, as vector code in float64.

Arguments below 10 are moved up by 10 with the recurrence of the gamma function, where Stirling's
series and its derivatives are good to the last place (Abramowitz and Stegun, Handbook of
Mathematical Functions, 6.1.41, 6.3.18 and 6.4.11); negative ones are reflected (6.1.17).
"""

from __future__ import annotations

import math

from ..core.tvm_api import tvm
from . import doubles
from .scalars import Expr, Keep, f64, in_doubles, polynomial, select

_SHIFT = 10
# Of one divided by y, in its square, the highest power first:
_STIRLING = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_DIGAMMA = (-1 / 12, 691 / 32760, -1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12)
_TRIGAMMA = (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6)
_SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(10, -1, -1))


def _reflected(x: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """Whether x is below 1/2, and 1 - x of such, x of others."""
    below = keep(x < f64(0.5))
    return below, keep(select(below, f64(1.0) - x, x))


def _sine(x: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """sin(pi r) and cos(pi r), of what is left of x by the nearest integer."""
    t = tvm().tirx
    r = keep((x - t.nearbyint(x)) * f64(math.pi))
    other = keep(f64(math.pi / 2) - t.abs(r))
    sine = keep(polynomial(keep(r * r), _SINE) * r)
    return sine, keep(polynomial(keep(other * other), _SINE) * other)


def _product(x: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """x (x + 1) ... (x + 9), and its derivative."""
    value, slope = x, f64(1.0)
    for k in range(1, _SHIFT):
        factor = keep(x + f64(float(k)))
        slope = keep(slope * factor + value)
        value = keep(value * factor)
    return value, slope


def _lgamma(x: Expr, keep: Keep) -> Expr:
    """log(|gamma(x)|); infinite at the poles."""
    t = tvm().tirx
    below, above = _reflected(x, keep)
    low = keep(above < f64(float(_SHIFT)))
    y = keep(select(low, above + f64(float(_SHIFT)), above))
    inverse = keep(f64(1.0) / y)
    series = polynomial(keep(inverse * inverse), _STIRLING) * inverse
    half = f64(0.5 * math.log(2.0 * math.pi))
    stirling = (y - f64(0.5)) * doubles.log(y, keep) - y + (half + series)
    moved, _ = _product(keep(select(low, above, f64(1.0))), keep)
    value = keep(stirling - select(low, doubles.log(moved, keep), f64(0.0)))
    value = select(t.any(x == f64(1.0), x == f64(2.0)), f64(0.0), value)
    sine, _ = _sine(x, keep)
    turned = doubles.log(keep(f64(math.pi) / t.abs(sine)), keep) - value
    infinity = t.infinity("float64")
    return select(t.abs(x) == infinity, infinity, select(below, turned, value))


def digamma_of_double(x: Expr, keep: Keep) -> Expr:
    """The derivative of log(gamma(x)); NaN at the poles but 0."""
    below, above = _reflected(x, keep)
    low = keep(above < f64(float(_SHIFT)))
    y = keep(select(low, above + f64(float(_SHIFT)), above))
    square = keep(f64(1.0) / (y * y))
    series = doubles.log(y, keep) - f64(0.5) / y + polynomial(square, _DIGAMMA) * square
    value, slope = _product(keep(select(low, above, f64(1.0))), keep)
    value = keep(series - select(low, slope / value, f64(0.0)))
    sine, cosine = _sine(x, keep)
    turned = value - cosine / sine * f64(math.pi)
    pole = select(x == f64(0.0), f64(-1.0) / x, f64(float("nan")))
    return select(below, select(sine == f64(0.0), pole, turned), value)


def trigamma_of_double(x: Expr, keep: Keep) -> Expr:
    """The second derivative of log(gamma(x))."""
    below, above = _reflected(x, keep)
    low = keep(above < f64(float(_SHIFT)))
    y = keep(select(low, above + f64(float(_SHIFT)), above))
    inverse = keep(f64(1.0) / y)
    square = keep(inverse * inverse)
    value = inverse + square * f64(0.5) + polynomial(square, _TRIGAMMA) * square * inverse
    moved = keep(select(low, above, f64(1.0)))
    total = f64(0.0)
    for k in range(_SHIFT):
        term = keep(f64(1.0) / (moved + f64(float(k))))
        total = total + term * term
    value = keep(value + select(low, total, f64(0.0)))
    sine, _ = _sine(x, keep)
    ratio = keep(f64(math.pi) / sine)
    return select(below, ratio * ratio - value, value)


lgamma = in_doubles(_lgamma)
digamma = in_doubles(digamma_of_double)
trigamma = in_doubles(trigamma_of_double)
