"""Reading and writing at computed positions along several dimensions at once.

A *place* says where such positions apply: at dimension ``first`` of a tensor, over ``span``
dimensions counted together in row-major order.  Positions of one dimension may count from its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar, cast

from ..core import dtype as dt
from ..core.record import record
from ..core.shape import Shape, broadcast, contiguous_strides, numel
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, Spec, intern, op_of
from ..ir.te import TE, Expr, Tensor
from . import build as b
from .composite import Composite, composite
from .gather import ScatterAdd, Take, clamped, take

Place = tuple[int, int]  # first, span


@record(eq=False)
class LastPosition(Op, kind=Kind.REDUCTION):
    """last_position(index: int[*i]) -> int32[size]: the row-major number of the last r in index.

    -1 where there is none (of no positions at all, any negative number).
    """

    size: int
    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: Spec) -> Spec:
        (index,) = inputs
        if index.dtype not in (dt.int32, dt.int64):
            raise TypeError(f"LastPosition expects an int32 or int64 index, but got {index.dtype}")
        if not self.size and numel(index.shape):
            raise IndexError("index out of range in self")
        return Spec((self.size,), dt.int32)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        (index,) = xs

        def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            row = clamped(te, index[r], self.size)
            number: Expr = te.const(0, dt.int32)
            for n, k in zip(index.shape, r, strict=True):
                number = number * te.const(n, dt.int32) + te.cast(k, dt.int32)
            return te.select(te.equal(row, i[0]), number, te.const(-1, dt.int32))

        return te.reduce("max", (self.size,), dt.int32, index.shape, term)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        out = np.full(self.size, -1, np.int32)
        rows = np.clip(xs[0].reshape(-1), 0, max(0, self.size - 1))
        np.maximum.at(out, rows, np.arange(len(rows), dtype=np.int32))
        return out


def _order(rank: int, places: Sequence[Place]) -> tuple[tuple[int, ...], int]:
    """(the order of dimensions in which the places follow one another, how many are before).

    They stay where they are if they follow one another already; else they go to the front.
    """
    taken = [d for first, span in places for d in range(first, first + span)]
    if taken == [*range(taken[0], taken[0] + len(taken))]:
        return tuple(range(rank)), taken[0]
    rest = [d for d in range(rank) if d not in taken]
    return (*taken, *rest), 0


def _ordered(x: Node, order: tuple[int, ...]) -> Node:
    return x if order == tuple(range(len(order))) else b.permute(x, order)


def _line(shape: Shape, indices: Sequence[Node], places: Sequence[Place]) -> Node:
    """The positions of all places together, counted in row-major order."""
    total: Node | None = None
    for index, (first, span) in zip(indices, places, strict=True):
        size = numel(shape[first : first + span])
        if len(indices) > 1:
            index = b.cast(index, dt.int64)
        if span == 1:
            wrapped = b.add(index, b.full_like(index, size))
            index = b.where(b.lt(index, b.full_like(index, 0)), wrapped, index)
        if total is None:
            total = index
        else:
            total = b.add(b.mul(total, b.full_like(total, size)), index)
    assert total is not None
    return total


def _merged(x: Node, places: Sequence[Place]) -> tuple[Node, tuple[int, ...], int, int]:
    """(x with all places as one dimension, the order before, that dimension, how many it was)."""
    order, before = _order(len(x.shape), places)
    count = sum(span for _, span in places)
    y = _ordered(x, order)
    size = numel(y.shape[before : before + count])
    merged = (*y.shape[:before], size, *y.shape[before + count :])
    return b.reshape(y, merged), order, before, count


def _pick(*arguments: Any) -> Node:
    x, *indices, places = arguments
    line = _line(x.shape, indices, places)
    merged, _, before, _ = _merged(x, places)
    return take(merged, line, before)


def pick(x: Node, indices: Sequence[Node], places: Sequence[Place]) -> Node:
    """``x`` at positions (in range): dimensions of the indices, broadcast, replace the places'."""
    return apply(composite("Index", _pick, tuple(places)), x, *indices)


def picked_shape(shape: Shape, indices: Sequence[Shape], places: Sequence[Place]) -> Shape:
    """The shape of :func:`pick`, and of the values that :func:`put` writes."""
    order, before = _order(len(shape), places)
    count = sum(span for _, span in places)
    together: Shape = ()
    for index in indices:
        together = broadcast(together, index)
    moved = tuple(shape[d] for d in order)
    return (*moved[:before], *together, *moved[before + count :])


def _put(*arguments: Any) -> Node:
    x, values, *indices, places, accumulate = arguments
    line = _line(x.shape, indices, places)
    merged, order, before, _ = _merged(x, places)
    rank = len(line.shape)
    lead, behind = merged.shape[:before], merged.shape[before + 1 :]
    values = b.expand(values, (*lead, *line.shape, *behind))
    size = merged.shape[before]
    if accumulate:
        boolean = x.dtype is dt.bool_
        terms = b.cast(values, dt.int32) if boolean else values
        total = apply(intern(ScatterAdd(before, size)), terms, line)
        if boolean:
            written = b.logical_or(merged, b.cast(total, dt.bool_))
        else:
            written = b.add(merged, total)
    else:
        last = apply(intern(LastPosition(size)), line)
        column = (size, *(1,) * len(behind))
        hit = b.reshape(b.le(b.full_like(last, 0), last), column)
        flat = b.reshape(values, (*lead, numel(values.shape[before : before + rank]), *behind))
        written = b.where(hit, take(flat, last, before), merged)
    shape = tuple(x.shape[d] for d in order)
    inverse = tuple(order.index(d) for d in range(len(order)))
    return _ordered(b.reshape(written, shape), inverse)


