"""Reading and writing tensors from the host, without recording anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import autograd, lazy
from ..core.dtype import DType
from ..ir.node import MODE, Node, leaf
from ..runtime.memory import buffer_of
from .at_once import is_unshared
from .core import TensorBase

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
    if in_place and is_unshared(node):
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
