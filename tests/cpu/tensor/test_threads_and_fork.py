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
