"""Random bits from a counter: element i of draw number d under seed s is threefry(s, (i, d)).

No state is threaded through the graph, so the bits do not depend on fusion, on the order of
kernels, on threads or on whether the program came from a cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

from ..core import dtype as dt
from ..core.dtype import DType
from ..core.record import record
from ..core.shape import Shape, contiguous_strides
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, Spec, intern, op_of
from ..ir.te import TE, Expr, Tensor
from . import build as b
from .composite import composite
from .elementwise import Elementwise, Float

# Rotation distances and key constant of Threefry-2x32 (Salmon et al., "Parallel random numbers: as
# easy as 1, 2, 3", SC 2011, table 2 and section 3.3).
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_ROUNDS = 20


@record(eq=False)
class RandomBits(Op, kind=Kind.INJECTIVE):
    """random_bits(k0: uint32[], k1: uint32[], draw: uint32[]) -> uint32[*shape].

    First word of Threefry-2x32 with 20 rounds; key (k0, k1), counter (element number, draw).
    """

    shape: Shape
    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: Spec) -> Spec:
        if any(s.dtype is not dt.uint32 or s.shape for s in inputs):
            raise TypeError("RandomBits expects three 0-d uint32 values")
        return Spec(self.shape, dt.uint32)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        strides = contiguous_strides(self.shape)

        def bits(*index: Expr) -> Expr:
            number = te.const(0, dt.uint32)
            for i, stride in zip(index, strides, strict=True):
                number = number + te.cast(i, dt.uint32) * te.const(stride, dt.uint32)
            k0, k1, draw = (x[()] for x in xs)
            keys = (k0, k1, te.xor(te.xor(k0, k1), te.const(_PARITY, dt.uint32)))
            a, b = number + keys[0], draw + keys[1]
            for group in range(_ROUNDS // 4):
                for r in _ROTATIONS[group % 2]:
                    a = te.keep(a + b)
                    high, low = te.shift_left(b, r), te.shift_right(b, 32 - r)
                    b = te.keep(te.xor(te.bit_or(high, low), a))
                a = te.keep(a + keys[(group + 1) % 3])
                b = te.keep(b + keys[(group + 2) % 3] + te.const(group + 1, dt.uint32))
            return a

        return te.compute(self.shape, dt.uint32, bits)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        size = 1
        for n in self.shape:
            size *= n
        return threefry(np, xs[0], xs[1], np.arange(size, dtype=np.uint32), xs[2]).reshape(
            self.shape
        )


@record(eq=False)
class ShiftRight(Elementwise, kind=Kind.INJECTIVE):
    """shift_right(x: uint32[*s]) -> uint32[*s], logical shift by ``bits``."""

    bits: int
    differentiable: ClassVar[bool] = False

    def result_dtype(self, *dtypes: DType) -> DType:
        if dtypes[0] is not dt.uint32:
            raise TypeError(f"ShiftRight expects uint32, but got {dtypes[0]}")
        return dt.uint32

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.shift_right(xs[0], self.bits)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.right_shift(xs[0], np.uint32(self.bits))


@record(eq=False)
class Unit(Elementwise, kind=Kind.INJECTIVE):
    """unit(bits: uint32[*s]) -> dtype[*s]: the upper 24 bits as a number in [0, 1)."""

    dtype: DType
    differentiable: ClassVar[bool] = False

    def result_dtype(self, *dtypes: DType) -> DType:
        if dtypes[0] is not dt.uint32:
            raise TypeError(f"Unit expects uint32, but got {dtypes[0]}")
        return self.dtype

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        # LLVM has vector code for signed numbers only, before AVX-512.
        whole = te.cast(te.shift_right(xs[0], 8), dt.int32)
        return te.mul(te.cast(whole, self.dtype), te.const(2.0**-24, self.dtype))

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        whole = np.right_shift(xs[0], np.uint32(8)).astype(self.dtype.name)
        return np.ldexp(whole, -24)


@record(eq=False)
class BoxMuller(Float, kind=Kind.INJECTIVE):
    """box_muller(u: f[*s], v: f[*s]) -> f[*s]: sqrt(-2 log(1 - u)) cos(2 pi v).

    Of independent numbers, uniform in [0, 1), that is a standard normal one (G. Box, M. Muller, A
    Note on the Generation of Random Normal Deviates, 1958).
    """

    differentiable: ClassVar[bool] = False

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        u, v = xs
        left = te.log(te.sub(te.zero_like(u) + 1.0, u))
        return te.mul(te.sqrt(te.mul(left, te.zero_like(u) - 2.0)), te.cos_turns(v))

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        u, v = xs
        one, two, turn = (u.dtype.type(n) for n in (1.0, -2.0, 2.0 * math.pi))
        return np.sqrt(np.log(one - u) * two) * np.cos(v * turn)


BOX_MULLER = intern(BoxMuller())


def uniform_of(draw: Sequence[Node], shape: Shape, dtype: DType) -> Node:
    """Uniform numbers in [0, 1), those of one draw."""
    return apply(op_of(Unit, dtype), apply(op_of(RandomBits, shape), *draw))


def dropped(x: Node, *numbers: Node) -> Node:
    """``x`` where random numbers reach ``least``, times ``scale``; else 0 times x.

    ``numbers`` are those of a draw (three), ``least`` and ``scale``.  Recorded as one node.
    """
    return apply(composite("Dropout", _dropped), x, *numbers)


def _dropped(x: Node, *numbers: Node) -> Node:
    *draw, least, scale = numbers
    unit = uniform_of(draw, x.shape, dt.float32)
    # A product, so that NaN stays NaN; the gradient needs the mask alone.
    return b.mul(x, b.mul(b.cast(b.le(least, unit), x.dtype), scale))


def threefry(np: ModuleType, k0: Any, k1: Any, number: Any, draw: Any) -> Any:
    """First word of Threefry-2x32-20 on uint32 arrays (numpy)."""
    u = np.uint32
    k0, k1 = u(k0), u(k1)
    keys = (k0, k1, k0 ^ k1 ^ u(_PARITY))
    with np.errstate(over="ignore"):
        a = number + keys[0]
        b = np.full_like(number, draw) + keys[1]
        for group in range(_ROUNDS // 4):
            for r in _ROTATIONS[group % 2]:
                a = a + b
                b = ((b << u(r)) | (b >> u(32 - r))) ^ a
            a = a + keys[(group + 1) % 3]
            b = b + keys[(group + 2) % 3] + u(group + 1)
    return a
