"""Functions that record primitive ops on nodes (the ``Build`` interface of ``ir``).

Operands must already have equal dtypes; ``ops.derived`` adds PyTorch's promotion on top.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from ..core.dtype import DType
from ..core.shape import Shape
from ..ir.node import Node, apply
from ..ir.op import Op, intern, op_of
from . import elementwise as ew
from . import matmul as mm
from . import movement as mv
from . import reduction as rd

ADD = intern(ew.Add())
SUB = intern(ew.Sub())
MUL = intern(ew.Mul())
DIV = intern(ew.Div())
POW = intern(ew.Pow())
MAXIMUM = intern(ew.Maximum())
MINIMUM = intern(ew.Minimum())
NEG = intern(ew.Neg())
ABS = intern(ew.Abs())
EXP = intern(ew.Exp())
LOG = intern(ew.Log())
SQRT = intern(ew.Sqrt())
TANH = intern(ew.Tanh())
SIGMOID = intern(ew.Sigmoid())
ERF = intern(ew.Erf())
NORMAL_CDF = intern(ew.NormalCdf())
NORMAL_DENSITY = intern(ew.NormalDensity())
SIN = intern(ew.Sin())
COS = intern(ew.Cos())
RELU = intern(ew.Relu())
WHERE = intern(ew.Where())
DETACH = intern(ew.Detach())
CLONE = intern(ew.Clone())
EQ = intern(ew.Eq())
NE = intern(ew.Ne())
LT = intern(ew.Lt())
LE = intern(ew.Le())
AND = intern(ew.And())
OR = intern(ew.Or())
NOT = intern(ew.Not())


def add(a: Node, b: Node) -> Node:
    """a + b."""
    return apply(ADD, a, b)


def sub(a: Node, b: Node) -> Node:
    """a - b."""
    return apply(SUB, a, b)


def mul(a: Node, b: Node) -> Node:
    """a * b."""
    return apply(MUL, a, b)


def div(a: Node, b: Node) -> Node:
    """a / b (floating point)."""
    return apply(DIV, a, b)


def neg(x: Node) -> Node:
    """-x."""
    return apply(NEG, x)


def exp(x: Node) -> Node:
    """e**x."""
    return apply(EXP, x)


def normal_density(x: Node) -> Node:
    """e**(-x**2 / 2) / sqrt(2 pi)."""
    return apply(NORMAL_DENSITY, x)


def log(x: Node) -> Node:
    """Natural logarithm."""
    return apply(LOG, x)


def sin(x: Node) -> Node:
    """Sine of x in radians."""
    return apply(SIN, x)


def cos(x: Node) -> Node:
    """Cosine of x in radians."""
    return apply(COS, x)


def pow(x: Node, y: Node) -> Node:
    """x**y (floating point)."""
    return apply(POW, x, y)


def eq(a: Node, b: Node) -> Node:
    """a == b."""
    return apply(EQ, a, b)


def ne(a: Node, b: Node) -> Node:
    """a != b."""
    return apply(NE, a, b)


def lt(a: Node, b: Node) -> Node:
    """a < b."""
    return apply(LT, a, b)


def le(a: Node, b: Node) -> Node:
    """a <= b."""
    return apply(LE, a, b)


def logical_and(a: Node, b: Node) -> Node:
    """a and b."""
    return apply(AND, a, b)


def logical_or(a: Node, b: Node) -> Node:
    """a or b."""
    return apply(OR, a, b)


def logical_not(x: Node) -> Node:
    """not x."""
    return apply(NOT, x)


def where(c: Node, a: Node, b: Node) -> Node:
    """a where c holds, else b."""
    return apply(WHERE, c, a, b)


def cast(x: Node, dtype: DType) -> Node:
    """x as ``dtype`` (x itself when it has that dtype already)."""
    return x if x.dtype is dtype else apply(op_of(ew.Cast, dtype), x)


def full(shape: Shape, value: float | int | bool, dtype: DType) -> Node:
    """A constant; its value is part of the program key."""
    # Zeros of either sign are equal, and a cache would take one for the other.
    return apply(_full(shape, value, math.copysign(1.0, value), dtype))


@functools.lru_cache(maxsize=4096, typed=True)
def _full(shape: Shape, value: float | int | bool, sign: float, dtype: DType) -> Op:
    return intern(mv.Full(shape, value, dtype))


def full_like(x: Node, value: float | int) -> Node:
    """A 0-d constant of x's dtype."""
    return full((), value, x.dtype)


def iota(shape: Shape, dim: int, dtype: DType) -> Node:
    """Each element's index along ``dim``."""
    return apply(op_of(mv.Iota, shape, dim, dtype))


def sum(x: Node, dims: Sequence[int], keepdim: bool) -> Node:
    """Sum over ``dims`` (sorted, non-negative)."""
    return apply(op_of(rd.Sum, tuple(dims), keepdim), x)


def argmax(x: Node, dim: int, keepdim: bool, *, lowest: bool = False) -> Node:
    """Index of the largest (or lowest) element along ``dim``."""
    return apply(op_of(rd.ArgMin if lowest else rd.ArgMax, (dim,), keepdim), x)


def extremum(x: Node, dims: Sequence[int], keepdim: bool, *, lowest: bool = False) -> Node:
    """Largest (or lowest) element over ``dims``."""
    return apply(op_of(rd.Min if lowest else rd.Max, tuple(dims), keepdim), x)


def reshape(x: Node, shape: Shape) -> Node:
    """x in another shape (x itself when the shape is the same)."""
    return x if x.shape == shape else apply(op_of(mv.Reshape, shape), x)


def permute(x: Node, dims: Sequence[int]) -> Node:
    """x with its dimensions reordered."""
    return apply(op_of(mv.Permute, tuple(dims)), x)


def expand(x: Node, shape: Shape) -> Node:
    """x broadcast to ``shape`` (x itself when the shape is the same)."""
    return x if x.shape == shape else apply(op_of(mv.Expand, shape), x)


def slice(x: Node, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Node:
    """x[start:stop:step] in every dimension."""
    return apply(op_of(mv.Slice, tuple(starts), tuple(stops), tuple(steps)), x)


def narrow(x: Node, axis: int, start: int, stop: int) -> Node:
    """The entries from ``start`` to ``stop`` of one dimension."""
    starts, stops = [0] * len(x.shape), list(x.shape)
    starts[axis], stops[axis] = start, stop
    return slice(x, starts, stops, [1] * len(x.shape))


def insert(base: Node, x: Node, starts: Sequence[int], steps: Sequence[int]) -> Node:
    """base with x written at start, start + step, ... in every dimension."""
    return apply(op_of(mv.Insert, tuple(starts), tuple(steps)), base, x)


def cat(xs: Sequence[Node], dim: int) -> Node:
    """xs joined along ``dim``."""
    return apply(op_of(mv.Cat, dim), *xs)


def unbroadcast(ct: Node, shape: Shape) -> Node:
    """Sum ``ct`` down to ``shape``, from which it was broadcast."""
    if ct.shape == shape:
        return ct
    lead = len(ct.shape) - len(shape)
    dims = [*range(lead)]
    dims += [lead + i for i, n in enumerate(shape) if n == 1 and ct.shape[lead + i] != 1]
    return reshape(sum(ct, dims, False) if dims else ct, shape)


def matmul(a: Node, b: Node, ta: bool, tb: bool) -> Node:
    """Matrix product of operands stored transposed (ta, tb) or not."""
    return apply(op_of(mm.Matmul, ta, tb), a, b)
