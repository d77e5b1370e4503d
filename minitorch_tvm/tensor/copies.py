"""Copies of tensors, by ``copy`` and by ``pickle``."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..core.dtype import DType
from ..ir.node import leaf
from ..runtime.memory import buffer_of
from .gradient import Gradient


class Copies(Gradient):
    """The part of a tensor that knows how it is copied."""

    __slots__ = ()

    if TYPE_CHECKING:  # of the tensor
        _attach: Any
        _array: Any
        _memory: Any
        requires_grad_: Any

        @property
        def is_leaf(self) -> bool: ...
        @property
        def requires_grad(self) -> bool: ...

    _grad_is_copied: ClassVar[bool] = True  # by copy.deepcopy

    def __copy__(self) -> Self:
        """Another tensor on the same memory, with the same history and ``.grad``."""
        copied = type(self).__new__(type(self))
        # Of an object with slots, these and what it has beside them.
        state: Any = self.__getstate__()
        own, slots = state
        if own:
            copied.__dict__.update(own)
        for name, value in slots.items():
            setattr(copied, name, value)
        copied._memory = None  # that is the original's
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A leaf of the same class with a copy of the data and of ``.grad`` (evaluates).

        A copy of a :class:`Parameter` has no gradient, as in PyTorch.
        """
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment."
            )
        array = self._array("deepcopy")
        copied = _new(type(self), array, self.dtype, self.requires_grad)
        memo[id(self)] = copied
        if self._grad_is_copied:
            copied._grad = copy.deepcopy(self._grad, memo)
        return copied

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """For pickle: class, values, dtype and whether it requires grad (evaluates).

        As in PyTorch, what comes back is a leaf without ``.grad``.  Tensors that share memory, but
        are not one tensor, come back apart.
        """
        values = self._array("pickle")
        own = getattr(self, "__dict__", None) or None
        return _new, (type(self), values, self.dtype, self.requires_grad), own


def _new(kind: type[Any], values: Any, dtype: DType, requires_grad: bool) -> Any:
    """A leaf of that class with a copy of the values."""
    tensor: Any = object.__new__(kind)
    array: np.ndarray[Any, Any] = np.asarray(values)
    tensor._attach(leaf(buffer_of(array, dtype), array.shape, dtype))
    if requires_grad:
        tensor.requires_grad_()
    return tensor
