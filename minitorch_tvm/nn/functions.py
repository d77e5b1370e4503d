"""Dropout, normalisation, embedding and attention (available as ``nn.functional``)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from .. import random as rng
from ..autograd import no_grad
from ..core import dtype as dt
from ..core.arguments import flag, floating, integer, number, several
from ..core.bounds import Bounds
from ..core.limits import finfo
from ..core.shape import Shape, Size, broadcast, numel
from ..ir.node import Node, apply, once_fitting
from ..ops import attention as at
from ..ops import build as b
from ..ops import derived as d
from ..ops import gather as ga
from ..ops import normalization as norm
from ..ops import random as random_ops
from ..ops.composite import composite
from ..tensor import Tensor
from ..tensor.core import node_of
from ..tensor.gathering import checked, out_of_range


def _optional(function: str, argument: str, position: int, value: Tensor | None) -> Node | None:
    return None if value is None else node_of(function, argument, position, value)


def _same_type(x: Node, *rest: Node | None) -> None:
    """RuntimeError if a normalisation's tensors differ in dtype."""
    if any(n is not None and n.dtype is not x.dtype for n in rest):
        raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")


# --- dropout ------------------------------------------------------------------------------------


def check_probability(p: float) -> None:
    """ValueError unless 0 <= p <= 1."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def dropped_input(function: str, input: Tensor, p: float, training: bool) -> tuple[Node, float]:
    """The value of what a dropout is given, and ``p`` as a number, both checked."""
    check_probability(p)
    x = node_of(function, "input", 1, input)
    flag(function, "train", 3, training)
    return x, number(function, "p", 2, p, "float")


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability ``p``, scale the others by 1 / (1 - p).

    Returns ``input`` itself if not ``training`` or p is 0.  ``p`` is a runtime number: changing it
    compiles nothing.  Raises ValueError unless 0 <= p <= 1, RuntimeError for integers.

    >>> import minitorch_tvm as mt
    >>> dropout(mt.ones(3), p=1.0)
    tensor([0., 0., 0.])
    """
    x, p = dropped_input("dropout", input, p, training)
    if not training or p == 0.0:
        return input
    if not x.dtype.is_floating_point:
        raise RuntimeError(
            f"result type Float can't be cast to the desired output type {x.dtype.torch_name}"
        )
    if p == 1.0:
        # A runtime number: a compiler may take x * 0 for 0, which is wrong for NaN.
        dropped = b.mul(x, d.lift(0.0, x.dtype))
    else:
        least, scale = d.lift(p, dt.float32), d.lift(1.0 / (1.0 - p), x.dtype)
        dropped = random_ops.dropped(x, *rng.default_generator.draw(), least, scale)
    return input._assign(dropped, "dropout_") if inplace else Tensor._wrap(dropped)


