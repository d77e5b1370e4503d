"""Initialisation of parameters, drawn on the host so that building a model compiles nothing.

Formulas: Glorot and Bengio 2010 (xavier), He et al. 2015 (kaiming), with PyTorch's gains and modes.
Numbers come from the default generator (``mt.manual_seed``) or from ``generator``.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from .. import random as rng
from ..core.arguments import floating, number, wrong_kind
from ..tensor import Tensor
from ..tensor.draws import check_std, uniform_ends
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


# What they are called in PyTorch, where layers of users ask for them in spite of the underscore.
_calculate_fan_in_and_fan_out, _calculate_correct_fan = _fans, _fan


def _generator(function: str, generator: rng.Generator | None) -> rng.Generator:
    if generator is None:
        return rng.default_generator
    if not isinstance(generator, rng.Generator):
        raise wrong_kind(function, "generator", None, "torch.Generator", generator)
    return generator


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: rng.Generator | None = None
) -> Tensor:
    """Fill with uniform numbers from [a, b).

    Raises RuntimeError if a > b or one, or their distance, is beyond the dtype,
    NotImplementedError for integers.
    """
    a, b = uniform_ends(tensor.dtype, a, b)
    draws: Any = _generator("uniform_", generator).host_uniform(tuple(tensor.shape))
    set_value(tensor, draws * (b - a) + a)
    return tensor


def _spread(tensor: Tensor, std: Any) -> float:
    """The standard deviation of what ``tensor`` is filled with, checked."""
    floating(tensor.dtype, "normal_kernel_cpu")
    std = number("normal_", "std", 2, std, "float")
    check_std(std)
    return std


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: rng.Generator | None = None
) -> Tensor:
    """Fill with normal numbers.

    Raises RuntimeError for a negative ``std``, NotImplementedError for integers.
    """
    mean, std = number("normal_", "mean", 1, mean, "float"), _spread(tensor, std)
    draws: Any = _generator("normal_", generator).host_normal(tuple(tensor.shape))
    set_value(tensor, draws * std + mean)
    return tensor


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with the number ``val``."""
    set_value(tensor, number("fill_", "value", 1, val))
    return tensor


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: rng.Generator | None = None,
) -> Tensor:
    """Fill with normal numbers of which those outside [a, b] are drawn again.

    Warns if ``mean`` is more than two ``std`` outside.  Raises RuntimeError if a > b or one
    of the numbers is NaN, NotImplementedError for integers.

    >>> import minitorch_tvm as mt
    >>> bool((trunc_normal_(mt.empty(50)).abs() <= 2).all())
    True
    """
    floating(tensor.dtype, "normal_kernel_cpu")
    if not a <= b or math.isnan(mean) or math.isnan(std):
        raise RuntimeError(
            "trunc_normal_ expects a <= b, and numbers that are not NaN, but got "
            f"mean={mean}, std={std}, a={a}, b={b}"
        )
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of "
            "values may be incorrect.",
            stacklevel=2,
        )
    set_value(
        tensor, _truncated(tuple(tensor.shape), mean, std, a, b, _generator("normal_", generator))
    )
    return tensor


def _truncated(
    shape: tuple[int, ...], mean: float, std: float, a: float, b: float, source: rng.Generator
) -> Any:
    """Draws until all are inside: of the normal law, or where that seldom hits, of its density."""
    inside = [0.5 * (1.0 + math.erf((edge - mean) / std / math.sqrt(2.0))) for edge in (a, b)]
    often = inside[1] - inside[0] > 0.3
    peak = max(a, min(mean, b))
    a, b = max(a, peak - 10 * abs(std)), min(b, peak + 10 * abs(std))  # also those at infinity

    def density(x: Any) -> Any:
        """Relative to the largest in [a, b]."""
        return np.exp(0.5 * (((peak - mean) / std) ** 2 - ((x - mean) / std) ** 2))

    values: Any = np.zeros(shape)
    missing: Any = np.ones(shape, bool)
    while missing.any():
        if often:
            draws = source.host_normal(shape) * std + mean
            fits = (draws >= a) & (draws <= b)
        else:
            draws = source.host_uniform(shape) * (b - a) + a
            fits = source.host_uniform(shape) < density(draws)
        values = np.where(missing & fits, draws, values)
        missing = missing & ~fits
    return values


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with ones on the diagonal, zeros elsewhere; ValueError for other ranks."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    set_value(tensor, np.eye(*tensor.shape))
    return tensor


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Make the weight of a convolution pass its input on: a one in the middle of each window.

    Input channel i of each of ``groups`` goes to output channel i of it, as far as there are both.
    Raises ValueError unless ``tensor`` has 3 to 5 dimensions and ``groups`` divides the first.
    """
    if tensor.ndim not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    rows, columns, *window = tensor.shape
    if rows % groups:
        raise ValueError("dim 0 must be divisible by groups")
    values = np.zeros(tuple(tensor.shape))
    middle = tuple(n // 2 for n in window)
    for group in range(groups):
        for i in range(min(rows // groups, columns)):
            values[(group * (rows // groups) + i, i, *middle)] = 1.0
    set_value(tensor, values)
    return tensor


def orthogonal_(tensor: Tensor, gain: float = 1, generator: rng.Generator | None = None) -> Tensor:
    """Fill with a random matrix of orthogonal rows or columns, times ``gain`` (Saxe et al. 2013).

    Dimensions behind the first count as one.  Raises ValueError for fewer than two.

    >>> import minitorch_tvm as mt
    >>> q = orthogonal_(mt.empty(3, 5))
    >>> mt.allclose(q @ q.T, mt.eye(3), atol=1e-5)
    True
    """
    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    floating(tensor.dtype, "normal_kernel_cpu")
    gain = number("mul", "other", 1, gain)
    if 0 in tensor.shape:
        return tensor
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    draws: Any = _generator("normal_", generator).host_normal((rows, columns))
    q, r = np.linalg.qr(draws.T if rows < columns else draws)
    # With these signs, all orthogonal matrices are equally likely (Mezzadri 2007).
    q = q * np.sign(np.diag(r))
    set_value(tensor, (q.T if rows < columns else q).reshape(tuple(tensor.shape)) * gain)
    return tensor


def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: rng.Generator | None = None
) -> Tensor:
    """Fill a matrix with N(0, std), and set the fraction ``sparsity`` of each column to zero.

    (Martens 2010.)  Raises ValueError for other ranks.
    """
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    std = _spread(tensor, std)
    source = _generator("normal_", generator)
    rows, columns = tensor.shape
    values: Any = source.host_normal((rows, columns)) * std
    order = np.argsort(source.host_uniform((rows, columns)), axis=0)
    zeros = order[: math.ceil(sparsity * rows)]
    np.put_along_axis(values, zeros, 0.0, axis=0)
    set_value(tensor, values)
    return tensor


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
