"""Rewrite a graph to a smaller one that computes the same values.

One forward pass over the values does everything: each value is simplified given its already
simplified inputs, then merged with an equal earlier one.

Before::

    %0 = buffer() : float32[4, 3]
    %1 = Permute(dims=(1, 0))(%0) : float32[3, 4]
    %2 = Matmul(ta=False, tb=False)(%0, %1) : float32[4, 4] -> out0

After::

    %0 = buffer() : float32[4, 3]
    %1 = Matmul(ta=False, tb=True)(%0, %0) : float32[4, 4] -> out0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..core.dtype import Category, DType
from ..core.shape import Shape, numel
from ..core.strides import sliced_again
from ..ir.graph import Graph, Value, prune
from ..ir.op import Op, intern
from ..ops import elementwise as ew
from ..ops import movement as mv
from ..ops import reduction as rd
from ..ops.matmul import Matmul
from .reshapes import between, divided_insert, divided_slice, merged_slice

CLONE = intern(ew.Clone())


class Rewriter:
    """Builds the new graph; equal values get equal numbers."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._known: dict[tuple[object, ...], int] = {}

    def leaf(self, value: Value) -> int:
        """Inputs are never merged: each is an argument of the program."""
        self.values.append(value)
        return len(self.values) - 1

    def add(self, value: Value) -> int:
        """Number of ``value`` after simplification."""
        for rule in RULES:
            replacement = rule(self, value)
            if replacement is not None:
                return replacement
        return self.append(value)

    def append(self, value: Value) -> int:
        """Number of ``value`` as it is, merged with an equal one."""
        key = (value.op.uid, value.inputs)
        found = self._known.get(key)
        if found is None:
            self.values.append(value)
            found = self._known[key] = len(self.values) - 1
        return found

    def make(self, op: Op, inputs: tuple[int, ...], like: Value) -> int:
        """Number of a new value with the provenance of ``like``."""
        spec = op.infer(*[self.values[x].spec for x in inputs])
        return self.add(Value(intern(op), inputs, spec.shape, spec.dtype, like.place))

    def full(self, shape: Shape, value: float | int | bool, dtype: DType, like: Value) -> int:
        """Number of a constant."""
        return self.make(mv.Full(shape, value, dtype), (), like)

    def constant(self, i: int) -> mv.Full | None:
        """The constant that value ``i`` is, if it is one."""
        op = self.values[i].op
        return op if isinstance(op, mv.Full) else None


Rule = Callable[[Rewriter, Value], int | None]


def _identity(r: Rewriter, v: Value) -> int | None:
    """Values that equal their input."""
    if isinstance(v.op, (ew.Detach, ew.Clone)):
        return v.inputs[0]
    if isinstance(v.op, (ew.Cast, mv.Reshape, mv.Expand)):
        same = r.values[v.inputs[0]]
        return v.inputs[0] if same.spec == v.spec else None
    if isinstance(v.op, mv.Permute) and v.op.dims == tuple(range(len(v.shape))):
        return v.inputs[0]
    if isinstance(v.op, mv.Slice) and r.values[v.inputs[0]].shape == v.shape:
        return v.inputs[0]
    if isinstance(v.op, mv.Insert) and r.values[v.inputs[1]].shape == v.shape:
        return v.inputs[1]  # covers all
    if isinstance(v.op, mv.Insert) and numel(r.values[v.inputs[1]].shape) == 0:
        return v.inputs[0]
    return None


def _fold(r: Rewriter, v: Value) -> int | None:
    """Functions of constants are constants."""
    constants = [r.constant(x) for x in v.inputs]
    if not constants or any(c is None for c in constants):
        return None
    if isinstance(v.op, (mv.Reshape, mv.Expand, mv.Permute, mv.Slice)):
        assert constants[0] is not None
        return r.full(v.shape, constants[0].value, v.dtype, v)
    if not v.op.elementwise:
        return None
    with np.errstate(all="ignore"):
        inputs = [np.asarray(c.value, c.dtype.name) for c in constants if c is not None]
        result = np.asarray(v.op.reference(np, *inputs))
    if result.shape != () or result.dtype != v.dtype.numpy:
        return None
    return r.full(v.shape, result.item(), v.dtype, v)


