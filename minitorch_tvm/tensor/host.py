"""Reading and writing tensors from the host, without recording anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import autograd, lazy
from ..core.dtype import Category, DType
from ..core.events import EVENTS
from ..ir.node import MODE, Node, leaf
from ..runtime.memory import buffer_of
from . import gathering, indexing
from .core import TensorBase
from .varying import varies

Array = np.ndarray[Any, Any]


def host_array(t: TensorBase) -> Array:
    """The values of ``t`` (evaluated), as a view of its memory: read it, do not keep it."""
    return t._array("host read")


def set_value(t: TensorBase, array: Any, dtype: DType | None = None) -> None:
    """Give the leaf ``t`` new values at once, computed on the host (``dtype`` converts it).

    The memory is overwritten if nothing else reads it, else replaced: values recorded before, but
    not evaluated yet, must still see the old ones.  ``requires_grad`` and identity are kept.
    """
    if MODE.trace.capture is not None:
        MODE.trace.capture.refuse("it sets values from the host")
    if lazy.doubtful():
        lazy.require_sound()
    kind = t.dtype if dtype is None else dtype
    node = t.node
    array = np.broadcast_to(array, node.shape)
    in_place = t._base is None and kind is node.dtype and node.buffer is not None
    if in_place and indexing.is_unshared(node):
        if node.buffer.nbytes:
            node.buffer.numpy(node.shape, kind)[...] = array
        t._version += 1
        return
    if t._base is not None or (node.buffer is not None and node.buffer.shared):
        # A view, or the user's own array: only an ordinary write reaches what lies behind it.
        with autograd.no_grad():
            t._assign(leaf(buffer_of(array, kind), node.shape, kind), "set_value")
        return
    fresh = leaf(buffer_of(array, kind), node.shape, kind)
    if node.requires_grad and kind.is_floating_point:
        t._mark_leaf(fresh, node)
    t._node = fresh
    t._version += 1


def copied(t: TensorBase, source: Node) -> bool:
    """Copy ``source`` into ``t`` at once; False, with nothing done, if that is to be recorded.

    Between two values in memory there is nothing to gain from a program, and a model that has been
    given its weights this way shall not need one more than others at its first step.
    """
    trace = MODE.trace
    if source.buffer is None or trace.capture is not None or t._base is not None:
        return False
    grad = trace.grad_enabled and (source.requires_grad or t._node.requires_grad)
    if grad or not t.is_leaf or t._node.buffer is None or t._node.buffer.shared:
        return False
    if t._node.dtype is not source.dtype or t._node.shape != source.shape:
        return False
    set_value(t, source.buffer.numpy(source.shape, source.dtype))
    return True


def stored(t: TensorBase, index: Any, value: Any) -> bool:
    """Do ``t[index] = value`` at once; False, with nothing done, if that is to be recorded."""
    if gathering.is_gather(index):
        return False
    region = indexing.parse(t._node.shape, index)
    if isinstance(value, TensorBase):
        # The end of ``t[index] += 1``: the view has written to the region, and follows it.
        follows = value._base is t and value._seen != t._version
        source = value.node
        grad = source.requires_grad or t._node.requires_grad
        if follows and not grad and indexing.region_of(value) == region:
            return True
    elif _fits(value, t._node.dtype):
        source = value
    else:
        return False
    return t._base is None and indexing.store(t, region, source)


def _fits(value: Any, dtype: DType) -> bool:
    """True for a number that numpy converts to that dtype as programs do."""
    if isinstance(value, np.generic):
        value = value.item()
    if dtype.is_floating_point:
        # Larger integers are rounded twice by numpy, or too large for a program.
        return type(value) is float or (type(value) is int and abs(value) <= 1 << 53)
    return type(value) is int and dtype.category is Category.INT and 0 <= value < 128


def joined(nodes: Sequence[Node], dim: int, new: bool = False) -> Node | None:
    """Tensors joined at once where how many, how long or which are the same varies; else None.

    A sequence that grows, a sample in which some come twice: each would need a program, and what
    reads the result would, too.  ``new``: along a dimension that they do not have.
    """
    if not nodes:
        return None
    first = nodes[0]
    rank, trace = len(first.shape) + new, MODE.trace
    if not -rank <= dim < rank or trace.forbidden or not all(map(indexing.unwatched, nodes)):
        return None
    axis = dim % rank
    seen: dict[int, int] = {}
    same = tuple(seen.setdefault(id(n), i) for i, n in enumerate(nodes))
    skipped = axis + (not new)
    kinds = {(n.dtype, n.shape[:axis], n.shape[skipped:]) for n in nodes}
    sizes = tuple(n.shape[axis:skipped] for n in nodes)
    ranks = {len(n.shape) for n in nodes}
    fits = len(kinds) == len(ranks) == 1 and not any(n.is_scalar for n in nodes)
    if not fits or not varies((new, axis, *kinds), (sizes, same)):
        return None
    lazy.evaluate(nodes, "cat")
    EVENTS.add("joined_at_once")
    arrays = [n.buffer.numpy(n.shape, n.dtype) for n in nodes]
    array = np.stack(arrays, axis) if new else np.concatenate(arrays, axis)
    return leaf(buffer_of(array, first.dtype), array.shape, first.dtype)
