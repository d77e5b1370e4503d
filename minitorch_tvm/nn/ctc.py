"""Connectionist temporal classification (available as ``nn.functional``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.bounds import Bounds
from ..ir.node import MODE, Node
from ..ops import build as b
from ..ops import ctc
from ..ops import derived as d
from ..ops import gather as ga
from ..runtime.positions import are_inside
from ..tensor import Tensor
from ..tensor.core import TensorBase, leaf_of, node_of
from ..tensor.gathering import checked, values_of
from .losses import check_reduction, reduced

Lengths = Tensor | Sequence[int]


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the log of how likely labels are, of which it is not known at which frames they are.

    ``log_probs`` [frames, n, classes] are logarithms of probabilities, or [frames, classes] of one
    sample.  ``targets`` are labels [n, most], or those of all samples one after the other; what
    lies behind the ``target_lengths`` of a row is not looked at.  Of each sample the first
    ``input_lengths`` frames count.  ``blank`` is the class of no label.

    ``reduction="mean"`` divides by the lengths of targets, then takes the mean.  Where labels do
    not fit into the frames the loss is infinite, and its gradient NaN; ``zero_infinity`` makes both
    zero.  The gradient is PyTorch's, if no label is the blank: that of ``log_softmax`` followed by
    this loss.  It has no derivative itself.

    Labels one after the other with lengths in a tensor are evaluated.  Raises RuntimeError for
    shapes that do not fit, for lengths outside of them and for labels that are no class (those
    still to be computed at the next evaluation), and ValueError for other reductions.

    >>> import minitorch_tvm as mt
    >>> frames = mt.zeros(3, 1, 2).log_softmax(2)
    >>> ctc_loss(frames, mt.tensor([[1]]), (3,), (1,)).exp()  # of 8 paths, 6 have one label
    tensor(1.3333)
    """
    x = node_of("ctc_loss", "log_probs", 1, log_probs)
    labels = node_of("ctc_loss", "targets", 2, targets)
    check_reduction(reduction)
    alone = len(x.shape) == 2
    if alone:
        x = b.reshape(x, (x.shape[0], 1, x.shape[1]))
    if len(x.shape) != 3:
        raise RuntimeError(
            "log_probs must be of shape [frames, samples, classes] or [frames, classes], but got "
            f"{list(x.shape)}"
        )
    times, n, classes = x.shape
    if not x.dtype.is_floating_point:
        raise NotImplementedError(f"\"ctc_loss_cpu\" not implemented for '{x.dtype.torch_name}'")
    frames = _lengths("input_lengths", 3, input_lengths, n)
    lengths = _lengths("target_lengths", 4, target_lengths, n)
    blank = arg.integer("ctc_loss", "blank", 5, blank)
    arg.flag("ctc_loss", "zero_infinity", 7, zero_infinity)
    if not 0 <= blank < classes:
        raise RuntimeError("blank must be in label range")
    frames = checked(frames, _frames(times))
    lengths = checked(lengths, _positive("target_lengths"))
    labels = b.cast(labels, dt.int64)
    if alone and len(labels.shape) == 1:
        labels = b.reshape(labels, (1, *labels.shape))
    labels = _rows(labels, lengths, n)
    most = labels.shape[1]
    lengths = checked(lengths, _fitting(most))
    inside = b.lt(b.iota((n, most), 1, dt.int64), b.reshape(lengths, (n, 1)))
    known = labels.buffer is not None and MODE.trace.capture is None
    known = known and are_inside(_classes(classes), labels.buffer, labels.shape, labels.dtype)
    labels = b.where(inside, labels, b.full_like(labels, blank))
    if not known:
        labels = checked(labels, _classes(classes))
    losses = ctc.ctc_loss(x, labels, frames, lengths, blank, zero_infinity)
    if reduction == "mean":
        losses = d.div(losses, d.maximum(lengths, 1))
    if alone and reduction == "none":
        losses = b.reshape(losses, ())
    return reduced(losses, reduction)


def _rows(labels: Node, lengths: Node, samples: int) -> Node:
    """Labels [samples, most]; RuntimeError for those of another number of samples or rank."""
    rank = len(labels.shape)
    if rank == 1:
        return _in_rows(labels, lengths)
    where = "argument #2 'targets' (while checking arguments for ctc_loss_allocate_outputs)"
    if rank != 2:
        raise RuntimeError(
            f"Expected 1 to 2 dimensions, but got {rank}-dimensional tensor for {where}"
        )
    if labels.shape[0] != samples:
        raise RuntimeError(
            f"Expected tensor to have size {samples} at dimension 0, but got size "
            f"{labels.shape[0]} for {where}"
        )
    return labels


def _lengths(name: str, position: int, given: Any, samples: int) -> Node:
    """Lengths of so many samples as int64; RuntimeError if there is another number of them."""
    if isinstance(given, TensorBase):
        node = given.node
        if node.dtype.is_floating_point or node.dtype is dt.bool_:
            raise RuntimeError(f"{name} must be integral")
        node = b.cast(b.reshape(node, node.shape or (1,)), dt.int64)
    else:
        numbers = arg.several("ctc_loss", name, position, given)
        node = leaf_of(np.asarray(numbers, np.int64), dt.int64)
    if node.shape != (samples,):
        raise RuntimeError(f"{name} must be of size batch_size")
    return node


def _in_rows(labels: Node, lengths: Node) -> Node:
    """Labels one after the other as rows, filled up with what follows."""
    sizes = values_of(lengths, "ctc_loss", labels)
    total, most = int(sizes.sum()), int(sizes.max(initial=0))
    if labels.shape[0] != total:
        raise RuntimeError(
            f"Expected tensor to have size {total} at dimension 0, but got size {labels.shape[0]} "
            "for argument #2 'targets' (while checking arguments for ctc_loss_allocate_outputs)"
        )
    if not total:
        return b.full((len(sizes), 0), 0, dt.int64)
    places = (np.cumsum(sizes) - sizes)[:, None] + np.arange(most)
    places = np.minimum(places, total - 1)
    return ga.take(labels, leaf_of(places, dt.int64), 0)


@functools.lru_cache(maxsize=64)
def _positive(name: str) -> Bounds:
    return Bounds(0, 1 << 62, lambda bad: _outside(name, "at least 0", bad))


@functools.lru_cache(maxsize=256)
def _frames(times: int) -> Bounds:
    def error(bad: int) -> Exception:
        limit = "at least 0" if bad < 0 else f"at most {times}"
        return _outside("input_lengths", limit, bad)

    return Bounds(0, times + 1, error)


def _outside(name: str, limit: str, bad: int) -> Exception:
    return RuntimeError(
        f"Expected {name} to have value {limit}, but got value {bad} (while checking arguments for "
        "ctc_loss_allocate_outputs)"
    )


@functools.lru_cache(maxsize=256)
def _fitting(most: int) -> Bounds:
    def error(bad: int) -> Exception:
        return RuntimeError(
            f"Expected tensor to have size at least {bad} at dimension 1, but got size {most} for "
            "argument #2 'targets' (while checking arguments for ctc_loss_allocate_outputs)"
        )

    return Bounds(0, most + 1, error)


@functools.lru_cache(maxsize=256)
def _classes(number: int) -> Bounds:
    return Bounds(0, number, lambda bad: RuntimeError(f"Target {bad} is out of bounds."))
