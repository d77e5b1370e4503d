"""Indices of tensors and masks, scatters, sorting and drawing: against numpy, and their costs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.tensor import advanced

SHAPE = (3, 4, 2)
MASK = np.array([[True, False, True, False], [False] * 4, [True, True, False, True]])
INDICES: list[Any] = [
    np.array([2, 0, -1]),
    (np.array([[0], [2]]), np.array([1, 3, -2])),
    (slice(None), np.array([1, 1]), np.array([0, 1])),
    (np.array([0, 1]), slice(None), np.array([0, 1])),
    (slice(1, None), None, np.array([3, 0])),
    (Ellipsis, np.array([1, 0, 1])),
    MASK,
    (MASK[:, 0], Ellipsis, np.array([0, 1])),
    (slice(None), MASK[2]),
    (np.zeros(0, np.int64),),
    [[0, 2], [1, 3]],
]


def _as_tensors(index: Any) -> Any:
    items = index if isinstance(index, tuple) else (index,)
    return tuple(mt.tensor(i) if isinstance(i, np.ndarray) else i for i in items)


def test_reading_and_writing_as_in_numpy(rng: np.random.Generator) -> None:
    a = rng.standard_normal(SHAPE)
    results = []
    for index in INDICES[:-1]:
        x = mt.tensor(a, requires_grad=True)
        own = _as_tensors(index)
        part = x[own]
        part.sum().backward()
        count = np.zeros(SHAPE)
        np.add.at(count, index, 1)
        written, into = mt.tensor(a), a.copy()
        values = np.arange(float(a[index].size)).reshape(a[index].shape)
        into[index] = values
        written[own] = mt.tensor(values)
        filled, full = mt.tensor(a), a.copy()
        filled[own], full[index] = 7, 7
        results += [(part, a[index]), (x.grad, count), (written, into), (filled, full)]
    mt.eval(*[t for t, _ in results])
    for got, want in results:
        assert np.array_equal(got.detach().numpy(), want)


def test_a_list_of_lists_is_a_tuple_as_in_torch() -> None:
    x = mt.arange(12).reshape(3, 4)
    with pytest.warns(UserWarning, match="is an index for several dimensions, as a tuple is"):
        assert x[INDICES[-1]].tolist() == [1, 11]
    assert x[[[0, 2]], [1, 3]].tolist() == [[1, 11]]


def test_a_mask_is_evaluated_only_where_its_count_is_needed() -> None:
    x = mt.arange(6.0).reshape(2, 3)
    mask = x * 2 > 5
    with mt.no_sync():
        x[mask] = -1.0
        x[x[:, 0] < 0] = mt.tensor([[1.0, 2.0, 3.0]])
        with pytest.raises(RuntimeError, match="mask as an index"):
            x[mask] = mt.ones(3)
        with pytest.raises(RuntimeError, match="mask as an index"):
            x[mask]
    assert x.tolist() == [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]


@pytest.mark.parametrize("read", [lambda x, k: x[k], lambda x, k: x.masked_select(k)])
def test_masks_of_many_counts_need_no_program_each(read: Any) -> None:
    a = np.arange(40.0).reshape(4, 10)
    x = mt.tensor(a)
    for n in range(6):
        assert read(x, mt.tensor(a > n)).numpy().tolist() == a[a > n].tolist()
    before, selected = EVENTS.get("compiles"), EVENTS.get("selected_at_once")
    for n in range(6, 12):
        assert read(x, mt.tensor(a > n)).numpy().tolist() == a[a > n].tolist()
    assert EVENTS.get("compiles") == before
    assert EVENTS.get("selected_at_once") == selected + 6


def test_masks_of_many_counts_select_rows_of_what_is_between() -> None:
    a = np.arange(120.0).reshape(2, 3, 4, 5)
    x = mt.tensor(a)
    for n in range(12):
        k = (np.arange(12) >= n).reshape(3, 4)
        assert np.array_equal(x[:, mt.tensor(k)].numpy(), a[:, k])
        assert np.array_equal(x[1:, mt.tensor(k), ::2].numpy(), a[1:, k, ::2])


@pytest.mark.parametrize(
    "shape", [(), (1,), (0,), (3, 0), (0, 3), (70,), (7, 10), (1, 9), (9, 1), (2, 3, 4, 5)]
)
def test_where_elements_are_not_zero(shape: tuple[int, ...]) -> None:
    a = np.random.default_rng(1).integers(0, 3, shape)
    for values in (a, a * 0, a * 0 + 1):
        rows = np.argwhere(values)
        found = mt.tensor(values).nonzero()
        assert found.dtype is mt.int64
        assert found.shape == rows.shape
        assert np.array_equal(found.numpy(), rows)
        parts = mt.tensor(values).nonzero(as_tuple=True)
        expected = np.nonzero(values.reshape(shape or (1,)))
        assert len(parts) == len(expected)
        assert all(np.array_equal(p.numpy(), e) for p, e in zip(parts, expected, strict=True))


def test_the_last_of_several_values_for_a_place_counts_and_gets_the_gradient() -> None:
    places = mt.tensor([1, 0, 1, 1])
    values = mt.tensor([1.0, 2.0, 3.0, 4.0, 9.0], requires_grad=True)
    x = mt.zeros(3) + values[0] * 0
    y = x.scatter(0, places, values)  # of a longer source the rest is left out
    x[places] = values[:4]
    (x + y * 10).sum().backward()
    assert x.tolist() == y.tolist() == [2.0, 4.0, 0.0]
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 11.0, 0.0, 11.0, 0.0]


def test_of_several_copies_to_one_entry_the_last_counts() -> None:
    rows = mt.arange(6.0).reshape(3, 2).requires_grad_()
    x = mt.zeros(2, 2).index_copy(0, mt.tensor([1, 0, 1]), rows)
    assert x.tolist() == [[2.0, 3.0], [4.0, 5.0]]
    x.sum().backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    number = mt.tensor(1.0).index_copy_(0, mt.tensor(0), mt.tensor(2.0))
    assert number.shape == ()
    assert number.item() == 2.0


def test_wrong_computed_positions_write_nothing() -> None:
    x = mt.zeros(4)
    mt.eval(x)
    for write in (
        lambda i: x.__setitem__((i,), 1.0),
        lambda i: x.scatter_(0, i, 1.0),
        lambda i: x.index_add_(0, i, mt.ones(2)),
        lambda i: x.index_copy_(0, i, mt.ones(2)),
        lambda i: x.index_put_((i,), mt.ones(())),
    ):
        write(mt.tensor([1, 2]) * 2)
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            mt.eval(x)
        assert x.tolist() == [0.0] * 4


def test_a_compiled_step_may_index_with_lists_and_given_positions(rng: np.random.Generator) -> None:
    @mt.compile
    def step(x: Any, y: Any) -> Any:
        scores = x.log_softmax(1)
        scores[:, [0, 2]] -= 1.0
        return scores.gather(1, y[:, None]).sum() + scores[mt.arange(4), y].mean()

    before = EVENTS.get("uncaptured_calls"), EVENTS.get("watched_calls")
    for _ in range(6):
        a, labels = rng.standard_normal((4, 3)), rng.integers(0, 3, 4)
        scores = a - np.log(np.exp(a).sum(1, keepdims=True)) - np.array([1.0, 0.0, 1.0])
        own = scores[np.arange(4), labels]
        got = step(mt.tensor(a), mt.tensor(labels)).item()
        assert abs(got - own.sum() - own.mean()) < 1e-10
    assert EVENTS.get("uncaptured_calls") == before[0]
    assert EVENTS.get("watched_calls") < before[1] + 6


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_long_lines_are_sorted(dtype: str, rng: np.random.Generator) -> None:
    a = (rng.standard_normal((2, 50_000)) * 1000).astype(dtype)
    x = mt.tensor(a)
    up, (down, places) = x.argsort(1), x.sort(1, descending=True)
    most = x.topk(7).values
    mt.eval(up, down, places, most)
    assert np.array_equal(up.numpy(), np.argsort(a, 1, kind="stable"))
    assert np.array_equal(down.numpy(), np.sort(a, 1)[:, ::-1])
    assert np.array_equal(np.take_along_axis(a, places.numpy(), 1), down.numpy())
    assert np.array_equal(most.numpy(), down.numpy()[:, :7])


def test_long_sums_keep_their_precision(rng: np.random.Generator) -> None:
    a = rng.random(100_000, np.float32)
    got = mt.tensor(a).cumsum(0).numpy()
    want = np.cumsum(a.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-7)


_INTEGERS = ("uint8", "int32", "int64")


@pytest.mark.parametrize("dtype", ["float32", "float64", *_INTEGERS])
@pytest.mark.parametrize("n", [16, 33, 100, 9001])
def test_the_first_few_are_those_of_the_whole_order(
    n: int, dtype: str, rng: np.random.Generator
) -> None:
    """Whatever is the largest and the smallest, and however often."""
    kind = np.dtype(dtype)
    ends: tuple[Any, ...] = (np.inf, -np.inf, np.nan, -0.0, 0.0, 5e-324, 1.0, -1.0)
    if dtype in _INTEGERS:
        ends = (np.iinfo(kind).max, np.iinfo(kind).min, 3, 4)
    several = rng.choice(np.array(ends).astype(kind), (3, n))
    one, other = several.copy(), rng.permutation(n).astype(kind)
    one[:] = several[0, 0]
    one[1, n - 1] = several[2, 1]
    threads = mt.get_num_threads()
    try:
        for number in (1, 2):
            mt.set_num_threads(number)
            for a in (several, one, other[None], -other[None], np.full((1, n), ends[0], kind)):
                x = mt.tensor(a)
                order = x.argsort(1).numpy()
                back = x.argsort(1, descending=True).numpy()
                for k in (1, 2, 4, 8):
                    pair = x.topk(k, largest=False)
                    assert np.array_equal(pair.indices.numpy(), order[:, :k])
                    values = np.take_along_axis(a, order[:, :k], 1)
                    np.testing.assert_array_equal(pair.values.numpy(), values)
                    if k > 1:  # a single largest is that of argmax
                        assert np.array_equal(x.topk(k).indices.numpy(), back[:, :k])
                    assert np.array_equal(x.t().topk(k, 0, False).indices.numpy().T, order[:, :k])
    finally:
        mt.set_num_threads(threads)


def test_few_are_found_where_more_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a vector has lanes at most, and no more than half."""
    ways: list[str] = []
    sort = importlib.import_module("minitorch_tvm.compiler.schedule.cpu.sort")
    tiled = sort.tiled

    def spied(name: str, *arguments: Any) -> Any:
        ways.append(name)
        return tiled(name, *arguments)

    monkeypatch.setattr(sort, "tiled", spied)
    lazy.clear_cache()
    x = mt.rand(3, 40)
    for wanted, few in ((2, True), (4, True), (20, False), (40, False)):
        ways.clear()
        mt.eval(*x.topk(wanted))
        assert ("found" in ways) == few, (wanted, ways)


