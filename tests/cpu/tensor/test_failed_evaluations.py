"""What is pending when an evaluation fails is computed later, from what it was recorded with."""

from __future__ import annotations

import functools
import gc
import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy, nn
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir import failed as failures
from minitorch_tvm.ir.node import MODE, Node
from minitorch_tvm.ir.trace import Trace
from minitorch_tvm.runtime.executor import Executor


def test_values_beside_a_wrong_label_survive() -> None:
    w, s, y = mt.ones(3), mt.zeros(3), mt.tensor([1, 10])
    mt.eval(w, s, y)
    s += w
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        F.cross_entropy(mt.zeros(2, 4), y - 1).item()
    total = s.sum()
    w.mul_(10)
    assert total.item() == 3.0
    assert w.tolist() == [10.0] * 3
    assert s.tolist() == [1.0] * 3


def _model() -> tuple[nn.Sequential, Callable[[int], None]]:
    mt.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 4))
    optimizer = mt.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((8, 6)) + 1).astype(np.float32)
    y = rng.integers(0, 4, 8)

    def step(shift: int) -> None:
        optimizer.zero_grad()
        labels = mt.tensor(y)
        loss = F.cross_entropy(model(mt.tensor(x)), labels + shift if shift else labels)
        loss.backward()
        optimizer.step()

    return model, step


def _statistics(break_off: Callable[[Callable[[int], None]], None], look: bool) -> list[float]:
    model, step = _model()
    for _ in range(6):
        step(0)
    break_off(step)
    if look:
        mt.eval(model[1].running_mean)
    model.eval()
    step(0)
    mean: list[float] = model[1].running_mean.tolist()
    return mean


def _wrong_labels(step: Callable[[int], None]) -> None:
    with pytest.raises(IndexError):
        step(7)


def _interrupted(call: Callable[[], object]) -> None:
    """The call is interrupted where its program would run."""

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            call()


def _interrupted_step(step: Callable[[int], None]) -> None:
    _interrupted(lambda: step(0))


@pytest.mark.parametrize("break_off", [_wrong_labels, _interrupted_step])
def test_running_statistics_do_not_depend_on_a_look(
    break_off: Callable[[Callable[[int], None]], None],
) -> None:
    assert _statistics(break_off, look=False) == _statistics(break_off, look=True)


def test_a_first_evaluation_that_is_interrupted_loses_nothing() -> None:
    # Of a structure that is new, nothing is repeated: the values are planned.
    w, s = mt.ones(3), mt.zeros(3)
    mt.eval(w, s)
    s += w
    _interrupted(lambda: (s * 5).tolist())
    total = s.sum()
    w.mul_(10)
    assert total.item() == 3.0
    assert s.tolist() == [1.0] * 3


# --- what depends on positions that are outside -----------------------------------------------


def _outside(shift: int = 4) -> mt.Tensor:
    """Positions that are computed: 4 and 5 (and 9 and 10 for a shift of 9)."""
    return mt.from_numpy(np.arange(2)) * 1 + shift


def _raises(call: Callable[[], object], match: str = "out of range in self") -> None:
    with pytest.raises(IndexError, match=match) as caught:
        call()
    assert any("test_failed_evaluations.py" in note for note in caught.value.__notes__)


def test_the_error_is_raised_as_often_as_the_value_is_asked_for() -> None:
    table = mt.arange(8.0).reshape(4, 2)
    index = _outside()
    rows = F.embedding(index, table)
    total = rows.sum()
    for value in (rows, total, rows * 2, mt.zeros(3) + total, rows[0], rows.reshape(-1)):
        _raises(value.tolist)
    later = total + 1
    _raises(later.item)
    _raises(lambda: mt.eval(table, later))
    assert index.tolist() == [4, 5]  # nothing is wrong with these
    assert table.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (table.sum() + index.sum()).item() == 37.0


