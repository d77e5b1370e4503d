"""Tensors that a captured call hands on: results and gradients that are something else, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core.events import EVENTS

CALLS = 14


class Two:
    """Two parameters, whose gradients depend on both, and their optimizer."""

    def __init__(self, with_gradients: bool) -> None:
        self.p = mt.nn.Parameter(mt.tensor([1.0, 2.0, 3.0]))
        self.q = mt.nn.Parameter(mt.tensor([-1.0, 0.5, 4.0]))
        self.optimizer = mt.optim.SGD([self.p, self.q], lr=0.125, momentum=0.5)
        if with_gradients:
            self.p.grad, self.q.grad = mt.tensor([0.5, 0.25, 1.0]), mt.tensor([1.0, 2.0, 3.0])

    def backward(self, x: mt.Tensor) -> None:
        (self.p * x + self.q * x * 3 + self.p * self.q).sum().backward()

    def add(self, x: mt.Tensor) -> None:
        """A step that adds to the gradients."""
        self.backward(x)
        self.optimizer.step()

    def step(self, x: mt.Tensor) -> None:
        self.optimizer.zero_grad()
        self.add(x)

    def swap(self) -> None:
        self.p.grad, self.q.grad = self.q.grad, self.p.grad

    def numbers(self) -> list[Any]:
        tensors = (self.p, self.q, self.p.grad, self.q.grad)
        return [None if t is None else t.detach().numpy().copy() for t in tensors]


Body = Callable[[Two, mt.Tensor], Any]
MEANWHILE: dict[str, Callable[[Two, mt.Tensor, list[mt.Tensor]], object]] = {
    "nothing": lambda two, x, results: None,
    "result": lambda two, x, results: [t.mul_(0.5) for t in results if not t.requires_grad],
    "argument": lambda two, x, results: x.add_(1),
    "gradient": lambda two, x, results: two.p.grad is None or two.p.grad.mul_(0.5),
}


def _run(body: Body, compiled: bool, with_gradients: bool, meanwhile: str) -> tuple[list[Any], int]:
    """All values that can be seen behind each call, those of the last three calls' results too,
    and the number of calls that were repeated."""
    two = Two(with_gradients)

    def function(x: mt.Tensor) -> Any:
        return body(two, x)

    call = mt.compile(function) if compiled else function
    seen: list[Any] = []
    held: list[list[mt.Tensor]] = []
    before = EVENTS.get("captured_calls")
    for n in range(CALLS):
        x = mt.tensor([n / 8, 0.5, -1.0])
        found = call(x)
        results = list(found) if isinstance(found, tuple) else [found] if found is not None else []
        held.append(results)
        seen += two.numbers()
        if n % 3 == 2:
            MEANWHILE[meanwhile](two, x, results)
        seen += [t.detach().numpy().copy() for results in held[-3:] for t in results]
    return seen, EVENTS.get("captured_calls") - before


def _compare(body: Body, with_gradients: bool, meanwhile: str) -> int:
    plain, _ = _run(body, False, with_gradients, meanwhile)
    compiled, repeated = _run(body, True, with_gradients, meanwhile)
    for a, b in zip(plain, compiled, strict=True):
        np.testing.assert_array_equal(a, b)
    return repeated


def _between(show: Callable[[mt.Tensor], Any]) -> Body:
    def body(two: Two, x: mt.Tensor) -> Any:
        two.step(x)
        shown = show(two.p)
        two.step(x)
        return shown

    return body


def _written(two: Two, x: mt.Tensor) -> mt.Tensor:
    shown = two.p.detach()
    two.step(x)
    shown.mul_(0.5)
    return shown


def _evaluated(two: Two, x: mt.Tensor) -> mt.Tensor:
    two.step(x)
    shown = two.p.detach()
    mt.eval(shown)
    two.step(x)
    return shown


def _old_and_new(two: Two, x: mt.Tensor) -> tuple[mt.Tensor, ...]:
    old = two.p.detach()
    total = old.sum()
    two.step(x)
    return old, total, old[:2], two.p, old.reshape(3, 1)


def _of_a_result(two: Two, x: mt.Tensor) -> tuple[mt.Tensor, ...]:
    y = x * 2
    part, end = y[1:], y.detach()[2:]
    y.add_(two.p.detach())
    return part, y, end


SHOWN: dict[str, Body] = {
    "detached": _between(lambda p: p.detach()),
    "data": _between(lambda p: p.data),
    "part": _between(lambda p: p.detach()[1:]),
    "copy": _between(lambda p: p.detach().clone()),
    "written": _written,
    "evaluated": _evaluated,
    "old and new": _old_and_new,
    "nothing else": lambda two, x: two.p.detach(),
    "parts of results": _of_a_result,
    "part of what is left": lambda two, x: (x * two.q.detach()).reshape(1, 3)[0],
    "arguments": lambda two, x: (x, x[1:], x.detach()[:2]),
    "argument's part": lambda two, x: (x.detach()[:2], two.step(x))[:1],
    "gradient": lambda two, x: (two.step(x), two.p.grad)[1],
    "sum of gradients": lambda two, x: (two.add(x), two.p.grad)[1],
    "detached gradient": lambda two, x: (two.step(x), two.p.grad.detach())[1],
    "detached sum": lambda two, x: (two.add(x), two.p.grad, two.p.grad.detach()[1:])[1:],
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("shown", SHOWN)
def test_results_that_are_something_else_too(shown: str, meanwhile: str) -> None:
    assert _compare(SHOWN[shown], False, meanwhile) >= 5


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_gradient_that_is_only_returned(meanwhile: str) -> None:
    assert _compare(lambda two, x: two.p.grad, True, meanwhile) >= 5


def test_results_are_the_tensors_themselves() -> None:
    two = Two(False)

    @mt.compile
    def function(x: mt.Tensor) -> tuple[Any, ...]:
        two.step(x)
        return x, two.p, two.p.grad

    for _ in range(CALLS):
        x = mt.ones(3)
        found = function(x)
        assert found[0] is x
        assert found[1] is two.p
        assert found[2] is two.p.grad


def test_gradients_of_a_parameter_that_is_a_result_are_dropped() -> None:
    def body(two: Two, x: mt.Tensor) -> tuple[mt.Tensor, mt.Tensor]:
        two.add(x)
        two.optimizer.zero_grad()
        return two.p, two.q

    assert _compare(body, False, "nothing") >= 5


# --- gradients that change hands -----------------------------------------------------------------


def _swapped(*order: str) -> Body:
    def body(two: Two, x: mt.Tensor) -> None:
        for what in order:
            if what == "swap":
                two.swap()
            elif what == "optimize":
                two.optimizer.step()
            else:
                getattr(two, what)(x)

    return body


def _shared(step: str, early: bool, hand: Callable[[mt.Tensor], mt.Tensor]) -> Body:
    def body(two: Two, x: mt.Tensor) -> None:
        if step == "step":
            two.optimizer.zero_grad()
        two.backward(x)
        if not early:
            two.optimizer.step()
        assert two.p.grad is not None
        two.q.grad = hand(two.p.grad)
        if early:
            two.optimizer.step()

    return body


def _moved(two: Two, x: mt.Tensor) -> None:
    two.step(x)
    two.q.grad, two.p.grad = two.p.grad, None


def _value(two: Two, x: mt.Tensor) -> None:
    two.step(x)
    two.p.grad = two.q.detach()


MOVED: dict[str, Body] = {
    "swapped behind steps": _swapped("step", "swap"),
    "swapped sums": _swapped("backward", "swap", "optimize"),
    "swapped sums behind steps": _swapped("add", "swap"),
    "swapped first": _swapped("swap", "add"),
    "swapped only": _swapped("swap"),
    "swapped and used": _swapped("swap", "optimize"),
    "swapped and back": _swapped("backward", "swap", "optimize", "swap"),
    "swapped in between": _swapped("step", "swap", "add"),
    "one for two": _shared("step", True, lambda g: g),
    "one for two behind steps": _shared("step", False, lambda g: g),
    "one sum for two": _shared("add", False, lambda g: g),
    "detached": _shared("step", True, lambda g: g.detach()),
    "detached sum": _shared("add", False, lambda g: g.detach()),
    "copied": _shared("step", False, lambda g: g.clone()),
    "moved": _moved,
    "value": _value,
}


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("moved", MOVED)
def test_gradients_that_change_hands(moved: str, meanwhile: str, with_gradients: bool) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* runs the function at every call: it ")
        _compare(MOVED[moved], with_gradients, meanwhile)


def test_gradients_that_change_hands_are_refused() -> None:
    with pytest.warns(RuntimeWarning, match="makes a gradient of a tensor that is something else"):
        assert _compare(MOVED["swapped sums"], True, "nothing") == 0
