"""Aligned memory: buffers that users can reach, and the arena that they cannot.

A :class:`Buffer` returns its block to a pool when the last reference to it goes (the node that owns
it, or a numpy view of it), so a training loop in steady state allocates nothing.  Intermediates of
a program live in the :class:`Arena`, one block shared by all programs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from ctypes import memmove
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


_first_byte, _address = ctypes.c_char.from_buffer, ctypes.addressof


def _address_of(array: Any) -> int:
    """Where a writeable contiguous array starts: a quarter of what ``array.ctypes.data`` costs."""
    return _address(_first_byte(array))


def _raw_block(nbytes: int) -> tuple[Any, int]:
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    EVENTS.add("bytes_allocated", nbytes)
    EVENTS.add("allocations")
    address = _address_of(raw)
    return raw, address + -address % ALIGNMENT


_SMALL = 1 << 16  # bytes of a block
_KEPT_SMALL = 1 << 20  # free bytes kept of each size of small blocks


class _Pool:
    """Free blocks by size."""

    def __init__(self) -> None:
        self._small: list[list[tuple[Any, int]]] = [[] for _ in range(_SMALL // ALIGNMENT + 1)]
        self._free: dict[int, list[tuple[Any, int]]] = {}
        self._free_bytes = 0
        # Re-entrant: a garbage collection inside take() may run Buffer.__del__.
        self._lock = threading.RLock()

    def take(self, size: int) -> tuple[Any, int]:
        """A block of exactly ``size`` bytes and its aligned address."""
        if size <= _SMALL:
            # Without the lock, which costs as much as all the rest: pop() and append() are atomic.
            try:
                return self._small[size // ALIGNMENT].pop()
            except IndexError:
                return _raw_block(size)
        with self._lock:
            blocks = self._free.get(size)
            if blocks:
                self._free_bytes -= size
                return blocks.pop()
        return _raw_block(size)

    def give(self, size: int, block: tuple[Any, int]) -> None:
        """Return a block; beyond the limit it goes back to the system."""
        if size <= _SMALL:
            blocks = self._small[size // ALIGNMENT]
            if len(blocks) * size < _KEPT_SMALL:
                blocks.append(block)
            return
        with self._lock:
            free_bytes = self._free_bytes + size
            if free_bytes <= _POOL_LIMIT:
                self._free_bytes = free_bytes
                found = self._free.get(size)
                if found is None:
                    self._free[size] = [block]
                else:
                    found.append(block)

    def clear(self) -> None:
        """Give all free blocks back to the system."""
        for blocks in self._small:
            blocks.clear()
        with self._lock:
            self._free.clear()
            self._free_bytes = 0


POOL = _Pool()
_take = POOL.take
_give: Callable[[int, tuple[Any, int]], None] | None = POOL.give


class _Memory(ctypes.Array[ctypes.c_char]):
    """Bytes from an address on, as many as are asked for: what a numpy view is made on.

    It takes a quarter of the time that numpy needs to read an ``__array_interface__``.
    """

    _type_ = ctypes.c_char
    _length_ = 1 << 62
    __slots__ = ("buffer",)

    buffer: Buffer


_memory_at: Callable[[int], Any] = _Memory.from_address


_new = object.__new__


class Buffer:
    """Memory of one value: pooled and aligned, an array that the user owns (``shared``), or a
    part of the memory of another value (``borrowed``)."""

    __slots__ = (
        *("__weakref__", "_block", "_size", "_whole", "address", "aligned", "array", "nbytes"),
    )

    _whole: Buffer | None
    """What this is a part of; where there is an array, in whose place it stands."""

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
        buffer = _new(Buffer)
        nbytes = buffer.nbytes = array.nbytes
        buffer._size = 0
        buffer._whole = None
        buffer.address = _address(_first_byte(array)) if nbytes else 0
        buffer.array = array
        buffer.aligned = aligned
        return buffer

    def part(self, offset: int, nbytes: int) -> Buffer:
        """Bytes of this memory, which they keep: nobody writes over them on their own account."""
        buffer = _new(Buffer)
        buffer._size = 0
        buffer.nbytes = nbytes
        buffer.address = self.address + offset
        buffer.aligned = self.aligned
        array = self.array
        whole = self if array is None or self._whole is None else self._whole
        buffer._whole = buffer.array = whole
        return buffer

    @property
    def shared(self) -> bool:
        """True for memory that belongs to the user."""
        return self.array is not None and self._whole is None

    @property
    def borrowed(self) -> bool:
        """True for a part of another value's memory."""
        return self.array is not None and self._whole is not None

    def numpy(self, shape: Shape, dtype: DType) -> Any:
        """A writable numpy view of this memory, which it keeps alive."""
        array = self.array
        if array is None or self._whole is not None:
            return self.view(shape, dtype.numpy)
        if array.shape == shape and array.dtype == dtype.numpy:
            return array.view()
        return array.reshape(-1).view(dtype.numpy).reshape(shape)

    def view(self, shape: Shape, kind: np.dtype[Any]) -> Any:
        """As :meth:`numpy`, of memory that is not the user's and with any element type."""
        memory = _memory_at(self.address)
        memory.buffer = self
        view = np.ndarray(shape, kind, memory)
        if view.nbytes != self.nbytes:
            raise AssertionError(f"{shape} of {kind} in {self.nbytes} bytes")
        return view

    def __del__(self) -> None:
        try:
            size = self._size
        except AttributeError:  # a signal came before it had any
            return
        if size and _give is not None:  # None: the interpreter is about to end
            _give(size, self._block)


def buffer_of(array: Any, dtype: DType) -> Buffer:
    """A new buffer with a copy of ``array`` converted to ``dtype``."""
    buffer = Buffer(numel(array.shape) * dtype.itemsize)
    if buffer.nbytes:
        buffer.numpy(array.shape, dtype)[...] = array
    return buffer


def join(result: Buffer, parts: Iterable[tuple[int, int]]) -> None:
    """Fill a buffer with what is at some addresses, so many bytes each, one behind the other."""
    to = result.address
    for address, nbytes in parts:
        if nbytes:
            memmove(to, address, nbytes)
            to += nbytes


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
        """The arena as bytes, for tests and the validator; none before any program needs one."""
        if self._raw is None:
            return np.empty(0, np.uint8)
        start = self._address - self._raw.ctypes.data
        return self._raw[start : start + self.nbytes]


ARENA = Arena()
