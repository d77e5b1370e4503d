"""Changes between repeated calls of what a compiled function uses: it does as if it were plain."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.core.events import EVENTS

BEFORE = 11  # the next ones are none that run the function anyway
AFTER = 3


class _List(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class _Dict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"a": nn.Linear(3, 3)})

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


class _Parameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(mt.full((3,), 2.0))])

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        for scale in self.scales:
            x = x * scale
        return x


class _Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", mt.ones(3))

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        return x * self.mask


def _fixed() -> nn.Module:
    layer = nn.Linear(3, 3)
    nn.init.constant_(layer.weight, 0.5)
    return layer


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], object]]] = {
    "append": (lambda: nn.Sequential(nn.Linear(3, 3)), lambda m: m.append(_fixed())),
    "add_module": (lambda: nn.Sequential(nn.Linear(3, 3)), lambda m: m.add_module("z", _fixed())),
    "delete": (lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()), lambda m: m.pop(1)),
    "a list grows": (_List, lambda m: m.layers.append(_fixed())),
    "a list's layer": (_List, lambda m: m.layers.__setitem__(1, _fixed())),
    "a list shrinks": (_List, lambda m: m.layers.__delitem__(0)),
    "a dict grows": (_Dict, lambda m: m.layers.__setitem__("b", _fixed())),
    "a dict's layer": (_Dict, lambda m: m.layers.__setitem__("a", _fixed())),
    "a list of parameters grows": (
        _Parameters,
        lambda m: m.scales.append(nn.Parameter(mt.full((3,), 3.0))),
    ),
    "a parameter of a list": (
        _Parameters,
        lambda m: m.scales.__setitem__(0, nn.Parameter(mt.full((3,), 3.0))),
    ),
    "a buffer": (_Masked, lambda m: _set(m, "mask", mt.zeros(3))),
    "a buffer of a child": (
        lambda: nn.Sequential(_Masked()),
        lambda m: _set(m[0], "mask", mt.full((3,), 4.0)),
    ),
    "running statistics": (
        lambda: nn.Sequential(nn.BatchNorm1d(3)).eval(),
        lambda m: _set(m[0], "running_mean", mt.full((3,), 5.0)),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    make, change = MODULES[name]
    mt.manual_seed(0)
    model = make()

    @mt.compile
    def call(x: mt.Tensor) -> mt.Tensor:
        with mt.no_grad():
            return model(x)

    x = mt.tensor([[1.0, -2.0, 0.5], [0.3, 0.1, -1.0]])
    before = [call(x).numpy().copy() for _ in range(BEFORE)]
    change(model)
    with mt.no_grad():
        expected = model(x).numpy()
    assert expected.shape != before[-1].shape or not np.allclose(expected, before[-1])
    for _ in range(AFTER):
        np.testing.assert_allclose(call(x).numpy(), expected, rtol=1e-6)


def _reset_moment(o: Any) -> None:
    for state in o.state.values():
        for key, value in state.items():
            if isinstance(value, mt.Tensor):
                state[key] = mt.zeros_like(value)


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "state is cleared": lambda o, w: o.state.clear(),
    "a state is replaced": lambda o, w: o.state.__setitem__(w, {}),
    "moments are replaced": lambda o, w: _reset_moment(o),
    "a parameter is taken out": lambda o, w: o.param_groups[0]["params"].pop(0),
    "parameters are replaced": lambda o, w: o.param_groups[0].update(
        params=o.param_groups[0]["params"][1:]
    ),
    "a group is exchanged": lambda o, w: o.param_groups.__setitem__(
        0, dict(o.param_groups[0], lr=0.5, params=[w])
    ),
    "a hook": lambda o, w: w.register_hook(lambda g: g * 0.0),
}


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
@pytest.mark.parametrize("name", CHANGES)
def test_optimizers(name: str, kind: str) -> None:
    def run(compiled: bool) -> list[Any]:
        w, v = (nn.Parameter(mt.full((2,), s)) for s in (1.0, 0.7))
        options = {"lr": 0.1} if kind == "Adam" else {"lr": 0.01, "momentum": 0.9}
        optimizer = getattr(mt.optim, kind)([w, v], **options)

        def step(x: mt.Tensor) -> None:
            optimizer.zero_grad()
            ((w * w * x).sum() + (v * v * x).sum()).backward()
            optimizer.step()

        call = mt.compile(step) if compiled else step
        found = []
        for n in range(BEFORE + AFTER):
            if n == BEFORE:
                CHANGES[name](optimizer, w)
            call(mt.ones(2))
            found += [w.tolist(), v.tolist()]
        return found

    np.testing.assert_allclose(run(True), run(False), rtol=1e-6)


def test_a_hook_that_is_removed() -> None:
    p = nn.Parameter(mt.ones(3))
    optimizer = mt.optim.SGD([p], lr=1.0)
    handle = p.register_hook(lambda g: g * 0.0)

    @mt.compile
    def step(x: mt.Tensor) -> None:
        optimizer.zero_grad()
        (p * x).sum().backward()
        optimizer.step()

    for _ in range(BEFORE):
        step(mt.ones(3))
    assert p.tolist() == [1.0] * 3
    handle.remove()
    for _ in range(AFTER):
        step(mt.ones(3))
    assert p.tolist() == [1.0 - AFTER] * 3


def test_a_seed_that_the_function_sets() -> None:
    @mt.compile
    def draw(x: mt.Tensor) -> mt.Tensor:
        mt.manual_seed(5)
        return x + mt.rand(2)

    found = [draw(mt.zeros(2)).tolist() for _ in range(BEFORE)]
    assert all(values == found[0] for values in found)


def test_changes_of_other_models_do_not_matter() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    call = mt.compile(lambda x: model(x).detach())
    x = mt.ones(1, 3)
    for _ in range(BEFORE):
        call(x)
    before = EVENTS.get("captured_calls")
    for _ in range(AFTER):
        other = copy.deepcopy(model)
        other.append(nn.ReLU())
        other.register_buffer("mask", mt.ones(2))
        call(x)
    assert EVENTS.get("captured_calls") == before + AFTER


def test_an_attribute_that_is_only_added_to() -> None:
    class Meter:
        total: Any

    meter = Meter()
    meter.total = mt.zeros(())

    @mt.compile
    def step(x: mt.Tensor) -> mt.Tensor:
        loss = (x * x).sum()
        meter.total += loss
        return loss

    for _ in range(BEFORE):
        step(mt.ones(2))
    meter.total = mt.zeros(())
    for _ in range(AFTER):
        step(mt.ones(2))
    assert meter.total.item() == 2.0 * AFTER


def test_results_are_always_detached() -> None:
    w = nn.Parameter(mt.ones(2))

    @mt.compile
    def step(x: mt.Tensor) -> tuple[mt.Tensor, mt.Tensor]:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        return loss, w

    for _ in range(10):
        loss, weight = step(mt.ones(2))
        assert not loss.requires_grad
        assert loss.numpy() == 2.0
        assert weight is w


class _Trainer:
    def __init__(self) -> None:
        self.w = nn.Parameter(mt.ones(2))
        self.step = mt.compile(self._step)

    def _step(self, x: mt.Tensor) -> mt.Tensor:
        return (self.w * x).detach()


def test_what_holds_a_compiled_function_can_be_copied() -> None:
    trainer = _Trainer()
    for _ in range(4):
        trainer.step(mt.ones(2))
    other = copy.deepcopy(trainer)
    with mt.no_grad():
        other.w.mul_(3.0)
    for _ in range(4):
        assert other.step(mt.ones(2)).tolist() == [3.0, 3.0]
        assert trainer.step(mt.ones(2)).tolist() == [1.0, 1.0]


def test_only_functions_are_compiled() -> None:
    number: Any = 3
    with pytest.raises(TypeError, match="expects a function or a module, got int"):
        mt.compile(number)
