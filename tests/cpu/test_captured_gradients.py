"""Gradients that exist, or do not, when a captured function is called."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.tape import Promise


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
        optimizer.zero_grad()
        loss = mt.nn.functional.cross_entropy(x @ w, y)
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
