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
from collections.abc import Sequence
from functools import partial

from ..core import dtype as dt
from ..core.dtype import Category
from ..core.shape import Shape
from ..ir.graph import Graph, Value
from ..ops import elementwise as ew
from ..ops import movement as mv
from ..ops import reduction as rd
from ..ops.elementary import INTEGER_QUOTIENT
from ..ops.gather import ScatterAdd, Take
from ..ops.matmul import Matmul
from ..ops.picking import LastPosition
from ..ops.random import RandomBits
from ..ops.scan import ArgSort, Scan
from .dims import (
    ONE,
    Dim,
    Extent,
    IsProduct,
    Refused,
    from_first,
    product,
    room_of,
    same,
    size_of,
    together,
    varies,
)
from .padder import Padder, Rule, nothing
from .padding_images import IMAGES
from .padding_recurrent import RECURRENT
from .room import (
    Padded,
    Varying,
    constant_of,
    last_of,
    length_of,
    lengths_of,
    stride_of,
)


def _constant(p: Padder, op: mv.Full, v: Value, xs: Sequence[int]) -> int:
    dims = p.dims_of(v.shape)
    shape = tuple(map(room_of, dims))
    if p.at not in p.varying.values:
        return p.make(mv.Full(shape, op.value, op.dtype), (), dims)
    if op.dtype.category is Category.BOOL:
        raise Refused
    number = p.scalar(partial(constant_of, p.at), op.dtype)
    return p.make(mv.Expand(shape), (number,), dims) if shape else number


def _positions(p: Padder, op: mv.Iota, v: Value, xs: Sequence[int]) -> int:
    dims = p.dims_of(v.shape)
    shape = tuple(map(room_of, dims))
    if from_first(dims[op.dim]):
        return p.make(mv.Iota(shape, op.dim, op.dtype), (), dims)
    found = p.broadcast(ew.Cast(op.dtype), p.along(dims, op.dim))
    return p.make(mv.Expand(shape), (found,), dims)


def _random(p: Padder, op: RandomBits, v: Value, xs: Sequence[int]) -> int:
    dims = p.dims_of(v.shape)
    shape = tuple(map(room_of, dims))
    if all(from_first(d) for d in dims) and not any(map(varies, dims[1:])):
        return p.make(RandomBits(shape), xs, dims)
    # The bits of an element are those of its number among the original's.
    number: int | None = None
    for axis, dim in enumerate(dims):
        if dim == ONE:
            continue
        stride = p.count(partial(stride_of, p.at, axis))
        term = p.broadcast(ew.Mul(), p.along(dims, axis), stride)
        number = term if number is None else p.broadcast(ew.Add(), number, term)
    assert number is not None
    line = (math.prod(shape),)
    bits = p.make(RandomBits(line), xs, [line])
    return p.make(Take(0), (bits, number), dims)