def _chains(r: Rewriter, v: Value) -> int | None:
    """Two moves in a row are one; two negations are none."""
    if len(v.inputs) != 1:
        return None
    inner = r.values[v.inputs[0]]
    if isinstance(v.op, ew.Neg) and isinstance(inner.op, ew.Neg):
        return inner.inputs[0]
    if isinstance(v.op, mv.Reshape) and isinstance(inner.op, mv.Reshape):
        return r.make(v.op, inner.inputs, v)
    if isinstance(v.op, mv.Permute) and isinstance(inner.op, mv.Permute):
        dims = tuple(inner.op.dims[d] for d in v.op.dims)
        return r.make(mv.Permute(dims), inner.inputs, v)
    if isinstance(v.op, mv.Expand) and isinstance(inner.op, mv.Expand):
        return r.make(v.op, inner.inputs, v)
    if isinstance(v.op, mv.Slice) and isinstance(inner.op, mv.Slice):
        a, b = inner.op, v.op
        taken = sliced_again((a.starts, a.steps), (b.starts, b.steps), v.shape)
        return r.make(mv.Slice(*taken), inner.inputs, v)
    return None


def _neutral(r: Rewriter, v: Value) -> int | None:
    """x * 1, x / 1 and x - 0 are x (x + 0 is not: -0.0 + 0.0 is 0.0)."""
    if not isinstance(v.op, (ew.Mul, ew.Div, ew.Sub)):
        return None
    neutral = 0 if isinstance(v.op, ew.Sub) else 1
    sides = ((0, 1), (1, 0)) if isinstance(v.op, ew.Mul) else ((0, 1),)
    for keep, drop in sides:
        c = r.constant(v.inputs[drop])
        if c is None or c.value != neutral or np.signbit(c.value):
            continue
        if r.values[v.inputs[keep]].spec == v.spec:
            return v.inputs[keep]
    return None


def _division(r: Rewriter, v: Value) -> int | None:
    """Division by a power of two is exact as a multiplication."""
    if not isinstance(v.op, ew.Div):
        return None
    c = r.constant(v.inputs[1])
    if c is None or not np.isfinite(c.value) or c.value == 0:
        return None
    mantissa, exponent = np.frexp(abs(c.value))
    if mantissa != 0.5 or abs(int(exponent)) > 100:
        return None
    inverse = r.full(c.shape, 1.0 / c.value, c.dtype, v)
    return r.make(ew.Mul(), (v.inputs[0], inverse), v)


def _transposes(r: Rewriter, v: Value) -> int | None:
    """A transposed operand of a product is a flag of the product."""
    if not isinstance(v.op, Matmul):
        return None
    flags = [v.op.ta, v.op.tb]
    inputs = list(v.inputs)
    for side in (0, 1):
        operand = r.values[inputs[side]]
        if isinstance(operand.op, mv.Permute) and _swaps_last(operand.op, len(operand.shape)):
            inputs[side] = operand.inputs[0]
            flags[side] = not flags[side]
    if (flags[0], flags[1]) == (v.op.ta, v.op.tb):
        return None
    return r.make(Matmul(*flags), tuple(inputs), v)


def _dot(r: Rewriter, v: Value) -> int | None:
    """A product of one row and one column is a sum: sums are cut, and take columns as they are."""
    if not isinstance(v.op, Matmul) or v.shape != (1, 1) or v.dtype.category is Category.BOOL:
        return None
    count = numel(r.values[v.inputs[0]].shape)
    if count < 2:
        return None
    lines = tuple(r.make(mv.Reshape((count,)), (x,), v) for x in v.inputs)
    total = r.make(rd.Sum((0,), False), (r.make(ew.Mul(), lines, v),), v)
    return r.make(mv.Reshape(v.shape), (total,), v)


def _trivial_sum(r: Rewriter, v: Value) -> int | None:
    """A sum over dimensions of size one is a reshape; of a constant, a constant."""
    if not isinstance(v.op, (rd.Sum, rd.Max, rd.Min)):
        return None
    x = r.values[v.inputs[0]]
    count = numel(tuple(x.shape[d] for d in v.op.dims))
    if count == 1:
        return r.make(mv.Reshape(v.shape), v.inputs, v)
    c = r.constant(v.inputs[0])
    if c is not None and isinstance(v.op, rd.Sum) and v.dtype.category is not Category.BOOL:
        total = c.value * count
        if v.dtype.is_floating_point or abs(total) < 2**31:
            return r.full(v.shape, total, v.dtype, v)
    return None


