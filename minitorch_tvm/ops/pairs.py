"""Functions of two numbers that are compositions, and what fits into their neighbourhood."""

from __future__ import annotations

import math

from ..core import dtype as dt
from ..core.arguments import unsupported
from ..core.record import record
from ..ir.node import Node, apply
from ..ir.op import Kind, Spec, intern
from . import build as b
from . import derived as d
from . import powers
from .composite import Expandable, composite
from .elementary import elementary, stepwise
from .special import special


def of_two(name: str, x: Node, y: Node) -> Node:
    """A function of two floating point numbers."""
    dtype = d.to_float(x, y)
    return apply(special(name), b.cast(x, dtype), b.cast(y, dtype))


def of_two_floats(name: str, x: Node, y: Node) -> Node:
    """The same; NotImplementedError for two integers."""
    dtype = d.result_dtype(x, y)
    if not dtype.is_floating_point:
        raise unsupported(f"{name}_cpu", dtype)
    return of_two(name, x, y)


@record(eq=False)
class Xlogy(Expandable, kind=Kind.COMPOSITE):
    """x log(y), 0 where x is 0 and y is not NaN: [*s], [*t] -> their broadcast shape.

    The gradient by x is log(y) also where x is 0, but where log(y) is none.
    """

    def infer(self, *inputs: Spec) -> Spec:
        return b.MUL.infer(*inputs)

    def expand(self, *xs: Node) -> Node:
        x, y = xs
        zero = b.full_like(x, 0.0)
        # 0 log(y) is 0 also of y <= 0; where y is NaN, so is the product.
        gone = b.logical_and(b.eq(x, zero), b.eq(y, y))
        product = b.mul(x, b.log(b.where(gone, b.full_like(y, 1.0), y)))
        return b.where(gone, zero, product)

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node:
        x, y = inputs
        if index:
            return b.unbroadcast(b.div(b.mul(ct, x), y), y.shape)
        none = b.logical_and(b.eq(x, b.full_like(x, 0.0)), b.le(y, b.full_like(y, 0.0)))
        slope = apply(self, ct, y)
        return b.unbroadcast(b.where(none, b.full_like(slope, 0.0), slope), x.shape)


_XLOGY = intern(Xlogy())


def xlogy(x: d.Operand, y: d.Operand) -> Node:
    """x log(y), 0 where x is 0 and y is not NaN."""
    dtype = d.to_float(x, y)
    return apply(_XLOGY, d.term(x, dtype), d.term(y, dtype))


def _within(x: Node, eps: float) -> Node:
    low, high = b.full_like(x, eps), b.full_like(x, 1.0 - eps)
    return b.where(b.lt(x, low), low, b.where(b.lt(high, x), high, x))


def logit(x: Node, eps: float | None) -> Node:
    """log(x / (1 - x)), of x limited to [eps, 1 - eps]."""
    x = d.cast_float(x)
    if eps is not None and eps >= 0.0:
        x = apply(composite("Within", _within, eps), x)
    return apply(special("logit"), x)


def scaled(x: Node, factor: float) -> Node:
    """x times a constant; integers become floating point."""
    x = d.cast_float(x)
    return b.mul(x, b.full_like(x, factor))


def heaviside(x: Node, values: Node) -> Node:
    """0 below 0, 1 above, and ``values`` at 0; 0 of NaN."""
    if x.dtype is not values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    above = b.cast(d.compare("gt", x, 0), x.dtype)
    return b.where(d.compare("eq", x, 0), values, above)


def _known(x: Node, y: Node, lowest: bool) -> Node:
    first = b.le(x, y) if lowest else b.le(y, x)
    return b.where(b.logical_or(first, b.ne(y, y)), x, y)


def known_extreme(x: Node, y: Node, lowest: bool) -> Node:
    """The larger (smaller), which is NaN only if both are; x of two that are equal."""
    dtype = d.result_dtype(x, y)
    if not dtype.is_floating_point:
        return d.minimum(x, y) if lowest else d.maximum(x, y)
    op = composite("Fmin" if lowest else "Fmax", _known, lowest)
    return apply(op, b.cast(x, dtype), b.cast(y, dtype))


def float_power(x: d.Operand, y: d.Operand) -> Node:
    """x ** y in float64."""
    x, y = (b.cast(v, dt.float64) if isinstance(v, Node) else v for v in (x, y))
    return powers.pow(x, y)


def _ldexp(x: Node, n: Node) -> Node:
    # A third of what turns the smallest number into infinity, or that into 0, is a power of 2.
    limit = b.full_like(n, 378.0 if n.dtype is dt.float32 else 3066.0)
    endless = b.eq(apply(b.ABS, n), b.full_like(n, math.inf))
    plain = b.mul(x, apply(elementary("exp2"), n))
    n = d.clamp(n, b.neg(limit), limit)
    third = apply(stepwise("trunc"), b.mul(n, b.full_like(n, 1.0 / 3.0)))
    power = apply(elementary("exp2"), third)
    rest = apply(elementary("exp2"), b.sub(b.sub(n, third), third))
    return b.where(endless, plain, b.mul(b.mul(b.mul(x, power), power), rest))


_LDEXP = composite("Ldexp", _ldexp)


def ldexp(x: Node, n: Node) -> Node:
    """x 2**n, also where that power is too large or too small for itself."""
    if n.dtype is dt.bool_ and x.dtype.is_floating_point:
        raise unsupported("ldexp_cpu_exp", n.dtype)
    dtype = d.to_float(x, n)
    return apply(_LDEXP, b.cast(x, dtype), b.cast(n, dtype))
