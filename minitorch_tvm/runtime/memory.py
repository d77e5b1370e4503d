"""Aligned memory: buffers that users can reach, and the arena that they cannot.

A :class:`Buffer` returns its block to a pool when the last reference to it goes (the node that owns
it, or a numpy view of it), so a training loop in steady state allocates nothing.  Intermediates of
a program live in the :class:`Arena`, one block shared by all programs.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from ..core.dtype import DType
from ..core.events import EVENTS
from ..core.shape import Shape, numel

ALIGNMENT = 64
"""Bytes; own memory starts at multiples of this, so that vectors do not cross cache lines."""

_POOL_LIMIT = 1 << 30  # free bytes kept for reuse


def round_up(nbytes: int) -> int:
    """``nbytes`` as a positive multiple of the alignment."""
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT or ALIGNMENT


def _raw_block(nbytes: int) -> tuple[Any, int]:
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    EVENTS.add("bytes_allocated", nbytes)
    EVENTS.add("allocations")
    return raw, raw.ctypes.data + -raw.ctypes.data % ALIGNMENT


class _Pool:
    """Free blocks by size."""

    def __init__(self) -> None:
        self._free: dict[int, list[tuple[Any, int]]] = {}
        self._free_bytes = 0
        # Re-entrant: a garbage collection inside take() may run Buffer.__del__.
        self._lock = threading.RLock()

    def take(self, size: int) -> tuple[Any, int]:
        """A block of exactly ``size`` bytes and its aligned address."""
        with self._lock:
            blocks = self._free.get(size)
            if blocks:
                self._free_bytes -= size
                return blocks.pop()
        return _raw_block(size)

    def give(self, size: int, block: tuple[Any, int]) -> None:
        """Return a block; beyond the limit it goes back to the system."""
        with self._lock:
            free_bytes = self._free_bytes + size
            if free_bytes <= _POOL_LIMIT:
                self._free_bytes = free_bytes
                blocks = self._free.get(size)
                if blocks is None:
                    self._free[size] = [block]
                else:
                    blocks.append(block)

    def clear(self) -> None:
        """Give all free blocks back to the system."""
        with self._lock:
            self._free.clear()
            self._free_bytes = 0


POOL = _Pool()
_take, _give = POOL.take, POOL.give


_first_byte = ctypes.c_char.from_buffer


class Buffer:
    """Memory of one value: pooled and aligned, or (``shared``) an array that the user owns."""

    __slots__ = ("__weakref__", "_block", "_size", "address", "aligned", "array", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self._size = 0  # nothing to return, should there be no memory
        size = round_up(nbytes)
        block = self._block = _take(size)
        self._size = size
        self.nbytes = nbytes
        self.address: int = block[1]
        self.array: Any = None
        self.aligned = True
        """False for a user's array that is not even aligned to its elements."""

    @staticmethod
    def around(array: Any, aligned: bool) -> Buffer:
        """A buffer on the memory of a writeable C-contiguous array: its owner sees changes."""
        buffer = Buffer.__new__(Buffer)
        buffer.nbytes = array.nbytes
        buffer._size = 0
        buffer._block = None  # type: ignore[assignment]
        # A quarter of what array.ctypes.data costs, at every batch.
        buffer.address = ctypes.addressof(_first_byte(array)) if array.nbytes else 0
        buffer.array = array
        buffer.aligned = aligned
        return buffer

    @property
    def shared(self) -> bool:
        """True for memory that belongs to the user."""
        return self.array is not None

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.address, False),
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def numpy(self, shape: Shape, dtype: DType) -> Any:
        """A writable numpy view of this memory, which it keeps alive."""
        array = self.array
        if array is not None:
            if array.shape == shape and array.dtype == dtype.numpy:
                return array.view()
            return array.reshape(-1).view(dtype.numpy).reshape(shape)
        if self.nbytes == 0:
            return np.empty(shape, dtype.numpy)
        return np.asarray(self).view(dtype.numpy).reshape(shape)

    def __del__(self) -> None:
        if self._size:
            _give(self._size, self._block)


def buffer_of(array: Any, dtype: DType) -> Buffer:
    """A new buffer with a copy of ``array`` converted to ``dtype``."""
    buffer = Buffer(numel(array.shape) * dtype.itemsize)
    if buffer.nbytes:
        buffer.numpy(array.shape, dtype)[...] = array
    return buffer


class Arena:
    """The block that holds the intermediates of whichever program is running."""

    def __init__(self) -> None:
        self._raw: Any = None
        self._address = 0
        self.nbytes = 0

    def address(self, nbytes: int) -> int:
        """Address of at least ``nbytes`` bytes; grows, never shrinks."""
        if nbytes > self.nbytes or self._raw is None:
            size = round_up(nbytes)
            self._raw, self._address = _raw_block(size)
            self.nbytes = size
            EVENTS.add("arena_growths")
        return self._address

    def view(self) -> Any:
        """The arena as bytes, for tests and the validator."""
        start = self._address - self._raw.ctypes.data
        return self._raw[start : start + self.nbytes]


ARENA = Arena()
