"""Inverse hyperbolic and error functions and those of two numbers, told apart by name."""

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
from .elementary import Named

_ROOT_OF_PI = math.sqrt(math.pi)


def _one(x: Node) -> Node:
    return b.full_like(x, 1.0)


def _between(x: Node) -> Node:
    """(1 - x) (1 + x)."""
    return b.mul(b.sub(_one(x), x), b.add(x, _one(x)))


def _bell(x: Node, scale: float) -> Node:
    """e**(-x**2), scaled."""
    return b.mul(b.full_like(x, scale), b.exp(b.neg(b.mul(x, x))))


def _acosh_slope(x: Node) -> Node:
    square = b.mul(b.sub(x, _one(x)), b.add(x, _one(x)))
    # At -1 it is -0, whose root would turn the sign.
    return b.div(_one(x), apply(b.SQRT, b.add(square, b.full_like(x, 0.0))))


def _logit_slope(x: Node) -> Node:
    inside = b.logical_and(b.le(b.full_like(x, 0.0), x), b.le(x, _one(x)))
    slope = b.div(_one(x), b.mul(x, b.sub(_one(x), x)))
    return b.where(inside, slope, b.full_like(x, math.nan))


def _sinc_bend(y: Node, x: Node) -> Node:
    """The second derivative, of the first one and x."""
    square, zero = math.pi**2, b.eq(x, b.full_like(x, 0.0))
    some = b.where(zero, _one(x), x)
    bend = b.add(b.mul(b.full_like(x, square), apply(special("sinc"), x)), b.div(b.add(y, y), some))
    return b.where(zero, b.full_like(x, -square / 3.0), b.neg(bend))


def _over_square(numerator: Node, y: Node, x: Node) -> Node:
    """numerator / (x**2 + y**2), whose squares may be too large or too small; 0 where it is 0."""
    size = apply(special("hypot"), y, x)
    some = b.where(b.eq(size, b.full_like(size, 0.0)), _one(size), size)
    return b.div(b.div(numerator, some), some)


def _share(x: Node, other: Node, scale: float) -> Node:
    """How much of the sum of two powers x has: e**x / (e**x + e**other)."""
    return apply(b.SIGMOID, b.mul(b.sub(x, other), b.full_like(x, scale)))


_SLOPES: dict[str, tuple[Callable[..., Node] | None, ...]] = {
    "asinh": (lambda y, x: b.div(_one(x), apply(special("hypot"), x, _one(x))),),
    "acosh": (lambda y, x: _acosh_slope(x),),
    "atanh": (lambda y, x: b.div(_one(x), _between(x)),),
    "logit": (lambda y, x: _logit_slope(x),),
    "erfc": (lambda y, x: _bell(x, -2.0 / _ROOT_OF_PI),),
    "erfinv": (lambda y, x: b.mul(b.full_like(y, _ROOT_OF_PI / 2.0), b.exp(b.mul(y, y))),),
    "sinc": (lambda y, x: apply(special("sinc_slope"), x),),
    "sinc_slope": (_sinc_bend,),
    "lgamma": (lambda y, x: apply(special("digamma"), x),),
    "digamma": (lambda y, x: apply(special("trigamma"), x),),
    "trigamma": (),
    "nextafter": (lambda y, a, c: b.cast(b.ne(a, c), y.dtype), None),
    "atan2": (
        lambda y, up, right: _over_square(right, up, right),
        lambda y, up, right: b.neg(_over_square(up, up, right)),
    ),
    "hypot": (lambda y, a, c: b.div(a, y), lambda y, a, c: b.div(c, y)),
    "logaddexp": (lambda y, a, c: _share(a, c, 1.0), lambda y, a, c: _share(c, a, 1.0)),
    "logaddexp2": (
        lambda y, a, c: _share(a, c, math.log(2.0)),
        lambda y, a, c: _share(c, a, math.log(2.0)),
    ),
}
"""The derivatives by each operand, of the result and the operands; None if it is 0."""


