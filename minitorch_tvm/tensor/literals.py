"""Python numbers and nested sequences of them as arrays, with PyTorch's errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import dtype as dt
from ..core.dtype import DType

_NUMPY = (np.ndarray, np.generic)
_FLOATS, _INTS = {float}, {int}


def kinds_of(data: Any) -> set[type]:
    """The types of a sequence's elements, or the type of anything else."""
    return set(map(type, data)) if isinstance(data, (list, tuple)) else {type(data)}


def _first(data: Any) -> Any:
    """The first element of nested sequences."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return data


def array_of(data: Any, dtype: DType | None) -> tuple[np.ndarray[Any, Any], DType | None]:
    """Python numbers, or nested sequences of them, as an array and the dtype it shall have.

    Raises ValueError (ragged, beyond 64 bits), TypeError (not a sequence where one is due),
    RuntimeError (no numbers, or numbers that ``dtype`` cannot hold) and OverflowError (an int too
    large for a float).
    """
    kinds = kinds_of(data)
    if kinds == _FLOATS and (dtype is None or dtype.is_floating_point):
        return np.asarray(data), dtype or dt.float32  # nothing can be wrong with these
    try:
        array = np.asarray(data)
    except ValueError:
        _find_ragged(data, _lengths(data), 0)
        raise
    except OverflowError:
        raise ValueError("Overflow when unpacking long long") from None
    if kinds == _INTS and array.dtype == np.int64 and (dtype is None or dtype is dt.int64):
        return array, dtype
    first = _first(data)
    if isinstance(first, str):
        if isinstance(data, str):
            raise TypeError("new(): invalid data type 'str'")
        raise ValueError("too many dimensions 'str'")
    if array.dtype.kind == "U":
        raise TypeError("new(): invalid data type 'str'")
    if not isinstance(first, _NUMPY) and _beyond_int64(array):
        whole = True
        for x in np.asarray(data, object).flat:
            if not isinstance(x, (bool, int, float)):
                raise RuntimeError(f"Could not infer dtype of {type(x).__name__}")
            whole = whole and isinstance(x, int)
        if whole and (dtype is None or not dtype.is_floating_point):
            raise ValueError("Overflow when unpacking long long")
        array = array.astype(np.float64)
    if dtype is not None and dtype.category is dt.Category.INT and array.size:
        limits = np.iinfo(dtype.name)
        # Written so that NaN does not pass.
        if not bool(((array >= limits.min) & (array <= limits.max)).all()):
            raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow")
    if dtype is None and (array.size == 0 or not isinstance(first, _NUMPY)):
        # Python numbers take PyTorch's defaults, not numpy's.
        dtype = dt.float32 if array.size == 0 or array.dtype.kind == "f" else None
    return array, dtype


def _beyond_int64(array: np.ndarray[Any, Any]) -> bool:
    """True if ``array``, of Python objects, may have come from ints that int64 cannot hold.

    numpy makes them unsigned, floating point if there are small ones too, or leaves them objects.
    """
    if array.dtype.kind == "f":
        return bool((np.abs(array) >= 2.0**63).any())
    return array.dtype == object or array.dtype == np.uint64


def _lengths(data: Any) -> list[int]:
    """Lengths along the first element of every level."""
    out = []
    while isinstance(data, (list, tuple)):
        out.append(len(data))
        data = data[0] if data else None
    return out


def _find_ragged(data: Any, lengths: list[int], level: int) -> None:
    """Raise for the first sequence whose length differs from its neighbours'."""
    sequence = isinstance(data, (list, tuple))
    if level == len(lengths):
        if sequence:
            raise TypeError("'list' object cannot be interpreted as a number")
        return
    if not sequence:
        raise TypeError("not a sequence")
    if len(data) != lengths[level]:
        raise ValueError(
            f"expected sequence of length {lengths[level]} at dim {level} (got {len(data)})"
        )
    for x in data:
        _find_ragged(x, lengths, level + 1)
