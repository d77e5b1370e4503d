"""Loss functions (available as ``nn.functional``): formulas, checks of targets, reductions.

Targets that are class indices are checked when the loss is recorded if their memory is at hand (a
batch from a DataLoader), else as a condition that is evaluated before anything is computed from
them: a bad label never reaches a parameter.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core import dtype as dt
from ..core.arguments import floating, integer, wrong_kind
from ..core.bounds import Bounds
from ..core.dtype import DType
from ..core.shape import Size, broadcast, numel
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops import derived as d
from ..ops import network as net
from ..ops.composite import Composite, composite
from ..tensor import Tensor
from ..tensor.core import node_of, tensor_of
from ..tensor.gathering import checked

_REDUCTIONS = ("none", "mean", "sum")


def resolve_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """``reduction``, or what the two deprecated flags mean (with a warning)."""
    if size_average is None and reduce is None:
        return reduction
    if reduce is not None and not reduce:
        old = "none"
    else:
        old = "mean" if size_average is None or size_average else "sum"
    warnings.warn(
        f"size_average and reduce args will be deprecated, please use reduction='{old}' instead.",
        stacklevel=4,
    )
    return old


def check_reduction(reduction: str) -> None:
    """ValueError unless ``reduction`` is one of "none", "mean" and "sum"."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{reduction} is not a valid value for reduction")


def _total(x: Node) -> Node:
    return b.sum(x, range(len(x.shape)), False) if x.shape else x


def reduced(losses: Node, reduction: str) -> Tensor:
    """``losses`` themselves, their mean or their sum."""
    if reduction == "none":
        return Tensor._wrap(losses)
    return Tensor._wrap(d.mean(losses) if reduction == "mean" else _total(losses))


# --- class indices ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _classes(number: int, ignore_index: int) -> Bounds:
    """What labels must be."""
    return Bounds(0, number, _no_such_class, ignore_index)


def _no_such_class(label: int) -> Exception:
    return IndexError(f"Target {label} is out of bounds.")


def _check_tensors(function: str, input: Any, target: Any, weight: Any) -> None:
    """TypeError for what is no tensor."""
    tensor_of(function, "input", 1, input)
    tensor_of(function, "target", 2, target)
    if weight is not None:
        tensor_of(function, "weight", 3, weight)


def _ignored(function: str, ignore_index: Any) -> int:
    """``ignore_index`` as an int; TypeError for anything else, ValueError beyond 64 bits."""
    number = integer(function, "ignore_index", 5, ignore_index)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("Overflow when unpacking long long")
    return number


def _check_index_target(input: Tensor, target: Tensor) -> None:
    if target.dtype not in (dt.int64, dt.uint8):
        raise RuntimeError(
            f"expected target dtype to be Long or Byte, but got {target.dtype.torch_name}"
        )
    x, t = input._node.shape, target._node.shape
    if not x:
        raise ValueError("Expected input to have at least 1 dimension, but got a 0-d tensor")
    if len(x) == 1:
        if target.numel() != 1:
            raise ValueError(
                f"For 1D input, 1D target must have size 1, but got target size: {target.numel()}"
            )
        return
    batch = t[0] if t else 0
    if x[0] != batch:
        raise ValueError(
            f"Expected input batch_size ({x[0]}) to match target batch_size ({batch})."
        )
    if len(x) == 2 and len(t) != 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if len(x) == 4 and len(t) != 3:
        raise RuntimeError(
            "only batches of spatial targets supported (3D tensors) but got targets of dimension: "
            f"{len(t)}"
        )
    if x[2:] != t[1:]:
        raise RuntimeError(f"Expected target size {[x[0], *x[2:]]}, got {list(t)}")


def _check_weight(weight: Tensor, classes: int, dtype: DType | None = None) -> None:
    """RuntimeError for class weights that do not fit."""
    if weight.shape != (classes,):
        raise RuntimeError(
            f"weight tensor should be defined either for all {classes} classes or no classes but "
            f"got weight tensor of shape: {list(weight.shape)}"
        )
    if dtype is not None and weight.dtype is not dtype:
        raise RuntimeError(
            f"expected scalar type {dtype.torch_name} but found {weight.dtype.torch_name}"
        )


