"""One program for many sizes: what varies gets room, and what is computed in the rest is ignored.

A graph is rewritten into one of larger shapes.  Of a dimension that varies the first elements are
those of the original, and the others may be anything (also NaN).  Every rule keeps it so: where a
sum, a product of matrices or another op combines elements along such a dimension, those that are
none are replaced by what changes nothing, and how many there are is a number that the program is
told when it runs.  So is everything else that is different from size to size: 1 / n of a mean, the
position of the last element.

Before, of a length of 37 for which there is to be room up to 48::

    %0 = buffer() : float32[37, 4]
    %1 = Exp()(%0) : float32[37, 4]
    %2 = Sum(dims=(0,), keepdim=False)(%1) : float32[4] -> out0

After::

    %0 = buffer() : float32[48, 4]
    %1 = Exp()(%0) : float32[48, 4]
    %2 = Iota(shape=(48, 1), dim=0, dtype=mt.int32)() : int32[48, 1]
    %3 = scalar() : int32[]
    %4 = Lt()(%2, %3) : bool[48, 1]
    %5 = Full(shape=(), value=0, dtype=mt.float32)() : float32[]
    %6 = Where()(%4, %1, %5) : float32[48, 4]
    %7 = Sum(dims=(0,), keepdim=False)(%6) : float32[4] -> out0

Nothing is guessed: the rules hold for the sizes at hand, whatever has been said to vary, and a
graph that has an op without a rule is refused.
"""

from __future__ import annotations

import itertools
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
from ..ir.op import Op, intern
from ..ops import conv as cv
from ..ops import elementwise as ew
from ..ops import movement as mv
from ..ops import reduction as rd
from ..ops.elementary import INTEGER_QUOTIENT
from ..ops.gather import ScatterAdd, Take
from ..ops.matmul import Matmul
from ..ops.picking import LastPosition
from ..ops.pool import PoolBase
from ..ops.random import RandomBits
from ..ops.scan import ArgSort, Scan
from .dims import (
    ONE,
    Dim,
    Extent,
    IsProduct,
    Refused,
    as_corner,
    factors,
    from_first,
    product,
    room_of,
    same,
    size_of,
    together,
    varies,
)
from .room import (
    Padded,
    Told,
    Varying,
    constant_of,
    last_of,
    length_of,
    lengths_of,
    start_of,
    step_of,
    stride_of,
)


def padded(graph: Graph, varying: Varying) -> Padded | None:
    """``graph`` with room for what varies; None if something that depends on it has no rule."""
    products: dict[int, Dim] = {}
    try:
        while True:
            try:
                return _Padder(graph, varying, products).run()
            except IsProduct as found:
                size = found.extent.size(graph)
                if size in products or len(products) == _MOST_PRODUCTS:
                    return None
                for known, dim in products.items():
                    atoms = (found.dim if a == found.extent else (a,) for a in dim)
                    products[known] = product(itertools.chain(*atoms))
                products[size] = found.dim
    except Refused:
        return None


_MOST_PRODUCTS = 8
"""Of one graph; each is found by rewriting it once more."""