def _unwritten(x: Node, values: Node) -> Node:
    """A copy of ``x``, to which none of the values went; their gradient is zero, not missing."""
    if not values.requires_grad:
        return apply(b.CLONE, x)
    none = b.full((), False, dt.bool_)
    return b.where(none, b.sum(values, range(len(values.shape)), False), x)


def put(
    x: Node, values: Node, indices: Sequence[Node], places: Sequence[Place], accumulate: bool
) -> Node:
    """``x`` with ``values`` (which broadcast to :func:`picked_shape`) at positions (in range).

    Of values for one position the last counts, or all are added (bools: any).
    """
    if 0 in picked_shape(x.shape, [i.shape for i in indices], places):
        return _unwritten(x, values)
    static = tuple(places), accumulate
    op = op_of(Composite if accumulate else IndexPut, "IndexPut", _put, static)
    return apply(op, x, values, *indices)


def _of_written(ct: Node, line: Node, dim: int) -> Node:
    """The gradient of values written at positions along ``dim``: that of the last for each.

    It is looked up.  Differentiating what is read for each element of a result adds up as many.
    """
    count = numel(line.shape)
    last = apply(intern(LastPosition(ct.shape[dim])), line)
    own = take(last, b.reshape(line, (count,)), 0)
    counts = b.eq(own, b.iota((count,), 0, own.dtype))
    column = (*line.shape, *(1,) * (len(ct.shape) - dim - 1))
    picked = take(ct, line, dim)
    return b.where(b.reshape(counts, column), picked, b.full_like(picked, 0))


class IndexPut(Composite, kind=Kind.COMPOSITE):
    """index_put(x, values, *indices): values written, of several for one position the last."""

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node | None:
        x, values, *indices = inputs
        if index != 1:
            return None
        places = cast("Sequence[Place]", self.static[0])
        merged, _, before, _ = _merged(ct, places)
        written = _of_written(merged, _line(x.shape, indices, places), before)
        return b.unbroadcast(written, values.shape)


# --- positions along one dimension, a tensor of them -------------------------------------------


def _flat_positions(shape: Shape, index: Node, dim: int) -> Node:
    """Row-major numbers, in a tensor of this shape, of what lies beside the index in all
    dimensions but ``dim``, where the index says."""
    total: Node | None = None
    for axis, (stride, n) in enumerate(zip(contiguous_strides(shape), index.shape, strict=True)):
        if axis == dim:
            term = b.cast(index, dt.int64)
        elif n == 1:
            continue
        else:
            term = b.iota(index.shape, axis, dt.int64)
        if stride != 1:
            term = b.mul(term, b.full_like(term, stride))
        total = term if total is None else b.add(total, term)
    assert total is not None
    return total


def _line_of(x: Node) -> Node:
    return b.reshape(x, (numel(x.shape),))


def _gather(x: Node, index: Node, dim: int) -> Node:
    return take(_line_of(x), _flat_positions(x.shape, index, dim), 0)


def gather(x: Node, index: Node, dim: int) -> Node:
    """``x`` at positions (in range) along ``dim``; the result has the index's shape."""
    return apply(composite("Gather", _gather, dim), x, index)


def is_pick(op: Op) -> bool:
    """True of what makes nothing but elements of its first input."""
    return isinstance(op, Take) or (isinstance(op, Composite) and op.function in (_pick, _gather))


def part(source: Node, index: Node) -> Node:
    """The elements of ``source`` that positions belong to; a source may be larger, or 0-d."""
    if source.shape in (index.shape, ()):
        return source
    zeros, ones = (0,) * len(index.shape), (1,) * len(index.shape)
    return b.slice(source, zeros, index.shape, ones)


def of_part(ct: Node, source: Node) -> Node:
    """The gradient of ``source``, of which that of its :func:`part` is given."""
    if source.shape == ct.shape:
        return ct
    zeros, ones = (0,) * len(source.shape), (1,) * len(source.shape)
    return b.insert(b.full(source.shape, 0.0, ct.dtype), ct, zeros, ones)


def _scatter(x: Node, index: Node, source: Node, dim: int, add: bool) -> Node:
    places = _line_of(_flat_positions(x.shape, index, dim))
    source = _line_of(b.expand(part(source, index), index.shape))
    written = _put(_line_of(x), source, places, ((0, 1),), add)
    return b.reshape(written, x.shape)


def scatter(x: Node, index: Node, source: Node, dim: int, add: bool) -> Node:
    """``x`` with ``source`` (0-d, or no smaller than the index) written or added along ``dim``."""
    if not numel(index.shape):
        return _unwritten(x, source)
    kind, title = (Composite, "ScatterAdded") if add else (Scatter, "Scatter")
    return apply(op_of(kind, title, _scatter, (dim, add)), x, index, source)


class Scatter(Composite, kind=Kind.COMPOSITE):
    """scatter(x, index, source): source written along a dimension, the last for each position."""

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node | None:
        x, where, source = inputs
        if index != 2:
            return None
        line = _line_of(_flat_positions(x.shape, where, cast("int", self.static[0])))
        written = b.reshape(_of_written(_line_of(ct), line, 0), where.shape)
        return of_part(written, source) if source.shape else b.unbroadcast(written, ())
