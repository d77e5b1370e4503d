"""Rows of the ops that take elements in order."""

from __future__ import annotations

from typing import Any

import numpy as np
from row import NUMBERS, Bad, Row, Shapes

from minitorch_tvm.ir.op import Op, intern
from minitorch_tvm.ops import ctc
from minitorch_tvm.ops import scan as sc


def _scan(op: Any, x: Any, *factors: Any) -> Any:
    """Each element by itself, from the sum that it stands for."""
    out = np.zeros_like(x)
    n = x.shape[op.dim]
    for i in np.ndindex(*x.shape):
        line = (*i[: op.dim], slice(None), *i[op.dim + 1 :])
        terms, k = x[line], i[op.dim]
        ahead = factors[0][line] if factors else np.ones(n, x.dtype)
        if op.reverse:
            terms, ahead, k = terms[::-1], ahead[::-1], n - 1 - k
        out[i] = sum(terms[r] * np.prod(ahead[r + 1 : k + 1]) for r in range(k + 1))
    return out


def _argsort(op: Any, x: Any) -> Any:
    out = np.zeros(x.shape, np.int64)
    n = x.shape[op.dim]
    for i in np.ndindex(*x.shape):
        if i[op.dim] == 0:
            line = (*i[: op.dim], slice(None), *i[op.dim + 1 :])
            values = x[line].tolist()
            # Python's sort is stable, also backwards.
            order = sorted(
                range(n), key=lambda k: (values[k] != values[k], values[k]), reverse=op.descending
            )
            out[line] = order
    return np.take(out, range(op.count), op.dim)


def _leader(op: Any, x: Any) -> Any:
    """The last of the largest elements of each beginning; the last NaN, if there is one."""
    out = np.zeros(x.shape, np.int64)
    for i in np.ndindex(*x.shape):
        k = i[op.dim]
        line = x[(*i[: op.dim], slice(0, k + 1), *i[op.dim + 1 :])].tolist()
        sign = -1 if op.lowest else 1
        out[i] = max(
            range(k + 1), key=lambda r: (1, 0, r) if line[r] != line[r] else (0, sign * line[r], r)
        )
    return out


def _paths(op: Any, x: Any, skip: Any) -> Any:
    """Sums of products of numbers, not of their logarithms."""
    out = np.zeros_like(x)
    for n, s in np.ndindex(*skip.shape):
        for k in range(len(x)):
            before = out[k - 1, n] if k else np.zeros(len(skip[n]) + 1)
            reached = before[s] + (before[s - 1] if s else 0)
            reached += before[s - 2] if s > 1 and skip[n, s] else 0
            out[k, n, s] = np.exp(x[k, n, s]) * (reached if k else s < 2)
    return np.log(out)


def _scans() -> tuple[tuple[Op, Shapes], ...]:
    shapes = [(0, (7,)), (1, (3, 5)), (0, (4, 2)), (1, (2, 3, 67)), (0, (0, 3)), (1, (2, 1))]
    ops: list[tuple[Op, Shapes]] = []
    for number, (dim, shape) in enumerate(shapes):
        for operands in (1, 2):
            ops.append((intern(sc.Scan(dim, bool((number + operands) % 2))), (shape,) * operands))
    return tuple(ops)


ROWS = (
    Row(
        sc.Scan,
        _scan,
        _scans(),
        dtypes=NUMBERS,
        low=-1.0,
        high=1.0,
        grad=(0, 1),
        bad=(
            Bad(
                intern(sc.Scan(0, False)),
                ("float32 2", "float32 3"),
                TypeError,
                "Scan expects equal operands, but got float32[2] and float32[3]",
            ),
            Bad(
                intern(sc.Scan(0, False)),
                ("bool 2",),
                TypeError,
                "Scan expects numbers; cast bool to an integer first",
            ),
        ),
    ),
    Row(
        sc.Leader,
        _leader,
        tuple(
            (intern(sc.Leader(dim, lowest)), (shape,))
            for dim, shape in (
                *((0, (9,)), (1, (3, 50)), (0, (37, 3)), (1, (2, 5, 2)), (1, (2, 3, 67))),
                *((0, (0, 2)), (1, (2, 1))),
            )
            for lowest in (False, True)
        ),
        dtypes=NUMBERS,
        result="int64",
        specials=tuple(
            (intern(sc.Leader(0, lowest)), (column,))
            for column in (
                [-0.0, 0.0, 1.0, 0.0, -np.inf, 1.0, np.inf, -1.0, np.inf, -np.inf],
                [-np.inf, np.nan, np.inf, -np.inf, -np.nan, 1.0],
            )
            for lowest in (False, True)
        ),
        bad=(
            Bad(
                intern(sc.Leader(0, False)),
                ("bool 2",),
                TypeError,
                "Leader expects numbers; cast bool to an integer first",
            ),
        ),
    ),
    Row(
        sc.ArgSort,
        _argsort,
        tuple(
            (intern(sc.ArgSort(dim, descending, count)), (shape,))
            for dim, shape, count in (
                (0, (9,), 9),
                (1, (3, 120), 120),
                (1, (3, 120), 7),
                (1, (3, 120), 20),
                (0, (37, 3), 4),
                (1, (2, 5, 2), 3),
                (0, (0, 2), 0),
            )
            for descending in (False, True)
        ),
        dtypes=("float32", "int64", "uint8", "bool"),
        result="int64",
        specials=tuple(
            (intern(sc.ArgSort(0, descending, count)), (column * repeats,))
            for column in ([np.nan, 0.0, -0.0, np.inf, -np.nan, -np.inf, 1.0, 0.0],)
            for repeats, count in ((1, 8), (13, 104), (13, 26), (13, 16), (4, 4))
            for descending in (False, True)
        ),
    ),
    Row(
        ctc.Paths,
        _paths,
        tuple(
            (ctc.PATHS, ((times, samples, places), (samples, places)))
            for times, samples, places in (
                *((5, 3, 7), (1, 2, 1), (9, 1, 2), (12, 4, 21), (0, 2, 3), (2, 0, 3), (2, 3, 0)),
            )
        ),
        inputs="nb",
        bad=(
            Bad(
                ctc.PATHS,
                ("float32 2 3 4", "float32 3 4"),
                TypeError,
                "Paths expects numbers and truths, but got float32[2, 3, 4] and float32[3, 4]",
            ),
            Bad(
                ctc.PATHS,
                ("float32 2 3 4", "bool 4 3"),
                RuntimeError,
                "Paths expects [t, n, s] and [n, s], but got float32[2, 3, 4] and bool[4, 3]",
            ),
        ),
    ),
)
