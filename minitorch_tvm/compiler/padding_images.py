"""Rules of :mod:`.padding` for convolutions and pooling.

Along an image what varies has zeros behind it, as its border has, or what no maximum is.  A result
has as much room as the windows of the larger image make.  Of those the first ones are the
original's, and others must not reach what gradients are added to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..core.shape import Shape
from ..ir.graph import Value
from ..ir.op import Op
from ..ops import conv as cv
from ..ops import reduction as rd
from ..ops.pool import BackToInput, MaxPoolGrad, Pair, PoolBase, PoolGather, SumPool, pooled_size
from .dims import Dim, Refused, from_first, room_of, same, size_of, varies
from .padder import Padder, Rule, nothing

_IMAGE = (2, 3)  # the axes of height and width


def _rooms(dims: Sequence[Dim]) -> Pair:
    """Of height and width."""
    height, width = (dims[axis] for axis in _IMAGE)
    if not (from_first(height) and from_first(width)):
        raise Refused
    return room_of(height), room_of(width)


def _results(p: Padder, v: Value, rooms: Shape) -> list[Dim]:
    """Height and width of the value at hand, if there is as much room as others tell."""
    return [
        p.whole(p.at, axis, v.shape[axis], room)
        if (p.at, axis) in p.varying.sizes
        else (v.shape[axis],)
        for axis, room in zip(_IMAGE, rooms, strict=True)
    ]


def _windows(op: cv.ConvBase, kernel: Shape, image: Shape) -> Shape:
    """Height and width of what a convolution makes of an image."""
    return pooled_size(image, kernel, op.stride, op.padding, op.dilation, False)


def _image(
    p: Padder, v: Value, fits: Callable[[int, int], bool], room: Callable[[int], int]
) -> list[Dim]:
    """Height and width of the value at hand: what ``fits``, by number of the axis and room.

    If nothing does that is known, there is ``room``.
    """
    dims: list[Dim] = []
    for k, axis in enumerate(_IMAGE):
        size = v.shape[axis]
        if (p.at, axis) not in p.varying.sizes:
            dims.append((size,))
            continue
        known = [e for e in p.of_size(size) if fits(k, e.room)]
        dims.append((known[0],) if known else p.whole(p.at, axis, size, room(k)))
    return dims


def _convolved(p: Padder, op: cv.Conv2d, v: Value, xs: Sequence[int]) -> int:
    x, w = (p.dims[i] for i in xs)
    _rooms(x)
    if any(map(varies, (x[1], *w))):
        raise Refused
    image = p.masked(xs[0], _IMAGE, 0)
    rooms = p.inferred(op, [p.values[i].spec for i in (image, xs[1])]).shape[2:]
    return p.make(op, (image, xs[1]), [x[0], w[0], *_results(p, v, rooms)])


def _convolved_back(p: Padder, op: cv.ConvGradInput, v: Value, xs: Sequence[int]) -> int:
    ct, w = (p.dims[i] for i in xs)
    if any(map(varies, (ct[1], *w))):
        raise Refused
    kernel, rooms = p.values[xs[1]].shape[2:], _rooms(ct)

    def fits(k: int, room: int) -> bool:
        return _windows(op, kernel, (room, room))[k] == rooms[k]

    def larger(k: int) -> int:
        more = rooms[k] - size_of(ct[_IMAGE[k]], p.graph)
        return op.size[k] + more * op.stride[k]

    dims = [ct[0], (v.shape[1],), *_image(p, v, fits, larger)]
    size = _rooms(dims)
    if _windows(op, kernel, size) != rooms:
        raise Refused
    # What windows of the room make would reach into the image.
    given = p.masked(xs[0], _IMAGE, 0)
    return p.make(replace(op, size=size), (given, xs[1]), dims)


def _weights(p: Padder, op: cv.ConvGradWeight, v: Value, xs: Sequence[int]) -> int:
    x, ct = (p.dims[i] for i in xs)
    same(x[0], ct[0])
    if varies(x[1]) or varies(ct[1]):
        raise Refused
    if _windows(op, op.kernel, _rooms(x)) != _rooms(ct):
        raise Refused
    # Both: 0 times what is not a number is not 0.
    terms = [p.masked(i, (0, *_IMAGE), 0) for i in xs]
    return p.make(op, terms, [(n,) for n in v.shape])


def _pooled_rooms(op: PoolBase, sizes: Shape, rooms: Shape) -> Pair:
    """How many windows there are in an image that has room."""
    window = (op.kernel, op.stride, op.padding, op.dilation)
    for ceil_mode in (False, True):
        if pooled_size(sizes, *window, ceil_mode) == op.out:
            height, width = pooled_size(rooms, *window, ceil_mode)
            return height, width
    if sizes == rooms:
        return op.out
    raise Refused


def _sizes(p: Padder, dims: Sequence[Dim]) -> Shape:
    return tuple(size_of(dims[axis], p.graph) for axis in _IMAGE)


def _pooled(p: Padder, op: PoolBase, v: Value, xs: Sequence[int]) -> int:
    x = p.dims[xs[0]]
    rooms = _pooled_rooms(op, _sizes(p, x), _rooms(x))
    fill = 0 if isinstance(op, SumPool) else nothing(rd.Max, p.values[xs[0]].dtype)
    image = p.masked(xs[0], _IMAGE, fill)
    made = replace(op, out=rooms)
    return p.make(made, (image,), [*x[:2], *_results(p, v, rooms)])


def _picked(p: Padder, op: PoolGather, v: Value, xs: Sequence[int]) -> int:
    x, where = (p.dims[i] for i in xs)
    rooms = _rooms(where)
    if x[:2] != where[:2] or rooms != _pooled_rooms(op, _sizes(p, x), _rooms(x)):
        raise Refused
    return p.make(replace(op, out=rooms), xs, where)


def _pooled_back(p: Padder, op: BackToInput, v: Value, xs: Sequence[int]) -> int:
    ct = p.dims[xs[0]]
    out = _rooms(ct)

    def fits(k: int, room: int) -> bool:
        rooms = [*op.size]
        rooms[k] = room
        return _pooled_rooms(op, op.size, tuple(rooms))[k] == out[k]

    dims = [*ct[:2], *_image(p, v, fits, lambda k: 0)]
    wanted = dims if isinstance(op, MaxPoolGrad) else ct
    for x in xs[1:]:
        for one, other in zip(p.dims[x], wanted, strict=True):
            same(one, other)
    rooms = _rooms(dims)
    if out != _pooled_rooms(op, op.size, rooms):
        raise Refused
    made = replace(op, out=out, size=rooms)
    if isinstance(made, MaxPoolGrad) and not made.halves(rooms):
        raise Refused
    # What windows of the room give would reach into the image.
    given = p.masked(xs[0], _IMAGE, 0)
    return p.make(made, (given, *xs[1:]), dims)


IMAGES: dict[type[Op], Rule] = {
    cv.Conv2d: _convolved,
    cv.ConvGradInput: _convolved_back,
    cv.ConvGradWeight: _weights,
    PoolGather: _picked,
    BackToInput: _pooled_back,
    PoolBase: _pooled,
}
