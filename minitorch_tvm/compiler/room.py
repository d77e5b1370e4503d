"""What a graph with room (:mod:`.padding`) is made of, and which other graphs it can compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from ..core.shape import Shape, contiguous_strides
from ..ir.graph import Graph
from ..ir.node import BUFFER
from ..ir.op import Op
from ..ops.movement import Full, Insert, Slice
from .dims import Dim, Extent, as_corner, size_of, varies

Number = float | int | bool
Told = Callable[[Graph], Number]
"""What the program is told, of the graph that it runs."""


class Varying(NamedTuple):
    """What is different in graphs of one structure."""

    sizes: Mapping[tuple[int, int], tuple[int, int]]
    """Of (value, axis) the least and the largest size."""
    values: Set[int]
    """Constants of other values."""
    starts: Set[tuple[int, int]]
    """Where slices and insertions begin, or their steps: (value, axis)."""
    room: Callable[[int, int], int]
    """Of a size and the largest one: how much room there is to be for it."""

    def room_for(self, value: int, axis: int, graph: Graph) -> int:
        """For a size of a graph; 0: it does not vary."""
        known = self.sizes.get((value, axis))
        return 0 if known is None else self.room(graph.values[value].shape[axis], known[1])


class Padded:
    """A graph with room, made of one of some graphs that it can be told to compute."""

    def __init__(
        self,
        source: Graph,
        varying: Varying,
        dims: list[tuple[Dim, ...]],
        graph: Graph,
        outputs: list[tuple[Dim, ...]],
        told: list[Told | None],
    ) -> None:
        self.graph = graph
        self._outputs = outputs
        self._ends = source.outputs, source.donated
        # More may vary later, which this one is not told.
        self._values, self._starts = frozenset(varying.values), frozenset(varying.starts)
        self._told = told
        forms = {d: k for k, d in enumerate({d: 0 for d in dims if any(map(varies, d))})}
        self._forms = [*forms]
        self._given = [*map(as_corner, forms)]
        self._source = [(v, forms.get(d, -1)) for v, d in zip(source.values, dims, strict=True)]
        self._extents = sorted(
            {atom for d in forms for dim in d for atom in dim if isinstance(atom, Extent)}
        )

    def serves(self, graph: Graph, varying: Varying, *, loose: bool) -> bool:
        """Whether a graph of the same structure would become this one, with other numbers.

        ``loose``: or something smaller, if no size has more than twice the room it should have.
        """
        if (graph.outputs, graph.donated) != self._ends:
            return False
        for extent in self._extents:
            room = varying.room_for(extent.value, extent.axis, graph)
            if extent.size(graph) > extent.room or not room:
                return False
            if room != extent.room and not (loose and extent.room <= 2 * room):
                return False
        shapes = [tuple(size_of(d, graph) for d in form) for form in self._forms]
        for i, (v, (own, form)) in enumerate(zip(graph.values, self._source, strict=True)):
            if v.shape != (own.shape if form < 0 else shapes[form]):
                return False
            if v.op is not own.op and not self._alike(i, v.op, own.op):
                return False
        return True

    def _alike(self, i: int, a: Op, b: Op) -> bool:
        """Whether the rules for two ops do the same, if their results have the same dimensions."""
        if type(a) is not type(b):
            return False
        other = a.attributes()
        for name, value in b.attributes().items():
            if name in _SIZES or repr(other[name]) == repr(value):  # 0.0 equals -0.0
                continue
            if name == "value" and i in self._values:
                continue
            if not isinstance(a, (Slice, Insert)) or name not in ("starts", "steps"):
                return False
            pairs = zip(getattr(a, name), getattr(b, name), strict=True)
            if any(m != n and (i, axis) not in self._starts for axis, (m, n) in enumerate(pairs)):
                return False
        return True

    def inputs(self, graph: Graph) -> list[Shape]:
        """The shape in which each buffer of ``graph`` is the corner of that of the program."""
        return [
            tuple(size_of(d, graph) for d in self._given[form]) if form >= 0 else v.shape
            for v, (own, form) in zip(graph.values, self._source, strict=True)
            if own.op is BUFFER
        ]

    def results(self, graph: Graph) -> list[Shape]:
        """The shape in which each output of ``graph`` is the corner of that of the program."""
        return [tuple(size_of(d, graph) for d in dims) for dims in self._outputs]

    def numbers(self, graph: Graph) -> list[Number | None]:
        """Of each scalar of the program its value; None: the next one of those of ``graph``."""
        return [None if told is None else told(graph) for told in self._told]


# Attributes that the shape of the result tells.
_SIZES = ("shape", "size", "count", "stops", "out")


# What programs are told of the value ``i``.


def start_of(i: int, axis: int, graph: Graph) -> int:
    """Where a slice or an insertion begins."""
    return _region(i, graph).starts[axis]


def step_of(i: int, axis: int, graph: Graph) -> int:
    """How far it is from one of its elements to the next."""
    return _region(i, graph).steps[axis]


def _region(i: int, graph: Graph) -> Slice | Insert:
    op = graph.values[i].op
    assert isinstance(op, (Slice, Insert))
    return op


def constant_of(i: int, graph: Graph) -> Number:
    """Its elements."""
    op = graph.values[i].op
    assert isinstance(op, Full)
    return op.value


def stride_of(i: int, axis: int, graph: Graph) -> int:
    """How many elements an index along the axis counts for."""
    return contiguous_strides(graph.values[i].shape)[axis]


def length_of(i: int, axis: int, graph: Graph) -> int:
    """Its size."""
    return graph.values[i].shape[axis]


def lengths_of(several: Sequence[int], axis: int, graph: Graph) -> int:
    """Of several values together."""
    return sum(graph.values[i].shape[axis] for i in several)


def last_of(i: int, axis: int, graph: Graph) -> int:
    """The position of the last element."""
    return graph.values[i].shape[axis] - 1
