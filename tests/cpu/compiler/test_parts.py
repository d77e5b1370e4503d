"""A program is compiled in parts that are linked together: nothing is lost, nothing twice."""

from __future__ import annotations

import gc
import re
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy, nn
from minitorch_tvm.compiler import crowd, native, target
from minitorch_tvm.compiler.assemble import Functions, Place, StageCall, assemble, entry_functions
from minitorch_tvm.compiler.loops import (
    const,
    count_statements,
    load,
    parallel_stage,
    pointer_buffer,
    seq,
    serial,
    store,
    var,
    when,
)
from minitorch_tvm.compiler.steps import ENTRY, entry_helpers
from minitorch_tvm.core.threads import usable_cores
from minitorch_tvm.core.tvm_api import tvm
from minitorch_tvm.ir.program import WITHIN


def _build(build: native.Build, stages: int) -> None:
    a, b = (pointer_buffer((64,), "float32", name) for name in "ab")
    functions = Functions(build.add)
    calls = []
    for number in range(stages):
        # Each adds another constant, or equal ones would share a function.
        stage = parallel_stage("add", 64, lambda t, n=number: store(b, load(a, t) + float(n), t))
        function, buffers, (numbers,) = functions.of(stage)
        places = [Place([m.same_as(buffer) for m in (a, b)].index(True)) for buffer in buffers]
        calls.append(StageCall(stage.tiles, function, tuple(places), numbers=numbers))
    build.entry(entry_functions(2, target.host()))
    assemble(calls, 2)
    build.finish()


@pytest.mark.parametrize("stages", [1, 5, 6, 7, 13])
def test_each_function_is_in_one_part(stages: int) -> None:
    with native.Build(target.host()) as build:
        _build(build, stages)
        names = [list(piece.functions) for piece in build.pieces]
    (once,) = (part for part in names if ENTRY in part)
    assert set(once) == {ENTRY, WITHIN, *(helper.name for helper in entry_helpers(2))}
    flat = [name for part in names for name in part]
    assert len(set(flat)) == len(flat) == stages + len(once)
    names.remove(once)
    sizes = [len(part) for part in names[:-1]]  # the last one holds what is left
    assert sizes == sorted(sizes)
    assert sizes[:1] == [6] * (stages > 6)  # threads need not wait long for the first
    assert max(map(len, names)) <= 8
    assert all(piece.code for piece in build.pieces)
    assert not any(piece.functions for piece in build.pieces)


def test_only_the_entrys_part_is_not_optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: dict[str, int] = {}
    compile_module = native.compile_module

    def watched(module: Any, *arguments: Any, level: int, **options: Any) -> Any:
        levels.update({name.name_hint: level for name in module.get_global_vars()})
        return compile_module(module, *arguments, level=level, **options)

    monkeypatch.setattr(native, "compile_module", watched)
    with native.Build(target.host()) as build:
        _build(build, 7)
    once = {ENTRY, WITHIN, *(helper.name for helper in entry_helpers(2))}
    assert {levels.pop(name) for name in once} == {0}
    assert set(levels.values()) == {3}
    assert len(levels) == 7


def test_parts_hold_what_they_were_given_and_nothing_else() -> None:
    shown: list[Any] = []
    with native.Build(target.host(), look=shown.append) as build:
        _build(build, 7)
        given = {frozenset(piece.functions) for piece in build.pieces}
    text = [executable.mod.inspect_source("ll") for executable in shown]
    made = {frozenset(re.findall(r"^define .*@(\w+)\(", ll, re.MULTILINE)) for ll in text}
    assert len(made) == len(given) == 3
    # The part that is compiled once has, beside what it was given, what TVM makes of it.
    assert len(made & given) == 2
    assert not any("hfsf" in name for names in made for name in names)


def test_parts_come_with_all_that_they_need() -> None:
    first, second, third, other = (native.Piece() for _ in range(4))
    first.needs.add(second)
    second.needs |= {first, third}
    assert native.with_needed([first]) == [first, second, third]
    assert native.with_needed([other, third]) == [other, third]


def test_statements_that_are_not_made_of_others_are_counted() -> None:
    a = pointer_buffer((8,), "float32", "a")
    i = var("i")

    def put(value: float) -> object:
        return store(a, const(value, "float32"), i)

    both = when(i > 0, put(1.0), seq(put(2.0), put(3.0)))
    assert count_statements(put(0.0)) == 1
    assert count_statements(when(i > 0, put(0.0))) == 1
    assert count_statements(serial(4, lambda _: both)) == 3
    assert count_statements(seq(put(4.0), serial(4, lambda _: both))) == 4
    assert count_statements(tvm().tirx.While(i > 0, seq(put(4.0), both))) == 4


def test_an_error_in_a_part_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_module = native.compile_module

    def fail(module: object, *arguments: object, **options: object) -> object:
        if len(module.functions_items()) > 1:
            raise RuntimeError("no code for these")
        return compile_module(module, *arguments, **options)

    monkeypatch.setattr(native, "compile_module", fail)
    with (
        pytest.raises(RuntimeError, match="no code for these"),
        native.Build(target.host()) as build,
    ):
        _build(build, 7)


