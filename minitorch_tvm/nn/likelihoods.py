"""Losses that are negative log-likelihoods (available as ``nn.functional``)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from ..core.arguments import flag, floating, number
from ..core.shape import Size
from ..ir.node import Node
from ..ops import activations as act
from ..ops import build as b
from ..ops import derived as d
from ..tensor import Tensor
from ..tensor.core import node_of
from .losses import check_reduction, reduced, require_broadcast, resolve_reduction


def _at_hand(x: Node, fits: Callable[[Any], Any], error: Exception) -> None:
    """Raise ``error`` if x is in memory and not all its elements fit."""
    there = not x.pending and x.buffer is not None
    if there and not fits(x.buffer.numpy(x.shape, x.dtype)).all():
        raise error


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-[t log(x) + (1 - t) log(1 - x)] of probabilities x = ``input``; logarithms are >= -100.

    ``weight`` broadcasts to the elements.  Outside [0, 1] the result is NaN, and RuntimeError is
    raised if ``input`` has been evaluated before.  Raises ValueError if the shapes differ.

    >>> import minitorch_tvm as mt
    >>> binary_cross_entropy(mt.tensor([0.5, 1.0]), mt.tensor([1.0, 0.0]), reduction="none")
    tensor([  0.6931, 100.0000])
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    x = node_of("binary_cross_entropy", "input", 1, input)
    t = node_of("binary_cross_entropy", "target", 2, target)
    check_reduction(reduction)
    if x.shape != t.shape:
        raise ValueError(
            f"Using a target size ({Size(t.shape)}) that is different to the input size "
            f"({Size(x.shape)}) is deprecated. Please ensure they have the same size."
        )
    if x.dtype is not t.dtype:
        raise RuntimeError(f"Found dtype {t.dtype.torch_name} but expected {x.dtype.torch_name}")
    floating(x.dtype, "binary_cross_entropy")
    _at_hand(
        x,
        lambda a: (a >= 0) & (a <= 1),
        RuntimeError("all elements of input should be between 0 and 1"),
    )
    losses = act.binary_cross_entropy(x, t)
    if weight is not None:
        w = node_of("binary_cross_entropy", "weight", 3, weight)
        require_broadcast(w, x)
        losses = b.mul(losses, b.cast(w, x.dtype))
    return reduced(losses, reduction)


_MEAN_OF_KL = (
    "reduction: 'mean' divides the total loss by both the batch size and the support size."
    "'batchmean' divides only by the batch size, and aligns with the KL math definition."
    "'mean' will be changed to behave the same as 'batchmean' in the next major release."
)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """target * (log(target) - input) of log-probabilities ``input``; 0 where ``target`` is 0.

    ``target`` holds probabilities, or with ``log_target`` their logarithms.  The reduction
    "batchmean" divides the sum by the size of dimension 0, which is what makes it a divergence;
    "mean" divides by the number of elements, with a warning.  Raises RuntimeError for integers.

    >>> import minitorch_tvm as mt
    >>> kl_div(mt.tensor([[0.5, 0.5]]).log(), mt.tensor([[1.0, 0.0]]), reduction="batchmean")
    tensor(0.6931)
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    x, t = node_of("kl_div", "input", 1, input), node_of("kl_div", "target", 2, target)
    if reduction == "mean":
        warnings.warn(_MEAN_OF_KL, stacklevel=2)
    if reduction != "batchmean":
        check_reduction(reduction)
    if not (x.dtype.is_floating_point and t.dtype.is_floating_point):
        raise RuntimeError("kl_div: Integral inputs not supported.")
    flag("kl_div", "log_target", None, log_target)
    if log_target:
        losses = d.mul(b.exp(t), d.sub(t, x))
    else:
        nothing = b.eq(t, b.full_like(t, 0.0))
        log = b.log(b.where(nothing, b.full_like(t, 1.0), t))
        losses = d.sub(b.mul(t, log), d.mul(t, x))
    if reduction == "batchmean":
        total = d.sum(losses)
        return Tensor._wrap(d.div(total, x.shape[0]) if x.shape else total)
    return reduced(losses, reduction)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """exp(input) - target * input, the likelihood of counts whose mean has the logarithm ``input``.

    Without ``log_input``, ``input`` is the mean: input - target * log(input + eps).  ``full`` adds
    Stirling's approximation of log(target!) where ``target`` > 1.

    >>> import minitorch_tvm as mt
    >>> poisson_nll_loss(mt.zeros(2), mt.tensor([1.0, 3.0]))
    tensor(1.)
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    x = node_of("poisson_nll_loss", "input", 1, input)
    t = node_of("poisson_nll_loss", "target", 2, target)
    check_reduction(reduction)
    flag("poisson_nll_loss", "log_input", 3, log_input)
    flag("poisson_nll_loss", "full", 4, full)
    least = number("poisson_nll_loss", "eps", 5, eps, "float")
    x = d.cast_float(x)
    if log_input:
        losses = d.sub(b.exp(x), d.mul(t, x))
    else:
        losses = d.sub(x, d.mul(t, b.log(d.add(x, least))))
    if full:
        counted = d.compare("gt", t, 1)
        n = d.where(counted, d.cast_float(t), 1.0)
        log = b.log(n)
        stirling = d.add(d.sub(d.mul(n, log), n), d.mul(0.5, d.add(log, math.log(2 * math.pi))))
        losses = d.add(losses, d.where(counted, stirling, 0.0))
    return reduced(losses, reduction)


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """(log(var) + (input - target)**2 / var) / 2, with ``var`` at least ``eps``.

    ``var`` is a number, or has the shape of ``input``, possibly with one dimension of size one, or
    without the last.  ``full`` adds log(2 pi) / 2.  Its gradient is that of ``var`` unlimited.
    Where ``var`` is negative the result is NaN, and ValueError is raised if it is a number or has
    been evaluated before.  Raises ValueError for other shapes.

    >>> import minitorch_tvm as mt
    >>> gaussian_nll_loss(mt.zeros(1), mt.tensor([2.0]), mt.ones(1))
    tensor(2.)
    """
    x = node_of("gaussian_nll_loss", "input", 1, input)
    t = node_of("gaussian_nll_loss", "target", 2, target)
    negative = ValueError("var has negative entry/entries")
    if isinstance(var, Tensor):
        v = var.node
        _at_hand(v, lambda a: ~(a < 0), negative)
    else:
        if var < 0:
            raise negative
        v = b.expand(d.lift(float(var), x.dtype), x.shape)
    if v.shape != x.shape:
        if v.shape == x.shape[:-1]:
            v = b.reshape(v, (*v.shape, 1))
        elif (
            len(v.shape) != len(x.shape)
            or sum(n for m, n in zip(x.shape, v.shape, strict=True) if m != n) != 1
        ):
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    floating(v.dtype, "log_vml_cpu")
    limited = act.variance(v, number("gaussian_nll_loss", "eps", 5, eps, "float"))
    distance = d.sub(x, t)
    losses = d.mul(0.5, d.add(b.log(limited), d.div(d.mul(distance, distance), limited)))
    if full:
        losses = d.add(losses, 0.5 * math.log(2 * math.pi))
    return reduced(losses, reduction)


__all__ = [
    "binary_cross_entropy",
    "gaussian_nll_loss",
    "kl_div",
    "poisson_nll_loss",
]
