"""Tiles are computed once each, and those of a thread that is held up are taken by the others."""

from __future__ import annotations

import numpy as np
import pytest
from linked import Linked

from minitorch_tvm.compiler.assemble import Place
from minitorch_tvm.compiler.loops import (
    Expr,
    Memory,
    Stmt,
    load,
    parallel_stage,
    pointer_buffer,
    seq,
    store,
    when,
)
from minitorch_tvm.core.tvm_api import tvm
from minitorch_tvm.runtime import pool


def _run(stages: list[object], memories: list[Memory], arrays: list[np.ndarray], n: int) -> None:
    """Run a program of the stages with ``n`` workers."""

    def place(buffer: object) -> Place:
        return Place([m.same_as(buffer) for m in memories].index(True))

    Linked(stages, place, n)(arrays)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("tiles", [1, 2, 7, 64])
def test_every_tile_runs_once(tiles: int, workers: int) -> None:
    counts = pointer_buffer((tiles,), "int32", "counts")
    stage = parallel_stage("count", tiles, lambda t: store(counts, load(counts, t) + 1, t))
    seen = np.zeros(64, np.int32)
    _run([stage, stage, stage], [counts], [seen], workers)
    assert seen[:tiles].tolist() == [3] * tiles
    assert not seen[tiles:].any()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stages", [1, 200])
def test_many_stages_and_many_functions(stages: int, workers: int) -> None:
    counts = pointer_buffer((4,), "int32", "counts")

    def add(amount: int) -> object:
        return parallel_stage("add", 4, lambda t: store(counts, load(counts, t) + amount, t))

    amounts = [n % 11 for n in range(stages)]
    made = [add(n) for n in range(11)]
    seen = np.zeros(4, np.int32)
    _run([made[n] for n in amounts], [counts], [seen], workers)
    assert seen.tolist() == [sum(amounts)] * 4


@pytest.mark.parametrize("workers", [1, 2])
def test_stages_of_one_tile_are_one_step_and_keep_their_order(workers: int) -> None:
    memory = pointer_buffer((4,), "int32", "memory")
    stages = [
        parallel_stage("times", 1, lambda t, n=n: store(memory, load(memory, t) * 10 + n, t))
        for n in range(1, 6)
    ]
    seen = np.zeros(4, np.int32)
    _run(stages, [memory], [seen], workers)
    assert seen.tolist() == [12345, 0, 0, 0]


@pytest.mark.skipif(pool.get_num_threads() < 2, reason="one core")
def test_tiles_of_a_waiting_thread_are_taken_by_the_other() -> None:
    threads = pointer_buffer((16,), "int64", "threads")

    def body(tile: Expr) -> Stmt:
        t = tvm().tirx
        wait = t.Evaluate(t.call_extern("int32", "usleep", 200_000))
        here = store(threads, t.call_extern("int64", "pthread_self"), tile)
        return seq(when(tile == 0, wait), here)

    ran = np.zeros(16, np.int64)
    _run([parallel_stage("wait", 16, body)], [threads], [ran], 2)
    assert ran.all()
    # The waiting thread owned the first eight.
    assert (ran[1:8] != ran[0]).all()
