"""A fused group of values: what becomes one kernel."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import field, replace
from functools import cached_property

from ..core.record import record
from ..core.shape import Shape, numel
from .graph import Graph

Place = tuple[int, ...]
"""For each dimension of a value, the dimension of a row space it runs along; -1: size one."""


@record
class Rows:
    """A space of elements, cut into rows.

    ``shape`` is that of all elements; a row is what ``reduced`` dimensions (none of size one) span,
    the last of them innermost in memory.  ``places`` says where in the space each member of the
    kernel lies: over all elements, or one per row.  ``hidden``, if any: of matrices whose
    lines are the rows, what right of the diagonal is known to be in members over all elements that
    are stored; nothing else there takes part in a result.
    """

    shape: Shape
    reduced: tuple[int, ...]
    places: dict[int, Place] = field(default_factory=dict, compare=False)
    hidden: tuple[tuple[int, float], ...] = ()

    @property
    def kept(self) -> tuple[int, ...]:
        """Dimensions that number the rows."""
        return tuple(d for d, n in enumerate(self.shape) if n != 1 and d not in self.reduced)

    @property
    def count(self) -> int:
        """Number of rows."""
        return numel(tuple(self.shape[d] for d in self.kept))

    @property
    def length(self) -> int:
        """Elements of a row."""
        return numel(tuple(self.shape[d] for d in self.reduced))

    def spread(self, place: Place) -> bool:
        """True for a value with an element per element of the space, False for one per row."""
        return any(d in self.reduced for d in place)


@record
class Kernel:
    """Values computed together.

    ``anchor`` is the reduction, product or convolution of the group (None: elementwise).
    ``members`` are the values computed once per output element, in order, the anchor among them;
    ``inlined`` values are recomputed where they are read; ``reads`` come from memory; ``stores``
    go to it.  With ``rows`` the kernel goes through them one by one: any of its members may be
    reductions along rows, whose results others read.
    """

    anchor: int | None
    members: tuple[int, ...]
    inlined: tuple[int, ...]
    reads: tuple[int, ...]
    stores: tuple[int, ...]
    rows: Rows | None = None

    def name(self, graph: Graph) -> str:
        """A readable name: the ops computed here."""
        names = [graph.values[m].op.name.lower() for m in self.members]
        if self.anchor is None and self.rows is None:
            names = [graph.values[i].op.name.lower() for i in self.inlined] + names
        return "_".join(names[:4]) + ("_etc" if len(names) > 4 else "")


@record
class FusedGraph:
    """Kernels in execution order.

    ``alias`` maps a reshape that is never computed to the value whose memory it is; ``in_place``
    maps an output's position to the leaf it overwrites.
    """

    graph: Graph
    kernels: tuple[Kernel, ...]
    alias: dict[int, int]
    in_place: dict[int, int]

    def root(self, value: int) -> int:
        """The value whose memory ``value`` is."""
        return self.alias.get(value, value)

    def without(self, unread: Set[int]) -> FusedGraph:
        """The same kernels, which do not store the values ``unread``: only their own need them."""
        if not unread:
            return self
        assert not unread & self.read
        kernels = tuple(
            replace(k, stores=tuple(s for s in k.stores if s not in unread)) for k in self.kernels
        )
        return replace(self, kernels=kernels)

    @cached_property
    def read(self) -> frozenset[int]:
        """The values whose memory kernels read."""
        return frozenset(self.root(r) for k in self.kernels for r in k.reads)

    def __str__(self) -> str:
        lines = []
        for k, kernel in enumerate(self.kernels):
            reads = ", ".join(f"%{r}" for r in kernel.reads)
            stores = ", ".join(f"%{s}" for s in kernel.stores)
            lines.append(f"k{k} {kernel.name(self.graph)}({reads}) -> {stores}")
        lines += [f"%{a} is the memory of %{r}" for a, r in self.alias.items()]
        lines += [f"out{o} overwrites %{s}" for o, s in self.in_place.items()]
        return "\n".join(lines)
