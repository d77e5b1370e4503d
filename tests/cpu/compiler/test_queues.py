"""Tiles are computed once each, and those of a thread that is held up are taken by the others."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from minitorch_tvm.compiler import native, target
from minitorch_tvm.compiler.assemble import ENTRY, Place, StageCall, assemble
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
from minitorch_tvm.runtime.native import link


def _run(stages: list[object], memories: list[Memory], arrays: list[np.ndarray], n: int) -> str:
    """Run a program of the stages with ``n`` workers; returns its LLVM IR."""

    def place(buffer: object) -> Place:
        return Place([m.same_as(buffer) for m in memories].index(True))

    module, _ = assemble([StageCall(s, place) for s in stages], len(memories), n)
    executable = native.compile_module(module, target.host())
    entry = link(native.object_code(executable), entry=ENTRY)
    table = np.array([a.ctypes.data for a in arrays], np.uint64)
    entry(ctypes.c_void_p(table.ctypes.data))
    return str(executable.mod.inspect_source("ll"))


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("tiles", [1, 2, 7, 64])
def test_every_tile_runs_once(tiles: int, workers: int) -> None:
    counts = pointer_buffer((tiles,), "int32", "counts")
    stage = parallel_stage("count", tiles, lambda t: store(counts, load(counts, t) + 1, t))
    seen = np.zeros(64, np.int32)
    _run([stage, stage, stage], [counts], [seen], workers)
    assert seen[:tiles].tolist() == [3] * tiles
    assert not seen[tiles:].any()


@pytest.mark.parametrize(("stages", "pooled"), [(2, False), (200, True)])
def test_many_queues_come_from_the_pool_instead_of_the_stack(stages: int, pooled: bool) -> None:
    # 200 stages of two workers: 51 kB, more than a thread with a small stack may have.
    counts = pointer_buffer((4,), "int32", "counts")
    stage = parallel_stage("count", 4, lambda t: store(counts, load(counts, t) + 1, t))
    seen = np.zeros(4, np.int32)
    text = _run([stage] * stages, [counts], [seen], 2)
    assert seen.tolist() == [stages] * 4
    assert ("TVMBackendAllocWorkspace" in text) is pooled


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
