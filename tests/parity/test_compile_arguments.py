"""The arguments of ``compile``: what torch takes is taken, and what it refuses is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.core.events import EVENTS

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # torch's own

ARGUMENTS: list[dict[str, Any]] = [
    *({"mode": mode} for mode in ("default", "reduce-overhead", "max-autotune", "fast", 3)),
    {"mode": "max-autotune-no-cudagraphs", "dynamic": True},
    {"mode": "fast", "backend": "aot_eager"},
    {"mode": "default", "options": {}},
    {"options": {"epilogue_fusion": True}},
    {"fullgraph": True, "dynamic": False},
    {"backend": "inductor"},
    {"backend": "eager"},
    {"backend": "nothing"},
    {"disable": True},
]


def add_one(x: Any) -> Any:
    """One more."""
    return x + 1


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_arguments(arguments: dict[str, Any]) -> None:
    def outcome(lib: Any) -> Any:
        try:
            made = lib.compile(add_one, **arguments)
        except Exception as error:
            return str(error)
        return made is add_one, made.__name__, made.__doc__

    assert outcome(mt) == outcome(torch)


@pytest.mark.parametrize("arguments", ARGUMENTS[:2] + ARGUMENTS[-1:], ids=str)
def test_as_a_decorator(arguments: dict[str, Any]) -> None:
    @mt.compile(**arguments)
    def double(x: Any) -> Any:
        return 2 * x

    assert double(mt.ones(2)).tolist() == [2.0, 2.0]

    class Net(nn.Module):
        @mt.compile(**arguments)
        def forward(self, x: Any) -> Any:
            return x - 1

    net = Net()
    for _ in range(5):
        assert net(mt.ones(2)).tolist() == [0.0, 0.0]


def test_modules() -> None:
    layer = nn.Linear(3, 2).requires_grad_(False)
    assert mt.compile(layer, disable=True) is layer
    for made in (mt.compile(model=layer, mode="default"), mt.compile()(layer)):
        assert made._orig_mod is layer
        assert list(made.state_dict()) == ["weight", "bias"]
        assert made.eval() is made
        for _ in range(20):
            made(mt.ones(1, 3))
        before = EVENTS.get("captured_calls")
        made(mt.ones(1, 3))
        assert EVENTS.get("captured_calls") == before + 1
    assert copy.deepcopy(made)._orig_mod is not layer


def test_functions_are_no_modules(assert_refused: Any) -> None:
    made = mt.compile(add_one, fullgraph=True)
    words = "'function' object has no attribute '_orig_mod'"
    assert_refused(lambda: made._orig_mod, AttributeError, words)
    words = "mt.compile expects a function or a module, got int"
    assert_refused(lambda: mt.compile(3), TypeError, words)
    words = "backend must be a name"
    assert_refused(
        lambda: mt.compile(add_one, backend=lambda graph, inputs: graph), NotImplementedError, words
    )
