"""What distributions share: parameters of one shape, values in memory, what is computed once."""

from __future__ import annotations

import copy
import functools
import numbers
from typing import Any

import numpy as np

from ..autograd import enable_grad
from ..core import dtype as dt
from ..core.dtype import DType
from ..core.limits import finfo, get_default_dtype
from ..core.shape import broadcast
from ..ir.node import Node
from ..nn.functional import softmax
from ..ops import build as b
from ..ops import derived as d
from ..ops import likelihoods as lk
from ..ops import movement as mv
from ..tensor import Tensor
from .constraints import Constraint

__all__ = ["broadcast_all", "lazy_property", "logits_to_probs", "probs_to_logits"]


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors and numbers as tensors of one shape; numbers take the dtype of the first tensor.

    Raises ValueError for anything else, RuntimeError for shapes that do not broadcast.

    >>> import minitorch_tvm as mt
    >>> broadcast_all(mt.zeros(2), 1)
    (tensor([0., 0.]), tensor([1., 1.]))
    """
    kind: DType | None = None
    for value in values:
        if isinstance(value, Tensor):
            kind = value.dtype if kind is None else kind
        elif not isinstance(value, numbers.Real):
            raise ValueError(
                "Input arguments must all be instances of Number, torch.Tensor or objects "
                "implementing __torch_function__."
            )
    kind = get_default_dtype() if kind is None else kind
    tensors = [x if isinstance(x, Tensor) else _number(x, kind) for x in values]
    shapes = [x.shape for x in tensors]
    if any(s != shapes[0] for s in shapes):
        shape = functools.reduce(broadcast, shapes[1:], tuple(shapes[0]))
        tensors = [x if x.shape == shape else x.expand(shape) for x in tensors]
    return tuple(tensors)


def _number(x: Any, kind: DType) -> Tensor:
    plain = x if isinstance(x, (bool, int, float)) else float(x)  # numpy's
    return Tensor._wrap(d.lift(plain, kind))


def nodes_of(*tensors: Tensor) -> list[Node]:
    """Their values in one floating point dtype, what they promote to."""
    nodes = [x.node for x in tensors]
    kind = nodes[0].dtype
    if not (kind.is_floating_point and all(x.dtype is kind for x in nodes)):
        kind = d.result_dtype(*nodes)
        kind = kind if kind.is_floating_point else get_default_dtype()
        nodes = [b.cast(x, kind) for x in nodes]
    return nodes


class lazy_property(functools.cached_property[Any]):
    """A property that is recorded when it is first asked for, with its gradient.

    >>> class Squared:
    ...     @lazy_property
    ...     def value(self):
    ...         print("once")
    ...         return 4
    >>> x = Squared()
    >>> x.value, x.value
    once
    (4, 4)
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        with enable_grad():
            return super().__get__(instance, owner)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """log(p), or with ``is_binary`` log(p / (1 - p)), of probabilities at least eps away
    from 0 and 1.

    >>> import minitorch_tvm as mt
    >>> probs_to_logits(mt.tensor([0.5, 1.0]), is_binary=True)
    tensor([ 0.0000, 15.9424])
    """
    return Tensor._wrap(lk.logarithms(probs.node, finfo(probs.dtype).eps, is_binary))


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Softmax over the last dimension, or with ``is_binary`` 1 / (1 + exp(-logits))."""
    return logits.sigmoid() if is_binary else softmax(logits, dim=-1)


def at_hand(x: Tensor) -> Any:
    """The values as a numpy array, of one of each repetition, if they are in memory; else None."""
    node = x.node
    while node.pending and isinstance(node.op, mv.Expand):
        (node,) = node.inputs
    if node.pending:
        return None
    if node.buffer is None:
        return np.asarray(node.value, node.dtype.numpy)
    return node.buffer.numpy(node.shape, node.dtype)


def _of_numbers(constraint: Constraint) -> Constraint | None:
    """The same constraint with numpy's arrays as bounds, if they are in memory."""
    known: dict[str, Any] = {}
    for name, value in vars(constraint).items():
        if isinstance(value, Tensor):
            known[name] = at_hand(value)
        elif isinstance(value, Constraint):
            known[name] = _of_numbers(value)
        else:
            continue
        if known[name] is None:
            return None
    if known:
        constraint = copy.copy(constraint)
        vars(constraint).update(known)
    return constraint


def violates(value: Tensor, constraint: Constraint) -> bool:
    """True if ``value`` is in memory, and not all of it inside."""
    array = at_hand(value)
    bounded = None if array is None else _of_numbers(constraint)
    if bounded is None:
        return False
    with np.errstate(invalid="ignore"):  # remainders of infinity
        return not np.all(bounded.check(array))


def is_whole(x: Tensor) -> bool:
    """True of integers and bools."""
    return x.dtype.category is not dt.Category.FLOAT
