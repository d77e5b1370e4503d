"""Activations beyond relu, tanh, sigmoid and gelu (available as ``nn.functional``)."""

from __future__ import annotations

import warnings

from ..core import dtype as dt
from ..core.arguments import floating, integer, number, unsupported
from ..core.shape import wrap_dim
from ..ir.node import Node
from ..ops import activations as act
from ..ops import derived as d
from ..tensor import Tensor
from ..tensor.core import node_of, tensor_of


def _given(function: str, kernel: str, input: Tensor) -> Node:
    """The node of a floating point ``input``; errors name what PyTorch's do."""
    x = node_of(function, "input", 1, input)
    floating(x.dtype, kernel)
    return x


def _result(input: Tensor, y: Node, name: str, inplace: bool) -> Tensor:
    return input._assign(y, name) if inplace else Tensor._wrap(y)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """input where it is positive, else negative_slope * input.

    >>> import minitorch_tvm as mt
    >>> leaky_relu(mt.tensor([-2.0, 2.0]), 0.25)
    tensor([-0.5000,  2.0000])
    """
    x = _given("leaky_relu", "leaky_relu_cpu", input)
    slope = number("leaky_relu", "negative_slope", 2, negative_slope)
    return _result(input, act.leaky_relu(x, slope), "leaky_relu_", inplace)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """input times its logistic function (Elfwing et al. 2017; also called swish).

    >>> import minitorch_tvm as mt
    >>> silu(mt.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.2689,  0.0000,  0.7311])
    """
    return _result(input, act.silu(_given("silu", "silu_cpu", input)), "silu_", inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where it is positive, else alpha * (exp(input) - 1) (Clevert et al. 2015).

    >>> import minitorch_tvm as mt
    >>> elu(mt.tensor([-1.0, 2.0]))
    tensor([-0.6321,  2.0000])
    """
    x = _given("elu", "elu_cpu", input)
    return _result(input, act.elu(x, number("elu", "alpha", 2, alpha), 1.0, 1.0), "elu_", inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where it is positive, else alpha * (exp(input / alpha) - 1) (Barron 2017).

    Raises RuntimeError if ``alpha`` is 0.
    """
    alpha = number("celu", "alpha", 2, alpha)
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    x = _given("celu", "elu_cpu", input)
    return _result(input, act.elu(x, alpha, 1.0, 1.0 / alpha), "celu_", inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """A scaled :func:`elu` that keeps mean 0 and variance 1 (Klambauer et al. 2017)."""
    x = _given("selu", "elu_cpu", input)
    y = act.elu(x, act.SELU_ALPHA, act.SELU_SCALE, 1.0)
    return _result(input, y, "selu_", inplace)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta; input itself where beta * input > ``threshold``.

    >>> import minitorch_tvm as mt
    >>> softplus(mt.tensor([-200.0, 0.0, 200.0]))
    tensor([  0.0000,   0.6931, 200.0000])
    """
    x = _given("softplus", "softplus_cpu", input)
    factor = number("softplus", "beta", 2, beta)
    limit = number("softplus", "threshold", 3, threshold)
    return Tensor._wrap(act.softplus(x, factor, limit))


def logsigmoid(input: Tensor) -> Tensor:
    """Logarithm of the logistic function, without overflow."""
    return Tensor._wrap(act.log_sigmoid(_given("log_sigmoid", "log_sigmoid_cpu", input)))


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """input limited to [min_val, max_val]; at both ends the gradient is 0.

    Integers stay integers.  Raises ValueError if min_val > max_val, RuntimeError for bool, and for
    unsigned integers with negative limits.

    >>> import minitorch_tvm as mt
    >>> hardtanh(mt.tensor([-3.0, 0.5, 3.0]))
    tensor([-1.0000,  0.5000,  1.0000])
    """
    x = node_of("hardtanh", "input", 1, input)
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    low, high = number("hardtanh", "min_val", 2, min_val), number("hardtanh", "max_val", 3, max_val)
    return _result(input, _hardtanh(x, low, high), "hardtanh_", inplace)


def _hardtanh(x: Node, low: float, high: float) -> Node:
    if x.dtype is dt.bool_:
        raise RuntimeError("Bool inputs not supported for hardtanh")
    if x.dtype.is_floating_point:
        return act.hardtanh(x, low, high)
    if x.dtype.is_unsigned and min(low, high) < 0:
        raise RuntimeError("cannot do hardtanh on an unsigned type with negative limits")
    return d.clamp(x, int(low), int(high))


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """input limited to [0, 6]."""
    x = node_of("relu6", "input", 1, input)
    return _result(input, _hardtanh(x, 0.0, 6.0), "relu6_", inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """input / 6 + 1 / 2, limited to [0, 1]."""
    y = act.hardsigmoid(_given("hardsigmoid", "hardsigmoid_cpu", input))
    return _result(input, y, "hardsigmoid_", inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """input times :func:`hardsigmoid` of it (Howard et al. 2019)."""
    y = act.hardswish(_given("hardswish", "hardswish_cpu", input))
    return _result(input, y, "hardswish_", inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """input * tanh(softplus(input)) (Misra 2019)."""
    return _result(input, act.mish(_given("mish", "mish_cpu", input)), "mish_", inplace)


def softsign(input: Tensor) -> Tensor:
    """input / (1 + |input|)."""
    return input / (input.abs() + 1)


def tanhshrink(input: Tensor) -> Tensor:
    """input - tanh(input)."""
    return input - input.tanh()


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """0 where |input| <= ``lambd``, else input.

    >>> import minitorch_tvm as mt
    >>> hardshrink(mt.tensor([-2.0, 0.25, 1.0]))
    tensor([-2.,  0.,  1.])
    """
    x = tensor_of("hardshrink", "input", 1, input)
    return x.hardshrink(number("hardshrink", "lambd", 2, lambd))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """input moved by ``lambd`` towards 0, and 0 where it would pass it.

    Raises RuntimeError if ``lambd`` is negative.

    >>> import minitorch_tvm as mt
    >>> softshrink(mt.tensor([-2.0, 0.25, 1.0]))
    tensor([-1.5000,  0.0000,  0.5000])
    """
    x = _given("softshrink", "softshrink_check", input)
    lambd = number("softshrink", "lambd", 2, lambd)
    if not lambd >= 0:
        limit = "3.40282e+38" if x.dtype is dt.float32 else "1.79769e+308"
        raise RuntimeError(
            f"lambda must be in range [0, {limit}] for input dtype {x.dtype.torch_name}, but found "
            f"{lambd:g}"
        )
    return Tensor._wrap(act.softshrink(x, lambd))


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """input where it is larger than ``threshold``, else ``value``.

    >>> import minitorch_tvm as mt
    >>> threshold(mt.tensor([-2.0, 2.0]), 0.5, -1.0)
    tensor([-1.,  2.])
    """
    x = node_of("threshold", "input", 1, input)
    if x.dtype is dt.bool_:
        raise unsupported("threshold_cpu", x.dtype)
    small = d.compare("le", x, number("threshold", "threshold", 2, threshold))
    y = d.where(small, d.lift(number("threshold", "value", 3, value), x.dtype), x)
    return _result(input, y, "threshold_", inplace)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """input where it is positive, else weight * input (He et al. 2015).

    ``weight`` has one element, or one per channel (dimension 1).  Raises RuntimeError where it does
    not fit.

    >>> import minitorch_tvm as mt
    >>> prelu(mt.tensor([[-1.0, -1.0]]), mt.tensor([0.5, 2.0]))
    tensor([[-0.5000, -2.0000]])
    """
    tensor_of("prelu", "weight", 2, weight)
    return tensor_of("prelu", "input", 1, input).prelu(weight)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half of input along ``dim``, times the logistic function of the second.

    (Dauphin et al. 2016.)  Raises RuntimeError if the size of ``dim`` is odd.

    >>> import minitorch_tvm as mt
    >>> glu(mt.tensor([4.0, 0.0]))
    tensor([2.])
    """
    x = node_of("glu", "input", 1, input)
    if not x.shape:
        raise RuntimeError("glu does not support scalars because halving size must be even")
    axis = wrap_dim(integer("glu", "dim", 2, dim), len(x.shape))
    size = x.shape[axis]
    if size % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {axis} is size {size}")
    floating(x.dtype, "glu_cpu")
    left, gate = input.split(size // 2, axis) if size else (input, input)
    return left * gate.sigmoid()


def softmin(
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: dt.DType | None = None,
) -> Tensor:
    """Softmax of -input along ``dim``; ``dtype`` converts the input first."""
    if dim is None:
        warnings.warn(
            "Implicit dimension choice for softmin has been deprecated. Change the call to include "
            "dim=X as an argument.",
            stacklevel=_stacklevel,
        )
        dim = 0 if input.ndim in (0, 1, 3) else 1
    return (-input if dtype is None else (-input).to(dtype)).softmax(dim)


def check_limits(low: float, high: float) -> None:
    """AssertionError unless low < high."""
    if not high > low:
        raise AssertionError(f"max_val ({high}) must be greater than min_val ({low})")


__all__ = [
    "celu",
    "elu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "mish",
    "prelu",
    "relu6",
    "selu",
    "silu",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanhshrink",
    "threshold",
]
