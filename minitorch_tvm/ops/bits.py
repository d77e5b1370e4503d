"""Integers bit by bit, and shifts of them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..core import dtype as dt
from ..core.arguments import unsupported
from ..core.record import record
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, intern
from ..ir.te import TE, Expr
from . import build as b
from . import derived as d
from . import elementwise as ew

_NUMPY = {"left": "left_shift", "right": "right_shift"}
_KERNELS = {"left": "lshift_cpu", "right": "rshift_cpu"}


@record(eq=False)
class Bitwise(ew.Whole, kind=Kind.INJECTIVE):
    """bitwise(a: i[*s], b: i[*s]) -> i[*s]: and, or, xor, or a shifted left or right by b bits."""

    how: str

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.bitwise(self.how, xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return getattr(np, _NUMPY.get(self.how) or f"bitwise_{self.how}")(*xs)


OPS = {how: intern(Bitwise(how)) for how in ("and", "or", "xor", "left", "right")}


def _logical(how: str, x: Node, y: Node) -> Node:
    if how == "xor":
        return d.logical_xor(x, y)
    return (b.logical_and if how == "and" else b.logical_or)(x, y)


def bitwise(how: str, x: d.Operand, y: d.Operand) -> Node:
    """and, or, xor of integers or bools, or x shifted by y bits to the left or right.

    Raises NotImplementedError for floating point operands, and for bools that are to be shifted.
    """
    dtype = d.result_dtype(x, y)
    kernel = _KERNELS.get(how) or f"bitwise_{how}_cpu"
    if dtype is dt.bool_ and how not in _KERNELS:
        return _logical(how, d.lift(x, dtype), d.lift(y, dtype))
    if dtype is dt.bool_ or dtype.is_floating_point:
        raise unsupported(kernel, dtype)
    op: Op = OPS[how]
    return apply(op, d.term(x, dtype), d.term(y, dtype))


def invert(x: Node) -> Node:
    """Every bit of an integer, or a bool, turned; NotImplementedError for floating point."""
    if x.dtype is dt.bool_:
        return b.logical_not(x)
    if x.dtype.is_floating_point:
        raise unsupported("bitwise_not_cpu", x.dtype)
    return apply(OPS["xor"], x, b.full_like(x, x.dtype.range[1] - 1 if x.dtype.is_unsigned else -1))
