"""Give every intermediate a place in one arena.

A value is alive from the kernel that writes it to the last kernel that reads it.  Places are chosen
greedily, what needs much for long first, in the smallest gap that is free during the value's whole
life (best fit, as in Pisarchyk and Lee, "Efficient memory management for deep neural net
inference", 2020); large values where threads find lines of their own (:mod:`.homes`).  The lower
bound of any plan is the largest sum of sizes alive at once.  If places take more than is enough,
what lies on top takes its turn earlier, and all are chosen again.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from ..core.record import record
from ..ir.kernel import FusedGraph
from ..ir.program import Placement
from .homes import Homes

ALIGNMENT = 64
# As much of the lower bound may be used, so that lines are reused by who used them last.
_SPACE = 1.05


@record
class Request:
    """A range of bytes needed from kernel ``first`` to kernel ``last`` (inclusive)."""

    value: int  # graph value, or -1 for scratch of a kernel
    nbytes: int
    first: int
    last: int


@record
class Plan:
    """Offsets of all requests and what they add up to."""

    placements: tuple[Placement, ...]
    arena_bytes: int
    naive_bytes: int
    lower_bound: int


def rounded(nbytes: int) -> int:
    """``nbytes`` rounded up to the alignment of the arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def lifetimes(fused: FusedGraph) -> list[Request]:
    """Intermediate values (not inputs, not outputs) and the kernels they span."""
    graph = fused.graph
    outputs = {fused.root(o) for o in graph.outputs}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, kernel in enumerate(fused.kernels):
        for s in kernel.stores:
            first[s] = last[s] = k
        for r in kernel.reads:
            root = fused.root(r)
            if root in last:
                last[root] = k
    return [
        Request(v, rounded(graph.values[v].nbytes), first[v], last[v])
        for v in first
        if v not in outputs
    ]


