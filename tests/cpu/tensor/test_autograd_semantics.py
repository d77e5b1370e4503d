"""backward, grad, modes and hooks: what accumulates, what is freed, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.autograd import Function, GradcheckError, grad, gradcheck, gradgradcheck


def leaf(*values: float) -> mt.Tensor:
    """A vector that requires grad."""
    return mt.tensor(list(values), requires_grad=True)


def test_gradients_accumulate_until_cleared() -> None:
    x = leaf(1.0, 2.0)
    assert x.grad is None
    (x * x).sum().backward()
    held = x.grad
    (x * 3).sum().backward()
    assert x.grad is held
    assert held is not None
    assert held.tolist() == [5.0, 7.0]
    assert not held.requires_grad
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]
    assert held.tolist() == [5.0, 7.0]


def test_shared_cotangents_stay_apart() -> None:
    a, b = leaf(1.0), leaf(2.0)
    (a + b).backward()
    assert a.grad is not None
    assert b.grad is not None
    a.grad.zero_()
    assert b.grad.item() == 1.0
    a.grad.numpy()[0] = 8.0
    assert b.grad.item() == 1.0


def test_a_value_used_many_times_and_unused_branches() -> None:
    x, unused = leaf(2.0), leaf(5.0)
    y = x * x
    (y * y + y + x).backward()
    assert x.grad is not None
    assert x.grad.item() == 4 * 8 + 2 * 2 + 1
    assert unused.grad is None


@pytest.mark.parametrize("evaluated", [False, True])
def test_second_backward_needs_retain_graph(evaluated: bool) -> None:
    x = leaf(1.0, 2.0)
    loss = (x.exp() * x).sum()
    if evaluated:
        loss.item()
    loss.backward(retain_graph=True)
    first = np.array(x.grad)
    loss.backward()
    np.testing.assert_allclose(np.array(x.grad), 2 * first, rtol=1e-6)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()


def test_item_before_backward_changes_nothing() -> None:
    def gradient(peek: bool) -> Any:
        x = mt.tensor([[0.5, -1.0], [2.0, 0.3]], requires_grad=True)
        h = (x @ x).tanh()
        loss = (h * h).log_softmax(1).sum()
        if peek:
            assert isinstance(loss.item(), float)
            str(h)
        loss.backward()
        return np.array(x.grad)

    np.testing.assert_allclose(gradient(True), gradient(False), rtol=1e-6)


def test_no_grad_and_enable_grad_nest_and_decorate() -> None:
    x = leaf(1.0)
    with mt.no_grad():
        assert not mt.is_grad_enabled()
        assert not (x * 2).requires_grad
        with mt.enable_grad():
            assert (x * 2).requires_grad
        with mt.set_grad_enabled(True):
            assert (x * 2).requires_grad
        assert not mt.is_grad_enabled()
    with mt.inference_mode():
        assert not (x * 2).requires_grad

    @mt.no_grad()
    def plain(t: mt.Tensor) -> mt.Tensor:
        """Documented."""
        return t * 2

    @mt.set_grad_enabled(False)
    def off(t: mt.Tensor) -> mt.Tensor:
        return t * 2

    @mt.enable_grad()
    def on(t: mt.Tensor) -> mt.Tensor:
        return t * 2

    assert mt.is_grad_enabled()
    assert plain.__doc__ == "Documented."
    assert not plain(x).requires_grad
    assert not off(x).requires_grad
    with mt.no_grad():
        assert on(x).requires_grad
    with pytest.raises(ZeroDivisionError), mt.no_grad():
        raise ZeroDivisionError
    assert mt.is_grad_enabled()
    mt.set_grad_enabled(False)
    assert not mt.is_grad_enabled()
    mt.set_grad_enabled(True)


def test_detach_stops_gradients() -> None:
    x = leaf(3.0)
    (x * x.detach()).backward()
    assert x.grad is not None
    assert x.grad.item() == 3.0
    assert x.detach().grad_fn is None
    assert (x * 2).grad_fn == "<MulBackward0>"


def test_derivatives_of_derivatives() -> None:
    x = mt.tensor(2.0, dtype=mt.float64, requires_grad=True)
    y, order = x**4, []
    for _ in range(5):
        (y,) = grad(y, x, create_graph=True, materialize_grads=True)
        order.append(y.item())
        if not y.requires_grad:
            break
    assert order[:4] == [32.0, 48.0, 48.0, 24.0]
    w = leaf(1.0, 2.0)
    (g,) = grad((w * w * w).sum(), w, create_graph=True)
    (g * g).sum().backward()  # d/dw (3 w^2)^2 = 36 w^3
    assert w.grad is not None
    assert w.grad.tolist() == [36.0, 288.0]


def test_backward_with_create_graph_makes_a_differentiable_grad() -> None:
    x = leaf(3.0)
    (x * x * x).backward(create_graph=True)
    assert x.grad is not None
    assert x.grad.requires_grad
    (second,) = grad(x.grad, x)
    assert second.item() == 18.0


def test_grad_leaves_dot_grad_alone_and_takes_cotangents() -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    a, b = grad([x * y, x + y], [x, y], [mt.tensor([1.0, 10.0]), mt.tensor([100.0, 100.0])])
    assert a.tolist() == [103.0, 140.0]
    assert b.tolist() == [101.0, 120.0]
    assert x.grad is None
    middle = x * 2
    (m,) = grad((middle * middle).sum(), middle)
    assert m.tolist() == [4.0, 8.0]


def test_unused_inputs_of_grad() -> None:
    x, z = leaf(1.0), leaf(2.0, 3.0)
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        grad((x * 2).sum(), z)
    assert grad((x * 2).sum(), [x, z], allow_unused=True)[1] is None
    assert grad((x * 2).sum(), [x, z], materialize_grads=True)[1].tolist() == [0.0, 0.0]


def test_backward_inputs_limits_who_receives() -> None:
    x, y = leaf(1.0), leaf(2.0)
    (x * y).backward(inputs=[x])
    assert x.grad is not None
    assert y.grad is None
    with pytest.raises(RuntimeError, match=r"`inputs` argument to `backward"):
        (x * y).backward(inputs=[])


def test_hooks_see_and_replace_gradients() -> None:
    x = leaf(1.0, 2.0)
    seen: list[Any] = []
    remove_spy = x.register_hook(lambda g: seen.append(g.tolist())).remove
    remove_double = x.register_hook(lambda g: g * 2).remove
    y = x * 3
    y.register_hook(lambda g: g + 1)
    y.sum().backward()
    assert seen == [[6.0, 6.0]]
    assert x.grad is not None
    assert x.grad.tolist() == [12.0, 12.0]
    remove_double()
    remove_double()
    x.grad = None
    (x * 1).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0]
    with mt.no_grad():
        x.sub_(0.5)  # hooks stay with the parameter when it is updated
    (x * 1).sum().backward()
    assert len(seen) == 3
    remove_spy()
    (x * 1).sum().backward()
    assert len(seen) == 3


def test_retain_grad() -> None:
    x = leaf(1.0, 2.0)
    y, z = x * 2, x * 5
    y.retain_grad()
    (y * y + z).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [4.0, 8.0]
    assert z.grad is None


def test_retain_grad_follows_in_place_writes() -> None:
    """The gradient is that of the tensor's last value, written to directly or through a view."""
    x = leaf(1.0, 2.0)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    (y * y).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [12.0, 24.0]

    y = leaf(1.0, 2.0) * 2
    y.retain_grad()
    y[:1].mul_(3)
    (y * y).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [12.0, 8.0]

    y = leaf(1.0, 2.0) * 2
    v = y[:1]
    v.retain_grad()
    y.mul_(3)
    ((y * y).sum() + (v * 5).sum()).backward()
    assert v.grad is not None
    assert v.grad.tolist() == [5.0]
    assert y.grad is None


