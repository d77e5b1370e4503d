"""Rows of reductions, matrix products, ops that move elements, and constants."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from row import EVERY, NUMBERS, Bad, Row, ops

from minitorch_tvm.core import dtype as dt
from minitorch_tvm.ir.op import intern
from minitorch_tvm.ops import matmul as mm
from minitorch_tvm.ops import movement as mv
from minitorch_tvm.ops import reduction as rd
from minitorch_tvm.ops.random import RandomBits

NAN, INF = math.nan, math.inf
_CUBE = (3, 5, 2)


def _pieces(op: Any, x: Any) -> list[tuple[tuple[int, ...], list[Any]]]:
    """(kept index, reduced elements in row-major order) of every result element."""
    kept = [d for d in range(x.ndim) if d not in op.dims]
    out = []
    for index in itertools.product(*(range(x.shape[d]) for d in kept)):
        place = dict(zip(kept, index, strict=True))
        part = x[tuple(place.get(d, slice(None)) for d in range(x.ndim))]
        out.append((index, part.ravel().tolist()))
    return out


def _reduce(pick: Any) -> Any:
    def oracle(op: Any, x: Any) -> Any:
        values = [pick(part) for _, part in _pieces(op, x)]
        shape = [1 if d in op.dims else n for d, n in enumerate(x.shape)]
        if not op.keepdim:
            shape = [n for d, n in enumerate(x.shape) if d not in op.dims]
        return np.array(values, np.float64 if x.dtype.kind == "f" else np.int64).reshape(shape)

    return oracle


def _top(part: list[float]) -> float:
    return NAN if any(v != v for v in part) else max(part)


def _bottom(part: list[float]) -> float:
    return NAN if any(v != v for v in part) else min(part)


def _where(pick: Any) -> Any:
    def find(part: list[float]) -> int:
        bad = [i for i, v in enumerate(part) if v != v]
        return bad[0] if bad else part.index(pick(part))

    return find


def _reductions(cls: Any) -> tuple[Any, ...]:
    every = [d for n in range(1, 4) for d in itertools.combinations(range(3), n)]
    cases = [c for d in every for k in (False, True) for c in ops(cls(d, k), (_CUBE,))]
    cases += ops(cls((0,), False), ((7,),)) + ops(cls((1,), False), ((13, 1),), ((0, 3),))
    return tuple(cases) + ops(cls((1,), True), ((4, 131),))


def _arguments(cls: Any) -> tuple[Any, ...]:
    cases = [c for d in range(3) for k in (False, True) for c in ops(cls((d,), k), (_CUBE,))]
    return (*cases, *ops(cls((1,), False), ((1, 1),), ((0, 3),), ((4, 131),)))


def _empty(cls: Any, name: str) -> Bad:
    words = f"{name}(): Expected reduction dim 1 to have non-zero size."
    return Bad(intern(cls((1,), False)), ("float32 2 0",), IndexError, words)


_TIES = [2.0, 5.0, 5.0, -1.0, -1.0]
_NANS = [2.0, NAN, INF, NAN, -INF]


def _line(cls: Any) -> tuple[Any, ...]:
    op = intern(cls((0,), False))
    return ((op, (_TIES,)), (op, (_NANS,)), (op, ([INF, -INF],)))


def _product(op: Any, a: Any, b: Any) -> Any:
    a = np.swapaxes(a, -1, -2) if op.ta else a
    b = np.swapaxes(b, -1, -2) if op.tb else b
    return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)


def _products() -> tuple[Any, ...]:
    cases: list[Any] = []
    for ta, tb in itertools.product((False, True), repeat=2):
        op = mm.Matmul(ta, tb)

        def pair(
            m: int, n: int, k: int, a: Any = (), b: Any = (), ta: bool = ta, tb: bool = tb
        ) -> Any:
            return ((*a, k, m) if ta else (*a, m, k)), ((*b, n, k) if tb else (*b, k, n))

        cases += ops(op, pair(2, 3, 4), pair(1, 1, 1), pair(7, 13, 5), pair(17, 1, 31))
        cases += ops(op, pair(2, 3, 4, (2,), (2,)), pair(2, 2, 3, (2, 1), (3,)))
        cases += ops(op, pair(0, 3, 2), pair(2, 3, 0))
    return tuple(cases)


def _insert(op: Any, base: Any, x: Any) -> Any:
    out = base.copy()
    for place in np.ndindex(x.shape):
        to = tuple(s + i * t for s, i, t in zip(op.starts, place, op.steps, strict=True))
        out[to] = x[place]
    return out


def _slice(op: Any, x: Any) -> Any:
    lines = [range(*t) for t in zip(op.starts, op.stops, op.steps, strict=True)]
    out = np.empty([len(r) for r in lines], x.dtype)
    for to, place in zip(np.ndindex(out.shape), itertools.product(*lines), strict=True):
        out[to] = x[place]
    return out


def _permute(op: Any, x: Any) -> Any:
    out = np.empty([x.shape[d] for d in op.dims], x.dtype)
    for place in np.ndindex(out.shape):
        source = [0] * x.ndim
        for i, d in zip(place, op.dims, strict=True):
            source[d] = i
        out[place] = x[tuple(source)]
    return out


def _iota(op: Any) -> Any:
    out = np.empty(op.shape)
    for place in np.ndindex(op.shape):
        out[place] = place[op.dim]
    return out


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32 with 20 rounds on Python integers, from the paper's description."""
    mask = (1 << 32) - 1
    schedule = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x0, x1 = (counter[0] + key[0]) & mask, (counter[1] + key[1]) & mask
    rotations = (13, 15, 26, 6, 17, 29, 16, 24)
    for number in range(20):
        turn = rotations[number % 8]
        x0 = (x0 + x1) & mask
        x1 = ((x1 << turn | x1 >> (32 - turn)) & mask) ^ x0
        if number % 4 == 3:
            injection = number // 4 + 1
            x0 = (x0 + schedule[injection % 3]) & mask
            x1 = (x1 + schedule[(injection + 1) % 3] + injection) & mask
    return x0, x1


