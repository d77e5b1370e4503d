"""Whole quotients and what they leave, of floating point numbers and integers."""

from __future__ import annotations

from ..ir.node import Node, apply
from ..ir.op import Op
from . import build as b
from . import derived as d
from .composite import composite
from .elementary import FMOD, INTEGER_QUOTIENT, QUOTIENTS


def quotient(x: Node, y: Node, down: bool) -> Node:
    """x / y of one dtype, rounded down or toward zero.  No integer y may be 0."""
    if x.dtype.is_floating_point:
        return apply(QUOTIENTS[down], x, y)
    toward_zero = apply(INTEGER_QUOTIENT, x, y)
    return apply(_FLOORED, toward_zero, x, y) if down and not x.dtype.is_unsigned else toward_zero


def _below(rest: Node, y: Node) -> Node:
    """Where a rest of a division toward zero has not the sign of the divisor."""
    zero = b.full_like(rest, 0)
    return b.logical_and(b.ne(rest, zero), d.logical_xor(b.lt(rest, zero), b.lt(y, zero)))


def _floored(toward_zero: Node, x: Node, y: Node) -> Node:
    rest = b.sub(x, b.mul(toward_zero, y))
    lower = b.sub(toward_zero, b.full_like(toward_zero, 1))
    return b.where(_below(rest, y), lower, toward_zero)


_FLOORED = composite("Floored", _floored)


def _fmod(x: Node, y: Node) -> Node:
    if x.dtype.is_floating_point:
        return apply(FMOD, x, y)
    return b.sub(x, b.mul(apply(INTEGER_QUOTIENT, x, y), y))


def _remainder(x: Node, y: Node) -> Node:
    rest = _fmod(x, y)
    return rest if x.dtype.is_unsigned else b.where(_below(rest, y), b.add(rest, y), rest)


_FMOD = composite("Fmod", _fmod)
_REMAINDER = composite("Remainder", _remainder)


def is_floored(op: Op) -> bool:
    """True of what rounds quotients down: of (the quotient toward zero, x, y)."""
    return op is _FLOORED


def is_remainder(op: Op) -> bool:
    """True of what :func:`remainder` records."""
    return op is _REMAINDER


def fmod(x: Node, y: Node) -> Node:
    """What is left of x by y, with the sign of x.  No integer y may be 0."""
    return apply(_FMOD, x, y)


def remainder(x: Node, y: Node) -> Node:
    """What is left of x by y, with the sign of y.  No integer y may be 0."""
    return apply(_REMAINDER, x, y)
