"""The models that are measured (``tests/benchmarks``): what is planned and compiled for them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planned import PlannedError

import minitorch_tvm as mt

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ROWS = ("logreg", "mlp-32", "mlp-100", "mlp-1000", "mlp-wide", "lenet", "resnet", "gpt", "lstm")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("_rows")


def _step(rows: Any, name: str) -> tuple[Any, Any]:
    program = importlib.import_module("_program")
    row = rows.ROWS[name]
    model = program.model(mt, row, rows.weights(row))
    return program.training_step(*program.parts(mt, row, model)), row


def test_all_are_here(rows: Any) -> None:
    assert sorted(rows.ROWS) == sorted(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_arena_is_near_the_lower_bound(rows: Any, name: str, planned: list[Any]) -> None:
    step, row = _step(rows, name)
    (x, y), *_ = rows.batches(row, count=1)
    with pytest.raises(PlannedError):
        step(mt.from_numpy(x), mt.from_numpy(y)).item()
    program = planned[-1]
    assert 0 < program.lower_bound <= program.arena_bytes <= 1.05 * program.lower_bound
    assert program.arena_bytes < program.naive_bytes


@pytest.mark.parametrize("name", ["mlp-32", "lenet"])
def test_steps_have_a_loss(rows: Any, name: str) -> None:
    step, row = _step(rows, name)
    (x, y), *_ = rows.batches(row, count=1)
    assert np.isfinite(step(mt.from_numpy(x), mt.from_numpy(y)).item())


@pytest.mark.parametrize("mebibytes", [1 / 8, 4])
def test_the_copy_that_is_measured_reads_memory_of_its_own(rows: Any, mebibytes: float) -> None:
    """Memory never written to is one page, again and again, which stays in the caches."""
    probe = importlib.import_module("_peak").copy_peak(mebibytes)
    source, target = probe.kernel._arrays[1:]
    assert source.all()
    target.fill(0)
    assert probe.run() > 0
    assert target.all()
