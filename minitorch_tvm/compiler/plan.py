"""Give every intermediate a place in one arena.

A value is alive from the kernel that writes it to the last kernel that reads it.  Places are chosen
greedily, what needs much for long first, in the smallest gap that is free during the value's whole
life (best fit, as in Pisarchyk and Lee, "Efficient memory management for deep neural net
inference", 2020); large values where threads find lines of their own (:mod:`.homes`).  The lower
bound of any plan is the largest sum of sizes alive at once.  If places take more than is enough,
what lies on top takes its turn earlier, and all are chosen again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from ..core.record import record
from ..ir.kernel import FusedGraph
from ..ir.program import Placement
from .homes import Homes, Offsets

ALIGNMENT = 64
# As much of the lower bound may be used, so that lines are reused by who used them last.
_SPACE = 1.05
# How often places are looked for, from each of two orders on; less often for many values.
_TRIES, _TRIED = 8, 600


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
    outputs = set(graph.outputs)
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
        tried.append(_tried(requests, lower_bound, lambda: None))
    found = min(tried, key=_end)
    return Plan(tuple(found), _end(found), naive, lower_bound)


def _placement(r: Request, offset: int) -> Placement:
    return Placement(r.value, offset, r.nbytes, r.first, r.last)


def _end(placements: Sequence[Placement]) -> int:
    return max((p.offset + p.nbytes for p in placements), default=0)


class _Ranges:
    """Everything placed so far."""

    def __init__(self, count: int) -> None:
        self.placements: list[Placement] = []
        self._all = np.zeros((4, count), np.int64)  # first kernel, last kernel, offset, end

    def add(self, r: Request, offset: int) -> None:
        self._all[:, len(self.placements)] = r.first, r.last, offset, offset + r.nbytes
        self.placements.append(_placement(r, offset))

    def gaps(self, r: Request) -> tuple[Offsets, Offsets]:
        """Where gaps between what is alive together with ``r`` begin, and where all but the last
        end."""
        first, last, low, high = self._all[:, : len(self.placements)]
        busy = np.flatnonzero((first <= r.last) & (last >= r.first) & (high > low))
        busy = busy[np.argsort(low[busy], kind="stable")]
        return np.concatenate([[0], np.maximum.accumulate(high[busy])]), low[busy]


def _tried(
    requests: Sequence[Request], enough: int, homes: Callable[[], Homes | None]
) -> list[Placement]:
    """Places that take no more than ``enough`` bytes, or the least of those tried.

    What lies on top takes its turn earlier the next time.
    """
    best: list[Placement] = []
    for key in (_area, _size):
        order = sorted(requests, key=key)
        for _ in range(min(_TRIES, 1 + _TRIED // (len(order) + 1))):
            found = _placed(order, homes())
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


def _placed(order: Sequence[Request], homes: Homes | None) -> list[Placement]:
    """Places in the smallest gaps, or of large values where most of their lines are at home."""
    ranges, end = _Ranges(len(order)), 0
    for r in order:
        low, high = ranges.gaps(r)
        # Beyond all that lives at the same time, too, if others are there.
        high = np.append(high, max(end, low[-1] + r.nbytes)) - r.nbytes
        fits = np.flatnonzero(low <= high)
        if len(fits) > 1 and low[-1] + r.nbytes > end:
            fits = fits[:-1]
        low, high = low[fits], high[fits]
        if homes is None or not homes.keeps(r.nbytes):
            offset = int(low[np.argmin(high - low)])
        else:
            offset = homes.best(r.nbytes, low, high)
            homes.settle(r.nbytes, offset)
        ranges.add(r, offset)
        end = max(end, offset + r.nbytes)
    return ranges.placements


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
