"""Recurrent layers against torch: values, gradients, states, names, messages."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(11)

# name, options, batch (0: none), with initial states
LAYERS: list[tuple[str, dict[str, Any], int, bool]] = [
    ("RNN", {}, 0, False),
    ("RNN", {"nonlinearity": "relu", "bidirectional": True}, 2, True),
    ("LSTM", {"num_layers": 2, "bidirectional": True}, 2, True),
    ("LSTM", {"bias": False, "batch_first": True}, 2, False),
    ("GRU", {"num_layers": 2, "bidirectional": True, "bias": False}, 2, True),
    ("GRU", {"batch_first": True}, 2, False),
    ("LSTM", {}, 0, True),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2}, 2, True),
    ("LSTM", {"bias": False, "batch_first": True, "proj_size": 3}, 2, False),
    ("LSTM", {"proj_size": 1}, 0, True),
]


def _copied(ours: Any, theirs: Any) -> None:
    ours.double(), theirs.double()
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({k: mt.tensor(v.numpy()) for k, v in theirs.state_dict().items()})


def _used(m: Any, layer: Any, arrays: list[np.ndarray], cell: bool) -> list[Any]:
    """Outputs, states, gradients of inputs and parameters."""
    x, *states = [m.tensor(a, requires_grad=True) for a in arrays]
    hx = (tuple(states) if len(states) == 2 else states[0]) if states else None
    result: Any = layer(x, hx)
    flat = list(result) if isinstance(result, tuple) else [result]
    if not cell and isinstance(flat[1], tuple):
        flat[1:] = flat[1]
    rng = np.random.default_rng(1)
    loss = sum((y * y * m.tensor(rng.uniform(0.5, 1.5, tuple(y.shape)))).sum() for y in flat)
    return [*flat, *m.autograd.grad(loss, [x, *states, *layer.parameters()])]


def _compared(ours: list[list[Any]], wanted: list[list[Any]]) -> None:
    mt.eval(*[t for case in ours for t in case])
    for number, (mine, other) in enumerate(zip(ours, wanted, strict=True)):
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert tuple(a.shape) == tuple(b.shape)
            np.testing.assert_allclose(
                a.detach().numpy(), b.detach().numpy(), 1e-10, 1e-12, err_msg=f"{number} {i}"
            )


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_layers(target: str) -> None:
    # The formulas once by numpy, on everything; some as a compiled program.
    cases = LAYERS if target == "numpy" else [LAYERS[1], LAYERS[5], LAYERS[7]]
    ours, wanted = [], []
    for name, options, batch, with_state in cases:
        pair = [getattr(m.nn, name)(3, 4, **options) for m in (mt, torch)]
        assert pair[0]._all_weights == pair[1]._all_weights
        _copied(*pair)
        count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        shape = (3, batch, 3) if batch else (3, 3)
        shape = (batch, 3, 3) if options.get("batch_first") else shape
        arrays = [RNG.normal(size=shape)]
        if with_state:
            state = (count, batch) if batch else (count,)
            sizes = (options.get("proj_size", 4), 4)[: 2 if name == "LSTM" else 1]
            arrays += [RNG.normal(size=(*state, size)) for size in sizes]
        ours.append(_used(mt, pair[0], arrays, False))
        wanted.append(_used(torch, pair[1], arrays, False))
    with config.override(target=target):
        _compared(ours, wanted)


def test_cells() -> None:
    ours, wanted = [], []
    for name, options, batch in (
        ("RNNCell", {"nonlinearity": "relu"}, 2),
        ("RNNCell", {"bias": False}, 0),
        ("LSTMCell", {}, 2),
        ("LSTMCell", {"bias": False}, 0),
        ("GRUCell", {}, 2),
        ("GRUCell", {"bias": False}, 0),
    ):
        pair = [getattr(m.nn, name)(3, 4, **options) for m in (mt, torch)]
        _copied(*pair)
        arrays = [RNG.normal(size=(batch, 3) if batch else (3,))]
        if name != "RNNCell" or batch:
            state = (batch, 4) if batch else (4,)
            arrays += [RNG.normal(size=state) for _ in range(2 if name == "LSTMCell" else 1)]
        ours.append(_used(mt, pair[0], arrays, True))
        wanted.append(_used(torch, pair[1], arrays, True))
    with config.override(target="numpy"):
        _compared(ours, wanted)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_second_derivatives(name: str) -> None:
    pair = [getattr(m.nn, name)(2, 3) for m in (mt, torch)]
    _copied(*pair)
    array = RNG.normal(size=(2, 2, 2))
    found = []
    for m, layer in zip((mt, torch), pair, strict=True):
        x: Any = m.tensor(array, requires_grad=True)
        loss = (layer(x)[0] ** 2).sum()
        parameters = [x, *layer.parameters()]
        grads = m.autograd.grad(loss, parameters, create_graph=True)
        total = sum((g * g).sum() for g in grads)
        found.append(list(m.autograd.grad(total, parameters)))
    with config.override(target="numpy"):
        _compared(found[:1], found[1:])


def test_dropout_is_between_layers_and_in_training_only() -> None:
    layer = mt.nn.LSTM(3, 4, num_layers=2, dropout=1.0)
    x = mt.tensor(RNG.normal(size=(5, 2, 3)).astype(np.float32))
    dropped, (h, _) = layer(x)
    zero, _ = layer(x * 0)
    kept, _ = layer.eval()(x)
    assert h[0].abs().sum() > 0
    assert not mt.allclose(kept, dropped)
    first = mt.nn.LSTM(4, 4)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    first.load_state_dict({f"{n}_l0": getattr(layer, f"{n}_l1").detach() for n in names})
    assert mt.allclose(dropped, first(mt.zeros(5, 2, 4))[0])
    assert zero.shape == dropped.shape


def test_initialisation_has_torchs_bounds() -> None:
    mt.manual_seed(0)
    for layer in (mt.nn.LSTM(20, 64), mt.nn.GRUCell(20, 64)):
        for p in layer.parameters():
            assert 0.9 / 8 < p.abs().max().item() <= 1 / 8


def test_a_training_step_under_compile_equals_a_plain_one() -> None:
    results = []
    for compiled in (False, True):
        mt.manual_seed(3)
        layer, head = mt.nn.GRU(3, 4, batch_first=True), mt.nn.Linear(4, 2)
        optimizer = mt.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.1)

        def step(x: Any, layer: Any = layer, head: Any = head, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = (head(layer(x)[0][:, -1]) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        run = mt.compile(step) if compiled else step
        batches = np.random.default_rng(2).normal(size=(5, 2, 6, 3)).astype(np.float32)
        results.append([run(mt.tensor(a)).item() for a in batches])
    assert results[0] == results[1]
    assert results[0][-1] != results[0][0]


MISTAKES: list[Any] = [
    lambda m: m.nn.LSTM(3, 4, dropout=2),
    lambda m: m.nn.LSTM(3, 4, dropout=0.5),
    lambda m: m.nn.LSTM(3, 0),
    lambda m: m.nn.LSTM(3, 2.5),
    lambda m: m.nn.LSTM(3, 4, num_layers=0),
    lambda m: m.nn.LSTM(3, 4, proj_size=-1),
    lambda m: m.nn.LSTM(3, 4, proj_size=4),
    lambda m: m.nn.LSTM(3, 4, proj_size=2)(m.zeros(5, 2, 3), (m.zeros(1, 2, 4), m.zeros(1, 2, 4))),
    lambda m: m.nn.LSTM(3, 4, proj_size=2)(m.zeros(5, 2, 3), (m.zeros(1, 2, 2), m.zeros(1, 2, 2))),
    lambda m: m.nn.RNN(3, 4, nonlinearity="sin"),
    lambda m: m.nn.LSTM(3, 4)(m.zeros(5)),
    lambda m: m.nn.GRU(3, 4)(m.zeros(5)),
    lambda m: m.nn.RNN(3, 4)(m.zeros(5)),
    lambda m: m.nn.LSTM(3, 4)(m.zeros(5, 2, 4)),
    lambda m: m.nn.GRU(3, 4)(m.zeros(5, 2, 3).double()),
    lambda m: m.nn.GRU(3, 4)(m.zeros(5, 2, 3), m.zeros(1, 2, 5)),
    lambda m: m.nn.GRU(3, 4)(m.zeros(5, 2, 3), m.zeros(1, 4)),
    lambda m: m.nn.GRU(3, 4)(m.zeros(5, 3), m.zeros(1, 2, 4)),
    lambda m: m.nn.LSTM(3, 4)(m.zeros(5, 2, 3), (m.zeros(1, 2, 5), m.zeros(1, 2, 4))),
    lambda m: m.nn.LSTM(3, 4)(m.zeros(5, 2, 3), (m.zeros(1, 2, 4), m.zeros(1, 3, 4))),
    lambda m: m.nn.LSTM(3, 4)(m.zeros(5, 2, 3), (m.zeros(1, 4), m.zeros(1, 4))),
    lambda m: m.nn.LSTM(3, 4)(m.zeros(5, 3), (m.zeros(1, 2, 4), m.zeros(1, 2, 4))),
    lambda m: m.nn.LSTM(3, 4)(m.zeros(0, 2, 3)),
    lambda m: m.nn.LSTM(3, 4)(m.zeros(5, 0, 3))[0],
    lambda m: m.nn.GRUCell(3, 4)(m.zeros(5, 2, 3)),
    lambda m: m.nn.LSTMCell(3, 4)(m.zeros(5, 2, 3)),
    lambda m: m.nn.RNNCell(3, 4)(m.zeros(5, 2, 3)),
    lambda m: m.nn.GRUCell(3, 4)(m.zeros(5, 2)),
    lambda m: m.nn.GRUCell(3, 4)(m.zeros(5, 3), m.zeros(4, 4)),
    lambda m: m.nn.GRUCell(3, 4)(m.zeros(5, 3), m.zeros(5, 3)),
    lambda m: m.nn.GRUCell(3, 4)(m.zeros(5, 3), m.zeros(1, 5, 3)),
    lambda m: m.nn.LSTMCell(3, 4)(m.zeros(5, 3), (m.zeros(5, 4), m.zeros(1, 5, 4))),
    lambda m: m.nn.LSTMCell(3, 4)(m.zeros(5, 3), (m.zeros(5, 4), m.zeros(5, 3))),
    lambda m: m.nn.RNNCell(3, 4, nonlinearity="sin")(m.zeros(5, 3)),
]


def test_mistakes_read_as_in_torch() -> None:
    for number, call in enumerate(MISTAKES):
        found: list[Any] = []
        for m in (mt, torch):
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    y = call(m)
                shape = tuple(y.shape) if hasattr(y, "shape") else repr(y)
                found.append((shape, [str(w.message) for w in caught]))
            except Exception as error:
                found.append((type(error), str(error).split("\n")[0].replace("torch.f", "mt.f")))
        assert found[0] == found[1], number


def test_what_is_not_supported_says_so() -> None:
    other: Any = [mt.zeros(3)]
    with pytest.raises(TypeError, match="expects a Tensor or a PackedSequence, but got list"):
        mt.nn.GRU(3, 4)(other)