def _bits(op: Any, k0: Any, k1: Any, draw: Any) -> Any:
    count = math.prod(op.shape)
    words = [threefry((int(k0), int(k1)), (i, int(draw)))[0] for i in range(count)]
    return np.array(words, np.int64).reshape(op.shape)


_CAT = intern(mv.Cat(1))

ROWS = (
    Row(
        rd.Sum,
        _reduce(math.fsum),
        (*_reductions(rd.Sum), *ops(rd.Sum((1,), False), ((2, 0),))),
        dtypes=NUMBERS[:4],
        grad=(0,),
        specials=((intern(rd.Sum((0,), False)), ([NAN, 1.0, INF],)),),
        bad=(
            Bad(
                intern(rd.Sum((0,), False)),
                ("bool 2",),
                TypeError,
                "Sum expects numbers; cast bool to an integer first",
            ),
        ),
    ),
    Row(
        rd.Max,
        _reduce(_top),
        _reductions(rd.Max),
        dtypes=NUMBERS,
        grad=(0,),
        specials=_line(rd.Max),
        bad=(_empty(rd.Max, "max"),),
    ),
    Row(
        rd.Min,
        _reduce(_bottom),
        _reductions(rd.Min),
        dtypes=NUMBERS,
        grad=(0,),
        specials=_line(rd.Min),
        bad=(_empty(rd.Min, "min"),),
    ),
    Row(
        rd.ArgMax,
        _reduce(_where(max)),
        _arguments(rd.ArgMax),
        dtypes=NUMBERS,
        result="int64",
        specials=_line(rd.ArgMax),
        bad=(
            _empty(rd.ArgMax, "argmax"),
            Bad(
                intern(rd.ArgMax((0,), False)),
                ("bool 2",),
                TypeError,
                "argmax is not defined on bool tensors",
            ),
        ),
    ),
    Row(
        rd.ArgMin,
        _reduce(_where(min)),
        _arguments(rd.ArgMin),
        dtypes=NUMBERS,
        result="int64",
        specials=_line(rd.ArgMin),
        bad=(_empty(rd.ArgMin, "argmin"),),
    ),
    Row(
        mm.Matmul,
        _product,
        _products(),
        dtypes=NUMBERS[:4],
        grad=(0, 1),
        bad=(
            Bad(
                intern(mm.Matmul(False, False)),
                ("float32 2 3", "float32 4 5"),
                RuntimeError,
                "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
            ),
            Bad(
                intern(mm.Matmul(True, True)),
                ("float32 3 2", "float32 5 4"),
                RuntimeError,
                "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
            ),
            Bad(
                intern(mm.Matmul(False, False)),
                ("float64 2 2", "float32 2 2"),
                RuntimeError,
                "expected m1 and m2 to have the same dtype, but got: double != float",
            ),
            Bad(
                intern(mm.Matmul(False, False)),
                ("bool 2 2", "bool 2 2"),
                NotImplementedError,
                "\"addmm_impl_cpu_\" not implemented for 'Bool'",
            ),
        ),
    ),
    Row(
        mv.Reshape,
        lambda op, x: np.array(x.ravel().tolist(), x.dtype).reshape(op.shape),
        ops(mv.Reshape((3, 2)), ((2, 3),), ((6,),))
        + ops(mv.Reshape((1, 6, 1)), ((6,),), ((2, 1, 3),))
        + ops(mv.Reshape(()), ((1, 1),))
        + ops(mv.Reshape((5, 7, 2)), ((7, 10),))
        + ops(mv.Reshape((0, 9)), ((3, 0),)),
        dtypes=EVERY,
        grad=(0,),
        bad=(
            Bad(
                intern(mv.Reshape((4,))),
                ("float32 2 3",),
                RuntimeError,
                "shape '[4]' is invalid for input of size 6",
            ),
        ),
    ),
    Row(
        mv.Permute,
        _permute,
        tuple(
            case
            for order in itertools.permutations(range(3))
            for case in ops(mv.Permute(order), ((2, 3, 5),), ((1, 0, 3),))
        ),
        dtypes=EVERY,
        grad=(0,),
    ),
    Row(
        mv.Flip,
        lambda op, x: x[tuple(slice(None, None, -1 if d in op.dims else 1) for d in range(x.ndim))],
        tuple(
            case
            for dims in ((0,), (1, 2), ())
            for case in ops(mv.Flip(dims), ((2, 3, 5),), ((1, 0, 3),))
        ),
        dtypes=EVERY,
        grad=(0,),
    ),
    Row(
        mv.Expand,
        lambda op, x: (
            x + np.zeros(op.shape, x.dtype) if x.dtype != bool else x | np.zeros(op.shape, bool)
        ),
        ops(mv.Expand((2, 3)), ((3,),), ((1, 3),), ((2, 1),), ((),), ((1, 1),))
        + ops(mv.Expand((4, 1, 5)), ((1, 5),))
        + ops(mv.Expand((0, 3)), ((1, 3),)),
        dtypes=EVERY,
        grad=(0,),
        bad=(
            Bad(
                intern(mv.Expand((2,))),
                ("float32 2 2",),
                RuntimeError,
                "expand(torch.FloatTensor{[2, 2]}, size=[2]): the number of sizes provided (1) "
                "must be greater or equal to the number of dimensions in the tensor (2)",
            ),
            Bad(
                intern(mv.Expand((2, 4))),
                ("float32 2 3",),
                RuntimeError,
                "The expanded size of the tensor (4) must match the existing size (3) at "
                "non-singleton dimension 1.  Target sizes: [2, 4].  Tensor sizes: [2, 3]",
            ),
        ),
    ),
    Row(
        mv.Slice,
        _slice,
        ops(mv.Slice((1, 0), (3, 5), (1, 2)), ((4, 5),))
        + ops(mv.Slice((0, 2), (4, 3), (3, 1)), ((4, 5),))
        + ops(mv.Slice((2, 0), (2, 5), (1, 1)), ((4, 5),))
        + ops(mv.Slice((), (), ()), ((),))
        + ops(mv.Slice((5,), (29,), (7,)), ((31,),)),
        dtypes=EVERY,
        grad=(0,),
    ),
    Row(
        mv.Insert,
        _insert,
        ops(mv.Insert((1, 0), (1, 2)), ((4, 5), (2, 3)), ((4, 5), (0, 3)))
        + ops(mv.Insert((0, 0), (1, 1)), ((2, 3), (2, 3)), ((0, 3), (0, 3)))
        + ops(mv.Insert((3,), (4,)), ((17,), (3,)))
        + ops(mv.Insert((), ()), ((), ())),
        dtypes=EVERY,
        grad=(0, 1),
        bad=(
            Bad(
                intern(mv.Insert((1,), (1,))),
                ("float32 3", "float32 3"),
                RuntimeError,
                "cannot insert a tensor of shape [3] into [3]",
            ),
            Bad(
                intern(mv.Insert((0,), (1,))),
                ("float32 3", "int64 3"),
                TypeError,
                "Insert expects one dtype, but got mt.float32 and mt.int64",
            ),
        ),
    ),
    Row(
        mv.Cat,
        lambda op, *xs: np.array([v for x in xs for v in np.moveaxis(x, op.dim, 0)]).swapaxes(
            0, op.dim
        ),
        ops(_CAT, ((2, 3), (2, 1), (2, 7)), ((2, 3),), ((2, 3), (2, 0), (2, 2)))
        + ops(mv.Cat(0), ((3,), (1,)), ((2, 2), (5, 2)))
        + ops(mv.Cat(0), *(((1,),) * 9,)),
        dtypes=EVERY,
        grad=(0, 1),
        bad=(
            Bad(
                intern(mv.Cat(0)),
                ("float32 1 2", "float32 1 3"),
                RuntimeError,
                "Sizes of tensors must match except in dimension 0. Expected size 2 but got size 3 "
                "for tensor number 1 in the list.",
            ),
            Bad(
                _CAT,
                ("float32 2 2", "float32 2"),
                RuntimeError,
                "Tensors must have same number of dimensions: got 2 and 1",
            ),
            Bad(
                _CAT,
                ("float32 2 2", "int64 2 2"),
                TypeError,
                "Cat expects one dtype, but got mt.float32 and mt.int64",
            ),
        ),
    ),
    Row(
        mv.Full,
        lambda op: np.array([op.value] * math.prod(op.shape)).reshape(op.shape),
        tuple(
            case
            for value, kind in (
                (2.5, dt.float32),
                (-INF, dt.float64),
                (-7, dt.int64),
                (True, dt.bool_),
                (255, dt.uint8),
                (-0.0, dt.float32),
            )
            for shape in ((), (2, 3), (0,))
            for case in ops(mv.Full(shape, value, kind), ())
        ),
        dtypes=("float32",),
        result="attribute",
    ),
    Row(
        mv.Iota,
        _iota,
        tuple(
            case
            for kind in (dt.int64, dt.float32, dt.int32)
            for shape, dim in (((5,), 0), ((2, 3), 0), ((2, 3), 1), ((0, 2), 1))
            for case in ops(mv.Iota(shape, dim, kind), ())
        ),
        dtypes=("float32",),
        result="attribute",
    ),
    Row(
        RandomBits,
        _bits,
        tuple(c for s in ((), (7,), (3, 5), (0,)) for c in ops(RandomBits(s), ((), (), ()))),
        inputs="u",
        dtypes=("uint32",),
        bad=(
            Bad(
                intern(RandomBits((2,))),
                ("uint32", "uint32", "int64"),
                TypeError,
                "RandomBits expects three 0-d uint32 values",
            ),
        ),
    ),
)
