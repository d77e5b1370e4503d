"""When an optimizer's step is evaluated in a captured function, and what is stored then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core.events import EVENTS

Order = tuple[str, ...]
FIRST, LAST = ("drop", "backward", "step"), ("backward", "step", "drop")


class Loop:
    """A model of two layers and steps whose parts come in any order."""

    def __init__(
        self, order: Order = LAST, drop: Callable[[Any, Any], Any] = lambda o, m: o.zero_grad()
    ) -> None:
        rng = np.random.default_rng(0)
        self.model = mt.nn.Sequential(mt.nn.Linear(6, 5), mt.nn.ReLU(), mt.nn.Linear(5, 3))
        with mt.no_grad():
            for p in self.model.parameters():
                p.copy_(mt.tensor(rng.standard_normal(p.shape).astype(np.float32)))
        self.optimizer = mt.optim.Adam(self.model.parameters(), lr=0.01)
        self.order, self.drop = order, drop

    def step(self, x: mt.Tensor, y: mt.Tensor) -> Any:
        result: Any = None
        for part in self.order:
            if part == "drop":
                self.drop(self.optimizer, self.model)
            elif part == "step":
                self.optimizer.step()
            elif part == "keep":
                result = (result, self.model[0].weight.grad)
            elif part == "measure":
                result = (result, self.model[0].weight.grad.abs().sum())
            else:
                result = mt.nn.functional.cross_entropy(self.model(x), y)
                result.backward()
        return result

    def weights(self) -> list[np.ndarray]:
        return [p.detach().numpy().copy() for p in self.model.parameters()]


def batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((7, 6)).astype(np.float32), rng.integers(0, 3, 7)


def programs(step: Any) -> list[int]:
    """How many results each program of a captured call stores."""
    (entry,) = step._ready
    return [len(run.outputs) for run in entry.script.runs]


def both(order: Order, calls: int = 11, **options: Any) -> tuple[Loop, Any]:
    """The captured loop, after its results were compared bit by bit with the plain one's."""
    plain, captured = Loop(order, **options), Loop(order, **options)
    step = mt.compile(captured.step)
    for n in range(calls):
        expected, found = plain.step(*map(mt.tensor, batch(n))), step(*batch(n))
        if isinstance(expected, tuple):
            np.testing.assert_array_equal(expected[1].numpy(), found[1].numpy())
            expected, found = expected[0], found[0]
        assert found.item() == expected.item()
    for a, b in zip(plain.weights(), captured.weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for p, q in zip(plain.model.parameters(), captured.model.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
    return captured, step


# Of four parameters: themselves, two moments each, and the loss.
_UPDATES = 4 * 3 + 1


@pytest.mark.parametrize(
    "drop",
    [
        lambda optimizer, model: optimizer.zero_grad(),
        lambda optimizer, model: model.zero_grad(),
        lambda optimizer, model: [setattr(p, "grad", None) for p in model.parameters()],
    ],
    ids=["optimizer", "module", "by hand"],
)
def test_gradients_that_are_dropped_behind_the_step_are_not_stored(
    drop: Callable[[Any, Any], Any],
) -> None:
    loop, step = both(LAST, drop=drop)
    assert programs(step) == [_UPDATES]
    assert all(p.grad is None for p in loop.model.parameters())


def test_a_step_that_a_plain_loop_has_made_before() -> None:
    loop = Loop(LAST)
    for n in range(4):
        loop.step(*map(mt.tensor, batch(n)))
    step = mt.compile(loop.step)
    for n in range(4):
        step(*batch(n))
    assert programs(step) == [_UPDATES]


def test_gradients_that_are_there_at_the_end_are_stored() -> None:
    loop, step = both(FIRST)
    assert programs(step) == [_UPDATES + 4]
    assert all(p.grad is not None for p in loop.model.parameters())


def test_a_gradient_that_is_returned_is_stored() -> None:
    _, step = both(("backward", "step", "keep", "drop"))
    assert programs(step) == [_UPDATES + 1]


def test_gradients_that_are_set_to_zero_are_zero() -> None:
    loop, _ = both(LAST, drop=lambda optimizer, model: optimizer.zero_grad(set_to_none=False))
    for p in loop.model.parameters():
        np.testing.assert_array_equal(p.grad.numpy(), np.zeros(p.shape, np.float32))


def test_what_is_made_of_a_gradient_behind_the_step() -> None:
    """It belongs to the next program, for which gradients are stored."""
    _, step = both(("backward", "step", "measure", "drop"))
    (entry,) = step._ready
    assert [len(run.outputs) for run in entry.script.runs] == [_UPDATES + 4, 1]
    assert entry.script.runs[1].inputs[0].kind == "run"


@pytest.mark.parametrize("order", [FIRST, LAST], ids=["dropped first", "dropped last"])
def test_steps_of_one_call_share_one_program(order: Order) -> None:
    """As in a plain loop, each of them ends one."""
    _, step = both(order * 3)
    (entry,) = step._ready
    assert len(entry.script.runs) == 3
    assert len({id(run.executor) for run in entry.script.runs[:2]}) == 1


def test_steps_between_which_nothing_is_dropped_are_programs_of_their_own() -> None:
    """The first gradients are added to, so they are stored, too."""
    _, step = both(("drop", "backward", "step", "backward", "step"))
    (entry,) = step._ready
    assert [len(run.outputs) for run in entry.script.runs] == [_UPDATES + 4] * 2


def test_optimizers_that_take_turns() -> None:
    """As in adversarial training: the second loss reads what the first optimizer has changed."""

    def make() -> tuple[Any, list[Any]]:
        rng = np.random.default_rng(3)
        first, second = (
            mt.nn.Parameter(mt.tensor(rng.standard_normal(4).astype(np.float32))) for _ in range(2)
        )
        optimizers = [mt.optim.SGD([p], lr=0.1, momentum=0.9) for p in (first, second)]

        def step(x: mt.Tensor) -> mt.Tensor:
            losses = []
            for number, optimizer in enumerate(optimizers):
                optimizer.zero_grad()
                a, b = (first.detach(), second) if number else (first, second.detach())
                loss = (a * x - b).pow(2).sum() * (1 - 2 * number)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            return losses[0] + losses[1]

        return step, [first, second]

    (plain, expected), (function, found) = make(), make()
    captured = mt.compile(function)
    for n in range(9):
        x = np.arange(4, dtype=np.float32) / (n + 1)
        assert captured(x).item() == plain(mt.tensor(x)).item()
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_a_step_has_been_made_when_the_function_fails_behind_it() -> None:
    w = mt.nn.Parameter(mt.ones(3))
    optimizer = mt.optim.SGD([w], lr=0.5)

    @mt.compile
    def step(x: mt.Tensor) -> None:
        (w * x).sum().backward()
        optimizer.step()
        raise KeyError("behind the step")

    x = np.ones(3, np.float32)
    with pytest.raises(KeyError, match="behind the step"):
        step(x)
    x[:] = 100  # it is the caller's again
    np.testing.assert_array_equal(w.detach().numpy(), np.full(3, 0.5, np.float32))


def test_a_step_is_not_put_off_beyond_no_sync() -> None:
    w = mt.nn.Parameter(mt.ones(3))
    optimizer = mt.optim.SGD([w], lr=0.5)

    @mt.compile
    def step(x: mt.Tensor) -> None:
        with mt.no_sync():
            (w * x).sum().backward()
            optimizer.step()

    with pytest.raises(RuntimeError, match="inside no_sync"):
        step(np.ones(3, np.float32))


def test_a_step_is_made_before_no_sync() -> None:
    w = mt.nn.Parameter(mt.ones(3))
    optimizer = mt.optim.SGD([w], lr=0.5)

    @mt.compile
    def step(x: mt.Tensor) -> mt.Tensor:
        (w * x).sum().backward()
        optimizer.step()
        with mt.no_sync():
            optimizer.zero_grad()
            return w.detach() * x

    for n in range(5):
        assert step(np.ones(3, np.float32)).tolist() == [0.5 - n * 0.5] * 3


def test_first_calls_evaluate_once() -> None:
    step = mt.compile(Loop(LAST).step)
    before = EVENTS.snapshot().get("evaluations", 0)
    step(*batch(0))
    assert EVENTS.snapshot()["evaluations"] == before + 1