def test_a_program_of_many_parts() -> None:
    x = np.random.default_rng(0).standard_normal((7, 33)).astype(np.float32)
    t, want = mt.tensor(x), x.astype(np.float64)
    for n in range(5, 16):  # reductions of different sizes do not share a function
        t = mt.cat([t, t[:, :n].sum(1, keepdim=True).tanh()], 1)
        want = np.concatenate([want, np.tanh(want[:, :n].sum(1, keepdims=True))], 1)
    np.testing.assert_allclose(t.numpy(), want, rtol=2e-5, atol=1e-5)
    assert len(lazy.last_executor().program.code) > 2


def _layers(count: int) -> np.ndarray:
    mt.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(count) for m in (nn.Linear(24, 24), nn.Tanh())])
    x = mt.tensor(np.linspace(-1, 1, 5 * 24, dtype=np.float32).reshape(5, 24))
    out = model(x)
    out.sum().backward()
    mt.eval(out, *[p.grad for p in model.parameters()])
    want = x.numpy().astype(np.float64)
    for layer in list(model)[::2]:
        weight, bias = (p.detach().numpy().astype(np.float64) for p in layer.parameters())
        want = np.tanh(want @ weight.T + bias)
    np.testing.assert_allclose(out.detach().numpy(), want, rtol=1e-4, atol=1e-5)
    return out.detach().numpy()


@pytest.mark.parametrize("count", [18, 1000])
def test_equal_layers_are_built_once(count: int) -> None:
    lazy.clear_cache()
    _layers(6)
    few = lazy.last_executor().program
    _layers(count)
    many = lazy.last_executor().program
    assert len(many.kernels) >= len(few.kernels) + 2 * (count - 6)
    assert many.stage_functions == few.stage_functions


def _residuals(count: int) -> int:
    mt.manual_seed(0)
    layers = [nn.Linear(48, 48) for _ in range(count)]
    norms = [nn.LayerNorm(48) for _ in range(count)]
    x = mt.tensor(np.linspace(-1, 1, 6 * 48, dtype=np.float32).reshape(6, 48))
    want = x.numpy().astype(np.float64)
    for layer, norm in zip(layers, norms, strict=True):
        x = x + layer(norm(x)).relu()
        centred = want - want.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        weight, bias = (p.detach().numpy().astype(np.float64) for p in layer.parameters())
        want = want + np.maximum(scaled @ weight.T + bias, 0)
    x.sum().backward()
    parameters = [p for m in (*layers, *norms) for p in m.parameters()]
    mt.eval(x, *[p.grad for p in parameters])
    np.testing.assert_allclose(x.detach().numpy(), want, rtol=1e-4, atol=1e-4)
    return lazy.last_executor().program.stage_functions


def test_layers_behind_a_residual_do_not_add_up_all_before_them() -> None:
    lazy.clear_cache()
    assert _residuals(9) == _residuals(6)


def test_programs_share_kernels_while_one_of_them_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    add = native.Build.add

    def watched(self: native.Build, symbol: str, function: object) -> native.Piece:
        if symbol != ENTRY:  # made once in a process
            made.append(symbol)
        return add(self, symbol, function)

    monkeypatch.setattr(native.Build, "add", watched)
    lazy.clear_cache()
    gc.collect()
    x = mt.tensor(np.arange(70.0, dtype=np.float32).reshape(7, 10))

    def value(rows: int) -> float:
        return float((x[:rows].sum(0) + x.exp().sum(0)).sum())

    def want(rows: int) -> float:
        array = x.numpy().astype(np.float64)
        return float((array[:rows].sum(0) + np.exp(array).sum(0)).sum())

    first = value(3)
    whole = len(made)
    second = value(4)
    assert 0 < len(made) - whole < whole
    made.clear()
    lazy.clear_cache()
    gc.collect()
    third = value(4)
    assert len(made) == whole
    np.testing.assert_allclose([first, second, third], [want(3), want(4), want(4)], rtol=1e-5)


