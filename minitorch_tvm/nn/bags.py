"""Bags of embedded rows (available as ``nn.functional``)."""

from __future__ import annotations

import functools

import numpy as np

from ..core import dtype as dt
from ..core.arguments import flag, integer
from ..core.bounds import Bounds
from ..core.shape import Size
from ..ir.node import MODE, Node, leaf
from ..ops import bags
from ..ops import build as b
from ..runtime.memory import buffer_of
from ..tensor import Tensor
from ..tensor.core import node_of
from ..tensor.gathering import checked
from .functions import padding_row, reject_embedding_options


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or largest elements of rows of ``weight`` [n, d], one for each bag: [bags, d].

    ``input`` holds row numbers (int32 or int64): [bags, size], or all bags one after the other,
    each of which starts at its entry of ``offsets`` and ends where the next one starts (with
    ``include_last_offset`` the last entry is the end of the last bag).  Empty bags are zeros.

    Row ``padding_idx`` counts nowhere and gets no gradient.  ``per_sample_weights``, of the shape
    of ``input``, multiply rows before they are added up (``mode="sum"`` only).  Where several of a
    bag are largest, the first has the gradient if bags are rows, else they share it.

    Raises RuntimeError for rows outside [0, n) and offsets that do not start at 0 or leave the
    input, at the next evaluation if these are still to be computed; ValueError for shapes and modes
    that do not fit, and for ``max_norm``, ``scale_grad_by_freq`` and ``sparse``, which are not
    supported.

    >>> import minitorch_tvm as mt
    >>> table = mt.tensor([[1.0], [2.0], [4.0]])
    >>> embedding_bag(mt.tensor([0, 1, 2, 2]), table, mt.tensor([0, 3]), mode="sum")
    tensor([[7.],
            [4.]])
    """
    index = node_of("embedding_bag", "input", 1, input)
    table = node_of("embedding_bag", "weight", 2, weight)
    reject_embedding_options("embedding_bag", max_norm, scale_grad_by_freq, sparse)
    weights = None
    if per_sample_weights is not None:
        weights = node_of("embedding_bag", "per_sample_weights", 9, per_sample_weights)
        if weights.shape != index.shape:
            raise ValueError(
                f"embedding_bag: If per_sample_weights ({Size(weights.shape)}) is not None, then "
                f"it must have the same shape as the input ({Size(index.shape)})"
            )
    if len(table.shape) != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.ndim}")
    starts = _starts(index, offsets)
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if weights is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported "
            f"for mode='sum' (got mode='{mode}'). Embed the rows, weight them, and take their "
            f"{mode} instead."
        )
    n = table.shape[0]
    if padding_idx is not None:
        padding_idx = integer("embedding_bag", "padding_idx", 9, padding_idx)
    row = padding_row(padding_idx, n, lambda: _no_row(n, padding_idx))
    _check_dtypes(index, starts, table, weights)
    count = index.shape[0] if starts is None else starts.shape[0]
    if starts is not None:
        flag("embedding_bag", "include_last_offset", 8, include_last_offset)
        starts = _checked_starts(starts, index.shape[0])
        count = max(count - 1, 0) if include_last_offset else count
    index = checked(index, _rows(n))
    bag = None if starts is None else _numbers(starts, index.shape[0])
    return Tensor._wrap(bags.embedding_bag(table, index, bag, weights, mode, count, row))


def _no_row(rows: int, padding_idx: int | None) -> Exception:
    return RuntimeError(
        f"padding_idx must be within the number of embeddings, {-rows} through {rows - 1}, but got "
        f"{padding_idx}"
    )


def _starts(index: Node, offsets: Tensor | None) -> Node | None:
    """Where bags start, None if they are rows; ValueError for what does not fit the input."""
    rank = len(index.shape)
    if rank == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch "
                f"of fixed length sequences. However, found offsets of type {type(offsets)}"
            )
        return None
    if rank != 1:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {rank}")
    if offsets is None:
        raise ValueError("offsets has to be a 1D Tensor but got None")
    starts = node_of("embedding_bag", "offsets", 3, offsets)
    if len(starts.shape) != 1:
        raise ValueError("offsets has to be a 1D Tensor")
    return starts


def _check_dtypes(index: Node, starts: Node | None, table: Node, weights: Node | None) -> None:
    for name, x in (("indices", index), ("offsets", starts)):
        if x is not None and x.dtype not in (dt.int32, dt.int64):
            raise RuntimeError(
                f"Expected tensor for argument #1 '{name}' to have one of the following scalar "
                f"types: Long, Int; but got torch.{x.dtype.torch_name}Tensor instead (while "
                "checking arguments for embedding_bag)"
            )
    kind = table.dtype
    if not kind.is_floating_point:
        raise RuntimeError(
            "Expected tensor for argument #1 'weight' to have one of the following scalar types: "
            f"Half, BFloat16, Float, Double; but got torch.{kind.torch_name}Tensor instead (while "
            "checking arguments for embedding_bag)"
        )
    if weights is not None and weights.dtype is not kind:
        raise RuntimeError(
            "Expected tensor for argument #1 'weight' to have the same type as tensor for argument "
            f"#1 'per_sample_weights'; but type torch.{kind.torch_name}Tensor does not equal "
            f"torch.{weights.dtype.torch_name}Tensor (while checking arguments for embedding_bag)"
        )


def _checked_starts(starts: Node, length: int) -> Node:
    """``starts``: the first must be 0, none beyond the input, and none before the last one."""
    n = starts.shape[0]
    if not n:
        return starts
    starts = checked(starts, _ends(length))
    if starts.buffer is not None and MODE.trace.capture is None:
        values = starts.buffer.numpy(starts.shape, starts.dtype)
        _FIRST.test(values[:1])
        _SIZES.test(np.diff(values))
        return starts
    first = checked(b.narrow(starts, 0, 0, 1), _FIRST)
    before = b.narrow(starts, 0, 0, n - 1)
    sizes = checked(b.sub(b.narrow(starts, 0, 1, n), before), _SIZES)
    return b.cat([first, b.add(before, sizes)], 0)


def _numbers(starts: Node, count: int) -> Node:
    """In which bag each of ``count`` positions is; at once, where it is known when bags start.

    Or every step would search for them, in a program of some fifty operations for each table.
    """
    if starts.buffer is None or MODE.trace.capture is not None:
        return bags.numbers(starts, count)
    values = starts.buffer.numpy(starts.shape, starts.dtype)
    found = np.searchsorted(values, np.arange(count), "right") - 1
    return leaf(buffer_of(found, dt.int64), found.shape, dt.int64)


def _no_start(first: int) -> Exception:
    return RuntimeError(
        "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
        f"position 0. However, got {first}"
    )


def _decreasing(size: int) -> Exception:
    return RuntimeError(f"offsets must not decrease, but one is followed by one {-size} less")


_FIRST = Bounds(0, 1, _no_start)
_SIZES = Bounds(0, 1 << 31, _decreasing)


@functools.lru_cache(maxsize=256)
def _ends(length: int) -> Bounds:
    def error(end: int) -> Exception:
        return RuntimeError(
            f"offsets[-1] can not be greater than input's length {length} but got offsets[-1] of "
            f"{end}"
        )

    return Bounds(0, length + 1, error)


@functools.lru_cache(maxsize=256)
def _rows(number: int) -> Bounds:
    """What positions in a table must be."""

    def error(row: int) -> Exception:
        return RuntimeError(
            f"Index of input takes value {row} which is not in the valid range [0, {number})"
        )

    return Bounds(0, number, error)