def _part_of_insert(r: Rewriter, v: Value) -> int | None:
    """Of what is inserted into something, a part of one of them is a part of that one.

    So it is with a sum of two such: what gradients are made of where several parts were used.
    """
    if not isinstance(v.op, mv.Slice) or any(step != 1 for step in v.op.steps):
        return None
    whole = r.values[v.inputs[0]]
    if isinstance(whole.op, ew.Add):
        if any(r.values[x].shape != whole.shape for x in whole.inputs):
            return None
        parts = [_within(r, v.op, x, v) for x in whole.inputs]
        if parts[0] is None or parts[1] is None:
            return None
        return r.make(ew.Add(), (parts[0], parts[1]), v)
    return _within(r, v.op, v.inputs[0], v)


def _within(r: Rewriter, op: mv.Slice, x: int, like: Value) -> int | None:
    """A part of ``x``, an Insert, that comes from one of its inputs only."""
    whole = r.values[x]
    if not isinstance(whole.op, mv.Insert) or any(step != 1 for step in whole.op.steps):
        return None
    base, piece = whole.inputs
    shape, starts = r.values[piece].shape, whole.op.starts
    ends = tuple(s + n for s, n in zip(starts, shape, strict=True))
    cut = list(zip(op.starts, op.stops, starts, ends, strict=True))
    if any(stop <= start or first >= end for first, stop, start, end in cut):
        return r.make(op, (base,), like)
    if any(first < start or stop > end for first, stop, start, end in cut):
        return None
    first = tuple(a - s for a, _, s, _ in cut)
    stops = tuple(b - s for _, b, s, _ in cut)
    return r.make(mv.Slice(first, stops, op.steps), (piece,), like)


RULES: tuple[Rule, ...] = (
    _identity,  # first: the others need not look through copies
    _fold,
    _chains,
    _neutral,
    _division,
    _transposes,
    _dot,
    _trivial_sum,
    _part_of_insert,
    divided_slice,
    merged_slice,
    divided_insert,
)


def canonicalize(graph: Graph) -> Graph:
    """Simplify, merge equal values, drop dead ones; outputs keep their order and distinctness."""
    graph = _turned(_rewritten(graph, {}))
    while shapes := between(graph):
        graph = _rewritten(graph, shapes)
    return graph


def _turned(graph: Graph) -> Graph:
    """A product that is only read transposed is computed transposed: (A B)' = B' A'.

    Such is the gradient of w in ``x @ w.T``; in its own shape, its update is computed with it.
    """
    uses = Counter(x for v in graph.values for x in v.inputs)
    uses.update(graph.outputs)
    values = list(graph.values)
    for i, v in enumerate(values):
        if not isinstance(v.op, mv.Permute) or not _swaps_last(v.op, len(v.shape)):
            continue
        product = graph.values[v.inputs[0]]
        if isinstance(product.op, Matmul) and uses[v.inputs[0]] == 1:
            op = intern(Matmul(not product.op.tb, not product.op.ta))
            values[i] = Value(op, product.inputs[::-1], v.shape, v.dtype, product.place)
    return prune(replace(graph, values=tuple(values)))[0]


def _swaps_last(op: mv.Permute, rank: int) -> bool:
    return rank >= 2 and op.dims == (*range(rank - 2), rank - 1, rank - 2)


def _rewritten(graph: Graph, shapes: dict[int, Shape]) -> Graph:
    """One pass; the values in ``shapes`` are computed in another shape, see :mod:`.reshapes`."""
    r = Rewriter()
    number: dict[int, int] = {}
    for i, v in enumerate(graph.values):
        inputs = tuple(number[x] for x in v.inputs)
        if i in shapes:
            own = shapes[i]
            inputs = tuple(
                x if r.values[x].shape in ((), own) else r.make(mv.Reshape(own), (x,), v)
                for x in inputs
            )
            number[i] = r.add(Value(v.op, inputs, own, v.dtype, v.place))
            continue
        moved = Value(v.op, inputs, v.shape, v.dtype, v.place)
        number[i] = r.leaf(moved) if v.is_leaf else r.add(moved)
    outputs: list[int] = []
    for o in graph.outputs:
        position = number[o]
        if r.values[position].is_leaf or position in outputs:
            # Every output has memory of its own: a second name for a value is a copy of it.
            source = r.values[position]
            r.values.append(Value(CLONE, (position,), source.shape, source.dtype, source.place))
            position = len(r.values) - 1
        outputs.append(position)
    donated = tuple((o, number[s]) for o, s in graph.donated)
    return prune(Graph(tuple(r.values), tuple(outputs), donated))[0]
