"""Losses that compare values or measure distances (available as ``nn.functional``)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

from ..core.arguments import flag, number, uncastable
from ..core.dtype import float32
from ..ir.node import Node
from ..ops import activations as act
from ..ops import build as b
from ..ops import derived as d
from ..ops import powers
from ..ops.norms import vector_norm
from ..tensor import Tensor
from ..tensor.core import node_of
from .losses import apart, check_reduction, reduced, require_broadcast, resolve_reduction


def _compared(name: str, input: Tensor, target: Tensor) -> tuple[Node, Node]:
    """The nodes of both; warns if their shapes differ."""
    x, t = node_of(name, "input", 1, input), node_of(name, "target", 2, target)
    if x.shape != t.shape:
        warnings.warn(
            f"Using a target size ({target.shape}) that is different to the input size "
            f"({input.shape}). This will likely lead to incorrect results due to broadcasting. "
            "Please ensure they have the same size.",
            stacklevel=3,
        )
    return x, t


def _pointwise(function: Callable[..., Node], x: Node, t: Node, kernel: str, size: float) -> Node:
    return function(apart(x, t, kernel), size)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """|z| - beta / 2 of distances z = input - target, and z**2 / (2 beta) below ``beta``.

    With ``beta`` 0 it is :func:`l1_loss`.  Warns if the shapes differ.  Raises RuntimeError for a
    negative ``beta``.

    >>> import minitorch_tvm as mt
    >>> smooth_l1_loss(mt.tensor([0.5, 3.0]), mt.zeros(2), reduction="none")
    tensor([0.1250, 2.5000])
    """
    x, t = _compared("smooth_l1_loss", input, target)
    reduction = resolve_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    beta = number("smooth_l1_loss", "beta", 4, beta, "float")
    if not beta >= 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    if beta == 0:
        return reduced(d.absolute(d.sub(x, t)), reduction)
    return reduced(_pointwise(act.smooth_l1, x, t, "smooth_l1_cpu", beta), reduction)


def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """delta (|z| - delta / 2) of distances z = input - target, and z**2 / 2 up to ``delta``.

    ``weight`` scales the elements.  Warns if the shapes differ.  Raises RuntimeError unless
    ``delta`` is positive.

    >>> import minitorch_tvm as mt
    >>> huber_loss(mt.tensor([0.5, 3.0]), mt.zeros(2), reduction="none")
    tensor([0.1250, 2.5000])
    """
    x, t = _compared("huber_loss", input, target)
    check_reduction(reduction)
    delta = number("huber_loss", "delta", 4, delta, "float")
    if not delta > 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    losses = b.cast(_pointwise(act.huber, x, t, "huber_cpu", delta), x.dtype)
    if weight is not None:
        if weight.shape != input.shape:
            raise ValueError("Weights and input must have the same size.")
        losses = d.mul(losses, weight.node)
    return reduced(losses, reduction)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin - target * (input1 - input2)), with targets 1 and -1.

    Raises RuntimeError if the numbers of dimensions differ.

    >>> import minitorch_tvm as mt
    >>> margin_ranking_loss(mt.tensor([3.0]), mt.tensor([2.0]), mt.tensor([-1.0]), margin=0.5)
    tensor(1.5000)
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    x = node_of("margin_ranking_loss", "input1", 1, input1)
    y = node_of("margin_ranking_loss", "input2", 2, input2)
    t = node_of("margin_ranking_loss", "target", 3, target)
    check_reduction(reduction)
    if not len(x.shape) == len(y.shape) == len(t.shape):
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.shape}, input2: {input2.shape}, target: {target.shape} "
        )
    least = number("margin_ranking_loss", "margin", 4, margin, "float")
    losses = d.add(d.mul(d.neg(t), d.sub(x, y)), least)
    return reduced(act.at_least(losses, 0.0), reduction)


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """input where ``target`` is 1, max(0, margin - input) where it is -1.

    >>> import minitorch_tvm as mt
    >>> hinge_embedding_loss(mt.tensor([0.5, 0.25]), mt.tensor([1, -1]), reduction="none")
    tensor([0.5000, 0.7500])
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    x = node_of("hinge_embedding_loss", "input", 1, input)
    t = node_of("hinge_embedding_loss", "target", 2, target)
    check_reduction(reduction)
    least = number("hinge_embedding_loss", "margin", 3, margin, "float")
    apart = d.where(d.compare("ne", t, 1), act.at_least(d.sub(least, x), 0.0), 0.0)
    return reduced(d.add(d.where(d.compare("ne", t, -1), x, 0.0), apart), reduction)


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + exp(-target * input)), without overflow, with targets 1 and -1.

    Raises RuntimeError for integers and unless ``target`` broadcasts to the shape of ``input``.

    >>> import minitorch_tvm as mt
    >>> soft_margin_loss(mt.tensor([0.0, 200.0]), mt.tensor([1, -1]), reduction="none")
    tensor([  0.6931, 200.0000])
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    x = node_of("soft_margin_loss", "input", 1, input)
    t = node_of("soft_margin_loss", "target", 2, target)
    check_reduction(reduction)
    require_broadcast(t, x)
    z = d.mul(d.neg(x), t)
    if not x.dtype.is_floating_point:
        raise uncastable(float32, x.dtype)
    return reduced(act.softplus(z, 1.0, math.inf), reduction)


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos where ``target`` is 1, max(0, cos - margin) where it is -1, 0 elsewhere.

    cos is the cosine of the angle between rows of ``input1`` and ``input2`` [n, d] (or [d], with
    one target).  Raises RuntimeError where the shapes do not fit.

    >>> import minitorch_tvm as mt
    >>> cosine_embedding_loss(mt.tensor([[1.0, 0.0]]), mt.tensor([[0.0, 2.0]]), mt.tensor([1]))
    tensor(1.)
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    x = node_of("cosine_embedding_loss", "input1", 1, input1)
    y = node_of("cosine_embedding_loss", "input2", 2, input2)
    t = node_of("cosine_embedding_loss", "target", 3, target)
    check_reduction(reduction)
    if len(t.shape) > 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    rank = len(t.shape) + 1
    if len(x.shape) != rank or len(y.shape) != rank:
        raise RuntimeError(
            f"{rank - 1}D target tensor expects {rank}D input tensors, but found inputs with sizes "
            f"{list(x.shape)} and {list(y.shape)}."
        )
    last = (rank - 1,)
    product = d.sum(d.mul(x, y), last)
    squares = [d.add(d.sum(d.mul(z, z), last), 1e-12) for z in (x, y)]
    cosine = d.div(product, powers.pow(d.mul(*squares), 0.5))
    near = d.where(d.compare("eq", t, 1), d.sub(1.0, cosine), 0.0)
    least = number("cosine_embedding_loss", "margin", 4, margin, "float")
    far = act.at_least(d.sub(cosine, least), 0.0)
    return reduced(d.add(near, d.where(d.compare("eq", t, -1), far, 0.0)), reduction)


