"""Rows of convolutions and pooling; the oracles walk every window element in Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from row import Bad, Row, ops

from minitorch_tvm.ir.op import intern
from minitorch_tvm.ops import conv as cv
from minitorch_tvm.ops import pool as pl

_ONE = (1, 1)
_NONE = (0, 0)


def _taps(
    op: Any, out: tuple[int, int], kernel: tuple[int, int], size: tuple[int, int]
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(output y, x, kernel a, b, input y, x) of every product that exists."""
    for i, j, a, b in itertools.product(*map(range, (*out, *kernel))):
        y = i * op.stride[0] + a * op.dilation[0] - op.padding[0]
        x = j * op.stride[1] + b * op.dilation[1] - op.padding[1]
        if 0 <= y < size[0] and 0 <= x < size[1]:
            yield i, j, a, b, y, x


def _joined(op: Any, rows: int, columns: int) -> Iterator[tuple[int, int, int]]:
    """(output channel, weight channel, input channel); ``columns`` are channels per group."""
    per_group = rows // op.groups
    for o, c in itertools.product(range(rows), range(columns)):
        yield o, c, o // per_group * columns + c


def _conv(op: Any, x: Any, w: Any) -> Any:
    size, kernel = x.shape[2:], w.shape[2:]
    out = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(size, op.padding, op.dilation, kernel, op.stride, strict=True)
    )
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for o, c, ic in _joined(op, w.shape[0], w.shape[1]):
        for i, j, a, b, u, v in _taps(op, out, kernel, size):
            y[:, o, i, j] += x[:, ic, u, v] * w[o, c, a, b]
    return y


def _conv_input(op: Any, ct: Any, w: Any) -> Any:
    dx = np.zeros((ct.shape[0], w.shape[1] * op.groups, *op.size))
    for o, c, ic in _joined(op, w.shape[0], w.shape[1]):
        for i, j, a, b, u, v in _taps(op, ct.shape[2:], w.shape[2:], op.size):
            dx[:, ic, u, v] += ct[:, o, i, j] * w[o, c, a, b]
    return dx


