"""``autograd.functional`` and ``func`` against torch: values, structures, histories, messages."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from test_nn_layers import same_signature

import minitorch_tvm as mt
from minitorch_tvm.core.events import EVENTS

torch = pytest.importorskip("torch")

pytestmark = [  # torch's own, of what it calls
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning"),
]

JACOBIANS = """
F.jacobian(f, x)
F.jacobian(f, (x,))
F.jacobian(f, zero_d)
F.jacobian(f, x.double())
F.jacobian(lambda a, b: (a * b, a.sum()), (x, y))
F.jacobian(lambda a, b: a @ b, (w, x))
F.jacobian(lambda a: a.sum(), x)
F.jacobian(lambda a: y, x)
F.jacobian(f, x, vectorize=True)
F.jacobian(f, x, create_graph=True)
F.jacobian(f, x, create_graph=True, strict=True)
F.jacobian(f, 3)
F.jacobian(f, (x, 3))
F.jacobian(f, [x])
F.jacobian(f, ints)
F.jacobian(lambda a: 3, x)
F.jacobian(lambda a: [a], x)
F.jacobian(lambda a: y, x, strict=True)
F.jacobian(lambda a, b: a * 2, (x, y), strict=True)
F.jacobian(lambda a: 2 * a, x, create_graph=True, strict=True)
F.jacobian(f, x, strict=True, vectorize=True)
F.jacobian(f, x, strategy="foo")
F.hessian(s, x)
F.hessian(s, (x,))
F.hessian(lambda a, b: (a * a * b).sum(), (x, y))
F.hessian(lambda a: a.sum(), x)
F.hessian(lambda a: a[0:1] ** 2, x)
F.hessian(s, x, create_graph=True)
F.hessian(f, x)
F.hessian(lambda a: (a.sum(), a.sum()), x)
F.hessian(lambda a: a.sum(), x, strict=True)
F.hessian(s, x, outer_jacobian_strategy="foo")
"""

PRODUCTS = """
F.vjp(f, x, y)
F.vjp(s, x)
F.vjp(lambda a, b: (a * b, a), (x, y), (x, y))
F.vjp(lambda a: y, x, y)
F.vjp(f, x, y, create_graph=True)
F.vjp(f, x)
F.vjp(f, x, lib.ones(3))
F.vjp(lambda a, b: (a * b, a), (x, y), x)
F.vjp(f, x, 3)
F.vjp(lambda a: y, x, y, strict=True)
F.vjp(lambda a: (a, a), x, (y, lib.ones(1)))
F.jvp(f, x, y)
F.jvp(f, lib.tensor([2.0]))
F.jvp(lambda a, b: (a * b, a), (x, y), (x, y))
F.jvp(lambda a: y, x, y)
F.jvp(lambda a: 2 * a, x, y)
F.jvp(f, x, y, create_graph=True)
F.jvp(f, x)
F.jvp(f, x, lib.ones(3))
F.jvp(lambda a: y, x, y, strict=True)
F.jvp(lambda a: 2 * a, x, y, create_graph=True, strict=True)
F.hvp(s, x, y)
F.vhp(s, x, y)
F.hvp(s, lib.tensor([2.0]))
F.hvp(lambda a, b: (a * a * b).sum(), (x, y), (y, x))
F.vhp(lambda a, b: (a * a * b).sum(), (x, y), (y, x))
F.hvp(lambda a: a.sum(), x, y)
F.hvp(f, x, y)
F.hvp(s, x)
F.vhp(s, x)
F.hvp(lambda a: a.sum(), x, y, strict=True)
F.vhp(lambda a: a.sum(), x, y, strict=True)
F.hvp(lambda a: (a, a), x, y)
F.vhp(lambda a: y.sum(), x, y, strict=True)
F.hvp(lambda a: y.sum(), x, y, strict=True)
"""

GRADIENTS = """
G.grad(s)(x)
G.grad(s, argnums=-1)(x)
G.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, y)
G.grad(lambda a, b: (a * b).sum(), argnums=(1,))(x, y)
G.grad(lambda a, k: (a * k).sum())(x, k=3)
G.grad(lambda d: (d["a"] * d["b"][0]).sum())({"a": x, "b": [y]})
G.grad(lambda a: (s(a), {"twice": 2 * a}), has_aux=True)(x)
G.grad_and_value(lambda a: (s(a), a), has_aux=True)(x)
G.grad_and_value(s)(x)
G.grad(lambda a: y.sum())(x)
G.grad(lambda a, b: a.sum(), argnums=(0, 1))(x, y)
G.grad(G.grad(lambda a: a**4))(zero_d)
G.grad(lambda a: G.grad(lambda b: (a * b * b).sum())(a).sum())(x)
G.grad(G.grad_and_value(lambda a: a**3))(zero_d)
G.grad(lambda a: (a * a).sum())(x.clone().requires_grad_())
G.grad(lambda a: (a * w1).sum())(x)
G.grad(lambda a: (a * a * w1).sum())(x)
G.grad_and_value(lambda a: (a * w1).sum())(x)
without(G.grad(s))(x)
without(G.grad(lambda a: (a * a * w1).sum()))(x)
G.grad(without(s))(x)
G.grad(s, argnums=3)(x)
G.grad(s, argnums=())(x)
G.grad(s, argnums=1.5)(x)
G.grad(lambda a, b: a.sum(), argnums=(0, 0))(x, y)
G.grad(f)(x)
G.grad(lambda a: a[:1])(x)
G.grad(lambda a: 3)(x)
G.grad(s)(ints)
G.grad(s)(3.0)
G.grad(lambda a: s(a), has_aux=True)(x)
G.grad(lambda a: (s(a), 3, 4), has_aux=True)(x)
G.grad(lambda a: (s(a), 3), has_aux=True)(x)
"""

PULLS = """
G.vjp(f, x)[0]
G.vjp(f, x)[1](y)
G.vjp(lambda a, b: (a * b, a), x, y)[1]((x, y))
G.vjp(lambda a: {"q": a * 2}, x)[1]({"q": y})
G.vjp(lambda d: d["a"] * 2, {"a": x})[1](y)
G.vjp(lambda a: (f(a), a), x, has_aux=True)[2]
G.vjp(lambda a: y, x)[1](y)
G.vjp(f, x)[1](y.clone().requires_grad_())
G.vjp(f, x.clone().requires_grad_())[1](y)
G.grad(lambda a: G.vjp(f, a)[1](y)[0].sum())(x)
G.vjp(f, x)[1](lib.ones(3))
G.vjp(lambda a: 3, x)
G.vjp(lambda a: (a, 3), x)
G.vjp(lambda a: (f(a), 7), x, has_aux=True)
G.vjp(f, 3)
G.jvp(f, (x,), (y,))
G.jvp(lambda a, b: {"p": a * b}, (x, y), (y, x))
G.jvp(lambda d: d["a"] ** 2, ({"a": x},), ({"a": y},))
G.jvp(lambda a: (f(a), a), (x,), (y,), has_aux=True)
G.jvp(lambda a: G.grad(s)(a), (x,), (y,))
G.grad(lambda a: G.jvp(f, (a,), (y,))[1].sum())(x)
G.jvp(f, x, y)
G.jvp(f, (x,), (lib.ones(3),))
G.jvp(f, (x,), (y, y))
G.jvp(lambda a: 3, (x,), (y,))
G.jacrev(f)(x)
G.jacfwd(f)(x)
G.jacrev(f, argnums=(0,))(x)
G.jacrev(lambda a, b: (a * b, a.sum()), argnums=(0, 1))(x, y)
G.jacrev(lambda a: {"o": a * a})(x)
G.jacrev(lambda d: d["a"] * 2)({"a": x})
G.jacrev(lambda a: (f(a), 2 * a), has_aux=True)(x)
G.jacrev(G.jacrev(s))(x)
G.jacrev(G.grad(s))(x)
G.jacrev(lambda a: y)(x)
G.jacrev(f)(x.clone().requires_grad_())
G.hessian(s)(x)
G.hessian(lambda a, b: (a * b).sum(), argnums=1)(x, y)
G.jacrev(lambda a: (f(a), 7), has_aux=True)(x)
G.jacrev(lambda a: 3)(x)
G.jacrev(f, argnums=2)(x)
"""

CALLS = """
call(layer, p, (one,))
call(layer, p, one)
call(layer, (p1, p2), kwargs={"input": one})
call(layer, p1, one).shape
call(layer, {"foo": x}, one).shape
lib.nn.utils.stateless.functional_call(layer, p, one)
call(tied, {"a.weight": eye}, x)
call(tied, {"a.weight": eye, "b.weight": eye}, x)
call(tied, {"a.weight": eye}, x, tie_weights=False).shape
call(tied, {"a.weight": eye}, x, strict=True)
call(layer, {"foo": x}, one, strict=True)
call(layer, {"weight": x}, one, strict=True)
call(layer, {"a.weight": x}, one, strict=True)
call(layer, (p, {"bias": x}), one)
call(layer, 3, one)
call(layer, {"weight": 3}, one)
call(layer, {"": x}, one)
call(tied, {"a.weight": eye, "b.weight": eye + 1}, x)
"""


def spaces(lib: Any) -> dict[str, Any]:
    class Tied(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = lib.nn.Linear(2, 2, bias=False)
            self.b = lib.nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x))

    def without(function: Any) -> Any:
        def called(*args: Any) -> Any:
            with lib.no_grad():
                return function(*args)

        return called

    p1, p2 = {"weight": lib.tensor([[1.0, 2.0]])}, {"bias": lib.tensor([0.5])}
    return {
        "lib": lib,
        "F": lib.autograd.functional,
        "G": lib.func,
        "call": lib.func.functional_call,
        "f": lambda x: x * x,
        "s": lambda x: (x**3).sum(),
        "x": lib.tensor([1.0, 2.0]),
        "y": lib.tensor([3.0, 4.0]),
        "w": lib.tensor([[1.0, -1.0], [2.0, 0.5], [0.0, 3.0]]),
        "w1": lib.tensor([0.5, 2.0], requires_grad=True),
        "zero_d": lib.tensor(2.0),
        "ints": lib.tensor([1, 2]),
        "without": without,
        "layer": lib.nn.Linear(2, 1),
        "tied": Tied(),
        "p": {**p1, **p2},
        "p1": p1,
        "p2": p2,
        "one": lib.ones(1, 2),
        "eye": 2 * lib.eye(2),
    }


def outcome(call: str, lib: Any) -> Any:
    try:
        return shown(eval(call, spaces(lib)), lib)
    except Exception as error:
        text = str(error).split(" Got primals with structure")[0]
        return type(error).__name__, text.replace("minitorch_tvm.tensor.tensor", "torch")


def shown(value: Any, lib: Any) -> Any:
    if isinstance(value, lib.Tensor):
        numbers = np.asarray(value.detach().tolist()).round(4).tolist()
        return str(value.dtype)[-7:], value.requires_grad, numbers
    if isinstance(value, dict):
        return {k: shown(v, lib) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *[shown(v, lib) for v in value]]
    return value


ALL = "\n".join((JACOBIANS, PRODUCTS, GRADIENTS, PULLS, CALLS)).split("\n")


@pytest.mark.parametrize("call", [c for c in ALL if c])
def test_call(call: str) -> None:
    assert outcome(call, mt) == outcome(call, torch)


def test_signatures() -> None:
    for ours, theirs in (
        (mt.autograd.functional, torch.autograd.functional),
        (mt.func, torch.func),
        (mt.nn.utils.stateless, torch.nn.utils.stateless),
    ):
        for name in ours.__all__:
            if name not in ("vmap", "jacrev"):  # there: an argument that is private
                same_signature(getattr(ours, name), getattr(theirs, name))


def test_many_rows_are_one_program(rng: np.random.Generator) -> None:
    a = rng.standard_normal((40, 5)).astype("float32")
    x = rng.standard_normal(5).astype("float32")

    def rows(lib: Any) -> Any:
        return lib.autograd.functional.jacobian(
            lambda v: lib.tanh(lib.tensor(a) @ v), lib.tensor(x)
        )

    before = EVENTS.get("compiles")
    ours = rows(mt)
    assert EVENTS.get("compiles") <= before + 3
    np.testing.assert_allclose(ours.numpy(), rows(torch).numpy(), rtol=1e-5, atol=1e-6)
    with mt.no_sync():  # recorded together
        rows(mt)


def test_gradients_of_jacobians() -> None:
    for count in (3, 20):
        for lib in (mt, torch):
            x = lib.arange(1.0, count + 1).requires_grad_()
            j = lib.autograd.functional.jacobian(lambda v: v**3, x, create_graph=True)
            j.sum().backward()
            np.testing.assert_allclose(x.grad.numpy(), 6 * np.arange(1, count + 1))


def test_learning_to_learn(rng: np.random.Generator) -> None:
    """Steps of an inner loop that the outer one differentiates through."""
    x = rng.standard_normal((4, 6, 3)).astype("float32")
    y = x.sum(2, keepdims=True)
    theirs = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.LayerNorm(5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    )
    ours = mt.nn.Sequential(
        mt.nn.Linear(3, 5), mt.nn.LayerNorm(5), mt.nn.Tanh(), mt.nn.Linear(5, 1)
    )
    ours.load_state_dict({k: mt.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    for lib, net in ((mt, ours), (torch, theirs)):
        optimizer = lib.optim.SGD(net.parameters(), lr=0.1)
        for xs, ys in zip(lib.tensor(x), lib.tensor(y), strict=True):

            def loss(p: Any, xs: Any = xs, ys: Any = ys, net: Any = net, lib: Any = lib) -> Any:
                return (lib.func.functional_call(net, p, (xs,)) - ys).square().mean()

            optimizer.zero_grad()
            inner = dict(net.named_parameters())
            for _ in range(2):
                g = lib.func.grad(loss)(inner)
                inner = {name: p - 0.1 * g[name] for name, p in inner.items()}
            loss(inner).backward()
            optimizer.step()
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-3, atol=1e-5, err_msg=name)


def test_buffers_that_are_passed_are_the_ones_that_change() -> None:
    for lib in (mt, torch):
        layer = lib.nn.BatchNorm1d(2)
        buffers = {name: b.clone() for name, b in layer.named_buffers()}
        lib.func.functional_call(layer, buffers, lib.arange(6.0).reshape(3, 2))
        assert layer.running_mean.tolist() == [0.0, 0.0]
        assert [round(v, 4) for v in buffers["running_mean"].tolist()] == [0.2, 0.3]


def test_what_is_replaced_comes_back() -> None:
    layer = mt.nn.Linear(2, 1)
    weight = layer.weight
    with pytest.raises(RuntimeError, match=re.escape("mat1 and mat2")):
        mt.func.functional_call(layer, {"weight": mt.ones(1, 2)}, mt.ones(1, 3))
    assert layer.weight is weight


def test_what_is_not_there(assert_refused: Any) -> None:
    assert_refused(lambda: mt.func.vmap(mt.sin), NotImplementedError, "write the function for a ba")
    words = "there is no forward mode"
    assert_refused(
        lambda: mt.autograd.functional.jacobian(mt.sin, mt.ones(1), strategy="forward-mode"),
        NotImplementedError,
        words,
    )
