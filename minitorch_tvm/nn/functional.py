"""Layers as functions: ``import minitorch_tvm.nn.functional as F``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.arguments import floating, no_indices, unsupported
from ..core.dtype import DType
from ..ir.node import Node, once_fitting
from ..ops import build as b
from ..ops import derived as d
from ..ops import network as net
from ..tensor import Tensor
from ..tensor.core import node_of
from ..tensor.statistics_functions import pdist
from .activation_functions import (
    celu,
    elu,
    glu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    prelu,
    relu6,
    selu,
    silu,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from .distances import (
    cosine_embedding_loss,
    hinge_embedding_loss,
    huber_loss,
    margin_ranking_loss,
    pairwise_distance,
    smooth_l1_loss,
    soft_margin_loss,
    triplet_margin_loss,
)
from .functions import (
    batch_norm,
    dropout,
    dropout1d,
    dropout2d,
    embedding,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
    scaled_dot_product_attention,
)
from .image_functions import (
    affine_grid,
    channel_shuffle,
    fold,
    grid_sample,
    local_response_norm,
    unfold,
)
from .likelihoods import (
    binary_cross_entropy,
    gaussian_nll_loss,
    kl_div,
    poisson_nll_loss,
)
from .lines import (
    adaptive_avg_pool1d,
    adaptive_max_pool2d,
    avg_pool1d,
    conv1d,
    conv_transpose1d,
    conv_transpose2d,
    max_pool1d,
)
from .losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    l1_loss,
    mse_loss,
    nll_loss,
    one_hot,
)
from .pad_functions import pad, padded
from .random_functions import (
    alpha_dropout,
    feature_alpha_dropout,
    gumbel_softmax,
    rrelu,
)
from .resize import (
    interpolate,
    pixel_shuffle,
    pixel_unshuffle,
    upsample,
)
from .similarity import cosine_similarity, normalize

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "affine_grid",
    "alpha_dropout",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "dropout1d",
    "dropout2d",
    "elu",
    "embedding",
    "feature_alpha_dropout",
    "fold",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "grid_sample",
    "group_norm",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool2d",
    "mish",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "pdist",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "rrelu",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "triplet_margin_loss",
    "unfold",
    "upsample",
]

IntPair = int | Sequence[int]


def pair(value: Any, name: str) -> tuple[int, int]:
    """An int twice, or a sequence of two ints; raises TypeError otherwise."""
    parts = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(parts) == 1:
        parts *= 2
    whole = all(hasattr(n, "__index__") and not isinstance(n, bool) for n in parts)
    if len(parts) != 2 or not whole:
        raise TypeError(f"{name} must be an int or a tuple of two ints, but got {value!r}")
    return int(parts[0]), int(parts[1])


def _two(function: str, argument: str, position: int, value: Any) -> tuple[int, int]:
    """A parameter of a convolution or a pooling as two ints; RuntimeError for more or none."""
    if type(value) is tuple and len(value) == 2 and type(value[0]) is type(value[1]) is int:
        return value
    numbers = arg.one_or_several(function, argument, position, value)
    if isinstance(numbers, int):
        return numbers, numbers
    if len(numbers) in (1, 2):
        return numbers[0], numbers[-1]
    if function == "conv2d":
        raise RuntimeError(
            f"expected {argument} to be a single integer value or a list of 2 values to match the "
            f"convolution dimensions, but got {argument}={list(numbers)}"
        )
    must = {"stride": "either be omitted,", "dilation": "be either"}.get(argument, "either be")
    raise RuntimeError(f"{function}: {argument} must {must} a single int, or a tuple of two ints")


# --- linear maps --------------------------------------------------------------------------------


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input [..., in] @ weight [out, in].T + bias [out].

    Raises RuntimeError if the shapes or dtypes do not fit.

    >>> import minitorch_tvm as mt
    >>> linear(mt.ones(2, 3), mt.ones(1, 3))
    tensor([[3.],
            [3.]])
    """
    try:
        x, w, offset = input.node, weight.node, None if bias is None else bias.node
    except AttributeError:  # say which of them is no tensor
        x, w = node_of("linear", "input", 1, input), node_of("linear", "weight", 2, weight)
        offset = None if bias is None else node_of("linear", "bias", 3, bias)
    return Tensor._wrap(net.linear(x, w, offset))


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input1 [..., n] @ weight [out, n, m] @ input2 [..., m] for each output, + bias [out].

    Raises RuntimeError if the shapes do not fit.

    >>> import minitorch_tvm as mt
    >>> bilinear(mt.tensor([[1.0, 2.0]]), mt.tensor([[3.0]]), mt.ones(1, 2, 1))
    tensor([[9.]])
    """
    x, y = node_of("bilinear", "input1", 1, input1), node_of("bilinear", "input2", 2, input2)
    w = node_of("bilinear", "weight", 3, weight)
    offset = None if bias is None else node_of("bilinear", "bias", 4, bias)
    return Tensor._wrap(net.bilinear(x, y, w, offset))


def _batched(x: Node) -> Node:
    """[c, h, w] as [1, c, h, w]."""
    return x if len(x.shape) == 4 else b.reshape(x, (1, *x.shape))


def _unbatched(y: Node, like: Node) -> Tensor:
    return Tensor._wrap(y if len(like.shape) == 4 else b.reshape(y, y.shape[1:]))


def _same_padding(
    x: Node, kernel: Sequence[int], dilation: tuple[int, int]
) -> tuple[Node, tuple[int, int]]:
    """(input, padding) so that the output of stride 1 is as large as the input.

    An odd total goes one element more to the end, which only an explicit pad can express.
    """
    totals = [s * (k - 1) for s, k in zip(dilation, kernel, strict=True)]
    extra = (totals[1] % 2, totals[0] % 2)
    if any(extra):
        x = padded(x, (0, extra[0], 0, extra[1]), 0.0)
    return x, (totals[0] // 2, totals[1] // 2)


@once_fitting
def _check_conv(
    nodes: tuple[Node, Node], steps: tuple[int, int], spread: tuple[int, int], groups: int
) -> None:
    """Refuse what does not fit, in PyTorch's words where it has some for two dimensions."""
    x, w = (n.shape for n in nodes)
    if len(w) < 3:
        raise RuntimeError("weight should have at least three dimensions")
    if len(w) != 4:
        raise RuntimeError(
            f"Expected a weight of 4 dimensions for conv2d, but got weight of size: {list(w)}"
        )
    if len(x) not in (3, 4):
        raise RuntimeError(
            "Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: "
            f"{list(x)}"
        )
    if min(steps) <= 0:
        raise RuntimeError("non-positive stride is not supported")
    if min(spread) <= 0:
        raise RuntimeError(f"dilation should be greater than zero, but got {list(spread)}")
    if groups <= 0:
        raise RuntimeError("non-positive groups is not supported")


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntPair = 1,
    padding: str | IntPair = 0,
    dilation: IntPair = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of input [n, c, h, w] (or [c, h, w]) with weight [o, c / groups, kh, kw].

    ``padding`` adds zeros: numbers, "valid" (none) or "same" (stride 1 only).  Raises RuntimeError
    if shapes, dtypes or parameters do not fit.
    """
    image = node_of("conv2d", "input", 1, input)
    w = node_of("conv2d", "weight", 2, weight)
    offset = None if bias is None else node_of("conv2d", "bias", 3, bias)
    steps, spread = _two("conv2d", "stride", 4, stride), _two("conv2d", "dilation", 6, dilation)
    groups = arg.integer("conv2d", "groups", 7, groups)
    _check_conv((image, w), steps, spread, groups)
    x = _batched(image)
    if padding == "same":
        if steps != (1, 1):
            raise RuntimeError("padding='same' is not supported for strided convolutions")
        x, margins = _same_padding(x, w.shape[2:], spread)
    elif padding == "valid":
        margins = (0, 0)
    elif isinstance(padding, str):
        raise RuntimeError(f"Invalid padding string: '{padding}'")
    else:
        margins = _two("conv2d", "padding", 5, padding)
        if min(margins) < 0:
            raise RuntimeError("negative padding is not supported")
    return _unbatched(net.conv2d(x, w, offset, steps, margins, spread, groups), image)


# --- pooling ------------------------------------------------------------------------------------


def reject_divisor(divisor_override: int | None) -> None:
    """ValueError if average pooling is given a divisor."""
    if divisor_override is not None:
        raise ValueError("avg_pool2d: divisor_override is not supported")


def _window(
    function: str,
    x: Node,
    kernel_size: IntPair,
    stride: IntPair | None,
    padding: IntPair,
    dilation: IntPair,
) -> net.Window:
    """(kernel, stride, padding, dilation) of a pooling of x; RuntimeError if they do not fit."""
    kernel = _two(function, "kernel_size", 2, kernel_size)
    own = stride is not None and stride not in ((), [])
    steps = _two(function, "stride", 3, stride) if own else kernel
    margins = _two(function, "padding", 4, padding)
    spread = _two(function, "dilation", 5, dilation)
    _check_window((x,), kernel, steps, margins, spread)
    return kernel, steps, margins, spread


@once_fitting
def _check_window(
    nodes: tuple[Node],
    kernel: tuple[int, int],
    steps: tuple[int, int],
    margins: tuple[int, int],
    spread: tuple[int, int],
) -> None:
    x = nodes[0].shape
    if len(x) not in (3, 4):
        raise RuntimeError(
            "non-empty 3D or 4D (batch mode) tensor expected for input, but got input of size: "
            f"{list(x)}"
        )
    if 0 in steps:
        raise RuntimeError("stride should not be zero")
    if min(kernel) <= 0:
        raise RuntimeError(
            f"kernel size should be greater than zero, but got kH: {kernel[0]} kW: {kernel[1]}"
        )
    if min(steps) < 0:
        raise RuntimeError(
            f"stride should be greater than zero, but got dH: {steps[0]} dW: {steps[1]}"
        )
    if min(spread) <= 0:
        raise RuntimeError(
            "dilation should be greater than zero, but got dilationH: "
            f"{spread[0]} dilationW: {spread[1]}"
        )
    if min(margins) < 0:
        raise RuntimeError(f"pad must be non-negative, but got pad: {min(margins)}")
    if 0 in x[-3:]:
        raise RuntimeError(
            "Expected 3D or 4D (batch mode) tensor with optional 0 dim batch size for input, but "
            f"got:{list(x)}"
        )


def max_pool2d(
    input: Tensor,
    kernel_size: IntPair,
    stride: IntPair | None = None,
    padding: IntPair = 0,
    dilation: IntPair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Largest element of each window of [n, c, h, w] (or [c, h, w]).

    ``stride`` defaults to ``kernel_size``; padding never wins.  Raises RuntimeError for sizes that
    do not fit, NotImplementedError for bool, ValueError for ``return_indices=True``.
    """
    no_indices("max_pool2d", return_indices)
    image = node_of("max_pool2d", "input", 1, input)
    window = _window("max_pool2d", image, kernel_size, stride, padding, dilation)
    if image.dtype is dt.bool_:
        raise unsupported("max_pool2d", image.dtype)
    return _unbatched(net.max_pool2d(_batched(image), window, ceil_mode), image)


