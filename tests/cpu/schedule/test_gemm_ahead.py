"""Panels that threads pack while they multiply the ones before."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from test_gemm import Case, build, check

from minitorch_tvm.compiler.loops import const, load, pointer_buffer, ramp, seq, serial, store
from minitorch_tvm.compiler.schedule.cpu import gemm_ahead, gemm_outer, gemm_tiling
from minitorch_tvm.compiler.schedule.cpu.gemm import Gemm
from minitorch_tvm.compiler.schedule.cpu.gemm_ahead import Ahead
from minitorch_tvm.compiler.schedule.cpu.gemm_problem import Panels, Problem, zeros
from minitorch_tvm.compiler.target import CpuTarget, host
from minitorch_tvm.core.tvm_api import global_func, tvm

AVX512 = CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 2 << 20, workers=2)


def _alone(pb: Problem, cpu: CpuTarget) -> tuple[float, gemm_tiling.Tiling, Problem]:
    """Tiles of all rows and one panel of a product as it stands."""
    lanes = cpu.lanes(pb.itemsize)
    last = gemm_tiling._last(pb, lanes, 2, False)
    tiling = gemm_tiling.Tiling(4, 2, last, lanes, False, 0, 0, 0)
    tiling = gemm_tiling._alone(pb, cpu, tiling)
    return 0.0, dataclasses.replace(tiling, k_block=min(tiling.k_block, 64)), pb


def _run_on_one_thread(case: Case) -> None:
    configure = global_func("runtime.config_threadpool")
    configure(1, 1)
    try:
        case.run()
    finally:
        configure(1, 2)


@pytest.mark.parametrize(
    ("shape", "a_transposed", "dtype"),
    [
        (shape, turned, ("float32", "float64")[(number + turned) % 2])
        for number, shape in enumerate(
            [(1, 40, 400, 96), (1, 41, 401, 37), (1, 150, 333, 129), (1, 7, 290, 50)]
        )
        for turned in (False, True)
    ],
)
def test_results_are_those_of_panels_packed_at_once(
    shape: tuple[int, ...], a_transposed: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many threads as there are, and with one, to the last bit."""
    monkeypatch.setattr(gemm_outer, "fastest", _alone)
    monkeypatch.setattr(gemm_ahead, "evict_each_other", lambda *_: True)
    packed = []
    pack = Ahead.pack

    def watched(self: Ahead, block: Any, p: Any) -> Any:
        packed.append(self.columns.memory.shape[1])
        return pack(self, block, p)

    monkeypatch.setattr(Ahead, "pack", watched)
    cpu = dataclasses.replace(host(), l2_bytes=2 << 20, workers=2, matrix_unit=False)

    def made() -> Case:
        spec = Gemm(*shape, dtype, a_transposed, False)
        return build(spec, cpu=cpu, epilogue="accumulate")

    one = made()
    assert set(packed) == {2}
    before = one.out.copy()
    one.run()
    check(one, before + one.want())
    two = one.out.copy()
    one.out[...] = before
    _run_on_one_thread(one)
    np.testing.assert_array_equal(one.out, two)
    monkeypatch.setattr(gemm_outer, "packs_ahead", lambda *_: False)
    other = made()
    other.a[...], other.b[...], other.out[...] = one.a, one.b, before
    other.run()
    np.testing.assert_array_equal(other.out, two)


