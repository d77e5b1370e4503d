"""MTVM_POISON and MTVM_VALIDATE notice what they are for, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from programs import Program, programs, run

import minitorch_tvm as mt
from minitorch_tvm import lazy, nn
from minitorch_tvm.compiler import plan
from minitorch_tvm.compiler.plan import Request
from minitorch_tvm.compiler.schedule.cpu.accumulate import Walk
from minitorch_tvm.compiler.schedule.cpu.combine import Combine
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.kernel import FusedGraph
from minitorch_tvm.nn import functional as F
from minitorch_tvm.runtime import memory, validate

# The package exports the rules under the names of their modules.
elementwise_rule = import_module("minitorch_tvm.compiler.schedule.cpu.elementwise")
rows_rule = import_module("minitorch_tvm.compiler.schedule.cpu.rows")

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(60, 30), nn.Sigmoid(), nn.Linear(30, 10)),
        (33, 60),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(36, 10),
        ),
        (5, 1, 6, 6),
    ),
}  # fmt: skip


def train(name: str) -> list[np.ndarray]:
    """Two steps of SGD with momentum: the loss and every parameter."""
    mt.manual_seed(3)
    rng = np.random.default_rng(0)
    build, batch = MODELS[name]
    model = build()
    x = mt.tensor(rng.random(batch, dtype=np.float32))
    y = mt.tensor(rng.integers(0, 10, batch[0]))
    opt = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
    return [loss.detach().numpy(), *(p.detach().numpy() for p in model.parameters())]


@pytest.mark.parametrize("name", MODELS)
def test_models_are_the_same_bits_under_poison(name: str) -> None:
    plain = train(name)
    program = lazy.last_executor().program
    assert program.arena_bytes <= 1.1 * program.lower_bound
    with config.override(poison=True):
        poisoned = train(name)
    for a, b in zip(plain, poisoned, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", MODELS)
def test_poison_notices_a_range_that_is_freed_one_kernel_early(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train(name)
    lifetimes = plan.lifetimes

    def short(fused: FusedGraph) -> list[Request]:
        return [
            Request(r.value, r.nbytes, r.first, max(r.first, r.last - 1)) for r in lifetimes(fused)
        ]

    monkeypatch.setattr(plan, "lifetimes", short)
    lazy.clear_cache()
    with config.override(poison=True):
        poisoned = train(name)
    lazy.clear_cache()
    assert any(not np.array_equal(a, b) for a, b in zip(plain, poisoned, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_models_are_valid(name: str) -> None:
    plain = train(name)
    before = EVENTS.get("kernels_validated")
    with config.override(validate=True):
        checked = train(name)
    assert EVENTS.get("kernels_validated") - before >= 10
    for a, b in zip(plain, checked, strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_programs_are_valid(program: Program) -> None:
    for dtype in ("float32", "float64"):
        with config.override(validate=True):
            run(program, dtype)
    lazy.clear_cache()


def test_validate_names_a_wrong_elementwise_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    tiled = elementwise_rule.tiled

    # The last element of every kernel is forgotten.
    def short(name: str, count: int, *rest: Any, **more: Any) -> Any:
        return tiled(name, count - 1, *rest, **more)

    monkeypatch.setattr(elementwise_rule, "tiled", short)
    lazy.clear_cache()
    x = mt.tensor(np.arange(1.0, 51.0, dtype=np.float32))
    poisoned = mt.tensor(np.full(50, 7.0, np.float32))
    del poisoned  # its block is what the result gets: memory full of sevens
    with config.override(validate=True), pytest.raises(RuntimeError) as caught:
        (x * 2.0).realize()
    message = str(caught.value)
    assert re.search(r"kernel k0 \(.*mul.*, schedule elementwise\) disagrees", message)
    assert "1 of 50 elements" in message
    assert "first at [49]" in message
    assert "Mul" in message
    assert "test_poison_and_validate.py" in message
    assert "(x * 2.0).realize()" in message
    lazy.clear_cache()


def test_the_first_program_of_a_process_may_have_no_intermediates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validate, "ARENA", memory.Arena())
    x = mt.tensor(np.arange(1.0, 51.0, dtype=np.float32))
    with config.override(validate=True):
        np.testing.assert_array_equal((x * 2.0).numpy(), np.arange(2.0, 101.0, 2.0))


def test_validate_names_the_first_wrong_kernel_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(Walk):
        """Sums that miss their last term."""

        def __init__(self, kinds: list[Combine], extents: tuple[int, ...], *rest: Any, **more: Any):
            cut = (*extents[:-1], extents[-1] - len(kinds))
            super().__init__(kinds, cut, *rest, **more)

    monkeypatch.setattr(rows_rule, "Walk", Short)
    lazy.clear_cache()
    x = mt.tensor(np.random.default_rng(0).random((6, 40), dtype=np.float32))
    y = (x @ x.T) * 3.0
    z = ((y.sin() / (y * y).sum(1, keepdim=True)) @ x).exp()
    with config.override(validate=True), pytest.raises(RuntimeError, match=r"k1.*schedule rows"):
        z.realize()
    lazy.clear_cache()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_validation_accepts_rows_that_are_masked(dtype: str) -> None:
    scores = np.random.default_rng(0).standard_normal((40, 40)).astype(dtype)
    scores[np.triu_indices(40, 1)] = -np.inf
    scores[3] = -np.inf
    x = mt.tensor(scores, requires_grad=True)
    with config.override(validate=True):
        y = F.softmax(x, dim=1)
        (y * y).sum().backward()
        mt.eval(y, x.grad)
    assert np.isnan(y.detach().numpy()[3]).all()
    np.testing.assert_allclose(np.delete(y.detach().numpy(), 3, 0).sum(1), 1.0, rtol=1e-5)
