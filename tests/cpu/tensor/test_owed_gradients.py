"""Gradients that backward() puts off are what they would have been, whenever they are asked for."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.node import MODE
from minitorch_tvm.ir.tape import Owed

COLUMNS, RATE = 3, 0.125


@pytest.fixture(autouse=True)
def _from_the_start() -> None:
    MODE.trace.restart()


def _elsewhere(work: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(60)
    return results[0]


class _Fit:
    """Least squares: (x w + b - t)**2, added up, and its gradients by hand in float64."""

    def __init__(self, rows: int = 4) -> None:
        self.rows = rows
        self.rng = np.random.default_rng(0)
        self.w = mt.tensor([0.5, -1.0, 2.0], requires_grad=True)
        self.b = mt.tensor([0.25], requires_grad=True)
        self.opt = mt.optim.SGD([self.w, self.b], lr=RATE)
        self.values = [np.array([0.5, -1.0, 2.0]), np.array([0.25])]
        self.gradients: list[Any] = [None, None]
        self.draw()

    def draw(self) -> None:
        self.x = self.rng.uniform(-0.5, 0.5, (self.rows, COLUMNS)).astype(np.float32)
        self.t = self.rng.uniform(-0.5, 0.5, self.rows).astype(np.float32)

    def loss(self) -> Any:
        difference = mt.from_numpy(self.x) @ self.w + self.b - mt.from_numpy(self.t)
        return (difference * difference).sum()

    def slopes(self) -> list[Any]:
        x = self.x.astype(np.float64)
        double = 2 * (x @ self.values[0] + self.values[1] - self.t)
        return [x.T @ double, double.sum(keepdims=True)]

    def forward(self, **options: Any) -> Any:
        """Up to and with backward(), after which the gradients should be ``gradients``."""
        self.draw()
        self.opt.zero_grad()
        loss = self.loss()
        loss.backward(**options)
        self.gradients = self.slopes()
        return loss

    def step(self) -> None:
        self.opt.step()
        self.values = [
            v if g is None else v - RATE * g
            for v, g in zip(self.values, self.gradients, strict=True)
        ]

    def look(self) -> None:
        for p, value in zip((self.w, self.b), self.values, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), value, rtol=1e-5, atol=1e-6)
        for p, gradient in zip((self.w, self.b), self.gradients, strict=True):
            if gradient is None:
                assert p.grad is None
            else:
                assert p.grad is not None
                assert not p.grad.requires_grad
                np.testing.assert_allclose(p.grad.numpy(), gradient, rtol=1e-5, atol=1e-6)

    def whole(self) -> None:
        self.forward()
        self.step()


def _owed(fit: _Fit) -> list[bool]:
    return [isinstance(p._gradient, Owed) for p in (fit.w, fit.b)]


def test_nobody_records_gradients_that_nobody_looks_at() -> None:
    fit = _Fit()
    for _ in range(2):
        fit.whole()
    for _ in range(3):
        before = EVENTS.get("repeated_updates")
        fit.forward()
        assert _owed(fit) == [True, True]
        fit.step()
        assert _owed(fit) == [True, True]
        assert EVENTS.get("repeated_updates") == before + 1
    fit.look()
    assert _owed(fit) == [False, False]
    assert fit.w.grad is fit.w.grad


def test_parameters_are_written_over_once_gradients_are_recorded() -> None:
    w, value = mt.tensor([0.5, -0.25], requires_grad=True), np.array([0.5, -0.25])
    for _ in range(4):
        opt = mt.optim.SGD([w], lr=RATE)  # has no step to repeat
        before = EVENTS.get("donations_declined")
        (w * w * w).sum().backward()
        opt.step()
        opt.zero_grad()
        assert EVENTS.get("donations_declined") == before
        value -= RATE * 3 * value**2
    np.testing.assert_allclose(w.detach().numpy(), value, rtol=1e-5)


# --- what may happen between backward() and step() -----------------------------------------------


def _nothing(fit: _Fit, loss: Any) -> None:
    pass


def _read(fit: _Fit, loss: Any) -> None:
    fit.look()


def _replaced(fit: _Fit, loss: Any) -> None:
    fit.w.grad = mt.tensor([1.0, 2.0, 3.0])
    fit.gradients[0] = np.array([1.0, 2.0, 3.0])


def _dropped(fit: _Fit, loss: Any) -> None:
    fit.b.grad = None
    fit.gradients[1] = None


def _all_dropped(fit: _Fit, loss: Any) -> None:
    fit.opt.zero_grad()
    fit.gradients = [None, None]


def _zeroed(fit: _Fit, loss: Any) -> None:
    fit.opt.zero_grad(set_to_none=False)
    fit.gradients = [np.zeros(COLUMNS), np.zeros(1)]


def _changed(fit: _Fit, loss: Any) -> None:
    with mt.no_grad():
        fit.w.mul_(0.5)
    fit.values[0] = fit.values[0] * 0.5


def _rebound(fit: _Fit, loss: Any) -> None:
    fit.b.data = mt.tensor([0.75])
    fit.values[1] = np.array([0.75])


def _written_gradient(fit: _Fit, loss: Any) -> None:
    assert fit.w.grad is not None
    fit.w.grad.mul_(2.0)
    fit.gradients[0] = fit.gradients[0] * 2.0


def _evaluated(fit: _Fit, loss: Any) -> None:
    wanted = fit.x.astype(np.float64) @ fit.values[0] + fit.values[1] - fit.t
    assert loss.item() == pytest.approx((wanted**2).sum(), rel=1e-5)


def _evaluated_all(fit: _Fit, loss: Any) -> None:
    mt.eval(loss)
    assert fit.w.grad is not None
    assert not fit.w.grad.node.pending


def _more(fit: _Fit, loss: Any) -> None:
    fit.loss().backward()
    fit.gradients = [2 * g for g in fit.gradients]


def _frozen(fit: _Fit, loss: Any) -> None:
    fit.w.requires_grad_(False)
    fit.opt.step()
    fit.w.requires_grad_(True)
    fit.values = [v - RATE * g for v, g in zip(fit.values, fit.gradients, strict=True)]


def _late_hook(fit: _Fit, loss: Any) -> None:
    remove = fit.w.register_hook(lambda g: g * 100.0).remove
    fit.look()
    remove()


def _read_elsewhere(fit: _Fit, loss: Any) -> None:
    def read() -> Any:
        assert fit.w.grad is not None
        return fit.w.grad.numpy()

    np.testing.assert_allclose(_elsewhere(read), fit.gradients[0], rtol=1e-5, atol=1e-6)


def _stepped_elsewhere(fit: _Fit, loss: Any) -> None:
    _elsewhere(fit.step)


def _used_elsewhere(fit: _Fit, loss: Any) -> None:
    assert len(_elsewhere(lambda: (fit.w.detach() + loss.detach()).tolist())) == COLUMNS


def _copied(fit: _Fit, loss: Any) -> None:
    for other in (copy.copy(fit.w), copy.deepcopy(fit.w)):
        assert other.grad is not None
        np.testing.assert_allclose(other.grad.numpy(), fit.gradients[0], rtol=1e-5, atol=1e-6)


def _twice(fit: _Fit, loss: Any) -> None:
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def _stepped_twice(fit: _Fit, loss: Any) -> None:
    fit.step()


def _shared(fit: _Fit, loss: Any) -> None:
    other = mt.zeros(COLUMNS, requires_grad=True)
    other.grad = fit.w.grad
    fit.w.grad = None
    fit.gradients[0] = None


def _kept_view(fit: _Fit, loss: Any) -> None:
    kept = fit.w.detach().numpy()
    before = kept.copy()
    fit.step()
    np.testing.assert_array_equal(kept, before)


_BETWEEN = (
    *(_nothing, _read, _replaced, _dropped, _all_dropped, _zeroed, _changed, _rebound),
    *(_written_gradient, _evaluated, _evaluated_all, _more, _frozen, _late_hook),
    *(
        _read_elsewhere,
        _stepped_elsewhere,
        _used_elsewhere,
        _copied,
        _twice,
        _stepped_twice,
        _shared,
        _kept_view,
    ),
)


@pytest.mark.parametrize("looking", [False, True])
@pytest.mark.parametrize("between", _BETWEEN, ids=lambda f: f.__name__)
def test_whatever_happens_between_backward_and_step(between: Any, looking: bool) -> None:
    fit = _Fit()
    for number in range(9):
        loss = fit.forward()
        if number > 2 and number % 3 != 2:
            assert _owed(fit) == [True, True]
            between(fit, loss)
        fit.step()
        if looking or number == 8:
            fit.look()


def test_a_graph_that_is_kept_gives_gradients_again() -> None:
    fit = _Fit()
    for _ in range(5):
        loss = fit.forward(retain_graph=True)
        once = fit.gradients
        fit.step()
        fit.opt.zero_grad()
        loss.backward()  # with the values from before the step
        fit.gradients = once
        fit.look()


def test_gradients_accumulate_over_steps() -> None:
    fit = _Fit()
    for number in range(8):
        fit.draw()
        if number % 2 == 0:
            fit.opt.zero_grad()
            fit.gradients = [0.0, 0.0]
        fit.loss().backward()
        fit.gradients = [a + g for a, g in zip(fit.gradients, fit.slopes(), strict=True)]
        fit.step()
    fit.look()


def test_gradients_without_a_step() -> None:
    fit = _Fit()
    for _ in range(5):
        loss = fit.forward()
        del loss
        fit.look()
    kept = []
    for _ in range(3):
        fit.forward()
        kept.append((fit.w.grad, fit.gradients[0]))
        fit.step()
    for g, wanted in kept:
        assert g is not None
        np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_gradients_of_two_models_at_once() -> None:
    fits = [_Fit(), _Fit()]
    for _ in range(6):
        losses = [fit.forward() for fit in fits]
        del losses
        for fit in fits:
            fit.step()
    for fit in fits:
        fit.look()


def test_an_optimizer_of_some_of_the_parameters() -> None:
    fit = _Fit()
    fit.opt.param_groups[0]["params"] = [fit.w]
    for _ in range(5):
        fit.b.grad = None
        fit.forward()
        fit.opt.step()
        fit.values[0] = fit.values[0] - RATE * fit.gradients[0]
    fit.look()


def test_owed_gradients_are_interrupted_and_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = _Fit()
    for _ in range(3):
        fit.whole()
    fit.forward()
    wrap = mt.Tensor._wrap
    left = [1]

    def interrupted(node: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return wrap(node)

    with monkeypatch.context() as patch:
        patch.setattr(mt.Tensor, "_wrap", staticmethod(interrupted))
        with pytest.raises(KeyboardInterrupt):
            _ = fit.w.grad
    assert sorted(_owed(fit)) == [False, True]
    fit.step()
    fit.look()
    for _ in range(3):
        fit.whole()
    fit.look()


def test_a_program_that_was_interrupted_leaves_gradients_owed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit = _Fit()
    for _ in range(3):
        fit.whole()
    fit.forward()

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(lazy.last_executor()), "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit.opt.step()
    assert _owed(fit) == [True, True]
    fit.look()
    fit.step()
    fit.look()


def test_gradients_are_recorded_in_the_place_of_backward() -> None:
    """Asked for later or at once, they make the same program."""
    fit = _Fit(rows=7)  # as no other test: the first backward() is not known
    total = mt.tensor(0.0)
    lazy.clear_cache()
    programs = 0
    for number in range(4):
        loss = fit.forward()
        total = total + loss.detach()
        assert fit.w.grad is not None
        fit.w.grad.mul_(0.5)
        fit.gradients[0] = fit.gradients[0] * 0.5
        fit.step()
        if number == 0:
            programs = len(lazy.executors())
    assert len(lazy.executors()) == programs
    fit.look()


def test_what_gradients_are_owed_from_is_let_go() -> None:
    class Big(np.ndarray[Any, Any]):
        """An array that tells when it is gone."""

    fit = _Fit()
    for number in range(5):
        x = fit.x.copy().view(Big)
        gone = weakref.ref(x)
        fit.opt.zero_grad()
        loss = ((mt.from_numpy(x) @ fit.w + fit.b) * 1.0).sum()
        loss.backward()
        del x, loss
        if number == 3:
            fit.opt.zero_grad()  # nobody waits for them any more
        else:
            assert gone() is not None
            fit.opt.step()
        gc.collect()
        assert gone() is None


def test_the_line_of_gradients_is_that_of_backward() -> None:
    for _ in range(4):
        w = mt.tensor([1.0, 2.0], requires_grad=True)
        loss = (w * w).sum()
        loss.backward()
        grad = w.grad
        assert grad is not None
        place = grad.node.place
        assert place is not None
        lines = {(start, end): line for start, end, line in place[0].co_lines()}
        (line,) = {n for (start, end), n in lines.items() if start <= place[1] < end}
        with open(__file__) as file:
            assert file.readlines()[line - 1].strip() == "loss.backward()"  # type: ignore[operator]
