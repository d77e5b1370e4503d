"""Tiles of a stage, handed to threads while they run.

Every worker owns a contiguous range of a stage's tiles, so that what it reads twice stays in its
own caches, and takes the next tile of its range under a lock.  A worker whose range is empty goes
on with the ranges of the others.  Cores that share their arithmetic units with other programs
differ in speed from one millisecond to the next; with ranges fixed beforehand the slowest would
set the pace of all, a sixth of the time of a large product.

Which thread computes a tile has no influence on its values.  TVM's IR has no atomic operations, so
the lock is a ``pthread_mutex_t``: some 20 ns for a tile of at least as many microseconds.

A stage whose tiles share what a thread prepares for all of its own takes them itself, in a loop
behind the preparation (:func:`stage_with_start`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.tvm_api import tvm
from .loops import (
    Expr,
    Helper,
    Memory,
    Parts,
    Stage,
    Stmt,
    alloc,
    bind,
    const,
    load,
    local_buffer,
    minimum,
    number,
    pointer_buffer,
    pointer_type,
    seq,
    serial,
    store,
    var,
    when,
)

# int32 words of a queue: two cache lines, because lines are fetched in pairs.
_WORDS = 32
QUEUE_BYTES = 4 * _WORDS
# Words behind the largest mutex of the systems that have one (64 bytes): the next tile, the first
# that its worker owns, the one behind the last, the worker, and how many have one of this step.
_NEXT, _FIRST, _END, _OWNER, _WORKERS = range(16, 21)


def _first(tiles: Expr, workers: Expr, worker: Expr) -> Expr:
    """First tile that a worker owns; the last worker's successor owns none."""
    share, rest = tiles // workers, tiles % workers
    return worker * share + minimum(worker, rest)


def _lock(queue: Expr, function: str, *arguments: Expr) -> Any:
    return tvm().tirx.call_extern("int32", f"pthread_mutex_{function}", queue, *arguments)


def _take(memory: Memory, queue: Expr, tile: Memory) -> Stmt:
    """Take the next tile of a queue, whether its owner has one or not."""
    t = tvm().tirx
    address, know = bind("address", t.address_of(load(memory, queue, 0)))
    return seq(
        know,
        t.While(_lock(address, "trylock") != 0, t.Evaluate(const(0))),
        store(tile, load(memory, queue, _NEXT), 0),
        store(memory, load(tile, 0) + 1, queue, _NEXT),
        t.Evaluate(_lock(address, "unlock")),
    )


