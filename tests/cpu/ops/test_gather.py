"""Gathers and scatter-adds at real sizes: exactness, determinism, safety, kinds of positions."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy
from minitorch_tvm.compiler.schedule import cpu
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.node import Node, apply
from minitorch_tvm.ir.op import intern
from minitorch_tvm.ops import gather as ga
from minitorch_tvm.tensor import Tensor
from minitorch_tvm.tensor.ranges import known_range

scatter = importlib.import_module(f"{cpu.__name__}.scatter")


def add_up(ct: np.ndarray, index: np.ndarray, size: int) -> np.ndarray:
    """In the order of the positions, in the dtype of ct: bit for bit what must come out."""
    out = np.zeros((size, *ct.shape[index.ndim :]), ct.dtype)
    for i in itertools.product(*map(range, index.shape)):
        out[index[i]] += ct[i]
    return out


def scattered(ct: np.ndarray, index: np.ndarray, size: int) -> Tensor:
    inputs: list[Node] = [mt.from_numpy(ct).node, mt.from_numpy(index).node]
    return Tensor._wrap(apply(intern(ga.ScatterAdd(0, size)), *inputs))


SIZES = [
    ((16, 64), 65, (128,)),
    ((1000,), 7, (33,)),
    ((50,), 5000, (17,)),
    ((300,), 20000, (3,)),
    ((64,), 40, (3, 70)),
    ((500,), 10, ()),
    ((1,), 1, (1,)),
    ((2000,), 50_000, (3,)),
    ((7, 301), 200_000, ()),
    ((3, 5, 100), 9000, (2, 2)),
]


@pytest.mark.parametrize(("places", "size", "behind"), SIZES)
def test_sums_are_exact_and_the_same_for_every_number_of_threads(
    places: tuple[int, ...], size: int, behind: tuple[int, ...], rng: np.random.Generator
) -> None:
    index = rng.integers(0, size, places)
    index.flat[: index.size // 2] %= 3  # many on few rows
    ct = rng.standard_normal((*places, *behind)).astype(np.float32)
    want = add_up(ct, index, size)
    threads = mt.get_num_threads()
    try:
        for count in (1, 2, 3):
            mt.set_num_threads(count)
            assert scattered(ct, index, size).numpy().tobytes() == want.tobytes()
    finally:
        mt.set_num_threads(threads)


@pytest.mark.parametrize("order", ["sorted", "backwards", "rows", "random", "one"])
def test_many_positions_in_whatever_order(order: str, rng: np.random.Generator) -> None:
    """Blocks of rows leave out positions that are none of theirs, some hundred at a time."""
    size, count = 70_001, 3001
    index = np.sort(rng.integers(0, size, count))
    if order == "backwards":
        index = index[::-1].copy()
    elif order == "random":
        index = rng.permutation(index)
    elif order == "rows":
        index = np.arange(count) // 10 * 200 + rng.integers(0, 200, count)
    elif order == "one":
        index[:] = size - 1
    ct = rng.standard_normal(count).astype(np.float32)
    x = mt.from_numpy(rng.standard_normal(size).astype(np.float32))
    written = x.numpy().copy()
    written[index] = ct  # in order: the last counts
    threads = mt.get_num_threads()
    try:
        for number in (1, 2, 3):
            mt.set_num_threads(number)
            assert scattered(ct, index, size).numpy().tobytes() == add_up(ct, index, size).tobytes()
            assert lazy.last_executor().program.kernels[-1].stages == 2
            new = x.scatter(0, mt.from_numpy(index), mt.from_numpy(ct))
            assert new.numpy().tobytes() == written.tobytes()
    finally:
        mt.set_num_threads(threads)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_many_positions_along_a_dimension(dim: int, rng: np.random.Generator) -> None:
    shape, places = (30, 20, 40), [30, 20, 40]
    places[dim] = 7
    index = rng.integers(0, shape[dim], places)
    source = rng.integers(-9, 9, places).astype(np.float32)
    a = rng.integers(-9, 9, shape).astype(np.float32)
    want = a.copy()
    here = list(np.ogrid[tuple(slice(n) for n in places)])
    here[dim] = index
    np.add.at(want, tuple(here), source)
    x = mt.from_numpy(a).requires_grad_()
    arguments = dim, mt.from_numpy(index), mt.from_numpy(source)
    assert np.array_equal(x.scatter_add(*arguments).detach().numpy(), want)
    (x.gather(dim, arguments[1]) * arguments[2]).sum().backward()
    assert x.grad is not None
    assert np.array_equal(x.grad.numpy(), want - a)


def test_followers_join_the_kernel_and_read_what_they_replace(rng: np.random.Generator) -> None:
    table = mt.tensor(rng.standard_normal((40, 19)).astype(np.float32))
    before = table.numpy().copy()
    index = rng.integers(0, 40, 100)
    ct = rng.standard_normal((100, 19)).astype(np.float32)
    g = scattered(ct, index, 40)
    table.sub_(g * 0.5)  # an update in place, as an optimizer records it
    mt.eval(table)
    np.testing.assert_array_equal(table.numpy(), before - add_up(ct, index, 40) * np.float32(0.5))
    np.testing.assert_array_equal(g.numpy(), add_up(ct, index, 40))


@pytest.mark.parametrize(
    ("grain", "blocks", "columns"), [(1 << 20, 16, 64), (1 << 20, 16, 1), (8, 16, 64), (8, 3, 1)]
)
@pytest.mark.parametrize("shape", [(301, 70), (57, 3, 130), (40,)])
def test_tables_in_blocks_of_columns_or_of_rows(
    grain: int,
    blocks: int,
    columns: int,
    shape: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By themselves, and with what is made of them behind; large tables are taken row by row."""
    monkeypatch.setattr(scatter, "GRAIN", grain)
    monkeypatch.setattr(scatter, "_COLUMNS", columns)
    monkeypatch.setattr(scatter, "_ROW_BLOCKS", blocks)
    rng = np.random.default_rng(5)
    index = rng.integers(0, shape[0], 90)
    ct = rng.standard_normal((90, *shape[1:])).astype(np.float32)
    lazy.clear_cache()
    sums = scattered(ct, index, shape[0])
    np.testing.assert_array_equal(sums.numpy(), add_up(ct, index, shape[0]))
    table = mt.from_numpy(rng.standard_normal(shape).astype(np.float32))
    expected = table.numpy() - np.float32(0.5) * add_up(ct, index, shape[0])
    table -= 0.5 * scattered(ct, index, shape[0])
    np.testing.assert_array_equal(table.numpy(), expected)


