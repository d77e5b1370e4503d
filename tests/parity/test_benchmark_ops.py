"""The single operations that are measured (``tests/benchmarks``) compute what they do in torch."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = importlib.import_module("_ops")
    monkeypatch.setattr(found, "SIZE", (32, 64))
    return found


FAMILIES = (
    *("elementary functions", "arithmetic", "reductions", "along a dimension", "copies"),
    *("positions", "products, distances, losses", "norms, pooling, images"),
)


def test_all_are_here(ops: Any) -> None:
    assert tuple(ops.families()) == FAMILIES
    every = [*ops.families().values(), *ops.decompositions().values()]
    assert sum(map(len, every)) == len(ops.CASES)  # no name twice


def _same(ops: Any, name: str, gradients: bool, tolerance: float) -> None:
    found = [ops.prepared(lib, name, gradients)() for lib in (mt, torch)]
    assert len(found[0]) == len(found[1]), name
    for ours, theirs in zip(*found, strict=True):
        a, b = ours.detach().numpy(), theirs.detach().numpy()
        assert a.shape == b.shape, name
        scale = np.linalg.norm(b.astype(np.float64).ravel())
        off = np.linalg.norm((a.astype(np.float64) - b).ravel())
        assert off <= tolerance * max(scale, 1e-6), (name, gradients)


@pytest.mark.parametrize("family", FAMILIES)
def test_results(family: str, ops: Any) -> None:
    for name, case in ops.families()[family].items():
        for gradients in (False, True)[: 1 + case.gradients]:
            _same(ops, name, gradients, 1e-5)


def test_decompositions(ops: Any) -> None:
    for family in ops.decompositions().values():
        for name in family:
            if name.endswith(("32 x 32", "64 x 64")):
                _same(ops, name, False, 1e-5)
                _same(ops, name, True, ops.ROUNDING)
