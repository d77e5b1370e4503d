"""What a call of a captured function may rely on, and what it must look at each time.

The functions here are small and pure where they can be: their results are compared with numpy's,
and :data:`EVENTS` tells whether a call ran the function or did again what it did.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.runtime.memory import POOL, Buffer

WARM = 20
"""Calls after which the next eleven are repeated: the function runs itself at powers of two."""


def captured(function: Callable[..., Any], *args: Any) -> Any:
    """``function`` compiled, and called with ``args`` until calls are repeated."""
    compiled = mt.compile(function)
    for _ in range(WARM):
        compiled(*args)
    before = EVENTS.get("captured_calls")
    compiled(*args)
    assert EVENTS.get("captured_calls") == before + 1
    return compiled


def repeats() -> int:
    return EVENTS.get("captured_calls")


def matrix(*shape: int, start: float = 1.0) -> np.ndarray:
    return np.arange(start, start + np.prod(shape), dtype=np.float32).reshape(shape)


# --- arguments ----------------------------------------------------------------------------------


def _flipped(a: np.ndarray) -> Any:
    return mt.from_numpy(np.ascontiguousarray(a.T)).T


def _read_only(a: np.ndarray) -> np.ndarray:
    copy = a.copy()
    copy.flags.writeable = False
    return copy


def _unaligned(a: np.ndarray) -> np.ndarray:
    raw = np.zeros(a.nbytes + 1, np.uint8)
    copy = raw[1:].view(a.dtype).reshape(a.shape)
    copy[...] = a
    return copy


OTHERS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda a: a.copy(),
    "tensor": mt.tensor,
    "pending": lambda a: mt.tensor(a) * 1.0,
    "strided": _flipped,
    "strided array": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "read-only": _read_only,
    "big-endian": lambda a: a.astype(">f4"),
    "unaligned": _unaligned,
    "unaligned tensor": lambda a: mt.from_numpy(_unaligned(a)),
    "view": lambda a: mt.tensor(np.stack([a, a]))[1],
    "parameter": lambda a: mt.nn.Parameter(mt.tensor(a), requires_grad=False),
    "other shape": lambda a: mt.tensor(np.concatenate([a, a])),
    "other dtype": lambda a: mt.tensor(a.astype(np.float64)),
    "integers": lambda a: a.astype(np.int64),
    "column": lambda a: mt.tensor(a[:, :1].copy()),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.filterwarnings("ignore:.*compiled .* different programs")
def test_every_kind_of_argument(other: str) -> None:
    double = captured(lambda x: x * 2 + 1, mt.tensor(matrix(3, 4)))
    for i in range(2 * WARM):
        a = matrix(3, 4, start=float(i))
        argument = OTHERS[other](a)
        values = np.asarray(argument.numpy() if isinstance(argument, mt.Tensor) else argument)
        expected = values.astype(np.float64) * 2 + 1
        np.testing.assert_array_equal(double(argument).numpy(), expected)
        np.testing.assert_array_equal(double(mt.tensor(a)).numpy(), a * 2 + 1)


def test_an_argument_that_requires_grad_is_differentiated() -> None:
    square = captured(lambda x: (x * x).sum(), mt.tensor([1.0, 2.0]))
    x = mt.tensor([3.0, 4.0], requires_grad=True)
    with pytest.warns(RuntimeWarning, match="an argument requires grad"):
        loss = square(x)
    loss.backward()
    assert x.grad.tolist() == [6.0, 8.0]


def test_gradient_mode_and_settings_are_part_of_the_call() -> None:
    w = mt.tensor([2.0], requires_grad=True)

    def function(x: mt.Tensor) -> mt.Tensor:
        y = x * w
        if y.requires_grad:
            y = (y * 10).detach()
        return y

    x = mt.tensor([3.0])
    compiled = captured(function, x)
    for _ in range(WARM):
        assert compiled(x).item() == 60.0
        with mt.no_grad():
            assert compiled(x).item() == 6.0
    before = repeats()
    with config.override(mode="eager"):
        assert compiled(x).item() == 60.0
    assert repeats() == before
    with config.override(fuse=False):
        for _ in range(WARM):
            assert compiled(x).item() == 60.0
    assert repeats() > before


def test_constants_are_told_apart_by_type_and_sign() -> None:
    def scaled(x: mt.Tensor, by: Any, *_: Any, twice: bool = False) -> mt.Tensor:
        return x * by * (2 if twice else 1)

    compiled = mt.compile(scaled)
    kind_of = mt.compile(lambda x, pair: x * float(isinstance(pair[0], float)))
    x = mt.tensor([3.0])
    for _ in range(WARM):
        assert compiled(x, 1.0).item() == 3.0
        assert np.signbit(compiled(x, -0.0).item())
        assert not np.signbit(compiled(x, 0.0).item())
        assert kind_of(x, (1, 2)).item() == 0.0
        assert kind_of(x, (1.0, 2)).item() == 3.0
        assert compiled(x, 1, twice=True).item() == 6.0
        assert compiled(x, 1, "twice", True).item() == 3.0


@pytest.mark.filterwarnings("ignore:.*compiled .* different programs")
def test_more_kinds_of_calls_than_are_recognised_at_once() -> None:
    compiled = mt.compile(lambda x: x.sum())
    for _ in range(2 * WARM):
        for n in range(1, 13):
            assert compiled(np.ones(n, np.float32)).item() == n
    before = repeats()
    for n in range(1, 13):
        compiled(np.ones(n, np.float32))
    assert repeats() >= before + 11


def test_what_is_pending_elsewhere_is_evaluated_first() -> None:
    total = np.zeros(2, np.float32)
    running = mt.from_numpy(total)

    def add(x: mt.Tensor) -> mt.Tensor:
        running.add_(x)
        return running * 1

    x = mt.tensor([1.0, 2.0])
    compiled = captured(add, x)
    before = total.copy()
    seen = running * 10  # still to be computed, from what the call changes
    compiled(x)
    np.testing.assert_array_equal(seen.numpy(), before * 10)
    np.testing.assert_array_equal(total, before + np.array([1.0, 2.0]))


# --- results ------------------------------------------------------------------------------------


def test_results_that_are_kept_keep_their_values() -> None:
    a, b = matrix(4, 4), matrix(4, 4, start=0.5)
    compiled = captured(lambda x, y: x @ y, mt.tensor(a), mt.tensor(b))
    kept: list[tuple[Any, np.ndarray]] = []
    for i in range(20):
        y = compiled(mt.tensor(a + i), mt.tensor(b))
        expected = (a + i) @ b
        kind = i % 5
        if kind == 0:
            kept.append((y, expected))
        elif kind == 1:
            kept.append((y.numpy(), expected))
        elif kind == 2:
            kept.append((y.numpy()[1:].T, expected[1:].T))
        elif kind == 3:
            y.mul_(2)
            y += 1
            kept.append((y, expected * 2 + 1))
        else:
            kept.append((y.detach()[0], expected[0]))
        del y
    for value, expected in kept:
        found = value.numpy() if isinstance(value, mt.Tensor) else value
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_results_are_arguments_of_the_next_call() -> None:
    compiled = captured(lambda x, y: (x + y, y), mt.tensor([1.0]), mt.tensor([0.0]))
    older, newer = mt.tensor([1.0]), mt.tensor([1.0])
    for n in range(25):
        older, newer = newer, compiled(newer, older)[0]
        assert newer.item() == [2, 3, 5, 8, 13, 21, 34, 55, 89, 144][n] if n < 10 else True
    assert newer.item() == 196418.0


def test_an_update_of_a_result_is_not_seen_by_later_results() -> None:
    compiled = captured(lambda x: x + 1, mt.tensor([1.0]))
    x = mt.tensor([1.0])
    for _ in range(12):
        y = compiled(x)
        y.add_(100)
        z = compiled(x)
        assert (y.item(), z.item()) == (102.0, 2.0)
        z.fill_(0)
        assert compiled(x).item() == 2.0


def test_one_tensor_returned_twice_is_one_tensor() -> None:
    def function(x: mt.Tensor) -> dict[str, Any]:
        y = x + 1
        return {"a": y, "b": [y, x]}

    x = mt.tensor([1.0])
    compiled = captured(function, x)
    for argument in (x, np.ones(1, np.float32)):
        before = repeats()
        found = compiled(argument)
        assert repeats() == before + 1
        assert found["a"] is found["b"][0]
        assert found["a"].item() == 2.0
        assert found["b"][1].item() == 1.0
    found["a"].add_(1)
    assert found["b"][0].item() == 3.0
    assert compiled(x)["b"][1] is x


def test_a_function_that_computes_nothing() -> None:
    w = mt.tensor([1.0, 2.0])

    def function(x: mt.Tensor) -> tuple[mt.Tensor, bool]:
        return w, w.requires_grad

    compiled = captured(function, mt.tensor([1.0]))
    before = repeats()
    found = compiled(mt.tensor([7.0]))
    assert found[0] is w
    assert found[1] is False
    assert repeats() == before + 1
    w.add_(1)
    assert compiled(mt.tensor([7.0]))[0].tolist() == [2.0, 3.0]
    w.requires_grad_()
    assert compiled(mt.tensor([7.0]))[1] is True


def test_many_results_and_an_empty_one() -> None:
    def function(x: mt.Tensor) -> tuple[mt.Tensor, ...]:
        return (*(x * n for n in range(1, 30)), x[:0])

    compiled = captured(function, mt.tensor([1.0, 2.0]))
    for i in range(5):
        *found, empty = compiled(mt.tensor([1.0 + i, 2.0]))
        assert [y.tolist() for y in found] == [[(1.0 + i) * n, 2.0 * n] for n in range(1, 30)]
        assert empty.shape == (0,)


# --- state --------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[mt.Tensor], Any]] = {
    "added to": lambda w: w.add_(1),
    "an item": lambda w: w.__setitem__(0, 7.0),
    "its data": lambda w: w.data.mul_(3),
    "other data": lambda w: setattr(w, "data", mt.tensor([4.0, 5.0])),
    "from numpy": lambda w: w.numpy().__setitem__(1, 9.0),
    "a view": lambda w: w[1:].fill_(6.0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shared", [False, True])
def test_state_that_is_changed_between_calls(change: str, shared: bool) -> None:
    mine = np.array([1.0, 2.0], np.float32)
    w = mt.from_numpy(mine) if shared else mt.tensor(mine)

    def function(x: mt.Tensor) -> mt.Tensor:
        w.mul_(2)
        return x + w

    x = mt.tensor([0.0, 0.0])
    compiled = captured(function, x)
    expected = w.numpy().copy()
    for _ in range(5):
        CHANGES[change](w)
        before = w.numpy().copy()
        expected = before * 2
        assert compiled(x).tolist() == expected.tolist()
        assert w.tolist() == expected.tolist()


def test_old_values_of_state_that_somebody_holds_stay() -> None:
    w = mt.tensor([1.0])

    def function(x: mt.Tensor) -> mt.Tensor:
        w.add_(x)
        return w * 1

    compiled = captured(function, mt.tensor([1.0]))
    history = []
    for _ in range(12):
        compiled(mt.tensor([1.0]))
        history.append((w.clone(), w.item()))  # recorded, not yet computed
        history.append((mt.eval(w * 1) or w + 0, w.item()))
    for value, expected in history:
        assert value.item() == expected


def test_an_argument_on_the_memory_of_state() -> None:
    w = mt.tensor([1.0, 2.0])

    def function(x: mt.Tensor) -> mt.Tensor:
        w.mul_(2)
        return x + w

    compiled = captured(function, mt.tensor([0.0, 0.0]))
    for argument in (lambda: w, lambda: w.detach(), lambda: w.numpy(), lambda: w.reshape(2)):
        before = w.numpy().copy()
        assert compiled(argument()).tolist() == (before * 3).tolist()
        assert w.tolist() == (before * 2).tolist()


def test_state_on_memory_of_the_users_that_overlaps() -> None:
    found = []
    for compiles in (False, True):
        mine = np.arange(6, dtype=np.float32)
        first, last = mt.from_numpy(mine[:4]), mt.from_numpy(mine[2:])

        def step(x: mt.Tensor, first: mt.Tensor = first, last: mt.Tensor = last) -> mt.Tensor:
            first.mul_(-1.5)
            last.add_(x)
            return x + first

        x = np.ones(4, np.float32)
        run = captured(step, x) if compiles else step
        for _ in range(3 if compiles else WARM + 4):
            mt.eval(run(mt.from_numpy(x)))
        found.append(mine.tolist())
    assert found[0] == found[1]


def test_state_that_is_a_view_follows_its_base() -> None:
    base = mt.tensor([[1.0, 2.0], [3.0, 4.0]])
    row = base[1]
    compiled = captured(lambda x: x * row, mt.tensor([1.0, 1.0]))
    for n in range(5):
        base.add_(1)
        if n % 2:
            mt.eval(base)
        assert compiled(mt.tensor([1.0, 2.0])).tolist() == [4.0 + n, 2 * (5.0 + n)]


def test_views_of_state_show_what_the_call_wrote() -> None:
    w = mt.tensor([1.0, 2.0])

    def function(x: mt.Tensor) -> mt.Tensor:
        w.add_(x)
        return w.sum()

    compiled = captured(function, mt.tensor([0.0, 0.0]))
    last = w[1:]
    for n in range(4):
        compiled(mt.tensor([0.0, 1.0]))
        assert last.tolist() == [3.0 + n]


@pytest.mark.parametrize("what", ["value", "gradient", "gradient as an array"])
def test_what_another_thread_has_recorded_reads_old_values(what: str) -> None:
    w = mt.tensor([1.0, 2.0], requires_grad=True)

    def step(x: mt.Tensor) -> mt.Tensor:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        with mt.no_grad():
            w.sub_(w.grad)
        return loss

    compiled = captured(step, mt.tensor([1.0, 1.0]))
    for n in range(4):
        expected = (w if what == "value" else w.grad).detach().numpy().copy() * 10
        seen: list[Any] = []

        def record(seen: list[Any] = seen) -> None:
            if what == "gradient as an array":
                seen.append(w.grad.numpy())
                return
            with mt.no_grad():
                seen.append((w if what == "value" else w.grad) * 10)

        _together(lambda _, record=record: record(), 1)
        compiled(mt.tensor([3.0 + n, 4.0]))
        if what == "gradient as an array":
            assert (seen[0] * 10).tolist() == expected.tolist()
        else:
            assert seen[0].tolist() == expected.tolist()


def test_options_of_an_optimizer_that_are_changed_between_calls() -> None:
    found = []
    for compiles in (False, True):
        w = mt.tensor([1.0, 2.0], requires_grad=True)
        optimizer = mt.optim.SGD([w], lr=0.125)

        def step(x: mt.Tensor, w: mt.Tensor = w, optimizer: Any = optimizer) -> mt.Tensor:
            optimizer.zero_grad()
            loss = (w * x).sum()
            loss.backward()
            optimizer.step()
            return loss

        x = mt.tensor([0.5, 0.25])
        run = captured(step, x) if compiles else step
        if not compiles:
            for _ in range(WARM + 1):
                step(x)
        values = []
        for name, value in (("weight_decay", 0.5), ("lr", 0.25), ("maximize", True)):
            optimizer.param_groups[0][name] = value
            run(x)
            values.append(w.detach().tolist())
        found.append(values)
    assert found[0] == found[1]


def test_modules_that_are_changed_between_calls() -> None:
    net = mt.nn.Sequential(mt.nn.Linear(3, 3), mt.nn.Dropout(0.5), mt.nn.Linear(3, 2))
    net.eval()
    x = mt.tensor(matrix(4, 3))
    with mt.no_grad():
        compiled = captured(lambda x: net(x), x)

        def check() -> None:
            before = repeats()
            for _ in range(WARM):
                np.testing.assert_array_equal(compiled(x).numpy(), net(x).numpy())
            assert repeats() > before

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check()
            net[0].weight = mt.nn.Parameter(mt.tensor(matrix(3, 3)))
            check()
            net[2] = mt.nn.Linear(3, 2)
            check()
            net[2].bias = None
            check()
            net.append(mt.nn.ReLU())
            del net[1]
            check()


def test_gradients_in_the_callers_memory_are_not_written_over() -> None:
    w = mt.tensor([1.0, 2.0], requires_grad=True)

    def step(x: mt.Tensor) -> mt.Tensor:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        return loss

    compiled = captured(step, mt.tensor([1.0, 1.0]))
    mine = np.array([5.0, 6.0], np.float32)
    w.grad = mt.from_numpy(mine)
    compiled(mt.tensor([3.0, 4.0]))
    assert mine.tolist() == [5.0, 6.0]
    assert w.grad.tolist() == [3.0, 4.0]


def test_the_reference_executor_repeats_calls_too() -> None:
    with config.override(target="numpy"):
        w = mt.tensor([1.0, 2.0], requires_grad=True)

        def step(x: mt.Tensor) -> mt.Tensor:
            w.grad = None
            loss = (w * x).sum()
            loss.backward()
            with mt.no_grad():
                w.sub_(w.grad)
            return loss

        compiled = captured(step, np.zeros(2, np.float32))
        for n in range(5):
            assert compiled(np.array([1.0, -1.0], np.float32)).item() == -1.0 - 2 * n
            assert w.tolist() == [-n, 3.0 + n]


# --- memory -------------------------------------------------------------------------------------


def test_the_pool_keeps_a_limited_number_of_small_blocks() -> None:
    POOL.clear()
    for _ in range(2):
        before = EVENTS.get("allocations")
        held = [Buffer(1024) for _ in range(3000)]
        made = EVENTS.get("allocations") - before
        del held
    assert made == 3000 - (1 << 20) // 1024
    POOL.clear()


# --- threads ------------------------------------------------------------------------------------


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    import sys

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _together(work: Callable[[int], None], count: int = 3) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


@pytest.mark.usefixtures("eager_switches")
def test_threads_that_share_a_function() -> None:
    compiled = captured(lambda x, y: x @ y, np.eye(2, dtype=np.float32), matrix(2, 2))
    before = repeats()

    def work(number: int) -> None:
        scale = np.eye(2, dtype=np.float32) * (number + 1)
        kept = []
        for i in range(300):
            y = compiled(scale, matrix(2, 2, start=float(i)))
            kept.append((y, i))
            if i % 3:
                kept = kept[-2:]
            for value, j in kept:
                expected = matrix(2, 2, start=float(j)) * (number + 1)
                np.testing.assert_array_equal(value.numpy(), expected)

    _together(work)
    assert repeats() - before > 800


@pytest.mark.usefixtures("eager_switches")
def test_threads_that_change_one_state() -> None:
    w = mt.tensor(np.zeros(4, np.float32))

    def step(x: mt.Tensor) -> mt.Tensor:
        w.add_(x)
        return w * 1

    compiled = captured(step, np.ones(4, np.float32))
    ((entry,),) = compiled._entries.values()
    entry.calls = 1 << 20  # for long, no call is watched: that takes one thread at a time
    one = np.ones(4, np.float32)

    def work(number: int) -> None:
        for _ in range(200):
            values = compiled(one).numpy()
            # Updates of threads that do not wait for each other may be lost, but not in part.
            assert (values == values[0]).all()

    _together(work)
    assert (w.numpy() == w.numpy()[0]).all()


def test_another_thread_has_its_own_gradient_mode() -> None:
    w = mt.tensor([2.0], requires_grad=True)

    def step(x: mt.Tensor) -> mt.Tensor:
        y = x * w
        return (y * 10).detach() if y.requires_grad else y

    x = mt.tensor([3.0])
    with mt.no_grad():
        compiled = captured(step, x)
        found = []
        _together(lambda _: found.append(compiled(x).item()), 1)
        assert found == [60.0]
        assert compiled(x).item() == 6.0


def test_results_are_freed_without_the_garbage_collector() -> None:
    # Results of watched calls, too, however large: no cycle keeps them.
    step = mt.compile(lambda x: {"twice": [x * 2, (x + 1,)], "same": x})
    x = mt.ones(300_000)
    for _ in range(2):
        step(x)
    gc.collect()
    gc.disable()
    try:
        before = EVENTS.get("allocations")
        for _ in range(40):
            step(x)
        # Two results, and two of a call before that may not be written over yet.
        assert EVENTS.get("allocations") - before <= 4
        assert gc.collect() == 0
    finally:
        gc.enable()