@pytest.mark.skipif(usable_cores() < 2 or not crowd.available(), reason="one thread only")
def test_what_entries_call_is_made_once_and_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever links it would link the functions of another program, too."""
    parts: list[list[str]] = []
    leave = native.Build.__exit__

    def watched(self: native.Build, *error: object) -> None:
        parts.extend(list(piece.functions) for piece in self.pieces)
        leave(self, *error)

    monkeypatch.setattr(native.Build, "__exit__", watched)
    lazy.clear_cache()
    gc.collect()
    x = mt.tensor((np.arange(90_000, dtype=np.float32) % 7).reshape(-1, 10))
    for n in (8000, 9000):
        np.testing.assert_array_equal((x * float(n) + n).numpy(), x.numpy() * n + n)
        want = np.exp(x.numpy()[:n], dtype=np.float64).sum(0)
        np.testing.assert_allclose(x[:n].exp().sum(0).numpy(), want, 1e-5)
    found = [set(part) for part in parts if crowd.DECIDE.name in part]
    assert found == [{ENTRY, WITHIN, crowd.DECIDE.name}]


def test_products_share_what_packs_their_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    add_alone = native.Build.add_alone

    def watched(self: native.Build, symbol: str, function: object) -> native.Piece:
        made.append(symbol)
        return add_alone(self, symbol, function)

    def product(m: int, n: int) -> set[str]:
        """Helpers that a product needed anew."""
        made.clear()
        rng = np.random.default_rng(m)
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, 256), (256, n)))
        found = (mt.tensor(a) @ mt.tensor(b)).numpy()
        np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
        return set(made)

    monkeypatch.setattr(native.Build, "add_alone", watched)
    if not target.host().matrix_unit:  # behind the patch: a stale name is noticed anywhere
        pytest.skip("no matrix unit")
    lazy.clear_cache()
    gc.collect()
    helpers = product(256, 256)
    packers = {"pack_rows_natural", "pack_columns_natural"}
    assert helpers == {*packers, "block_in_float32", "take_any"}
    assert product(300, 256) == set()
    lazy._CACHE.popitem(last=False)  # the program that made them goes, one that calls them stays
    gc.collect()
    assert product(256, 300) == set()
    lazy.clear_cache()
    gc.collect()
    assert product(330, 256) <= helpers


def test_helpers_are_apart_from_who_calls_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a later program's kernels can be linked to them, and not to the first one's."""
    parts: list[list[str]] = []
    leave = native.Build.__exit__

    def watched(self: native.Build, *error: object) -> None:
        parts.extend(list(piece.functions) for piece in self.pieces)
        leave(self, *error)

    lazy.clear_cache()
    gc.collect()
    monkeypatch.setattr(native, "_SMALLEST", 10_000)
    monkeypatch.setattr(native, "_LARGEST", 10_000)
    monkeypatch.setattr(native.Build, "__exit__", watched)
    if not target.host().matrix_unit:  # behind the patches: stale names are noticed anywhere
        pytest.skip("no matrix unit")
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((256, 256)).astype(np.float32) for _ in "ab")
    want = a.astype(np.float64), b.astype(np.float64)
    # The second calls one that the first calls, too, which is there.
    first = (mt.tensor(a) @ mt.tensor(b)).numpy()
    apart, count = [p for p in parts if len(p) == 1], len(parts)
    second = (mt.tensor(a) @ mt.tensor(b).T).numpy()
    assert ["pack_rows_natural"] in apart
    assert ["pack_columns_natural"] in apart
    assert ["pack_rows_natural"] not in parts[count:]
    np.testing.assert_allclose(first, want[0] @ want[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second, want[0] @ want[1].T, rtol=1e-4, atol=1e-4)


def test_the_last_parts_share_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a thread waits for the last one, as long as that is large."""
    monkeypatch.setattr(native.Build, "_make", lambda self, piece, level: None)
    monkeypatch.setattr(native, "count_statements", lambda body: body)
    count, each = 40, 100
    sizes = []
    for told in (False, True):
        with native.Build(target.host()) as build:
            for n in range(count):
                if told:
                    build.expect(n, count - n - 1)
                build.add(f"f{n}", SimpleNamespace(body=each - native._FUNCTION))
            build.finish()
            parts = [piece.work for piece in build.pieces]
        assert sum(parts) == count * each
        assert parts[:3] == [300, 600, 800]
        sizes.append(parts)
    assert sizes[0] == [300, 600, 800, 800, 800, 700]
    assert sizes[1] == [300, 600, 800, 800, 800, 400, 300]


def test_the_largest_part_that_waits_is_made_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a thread may have it alone at the end."""
    begun, free, order = threading.Event(), threading.Event(), []

    def make(self: native.Build, piece: native.Piece, level: int) -> None:
        order.append(piece.work)
        begun.set()
        assert free.wait(30)

    monkeypatch.setattr(native.Build, "_make", make)
    monkeypatch.setattr(native, "count_statements", lambda body: body)
    monkeypatch.setattr(native, "usable_cores", lambda: 1)
    with native.Build(target.host()) as build:
        for n, statements in enumerate((300, 100, 500, 200)):
            build.add_alone(f"f{n}", SimpleNamespace(body=statements - native._FUNCTION))
            assert begun.wait(30)
        free.set()
        build.finish()
    assert order == [300, 500, 200, 100]


def test_functions_of_equal_structure_are_one() -> None:
    made: dict[str, object] = {}
    functions = Functions(made.__setitem__)
    a = pointer_buffer((8,), "float32", "a")
    b = pointer_buffer((8,), "float32", "b")
    found = [
        functions.of(parallel_stage("twice", 8, lambda t, m=m: store(m, load(m, t) * 2.0, t)))[0]
        for m in (a, b)
    ]
    assert found[0] is found[1]
    assert list(made) == [found[0].symbol]
