"""Denormal numbers are computed with as in PyTorch, by every thread: nothing is flushed to zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import minitorch_tvm as mt  # noqa: E402

RNG = np.random.default_rng(0)
LARGE = 1 << 20  # elements: several threads share the work

CASES: dict[str, Callable[..., Any]] = {
    "add": lambda lib, x, y: x + 3e-42,
    "multiply": lambda lib, x, y: x * y,
    "divide": lambda lib, x, y: x / 3.0,
    "becomes one": lambda lib, x, y: y * 1e-39,
    "relu": lambda lib, x, y: x.relu() + 0.0,  # of -0.0 ours is 0.0
    "maximum": lambda lib, x, y: x.amax(0),
    "sum": lambda lib, x, y: x.sum(0),
    "where": lambda lib, x, y: lib.where(x > 0, x, -x),
    "compared": lambda lib, x, y: (x == 0).float(),
    "gradient": lambda lib, x, y: lib.autograd.grad(
        (x * (z := y.detach().requires_grad_())).sum(), z
    )[0],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(16, 16), (1024, LARGE // 1024)], ids=["small", "large"])
def test_the_same_bits_as_torch(name: str, shape: tuple[int, int]) -> None:
    x = (RNG.standard_normal(shape) * 1e-41).astype(np.float32)
    y = RNG.standard_normal(shape).astype(np.float32)
    assert np.count_nonzero(x) > x.size // 2
    expected = CASES[name](torch, torch.from_numpy(x), torch.from_numpy(y)).numpy()
    found = CASES[name](mt, mt.tensor(x), mt.tensor(y)).numpy()
    # (Denormal numbers are added without rounding: the order does not matter.)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("size", [8, 200])
def test_products(size: int) -> None:
    x = (RNG.standard_normal((size, size)) * 1e-41).astype(np.float32)
    y = RNG.standard_normal((size, size)).astype(np.float32)
    found = (mt.tensor(x) @ mt.tensor(y)).numpy()
    exact = x.astype(np.float64) @ y.astype(np.float64)
    # A sum of denormal numbers is rounded to a multiple of the smallest, at every step or fewer.
    smallest = np.float64(np.finfo(np.float32).smallest_subnormal)
    assert np.abs(found - exact).max() <= size * smallest
    assert np.abs(exact).max() > 10 * size * smallest
