"""Repeated calls of captured functions: class labels and indices are tested each time."""

from __future__ import annotations

import numpy as np
import pytest
from test_captured_calls import captured, matrix

import minitorch_tvm as mt
from minitorch_tvm.core import config
from minitorch_tvm.core.bounds import Bounds
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.tensor import gathering


def _picked(x: mt.Tensor, i: mt.Tensor) -> mt.Tensor:
    return x[i]


@pytest.mark.parametrize("wrong", [[0, 3], [-4, 0], [3, -4], [1 << 40, 0]])
def test_a_position_out_of_range_raises_each_time(wrong: list[int]) -> None:
    x = mt.tensor([10.0, 20.0, 30.0])
    compiled = captured(_picked, x, mt.tensor([0, 1]))
    for _ in range(3):
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(x, mt.tensor(wrong))
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(x, np.array(wrong))
        assert compiled(x, mt.tensor([-3, 2])).tolist() == [10.0, 30.0]
        assert compiled(x, np.array([2, -1])).tolist() == [30.0, 30.0]


def test_no_positions_are_in_range() -> None:
    x = mt.tensor([10.0, 20.0, 30.0])
    compiled = captured(_picked, x, np.zeros(0, np.int64))
    assert compiled(x, np.zeros(0, np.int64)).shape == (0,)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_labels_are_tested_at_each_call(dtype: type) -> None:
    logits = matrix(3, 4)
    compiled = captured(
        lambda x, y: mt.nn.functional.cross_entropy(x, y, ignore_index=-100),
        logits,
        np.array([0, 1, 3], dtype),
    )
    fine = compiled(logits, np.array([3, 0, 1], dtype)).item()
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    assert fine == pytest.approx(-(logs[0, 3] + logs[1, 0] + logs[2, 1]) / 3, rel=1e-5)
    with pytest.raises(IndexError, match="Target 4 is out of bounds"):
        compiled(logits, np.array([0, 4, 1], dtype))
    if dtype is np.int64:
        with pytest.raises(IndexError, match="Target -1 is out of bounds"):
            compiled(logits, np.array([0, -1, 1]))
        one = compiled(logits, np.array([3, -100, -100])).item()
        assert one == pytest.approx(-logs[0, 3], rel=1e-5)


