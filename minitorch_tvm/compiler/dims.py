"""Dimensions of what is computed with room: products of sizes, of which some vary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..ir.graph import Graph


class Refused(Exception):
    """There is no rule for something that varies."""


class IsProduct(Exception):
    """A size that varies turns out to be a product of others."""

    def __init__(self, extent: Extent, dim: Dim) -> None:
        super().__init__(extent, dim)
        self.extent, self.dim = extent, dim


class Extent(NamedTuple):
    """A size that varies: that of an axis of a value, and how much room there is for it."""

    value: int
    axis: int
    room: int

    def size(self, graph: Graph) -> int:
        """What it is in a graph."""
        return graph.values[self.value].shape[self.axis]


Dim = tuple["int | Extent", ...]
"""What a dimension is the product of, in row-major order."""

ONE: Dim = (1,)


def varies(dim: Dim) -> bool:
    """Whether there is a size that varies in it."""
    return any(isinstance(atom, Extent) for atom in dim)


def product(atoms: Iterable[int | Extent]) -> Dim:
    """The dimension that these make, in one form."""
    found: list[int | Extent] = []
    for atom in atoms:
        if isinstance(atom, int) and found and isinstance(found[-1], int):
            found[-1] *= atom
        elif atom != 1:
            found.append(atom)
    return tuple(found) or ONE


def size_of(dim: Dim, graph: Graph) -> int:
    """How many elements it has in a graph."""
    return math.prod(a.size(graph) if isinstance(a, Extent) else a for a in dim)


def room_of(dim: Dim) -> int:
    """How many there is room for."""
    return math.prod(a.room if isinstance(a, Extent) else a for a in dim)


def as_corner(dims: Sequence[Dim]) -> Sequence[Dim]:
    """The same elements in dimensions of which each has the original's as its first ones."""
    if all(map(from_first, dims)):
        return dims
    return [(atom,) for dim in dims for atom in dim]


def from_first(dim: Dim) -> bool:
    """Whether the first elements are the original's: positions are what they were."""
    return not any(isinstance(atom, Extent) for atom in dim[1:])


def same(a: Dim, b: Dim) -> None:
    """Refuses two dimensions that are used as one, but not known to be."""
    if a == b:
        return
    for one, other in ((a, b), (b, a)):
        if len(one) == 1 and isinstance(one[0], Extent) and len(other) > 1:
            raise IsProduct(one[0], other)
    raise Refused


def together(several: Sequence[Sequence[Dim]]) -> list[Dim]:
    """Dimensions of what is broadcast; those that are not of one element must be the same."""
    rank = max(map(len, several))
    dims = [ONE] * rank
    for own in several:
        for axis, dim in enumerate(own, rank - len(own)):
            if dim != ONE and dims[axis] != ONE:
                same(dims[axis], dim)
            elif dim != ONE:
                dims[axis] = dim
    return dims


def factors(dims: Sequence[Dim], axis: int) -> list[Dim]:
    """The factors of the dimension ``axis``, where others of one element are."""
    before, behind = [ONE] * axis, [ONE] * (len(dims) - axis - 1)
    return [*before, *((atom,) for atom in dims[axis]), *behind]
