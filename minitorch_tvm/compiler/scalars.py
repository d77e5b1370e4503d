"""What elementary functions are made of: constants, choices, polynomials, bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


def select(condition: Expr, a: Expr, b: Expr) -> Expr:
    """``a`` where the condition holds; both are computed."""
    return tvm().tirx.Select(condition, a, b)


def with_sign(size: Expr, x: Expr) -> Expr:
    """A number that is not negative with the sign of another."""
    t, dtype = tvm().tirx, str(x.ty.dtype)
    bits, top = ("int32", i32(-(1 << 31))) if dtype == "float32" else ("int64", i64(-(1 << 63)))
    sign = t.bitwise_and(t.reinterpret(bits, x), top)
    return t.reinterpret(dtype, t.bitwise_or(t.reinterpret(bits, size), sign))


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's scheme, highest power first."""
    number = f32 if str(x.ty.dtype) == "float32" else f64
    y = number(coefficients[0])
    for c in coefficients[1:]:
        y = y * x + number(c)
    return y


def nearest(y: Expr, keep: Keep) -> tuple[Expr, Expr]:
    """The integer n that is nearest to y, and what to add to a number's bits to multiply by 2**n.

    Adding 1.5 * 2**23 leaves n in the lowest bits of the sum, beside bits that a shift by 23 drops.
    """
    t = tvm().tirx
    magic = f32(12582912.0)
    shifted = keep(y + magic)
    return keep(shifted - magic), keep(t.shift_left(t.reinterpret("int32", shifted), i32(23)))


def times_power(p: Expr, power: Expr) -> Expr:
    """p 2**n, of such a power."""
    t = tvm().tirx
    return t.reinterpret("float32", t.reinterpret("int32", p) + power)