def test_what_is_different_is_sorted_once(rng: np.random.Generator) -> None:
    a = rng.integers(0, 9, (20, 10))
    x = mt.tensor(a) + 0
    found = x.unique(return_inverse=True, return_counts=True)
    mt.eval(*found)
    assert "sort" not in [kernel.rule for kernel in lazy.last_executor().program.kernels]
    wanted = np.unique(a, return_inverse=True, return_counts=True)
    for got, want in zip(found, wanted, strict=True):
        assert np.array_equal(got.numpy(), want.reshape(got.shape))


def test_draws_follow_the_weights_and_the_seed() -> None:
    weights = mt.tensor([[1.0, 0.0, 3.0, 4.0], [0.0, 5.0, 5.0, 0.0]])
    generator = mt.Generator().manual_seed(3)
    many = weights.multinomial(40_000, replacement=True, generator=generator)
    pairs = weights.expand(500, 2, 4).reshape(1000, 4).multinomial(2, generator=generator)
    again = weights.multinomial(40_000, replacement=True, generator=mt.Generator().manual_seed(3))
    mt.eval(many, pairs, again)
    shares = np.stack([np.bincount(row, minlength=4) for row in many.numpy()]) / 40_000
    np.testing.assert_allclose(shares, weights.numpy() / [[8.0], [10.0]], atol=0.01)
    assert (shares[weights.numpy() == 0] == 0).all()
    assert np.array_equal(many.numpy(), again.numpy())
    first, second = pairs.numpy().T
    assert (first != second).all()
    assert set(first[1::2]) == set(second[1::2]) == {1, 2}
    share = np.bincount(first[::2], minlength=4) / 500
    np.testing.assert_allclose(share, [0.125, 0.0, 0.375, 0.5], atol=0.08)


