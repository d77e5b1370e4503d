"""Rows of elementary functions, steps and whole quotients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from row import ONE, TWO, Bad, Row, ops
from table_elementwise import EDGES, INF, LEFT, NAN, RIGHT, scalar

from minitorch_tvm.ir.op import Op, intern
from minitorch_tvm.ops import bits
from minitorch_tvm.ops import elementary as el


def _or(f: Callable[[float], float], error: float) -> Callable[[float], float]:
    def safe(x: float) -> float:
        try:
            return f(x)
        except (ValueError, OverflowError):
            return error

    return safe


def _log(f: Callable[[float], float], pole: float) -> Callable[[float], float]:
    return lambda x: -INF if x == pole else NAN if x < pole else f(x)


ELEMENTARY: dict[str, Callable[[float], float]] = {
    "log1p": _log(math.log1p, -1.0),
    "expm1": _or(math.expm1, INF),
    "log2": _log(math.log2, 0.0),
    "log10": _log(math.log10, 0.0),
    "exp2": _or(math.exp2, INF),
    "tan": _or(math.tan, NAN),
    "asin": _or(math.asin, NAN),
    "acos": _or(math.acos, NAN),
    "atan": math.atan,
    "sinh": lambda x: math.copysign(_or(math.sinh, INF)(abs(x)), x),
    "cosh": _or(math.cosh, INF),
}
STEPS: dict[str, Callable[[float], float]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "sign": lambda x: (x > 0) - (x < 0),
}


def _named(functions: dict[str, Callable[[float], float]]) -> Callable[..., Any]:
    return lambda op, x: scalar(functions[op.function])(op, x)


def _step(op: Any, x: Any) -> Any:
    step = STEPS[op.function]
    return scalar(lambda v: float(step(v)) if math.isfinite(v) or step is STEPS["sign"] else v)(
        op, x
    )


def _fmod(a: float, b: float) -> float:
    return _or(lambda _: math.fmod(a, b), NAN)(0.0)


def _quotient(op: Any, x: Any, y: Any) -> Any:
    def one(a: float, b: float) -> float:
        if a != a or b != b or (a == 0 and b == 0):
            return NAN
        if b == 0:
            return math.copysign(INF, a) * math.copysign(1.0, b)
        if math.isinf(a):
            return NAN if op.down or math.isinf(b) else a * math.copysign(1.0, b)
        if math.isinf(b):
            return -1.0 if op.down and a != 0 and (a < 0) != (b < 0) else 0.0
        return a // b if op.down else float(math.trunc(a / b))

    return scalar(one)(op, x, y)


def _not_floats(op: Op, count: int = 1) -> Bad:
    words = f"{op.name} expects floating point operands, but got mt.int64"
    return Bad(op, ("int64 2",) * count, TypeError, words)


_LOG1P, _FLOOR = el.elementary("log1p"), el.stepwise("floor")
_DOWN, _WHOLE = el.QUOTIENTS[True], el.INTEGER_QUOTIENT
_AND = bits.OPS["and"]
_BITS: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "left": lambda a, b: a << b if b >= 0 else 0,
    "right": lambda a, b: a >> b if b >= 0 else -(a < 0),
}


def _bitwise(op: Any, *xs: Any) -> Any:
    one = _BITS[op.how]
    # Python's integers have no end: the lowest 64 bits, and of these as many as a type has.
    low = np.vectorize(lambda *v: one(*map(int, v)) & (1 << 64) - 1, otypes=[np.uint64])
    return low(*xs).view(np.int64)


_SOME: tuple[Any, ...] = (((7,),), ((2, 3),))

ROWS = (
    Row(
        el.Elementary,
        _named(ELEMENTARY),
        ops(_LOG1P, *ONE)
        + tuple(case for name in list(ELEMENTARY)[1:] for case in ops(el.elementary(name), *_SOME)),
        low=0.1,
        high=0.9,
        grad=(0,),
        # Arguments up to a few hundred, for the sake of the tangent.
        specials=tuple((el.elementary(name), (EDGES[:9] + EDGES[10:],)) for name in ELEMENTARY),
        bad=(_not_floats(_LOG1P),),
    ),
    Row(
        el.Stepwise,
        _step,
        ops(_FLOOR, *ONE)
        + tuple(case for name in list(STEPS)[1:] for case in ops(el.stepwise(name), *_SOME)),
        specials=tuple(
            (el.stepwise(name), ([*EDGES, 0.5, 1.5, 2.5, -0.5, -1.5, -0.3],)) for name in STEPS
        ),
        grad=(0,),
        flat=True,
        bad=(_not_floats(_FLOOR),),
    ),
    Row(
        el.Fmod,
        scalar(_fmod),
        ops(el.FMOD, *TWO),
        low=0.4,
        grad=(0, 1),
        specials=((el.FMOD, (LEFT, RIGHT)),),
        bad=(_not_floats(el.FMOD, 2),),
    ),
    Row(
        el.Quotient,
        _quotient,
        ops(_DOWN, *TWO) + ops(el.QUOTIENTS[False], *TWO[:2]),
        low=0.4,
        grad=(0, 1),
        flat=True,
        specials=tuple((op, (LEFT, RIGHT)) for op in el.QUOTIENTS.values()),
        bad=(_not_floats(_DOWN, 2),),
    ),
    Row(
        el.IntegerQuotient,
        scalar(lambda a, b: 0 if b == 0 else int(a / b)),
        ops(_WHOLE, *TWO),
        dtypes=("int32", "int64", "uint8"),
        bad=(
            Bad(
                intern(_WHOLE),
                ("float32 2", "float32 2"),
                TypeError,
                "IntegerQuotient expects integers, but got mt.float32",
            ),
        ),
    ),
    Row(
        bits.Bitwise,
        _bitwise,
        ops(_AND, *TWO)
        + tuple(case for how in list(_BITS)[1:] for case in ops(bits.OPS[how], *TWO[:3])),
        dtypes=("int32", "int64", "uint8"),
        bad=(
            Bad(
                _AND,
                ("float32 2", "float32 2"),
                TypeError,
                "Bitwise expects integers, but got mt.float32",
            ),
            Bad(_AND, ("bool 2", "bool 2"), TypeError, "Bitwise is not defined on bool tensors"),
        ),
    ),
)