def _conv_weight(op: Any, x: Any, ct: Any) -> Any:
    dw = np.zeros((ct.shape[1], x.shape[1] // op.groups, *op.kernel))
    for o, c, ic in _joined(op, dw.shape[0], dw.shape[1]):
        for i, j, a, b, u, v in _taps(op, ct.shape[2:], op.kernel, x.shape[2:]):
            dw[o, c, a, b] += (x[:, ic, u, v] * ct[:, o, i, j]).sum()
    return dw


# (stride, padding, dilation, groups), x, w, out
_CONVS = (
    ((_ONE, _NONE, _ONE, 1), (2, 3, 5, 6), (4, 3, 3, 2), (3, 5)),
    ((_ONE, _ONE, _ONE, 1), (1, 1, 4, 4), (2, 1, 3, 3), (4, 4)),
    (((2, 1), (1, 0), _ONE, 1), (1, 2, 5, 4), (3, 2, 3, 3), (3, 2)),
    ((_ONE, (2, 2), (2, 1), 2), (2, 4, 4, 5), (2, 2, 2, 3), (6, 7)),
    ((_ONE, _NONE, _ONE, 3), (1, 3, 4, 4), (6, 1, 2, 2), (3, 3)),
    ((_ONE, _NONE, _ONE, 1), (1, 1, 1, 1), (1, 1, 1, 1), (1, 1)),
    (((2, 2), _NONE, _ONE, 1), (1, 1, 6, 6), (1, 1, 3, 3), (2, 2)),  # last row and column unread
)


def _window(kernel: Any, stride: Any, padding: Any, dilation: Any, out: Any) -> tuple[Any, ...]:
    return kernel, stride, padding, dilation, out


# kernel, stride, padding, dilation, output size; input size
_POOLS = (
    (_window((2, 2), (2, 2), _NONE, _ONE, (2, 3)), (4, 6)),
    (_window((3, 2), (1, 2), (1, 1), _ONE, (5, 3)), (5, 4)),
    (_window((2, 2), (2, 2), _NONE, _ONE, (3, 2)), (5, 3)),  # ceil_mode: windows reach outside
    (_window((2, 3), (1, 1), _NONE, (2, 1), (3, 2)), (5, 4)),
    (_window((3, 3), (2, 2), _NONE, _ONE, (1, 1)), (4, 4)),
    (_window(_ONE, _ONE, _NONE, _ONE, (1, 1)), (1, 1)),
    (_window((2, 2), (2, 2), _NONE, _ONE, (2, 13)), (5, 27)),  # rows of several vectors, a rest
    (_window((3, 3), (2, 2), (1, 1), _ONE, (3, 14)), (5, 28)),
    (_window((1, 2), (2, 3), _NONE, (1, 2), (2, 3)), (4, 11)),  # inputs that no window covers
    (_window((2, 2), (2, 2), _NONE, _ONE, (3, 7)), (6, 14)),
)


def _windows(op: Any, size: tuple[int, int]) -> Iterator[tuple[int, int, int, int, int]]:
    """(output y, x, number in the window, input y, x)."""
    for i, j, a, b, y, x in _taps(op, op.out, op.kernel, size):
        yield i, j, a * op.kernel[1] + b, y, x


def _sum_pool(op: Any, x: Any) -> Any:
    y = np.zeros((*x.shape[:2], *op.out))
    for i, j, _, u, v in _windows(op, x.shape[2:]):
        y[:, :, i, j] += x[:, :, u, v]
    return y


def _sum_pool_grad(op: Any, ct: Any) -> Any:
    dx = np.zeros((*ct.shape[:2], *op.size))
    for i, j, _, u, v in _windows(op, op.size):
        dx[:, :, u, v] += ct[:, :, i, j]
    return dx


def _max_pool(op: Any, x: Any) -> Any:
    y = np.full((*x.shape[:2], *op.out), -math.inf)
    for i, j, _, u, v in _windows(op, x.shape[2:]):
        best, new = y[:, :, i, j], x[:, :, u, v]
        y[:, :, i, j] = np.where((new > best) | (new != new), new, best)
    return y


def _max_index(op: Any, x: Any) -> Any:
    best = np.full((*x.shape[:2], *op.out), -math.inf)
    number = np.full(best.shape, -1)
    for i, j, k, u, v in _windows(op, x.shape[2:]):
        new, old = x[:, :, u, v], best[:, :, i, j]
        wins = (new > old) | (new != new) | (number[:, :, i, j] < 0)
        number[:, :, i, j] = np.where(wins, k, number[:, :, i, j])
        best[:, :, i, j] = np.where(wins, new, old)
    return number


def _scatter(op: Any, ct: Any, where: Any) -> Any:
    dx = np.zeros((*ct.shape[:2], *op.size))
    for i, j, k, u, v in _windows(op, op.size):
        dx[:, :, u, v] += np.where(where[:, :, i, j] == k, ct[:, :, i, j], 0)
    return dx


def _max_grad(op: Any, ct: Any, x: Any) -> Any:
    return _scatter(op, ct, _max_index(op, x))


def _gather(op: Any, x: Any, where: Any) -> Any:
    y = np.zeros((*x.shape[:2], *op.out))
    for i, j, k, u, v in _windows(op, x.shape[2:]):
        y[:, :, i, j] += np.where(where[:, :, i, j] == k, x[:, :, u, v], 0)
    return y


def _forward(cls: Any, where: bool = False) -> tuple[Any, ...]:
    cases: list[Any] = []
    for window, size in _POOLS:
        x = (2, 3, *size)
        cases += ops(cls(*window), (x, (2, 3, *window[4])) if where else (x,))
    return tuple(cases)


def _backward(cls: Any, where: bool = False) -> tuple[Any, ...]:
    cases: list[Any] = []
    for window, size in _POOLS:
        ct = (2, 3, *window[4])
        cases += ops(cls(*window, size), (ct, ct) if where else (ct,))
    return tuple(cases)


_INSIDE = [_POOLS[n][0] for n in (0, 4, 5, 6, 8, 9)]  # windows that lie inside
_NAN = math.nan
_PLAIN = _POOLS[0][0]
_SQUARE = _window((2, 2), (1, 1), _NONE, _ONE, (1, 1))

ROWS = (
    Row(
        cv.Conv2d,
        _conv,
        tuple(c for a, x, w, _ in _CONVS for c in ops(cv.Conv2d(*a), (x, w))),
        grad=(0, 1),
        bad=(
            Bad(
                intern(cv.Conv2d(_ONE, _NONE, _ONE, 1)),
                ("float32 2 3 8 8", "float32 8 1 3 3"),
                RuntimeError,
                "Given groups=1, weight of size [8, 1, 3, 3], expected input[2, 3, 8, 8] to have 1 "
                "channels, but got 3 channels instead",
            ),
            Bad(
                intern(cv.Conv2d(_ONE, _NONE, _ONE, 1)),
                ("float32 1 1 2 2", "float32 1 1 3 3"),
                RuntimeError,
                "Calculated padded input size per channel: (2 x 2). Kernel size: (3 x 3). Kernel "
                "size can't be greater than actual input size",
            ),
            Bad(
                intern(cv.Conv2d(_ONE, _NONE, _ONE, 1)),
                ("float64 1 1 2 2", "float32 1 1 1 1"),
                RuntimeError,
                "expected scalar type Double but found Float",
            ),
            Bad(
                intern(cv.Conv2d(_ONE, _NONE, _ONE, 1)),
                ("float32 4 4", "float32 1 1 1 1"),
                RuntimeError,
                "Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: "
                "[4, 4]",
            ),
        ),
    ),
    Row(
        cv.ConvGradInput,
        _conv_input,
        tuple(
            c
            for a, x, w, out in _CONVS
            for c in ops(cv.ConvGradInput(*a, x[2:]), ((x[0], w[0], *out), w))
        ),
        grad=(0, 1),
    ),
    Row(
        cv.ConvGradWeight,
        _conv_weight,
        tuple(
            c
            for a, x, w, out in _CONVS
            for c in ops(cv.ConvGradWeight(*a, w[2:]), (x, (x[0], w[0], *out)))
        ),
        grad=(0, 1),
    ),
    Row(pl.SumPool, _sum_pool, _forward(pl.SumPool), grad=(0,)),
    Row(pl.SumPoolGrad, _sum_pool_grad, _backward(pl.SumPoolGrad), grad=(0,)),
    Row(
        pl.MaxPool,
        _max_pool,
        _forward(pl.MaxPool),
        grad=(0,),
    ),
    Row(
        pl.MaxPoolGrad,
        _max_grad,
        tuple(
            c
            for window, size in _POOLS
            if window in _INSIDE
            for c in ops(pl.MaxPoolGrad(*window, size), ((2, 3, *window[4]), (2, 3, *size)))
        ),
        grad=(0,),
    ),
    Row(pl.MaxPoolIndex, _max_index, _forward(pl.MaxPoolIndex), result="int64"),
    Row(pl.PoolScatter, _scatter, _backward(pl.PoolScatter, True), inputs="nw", grad=(0,)),
    Row(pl.PoolGather, _gather, _forward(pl.PoolGather, True), inputs="nw", grad=(0,)),
)