def _channel_dropout(
    name: str, input: Tensor, lead: int, p: float, training: bool, inplace: bool
) -> Tensor:
    """As :func:`dropout`, with one draw for all of a channel; channels have ``lead`` dimensions."""
    x, p = dropped_input("feature_dropout", input, p, training)
    if not training or p == 0.0:
        return input
    shape = (*x.shape[:lead], *(1,) * (len(x.shape) - lead))
    mask = dropout(Tensor._wrap(b.expand(b.full((), 1.0, x.dtype), shape)), p)
    dropped = b.mul(x, mask.node)
    return input._assign(dropped, f"{name}_") if inplace else Tensor._wrap(dropped)


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Zero whole channels of [n, c, l] (or [c, l]) with probability ``p``; see :func:`dropout`.

    Raises RuntimeError for other ranks.
    """
    if input.ndim not in (2, 3):
        raise RuntimeError(
            f"dropout1d: Expected 2D or 3D input, but received a {input.ndim}D input. Note that "
            "dropout1d exists to provide channel-wise dropout on inputs with 1 spatial dimension, "
            "a channel dimension, and an optional batch dimension (i.e. 2D or 3D inputs)."
        )
    return _channel_dropout("dropout1d", input, input.ndim - 1, p, training, inplace)


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Zero whole channels of [n, c, h, w] (or [n, c, l]) with probability ``p``.

    Scaling and errors are those of :func:`dropout`.  Raises NotImplementedError for other ranks.

    >>> import minitorch_tvm as mt
    >>> dropout2d(mt.ones(1, 2, 1, 1), p=1.0).flatten()
    tensor([0., 0.])
    """
    check_probability(p)
    if input.ndim not in (3, 4):
        raise NotImplementedError(f"dropout2d: inputs of {input.ndim} dimensions are not supported")
    return _channel_dropout("dropout2d", input, 2, p, training, inplace)


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Zero whole channels of [n, c, d, h, w] (or [c, d, h, w]) with probability ``p``.

    Scaling and errors are those of :func:`dropout2d`.
    """
    check_probability(p)
    if input.ndim not in (4, 5):
        raise NotImplementedError(f"dropout3d: inputs of {input.ndim} dimensions are not supported")
    return _channel_dropout("dropout3d", input, input.ndim - 3, p, training, inplace)


# --- normalisation ------------------------------------------------------------------------------


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(input - mean) / sqrt(var + eps) * weight + bias (Ba, Kiros, Hinton 2016).

    Mean and (biased) variance are taken over the last dimensions, which must equal
    ``normalized_shape``; so must the shapes of ``weight`` and ``bias``.  Raises RuntimeError where
    they do not, NotImplementedError for integers.

    >>> import minitorch_tvm as mt
    >>> layer_norm(mt.tensor([1.0, 3.0]), (2,), eps=0.0)
    tensor([-1.,  1.])
    """
    x = node_of("layer_norm", "input", 1, input)
    shape = several("layer_norm", "normalized_shape", 2, normalized_shape)
    w = _optional("layer_norm", "weight", 3, weight)
    offset = _optional("layer_norm", "bias", 4, bias)
    eps = number("layer_norm", "eps", 5, eps, "float")
    _check_layer_norm((x, w, offset), shape)
    return Tensor._wrap(norm.layer_norm(x, len(shape), w, offset, eps))