@pytest.mark.parametrize("schedule", ["ours", "default"])
def test_native_code_tests_int64(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with config.override(schedule=schedule):
        x, table = matrix(70, 4), mt.tensor(matrix(9, 4))
        y, i = np.arange(70) % 4, np.arange(70) % 9

        def step(x: mt.Tensor, y: mt.Tensor, i: mt.Tensor) -> mt.Tensor:
            return mt.nn.functional.cross_entropy(x + mt.nn.functional.embedding(i, table), y)

        compiled = captured(step, x, y, i)
        want = compiled(x, y, i).item()
        numbers = np.zeros(70 * 8 + 1, np.uint8)[1:].view(np.int64)  # not aligned
        numbers[...] = y
        watched = EVENTS.get("watched_calls")
        with monkeypatch.context() as patched:
            looks: list[object] = []
            patched.setattr(Bounds, "hold", lambda _, positions: looks.append(positions) or True)
            assert compiled(x, y, i).item() == want
            assert step(mt.tensor(x), mt.tensor(y), mt.tensor(i)).item() == want
            assert not looks
            assert compiled(mt.tensor(x), mt.from_numpy(numbers), i).item() == want
            assert [len(labels) for labels in looks] == [70]
        assert EVENTS.get("watched_calls") == watched
        for bad in (y, i):
            for at, wrong in ((0, -1), (69, 9), (33, 1 << 60), (64, -1 << 63)):
                right, bad[at] = bad[at], wrong
                with pytest.raises(IndexError, match=r"out of (bounds|range)"):
                    compiled(x, y, i)
                bad[at] = right
                assert compiled(x, y, i).item() == want


def test_labels_of_no_class_count_nowhere() -> None:
    def step(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        return mt.nn.functional.cross_entropy(x, y, reduction="sum")

    x, y = np.zeros((3, 0), np.float32), np.full(3, -100)
    compiled = captured(step, x, y)
    assert compiled(x, y).item() == 0.0
    with pytest.raises(IndexError, match="Target 0 is out of bounds"):
        compiled(x, np.array([-100, 0, -100]))


def test_labels_of_the_state_are_tested_at_each_call() -> None:
    x, memory = matrix(3, 4), np.array([0, 1, 3])
    whole = mt.tensor([3, 3, 3, 3])
    labels = [mt.tensor([0, 1, 3]), mt.from_numpy(memory), whole[1:]]
    fine = [y.tolist() for y in labels]

    def set_item(y: mt.Tensor, value: int) -> None:
        y[1] = value

    def through_its_base(_: mt.Tensor, value: int) -> None:
        whole[2] = value

    def in_shared_memory(_: mt.Tensor, value: int) -> None:
        memory[1] = value

    ways = [set_item, in_shared_memory, through_its_base]
    for y, before, change in zip(labels, fine, ways, strict=True):
        compiled = captured(lambda x, y=y: mt.nn.functional.cross_entropy(x, y), x)
        want = compiled(x).item()
        for wrong in (4, -1):
            change(y, wrong)
            with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
                compiled(x)
            change(y, before[1])
            assert compiled(x).item() == want


def test_positions_computed_by_the_call_are_tested_behind_it() -> None:
    table = mt.tensor([10.0, 20.0, 30.0])

    def step(i: mt.Tensor) -> mt.Tensor:
        at = i * 2
        mt.eval(at)
        return table[at]

    compiled = captured(step, np.array([0, 1]))
    assert compiled(np.array([1, 0])).tolist() == [30.0, 10.0]
    for wrong in ([0, 2], [-2, 0]):
        with pytest.raises(IndexError, match="is out of bounds for dimension 0 with size 3"):
            compiled(np.array(wrong))
        assert compiled(np.array([1, 1])).tolist() == [30.0, 30.0]


@pytest.mark.parametrize("bad", [-1, 4])
def test_many_labels(bad: int) -> None:
    """Numpy tests those, as quickly."""
    x, y = np.zeros((5000, 4), np.float32), np.arange(5000) % 4
    compiled = captured(lambda x, y: mt.nn.functional.cross_entropy(x, y), x, y)
    for at in (0, 4096, 4999):
        right, y[at] = y[at], bad
        with pytest.raises(IndexError, match=f"Target {bad} is out of bounds"):
            compiled(x, y)
        y[at] = right
        assert compiled(x, y).item() == pytest.approx(np.log(4), rel=1e-5)


def test_classes_of_one_hot_are_tested_at_each_call() -> None:
    compiled = captured(lambda y: mt.nn.functional.one_hot(y, 3), np.array([0, 2]))
    assert compiled(np.array([2, 1])).tolist() == [[0, 0, 1], [0, 1, 0]]
    for wrong, words in (([0, 3], "smaller than num_classes"), ([-1, 0], "non-negative")):
        with pytest.raises(RuntimeError, match=words):
            compiled(np.array(wrong))
    assert compiled(np.array([0, 1])).tolist() == [[1, 0, 0], [0, 1, 0]]


def _next_tokens(t: mt.Tensor, table: mt.Tensor) -> mt.Tensor:
    rows = mt.nn.functional.embedding(t[:, :-1], table)
    return mt.nn.functional.cross_entropy(rows.reshape(-1, 5), t[:, 1:].reshape(-1).long())


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_positions_that_are_parts_of_an_argument(dtype: type) -> None:
    table = mt.tensor(matrix(5, 5))
    tokens = np.array([[0, 1, 2, 3], [4, 0, 1, 2]], dtype)
    compiled = captured(_next_tokens, tokens, table)
    checks = EVENTS.get("check_evaluations")
    want = _next_tokens(mt.from_numpy(tokens), table).item()
    assert compiled(tokens, table).item() == want
    other = tokens[::-1].copy()
    assert compiled(other, table).item() == _next_tokens(mt.from_numpy(other), table).item()
    assert EVENTS.get("check_evaluations") == checks
    for wrong in ((0, 0, 5), (1, 3, -1)):
        bad = tokens.copy()
        bad[wrong[:2]] = wrong[2]
        for _ in range(3):
            with pytest.raises(IndexError):
                compiled(bad, table).item()
        assert compiled(tokens, table).item() == want


def test_a_part_may_be_inside_where_the_rest_is_not() -> None:
    table = mt.tensor(matrix(5, 5))
    tokens = np.array([[0, 1, 2, 99]])
    compiled = mt.compile(lambda t: mt.nn.functional.embedding(t[:, :3], table))
    before = EVENTS.get("captured_calls")
    for _ in range(6):
        np.testing.assert_array_equal(compiled(tokens).numpy()[0], matrix(5, 5)[:3])
    assert EVENTS.get("captured_calls") > before
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(tokens[:, ::-1].copy()).numpy()
        np.testing.assert_array_equal(compiled(tokens).numpy()[0], matrix(5, 5)[:3])


def _moved(x: mt.Tensor, i: mt.Tensor) -> mt.Tensor:
    return x[i * 2 - 1]


def test_computed_positions_are_tested_at_each_call() -> None:
    x = mt.tensor([10.0, 20.0, 30.0, 40.0])
    compiled = captured(_moved, x, mt.tensor([1, 2]))
    before = EVENTS.get("uncaptured_calls")
    for _ in range(3):
        assert compiled(x, mt.tensor([2, 1])).tolist() == [40.0, 20.0]
        for wrong in ([1, 3], [-2, 1]):
            with pytest.raises(IndexError, match="out of bounds"):
                compiled(x, mt.tensor(wrong)).tolist()
        assert compiled(x, np.array([1, 0])).tolist() == [20.0, 40.0]
    assert EVENTS.get("uncaptured_calls") == before


def test_a_step_with_computed_labels_changes_nothing_where_they_are_wrong() -> None:
    def train(way: str, wrong: int) -> list[list[float]]:
        mt.manual_seed(0)
        model = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 3))
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
            optimizer.zero_grad()
            loss = mt.nn.functional.cross_entropy(model(x), y.long() - 1)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = mt.compile(step) if way == "compiled" else step
        x, y = mt.tensor(matrix(6, 4)), mt.tensor([1.0, 2, 3, 1, 2, 3])
        losses = [run(x, y).item() for _ in range(5)]
        if wrong:
            bad = y.clone()
            bad[4] = float(wrong)
            mt.eval(bad)
            with pytest.raises(IndexError, match=f"Target {wrong - 1} is out of bounds"):
                run(x, bad).item()
        losses += [run(x, y).item() for _ in range(5)]
        return [losses, *(p.tolist() for p in model.parameters())]

    want = train("plain", 0)
    before = EVENTS.get("captured_calls")
    assert train("compiled", 0) == want
    assert EVENTS.get("captured_calls") >= before + 4
    for wrong in (4, -3):
        assert train("compiled", wrong) == want


