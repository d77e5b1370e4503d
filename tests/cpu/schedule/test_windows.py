"""Pooling kernels: rows covered by overlapping vectors, windows of two by two in halves."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler.schedule.cpu import window_halves
from minitorch_tvm.core import config
from minitorch_tvm.nn import functional as F

window = importlib.import_module("minitorch_tvm.compiler.schedule.cpu.window")


@pytest.mark.parametrize("width", [13, 14, 26])
def test_results_that_overwrite_what_they_read_are_added_once(width: int) -> None:
    values = np.random.default_rng(0).normal(size=(1, 2, 6, 2 * width)).astype("float32")
    sums = mt.ones(1, 2, 3, width)
    sums.realize()
    with mt.no_grad():
        sums.add_(F.max_pool2d(mt.tensor(values), 2))
    found = sums.numpy()
    assert [k.rule for k in lazy.last_executor().program.kernels] == ["window"]
    assert lazy.last_executor().program.outputs[0].donor is not None
    expected = 1 + values.reshape(1, 2, 3, 2, width, 2).max((3, 5))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("width", [13, 14, 26])
def test_gradients_that_overwrite_what_they_read_are_added_once(width: int) -> None:
    rng = np.random.default_rng(0)
    x = mt.tensor(rng.normal(size=(1, 2, 4, 2 * width)).astype("float32"), requires_grad=True)
    sums = mt.ones(1, 2, 4, 2 * width)
    ct = rng.normal(size=(1, 2, 2, width)).astype("float32")
    sums.realize()
    (grad,) = mt.autograd.grad(F.avg_pool2d(x, 2), [x], [mt.tensor(ct)])
    sums.add_(grad)
    expected = 1 + np.repeat(np.repeat(ct / 4, 2, 2), 2, 3)
    np.testing.assert_allclose(sums.numpy(), expected, rtol=1e-6)


def winners(x: np.ndarray, ct: np.ndarray) -> np.ndarray:
    """What the first largest of each two by two gets, or the last NaN."""
    n, c, h, w = x.shape
    windows = x.reshape(n, c, h // 2, 2, w // 2, 2).swapaxes(3, 4).reshape(*ct.shape, 4)
    missing = np.isnan(windows)
    last = 3 - missing[..., ::-1].argmax(-1)
    where = np.where(missing.any(-1), last, windows.argmax(-1))
    shares = np.where(np.arange(4) == where[..., None], ct[..., None], 0)
    return shares.reshape(*ct.shape, 2, 2).swapaxes(3, 4).reshape(x.shape)


def gradient(x: np.ndarray, ct: np.ndarray) -> mt.Tensor:
    """Of maxima of two by two, not evaluated."""
    given = mt.tensor(x, requires_grad=True)
    (found,) = mt.autograd.grad(F.max_pool2d(given, 2), [given], [mt.tensor(ct)])
    return found


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each gradient of maxima of two by two was taken in halves."""
    found: list[bool] = []
    stages = window_halves.half_stages

    def watched(*arguments: Any) -> Any:
        made = stages(*arguments)
        found.append(made is not None)
        return made

    monkeypatch.setattr(window, "half_stages", watched)
    lazy.clear_cache()
    yield found
    lazy.clear_cache()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "shape",
    [(2, 3, 4, 8), (1, 2, 2, 14), (2, 1, 6, 16), (3, 2, 8, 28), (1, 5, 4, 46)],
)
def test_gradients_of_two_by_two(shape: tuple[int, ...], dtype: str, taken: list[bool]) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 3, shape).astype(dtype)  # full of ties
    special = rng.choice([np.nan, np.inf, -np.inf, -0.0], shape)
    x = np.where(rng.random(shape) < 0.3, special, x).astype(dtype)
    ct = rng.normal(size=(*shape[:2], shape[2] // 2, shape[3] // 2)).astype(dtype)
    found = gradient(x, ct).numpy()
    assert taken == [True]
    np.testing.assert_array_equal(found, winners(x, ct))


@pytest.mark.parametrize(("width", "halves"), [(16, True), (32, True), (14, False), (28, False)])
def test_gradients_of_two_by_two_are_added_once(
    width: int, halves: bool, taken: list[bool]
) -> None:
    rng = np.random.default_rng(2)
    x = rng.choice([0, 1, 2, np.nan, np.inf, -np.inf], (2, 2, 4, width)).astype("float32")
    ct = rng.normal(size=(2, 2, 2, width // 2)).astype("float32")
    sums = mt.ones(*x.shape)
    sums.realize()
    sums.add_(gradient(x, ct))
    found = sums.numpy()
    assert lazy.last_executor().program.outputs[0].donor is not None
    assert taken == [halves]  # blocks of other widths overlap
    np.testing.assert_array_equal(found, 1 + winners(x, ct))


def test_what_is_pooled_may_be_computed_on_the_way(taken: list[bool]) -> None:
    rng = np.random.default_rng(3)
    wide = rng.normal(size=(2, 3, 6, 40)).astype("float32")
    ct = rng.normal(size=(2, 3, 3, 14)).astype("float32")
    x = mt.tensor(wide, requires_grad=True)
    part = x[..., 5:33] * 2
    (found,) = mt.autograd.grad(F.max_pool2d(part.relu(), 2), [x], [mt.tensor(ct)])
    expected = np.zeros_like(wide)
    inner = wide[..., 5:33] * 2
    expected[..., 5:33] = 2 * winners(np.maximum(inner, 0), ct) * (inner > 0)
    np.testing.assert_array_equal(found.numpy(), expected)
    assert taken == [True]


def test_gradients_of_two_by_two_by_the_default_schedule() -> None:
    rng = np.random.default_rng(4)
    x = rng.choice([0, 1, 2, np.nan, np.inf, -np.inf], (2, 2, 4, 16)).astype("float32")
    ct = rng.normal(size=(2, 2, 2, 8)).astype("float32")
    with config.override(schedule="default"):
        found = gradient(x, ct).numpy()
    np.testing.assert_array_equal(found, winners(x, ct))
