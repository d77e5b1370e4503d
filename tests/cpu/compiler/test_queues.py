"""Stages whose threads take tiles themselves: every tile once, the start once per thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linked import Linked

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import api, plan
from minitorch_tvm.compiler.assemble import Place
from minitorch_tvm.compiler.loops import (
    alloc,
    const,
    load,
    local_buffer,
    pointer_buffer,
    seq,
    serial,
    store,
    when,
)
from minitorch_tvm.compiler.queues import stage_with_start
from minitorch_tvm.core import config
from minitorch_tvm.core.tvm_api import global_func

TILES = 1000


def counting_stage(tiles: int) -> tuple[Any, list[Any]]:
    """What a stage does to three rows of counters, each a cache line apart.

    Starts and ends are counted under the tile that a thread starts with, tiles under their number;
    a number that ``start`` leaves in local memory must outlive all tiles of the thread.
    """
    starts, seen, ends = (pointer_buffer((TILES, 16), "int32", name) for name in ("s", "t", "e"))
    first = local_buffer((1,), "int32", "first")
    kept = local_buffer((1,), "int32", "kept")

    def add(memory: Any, at: Any) -> Any:
        return store(memory, load(memory, at, 0) + 1, at, 0)

    def body(tile: Any) -> Any:
        note = store(first, tile, 0)
        known = load(first, 0) < 0
        begin = when(known, seq(note, add(starts, tile)))
        return seq(begin, add(seen, tile), store(kept, load(kept, 0) + 1, 0))

    around = (
        seq(alloc(first), alloc(kept), store(first, const(-1), 0), store(kept, const(0), 0)),
        store(ends, load(kept, 0), load(first, 0), 0),
    )
    return stage_with_start("count", tiles, around, body), [starts, seen, ends]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("tiles", [2, 3, 10, TILES])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_tile_is_taken_once(workers: int, tiles: int, threads: int) -> None:
    stage, memories = counting_stage(tiles)

    def place(buffer: Any) -> Place:
        return Place([m.same_as(buffer) for m in memories].index(True))

    arrays = [np.zeros((TILES, 16), np.int32) for _ in memories]
    linked = Linked([stage], place, workers)
    configure = global_func("runtime.config_threadpool")
    configure(1, threads)
    try:
        for _ in range(20):
            for a in arrays:
                a[...] = 0
            linked(arrays)
            starts, seen, ends = (a[:, 0] for a in arrays)
            np.testing.assert_array_equal(seen[:tiles], 1)
            assert not seen[tiles:].any()
            # One start per worker that found a tile; what each did between start and end is all.
            assert 1 <= starts.sum() <= min(workers, tiles)
            assert ends.sum() == tiles
            np.testing.assert_array_equal(ends > 0, starts > 0)
    finally:
        configure(1, 2)


def test_a_tile_may_have_memory_that_is_large_for_a_stack() -> None:
    result = pointer_buffer((TILES, 16), "int32", "result")
    large = local_buffer((20_000,), "int32", "large")

    def body(tile: Any) -> Any:
        filled = serial(20_000, lambda i: store(large, tile + i, i))
        return seq(alloc(large), filled, store(result, load(large, tile), tile, 0))

    stage = stage_with_start("large", TILES, ([], []), body)
    array = np.zeros((TILES, 16), np.int32)
    Linked([stage], lambda _: Place(0), 2)([array])
    np.testing.assert_array_equal(array[:, 0], 2 * np.arange(TILES))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_far_apart_are_copied_to_memory_of_a_tile(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((32, 1540), (770, 2)))
    found = (mt.from_numpy(a)[:, ::2] @ mt.from_numpy(b)).numpy()
    np.testing.assert_allclose(found, a[:, ::2].astype("f8") @ b, rtol=1e-4, atol=1e-4)


def test_memory_is_planned_for_those_who_take_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []
    places = plan.plan

    def watched(requests: Any, kernels: int, reuse: bool, workers: int) -> plan.Plan:
        planned.append(workers)
        return places(requests, kernels, reuse, workers)

    monkeypatch.setattr(plan, "plan", watched)
    for workers in (1, 3):
        monkeypatch.setattr(api, "usable_cores", lambda workers=workers: workers)
        lazy.clear_cache()
        with config.override(cache_dir=None):
            x = mt.ones(64, 64)
            assert ((x @ x).softmax(1) @ x)[0, 0].item() == pytest.approx(1)
    lazy.clear_cache()
    assert planned == [1, 3]