def test_other_values_are_computed_while_one_cannot_be() -> None:
    rows = F.embedding(_outside(), mt.ones(4, 2))
    _raises(rows.tolist)
    fine = mt.ones(3) * 2
    also = fine + 1
    assert also.tolist() == [3.0] * 3
    assert fine.tolist() == [2.0] * 3
    _raises(rows.tolist)
    table = mt.ones(3, 2, requires_grad=True)
    mt.eval(table)
    for _ in range(4):  # the same recording each time, which is known from the second on
        F.embedding(mt.tensor([0, 2]), table).sum().backward()
        assert table.grad is not None
        assert table.grad.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
        table.grad = None
    _raises(rows.tolist)


def test_every_condition_that_fails_is_told() -> None:
    table = mt.ones(4, 2)
    first, second, fine = (F.embedding(_outside(n), table) for n in (4, 9, 2))
    _raises(first.tolist)
    _raises(second.tolist)
    assert fine.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    _raises(first.tolist)


def test_positions_that_come_from_others_that_are_outside() -> None:
    picked = mt.from_numpy(np.arange(4))[_outside()]  # computed, of positions outside
    rows = F.embedding(picked, mt.ones(4, 2))
    _raises(rows.tolist, "out of bounds for dimension 0 with size 4")
    _raises(rows.tolist, "out of bounds for dimension 0 with size 4")
    again = F.embedding(picked + 0, mt.ones(4, 2))
    _raises(again.tolist, "out of bounds for dimension 0 with size 4")
    assert mt.ones(2).tolist() == [1.0, 1.0]


def test_of_positions_that_depend_on_each_other_the_first_is_told() -> None:
    numbers = mt.from_numpy(np.array([7, 8, 9]))
    picked = numbers[_outside()]  # by positions that were clamped it would be 9
    rows = F.embedding(picked, mt.ones(4, 2))
    _raises(rows.tolist, "out of bounds for dimension 0 with size 3")
    _raises(rows.tolist, "out of bounds for dimension 0 with size 3")
    _raises(picked.tolist, "out of bounds for dimension 0 with size 3")


def test_values_of_another_thread_are_tested_too() -> None:
    made: list[mt.Tensor] = []

    def record() -> None:
        made.append(F.embedding(_outside(), mt.ones(4, 2)))
        made.append(F.embedding(_outside(1), mt.ones(4, 2)) + made[0].sum() * 0)
        made.append(F.embedding(_outside(1), mt.ones(4, 2)))

    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    assert made[2].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    for rows in (made[0], made[1], made[0] + 1):
        _raises(rows.tolist)
    assert (made[2] + 1).tolist() == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_what_is_written_to_keeps_its_value(shared: bool, pending: bool) -> None:
    array = np.zeros((2, 2), np.float32)
    s = mt.from_numpy(array) if shared else mt.zeros(2, 2)
    table, other = mt.ones(4, 2), mt.zeros(2, 2)
    first, kept = s[0], s.detach()
    mt.eval(table, s, other, first, kept)
    if pending:
        s += 1
    rows = F.embedding(_outside(), table)
    other += 1  # not wrong itself, but behind what is
    s.add_(rows)
    s *= 2
    first += rows[0]
    _raises(s.tolist)
    value = [[1.0, 1.0], [1.0, 1.0]] if pending else [[0.0, 0.0], [0.0, 0.0]]
    for t, expected in ((s, value), (kept, value), (first, value[0]), (other, [[0.0] * 2] * 2)):
        assert t.tolist() == expected
    for write in (s.copy_, s.mul_, s[:].add_, lambda r: setattr(s, "data", r)):
        _raises(functools.partial(write, rows))
    s[0] = 3.0
    assert s.tolist() == [[3.0, 3.0], value[1]]
    assert first.tolist() == [3.0, 3.0]
    assert kept.tolist() == [[3.0, 3.0], value[1]]
    if shared:
        assert array.tolist() == [[3.0, 3.0], value[1]]


