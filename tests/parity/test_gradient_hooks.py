"""Hooks on the gradients of modules and parameters, and checkpoints, as PyTorch's."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")


def _listed(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_listed(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _caught(action: Callable[[], Any]) -> str:
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


def _linear(lib: Any) -> Any:
    layer = lib.nn.Linear(2, 3)
    with lib.no_grad():
        layer.weight.copy_(lib.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0]]))
        layer.bias.fill_(0.5)
    return layer


def _input(lib: Any) -> Any:
    return lib.tensor([[1.0, -2.0]], requires_grad=True)


def a_layer_is_seen(lib: Any) -> Any:
    layer, x, log = _linear(lib), _input(lib), []
    layer.register_full_backward_hook(lambda m, i, o: log.append((m is layer, _listed((i, o)))))
    layer.register_full_backward_pre_hook(lambda m, o: log.append((m is layer, _listed(o))))
    for _ in range(3):
        (layer(x) ** 2).sum().backward()
    return log, x.grad, layer.weight.grad, layer.bias.grad


def gradients_are_replaced(lib: Any) -> Any:
    layer, x = _linear(lib), _input(lib)
    layer.register_full_backward_hook(lambda m, i, o: (i[0] * 10,))
    layer.register_full_backward_hook(lambda m, i, o: (i[0] + o[0].sum(),), prepend=True)
    layer.register_full_backward_pre_hook(lambda m, o: (o[0] * 2,))
    (layer(x) ** 2).sum().backward()
    return x.grad, layer.weight.grad, layer.bias.grad


class _Mixed:
    def __init__(self, lib: Any) -> None:
        class Mixed(lib.nn.Module):
            def forward(self, a: Any, b: Any, k: int, *, c: Any = None) -> Any:
                return a * k, 5, a + c if c is not None else a.detach()

        self.module = Mixed()


def several_arguments_and_results(lib: Any) -> Any:
    module, log = _Mixed(lib).module, []
    module.register_full_backward_hook(lambda m, i, o: log.append(_listed((i, o))))
    a, c = (lib.ones(2, requires_grad=True) for _ in range(2))
    y = module(a, lib.ones(1), 4, c=c)
    y[0].sum().backward()
    y = module(a, lib.ones(1), 4)
    (y[0] * y[2]).sum().backward()
    return log, y[1], y[2].requires_grad, a.grad, c.grad


def no_argument_requires_grad(lib: Any) -> Any:
    layer, log = _linear(lib), []
    handle = layer.register_full_backward_hook(lambda m, i, o: log.append(_listed((i, o))))
    layer(_input(lib).detach()).sum().backward()
    handle.remove()
    layer(_input(lib).detach()).sum().backward()
    layer.register_full_backward_hook(lambda m, i, o: (o[0],))
    return log, _caught(lambda: layer(_input(lib).detach()).sum().backward())


def wrong_numbers(lib: Any) -> Any:
    found = []
    for wrong in (lambda m, i, o: (i[0], i[0]), lambda m, i, o: ()):
        layer = _linear(lib)
        layer.register_full_backward_hook(wrong)
        y = layer(_input(lib)).sum()
        found.append(_caught(lambda y=y: y.backward()))
    layer = _linear(lib)
    layer.register_full_backward_pre_hook(lambda m, o: (o[0], o[0]))
    y = layer(_input(lib)).sum()
    return found, _caught(lambda: y.backward())


def a_dict_is_returned(lib: Any) -> Any:
    class Dict(lib.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"y": x * 2}

    module, log, x = Dict(), [], _input(lib)
    module.register_full_backward_hook(lambda m, i, o: log.append(1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module(x)["y"].sum().backward()
    return log, x.grad, [str(w.message) for w in caught]


def without_recording(lib: Any) -> Any:
    layer, log = _linear(lib), []
    layer.register_full_backward_hook(lambda m, i, o: log.append(1))
    with lib.no_grad():
        y = layer(_input(lib))
    return y, log


def second_derivatives(lib: Any) -> Any:
    layer, x, log = lib.nn.Tanh(), _input(lib), []
    layer.register_full_backward_hook(lambda m, i, o: log.append([len(i), len(o)]))
    (g,) = lib.autograd.grad((layer(x) * 3).sum(), x, create_graph=True)
    (h,) = lib.autograd.grad((g * x * 0 + g).sum(), x)
    layer.register_full_backward_hook(lambda m, i, o: (i[0] * 2,))
    (double,) = lib.autograd.grad((layer(x) * 3).sum(), x)
    return log, [round(v, 5) for v in [*h[0].tolist(), *(double / g)[0].tolist()]]


def inside_a_model(lib: Any) -> Any:
    inner = _linear(lib)
    model, log = lib.nn.Sequential(inner, lib.nn.ReLU(), lib.nn.Flatten()), []
    for number, m in enumerate(model.modules()):
        m.register_full_backward_hook(
            lambda m, i, o, number=number: log.append((number, _listed((i, o))))
        )
    x = _input(lib)
    for _ in range(2):
        (model(x) * lib.tensor([1.0, 2.0, 3.0])).sum().backward()
    return log, x.grad, inner.weight.grad


def hooks_on_leaves(lib: Any) -> Any:
    w = lib.ones(2, requires_grad=True)
    log: list[Any] = []
    handle = w.register_post_accumulate_grad_hook(lambda p: log.append((p is w, p.grad.tolist())))
    for _ in range(3):
        (w * w).sum().backward()
    lib.autograd.grad((w * w).sum(), w)
    (w * 2).sum().backward(inputs=[w])
    with lib.no_grad():
        w.mul_(2)
    (w * w).sum().backward()
    handle.remove()
    (w * w).sum().backward()
    return log, w.grad


def no_gradient_arrives(lib: Any) -> Any:
    class Stop(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return None

    x, log = lib.ones(2, requires_grad=True), []
    h = x * 3
    h.retain_grad()
    h.register_hook(lambda g: log.append(("h", _listed(g))))
    x.register_hook(lambda g: log.append(("x", _listed(g))))
    Stop.apply(h).sum().backward()
    (Stop.apply(x * 2) + x).sum().backward()
    found = lib.autograd.grad(Stop.apply(x * 4).sum(), x, allow_unused=True)
    y = x * 5
    with y.register_hook(lambda g: lib.ones(2)):
        caught = _caught(lambda: Stop.apply(y).sum().backward())
    return log, h.grad, x.grad, found, caught


def gradients_of_results_are_those_before_hooks(lib: Any) -> Any:
    x = _input(lib)
    h = x * 3
    h.retain_grad()
    h.register_hook(lambda g: g * 10)
    found = lib.autograd.grad((h * 2).sum() + (h * h).sum(), [h, x])
    x.register_hook(lambda g: g * 7)
    return *found, h.grad, lib.autograd.grad((x * 2).sum(), x)


def a_step_in_a_hook(lib: Any) -> Any:
    layer = _linear(lib)
    optimizers = {p: lib.optim.SGD([p], lr=0.1) for p in layer.parameters()}

    def step(p: Any) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in layer.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        layer(_input(lib)).sum().backward()
    rounded = [[round(v, 5) for v in row] for row in layer.weight.tolist()]
    return rounded, [p.grad for p in layer.parameters()]


def wrong_hooks_on_leaves(lib: Any) -> Any:
    w = lib.ones(2, requires_grad=True)
    found = [
        _caught(lambda: (w * 2).register_post_accumulate_grad_hook(print)),
        _caught(lambda: w.detach().register_post_accumulate_grad_hook(print)),
    ]
    for answer in (3, lib.ones(2)):
        with w.register_post_accumulate_grad_hook(lambda p, answer=answer: answer):
            found.append(_caught(lambda: (w * 2).sum().backward()))
    return found


def checkpoints(lib: Any) -> Any:
    import importlib

    cp = importlib.import_module(f"{lib.__name__}.utils.checkpoint")
    found: list[Any] = []
    ways: list[dict[str, Any]] = [{"use_reentrant": False}, {"use_reentrant": True}, {}]
    for way in ways:
        layer, x = _linear(lib), _input(lib)
        y = cp.checkpoint(lambda a, k, layer=layer: layer(a) * k, x, 3, **way)
        y.sum().backward()
        found += [y, x.grad, layer.weight.grad]
        y = cp.checkpoint(layer, x.detach(), **way)
        found += [y.requires_grad]
        found.append(_caught(lambda w=way, x=x: cp.checkpoint(lambda a, k: a, x, **w, k=1)))
        model = lib.nn.Sequential(_linear(lib), lib.nn.ReLU(), lib.nn.Flatten(), lib.nn.Softplus())
        y = cp.checkpoint_sequential(model, 2, x, **way)
        found.append([round(v, 5) for v in y[0].tolist()])
    found.append(_caught(lambda: cp.checkpoint(layer, x, use_reentrant=True, debug=True)))
    for call in (cp.checkpoint, lambda f, x: cp.checkpoint_sequential([f, f], 1, x)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(lib.sin, x)
        found.append(["use_reentrant" in str(w.message) for w in caught])
    return found


PROGRAMS = [
    p
    for p in list(globals().values())
    if isinstance(p, types.FunctionType)
    and p.__module__ == __name__
    and not p.__name__.startswith(("_", "test"))
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_pytorch(program: Callable[[Any], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted, *got = (_listed(program(lib)) for lib in (torch, mt, mt, mt))
    for other in got:  # what was recorded before is recognised
        assert other == wanted