class Queues:
    """The queues of a program: one per step and worker."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.memory = pointer_buffer((1 << 24, _WORDS), "int32", "queues")

    def prepare(self, step: Expr, tiles: Expr) -> Stmt:
        """What is done for a step once, before the program runs for the first time."""

        def one(worker: Expr) -> Stmt:
            queue, know = bind("queue", step * self.workers + worker)
            words = {
                _FIRST: _first(tiles, self.workers, worker),
                _END: _first(tiles, self.workers, worker + 1),
                _OWNER: worker,
                _WORKERS: const(self.workers),
            }
            return seq(
                know, [store(self.memory, value, queue, word) for word, value in words.items()]
            )

        return serial(self.workers, one, "worker")

    def fill(self, steps: Expr) -> Stmt:
        """What is done before the threads start, for all steps.

        A process that was forked while a program ran has locks that nobody will open: they are
        made anew every time.
        """

        def one(queue: Expr) -> Stmt:
            address = tvm().tirx.address_of(load(self.memory, queue, 0))
            return seq(
                tvm().tirx.Evaluate(_lock(address, "init", const(0, "uint64"))),
                store(self.memory, load(self.memory, queue, _FIRST), queue, _NEXT),
            )

        return serial(steps * self.workers, one, "queue")

    def run(
        self,
        step: Expr,
        body: Callable[[Expr, Expr], Stmt],
        around: Callable[[Expr, Stmt], Stmt] | None = None,
    ) -> Stmt:
        """Run ``body(tile, address of the worker's queue)`` once for every tile of a step.

        What a worker does is put ``around`` that.
        """
        t = tvm().tirx
        tile, more = (local_buffer((1,), "int32", name) for name in ("tile", "more"))

        def all_of(worker: Expr) -> Stmt:
            first, know_first = bind("first", step * self.workers)
            address = t.reinterpret("uint64", t.address_of(load(self.memory, first + worker, 0)))
            address, know_address = bind("address", address)

            def from_queue(distance: Expr) -> Stmt:
                queue, know = bind("queue", first + (worker + distance) % self.workers)
                take = seq(
                    _take(self.memory, queue, tile),
                    when(
                        load(tile, 0) < load(self.memory, queue, _END),
                        body(load(tile, 0), address),
                        store(more, const(0), 0),
                    ),
                )
                return seq(know, store(more, const(1), 0), t.While(load(more, 0) != 0, take))

            work = serial(self.workers, from_queue, "distance")
            if around is not None:
                work = around(worker, work)
            return seq([know_first, know_address, alloc(tile), alloc(more)], work)

        return self.each(all_of)

    def each(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """Run ``body(worker)`` once by every thread, or several times if threads are fewer."""
        t, worker = tvm().tirx, var("worker")
        return t.For(worker, const(0), const(self.workers), t.ForKind.PARALLEL, body(worker))

    def barrier(self) -> Stmt:
        """Wait for all threads."""
        t = tvm().tirx
        worker = var("worker")
        nothing = t.For(worker, const(0), const(1), t.ForKind.PARALLEL, t.Evaluate(const(0)))
        # As an attribute, not an annotation: only TVM's block lowering translates those.
        return t.AttrStmt(worker, "pragma_parallel_barrier_when_finish", const(1), nothing)


def _take_any() -> Parts:
    t = tvm().tirx
    own = pointer_buffer((1 << 24, _WORDS), "int32", "queue")
    result = pointer_buffer((1,), "int32", "result")
    tile, at, seen = (local_buffer((1,), "int32", name) for name in ("tile", "at", "seen"))
    worker, workers = (load(own, 0, word) for word in (_OWNER, _WORKERS))
    # Queues are numbered from the worker's own, as its address is what there is.
    following = load(at, 0) + 1
    ahead = t.Select(worker + following < workers, following, following - workers)
    body = seq(
        [alloc(memory) for memory in (tile, at, seen)],
        store(at, const(0), 0),
        store(seen, const(0), 0),
        store(result, const(-1), 0),
        t.While(
            t.all(load(result, 0) < 0, load(seen, 0) < workers),
            seq(
                _take(own, load(at, 0), tile),
                when(
                    load(tile, 0) < load(own, load(at, 0), _END),
                    store(result, load(tile, 0), 0),
                    seq(store(at, ahead, 0), store(seen, load(seen, 0) + 1, 0)),
                ),
            ),
        ),
    )
    return Parts([own.raw, result.raw], [], body)


_TAKE_ANY = Helper("take_any", _take_any)


def stage_with_start(
    name: str,
    tiles: int,
    around: tuple[Stmt | Sequence[Stmt], Stmt | Sequence[Stmt]],
    body: Callable[[Expr], Stmt],
) -> Stage:
    """A stage in which every thread that computes tiles does something before its first one.

    ``around`` is that, and what it does after the last; what the first of them declares lives as
    long.
    """
    t = tvm().tirx
    tile, queue = var("tile"), var("queue", "uint64")
    now = local_buffer((1,), "int32", "now")
    pointer = tvm().ir.Call("tirx.reinterpret", [queue], ret_ty=pointer_type("int32"))
    following = load(now, 0) + 1
    more = following < number(tiles, "tiles")
    alone = store(now, t.Select(more, following, const(-1)), 0)
    other = _TAKE_ANY.call(pointer, t.address_of(load(now, 0)))
    # TVM gives large memory that a body declares back where a loop ends, not where a While does.
    once = t.For(var("once"), const(0), const(1), t.ForKind.SERIAL, body(load(now, 0)))
    work = seq(
        alloc(now),
        store(now, tile, 0),
        around[0],
        t.While(
            load(now, 0) >= 0,
            seq(once, when(queue == const(0, "uint64"), alone, other)),
        ),
        around[1],
    )
    return Stage(name, tiles, tile, work, queue=queue)
