"""Initialisation of parameters, drawn on the host so that building a model compiles nothing.

Formulas: Glorot and Bengio 2010 (xavier), He et al. 2015 (kaiming), with PyTorch's gains and modes.
Numbers come from the default generator (``mt.manual_seed``) or from ``generator``.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from .. import random as rng
from ..tensor import Tensor
from ..tensor.host import set_value

_LINEAR = ("linear", *[f"conv{way}{n}d" for way in ("", "_transpose") for n in (1, 2, 3)])


def calculate_gain(nonlinearity: str, param: int | float | None = None) -> float:
    """Factor by which ``nonlinearity`` shrinks a signal, to be made up for in the weights.

    ``param`` is the slope of "leaky_relu".  Raises ValueError for unknown names.

    >>> calculate_gain("tanh")
    1.6666666666666667
    """
    if nonlinearity in _LINEAR or nonlinearity == "sigmoid":
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3.0
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "selu":
        return 3.0 / 4.0
    if nonlinearity != "leaky_relu":
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    slope = 0.01 if param is None else param
    if isinstance(slope, bool) or not isinstance(slope, (int, float)):
        raise ValueError(f"negative_slope {param} not a valid number")
    return math.sqrt(2.0 / (1.0 + slope**2))


def _fans(tensor: Tensor) -> tuple[int, int]:
    """(fan in, fan out) of a weight [out, in, *window]."""
    if tensor.ndim < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions"
        )
    window = math.prod(tensor.shape[2:])
    return tensor.shape[1] * window, tensor.shape[0] * window


def _fan(tensor: Tensor, mode: str) -> int:
    modes = ["fan_in", "fan_out"]
    mode = mode.lower()
    if mode not in modes:
        raise ValueError(f"Mode {mode} not supported, please use one of {modes}")
    return _fans(tensor)[modes.index(mode)]


def _generator(generator: rng.Generator | None) -> rng.Generator:
    return rng.default_generator if generator is None else generator


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: rng.Generator | None = None
) -> Tensor:
    """Fill with uniform numbers from [a, b).  Raises RuntimeError if a > b."""
    if a > b:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={a} > to={b}"
        )
    draws: Any = _generator(generator).host_uniform(tuple(tensor.shape))
    set_value(tensor, draws * (b - a) + a)
    return tensor


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: rng.Generator | None = None
) -> Tensor:
    """Fill with normal numbers.  Raises RuntimeError for a negative ``std``."""
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    draws: Any = _generator(generator).host_normal(tuple(tensor.shape))
    set_value(tensor, draws * std + mean)
    return tensor


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with ``val``."""
    set_value(tensor, val)
    return tensor


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: rng.Generator | None = None
) -> Tensor:
    """U(-bound, bound) with bound = gain * sqrt(6 / (fan in + fan out)).

    >>> import minitorch_tvm as mt
    >>> bool((xavier_uniform_(mt.empty(3, 3)).abs() <= 1).all())
    True
    """
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(
    tensor: Tensor, gain: float = 1.0, generator: rng.Generator | None = None
) -> Tensor:
    """N(0, std) with std = gain * sqrt(2 / (fan in + fan out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))), generator)


def _empty(tensor: Tensor) -> bool:
    if 0 not in tensor.shape:
        return False
    warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
    return True


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: rng.Generator | None = None,
) -> Tensor:
    """U(-bound, bound) with bound = gain * sqrt(3 / fan); ``a`` is the slope of leaky_relu."""
    if _empty(tensor):
        return tensor
    bound = math.sqrt(3.0) * calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: rng.Generator | None = None,
) -> Tensor:
    """N(0, std) with std = gain / sqrt(fan); ``a`` is the slope of leaky_relu."""
    if _empty(tensor):
        return tensor
    std = calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return normal_(tensor, 0.0, std, generator)