def test_a_condition_behind_a_change_is_not_captured() -> None:
    table, count = mt.tensor([1.0, 2.0, 3.0]), mt.zeros(2, dtype=mt.int64)
    mt.eval(table, count)

    def step(x: mt.Tensor) -> mt.Tensor:
        count.add_(1)
        mt.eval(count)
        return table[x - 1]

    compiled = mt.compile(step)
    with pytest.warns(RuntimeWarning, match="comes behind what changes others"):
        results = [compiled(mt.tensor([1, 3])).tolist() for _ in range(4)]
    assert results == [[1.0, 3.0]] * 4
    assert count.tolist() == [4, 4]


def test_a_small_part_of_much_memory_is_tested_by_itself() -> None:
    table, numbers = mt.tensor(matrix(5, 5)), mt.from_numpy(np.arange(5000) % 5)
    checks = EVENTS.get("check_evaluations")
    for step, more in ((9, 0), (99, 1)):  # others that lie in one piece are memory themselves
        found = mt.nn.functional.embedding(numbers[::step], table).numpy()
        np.testing.assert_array_equal(found, matrix(5, 5)[np.arange(0, 5000, step) % 5])
        assert EVENTS.get("check_evaluations") == checks + more


def test_what_is_picked_of_tested_integers_is_not_tested() -> None:
    table, values = mt.tensor(matrix(4, 7)), np.arange(20) % 7
    numbers, rows = mt.from_numpy(values), mt.from_numpy(np.arange(8).reshape(4, 2))
    checks = EVENTS.get("check_evaluations")
    for index, expected in (
        (numbers[rows], values[:8].reshape(4, 2)),
        (numbers[8:][rows[:, 1]][:, None], values[[9, 11, 13, 15]][:, None]),
        (numbers.index_select(0, rows[0]).expand(4, 2), np.tile([0, 1], (4, 1))),
        (numbers.reshape(4, 5).gather(1, rows // 2), values[[[0, 0], [6, 6], [12, 12], [18, 18]]]),
    ):
        found = table.gather(1, index).numpy()
        np.testing.assert_array_equal(found, np.take_along_axis(matrix(4, 7), expected, 1))
    # The last rows are computed.
    assert EVENTS.get("check_evaluations") == checks + 1
    numbers[9] = 7
    with pytest.raises(RuntimeError, match="index 7 is out of bounds"):
        table.gather(1, numbers[rows + 6]).numpy()


def test_memory_of_moved_and_widened_integers_is_known() -> None:
    long, short = mt.from_numpy(np.arange(6)), mt.from_numpy(np.arange(6, dtype=np.int32))
    for index, memory in (
        (long.reshape(2, 3).T[1:], long),
        (short.long()[2:], short),
        (long.to(mt.int32), None),  # may wrap around
        (short.float().long(), None),
        (long + 1, None),
    ):
        found = gathering._moved_from(index.node)
        assert found == (None if memory is None else [memory.node])
