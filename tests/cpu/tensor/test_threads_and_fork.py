"""Several Python threads, and child processes made by fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.core import config


def _parallel(work: Callable[[int], Any], count: int = 4) -> list[Any]:
    """``work(0)``, ``work(1)``, ... each in a thread of its own, all starting together."""
    results: list[Any] = [None] * count
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    for r in results:
        if isinstance(r, BaseException):
            raise r
    return results


def test_independent_tensors() -> None:
    def work(number: int) -> list[float]:
        w = mt.full((3,), float(number), requires_grad=True)
        for _ in range(25):
            loss = ((w - 1) ** 2).sum()
            w.grad = None
            loss.backward()
            assert w.grad is not None
            with mt.no_grad():
                w.sub_(w.grad * 0.25)
            mt.eval(w)
        return w.tolist()  # type: ignore[no-any-return]

    for number, got in enumerate(_parallel(work)):
        want = 1 + (number - 1) * 0.5**25
        np.testing.assert_allclose(got, [want] * 3, rtol=1e-6)


def test_shared_inputs_and_shared_pending_values() -> None:
    shared = mt.arange(1000, dtype=mt.float32)
    mt.eval(shared)
    pending = shared * 2  # recorded here, computed by whichever thread comes first

    def work(number: int) -> float:
        return ((pending + number) * shared).sum().item()

    total, squares = 999 * 1000 / 2, 999 * 1000 * 1999 / 6
    for number, got in enumerate(_parallel(work)):
        assert got == pytest.approx(2 * squares + number * total, rel=1e-5)
    assert pending[999].item() == 1998.0


def test_a_value_made_in_one_thread_is_read_in_another() -> None:
    made: dict[str, mt.Tensor] = {}
    thread = threading.Thread(target=lambda: made.update(y=mt.ones(3) * 4))
    thread.start()
    thread.join()
    assert made["y"].tolist() == [4.0] * 3


def test_grad_mode_belongs_to_the_thread() -> None:
    with mt.no_grad():
        assert _parallel(lambda _: mt.is_grad_enabled()) == [True] * 4
        assert not mt.is_grad_enabled()


def test_no_sync_belongs_to_the_thread() -> None:
    with mt.no_sync():
        assert _parallel(lambda n: (mt.ones(2) * n).sum().item()) == [0.0, 2.0, 4.0, 6.0]


def _prints(program: str, words: str) -> None:
    """Runs it in a process of its own, which must not hang."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=20,
        env=dict(os.environ),
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, words), done.stderr


CHILD = """
import os, sys
import minitorch_tvm as mt

def work():
    x = mt.rand(300, 300)
    w = mt.rand(300, 300, requires_grad=True)
    (x @ w).relu().sum().backward()
    return float(w.grad.sum())

mt.manual_seed(0)
before = work()
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    mt.manual_seed(0)
    os.write(write, repr(work()).encode())
    os._exit(0)
os.close(write)
child = float(os.read(read, 100))
_, status = os.waitpid(pid, 0)
assert status == 0, status
mt.manual_seed(0)
print(before == child == work())
"""


def test_a_forked_child_computes_and_does_not_hang() -> None:
    _prints(CHILD, "True")


LOCKED = """
import numpy as np
import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler.queues import QUEUE_BYTES
from minitorch_tvm.compiler.steps import _HEADER

mt.set_num_threads(2)
x = mt.rand(300, 300).realize()
before = (x @ x).sum().item()
executor = lazy.last_executor()
words = executor._steps.numpy((executor._steps.nbytes // 8,), mt.int64)
queues = words[words[_HEADER.index("queues")] // 8 :]
assert len(queues) % (QUEUE_BYTES // 8) == 0 and len(queues) > 0
queues[:: QUEUE_BYTES // 8] = 1  # the first word of a lock that a thread has
print(before == (x @ x).sum().item(), lazy.last_executor() is executor)
"""


def test_locks_that_nobody_will_open_do_not_stop_a_program() -> None:
    """As in a child that was forked while another thread ran one."""
    _prints(LOCKED, "True True")


def _model(rng: np.random.Generator, *layers: nn.Module) -> nn.Sequential:
    net = nn.Sequential(*layers).double()
    with mt.no_grad():
        for p in net.parameters():
            p.copy_(mt.tensor(rng.normal(size=tuple(p.shape))))
    return net


def _trained(
    seed: int, writes: bool, between: Callable[[], object] = int
) -> list[np.ndarray[Any, Any]]:
    """A model of its own; ``writes``: with writes to its input and to a view of its output, and
    something ``between`` them and the step."""
    rng = np.random.default_rng(seed)
    layers = [nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)]
    net = _model(rng, *layers[1:] if writes else layers)
    optimizer = mt.optim.SGD(net.parameters(), lr=0.05)
    x = mt.tensor(rng.normal(size=(4, 6)))
    for _ in range(8):
        optimizer.zero_grad()
        z = net(x)
        (z * z).mean().backward()
        if writes:
            with mt.no_grad():
                x.mul_(1.01)
                y = net(x)
                part = y.view(-1)[::2]
                part.zero_()
            between()
            z = net(x)
            (z * z).mean().backward()
        optimizer.step()
    return [t.detach().numpy().copy() for t in (x, *net.parameters())]


@pytest.mark.parametrize("writes", [False, True])
def test_threads_that_share_nothing(writes: bool) -> None:
    # Without native calls, in which threads wait for each other, they meet more often.
    with config.override(target="numpy"):
        wanted = [_trained(seed, writes) for seed in range(3)]

        def run(seed: int) -> None:
            for _ in range(20):
                for a, b in zip(_trained(seed, writes), wanted[seed], strict=True):
                    np.testing.assert_array_equal(a, b)

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # they meet in the middle of a recording
        try:
            _parallel(run, 3)
        finally:
            sys.setswitchinterval(before)


def _elsewhere(evaluate: Callable[[], object]) -> None:
    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()


@pytest.mark.parametrize("target", ["numpy", "cpu"])
def test_another_thread_evaluates_before_gradients_are_asked_for(target: str) -> None:
    def twice() -> None:
        for n in range(2):
            mt.eval(mt.ones(3) + n)

    with config.override(target=target):
        found = _trained(0, True, lambda: _elsewhere(twice))
        for a, b in zip(found, _trained(0, True), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("target", ["numpy", "cpu"])
def test_another_thread_evaluates_what_reads_the_same(target: str) -> None:
    """It computes what is pending in both, from memory that gradients will be computed from."""

    def trained(between: Callable[[mt.Tensor], object]) -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        net = _model(rng, nn.ReLU(), nn.Linear(6, 6))
        optimizer = mt.optim.SGD(net.parameters(), lr=0.05)
        x = mt.tensor(rng.normal(size=(4, 6)))
        for _ in range(6):
            optimizer.zero_grad()
            z = net(x)
            (z * z).mean().backward()
            with mt.no_grad():
                x.mul_(1.01)
            between(x)
            optimizer.step()
        return [t.detach().numpy().copy() for t in (x, *net.parameters())]

    with config.override(target=target):
        found = trained(lambda x: _elsewhere(lambda: mt.eval(x * 2.0)))
        for a, b in zip(found, trained(lambda _: None), strict=True):
            np.testing.assert_array_equal(a, b)