def test_an_old_graph_uses_the_values_it_recorded() -> None:
    w = leaf(2.0)
    loss = (w * w).sum()
    with mt.no_grad():
        w.add_(100)
    loss.backward()
    assert w.grad is not None
    assert w.grad.item() == 4.0  # at w = 2, where the loss was computed
    assert w.item() == 102.0


ERRORS = [
    (lambda: (leaf(1.0, 2.0) * 2).backward(), RuntimeError, "implicitly created only for scalar"),
    (lambda: mt.ones(1).backward(), RuntimeError, "element 0 of tensors does not require grad"),
    (
        lambda: (leaf(1.0, 2.0) * 2).backward(mt.ones(3)),
        RuntimeError,
        r"Mismatch in shape: grad_output\[0\] has a shape of torch.Size\(\[3\]\) and output\[0\] ",
    ),
    (lambda: mt.tensor([1], requires_grad=True), RuntimeError, "Only Tensors of floating point"),
    (lambda: mt.tensor([1]).requires_grad_(), RuntimeError, "only Tensors of floating point dtype"),
    (
        lambda: (leaf(1.0) * 2).requires_grad_(False),
        RuntimeError,
        "you can only change requires_grad flags of leaf variables",
    ),
    (lambda: leaf(1.0).numpy(), RuntimeError, "Can't call numpy.. on Tensor that requires grad"),
    (lambda: mt.ones(1).retain_grad(), RuntimeError, "can't retain_grad on Tensor that has"),
    (lambda: mt.ones(1).register_hook(print), RuntimeError, "cannot register a hook"),
    (lambda: grad(leaf(1.0), mt.ones(1)), RuntimeError, "One of the differentiated Tensors does"),
    (
        lambda: setattr(leaf(1.0), "grad", mt.ones(2)),
        RuntimeError,
        "attempting to assign a",
    ),
    (
        lambda: setattr(leaf(1.0), "grad", mt.ones(1, dtype=mt.float64)),
        RuntimeError,
        "attempting to assign a gradient with dtype 'double' to a tensor with grad_dtype 'Float'",
    ),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number: int) -> None:
    call, error, words = ERRORS[number]
    with pytest.raises(error, match=words):
        call()


