"""What elementary functions of float32 are made of: constants, choices, polynomials, bits."""

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


def select(condition: Expr, a: Expr, b: Expr) -> Expr:
    """``a`` where the condition holds; both are computed."""
    return tvm().tirx.Select(condition, a, b)


def with_sign(size: Expr, x: Expr) -> Expr:
    """A number that is not negative with the sign of another."""
    t = tvm().tirx
    sign = t.bitwise_and(t.reinterpret("int32", x), i32(-(1 << 31)))
    return t.reinterpret("float32", t.bitwise_or(t.reinterpret("int32", size), sign))


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's scheme, highest power first."""
    y = f32(coefficients[0])
    for c in coefficients[1:]:
        y = y * x + f32(c)
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
