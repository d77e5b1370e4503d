"""Packed sequences, and recurrent layers that read them, as PyTorch's."""

from __future__ import annotations

import importlib
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

_RNG = np.random.default_rng(3)
LENGTHS = {
    "sorted": ([5, 3, 3, 1], True),
    "unsorted": ([2, 5, 1, 4], False),
    "equal": ([5, 5, 5, 5], True),
    "one step": ([1, 1, 1, 1], False),
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "tanh": ("RNN", {}),
    "relu": ("RNN", {"nonlinearity": "relu"}),
    "lstm": ("LSTM", {}),
    "gru": ("GRU", {}),
    "projected": ("LSTM", {"proj_size": 2}),
}


def _rnn(lib: Any) -> Any:
    return importlib.import_module(f"{lib.__name__}.nn.utils.rnn")


def _layer(lib: Any, kind: str, dtype: str, **options: Any) -> Any:
    name, own = KINDS[kind]
    layer = getattr(lib.nn, name)(3, 4, dtype=getattr(lib, dtype), **own, **options)
    rng = np.random.default_rng(1)
    with lib.no_grad():
        for p in layer.parameters():
            p.copy_(lib.tensor(rng.normal(size=tuple(p.shape)) * 0.5, dtype=p.dtype))
    return layer


def _tensor(lib: Any, shape: tuple[int, ...], dtype: str) -> Any:
    values = np.random.default_rng(len(shape)).normal(size=shape)
    return lib.tensor(values, dtype=getattr(lib, dtype), requires_grad=True)


def _seen(
    lib: Any, kind: str, lengths: str, dtype: str, with_states: bool, **options: Any
) -> list[np.ndarray]:
    layer, rnn = _layer(lib, kind, dtype, **options), _rnn(lib)
    known, is_sorted = LENGTHS[lengths]
    first = layer.batch_first
    x = _tensor(lib, (4, 5, 3) if first else (5, 4, 3), dtype)
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    sizes = [layer.proj_size or 4, 4][: 2 if layer.mode == "LSTM" else 1]
    states = [_tensor(lib, (count, 4, size), dtype) for size in sizes] if with_states else []
    hx = None if not states else (tuple(states) if len(states) == 2 else states[0])
    packed = rnn.pack_padded_sequence(x, known, first, is_sorted)
    y, last = layer(packed, hx)
    assert isinstance(y, rnn.PackedSequence)
    padded, found = rnn.pad_packed_sequence(y, batch_first=first)
    finals = list(last) if isinstance(last, tuple) else [last]
    loss = (padded**2).sum() + sum((f * (i + 2) + f**2).sum() for i, f in enumerate(finals))
    loss.backward()
    leaves = [x, *states, *layer.parameters()]
    assert found.tolist() == known
    return [t.detach().numpy() for t in (y.data, padded, *finals, *[t.grad for t in leaves])]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_layers(kind: str, bidirectional: bool, with_states: bool, lengths: str) -> None:
    options = {"bidirectional": bidirectional, "num_layers": 2 if bidirectional else 1}
    got, wanted = (
        _seen(lib, kind, lengths, "float64", with_states, **options) for lib in (mt, torch)
    )
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{"bias": False}, {"batch_first": True}, {"num_layers": 3}])
@pytest.mark.parametrize("kind", KINDS)
def test_options_in_single_precision(kind: str, options: dict[str, Any]) -> None:
    got, wanted = (_seen(lib, kind, "unsorted", "float32", True, **options) for lib in (mt, torch))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_does_not_matter(kind: str) -> None:
    """Nor do infinities and NaN in it."""
    layer = _layer(mt, kind, "float32", bidirectional=True)
    found = []
    for filling in (0.0, float("inf"), float("nan")):
        values = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)
        for sequence, length in enumerate([5, 3, 3, 1]):
            values[length:, sequence] = filling
        x = mt.tensor(values, requires_grad=True)
        layer.zero_grad()
        y, _ = layer(mt.nn.utils.rnn.pack_padded_sequence(x, [5, 3, 3, 1]))
        y.data.sum().backward()
        found.append([t.numpy() for t in (y.data.detach(), x.grad, layer.weight_hh_l0.grad)])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_training_on_batches_of_other_lengths() -> None:
    losses = []
    for lib in (mt, torch):
        layer, rnn = _layer(lib, "lstm", "float64"), _rnn(lib)
        optimizer = lib.optim.SGD(layer.parameters(), lr=0.05)
        rng, own = np.random.default_rng(0), []
        for _ in range(6):
            lengths = rng.integers(1, 6, 4)
            parts = [lib.tensor(rng.normal(size=(n, 3))) for n in lengths]
            optimizer.zero_grad()
            _, (h, _) = layer(rnn.pack_sequence(parts, enforce_sorted=False))
            loss = ((h[0] - 1) ** 2).mean()
            loss.backward()
            optimizer.step()
            own.append(loss.item())
        losses.append(own)
    np.testing.assert_allclose(*losses, rtol=1e-9)


