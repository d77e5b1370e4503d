"""Gradients that exist, or do not, when a captured function is called."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.tape import Promise
from minitorch_tvm.runtime.executor import Executor


def _dropping(at_the_end: bool) -> tuple[mt.Tensor, Callable[[mt.Tensor], mt.Tensor]]:
    w = mt.nn.Parameter(mt.ones(2))
    optimizer = mt.optim.SGD([w], lr=0.125)

    def step(x: mt.Tensor) -> mt.Tensor:
        if not at_the_end:
            optimizer.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        if at_the_end:
            optimizer.zero_grad()
        return loss

    return w, step


@pytest.mark.parametrize("at_the_end", [True, False])
@pytest.mark.parametrize("before", range(2, 10))
def test_a_gradient_from_outside_counts_where_the_function_adds_to_it(
    before: int, at_the_end: bool
) -> None:
    """A function that drops gradients last adds to those that exist; dropped first, they go."""
    results = []
    for compiled in (False, True):
        w, step = _dropping(at_the_end)
        call = mt.compile(step) if compiled else step
        x = mt.ones(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # at a watched call it is given up
            values = []
            for n in range(before + 4):
                if n == before:
                    (w * 8).sum().backward()
                call(x)
                values.append(float(w.detach().numpy()[0]))
        results.append((values, w.grad is None))
    assert results[0] == results[1]
    added = 8 if at_the_end else 0
    expected = [1 - 0.125 * (n + 1 + (added if n >= before else 0)) for n in range(before + 4)]
    assert results[0] == (expected, at_the_end)


def test_a_gradient_from_outside_is_dropped_where_the_function_drops_it_last() -> None:
    for compiled in (False, True):
        w = mt.nn.Parameter(mt.ones(2))
        optimizer = mt.optim.SGD([w], lr=0.125)

        def step(x: mt.Tensor, w: mt.Tensor = w, optimizer: mt.optim.SGD = optimizer) -> None:
            optimizer.zero_grad()
            (w * x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        call = mt.compile(step) if compiled else step
        for _ in range(14):
            w.grad = mt.ones(2) * 8
            call(mt.ones(2))
            assert w.grad is None
        assert w.tolist() == [1 - 14 / 8] * 2


def test_a_gradient_that_appears_on_a_parameter_without_one_is_used() -> None:
    results = []
    for compiled in (False, True):
        used, unused = mt.nn.Parameter(mt.ones(2)), mt.nn.Parameter(mt.ones(2))
        optimizer = mt.optim.SGD([used, unused], lr=0.125)

        def step(
            x: mt.Tensor,
            used: mt.Tensor = used,
            optimizer: mt.optim.SGD = optimizer,
        ) -> mt.Tensor:
            used.grad = None
            loss = (used * x).sum()
            loss.backward()
            optimizer.step()
            return loss

        call = mt.compile(step) if compiled else step
        for n in range(8):
            if n == 6:
                unused.grad = mt.ones(2) * 4
            call(mt.ones(2))
        results.append((used.detach().numpy().tolist(), unused.detach().numpy().tolist()))
    assert results[0] == results[1]
    assert results[0][1] == [0.0, 0.0]


def _pair() -> tuple[list[mt.nn.Parameter], mt.optim.SGD]:
    params = [mt.nn.Parameter(mt.tensor([1.0, 2.0])), mt.nn.Parameter(mt.tensor([3.0, 4.0]))]
    return params, mt.optim.SGD(params, lr=0.125)


def _promised(params: list[mt.nn.Parameter]) -> list[bool]:
    return [isinstance(p._gradient, Promise) for p in params]


def test_gradients_that_nobody_asks_for_stay_in_the_same_memory() -> None:
    (v, w), optimizer = _pair()

    @mt.compile
    def step(x: mt.Tensor) -> None:
        optimizer.zero_grad()
        (v * w * x).sum().backward()
        optimizer.step()

    def once(number: float) -> list[Any]:
        """Gradients at ``number``, of the values before the call."""
        before = [p.detach().numpy().copy() for p in (w, v)]
        step(mt.tensor([number, 1.0]))
        return [pytest.approx(a * np.float32([number, 1.0])) for a in before]

    for n in range(11):  # the function runs in two calls, then in the first, second, fourth, eighth
        once(n / 8)
    assert _promised([v, w]) == [True, True]
    promise, calls = v._gradient, EVENTS.get("captured_calls")
    once(3)
    assert v._gradient is w._gradient is promise
    expected = once(5)
    first, second = v.grad, w.grad
    assert first is not None
    assert second is not None
    assert _promised([v, w]) == [False, False]
    assert [first.tolist(), second.tolist()] == expected
    later = [once(6), once(7)]
    assert _promised([v, w]) == [True, True]
    assert [first.tolist(), second.tolist()] == expected
    assert [v.grad.tolist(), w.grad.tolist()] == later[1]  # type: ignore[union-attr]
    del first, second
    v.grad = w.grad = None
    made = EVENTS.get("allocations")
    for _ in range(2):
        expected = once(0.5)
        assert v.grad is not None  # looked at every time: the memory that is let go is taken
        assert v.grad.tolist() == expected[0]
    assert EVENTS.get("captured_calls") - calls == 6
    assert EVENTS.get("allocations") - made <= 8


@pytest.mark.parametrize("kept", ["gradient", "value", "copy", "array"])
def test_what_is_kept_of_a_gradient_stays(kept: str) -> None:
    (v, w), optimizer = _pair()

    @mt.compile
    def step(x: mt.Tensor) -> mt.Tensor:
        optimizer.zero_grad()
        loss = (v * x).sum() + (w * x).sum()  # one value is the gradient of both
        loss.backward()
        optimizer.step()
        return loss

    held = []
    for n in range(15):
        step(mt.full((2,), float(n)))
        for p in (v, w):
            g = p.grad
            assert g is not None
            assert g.tolist() == [float(n)] * 2
            if n in (11, 12):
                held.append(
                    {
                        "gradient": g,
                        "value": g.detach(),
                        "copy": copy.deepcopy(p),
                        "array": g.numpy(),
                    }[kept]
                )
    values = [h.grad if kept == "copy" else h for h in held]
    if kept != "copy":
        assert [h.tolist() for h in values] == [[11.0, 11.0]] * 2 + [[12.0, 12.0]] * 2
    v.grad.mul_(2.0)  # type: ignore[union-attr]
    assert w.grad.tolist() == [14.0, 14.0]  # type: ignore[union-attr]


def test_a_call_that_fails_leaves_the_gradients() -> None:
    """Even while somebody holds the exception, and with it what the call had prepared."""
    w = mt.nn.Parameter(mt.zeros(5, 3))
    optimizer = mt.optim.SGD([w], lr=0.5)

    @mt.compile
    def step(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        loss = mt.nn.functional.cross_entropy(x @ w, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    x, y = np.ones((2, 5), np.float32), np.array([0, 2])
    for _ in range(11):
        step(x, y)
    assert w.grad is not None  # now it is a tensor, whose memory the next call may take
    caught = []
    try:
        step(x, np.array([0, 3]))
    except IndexError as error:
        caught.append(error)
    assert caught
    held = w.grad
    before = held.numpy().copy()
    for _ in range(2):
        step(x * 2, y)
    np.testing.assert_array_equal(held.numpy(), before)
    assert w.grad is not None
    assert not np.array_equal(w.grad.numpy(), before)


def test_a_gradient_that_is_a_result_is_the_callers() -> None:
    (v, w), _ = _pair()

    @mt.compile
    def gradients(x: mt.Tensor) -> tuple[mt.Tensor | None, mt.Tensor]:
        v.grad = w.grad = None
        loss = (v * w * x).sum()
        loss.backward()
        return v.grad, loss

    results = []
    for n in range(15):
        found, _ = gradients(mt.full((2,), float(n)))
        assert found is not None
        results.append(found)
    assert [g.tolist() for g in results] == [[3.0 * n, 4.0 * n] for n in range(15)]
    assert w.grad is not None
    assert w.grad.tolist() == [14.0, 28.0]


def test_an_optimizer_outside_uses_what_is_promised() -> None:
    results = []
    for compiled in (False, True):
        (v, w), optimizer = _pair()

        def backward(x: mt.Tensor, v: mt.Tensor = v, w: mt.Tensor = w) -> mt.Tensor:
            v.grad = w.grad = None
            loss = (v * w * x).sum()
            loss.backward()
            return loss

        call = mt.compile(backward) if compiled else backward
        for n in range(30):
            call(mt.full((2 if n % 3 else 1,), n / 64))
            if n % 4 == 2:
                optimizer.zero_grad()
            else:
                optimizer.step()
        results.append([v.tolist(), w.tolist()])
    assert results[0] == results[1]


def _plain_and_compiled(run: Callable[[Callable[[Any], Any]], list[Any]]) -> None:
    """``run`` is given what compiles, or does not; both must leave the same bits."""
    plain, compiled = run(lambda f: f), run(mt.compile)
    for a, b in zip(plain, compiled, strict=True):
        np.testing.assert_array_equal(a, b)


def test_parameters_that_have_grown_apart_have_numbers_of_their_own() -> None:
    """A step outside makes one of them older: bias corrections are no longer the same number."""

    def run(compiled: Callable[[Any], Any]) -> list[Any]:
        rng = np.random.default_rng(0)
        a, b = (mt.nn.Parameter(mt.tensor(rng.standard_normal((3, 3)))) for _ in range(2))
        optimizer = mt.optim.Adam([a, b], lr=0.1)

        def step(x: mt.Tensor) -> None:
            optimizer.zero_grad()
            ((x @ a @ b) ** 2).mean().backward()
            optimizer.step()

        call, x = compiled(step), mt.ones(2, 3, dtype=mt.float64)
        for number in range(24):
            call(x)
            if number in (12, 13):
                optimizer.zero_grad()
                (a * a).sum().backward()
                optimizer.step()
        return [a.detach().numpy(), b.detach().numpy()]

    _plain_and_compiled(run)


def test_the_gradient_of_a_parameter_that_is_not_read_itself() -> None:
    """Another object every time: clipping reads whatever gradient the parameter has then."""

    def run(compiled: Callable[[Any], Any]) -> list[Any]:
        a = mt.nn.Parameter(mt.tensor([[0.5, 1.5], [-2.0, 1.0]]))
        b = mt.nn.Parameter(mt.ones(2))
        b.grad = mt.ones(2)

        def clip(x: mt.Tensor) -> mt.Tensor:
            a.grad = None
            ((x @ a) ** 2).mean().backward()
            return mt.nn.utils.clip_grad_norm_([a, b], 0.5)

        call, found = compiled(clip), []
        for number in range(20):
            if number > 8:
                b.grad = None
                (b * float(number)).sum().backward()
            norm = call(mt.full((3, 2), number / 8))
            for t in (norm, a.grad, b.grad):
                assert t is not None
                found.append(t.detach().numpy().copy())
        return found

    _plain_and_compiled(run)


def test_a_gradient_that_is_missing_where_it_was_added_to() -> None:
    def run(compiled: Callable[[Any], Any]) -> list[Any]:
        w = mt.nn.Parameter(mt.ones(3))
        optimizer = mt.optim.SGD([w], lr=0.125)

        def step(x: mt.Tensor) -> mt.Tensor:
            optimizer.zero_grad(set_to_none=False)
            loss = (w * x).sum()
            loss.backward()
            optimizer.step()
            return loss

        call, found = compiled(step), []
        for number in range(20):
            if number in (6, 11, 13):
                w.grad = None
            call(mt.full((3,), float(number)))
            assert w.grad is not None
            found += [w.grad.numpy().copy(), w.detach().numpy().copy()]
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the function does something else then
        _plain_and_compiled(run)


def test_an_effect_may_look_at_a_gradient() -> None:
    """A schedule, for example: what it keeps is not written over by the call it belongs to."""
    w = mt.nn.Parameter(mt.ones(3))
    optimizer = mt.optim.SGD([w], lr=0.125)
    held: list[tuple[Any, Any]] = []
    looking = False

    def rate(_: int) -> float:
        if looking:
            assert w.grad is not None
            held.append((w.grad, w.grad.numpy().copy()))
        return 1.0

    schedule = mt.optim.lr_scheduler.LambdaLR(optimizer, rate)

    @mt.compile
    def step(x: mt.Tensor) -> None:
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()
        schedule.step()

    for number in range(31):
        looking = number in (20, 24)
        step(mt.full((3,), float(number)))
    assert len(held) == 2
    for gradient, then in held:
        np.testing.assert_array_equal(gradient.numpy(), then)


def test_a_call_in_another_thread_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call has been prepared when another runs, whose gradient somebody keeps."""
    w = mt.nn.Parameter(mt.ones(3))

    @mt.compile
    def gradient(x: mt.Tensor) -> None:
        w.grad = None
        (w * x).sum().backward()

    for number in range(11):
        gradient(mt.full((3,), float(number)))
    run, ready, proceed = Executor.run, threading.Event(), threading.Event()

    def waiting(self: Executor, *given: Any) -> Any:
        if threading.current_thread() is thread:
            ready.set()
            assert proceed.wait(60)
        return run(self, *given)

    thread = threading.Thread(target=gradient, args=(mt.full((3,), 100.0).realize(),))
    monkeypatch.setattr(Executor, "run", waiting)
    thread.start()
    assert ready.wait(60)
    gradient(mt.full((3,), 50.0))
    held = w.grad
    assert held is not None
    assert held.tolist() == [50.0] * 3
    proceed.set()
    thread.join(60)
    assert held.tolist() == [50.0] * 3
    assert w.grad is not None
    assert w.grad.tolist() == [100.0] * 3


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("steps", [2, 3, 4, 8])
@pytest.mark.filterwarnings("error")
def test_gradients_that_add_up_over_calls(steps: int, to_none: bool) -> None:
    """The step is outside: calls find gradients, but the first of each round."""
    results = []
    for compiled in (False, True):
        mt.manual_seed(1)
        model = mt.nn.Sequential(mt.nn.Linear(5, 8), mt.nn.ReLU(), mt.nn.Linear(8, 3))
        optimizer = mt.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)

        def backward(x: mt.Tensor, y: mt.Tensor, model: mt.nn.Module = model) -> mt.Tensor:
            loss = mt.nn.functional.cross_entropy(model(x), y) / steps
            loss.backward()
            return loss

        call = mt.compile(backward) if compiled else backward
        rng, found = np.random.default_rng(2), []
        before = EVENTS.get("captured_calls")
        for n in range(12 * steps):
            x = mt.tensor(rng.standard_normal((4, 5)).astype(np.float32))
            y = mt.tensor(rng.integers(0, 3, 4))
            found.append(call(x, y).item())
            found.append([p.grad.tolist() for p in model.parameters()])
            if n % steps == steps - 1:
                optimizer.step()
                optimizer.zero_grad(set_to_none=to_none)
        results.append(found)
        captured = EVENTS.get("captured_calls") - before
    assert results[0] == results[1]
    assert captured >= 12 * steps - 16  # at powers of two calls of both kinds are watched
