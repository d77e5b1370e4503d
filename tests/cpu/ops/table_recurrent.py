"""Rows of recurrent layers: every sequence by itself, a number at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from row import Array, Row, Shapes

from minitorch_tvm.ir.op import Op, intern
from minitorch_tvm.ops import recurrent as rc

CELLS = ("tanh", "relu", "lstm", "gru")


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _cell(cell: str, x: Array, hidden: Array, j: int, h: float, c: float) -> tuple[float, ...]:
    """State j of a step: h, c, and what is kept."""
    m = len(x) // rc.GATES[cell]
    xs, hs = x[j::m], hidden[j::m]
    if cell == "lstm":
        i, f, g, o = (a + b for a, b in zip(xs, hs, strict=True))
        i, f, g, o = _logistic(i), _logistic(f), math.tanh(g), _logistic(o)
        c = f * c + i * g
        return o * math.tanh(c), c, i, f, g, o
    if cell == "gru":
        r, z = _logistic(xs[0] + hs[0]), _logistic(xs[1] + hs[1])
        n = math.tanh(xs[2] + r * hs[2])
        return (1 - z) * n + z * h, 0.0, r, z, n, hs[2]
    total = xs[0] + hs[0]
    return (math.tanh(total) if cell == "tanh" else max(total, 0.0)), 0.0


def _recurrence(op: Any, x: Array, w: Array, h0: Array, *last: Array) -> Array:
    steps, n, _ = x.shape
    order = range(steps)[::-1] if op.reverse else range(steps)
    states = np.zeros((steps + 1, *h0.shape))  # in the order of time
    cells, kept = np.zeros_like(states), np.zeros((rc.KEPT[op.cell], steps, *h0.shape))
    begin = steps if op.reverse else 0
    states[begin] = h0
    if op.cell == "lstm":
        cells[begin] = last[0]
    for t in order:
        before, after = (t + 1, t) if op.reverse else (t, t + 1)
        for i in range(n):
            hidden = w @ states[before, i] + (last[0] if op.cell == "gru" else 0)
            for j in range(h0.shape[1]):
                h, c, *own = _cell(
                    op.cell, x[t, i], hidden, j, states[before, i, j], cells[before, i, j]
                )
                states[after, i, j], cells[after, i, j] = h, c
                kept[:, t, i, j] = own
    found = [states]
    if op.cell == "lstm":
        end = 0 if op.reverse else steps
        found.append(cells if op.keeps else cells[end : end + 1])
    return np.concatenate([*found, *(kept if op.keeps else ())])


def _backward(op: Any, ct: Array, w: Array, y: Array, *last: Array) -> Array:
    steps, n, h = ct.shape
    size, planes = steps + 1, rc.KEPT[op.cell]
    kept = y[len(y) - planes * steps :].reshape(planes, steps, n, h)
    out = np.zeros((steps + 1, n, rc.WIDTH[op.cell] * h))
    for i in range(n):
        later = np.zeros(h)
        rest = last[0][i].copy() if last else np.zeros(h)
        for t in range(steps) if op.reverse else range(steps)[::-1]:
            before, after = (t + 1, t) if op.reverse else (t, t + 1)
            beside = np.zeros(h)
            for j in range(h):
                dh, old, new = ct[t, i, j] + later[j], y[before, i, j], y[after, i, j]
                own = kept[:, t, i, j]
                if op.cell == "lstm":
                    a, f, g, o = own
                    bounded = math.tanh(y[size + after, i, j])
                    dc = rest[j] + dh * o * (1 - bounded**2)
                    parts = [dc * g * a * (1 - a), dc * y[size + before, i, j] * f * (1 - f)]
                    parts += [dc * a * (1 - g**2), dh * bounded * o * (1 - o)]
                    rest[j] = dc * f
                elif op.cell == "gru":
                    r, z, m, hm = own
                    dm = dh * (1 - z) * (1 - m**2)
                    parts = [dm * hm * r * (1 - r), dh * (old - m) * z * (1 - z), dm * r, dm]
                    beside[j] = dh * z
                else:
                    parts = [dh * (1 - new**2) if op.cell == "tanh" else dh * (new > 0)]
                out[t, i, j::h] = parts
            later = out[t, i, : len(w)] @ w + beside
        out[steps, i, :h] = later
        if last:
            out[steps, i, h : 2 * h] = rest
    return out


def _cases(backward: bool) -> tuple[tuple[Op, Shapes], ...]:
    """Of each cell a state smaller than a vector, some vectors, and what is left of one."""
    found: list[tuple[Op, Shapes]] = []
    sizes = [(3, 2, 4), (2, 3, 19), (1, 1, 1), (2, 5, 32)]
    for number, (steps, n, h) in enumerate(sizes):
        for place, cell in enumerate(CELLS):
            reverse = bool((number + place) % 2)
            # Small ones are differentiated by all of the result.
            keeps = number in (1, 3) and bool((number + place) % 3)
            g = rc.GATES[cell] * h
            if backward:
                op: Op = intern(rc.RecurrenceBackward(cell, reverse))
                rows = rc.Layout(cell, reverse, True, steps).rows
                shapes: Shapes = ((steps, n, h), (g, h), (rows, n, h))
                if cell == "lstm":
                    shapes = (*shapes, (n, h))
            else:
                op = intern(rc.Recurrence(cell, reverse, keeps))
                shapes = ((steps, n, g), (g, h), (n, h))
                if cell == "lstm":
                    shapes = (*shapes, (n, h))
                if cell == "gru":
                    shapes = (*shapes, (g,))
            found.append((op, shapes))
    return tuple(found)


ROWS = (
    Row(rc.Recurrence, _recurrence, _cases(False), low=-1.0, high=1.0, grad=(0,)),
    Row(rc.RecurrenceBackward, _backward, _cases(True), low=-1.0, high=1.0),
)
