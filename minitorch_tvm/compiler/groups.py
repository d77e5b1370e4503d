"""Kernels in the making: groups of values, and which waits for which."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ..core.record import record
from ..ir.graph import Graph
from ..ir.kernel import Rows

LARGEST = 256  # values in a kernel: the time of TVM's passes and LLVM's is worse than linear in it


@record(frozen=False)
class Group:
    """Values that become one kernel."""

    anchor: int | None
    shape: tuple[int, ...]
    members: list[int]
    length: int  # values computed, the inlined ones included
    rows: Rows | None = None
    turned: bool = False  # the last member is stored in another order of dimensions: nobody joins


class Grouping:
    """Groups of a graph's values."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = graph.values
        self.group_of: dict[int, int] = {}
        self.groups: list[Group] = []
        self.alias: dict[int, int] = {}
        self.depends: list[set[int]] = []  # group -> groups it reads (direct)

    def root(self, v: int) -> int:
        """The value whose memory ``v`` is."""
        return self.alias.get(v, v)

    def stored(self, v: int) -> bool:
        """True if ``v`` can be read from memory (a leaf, an alias, or a member of a group)."""
        return self.values[v].is_leaf or v in self.group_of or v in self.alias

    def first(self) -> list[int]:
        """The earliest member of each group."""
        return [min(g.members) for g in self.groups]


def order(depends: Sequence[set[int]], first: Sequence[int]) -> list[int] | None:
    """Topological order of the groups, earliest recorded first; None if there is a cycle."""
    waiting = [len(d) for d in depends]
    readers: list[list[int]] = [[] for _ in depends]
    for g, sources in enumerate(depends):
        for source in sources:
            readers[source].append(g)
    ready = [(first[g], g) for g, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    done: list[int] = []
    while ready:
        _, g = heapq.heappop(ready)
        done.append(g)
        for other in readers[g]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (first[other], other))
    return done if len(done) == len(depends) else None