def _distance(x: Node, y: Node, p: float, eps: float, keepdim: bool) -> Node:
    z = d.cast_float(d.add(d.sub(x, y), eps))
    return vector_norm(z, p, (-1,) if z.shape else None, keepdim)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The ``p``-norm of x1 - x2 + eps along the last dimension.

    >>> import minitorch_tvm as mt
    >>> pairwise_distance(mt.tensor([[3.0, 4.0]]), mt.zeros(1, 2), eps=0.0)
    tensor([5.])
    """
    x, y = node_of("pairwise_distance", "x1", 1, x1), node_of("pairwise_distance", "x2", 2, x2)
    power = number("pairwise_distance", "p", 3, p, "float")
    eps = number("pairwise_distance", "eps", 4, eps, "float")
    flag("pairwise_distance", "keepdim", 5, keepdim)
    return Tensor._wrap(_distance(x, y, power, eps, keepdim))


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin + |anchor - positive| - |anchor - negative|), with p-norms of rows.

    ``swap`` takes |positive - negative| instead of the last distance where it is smaller
    (Balntas et al. 2016).  Raises ValueError unless ``margin`` is positive, RuntimeError if the
    numbers of dimensions differ.

    >>> import minitorch_tvm as mt
    >>> triplet_margin_loss(mt.zeros(1, 2), mt.zeros(1, 2), mt.tensor([[0.0, 0.25]]))
    tensor(0.7500)
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    named = {"anchor": anchor, "positive": positive, "negative": negative}
    nodes = [
        node_of("triplet_margin_loss", name, i, t) for i, (name, t) in enumerate(named.items(), 1)
    ]
    check_reduction(reduction)
    ranks = [len(n.shape) for n in nodes]
    if len(set(ranks)) > 1:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of "
            f"dimensions, but got: anchor {ranks[0]}D, positive {ranks[1]}D, and negative "
            f"{ranks[2]}D inputs"
        )
    a, same, other = nodes
    margin = number("triplet_margin_loss", "margin", 4, margin, "float")
    p = number("triplet_margin_loss", "p", 5, p, "float")
    eps = number("triplet_margin_loss", "eps", 6, eps, "float")
    flag("triplet_margin_loss", "swap", 7, swap)
    near, far = _distance(a, same, p, eps, False), _distance(a, other, p, eps, False)
    if swap:
        far = d.minimum(far, _distance(same, other, p, eps, False))
    losses = act.at_least(d.add(d.sub(near, far), margin), 0.0)
    return reduced(losses, reduction)


__all__ = [
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "margin_ranking_loss",
    "pairwise_distance",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
]
