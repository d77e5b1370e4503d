"""Layers as functions: ``import minitorch_tvm.nn.functional as F``."""

from __future__ import annotations

import warnings

from ..core.arguments import floating, text
from ..core.dtype import DType
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
from .bags import embedding_bag
from .convolutions import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from .ctc import ctc_loss
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
    dropout3d,
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
    avg_pool1d,
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
from .pad_functions import pad
from .pool_functions import (
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool2d,
    avg_pool3d,
    max_pool2d,
    max_pool3d,
)
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
    "adaptive_avg_pool3d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "affine_grid",
    "alpha_dropout",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "embedding",
    "embedding_bag",
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
    "max_pool3d",
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
    if text("gelu", "approximate", None, approximate) not in ("none", "tanh"):
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
