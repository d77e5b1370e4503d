"""Parameter: a tensor that modules count among their parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import dtype as dt
from ..core.arguments import bounded, flag, several
from ..core.device import require_cpu
from ..ir.node import Node, leaf
from ..ops.movement import Full
from ..runtime.memory import buffer_of
from ..tensor import Tensor
from ..tensor.formatting import render


def _own_leaf(t: Tensor) -> Node:
    """A leaf with the value of ``t``, on the same memory where ``t`` has any."""
    node = t.node
    if isinstance(node.op, Full) and node.pending:
        # mt.zeros and friends: no program is compiled just to fill memory.
        array = np.full(node.shape, node.op.value, node.dtype.numpy)
        return leaf(buffer_of(array, node.dtype), node.shape, node.dtype)
    if node.pending:  # evaluating what is at hand would evaluate all else that is pending, too
        t.realize("parameter")
        node = t.node
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
        flag("_make_subclass", "require_grad", 3, requires_grad)
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

    Raises TypeError for sizes that are no ints, RuntimeError for negative ones, and for devices
    other than the CPU as ``require_cpu``.
    """
    shape = bounded(several("empty", "size", 1, shape))
    require_cpu(device, "empty")
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    return Parameter(Tensor._wrap(leaf(buffer_of(np.zeros(shape), kind), shape, kind)))