def _index_loss(
    input: Tensor,
    normalised: bool,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    """Minus the log-probability of the target; classes are dimension 1, or the only one.

    ``input`` holds log-probabilities if ``normalised``, else logits.
    """
    x, t = input.node, target.node
    classes = x.shape[1] if len(x.shape) > 1 else x.shape[0]
    bounds = _classes(classes, ignore_index)
    t = checked(t, bounds)
    static = (normalised, ignore_index, reduction, smoothing)
    loss = composite("NllLoss", _index_terms, *static)
    if weight is None:
        y = Tensor._wrap(apply(loss, x, t))
        _FITTING[x.spec_id, target._node.spec_id, *static] = loss, bounds
        if len(_FITTING) > _MOST_FITTING:
            _FITTING.clear()
        return y
    _check_weight(weight, classes, x.dtype)
    return Tensor._wrap(apply(loss, x, t, weight.node))


_FITTING: dict[tuple[object, ...], tuple[Composite, Bounds]] = {}
"""Losses without weights, and what labels must be, by shapes and options that fit each other."""
_MOST_FITTING = 4096


def _index_terms(x: Node, target: Node, *rest: Any) -> Node:
    """The primitive ops of :func:`_index_loss`; ``rest`` may start with the class weights."""
    *weights_of_classes, normalised, ignore_index, reduction, smoothing = rest
    lp, t = x, b.cast(target, dt.int64)
    if normalised:
        floating(lp.dtype, "nll_loss_out_frame")
    if len(lp.shape) == 1:
        lp, t = b.reshape(lp, (1, *lp.shape)), b.reshape(t, (1,))
    classes = lp.shape[1]
    if not normalised:
        lp = net.log_softmax(lp, 1)
    line = None
    for w in weights_of_classes:
        line = b.reshape(w, (1, classes, *(1,) * (len(lp.shape) - 2)))
    zero = b.full_like(lp, 0.0)
    column = b.reshape(t, (t.shape[0], 1, *t.shape[1:]))
    hit = b.eq(b.iota(lp.shape, 1, dt.int64), column)
    valid = b.ne(t, b.full((), ignore_index, dt.int64))
    # Selecting, not multiplying by zeros and ones: infinities elsewhere must not make NaN.
    losses = b.where(valid, b.neg(b.sum(b.where(hit, lp, zero), (1,), False)), zero)
    weights = b.cast(valid, lp.dtype)
    if line is not None:
        weights = b.where(valid, b.sum(b.where(hit, line, zero), (1,), False), zero)
        losses = b.mul(losses, weights)
    if smoothing:
        spread = lp if line is None else b.mul(lp, line)
        smooth = b.where(valid, b.neg(b.sum(spread, (1,), False)), zero)
        keep = b.mul(losses, b.full_like(losses, 1.0 - smoothing))
        losses = b.add(keep, b.mul(smooth, b.full_like(smooth, smoothing / classes)))
    if reduction == "none":
        return losses if len(x.shape) > 1 else b.reshape(losses, ())
    total = _total(losses)
    return b.div(total, _total(weights)) if reduction == "mean" else total


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-probability ``input`` of each target class.

    ``input`` is [n, c, ...] (or [c]), ``target`` int64 [n, ...] (or one number).  ``weight`` [c]
    scales classes; the mean divides by the sum of the targets' weights.  Targets equal to
    ``ignore_index`` (an int) count nowhere.  Raises IndexError for other targets outside [0, c).

    >>> import minitorch_tvm as mt
    >>> nll_loss(mt.tensor([[-1.0, -2.0]]), mt.tensor([1]))
    tensor(2.)
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    _check_tensors("nll_loss_nd", input, target, weight)
    ignore_index = _ignored("nll_loss_nd", ignore_index)
    _check_index_target(input, target)
    return _index_loss(input, True, target, weight, ignore_index, reduction, 0.0)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of softmax(``input``) over dimension 1 and the target.

    ``input`` holds logits [n, c, ...] (or [c]); ``target`` int64 classes [n, ...], or
    probabilities in the shape of ``input``.  ``weight``, ``ignore_index`` and reductions are those
    of :func:`nll_loss`; ``label_smoothing`` mixes the target with the uniform distribution
    (Szegedy et al. 2016).  Stable for logits of any size; NaN gives NaN.  Raises IndexError for
    classes out of range.

    >>> import minitorch_tvm as mt
    >>> cross_entropy(mt.tensor([[1e4, 0.0]]), mt.tensor([1]))
    tensor(10000.)
    """
    if weight is None and size_average is None and reduce is None:
        # Checking what has been checked before takes longer than all the rest.
        try:
            x, t = input.node, target.node
            known = _FITTING.get(
                (x.spec_id, t.spec_id, False, ignore_index, reduction, label_smoothing)
            )
        except (AttributeError, TypeError):  # no tensor, or options that have no hash
            known = None
        if known is not None and type(ignore_index) is int:
            loss, bounds = known
            return Tensor._wrap(apply(loss, x, checked(t, bounds)))
    reduction = resolve_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    _check_tensors("cross_entropy_loss", input, target, weight)
    ignore_index = _ignored("cross_entropy_loss", ignore_index)
    if not isinstance(label_smoothing, (int, float, np.integer, np.floating)):
        raise wrong_kind("cross_entropy_loss", "label_smoothing", 6, "float", label_smoothing)
    label_smoothing = float(label_smoothing)
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing:g}")
    if input._node.shape == target._node.shape:
        return _probability_loss(input, target, weight, ignore_index, reduction, label_smoothing)
    _check_index_target(input, target)
    return _index_loss(input, False, target, weight, ignore_index, reduction, label_smoothing)


def _probability_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    if not target.is_floating_point():
        raise RuntimeError(
            "Expected floating point type for target with class probabilities, got "
            f"{target.dtype.torch_name}"
        )
    if ignore_index >= 0:
        raise RuntimeError("ignore_index is not supported for floating point target")
    x, t = input.node, target.node
    batched = len(x.shape) > 1
    if not batched:
        x, t = b.reshape(x, (1, numel(x.shape))), b.reshape(t, (1, numel(t.shape)))
    classes = x.shape[1]
    if smoothing:
        t = d.add(d.mul(t, 1.0 - smoothing), smoothing / classes)
    terms = d.mul(net.log_softmax(x, 1), t)
    if weight is not None:
        _check_weight(weight, classes)
        line = b.reshape(weight.node, (1, classes, *(1,) * (len(x.shape) - 2)))
        terms = d.mul(terms, line)
    losses = b.neg(b.sum(terms, (1,), False))
    if not batched:
        losses = b.reshape(losses, ())
    return reduced(losses, reduction)


# --- elementwise losses -------------------------------------------------------------------------


def _elementwise(
    name: str,
    measure: Callable[[Node, Node], Node],
    input: Tensor,
    target: Tensor,
    reduction: str,
    weight: Tensor | None,
) -> Tensor:
    check_reduction(reduction)
    x, t = node_of(name, "input", 1, input), node_of(name, "target", 2, target)
    if x.shape != t.shape:
        warnings.warn(
            f"Using a target size ({target.shape}) that is different to the input size "
            f"({input.shape}). This will likely lead to incorrect results due to broadcasting. "
            "Please ensure they have the same size.",
            stacklevel=3,
        )
    losses = measure(x, t)
    if weight is None:
        return reduced(losses, reduction)
    if weight.shape != input.shape:
        raise ValueError(
            f"Weights and input must have the same size, but {name} got {weight.shape} and "
            f"{input.shape}"
        )
    losses = d.mul(losses, weight.node)
    if reduction == "mean":
        return Tensor._wrap(d.div(_total(losses), _total(weight.node)))
    return reduced(losses, reduction)


def apart(x: Node, target: Node, kernel: str) -> Node:
    """x - target, also where one of them is bool; NotImplementedError for integers."""
    if x.dtype is target.dtype:
        floating(x.dtype, kernel)
        return b.sub(x, target)
    kind = d.result_dtype(x, target)
    floating(kind, kernel)
    return b.sub(d.lift(x, kind), d.lift(target, kind))


def _squared_distance(x: Node, target: Node) -> Node:
    distance = apart(x, target, "mse_cpu")
    return b.mul(distance, distance)


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(input - target)**2; with ``weight`` the mean divides by the sum of the weights.

    Warns if the shapes differ.  Raises ValueError for an unknown reduction.

    >>> import minitorch_tvm as mt
    >>> mse_loss(mt.tensor([1.0, 3.0]), mt.zeros(2))
    tensor(5.)
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    return _elementwise("mse_loss", _squared_distance, input, target, reduction, weight)


def _distance(x: Node, target: Node) -> Node:
    return d.absolute(d.sub(x, target))


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """|input - target|; with ``weight`` the mean divides by the sum of the weights.

    Warns if the shapes differ.  Raises ValueError for an unknown reduction.

    >>> import minitorch_tvm as mt
    >>> l1_loss(mt.tensor([1.0, -3.0]), mt.zeros(2))
    tensor(2.)
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    return _elementwise("l1_loss", _distance, input, target, reduction, weight)


def _softplus_of_negative(x: Node) -> Node:
    """log(1 + exp(-x)) without overflow.

    m = max(-x, 0) shifts both exponents; the value does not depend on it, so it needs no gradient
    and the derivatives of log(exp(-m) + exp(-x - m)) are exact everywhere, x = 0 included.
    """
    negative = b.neg(x)
    m = apply(b.DETACH, d.relu(negative))
    return b.add(m, b.log(b.add(b.exp(b.neg(m)), b.exp(b.sub(negative, m)))))


def _bce_of_logits(x: Node, t: Node, more: Node | None = None) -> Node:
    log_term = _softplus_of_negative(x)
    if more is not None:
        extra = d.mul(more, t)
        log_term = d.mul(log_term, b.add(extra, b.full_like(extra, 1.0)))
    return b.cast(d.add(b.mul(b.sub(b.full_like(t, 1.0), t), x), log_term), x.dtype)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """-[p t log s(x) + (1 - t) log(1 - s(x))] with s the sigmoid and p = ``pos_weight``.

    Computed as (1 - t) x + (1 + (p - 1) t) log(1 + exp(-x)).  ``weight`` scales the elements; both
    broadcast.  Raises ValueError if the shapes of input and target differ, RuntimeError if the
    others' do not broadcast to them, and for targets that are not floating point.

    >>> import minitorch_tvm as mt
    >>> x, t = mt.tensor([0.0, 200.0]), mt.tensor([1.0, 0.0])
    >>> binary_cross_entropy_with_logits(x, t, reduction="none")
    tensor([  0.6931, 200.0000])
    """
    reduction = resolve_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    if target.shape != input.shape:
        raise ValueError(
            f"Target size ({Size(target.shape)}) must be the same as input size "
            f"({Size(input.shape)})"
        )
    x = input.node
    floating(x.dtype, "log_sigmoid_cpu")
    if not target.dtype.is_floating_point:
        d.sub(target.node, target.node)  # PyTorch begins with 1 - target: no bools
        raise RuntimeError(
            f"result type {x.dtype.torch_name} can't be cast to the desired output type "
            f"{target.dtype.torch_name}"
        )
    t = b.cast(target.node, x.dtype)
    more = []
    if pos_weight is not None:
        positive = node_of("binary_cross_entropy_with_logits", "pos_weight", 4, pos_weight)
        require_broadcast(positive, x)
        more.append(d.sub(positive, 1))
    losses = apply(composite("LogitsBCE", _bce_of_logits), x, t, *more)
    if weight is not None:
        factor = node_of("binary_cross_entropy_with_logits", "weight", 3, weight)
        require_broadcast(factor, x)
        losses = d.mul(losses, factor)
    return reduced(losses, reduction)


def require_broadcast(weight: Node, x: Node) -> None:
    """RuntimeError unless ``weight`` broadcasts to the elements of ``x``."""
    if broadcast(weight.shape, x.shape) != x.shape:
        raise RuntimeError(
            f"output with shape {list(x.shape)} doesn't match the broadcast shape "
            f"{list(broadcast(weight.shape, x.shape))}"
        )


# --- one_hot ------------------------------------------------------------------------------------


def _no_class(number: int) -> Exception:
    wrong = "non-negative" if number < 0 else "smaller than num_classes"
    return RuntimeError(f"Class values must be {wrong}.")


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 zeros with a one at each class number, in a new last dimension.

    ``num_classes=-1`` takes the largest number plus one, which evaluates ``tensor``.  Raises
    RuntimeError for other dtypes than int64 and for numbers outside [0, num_classes).

    >>> import minitorch_tvm as mt
    >>> one_hot(mt.tensor([0, 2]), 3)
    tensor([[1, 0, 0],
            [0, 0, 1]])
    """
    tensor_of("one_hot", "input", 1, tensor)
    if tensor.dtype is not dt.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    num_classes = integer("one_hot", "num_classes", 2, num_classes)
    if tensor.numel() == 0 and num_classes <= 0:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")

    if num_classes == -1:
        num_classes = int(np.max(tensor._array("one_hot"))) + 1
    elif num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    node = checked(tensor.node, Bounds(0, num_classes, _no_class))
    places = b.iota((*node.shape, num_classes), len(node.shape), dt.int64)
    hit = b.eq(places, b.reshape(node, (*node.shape, 1)))
    return Tensor._wrap(b.cast(hit, dt.int64))
