"""Rows of the ops that read and write at computed positions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from row import EVERY, NUMBERS, Bad, Row, Shapes

from minitorch_tvm.ir.op import Op, intern
from minitorch_tvm.ops import gather as ga
from minitorch_tvm.ops import picking as pk


def _take(op: Any, x: Any, index: Any) -> Any:
    """Element by element."""
    shape = (*x.shape[: op.dim], *index.shape, *x.shape[op.dim + 1 :])
    out = np.zeros(shape, x.dtype)
    end = op.dim + index.ndim
    for i in np.ndindex(*shape):
        out[i] = x[(*i[: op.dim], index[i[op.dim : end]], *i[end:])]
    return out


def _scatter(op: Any, ct: Any, index: Any) -> Any:
    end = op.dim + index.ndim
    out = np.zeros((*ct.shape[: op.dim], op.size, *ct.shape[end:]), ct.dtype)
    for i in itertools.product(*map(range, ct.shape)):
        out[(*i[: op.dim], index[i[op.dim : end]], *i[end:])] += ct[i]
    return out


def _last(op: Any, index: Any) -> Any:
    flat = index.reshape(-1).tolist()
    return [len(flat) - 1 - flat[::-1].index(r) if r in flat else -1 for r in range(op.size)]


def _takes() -> tuple[tuple[Op, Shapes], ...]:
    shapes: list[tuple[int, Shapes]] = [
        (0, ((4, 3), (5,))),
        (0, ((4,), (2, 3))),
        (1, ((2, 5, 3), (2,))),
        (2, ((1, 2, 4), (3, 2))),
        (0, ((7, 129), (1,))),
        (0, ((4, 2), (0, 3))),
        (0, ((4, 2), ())),
        (0, ((0, 3), (0,))),
    ]
    return tuple((intern(ga.Take(d)), s) for d, s in shapes)


def _scatters() -> tuple[tuple[Op, Shapes], ...]:
    shapes: list[tuple[int, int, Shapes]] = [
        (0, 4, ((5, 3), (5,))),
        (0, 6, ((2, 3), (2, 3))),
        (1, 5, ((2, 3, 2), (3,))),
        (1, 4, ((2, 2, 2, 3, 2), (2, 2))),
        (0, 4, ((3, 2, 3), (3,))),
        (0, 4, ((11, 131), (11,))),
        (0, 9, ((0, 3), (0,))),
        (0, 4, ((3,), ())),
        (0, 4, ((2, 0), (2,))),
    ]
    return tuple((intern(ga.ScatterAdd(d, n)), s) for d, n, s in shapes)


_TAKE, _SCATTER = intern(ga.Take(0)), intern(ga.ScatterAdd(0, 4))

ROWS = (
    Row(
        ga.Take,
        _take,
        _takes(),
        inputs="nw",
        dtypes=EVERY,
        grad=(0,),
        bad=(
            Bad(
                _TAKE,
                ("float32 4", "float32 2"),
                TypeError,
                "Take expects an int32 or int64 index, but got mt.float32",
            ),
            Bad(_TAKE, ("float32 0 3", "int64 2"), IndexError, "index out of range in self"),
        ),
    ),
    Row(
        ga.ScatterAdd,
        _scatter,
        _scatters(),
        inputs="nw",
        dtypes=NUMBERS,
        grad=(0,),
        bad=(
            Bad(
                _SCATTER,
                ("float32 3 2", "int64 2"),
                RuntimeError,
                "ScatterAdd expects the index [2] at dimension 0 of [3, 2]",
            ),
            Bad(
                _SCATTER,
                ("bool 2", "int64 2"),
                TypeError,
                "ScatterAdd expects numbers; cast bool to an integer first",
            ),
            Bad(
                _SCATTER,
                ("float32 2", "uint8 2"),
                TypeError,
                "ScatterAdd expects an int32 or int64 index, but got mt.uint8",
            ),
        ),
    ),
    Row(
        pk.LastPosition,
        _last,
        tuple(
            (intern(pk.LastPosition(n)), (s,))
            for n, s in ((4, (5,)), (9000, (3, 2)), (6, ()), (4, (2, 3, 3)))
        ),
        inputs="w",
        dtypes=("int64",),
        result="int32",
        bad=(
            Bad(
                intern(pk.LastPosition(4)),
                ("float32 2",),
                TypeError,
                "LastPosition expects an int32 or int64 index, but got mt.float32",
            ),
            Bad(intern(pk.LastPosition(0)), ("int64 2",), IndexError, "index out of range in self"),
        ),
    ),
)
