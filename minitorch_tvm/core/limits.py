"""What the numbers of a dtype can be, what dtypes promote to, and dtypes that are not there."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from . import dtype as dt
from .dtype import DType


def _dtype_of(function: str, given: Any) -> DType:
    if given is None:
        return dt.float32
    if not isinstance(given, DType):
        raise TypeError(
            f"{function}(): argument 'type' (position 1) must be torch.dtype, not "
            f"{type(given).__name__}"
        )
    return given


@functools.cache
def _of_floats(name: str) -> tuple[float, float, float, float, float]:
    known = np.finfo(name)
    resolution = float(str(known.resolution))
    return float(known.eps), float(known.max), float(known.min), float(known.tiny), resolution


class finfo:
    """Limits of a floating point dtype (float32 by default).

    Raises TypeError for other dtypes.

    >>> finfo(dt.float64).eps
    2.220446049250313e-16
    """

    __slots__ = ("bits", "dtype", "eps", "max", "min", "resolution", "smallest_normal", "tiny")

    def __init__(self, type: DType | None = None) -> None:
        kind = _dtype_of("finfo", type)
        if not kind.is_floating_point:
            raise TypeError(
                "torch.finfo() requires a floating point input type. Use torch.iinfo to handle "
                "'torch.finfo'"
            )
        self.bits: int = 8 * kind.itemsize
        self.eps, self.max, self.min, self.tiny, self.resolution = _of_floats(kind.name)
        self.smallest_normal = self.tiny
        self.dtype: str = kind.name

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        limits = ", ".join(f"{name}={getattr(self, name):g}" for name in names)
        return f"finfo({limits}, dtype={self.dtype})"


class iinfo:
    """Limits of an integer dtype.

    Raises TypeError for other dtypes.

    >>> iinfo(dt.uint8).max
    255
    """

    __slots__ = ("bits", "dtype", "max", "min")

    def __init__(self, type: DType) -> None:
        kind = _dtype_of("iinfo", type)
        if kind.is_floating_point:
            raise TypeError(
                "torch.iinfo() requires an integer input type. Use torch.finfo to handle "
                "'torch.iinfo'"
            )
        if kind is dt.bool_:
            raise TypeError("torch.bool is not supported by torch.iinfo")
        low, end = kind.range
        self.bits: int = 8 * kind.itemsize
        self.min, self.max = low, end - 1
        self.dtype: str = kind.name

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"


def promote_types(type1: DType, type2: DType) -> DType:
    """The smallest dtype that numbers of both dtypes are converted to.

    >>> promote_types(dt.int64, dt.float32)
    mt.float32
    """
    for position, (name, given) in enumerate((("type1", type1), ("type2", type2)), 1):
        _is_dtype("promote_types", name, position, given)
    return dt.promote(type1, type2)


def can_cast(from_: DType, to: DType) -> bool:
    """Whether conversion keeps the category: bool to integer to floating point.

    >>> can_cast(dt.float64, dt.float32), can_cast(dt.float32, dt.int64)
    (True, False)
    """
    _is_dtype("can_cast", "from_", 1, from_)
    _is_dtype("can_cast", "to", 2, to)
    return from_.category <= to.category


def _is_dtype(function: str, argument: str, position: int, given: Any) -> None:
    if not isinstance(given, DType):
        raise TypeError(
            f"{function}(): argument '{argument}' (position {position}) must be torch.dtype, not "
            f"{type(given).__name__}"
        )


def get_default_dtype() -> DType:
    """The dtype of tensors made of Python floats: float32."""
    return dt.float32


def set_default_dtype(d: DType) -> None:
    """Accepts float32, which is the default always.

    Raises NotImplementedError for float64 and TypeError for other dtypes.
    """
    if not isinstance(d, DType):
        raise TypeError(
            "invalid dtype object: only floating-point types are supported as the default type"
        )
    if not d.is_floating_point:
        raise TypeError("only floating-point types are supported as the default type")
    if d is not dt.float32:
        raise NotImplementedError(
            f"set_default_dtype(): the default is always float32, not {d.name}: pass dtype= to "
            "what makes tensors, or convert with .double()"
        )


_ABSENT = {
    "float16": "float32",
    "half": "float32",
    "bfloat16": "float32",
    "float8_e4m3fn": "float32",
    "float8_e5m2": "float32",
    "int8": "int32",
    "int16": "int32",
    "short": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "int64",
    "complex32": "",
    "complex64": "",
    "cfloat": "",
    "complex128": "",
    "cdouble": "",
}


def absent(name: str) -> AttributeError:
    """The error for a name that the package does not have; for PyTorch's dtypes it says more."""
    text = f"module 'minitorch_tvm' has no attribute '{name}'"
    if name in _ABSENT:
        text += ": data types are float32, float64, int32, int64, uint8 and bool"
        text += f"; use {_ABSENT[name]}" * bool(_ABSENT[name])
    return AttributeError(text)
