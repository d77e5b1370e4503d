"""Repeated calls of captured functions: integers by which others are divided are tested."""

from __future__ import annotations

import numpy as np
import pytest
from test_captured_calls import captured

import minitorch_tvm as mt


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_divisors_are_tested_at_each_call(dtype: type) -> None:
    def f(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        return x // y + x % y

    x = np.array([7, 8], dtype)
    compiled = captured(f, x, np.array([2, 3], dtype))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(x, np.array([1, 0], dtype))
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(x, mt.tensor(np.array([0, 1], dtype)))
        assert compiled(x, np.array([5, 4], dtype)).tolist() == [3, 2]


def test_a_divisor_that_is_computed_is_tested_at_each_call() -> None:
    compiled = captured(lambda x, y: x // (y - 1), mt.tensor([7, 8]), mt.tensor([3, 4]))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(mt.tensor([7, 8]), mt.tensor([1, 3])).tolist()
        assert compiled(mt.tensor([9, 8]), mt.tensor([3, 2])).tolist() == [4, 8]
