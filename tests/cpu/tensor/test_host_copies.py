"""Copies between two values in memory happen at once, and nobody can tell by their effects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core.events import EVENTS


def _given_weights(net: Any) -> None:
    with mt.no_grad():
        for p in net.parameters():
            p.copy_(mt.tensor(np.full(tuple(p.shape), 0.25, np.float32)))


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_model_that_was_given_its_weights_compiles_one_program(optimizer: str) -> None:
    net = mt.nn.Sequential(mt.nn.Linear(7, 5), mt.nn.ReLU(), mt.nn.Linear(5, 3))
    _given_weights(net)
    steps = getattr(mt.optim, optimizer)(net.parameters(), lr=0.5)
    x = mt.tensor(np.ones((4, 7), np.float32))
    lazy.clear_cache()
    before = EVENTS.get("evaluations")
    for _ in range(3):
        steps.zero_grad()
        net(x).sum().backward()
        steps.step()
    assert EVENTS.get("evaluations") == before + 3
    assert len(lazy.executors()) == 1


def test_values_recorded_before_see_what_was_there() -> None:
    x, old = mt.tensor([1.0, 2.0]), mt.tensor([1.0, 2.0]).numpy()
    x.realize()
    y, view, shared = x * 3, x[1:], x.detach()
    assert x.copy_(mt.tensor([5.0, 6.0])) is x
    assert y.tolist() == (3 * old).tolist()
    assert [x.tolist(), view.tolist(), shared.tolist()] == [[5.0, 6.0], [6.0], [5.0, 6.0]]


def test_the_source_keeps_its_own_memory() -> None:
    x, source = mt.zeros(2).realize(), mt.tensor([1.0, 2.0])
    x.copy_(source)
    source.mul_(2)
    assert x.tolist() == [1.0, 2.0]
    x.add_(1)
    assert source.tolist() == [2.0, 4.0]
    x.copy_(x)
    assert x.tolist() == [2.0, 3.0]


def test_nothing_is_evaluated() -> None:
    x, source = mt.zeros(2).realize(), mt.tensor([1.0, 2.0])
    pending = source * 2
    before = EVENTS.get("evaluations")
    with mt.no_sync():
        x.copy_(source)
    assert EVENTS.get("evaluations") == before
    assert pending.tolist() == [2.0, 4.0]


def test_a_leaf_stays_one_with_its_hooks() -> None:
    for load in (False, True):
        layer = mt.nn.Linear(2, 1, bias=False)
        seen: list[Any] = []
        layer.weight.register_hook(lambda g, seen=seen: seen.append(g.tolist()))
        held = layer.weight * 1  # so that the old memory cannot be written over
        new = mt.tensor([[3.0, 4.0]])
        if load:
            layer.load_state_dict({"weight": new})
        else:
            with mt.no_grad():
                layer.weight.copy_(new)
        assert layer.weight.is_leaf
        assert layer.weight.requires_grad
        layer(mt.ones(1, 2)).sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.tolist() == [[1.0, 1.0]]
        assert seen == [[[1.0, 1.0]]]
        assert held.shape == (1, 2)


def test_writing_to_a_leaf_that_requires_grad_raises() -> None:
    w = mt.zeros(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        w.copy_(mt.ones(2).realize())


def test_gradients_flow_through_a_copy() -> None:
    w = mt.tensor([1.0, 2.0], requires_grad=True)
    x = mt.zeros(2).realize()
    x.copy_(w)
    assert x.requires_grad
    (x * x).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2.0, 4.0]


def test_compiled_functions_copy_every_time() -> None:
    kept = mt.zeros(2).realize()

    @mt.compile
    def keep(x: mt.Tensor) -> mt.Tensor:
        kept.copy_(x)
        return kept * 2

    for value in (1.0, 2.0, 3.0):
        assert keep(mt.tensor([value, value])).tolist() == [2 * value, 2 * value]
        assert kept.tolist() == [value, value]


def test_arrays_of_the_user_are_written_through() -> None:
    array = np.zeros(2, np.float32)
    x = mt.from_numpy(array)
    x.copy_(mt.tensor([1.0, 2.0]))
    assert x.tolist() == [1.0, 2.0]
    assert array.tolist() == [1.0, 2.0]