@pytest.mark.parametrize(
    ("rows", "columns", "tiles"), [(4096, 128, 16), (100, 128, 2), (8, 2048, 4), (800, 2048, 16)]
)
def test_tables_are_taken_in_whole_rows(
    rows: int, columns: int, tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for small ones of long rows: of parts of a row, cores fetch each other's lines ahead."""
    found = []
    stage = scatter.parallel_stage

    def noted(name: str, count: int, *rest: Any) -> Any:
        found.append(count)
        return stage(name, count, *rest)

    monkeypatch.setattr(scatter, "parallel_stage", noted)
    lazy.clear_cache()
    index = np.zeros(5, np.int64)
    with config.override(isa="x86-64-v3"):
        scattered(np.ones((5, columns), np.float32), index, rows).numpy()
    assert found == [tiles]


def test_a_computed_index_is_checked_before_anything_is_written() -> None:
    table = mt.arange(12.0).reshape(4, 3)
    good = mt.tensor([1, 2]) + mt.tensor([0, 1])
    assert F.embedding(good, table).tolist() == [[3, 4, 5], [9, 10, 11]]
    target = mt.zeros(3)
    mt.eval(target)
    rows = F.embedding(mt.tensor([1, 2]) * 2, table)
    target.add_(rows.sum(0))
    with pytest.raises(IndexError, match="index out of range in self") as caught:
        mt.eval(target)
    assert target.tolist() == [0.0] * 3
    assert "test_gather.py" in caught.value.__notes__[0]
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 4"):
        table[mt.tensor([3]) * 3].tolist()


def test_positions_that_are_gathered_themselves_never_read_outside() -> None:
    # Both conditions are evaluated together: the second one reads at positions that are wrong.
    near = mt.arange(4)
    wrong = near.index_select(0, mt.tensor([1 << 40]) + 0)
    near.index_select(0, wrong)
    with pytest.raises(IndexError):
        mt.eval(near.index_select(0, wrong))


def test_the_reference_executor_agrees(rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 4)).astype(np.float32)

    def run() -> list[np.ndarray]:
        t = mt.tensor(x, requires_grad=True)
        y = t[mt.tensor([4, -5, 4])].erf()
        y.sum().backward()
        return [y.detach().numpy().copy(), t.grad.numpy().copy()]  # type: ignore[union-attr]

    native = run()
    with config.override(target="numpy"):
        for a, b in zip(native, run(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_number_tensor_is_an_integer_index() -> None:
    assert mt.arange(4)[mt.tensor(2)].shape == ()
    assert mt.arange(4).index_select(0, mt.tensor(2)).tolist() == [2]
    assert mt.tensor(7.0).index_select(0, mt.tensor([0])).item() == 7.0
    with pytest.raises(IndexError):
        mt.arange(4).index_select(0, mt.tensor(4))


@pytest.mark.parametrize(
    ("make", "bounds"),
    [
        (lambda: mt.arange(5), (0, 4)),
        (lambda: mt.arange(5).reshape(5, 1).expand(5, 2), (0, 4)),
        (lambda: mt.arange(10, 2, -2) * 3 - 1, (11, 29)),
        (lambda: -mt.arange(3), None),
        (lambda: mt.arange(3) * mt.tensor(2), None),
        (lambda: mt.randn(3, 5).argmax(1), (0, 4)),
        (lambda: mt.randn(3, 5).min(0).indices.long(), (0, 2)),
        (lambda: mt.randn(3, 5).argmin(), (0, 14)),
        (lambda: mt.randn(6).topk(2).indices - 6, (-6, -1)),
        (lambda: mt.randn(3, 5).sort(1).indices[:, 1:], (0, 4)),
        (lambda: (mt.randn(3) > 0).long() * 3, (0, 3)),
        (lambda: (mt.arange(5) - 2) % 3, (0, 2)),
        (lambda: mt.tensor([-7, 5, 3]).add(1) % 4, (0, 3)),
        (lambda: mt.arange(5) % mt.tensor(3), None),
        (lambda: mt.arange(5) % -3, None),
        (lambda: (mt.arange(7) - 3) // 2, (-2, 1)),
        (lambda: mt.div(mt.arange(7) - 3, 2, rounding_mode="trunc"), (-2, 1)),
        (lambda: mt.div(mt.arange(3) - 4, 2, rounding_mode="trunc"), (-2, 0)),
        (lambda: mt.arange(7) // -2, None),
        (lambda: mt.cat([mt.arange(3), mt.arange(5) + 2]), (0, 6)),
        (lambda: mt.stack([mt.arange(3), mt.arange(3) - 9]), (-9, 2)),
        (lambda: mt.cat([mt.arange(3), mt.tensor([1]).neg()]), None),
        (lambda: mt.where(mt.randn(4) > 0, mt.arange(4), -1), (-1, 3)),
        (lambda: mt.minimum(mt.arange(9), mt.arange(9) - 4), (-4, 4)),
        (lambda: (mt.arange(10) - 5)[mt.randn(3, 10).argmax(1)], (-5, 4)),
        (lambda: mt.randn(3, 1 << 20).argmax(1) * (1 << 12), None),
        (lambda: mt.arange(3.0).long(), None),
        (lambda: mt.arange(3) * (1 << 40), None),
        (lambda: mt.arange(3).to(mt.uint8).to(mt.int64), (0, 255)),
    ],
)
def test_what_is_known_of_positions(
    make: Callable[[], Tensor], bounds: tuple[int, int] | None
) -> None:
    index = make()
    assert known_range(index.node) == bounds
    if bounds is not None:
        values = index.numpy()
        assert bounds[0] <= values.min()
        assert values.max() <= bounds[1]


def test_positions_that_are_known_need_no_evaluation() -> None:
    table = mt.arange(12.0).reshape(4, 3)
    mt.eval(table)
    before = EVENTS.get("check_evaluations")
    assert F.embedding(mt.arange(4), table).tolist() == table.tolist()
    scores = mt.tensor([[0.0, 2.0, 1.0], [5.0, 4.0, 3.0]])
    assert scores.gather(1, scores.argmax(1, keepdim=True)).tolist() == [[2.0], [5.0]]
    best = scores.flatten().topk(3).indices
    assert table[best // 3].tolist() == table[mt.tensor([1, 1, 1])].tolist()
    assert table.T[best % 3][:, 0].tolist() == [0.0, 1.0, 2.0]
    assert EVENTS.get("check_evaluations") == before
    with pytest.raises(IndexError):
        F.embedding(mt.arange(5), table).tolist()


def test_behind_products(rng: np.random.Generator) -> None:
    """Finishing a product may read what is at a place that is read first."""
    a, b, other = (
        rng.standard_normal(s).astype("f4") for s in ((300, 200), (200, 290), (300, 300))
    )
    rows, columns = rng.integers(0, 300, 300), rng.integers(0, 300, 290)
    x, y, z = (mt.tensor(v) for v in (a, b, other))
    found = x @ y + z[:, mt.tensor(columns)] + z[mt.tensor(rows)][:, :290] * 2
    want = a.astype("f8") @ b + other[:, columns] + other[rows][:, :290] * 2.0
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-5, atol=1e-4)


def test_positions_that_took_many_operations() -> None:
    index = mt.arange(2)
    for _ in range(1200):
        index = index + 0
    assert F.embedding(index, mt.ones(2, 2)).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    index = mt.arange(2)
    for _ in range(40):
        index = (index + 1) + (index - 1) - index  # each read three times
    assert mt.arange(4)[index].tolist() == [0, 1]
    with pytest.raises(RuntimeError, match=r"can have only 1 value, got 2 value\(s\)"):
        mt.tensor(1.0).index_select(0, mt.tensor([0, 0]))