def avg_pool2d(
    input: Tensor,
    kernel_size: IntPair,
    stride: IntPair | None = None,
    padding: IntPair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of each window of [n, c, h, w] (or [c, h, w]).

    Padding counts as zeros unless ``count_include_pad`` is False.  Raises RuntimeError for sizes
    that do not fit, NotImplementedError for integers, ValueError for ``divisor_override``.
    """
    reject_divisor(divisor_override)
    image = node_of("avg_pool2d", "input", 1, input)
    window = _window("avg_pool2d", image, kernel_size, stride, padding, 1)
    floating(image.dtype, "avg_pool2d")
    pooled = net.avg_pool2d(_batched(image), window, ceil_mode, count_include_pad)
    return _unbatched(pooled, image)


def adaptive_avg_pool2d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Means of [n, c, h, w] (or [c, h, w]) over a grid of ``output_size`` windows.

    ``output_size`` is (rows, columns) or one number for both; None keeps the input's size.  Windows
    are as even as possible and overlap where the sizes do not divide.  Raises RuntimeError for
    negative sizes and for inputs of other ranks.

    >>> import minitorch_tvm as mt
    >>> adaptive_avg_pool2d(mt.arange(16.0).reshape(1, 4, 4), 1)
    tensor([[[7.5000]]])
    """
    image = node_of("adaptive_avg_pool2d", "input", 1, input)
    if len(image.shape) not in (3, 4):
        raise RuntimeError(
            f"adaptive_avg_pool2d(): Expected 3D or 4D tensor, but got {list(image.shape)}"
        )
    floating(image.dtype, "adaptive_avg_pool2d")
    x = _batched(image)
    sizes = output_size if isinstance(output_size, Sequence) else (output_size, output_size)
    if len(sizes) != 2:
        raise RuntimeError("adaptive_avg_pool2d: output_size must be 2")
    given = [n if m is None else m for n, m in zip(x.shape[2:], sizes, strict=True)]
    rows, columns = arg.several("adaptive_avg_pool2d", "output_size", 2, given)
    if min(rows, columns) < 0:
        raise RuntimeError(
            "adaptive_avg_pool2d: elements of output_size must be greater than or equal to 0 but "
            f"received {{{rows}, {columns}}}"
        )
    return _unbatched(net.adaptive_avg_pool2d(x, (rows, columns)), image)


# --- activations --------------------------------------------------------------------------------


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(input, 0), elementwise."""
    x = node_of("relu", "input", 1, input)
    return input.relu_() if inplace else Tensor._wrap(d.relu(x))


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent, elementwise."""
    return input.tanh()


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input)), elementwise."""
    return input.sigmoid()


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input times the standard normal distribution function at input (Hendrycks, Gimpel 2016).

    ``approximate="tanh"`` uses 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))).  Raises
    RuntimeError for other names, NotImplementedError unless ``input`` is floating point.

    >>> import minitorch_tvm as mt
    >>> gelu(mt.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """
    x = node_of("gelu", "input", 1, input)
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    floating(x.dtype, "GeluKernelImpl")
    return Tensor._wrap(net.gelu(x, approximate))


def _implicit_dim(name: str, rank: int, stacklevel: int) -> int:
    warnings.warn(
        f"Implicit dimension choice for {name} has been deprecated. Change the call to include "
        "dim=X as an argument.",
        stacklevel=stacklevel,
    )
    return 0 if rank in (0, 1, 3) else 1


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """exp(input) normalised to sum to one along ``dim``; ``dtype`` converts the input first."""
    if dim is None:
        dim = _implicit_dim("softmax", input.ndim, _stacklevel)
    return (input if dtype is None else input.to(dtype)).softmax(dim)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """Logarithm of :func:`softmax`, computed stably."""
    if dim is None:
        dim = _implicit_dim("log_softmax", input.ndim, _stacklevel)
    return (input if dtype is None else input.to(dtype)).log_softmax(dim)