def test_gradcheck_finds_a_wrong_gradient() -> None:
    x = mt.tensor([0.5, 2.0], dtype=mt.float64, requires_grad=True)

    def wrong(t: mt.Tensor) -> mt.Tensor:
        # The value is t^2, the gradient that of t^2 / 2 + const: a factor is lost.
        return t * t.detach()

    with pytest.raises(GradcheckError, match="Jacobian mismatch for input 0"):
        gradcheck(wrong, x)
    assert not gradcheck(wrong, x, raise_exception=False)
    assert gradcheck(lambda t: t * t, x)
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(mt.exp, mt.ones(2, dtype=mt.float64))


class _Square(Function):
    """Whose gradient is right, and whose second derivative has lost a factor."""

    @staticmethod
    def forward(ctx: Any, x: mt.Tensor) -> mt.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: mt.Tensor) -> mt.Tensor:
        (x,) = ctx.saved_tensors
        return g * (x + x.detach())


def test_gradgradcheck_finds_a_wrong_second_derivative() -> None:
    x = mt.tensor([0.5, 2.0], dtype=mt.float64, requires_grad=True)
    w = mt.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=mt.float64, requires_grad=True)
    assert gradcheck(_Square.apply, x)
    with pytest.raises(GradcheckError, match="Jacobian mismatch for input 0"):
        gradgradcheck(_Square.apply, x)
    assert not gradgradcheck(_Square.apply, x, raise_exception=False)
    # Linear in one of them, with a number between, and with several results.
    assert gradgradcheck(lambda t, n, u: ((u @ t) * n, (t * t * t).sum()), (x, 2.0, w))
    weights = mt.tensor([3.0, -1.0], dtype=mt.float64, requires_grad=True)
    assert gradgradcheck(mt.tanh, x, weights)
    assert gradgradcheck(lambda t: 3 * t, x)


def test_gradients_of_two_values_of_a_leaf_have_a_graph_within_no_grad() -> None:
    w = mt.tensor([2.0], requires_grad=True)
    before = w * w
    with mt.no_grad():
        w += 1
    total = before + w * w * w
    with mt.no_grad():
        (g,) = grad(total, w, create_graph=True)  # 2 * 2 + 3 * 9
    assert g.item() == 31.0
    assert grad(g, w)[0].item() == 20.0  # 2 + 6 * 3
