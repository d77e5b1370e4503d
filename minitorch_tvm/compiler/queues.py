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
    pointer_buffer,
    seq,
    serial,
    store,
    var,
    when,
)

# int32 words of a queue: two cache lines, because lines are fetched in pairs.
_WORDS = 32
QUEUE_BYTES = 4 * _WORDS
# Position of the next tile, behind the largest mutex of the systems that have one (64 bytes).
_NEXT = 16


class Queues:
    """The queues of a program: one per step and worker."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.memory = pointer_buffer((1 << 24, _WORDS), "int32", "queues")

    def _first(self, tiles: Expr, worker: Expr) -> Expr:
        """First tile that a worker owns; the last worker's successor owns none."""
        share, rest = tiles // self.workers, tiles % self.workers
        return worker * share + minimum(worker, rest)

    def _lock(self, function: str, queue: Expr, *arguments: Expr) -> Any:
        address = tvm().tirx.address_of(load(self.memory, queue, 0))
        return tvm().tirx.call_extern("int32", f"pthread_mutex_{function}", address, *arguments)

    def fill(self, step: Expr, tiles: Expr) -> Stmt:
        """What is done for a step before the threads start."""

        def one(worker: Expr) -> Stmt:
            queue = step * self.workers + worker
            return seq(
                tvm().tirx.Evaluate(self._lock("init", queue, const(0, "uint64"))),
                store(self.memory, self._first(tiles, worker), queue, _NEXT),
            )

        return serial(self.workers, one, "worker")

    def run(self, step: Expr, tiles: Expr, workers: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
        """Run ``body(tile)`` once for every tile of a step.

        ``workers`` is their number as LLVM does not know it: it would copy ``body`` for each.
        """
        t = tvm().tirx
        worker = var("worker")
        tile, more = (local_buffer((1,), "int32", name) for name in ("tile", "more"))

        def from_queue(distance: Expr) -> Stmt:
            owner = (worker + distance) % self.workers
            queue = owner + step * self.workers
            spin = t.While(self._lock("trylock", queue) != 0, t.Evaluate(const(0)))
            take = seq(
                spin,
                store(tile, load(self.memory, queue, _NEXT), 0),
                store(self.memory, load(tile, 0) + 1, queue, _NEXT),
                t.Evaluate(self._lock("unlock", queue)),
                when(
                    load(tile, 0) < self._first(tiles, owner + 1),
                    body(load(tile, 0)),
                    store(more, const(0), 0),
                ),
            )
            return seq(store(more, const(1), 0), t.While(load(more, 0) != 0, take))

        everything = seq(alloc(tile), alloc(more), serial(workers, from_queue, "d"))
        # A parallel loop over workers gives each thread its own, or several if threads are fewer.
        return t.For(worker, const(0), const(self.workers), t.ForKind.PARALLEL, everything)

    def barrier(self) -> Stmt:
        """Wait for all threads."""
        t = tvm().tirx
        worker = var("worker")
        nothing = t.For(worker, const(0), const(1), t.ForKind.PARALLEL, t.Evaluate(const(0)))
        # As an attribute, not an annotation: only TVM's block lowering translates those.
        return t.AttrStmt(worker, "pragma_parallel_barrier_when_finish", const(1), nothing)