@once_fitting
def _check_layer_norm(nodes: tuple[Node, Node | None, Node | None], shape: Shape) -> None:
    x, w, offset = nodes
    if not shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
            "element, but got normalized_shape = []"
        )
    for name, value in (("weight", w), ("bias", offset)):
        if value is not None and value.shape != shape:
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(value.shape)} and normalized_shape = {list(shape)}"
            )
    if x.shape[-len(shape) :] != shape:
        wanted = ", ".join(map(str, shape))
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {wanted}], but "
            f"got input of size{list(x.shape)}"
        )
    _same_type(x, w, offset)
    floating(x.dtype, "LayerNormKernelImpl")


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each of ``num_groups`` blocks of the channels of input [n, c, ...] by itself.

    ``weight`` and ``bias`` [c] scale and shift the channels (Wu, He 2018).  Raises RuntimeError
    where the sizes do not fit.

    >>> import minitorch_tvm as mt
    >>> group_norm(mt.tensor([[1.0, 3.0, 5.0, 9.0]]), 2)
    tensor([[-1.0000,  1.0000, -1.0000,  1.0000]])
    """
    x = node_of("group_norm", "input", 1, input)
    if len(x.shape) < 2:
        raise RuntimeError(
            f"Expected at least 2 dimensions for input tensor but received {x.shape}"
        )
    w = _optional("group_norm", "weight", 3, weight)
    offset = _optional("group_norm", "bias", 4, bias)
    num_groups = integer("group_norm", "num_groups", 2, num_groups)
    eps = number("group_norm", "eps", 5, eps, "float")
    _check_group_norm((x, w, offset), num_groups)
    return Tensor._wrap(norm.group_norm(x, num_groups, w, offset, eps))


@once_fitting
def _check_group_norm(nodes: tuple[Node, Node | None, Node | None], num_groups: int) -> None:
    x, w, offset = nodes
    if num_groups <= 0 or x.shape[1] % num_groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {list(x.shape)} and num_groups={num_groups}"
        )
    for name, value in (("weight", w), ("bias", offset)):
        if value is not None and value.shape != (x.shape[1],):
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, "
                f"but got {name} of shape {list(value.shape)} and input of shape {list(x.shape)}"
            )
    _same_type(x, w, offset)
    floating(x.dtype, "GroupNormKernelImpl")


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """input / sqrt(mean of squares + eps) * weight (Zhang, Sennrich 2019).

    The mean is taken over the last dimensions, which must equal ``normalized_shape``; ``eps`` is
    the distance from 1 to the next number of the dtype by default.  Raises RuntimeError where
    shapes do not fit, NotImplementedError for integers.

    >>> import minitorch_tvm as mt
    >>> rms_norm(mt.tensor([3.0, -3.0]), (2,))
    tensor([ 1., -1.])
    """
    x = node_of("rms_norm", "input", 1, input)
    shape = several("rms_norm", "normalized_shape", 2, normalized_shape)
    w = _optional("rms_norm", "weight", 3, weight)
    if not shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
            "element, but got normalized_shape = []"
        )
    if w is not None and w.shape != shape:
        raise RuntimeError(
            "Expected weight to be of same shape as normalized_shape, but got weight of shape "
            f"{list(w.shape)} and normalized_shape = {list(shape)}"
        )
    if x.shape[-len(shape) :] != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape "
            f"[*{', '.join(map(str, shape))}], but got input of size{list(x.shape)}"
        )
    floating(x.dtype, "rms_norm")
    eps = finfo(x.dtype).eps if eps is None else number("rms_norm", "eps", 4, eps, "float")
    own = (eps, len(shape))
    y = apply(composite("RmsNorm", _rms_norm, *own), x)
    return Tensor._wrap(y if w is None else d.mul(y, w))


def _rms_norm(x: Node, eps: float, count: int) -> Node:
    rank = len(x.shape)
    squares = d.mean(b.mul(x, x), tuple(range(rank - count, rank)), True)
    return b.div(x, apply(b.SQRT, b.add(squares, b.full_like(x, eps))))


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each sample of input [n, c, ...] by itself (Ulyanov et al. 2016).

    ``weight`` and ``bias`` [c] scale and shift the channels.  Raises ValueError for a single value
    per channel, NotImplementedError for running statistics.

    >>> import minitorch_tvm as mt
    >>> instance_norm(mt.tensor([[[1.0, 3.0], [5.0, 9.0]]]))
    tensor([[[-1.0000,  1.0000],
             [-1.0000,  1.0000]]])
    """
    _optional("instance_norm", "running_mean", 4, running_mean)
    _optional("instance_norm", "running_var", 5, running_var)
    flag("instance_norm", "use_input_stats", 6, use_input_stats)
    for position, (name, value) in enumerate((("momentum", momentum), ("eps", eps)), 7):
        number("instance_norm", name, position, value, "float")
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise NotImplementedError("instance_norm: running statistics are not supported")
    if input.ndim < 3:
        raise RuntimeError(f"instance_norm expects at least 3 dimensions, but got {input.ndim}")
    if numel(input.shape[2:]) == 1:
        raise ValueError(
            "Expected more than 1 spatial element when training, got input size "
            f"{Size(input.shape)}"
        )
    return group_norm(input, max(input.shape[1], 1), weight, bias, eps)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Node = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(input - mean) / sqrt(var + eps) * weight + bias per channel (Ioffe, Szegedy 2015).

    ``input`` is [n, c] or [n, c, ...], everything else [c].  In ``training`` mean and (biased)
    variance are the batch's, and the running ones move by the fraction ``momentum`` towards them
    (the variance unbiased); else the running ones are used.  ``momentum`` is a runtime number (or a
    0-d value of the graph).  Raises RuntimeError where sizes do not fit, ValueError for a batch
    with one value per channel in training, and for a negative ``eps`` (or 0 in training).

    >>> import minitorch_tvm as mt
    >>> batch_norm(mt.tensor([[1.0], [3.0]]), None, None, training=True, eps=1e-12)
    tensor([[-1.],
            [ 1.]])
    """
    x = node_of("batch_norm", "input", 1, input)
    mean = _optional("batch_norm", "running_mean", 2, running_mean)
    variance = _optional("batch_norm", "running_var", 3, running_var)
    w = _optional("batch_norm", "weight", 4, weight)
    offset = _optional("batch_norm", "bias", 5, bias)
    flag("batch_norm", "training", 6, training)
    if type(momentum) is not float and not isinstance(momentum, Node):
        momentum = number("batch_norm", "momentum", 7, momentum, "float")
    eps = number("batch_norm", "eps", 8, eps, "float")
    if eps <= 0 and (training or eps < 0):
        wanted = "positive during training" if training else "non-negative"
        raise ValueError(f"batch_norm eps must be {wanted}, but got {eps}")
    _check_batch_norm((x, mean, variance, w, offset), training)
    if not training:
        assert mean is not None
        assert variance is not None
        return Tensor._wrap(norm.batch_norm_fixed(x, mean, variance, w, offset, eps))
    if 0 in x.shape:  # which has no mean, and changes none
        zero, one = (b.full((x.shape[1],), n, x.dtype) for n in (0.0, 1.0))
        return Tensor._wrap(norm.batch_norm_fixed(x, zero, one, w, offset, eps))
    with no_grad():
        factor = d.lift(momentum, x.dtype)
        if running_mean is not None and mean is not None:
            running_mean._assign(norm.running_mean(mean, x, factor), "batch_norm")
        if running_var is not None and variance is not None:
            running_var._assign(norm.running_variance(variance, x, factor), "batch_norm")
    return Tensor._wrap(norm.batch_norm(x, w, offset, eps))


@once_fitting
def _check_batch_norm(nodes: tuple[Node, *tuple[Node | None, ...]], training: bool) -> None:
    x, *others = nodes
    if len(x.shape) < 2:
        raise RuntimeError(f"batch_norm expects at least 2 dimensions, but got {len(x.shape)}")
    channels = x.shape[1]
    if training and numel(x.shape) == channels:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {Size(x.shape)}"
        )
    for name, value in zip(("running_mean", "running_var", "weight", "bias"), others, strict=True):
        if value is None and not training and name.startswith("running"):
            raise RuntimeError(f"{name} must be defined in evaluation mode")
        if value is not None and numel(value.shape) != channels:
            raise RuntimeError(
                f"{name} should contain {channels} elements not {numel(value.shape)}"
            )
    floating(x.dtype, "batch_norm")
    _same_type(x, *others)


# --- embedding ----------------------------------------------------------------------------------


def reject_embedding_options(
    function: str, max_norm: float | None, scale_grad_by_freq: bool, sparse: bool
) -> None:
    """ValueError for options of embeddings that do not exist here."""
    for name, given in (
        ("max_norm", max_norm is not None),
        ("scale_grad_by_freq=True", scale_grad_by_freq),
        ("sparse=True", sparse),
    ):
        if given:
            raise ValueError(f"{function}: {name} is not supported")


def padding_row(padding_idx: int | None, rows: int, error: Callable[[], Exception]) -> int | None:
    """``padding_idx`` counted from 0; raises ``error()`` if there is no such row."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise error()
    return padding_idx % rows


