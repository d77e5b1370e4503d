"""Products that store their lines in another order of dimensions, as attention joins its heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core import config

Array = np.ndarray[Any, Any]

# Lines of a part of a vector, of one element, of several vectors and a rest; results that are
# computed transposed (few columns), and dimensions of equal sizes, which an order must not mix up.
CASES = [
    ((2, 4, 64, 32), 48, (0, 2, 1, 3)),
    ((3, 5, 7, 9), 20, (2, 0, 1, 3)),
    ((4, 4, 4, 4), 4, (1, 2, 0, 3)),
    ((2, 3, 50, 17), 1, (1, 0, 2, 3)),
    ((5, 40, 3), 100, (1, 0, 2)),
    ((1, 2, 9, 70), 33, (2, 1, 0, 3)),
]


def names() -> list[str]:
    """The kernels of the last program."""
    return [k.name for k in lazy.last_executor().program.kernels]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(("shape", "depth", "dims"), CASES)
def test_lines_are_stored_where_they_belong(
    shape: tuple[int, ...], depth: int, dims: tuple[int, ...], dtype: str
) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (*shape[:-1], depth)).astype(dtype)
    b = rng.integers(-4, 5, (*shape[:-2], depth, shape[-1])).astype(dtype)
    c = rng.integers(-4, 5, shape[-1]).astype(dtype)
    with config.override(poison=True):
        y = (mt.from_numpy(a) @ mt.from_numpy(b) + mt.from_numpy(c)).permute(dims).contiguous()
        mt.eval(y)
    assert names() == ["matmul_add_permute"]
    np.testing.assert_array_equal(y.numpy(), (a @ b + c).transpose(dims))


def test_the_validator_understands_them() -> None:
    x = mt.randn(2, 3, 8, 5)
    mt.eval(x)
    with config.override(validate=True):
        mt.eval((x @ x.transpose(2, 3)).permute(0, 2, 1, 3).contiguous())
        assert names() == ["matmul_permute"]


def test_what_others_read_keeps_its_place() -> None:
    """The product itself is a result, or something is computed from it elsewhere."""
    x = mt.randn(4, 4, 4)
    mt.eval(x)
    product = x @ x
    turned = product.permute(1, 0, 2).contiguous()
    mt.eval(product, turned)
    assert names() == ["matmul", "permute"]
    want = x.numpy() @ x.numpy()
    np.testing.assert_array_equal(turned.numpy(), product.numpy().transpose(1, 0, 2))
    np.testing.assert_allclose(product.numpy(), want, rtol=1e-5, atol=1e-6)


def test_nothing_is_computed_behind() -> None:
    """What reads the new order at its own index is another kernel, though shapes are equal."""
    x = mt.randn(4, 4, 4)
    mt.eval(x)
    turned = (x @ x).permute(1, 0, 2).contiguous()
    doubled = turned * 2
    mt.eval(turned, doubled)
    assert names() == ["matmul_permute", "mul"]
    want = (x.numpy() @ x.numpy()).transpose(1, 0, 2)
    np.testing.assert_allclose(turned.numpy(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(doubled.numpy(), turned.numpy() * 2)


def test_lines_that_would_be_torn_apart_are_turned_by_a_kernel_of_their_own() -> None:
    x = mt.randn(2, 8, 8)
    mt.eval(x)
    turned = (x @ x).permute(2, 0, 1).contiguous()
    mt.eval(turned)
    assert names() == ["matmul", "permute"]
