"""Derivatives of every one of the functions that share an op, and where squares overflow."""

from __future__ import annotations

import numpy as np
import pytest
from table_special import FUNCTIONS

import minitorch_tvm as mt
from minitorch_tvm.ir.node import apply
from minitorch_tvm.ops.special import special
from minitorch_tvm.tensor import Tensor

POINTS = {
    "acosh": [1.05, 1.5, 3.0, 40.0],
    "asinh": [-30.0, -0.5, 0.0, 1.5],
    "atanh": [-0.95, -0.5, 0.0, 0.7],
    "logit": [0.02, 0.3, 0.5, 0.97],
    "erfc": [-1.5, 0.0, 0.3, 2.5],
    "erfinv": [-0.98, -0.3, 0.0, 0.6],
    "sinc": [-3.3, -0.4, 0.0, 1.7],
    "sinc_slope": [-3.3, -0.4, 0.3, 1.7],
}
POINTS |= {name: [-2.3, 0.2, 1.7, 12.5] for name in ("lgamma", "digamma")}
LEFT, RIGHT = [1.5, -2.0, 0.3, -0.7], [0.5, 3.0, -1.2, -2.0]


@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if name not in ("trigamma", "nextafter")]
)
def test_first_and_second_derivatives(name: str) -> None:
    def f(*xs: Tensor) -> Tensor:
        return Tensor._wrap(apply(special(name), *[x.node for x in xs]))

    def slopes(*xs: Tensor) -> tuple[Tensor, ...]:
        return mt.autograd.grad(f(*xs).sum(), list(xs), create_graph=True)

    values = [POINTS[name]] if name in POINTS else [LEFT, RIGHT]
    xs = tuple(mt.tensor(v, dtype=mt.float64, requires_grad=True) for v in values)
    assert mt.autograd.gradcheck(f, xs)
    if name != "digamma":  # whose second derivative is not there
        assert mt.autograd.gradcheck(slopes, xs)


def test_a_derivative_that_is_not_there() -> None:
    x = mt.tensor([1.5], requires_grad=True)
    (slope,) = mt.autograd.grad(x.digamma().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative for Trigamma is not implemented"):
        slope.sum().backward()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_next_numbers_to_the_bit(dtype: str, rng: np.random.Generator) -> None:
    edges = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, 3.4028235e38, -3e38], dtype)
    x, y = np.meshgrid(edges, edges)
    got = mt.tensor(x).nextafter(mt.tensor(y)).numpy()
    with np.errstate(all="ignore"):
        want = np.nextafter(x, y)
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


def test_gradients_where_a_square_is_too_large_or_too_small() -> None:
    x = mt.tensor([3e30, 3e-30], requires_grad=True)
    y = mt.tensor([4e30, 4e-30], requires_grad=True)
    mt.hypot(x, y).sum().backward()
    mt.testing.assert_close(x.grad, mt.tensor([0.6, 0.6]))
    x.grad = None
    mt.atan2(x, y).sum().backward()
    mt.testing.assert_close(x.grad, mt.tensor([0.16e-30, 0.16e30]), rtol=1e-5, atol=0.0)
    z = mt.tensor([1e25], requires_grad=True)
    mt.asinh(z).sum().backward()
    mt.testing.assert_close(z.grad, mt.tensor([1e-25]), rtol=1e-5, atol=0.0)