class _Padder:
    """Builds the new graph, value by value."""

    def __init__(self, graph: Graph, varying: Varying, products: Mapping[int, Dim]) -> None:
        """``products`` are what some sizes are."""
        self._graph, self._varying, self._products = graph, varying, products
        self._values: list[Value] = []
        self._dims: list[tuple[Dim, ...]] = []
        self._told: list[Told | None] = []
        known = [atom for d in products.values() for atom in d if isinstance(atom, Extent)]
        self._extents = {atom.size(graph): atom for atom in known}
        self._merged: dict[int, Dim] = {}  # by size
        self._known: dict[object, int] = {}
        self._at = 0
        self._like = graph.values[0]

    def run(self) -> Padded:
        """The whole graph."""
        graph = self._graph
        number: list[int] = []
        for i, v in enumerate(graph.values):
            if v.is_leaf and v.op is not SCALAR:
                self._leaf_extents(i, v)
        for i, v in enumerate(graph.values):
            self._at, self._like = i, v
            xs = [number[x] for x in v.inputs]
            new = self._leaf(v) if v.is_leaf else self._value(v, xs)
            if tuple(size_of(d, graph) for d in self._dims[new]) != v.shape:
                raise Refused
            number.append(new)
        donated = tuple(
            (o, number[s])
            for o, s in graph.donated
            if not any(map(varies, self._dims[number[s]]))
            and not any(map(varies, self._dims[number[graph.outputs[o]]]))
        )
        outputs = tuple(self._cornered(number[o]) for o in graph.outputs)
        roomy = Graph(tuple(self._values), outputs, donated)
        dims = [self._dims[x] for x in number]
        parts = [self._dims[o] for o in outputs]
        return Padded(graph, self._varying, dims, roomy, parts, self._told)

    def _cornered(self, x: int) -> int:
        """``x`` in a shape in which the original's elements are the first along each dimension."""
        dims = self._dims[x]
        found = as_corner(dims)
        if len(found) == len(dims):
            return x
        return self._make(mv.Reshape(tuple(map(room_of, found))), (x,), found)

    # --- sizes -------------------------------------------------------------------------------

    def _leaf_extents(self, i: int, v: Value) -> None:
        for axis, size in enumerate(v.shape):
            if (i, axis) in self._varying.sizes:
                self._whole(i, axis, size)

    def _whole(self, i: int, axis: int, size: int) -> Dim:
        """A size that varies."""
        return self._products.get(size) or (self._extent(i, axis, size),)

    def _extent(self, i: int, axis: int, size: int) -> Extent:
        """Sizes that are equal are taken for one."""
        found = self._extents.get(size)
        if found is None:
            room = self._varying.room_for(i, axis, self._graph)
            # Of a size of one it would not be known whether it is one that broadcasts.
            if size < 2 or room < size:
                raise Refused
            found = self._extents[size] = Extent(i, axis, room)
        return found

    def _dim(self, axis: int, size: int) -> Dim:
        """That of a size which is an attribute of the value at hand."""
        if (self._at, axis) not in self._varying.sizes:
            return (size,)
        if size > 1 and size not in self._extents and size not in self._products:
            if size in self._merged:
                return self._merged[size]
            # So many rows of so many: what counts their elements sees the first ones first.
            for known in sorted(self._extents, reverse=True):
                if size % known == 0:
                    return product((self._extents[known], size // known))
        return self._whole(self._at, axis, size)

    def _dims_of(self, shape: Shape) -> tuple[Dim, ...]:
        return tuple(self._dim(axis, size) for axis, size in enumerate(shape))

    # --- new values --------------------------------------------------------------------------

    def _append(self, value: Value, dims: Sequence[Dim]) -> int:
        self._values.append(value)
        self._dims.append(tuple(dims))
        for dim in dims:
            if len(dim) > 1 and varies(dim):
                self._merged.setdefault(size_of(dim, self._graph), dim)
        return len(self._values) - 1

    def _make(self, op: Op, xs: Sequence[int], dims: Sequence[Dim]) -> int:
        """``op`` on values of the new graph; refused if the result has another shape."""
        try:
            spec = op.infer(*[self._values[x].spec for x in xs])
        except (RuntimeError, IndexError, TypeError) as error:  # operands that do not fit
            raise Refused from error
        if spec.shape != tuple(map(room_of, dims)):
            raise Refused
        value = Value(intern(op), tuple(xs), spec.shape, spec.dtype, self._like.place)
        return self._append(value, dims)

    def _scalar(self, told: Told | None, dtype: DType) -> int:
        self._told.append(told)
        return self._append(Value(SCALAR, (), (), dtype, self._like.place), ())

    def _count(self, told: Told) -> int:
        """A number that is told, as an int32."""
        return self._scalar(told, dt.int32)

    def _count_of(self, extent: Extent) -> int:
        """How many there are."""
        key = ("count", extent)
        if key not in self._known:
            self._known[key] = self._count(extent.size)
        return self._known[key]

    def _start(self, op: mv.Slice | mv.Insert, axis: int) -> int:
        """Where a slice or an insertion begins."""
        if (self._at, axis) in self._varying.starts:
            return self._count(partial(start_of, self._at, axis))
        return self._full(op.starts[axis], dt.int32)

    def _step(self, op: mv.Slice | mv.Insert, axis: int) -> int:
        """How far it is from one of its elements to the next."""
        if (self._at, axis) in self._varying.starts:
            return self._count(partial(step_of, self._at, axis))
        return self._full(op.steps[axis], dt.int32)

    def _full(self, value: float | int | bool, dtype: DType) -> int:
        return self._make(mv.Full((), value, dtype), (), ())

    def _broadcast(self, op: Op, *xs: int) -> int:
        """An elementwise op."""
        return self._make(op, xs, together([self._dims[x] for x in xs]))

    def _iota(self, dims: Sequence[Dim], axis: int) -> int:
        """Positions along ``axis``, of one element along the others."""
        line = [d if k == axis else ONE for k, d in enumerate(dims)]
        key = ("iota", axis, *line)
        if key not in self._known:
            shape = tuple(map(room_of, line))
            self._known[key] = self._make(mv.Iota(shape, axis, dt.int32), (), line)
        return self._known[key]

    def _inside(self, dims: Sequence[Dim], axes: Iterable[int]) -> int | None:
        """Which elements of such a value are the original's along ``axes``; None: all of them."""
        found: int | None = None
        for axis in axes:
            one = self._inside_axis(dims, axis)
            if one is not None:
                found = one if found is None else self._broadcast(ew.And(), found, one)
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
                one = self._broadcast(ew.Lt(), self._iota(apart, k), self._count_of(atom))
                found = one if found is None else self._broadcast(ew.And(), found, one)
        assert found is not None
        self._known[key] = self._merge(found, dims, axis)
        return self._known[key]

    def _masked(self, x: int, axes: Iterable[int], fill: float | int | bool) -> int:
        """``x`` with ``fill`` where it has elements along ``axes`` that the original has not."""
        inside = self._inside(self._dims[x], axes)
        if inside is None:
            return x
        key = ("masked", x, inside, repr(fill))
        if key not in self._known:
            other = self._full(fill, self._values[x].dtype)
            self._known[key] = self._broadcast(ew.Where(), inside, x, other)
        return self._known[key]

    def _along(self, dims: Sequence[Dim], axis: int) -> int:
        """Positions of elements along ``axis`` among the original's; of one along the others."""
        dim, rank = dims[axis], len(dims)
        if from_first(dim):
            return self._iota(dims, axis)
        key = ("along", rank, axis, dim)
        if key not in self._known:
            apart = factors(dims, axis)
            found = self._iota(apart, axis + len(dim) - 1)
            for k in range(len(dim) - 1):
                row = self._count(partial(size_of, dim[k + 1 :]))
                term = self._broadcast(ew.Mul(), self._iota(apart, axis + k), row)
                found = self._broadcast(ew.Add(), term, found)
            self._known[key] = self._merge(found, dims, axis)
        return self._known[key]

    def _merge(self, x: int, dims: Sequence[Dim], axis: int) -> int:
        """What was computed with the factors of a dimension apart, along the dimension."""
        apart = factors(dims, axis)
        line = [d if k == axis else ONE for k, d in enumerate(dims)]
        if len(apart) == len(dims):
            return x
        if self._values[x].shape != tuple(map(room_of, apart)):
            x = self._make(mv.Expand(tuple(map(room_of, apart))), (x,), apart)
        return self._make(mv.Reshape(tuple(map(room_of, line))), (x,), line)

    def _moved(self, index: int, dim: Dim, *, back: bool = False) -> int:
        """Positions in a dimension as they are where there is room; ``back``: as they were."""
        if from_first(dim):
            return index
        dtype = self._values[index].dtype
        found: int | None = None
        for k in range(1, len(dim)):
            size = self._scalar(partial(size_of, dim[k:]), dtype)
            room = self._full(room_of(dim[k:]), dtype)
            have, want = (room, size) if back else (size, room)
            row = self._broadcast(INTEGER_QUOTIENT, index, have)
            index = self._broadcast(ew.Sub(), index, self._broadcast(ew.Mul(), row, have))
            start = self._broadcast(ew.Mul(), row, want)
            found = start if found is None else self._broadcast(ew.Add(), found, start)
        assert found is not None
        return self._broadcast(ew.Add(), found, index)

    def _taken(self, x: int, axis: int, place: int, dim: Dim) -> int:
        """Elements along ``axis`` at positions among the original's, as many as ``dim`` says."""
        dims = [*self._dims[x]]
        place = self._moved(place, dims[axis])
        dims[axis] = dim
        return self._make(Take(axis), (x, place), dims)

    # --- rules -------------------------------------------------------------------------------

    def _leaf(self, v: Value) -> int:
        if v.op is SCALAR:
            return self._scalar(None, v.dtype)  # its own
        dims = [
            self._whole(self._at, axis, size)
            if (self._at, axis) in self._varying.sizes
            else (size,)
            for axis, size in enumerate(v.shape)
        ]
        given = as_corner(dims)
        shape = tuple(map(room_of, given))
        x = self._append(Value(v.op, (), shape, v.dtype, v.place), given)
        if len(given) == len(dims):
            return x
        return self._make(mv.Reshape(tuple(map(room_of, dims))), (x,), dims)

    def _value(self, v: Value, xs: Sequence[int]) -> int:
        i, varying = self._at, self._varying
        free = not any(varies(d) for x in xs for d in self._dims[x])
        if free and i not in varying.values:
            own = range(len(v.shape))
            if not any((i, k) in varying.sizes or (i, k) in varying.starts for k in own):
                value = Value(v.op, tuple(xs), v.shape, v.dtype, v.place)
                return self._append(value, [(n,) for n in v.shape])
        if v.op.elementwise:
            return self._broadcast(v.op, *xs)
        for kind in type(v.op).__mro__:
            rule = _RULES.get(kind)
            if rule is not None:
                return rule(self, v.op, v, xs)
        raise Refused

    def _constant(self, op: mv.Full, v: Value, xs: Sequence[int]) -> int:
        dims = self._dims_of(v.shape)
        shape = tuple(map(room_of, dims))
        if self._at not in self._varying.values:
            return self._make(mv.Full(shape, op.value, op.dtype), (), dims)
        if op.dtype.category is Category.BOOL:
            raise Refused
        number = self._scalar(partial(constant_of, self._at), op.dtype)
        return self._make(mv.Expand(shape), (number,), dims) if shape else number

    def _positions(self, op: mv.Iota, v: Value, xs: Sequence[int]) -> int:
        dims = self._dims_of(v.shape)
        shape = tuple(map(room_of, dims))
        if from_first(dims[op.dim]):
            return self._make(mv.Iota(shape, op.dim, op.dtype), (), dims)
        found = self._broadcast(ew.Cast(op.dtype), self._along(dims, op.dim))
        return self._make(mv.Expand(shape), (found,), dims)

    def _random(self, op: RandomBits, v: Value, xs: Sequence[int]) -> int:
        dims = self._dims_of(v.shape)
        shape = tuple(map(room_of, dims))
        if all(from_first(d) for d in dims) and not any(map(varies, dims[1:])):
            return self._make(RandomBits(shape), xs, dims)
        # The bits of an element are those of its number among the original's.
        number: int | None = None
        for axis, dim in enumerate(dims):
            if dim == ONE:
                continue
            stride = self._count(partial(stride_of, self._at, axis))
            term = self._broadcast(ew.Mul(), self._along(dims, axis), stride)
            number = term if number is None else self._broadcast(ew.Add(), number, term)
        assert number is not None
        line = (math.prod(shape),)
        bits = self._make(RandomBits(line), xs, [line])
        return self._make(Take(0), (bits, number), dims)

    def _reshaped(self, op: mv.Reshape, v: Value, xs: Sequence[int]) -> int:
        (x,) = xs
        left = [atom for dim in self._dims[x] for atom in dim if atom != 1][::-1]
        dims = []
        for axis, whole in enumerate(v.shape):
            size = whole
            found: list[int | Extent] = []
            while size > 1:
                if not left:
                    raise Refused
                atom = left.pop()
                own = size_of((atom,), self._graph)
                if not own:
                    raise Refused
                if size % own == 0:
                    size //= own
                elif isinstance(atom, int) and atom % size == 0:
                    left.append(atom // size)
                    atom, size = size, 1
                else:
                    if isinstance(atom, Extent) and size == whole and own % size == 0:
                        self._divided(atom, v.shape, axis)
                    raise Refused
                found.append(atom)
            dims.append(product(found) if size else (0,))
        return self._make(mv.Reshape(tuple(map(room_of, dims))), xs, dims)

    def _divided(self, extent: Extent, shape: Shape, axis: int) -> None:
        """It becomes a row of axes, of which this is the first."""
        atoms: list[int | Extent] = []
        rest = extent.size(self._graph)
        for k, size in enumerate(shape[axis:], axis):
            if rest % size:
                break
            varies_too = (self._at, k) in self._varying.sizes
            atoms.append(self._extent(self._at, k, size) if varies_too else size)
            rest //= size
        raise IsProduct(extent, product([*atoms, rest]))

    def _permuted(self, op: mv.Permute, v: Value, xs: Sequence[int]) -> int:
        return self._make(op, xs, [self._dims[xs[0]][d] for d in op.dims])

    def _expanded(self, op: mv.Expand, v: Value, xs: Sequence[int]) -> int:
        own = self._dims[xs[0]]
        lead = len(v.shape) - len(own)
        dims = [
            own[axis - lead] if axis >= lead and own[axis - lead] != ONE else self._dim(axis, size)
            for axis, size in enumerate(v.shape)
        ]
        return self._make(mv.Expand(tuple(map(room_of, dims))), xs, dims)

    def _sliced(self, op: mv.Slice, v: Value, xs: Sequence[int]) -> int:
        (x,) = xs
        dims = [*self._dims[x]]
        rank = len(dims)
        starts, stops, steps = [0] * rank, [*map(room_of, dims)], [1] * rank
        later = []
        for axis, (start, stop, step) in enumerate(zip(op.starts, op.stops, op.steps, strict=True)):
            own = dims[axis]
            told = (self._at, axis) in self._varying.starts
            if (start, step) == (0, 1) and stop >= size_of(own, self._graph) and not told:
                continue
            dim = self._dim(axis, v.shape[axis])
            end = start + (room_of(dim) - 1) * step + 1 if room_of(dim) else start
            if told or not from_first(own) or not from_first(dim) or end > room_of(own):
                later.append((axis, dim))
            else:
                starts[axis], stops[axis], steps[axis] = start, end, step
                dims[axis] = dim
        y = x
        if [*map(room_of, dims)] != [*self._values[x].shape]:
            y = self._make(mv.Slice(tuple(starts), tuple(stops), tuple(steps)), (x,), dims)
        elif tuple(dims) != self._dims[x]:  # as much room for fewer
            y = self._make(ew.Clone(), (x,), dims)
        for axis, dim in later:
            place = self._broadcast(ew.Mul(), self._along([dim], 0), self._step(op, axis))
            place = self._broadcast(ew.Add(), place, self._start(op, axis))
            y = self._taken(y, axis, place, dim)
        return y

    def _inserted(self, op: mv.Insert, v: Value, xs: Sequence[int]) -> int:
        base, x = xs
        own, new = self._dims[base], self._dims[x]
        if (0,) in new:
            return base
        parts = [
            axis
            for axis, (start, step) in enumerate(zip(op.starts, op.steps, strict=True))
            if own[axis] != new[axis] or start or step != 1
        ]
        if not any(
            (self._at, a) in self._varying.starts or varies(own[a]) or varies(new[a]) for a in parts
        ):
            return self._make(op, xs, own)
        spread, inside = x, None
        for axis in parts:
            offset = self._broadcast(ew.Sub(), self._along(own, axis), self._start(op, axis))
            here = self._broadcast(ew.Le(), self._full(0, dt.int32), offset)
            step = self._step(op, axis)
            number = self._broadcast(INTEGER_QUOTIENT, offset, step)
            hit = self._broadcast(ew.Eq(), self._broadcast(ew.Mul(), number, step), offset)
            here = self._broadcast(ew.And(), here, hit)
            end = self._count(partial(length_of, v.inputs[1], axis))
            here = self._broadcast(ew.And(), here, self._broadcast(ew.Lt(), number, end))
            # As a line: which of the elements along the axis comes in each place.
            line = self._make(mv.Reshape((room_of(own[axis]),)), (number,), [own[axis]])
            spread = self._taken(spread, axis, line, own[axis])
            inside = here if inside is None else self._broadcast(ew.And(), inside, here)
        assert inside is not None
        return self._broadcast(ew.Where(), inside, spread, base)

    def _joined(self, op: mv.Cat, v: Value, xs: Sequence[int]) -> int:
        axis = op.dim
        parts = [x for x in xs if self._values[x].shape[axis]] or xs
        dims = [*self._dims[parts[0]]]
        for x in parts:
            dims[axis] = self._dims[x][axis]
            for one, other in zip(dims, self._dims[x], strict=True):
                same(one, other)
        if not any(varies(self._dims[x][axis]) for x in parts):
            dims[axis] = (v.shape[axis],)
            return self._make(op, xs, dims)
        dim = dims[axis] = self._dim(axis, v.shape[axis])
        place = self._along([dim], 0)
        found = self._taken(parts[0], axis, place, dim)
        ours = [x for x, part in zip(v.inputs, xs, strict=True) if part in parts]
        for k, x in enumerate(parts[1:], 1):
            first = self._count(partial(lengths_of, ours[:k], axis))
            own = self._taken(x, axis, self._broadcast(ew.Sub(), place, first), dim)
            behind = self._broadcast(ew.Le(), first, self._along(dims, axis))
            found = self._broadcast(ew.Where(), behind, own, found)
        return found

    def _flipped(self, op: mv.Flip, v: Value, xs: Sequence[int]) -> int:
        (x,) = xs
        y, left = x, []
        for axis in op.dims:
            dim = self._dims[x][axis]
            if not varies(dim):
                left.append(axis)
                continue
            last = self._count(partial(last_of, v.inputs[0], axis))
            place = self._broadcast(ew.Sub(), last, self._along([dim], 0))
            y = self._taken(y, axis, place, dim)
        return self._make(mv.Flip(tuple(left)), (y,), self._dims[x]) if left else y

    def _reduced(self, op: rd.Reduction, v: Value, xs: Sequence[int]) -> int:
        (x,) = xs
        dims = self._dims[x]
        is_position = isinstance(op, rd.ArgMax)
        y = self._masked(x, op.dims, _nothing(type(op), self._values[x].dtype))
        kept = [
            ONE if d in op.dims else dim
            for d, dim in enumerate(dims)
            if op.keepdim or d not in op.dims
        ]
        found = self._make(op, (y,), kept)
        return self._moved(found, dims[op.dims[0]], back=True) if is_position else found

    def _product_of(self, op: Matmul, v: Value, xs: Sequence[int]) -> int:
        a, b = (self._dims[x] for x in xs)
        m, k = (a[-1], a[-2]) if op.ta else (a[-2], a[-1])
        terms, n = (b[-1], b[-2]) if op.tb else (b[-2], b[-1])
        same(k, terms)
        batch = together([a[:-2], b[:-2]])
        # Both: 0 times what is not a number is not 0.
        left = self._masked(xs[0], (len(a) - (2 if op.ta else 1),), 0)
        right = self._masked(xs[1], (len(b) - (1 if op.tb else 2),), 0)
        return self._make(op, (left, right), [*batch, m, n])

    def _take(self, op: Take, v: Value, xs: Sequence[int]) -> int:
        x, index = (self._dims[i] for i in xs)
        place = self._moved(xs[1], x[op.dim])
        return self._make(op, (xs[0], place), [*x[: op.dim], *index, *x[op.dim + 1 :]])

    def _scattered(self, op: ScatterAdd, v: Value, xs: Sequence[int]) -> int:
        ct, index = (self._dims[x] for x in xs)
        axes = range(op.dim, op.dim + len(index))
        dim = self._dim(op.dim, op.size)
        for one, other in zip(ct[op.dim : axes.stop], index, strict=True):
            same(one, other)
        terms, place = self._masked(xs[0], axes, 0), self._moved(xs[1], dim)
        dims = [*ct[: op.dim], dim, *ct[axes.stop :]]
        return self._make(ScatterAdd(op.dim, room_of(dim)), (terms, place), dims)

    def _last(self, op: LastPosition, v: Value, xs: Sequence[int]) -> int:
        index = self._dims[xs[0]]
        dim = self._dim(0, op.size)
        # The results count the positions: they must be where they were.
        if not all(map(from_first, index)) or any(map(varies, index[1:])):
            raise Refused
        x = self._moved(xs[0], dim)
        room = room_of(dim)
        inside = self._inside(index, range(len(index)))
        if inside is None:
            return self._make(LastPosition(room), (x,), [dim])
        other = self._full(room, self._values[x].dtype)
        places = self._broadcast(ew.Where(), inside, x, other)
        found = self._make(LastPosition(room + 1), (places,), [(room + 1,)])
        return self._make(mv.Slice((0,), (room,), (1,)), (found,), [dim])

    def _scanned(self, op: Scan, v: Value, xs: Sequence[int]) -> int:
        dims = self._dims[xs[0]]
        for x in xs[1:]:
            for one, other in zip(dims, self._dims[x], strict=True):
                same(one, other)
        # Nothing is added, and what there was is kept.
        xs = [self._masked(x, (op.dim,), k) for k, x in enumerate(xs)]
        return self._make(op, xs, dims)

    def _sorted(self, op: ArgSort, v: Value, xs: Sequence[int]) -> int:
        (x,) = xs
        dims = [*self._dims[x]]
        own = dims[op.dim]
        whole = size_of(own, self._graph)
        if not from_first(own):
            raise Refused
        # Behind all others: equal ones keep their order, and NaN counts as the largest.
        dtype = self._values[x].dtype
        last = _nothing(rd.Max if op.descending else rd.Min, dtype)
        if dtype.is_floating_point and not op.descending:
            last = math.nan
        y = self._masked(x, (op.dim,), last)
        if op.count == whole:
            return self._make(ArgSort(op.dim, op.descending, room_of(own)), (y,), dims)
        dim = self._dim(op.dim, op.count)
        if room_of(dim) <= room_of(own) and from_first(dim):
            dims[op.dim] = dim
            return self._make(ArgSort(op.dim, op.descending, room_of(dim)), (y,), dims)
        found = self._make(ArgSort(op.dim, op.descending, room_of(own)), (y,), dims)
        return self._taken(found, op.dim, self._along([dim], 0), dim)

    def _images(self, op: Op, v: Value, xs: Sequence[int]) -> int:
        """Of several images, each for itself."""
        lead = self._dims[xs[0]][: 2 if isinstance(op, PoolBase) else 1]
        for x in xs if isinstance(op, PoolBase) else xs[:1]:
            if self._dims[x][: len(lead)] != lead or any(map(varies, self._dims[x][len(lead) :])):
                raise Refused
        if not isinstance(op, PoolBase) and any(map(varies, self._dims[xs[1]])):
            raise Refused
        return self._make(op, xs, [*lead, *((n,) for n in v.shape[len(lead) :])])

    def _weights(self, op: cv.ConvGradWeight, v: Value, xs: Sequence[int]) -> int:
        x, ct = (self._dims[i] for i in xs)
        if x[0] != ct[0] or any(map(varies, (*x[1:], *ct[1:]))):
            raise Refused
        return self._make(op, [self._masked(i, (0,), 0) for i in xs], [(n,) for n in v.shape])


def _nothing(op: type[rd.Reduction], dtype: DType) -> float | int | bool:
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


_Rule = Callable[[_Padder, Any, Value, Sequence[int]], int]

_RULES: dict[type, _Rule] = {
    mv.Full: _Padder._constant,
    mv.Iota: _Padder._positions,
    RandomBits: _Padder._random,
    mv.Reshape: _Padder._reshaped,
    mv.Permute: _Padder._permuted,
    mv.Expand: _Padder._expanded,
    mv.Slice: _Padder._sliced,
    mv.Insert: _Padder._inserted,
    mv.Cat: _Padder._joined,
    mv.Flip: _Padder._flipped,
    rd.Reduction: _Padder._reduced,
    Matmul: _Padder._product_of,
    Take: _Padder._take,
    ScatterAdd: _Padder._scattered,
    LastPosition: _Padder._last,
    Scan: _Padder._scanned,
    ArgSort: _Padder._sorted,
    cv.Conv2d: _Padder._images,
    cv.ConvGradInput: _Padder._images,
    cv.ConvGradWeight: _Padder._weights,
    PoolBase: _Padder._images,
}