def no_padding_row(name: str) -> Callable[[], Exception]:
    """Makes the error of layers for a row that there is not."""
    return lambda: AssertionError(f"{name} must be within num_embeddings")


_NO_PADDING_ROW = no_padding_row("Padding_idx")


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of ``weight`` [n, d] at ``input`` (int32 or int64, any shape): [*input.shape, d].

    Row ``padding_idx`` gets no gradient.  Gradients are added up in the order of ``input``, so they
    do not depend on the number of threads.  Raises IndexError for rows outside [0, n), at the next
    evaluation if ``input`` is itself still to be computed; ValueError for ``max_norm``,
    ``scale_grad_by_freq`` and ``sparse``, which are not supported.

    >>> import minitorch_tvm as mt
    >>> embedding(mt.tensor([2, 0]), mt.tensor([[1.0], [2.0], [3.0]]))
    tensor([[3.],
            [1.]])
    """
    index = node_of("embedding", "input", 1, input)
    table = node_of("embedding", "weight", 2, weight)
    reject_embedding_options("embedding", max_norm, scale_grad_by_freq, sparse)
    if len(table.shape) != 2:
        raise RuntimeError("'weight' must be 2-D")
    if padding_idx is not None:
        padding_idx = integer("embedding", "padding_idx", 3, padding_idx)
    row = padding_row(padding_idx, table.shape[0], _NO_PADDING_ROW)
    if index.dtype not in (dt.int32, dt.int64):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got torch.{index.dtype.torch_name}Tensor instead (while checking "
            "arguments for embedding)"
        )
    return Tensor._wrap(ga.embedding(table, checked(index, _rows(table.shape[0])), row))


@functools.lru_cache(maxsize=256)
def _rows(number: int) -> Bounds:
    """What positions in a table must be."""
    return Bounds(0, number, out_of_range)


# --- attention ----------------------------------------------------------------------------------


@once_fitting
def _check_attention(nodes: tuple[Node, Node, Node, Node | None], is_causal: bool) -> None:
    q, k, v, mask = nodes
    ranks = (len(q.shape), len(k.shape), len(v.shape))
    if min(ranks) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
            f"{ranks[0]} key.dim: {ranks[1]} and value.dim: {ranks[2]} instead."
        )
    if not q.dtype is k.dtype is v.dtype:
        names = [x.dtype.scalar_name for x in (q, k, v)]
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{names[0]} key.dtype: {names[1]} and value.dtype: {names[2]} instead."
        )
    if mask is None:
        return
    if mask.dtype not in (dt.bool_, dt.float32, q.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {mask.dtype.scalar_name} and  query.dtype: "
            f"{q.dtype.scalar_name} instead."
        )
    if is_causal:
        raise RuntimeError(
            "_scaled_dot_product_attention: Explicit attn_mask should not be set when "
            "is_causal=True"
        )
    scores = (*broadcast(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])
    if broadcast(scores, mask.shape) != scores:
        raise RuntimeError(
            f"attn_mask of shape {list(mask.shape)} does not broadcast to {list(scores)}"
        )


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(query @ key.T * scale + attn_mask) @ value (Vaswani et al. 2017).

    ``query`` is [..., l, e], ``key`` [..., s, e], ``value`` [..., s, f]; the result is
    [..., l, f].  ``scale`` is 1 / sqrt(e) by default.  ``attn_mask`` broadcasts to [..., l, s]: a
    bool one says which keys take part (a query without any gives zeros), another is added.
    ``is_causal`` lets query i see keys 0..i, and leaves out the work for others.  ``dropout_p``
    drops weights, always: pass 0.0 in evaluation.  Raises RuntimeError where shapes, dtypes or
    options do not fit.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> scaled_dot_product_attention(x, x, x, is_causal=True)[0]
    tensor([1., 0.])
    """
    q, k, v = (
        node_of("scaled_dot_product_attention", n, position, t)
        for position, (t, n) in enumerate(((query, "query"), (key, "key"), (value, "value")), 1)
    )
    mask = _optional("scaled_dot_product_attention", "attn_mask", 4, attn_mask)
    flag("scaled_dot_product_attention", "is_causal", None, is_causal)
    _check_attention((q, k, v, mask), is_causal)
    name = "scaled_dot_product_attention"
    dropout_p = number(name, "dropout_p", None, dropout_p, "float")
    if not 0.0 <= dropout_p <= 1.0:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {dropout_p:g}")
    if scale is None:
        factor = 1.0 / math.sqrt(max(q.shape[-1], 1))
    else:
        factor = number(name, "scale", None, scale, "float")
    if dropout_p == 0.0:
        return Tensor._wrap(at.attention(q, k, v, mask, is_causal, factor))
    weights = Tensor._wrap(at.attention_weights(q, k, mask, is_causal, factor))
    return dropout(weights, dropout_p) @ value


def attention_with_weights(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """As :func:`scaled_dot_product_attention`, and the weights (dropped ones are 0)."""
    q, k, v = query.node, key.node, value.node
    mask = None if attn_mask is None else attn_mask.node
    _check_attention((q, k, v, mask), False)
    factor = 1.0 / math.sqrt(max(q.shape[-1], 1))
    weights = Tensor._wrap(at.attention_weights(q, k, mask, False, factor))
    weights = dropout(weights, dropout_p)
    return weights @ value, weights
