"""Results that are reshaped: what computes them stores them there, and nothing is copied."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core import config
from minitorch_tvm.nn import functional as F


def names() -> list[str]:
    """The kernels of the last program."""
    return [k.name for k in lazy.last_executor().program.kernels]


CASES: dict[str, tuple[Callable[[mt.Tensor], mt.Tensor], list[str]]] = {
    "repeat": (lambda x: x.repeat(2, 3, 2), ["expand"]),
    "each": (lambda x: mt.repeat_interleave(x, 3, dim=1), ["expand"]),
    "product": (lambda x: x @ x[0].T, ["matmul"]),
    "a number": (lambda x: mt.dot(x.view(-1), x.view(-1)), ["sum"]),
    "groups": (lambda x: F.group_norm(x, 2), ["sum_div_sum_div_etc"]),
}


@pytest.mark.parametrize("checked", ["poison", "validate"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_copied(case: str, checked: str, rng: np.random.Generator) -> None:
    compute, kernels = CASES[case]
    lazy.clear_cache()
    x = rng.normal(size=(2, 4, 5)).astype("float32")
    with config.override(**{checked: True}):
        y = compute(mt.from_numpy(x))
        mt.eval(y)
        assert names() == kernels
    with config.override(target="numpy"):
        want = compute(mt.from_numpy(x)).numpy()
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5, atol=1e-6)


def test_a_result_and_what_it_is_reshaped_from_are_two() -> None:
    """Both are given, or two of the same are: each has memory of its own."""
    x = mt.arange(6.0)
    y = x.exp()
    first, second = y.reshape(2, 3), y.reshape(3, 2)
    mt.eval(y, first, second)
    want = np.exp(np.arange(6.0, dtype="float32"))
    for given in (y, first, second):
        np.testing.assert_allclose(given.numpy().reshape(-1), want, rtol=1e-6)


def test_others_read_it_under_both_names(rng: np.random.Generator) -> None:
    a, b = (rng.normal(size=s).astype("float32") for s in ((4, 2, 6), (3, 6)))
    x, w = mt.from_numpy(a), mt.from_numpy(b)
    with config.override(poison=True):
        product = x @ w.T
        more, sums = product * 2, product.sum((0, 1))
        mt.eval(product, more, sums)
    assert not any("reshape" in name for name in names())
    want = a.astype("float64") @ b.T
    np.testing.assert_allclose(product.numpy(), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(more.numpy(), 2 * product.numpy())
    np.testing.assert_allclose(sums.numpy(), want.sum((0, 1)), rtol=1e-5, atol=1e-5)


def test_what_an_update_overwrites_stays() -> None:
    """A parameter that is updated in another shape."""
    weight = mt.zeros(4, 3, requires_grad=True)
    with mt.no_grad():
        weight += mt.ones(12).cumsum(0).reshape(4, 3)
    mt.eval(weight)
    np.testing.assert_array_equal(weight.detach().numpy(), np.arange(1.0, 13).reshape(4, 3))
