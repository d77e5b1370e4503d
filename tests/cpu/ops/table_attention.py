"""Rows of attention: every query by itself."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from row import Array, Row, Shapes

from minitorch_tvm.ir.op import Op, intern
from minitorch_tvm.ops import attention as at


def _exponentials(
    op: Any, q: Array, k: Array, mask: Array | None, i: int, top: float | None = None
) -> tuple[Array, float]:
    """Those of the scores of query i of a head less the largest, or ``top``, which is the other."""
    seen = range(min(i + 1, len(k)) if op.causal else len(k))
    scores = {j: op.scale * float(q[i] @ k[j]) for j in seen}
    if mask is not None:
        scores = {j: s + mask[i, j] for j, s in scores.items()}
    top = max(scores.values()) if top is None else top
    found = np.zeros(len(k))
    for j, s in scores.items():
        found[j] = math.exp(s - top)
    return found, top


def _heads(shape: tuple[int, ...]) -> Any:
    return itertools.product(*map(range, shape))


def _turned(x: Array) -> Array:
    return (x.swapaxes(-3, -2) if x.ndim > 2 else x).ravel()


def _attention(op: Any, q: Array, k: Array, v: Array, *masks: Array) -> Array:
    y, kept = np.zeros((*q.shape[:-1], v.shape[-1])), np.zeros((2, *q.shape[:-1]))
    masks = tuple(np.broadcast_to(m, (*q.shape[:-1], k.shape[-2])) for m in masks)
    for head in _heads(q.shape[:-2]):
        for i in range(q.shape[-2]):
            own = masks[0][head] if masks else None
            e, kept[0, *head, i] = _exponentials(op, q[head], k[head], own, i)
            kept[1, *head, i] = 1 / e.sum()
            y[*head, i] = e @ v[head] / e.sum()
    return np.concatenate([_turned(y), *([kept.ravel()] if op.keeps else [])])


def _backward(op: Any, ct: Array, y: Array, q: Array, k: Array, v: Array, *masks: Array) -> Array:
    # What was kept may be anything here: weights are made of it, whether they add up to 1 or not.
    top, factor = y[ct.size :].reshape(2, *q.shape[:-1])
    masks = tuple(np.broadcast_to(m, (*q.shape[:-1], k.shape[-2])) for m in masks)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    given = y[: ct.size].reshape(at.turned(ct.shape))
    given = given.swapaxes(-3, -2) if given.ndim > 2 else given
    for head in _heads(q.shape[:-2]):
        for i in range(q.shape[-2]):
            own = masks[0][head] if masks else None
            e, _ = _exponentials(op, q[head], k[head], own, i, float(top[*head, i]))
            weights = e * factor[*head, i]
            mean = ct[*head, i] @ given[*head, i]
            for j, weight in enumerate(weights):
                of_score = weight * (ct[*head, i] @ v[*head, j] - mean) * op.scale
                dq[*head, i] += of_score * k[*head, j]
                dk[*head, j] += of_score * q[*head, i]
                dv[*head, j] += weight * ct[*head, i]
    return np.concatenate([_turned(x) for x in (dq, dk, dv)])


# Heads, queries, keys, width, width of values, mask.
_SIZES: tuple[tuple[tuple[int, ...], int, int, int, int, tuple[int, ...] | None], ...] = (
    ((2, 3), 5, 5, 4, 4, None),
    ((1,), 9, 40, 16, 3, (9, 40)),
    ((), 70, 33, 7, 20, None),
    ((2, 1, 2), 35, 3, 1, 1, (2, 1, 3)),
)


def _cases(backward: bool) -> tuple[tuple[Op, Shapes], ...]:
    found: list[tuple[Op, Shapes]] = []
    for number, (outer, n, keys, width, values, mask) in enumerate(_SIZES):
        for causal in (False, True):
            shapes: Shapes = ((*outer, n, width), (*outer, keys, width), (*outer, keys, values))
            shapes = shapes if mask is None else (*shapes, mask)
            scale = (1 + number) / 8
            if backward:
                result = (*outer, n, values)
                known = (math.prod(result) + 2 * math.prod(result[:-1]),)
                op: Op = intern(at.AttentionBackward(causal, scale))
                found.append((op, (result, known, *shapes)))
            else:
                op = intern(at.Attention(causal, scale, number > 0))
                found.append((op, shapes))
    return tuple(found)


ROWS = (
    Row(at.Attention, _attention, _cases(False), low=-1.0, high=1.0, grad=(0, 1, 2)),
    Row(at.AttentionBackward, _backward, _cases(True), low=-1.0, high=1.0),
)
