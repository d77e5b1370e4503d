"""What elementary functions are made of: constants, choices, polynomials, bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..core import config
from ..core.tvm_api import tvm

Expr = Any
Keep = Callable[[Expr], Expr]


def f32(value: float) -> Expr:
    """The float32 nearest to a number."""
    return tvm().tirx.const(value, "float32")


def i32(value: int) -> Expr:
    """An integer of as many bits."""
    return tvm().tirx.const(value, "int32")


def f64(value: float) -> Expr:
    """A number as float64."""
    return tvm().tirx.const(value, "float64")


def i64(value: int) -> Expr:
    """An integer of 64 bits."""
    return tvm().tirx.const(value, "int64")


def unless(condition: Expr) -> Expr:
    """Its negation, also where TVM's simplifier runs: to that, what is not <= is >."""
    if config.CONFIG.schedule != "default":
        return tvm().tirx.Not(condition)
    return tvm().tirx.Select(condition, i32(0), i32(1)) > i32(0)


def is_nan(x: Expr) -> Expr:
    """Whether a number, or each of a vector, is NaN.  Of its own isnan, TVM makes no vectors."""
    return unless(x <= tvm().tirx.infinity(str(x.ty.dtype).partition("x")[0]))


def select(condition: Expr, a: Expr, b: Expr) -> Expr:
    """``a`` where the condition holds; both are computed."""
    return tvm().tirx.Select(condition, a, b)


def bits_of(dtype: str) -> tuple[str, Callable[[int], Expr]]:
    """The integers of as many bits as a float, and a constant of them."""
    return ("int32", i32) if dtype == "float32" else ("int64", i64)


def number_of(dtype: str) -> Callable[[float], Expr]:
    """Constants of a float's dtype."""
    return f32 if dtype == "float32" else f64


def with_sign(size: Expr, x: Expr) -> Expr:
    """A number that is not negative with the sign of another."""
    t, dtype = tvm().tirx, str(x.ty.dtype)
    bits, whole = bits_of(dtype)
    top = whole(-(1 << 31 if dtype == "float32" else 1 << 63))
    sign = t.bitwise_and(t.reinterpret(bits, x), top)
    return t.reinterpret(dtype, t.bitwise_or(t.reinterpret(bits, size), sign))


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's scheme, highest power first."""
    number = number_of(str(x.ty.dtype))
    y = number(coefficients[0])
    for c in coefficients[1:]:
        y = y * x + number(c)
    return y


def nearest(y: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """The integer n that is nearest to y, and what to add to a number's bits to multiply by 2**n.

    Adding 1.5 * 2**m, of m bits behind the point of 1, leaves n in the lowest bits of the sum,
    beside bits that a shift by m drops.
    """
    t, dtype = tvm().tirx, str(y.ty.dtype)
    bits, whole = bits_of(dtype)
    m = 23 if dtype == "float32" else 52
    magic = number_of(dtype)(1.5 * 2.0**m)
    shifted = keep(y + magic)
    return keep(shifted - magic), keep(t.shift_left(t.reinterpret(bits, shifted), whole(m)))


def times_power(p: Expr, power: Expr) -> Expr:
    """p 2**n, of such a power."""
    t, dtype = tvm().tirx, str(p.ty.dtype)
    return t.reinterpret(dtype, t.reinterpret(bits_of(dtype)[0], p) + power)


def of_positive(x: Expr, result: Expr) -> Expr:
    """A logarithm of x: ``result``, -inf of 0, NaN of what is negative, and x if that is inf."""
    t, dtype = tvm().tirx, str(x.ty.dtype)
    number, infinity = number_of(dtype), t.infinity(dtype)
    result = select(x == number(0.0), -infinity, result)
    bad = select(x < number(0.0), number(float("nan")), result)
    return select(t.any(is_nan(x), x == infinity), x, bad)


def in_doubles(f: Callable[..., Expr]) -> Callable[..., Expr]:
    """A function of float64 for float32: its operands and its result are converted."""

    @functools.wraps(f)
    def narrow(*operands: Expr) -> Expr:
        *xs, keep = operands
        return f(*[keep(x.astype("float64")) for x in xs], keep).astype("float32")

    return narrow
