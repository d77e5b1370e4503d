"""Give every intermediate a place in one arena.

A value is alive from the kernel that writes it to the last kernel that reads it.  Places are chosen
greedily, largest value first, at the lowest offset that is free during the value's whole life
(best-fit by size, as in Pisarchyk and Lee, "Efficient memory management for deep neural net
inference", 2020).  The lower bound of any plan is the largest sum of sizes alive at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..ir.kernel import FusedGraph
from ..ir.program import Placement

ALIGNMENT = 64


@dataclass(frozen=True)
class Request:
    """A range of bytes needed from kernel ``first`` to kernel ``last`` (inclusive)."""

    value: int  # graph value, or -1 for scratch of a kernel
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
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


def plan(requests: Sequence[Request], kernels: int, reuse: bool = True) -> Plan:
    """Place all requests; with ``reuse`` off nothing shares bytes (``MTVM_PLAN=0``)."""
    naive = sum(r.nbytes for r in requests)
    change = [0] * (max(kernels, 1) + 1)
    for r in requests:
        change[r.first] += r.nbytes
        change[r.last + 1] -= r.nbytes
    placed: list[Placement] = []
    # Of everything placed: first kernel, last kernel, offset, end.
    ranges = np.zeros((4, len(requests)), np.int64)
    end = 0
    for r in sorted(requests, key=lambda r: (-r.nbytes, r.first, r.value)):
        offset = end if not reuse else _lowest_gap(ranges[:, : len(placed)], r)
        ranges[:, len(placed)] = r.first, r.last, offset, offset + r.nbytes
        placed.append(Placement(r.value, offset, r.nbytes, r.first, r.last))
        end = max(end, offset + r.nbytes)
    return Plan(tuple(placed), end, naive, max(itertools.accumulate(change)))


def _lowest_gap(ranges: NDArray[np.int64], r: Request) -> int:
    """Smallest gap between ranges alive together with ``r`` that holds it (else the end)."""
    first, last, low, high = ranges
    busy = np.flatnonzero((first <= r.last) & (last >= r.first) & (high > low))
    if not len(busy):
        return 0
    busy = busy[np.argsort(low[busy], kind="stable")]
    ends = np.concatenate([[0], np.maximum.accumulate(high[busy])])
    gaps = low[busy] - ends[:-1]
    fits = np.flatnonzero(gaps >= r.nbytes)
    # The lowest of the smallest gaps.  A range of no bytes fits everywhere, also between others.
    place = fits[np.argmin(gaps[fits])] if len(fits) else -1
    return int(ends[place])


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
