"""Parameter, and writing to tensors from the host without recording anything."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np

from .. import autograd
from ..core import dtype as dt
from ..core.arguments import bounded
from ..core.dtype import DType
from ..ir.node import Node, leaf
from ..ops.movement import Full
from ..runtime.memory import buffer_of
from ..tensor import Tensor
from ..tensor.formatting import render

Array = np.ndarray[Any, Any]


def _own_leaf(t: Tensor) -> Node:
    """A leaf with the value of ``t``, on the same memory where ``t`` has any."""
    node = t.node
    if isinstance(node.op, Full) and node.pending:
        # mt.zeros and friends: no program is compiled just to fill memory.
        array = np.full(node.shape, node.op.value, node.dtype.numpy)
        return leaf(buffer_of(array, node.dtype), node.shape, node.dtype)
    t.realize("parameter")
    if node.buffer is None:  # a number that became a 0-d tensor
        return leaf(buffer_of(np.asarray(node.value), node.dtype), (), node.dtype)
    return leaf(node.buffer, node.shape, node.dtype)


class Parameter(Tensor):
    """A tensor that a :class:`Module` counts among its parameters when it is assigned to one.

    ``Parameter(data, requires_grad=True)`` takes its value from the tensor ``data``, which is
    evaluated if it is pending, and stands on the same memory until one of the two is written.
    Raises TypeError if ``data`` is not a tensor, RuntimeError if its dtype cannot require grad.

    >>> import minitorch_tvm as mt
    >>> Parameter(mt.zeros(2))
    Parameter containing:
    tensor([0., 0.], requires_grad=True)
    """

    __slots__ = ()

    _grad_is_copied = False

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        if data is None:
            node = leaf(buffer_of(np.empty(0), dt.float32), (0,), dt.float32)
        elif isinstance(data, Tensor):
            node = _own_leaf(data)
        else:
            raise TypeError(f"Parameter expects a Tensor, but got {type(data).__name__}")
        if requires_grad and not node.dtype.is_floating_point:
            raise RuntimeError(
                "Only Tensors of floating point and complex dtype can require gradients"
            )
        self._attach(node)
        if requires_grad:
            self.requires_grad_()

    def __repr__(self) -> str:
        return f"Parameter containing:\n{render(self)}"


def new_parameter(shape: tuple[int, ...], device: Any, dtype: Any) -> Parameter:
    """A realised parameter of zeros (float32 by default), to be initialised by its layer.

    Raises RuntimeError for devices other than "cpu" and for negative sizes.
    """
    bounded(shape)
    if device is not None and str(device) != "cpu":
        raise RuntimeError(f"only device 'cpu' is supported, but got {device!r}")
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    return Parameter(Tensor._wrap(leaf(buffer_of(np.zeros(shape), kind), shape, kind)))


def host_array(t: Tensor) -> Array:
    """The values of ``t`` (evaluated), as a view of its memory: read it, do not keep it."""
    return t._array("host read")


def _unshared(node: Node) -> bool:
    """True if nothing but its tensor reads the node (and nothing but the node its memory)."""
    # The node: the tensor, the caller's local, this argument, getrefcount's own.
    # The memory: the node and getrefcount's argument.
    return sys.getrefcount(node) <= 4 and sys.getrefcount(node.buffer) <= 2


def set_value(t: Tensor, array: Any, dtype: DType | None = None) -> None:
    """Give the leaf ``t`` new values at once, computed on the host (``dtype`` converts it).

    The memory is overwritten if nothing else reads it, else replaced: values recorded before, but
    not evaluated yet, must still see the old ones.  ``requires_grad`` and identity are kept.
    """
    kind = t.dtype if dtype is None else dtype
    node = t.node
    array = np.broadcast_to(array, node.shape)
    in_place = t._base is None and kind is node.dtype and node.buffer is not None
    if in_place and _unshared(node):
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
        fresh.mark(requires_grad=True, grad_leaf=True)
        fresh.owner = weakref.ref(t)
    t._node = fresh
    t._version += 1
