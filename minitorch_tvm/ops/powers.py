"""Powers: multiplications where the exponent is a small number, repeated squaring of integers."""

from __future__ import annotations

from ..core import dtype as dt
from ..core.arguments import in_64_bits, unsupported
from ..ir.node import Node, apply
from . import build as b
from . import derived as d
from . import pointwise as pw
from .composite import composite


def pow(x: d.Operand, y: d.Operand) -> Node:
    """x ** y.

    A Python exponent of -2..3, 0.5 or -0.5 becomes multiplications, a division or a root (it is
    then part of the program key).  Integers wrap; a tensor of negative exponents gives them 0
    where the base is neither 1 nor -1.  Raises RuntimeError for integers to the power of a negative
    number and NotImplementedError for bools to the power of bools.
    """
    if isinstance(x, Node) and not isinstance(y, Node):
        dtype = x.dtype if x.dtype.is_floating_point else d.result_dtype(x, y)
        if isinstance(y, int):
            in_64_bits(y)
        if not dtype.is_floating_point:
            if y < 0:
                raise RuntimeError("Integers to negative integer powers are not allowed.")
            base = d.lift(x, dt.int64 if dtype is dt.bool_ else dtype)
            return _integer_power(base, int(y))
        base = b.cast(x, dtype)
        if y == 0.5:
            return apply(b.SQRT, base)
        if y == -0.5:
            return pw.rsqrt(base)
        if y in (-1, -2):
            # Its square: the gradient of one divided by a square has that one's square in it.
            return _integer_power(pw.reciprocal(base), -int(y))
        if y == 1:
            return d.clone(base)
        if y in (2, 3):
            return _integer_power(base, int(y))
    dtype = d.result_dtype(x, y)
    if dtype is dt.bool_:
        raise unsupported("pow", dtype)
    kind = b.POW if dtype.is_floating_point else _INTEGER_POW
    return apply(kind, d.term(x, dtype), d.term(y, dtype))


def _integer_pow(x: Node, y: Node) -> Node:
    """x ** y of integers: the exponent's bits from the highest down, a square for each of them."""
    negative = None if x.dtype.is_unsigned else b.lt(y, b.full_like(y, 0))
    low, end = x.dtype.range
    # Of a negative exponent only the parity counts, which the lowest number does not change;
    # the absolute value would not do, for the lowest number has none.
    left = y if negative is None else b.where(negative, b.sub(y, b.full_like(y, low)), y)
    result = b.full_like(x, 1)
    for bit in reversed(range(end.bit_length() - 1)):
        weight = b.full_like(y, 1 << bit)
        chosen = b.le(weight, left)
        left = b.where(chosen, b.sub(left, weight), left)
        square = b.mul(result, result)
        result = b.where(chosen, b.mul(square, x), square)
    if negative is None:
        return result
    # 1 / x**|y| truncates to 0, except for the two bases that are their own inverse.
    own = b.logical_or(b.eq(x, b.full_like(x, 1)), b.eq(x, b.full_like(x, -1)))
    fraction = b.logical_and(negative, b.logical_not(own))
    return b.where(fraction, b.full_like(x, 0), result)


_INTEGER_POW = composite("IntegerPow", _integer_pow)


def _integer_power(x: Node, exponent: int) -> Node:
    """x multiplied by itself, by repeated squaring."""
    result: Node | None = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else b.mul(result, square)
        exponent >>= 1
        if exponent:
            square = b.mul(square, square)
    return b.expand(b.full_like(x, 1), x.shape) if result is None else result