def test_only_short_lists_of_positions_are_kept() -> None:
    x = mt.arange(100)
    before = advanced._listed.cache_info().currsize
    assert x[list(range(99, -1, -1))].tolist() == list(range(99, -1, -1))
    assert advanced._listed.cache_info().currsize == before
    for _ in range(2):
        assert x[[3, 1, 2, 77]].tolist() == [3, 1, 2, 77]
    assert advanced._listed.cache_info().currsize == before + 1


def test_a_diagonal_of_an_expanded_tensor_is_not_written_to() -> None:
    a = mt.tensor([1.0, 2.0, 3.0])
    assert a.expand(2, 3).diagonal().tolist() == [1.0, 2.0]
    with pytest.raises(NotImplementedError, match="diagonal of an expanded tensor"):
        a.expand(2, 3).diagonal().add_(10)
    assert a.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.gather(0, mt.zeros(0, 2).long()),
        lambda x: x.take_along_dim(mt.zeros(0, 2).long(), 0),
        lambda x: x[:0].prod(),
        lambda x: x[:0].prod(0),
    ],
)
def test_empty_results_have_a_history(f: Callable[[mt.Tensor], mt.Tensor]) -> None:
    x = mt.ones(3, 2, requires_grad=True)
    y = f(x)
    y.sum().backward()
    assert y.numel() == 0 or set(y.flatten().tolist()) == {1.0}
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 0.0]] * 3


