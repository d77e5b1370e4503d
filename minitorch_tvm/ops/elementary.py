"""Elementary functions of the C library, steps such as floor and sign, and whole quotients."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..core.record import record
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, intern
from ..ir.te import TE, Expr
from . import build as b
from . import elementwise as ew


def _one(x: Node) -> Node:
    return b.full_like(x, 1.0)


def _square(x: Node) -> Node:
    return b.mul(x, x)


def _root(x: Node) -> Node:
    return apply(b.SQRT, x)


def _scaled_quotient(ct: Node, x: Node, base: float) -> Node:
    return b.div(ct, b.mul(x, b.full_like(x, math.log(base))))


# The cotangent of x from that of y = f(x).
_COTANGENTS: dict[str, Callable[[Node, Node, Node], Node]] = {
    "log1p": lambda ct, y, x: b.div(ct, b.add(x, _one(x))),
    "expm1": lambda ct, y, x: b.mul(ct, b.add(y, _one(y))),
    "log2": lambda ct, y, x: _scaled_quotient(ct, x, 2.0),
    "log10": lambda ct, y, x: _scaled_quotient(ct, x, 10.0),
    "exp2": lambda ct, y, x: b.mul(ct, b.mul(y, b.full_like(y, math.log(2.0)))),
    "tan": lambda ct, y, x: b.mul(ct, b.add(_square(y), _one(y))),
    "asin": lambda ct, y, x: b.div(ct, _root(b.sub(_one(x), _square(x)))),
    "acos": lambda ct, y, x: b.neg(b.div(ct, _root(b.sub(_one(x), _square(x))))),
    "atan": lambda ct, y, x: b.div(ct, b.add(_square(x), _one(x))),
    "sinh": lambda ct, y, x: b.mul(ct, apply(elementary("cosh"), x)),
    "cosh": lambda ct, y, x: b.mul(ct, apply(elementary("sinh"), x)),
}
_NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}


class Named(ew.Elementwise):
    """Base of ops that are told apart by the name of their function."""

    function: str

    @property
    def name(self) -> str:
        return self.function.title()

    def __str__(self) -> str:
        return f"{self.name}(function={self.function!r})"


@record(eq=False)
class Elementary(Named, ew.Float, kind=Kind.INJECTIVE):
    """elementary(x: f[*s]) -> f[*s]: the function of the C library that has this name."""

    function: str

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.library(self.function, xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return getattr(np, _NUMPY.get(self.function, self.function))(xs[0])

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (_COTANGENTS[self.function](ct, y, xs[0]),)


@record(eq=False)
class Stepwise(Named, ew.Float, kind=Kind.INJECTIVE):
    """stepwise(x: f[*s]) -> f[*s]: floor, ceil, trunc, round (half to even) or sign.

    The gradient is 0, and so is the sign of NaN, as in PyTorch.
    """

    function: str

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        (x,) = xs
        if self.function != "sign":
            return te.rounded(self.function, x)
        zero = te.zero_like(x)
        return te.select(x > zero, zero + 1.0, te.select(x < zero, zero - 1.0, zero))

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        (x,) = xs
        if self.function == "sign":
            return (np.asarray(x > 0).astype(x.dtype) - np.asarray(x < 0)).astype(x.dtype)
        return getattr(np, self.function)(x)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        return (f.full(x.shape, 0.0, x.dtype),)


@record(eq=False)
class Fmod(ew.Float, kind=Kind.INJECTIVE):
    """fmod(a: f[*s], b: f[*s]) -> f[*s]: what is left of a by b, exact, with the sign of a."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.library("fmod", xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.fmod(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        x, divisor = xs
        d_divisor = None
        if divisor.requires_grad:
            quotient = apply(stepwise("trunc"), f.div(x, divisor))
            d_divisor = f.unbroadcast(f.neg(f.mul(ct, quotient)), divisor.shape)
        return f.unbroadcast(ct, x.shape) if x.requires_grad else None, d_divisor


@record(eq=False)
class Quotient(ew.Float, kind=Kind.INJECTIVE):
    """quotient(a: f[*s], b: f[*s]) -> f[*s]: a / b rounded down or toward zero; gradients are 0."""

    down: bool

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        x, y = xs
        plain = te.keep(te.div(x, y))
        if not self.down:
            return te.rounded("trunc", plain)
        # Rounding may have made the plain quotient an integer that is too large.  What is left of
        # the division is exact, and without it the quotient is an integer but for rounding.
        rest = te.keep(te.library("fmod", x, y))
        below = te.any(te.all(rest < 0.0, y > 0.0), te.all(rest > 0.0, y < 0.0))
        near = te.keep(te.div(te.sub(x, rest), y))
        near = te.keep(te.select(below, near - 1.0, near))
        floor = te.keep(te.rounded("floor", near))
        floor = te.select(te.sub(near, floor) > 0.5, floor + 1.0, floor)
        signed_zero = te.rounded("trunc", plain * 0.5)
        inside = te.select(te.equal(near, te.zero_like(x)), signed_zero, floor)
        return te.select(te.equal(y, te.zero_like(x)), plain, inside)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        if not self.down:
            return np.trunc(np.divide(*xs))
        x, y = xs
        # By infinity, numpy divides as the plain quotient is rounded.
        return np.where(np.isinf(x) & (y != 0), np.nan, np.floor_divide(x, y))

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return tuple(f.full(x.shape, 0.0, x.dtype) for x in xs)


@record(eq=False)
class IntegerQuotient(ew.Whole, kind=Kind.INJECTIVE):
    """integerquotient(a: i[*s], b: i[*s]) -> i[*s]: a / b rounded toward zero; 0 where b is 0."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.quotient(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        x, y = map(np.asarray, xs)
        with np.errstate(all="ignore"):
            down = np.floor_divide(x, y)
            rest = x - down * y
        return (down + ((rest != 0) & (down < 0) & (y != 0))).astype(x.dtype)


def elementary(function: str) -> Elementary:
    """The op of one of the C library's functions."""
    return _ELEMENTARY[function]


def stepwise(function: str) -> Stepwise:
    """The op of floor, ceil, trunc, round or sign."""
    return _STEPWISE[function]


_ELEMENTARY = {name: intern(Elementary(name)) for name in _COTANGENTS}
_STEPWISE = {name: intern(Stepwise(name)) for name in ("floor", "ceil", "trunc", "round", "sign")}
FMOD = intern(Fmod())
QUOTIENTS = {down: intern(Quotient(down)) for down in (False, True)}
INTEGER_QUOTIENT = intern(IntegerQuotient())
