"""Recurrent layers as kernels: every size against numpy in float64, and what is compiled for it."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import loops, target
from minitorch_tvm.compiler.native import Build
from minitorch_tvm.compiler.schedule import cpu
from minitorch_tvm.compiler.schedule.cpu import recurrence_sizes
from minitorch_tvm.core import config
from minitorch_tvm.core import dtype as dt

Array = np.ndarray[Any, Any]

recurrence_schedule = importlib.import_module(f"{cpu.__name__}.recurrence")

# States, sequences, steps: whole vectors and parts of one, panels that are not full, register tiles
# of which rows are left, one sequence, more than a register tile of them for each thread.
SIZES = [(128, 20, 3), (33, 31, 2), (40, 7, 3), (5, 3, 4), (16, 1, 2), (80, 65, 2), (144, 2, 2)]


def _used(layer: Any, x: Array, weights: list[Array], dtype: Any) -> list[Array]:
    """Outputs, last states, and the gradients of everything."""
    given = mt.tensor(x, dtype=dtype, requires_grad=True)
    y, last = layer(given)
    flat = [y, *(last if isinstance(last, tuple) else (last,))]
    loss = sum((t * mt.tensor(w, dtype=dtype)).sum() for t, w in zip(flat, weights, strict=True))
    found = [*flat, *mt.autograd.grad(loss, [given, *layer.parameters()])]
    mt.eval(*found)
    return [t.detach().numpy().copy() for t in found]


def _case(kind: str, h: int, n: int, steps: int, **options: Any) -> tuple[Any, Any, list[Array]]:
    """A layer, its input, and weights of its outputs."""
    rng = np.random.default_rng(h + n)
    ways = 2 if options.get("bidirectional") else 1
    layer = getattr(mt.nn, kind)(3, h, **options)
    shapes = [(steps, n, ways * h), *[(ways, n, h)] * (2 if kind == "LSTM" else 1)]
    weights = [rng.normal(size=s).astype(np.float32) for s in shapes]
    return layer, rng.normal(size=(steps, n, 3)).astype(np.float32), weights


@pytest.mark.parametrize("isa", ["host", "x86-64-v3"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_sizes(kind: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory filled with NaN beforehand; the truth is the same layer by numpy, in float64.

    Threads share out sequences or states, in turns, whatever pays.
    """
    for number, (h, n, steps) in enumerate(SIZES):
        by_columns = bool((number + len(isa) + len(kind)) % 2)
        monkeypatch.setattr(recurrence_sizes, "_by_columns", lambda *_, own=by_columns: own)
        options: dict[str, Any] = {"bidirectional": True} if number % 3 == 1 else {}
        if kind == "RNN" and number % 2:
            options["nonlinearity"] = "relu"
        layer, x, weights = _case(kind, h, n, steps, **options)
        with config.override(isa=isa, poison=True):
            lazy.clear_cache()
            got = _used(layer, x, weights, mt.float32)
            with mt.no_grad():  # nothing is kept for gradients
                (y, _) = layer(mt.tensor(x))
                np.testing.assert_array_equal(y.numpy(), got[0])
        with config.override(target="numpy"):
            want = _used(layer.double(), x, weights, mt.float64)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            error = np.abs(a - b).max() / max(1.0, np.abs(b).max())
            assert error < 5e-6, f"{kind} {h} {n} {steps}: result {i} is {error} off"


