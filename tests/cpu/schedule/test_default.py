"""TVM's own lowering keeps NaN and infinities, whatever its simplifier thinks of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm.core import config

X = np.array(
    [[np.nan, 1, -np.inf, np.inf, -2, 0, -0.0], [3, np.nan, 3, -np.inf, -5, 1e38, -1e38]],
    np.float32,
)
Y = np.roll(X, 2, 1)


def _places_so_far(x: Any, y: Any) -> Any:
    """The last NaN, or the last of the largest elements, of each beginning of a row."""
    keys = [[(v != v, 0.0 if v != v else v, k) for k, v in enumerate(row)] for row in x]
    return np.array([[max(row[: k + 1])[2] for k in range(len(row))] for row in keys])


# What is computed, and the same by numpy.
CASES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "maximum": (mt.maximum, np.maximum),
    "minimum": (mt.minimum, np.minimum),
    "clamp": (lambda x, y: x.clamp(-1, 1), lambda x, y: np.clip(x, -1, 1)),
    "clamp min": (lambda x, y: x.clamp(min=0), lambda x, y: np.maximum(x, 0)),
    "relu": (lambda x, y: F.relu(x), lambda x, y: np.maximum(x, 0)),
    "largest": (lambda x, y: x.amax(1), lambda x, y: x.max(1)),
    "smallest": (lambda x, y: x.amin(0), lambda x, y: x.min(0)),
    "place of the largest": (lambda x, y: x.argmax(1), lambda x, y: x.argmax(1)),
    "place of the smallest": (lambda x, y: x.argmin(1), lambda x, y: x.argmin(1)),
    "equal": (lambda x, y: x == y, lambda x, y: x == y),
    "not equal": (lambda x, y: x != y, lambda x, y: x != y),
    "less or equal": (lambda x, y: x <= y, lambda x, y: x <= y),
    "not less or equal": (lambda x, y: ~(x <= y), lambda x, y: ~(x <= y)),
    "equal to itself": (lambda x, y: x == x, lambda x, y: x == x),
    "not equal to itself": (lambda x, y: x != x, lambda x, y: x != x),
    "minus itself": (lambda x, y: x - x, lambda x, y: x - x),
    "over itself": (lambda x, y: x / x, lambda x, y: x / x),
    "times zero": (lambda x, y: x * 0, lambda x, y: x * 0),
    "true": (lambda x, y: x.to(mt.bool), lambda x, y: x.astype(bool)),
    "small tangents": (lambda x, y: (x * 1e-9).tanh(), lambda x, y: np.tanh(x * np.float32(1e-9))),
    "exponential": (lambda x, y: x.exp(), lambda x, y: np.exp(x)),
    "sigmoid": (lambda x, y: x.sigmoid(), lambda x, y: 1 / (1 + np.exp(-x))),
    "power": (lambda x, y: x**1.5, lambda x, y: x ** np.float32(1.5)),
    "power of": (lambda x, y: 3.0**x, lambda x, y: np.float32(3.0) ** x),
    "powers": (lambda x, y: x**y, lambda x, y: x**y),
    "angle": (mt.atan2, np.arctan2),
    "distance": (mt.hypot, np.hypot),
    "logarithm of a sum": (mt.logaddexp, np.logaddexp),
    "next number": (mt.nextafter, np.nextafter),
    "sign": (mt.copysign, np.copysign),
    "sign bit": (lambda x, y: x.signbit(), lambda x, y: np.signbit(x)),
    "inverse hyperbolic sine": (lambda x, y: x.asinh(), lambda x, y: np.arcsinh(x)),
    "larger number": (mt.fmax, np.fmax),
    "place of the largest so far": (lambda x, y: x.cummax(1).indices, _places_so_far),
    "softmax": (lambda x, y: F.softmax(x, 1), lambda x, y: x * np.nan),
}


@pytest.mark.parametrize("name", CASES)
def test_special_numbers(name: str) -> None:
    ours, theirs = CASES[name]
    with config.override(schedule="default"):
        found = ours(mt.tensor(X), mt.tensor(Y)).numpy()
    with np.errstate(all="ignore"):
        expected = theirs(X, Y)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("kernel", [(3, 1, 1), (2, 1, 0), (3, 3, 0), (2, 2, 0)])
def test_gradients_of_pooling_go_to_the_first_nan(kernel: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(1)
    data = rng.choice([0, 1, 2, np.nan, np.inf, -np.inf], (2, 3, 9, 7)).astype(np.float32)
    data[1, 0] = -np.inf  # of which the first element gets the gradient, not the border
    found = []
    for schedule in ("default", "ours"):
        with config.override(schedule=schedule):
            x = mt.tensor(data, requires_grad=True)
            y = F.max_pool2d(x, *kernel)
            weights = mt.arange(y.numel(), dtype=mt.float32).reshape(y.shape)
            y.backward(weights)
            found.append((y.detach().numpy(), x.grad.numpy()))
    for default, ours in zip(*found, strict=True):
        np.testing.assert_array_equal(default, ours)


def test_gradients_of_extrema_are_shared_by_nan() -> None:
    with config.override(schedule="default"):
        x = mt.tensor(X, requires_grad=True)
        x.amin(1).sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.isnan(X))
