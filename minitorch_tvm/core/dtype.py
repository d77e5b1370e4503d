"""Element types and PyTorch's rules for combining them.

The promotion rules are those of ``torch.result_type``: operands fall into three priorities
(tensors with dimensions, 0-d tensors, Python numbers), and a lower priority changes the result
only when its *category* (bool < integer < floating point) is higher.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np


class Category(IntEnum):
    """Coarse ordering of dtypes used by promotion."""

    BOOL = 0
    INT = 1
    FLOAT = 2


@dataclass(frozen=True, eq=False, slots=True)
class DType:
    """An element type.  There is exactly one instance per type, so ``is`` compares them."""

    name: str
    itemsize: int
    category: Category
    rank: int  # promotion order inside and across categories
    torch_name: str  # the type name PyTorch prints in its messages
    numpy: np.dtype[np.generic] = field(init=False)
    """The numpy dtype with the same bytes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "numpy", np.dtype(self.name))

    def __repr__(self) -> str:
        return f"mt.{self.name}"

    def __reduce__(self) -> str | tuple[object, ...]:
        return (by_name, (self.name,))

    @property
    def is_floating_point(self) -> bool:
        """True for float32 and float64."""
        return self.category is Category.FLOAT

    @property
    def scalar_name(self) -> str:
        """What PyTorch's messages call a number of this type: "float", "long int", ..."""
        return _SCALAR_NAMES.get(self.torch_name, self.torch_name.lower())

    @property
    def is_unsigned(self) -> bool:
        """True for the integers without negative values."""
        return self.name[0] == "u"

    @property
    def range(self) -> tuple[int, int]:
        """Smallest value of an integer type, and one more than its largest."""
        return _RANGES[self.name]

    @property
    def lowest(self) -> float | int:
        """The value that every other one replaces as a maximum."""
        return float("-inf") if self.is_floating_point else self.range[0]

    @property
    def least(self) -> float | int:
        """The smallest value that is not infinite."""
        return float(np.finfo(self.name).min) if self.is_floating_point else self.range[0]


_SCALAR_NAMES: Final = {"Long": "long int", "Byte": "unsigned char"}

bool_: Final = DType("bool", 1, Category.BOOL, 0, "Bool")
uint8: Final = DType("uint8", 1, Category.INT, 1, "Byte")
int32: Final = DType("int32", 4, Category.INT, 3, "Int")
# uint32 carries the random bits inside the graph; users meet it only through views of them.
uint32: Final = DType("uint32", 4, Category.INT, 4, "UInt32")
int64: Final = DType("int64", 8, Category.INT, 5, "Long")
float32: Final = DType("float32", 4, Category.FLOAT, 7, "Float")
float64: Final = DType("float64", 8, Category.FLOAT, 8, "Double")

ALL: Final = (bool_, uint8, int32, uint32, int64, float32, float64)
_BY_NAME: Final = {d.name: d for d in ALL}
_RANGES: Final = {
    d.name: (-(1 << 8 * d.itemsize - 1), 1 << 8 * d.itemsize - 1)
    if d.name[0] == "i"
    else (0, 1 << 8 * d.itemsize)
    for d in ALL
}
_FROM_NUMPY: Final = {d.numpy: d for d in ALL}

of_numpy = _FROM_NUMPY.get
"""The dtype whose bytes equal those of a numpy dtype, None if there is none."""


def by_name(name: str) -> DType:
    """Return the dtype called ``name``.  Raises KeyError for an unknown name."""
    return _BY_NAME[name]


def from_numpy(dtype: np.dtype[np.generic]) -> DType:
    """Return the dtype whose bytes equal numpy's ``dtype`` (native byte order).

    Raises TypeError, in PyTorch's words, for types without a counterpart.
    """
    found = _FROM_NUMPY.get(dtype)
    if found is None or not dtype.isnative:
        names = ", ".join(d.name for d in ALL)
        raise TypeError(
            f"can't convert np.ndarray of type {dtype}. The only supported types are: {names}."
        )
    return found


def as_dtype(value: object) -> DType:
    """Accept a DType, a Python type (float, int, bool), or a numpy type, dtype or its name.

    Python's own floats have 64 bits, so that is what ``float`` means, as in PyTorch.  Raises
    TypeError for anything else.

    >>> as_dtype(float)
    mt.float64
    """
    if isinstance(value, DType):
        return value
    if value is float:
        return float64
    if value is int:
        return int64
    if value is bool:
        return bool_
    if isinstance(value, (np.dtype, type, str)):
        try:
            return from_numpy(np.dtype(value))
        except TypeError:
            pass
    raise TypeError(f"dtype must be a minitorch_tvm dtype, but got {value!r}")


def of_number(value: bool | int | float) -> DType:
    """Default dtype of a Python number: bool, int64 or float32 (PyTorch's defaults)."""
    if isinstance(value, bool):
        return bool_
    return int64 if isinstance(value, int) else float32


def promote(a: DType, b: DType) -> DType:
    """``torch.promote_types`` for the supported dtypes."""
    return a if a.rank >= b.rank else b


def result_type(operands: Iterable[tuple[DType, int]]) -> DType:
    """dtype of an arithmetic result.

    ``operands`` pairs each dtype with its priority: 2 for a tensor with dimensions, 1 for a 0-d
    tensor, 0 for a Python number.

    >>> result_type([(int64, 2), (float32, 0)])
    mt.float32
    >>> result_type([(float32, 2), (float64, 1)])
    mt.float32
    """
    best: list[DType | None] = [None, None, None]
    for dtype, priority in operands:
        current = best[priority]
        best[priority] = dtype if current is None else promote(current, dtype)
    result = best[2]
    for lower in (best[1], best[0]):
        if lower is None:
            continue
        if result is None or lower.category > result.category:
            result = lower
    if result is None:
        raise ValueError("result_type needs at least one operand")
    return result
