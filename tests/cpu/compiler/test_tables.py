"""The entry calls stages through a table of their addresses, whatever they take."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from linked import Linked

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import native
from minitorch_tvm.compiler.assemble import Place
from minitorch_tvm.compiler.loops import Stage, load, number, parallel_stage, pointer_buffer, store
from minitorch_tvm.compiler.steps import MOST_POINTERS

TILES = 8


@pytest.mark.parametrize("told", [0, 5])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("most", [3, MOST_POINTERS + 3])
def test_stages_of_any_number_of_pointers(most: int, workers: int, told: int) -> None:
    """One stage of each number, the last of them the first; ``told`` takes a pointer, too."""
    buffers = [pointer_buffer((TILES,), "float32", f"b{i}") for i in range(2 * most)]
    sources, results = buffers[:most], buffers[most:]

    def stage(reads: int) -> Stage:
        def body(t: Any) -> Any:
            total: Any = load(sources[0], t)
            for i, source in enumerate(sources[1:reads], 2):
                total = total + load(source, t) * float(i)
            if told:
                total = total + number(told + reads).astype("float32")
            return store(results[reads - 1], total, t)

        return parallel_stage("weighted", TILES, body)

    arrays = [np.arange(TILES, dtype=np.float32) + i for i in range(most)]
    arrays += [np.zeros(TILES, np.float32) for _ in range(most)]

    def place(buffer: Any) -> Place:
        return Place([m.same_as(buffer) for m in buffers].index(True), nbytes=4 * TILES)

    Linked([stage(reads) for reads in range(most, 0, -1)], place, workers)(arrays)
    for reads in range(1, most + 1):
        want = sum(array * (i + 1) for i, array in enumerate(arrays[:reads]))
        np.testing.assert_array_equal(arrays[most + reads - 1], want + (told and told + reads))


@pytest.mark.parametrize("inputs", range(MOST_POINTERS - 2, MOST_POINTERS + 3))
def test_programs_of_wide_kernels(inputs: int) -> None:
    def chain(rows: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(inputs)
        values = rng.standard_normal((inputs, rows, 5)).astype(np.float32)
        x = mt.tensor(values[0])
        want = values[0].astype(np.float64)
        for value in values[1:]:
            x, want = x * 0.5 + mt.tensor(value), want * 0.5 + value
        return x.numpy(), want

    for rows in (3, 4):  # the second program calls functions of the first
        found, want = chain(rows)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_later_programs_compile_nothing_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[list[str]] = []
    make = native.Build._make

    def watched(self: native.Build, piece: native.Piece, level: int) -> None:
        modules.append(list(piece.functions))
        make(self, piece, level)

    lazy.clear_cache()
    x = np.ones((40, 30), np.float32)
    first = (mt.tensor(x) * 3.0).sum(0).numpy()
    monkeypatch.setattr(native.Build, "_make", watched)
    second = (mt.tensor(x[:20]) * 3.0).sum(0).numpy()
    np.testing.assert_array_equal(first, np.full(30, 120.0))
    np.testing.assert_array_equal(second, np.full(30, 60.0))
    assert modules == []


@pytest.mark.parametrize(("rows", "entries"), [(0, 0), (3, 1), (3000, 1)])
def test_a_first_program_compiles_one_entry(
    rows: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That for as many threads as it has, known or not while its stages are still to be made."""
    made: list[object] = []
    monkeypatch.setattr(native.Build, "entry", _counted(native.Build.entry, made))
    lazy.clear_cache()
    gc.collect()
    x = np.ones((rows, 30), np.float32)
    np.testing.assert_array_equal((mt.tensor(x) * 3.0 + 1.0).numpy(), x * 4)
    assert len(made) == entries


def _counted(function: Callable[..., Any], calls: list[object]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return function(*arguments)

    return counted
