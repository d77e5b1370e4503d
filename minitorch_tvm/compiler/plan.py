"""Give every intermediate a place in one arena.

A value is alive from the kernel that writes it to the last kernel that reads it.  Places are chosen
greedily, largest value first, at the lowest offset that is free during the value's whole life
(best-fit by size, as in Pisarchyk and Lee, "Efficient memory management for deep neural net
inference", 2020).  The lower bound of any plan is the largest sum of sizes alive at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    alive = [0] * max(kernels, 1)
    for r in requests:
        for k in range(r.first, r.last + 1):
            alive[k] += r.nbytes
    placed: list[Placement] = []
    end = 0
    for r in sorted(requests, key=lambda r: (-r.nbytes, r.first, r.value)):
        offset = end if not reuse else _lowest_gap(placed, r)
        placed.append(Placement(r.value, offset, r.nbytes, r.first, r.last))
        end = max(end, offset + r.nbytes)
    return Plan(tuple(placed), end, naive, max(alive))


def _lowest_gap(placed: Sequence[Placement], r: Request) -> int:
    """Smallest gap between ranges alive together with ``r`` that holds it (else the end)."""
    busy = sorted(
        (p.offset, p.offset + p.nbytes)
        for p in placed
        if p.first <= r.last and r.first <= p.last and p.nbytes
    )
    best: tuple[int, int] | None = None
    at = 0
    for low, high in busy:
        if low - at >= r.nbytes and (best is None or low - at < best[0]):
            best = (low - at, at)
        at = max(at, high)
    return at if best is None else best[1]


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
