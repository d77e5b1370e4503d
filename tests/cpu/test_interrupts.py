"""Ctrl-C while a program runs: what was computed is there, once, and the exception comes behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy, nn
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.nn import functional as F
from minitorch_tvm.optim.optimizer import Optimizer
from minitorch_tvm.runtime.memory import Buffer

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda ps: mt.optim.SGD(ps, lr=0.1, momentum=0.9),
    "adamw": lambda ps: mt.optim.AdamW(ps, lr=0.01),
}


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Of what runs in the background of a shell, the signal is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _interrupted(executor: Any, patch: pytest.MonkeyPatch) -> None:
    """Let the next run of ``executor`` end in a signal."""
    entry = executor._entry

    def once(table: Any) -> None:
        entry(table)
        executor._entry = entry
        signal.raise_signal(signal.SIGINT)

    patch.setattr(executor, "_entry", once)


def _train(
    optimizer: str, way: str, at: int | None, patch: pytest.MonkeyPatch
) -> list[list[np.ndarray]]:
    """Everything there is after each of nine steps, the one at ``at`` interrupted."""
    mt.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    opt = OPTIMIZERS[optimizer](net.parameters())
    if way == "recorded":
        patch.setattr(Optimizer, "_reads", lambda self: None)

    def step(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    run = mt.compile(step) if way == "compiled" else step
    rng = np.random.default_rng(0)
    seen = []
    for i in range(9):
        x = mt.tensor(rng.standard_normal((5, 6)), dtype=mt.float32)
        y = mt.tensor(rng.integers(0, 3, 5))
        if i == at:
            _interrupted(lazy.last_executor(), patch)
            with pytest.raises(KeyboardInterrupt):
                run(x, y)
        else:
            run(x, y)
        tensors = [*net.state_dict().values(), *(p.grad for p in net.parameters())]
        tensors += [v for s in opt.state.values() for v in s.values() if isinstance(v, mt.Tensor)]
        seen.append([t.detach().numpy().copy() for t in tensors])
    return seen


@pytest.mark.parametrize("way", ["recorded", "repeated", "compiled"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_interrupted_step_is_done_once(
    optimizer: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        want = _train(optimizer, way, None, patch)
    counters = {"repeated": "repeated_updates", "compiled": "captured_calls"}
    before = {name: EVENTS.get(name) for name in counters.values()}
    with monkeypatch.context() as patch:
        got = _train(optimizer, way, 6, patch)
    for name, counter in counters.items():
        assert (EVENTS.get(counter) > before[counter]) == (name == way)
    for number, (a, b) in enumerate(zip(want, got, strict=True)):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=f"step {number}")


def test_an_interrupted_evaluation_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    w = mt.zeros(4)
    for _ in range(3):
        w.add_(1.0)
        mt.eval(w)
    _interrupted(lazy.last_executor(), monkeypatch)
    w.add_(1.0)
    with pytest.raises(KeyboardInterrupt):
        mt.eval(w)
    assert w.tolist() == [4.0] * 4


def test_a_program_that_fails_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the compiled code itself is no signal: nothing may be taken for computed."""
    w = mt.zeros(4)
    for _ in range(2):
        w.add_(1.0)
        mt.eval(w)
    executor = lazy.last_executor()

    def fails(_: Any) -> None:
        raise type("Failure", (RuntimeError,), {"__tvm_ffi_error__": None})("no threads")

    w.add_(1.0)
    with monkeypatch.context() as patch:
        patch.setattr(executor, "_entry", fails)
        with pytest.raises(RuntimeError, match="no threads"):
            mt.eval(w)
    assert w.tolist() == [3.0] * 4


_WHILE_IMPORTING = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)
import minitorch_tvm as mt
interrupted = []

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "tvm.tirx" and not interrupted:
            interrupted.append(name)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
x = mt.ones(3) + 1
try:
    x.realize()
except KeyboardInterrupt:
    print("interrupted", x.tolist(), (mt.ones(3) + 2).tolist(), interrupted)
"""


def test_an_interrupted_import_of_the_compiler_is_finished() -> None:
    """Half of a package in a process is worse than none: it cannot be imported again."""
    done = subprocess.run(
        [sys.executable, "-c", _WHILE_IMPORTING],
        env={**os.environ, "MTVM_CACHE_DIR": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "interrupted [2.0, 2.0, 2.0] [3.0, 3.0, 3.0] ['tvm.tirx']"


def interrupting_views(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list, from the end of which each view of memory takes a number; at 0 it interrupts."""
    view = Buffer.numpy
    left: list[int] = []

    def interrupting(self: Buffer, *arguments: Any) -> np.ndarray:
        if left and not left.pop():
            signal.raise_signal(signal.SIGINT)
        return view(self, *arguments)

    monkeypatch.setattr(Buffer, "numpy", interrupting)
    return left


@pytest.mark.filterwarnings("ignore:.*computes with ever longer tensors")
def test_what_numpy_runs_is_not_left_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that grow are run by it: some of what they overwrite would be computed twice."""
    lazy.clear_cache()
    left = interrupting_views(monkeypatch)
    seen = 0
    with config.override(growing=True):
        for n in range(1, 16):
            a, b = mt.zeros(n), mt.ones(n)
            mt.eval(a, b)
            before = EVENTS.get("reference_calls")
            a.add_(1.0)
            b.mul_(2.0)
            left[:] = [0, *[1] * (n % 6)]
            try:
                mt.eval(a, b)
            except KeyboardInterrupt:
                seen += EVENTS.get("reference_calls") > before
            left.clear()
            assert a.tolist() == [1.0] * n
            assert b.tolist() == [2.0] * n
    assert seen > 3
    lazy.clear_cache()


@pytest.mark.parametrize("varying", [False, True])
def test_what_is_written_to_an_array_is_written_once(
    varying: bool, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    lazy.clear_cache()
    left = interrupting_views(monkeypatch)
    seen = 0
    before = EVENTS.get("padded_runs")
    with config.override(varying=varying):
        for number, n in enumerate(rng.integers(20, 60, 24).tolist()):
            array = np.ones((n, 2), np.float32)
            x = mt.from_numpy(array)
            old = x.clone()
            x *= 3
            y = x[1:] * 2
            left[:] = [0, *[1] * (number % 8)]
            try:
                mt.eval(x, y)
            except KeyboardInterrupt:
                seen += 1
            left.clear()
            mt.eval(x, y)
            assert (array == 3).all(), number
            assert (y.numpy() == 6).all()
            assert (old.numpy() == 1).all()
    assert seen > 5
    assert (EVENTS.get("padded_runs") > before) is varying
    lazy.clear_cache()
