"""Classes that stand for the tensors of one dtype, as older programs name them.

>>> import minitorch_tvm as mt
>>> mt.LongTensor([3, 4]), mt.FloatTensor(2, 3).shape
(tensor([3, 4]), torch.Size([2, 3]))
>>> isinstance(mt.zeros(2), mt.FloatTensor), isinstance(mt.zeros(2), mt.LongTensor)
(True, False)
>>> mt.zeros(2).type(mt.LongTensor)
tensor([0, 0])
"""

from __future__ import annotations

from typing import Any

from ..core import dtype as dt
from .legacy import OfDtype, leaf_for
from .tensor import Tensor


def _made(kind: dt.DType, given: tuple[Any, ...]) -> Tensor:
    """A tensor of the dtype: zeros of given sizes, numbers, or a view of a tensor that has it."""
    if len(given) == 1 and isinstance(given[0], Tensor):
        if given[0].dtype is not kind:
            raise TypeError(f"expected a Tensor of {kind.torch_name} (got {given[0].type()})")
        return given[0].view_as(given[0])
    return Tensor._wrap(leaf_for(given, kind))


class FloatTensor(metaclass=OfDtype):
    """The tensors of float32: ``FloatTensor(2, 3)`` makes one of zeros, of that shape.

    ``FloatTensor([1.0, 2.0])`` copies numbers, and given a tensor of float32 it is a view of that.
    Raises TypeError for tensors of other dtypes, and for what is no sequence.
    """

    kind = dt.float32

    def __new__(cls, *data: Any) -> Any:
        return _made(cls.kind, data)


class DoubleTensor(FloatTensor):
    """The tensors of float64, as :class:`FloatTensor`."""

    kind = dt.float64


class IntTensor(FloatTensor):
    """The tensors of int32, as :class:`FloatTensor`."""

    kind = dt.int32


class LongTensor(FloatTensor):
    """The tensors of int64, as :class:`FloatTensor`."""

    kind = dt.int64


class ByteTensor(FloatTensor):
    """The tensors of uint8, as :class:`FloatTensor`."""

    kind = dt.uint8


class BoolTensor(FloatTensor):
    """The tensors of bool, as :class:`FloatTensor`."""

    kind = dt.bool_
