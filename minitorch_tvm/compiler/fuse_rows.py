"""Merge kernels that work row by row: softmax, losses and norms become one kernel each.

Fusion's first pass makes every reduction a kernel and every elementwise value that must be stored
another.  Those that reduce the same dimensions of the same shape, and the elementwise ones between
and behind them, can be computed row by row, if whatever they read of each other belongs to the same
row.  A row is then read from memory once and stays in the caches.  Kernels merge along what they
read, in execution order, unless something else would have to run between them.
"""

from __future__ import annotations

from bisect import bisect_right

from ..core.shape import numel
from ..ir.kernel import Place, Rows
from ..ops import reduction as rd
from .groups import LARGEST, Group, Grouping, order
from .rowspace import place_of, sources

_FEW = 16
"""Rows there must be, lest the threads run out of them."""

_SMALL = 8192
"""Elements that one thread may just as well work on alone."""


class _Merger:
    def __init__(self, grouping: Grouping, row_bytes: int) -> None:
        self.g = grouping
        self.row_bytes = row_bytes
        ordered = order(grouping.depends, grouping.first())
        assert ordered is not None, "fusion made a cycle"
        self.ordered = ordered
        self.position = {g: i for i, g in enumerate(ordered)}
        self.cluster = list(range(len(ordered)))  # group -> its cluster, named after one of them
        self.groups = {g: [g] for g in ordered}  # by cluster
        self.rows: dict[int, Rows | None] = {}  # by cluster; None: fits any space of its shape
        self.readers: dict[tuple[Rows, int, Place], list[int]] = {}  # of what lies there in rows
        # Disjoint ranges of positions that clusters cover, those of several clusters, if need be.
        self.spans: list[tuple[int, int]] = []
        donated = {grouping.graph.outputs[out] for out, _ in grouping.graph.donated}
        for g in ordered:
            group = grouping.groups[g]
            if donated.isdisjoint(group.members):  # others could overwrite what rows still read
                self._classify(g, group)

    def _classify(self, g: int, group: Group) -> None:
        if group.anchor is None:
            self.rows[g] = None
            return
        value = self.g.values[group.anchor]
        if not isinstance(value.op, rd.Reduction):
            return
        x = self.g.values[value.inputs[0]]
        reduced = tuple(d for d in value.op.dims if x.shape[d] != 1)
        kept = [d for d, n in enumerate(x.shape) if n != 1 and d not in reduced]
        if not reduced or numel(x.shape) == 0 or any(d > reduced[-1] for d in kept):
            return
        rows = Rows(x.shape, reduced)
        enough = rows.count >= _FEW or numel(x.shape) <= _SMALL
        if enough and rows.length * x.dtype.itemsize <= self.row_bytes:
            self.rows[g] = rows

    # --- the pass -------------------------------------------------------------------------

    def run(self) -> None:
        for g in self.ordered:
            if g in self.rows:
                self._join(g)
        for g in self.ordered:
            if self._only_reduces(self.cluster[g]):
                self._beside(g)

    def _join(self, g: int) -> None:
        """Merge ``g`` with the kernels it reads, as far as possible."""
        latest = sorted(self.g.depends[g], key=lambda h: -self.position[h])
        producers = list(dict.fromkeys(self.cluster[h] for h in latest))
        producers = [c for c in producers if c in self.rows]
        own = self.rows[g]
        spaces = [own] if own else list(dict.fromkeys(r for c in producers if (r := self.rows[c])))
        for space in spaces:
            joined = [g]
            for c in producers:
                if self.rows[c] in (None, space) and self._fits([*joined, c], space):
                    joined.append(c)
            if len(joined) > 1:
                self._merge(joined, space)
                return

    def _only_reduces(self, cluster: int) -> bool:
        """Whether all that it stores is a reduction's."""
        parts = self.groups[cluster]
        return cluster in self.rows and all(self.g.groups[h].anchor is not None for h in parts)

    def _beside(self, g: int) -> None:
        """Merge ``g`` with kernels that only reduce the same rows of something, too.

        Rows that are stored are large kernels, which gain little by having another's in them.
        """
        space = self.rows[self.cluster[g]]
        assert space is not None
        for v, place in self._large(g, space):
            readers = self.readers.setdefault((space, v, place), [])
            for h in readers:
                own, other = self.cluster[g], self.cluster[h]
                if own != other and self._fits([own, other], space):
                    self._merge([own, other], space)
            readers.append(g)

    def _large(self, g: int, space: Rows) -> list[tuple[int, Place]]:
        """What a group reads from memory that is as large as all rows, and where it lies there."""
        anchor = self.g.groups[g].anchor
        assert anchor is not None
        place = place_of(self.g.values[anchor].shape, space)
        assert place is not None
        found: list[tuple[int, Place]] = []
        seen: set[tuple[int, Place]] = set()
        stack = [(anchor, place)]
        while stack:
            v, place = stack.pop()
            read = sources(self.g.graph, v, place, space)
            for x, at in zip(self.g.values[v].inputs, read, strict=True):
                if at is None or (x, at) in seen:
                    continue
                seen.add((x, at))
                if not self.g.stored(x):
                    stack.append((x, at))
                elif numel(self.g.values[x].shape) == numel(space.shape):
                    found.append((x, at))
        return found

    def _merge(self, clusters: list[int], space: Rows) -> None:
        name, *others = clusters
        for c in others:
            self.groups[name] += self.groups.pop(c)
            del self.rows[c]
        self.rows[name] = space
        for g in self.groups[name]:
            self.cluster[g] = name
        at = [self.position[g] for g in self.groups[name]]
        low, high = min(at), max(at)
        while self.spans and self.spans[-1][1] >= low:
            a, b = self.spans.pop()
            low, high = min(a, low), max(b, high)
        self.spans.append((low, high))

    def _fits(self, clusters: list[int], space: Rows) -> bool:
        groups = [g for c in clusters for g in self.groups[c]]
        if sum(self.g.groups[g].length for g in groups) > LARGEST:
            return False
        return self.places(groups, space) is not None and not self._detour(set(clusters))

    def places(self, groups: list[int], space: Rows) -> dict[int, Place] | None:
        """Where the members lie; None if something is read outside of its row."""
        found: dict[int, Place] = {}
        for g in groups:
            for m in self.g.groups[g].members:
                place = place_of(self.g.values[m].shape, space)
                if place is None:
                    return None
                found[m] = place
        seen: set[tuple[int, Place | None]] = set()
        stack: list[tuple[int, Place | None]] = list(found.items())
        members = set(found)
        while stack:
            v, place = stack.pop()
            if place is None:
                read: list[Place | None] = [None] * len(self.g.values[v].inputs)
            elif isinstance(self.g.values[v].op, rd.Reduction) and space.spread(place):
                return None
            else:
                read = sources(self.g.graph, v, place, space)
            for item in zip(self.g.values[v].inputs, read, strict=True):
                x, at = item
                if item in seen:
                    continue
                seen.add(item)
                if x in members:
                    if at != found[x]:
                        return None
                elif not self.g.stored(x) or (x in self.g.alias and self.g.root(x) in members):
                    stack.append(item)
        return found

    def _detour(self, clusters: set[int]) -> bool:
        """True if another kernel reads what these compute, and computes what these read."""
        low = self._low(min(self.position[g] for c in clusters for g in self.groups[c]))
        stack = [h for c in clusters for g in self.groups[c] for h in self.g.depends[g]]
        stack = [c for h in stack if (c := self.cluster[h]) not in clusters]
        seen: set[int] = set()
        while stack:
            c = stack.pop()
            if c in clusters:
                return True
            if c in seen or max(self.position[g] for g in self.groups[c]) < low:
                continue
            seen.add(c)
            stack += {self.cluster[h] for g in self.groups[c] for h in self.g.depends[g]} - {c}
        return False

    def _low(self, position: int) -> int:
        """A position before which no cluster is that depends on anything from ``position`` on.

        Groups read earlier groups only; through a cluster, a way may lead back to its last one.
        """
        i = bisect_right(self.spans, (position, len(self.ordered))) - 1
        return self.spans[i][0] if i >= 0 and self.spans[i][1] >= position else position


def merge_rows(grouping: Grouping, row_bytes: int) -> None:
    """Merge the groups that work on the same rows of at most ``row_bytes``."""
    merger = _Merger(grouping, row_bytes)
    merger.run()
    old = grouping.groups
    groups: list[Group] = []
    number: dict[int, int] = {}
    for c, parts in sorted(merger.groups.items(), key=lambda item: min(item[1])):
        for g in parts:
            number[g] = len(groups)
        if len(parts) == 1:
            groups.append(old[c])
            continue
        space = merger.rows[c]
        assert space is not None
        places = merger.places(parts, space)
        assert places is not None
        groups.append(
            Group(
                None,
                space.shape,
                sorted(places),
                sum(old[g].length for g in parts),
                Rows(space.shape, space.reduced, places),
            )
        )
    depends: list[set[int]] = [set() for _ in groups]
    for g, read in enumerate(grouping.depends):
        depends[number[g]] |= {number[h] for h in read} - {number[g]}
    grouping.groups, grouping.depends = groups, depends
    grouping.group_of = {v: number[g] for v, g in grouping.group_of.items()}
