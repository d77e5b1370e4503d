"""Elementwise functions that are compositions, or differ by dtype: rounding, tests, blends."""

from __future__ import annotations

import math

from ..core import dtype as dt
from ..core.arguments import unsupported
from ..core.dtype import DType
from ..ir.node import Node, apply
from . import build as b
from . import derived as d
from .composite import composite
from .elementary import elementary, stepwise

Operand = d.Operand


def of_library(name: str, x: Node) -> Node:
    """A function of the C library; integers are converted to float32 first."""
    return d.unary_float(elementary(name), x)


def rounded(name: str, x: Node) -> Node:
    """floor, ceil, trunc, or round half to even; integers stay as they are."""
    if x.dtype is dt.bool_:
        raise unsupported(f"{name}_vml_cpu", x.dtype)
    return apply(stepwise(name), x) if x.dtype.is_floating_point else d.clone(x)


def round_to(x: Node, decimals: int) -> Node:
    """x rounded, half to even, to a number of decimals, which may be negative."""
    if decimals == 0:
        return rounded("round", x)
    if not x.dtype.is_floating_point:
        raise unsupported("round_cpu", x.dtype)
    scale = d.term(10.0 ** min(abs(decimals), 308), x.dtype)
    nearest = stepwise("round")
    if decimals < 0:
        return b.mul(apply(nearest, b.div(x, scale)), scale)
    return b.div(apply(nearest, b.mul(x, scale)), scale)


def frac(x: Node) -> Node:
    """What follows the decimal point, with the sign of x."""
    if not x.dtype.is_floating_point:
        raise unsupported("frac_cpu", x.dtype)
    return b.sub(x, apply(stepwise("trunc"), x))


def sign(x: Node) -> Node:
    """-1, 0 or 1; 0 of NaN."""
    if x.dtype.is_floating_point:
        return apply(stepwise("sign"), x)
    if x.dtype is dt.bool_:
        return d.clone(x)
    zero = b.full_like(x, 0)
    above = b.cast(b.lt(zero, x), x.dtype)
    return above if x.dtype.is_unsigned else b.sub(above, b.cast(b.lt(x, zero), x.dtype))


def reciprocal(x: Node) -> Node:
    """1 / x."""
    x = d.cast_float(x)
    return b.div(b.full_like(x, 1.0), x)


def rsqrt(x: Node) -> Node:
    """1 / sqrt(x)."""
    return reciprocal(d.unary_float(b.SQRT, x))


# --- tests --------------------------------------------------------------------------------------


def is_nan(x: Node) -> Node:
    """Where x is NaN."""
    return d.compare("ne", x, x)


def is_infinite(x: Node) -> Node:
    """Where x is infinite, of either sign."""
    if not x.dtype.is_floating_point:
        return b.full(x.shape, False, dt.bool_)
    return b.eq(apply(b.ABS, x), b.full_like(x, math.inf))


def is_finite(x: Node) -> Node:
    """Where x is neither infinite nor NaN."""
    if not x.dtype.is_floating_point:
        return b.full(x.shape, True, dt.bool_)
    return b.lt(apply(b.ABS, x), b.full_like(x, math.inf))


def logical_and(x: Node, y: Node) -> Node:
    """Where neither is zero."""
    return b.logical_and(b.cast(x, dt.bool_), b.cast(y, dt.bool_))


def logical_or(x: Node, y: Node) -> Node:
    """Where at least one is not zero."""
    return b.logical_or(b.cast(x, dt.bool_), b.cast(y, dt.bool_))


def logical_xor(x: Node, y: Node) -> Node:
    """Where exactly one is zero."""
    return d.logical_xor(b.cast(x, dt.bool_), b.cast(y, dt.bool_))


