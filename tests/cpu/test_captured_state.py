"""State that a captured call changes: in its own memory, or in two blocks that take turns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import replay
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.runtime.executor import Executor

nn = mt.nn


def _net() -> tuple[nn.Module, Callable[[Any], Any]]:
    mt.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    )
    optimizer = mt.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        y = net(x)
        loss = (y * y).mean()
        loss.backward()
        optimizer.step()
        return loss

    return net, step


def _image(number: int) -> Any:
    return np.random.default_rng(number).standard_normal((4, 2, 4, 4)).astype(np.float32)


_HOLD: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda t: None,
    "tensor": lambda t: t.detach(),
    "array": lambda t: t.detach().numpy(),
    "node": lambda t: t._node,
    "copy": lambda t: t.detach().clone(),
}


@pytest.mark.parametrize("kind", _HOLD)
def test_statistics_and_parameters_are_those_of_the_plain_loop(kind: str) -> None:
    """Whatever of them is held between the calls: it shows what PyTorch's shares show, or stays."""
    found = []
    for compiled in (False, True):
        net, step = _net()
        call = mt.compile(step) if compiled else step
        states, held = [], []
        for number in range(24):
            call(mt.from_numpy(_image(number)))
            if number % 5 == 3:
                held.append([_HOLD[kind](t) for t in net.state_dict(keep_vars=True).values()])
            elif number % 5 == 4:
                held.clear()
            states.append([t.detach().numpy().copy() for t in net.state_dict().values()])
        found.append(states)
    for plain, captured in zip(*found, strict=True):
        for a, b in zip(plain, captured, strict=True):
            np.testing.assert_array_equal(a, b)


def test_memory_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    create = replay._Turns.__init__

    def noted(self: Any, *given: Any) -> None:
        create(self, *given)
        made.append(self)

    monkeypatch.setattr(replay._Turns, "__init__", noted)
    net, step = _net()
    call = mt.compile(step)
    for number in range(12):
        call(mt.from_numpy(_image(number)))
    tensors = [tensor for _, tensor in made[-1].outputs]
    known = [id(t) for t in net.state_dict(keep_vars=True).values()]
    assert tensors  # a kernel of the norm reads its weight elsewhere than it writes it
    assert all(id(t) in known for t in tensors)

    def blocks() -> set[int]:
        return {id(t._node.buffer) for t in tensors}

    before, nodes, seen = EVENTS.get("allocations"), [id(t._node) for t in tensors], [blocks()]
    for number in range(3):
        call(mt.from_numpy(_image(number)))
        seen.append(blocks())
    assert EVENTS.get("allocations") == before
    assert nodes == [id(t._node) for t in tensors]
    assert seen[0] == seen[2]
    assert seen[1] == seen[3]
    assert seen[0].isdisjoint(seen[1])


def _both(
    make: Callable[[], tuple[Callable[..., Any], Callable[[], list[Any]]]], *given: Any
) -> None:
    """``make`` gives a function and what to look at; plain and captured calls leave the same."""
    found = []
    for compiled in (False, True):
        function, look = make()
        call = mt.compile(function) if compiled else function
        seen = []
        for number in range(24):
            call(*[g(number) for g in given])
            seen.append([np.array(t.detach().numpy()) for t in look()])
        found.append(seen)
    for plain, captured in zip(*found, strict=True):
        for a, b in zip(plain, captured, strict=True):
            np.testing.assert_array_equal(a, b)


def test_state_that_is_written_but_not_read() -> None:
    def make() -> tuple[Callable[..., Any], Callable[[], list[Any]]]:
        last, total = mt.zeros(3), mt.zeros(3)

        def function(x: Any) -> Any:
            y = x * 2
            last.copy_(y)
            total.add_(y)
            return y.sum()

        return function, lambda: [last, total]

    _both(make, lambda n: mt.full((3,), float(n)))


def _unaligned(values: Any) -> Any:
    memory = np.zeros(values.nbytes + 1, np.uint8)
    array = memory[1:].view(values.dtype).reshape(values.shape)
    array[...] = values
    assert not array.flags.aligned
    return array


@pytest.mark.parametrize("what", ["array", "tensor", "state", "gradient"])
def test_elements_that_are_not_aligned(what: str) -> None:
    """They are copied first, however the call is made."""

    def make() -> tuple[Callable[..., Any], Callable[[], list[Any]]]:
        w = nn.Parameter(mt.ones(4))
        shift = mt.from_numpy(_unaligned(np.arange(4, dtype=np.float32)))
        plain = mt.arange(4.0)

        def function(x: Any) -> Any:
            x = mt.from_numpy(x) if isinstance(x, np.ndarray) else x
            if what != "gradient":
                w.grad = None
            loss = (w * x + (shift if what == "state" else plain) * 3).sum()
            loss.backward()
            return loss

        if what == "gradient":
            w.grad = mt.from_numpy(_unaligned(np.full(4, 0.5, np.float32)))
        return function, lambda: [w.grad]

    def given(number: int) -> Any:
        values = np.full(4, number, np.float32)
        array = _unaligned(values) if what in ("array", "tensor") else values
        return array if what == "array" else mt.from_numpy(array)

    before = EVENTS.get("unaligned_inputs_copied")
    _both(make, given)
    assert EVENTS.get("unaligned_inputs_copied") >= before + 20


