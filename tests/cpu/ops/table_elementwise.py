"""Rows of the elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from row import EVERY, FLOATS, NUMBERS, ONE, TWO, Bad, Row, ops

from minitorch_tvm.core import dtype as dt
from minitorch_tvm.ir.op import Op, intern
from minitorch_tvm.ops import elementwise as ew
from minitorch_tvm.ops.normalization import Normalised
from minitorch_tvm.ops.random import BoxMuller, ShiftRight, Unit
from minitorch_tvm.ops.softmax import Weights

NAN, INF = math.nan, math.inf
EDGES = [0.0, -0.0, 1.0, -1.0, 1e-3, -30.0, 30.0, 200.0, -200.0, 1e30, INF, -INF, NAN, 1e-40]
LEFT = [0.0, -0.0, 1.0, 1.0, NAN, 1.0, INF, -INF, INF, -3.0, 2.0, NAN]
RIGHT = [-0.0, 0.0, 1.0, 2.0, 1.0, NAN, INF, INF, -INF, 2.0, -0.5, NAN]


def scalar(f: Callable[..., Any]) -> Callable[..., Any]:
    """An oracle from a function of Python numbers, one element at a time."""

    def oracle(op: Op, *xs: Any) -> Any:
        spread = np.broadcast_arrays(*xs)
        flat = [
            f(*(x.item() for x in items)) for items in zip(*(a.flat for a in spread), strict=True)
        ]
        return np.array(flat).reshape(spread[0].shape)

    return oracle


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return INF


def _log(x: float) -> float:
    return NAN if x < 0 or x != x else -INF if x == 0 else math.log(x)


def _div(a: float, b: float) -> float:
    if b == 0:
        return NAN if a == 0 or a != a else math.copysign(INF, a) * math.copysign(1, b)
    return a / b


def _pow(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return -INF if a < 0 and b % 2 == 1 else INF
    except ValueError:
        if a == 0:
            return math.copysign(INF, a) if b % 2 == 1 else INF
        return NAN


def _max(a: float, b: float) -> float:
    return NAN if a != a or b != b else a if a > b else b


def _min(a: float, b: float) -> float:
    return NAN if a != a or b != b else a if a < b else b


def _sigmoid(x: float) -> float:
    return x if x != x else 1 / (1 + _exp(-x))


def _trig(f: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: f(x) if math.isfinite(x) else NAN


def _cast(op: Any, x: Any) -> Any:
    name = op.dtype.name
    if name == "bool":
        return x != 0
    return x if name.startswith("float") else np.trunc(x)


def _mixed(op: Op) -> Bad:
    message = f"{op.name} expects operands of one dtype, but got [mt.float32, mt.int64]"
    return Bad(op, ("float32 2", "int64 2"), TypeError, message)


def _shapes(op: Op, dtype: str) -> Bad:
    return Bad(
        op,
        (f"{dtype} 2 3", f"{dtype} 4"),
        RuntimeError,
        "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1",
    )


def unary(cls: type[Op], f: Callable[..., Any], **more: Any) -> Row:
    """A function of one floating point operand."""
    op = intern(cls())
    bad = Bad(
        op, ("int64 2",), TypeError, f"{op.name} expects floating point operands, but got mt.int64"
    )
    more.setdefault("bad", (bad,))
    more.setdefault("specials", ((op, (EDGES,)),))
    return Row(cls, scalar(f), ops(op, *ONE), grad=(0,), **more)


def binary(cls: type[Op], f: Callable[..., Any], dtypes: tuple[str, ...], **more: Any) -> Row:
    """A function of two operands of one dtype."""
    op = intern(cls())
    words = f"{op.name} is not defined on bool tensors"
    if "int64" not in dtypes:
        words = f"{op.name} expects floating point operands, but got mt.bool"
    refused = Bad(op, ("bool 2", "bool 2"), TypeError, words)
    bad = [_mixed(op), _shapes(op, "float32"), refused]
    more.setdefault("specials", ((op, (LEFT, RIGHT)),))
    return Row(cls, scalar(f), ops(op, *TWO), dtypes=dtypes, bad=tuple(bad), **more)


def _numbers_only(cls: type[Op]) -> tuple[Bad, ...]:
    op = intern(cls())
    return (Bad(op, ("bool 2",), TypeError, f"{op.name} is not defined on bool tensors"),)


def logical(cls: type[Op], f: Callable[..., Any], count: int) -> Row:
    """A function of bools."""
    op = intern(cls())
    got = ", ".join(["mt.bool", "mt.int32"][-count:])
    words = f"{op.name} expects bool tensors, but got [{got}]"
    bad = [Bad(op, ("bool 2", "int32 2")[-count:], TypeError, words)]
    if count == 2:
        bad.append(_shapes(op, "bool"))
    return Row(
        cls, scalar(f), ops(op, *(TWO if count == 2 else ONE)), dtypes=("bool",), bad=tuple(bad)
    )


_WHERE = intern(ew.Where())
_SHIFT = intern(ShiftRight(8))
_UNIT = intern(Unit(dt.float32))

ROWS = (
    binary(ew.Add, lambda a, b: a + b, NUMBERS, grad=(0, 1)),
    binary(ew.Sub, lambda a, b: a - b, NUMBERS, grad=(0, 1)),
    binary(ew.Mul, lambda a, b: a * b, NUMBERS, grad=(0, 1)),
    binary(ew.Div, _div, FLOATS, grad=(0, 1), low=0.4),
    binary(ew.Pow, _pow, FLOATS, grad=(0, 1), low=0.3, high=2.5),
    binary(ew.Maximum, _max, NUMBERS, grad=(0, 1)),
    binary(ew.Minimum, _min, NUMBERS, grad=(0, 1)),
    unary(
        ew.Neg,
        lambda x: -x,
        dtypes=NUMBERS[:4],
        bad=(
            *_numbers_only(ew.Neg),
            Bad(
                intern(ew.Neg()),
                ("uint8 2",),
                TypeError,
                "Neg is not defined on unsigned integers",
            ),
        ),
    ),
    unary(ew.Abs, abs, dtypes=NUMBERS, bad=_numbers_only(ew.Abs)),
    unary(ew.Relu, lambda x: 0 if x <= 0 else x, dtypes=NUMBERS, bad=_numbers_only(ew.Relu)),
    unary(ew.Exp, _exp),
    unary(ew.Log, _log, low=0.2, high=3.0),
    unary(ew.Sqrt, lambda x: math.sqrt(x) if x >= 0 else NAN, low=0.2, high=3.0),
    unary(ew.Erf, math.erf),
    unary(ew.NormalCdf, lambda x: math.erfc(-x / math.sqrt(2.0)) / 2.0),
    unary(ew.NormalDensity, lambda x: _exp(-x * x / 2.0) / math.sqrt(2.0 * math.pi)),
    unary(ew.Tanh, math.tanh),
    unary(ew.Sigmoid, _sigmoid),
    # Arguments up to a few hundred: beyond, float32 spacing itself exceeds a radian.
    unary(ew.Sin, _trig(math.sin), specials=((intern(ew.Sin()), (EDGES[:9] + EDGES[10:],)),)),
    unary(ew.Cos, _trig(math.cos), specials=((intern(ew.Cos()), (EDGES[:9] + EDGES[10:],)),)),
    # The value is the first operand; its cotangents are tested where normalisations are.
    Row(
        Normalised,
        lambda op, y, *rest: y,
        (
            (intern(Normalised((1,), (False, False))), ((2, 3), (2, 3), (2, 3), (2, 1))),
            (intern(Normalised((0,), (False, False))), ((7, 1), (7, 1), (7, 1), (1, 1))),
        ),
        inputs="nnnn",
    ),
    Row(
        Weights,  # as above, where softmax is
        lambda op, y, x: y,
        ((intern(Weights(1)), ((2, 3), (2, 3))), (intern(Weights(0)), ((7, 1), (7, 1)))),
        inputs="nn",
    ),
    Row(
        ew.Where,
        lambda op, c, a, b: np.where(c, a, b),
        ops(_WHERE, ((2, 3), (2, 3), (2, 3)), ((3,), (2, 1), ()), ((1,), (5,), (5,)), ((0,),) * 3),
        inputs="bnn",
        dtypes=EVERY,
        grad=(1, 2),
        specials=((_WHERE, ([1.0, 0.0], [NAN, 1.0], [2.0, INF])),),
        bad=(
            Bad(
                _WHERE,
                ("float32 2", "float32 2", "float32 2"),
                RuntimeError,
                "where expected condition to be a boolean tensor, but got a tensor with dtype "
                "Float",
            ),
            Bad(
                _WHERE,
                ("bool 2", "float32 2", "int64 2"),
                TypeError,
                "Where expects operands of one dtype, but got [mt.float32, mt.int64]",
            ),
        ),
    ),
    Row(
        ew.Cast,
        _cast,
        tuple(
            case
            for target in (dt.bool_, dt.int32, dt.int64, dt.float32, dt.float64)
            for case in ops(ew.Cast(target), *ONE[:4])
        ),
        dtypes=EVERY,
        low=-9.0,
        high=9.0,
        result="attribute",
        specials=((intern(ew.Cast(dt.bool_)), ([NAN, 0.0, -0.0, 0.5, INF],)),),
    ),
    Row(ew.Detach, lambda op, x: x, ops(ew.Detach(), *ONE), dtypes=EVERY),
    Row(ew.Clone, lambda op, x: x, ops(ew.Clone(), *ONE), dtypes=EVERY, grad=(0,)),
    binary(ew.Eq, lambda a, b: a == b, NUMBERS, result="bool"),
    binary(ew.Ne, lambda a, b: a != b, NUMBERS, result="bool"),
    binary(ew.Lt, lambda a, b: a < b, NUMBERS, result="bool"),
    binary(ew.Le, lambda a, b: a <= b, NUMBERS, result="bool"),
    logical(ew.And, lambda a, b: a and b, 2),
    logical(ew.Or, lambda a, b: a or b, 2),
    logical(ew.Not, lambda x: not x, 1),
    Row(
        ShiftRight,
        lambda op, x: x >> op.bits,
        ops(_SHIFT, *ONE) + ops(ShiftRight(31), ((5,),)),
        inputs="u",
        dtypes=("uint32",),
        bad=(Bad(_SHIFT, ("int32 2",), TypeError, "ShiftRight expects uint32, but got mt.int32"),),
    ),
    Row(
        Unit,
        lambda op, x: (x >> 8) / 2.0**24,
        ops(_UNIT, *ONE),
        inputs="u",
        dtypes=("uint32",),
        result="float32",
        bad=(Bad(_UNIT, ("int32 2",), TypeError, "Unit expects uint32, but got mt.int32"),),
    ),
    Row(
        BoxMuller,
        lambda op, u, v: np.sqrt(-2 * np.log(1 - u)) * np.cos(2 * np.pi * v),
        ops(BoxMuller(), *TWO),
        low=0.0,
        high=0.999,
    ),
)
