"""Integers wrap around, also where kernels join what overflows with what reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config

Function = Callable[[Any, Any], Any]

# Of tensors and of arrays alike.
BOTH: dict[str, Function] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "one more is more": lambda x, y: x + 1 > x,
    "one more is not less": lambda x, y: x + 1 >= x,
    "one less is less": lambda x, y: x - 1 < x,
    "twice is more": lambda x, y: x * 2 > x,
    "more than a part": lambda x, y: x + y > y,
    "difference": lambda x, y: x - y < 0,
    "square": lambda x, y: x * x < 0,
    "there and back": lambda x, y: (x + y) - y <= x,
    "constants": lambda x, y: x + 5 < 7,
    "two constants": lambda x, y: (x - 3) > (x - 4),
    "equal": lambda x, y: x * 6 == y * 6,
    "abs": lambda x, y: abs(x),
    "power": lambda x, y: x**3,
    "sum": lambda x, y: x.sum(),
    "sums of columns": lambda x, y: x.sum(0),
    "sums of rows": lambda x, y: (x * y).sum(1),
    "compared sums": lambda x, y: x.sum(0) + x.sum(0) > x.sum(0),
    "product": lambda x, y: x @ y.T,
    "compared product": lambda x, y: x @ y.T + 1 > x @ y.T,
    "bits": lambda x, y: (x & y) | (x ^ 5),
    "every other bit": lambda x, y: ~x,
    "shifted by anything": lambda x, y: x << y,
    "shifted back by anything": lambda x, y: x >> y,
    "shifted there and back": lambda x, y: (x << 3) >> 3,
    "compared shift": lambda x, y: (x << 1) > x,
}
SIGNED: dict[str, Function] = {
    "neg": lambda x, y: -x,
    "compared neg": lambda x, y: -x >= -(x + 1),
    "its own opposite": lambda x, y: -x == x,
    "negative abs": lambda x, y: abs(x) < 0,
    "abs of a difference": lambda x, y: abs(x - y) + 1 > 0,
}


def _numbers(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    i = np.iinfo(dtype)
    ends = [i.max, i.min, i.max - 1, i.min + 1, 0, 1, 5, i.max // 2 + 1, i.max // 3, i.min // 2]
    x = np.array([ends[n * n % 10] for n in range(110)], dtype).reshape(5, 22)
    return x, np.ascontiguousarray(x[::-1, ::-1])


@pytest.mark.parametrize("schedule", ["ours", "default"])
@pytest.mark.parametrize(
    ("dtype", "name"),
    [(d, n) for d in ("int32", "int64", "uint8") for n in BOTH]
    + [(d, n) for d in ("int32", "int64") for n in SIGNED],
)
def test_integers_wrap_around(dtype: str, name: str, schedule: str) -> None:
    function = {**BOTH, **SIGNED}[name]
    x, y = _numbers(dtype)
    with config.override(schedule=schedule):
        found = function(mt.tensor(x), mt.tensor(y)).numpy()
    with np.errstate(over="ignore"):
        wanted = function(x, y)
    if found.dtype == np.int64:  # numpy's sums of uint8 are unsigned
        wanted = wanted.astype(np.int64)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("schedule", ["ours", "default"])
def test_what_has_wrapped_around_becomes_wider(schedule: str) -> None:
    x = np.array([(1 << 31) - 1, -(1 << 31), 7], np.int32)
    with config.override(schedule=schedule):
        found = (mt.tensor(x) * 3 + 1).to(mt.int64).numpy()
        real = (mt.tensor(x) * 3 + 1).to(mt.float64).numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, x * 3 + 1)
    np.testing.assert_array_equal(real, found)