def test_a_view_taken_while_a_call_runs_keeps_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of state that has two blocks: the one it shows is not the next to be written."""
    net, step = _net()
    call = mt.compile(step)
    for number in range(12):
        call(mt.from_numpy(_image(number)))
    weight = net.get_parameter("1.weight")
    run, views = Executor.run, []

    def looking(self: Executor, *given: Any) -> Any:
        if not views:
            views.append(weight.detach().numpy())
        return run(self, *given)

    monkeypatch.setattr(Executor, "run", looking)
    before = weight.detach().numpy().copy()
    for number in range(3):
        call(mt.from_numpy(_image(number)))
    np.testing.assert_array_equal(views[0], before)
    assert not np.array_equal(weight.detach().numpy(), before)


def test_a_compiled_module_has_what_the_module_has() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model = mt.compile(module)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    x = mt.tensor(np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32))
    before = module[0].weight.tolist()
    for _ in range(2):
        optimizer.zero_grad()
        model.train()
        assert model.training
        module(x).sum().backward()
        optimizer.step()
    assert module[0].weight.tolist() != before
    assert model.eval() is model
    assert not model.training
    assert not module.training
    repeated = EVENTS.get("captured_calls")
    with mt.no_grad():
        for _ in range(6):
            np.testing.assert_array_equal(model(x).numpy(), module(x).numpy())
    assert EVENTS.get("captured_calls") > repeated
    assert list(model.state_dict()) == list(module.state_dict())
    other = mt.compile(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    )
    other.load_state_dict(model.state_dict())
    assert other.eval().to(mt.float64) is other
    with mt.no_grad():
        np.testing.assert_allclose(other(x.double()).numpy(), module(x).numpy(), rtol=1e-5)
    with pytest.raises(AttributeError, match="'Sequential' object has no attribute 'nothing'"):
        _ = model.nothing
    copied = copy.deepcopy(model)
    assert copied.training is False


def test_a_compiled_function_has_its_attributes() -> None:
    def step(x: mt.Tensor) -> mt.Tensor:
        """Twice."""
        return x * 2

    plain: Any = step
    plain.rate = 1
    compiled: Any = mt.compile(step)
    plain.rate = 2
    assert compiled.rate == 2
    assert compiled.__name__ == "step"
    assert compiled.__doc__ == "Twice."
    with pytest.raises(AttributeError, match="'function' object has no attribute 'nothing'"):
        _ = compiled.nothing


@pytest.mark.parametrize("shared", [False, True], ids=["own memory", "a user's array"])
def test_parameters_that_are_views_are_updated_with_what_they_are_of(shared: bool) -> None:
    found = []
    for captured in (False, True):
        array = np.ones(6, np.float32)
        base = mt.from_numpy(array) if shared else mt.tensor(array)
        weight = base.reshape(6, 1).requires_grad_(True)
        optimizer = mt.optim.SGD([weight], lr=0.01)
        kept = weight.detach().view(-1)

        def step(weight: mt.Tensor = weight, optimizer: mt.optim.SGD = optimizer) -> mt.Tensor:
            optimizer.zero_grad()
            (weight * weight).mean().backward()
            optimizer.step()
            return weight.detach().reshape(-1)

        call = mt.compile(step) if captured else step
        results = [call().tolist() for _ in range(6)]
        found.append([*results, base.tolist(), kept.tolist(), weight.tolist()])
        assert array.tolist() == (base.tolist() if shared else [1.0] * 6)
    assert found[0] == found[1]


def test_assigned_data_leaves_the_memory_to_others() -> None:
    average = mt.zeros(2, requires_grad=True)

    @mt.compile
    def step(x: mt.Tensor) -> None:
        average.data = 0.5 * average.data + 0.5 * x

    def loop() -> None:
        want, kept = 0.0, list[tuple[mt.Tensor, float]]()
        for n in range(12):
            if n == 6:
                kept.append((average.data, want))
            step(mt.full((2,), float(n)))
            want = 0.5 * want + 0.5 * n
            assert average.tolist() == [want, want]
            for handle, value in kept:
                assert handle.tolist() == [value, value]

    with pytest.warns(RuntimeWarning, match="at every call: it assigns to the data of a tensor"):
        loop()


def test_data_that_is_an_argument_is_shared() -> None:
    w = mt.zeros(2, requires_grad=True)

    @mt.compile
    def give(x: mt.Tensor) -> None:
        w.data = x

    def loop() -> None:
        for n in range(3):
            x = mt.full((2,), float(n))
            give(x)
            x.add_(1.0)
            assert w.tolist() == [n + 1.0, n + 1.0]

    with pytest.warns(RuntimeWarning, match="others share the memory"):
        loop()
