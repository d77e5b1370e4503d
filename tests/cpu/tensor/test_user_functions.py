"""autograd.Function in loops, under mt.compile, on threads, and with memory that is shared."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.nn import functional as F


class Scaled(mt.autograd.Function):
    """x * scale, whose gradient goes by ``factor``, which may change."""

    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: mt.Tensor, scale: mt.Tensor) -> mt.Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, g: mt.Tensor) -> tuple[mt.Tensor, mt.Tensor]:
        x, scale = ctx.saved_tensors
        return g * scale * Scaled.factor, (g * x).sum(0)


class Silu(mt.autograd.Function):
    """What saves a value of its own, and its result."""

    @staticmethod
    def forward(ctx: Any, x: mt.Tensor) -> mt.Tensor:
        s = x.sigmoid()
        y = x * s
        ctx.save_for_backward(s, y)
        return y

    @staticmethod
    def backward(ctx: Any, g: mt.Tensor) -> mt.Tensor:
        s, y = ctx.saved_tensors
        return g * (s + y * (1 - s))


class Layer(mt.nn.Module):
    def __init__(self, own: bool) -> None:
        super().__init__()
        self.scale = mt.nn.Parameter(mt.tensor([0.5, 1.0, 1.5, 2.0]))
        self.own = own

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        if self.own:
            return Silu.apply(Scaled.apply(x, self.scale))
        return F.silu(x * self.scale)


def _model(own: bool) -> mt.nn.Module:
    mt.manual_seed(3)
    return mt.nn.Sequential(mt.nn.Linear(3, 4), Layer(own), mt.nn.Linear(4, 2))


def _trained(
    own: bool,
    compiled: bool = False,
    steps: int = 20,
    between: Callable[[mt.Tensor], object] = lambda loss: None,
) -> list[np.ndarray]:
    model = _model(own)
    optimizer = mt.optim.Adam(model.parameters(), lr=0.05)
    rng = np.random.default_rng(0)

    def step(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        between(loss)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = mt.compile(step) if compiled else step
    losses = []
    for _ in range(steps):
        x = mt.tensor(rng.normal(size=(5, 3)).astype(np.float32))
        losses.append(run(x, mt.tensor(rng.normal(size=(5, 2)).astype(np.float32))).numpy())
    return [*losses, *[p.detach().numpy() for p in model.parameters()]]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("evaluates", [False, True])
def test_training_is_as_without(compiled: bool, evaluates: bool) -> None:
    if compiled and evaluates:
        pytest.skip("a captured function reads no values")
    between = (lambda loss: loss.item()) if evaluates else (lambda loss: None)
    got = _trained(True, compiled, between=between)
    for a, b in zip(got, _trained(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_a_captured_step_is_repeated() -> None:
    before = EVENTS.get("watched_calls")
    _trained(True, compiled=True, steps=30)
    assert EVENTS.get("watched_calls") - before < 12


def test_a_loop_in_steady_state_compiles_nothing_and_knows_its_plans() -> None:
    _trained(True, steps=4)
    before = {name: EVENTS.get(name) for name in ("compiles", "repeated_updates")}
    _trained(True, steps=10)
    assert EVENTS.get("compiles") == before["compiles"]
    assert EVENTS.get("repeated_updates") - before["repeated_updates"] >= 5


def test_backward_is_called_each_time() -> None:
    """Nothing is repeated of what Python may do in another way."""
    x, scale = mt.ones(2, 2, requires_grad=True), mt.ones(2, requires_grad=True)
    try:
        for factor in (1.0, 1.0, 1.0, 3.0, 3.0, 5.0):
            Scaled.factor = factor
            x.grad = None
            Scaled.apply(x, scale).sum().backward()
            assert x.grad.tolist() == [[factor] * 2] * 2
    finally:
        Scaled.factor = 1.0


def test_functions_that_record_the_same_have_gradients_of_their_own() -> None:
    class Other(Scaled):
        @staticmethod
        def backward(ctx: Any, g: mt.Tensor) -> tuple[mt.Tensor, None]:
            return -g, None

    x, scale = mt.ones(1, 2, requires_grad=True), mt.ones(2)
    for function, expected in [(Scaled, 1.0), (Other, -1.0), (None, 1.0)] * 3:
        x.grad = None
        y = x * scale if function is None else function.apply(x, scale)
        y.sum().backward()
        assert x.grad.tolist() == [[expected] * 2]


def test_saved_values_stay_as_they_were() -> None:
    w = mt.ones(3, requires_grad=True)
    x = w * 2
    y = Scaled.apply(x, mt.ones(3))
    z = Silu.apply(x)
    before = z.tolist()
    with mt.no_grad():
        w.add_(1)
    x.mul_(5)
    z.mul_(0)
    (y.sum() + x.sum()).backward()
    assert w.grad.tolist() == [12.0] * 3
    assert z.tolist() == [0.0] * 3
    assert before != z.tolist()


def test_a_context_goes_with_its_graph() -> None:
    contexts = []

    class Noting(Silu):
        @staticmethod
        def forward(ctx: Any, x: mt.Tensor) -> mt.Tensor:
            contexts.append(weakref.ref(ctx))
            return Silu.forward(ctx, x)

    gc.disable()
    try:
        x = mt.ones(3, requires_grad=True)
        y = Noting.apply(x)
        y.sum().backward()
        assert contexts[0]() is None
        y = Noting.apply(x)
        mt.eval(y)
        del y
        assert contexts[1]() is None
    finally:
        gc.enable()


def test_a_result_that_is_an_argument_shares_its_memory() -> None:
    class Reversed(mt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: mt.Tensor) -> mt.Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, g: mt.Tensor) -> mt.Tensor:
            return -g

    w = mt.ones(3, requires_grad=True)
    x = w * 2
    y = Reversed.apply(x)
    x.add_(1)
    assert y.tolist() == [3.0] * 3
    y.mul_(2)
    assert x.tolist() == [6.0] * 3
    y.sum().backward(retain_graph=True)
    assert w.grad.tolist() == [-4.0] * 3
    w.grad = None
    x.sum().backward()
    assert w.grad.tolist() == [2.0] * 3


def test_a_result_that_was_there_before_stays_what_it_was() -> None:
    table = mt.ones(3)

    class Looked(mt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: mt.Tensor) -> mt.Tensor:
            return table

        @staticmethod
        def backward(ctx: Any, g: mt.Tensor) -> mt.Tensor:
            return g * 7

    x = mt.zeros(3, requires_grad=True)
    for _ in range(3):
        x.grad = None
        Looked.apply(x).sum().backward()
        assert x.grad.tolist() == [7.0] * 3
        assert not table.requires_grad


def test_values_inside_forward_may_be_read() -> None:
    class Normed(mt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: mt.Tensor) -> mt.Tensor:
            ctx.norm = x.abs().max().item()
            y = x / ctx.norm
            assert y.max().item() == 1.0
            return y

        @staticmethod
        def backward(ctx: Any, g: mt.Tensor) -> mt.Tensor:
            assert g.sum().item() == 3.0
            return g * ctx.norm

    for _ in range(3):
        x = mt.tensor([1.0, 2.0, 4.0], requires_grad=True)
        Normed.apply(x * 3).sum().backward()
        assert x.grad.tolist() == [36.0] * 3


def test_backward_may_ask_for_gradients() -> None:
    class Rerun(mt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: mt.Tensor) -> mt.Tensor:
            ctx.save_for_backward(x)
            return x.tanh().exp()

        @staticmethod
        def backward(ctx: Any, g: mt.Tensor) -> mt.Tensor:
            with mt.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                y = x.tanh().exp()
            return mt.autograd.grad(y, x, g)[0]

    for _ in range(4):
        x = mt.tensor([0.5, -1.0], requires_grad=True)
        z = x * 1.0
        Rerun.apply(x).sum().backward()
        z.tanh().exp().sum().backward()
        half = mt.tensor([0.5, -1.0], requires_grad=True)
        half.tanh().exp().sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * half.grad.numpy(), rtol=1e-6)


def test_threads_have_calls_of_their_own() -> None:
    shared = mt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = Silu.apply(shared)
    (wanted,) = mt.autograd.grad(y.sum(), shared, retain_graph=True)
    found: dict[int, list[np.ndarray]] = {}

    def work(number: int) -> None:
        found[number] = []
        for _ in range(10):
            (g,) = mt.autograd.grad((y * number).sum(), shared, retain_graph=True)
            found[number].append(g.numpy())
            x = mt.tensor([1.0, 2.0, 3.0], requires_grad=True)
            (Silu.apply(x) * number).sum().backward()
            found[number].append(x.grad.numpy())

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for number, values in found.items():
        assert len(values) == 20
        for value in values:
            np.testing.assert_allclose(value, number * wanted.numpy(), rtol=1e-6)


def test_gradients_are_right() -> None:
    x = mt.tensor(np.random.default_rng(0).normal(size=(4, 3)), requires_grad=True)
    assert mt.autograd.gradcheck(Silu.apply, x)

    def function(x: mt.Tensor) -> mt.Tensor:
        return Scaled.apply(x, x[0].sin())

    assert mt.autograd.gradcheck(function, x)
    assert mt.autograd.gradcheck(
        lambda x: mt.autograd.grad(function(x).sum(), x, create_graph=True)[0], x
    )


def test_an_error_in_backward_leaves_things_as_they_are() -> None:
    class Wrong(Silu):
        @staticmethod
        def backward(ctx: Any, g: mt.Tensor) -> mt.Tensor:
            raise ValueError("mine")

    x = mt.ones(3, requires_grad=True)
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            Wrong.apply(x).sum().backward()
        assert x.grad is None
        assert mt.is_grad_enabled()
        (x * x).sum().backward()
        assert x.grad.tolist() == [2.0] * 3
        x.grad = None


def test_a_function_is_called_on_its_class() -> None:
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = Silu()
    with pytest.raises(RuntimeError, match="Legacy autograd function"):
        instance(mt.ones(1))