def test_writes_from_the_host_wait_for_conditions() -> None:
    best, current, layer = mt.zeros(2, 2), mt.ones(2, 2), nn.Linear(2, 2)
    mt.eval(best, current)
    weight = layer.weight.tolist()
    for write in (
        lambda: best.copy_(current),
        lambda: nn.init.ones_(layer.weight),
        lambda: layer.load_state_dict({"weight": current, "bias": current[0]}),
        lambda: setattr(best, "data", current),
    ):
        rows = F.embedding(_outside(), current)
        _raises(write)
        del rows
    assert best.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert layer.weight.tolist() == weight


def test_statistics_of_wrong_rows_are_those_of_before() -> None:
    norm, table = nn.BatchNorm1d(2), mt.arange(8.0).reshape(4, 2)
    norm(F.embedding(_outside(1), table)).sum().item()
    before = norm.running_mean.tolist(), norm.running_var.tolist()
    _raises(lambda: norm(F.embedding(_outside(), table)).sum().item())
    assert (norm.running_mean.tolist(), norm.running_var.tolist()) == before


def test_writes_cost_no_evaluations_of_conditions() -> None:
    table, norms = mt.ones(4, 2), [nn.BatchNorm1d(2) for _ in range(3)]
    before = EVENTS.get("check_evaluations")
    total = mt.zeros(2, 2)
    for norm in norms:
        total += norm(F.embedding(_outside(1), table))
    total.sum().backward()
    assert EVENTS.get("check_evaluations") == before + 1


def test_what_is_kept_of_a_failure_slows_nothing_down() -> None:
    failed = F.embedding(_outside(), mt.ones(4, 2))
    _raises(failed.tolist)
    s, looked_at = mt.zeros(2), []

    def counting(nodes: Iterable[Node]) -> list[Node]:
        found = failures.doubted(nodes)
        looked_at.append(len(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy, "doubted", counting)
        for _ in range(50):
            s += 1
    assert s.tolist() == [50.0, 50.0]
    assert len(looked_at) == 50
    assert max(looked_at) <= 4
    _raises(failed.tolist)


def test_a_failed_value_lets_go_of_what_it_was_made_from() -> None:
    w = mt.ones(100, requires_grad=True)
    mt.eval(w)
    loss = (w * 2).sum() * F.embedding(_outside(), mt.ones(4, 2)).sum()
    old = weakref.ref(w.node)
    _raises(loss.item)
    _raises(loss.backward)
    w.data = mt.zeros(100)
    mt.eval(w)
    gc.collect()
    assert old() is None
    _raises(loss.item)


def test_gradients_keep_their_values() -> None:
    weight = mt.ones(2, 3, requires_grad=True)
    (weight * 2).sum().backward()
    for look in (False, True):
        loss = F.cross_entropy(weight, _outside(2))
        if look:
            _raises(loss.item, "Target 3 is out of bounds")
        _raises(loss.backward, "Target 3 is out of bounds")
        assert weight.grad is not None
        assert weight.grad.tolist() == [[2.0] * 3] * 2
    fresh = mt.ones(2, 3, requires_grad=True)
    _raises(lambda: F.cross_entropy(fresh, _outside(2)).backward(), "Target 3")
    assert fresh.grad is None
    loss = F.cross_entropy(fresh, _outside(2))
    _raises(lambda: mt.autograd.grad(loss, fresh), "Target 3")
    fresh.grad = fresh.detach() * F.embedding(_outside(), mt.ones(4, 3)).sum()
    optimizer = mt.optim.SGD([fresh], lr=0.1)
    _raises(optimizer.step)
    assert fresh.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("zero_first", [False, True])
def test_a_loop_that_skips_a_batch_trains_as_if_it_had_not_been_there(zero_first: bool) -> None:
    def trained(shifts: list[int]) -> list[list[float]]:
        mt.manual_seed(0)
        model = nn.Linear(3, 4)
        optimizer = mt.optim.Adam(model.parameters(), lr=0.1)
        x = mt.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]])
        y = mt.tensor([0, 1])
        for shift in shifts:
            try:
                if zero_first:
                    optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y + shift)
                loss.backward()
                optimizer.step()
                if not zero_first:
                    optimizer.zero_grad()
            except IndexError:
                assert shift == 7
        weight: list[list[float]] = model.weight.tolist()
        return weight

    assert trained([0, 1, 0, 7, 1, 7, 7, 0, 0]) == trained([0, 1, 0, 1, 0, 0])


