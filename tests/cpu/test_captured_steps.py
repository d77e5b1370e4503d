"""What a captured function drops in the call that made it is not stored when it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy, replay
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.text import graph_text

FIRST, LAST = ("drop", "backward", "step"), ("backward", "step", "drop")
CALLS = 13  # the first two run the function, and those whose number is a power of two


@pytest.fixture(scope="module", autouse=True)
def cold_cache() -> Iterator[None]:
    """Tests share what they compile, but with no other module."""
    lazy.clear_cache()
    yield
    lazy.clear_cache()


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small gradients are worth it, too."""
    monkeypatch.setattr(lazy, "_WORTH_LEAVING", 1)


class Loop:
    """A model of two layers and steps whose parts come in any order."""

    def __init__(
        self, *order: str, drop: Callable[[Any, Any], Any] = lambda o, m: o.zero_grad()
    ) -> None:
        rng = np.random.default_rng(0)
        self.model = mt.nn.Sequential(mt.nn.Linear(6, 16), mt.nn.ReLU(), mt.nn.Linear(16, 3))
        with mt.no_grad():
            for p in self.model.parameters():
                p.copy_(mt.tensor(rng.standard_normal(p.shape).astype(np.float32)))
        self.optimizer = mt.optim.Adam(self.model.parameters(), lr=0.01)
        self.order, self.drop = order, drop

    def step(self, x: mt.Tensor, y: mt.Tensor) -> Any:
        results: list[Any] = []
        for part in self.order:
            gradient = self.model[0].weight.grad
            if part == "drop":
                self.drop(self.optimizer, self.model)
            elif part == "step":
                self.optimizer.step()
            elif part == "return":
                results.append(gradient)
            elif part == "measure":
                results.append(gradient.abs().sum())
            elif part == "scale":
                gradient.mul_(0.3)
            elif part == "clip":
                mt.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            else:
                loss = mt.nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                results.append(loss)
        return tuple(results)

    def state(self) -> list[np.ndarray]:
        moments = [s[k] for s in self.optimizer.state.values() for k in ("exp_avg", "exp_avg_sq")]
        return [t.detach().numpy().copy() for t in (*self.model.parameters(), *moments)]


def batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((7, 6)).astype(np.float32), rng.integers(0, 3, 7)