def _reshaped(p: Padder, op: mv.Reshape, v: Value, xs: Sequence[int]) -> int:
    (x,) = xs
    left = [atom for dim in p.dims[x] for atom in dim if atom != 1][::-1]
    dims = []
    for axis, whole in enumerate(v.shape):
        size = whole
        found: list[int | Extent] = []
        while size > 1:
            if not left:
                raise Refused
            atom = left.pop()
            own = size_of((atom,), p.graph)
            if not own:
                raise Refused
            if size % own == 0:
                size //= own
            elif isinstance(atom, int) and atom % size == 0:
                left.append(atom // size)
                atom, size = size, 1
            else:
                is_first = size == whole and own % size == 0 and 0 not in v.shape
                if is_first and isinstance(atom, Extent):
                    _divided(p, atom, v.shape, axis)
                raise Refused
            found.append(atom)
        dims.append(product(found) if size else (0,))
    return p.make(mv.Reshape(tuple(map(room_of, dims))), xs, dims)


def _divided(p: Padder, extent: Extent, shape: Shape, axis: int) -> None:
    """It becomes a row of axes, of which this is the first."""
    atoms: list[int | Extent] = []
    rest = extent.size(p.graph)
    for k, size in enumerate(shape[axis:], axis):
        if rest % size:
            break
        varies_too = (p.at, k) in p.varying.sizes
        atoms.append(p.extent(p.at, k, size) if varies_too else size)
        rest //= size
    raise IsProduct(extent, product([*atoms, rest]))


def _permuted(p: Padder, op: mv.Permute, v: Value, xs: Sequence[int]) -> int:
    return p.make(op, xs, [p.dims[xs[0]][d] for d in op.dims])


def _expanded(p: Padder, op: mv.Expand, v: Value, xs: Sequence[int]) -> int:
    own = p.dims[xs[0]]
    lead = len(v.shape) - len(own)
    dims = [
        own[axis - lead] if axis >= lead and own[axis - lead] != ONE else p.dim(axis, size)
        for axis, size in enumerate(v.shape)
    ]
    return p.make(mv.Expand(tuple(map(room_of, dims))), xs, dims)


def _sliced(p: Padder, op: mv.Slice, v: Value, xs: Sequence[int]) -> int:
    (x,) = xs
    dims = [*p.dims[x]]
    rank = len(dims)
    starts, stops, steps = [0] * rank, [*map(room_of, dims)], [1] * rank
    later = []
    for axis, (start, stop, step) in enumerate(zip(op.starts, op.stops, op.steps, strict=True)):
        own = dims[axis]
        told = (p.at, axis) in p.varying.starts
        if (start, step) == (0, 1) and stop >= size_of(own, p.graph) and not told:
            continue
        dim = p.dim(axis, v.shape[axis], own)
        end = start + (room_of(dim) - 1) * step + 1 if room_of(dim) else start
        if told or not from_first(own) or not from_first(dim) or end > room_of(own):
            later.append((axis, dim))
        else:
            starts[axis], stops[axis], steps[axis] = start, end, step
            dims[axis] = dim
    y = x
    if [*map(room_of, dims)] != [*p.values[x].shape]:
        y = p.make(mv.Slice(tuple(starts), tuple(stops), tuple(steps)), (x,), dims)
    elif tuple(dims) != p.dims[x]:  # as much room for fewer
        y = p.make(ew.Clone(), (x,), dims)
    for axis, dim in later:
        place = p.broadcast(ew.Mul(), p.along([dim], 0), p.step(op, axis))
        place = p.broadcast(ew.Add(), place, p.start(op, axis))
        y = p.taken(y, axis, place, dim)
    return y


def _inserted(p: Padder, op: mv.Insert, v: Value, xs: Sequence[int]) -> int:
    base, x = xs
    own, new = p.dims[base], p.dims[x]
    if (0,) in new:
        return base
    parts = [
        axis
        for axis, (start, step) in enumerate(zip(op.starts, op.steps, strict=True))
        if own[axis] != new[axis] or start or step != 1
    ]
    if not any((p.at, a) in p.varying.starts or varies(own[a]) or varies(new[a]) for a in parts):
        return p.make(op, xs, own)
    spread, inside = x, None
    for axis in parts:
        offset = p.broadcast(ew.Sub(), p.along(own, axis), p.start(op, axis))
        here = p.broadcast(ew.Le(), p.full(0, dt.int32), offset)
        step = p.step(op, axis)
        number = p.broadcast(INTEGER_QUOTIENT, offset, step)
        hit = p.broadcast(ew.Eq(), p.broadcast(ew.Mul(), number, step), offset)
        here = p.broadcast(ew.And(), here, hit)
        end = p.count(partial(length_of, v.inputs[1], axis))
        here = p.broadcast(ew.And(), here, p.broadcast(ew.Lt(), number, end))
        # As a line: which of the elements along the axis comes in each place.
        line = p.make(mv.Reshape((room_of(own[axis]),)), (number,), [own[axis]])
        spread = p.taken(spread, axis, line, own[axis])
        inside = here if inside is None else p.broadcast(ew.And(), inside, here)
    assert inside is not None
    return p.broadcast(ew.Where(), inside, spread, base)


def _joined(p: Padder, op: mv.Cat, v: Value, xs: Sequence[int]) -> int:
    axis = op.dim
    parts = [x for x in xs if p.values[x].shape[axis]] or xs
    dims = [*p.dims[parts[0]]]
    for x in parts:
        dims[axis] = p.dims[x][axis]
        for one, other in zip(dims, p.dims[x], strict=True):
            same(one, other)
    if not any(varies(p.dims[x][axis]) for x in parts):
        dims[axis] = (v.shape[axis],)
        return p.make(op, xs, dims)
    dim = dims[axis] = p.dim(axis, v.shape[axis])
    place = p.along([dim], 0)
    found = p.taken(parts[0], axis, place, dim)
    ours = [x for x, part in zip(v.inputs, xs, strict=True) if part in parts]
    for k, x in enumerate(parts[1:], 1):
        first = p.count(partial(lengths_of, ours[:k], axis))
        own = p.taken(x, axis, p.broadcast(ew.Sub(), place, first), dim)
        behind = p.broadcast(ew.Le(), first, p.along(dims, axis))
        found = p.broadcast(ew.Where(), behind, own, found)
    return found


def _flipped(p: Padder, op: mv.Flip, v: Value, xs: Sequence[int]) -> int:
    (x,) = xs
    y, left = x, []
    for axis in op.dims:
        dim = p.dims[x][axis]
        if not varies(dim):
            left.append(axis)
            continue
        last = p.count(partial(last_of, v.inputs[0], axis))
        place = p.broadcast(ew.Sub(), last, p.along([dim], 0))
        y = p.taken(y, axis, place, dim)
    return p.make(mv.Flip(tuple(left)), (y,), p.dims[x]) if left else y


def _reduced(p: Padder, op: rd.Reduction, v: Value, xs: Sequence[int]) -> int:
    (x,) = xs
    dims = p.dims[x]
    is_position = isinstance(op, rd.ArgMax)
    y = p.masked(x, op.dims, nothing(type(op), p.values[x].dtype))
    kept = [
        ONE if d in op.dims else dim for d, dim in enumerate(dims) if op.keepdim or d not in op.dims
    ]
    found = p.make(op, (y,), kept)
    return p.moved(found, dims[op.dims[0]], back=True) if is_position else found


def _product_of(p: Padder, op: Matmul, v: Value, xs: Sequence[int]) -> int:
    a, b = (p.dims[x] for x in xs)
    m, k = (a[-1], a[-2]) if op.ta else (a[-2], a[-1])
    terms, n = (b[-1], b[-2]) if op.tb else (b[-2], b[-1])
    same(k, terms)
    batch = together([a[:-2], b[:-2]])
    # Both: 0 times what is not a number is not 0.
    left = p.masked(xs[0], (len(a) - (2 if op.ta else 1),), 0)
    right = p.masked(xs[1], (len(b) - (1 if op.tb else 2),), 0)
    return p.make(op, (left, right), [*batch, m, n])


def _take(p: Padder, op: Take, v: Value, xs: Sequence[int]) -> int:
    x, index = (p.dims[i] for i in xs)
    p.read[v.inputs[1]] = x[op.dim]
    place = p.moved(xs[1], x[op.dim])
    return p.make(op, (xs[0], place), [*x[: op.dim], *index, *x[op.dim + 1 :]])


def _scattered(p: Padder, op: ScatterAdd, v: Value, xs: Sequence[int]) -> int:
    ct, index = (p.dims[x] for x in xs)
    axes = range(op.dim, op.dim + len(index))
    # Of sizes that are equal, such as those of two products, what was read there.
    dim = p.read.get(v.inputs[1], ONE)
    if size_of(dim, p.graph) != op.size or dim == ONE:
        dim = p.dim(op.dim, op.size)
    for one, other in zip(ct[op.dim : axes.stop], index, strict=True):
        same(one, other)
    terms, place = p.masked(xs[0], axes, 0), p.moved(xs[1], dim)
    dims = [*ct[: op.dim], dim, *ct[axes.stop :]]
    return p.make(ScatterAdd(op.dim, room_of(dim)), (terms, place), dims)


def _last(p: Padder, op: LastPosition, v: Value, xs: Sequence[int]) -> int:
    index = p.dims[xs[0]]
    dim = p.dim(0, op.size)
    # The results count the positions: they must be where they were.
    if not all(map(from_first, index)) or any(map(varies, index[1:])):
        raise Refused
    x = p.moved(xs[0], dim)
    room = room_of(dim)
    inside = p.inside(index, range(len(index)))
    if inside is None:
        return p.make(LastPosition(room), (x,), [dim])
    other = p.full(room, p.values[x].dtype)
    places = p.broadcast(ew.Where(), inside, x, other)
    found = p.make(LastPosition(room + 1), (places,), [(room + 1,)])
    return p.make(mv.Slice((0,), (room,), (1,)), (found,), [dim])


def _scanned(p: Padder, op: Scan, v: Value, xs: Sequence[int]) -> int:
    dims = p.dims[xs[0]]
    for x in xs[1:]:
        for one, other in zip(dims, p.dims[x], strict=True):
            same(one, other)
    # Nothing is added, and what there was is kept.
    xs = [p.masked(x, (op.dim,), k) for k, x in enumerate(xs)]
    return p.make(op, xs, dims)


def _sorted(p: Padder, op: ArgSort, v: Value, xs: Sequence[int]) -> int:
    (x,) = xs
    dims = [*p.dims[x]]
    own = dims[op.dim]
    whole = size_of(own, p.graph)
    if not from_first(own):
        raise Refused
    # Behind all others: equal ones keep their order, and NaN counts as the largest.
    dtype = p.values[x].dtype
    last = nothing(rd.Max if op.descending else rd.Min, dtype)
    if dtype.is_floating_point and not op.descending:
        last = math.nan
    y = p.masked(x, (op.dim,), last)
    if op.count == whole:
        return p.make(ArgSort(op.dim, op.descending, room_of(own)), (y,), dims)
    dim = p.dim(op.dim, op.count)
    if room_of(dim) <= room_of(own) and from_first(dim):
        dims[op.dim] = dim
        return p.make(ArgSort(op.dim, op.descending, room_of(dim)), (y,), dims)
    found = p.make(ArgSort(op.dim, op.descending, room_of(own)), (y,), dims)
    return p.taken(found, op.dim, p.along([dim], 0), dim)


_RULES: dict[type, Rule] = {
    mv.Full: _constant,
    mv.Iota: _positions,
    RandomBits: _random,
    mv.Reshape: _reshaped,
    mv.Permute: _permuted,
    mv.Expand: _expanded,
    mv.Slice: _sliced,
    mv.Insert: _inserted,
    mv.Cat: _joined,
    mv.Flip: _flipped,
    rd.Reduction: _reduced,
    Matmul: _product_of,
    Take: _take,
    ScatterAdd: _scattered,
    LastPosition: _last,
    Scan: _scanned,
    ArgSort: _sorted,
    **IMAGES,
    **RECURRENT,
}


def padded(graph: Graph, varying: Varying) -> Padded | None:
    """``graph`` with room for what varies; None if something that depends on it has no rule."""
    first = _padded(graph, varying, latest=False)
    return _padded(graph, varying, latest=True) if first is None else first


def _padded(graph: Graph, varying: Varying, *, latest: bool) -> Padded | None:
    products: dict[int, Dim] = {}
    try:
        while True:
            try:
                return Padder(graph, varying, products, _RULES, latest=latest).run()
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