def test_a_condition_is_not_forgotten_when_its_evaluation_is_interrupted() -> None:
    rows = F.embedding(_outside(), mt.ones(4, 2))
    _interrupted(rows.tolist)
    _raises(rows.tolist)


def test_computed_labels_leave_loops_their_known_recordings() -> None:
    model, _ = _model()
    x, y = mt.ones(8, 6), mt.tensor([0, 1, 2, 3] * 2)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    for turn in range(6):
        if turn == 3:
            before = EVENTS.snapshot()
        optimizer.zero_grad()
        F.cross_entropy(model(x), 3 - y).backward()
        optimizer.step()
    for name in ("check_evaluations", "repeated_backwards", "repeated_updates"):
        assert EVENTS.get(name) - before.get(name, 0) == 3, name


def test_conditions_wait_for_the_end_of_no_sync() -> None:
    w = mt.ones(2, 3, requires_grad=True)
    mt.eval(w)
    for shift in (1, 2):
        s = mt.zeros(2, 2)
        with mt.no_sync():
            s += F.embedding(_outside(shift), mt.ones(4, 2))
            F.cross_entropy(w, _outside(shift)).backward()
        if shift == 1:
            assert s.tolist() == [[1.0, 1.0], [1.0, 1.0]]
            assert w.grad is not None
            w.grad = None
        else:
            _raises(s.tolist, "Target 3")
            assert s.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_values_of_threads_that_have_ended() -> None:
    made: list[mt.Tensor] = []

    def record() -> None:
        made.append(F.embedding(_outside(), mt.ones(4, 2)))
        made.append(F.one_hot(_outside(), 4))

    def other() -> None:
        mt.ones(3).sum().item()

    for run in (record, other, other):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    _raises(made[0].tolist)
    with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
        made[1].tolist()


@pytest.mark.parametrize("ended", [False, True])
def test_wrong_values_of_another_thread_reach_no_state(ended: bool) -> None:
    w, s = mt.ones(3, 4, requires_grad=True), mt.zeros(2, 4)
    norm, optimizer = nn.BatchNorm1d(4), mt.optim.Adam([w], lr=0.1)
    x = mt.ones(2, 3)
    mt.eval(w, s, x)
    made, go_on = queue.Queue[mt.Tensor](), threading.Event()

    def load() -> None:
        for _ in range(4):
            made.put(F.embedding(_outside(), mt.ones(4, 4)))
        go_on.wait(0.0 if ended else 60.0)

    thread = threading.Thread(target=load)
    thread.start()
    if ended:
        thread.join()
    mean = norm.running_mean.tolist()
    _raises(lambda: ((x @ w - made.get(timeout=60)) ** 2).sum().backward())
    assert w.grad is None
    optimizer.step()
    _raises(lambda: s.add_(made.get(timeout=60)))
    _raises(lambda: norm(made.get(timeout=60)))
    (partly,) = mt.autograd.grad((x @ w).sum(), w)
    w.grad = partly * made.get(timeout=60).sum()
    _raises(optimizer.step)
    go_on.set()
    thread.join()
    assert w.tolist() == [[1.0] * 4] * 3
    assert s.tolist() == [[0.0] * 4] * 2
    assert norm.running_mean.tolist() == mean


def test_positions_of_another_thread_can_be_read() -> None:
    made: list[mt.Tensor] = []

    def record() -> None:
        index = _outside()
        made.extend([index, F.embedding(index, mt.ones(4, 2)), index + 1])

    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    assert made[0].tolist() == [4, 5]
    assert made[2].tolist() == [5, 6]
    _raises(made[1].tolist)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", ["restart", "checks", "writes"])
