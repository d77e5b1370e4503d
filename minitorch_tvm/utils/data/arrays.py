"""Aligned numpy memory, and reading many rows of an array at once.

Kernels take user memory without a copy only when it is C-contiguous and starts on a 64-byte
boundary. Batches are therefore built in such memory from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minitorch_tvm.runtime.memory import ALIGNMENT, Buffer

AnyArray = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]


def is_aligned(array: AnyArray) -> bool:
    """True when ``array`` is C-contiguous and starts on a 64-byte boundary (or holds no bytes)."""
    if not array.flags.c_contiguous:
        return False
    return array.nbytes == 0 or array.ctypes.data % ALIGNMENT == 0


def aligned_empty(shape: Sequence[int], dtype: npt.DTypeLike) -> AnyArray:
    """An uninitialised C-contiguous array of ``shape`` and ``dtype`` on a 64-byte boundary.

    >>> import numpy as np
    >>> aligned_empty((3, 5), np.float32).ctypes.data % 64
    0
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    raw = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(kind).reshape(tuple(shape))


def pooled_empty(shape: Sequence[int], dtype: npt.DTypeLike) -> AnyArray:
    """Like :func:`aligned_empty`, but in the runtime's pool: for batches, which come and go.

    The block is reused once the last array and Tensor on it are gone, so a training loop in its
    steady state allocates nothing.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size == 0:
        return aligned_empty(shape, kind)
    batch: AnyArray = Buffer(size).view(tuple(shape), kind)
    return batch


def aligned(array: AnyArray) -> AnyArray:
    """``array`` itself when :func:`is_aligned`, else a copy in aligned memory."""
    if is_aligned(array):
        return array
    copy = pooled_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def index_array(indices: Sequence[int] | AnyArray) -> IntArray:
    """``indices`` as a 1-d int64 array.

    Raises:
        TypeError: an index is not an integer (it would otherwise be truncated silently).
    """
    array = np.asarray(indices)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"dataset indices must be integers, but got {array.dtype} in {indices!r}")
    return array.astype(np.int64, copy=False).reshape(-1)


def take_rows(array: AnyArray, indices: IntArray) -> AnyArray:
    """Rows ``indices`` of ``array``, C-contiguous and 64-byte aligned.

    Ascending neighbours (the batches of a loader that does not shuffle) whose bytes already start
    on a boundary come back as a *read-only view*; everything else is one vectorised copy.
    Negative indices count from the end.

    Args:
        array: any dtype, shape ``[n, *rest]``.
        indices: int64, shape ``[b]``.

    Returns:
        shape ``[b, *rest]``, dtype of ``array``.

    Raises:
        IndexError: an index lies outside ``[-n, n)``.
    """
    count = len(array)
    shape = (len(indices), *array.shape[1:])
    if len(indices) == 0:
        return pooled_empty(shape, array.dtype)
    low, high = int(indices.min()), int(indices.max())
    if low < -count or high >= count:
        bad = low if low < -count else high
        raise IndexError(f"index {bad} is out of bounds for dimension 0 with size {count}")
    if low < 0:
        indices = np.where(indices < 0, indices + count, indices)
    first = int(indices[0])
    if int(indices[-1]) - first == len(indices) - 1 and bool((np.diff(indices) == 1).all()):
        view = array[first : first + len(indices)]
        if is_aligned(view):
            # Read-only, because a batch must never write through to the dataset.
            view.flags.writeable = False
            return view
    out = pooled_empty(shape, array.dtype)
    if array.flags.c_contiguous:
        # "clip" writes straight into `out` where "raise" goes through a temporary; the bounds
        # were checked above.
        np.take(array, indices, axis=0, out=out, mode="clip")
    else:
        out[...] = array[indices]  # np.take would first copy the whole strided source
    return out
