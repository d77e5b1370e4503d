"""Clipping gradients that backward() has put off does what it does to those that are recorded."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from either_way import compare

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.tape import Amending
from minitorch_tvm.nn import functional as F

clip_norm, clip_value = nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_


class _Run:
    """A model in training, and what a program sees of it."""

    def __init__(self, seed: int = 0) -> None:
        mt.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        self.params = list(self.net.parameters())
        self.opt = mt.optim.SGD(self.params, lr=0.1, momentum=0.9)
        self.rng, self.batches = random.Random(seed), 0
        self.kept: list[Any] = []
        self.seen: list[Any] = []

    def backward(self) -> Any:
        self.batches += 1
        rng = np.random.default_rng(self.batches)
        x = mt.from_numpy(rng.normal(size=(6, 5)).astype(np.float32))
        loss = F.cross_entropy(self.net(x), mt.from_numpy(rng.integers(0, 3, 6)))
        loss.backward()
        return loss

    def gradients(self) -> Any:
        self.opt.zero_grad()
        return self.backward()

    def see(self, *tensors: Any) -> None:
        self.seen += [t if t is None else np.array(t.detach().numpy()) for t in tensors]

    def look(self) -> None:
        self.see(*self.params, *[p.grad for p in self.params], *self.kept)


def _usual(r: _Run) -> None:
    r.gradients()
    clip_norm(r.params, 0.3)
    r.opt.step()


def _norm_behind(r: _Run) -> None:
    r.gradients()
    norm = clip_norm(r.params, 0.3)
    r.opt.step()
    r.see(norm)


def _norm_before(r: _Run) -> None:
    r.gradients()
    norm = clip_norm(r.net.parameters(), r.rng.choice([0.1, 0.2, 1.0, 1e-6, float("inf"), 1e39]))
    r.see(norm)
    r.opt.step()


def _norm_used(r: _Run) -> None:
    loss = r.gradients()
    norm = clip_norm(r.params, 0.25)
    total = norm * 2 + loss.detach()
    del norm
    r.opt.step()
    r.see(total)


def _norm_kept(r: _Run) -> None:
    r.gradients()
    r.kept.append(clip_norm(r.params, 0.2))
    r.opt.step()


def _norm_changed(r: _Run) -> None:
    r.gradients()
    norm = clip_norm(r.params, 0.2)
    norm.mul_(2.0)
    r.opt.step()
    r.see(norm)


def _other_norms(r: _Run) -> None:
    r.gradients()
    r.see(clip_norm(r.params, 0.2, r.rng.choice([0.0, 1.0, 3.0, float("inf"), -float("inf")])))
    r.opt.step()


def _values(r: _Run) -> None:
    r.gradients()
    clip_value(r.params, r.rng.choice([0.01, 0.02]))
    r.opt.step()


def _both(r: _Run) -> None:
    r.gradients()
    clip_value(r.params, 0.05)
    norm = clip_norm(r.params, 0.1)
    clip_value(r.params, 0.04)
    r.opt.step()
    r.see(norm)


def _twice(r: _Run) -> None:
    r.gradients()
    first = clip_norm(r.params, 0.2)
    second = clip_norm(r.params, 0.1)
    r.see(first, second) if r.rng.random() < 0.5 else None
    r.opt.step()
    r.see(first, second)


def _some(r: _Run) -> None:
    r.gradients()
    norm = clip_norm(r.params[:2], 0.02)
    clip_norm(r.params[3], 0.03)
    r.opt.step()
    r.see(norm)


def _one_of_them_twice(r: _Run) -> None:
    r.gradients()
    clip_norm([r.params[0], *r.params], 0.1)
    r.opt.step()


def _some_dropped(r: _Run) -> None:
    r.gradients()
    r.params[1].grad = None
    clip_norm(r.params, 0.1)
    r.opt.step()


def _some_replaced(r: _Run) -> None:
    r.gradients()
    p = r.rng.choice(r.params)
    p.grad = mt.from_numpy(np.full(tuple(p.shape), 0.125, np.float32))
    clip_norm(r.params, 0.1)
    r.opt.step()


def _dropped_behind(r: _Run) -> None:
    r.gradients()
    norm = clip_norm(r.params, 0.1)
    r.opt.zero_grad()
    r.see(norm)
    r.backward()
    r.opt.step()


def _looked_at_before(r: _Run) -> None:
    r.gradients()
    r.see(r.params[1].grad)
    clip_norm(r.params, 0.1)
    r.opt.step()


def _held_before(r: _Run) -> None:
    r.gradients()
    g = r.params[1].grad
    clip_norm(r.params, 0.1)
    r.opt.step()
    r.see(g)


def _looked_at_behind(r: _Run) -> None:
    r.gradients()
    norm = clip_norm(r.params, 0.1)
    r.see(r.params[2].grad)
    r.opt.step()
    r.see(norm)


def _accumulated(r: _Run) -> None:
    r.gradients()
    norm = clip_norm(r.params, 0.1)
    r.backward()
    norm_of_both = clip_norm(r.params, 0.1)
    r.opt.step()
    r.see(norm, norm_of_both)


def _recorded_between(r: _Run) -> None:
    loss = r.gradients()
    twice = loss.detach() * 2
    clip_norm(r.params, 0.1)
    r.opt.step()
    r.see(twice)


def _strict(r: _Run) -> None:
    r.gradients()
    r.see(clip_norm(r.params, 0.1, error_if_nonfinite=True))
    r.opt.step()


def _by_hand(r: _Run) -> None:
    r.gradients()
    norm = nn.utils.get_total_norm([p.grad for p in r.params if p.grad is not None])
    nn.utils.clip_grads_with_norm_(r.params, 0.1, norm)
    r.opt.step()
    r.see(norm)


def _elsewhere(r: _Run) -> None:
    r.gradients()
    norm = clip_norm(r.params, 0.1)

    def see() -> None:
        r.see(norm * 2 if r.rng.random() < 0.5 else r.params[0].grad)

    thread = threading.Thread(target=see)
    thread.start()
    thread.join()
    r.opt.step()
    r.see(norm)


def _no_step(r: _Run) -> None:
    r.gradients()
    clip_norm(r.params, 0.1)


def _frozen(r: _Run) -> None:
    r.params[0].requires_grad_(not r.params[0].requires_grad)


_ACTIONS = (
    *(_usual, _norm_behind, _norm_before, _norm_used, _norm_kept, _norm_changed, _other_norms),
    *(_values, _both, _twice, _some, _one_of_them_twice, _some_dropped, _dropped_behind),
    *(
        _some_replaced,
        _looked_at_before,
        _held_before,
        _looked_at_behind,
        _accumulated,
        _recorded_between,
    ),
    *(_strict, _by_hand, _elsewhere, _no_step, _frozen),
)
_AGAIN = {  # put off once it is known
    *(_usual, _norm_behind, _norm_before, _norm_used, _norm_kept, _norm_changed, _other_norms),
    *(_values, _both, _twice, _some, _some_dropped, _dropped_behind, _looked_at_behind),
    *(_accumulated, _elsewhere, _no_step),
}


@contextmanager
def _always_recorded() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Amending, "of", lambda *_: None)
        yield


def _compare(program: list[Callable[[_Run], None]], seed: int, look: float) -> None:
    def seen(program: list[Any]) -> list[Any]:
        run = _Run(seed)
        for action in program:
            action(run)
            if run.rng.random() < look:
                run.look()
        run.look()
        return run.seen

    compare(seen, program, _always_recorded)


def _again(work: Callable[[], Any]) -> int:
    before = EVENTS.get("repeated_amendments")
    work()
    return EVENTS.get("repeated_amendments") - before


@pytest.mark.parametrize("action", _ACTIONS, ids=lambda f: f.__name__)
def test_clipping_again_is_clipping(action: Any) -> None:
    with config.override(target="numpy"):
        for look in (0.0, 1.0):
            _compare([*[_usual] * 3, *[action] * 6, _usual, action], 0, look)
        run = _Run()
        count = _again(lambda: [action(run) for _ in range(6)])
    assert bool(count) == (action in _AGAIN)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    some = rng.sample(_ACTIONS, 3)
    program = [rng.choice(some) if rng.random() < 0.8 else rng.choice(_ACTIONS) for _ in range(30)]
    with config.override(target="numpy"):
        _compare(program, seed, rng.choice((0.0, 0.1, 0.5)))


def test_a_step_with_clipping_is_one_known_program() -> None:
    run = _Run()
    for _ in range(5):
        _usual(run)
    before = {n: EVENTS.get(n) for n in ("native_calls", "repeated_updates", "compiles")}
    assert _again(lambda: [_usual(run) for _ in range(10)]) == 10
    after = {n: EVENTS.get(n) - count for n, count in before.items()}
    assert after == {"native_calls": 10, "repeated_updates": 10, "compiles": 0}


@pytest.mark.parametrize("look", [_usual, _by_hand, lambda r: r.opt.step()])
def test_eager_mode_while_gradients_are_owed(look: Any) -> None:
    run, plain = _Run(), _Run()
    with config.override(target="numpy"):
        for _ in range(5):
            _usual(run)
            _usual(plain)
        for r, mode in ((run, "eager"), (plain, config.CONFIG.mode)):
            r.gradients()
            with config.override(mode=mode):
                r.see(r.params[0].grad)
                look(r)
            _usual(r)
            r.look()
    assert len(run.seen) == len(plain.seen)
    for a, b in zip(run.seen, plain.seen, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_reaches_all_gradients(bad: float) -> None:
    run = _Run()
    for _ in range(4):
        _usual(run)

    def clipped(factor: float) -> None:
        run.opt.zero_grad()
        (sum((p * p).sum() for p in run.params) * factor).backward()
        run.see(clip_norm(run.params, 0.1))

    counts = [_again(lambda x=x: clipped(x)) for x in (1.0, 1.0, 1.0, bad)]
    assert counts[-1] == 1
    assert np.isfinite(run.seen[-2])
    np.testing.assert_equal(run.seen[-1], np.float32(bad))
    assert all(np.isnan(p.grad.numpy()).all() for p in run.params)