def _x(lib: Any) -> Any:
    return lib.tensor(np.arange(24.0).reshape(4, 3, 2))


def packing(lib: Any) -> Any:
    rnn, x = _rnn(lib), _x(lib)
    return [
        rnn.pack_padded_sequence(x, [4, 2, 1]),
        rnn.pack_padded_sequence(x, lib.tensor([4, 2, 1])),
        rnn.pack_padded_sequence(x, lib.tensor([2, 2, 3]), enforce_sorted=False),
        rnn.pack_padded_sequence(x, [3, 3, 2, 1], batch_first=True),
        rnn.pack_padded_sequence(x[:, :, 0].long(), [2, 2, 2]),
        rnn.pack_sequence([x[0], x[1, :2]]),
        rnn.pack_sequence([x[0, :1], x[1], x[2, :2]], enforce_sorted=False),
    ]


def padding(lib: Any) -> Any:
    rnn, x = _rnn(lib), _x(lib)
    packed = rnn.pack_padded_sequence(x, [2, 4, 1], enforce_sorted=False)
    whole = rnn.pack_padded_sequence(x.long(), [4, 4, 3])
    return [
        rnn.pad_packed_sequence(packed),
        rnn.pad_packed_sequence(packed, batch_first=True, padding_value=-1.5, total_length=6),
        rnn.pad_packed_sequence(whole, padding_value=7),
        rnn.unpack_sequence(packed),
        rnn.unpad_sequence(x.clone(), lib.tensor([2, 4, 1])),
        rnn.unpad_sequence(x, lib.tensor([2, 3, 1, 1]), batch_first=True),
        rnn.pad_sequence([x[0, :1], x[1]], padding_value=2.5),
        rnn.pad_sequence([x[0, :1], x[1]], True, 7, padding_side="left"),
        rnn.pad_sequence(part for part in x),
        *data_padded(lib),
    ]


def data_padded(lib: Any) -> list[Any]:
    """What has its values, and needs no gradient."""
    rnn = _rnn(lib)
    lines = [lib.tensor([1, 2]), lib.tensor([3]), lib.tensor([], dtype=lib.int64)]
    rows = [lib.tensor([[1.0, 2.0]]), lib.tensor([[3.0, 4.0], [5.0, 6.0]])]
    flags = [lib.tensor([True]), lib.tensor([True, False])]
    return [
        rnn.pad_sequence(lines, padding_value=9),
        rnn.pad_sequence(lines, True, padding_side="left"),
        rnn.pad_sequence(rows, padding_value=0.5),
        rnn.pad_sequence(rows, True, -math.inf, "left"),
        rnn.pad_sequence([r.T for r in rows[1:]], padding_value=math.nan),
        rnn.pad_sequence(flags, True),
        rnn.pad_sequence([flags[0][:0], flags[0][:0]]),
    ]


