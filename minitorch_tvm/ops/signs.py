"""The sign bits of numbers: of -0 and NaN, too."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from ..core import dtype as dt
from ..core.dtype import DType
from ..core.record import record
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, intern
from ..ir.te import TE, Expr
from . import build as b
from . import derived as d
from . import elementwise as ew


@record(eq=False)
class Signbit(ew.Float, kind=Kind.INJECTIVE):
    """signbit(x: f[*s]) -> bool[*s]."""

    differentiable = False

    def result_dtype(self, *dtypes: DType) -> DType:
        super().result_dtype(*dtypes)
        return dt.bool_

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.sign_bit(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.signbit(*xs)


@record(eq=False)
class Copysign(ew.Float, kind=Kind.INJECTIVE):
    """copysign(x: f[*s], y: f[*s]) -> f[*s]: |x| with the sign of y, whose gradient is 0.

    That of x is 0 where x is 0, as in PyTorch.
    """

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        x, y = xs
        size = te.keep(te.abs(x))
        return te.select(te.sign_bit(y), te.neg(size), size)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.copysign(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        x, sign = xs
        zero = f.full_like(ct, 0.0)
        slope = f.where(f.eq(x, f.full_like(x, 0.0)), zero, f.mul(ct, f.div(y, x)))
        return f.unbroadcast(slope, x.shape), f.full(sign.shape, 0.0, sign.dtype)


SIGNBIT = intern(Signbit())
COPYSIGN = intern(Copysign())


def signbit(x: Node) -> Node:
    """Where x is negative, -0 or a NaN of that sign."""
    if x.dtype.is_floating_point:
        return apply(SIGNBIT, x)
    if x.dtype is dt.bool_ or x.dtype.is_unsigned:
        return b.full(x.shape, False, dt.bool_)
    return b.lt(x, b.full_like(x, 0))


def copysign(x: Node, y: d.Operand) -> Node:
    """|x| with the sign of y; integers become floating point."""
    dtype = d.to_float(x, y)
    return apply(COPYSIGN, b.cast(x, dtype), d.term(y, dtype))


def is_infinity(x: Node, positive: bool) -> Node:
    """Where x is infinite, of one sign."""
    if not x.dtype.is_floating_point:
        return b.full(x.shape, False, dt.bool_)
    return b.eq(x, b.full_like(x, math.inf if positive else -math.inf))
