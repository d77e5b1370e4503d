"""Scaled dot product attention (Vaswani et al. 2017), recorded as one node."""

from __future__ import annotations

import math

from ..core import dtype as dt
from ..ir.node import Node, apply
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
