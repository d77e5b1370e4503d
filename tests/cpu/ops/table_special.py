"""The row of inverse hyperbolic and error functions, and of those of two numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

from row import ONE, TWO, Bad, Row, ops
from table_elementwise import EDGES, INF, LEFT, NAN, RIGHT, scalar

from minitorch_tvm.ir.op import Op
from minitorch_tvm.ops import signs
from minitorch_tvm.ops import special as sp


def _inside(f: Callable[[float], float], ends: dict[float, float]) -> Callable[[float], float]:
    """``f``, NaN where it refuses, and what it is at the ends of its domain."""

    def safe(x: float) -> float:
        try:
            return ends[x] if x in ends else f(x)
        except ValueError:
            return NAN

    return safe


def _sinc(x: float) -> float:
    return math.sin(math.pi * x) / (math.pi * x)


def _sinc_slope(x: float) -> float:
    return (math.cos(math.pi * x) - _sinc(x)) / x if abs(x) > 1e-4 else -(math.pi**2) * x / 3


def _erfinv(x: float) -> float:
    if not abs(x) < 1:
        raise ValueError
    return NormalDist().inv_cdf((1 + x) / 2) / math.sqrt(2) if abs(x) > 1e-8 else x * 0.886226925


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return INF
    return math.lgamma(x)


def _digamma(x: float) -> float:
    """By the recurrence, to where the first terms of the asymptotic series are enough."""
    if x == 0 or not abs(x) < INF:
        return math.copysign(INF, -x) if x == 0 else x if x > 0 else NAN
    if x < 0:
        return NAN if x == math.floor(x) else _digamma(1 - x) - math.pi / math.tan(math.pi * x)
    y = x + 1000.0
    series = math.log(y) - 0.5 / y - 1 / (12 * y**2)
    return math.fsum([series, *(-1 / (x + k) for k in range(1000))])


def _trigamma(x: float) -> float:
    if math.isinf(x):
        return 0.0 if x > 0 else NAN
    if x <= 0:
        pole = x == math.floor(x)
        return INF if pole else (math.pi / math.sin(math.pi * x)) ** 2 - _trigamma(1 - x)
    y = x + 1000.0
    series = 1 / y + 0.5 / y**2 + 1 / (6 * y**3)
    return math.fsum([series, *((x + k) ** -2 for k in range(1000))])


def _log_of_sum(base: float) -> Callable[[float, float], float]:
    def log_of_sum(x: float, y: float) -> float:
        if x != x or y != y:
            return NAN
        apart = 0.0 if x == y else abs(x - y)
        return max(x, y) + math.log1p(base**-apart) / math.log(base)

    return log_of_sum


FUNCTIONS: dict[str, Callable[..., float]] = {
    "asinh": math.asinh,
    "acosh": _inside(math.acosh, {}),
    "atanh": _inside(math.atanh, {1.0: INF, -1.0: -INF}),
    "logit": _inside(lambda x: math.log(x) - math.log1p(-x), {0.0: -INF, 1.0: INF}),
    "erfc": math.erfc,
    "erfinv": _inside(_erfinv, {1.0: INF, -1.0: -INF}),
    "sinc": _inside(_sinc, {0.0: 1.0}),
    "sinc_slope": _inside(_sinc_slope, {0.0: 0.0}),
    "lgamma": _lgamma,
    "digamma": _digamma,
    "trigamma": _trigamma,
    "atan2": math.atan2,
    "hypot": math.hypot,
    "logaddexp": _log_of_sum(math.e),
    "logaddexp2": _log_of_sum(2.0),
    "nextafter": math.nextafter,
}
_PAIRS = ("atan2", "hypot", "logaddexp", "logaddexp2", "nextafter")
_ALONE = [name for name in FUNCTIONS if name not in _PAIRS]


def _bad(op: Op, count: int) -> Bad:
    words = f"{op.name} expects floating point operands, but got mt.int64"
    return Bad(op, ("int64 2",) * count, TypeError, words)


_SHAPES: tuple[Any, ...] = (((7,),), ((2, 3),))
_INSIDE = [name for name in _ALONE if name != "acosh"]  # which is NaN below 1

ROWS = (
    Row(
        sp.Special,
        lambda op, *xs: scalar(FUNCTIONS[op.function])(op, *xs),
        tuple(case for name in _INSIDE for case in ops(sp.special(name), *_SHAPES))
        + ops(sp.special("hypot"), *TWO)
        + tuple(case for name in _PAIRS for case in ops(sp.special(name), *TWO[:3])),
        low=0.1,
        high=0.9,
        grad=(0,),
        specials=tuple(
            (sp.special(name), ([*EDGES[:9], *EDGES[10:], 0.5, -0.5, 0.25, 1.5, 1.0001, 7.25],))
            for name in _ALONE
        )
        + tuple((sp.special(name), (LEFT, RIGHT)) for name in _PAIRS if name != "nextafter"),
        bad=(_bad(sp.special("asinh"), 1), _bad(sp.special("hypot"), 2)),
    ),
    Row(
        signs.Signbit,
        scalar(lambda x: math.copysign(1.0, x) < 0),
        ops(signs.SIGNBIT, *ONE),
        result="bool",
        specials=((signs.SIGNBIT, ([*EDGES, -NAN],)),),
        bad=(_bad(signs.SIGNBIT, 1),),
    ),
    Row(
        signs.Copysign,
        scalar(math.copysign),
        ops(signs.COPYSIGN, *TWO),
        low=0.3,
        grad=(0, 1),
        flat=True,
        specials=((signs.COPYSIGN, ([*LEFT, 2.0, -0.0], [*RIGHT, -NAN, -NAN])),),
        bad=(_bad(signs.COPYSIGN, 2),),
    ),
)
