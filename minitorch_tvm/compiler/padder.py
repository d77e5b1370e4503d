"""Builds a graph with room for what varies (:mod:`.padding`), value by value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ..core import dtype as dt
from ..core.dtype import Category, DType
from ..core.limits import iinfo
from ..core.shape import Shape
from ..ir.graph import Graph, Value
from ..ir.node import SCALAR
from ..ir.op import Op, Spec, intern
from ..ops import elementwise as ew
from ..ops import movement as mv
from ..ops import reduction as rd
from ..ops.elementary import INTEGER_QUOTIENT
from ..ops.gather import Take
from .dims import (
    ONE,
    Dim,
    Extent,
    Refused,
    as_corner,
    factors,
    from_first,
    product,
    room_of,
    size_of,
    together,
    varies,
)
from .room import (
    Padded,
    Told,
    Varying,
    start_of,
    step_of,
)

Rule = Callable[["Padder", Any, Value, Sequence[int]], int]
"""Rewrites a value: its op, the value, and where its inputs are in the new graph."""


class Padder:
    """Builds the new graph, value by value."""

    def __init__(
        self,
        graph: Graph,
        varying: Varying,
        products: Mapping[int, Dim],
        rules: Mapping[type, Rule],
        *,
        latest: bool,
    ) -> None:
        """``products`` are what some sizes are; ``rules`` are by kinds of ops.

        Of products of one size, such as length times batch and batch times length, an attribute is
        taken for the first one that there was, or for the ``latest``.
        """
        self.graph, self.varying, self._products = graph, varying, products
        self._rules, self._latest = rules, latest
        self.values: list[Value] = []
        self.dims: list[tuple[Dim, ...]] = []
        self._told: list[Told | None] = []
        known = [atom for d in products.values() for atom in d if isinstance(atom, Extent)]
        self._extents = {atom.size(graph): [atom] for atom in known}
        self._merged: dict[int, Dim] = {}  # by size
        self._known: dict[object, int] = {}
        self.sources: dict[int, int] = {}
        """Of values whose rows were put where the original has them, what they were taken from."""
        self.read: dict[int, Dim] = {}
        """By positions, values of the graph: the dimension that is read there."""
        self.at = 0
        """Which of the graph's values is being rewritten."""
        self._like = graph.values[0]

    def run(self) -> Padded:
        """The whole graph."""
        graph = self.graph
        number: list[int] = []
        for i, v in enumerate(graph.values):
            if v.is_leaf and v.op is not SCALAR:
                self._leaf_extents(i, v)
        for i, v in enumerate(graph.values):
            self.at, self._like = i, v
            xs = [number[x] for x in v.inputs]
            new = self._leaf(v) if v.is_leaf else self._value(v, xs)
            if tuple(size_of(d, graph) for d in self.dims[new]) != v.shape:
                raise Refused
            number.append(new)
        donated = tuple(
            (o, number[s])
            for o, s in graph.donated
            if not any(map(varies, self.dims[number[s]]))
            and not any(map(varies, self.dims[number[graph.outputs[o]]]))
        )
        outputs = tuple(self._cornered(number[o]) for o in graph.outputs)
        roomy = Graph(tuple(self.values), outputs, donated)
        dims = [self.dims[x] for x in number]
        parts = [self.dims[o] for o in outputs]
        return Padded(graph, self.varying, dims, roomy, parts, self._told)

    def _cornered(self, x: int) -> int:
        """``x`` in a shape in which the original's elements are the first along each dimension."""
        dims = self.dims[x]
        found = as_corner(dims)
        if len(found) == len(dims):
            return x
        return self.make(mv.Reshape(tuple(map(room_of, found))), (x,), found)

    # --- sizes -------------------------------------------------------------------------------

    def _leaf_extents(self, i: int, v: Value) -> None:
        for axis, size in enumerate(v.shape):
            if (i, axis) in self.varying.sizes:
                self.whole(i, axis, size)

    def whole(self, i: int, axis: int, size: int, room: int = 0) -> Dim:
        """A size that varies; ``room`` for it, if others tell that."""
        return self._products.get(size) or (self.extent(i, axis, size, room),)

    def extent(self, i: int, axis: int, size: int, room: int = 0) -> Extent:
        """Sizes that are equal are taken for one, unless others tell what ``room`` each has."""
        for found in self.of_size(size):
            if not room or found.room == room:
                return found
        room = room or self.varying.room_for(i, axis, self.graph)
        # Of a size of one it would not be known whether it is one that broadcasts.
        if size < 2 or room < size:
            raise Refused
        new = Extent(i, axis, room)
        self._extents.setdefault(size, []).append(new)
        return new

    def of_size(self, size: int) -> Sequence[Extent]:
        """What varies and has this size."""
        return self._extents.get(size, ())

    def dim(self, axis: int, size: int, part_of: Dim = ONE) -> Dim:
        """That of a size which is an attribute of the value at hand; ``part_of`` a dimension of
        which it may be so many rows, if that is a product."""
        if (self.at, axis) not in self.varying.sizes:
            return (size,)
        row = size_of(part_of[1:], self.graph)
        if len(part_of) > 1 and row and size % row == 0:
            rows = self.of_size(size // row)
            if rows:
                return product((rows[0], *part_of[1:]))
        if size > 1 and size not in self._extents and size not in self._products:
            if size in self._merged:
                return self._merged[size]
            # So many rows of so many: what counts their elements sees the first ones first.
            for known in sorted(self._extents, reverse=True):
                if size % known == 0:
                    return product((self._extents[known][0], size // known))
        return self.whole(self.at, axis, size)

    def dims_of(self, shape: Shape) -> tuple[Dim, ...]:
        """Those of a shape that is an attribute of the value at hand."""
        return tuple(self.dim(axis, size) for axis, size in enumerate(shape))

    # --- new values --------------------------------------------------------------------------

    def _append(self, value: Value, dims: Sequence[Dim]) -> int:
        self.values.append(value)
        self.dims.append(tuple(dims))
        for dim in dims:
            if len(dim) > 1 and varies(dim):
                size = size_of(dim, self.graph)
                if self._latest or size not in self._merged:
                    self._merged[size] = dim
        return len(self.values) - 1

    def inferred(self, op: Op, specs: Sequence[Spec]) -> Spec:
        """What ``op`` makes of these; refused if they do not fit."""
        try:
            return op.infer(*specs)
        except (RuntimeError, IndexError, TypeError) as error:
            raise Refused from error

    def make(self, op: Op, xs: Sequence[int], dims: Sequence[Dim]) -> int:
        """``op`` on values of the new graph; refused if the result has another shape."""
        spec = self.inferred(op, [self.values[x].spec for x in xs])
        if spec.shape != tuple(map(room_of, dims)):
            raise Refused
        value = Value(intern(op), tuple(xs), spec.shape, spec.dtype, self._like.place)
        return self._append(value, dims)

    def scalar(self, told: Told | None, dtype: DType) -> int:
        """A number that the program is told; None: the next one of those of a call."""
        self._told.append(told)
        return self._append(Value(SCALAR, (), (), dtype, self._like.place), ())

    def count(self, told: Told) -> int:
        """A number that is told, as an int32."""
        return self.scalar(told, dt.int32)

    def count_of(self, extent: Extent) -> int:
        """How many there are."""
        key = ("count", extent)
        if key not in self._known:
            self._known[key] = self.count(extent.size)
        return self._known[key]

    def start(self, op: mv.Slice | mv.Insert, axis: int) -> int:
        """Where a slice or an insertion begins."""
        if (self.at, axis) in self.varying.starts:
            return self.count(partial(start_of, self.at, axis))
        return self.full(op.starts[axis], dt.int32)

    def step(self, op: mv.Slice | mv.Insert, axis: int) -> int:
        """How far it is from one of its elements to the next."""
        if (self.at, axis) in self.varying.starts:
            return self.count(partial(step_of, self.at, axis))
        return self.full(op.steps[axis], dt.int32)

    def full(self, value: float | int | bool, dtype: DType) -> int:
        return self.make(mv.Full((), value, dtype), (), ())

    def broadcast(self, op: Op, *xs: int) -> int:
        """An elementwise op."""
        return self.make(op, xs, together([self.dims[x] for x in xs]))

    def _iota(self, dims: Sequence[Dim], axis: int) -> int:
        """Positions along ``axis``, of one element along the others."""
        line = [d if k == axis else ONE for k, d in enumerate(dims)]
        key = ("iota", axis, *line)
        if key not in self._known:
            shape = tuple(map(room_of, line))
            self._known[key] = self.make(mv.Iota(shape, axis, dt.int32), (), line)
        return self._known[key]

    def inside(self, dims: Sequence[Dim], axes: Iterable[int]) -> int | None:
        """Which elements of such a value are the original's along ``axes``; None: all of them."""
        found: int | None = None
        for axis in axes:
            one = self._inside_axis(dims, axis)
            if one is not None:
                found = one if found is None else self.broadcast(ew.And(), found, one)
        return found

    def _inside_axis(self, dims: Sequence[Dim], axis: int) -> int | None:
        dim, rank = dims[axis], len(dims)
        key = ("inside", rank, axis, dim)
        if key in self._known or not varies(dim):
            return self._known.get(key)
        apart = factors(dims, axis)
        found: int | None = None
        for k, atom in enumerate(dim, axis):
            if isinstance(atom, Extent):
                one = self.broadcast(ew.Lt(), self._iota(apart, k), self.count_of(atom))
                found = one if found is None else self.broadcast(ew.And(), found, one)
        assert found is not None
        self._known[key] = self._merge(found, dims, axis)
        return self._known[key]

    def masked(self, x: int, axes: Iterable[int], fill: float | int | bool) -> int:
        """``x`` with ``fill`` where it has elements along ``axes`` that the original has not."""
        inside = self.inside(self.dims[x], axes)
        if inside is None:
            return x
        key = ("masked", x, inside, repr(fill))
        if key not in self._known:
            other = self.full(fill, self.values[x].dtype)
            self._known[key] = self.broadcast(ew.Where(), inside, x, other)
        return self._known[key]

    def along(self, dims: Sequence[Dim], axis: int) -> int:
        """Positions of elements along ``axis`` among the original's; of one along the others."""
        dim, rank = dims[axis], len(dims)
        if from_first(dim):
            return self._iota(dims, axis)
        key = ("along", rank, axis, dim)
        if key not in self._known:
            apart = factors(dims, axis)
            found = self._iota(apart, axis + len(dim) - 1)
            for k in range(len(dim) - 1):
                row = self.count(partial(size_of, dim[k + 1 :]))
                term = self.broadcast(ew.Mul(), self._iota(apart, axis + k), row)
                found = self.broadcast(ew.Add(), term, found)
            self._known[key] = self._merge(found, dims, axis)
        return self._known[key]

    def _merge(self, x: int, dims: Sequence[Dim], axis: int) -> int:
        """What was computed with the factors of a dimension apart, along the dimension."""
        apart = factors(dims, axis)
        line = [d if k == axis else ONE for k, d in enumerate(dims)]
        if len(apart) == len(dims):
            return x
        if self.values[x].shape != tuple(map(room_of, apart)):
            x = self.make(mv.Expand(tuple(map(room_of, apart))), (x,), apart)
        return self.make(mv.Reshape(tuple(map(room_of, line))), (x,), line)

    def moved(self, index: int, dim: Dim, *, back: bool = False) -> int:
        """Positions in a dimension as they are where there is room; ``back``: as they were."""
        if from_first(dim):
            return index
        dtype = self.values[index].dtype
        found: int | None = None
        for k in range(1, len(dim)):
            size = self.scalar(partial(size_of, dim[k:]), dtype)
            room = self.full(room_of(dim[k:]), dtype)
            have, want = (room, size) if back else (size, room)
            row = self.broadcast(INTEGER_QUOTIENT, index, have)
            index = self.broadcast(ew.Sub(), index, self.broadcast(ew.Mul(), row, have))
            start = self.broadcast(ew.Mul(), row, want)
            found = start if found is None else self.broadcast(ew.Add(), found, start)
        assert found is not None
        return self.broadcast(ew.Add(), found, index)

    def taken(self, x: int, axis: int, place: int, dim: Dim) -> int:
        """Elements along ``axis`` at positions among the original's, as many as ``dim`` says."""
        dims = [*self.dims[x]]
        place = self.moved(place, dims[axis])
        dims[axis] = dim
        return self.make(Take(axis), (x, place), dims)

    def _leaf(self, v: Value) -> int:
        if v.op is SCALAR:
            return self.scalar(None, v.dtype)  # its own
        dims = [
            self.whole(self.at, axis, size) if (self.at, axis) in self.varying.sizes else (size,)
            for axis, size in enumerate(v.shape)
        ]
        given = as_corner(dims)
        shape = tuple(map(room_of, given))
        x = self._append(Value(v.op, (), shape, v.dtype, v.place), given)
        if len(given) == len(dims):
            return x
        return self.make(mv.Reshape(tuple(map(room_of, dims))), (x,), dims)

    def _value(self, v: Value, xs: Sequence[int]) -> int:
        i, varying = self.at, self.varying
        free = not any(varies(d) for x in xs for d in self.dims[x])
        if free and i not in varying.values:
            own = range(len(v.shape))
            if not any((i, k) in varying.sizes or (i, k) in varying.starts for k in own):
                value = Value(v.op, tuple(xs), v.shape, v.dtype, v.place)
                return self._append(value, [(n,) for n in v.shape])
        if v.op.elementwise:
            return self.broadcast(v.op, *xs)
        for kind in type(v.op).__mro__:
            rule = self._rules.get(kind)
            if rule is not None:
                return rule(self, v.op, v, xs)
        raise Refused


def nothing(op: type[rd.Reduction], dtype: DType) -> float | int | bool:
    """What changes no result of such a reduction."""
    if op is rd.Sum:
        return 0
    least = op in (rd.Min, rd.ArgMin)
    if dtype.category is Category.BOOL:
        return least
    if dtype.is_floating_point:
        return math.inf if least else -math.inf
    limits = iinfo(dtype)
    return int(limits.max if least else limits.min)