def both(*order: str, calls: int = CALLS, **options: Any) -> tuple[Loop, Any]:
    """The captured loop, all of whose results are those of the plain one, bit by bit."""
    plain, captured = Loop(*order, **options), Loop(*order, **options)
    step = mt.compile(captured.step)
    for n in range(calls):
        wanted, found = plain.step(*map(mt.tensor, batch(n))), step(*batch(n))
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
        for a, b in zip(plain.state(), captured.state(), strict=True):
            np.testing.assert_array_equal(a, b)
        for p, q in zip(plain.model.parameters(), captured.model.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                np.testing.assert_array_equal(p.grad.numpy(), q.grad.numpy())
    return captured, step


def unstored(step: Any) -> list[list[tuple[int, ...]]]:
    """Shapes of what each program of a repeated call leaves out."""
    (entry,) = step._ready
    runs = entry.script._lean_runs()
    for run in runs:
        sizes = [] if not run.unstored else [o.nbytes for o in run.executor.program.outputs]
        assert all((size == 0) == (i in run.unstored) for i, size in enumerate(sizes))
    return [[run.outputs[i].shape for i in run.unstored] for run in runs]


WEIGHTS = [(16, 6), (3, 16)]


@pytest.mark.parametrize(
    "drop",
    [
        lambda optimizer, model: optimizer.zero_grad(),
        lambda optimizer, model: model.zero_grad(),
        lambda optimizer, model: [setattr(p, "grad", None) for p in model.parameters()],
    ],
    ids=["optimizer", "module", "by hand"],
)
def test_gradients_that_are_dropped_behind_the_step(drop: Callable[[Any, Any], Any]) -> None:
    loop, step = both(*LAST, drop=drop)
    assert sorted(*unstored(step)) == sorted(WEIGHTS)
    assert lazy.last_executor().program.graph.unread  # what ran last is what reports are about
    assert all(p.grad is None for p in loop.model.parameters())


def test_gradients_that_are_there_at_the_end() -> None:
    loop, step = both(*FIRST)
    assert unstored(step) == [[]]
    assert all(p.grad is not None for p in loop.model.parameters())


def test_a_gradient_that_is_a_result() -> None:
    _, step = both("backward", "step", "return", "drop")
    assert unstored(step) == [WEIGHTS[1:]]


def test_a_gradient_that_a_later_program_reads() -> None:
    _, step = both("backward", "step", "measure", "drop")
    assert unstored(step) == [WEIGHTS[1:], []]


@pytest.mark.parametrize("change", ["scale", "clip"])
def test_gradients_that_are_changed_before_the_step(change: str) -> None:
    """Arithmetic keeps its results, lest others' last bits change."""
    both("backward", change, "step", "drop")


def test_gradients_that_are_set_to_zero() -> None:
    loop, _ = both(*LAST, drop=lambda optimizer, model: optimizer.zero_grad(set_to_none=False))
    for p in loop.model.parameters():
        np.testing.assert_array_equal(p.grad.numpy(), np.zeros(p.shape, np.float32))


@pytest.mark.parametrize("order", [FIRST * 2, LAST * 2, (*FIRST, "backward", "step", "drop")])
def test_several_steps_in_a_call(order: tuple[str, ...]) -> None:
    both(*order)


def test_two_optimizers_behind_each_other() -> None:
    def make() -> tuple[Any, list[Any]]:
        rng = np.random.default_rng(3)
        tensors = [mt.tensor(rng.standard_normal(s).astype(np.float32)) for s in ((6, 16), (16, 3))]
        weights = [mt.nn.Parameter(t) for t in tensors]
        optimizers = [mt.optim.SGD([w], lr=1e-4, momentum=0.9) for w in weights]

        def step(x: mt.Tensor) -> mt.Tensor:
            loss = ((x @ weights[0]).relu() @ weights[1]).pow(2).sum()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()
            return loss

        return step, weights

    (plain, wanted), (function, found) = make(), make()
    captured = mt.compile(function)
    for n in range(CALLS):
        x, _ = batch(n)
        assert captured(x).item() == plain(mt.tensor(x)).item()
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_calls_that_run_the_function_store_everything() -> None:
    """It might look at what it drops later."""
    seen: list[bool] = []
    loop = Loop(*LAST, drop=lambda o, m: (seen.append(m[0].weight.grad is not None), o.zero_grad()))
    step = mt.compile(loop.step)
    before = EVENTS.get("watched_calls")
    for n in range(CALLS):
        step(*batch(n))
    assert seen == [True] * (EVENTS.get("watched_calls") - before)
    (entry,) = step._ready
    assert [run.unstored for run in entry.script.runs] == [()]


def test_a_gradient_that_updates_nothing() -> None:
    loop = Loop(*LAST)
    loop.optimizer = mt.optim.SGD(loop.model[2].parameters(), lr=0.01)
    loop.drop = lambda o, m: m.zero_grad()
    step = mt.compile(loop.step)
    for n in range(CALLS):
        step(*batch(n))
    assert unstored(step) == [WEIGHTS[1:]]  # that of the first layer is all its kernel gives


def test_a_product_that_other_kernels_read() -> None:
    weight = mt.tensor(np.random.default_rng(1).standard_normal((6, 16)).astype(np.float32))

    def alone(x: mt.Tensor) -> mt.Tensor:
        product = x @ weight
        positive = product.relu()
        mt.eval(product, positive)
        return (positive * 2).sum()

    def read(x: mt.Tensor) -> mt.Tensor:
        product = x @ weight
        positive = product.relu()
        total = (positive @ product.T).sum()
        mt.eval(total, product, positive)
        return total

    for function, expected in ((alone, [[(7, 16)], []]), (read, [[]])):
        captured = mt.compile(function)
        for n in range(CALLS):
            x, _ = batch(n)
            assert captured(x).item() == function(mt.tensor(x)).item()
        assert unstored(captured) == expected


@pytest.mark.parametrize(
    ("small", "unread", "expected"),
    [
        (4096, 1 << 16, []),
        (0, 1 << 16, [4, 4]),  # the loss
        (4096, 12, [64, 64]),  # the gradient of a bias, which nobody gets
    ],
)
def test_repeated_calls_take_memory_for_what_is_large(
    small: int, unread: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_SMALL", small)
    monkeypatch.setattr(replay, "_SMALL_UNREAD", unread)
    step = mt.compile(Loop(*LAST).step)
    for n in range(8):  # the seventh is watched again, those that follow repeat
        step(*batch(n))
    taken: list[int] = []
    make = replay.Buffer
    monkeypatch.setattr(replay, "Buffer", lambda size: taken.append(size) or make(size))
    for n in range(2):
        step(*batch(n))
    assert taken == expected


def test_programs_on_disk_are_told_apart() -> None:
    _, step = both(*LAST)
    (entry,) = step._ready
    (run,) = entry.script._lean_runs()
    lean = run.executor.program.graph
    assert lean.unread
    assert "is not stored" in str(lean)
    assert graph_text(lean) != graph_text(replace(lean, unread=()))


def test_small_results_are_not_worth_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless there are many: what counts is how much they are together."""
    together = sum(4 * n * m for n, m in WEIGHTS)
    monkeypatch.setattr(lazy, "_WORTH_LEAVING", together)
    _, step = both(*LAST)
    assert sorted(*unstored(step)) == sorted(WEIGHTS)
    # The gradients of biases are as many bytes more, but cannot be left out.
    monkeypatch.setattr(lazy, "_WORTH_LEAVING", together + 1)
    before = EVENTS.get("compiles")
    _, step = both(*LAST)
    assert unstored(step) == [[]]
    assert EVENTS.get("compiles") == before


def test_a_program_is_compiled_once() -> None:
    """Also for calls that are watched again, and for other models of the same structure."""
    both(*LAST)
    before = EVENTS.get("compiles")
    both(*LAST, calls=34)
    assert EVENTS.get("compiles") == before


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.filterwarnings("error")
def test_programs_that_leave_the_cache(size: int) -> None:
    """What is compiled again is no other program, and the limit holds for those made lean."""
    repeated = []
    for limit in (128, size):
        lazy.clear_cache()
        with config.override(cache_size=limit):
            before = EVENTS.get("captured_calls")
            _, step = both(*LAST, calls=34)
            repeated.append(EVENTS.get("captured_calls") - before)
            assert sorted(*unstored(step)) == sorted(WEIGHTS)
            assert 1 <= len(lazy._CACHE) <= limit
    assert repeated[0] == repeated[1] > 20


def test_inputs_that_are_not_aligned() -> None:
    loop, other = Loop(*LAST), Loop(*LAST)
    step = mt.compile(loop.step)
    for n in range(CALLS):
        x, y = batch(n)
        raw = np.empty(x.nbytes + 1, np.uint8)
        shifted = raw[1:].view(np.float32).reshape(x.shape)
        shifted[...] = x
        assert step(mt.from_numpy(shifted), mt.from_numpy(y))[0].item() == (
            other.step(mt.tensor(x), mt.tensor(y))[0].item()
        )


@pytest.mark.parametrize("setting", ["validate", "poison", "check"])
def test_programs_that_are_watched_over(setting: str) -> None:
    with config.override(**{setting: True}):
        _, step = both(*LAST)
        assert sorted(*unstored(step)) == sorted(WEIGHTS)


@pytest.mark.parametrize("setting", [{"target": "numpy"}, {"schedule": "default"}, {"fuse": False}])
def test_other_ways_to_run(setting: dict[str, Any]) -> None:
    with config.override(**setting):
        _, step = both(*LAST)
        assert unstored(step) == [[]]  # no kernel computes an update with its gradient
