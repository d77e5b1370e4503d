"""Times of kernels, as the entry of a program measures them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def measured() -> Iterator[None]:
    lazy.clear_cache()
    with config.override(profile=True):
        yield
    lazy.clear_cache()


def _model() -> tuple[mt.nn.Module, mt.Tensor, mt.Tensor]:
    mt.manual_seed(0)
    model = mt.nn.Sequential(mt.nn.Linear(96, 512), mt.nn.ReLU(), mt.nn.Linear(512, 10))
    rng = np.random.default_rng(4)
    x = mt.tensor(rng.standard_normal((300, 96)).astype(np.float32))
    return model, x, mt.tensor(rng.integers(0, 10, 300))


def _train(steps: int) -> list[bytes]:
    model, x, y = _model()
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        mt.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [p.detach().numpy().tobytes() for p in model.parameters()]


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("threads", [None, 1])
def test_kernels_share_the_time_of_a_program(poison: bool, threads: int | None) -> None:
    with config.override(num_threads=threads, poison=poison):
        _train(1)
        mt.debug.profile(reset=True)
        start = time.perf_counter()
        _train(9)
        elapsed = time.perf_counter() - start
    found = max(mt.debug.profile(), key=lambda p: len(p.kernels))
    assert found.calls == 9
    assert repr(found).endswith("9 calls>")  # a list of them is no book
    assert len(repr(found)) < 200
    assert 0 < found.seconds * found.calls < elapsed
    # Each kernel of the program once, alone or with its neighbours, and none without time.
    kernels = [k for each in found.kernels for k in each.kernels]
    assert sorted(map(id, kernels)) == sorted(map(id, found.program.kernels))
    assert all(each.seconds > 0 for each in found.kernels)
    assert 0 <= found.waiting < 1
    assert sum(each.flops for each in found.kernels) == sum(k.flops for k in kernels) > 0


def test_long_kernels_take_long() -> None:
    """3000 terms for each element of a sum."""
    shapes = (300, 3000), (3000, 300), (300, 300)
    a, b, c = (mt.tensor(RNG.standard_normal(s).astype(np.float32)) for s in shapes)

    def five_calls() -> Any:
        for _ in range(5):
            mt.eval(a @ b, c + 1)
        (found,) = mt.debug.profile(reset=True)
        return found

    # The quietest of some, as another program may take a core for longer than the product does.
    found = min((five_calls() for _ in range(8)), key=lambda found: found.seconds)
    by_rule = {each.kernels[0].rule: each.seconds for each in found.kernels}
    assert by_rule["product"] > 30 * by_rule["elementwise"]
    lines = str(found).splitlines()
    assert "5 calls of" in lines[0]
    assert lines[1].split()[:4] == ["kernel", "rule", "us", "share"]
    assert lines[2].split()[0] == "matmul"
    assert Path(__file__).name in lines[2]


def test_who_measures_gets_the_same_bits() -> None:
    measured_bits = _train(3)
    with config.override(profile=False):
        lazy.clear_cache()
        assert _train(3) == measured_bits
        assert mt.debug.profile() == []


def test_programs_that_measure_are_not_kept_on_disk(tmp_path: Path) -> None:
    before = EVENTS.get("disk_writes")
    with config.override(cache_dir=str(tmp_path), check=False):
        mt.eval(mt.ones(40) * 3)
    assert EVENTS.get("disk_writes") == before
    assert list(tmp_path.iterdir()) == []
    (found,) = mt.debug.profile()
    assert (found.calls, found.threads) == (1, 1)
    assert mt.debug.profile(reset=True)
    assert mt.debug.profile() == []
