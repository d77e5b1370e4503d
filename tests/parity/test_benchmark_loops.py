"""The training loops that are measured (``tests/benchmarks``) compute what they do in torch."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
WAYS = (
    *("autoencoder", "adversarial", "diffusion", "graph", "values", "policies", "translation"),
    *("contrastive", "equation", "tasks", "characters", "rays", "ratings", "clusters", "accuracy"),
)


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("_loops")


def test_all_are_here(loops: Any) -> None:
    assert tuple(loops.MAKERS) == WAYS


@pytest.mark.parametrize("way", WAYS)
def test_losses(way: str, loops: Any) -> None:
    curves = []
    for lib in (mt, torch):
        step = loops.looped(lib, way)
        curves.append([step().item() for _ in range(4)])
    assert np.isfinite(curves[1]).all()
    np.testing.assert_allclose(*curves, rtol=1e-3)
