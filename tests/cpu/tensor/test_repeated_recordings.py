"""What is recorded a second time is recognised: the same results as without, and counted."""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy, nn
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir import node as node_module
from minitorch_tvm.ir import trace as trace_module
from minitorch_tvm.ir.node import MODE, leaf
from minitorch_tvm.ir.op import intern
from minitorch_tvm.ir.trace import Prefix, Trace
from minitorch_tvm.nn import functional as F
from minitorch_tvm.ops.movement import Reshape


@pytest.fixture(autouse=True)
def _from_the_start() -> None:
    MODE.trace.restart()


@contextmanager
def _counted(**wanted: int) -> Iterator[None]:
    before = {name: EVENTS.get(name) for name in wanted}
    yield
    assert {name: EVENTS.get(name) - n for name, n in before.items()} == wanted


@contextmanager
def _unrecognised() -> Iterator[None]:
    """Everything as if it were recorded the first time."""
    restart = Trace.restart

    def broken(self: Trace) -> None:
        restart(self)
        self.whole = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trace, "restart", broken)
        MODE.trace.restart()
        yield
    MODE.trace.restart()


def _step_of(optimizer: str, **options: Any) -> Callable[[int], Any]:
    mt.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    opt = getattr(mt.optim, optimizer)(net.parameters(), **options)

    def step(number: int) -> Any:
        rng = np.random.default_rng(number)
        opt.zero_grad()
        x = mt.from_numpy(rng.normal(size=(6, 5)).astype(np.float32))
        loss = F.cross_entropy(net(x), mt.from_numpy(rng.integers(0, 3, 6)))
        loss.backward()
        opt.step()
        grads = [p.grad.numpy().copy() for p in net.parameters()]
        return [loss.item(), *grads, *(p.detach().numpy().copy() for p in net.parameters())]

    return step


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9}), ("AdamW", {"lr": 0.01})],
)
def test_a_training_step_is_recognised_and_stays_the_same(
    optimizer: str, options: dict[str, Any]
) -> None:
    with _unrecognised():
        step = _step_of(optimizer, **options)
        with _counted(repeated_plans=0, repeated_backwards=0):
            wanted = [step(n) for n in range(5)]
    step = _step_of(optimizer, **options)
    got = [step(n) for n in range(2)]
    with _counted(repeated_plans=3, repeated_backwards=3, compiles=0):
        got += [step(n) for n in range(2, 5)]
    for a, b in zip(got, wanted, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def _meta_step() -> Callable[[], list[Any]]:
    mt.manual_seed(0)
    weights = [mt.randn(3, 1, requires_grad=True), mt.zeros(3, requires_grad=True)]
    weights.append(mt.randn(1, 3, requires_grad=True))
    opt = mt.optim.SGD(weights, lr=0.1)

    def loss(ws: list[Any], x: Any) -> Any:
        return F.mse_loss(F.linear(F.relu(F.linear(x, ws[0], ws[1])), ws[2]), x.sin())

    def step() -> list[Any]:
        fast, x = weights, mt.randn(6, 1)
        for _ in range(2):
            grads = mt.autograd.grad(loss(fast, x), fast, create_graph=True)
            fast = [w - 0.1 * g for w, g in zip(fast, grads, strict=True)]
        total = loss(fast, mt.randn(6, 1))
        opt.zero_grad()
        total.backward()
        opt.step()
        return [total.item(), *[w.grad.numpy().copy() for w in weights]]

    return step


def test_gradients_of_gradients_are_repeated() -> None:
    step = _meta_step()
    with _unrecognised(), _counted(repeated_grads=0):
        wanted = [step() for _ in range(5)]
    step = _meta_step()
    got = [step() for _ in range(2)]
    with _counted(repeated_grads=6, repeated_backwards=3, compiles=0):
        got += [step() for _ in range(3)]
    for a, b in zip(got, wanted, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_gradient_that_somebody_watches_is_not_repeated() -> None:
    x = mt.ones(3, requires_grad=True)

    def step(watch: str = "") -> tuple[Any, ...]:
        y = x.sin()
        if watch == "result":
            y.register_hook(lambda g: g * 2)
        remove = x.register_hook(lambda g: g * 3).remove if watch == "leaf" else None
        (g,) = mt.autograd.grad((y * y).sum(), x)
        if remove is not None:
            remove()
        return g.tolist()

    plain = [step(), step()][0]  # the first computes the leaf as well
    for watch, factor in (("", 1), ("result", 2), ("", 1), ("leaf", 3), ("", 1)):
        with _counted(repeated_grads=int(not watch)):
            np.testing.assert_allclose(step(watch), np.array(plain) * factor, 1e-6)


def test_what_a_source_was_before_is_a_source_too() -> None:
    def gradient(updated: bool) -> list[float]:
        x, y = (mt.tensor([1.0, 1.0], requires_grad=True) for _ in range(2))
        before = mt.Tensor(x)
        if updated:
            with mt.no_grad():
                x.add_(1.0)
            mt.eval(x)
        source = x if updated else y
        total = (before * 3).sum() + (source * 5).sum()
        return mt.autograd.grad(total, source)[0].tolist()

    for updated in (False, False, True, True, False):
        assert gradient(updated) == ([8.0, 8.0] if updated else [5.0, 5.0])


# --- random programs ----------------------------------------------------------------------------

# What does not show among the recorded operations comes last.
_ACTIONS = (
    *("leaf", "leaf", "parameter", "parameter", "relu", "scale", "view", "part", "detach", "clone"),
    *("add", "mul", "add", "mul", "write", "write_part", "drop", "backward", "backward", "clear"),
    *("read", "update", "quiet", "eval", "sin", "eval_one", "quiet_write", "quiet_copy", "grad"),
    *("grad", "grads", "grads"),
)
_HIDDEN = ("hook", "fail", "retain", "freeze", "thaw", "alias", "elsewhere", "met", "nothing")


def _program(seed: int) -> list[tuple[str, int, int]]:
    rng = random.Random(seed)
    start = [("parameter", 0, 0), ("parameter", 0, 0), ("leaf", 0, 0)]
    middle = [
        (
            rng.choice(_HIDDEN if rng.random() < 0.1 else _ACTIONS),
            rng.randrange(99),
            rng.randrange(99),
        )
        for _ in range(rng.randrange(5, 25))
    ]
    return [*start, *middle, ("backward", 98, 1), ("eval", 0, 0)]


def _variants(seed: int) -> list[list[tuple[str, int, int]]]:
    """A program, and the same with one thing in it that the recorded operations do not show."""
    rng = random.Random(seed)
    program = _program(seed)
    programs = [program]
    for hidden in rng.sample(_HIDDEN, 3):
        at = rng.randrange(3, len(program))
        new = (hidden, rng.randrange(99), rng.randrange(99))
        programs.append([*program[:at], new, *program[at:]])
    for _ in range(3):  # the same with other tensors somewhere
        at = rng.randrange(3, len(program))
        new = (program[at][0], rng.randrange(99), rng.randrange(99))
        programs.append([*program[:at], new, *program[at + 1 :]])
    return programs


def _elsewhere(work: Callable[[], Any]) -> Any:
    """The result of ``work``, done by another thread."""
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(work()))
    thread.start()
    thread.join()
    return made.pop()


def _failing(_: Any) -> None:
    raise RuntimeError("hook")


def _act(action: str, i: int, j: int, ts: list[Any], rng: Any) -> None:
    x, y = ts[i % len(ts)], ts[j % len(ts)]
    if action in ("leaf", "parameter"):
        array = rng.normal(size=(2, 3)).astype(np.float32)
        ts.append(mt.tensor(array, requires_grad=action == "parameter"))
    elif action == "relu":
        ts.append(x.relu())
    elif action == "scale":
        ts.append(x * float(rng.normal()))
    elif action == "view":
        ts.append(x.reshape(3, 2).reshape(2, 3))
    elif action == "part":
        ts.append(x[:1].expand(2, 3))
    elif action == "detach":
        ts.append(x.detach())
    elif action == "clone":
        ts.append(x.clone())
    elif action in ("add", "mul"):
        ts.append(x + y if action == "add" else x * y)
    elif action == "write":
        x.mul_(y.detach())
    elif action == "write_part":
        x[0] = y[1]
    elif action == "drop":
        if len(ts) > 3:
            ts.pop(i % len(ts))
    elif action == "backward":
        (x * x).sum().backward(retain_graph=bool(j % 2))
    elif action == "clear":
        for t in ts:
            t.grad = None
    elif action == "read":
        x.detach().numpy()
    elif action == "update":
        with mt.no_grad():
            for t in ts:
                if t.is_leaf and t.grad is not None:
                    t.sub_(t.grad * 0.25)
    elif action == "quiet":
        with mt.no_grad():
            ts.append(x * y)
    elif action == "eval":
        mt.eval(*ts)
    elif action == "sin":
        ts.append(x.sin())
    elif action == "eval_one":
        mt.eval(x)
    elif action in ("quiet_write", "quiet_copy"):
        with mt.no_grad():
            x.mul_(y) if action == "quiet_write" else x.copy_(y)
    elif action == "grad":
        if x.requires_grad and y.requires_grad:
            ts += mt.autograd.grad((x * y).sum(), y, create_graph=bool(j % 2))
    elif action == "grads":
        sources = [t for t in (ts[0], x, y) if t.requires_grad]
        roots, given = ([x * y, y.sum()], [x.detach(), None]) if i % 2 else ([(x * x).sum()], None)
        options = {"retain_graph": bool(i % 3), "create_graph": j % 3 == 1}
        ts += mt.autograd.grad(roots, sources, given, **options)
    elif action == "hook":
        factor = float(j)
        x.register_hook(lambda g: g * factor)
    elif action == "fail":
        remove = x.register_hook(_failing).remove
        try:
            (x * x).sum().backward()
        finally:
            remove()
    elif action == "met":
        _elsewhere(lambda: (x + 1.0).shape)
    elif action == "retain":
        x.retain_grad()
    elif action in ("freeze", "thaw"):
        x.requires_grad_(action == "thaw")
    elif action == "alias":
        ts[i % len(ts)] = y
    elif action == "elsewhere":
        thread = threading.Thread(target=lambda: ts.append(x + y))
        thread.start()
        thread.join()


def _run(program: list[tuple[str, int, int]], seed: int) -> list[Any]:
    """Everything that can be seen after a program: values, gradients, errors."""
    rng = np.random.default_rng(seed)
    ts: list[Any] = [mt.ones(2, 3)]
    seen: list[Any] = []
    for action, i, j in program:
        try:
            _act(action, i, j, ts, rng)
        except RuntimeError as error:
            seen.append(str(error).split("\n")[0])
    for t in ts:
        seen += [t.requires_grad, t.is_leaf, np.array(t.detach().numpy())]
        seen.append(None if t.grad is None else np.array(t.grad.detach().numpy()))
    return seen


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and np.array_equal(a, b, equal_nan=True)
    return bool(a == b)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_do_what_they_do_unrecognised(seed: int) -> None:
    with config.override(target="numpy"):
        for round_, program in enumerate(_variants(seed) * 2):
            got = _run(program, round_)
            with _unrecognised():
                wanted = _run(program, round_)
            assert len(got) == len(wanted), program
            for a, b in zip(got, wanted, strict=True):
                assert _same(a, b), (program, a, b)


def test_what_a_leaf_has_become_is_part_of_the_recording() -> None:
    def gradient(trained: bool) -> Any:
        w = mt.zeros(3).add_(2.0)
        w.requires_grad_(trained)
        y = (w * w).sum()
        if y.requires_grad:
            y.backward()
        return None if w.grad is None else w.grad.tolist()

    for trained in (False, True, False, True):
        assert gradient(trained) == ([4.0] * 3 if trained else None)


def test_a_leaf_frozen_after_its_first_use() -> None:
    for frozen in (False, True, False, True):
        w = mt.tensor([1.0, 2.0], requires_grad=True)
        y = w * 2.0
        if frozen:
            w.requires_grad_(False)
        z = w * 3.0
        assert y.requires_grad
        assert z.requires_grad is not frozen
        mt.eval(y, z)


@pytest.mark.parametrize("what", ["hook", "retained", "plain"])
def test_a_hook_or_a_retained_gradient_between_steps_without(what: str) -> None:
    for now in ("plain", what, "plain", what):
        w = mt.tensor([1.0, 2.0], requires_grad=True)
        y = w * w
        if now == "hook":
            y.register_hook(lambda g: g * 10.0)
        elif now == "retained":
            y.retain_grad()
        y.sum().backward()
        assert w.grad is not None
        assert w.grad.tolist() == ([20.0, 40.0] if now == "hook" else [2.0, 4.0])
        assert (y.grad is not None) is (now == "retained")


def test_a_graph_passed_without_a_trace() -> None:
    for used in (False, True, False, True):
        a, b = (mt.tensor(1.0, requires_grad=True) for _ in range(2))
        y = a + b
        if used:
            mt.autograd.grad(y, a, mt.tensor(1.0))  # records nothing
        y.backward()
        assert a.grad is not None
        assert a.grad.item() == 1.0
        mt.eval(y)


def test_a_hook_on_a_leaf_between_steps_without() -> None:
    for hooked in (False, True, False, True):
        w = mt.tensor([1.0, 2.0], requires_grad=True)
        if hooked:
            w.register_hook(lambda g: g * 10.0)
        (w * w).sum().backward()
        assert w.grad is not None
        assert w.grad.tolist() == ([20.0, 40.0] if hooked else [2.0, 4.0])


def test_history_kept_through_an_unrecorded_write() -> None:
    for written in (False, True, False, True):
        w = mt.tensor([0.0, 1.0], requires_grad=True)
        y = w.exp()
        if written:
            with mt.no_grad():
                y.mul_(2.0)
            mt.eval(y)
        (y * 1.0).sum().backward()
        assert w.grad is not None
        np.testing.assert_allclose(w.grad.numpy(), np.exp([0.0, 1.0]), rtol=1e-6)


def test_only_a_write_in_place_may_take_over_memory() -> None:
    for in_place in (True, False, True, False):
        w = mt.tensor([1.0, 2.0])
        v = w.mul_(2.0) if in_place else w * 2.0
        mt.eval(v)
        assert v.tolist() == [2.0, 4.0]
        assert w.tolist() == ([2.0, 4.0] if in_place else [1.0, 2.0])


def test_values_that_another_thread_computed() -> None:
    for joined in (True, False, True, False):
        x = mt.tensor([1.0, 2.0])
        y, z = x * 2.0, x + 5.0
        if joined:  # what is pending here is computed there, z among it
            assert _elsewhere(lambda y=y: (y + 1.0).tolist()) == [3.0, 5.0]
        w = z * 3.0
        del y, z
        assert w.tolist() == [18.0, 21.0]


def test_a_leaf_that_another_thread_used_in_between() -> None:
    for shared in (True, False, True, False):
        x, other = mt.tensor([1.0, 2.0]), mt.tensor([5.0, 7.0])
        first = x * 2.0
        if shared:
            assert _elsewhere(lambda x=x: (x + 1.0).tolist()) == [2.0, 3.0]
            other = x
        assert (first + other).tolist() == ([3.0, 6.0] if shared else [7.0, 11.0])


def test_pending_values_of_another_thread() -> None:
    for theirs in (True, False, True, False):
        x = mt.tensor([1.0, 2.0])
        made = _elsewhere(lambda x=x: x * 2.0) if theirs else mt.tensor([2.0, 4.0])
        assert (made + x).tolist() == [3.0, 6.0]


def test_leaves_that_are_one_are_told_from_leaves_that_are_two() -> None:
    for _ in range(3):
        x, y = mt.full((2,), 3.0), mt.full((2,), 5.0)
        mt.eval(x, y)
        assert (x * y).tolist() == [15.0] * 2
        assert (x * x).tolist() == [9.0] * 2


def test_two_threads_on_the_same_leaves() -> None:
    x = mt.tensor([3.0, 3.0])
    turns = [threading.Semaphore(1), threading.Semaphore(0)]
    results: list[list[list[float]]] = [[], []]

    def work(me: int) -> None:
        for n in range(10):
            y = mt.tensor([float(n), 1.0 + me])
            turns[me].acquire()
            first = x * y
            turns[1 - me].release()
            turns[me].acquire()
            results[me].append((first + x * x - y).tolist())
            turns[1 - me].release()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    for me in range(2):
        assert results[me] == [[9.0 + 2 * n, 9.0 + 2 * (1.0 + me)] for n in range(10)]


@pytest.mark.parametrize("first", ["sin", "cos"])
def test_what_computed_a_value_is_not_part_of_the_recording(first: str) -> None:
    start = np.array([0.5, 1.0], np.float32)
    wanted = {
        "sin": np.sin(start) + start * np.cos(start),
        "cos": np.cos(start) - start * np.sin(start),
    }
    other = "cos" if first == "sin" else "sin"
    for name in (first, other, first, other):
        x = mt.tensor(start, requires_grad=True)
        y = getattr(x, name)()
        mt.eval(y)
        (y * x).sum().backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), wanted[name], rtol=1e-5)