def plan(requests: Sequence[Request], kernels: int, reuse: bool = True, workers: int = 1) -> Plan:
    """Place all requests; with ``reuse`` off nothing shares bytes (``MTVM_PLAN=0``).

    Where several ``workers`` compute and a little more memory than needed allows it, lines are
    reused by who used them last (:mod:`.homes`).
    """
    naive = sum(r.nbytes for r in requests)
    change = [0] * (max(kernels, 1) + 1)
    for r in requests:
        change[r.first] += r.nbytes
        change[r.last + 1] -= r.nbytes
    lower_bound = max(itertools.accumulate(change))
    if not reuse:
        offsets = itertools.accumulate((r.nbytes for r in requests), initial=0)
        return Plan(tuple(map(_placement, requests, offsets)), naive, naive, lower_bound)
    enough = int(_SPACE * lower_bound)
    tried, largest = [], max((r.nbytes for r in requests), default=0)
    if Homes(enough, workers).keeps(largest):
        tried.append(_tried(requests, enough, lambda: Homes(enough, workers)))
    if not tried or _end(tried[0]) > enough:
        spared = min(lower_bound // 20, _SPARED) if len(requests) > _MANY else 0
        tried.append(_tried(requests, lower_bound + spared, lambda: None))
    found = min(tried, key=_end)
    return Plan(tuple(found), _end(found), naive, lower_bound)


def _placement(r: Request, offset: int) -> Placement:
    return Placement(r.value, offset, r.nbytes, r.first, r.last)


def _end(placements: Sequence[Placement]) -> int:
    return max((p.offset + p.nbytes for p in placements), default=0)


Gaps = list[tuple[int, int]]
"""Where a gap begins, and the last place in it where a value fits."""


class _Few:
    """Everything placed so far, in the order of offsets; of many, :class:`_Many` is faster."""

    def __init__(self) -> None:
        self._all: list[tuple[int, int, int, int]] = []  # offset, end, first kernel, last kernel

    def add(self, r: Request, offset: int) -> None:
        """Place a request."""
        if r.nbytes:
            bisect.insort(self._all, (offset, offset + r.nbytes, r.first, r.last))

    def gaps(self, r: Request) -> Gaps:
        """Those between what is alive together with ``r`` that have room for it; the last is behind
        all of it, and ends where it begins."""
        found, free, n = [], 0, r.nbytes
        for low, high, first, last in self._all:
            if first <= r.last and last >= r.first:
                if low - free >= n:
                    found.append((free, low - n))
                free = max(free, high)
        return [*found, (free, free)]


class _Many:
    """The same, with arrays."""

    def __init__(self, count: int) -> None:
        self._all, self._count = np.zeros((4, count), np.int64), 0

    def add(self, r: Request, offset: int) -> None:
        self._all[:, self._count] = r.first, r.last, offset, offset + r.nbytes
        self._count += 1

    def gaps(self, r: Request) -> Gaps:
        first, last, low, high = self._all[:, : self._count]
        busy = np.flatnonzero((first <= r.last) & (last >= r.first) & (high > low))
        busy = busy[np.argsort(low[busy], kind="stable")]
        free, ends = np.concatenate([[0], np.maximum.accumulate(high[busy])]), low[busy] - r.nbytes
        fits = np.flatnonzero(free[:-1] <= ends)
        end = int(free[-1])
        return [*zip(free[fits].tolist(), ends[fits].tolist(), strict=True), (end, end)]


def _tried(
    requests: Sequence[Request], enough: int, homes: Callable[[], Homes | None]
) -> list[Placement]:
    """Places that take no more than ``enough`` bytes, or the least of those tried.

    What lies on top takes its turn earlier the next time.
    """
    best: list[Placement] = []
    few = len(requests) <= _MANY
    for key, tries in _ORDERS.items():
        order = sorted(requests, key=key)
        for _ in range(min(tries, 1 + _TRIED // (len(order) + 1))):
            found = _placed(order, homes(), _Few() if few else _Many(len(order)))
            if not best or _end(found) < _end(best):
                best = found
            if _end(found) <= enough:
                return found
            top = max(range(len(found)), key=lambda i: found[i].offset + found[i].nbytes)
            order.insert(top // 2, order.pop(top))
    return best


def _area(r: Request) -> tuple[int, int, int]:
    """Much and for long comes first."""
    return -r.nbytes * (r.last - r.first + 1), r.first, r.value


def _size(r: Request) -> tuple[int, int, int]:
    return -r.nbytes, r.first, r.value


def _start(r: Request) -> tuple[int, int, int]:
    """In the order of time; where little things stay long, such as a mask, the best beginning."""
    return r.first, -r.nbytes, r.value


# How often places are looked for, from each of some orders on; less often for many values.
_ORDERS, _TRIED = {_area: 8, _size: 8, _start: 24}, 1500
_MANY, _SPARED = 300, 1 << 16
"""Values, and bytes that it is not worth looking for other places of so many to save."""


def _placed(order: Sequence[Request], homes: Homes | None, placed: _Few | _Many) -> list[Placement]:
    """Places in the smallest gaps, or of large values where most of their lines are at home."""
    placements, end = [], 0
    for r in order:
        *gaps, (last, _) = placed.gaps(r)
        # Beyond all that lives at the same time, too, if others are there.
        if not gaps or last + r.nbytes <= end:
            gaps.append((last, max(end - r.nbytes, last)))
        if homes is None or not homes.keeps(r.nbytes):
            offset = min(gaps, key=lambda gap: gap[1] - gap[0])[0]
        else:
            low, high = np.array(gaps, np.int64).T
            offset = homes.best(r.nbytes, low, high)
            homes.settle(r.nbytes, offset)
        placed.add(r, offset)
        placements.append(_placement(r, offset))
        end = max(end, offset + r.nbytes)
    return placements


def verify(found: Plan) -> None:
    """Raise AssertionError if two ranges that are alive together overlap."""
    for i, a in enumerate(found.placements):
        if a.offset % ALIGNMENT or a.offset + a.nbytes > found.arena_bytes:
            raise AssertionError(f"value {a.value} is misplaced at {a.offset}")
        for b in found.placements[i + 1 :]:
            together = a.first <= b.last and b.first <= a.last
            overlap = a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
            if together and overlap:
                raise AssertionError(f"values {a.value} and {b.value} overlap while both alive")