def _one_by_one(function: Callable[[float], float]) -> Callable[..., Any]:
    return lambda np, x: np.vectorize(function, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


def _erfinv(x: float) -> float:
    """By Newton's method in its inverse, from where the tail of the other ends."""
    if not -1.0 < x < 1.0:
        return math.copysign(math.inf, x) if abs(x) == 1.0 else math.nan
    size = abs(x)
    y = math.sqrt(-math.log((1.0 - size) * (1.0 + size)))
    for _ in range(60):
        off = math.erf(y) - size if size < 0.5 else (1.0 - size) - math.erfc(y)
        step = off * _ROOT_OF_PI / 2.0 * math.exp(y * y)
        y -= step / (1.0 + y * step)
        if abs(step) <= 1e-16 * y:
            break
    return math.copysign(y, x)


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a pole, or too large
        return math.inf


def _polygamma(x: float) -> tuple[float, float]:
    """The first two derivatives of log(gamma(x)), far from 0 by their asymptotic series."""
    if x == 0.0:
        return math.copysign(math.inf, -x), math.inf
    if not abs(x) < math.inf:
        return (x, 0.0) if x > 0 else (math.nan, math.nan)
    if x < 0.5:
        if x == math.floor(x):
            return math.nan, math.inf
        first, second = _polygamma(1.0 - x)
        angle = math.pi * math.remainder(x, 1.0)
        ratio = math.pi / math.sin(angle)
        return first - math.pi / math.tan(angle), ratio * ratio - second
    first = second = 0.0
    while x < 20.0:
        first, second, x = first - 1.0 / x, second + 1.0 / (x * x), x + 1.0
    y = 1.0 / x
    z = y * y
    first += math.log(x) - 0.5 * y - z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z / 240)))
    second += y + 0.5 * z + z * y * (1 / 6 - z * (1 / 30 - z * (1 / 42 - z / 30)))
    return first, second


def _logit(np: ModuleType, x: Any) -> Any:
    near = 2.0 * np.arctanh(2.0 * x - 1.0)
    return np.where((x > 0.25) & (x < 0.75), near, np.log(x) - np.log1p(-x)).astype(x.dtype)


def _sinc_slope(np: ModuleType, x: Any) -> Any:
    wide = np.asarray(x).astype(np.float64)
    angle = np.pi * np.where(np.abs(wide) < 1e-3, 1.0, wide)
    far = np.pi * (angle * np.cos(angle) - np.sin(angle)) / angle**2
    square = (np.pi * wide) ** 2
    series = np.pi**2 * wide * (-1 / 3 + square * (1 / 30 - square / 840))
    return np.where(np.abs(wide) < 1e-3, series, far).astype(np.asarray(x).dtype)


_REFERENCES: dict[str, Callable[..., Any]] = {
    "asinh": lambda np, x: np.arcsinh(x),
    "acosh": lambda np, x: np.arccosh(x),
    "atanh": lambda np, x: np.arctanh(x),
    "logit": _logit,
    "erfc": _one_by_one(math.erfc),
    "erfinv": _one_by_one(_erfinv),
    "sinc": lambda np, x: np.sinc(x),
    "sinc_slope": _sinc_slope,
    "lgamma": _one_by_one(_lgamma),
    "digamma": _one_by_one(lambda x: _polygamma(x)[0]),
    "trigamma": _one_by_one(lambda x: _polygamma(x)[1]),
    "nextafter": lambda np, x, y: np.nextafter(x, y),
    "atan2": lambda np, y, x: np.arctan2(y, x),
    "hypot": lambda np, x, y: np.hypot(x, y),
    "logaddexp": lambda np, x, y: np.logaddexp(x, y),
    "logaddexp2": lambda np, x, y: np.logaddexp2(x, y),
}


@record(eq=False)
class Special(Named, ew.Float, kind=Kind.INJECTIVE):
    """special(*xs: f[*s]) -> f[*s]: the function of one or two numbers that has this name.

    sinc_slope is the derivative of sinc.
    """

    function: str

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.library(self.function, *xs)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return _REFERENCES[self.function](np, *xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        if not _SLOPES[self.function]:
            return super().vjp(f, ct, y, *xs)
        cotangents: list[Node | None] = []
        for slope, x in zip(_SLOPES[self.function], xs, strict=True):
            if slope is None:
                cotangents.append(f.full(x.shape, 0.0, x.dtype))
            elif x.requires_grad:
                cotangents.append(f.unbroadcast(f.mul(ct, slope(y, *xs)), x.shape))
            else:
                cotangents.append(None)
        return tuple(cotangents)


def special(function: str) -> Special:
    """The op of one of these functions."""
    return _SPECIAL[function]


_SPECIAL = {name: intern(Special(name)) for name in _SLOPES}
