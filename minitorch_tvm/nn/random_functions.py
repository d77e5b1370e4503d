"""Functions that draw random numbers beyond dropout (available as ``nn.functional``)."""

from __future__ import annotations

import math

from .. import random as rng
from ..core.arguments import flag, floating, number
from ..ir.node import Node
from ..ops import activations as act
from ..ops import build as b
from ..ops import derived as d
from ..ops import network as net
from ..tensor import Tensor
from ..tensor.core import node_of
from .functions import dropout, dropped_input

_SATURATION = -1.7580993408473766
"""What SELU approaches on the left: minus scale times alpha (Klambauer et al. 2017)."""


def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """Softmax of (logits + noise) / tau along ``dim``: drawn nearly as one of the classes.

    The noise is Gumbel's (Jang, Gu, Poole 2016).  ``hard``: a one where the result is largest and
    zeros elsewhere, with the gradient of the soft result.  ``eps`` counts for nothing.

    >>> import minitorch_tvm as mt
    >>> gumbel_softmax(mt.zeros(4, 3), hard=True).sum(1)
    tensor([1., 1., 1., 1.])
    """
    x = node_of("gumbel_softmax", "logits", 1, logits)
    if not x.dtype.is_floating_point:
        raise RuntimeError(
            "Exponential distribution is a continuous probability distribution. dtype must be a "
            f"floating point but you specified {x.dtype.torch_name}"
        )
    noise = d.neg(b.log(rng.exponential(x.shape, x.dtype)))
    soft = Tensor._wrap(net.softmax(d.div(d.add(x, noise), float(tau)), dim))
    if not hard:
        return soft
    zeros = Tensor._wrap(b.full(x.shape, 0.0, x.dtype))
    ones = zeros.scatter(dim, soft.detach().max(dim, keepdim=True).indices, 1.0)
    return ones - soft.detach() + soft


def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """input where it is positive, else times a number drawn from [lower, upper] for each.

    In evaluation that is their mean.  Raises RuntimeError if ``lower`` is larger.

    >>> import minitorch_tvm as mt
    >>> rrelu(mt.tensor([-8.0, 8.0]), 0.0, 0.5)
    tensor([-2.,  8.])
    """
    x = node_of("rrelu", "input", 1, input)
    low, high = number("rrelu", "lower", 2, lower), number("rrelu", "upper", 3, upper)
    if not low <= high:
        raise RuntimeError("Lower bound should be less than or equal to the upper bound")
    flag("rrelu", "training", 4, training)
    floating(x.dtype, "rrelu_with_noise_out_cpu" if training else "leaky_relu_cpu")
    if training:
        share = rng.uniform(x.shape, x.dtype)
        slope = d.add(d.mul(share, float(high - low)), float(low))
        y = b.where(b.le(x, b.full_like(x, 0.0)), b.mul(x, slope), x)
    else:
        y = act.leaky_relu(x, (low + high) / 2)
    return input._assign(y, "rrelu_") if inplace else Tensor._wrap(y)


def _alpha_dropped(
    input: Tensor, p: float, training: bool, inplace: bool, by_channel: bool
) -> Tensor:
    name = "feature_alpha_dropout" if by_channel else "alpha_dropout"
    x, p = dropped_input(name, input, p, training)
    if not training or p == 0.0:
        return input
    if by_channel and len(x.shape) < 2:
        raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
    if not x.dtype.is_floating_point:
        raise RuntimeError(
            f"result type Float can't be cast to the desired output type {x.dtype.torch_name}"
        )
    if p == 1.0:
        y = b.mul(x, d.lift(0.0, x.dtype))
    else:
        shape = (*x.shape[:2], *(1,) * (len(x.shape) - 2)) if by_channel else x.shape
        y = _shifted(x, dropout(Tensor._wrap(b.full(shape, 1.0, x.dtype)), p).node, p)
    return input._assign(y, f"{name}_") if inplace else Tensor._wrap(y)


def _shifted(x: Node, mask: Node, p: float) -> Node:
    """What is dropped becomes the saturation; then mean and variance are made what they were."""
    scale = 1.0 / math.sqrt((_SATURATION**2 * p + 1.0) * (1.0 - p))
    offset = -scale * _SATURATION * p
    kept = b.cast(b.ne(mask, b.full_like(mask, 0.0)), x.dtype)
    shift = d.add(d.mul(d.sub(kept, 1.0), -scale * _SATURATION), offset)
    return d.add(d.mul(x, d.mul(kept, scale)), shift)  # NaN stays NaN where it is dropped


def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Dropout that keeps mean 0 and variance 1, for networks of SELU (Klambauer et al. 2017).

    Returns ``input`` itself if not ``training``.  Raises ValueError unless 0 <= p <= 1.

    >>> import minitorch_tvm as mt
    >>> alpha_dropout(mt.ones(2), 0.5)
    tensor([1., 1.])
    """
    return _alpha_dropped(input, p, training, inplace, False)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """As :func:`alpha_dropout`, of whole channels [n, c, ...]."""
    return _alpha_dropped(input, p, training, inplace, True)
