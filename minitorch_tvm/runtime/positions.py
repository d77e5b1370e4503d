"""Whether positions in memory are within their bounds, told by native code once there is some.

Behind a step, which leaves neither numpy's code nor its objects in the core's cache, numpy takes
many times as long for the labels of a batch as otherwise.  Every program brings a function that
is twice as fast even otherwise (:mod:`..compiler.within`); the first one's is kept.
"""

from __future__ import annotations

from typing import Any

from ..core.bounds import Bounds
from ..core.dtype import DType, int64
from ..core.shape import Shape
from ..ir.program import WITHIN
from .memory import Buffer

_MOST = 1 << 15
"""Bytes; with more positions numpy, whose code is optimised, is as fast or faster."""

_within: Any = None


def provide(code: Any) -> None:
    """Take the function from a program's linked code, unless there is one already."""
    global _within
    if _within is None:
        _within = code[WITHIN]


def are_inside(bounds: Bounds, buffer: Buffer, shape: Shape, dtype: DType) -> bool:
    """Whether no integer in a buffer is outside."""
    low, end, spared = bounds.low, bounds.end, bounds.spared
    if _within is not None and dtype is int64 and buffer.aligned and low < end:
        nbytes = buffer.nbytes
        if nbytes <= _MOST:
            spared = low if spared is None else spared
            return bool(_within(buffer.address, nbytes >> 3, low, end, spared))
    return bounds.hold(buffer.numpy(shape, dtype))


def require_inside(bounds: Bounds, buffer: Buffer, shape: Shape, dtype: DType) -> None:
    """Raise the error of the first integer in a buffer that is outside, if any is."""
    if not are_inside(bounds, buffer, shape, dtype):
        bounds.test(buffer.numpy(shape, dtype))