def gradients(lib: Any) -> Any:
    rnn, x = _rnn(lib), _x(lib).requires_grad_()
    packed = rnn.pack_padded_sequence(x, [2, 4, 1], enforce_sorted=False)
    padded, _ = rnn.pad_packed_sequence(packed)
    (packed.data**2 * 3).sum().backward(retain_graph=True)
    (padded**2).sum().backward()
    return x.grad


def the_object(lib: Any) -> Any:
    rnn = _rnn(lib)
    made = rnn.PackedSequence(lib.ones(3, 2), lib.tensor([2, 1]), lib.tensor([1, 0]))
    other = made.double()
    return [
        made,
        rnn.PackedSequence((lib.ones(3, 2), lib.tensor([2, 1]))),
        (made.is_cuda, made.is_pinned(), made.cpu() is made, made.to("cpu") is made),
        made.to(lib.int64),
        (made.float() is made, isinstance(other, rnn.PackedSequence), other.data.dtype.itemsize),
        [made.int().data, made.long().data, made.byte().data],
        rnn.invert_permutation(lib.tensor([2, 0, 1])),
        rnn.invert_permutation(None),
    ]


MISTAKES: list[Callable[[Any, Any, Any], Any]] = [
    lambda lib, rnn, x: rnn.pack_padded_sequence(x, [1, 2, 3]),
    lambda lib, rnn, x: rnn.pack_padded_sequence(x, [2, 1]),
    lambda lib, rnn, x: rnn.pack_padded_sequence(x, [2, 1, 0]),
    lambda lib, rnn, x: rnn.pack_padded_sequence(x[:, :0], []),
    lambda lib, rnn, x: rnn.pack_sequence([x[0, :1], x[1]]),
    lambda lib, rnn, x: rnn.pad_packed_sequence(
        rnn.pack_padded_sequence(x, [3, 2, 1]), total_length=2
    ),
    lambda lib, rnn, x: rnn.pad_sequence(5),
    lambda lib, rnn, x: rnn.pad_sequence([x], padding_side="top"),
    lambda lib, rnn, x: rnn.PackedSequence(x),
    lambda lib, rnn, x: lib.nn.GRU(3, 4)(rnn.pack_padded_sequence(x.float(), [3, 2, 1])),
    lambda lib, rnn, x: lib.nn.GRU(2, 4)(
        rnn.pack_padded_sequence(x.float(), [3, 2, 1]), lib.ones(1, 2, 4)
    ),
    lambda lib, rnn, x: lib.nn.RNN(2, 4)(rnn.pack_padded_sequence(x[:, :, 0].float(), [3, 2, 1])),
]


def mistakes(lib: Any) -> Any:
    found = []
    for mistake in MISTAKES:
        with pytest.raises((RuntimeError, ValueError, AssertionError)) as caught:
            mistake(lib, _rnn(lib), _x(lib))
        found.append(f"{type(caught.value).__name__}: {caught.value}")
    return found


def signatures(lib: Any) -> Any:
    rnn = _rnn(lib)
    names = ("pack_padded_sequence", "pad_packed_sequence", "pack_sequence", "unpack_sequence")
    found = []
    for name in (*names, "unpad_sequence", "pad_sequence", "invert_permutation"):
        parameters = inspect.signature(getattr(rnn, name)).parameters.values()
        found.append([(p.name, str(p.kind), str(p.default)) for p in parameters])
    return found


def _values(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_values(v) for v in value]
    if hasattr(value, "tolist"):
        return value.tolist(), value.dtype.is_floating_point, value.dtype.itemsize
    return value


PROGRAMS = [
    p
    for p in list(globals().values())
    if isinstance(p, types.FunctionType)
    and p.__module__ == __name__
    and not p.__name__.startswith(("_", "test"))
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_pytorch(program: Callable[[Any], Any]) -> None:
    wanted, got = (_values(program(lib)) for lib in (torch, mt))
    assert got == wanted


def test_lengths_beyond_the_input_raise() -> None:
    with pytest.raises(RuntimeError, match="Expected `lengths` to be at most 4"):
        mt.nn.utils.rnn.pack_padded_sequence(_x(mt), [5, 2, 1])
