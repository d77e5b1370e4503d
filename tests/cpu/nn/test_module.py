"""Module: registration, traversal, modes, hooks, state, copies, printing."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.core.events import EVENTS


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.scale = nn.Parameter(mt.ones(2))
        self.register_buffer("seen", mt.zeros(1))
        self.register_buffer("scratch", mt.zeros(4), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.fc(x) * self.scale


def numbers(t: Any) -> np.ndarray:
    return t.detach().numpy().copy()


def test_building_a_model_evaluates_and_compiles_nothing() -> None:
    before = EVENTS.snapshot()
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 3), nn.Dropout())
    after = EVENTS.snapshot()
    for name in ("evaluations", "compiles", "reference_programs", "native_calls"):
        assert after.get(name, 0) == before.get(name, 0)
    for p in net.parameters():
        assert p.node.buffer is not None
        assert p.is_leaf
        assert p.requires_grad
        assert type(p) is nn.Parameter


def test_initialisation_writes_into_the_memory_it_has() -> None:
    layer = nn.Linear(3, 2)
    address = layer.weight.node.buffer.address
    old = numbers(layer.weight)
    layer.reset_parameters()
    assert layer.weight.node.buffer.address == address
    assert (numbers(layer.weight) != old).any()


def test_initialisation_does_not_disturb_what_was_recorded_before() -> None:
    layer = nn.Linear(2, 2, bias=False)
    x = mt.ones(1, 2)
    expected = numbers(x) @ numbers(layer.weight).T
    y = layer(x)
    nn.init.zeros_(layer.weight)
    np.testing.assert_allclose(numbers(y), expected, rtol=1e-6)
    assert not numbers(layer(x)).any()


def test_initialisation_reaches_views_and_shared_arrays() -> None:
    weight = nn.Parameter(mt.ones(3, 2))
    with mt.no_grad():
        nn.init.zeros_(weight[1])
    np.testing.assert_array_equal(numbers(weight), [[1, 1], [0, 0], [1, 1]])
    array = np.ones(3, np.float32)
    shared = mt.from_numpy(array)
    nn.init.constant_(shared, 4.0)
    np.testing.assert_array_equal(array, 4.0)


def test_seed_decides_the_weights() -> None:
    def weights(seed: int) -> np.ndarray:
        mt.manual_seed(seed)
        return numbers(nn.Linear(5, 5).weight)

    np.testing.assert_array_equal(weights(1), weights(1))
    assert (weights(1) != weights(2)).all()


def test_parameter_of_a_tensor_is_a_leaf_of_its_own() -> None:
    t = mt.tensor([1.0, 2.0])
    p = nn.Parameter(t * 2)
    q = nn.Parameter(t)
    assert p.is_leaf
    assert p.requires_grad
    assert not t.requires_grad
    with mt.no_grad():
        q.add_(1)
    np.testing.assert_array_equal(numbers(t), [1, 2])
    np.testing.assert_array_equal(numbers(q), [2, 3])
    with pytest.raises(TypeError, match="expects a Tensor"):
        nn.Parameter([1.0])


def test_assignment_registers_and_names_follow() -> None:
    net = Net()
    assert [n for n, _ in net.named_parameters()] == ["scale", "fc.weight", "fc.bias"]
    assert [n for n, _ in net.named_buffers()] == ["seen", "scratch"]
    assert [n for n, _ in net.named_modules()] == ["", "fc"]
    assert list(net.state_dict()) == ["scale", "seen", "fc.weight", "fc.bias"]
    net.tied = net.fc
    assert len(list(net.parameters())) == 3
    del net.tied
    net.fc = None
    assert [n for n, _ in net.named_parameters()] == ["scale"]
    net.scale = None
    assert list(net.parameters()) == []
    net.seen = mt.ones(1)
    assert net.state_dict()["seen"].item() == 1


def test_replacing_one_kind_by_another() -> None:
    net = Net()
    net.seen = nn.Parameter(mt.zeros(1))
    assert "seen" in dict(net.named_parameters())
    assert "seen" not in dict(net.named_buffers())
    net.plain = 3
    net.plain = nn.ReLU()
    assert "plain" in dict(net.named_children())


def test_unknown_attribute_names_similar_ones() -> None:
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'wieght'") as caught:
        _ = nn.Linear(1, 1).wieght
    assert caught.value.name == "wieght"
    assert "weight" in dir(caught.value.obj)


def test_forgotten_super_call_is_said() -> None:
    class Forgot(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call"):
        Forgot()


def test_modes_and_freezing() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout()))
    assert net.eval() is net
    assert not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    net.requires_grad_()
    net[0](mt.ones(1, 2)).sum().backward()
    net.zero_grad(set_to_none=False)
    assert not numbers(net[0].weight.grad).any()
    net.zero_grad()
    assert net[0].weight.grad is None


def test_conversion_keeps_identity_and_gradients() -> None:
    net = Net()
    parameters = list(net.parameters())
    old = [numbers(p) for p in parameters]
    net(mt.ones(1, 3)).sum().backward()
    assert net.double() is net
    for p, q, values in zip(net.parameters(), parameters, old, strict=True):
        assert p is q
        assert p.dtype is mt.float64
        assert p.grad.dtype is mt.float64
        assert p.is_leaf
        assert p.requires_grad
        np.testing.assert_array_equal(numbers(p), values)
    assert net.seen.dtype is mt.float64
    net.zero_grad()
    net(mt.ones(1, 3, dtype=mt.float64)).sum().backward()
    assert net.fc.weight.grad.dtype is mt.float64
    assert net.to(mt.zeros(1)).scale.dtype is mt.float32


def test_apply_visits_children_first() -> None:
    names: list[str] = []
    nn.Sequential(nn.ReLU(), nn.Tanh()).apply(lambda m: names.append(type(m).__name__))
    assert names == ["ReLU", "Tanh", "Sequential"]


def test_forward_hooks() -> None:
    layer = nn.Identity()
    calls: list[Any] = []
    layer.register_forward_pre_hook(lambda m, args: calls.append(("pre", args)))
    doubled = layer.register_forward_pre_hook(lambda m, args: args[0] * 2)
    layer.register_forward_hook(lambda m, args, y: calls.append(("post", args, y)))
    with layer.register_forward_hook(lambda m, args, y: y + 1, prepend=True):
        assert layer(3) == 7
    assert calls == [("pre", (3,)), ("post", (6,), 7)]
    doubled.remove()
    doubled.remove()
    assert layer(3) == 3
    both = layer.register_forward_pre_hook(
        lambda m, args, kwargs: ((5,), {"unused": 1}), with_kwargs=True
    )
    layer.register_forward_hook(lambda m, args, kwargs, y: calls.append(kwargs), with_kwargs=True)
    with pytest.raises(TypeError):
        layer(3)
    both.remove()
    assert layer(4) == 4
    assert calls[-1] == {}


def test_always_called_hook_sees_failures() -> None:
    class Fails(nn.Module):
        def forward(self) -> None:
            raise ValueError("inside")

    calls: list[Any] = []
    module = Fails()
    module.register_forward_hook(lambda m, args, y: calls.append("not me"))
    module.register_forward_hook(lambda m, args, y: calls.append(y), always_call=True)
    with pytest.raises(ValueError, match="inside"):
        module()
    assert calls == [None]


def test_state_dict_follows_the_module_and_copies_do_not() -> None:
    net = Net()
    state = net.state_dict()
    kept = copy.deepcopy(state)
    old = numbers(net.scale)
    with mt.no_grad():
        net.scale.add_(1)
    np.testing.assert_array_equal(numbers(state["scale"]), old + 1)
    np.testing.assert_array_equal(numbers(kept["scale"]), old)
    assert not state["scale"].requires_grad
    assert net.state_dict(keep_vars=True)["scale"] is net.scale
    assert repr(net.load_state_dict(kept)) == "<All keys matched successfully>"
    np.testing.assert_array_equal(numbers(net.scale), old)


def test_failed_load_changes_nothing() -> None:
    net = Net()
    old = numbers(net.scale)
    with pytest.raises(RuntimeError, match=r"size mismatch for fc.bias") as caught:
        net.load_state_dict({"scale": mt.zeros(2), "fc.bias": mt.zeros(7), "extra": mt.zeros(1)})
    assert 'Missing key(s) in state_dict: "seen", "fc.weight". ' in str(caught.value)
    assert 'Unexpected key(s) in state_dict: "extra". ' in str(caught.value)
    np.testing.assert_array_equal(numbers(net.scale), old)


def test_loading_converts_or_assigns() -> None:
    net = Net()
    scale = net.scale
    state = {k: v.double() for k, v in net.state_dict().items()}
    net.load_state_dict(state)
    assert net.scale is scale
    assert net.scale.dtype is mt.float32
    net.load_state_dict(state, assign=True)
    assert net.scale.dtype is mt.float64
    assert type(net.scale) is nn.Parameter
    assert net.seen is state["seen"]
    result = net.load_state_dict({}, strict=False)
    assert result.missing_keys == ["scale", "seen", "fc.weight", "fc.bias"]


def test_deep_copy_is_independent() -> None:
    net = Net()
    net(mt.ones(1, 3)).sum().backward()
    twin = copy.deepcopy(net)
    assert type(twin.scale) is nn.Parameter
    np.testing.assert_array_equal(numbers(twin.fc.weight), numbers(net.fc.weight))
    assert net.scale.grad is not None
    assert twin.scale.grad is None  # as in PyTorch, unlike that of a tensor
    tensor = mt.ones(2, requires_grad=True)
    (tensor * 2).sum().backward()
    np.testing.assert_array_equal(numbers(copy.deepcopy(tensor).grad), [2, 2])
    with mt.no_grad():
        twin.scale.mul_(0)
    assert numbers(net.scale).all()
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(net.scale * 2)


def test_sequential() -> None:
    first, second = nn.Linear(3, 3), nn.ReLU()
    net = nn.Sequential(OrderedDict(a=first, b=second))
    assert net[0] is first
    assert net[-1] is second
    assert net.a is first
    assert type(net[:1]) is nn.Sequential
    assert list(net[1:].state_dict()) == []
    assert len(net.append(nn.Tanh())) == 3
    net.insert(0, nn.Identity())
    assert [n for n, _ in net.named_children()] == ["0", "1", "2", "3"]
    del net[0]
    net[0] = nn.Identity()
    assert type(net.pop(-1)) is nn.Tanh
    assert [type(m).__name__ for m in net] == ["Identity", "ReLU"]
    assert first not in net
    with pytest.raises(IndexError, match="index 5 is out of range"):
        net[5]


def test_lists_and_dicts() -> None:
    layers = nn.ModuleList([nn.Linear(1, 1) for _ in range(4)])
    del layers[1:3]
    assert list(layers.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    layers += [nn.ReLU()]
    assert type(layers[1:]) is nn.ModuleList
    assert [type(m) for m in layers + nn.ModuleList([nn.ReLU()])][-1] is nn.ReLU
    heads = nn.ModuleDict({"a": nn.ReLU()})
    heads["b"] = nn.Tanh()
    heads.update([("c", nn.Identity())])
    assert list(heads) == list(heads.keys()) == ["a", "b", "c"]
    assert "b" in heads
    assert type(heads.pop("b")) is nn.Tanh
    del heads["a"]
    assert [k for k, _ in heads.items()] == ["c"]
    heads.clear()
    assert not len(heads)
    weights = nn.ParameterList([mt.zeros(2)])
    weights.append(mt.ones(3)).extend([4])
    weights[0] = mt.ones(1)
    assert [n for n, _ in weights.named_parameters()] == ["0", "1"]
    assert weights[-1] == 4
    assert len(weights[1:]) == 2


def test_multi_line_extra_repr() -> None:
    class Odd(nn.Module):
        def extra_repr(self) -> str:
            return "first\nsecond"

    assert repr(nn.Sequential(Odd())) == "Sequential(\n  (0): Odd(\n    first\n    second\n  )\n)"
