"""Pooling kernels: rows covered by overlapping vectors."""

from __future__ import annotations

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.nn import functional as F


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