def test_gradients_of_written_values_are_looked_up(rng: np.random.Generator) -> None:
    """That of the last for each position; nothing is added up for each element of the result."""
    index = rng.integers(0, 6, (4, 5))
    x = mt.tensor(rng.normal(size=(6, 7)), requires_grad=True)
    source = mt.tensor(rng.normal(size=(5, 6)), requires_grad=True)
    up = rng.normal(size=(6, 7))
    y = x.scatter(0, mt.tensor(index), source)
    lazy.evaluate([y.node], "test")
    (y * mt.tensor(up)).sum().backward()
    mt.eval(source.grad)
    names = [kernel.name for kernel in lazy.last_executor().program.kernels]
    assert not any("scatteradd" in name for name in names), names
    last: dict[tuple[int, int], tuple[int, int]] = {}
    for place, row in np.ndenumerate(index):
        last[int(row), place[1]] = place
    want = np.zeros((5, 6))
    for at, place in last.items():
        want[place] = up[at]
    np.testing.assert_array_equal(source.grad.numpy(), want)
    rows = mt.tensor([2, 0, 2, 5])
    value = mt.tensor(rng.normal(size=(4, 1)), requires_grad=True)
    z = mt.zeros(6, 7, dtype=mt.float64)
    z[rows] = value
    (z * mt.tensor(up)).sum().backward()
    sums = up.sum(1)
    np.testing.assert_allclose(value.grad.numpy()[:, 0], [0, sums[0], sums[2], sums[5]])


@pytest.mark.parametrize("shape", [(200, 3), (50, 7), (40, 1), (3, 64), (9, 2, 3)])
@pytest.mark.parametrize("dim", [0, 1])
def test_unique_entries_are_numpys(shape: tuple[int, ...], dim: int) -> None:
    values = np.random.default_rng(2).integers(-1, 2, shape)
    values[-1] = values[0]
    kinds = {"return_inverse": True, "return_counts": True}
    want = np.unique(values, axis=dim, **kinds)
    for x in (mt.tensor(values), mt.tensor(values).double()):
        for got, expected in zip(x.unique(dim=dim, **kinds), want, strict=True):
            np.testing.assert_array_equal(got.numpy(), expected.reshape(got.shape))
