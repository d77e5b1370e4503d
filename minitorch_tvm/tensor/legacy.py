"""PyTorch's older constructors: ``Tensor(2, 3)``, ``FloatTensor([1.0])``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import arguments as arg
from ..core.dtype import DType
from ..core.shape import Size
from ..ir.node import Node, leaf
from ..runtime.memory import buffer_of
from .core import TensorBase, leaf_of

_SIZES = (int, np.integer, Size)


class OfDtype(type):
    """The class of classes that stand for the tensors of one dtype."""

    kind: DType

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, TensorBase) and instance.dtype is cls.kind


def leaf_for(given: tuple[Any, ...], dtype: DType) -> Node:
    """A leaf of ``dtype``: zeros of the given sizes, or a copy of the one sequence or array.

    Raises TypeError for what is neither sizes nor a sequence, RuntimeError for negative sizes.
    """
    if len(given) == 1 and (isinstance(given[0], bool) or not isinstance(given[0], _SIZES)):
        data = given[0]
        if not isinstance(data, (str, Sequence, np.ndarray)):
            kind = type(data)
            name = f"numpy.{kind.__name__}" if isinstance(data, np.generic) else kind.__name__
            raise TypeError(f"new(): data must be a sequence (got {name})")
        return leaf_of(data, dtype)
    sizes = given[0] if len(given) == 1 and isinstance(given[0], Size) else given
    shape = arg.bounded(arg.several("new", "size", 1, sizes)) if given else (0,)
    return leaf(buffer_of(np.zeros(shape, dtype.numpy), dtype), shape, dtype)