def is_close(x: Node, y: Node, rtol: float, atol: float, equal_nan: bool) -> Node:
    """Where |x - y| <= atol + rtol |y|, or both are equal, or both NaN if that counts."""
    if x.dtype is not y.dtype:
        raise RuntimeError(f"{x.dtype.torch_name} did not match {y.dtype.torch_name}")
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not tolerance >= 0:
            raise RuntimeError(
                f"{name} must be greater than or equal to zero, but got {tolerance:g}"
            )
    close = d.compare("eq", x, y)
    if equal_nan:
        close = b.logical_or(close, b.logical_and(is_nan(x), is_nan(y)))
    if rtol == 0 and atol == 0:
        return close
    if not x.dtype.is_floating_point:
        x, y = b.cast(x, dt.float32), b.cast(y, dt.float32)
    allowed = b.add(d.lift(atol, x.dtype), apply(b.ABS, b.mul(d.lift(rtol, x.dtype), y)))
    actual = apply(b.ABS, b.sub(x, y))
    return b.logical_or(close, b.logical_and(is_finite(actual), b.le(actual, allowed)))


def nan_to_num(x: Node, nan: float | None, posinf: float | None, neginf: float | None) -> Node:
    """Numbers for NaN (0 if None) and the infinities (if None, the ends of x's type)."""
    if not x.dtype.is_floating_point:
        return d.clone(x)
    least = x.dtype.least
    infinity = b.full_like(x, math.inf)
    y = b.where(b.eq(x, infinity), d.term(-least if posinf is None else posinf, x.dtype), x)
    low = d.term(least if neginf is None else neginf, x.dtype)
    y = b.where(b.eq(x, b.neg(infinity)), low, y)
    return b.where(is_nan(x), d.term(0.0 if nan is None else nan, x.dtype), y)


# --- blends -------------------------------------------------------------------------------------


def _lerp(start: Node, end: Node, weight: Node) -> Node:
    """Exact at both ends, and 1 - weight is exact where it is a factor."""
    one, way = b.full_like(weight, 1.0), b.sub(end, start)
    near = b.add(start, b.mul(weight, way))
    far = b.sub(end, b.mul(way, b.sub(one, weight)))
    return b.where(b.lt(apply(b.ABS, weight), b.full_like(weight, 0.5)), near, far)


_LERP = composite("Lerp", _lerp)


def lerp(start: Node, end: Node, weight: Operand) -> Node:
    """start + weight * (end - start), for a number or a node."""
    dtype = start.dtype
    if end.dtype is not dtype:
        raise RuntimeError(_expected("end", dtype, end.dtype))
    if not isinstance(weight, Node):
        if not dtype.is_floating_point:
            raise unsupported("lerp_kernel_scalar", dtype)
        weight = d.term(weight, dtype)
    if weight.dtype is not dtype and not (weight.dtype.is_floating_point and not weight.shape):
        raise RuntimeError(_expected("weight", dtype, weight.dtype))
    if not dtype.is_floating_point:
        raise unsupported("lerp_kernel_tensor", dtype)
    return apply(_LERP, start, end, b.cast(weight, dtype))


def _expected(what: str, wanted: DType, got: DType) -> str:
    return f"expected dtype {wanted.scalar_name} for `{what}` but got dtype {got.scalar_name}"


def addcmul(x: Node, factor: Node, other: Node, value: d.Number) -> Node:
    """x + value * factor * other."""
    dtype = d.result_dtype(x, factor, other)
    if dtype is dt.bool_:
        raise unsupported("addcmul_cpu_out", dtype)
    scaled = b.mul(d.term(value, dtype), b.cast(factor, dtype))
    return b.add(b.cast(x, dtype), b.mul(scaled, b.cast(other, dtype)))


def addcdiv(x: Node, dividend: Node, divisor: Node, value: d.Number) -> Node:
    """x + value * dividend / divisor, of which at least one is floating point."""
    if not (dividend.dtype.is_floating_point or divisor.dtype.is_floating_point):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported, and in a future  release "
            "addcdiv will perform a true division of tensor1 and tensor2. The historic addcdiv "
            "behavior can be implemented as (input + value * torch.trunc(tensor1 / tensor2))"
            ".to(input.dtype) for integer inputs and as (input + value * tensor1 / tensor2) for "
            "float inputs. The future addcdiv behavior is just the latter implementation: (input + "
            "value * tensor1 / tensor2), for all dtypes."
        )
    dtype = d.result_dtype(x, dividend, divisor)
    scaled = b.mul(d.term(value, dtype), b.cast(dividend, dtype))
    return b.add(b.cast(x, dtype), b.div(scaled, b.cast(divisor, dtype)))
