"""Scaled dot product attention (Vaswani et al. 2017).

Recorded as one node, which stands for products and a softmax; or, where there are many scores, as
an op of its own: scores are then computed in tiles that stay in a core's cache, and again for
gradients (T. Dao et al., FlashAttention, 2022), so that memory grows with positions, not with their
square.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from ..core import dtype as dt
from ..core.record import record
from ..core.shape import MOST_ELEMENTS, Shape, numel
from ..ir.build import Build
from ..ir.node import MODE, Node, apply
from ..ir.op import Kind, Op, Spec, intern
from ..ir.te import TE, Tensor
from . import build as b
from .composite import composite
from .softmax import weights


def attention(
    query: Node, key: Node, value: Node, mask: Node | None, causal: bool, scale: float
) -> Node:
    """softmax(query @ key.T * scale + mask) @ value over the last two dimensions.

    A bool ``mask`` says which keys count, another is added; ``causal`` hides the keys behind each
    query's own number.  A query that sees no key gives zeros.
    """
    nodes = (query, key, value) if mask is None else (query, key, value, mask)
    if _at_once(query, key, value, mask):
        keeps = MODE.trace.grad_enabled and any(x.requires_grad for x in nodes)
        y = apply(intern(Attention(causal, scale, keeps)), *nodes)
        return _piece(y, 0, (*query.shape[:-1], value.shape[-1]))
    return apply(composite("Attention", _attention, causal, scale, mask is not None), *nodes)


def attention_weights(
    query: Node, key: Node, mask: Node | None, causal: bool, scale: float
) -> Node:
    """The softmax of :func:`attention`."""
    nodes = (query, key) if mask is None else (query, key, mask)
    return apply(
        composite("AttentionWeights", _from_nodes, causal, scale, mask is not None), *nodes
    )


def _attention(query: Node, key: Node, value: Node, *rest: object) -> Node:
    return b.matmul(_from_nodes(query, key, *rest), value, False, False)


def _from_nodes(query: Node, key: Node, *rest: object) -> Node:
    *masks, causal, scale, _ = rest
    scores = b.matmul(query, key, False, True)
    scores = b.mul(scores, b.full_like(scores, scale))  # type: ignore[arg-type]
    lowest = b.full_like(scores, -math.inf)
    if causal:
        matrix = scores.shape[-2:]
        row, column = b.iota(matrix, 0, dt.int32), b.iota(matrix, 1, dt.int32)
        scores = b.where(b.le(column, row), scores, lowest)
    for mask in masks:
        assert isinstance(mask, Node)
        if mask.dtype is dt.bool_:
            scores = b.where(mask, scores, lowest)
        else:
            scores = b.add(scores, b.cast(mask, scores.dtype))
    axis = len(scores.shape) - 1
    if not scores.shape[axis]:
        return scores
    top = apply(b.DETACH, b.extremum(scores, (axis,), True))
    if not masks:
        return weights(b.exp(b.sub(scores, top)), scores, axis)
    # A row of nothing but -inf: no key is seen, all weights are 0.
    blind = b.eq(top, lowest)
    e = b.exp(b.sub(scores, b.where(blind, b.full_like(top, 0.0), top)))
    total = b.sum(e, (axis,), True)
    return weights(e, scores, axis, b.where(blind, b.full_like(total, 1.0), total))


# --- as one op ------------------------------------------------------------------------------------

# Scores, bytes of all heads together, and keys from which on scores are not stored; fewer are
# faster stored, as gradients need not compute them again.  Few queries would not repay copies of
# the keys.
_LARGE, _KEYS, _QUERIES = 16 << 20, 512, 64


def _at_once(query: Node, key: Node, value: Node, mask: Node | None) -> bool:
    """Whether scores are to be computed in tiles, and again for gradients."""
    outer, (queries, _) = query.shape[:-2], query.shape[-2:]
    if (
        query.dtype not in (dt.float32, dt.float64)
        or not outer == key.shape[:-2] == value.shape[:-2]
    ):
        return False
    if sum(numel(x.shape) for x in (query, key, value)) > MOST_ELEMENTS // 2:
        return False  # gradients lie in a row
    if 0 in (*key.shape[-2:], value.shape[-1]) or (mask is not None and mask.requires_grad):
        return False
    keys = key.shape[-2]
    return queries >= _QUERIES and keys >= _KEYS and 4 * numel((*outer, queries, keys)) >= _LARGE


def turned(shape: Shape) -> Shape:
    """[..., heads, n, width] as results lie in memory: [..., n, heads, width]."""
    *outer, n, width = shape
    return (*outer[:-1], n, *outer[-1:], width)


def _piece(x: Node, first: int, shape: Shape) -> Node:
    """The elements of a turned result from ``first`` on, as ``shape``."""
    memory = b.reshape(b.slice(x, [first], [first + numel(shape)], [1]), turned(shape))
    if len(shape) < 3:
        return memory
    dims = list(range(len(shape)))
    dims[-3], dims[-2] = dims[-2], dims[-3]
    return b.permute(memory, dims)


@record(eq=False)
class Attention(Op, kind=Kind.OPAQUE):
    """attention(q: f[..., h, l, e], k: f[..., h, s, e], v: f[..., h, s, m], mask) -> f[count].

    In a row, the results of :func:`attention`, :func:`turned`, and, with ``keeps``, of each query
    the largest score, and behind all of these the reciprocal of the sum of exponentials of what
    scores are less than that; 0 and 1 if no key is seen.  The result is not differentiated by them.
    (A logarithm of the sum would be one number, but beside a large score it is rounded away.)
    """

    causal: bool
    scale: float
    keeps: bool

    def infer(self, *inputs: Spec) -> Spec:
        q, _, v = inputs[:3]
        queries = numel(q.shape[:-1])
        return Spec((queries * (v.shape[-1] + 2 * self.keeps),), q.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} has a schedule of its own")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        q, k, v, *masks = xs
        scores = _scores(np, q, k, masks, self.causal, self.scale)
        top = scores.max(-1, keepdims=True)
        if masks:
            top = np.where(np.isneginf(top), 0, top)
        e = np.exp(scores - top)
        total = e.sum(-1, keepdims=True)
        factor = 1 / np.where(total == 0, 1, total)
        y = _turn(np, (e * factor) @ v)
        kept = (top, factor) if self.keeps else ()
        return np.concatenate([x.ravel() for x in (y, *kept)]).astype(q.dtype)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        q, k, v = xs[:3]
        result = (*q.shape[:-1], v.shape[-1])
        given = _piece(ct, 0, result)
        if MODE.trace.grad_enabled or not self.keeps:
            # Of gradients as one op there is no derivative, so they are made of others.
            found = _gradients(given, *xs, causal=self.causal, scale=self.scale)
        else:
            op = intern(AttentionBackward(self.causal, self.scale))
            back, first, pieces = apply(op, given, y, *xs), 0, []
            for x in (q, k, v):
                pieces.append(_piece(back, first, x.shape))
                first += numel(x.shape)
            found = (pieces[0], pieces[1], pieces[2])
        return (*found, *([None] * len(xs[3:])))


@record(eq=False)
class AttentionBackward(Op, kind=Kind.OPAQUE):
    """(ct: f[..., h, l, m], y, q, k, v, mask) -> f[count], cotangents of q, k and v in a row.

    ``y`` is what an :class:`Attention` that keeps gave for the others.  Each part is
    :func:`turned`.
    """

    causal: bool
    scale: float

    def infer(self, *inputs: Spec) -> Spec:
        return Spec((sum(numel(x.shape) for x in inputs[2:5]),), inputs[0].dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} has a schedule of its own")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        ct, y, q, k, v, *masks = xs
        scores = _scores(np, q, k, masks, self.causal, self.scale)
        top, factor = y[ct.size :].reshape(2, *q.shape[:-1], 1)
        weights = np.exp(scores - top) * factor
        given = _turn(np, y[: ct.size].reshape(turned(ct.shape)))
        mean = (ct * given).sum(-1, keepdims=True)  # as of weights' cotangents, times weights
        back = weights * (ct @ np.swapaxes(v, -1, -2) - mean) * self.scale
        found = (back @ k, np.swapaxes(back, -1, -2) @ q, np.swapaxes(weights, -1, -2) @ ct)
        return np.concatenate([_turn(np, x).ravel() for x in found]).astype(ct.dtype)


ATTENTION = (Attention, AttentionBackward)


def _scores(np: ModuleType, q: Any, k: Any, masks: list[Any], causal: bool, scale: float) -> Any:
    scores = (q @ np.swapaxes(k, -1, -2)) * scale
    if causal:
        seen = np.tril(np.ones(scores.shape[-2:], bool))
        scores = np.where(seen, scores, -np.inf)
    for mask in masks:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return scores


def _turn(np: ModuleType, x: Any) -> Any:
    return x if x.ndim < 3 else np.swapaxes(x, -3, -2)


def _gradients(
    ct: Node, query: Node, key: Node, value: Node, *masks: Node, causal: bool, scale: float
) -> tuple[Node, Node, Node]:
    """What :class:`AttentionBackward` gives, by an op for each product."""
    every = _from_nodes(query, key, *masks, causal, scale, bool(masks))
    back = b.matmul(ct, value, False, True)
    mean = b.sum(b.mul(back, every), (len(back.shape) - 1,), True)
    back = b.mul(every, b.sub(back, mean))
    back = b.mul(back, b.full_like(back, scale))
    return (
        b.matmul(back, key, False, False),
        b.matmul(back, query, True, False),
        b.matmul(every, ct, True, False),
    )