def test_weights_are_read_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares are turned where panels are full: behind the last state there is nothing to read."""
    turned: list[int] = []
    square = recurrence_schedule.transpose_rows

    def counted(edge: int, *rest: Any) -> Any:
        turned.append(edge)
        return square(edge, *rest)

    monkeypatch.setattr(recurrence_schedule, "transpose_rows", counted)
    for kind, h, squares in (("RNN", 80, False), ("RNN", 64, True), ("LSTM", 80, True)):
        turned.clear()
        lazy.clear_cache()
        with config.override(isa="x86-64-v3"), mt.no_grad():  # 10 vectors: panels of four, of three
            mt.eval(getattr(mt.nn, kind)(3, h)(mt.ones(2, 2, 3))[0])
        assert bool(turned) is squares, (kind, h)


def test_states_are_shared_out_where_no_cache_holds_the_weight() -> None:
    machine = dataclasses.replace(target.host(), l2_bytes=2 << 20, workers=2, vector_bytes=64)

    def by_columns(h: int, n: int, workers: int = 2) -> bool:
        own = dataclasses.replace(machine, workers=workers)
        found: bool = recurrence_sizes.Sizes.of(own, dt.float32, (10, n, h), 4, h).by_columns
        return found

    assert by_columns(512, 1)
    assert by_columns(1024, 16)
    assert not by_columns(1024, 16, workers=1)
    assert not by_columns(64, 1)
    assert not by_columns(128, 20)
    assert not by_columns(512, 64)


def test_default_schedule() -> None:
    """TVM's own, without vectors, of the same loops."""
    for kind in ("LSTM", "GRU"):
        layer, x, weights = _case(kind, 5, 3, 3)
        want = _used(layer, x, weights, mt.float32)
        with config.override(schedule="default"):
            lazy.clear_cache()
            got = _used(layer, x, weights, mt.float32)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def test_threads_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, weights = _case("LSTM", 40, 9, 5)
    found, threads = [], mt.get_num_threads()
    try:
        for count, by_columns in ((1, False), (threads, False), (threads, True)):
            monkeypatch.setattr(recurrence_sizes, "_by_columns", lambda *_, own=by_columns: own)
            mt.set_num_threads(count)
            lazy.clear_cache()
            found.append(_used(layer, x, weights, mt.float32))
    finally:
        mt.set_num_threads(threads)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The symbols in each object file that is made."""
    found: list[tuple[str, ...]] = []
    make = Build._make

    def watched(self: Build, piece: Any, level: int) -> None:
        found.append(tuple(piece.functions))
        make(self, piece, level)

    monkeypatch.setattr(Build, "_make", watched)
    lazy.clear_cache()
    return found


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_another_length_compiles_no_recurrence(
    compiled: list[tuple[str, ...]],
    batch_first: bool,
    by_columns: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recurrence_sizes, "_by_columns", lambda *_: by_columns)
    layer = mt.nn.GRU(3, 20, batch_first=batch_first)
    counts, wanted = [], 8 if by_columns else 6
    for steps in (4, 9):
        compiled.clear()
        shape = (2, steps, 3) if batch_first else (steps, 2, 3)
        loss = (layer(mt.ones(*shape))[0] ** 2).sum()
        mt.eval(*mt.autograd.grad(loss, list(layer.parameters())))
        counts.append(len(lazy.last_executor().program.kernels))
        names = [name for names in compiled for name in names]
        assert sum(name.startswith("recurrence") for name in names) == (wanted if steps == 4 else 0)
    assert counts[0] == counts[1] < 20


def test_turns_are_counted_beyond_what_masks_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that is told its number would begin again at the largest one that its code knows."""
    monkeypatch.setattr(recurrence_sizes, "_by_columns", lambda *_: True)
    monkeypatch.setattr(loops, "_BELOW", (3, 26))
    lazy.clear_cache()
    layer = mt.nn.RNN(1, 1, nonlinearity="relu")
    for p in layer.parameters():
        p.data = mt.full(tuple(p.shape), 0.5)
    x = np.zeros((12, 1, 1), np.float32)
    x[-1] = 3
    with mt.no_grad():
        y, last = layer(mt.tensor(x))
    lazy.clear_cache()  # of functions with such masks
    np.testing.assert_allclose([y[-1].item(), last.item(), y[0].item()], [3.5, 3.5, 1.0], 1e-3)


def test_products_are_compiled_apart_from_those_who_call_them(
    compiled: list[tuple[str, ...]],
) -> None:
    """Put into the caller's place, what they store would not be what it reads, for LLVM."""
    layer = mt.nn.LSTM(3, 32)
    mt.eval(layer(mt.ones(3, 20, 3))[0])
    products = [names for names in compiled if any("recurrence_float32" in n for n in names)]
    assert len(products) == 1
    assert len(products[0]) == 1


def test_states_that_have_been_read_are_not_computed_again() -> None:
    layer = mt.nn.LSTM(3, 8)
    loss = (layer(mt.ones(3, 2, 3))[0] ** 2).sum()
    loss.item()
    loss.backward()
    mt.eval(*[p.grad for p in layer.parameters()])
    names = [kernel.name for kernel in lazy.last_executor().program.kernels]
    assert "lstmbackward" in names
    assert "lstm" not in names


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_one_step_packs_no_weight(kind: str) -> None:
    """As when a layer is called again and again with its own state."""
    layer, x, weights = _case(kind, 40, 3, 1)
    got = _used(layer, x, weights, mt.float32)
    rules = {kernel.rule for kernel in lazy.last_executor().program.kernels}
    assert "recurrence" not in rules
    with config.override(target="numpy"):
        want = _used(layer.double(), x, weights, mt.float64)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)


def test_a_sequence_of_sequences_of_none() -> None:
    y, (h, c) = mt.nn.LSTM(3, 4)(mt.ones(2, 0, 3))
    assert (y.shape, h.shape, c.shape) == ((2, 0, 4), (1, 0, 4), (1, 0, 4))
    assert y.tolist() == [[], []]
