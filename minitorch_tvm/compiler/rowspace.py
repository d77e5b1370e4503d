"""Where in a space of rows the values of a kernel lie.

Reading a value at a place (:data:`~minitorch_tvm.ir.kernel.Place`) reads its inputs at places that
follow from the op.  This is what tells that a softmax's maximum is read in the row it belongs to,
however often it was reshaped and broadcast on the way.
"""

from __future__ import annotations

from ..core.shape import Shape
from ..ir.graph import Graph
from ..ir.kernel import Place, Rows
from ..ops import movement as mv
from ..ops import reduction as rd


def whole(shape: Shape) -> Place:
    """The place of a value that covers the space."""
    return tuple(-1 if n == 1 else d for d, n in enumerate(shape))


def place_of(shape: Shape, rows: Rows) -> Place | None:
    """The place of a value of ``shape``: over all elements, or one per row; None: neither."""
    sizes = [n for n in shape if n != 1]
    for dims in ([d for d, n in enumerate(rows.shape) if n != 1], list(rows.kept)):
        if sizes == [rows.shape[d] for d in dims]:
            rest = iter(dims)
            return tuple(-1 if n == 1 else next(rest) for n in shape)
    return None


def sources(graph: Graph, v: int, place: Place, rows: Rows) -> list[Place | None]:
    """Places at which the inputs of ``v`` are read if it is read at ``place``.

    None: elsewhere, or no one place.
    """
    value = graph.values[v]
    op = value.op
    shapes = [graph.values[x].shape for x in value.inputs]
    if op.elementwise or isinstance(op, mv.Expand):
        return [_broadcast(place, shape) for shape in shapes]
    if isinstance(op, mv.Permute):
        return [tuple(place[d] for d in op.inverse)]
    if isinstance(op, mv.Reshape):
        (shape,) = shapes
        if [n for n in shape if n != 1] == [n for n in value.shape if n != 1]:
            rest = iter(p for p, n in zip(place, value.shape, strict=True) if n != 1)
            return [tuple(-1 if n == 1 else next(rest) for n in shape)]
    if isinstance(op, rd.Reduction) and not rows.spread(place) and shapes[0] == rows.shape:
        return [whole(rows.shape)]
    return [None] * len(shapes)


def _broadcast(place: Place, shape: Shape) -> Place:
    lead = len(place) - len(shape)
    return tuple(-1 if n == 1 else p for p, n in zip(place[lead:], shape, strict=True))
