"""Random numbers that depend on a seed and a count, never on when they are computed.

Every random op takes the generator's key and its own draw number when it is *recorded*; both are
runtime scalars.  The bits therefore do not depend on fusion, kernel order, threads, caches or
whether a program is replayed.  Sequences differ from PyTorch's for the same seed.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from typing import Any

import numpy as np

from .core import dtype as dt
from .core.arguments import floating
from .core.device import CPU, Device, require_cpu
from .core.dtype import DType
from .core.shape import Shape, numel
from .ir.node import Node, apply, effect, numbers, scalar
from .ir.op import op_of
from .ops import build as b
from .ops.random import BOX_MULLER, RandomBits, ShiftRight, Unit, threefry


class Generator:
    """A counter-based random stream (Threefry-2x32).

    >>> g = Generator().manual_seed(3)
    >>> g.initial_seed()
    3
    """

    def __init__(self, device: Any = "cpu") -> None:
        require_cpu(device, "Generator")
        self._lock = threading.Lock()
        self._seed = 0
        self._draws = 0

    def manual_seed(self, seed: int) -> Generator:
        """Restart the stream of ``seed`` (taken modulo 2**64).  Returns self.

        Raises RuntimeError unless ``seed`` is an int.
        """
        if not hasattr(seed, "__index__"):
            raise RuntimeError(f"manual_seed expected a long, but got {type(seed).__name__}")
        effect(functools.partial(self._restart, int(seed) % (1 << 64), 0))
        return self

    def __getstate__(self) -> tuple[int, int]:
        return self.get_state()

    def __setstate__(self, state: tuple[int, int]) -> None:
        self._lock = threading.Lock()
        self._restart(*state)

    def _restart(self, seed: int, draws: int) -> None:
        with self._lock:
            self._seed, self._draws = seed, draws

    @property
    def device(self) -> Device:
        """Always ``device("cpu")``."""
        return CPU

    def seed(self) -> int:
        """Seed from the operating system; returns the seed."""
        value = int.from_bytes(os.urandom(8), "little") >> 1
        self.manual_seed(value)
        return value

    def initial_seed(self) -> int:
        """The seed in use."""
        return self._seed

    def get_state(self) -> tuple[int, int]:
        """(seed, number of draws made)."""
        return self._seed, self._draws

    def set_state(self, state: tuple[int, int]) -> None:
        """Continue from a state that :meth:`get_state` returned."""
        effect(functools.partial(self._restart, int(state[0]), int(state[1])))

    def _next(self) -> tuple[int, int, int]:
        """(key word 0, key word 1, draw number) of the next draw."""
        with self._lock:
            draw = self._draws
            self._draws += 1
            # The draw counter has 32 bits in the cipher; its overflow moves to the key.
            key = (self._seed + (draw >> 32) * 0x9E3779B97F4A7C15) % (1 << 64)
        return key & 0xFFFFFFFF, key >> 32, draw & 0xFFFFFFFF

    def draw(self) -> list[Node]:
        """Record what the bits of the next draw follow from: three runtime scalars."""
        return numbers(self._next, dt.uint32)

    def bits(self, shape: Shape) -> Node:
        """Record uint32 random bits."""
        return apply(op_of(RandomBits, shape), *self.draw())

    def host_bits(self, shape: Shape) -> np.ndarray:
        """The same bits, computed at once on the host (for initialisation, which runs once)."""
        k0, k1, draw = self._next()
        count = np.arange(numel(shape), dtype=np.uint32)
        return np.asarray(threefry(np, k0, k1, count, np.uint32(draw))).reshape(shape)

    def host_uniform(self, shape: Shape) -> np.ndarray:
        """float64 numbers in [0, 1) with 24 random bits, the values :func:`rand` would give."""
        return (self.host_bits(shape) >> np.uint32(8)) * 2.0**-24

    def host_normal(self, shape: Shape) -> np.ndarray:
        """float64 standard normal numbers (Box-Muller), the values :func:`randn` would give."""
        radius = 1.0 - self.host_uniform(shape)
        angle = self.host_uniform(shape)
        return np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * math.pi * angle)

    def host_rng(self) -> np.random.Generator:
        """A numpy generator for host-side work such as shuffling; each call gives a new one."""
        k0, k1, draw = self._next()
        # In the counter's upper half: numpy counts up from its lower end, so neighbouring draws
        # would otherwise be one stream, shifted by a few words.
        return np.random.Generator(np.random.Philox(key=k0 | k1 << 32, counter=draw << 128))


default_generator = Generator()
default_generator.seed()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator and return it.

    >>> manual_seed(0) is default_generator
    True
    """
    return default_generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the default generator from the operating system; returns the seed."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> tuple[int, int]:
    """The state of the default generator, for :func:`set_rng_state` (a tuple, not a tensor)."""
    return default_generator.get_state()


def set_rng_state(new_state: tuple[int, int]) -> None:
    """Continue the default generator from what :func:`get_rng_state` returned."""
    default_generator.set_state(new_state)


def uniform(shape: Shape, dtype: DType, generator: Generator | None = None) -> Node:
    """Record uniform numbers in [0, 1), multiples of 2**-24.

    Raises NotImplementedError for dtypes that are not floating point.
    """
    floating(dtype, "check_uniform_bounds")
    return apply(op_of(Unit, dtype), (generator or default_generator).bits(shape))


def normal(shape: Shape, dtype: DType, generator: Generator | None = None) -> Node:
    """Record standard normal numbers, from two uniform ones each."""
    floating(dtype, "normal_kernel_cpu")
    radius, angle = (uniform(shape, dtype, generator) for _ in range(2))
    return apply(BOX_MULLER, radius, angle)


def exponential(shape: Shape, dtype: DType, generator: Generator | None = None) -> Node:
    """Record numbers of density exp(-x): -log(1 - u), where u is 0 half of what it is else."""
    left = b.sub(b.full((), 1.0, dtype), uniform(shape, dtype, generator))
    least = b.full((), 2.0**-25 if dtype.itemsize == 4 else 2.0**-54, dtype)
    return apply(b.MAXIMUM, b.neg(b.log(left)), least)


_WORD = 1 << 32


def integers(
    shape: Shape, low: int, high: int, dtype: DType, generator: Generator | None = None
) -> Node:
    """Record integers in [low, high), as numbers of ``dtype``.

    Raises NotImplementedError for a range of more than 2**32 integers other than 2**53 or 2**63.
    """
    count = high - low
    source = generator or default_generator
    bits = source.bits(shape)
    if count <= _WORD:
        # Exact but for the last rounding, which reaches the next integer in no case.
        share = b.mul(b.cast(bits, dt.float64), scalar(count / _WORD, dt.float64))
        offset = b.cast(share, dt.int64)
    elif count in (1 << 53, 1 << 63):
        upper = apply(op_of(ShiftRight, 64 - count.bit_length() + 1), bits)
        word = b.full((), _WORD, dt.int64)
        rest = b.cast(source.bits(shape), dt.int64)
        offset = b.add(b.mul(b.cast(upper, dt.int64), word), rest)
    else:
        raise NotImplementedError(f"random integers of a range of {count} are not supported")
    return b.cast(b.add(offset, scalar(low, dt.int64)), dtype)
