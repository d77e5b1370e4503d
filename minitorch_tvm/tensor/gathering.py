"""Indexing with tensors of positions: checks, and what they record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import lazy
from ..core import dtype as dt
from ..core.bounds import Bounds
from ..core.shape import numel, wrap_dim
from ..ir.node import MODE, WATCHED, Node, apply
from ..ops import build as b
from ..ops import derived as d
from ..ops import elementwise as ew
from ..ops import gather as ga
from ..ops import movement as mv
from ..ops import moves as mo
from ..ops import picking as pk
from ..runtime.positions import are_inside, require_inside
from .ranges import MOVES, known_range

_INTEGERS = (dt.uint8, dt.int32, dt.int64)
_PART = 16  # memory of more times as many integers is not looked at for the sake of a part of it,
_LITTLE = 1 << 12  # unless it is no more than that
_MOST_SOURCES = 128


def _moved_from(index: Node) -> list[Node] | None:
    """Memory that these integers are from, if they are only moved, picked, joined or widened."""
    most = max(_PART * numel(index.shape), _LITTLE)
    sources, left, size = [], [index], 0
    while left:
        source = left.pop()
        if not source.pending:
            size += numel(source.shape)
            if source.buffer is None or size > most:
                return None
            sources.append(source)
        elif pk.is_pick(source.op):
            left.append(source.inputs[0])
        elif isinstance(source.op, (*MOVES, ew.Cast, mv.Cat, mo.Stack)):
            left += source.inputs
            narrower = any(x.dtype.itemsize > source.dtype.itemsize for x in source.inputs)
            if narrower or len(left) + len(sources) > _MOST_SOURCES:
                return None
        else:
            return None
        if source.dtype not in _INTEGERS:
            return None
    return sources


def _inside(index: Node, bounds: Bounds) -> Node:
    """Which of these integers are inside."""
    wide = b.cast(index, dt.int64)
    first, end = (b.full((), n, dt.int64) for n in (bounds.low, bounds.end))
    fine = b.logical_and(b.le(first, wide), b.lt(wide, end))
    if bounds.spared is None:
        return fine
    return b.logical_or(fine, b.eq(wide, b.full((), bounds.spared, dt.int64)))


def checked(index: Node, bounds: Bounds, inside: Callable[[Node, Bounds], Node] = _inside) -> Node:
    """The integers ``index``, which must be inside, else the error of the first outside is raised.

    Positions in memory are tested now, and so is what is only a view of such, joined of them, or of
    a wider type, if all that it is from is inside; those still to be computed before the next
    evaluation, and before anything is computed from what is returned.  ``inside`` records that.
    """
    if not index.pending:
        if index.buffer is None:  # a number
            bounds.test(np.asarray(index.value))
            return index
        require_inside(bounds, index.buffer, index.shape, index.dtype)
        if WATCHED:
            _guard(index, bounds)
        return index
    memory = _moved_from(index)
    if memory is not None and all(are_inside(bounds, m.buffer, m.shape, m.dtype) for m in memory):
        if WATCHED:
            for m in memory:
                _guard(m, bounds)
        return index
    known = known_range(index)
    if known is not None and bounds.covers(*known):
        return index
    guarded = apply(b.DETACH, index)
    fine = d.any_all(inside(index, bounds), None, False, every=True)
    lazy.check(fine, index, bounds, guarded)
    return guarded


def _guard(memory: Node, bounds: Bounds) -> None:
    """Under ``mt.compile``, what has been tested is tested again at every call."""
    if MODE.trace.capture is not None:
        MODE.trace.capture.guard(memory, bounds)


def out_of_range(_: int) -> Exception:
    """What torch.embedding and index_select say."""
    return IndexError("index out of range in self")


def index_select(x: Node, dim: int, index: Node) -> Node:
    """The entries ``index`` of dimension ``dim``; raises what ``torch.index_select`` raises."""
    axis = wrap_dim(dim, len(x.shape))
    if index.dtype not in (dt.int32, dt.int64):
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    if len(index.shape) > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    count = numel(index.shape)
    if not x.shape and count != 1:
        raise RuntimeError(
            f"index_select(): Index to scalar can have only 1 value, got {count} value(s)"
        )
    index = checked(index, Bounds(0, x.shape[axis] if x.shape else 1, out_of_range))
    line = b.reshape(index, index.shape or (1,))
    if not x.shape:
        return b.reshape(ga.take(b.reshape(x, (1,)), line, 0), ())
    return ga.take(x, line, axis)


def values_of(x: Node, reason: str, *besides: Node) -> Any:
    """The values as a numpy array (evaluates), for what decides a result's shape.

    ``besides`` are kept, too: what is recorded next needs them again.
    """
    if MODE.trace.capture is not None:
        MODE.trace.capture.refuse(f"{reason} reads values")
    if x.pending:
        lazy.evaluate([x, *besides], reason)
    if x.buffer is None:
        return np.asarray(x.value, x.dtype.numpy)
    return x.buffer.numpy(x.shape, x.dtype)