@pytest.mark.parametrize("by", ["backward", "grad"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_graph_kept_where_it_was_used_up_before(kept: bool, by: str) -> None:
    # A size of its own for every case: they would recognise each other's recordings.
    values = [float(n) for n in range(1, 3 + 2 * kept + (by == "grad"))]
    wanted = [3.0 * v * v for v in values]
    for keep in (kept, not kept, kept, not kept):
        w = mt.tensor(values, requires_grad=True)
        loss = (w * w * w).sum()
        if by == "backward":
            loss.backward(retain_graph=keep)
            g = w.grad
        else:
            (g,) = mt.autograd.grad(loss, w, retain_graph=keep)
        assert g is not None
        with mt.no_grad():
            w.sub_(g * 0.5)
        mt.eval(loss, w, g)
        assert g.tolist() == wanted
        if keep:  # reads the values from before the update
            w.grad = None
            loss.backward()
            assert w.grad is not None
            assert w.grad.tolist() == wanted


def test_which_history_an_unrecorded_write_keeps() -> None:
    for first in (True, False, True, False):
        ws = [mt.tensor([0.0, 1.0], requires_grad=True) for _ in range(2)]
        z = mt.ones(2)
        ys = [w.exp().mul(w) for w in ws]
        y = ys[0 if first else 1]
        with mt.no_grad():
            y.copy_(z)
        del ys
        mt.eval(y)
        assert y.tolist() == [1.0, 1.0]
        y.sum().backward()
        for w, used in zip(ws, (first, not first), strict=True):
            assert (w.grad is not None) is used
            if w.grad is not None:
                np.testing.assert_allclose(w.grad.numpy(), [1.0, 2 * np.e], rtol=1e-6)


def test_a_hook_that_fails_uses_up_part_of_a_graph() -> None:
    def fail(_: Any) -> None:
        raise ValueError("no")

    for failing in (False, True, False, True):
        w = mt.tensor([1.0, 2.0], requires_grad=True)
        y = w * w
        loss = y.sum()
        remove = y.register_hook(fail).remove if failing else lambda: None
        if failing:
            with pytest.raises(ValueError, match="no"):
                loss.backward()
            remove()
        mt.eval(loss)
        if failing:
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
        else:
            loss.backward()
            assert w.grad is not None
            assert w.grad.tolist() == [2.0, 4.0]


def test_a_leaf_that_another_thread_met_without_evaluating() -> None:
    for shared in (True, True, False, True, False):
        x = mt.tensor([1.0, 2.0])
        y = x * 2.0
        if shared:
            assert _elsewhere(lambda x=x: (x + 1.0).shape) == (2,)
        assert y.tolist() == [2.0, 4.0]


def test_an_interrupt_while_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording and its prefix stay in step."""

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    def steps() -> int:
        count, prefix = 0, MODE.trace.prefix
        while prefix.before is not None:
            count, prefix = count + 1, prefix.before
        return count

    x = mt.tensor([1.0, 2.0])
    mt.eval(x * x, x.relu())  # inference is over: what is interrupted is the recording itself
    for _ in range(2):
        y = x * x
        with monkeypatch.context() as patch:
            patch.setattr(node_module, "_new", interrupted)
            with pytest.raises(KeyboardInterrupt):
                x.relu()
        assert steps() == len(MODE.trace.values) == 2
        z = y * y
        assert z.tolist() == [1.0, 16.0]


def test_threads_that_number_ops_and_shapes_at_once() -> None:
    """Recordings are told apart by these numbers alone."""
    start = threading.Barrier(4)
    ops: list[Any] = []
    specs: list[int] = []

    def work(me: int) -> None:
        start.wait(60)
        for n in range(2000):
            ops.append(intern(Reshape((1 << 20, me, n))))
            specs.append(leaf(None, (1 << 20, me, n), mt.float32).spec_id)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    finally:
        sys.setswitchinterval(before)
    assert len({op.uid for op in ops}) == len(set(specs)) == len(ops) == 8000


def test_values_that_are_dropped_are_not_held() -> None:
    class Big(np.ndarray[Any, Any]):
        """An array that tells when it is gone."""

    array = np.ones(1000, np.float32).view(Big)
    gone = weakref.ref(array)
    y = mt.from_numpy(array) * 2.0
    del array
    assert gone() is not None
    del y
    gc.collect()
    assert gone() is None


def test_a_program_that_never_repeats_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace_module, "_LIMIT", 50)
    MODE.trace.restart()
    most = 0
    with config.override(target="numpy"):
        for n in range(1, 60):
            assert mt.ones(n).sum().item() == n
            most = max(most, Prefix.total)
    assert most < 70


def test_what_is_recorded_once_leaves_little_for_the_garbage_collector() -> None:
    """Python visits every object it knows of again and again: one per value, no dictionaries."""

    def tracked() -> int:
        gc.collect()
        return len(gc.get_objects())

    mt.eval(mt.ones(3) * mt.ones(3) + 2.0)  # what comes with the first operations
    MODE.trace.restart()
    before, count = tracked(), Prefix.total
    y = x = mt.ones(3)
    for _ in range(500):
        y = y * x + 2.0
    made = Prefix.total - count
    assert made >= 1500
    del y, x
    lazy.evaluate()  # nothing, as nobody can ask for it
    assert tracked() - before < 1.1 * made


def test_the_line_is_the_one_that_recorded() -> None:
    def first() -> Any:
        return mt.ones(2) + 1.0

    def second() -> Any:
        return mt.ones(2) + 1.0

    lines = set()
    for make in (first, second, first, second):
        y = make()
        place = y.node.place
        assert place is not None
        lines.add(place[0].co_name)
        assert place[0].co_name == make.__name__
        y.tolist()
    assert lines == {"first", "second"}
