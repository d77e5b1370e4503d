"""In-place updates: memory is taken over only where the kernel reads it at its own index."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.tensor import Tensor, at_once

# Each update of a square w, the same in numpy, and whether it may run in w's own memory.
UPDATES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray], bool]] = {
    "own index": (lambda w: w * 2 + 1, lambda w: w * 2 + 1, True),
    "own index and constant": (lambda w: w - w.clamp(min=0.25), lambda w: w - w.clip(0.25), True),
    "transposed": (lambda w: w.t() * 2, lambda w: w.T * 2, False),
    "both": (lambda w: w + w.t(), lambda w: w + w.T, False),
    "reversed by reshape": (
        lambda w: w.reshape(-1).reshape(2, -1).t().reshape(*w.shape),
        lambda w: w.reshape(2, -1).T.reshape(w.shape),
        True,  # the transposed copy is memory of its own
    ),
    "product": (lambda w: w @ w, lambda w: w @ w, False),
    "row sums": (lambda w: w - w.sum(1, keepdim=True), lambda w: w - w.sum(1, keepdims=True), True),
    "shifted": (lambda w: mt.cat([w[1:], w[:1]]), lambda w: np.roll(w, -1, 0), False),
    "column of itself": (lambda w: w * w[:, :1], lambda w: w * w[:, :1], False),
    "softmax": (
        lambda w: w.softmax(1),
        lambda w: np.exp(w) / np.exp(w).sum(1, keepdims=True),
        True,  # the exponentials are stored before
    ),
}


@pytest.mark.parametrize("n", [6, 38])
@pytest.mark.parametrize("name", UPDATES)
def test_update_in_place(name: str, n: int, rng: np.random.Generator) -> None:
    ours, numpys, overwrites = UPDATES[name]
    start = rng.standard_normal((n, n))
    w = mt.tensor(start)
    want = start
    for _ in range(3):
        w.copy_(ours(w))
        mt.eval(w)
        want = numpys(want)
        np.testing.assert_allclose(w.numpy(), want, rtol=1e-10, atol=1e-10)
    (output,) = lazy.last_executor().program.outputs
    if name == "reversed by reshape" and start.nbytes <= at_once.FEW_BYTES:
        overwrites = False  # it has that shape at once, in memory that both have
    assert (output.donor is not None) == overwrites


def test_two_updates_that_read_each_other(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 40, 40))
    x, y = mt.tensor(a), mt.tensor(b)
    for _ in range(3):
        old = x * 1.0
        x.copy_(x + y.t())
        y.copy_(y - old.t())
        mt.eval(x, y)
        a, b = a + b.T, b - a.T
        np.testing.assert_allclose(x.numpy(), a, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(y.numpy(), b, rtol=1e-12, atol=1e-12)


def test_old_value_is_kept_while_somebody_holds_it(rng: np.random.Generator) -> None:
    start = rng.standard_normal(100)
    w = mt.tensor(start)
    before = w.detach() * 1
    view = w.numpy().copy()
    w.mul_(3)
    np.testing.assert_allclose((w + before).numpy(), start * 4, rtol=1e-14)
    np.testing.assert_array_equal(before.numpy(), view)
