"""What the programs in ``tests/benchmarks`` make of the answers of their sides."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def _module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    return _module("_measure", monkeypatch)


def test_loss_curves_differ_by_their_largest_relative_difference(measure: Any) -> None:
    assert measure.apart([2.0, 1.0], [2.0, 1.0]) == 0
    assert measure.apart([2.0, 1.1, 1.0], [2.0, 1.0, 1.0]) == pytest.approx(0.1)
    assert measure.apart([0.01], [0.0]) == pytest.approx(0.1)  # small losses: absolutely


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_loss_that_is_no_number_makes_a_curve_void(measure: Any, bad: float, at: int) -> None:
    good = [3.0, 2.0, 1.0]
    curve = [*good[:at], bad, *good[at + 1 :]]
    assert measure.apart(curve, good) == math.inf
    assert measure.apart(good, curve) == math.inf
    assert measure.apart(curve, curve) == math.inf


def test_curves_of_different_lengths_are_void(measure: Any) -> None:
    assert measure.apart([1.0], [1.0, 2.0]) == math.inf


def test_results_agree_up_to_rounding(measure: Any) -> None:
    assert measure.digests_agree([1.0, 100.0], [1.01, 100.0], 1e-3)
    assert not measure.digests_agree([1.0, 100.0], [1.2, 100.0], 1e-3)
    for bad in (math.nan, math.inf):
        assert not measure.digests_agree([0.0, bad], [0.0, 2.0], 1e-3)
        assert not measure.digests_agree([0.0, 2.0], [0.0, bad], 1e-3)
        assert not measure.digests_agree([bad, bad], [bad, bad], 1e-3)


def test_a_bound_is_the_larger_of_arithmetic_and_memory(measure: Any) -> None:
    answers = [
        {"flops": {"wide": f, "narrow": 1.0}, "copy": {"100": 50.0, "1000": 20.0}, "launch": 1.0}
        for f in (90.0, 100.0, 110.0)
    ]
    limits = measure.Limits(answers)
    assert limits.flops == 100.0
    assert [limits.bandwidth(n) for n in (10, 100, 101, 5000)] == [50.0, 50.0, 20.0, 20.0]
    assert limits.bound([(1000.0, 10.0), (10.0, 1000.0)]) == pytest.approx(10.0 + 50.0)
    line = measure.describe([limits.summary(), limits.summary()])
    assert "wide 1e-07, narrow 1e-09" in line


@pytest.mark.parametrize(
    ("what", "rows", "words"),
    [
        ("train", ["mlp-32", "nope"], "train has no row nope: expected logreg"),
        ("infer", ["resnet"], "infer has no row resnet: expected mlp-100, lenet, gpt"),
        ("scaling", ["mlp-32"], "scaling has no row mlp-32: expected "),
        ("epoch", ["mlp-32"], "epoch has no row mlp-32: it takes no rows"),
        ("kernels", ["matmul", "nope"], "no name begins with nope"),
        ("train", [], ""),
        ("native", ["conv-weight"], ""),
        ("determinism", ["gpt"], ""),
    ],
)
def test_rows_that_a_command_does_not_have(
    what: str, rows: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _module("compare", monkeypatch).refusal(what, rows)
    assert found.startswith(words)
    assert bool(found) == bool(words)


@pytest.mark.parametrize("arguments", [["train", "--turns", "0"], ["train", "--rows", "nope"]])
def test_bad_command_lines_end_before_anything_is_measured(arguments: list[str]) -> None:
    command = [sys.executable, str(BENCHMARKS / "compare.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "error: " in done.stderr.splitlines()[-1]


def test_products_and_convolutions_that_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(_module("_cases", monkeypatch).cases())
    assert sum(n.startswith("matmul-") for n in names) == 30 * 4
    assert sum(n.startswith("conv") for n in names) == 20 * 3


def test_a_loop_that_computes_something_else_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = _module("_loops", monkeypatch)
    of_torch = {"first": [3.0], "later": [2.0, 4.0, 2.0], "error": 0.0}
    ours = {"first": [9.0], "later": [1.0, 1.0, 2.0], "error": 1e-5}
    results = {"graph, torch": of_torch, "graph, ours": ours}
    assert list(loops.lines(results)) == [
        ["graph", "3", "2 (2 to 4)", "9", "1 (1 to 2)", "2.00"],
    ]
    ours["error"] = 0.01
    assert list(loops.lines(results)) == [
        ["graph", "3", "2 (2 to 4)", "void", "void", "losses differ by 1.0e-02"],
    ]
