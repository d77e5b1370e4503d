"""Layers in a row, recorded again as a whole, are what they are when each is called."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.core import config
from minitorch_tvm.ir import passage, trace
from minitorch_tvm.ir.node import MODE
from minitorch_tvm.ir.passage import Late, Passage

F = nn.functional


@pytest.fixture
def passages() -> Iterator[list[Any]]:
    """What has been recorded as a whole."""
    found: list[Any] = []
    record = Passage.record

    def counted(self: Passage, *given: Any) -> Any:
        node = record(self, *given)
        found.append(node)
        return node

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_start", trace.Prefix())  # nothing has been recorded before
        MODE.trace.restart()
        patch.setattr(Passage, "record", counted)
        yield found


class _InTurn(nn.Sequential):
    """The same, always called one by one."""

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input


def _twins(make: Callable[[], list[Any]]) -> tuple[nn.Sequential, nn.Sequential]:
    net = nn.Sequential(*make())
    other = _InTurn(*copy.deepcopy(list(net)))
    return net, other


def _mlp() -> list[Any]:
    return [nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)]


def _lenet() -> list[Any]:
    return [
        *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 2, 3, stride=2), nn.Sigmoid(), nn.AvgPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(2, 4), nn.LayerNorm(4), nn.GELU()),
    ]


def _smaller() -> list[Any]:
    return [
        nn.Conv2d(1, 2, 3, bias=False),
        nn.AdaptiveAvgPool2d((2, 3)),
        nn.Identity(),
        nn.Flatten(2),
    ]


_X = {"mlp": (4, 6), "lenet": (2, 1, 12, 12), "smaller": (2, 1, 5, 6)}
_NETS = {"mlp": _mlp, "lenet": _lenet, "smaller": _smaller}


def _rows(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _same(a: Any, b: Any) -> None:
    assert a.shape == b.shape
    np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


@pytest.mark.parametrize("kind", _NETS)
def test_training(kind: str, passages: list[Any]) -> None:
    net, other = _twins(_NETS[kind])
    optimizers = [mt.optim.SGD(n.parameters(), lr=0.1, momentum=0.9) for n in (net, other)]
    for number in range(6):
        x = _rows(*_X[kind], seed=number)
        losses = []
        for n, optimizer in zip((net, other), optimizers, strict=True):
            optimizer.zero_grad()
            y = n(mt.from_numpy(x))
            loss = (y * y).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        _same(*losses)
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            _same(p, q)
            assert p.grad is not None
            assert q.grad is not None
            _same(p.grad, q.grad)
    # A view at the end is more than its value; all others were recognised from the second step on,
    # and the layers within layers even when those around them were called in turn.
    assert len(passages) == {"mlp": 5, "lenet": 5 + 6, "smaller": 0}[kind]


def _hook(net: nn.Sequential) -> None:
    net[1].register_forward_hook(lambda module, args, y: y * 2)


def _pre_hook(net: nn.Sequential) -> None:
    net[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def _own_forward(net: nn.Sequential) -> None:
    net[1].forward = lambda x: x * 3


def _other_layer(net: nn.Sequential) -> None:
    net[1] = nn.Sigmoid()


def _other_weight(net: nn.Sequential) -> None:
    net[0].weight = nn.Parameter(mt.from_numpy(_rows(5, 6, seed=7)))


def _other_data(net: nn.Sequential) -> None:
    with mt.no_grad():
        net[0].weight.mul_(2.0)


def _longer(net: nn.Sequential) -> None:
    net.append(nn.ReLU())


def _shorter(net: nn.Sequential) -> None:
    del net[4]


def _frozen(net: nn.Sequential) -> None:
    net[0].requires_grad_(False)


def _without_bias(net: nn.Sequential) -> None:
    net[0].bias = None


def _plain_bias(net: nn.Sequential) -> None:
    del net[0].bias
    net[0].bias = mt.ones(5)


def _tied(net: nn.Sequential) -> None:
    net[0] = nn.Linear(6, 6)
    net.insert(1, net[0])
    net.insert(2, nn.Linear(6, 5))


def _in_place(net: nn.Sequential) -> None:
    net[1].inplace = True


class _Moody(nn.Linear):
    mood = False

    def forward(self, input: Any) -> Any:
        self.mood = not self.mood
        y = super().forward(input)
        return y.relu() if self.mood else y.tanh()


def _subclass(net: nn.Sequential) -> None:
    mine = _Moody(6, 5)
    mine.load_state_dict(net[0].state_dict())
    net[0] = mine


_CHANGES = (
    *(_hook, _pre_hook, _own_forward, _other_layer, _other_weight, _other_data, _longer, _shorter),
    *(_frozen, _without_bias, _plain_bias, _in_place, _subclass),
)


@pytest.mark.parametrize("change", _CHANGES, ids=lambda f: f.__name__)
def test_what_is_changed_counts(change: Callable[[Any], None], passages: list[Any]) -> None:
    net, other = _twins(_mlp)
    x = _rows(4, 6)
    for number in range(6):
        if number == 3:
            assert len(passages) == 2
            change(net)
            change(other)
            for p, q in zip(net.parameters(), other.parameters(), strict=True):
                _same(p, q)
        results = [n(mt.from_numpy(x)) for n in (net, other)]
        gradients = []
        for n, y in zip((net, other), results, strict=True):
            n.zero_grad()
            (y * y).sum().backward()
            gradients.append([p.grad for p in n.parameters()])
        _same(*results)
        for g, h in zip(*gradients, strict=True):
            assert (g is None) == (h is None)
            if g is not None:
                _same(g, h)


def test_another_forward_of_the_class(passages: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(*_mlp())
    x = mt.from_numpy(_rows(4, 6))
    for _ in range(3):
        before = net(x).detach().numpy()
    assert len(passages) == 2
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, input: input * 0.0 + 7.0)
    after = net(x)
    _same(after, _InTurn(*net)(x))
    assert not np.array_equal(after.detach().numpy(), before)


def test_the_same_row_needs_no_key(passages: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    net, other = _twins(_mlp)
    optimizers = [mt.optim.SGD(n.parameters(), lr=0.1) for n in (net, other)]

    def step(number: int) -> None:
        results = [n(mt.from_numpy(_rows(4, 6, seed=number))) for n in (net, other)]
        for y, optimizer in zip(results, optimizers, strict=True):
            optimizer.zero_grad()
            (y * y).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        _same(*results)

    for number in range(3):
        step(number)
    with monkeypatch.context() as patch:
        patch.setattr(passage, "key_of", None)
        for number in range(3, 6):
            step(number)
    assert len(passages) == 5
    for change in (_other_data, _frozen, _other_weight, _in_place):
        for n in (net, other):
            change(n)
        step(0)
        step(1)
    for batch in (mt.from_numpy(_rows(2, 6)), mt.from_numpy(_rows(4, 6)).requires_grad_()):
        for _ in range(3):
            _same(net(batch), other(batch))


def test_a_weight_alone_is_no_bias_alone() -> None:
    net = nn.Sequential(nn.LayerNorm(4, bias=False), nn.Tanh())
    x = mt.from_numpy(_rows(3, 4))
    for number in range(6):
        if number == 3:
            net[0].bias = nn.Parameter(net[0].weight.detach() * 0.5)
            net[0].weight = None
        _same(net(x), _InTurn(*net)(x))


def test_a_number_that_is_a_tensor_may_change() -> None:
    slope = mt.tensor(0.25)
    net = nn.Sequential(nn.Tanh(), nn.LeakyReLU(slope))
    for number in range(6):
        if number == 3:
            slope.fill_(0.5)
        wanted = np.tanh(np.float32(-1.0)) * (0.25 if number < 3 else 0.5)
        assert net(mt.tensor([-1.0])).item() == pytest.approx(wanted)


def test_an_array_as_an_option() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2))
    for _ in range(4):
        net(mt.from_numpy(_rows(2, 1, 8, 8))).detach().numpy()
    net[1].kernel_size = np.array([2, 2])
    with pytest.raises(TypeError, match="kernel_size"):
        net(mt.from_numpy(_rows(2, 1, 8, 8)))


@pytest.mark.parametrize("kind", [nn.Module, nn.Tanh])
def test_calls_that_somebody_watches(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
    x = mt.from_numpy(_rows(4, 6))
    for _ in range(3):
        net(x).detach().numpy()
    called: list[Any] = []
    call = nn.Module.__call__

    def counted(self: Any, *args: Any) -> Any:
        called.append(type(self))
        return call(self, *args)

    monkeypatch.setattr(kind, "__call__", counted)
    net(x)
    assert called == ([nn.Sequential, nn.Linear, nn.Tanh] if kind is nn.Module else [nn.Tanh])


def test_a_layer_that_is_there_twice() -> None:
    net, _ = _twins(_mlp)
    _tied(net)
    other = _InTurn(*copy.deepcopy(net))
    assert other[0] is other[1]
    for _ in range(4):
        results = [n(mt.from_numpy(_rows(4, 6))) for n in (net, other)]
        for n, y in zip((net, other), results, strict=True):
            n.zero_grad()
            y.sum().backward()
        _same(*results)
        assert net[0].weight.grad is not None
        assert other[0].weight.grad is not None
        _same(net[0].weight.grad, other[0].weight.grad)


def test_the_input_is_not_changed_by_a_first_layer_in_place() -> None:
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 2))
    for _ in range(3):
        x = mt.from_numpy(_rows(4, 6))
        net(x)
        assert float(x.min().item()) == 0.0


def test_the_input_is_changed_behind_a_view_of_it() -> None:
    net = nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True))
    for _ in range(3):
        x = mt.from_numpy(_rows(4, 6))
        y = net(x)
        assert float(x.min().item()) == 0.0
        _same(x, y)


def test_what_layers_change_among_themselves(passages: list[Any]) -> None:
    net, other = _twins(
        lambda: [nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 4), nn.ReLU(inplace=True)]
    )
    for _ in range(3):
        x = _rows(4, 6)
        ours, theirs = net(mt.from_numpy(x)), other(mt.from_numpy(x))
        ours.sum().backward()
        theirs.sum().backward()
        _same(ours, theirs)
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            _same(p.grad, q.grad)
        net.zero_grad()
        other.zero_grad()
    assert passages


def test_twice_in_one_recording(passages: list[Any]) -> None:
    net, other = _twins(_mlp)
    for _ in range(4):
        losses = []
        for n in (net, other):
            n.zero_grad()
            a = n(mt.from_numpy(_rows(4, 6)))
            b = n(mt.from_numpy(_rows(4, 6, seed=1)))
            loss = ((a - b) ** 2).sum()
            loss.backward()
            losses.append(loss)
        _same(*losses)
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            if p.grad is not None:
                assert q.grad is not None
                _same(p.grad, q.grad)
    assert passages


def test_results_in_turn_feed_each_other(passages: list[Any]) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = mt.from_numpy(_rows(3, 4))
    for _ in range(3):
        y = net(net(x))
        z = _InTurn(*net)(_InTurn(*net)(x))
        _same(y, z)
    assert len(passages) >= 2


def test_modes(passages: list[Any]) -> None:
    net, other = _twins(_mlp)
    for number in range(6):
        with mt.set_grad_enabled(number % 2 == 0):
            y, z = net(mt.from_numpy(_rows(4, 6))), other(mt.from_numpy(_rows(4, 6)))
        assert y.requires_grad == z.requires_grad == (number % 2 == 0)
        _same(y, z)
    assert len(passages) == 4


def test_nobody_sees_the_values_in_between(passages: list[Any]) -> None:
    """They are recorded when the result is asked where it comes from."""
    net = nn.Sequential(*_mlp())
    for _ in range(2):
        MODE.trace.restart()
        y = net(mt.from_numpy(_rows(4, 6)))
    (late,) = passages
    assert type(late) is Late
    assert y._node is late
    count = len(MODE.trace.values)
    assert [v() is None for v in MODE.trace.values].count(True) == 4  # two layers, two activations
    assert len(late.inputs) == 3
    assert type(late) is not Late
    assert len(MODE.trace.values) == count
    assert all(v() is not None for v in MODE.trace.values)
    assert [v().at - MODE.trace.base for v in MODE.trace.values] == list(range(count))  # type: ignore[union-attr]
    order = [v().sequence for v in MODE.trace.values if v().inputs]  # type: ignore[union-attr]
    assert order == sorted(order)
    assert len(set(order)) == 5


@pytest.mark.parametrize(
    "look", ["result", "item", "gradient", "again", "second", "drop", "accumulate"]
)
def test_what_else_may_happen(look: str, passages: list[Any]) -> None:
    """Looking at the result first, retained graphs, second derivatives."""
    net, other = _twins(_mlp)
    for _ in range(4):
        found = []
        for n in (net, other):
            if look != "accumulate":
                n.zero_grad()
            x = mt.from_numpy(_rows(4, 6)).requires_grad_()
            y = n(x)
            if look == "result":
                y.detach().numpy()
            loss = (y * y).sum()
            if look == "item":
                loss.item()
            if look == "drop":
                del y
                loss.backward()
            elif look == "again":
                loss.backward(retain_graph=True)
                y.sum().backward()
            elif look == "second":
                (g,) = mt.autograd.grad(loss, x, create_graph=True)
                (g * g).sum().backward()
            else:
                loss.backward()
                with pytest.raises(RuntimeError, match="second time"):
                    y.sum().backward()
            assert x.grad is not None
            found.append([x.grad, *[p.grad for p in n.parameters()]])
        for g, h in zip(*found, strict=True):
            assert (g is None) == (h is None)
            if g is not None:
                _same(g, h)
    assert len(passages) == 3


@pytest.mark.parametrize("looking", [False, True])
def test_retained_graphs_and_steps(looking: bool, passages: list[Any]) -> None:
    net, other = _twins(_mlp)
    optimizers = [mt.optim.SGD(n.parameters(), lr=0.1) for n in (net, other)]
    for number in range(6):
        found = []
        for n, optimizer in zip((net, other), optimizers, strict=True):
            optimizer.zero_grad()
            y = n(mt.from_numpy(_rows(4, 6, seed=number)))
            loss = (y * y).mean()
            if looking:
                loss.item()
            loss.backward(retain_graph=True)
            optimizer.step()
            found.append([y, loss, *n.parameters(), *[p.grad for p in n.parameters()]])
        for a, b in zip(*found, strict=True):
            _same(a, b)
    assert len(passages) == 5


def test_values_that_another_thread_has_recorded(passages: list[Any]) -> None:
    """Where they stand there may change at any time: layers are called in turn."""
    net = nn.Sequential(*_mlp())
    x = mt.from_numpy(_rows(4, 6))
    expected = net(x).detach().numpy()
    net(x).detach().numpy()
    count = len(passages)
    assert count
    pending: list[Any] = []
    thread = threading.Thread(target=lambda: pending.append(net(x)))
    thread.start()
    thread.join(60)
    y = net(x)
    assert len(passages) - count <= 1  # the other thread's
    assert passages[-1] is not y._node
    np.testing.assert_array_equal(y.detach().numpy(), expected)
    np.testing.assert_array_equal(pending[0].detach().numpy(), expected)


def test_another_thread_computes_the_result(passages: list[Any]) -> None:
    net, other = _twins(_mlp)
    optimizers = [mt.optim.SGD(n.parameters(), lr=0.1) for n in (net, other)]
    for number in range(5):
        for n, optimizer in zip((net, other), optimizers, strict=True):
            optimizer.zero_grad()
            y = n(mt.from_numpy(_rows(4, 6)))
            loss = (y * y).mean()
            loss.backward()
            if number > 1:
                thread = threading.Thread(
                    target=lambda t=y if number % 2 else loss: t.detach().numpy()
                )
                thread.start()
                thread.join(60)
            optimizer.step()
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            _same(p, q)
            assert p.grad is not None
            assert q.grad is not None
            _same(p.grad, q.grad)
    assert passages


def test_errors_are_those_of_the_layers() -> None:
    net = nn.Sequential(*_mlp())
    for _ in range(3):
        net(mt.from_numpy(_rows(4, 6)))
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as e:
            net(mt.from_numpy(_rows(4, 5)))
        assert any("test_passages.py" in note for note in e.value.__notes__)
        with pytest.raises((TypeError, RuntimeError)):
            net(_rows(4, 6))


def test_the_line_of_a_value_is_that_of_the_call() -> None:
    net = nn.Sequential(*_mlp())
    places = []
    for _ in range(3):
        MODE.trace.restart()
        places.append([])
        for y in (
            net(mt.from_numpy(_rows(4, 6))),
            net(mt.from_numpy(_rows(4, 6))),
        ):
            places[-1].append(y._node.place)
            places[-1] += [x.place for x in y._node.inputs if x.pending]
    assert places[0] == places[1] == places[2]
    assert len(set(places[0])) == 2


def test_eager_mode_evaluates_every_layer(passages: list[Any]) -> None:
    net = nn.Sequential(*_mlp())
    for _ in range(2):
        expected = net(mt.from_numpy(_rows(4, 6))).detach().numpy()
    assert len(passages) == 1
    with config.override(mode="eager"):
        for _ in range(3):
            y = net(mt.from_numpy(_rows(4, 6)))
            np.testing.assert_array_equal(y.detach().numpy(), expected)
    assert len(passages) == 1


def test_options_without_a_hash(passages: list[Any]) -> None:
    net = nn.Sequential(nn.MaxPool2d([2, 2]), nn.ReLU())
    for _ in range(3):
        assert net(mt.from_numpy(_rows(1, 1, 4, 4))).shape == (1, 1, 2, 2)
    assert not passages


@pytest.mark.parametrize("at", range(8))
def test_an_interrupt_while_it_is_recorded(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some parameters have entered the recording, and others have not."""
    net, other = _twins(_mlp)
    optimizers = [mt.optim.SGD(n.parameters(), lr=0.1) for n in (net, other)]
    refer, left = passage._reference, [1000]

    def interrupted(node: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return refer(node)

    monkeypatch.setattr(passage, "_reference", interrupted)
    for number in range(9):
        x = _rows(4, 6, seed=number)
        if number in (3, 4, 6, 7):
            left[0] = count = 1 + (at + number % 3 * 2) % 8
            try:
                net(mt.from_numpy(x))
                assert count > 7
            except KeyboardInterrupt:
                assert count <= 7
            left[0] = 1000
        for n, optimizer in zip((net, other), optimizers, strict=True):
            optimizer.zero_grad()
            loss = (n(mt.from_numpy(x)) ** 2).mean()
            loss.backward()
            optimizer.step()
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            _same(p, q)


@pytest.mark.parametrize("at", range(1, 6))
def test_an_interrupt_leaves_other_recordings_alone(
    at: int, passages: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    weight = net[0].weight
    for _ in range(4):
        y, rest = net(mt.from_numpy(_rows(3, 4))), weight.sum()
        (y.sum() + rest).item()
    refer, left = weakref.ref, [at]

    def interrupted(node: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return refer(node)

    with monkeypatch.context() as patch:
        patch.setattr(passage, "_reference", interrupted)
        if at < 5:  # three leaves and the result
            with pytest.raises(KeyboardInterrupt):
                net(mt.from_numpy(_rows(3, 4)))
        else:
            net(mt.from_numpy(_rows(3, 4)))
    assert weight.sum().exp().shape == ()
    assert weight.sum().exp().item() == pytest.approx(float(np.exp(weight.detach().numpy().sum())))
    x = mt.from_numpy(_rows(3, 4))  # a clean recording, afterwards
    y, rest, z = net(x), weight.sum(), x.exp()
    assert z.shape == (3, 4)
    np.testing.assert_allclose(z.numpy(), np.exp(_rows(3, 4)), rtol=1e-6)
    _same(y, _InTurn(*net)(mt.from_numpy(_rows(3, 4))))


def test_random_rows_of_layers(passages: list[Any]) -> None:
    rng = np.random.default_rng(0)
    layers: list[Callable[[], Any]] = [
        *(lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4, bias=False), nn.ReLU, nn.Tanh, nn.GELU),
        *(nn.Sigmoid, nn.Identity, lambda: nn.LayerNorm(4), lambda: nn.Dropout(0.0)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    ]
    nets = []
    for _ in range(12):
        net, other = _twins(lambda: [layers[i]() for i in rng.integers(len(layers), size=4)])
        nets.append((net, other))
    for _ in range(40):
        number = int(rng.integers(len(nets)))
        x = _rows(3, 4, seed=number)
        grad = bool(rng.integers(2))
        found = []
        for n in nets[number]:
            n.zero_grad()
            with mt.set_grad_enabled(grad):
                y = n(mt.from_numpy(x)) * 1.5
            if y.requires_grad:
                y.sum().backward()
            found.append([y, *[p.grad for p in n.parameters()]])
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                _same(a, b)
    assert len(passages) > 5


@pytest.mark.parametrize("writes", [False, True])
def test_known_evaluations_need_no_values_in_between(
    writes: bool, passages: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Passage] = []
    between = Passage.between

    def counted(self: Passage, *given: Any) -> Any:
        made.append(self)
        return between(self, *given)

    monkeypatch.setattr(Passage, "between", counted)
    net, other = _twins(_mlp)
    x, y = mt.tensor(_rows(4, 6)), mt.zeros(4, 3)
    mt.eval(x, y)
    counts = []
    with mt.no_grad():
        for _ in range(5):
            before = len(made)
            if writes:  # something is written over: references are counted
                y.add_(net(x))
            else:
                y = net(x)
            mt.eval(y)
            counts.append(len(made) - before)
    assert len(passages) == 4
    assert counts[-3:] == [1, 1, 1] if writes else counts[-3:] == [0, 0, 0]
    with mt.no_grad():
        wanted = other(x)
        _same(y, sum((wanted for _ in range(4)), wanted) if writes else wanted)
