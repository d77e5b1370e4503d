"""Tiles of a stage, handed to threads while they run.

Every worker owns a contiguous range of a stage's tiles, so that what it reads twice stays in its
own caches, and takes the next tile of its range under a lock.  A worker whose range is empty goes
on with the ranges of the others.  Cores that share their arithmetic units with other programs
differ in speed from one millisecond to the next; with ranges fixed beforehand the slowest would
set the pace of all, a sixth of the time of a large product.

Which thread computes a tile has no influence on its values.  TVM's IR has no atomic operations, so
the lock is a ``pthread_mutex_t``: some 20 ns for a tile of at least as many microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.tvm_api import tvm
from .loops import (
    Expr,
    Stmt,
    alloc,
    const,
    load,
    local_buffer,
    minimum,
    seq,
    serial,
    store,
    var,
    when,
)

# int32 words of a queue: two cache lines, because lines are fetched in pairs.
_WORDS = 32
# Position of the next tile, behind the largest mutex of the systems that have one (64 bytes).
_NEXT = 16


class Queues:
    """The queues of all stages of one program, in its entry's local memory."""

    def __init__(self, tiles: list[int], workers: int) -> None:
        self.tiles, self.workers = tiles, workers
        self._memory = local_buffer((len(tiles) * workers, _WORDS), "int32", "queues")

    def _first(self, stage: int, worker: Expr) -> Expr:
        """First tile that a worker owns; the last worker's successor owns none."""
        share, rest = divmod(self.tiles[stage], self.workers)
        return worker * share + minimum(worker, rest)

    def _lock(self, function: str, queue: Expr, *arguments: Expr) -> Any:
        address = tvm().tirx.address_of(load(self._memory, queue, 0))
        return tvm().tirx.call_extern("int32", f"pthread_mutex_{function}", address, *arguments)

    def prepare(self) -> Stmt:
        """What the entry does before the threads start."""
        t = tvm().tirx

        def unlock(queue: Expr) -> Stmt:
            return t.Evaluate(self._lock("init", queue, const(0, "uint64")))

        full = [
            store(self._memory, self._first(s, w), s * self.workers + w, _NEXT)
            for s in range(len(self.tiles))
            for w in range(self.workers)
        ]
        count = len(self.tiles) * self.workers
        return seq(alloc(self._memory), serial(count, unlock, "q"), full)

    def run(self, stage: int, body: Callable[[Expr], Stmt], wait: bool) -> Stmt:
        """Run ``body(tile)`` once for every tile of a stage; ``wait`` for all threads after it."""
        t = tvm().tirx
        worker = var("worker")
        tile, more = (local_buffer((1,), "int32", name) for name in ("tile", "more"))

        def from_queue(distance: Expr) -> Stmt:
            owner = (worker + distance) % self.workers
            queue = owner + stage * self.workers
            spin = t.While(self._lock("trylock", queue) != 0, t.Evaluate(const(0)))
            take = seq(
                spin,
                store(tile, load(self._memory, queue, _NEXT), 0),
                store(self._memory, load(tile, 0) + 1, queue, _NEXT),
                t.Evaluate(self._lock("unlock", queue)),
                when(
                    load(tile, 0) < self._first(stage, owner + 1),
                    body(load(tile, 0)),
                    store(more, const(0), 0),
                ),
            )
            return seq(store(more, const(1), 0), t.While(load(more, 0) != 0, take))

        everything = seq(alloc(tile), alloc(more), serial(self.workers, from_queue, "d"))
        # A parallel loop over workers gives each thread its own, or several if threads are fewer.
        loop = t.For(worker, const(0), const(self.workers), t.ForKind.PARALLEL, everything)
        if not wait:
            return loop
        # As an attribute, not an annotation: only TVM's block lowering translates those.
        return t.AttrStmt(worker, "pragma_parallel_barrier_when_finish", const(1), loop)
