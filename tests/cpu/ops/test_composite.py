"""Composites: one node when recorded, the same values and derivatives as the ops they stand for."""

from __future__ import annotations

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm.ir.node import apply, scalar
from minitorch_tvm.ops import build as b
from minitorch_tvm.ops.composite import composite


def _grad64(*shape: int) -> mt.Tensor:
    values = np.random.default_rng(sum(shape)).normal(size=shape)
    return mt.tensor(values, dtype=mt.float64, requires_grad=True)


def test_a_training_step_records_few_nodes() -> None:
    model = mt.nn.Sequential(mt.nn.Linear(8, 5), mt.nn.ReLU(), mt.nn.Linear(5, 3))
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    x, y = mt.ones(4, 8).realize(), mt.tensor([0, 1, 2, 0])
    for p in model.parameters():
        p.realize()
    F.cross_entropy(model(x), y).backward()  # shapes and dtypes are inferred once
    first = scalar(0.0, mt.float32).sequence
    F.cross_entropy(model(x), y).backward()
    recorded = scalar(0.0, mt.float32).sequence - first - 1
    # 3 layers, the loss, the 1.0 its gradient starts from, a cotangent per input that needs one;
    # adding to the 4 gradients of the first call.
    assert recorded <= 3 + 1 + 1 + 7 + 4
    optimizer.step()


def test_second_derivatives_go_through_composites() -> None:
    x, w, bias = _grad64(4, 3), _grad64(2, 3), _grad64(2)
    target = mt.tensor([0, 1, 1, 0])

    def penalty(x: mt.Tensor, w: mt.Tensor, bias: mt.Tensor) -> mt.Tensor:
        hidden = F.linear(x, w, bias)
        loss = F.cross_entropy(F.relu(hidden) + hidden.tanh(), target)
        return sum((g * g).sum() for g in mt.autograd.grad(loss, (x, w, bias), create_graph=True))

    assert mt.autograd.gradcheck(penalty, (x, w, bias))


def test_third_derivative_of_a_composite() -> None:
    cube = composite("Cube", lambda x: b.mul(x, b.mul(x, x)))
    x = mt.tensor(2.0, dtype=mt.float64, requires_grad=True)
    y = mt.Tensor._wrap(apply(cube, x.node))
    values = []
    for _ in range(4):
        values.append(y.item())
        if len(values) < 4:
            (y,) = mt.autograd.grad(y, x, create_graph=True)
    assert values == [8.0, 12.0, 12.0, 6.0]


def test_backward_after_the_loss_was_read() -> None:
    x, w = _grad64(5, 4), _grad64(3, 4)
    target = mt.tensor([0, 1, 2, 1, 0])
    loss = F.cross_entropy(F.linear(x, w), target)
    loss.item()
    loss.backward()
    late = [x.grad.numpy().copy(), w.grad.numpy().copy()]
    x.grad = w.grad = None
    F.cross_entropy(F.linear(x, w), target).backward()
    np.testing.assert_array_equal(late[0], x.grad.numpy())
    np.testing.assert_array_equal(late[1], w.grad.numpy())


def test_an_input_that_does_not_matter_has_a_zero_gradient() -> None:
    first = composite("First", lambda x, y: b.mul(x, x))
    x = mt.tensor([3.0], requires_grad=True)
    y = mt.tensor([4.0], requires_grad=True)
    mt.Tensor._wrap(apply(first, x.node, y.node)).sum().backward()
    assert x.grad.tolist() == [6.0]
    assert y.grad.tolist() == [0.0]


def test_results_that_are_inputs_or_equal_are_values_of_their_own() -> None:
    same = composite("Same", lambda x: x)
    x = mt.tensor([1.0, 2.0])
    one, two = (mt.Tensor._wrap(apply(same, x.node)) for _ in range(2))
    mt.eval(one, two)
    one += 1
    assert (x.tolist(), one.tolist(), two.tolist()) == ([1.0, 2.0], [2.0, 3.0], [1.0, 2.0])


def test_an_error_in_a_composite_names_the_line() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
        F.linear(mt.ones(2, 3), mt.ones(4, 5))
    assert "F.linear(mt.ones(2, 3), mt.ones(4, 5))" in caught.value.__notes__[0]


def test_inputs_that_are_one_are_told_from_others() -> None:
    """What a composite stands for is remembered for inputs of equal shapes."""
    both = composite("Both", lambda x, y: b.sub(b.mul(x, y), b.mul(y, y)))
    x, y = mt.tensor([1.0, 2.0]), mt.tensor([3.0, 5.0])

    def made(x: mt.Tensor, y: mt.Tensor) -> list[float]:
        return mt.Tensor._wrap(apply(both, x.node, y.node)).tolist()

    assert [made(x, x), made(x, y), made(y, x), made(y, y)] == [[0, 0], [-6, -15], [2, 6], [0, 0]]
    # So are inputs that become one when others are expanded.
    same = composite("Same", lambda x: x)
    z = mt.Tensor._wrap(apply(same, x.node))
    assert (made(z, x), made(z, y)) == ([0, 0], [-6, -15])