def test_what_was_packed_ahead_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread packs all panels but its first so, none of them twice."""

    def clear(self: Panels, bt: Any, panels: Any, steps: Any) -> Any:
        (first, count), place = steps, self.at(bt, panels[0])
        every = ramp(0, self.memory.shape[3])
        nothing = zeros(self.pb.dtype, self.memory.shape[3])
        return serial(count, lambda k: store(self.memory, nothing, *place, first + k, every))

    monkeypatch.setattr(gemm_outer, "fastest", _alone)
    monkeypatch.setattr(gemm_ahead, "evict_each_other", lambda *_: True)
    monkeypatch.setattr(Panels, "copy", clear)
    cpu = dataclasses.replace(host(), l2_bytes=2 << 20, workers=2, matrix_unit=False)
    one = build(Gemm(1, 40, 400, 96, "float32", False, False), cpu=cpu)
    _run_on_one_thread(one)
    want, width = one.want(), 2 * cpu.lanes(4)
    np.testing.assert_allclose(one.out[..., :width], want[..., :width], rtol=1e-5, atol=1e-5)
    assert not one.out[..., width:].any()


@pytest.mark.parametrize(("m", "k"), [(12, 300), (40, 1024), (130, 1024), (500, 77)])
def test_what_a_visit_packs_it_has_asked_for(
    m: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every k once, but for some at a visit's end, and nothing behind the last panel."""
    memory = pointer_buffer((k, 100), "float32", "b")
    simplify = tvm().sym.Analyzer().simplify
    asked: list[tuple[int, int]] = []
    copied: list[tuple[int, int]] = []
    told = gemm_ahead.const

    def column(_: Any, at: Any, j: Any) -> Any:
        asked.append((int(simplify(at)), int(simplify(j))))
        return load(memory, at, j)

    def all_of(extent: int, body: Any, _: str) -> Any:
        return seq([body(const(i)) for i in range(extent)])

    def if_so(condition: Any, then: Any) -> Any:
        if not int(simplify(condition)):
            asked[:], copied[:] = asked[: known[0]], copied[: known[1]]
        return then

    def copy(self: Panels, bt: Any, panels: Any, steps: Any) -> Any:
        first, count = (int(simplify(n)) for n in steps)
        copied.extend((at, int(simplify(panels[0]))) for at in range(first, first + count))
        return seq([])

    monkeypatch.setattr(gemm_ahead, "serial", all_of)
    monkeypatch.setattr(gemm_ahead, "when", if_so)
    monkeypatch.setattr(gemm_ahead, "number", lambda value, _: told(value))
    monkeypatch.setattr(Panels, "copy", copy)

    def none(*_: Any) -> Any:
        raise AssertionError("neither rows nor results are read")

    pb = Problem(
        *(1, m, 100, k, "float32", none, column, True, False),
        *(k, 100, none, True, True, False),
    )
    _, t, _ = _alone(pb, AVX512)
    columns = Panels.of_thread(pb, AVX512, 2, k, t.nr, t.last_nv * t.lanes)
    visits, parts = 2 * -(-m // t.mr), -(-k // 32)  # all blocks of rows for each half of k
    ahead = Ahead(pb, columns, visits, parts)
    for p in range(4):
        for visit in range(visits):
            before = len(copied)
            for part in range(parts):
                known = len(asked), before
                ahead.asks(const(visit), const(p), const(part))
            known = len(asked), before
            ahead.pack(const(visit), const(p))
            for at, panel in copied[before:]:
                assert {(at, min(panel * t.nr + c, 99)) for c in range(0, t.nr, 16)} <= {*asked}
    assert copied == [(at, p) for p in (1, 2, 3) for at in range(k)]
    within = [a for a in asked if a[0] < k - 1 and a[1] < 99]
    assert len(within) <= 1.1 * len(set(within))


@pytest.mark.parametrize(
    ("m", "n", "k", "transposed", "ahead"),
    [
        (256, 1024, 1024, False, True),
        (256, 1000, 1024, False, False),  # lines of consecutive k are anywhere
        (256, 1024, 200, False, False),  # they can all be asked for
        (256, 1024, 1024, True, False),  # and so can those that are stored along k
        (400, 1024, 1024, False, False),  # no room for another panel
    ],
)
def test_where_panels_are_packed_ahead(
    m: int, n: int, k: int, transposed: bool, ahead: bool
) -> None:
    def none(*_: Any) -> Any:
        raise AssertionError("nothing is read while a tiling is chosen")

    pb = Problem(
        *(1, m, n, k, "float32", none, none, True, transposed),
        *(k, k if transposed else n, none, True, True, False),
    )
    assert gemm_ahead.packs_ahead(pb, AVX512, _alone(pb, AVX512)[1]) == ahead
    if ahead:
        chosen = gemm_tiling.fastest(pb, AVX512)
        assert gemm_ahead.packs_ahead(chosen[2], AVX512, chosen[1])