def test_an_interrupt_leaves_no_gap_between_what_fails_and_what_knows_of_it(
    name: str, known: bool
) -> None:
    class Interrupting(Trace):
        __slots__ = ()

        def restart(self) -> None:
            super().restart()
            if name == "restart":
                raise KeyboardInterrupt

        def __setattr__(self, which: str, value: Any) -> None:
            super().__setattr__(which, value)
            if which == name:
                raise KeyboardInterrupt

    z, table = mt.tensor([0, 0]), mt.ones(4, 2)
    mt.eval(z, table)
    for fine in range(3 if known else 0):
        F.embedding(mt.from_numpy(np.array([fine, 1])) + z, table).tolist()
    rows = F.embedding(mt.from_numpy(np.array([9, 1])) + z, table)
    MODE.trace.__class__ = Interrupting
    try:
        with pytest.raises(KeyboardInterrupt):
            rows.tolist()
    finally:
        MODE.trace.__class__ = Trace
    _raises(rows.tolist)


def test_a_parameter_that_was_written_to_by_hand_stays_one() -> None:
    w = mt.ones(2, requires_grad=True)
    w.register_hook(lambda g: g * 2)
    mt.eval(w)
    rows = F.embedding(_outside(), mt.ones(4, 2))
    with mt.no_grad():
        w *= rows.sum()
    _raises(w.tolist)
    assert w.tolist() == [1.0, 1.0]
    assert w.is_leaf
    (w * 3).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [6.0, 6.0]


def test_a_call_that_fails_for_another_reason_leaves_no_condition() -> None:
    w, a, x = mt.zeros(3), mt.tensor([[1, 2, 3]]), mt.zeros(4)
    with pytest.raises(RuntimeError, match="must match the size"):
        a // (mt.tensor([1, 0]) * 1)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x[mt.tensor([5]) * 1] = mt.ones(7)
    w.add_(1)
    w.mul_(5)
    assert w.tolist() == [5.0, 5.0, 5.0]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):  # one that is held is tested
        (mt.tensor([1, 2]) // (mt.tensor([1, 0]) * 1)).tolist()


# --- what no memory holds ---


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        ((1 << 16, (1 << 15) + 1), mt.uint8, "at most 2147483647 elements, not 2147549184"),
        ((1 << 31,), mt.uint8, "at most 2147483647 elements, not 2147483648"),
        ((1 << 20, 1 << 10), mt.float64, "you tried to allocate 8589934592 bytes"),
    ],
)
def test_what_is_too_large_does_not_stop_others(
    shape: tuple[int, ...], dtype: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as something holds it, everything pending is computed but that."""
    monkeypatch.setattr(failures, "memory_bytes", lambda: 1 << 33 if dtype is mt.uint8 else 1 << 32)
    large = mt.ones(*shape, dtype=dtype) + 1
    small = mt.ones(3) * 2
    assert mt.ones(2).sum().item() == 2
    assert small.tolist() == [2, 2, 2]
    more = small + 1
    for _ in range(2):
        with pytest.raises(RuntimeError, match=words) as caught:
            large.numpy()
        assert any("recorded at" in note for note in caught.value.__notes__)
        with pytest.raises(RuntimeError, match=words):
            mt.eval(large, more)
    with pytest.raises(RuntimeError, match=words):  # what it would be computed from is not there
        (large * 3).sum().item()
    assert more.tolist() == [3, 3, 3]
    del large
    assert (more + 1).tolist() == [4, 4, 4]


def test_large_values_that_are_not_stored_are_computed() -> None:
    n = 60_000
    total = (mt.arange(float(n))[:, None] * mt.ones(1, n)).amax()
    assert total.item() == n - 1


def test_the_same_loop_meets_large_values_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings that are recognised: one round after the other, the same error."""
    monkeypatch.setattr(failures, "memory_bytes", lambda: 1 << 20)
    for i in range(6):
        large = mt.zeros(1 << 20) + i
        small = mt.ones(4) + i
        assert small.sum().item() == 4 + 4 * i
        with pytest.raises(RuntimeError, match="you tried to allocate 4194304 bytes"):
            large.realize()
