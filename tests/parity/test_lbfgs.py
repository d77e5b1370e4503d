"""optim.LBFGS takes PyTorch's steps."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core.events import EVENTS

torch = pytest.importorskip("torch")

_RNG = np.random.default_rng(7)
_A, _Y = _RNG.normal(size=(12, 4)), _RNG.normal(size=(12, 3))


def _rosenbrock(lib: Any, ps: list[Any]) -> Any:
    x, y = ps[0], ps[1]
    return (100 * (y - x**2) ** 2 + (1 - x) ** 2).sum()


def _regression(lib: Any, ps: list[Any]) -> Any:
    out = (lib.tensor(_A) @ ps[0]).tanh() @ ps[1]
    return ((out - lib.tensor(_Y)) ** 2).mean()


def _rough(lib: Any, ps: list[Any]) -> Any:
    return (ps[0].abs() ** 1.5 + (ps[0] * 9).sin()).sum() + (ps[1] - ps[0]).exp().sum()


PROBLEMS: dict[str, tuple[Callable[[Any, list[Any]], Any], list[Any]]] = {
    "rosenbrock": (_rosenbrock, [np.array([-1.5, 0.3]), np.array([2.0, -1.0])]),
    "regression": (_regression, [_RNG.normal(size=(4, 5)), _RNG.normal(size=(5, 3))]),
    "rough": (_rough, [np.array([2.0, -3.0, 0.5]), np.array([1.0, 1.0, -2.0])]),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"lr": 0.1, "max_iter": 4},
    {"lr": 0.01, "history_size": 2, "max_iter": 7, "max_eval": 5},
    {"line_search_fn": "strong_wolfe"},
    {"line_search_fn": "strong_wolfe", "lr": 5.0, "max_iter": 3, "history_size": 3},
    {"line_search_fn": "strong_wolfe", "lr": 1e-3, "max_iter": 5},
    {"line_search_fn": "strong_wolfe", "lr": 1e3, "max_iter": 2},
]


def _run(lib: Any, problem: str, options: dict[str, Any], steps: int) -> tuple[Any, ...]:
    function, start = PROBLEMS[problem]
    ps = [lib.tensor(a, requires_grad=True) for a in start]
    unused = lib.tensor([1.0], requires_grad=True, dtype=lib.float64)
    optimizer = lib.optim.LBFGS([*ps, unused], **options)
    calls = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = function(lib, ps)
        loss.backward()
        calls.append(loss.item())
        return loss

    returned = [optimizer.step(closure).item() for _ in range(steps)]
    return returned, calls, [p.detach().numpy() for p in ps], optimizer


def _arrays(value: Any) -> list[np.ndarray]:
    values = value if isinstance(value, list) else [value]
    return [np.asarray(v.numpy() if hasattr(v, "numpy") else v) for v in values] or [np.empty(0)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_steps_equal_torchs(problem: str, options: dict[str, Any]) -> None:
    steps = 20 if options.get("max_iter", 20) < 5 else 3
    got, wanted = (_run(lib, problem, options, steps) for lib in (mt, torch))
    assert len(got[1]) == len(wanted[1])
    # Where steps diverge, so do rounding errors.
    finite = np.isfinite(wanted[1]) & (np.abs(wanted[1]) < 1e6)
    for a, b in zip(got[:2], wanted[:2], strict=True):
        if finite.all():
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9)
    if finite.all():
        for a, b in zip(got[2], wanted[2], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    ours, theirs = (r[3].state_dict() for r in (got, wanted))
    assert ours["param_groups"] == theirs["param_groups"]
    for name in ("func_evals", "n_iter"):
        assert ours["state"][0][name] == theirs["state"][0][name]
    assert {*ours["state"][0]} == {*theirs["state"][0]} - {"al"}
    if finite.all():
        for name, value in ours["state"][0].items():
            a, b = (np.stack(_arrays(v)) for v in (value, theirs["state"][0][name]))
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6, err_msg=name)
    assert repr(got[3]) == repr(wanted[3])


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_state_continues(line_search: str | None) -> None:
    options = {"max_iter": 3, "line_search_fn": line_search, "lr": 0.05}
    *_, whole, _ = _run(mt, "rosenbrock", options, 4)
    *_, half, optimizer = _run(mt, "rosenbrock", options, 2)
    ps = [mt.tensor(a, requires_grad=True) for a in half]
    unused = mt.tensor([1.0], requires_grad=True, dtype=mt.float64)
    again = mt.optim.LBFGS([*ps, unused], **options)
    again.load_state_dict(optimizer.state_dict())

    def closure() -> Any:
        again.zero_grad()
        loss = _rosenbrock(mt, ps)
        loss.backward()
        return loss

    for _ in range(2):
        again.step(closure)
    for a, b in zip(ps, whole, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b, rtol=1e-9)


def test_single_precision_finds_the_minimum() -> None:
    w = mt.zeros(3, requires_grad=True)
    optimizer = mt.optim.LBFGS([w], line_search_fn="strong_wolfe", max_iter=100)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (mt.tensor([1.0, 30.0, 900.0]) * (w - mt.tensor([1.0, -2.0, 3.0])) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    np.testing.assert_allclose(w.detach().numpy(), [1, -2, 3], rtol=1e-4)


def test_a_longer_history_compiles_nothing_new() -> None:
    def compiled(max_iter: int) -> int:
        before = EVENTS.get("compiles")
        _run(mt, "regression", {"max_iter": max_iter, "line_search_fn": "strong_wolfe"}, 1)
        return EVENTS.get("compiles") - before

    compiled(3)
    assert compiled(30) == 0


def test_a_step_at_the_minimum_counts() -> None:
    """A scheduler behind it does not warn that there was none."""
    w = mt.zeros(2, requires_grad=True)
    optimizer = mt.optim.LBFGS([w])
    scheduler = mt.optim.lr_scheduler.StepLR(optimizer, 1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()


def test_signature_and_mistakes() -> None:
    def described(f: Any) -> list[Any]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]

    assert described(mt.optim.LBFGS.__init__) == described(torch.optim.LBFGS.__init__)
    mistakes: list[Callable[[Any, Any], Any]] = [
        lambda lib, w: lib.optim.LBFGS([{"params": [w]}, {"params": [lib.ones(1)]}]),
        lambda lib, w: lib.optim.LBFGS([w], lr=-1),
        lambda lib, w: lib.optim.LBFGS([w]).step(),
        lambda lib, w: _stepped(lib.optim.LBFGS([w], line_search_fn="wolfe"), w),
    ]
    for mistake in mistakes:
        found = []
        for lib in (mt, torch):
            with pytest.raises(Exception) as caught:
                mistake(lib, lib.ones(1, requires_grad=True))
            found.append((type(caught.value), str(caught.value)))
        assert found[0] == found[1]


def _stepped(optimizer: Any, w: Any) -> None:
    def closure() -> Any:
        loss = (w * 3).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
