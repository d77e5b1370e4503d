"""Float32 products on the matrix unit: accuracy, irregular numbers, shapes, copies, determinism.

Needs a processor with the unit; the schedules that others use are tested in test_gemm.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linked import Linked
from test_gemm import LAYOUTS, WALLED, Case, before_a_wall, build, check

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import api
from minitorch_tvm.compiler.assemble import Place
from minitorch_tvm.compiler.loops import Builder, Stage, load, pointer_buffer, store
from minitorch_tvm.compiler.schedule.cpu import gemm, gemm_dot, gemm_tiles
from minitorch_tvm.compiler.schedule.cpu.bfloat_parts import (
    PRODUCTS,
    Operand,
    folded_tiles,
    packed_memory,
)
from minitorch_tvm.compiler.schedule.cpu.gemm import Gemm
from minitorch_tvm.compiler.schedule.cpu.gemm_plan import Cut, Plan
from minitorch_tvm.compiler.schedule.cpu.gemm_problem import Problem
from minitorch_tvm.compiler.target import CpuTarget, host
from minitorch_tvm.core import config
from minitorch_tvm.core.tvm_api import global_func


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products too run on the unit."""
    monkeypatch.setattr(gemm_tiles, "cycles", lambda pb, cpu: float(pb.swapped) / 2 - 1)
    monkeypatch.setattr(gemm_dot, "suits", lambda pb, cpu: False)
    if not host().matrix_unit:  # said here, so that any machine sees that the names above are there
        pytest.skip("the processor multiplies no tiles of bfloat16")


def machine(workers: int = 2) -> CpuTarget:
    return dataclasses.replace(host(), workers=workers)


def cut_by(monkeypatch: pytest.MonkeyPatch, stays: str) -> None:
    """Tiles pack both operands (""), or every core packs one of them ("rows", "columns")."""

    def best(plan: Plan) -> Cut:
        if not stays:
            return plan.tiles
        found = plan.resident(("rows", "columns").index(stays))
        assert found is not None
        return found

    monkeypatch.setattr(Plan, "best", property(best))


SHAPES = [
    (1, 1, 1, 1),
    (1, 7, 13, 5),
    (1, 32, 32, 32),
    (1, 33, 31, 65),
    (1, 97, 101, 289),
    (1, 200, 40, 600),
    (1, 30, 200, 530),
    (2, 31, 70, 17),
    (3, 64, 32, 320),
]


@pytest.mark.parametrize(("a_transposed", "b_transposed"), LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_shapes(shape: tuple[int, ...], a_transposed: bool, b_transposed: bool) -> None:
    case = build(Gemm(*shape, "float32", a_transposed, b_transposed), cpu=machine())
    assert case.stage_names == ["gemm"]
    case.run()
    check(case, case.want())


@pytest.mark.parametrize(("a_transposed", "b_transposed"), LAYOUTS)
@pytest.mark.parametrize("shape", WALLED, ids=lambda s: "x".join(map(str, s)))
def test_nothing_behind_an_operand_is_read(
    shape: tuple[int, ...], a_transposed: bool, b_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors over the edge of a block are loaded in part."""
    monkeypatch.setattr("test_gemm.aligned", before_a_wall)
    case = build(Gemm(*shape, "float32", a_transposed, b_transposed), cpu=machine())
    assert case.stage_names == ["gemm"]
    case.run()
    check(case, case.want())


@pytest.mark.parametrize("swapped", [False, True])
def test_threads_write_no_parts_of_a_line(swapped: bool) -> None:
    """127 columns are no whole number of lines: tiles are whole rows of the user's result."""

    def none(*_: Any) -> Any:
        raise AssertionError("a plan reads nothing")

    # Of either problem, packing alone would have the other tiles.
    inner = (False, False) if swapped else (True, True)
    pb = Problem(1, 128, 127, 128, "float32", none, none, *inner, 128, 128, none, True, True, False)
    plan = Plan.of(pb.swap() if swapped else pb, dataclasses.replace(machine(), l2_bytes=2 << 20))
    cut = plan.tiles
    assert (cut.columns, cut.rows) == ((2, 4) if swapped else (4, 2))


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_tiles_for_workers(workers: int) -> None:
    # Sizes of tiles depend on them.  Two threads serve any number of queues.
    case = build(Gemm(1, 150, 70, 300, "float32", False, True), cpu=machine(workers))
    case.run()
    check(case, case.want())


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("stays", ["", "rows", "columns"])
@pytest.mark.parametrize(("a_transposed", "b_transposed"), LAYOUTS)
def test_operands_that_stay(
    stays: str,
    swapped: bool,
    a_transposed: bool,
    b_transposed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five panels by six, the last of each narrow, and folded k; every element written once."""
    monkeypatch.setattr(gemm_tiles, "cycles", lambda pb, cpu: float(pb.swapped != swapped))
    cut_by(monkeypatch, stays)
    cpu = dataclasses.replace(machine(), l2_bytes=8 << 20)
    spec = Gemm(1, 137, 170, 77, "float32", a_transposed, b_transposed)
    case = build(spec, cpu=cpu, epilogue="accumulate")
    before = case.out.copy()
    case.run()
    check(case, before.astype(np.float64) + case.want())
    if not (a_transposed or b_transposed):
        for workers in (1, 5):
            again = build(
                spec, cpu=dataclasses.replace(cpu, workers=workers), epilogue="accumulate"
            )
            again.a[...], again.b[...], again.out[...] = case.a, case.b, before
            again.run()
            np.testing.assert_array_equal(again.out, case.out)


def _stage(spec: Gemm, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The stage that is chosen for a product in memory."""
    monkeypatch.undo()
    a, b, c = (pointer_buffer((1 << 20,), "float32", name) for name in "abc")
    stages = gemm.gemm_stages(
        dataclasses.replace(
            spec,
            a_pitch=spec.m if spec.a_transposed else spec.k,
            b_pitch=spec.k if spec.b_transposed else spec.n,
        ),
        lambda bt, i, k: load(a, k * spec.m + i if spec.a_transposed else i * spec.k + k),
        lambda bt, k, j: load(b, j * spec.k + k if spec.b_transposed else k * spec.n + j),
        lambda bt, i, j, value: store(c, value, i * spec.n + j),
        Builder(),
        dataclasses.replace(machine(), l1_bytes=48 << 10, l2_bytes=2 << 20),
    )
    assert stages is not None
    (stage,) = stages
    return stage


def test_what_a_stage_does_not_multiply_or_pack_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results alone do not show it: operands that stay, fewer rows, folded k."""
    plain = _stage(Gemm(1, 512, 512, 512, "float32", False, False), monkeypatch)
    assert plain.queue is None  # neither operand fits
    assert str(plain.body).count("ldtilecfg") == 1
    # Of a block's sums, and one after each kind of step: what stores tiles must not fall asleep.
    assert str(plain.body).count("tilestored64") == 4 + 3
    stays = _stage(Gemm(1, 1024, 512, 128, "float32", False, True), monkeypatch)
    assert stays.queue is not None
    assert stays.tiles == 1024 // 32
    assert str(stays.body).count("ldtilecfg") == 1
    # At the start, and for each panel of rows.
    narrow = _stage(Gemm(1, 1000, 512, 128, "float32", False, True), monkeypatch)
    assert narrow.queue is not None
    assert str(narrow.body).count("ldtilecfg") == 2
    assert not any("folded" in helper.name for helper in narrow.helpers)
    few = _stage(Gemm(1, 256, 784, 100, "float32", True, False), monkeypatch)
    assert sum("folded" in helper.name for helper in few.helpers) == 2
    assert few.tiles == 256 // 32  # rows of the result
    assert folded_tiles(784) == 0  # half of the last of 25 blocks is not worth the code


@pytest.mark.parametrize("stays", ["", "rows", "columns"])
def test_irregular_numbers_beside_what_stays(stays: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_by(monkeypatch, stays)
    cpu = dataclasses.replace(machine(), l2_bytes=8 << 20)
    case = build(Gemm(1, 137, 170, 77, "float32", False, False), cpu=cpu)
    case.a[0, 40, 3], case.b[0, 70, 100], case.a[0, 136, 76] = np.inf, np.nan, 1e-42
    case.run()
    with np.errstate(all="ignore"):
        want = case.a.astype(np.float64) @ case.b.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(case.out), np.isnan(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(case.out[finite], want[finite], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(case.out[~finite], want[~finite].astype(np.float32))


# Each k with two layouts, which between them have both operands both ways.
@pytest.mark.parametrize(
    ("whole", "rest", "a_transposed", "b_transposed"),
    [
        (whole, rest, turned, turned != (number % 2 == 1))
        for number, (whole, rest) in enumerate(
            [*((64, n) for n in (1, 5, 6, 10, 11, 16, 17)), (0, 2), (0, 8), (0, 15)]
        )
        for turned in (False, True)
    ],
)
def test_few_k_are_folded(rest: int, whole: int, a_transposed: bool, b_transposed: bool) -> None:
    k = whole + rest
    # As many products side by side as k fit into 32; beyond 16, no two do.
    tiles = next((n for n in (1, 2, 3) if -(-len(PRODUCTS) // n) * rest <= 32), 0)
    assert folded_tiles(k) == tiles
    case = build(Gemm(1, 40, 40, k, "float32", a_transposed, b_transposed), cpu=machine())
    case.run()
    a = (case.a.swapaxes(1, 2) if a_transposed else case.a).astype(np.float64)
    b = (case.b.swapaxes(1, 2) if b_transposed else case.b).astype(np.float64)
    assert (np.abs(case.out - a @ b) / (np.abs(a) @ np.abs(b))).max() <= 2.0**-22


# Lines of 16 words: one per row, block and part; or a tile of two halves.
@pytest.mark.parametrize(("lines", "k", "written"), [(5, 64, 5 * 2 * 3), (32, 4, 32), (7, 4, 32)])
def test_only_what_is_multiplied_is_packed(lines: int, k: int, written: int) -> None:
    """Rows that a panel has, or, of folded k, the tiles that hold them."""
    source = pointer_buffer((lines, k), "float32", "source")
    packed = packed_memory(1, -(-k // 32), 1, pointer_buffer)
    operand = Operand(
        True, lines, k, True, k, lambda _, line, at: load(source, line, at), 8, folds=True
    )
    values = np.random.default_rng(3).uniform(1, 2, (lines, k)).astype(np.float32)
    tiles, magnitude = (np.zeros(m.shape, m.dtype) for m in (packed.tiles, packed.magnitude))
    tiles[...] = untouched = 0x7FC07FC0

    def place(buffer: Any) -> Place:
        known = (source, packed.tiles, packed.magnitude)
        return Place([m.same_as(buffer) for m in known].index(True))

    Linked([operand.stage(packed)], place, cpu=machine())([values, tiles, magnitude])
    rows = tiles.reshape(-1, 16)
    assert (rows != untouched).any(axis=1).sum() == written


@pytest.mark.parametrize("m", [1, 3, 15, 16, 17, 31, 33, 49, 68])
@pytest.mark.parametrize("stays", ["", "rows", "columns"])
def test_last_rows(m: int, stays: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if stays != "columns" or m > 32:  # else there is nothing to share out
        cut_by(monkeypatch, stays)
    case = build(Gemm(1, m, 70, 200, "float32", False, False), cpu=machine(), epilogue="bias_relu")
    case.run()
    check(case, np.maximum(case.want() + case.extra, 0.0))


# 35 blocks of k: longer visits where the cache holds more of the columns.
@pytest.mark.parametrize(("l2_bytes", "visit"), [(64 << 10, 5), (1 << 20, 12), (8 << 20, 18)])
def test_visits_for_caches(l2_bytes: int, visit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_by(monkeypatch, "")
    monkeypatch.setattr(gemm, "_parts", lambda *_: None)
    found = []
    of = Plan.of

    def watched(pb: Problem, cpu: CpuTarget) -> Plan:
        found.append(of(pb, cpu))
        return found[-1]

    monkeypatch.setattr(Plan, "of", watched)
    cpu = dataclasses.replace(machine(), l1_bytes=48 << 10, l2_bytes=l2_bytes)
    case = build(Gemm(1, 70, 330, 1100, "float32", False, True), cpu=cpu)
    case.run()
    check(case, case.want())
    (plan,) = found
    assert plan.visit == visit
    whole = build(Gemm(1, 512, 512, 512, "float32", False, True), cpu=cpu)
    assert (found[-1].visit == found[-1].blocks) == (l2_bytes > 1 << 20)
    for workers in (1, 8):
        assert of(found[-1].pb, dataclasses.replace(cpu, workers=workers)).visit == found[-1].visit
    assert whole.stage_names == ["gemm"]


@pytest.mark.parametrize("m", [1, 40, 70])
def test_every_element_is_written_once(m: int) -> None:
    spec = Gemm(3, m, 50, 340, "float32", False, False)
    case = build(spec, cpu=machine(), epilogue="accumulate", shared_b=True)
    before = case.out.astype(np.float64)
    case.run()
    check(case, before + case.want())


@pytest.mark.parametrize(("a_transposed", "b_transposed"), LAYOUTS)
def test_operands_computed_on_the_way(a_transposed: bool, b_transposed: bool) -> None:
    spec = Gemm(1, 70, 100, 290, "float32", a_transposed, b_transposed)
    case = build(spec, cpu=machine(), epilogue="bias_relu", a_scale=0.5, b_scale=3.0)
    case.run()
    check(case, np.maximum(1.5 * case.want() + case.extra, 0.0))


# Results of more than 384 rows are turned in memory that does not fit on the stack.
@pytest.mark.parametrize("shape", [(1, 70, 100, 290), (1, 513, 511, 257)])
def test_transposed_problem(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_tiles, "cycles", lambda pb, cpu: -float(pb.swapped) - 1)
    case = build(Gemm(*shape, "float32", True, True), cpu=machine())
    case.run()
    check(case, case.want())


def errors(case: Case) -> np.ndarray:
    """Error of every element over the sum of the magnitudes of its terms."""
    a, b = case.a.astype(np.float64), case.b.astype(np.float64)
    return np.abs(case.out - a @ b) / (np.abs(a) @ np.abs(b))


@pytest.mark.parametrize("k", [1, 2, 40, 1000])
@pytest.mark.parametrize("spread", [0, 8])
def test_errors_are_those_of_float32(k: int, spread: int) -> None:
    spec = Gemm(1, 64, 64, k, "float32", False, False)
    unit = build(spec, cpu=machine())
    plain = build(spec, cpu=dataclasses.replace(host(), matrix_unit=False))
    rng = np.random.default_rng(k)
    for name in ("a", "b"):
        own = getattr(unit, name)
        own[...] = rng.standard_normal(own.shape)
        own *= 2.0 ** rng.integers(-spread, spread + 1, own.shape)
        getattr(plain, name)[...] = own
    unit.run()
    plain.run()
    eps = float(np.finfo(np.float32).eps)
    # One term: half a unit of rounding, and up to one for the products of parts left out.
    assert errors(unit).max() <= max(1.5 * eps, errors(plain).max())
    if k >= 40:
        assert errors(unit).mean() <= errors(plain).mean()


def test_integers_are_exact() -> None:
    case = build(Gemm(1, 64, 64, 64, "float32", False, False), cpu=machine())
    rng = np.random.default_rng(0)
    for own in (case.a, case.b):
        own[...] = rng.integers(-511, 512, own.shape)
    case.run()
    np.testing.assert_array_equal(case.out, case.want())


@pytest.mark.parametrize("where", ["a", "b", "both"])
@pytest.mark.parametrize("wide", [None, (3, 20), (60, 500)])
def test_operands_of_eight_bits(where: str, wide: tuple[int, int] | None) -> None:
    """Numbers without second and third parts, such as pixels, and single others among them."""
    case = build(Gemm(1, 70, 66, 600, "float32", False, False), cpu=machine())
    rng = np.random.default_rng(5)
    for name, own in (("a", case.a), ("b", case.b)):
        if where in (name, "both"):
            own[...] = rng.integers(-255, 256, own.shape) / 256
            own[own == 0] = -0.0
            if wide is not None:
                # One number of more bits needs all the products of its visit.
                own[(0, *wide) if name == "a" else (0, *wide[::-1])] = 1 + 2.0**-18
    case.run()
    assert errors(case).max() <= 2.0**-22


IRREGULAR = {
    "nan": np.nan,
    "infinite": np.inf,
    "largest": np.finfo(np.float32).max,
    "least normal": np.finfo(np.float32).tiny,
    "denormal": 1e-42,
    "tiny": 1e-33,
    "negative zero": -0.0,
}


@pytest.mark.parametrize("value", IRREGULAR.values(), ids=IRREGULAR)
@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("others", [1.0, 0.0, 1e30])
def test_irregular_numbers(value: float, where: str, others: float) -> None:
    """The value alone in its row and column, beside ordinary numbers in other panels."""
    case = build(Gemm(1, 70, 66, 300, "float32", False, False), cpu=machine())
    rng = np.random.default_rng(1)
    for own in (case.a, case.b):
        own[...] = rng.standard_normal(own.shape)
    own, other = (case.a, case.b) if where == "a" else (case.b, case.a)
    line = (0, 40, slice(None)) if where == "a" else (0, slice(None), 40)
    own[line] = 0
    other[...] = np.where(other > 0, others, -others)
    own[(0, 40, 270) if where == "a" else (0, 270, 40)] = value
    case.run()
    with np.errstate(all="ignore"):
        want = case.a.astype(np.float64) @ case.b.astype(np.float64)
        want32 = want.astype(np.float32)
    row = (0, 40) if where == "a" else (0, slice(None), 40)
    np.testing.assert_array_equal(np.isnan(case.out[row]), np.isnan(want[row]))
    # One term each: float32 gives the exact product, rounded once.
    np.testing.assert_array_equal(case.out[row], want32[row])
    np.testing.assert_array_equal(np.isfinite(case.out), np.isfinite(want32))


@pytest.mark.parametrize("scale", [1e-18, 1e-20, 1e-25])
def test_products_near_underflow(scale: float) -> None:
    case = build(Gemm(1, 64, 64, 64, "float32", False, False), cpu=machine())
    case.a *= np.float32(scale)
    case.b *= np.float32(scale)
    case.run()
    want = case.want()
    smallest = 2.0**-149
    assert np.all(np.abs(case.out - want) <= 4e-6 * np.abs(want).max() + 64 * smallest)


@pytest.mark.parametrize("power", [40, 50, 55, 58, 62, 70])
def test_small_rows_and_columns_beside_ordinary_ones(power: int) -> None:
    case = build(Gemm(1, 64, 64, 600, "float32", False, False), cpu=machine())
    case.a[0, 1] *= 2.0**-power
    case.b[0, :, 1] *= 2.0**-power
    case.run()
    # 600 multiply-adds one after the other round more often than the unit does.  Below the normal
    # numbers, half a unit of the last place is 2**-150.
    bound = 2.0**-21 * (np.abs(case.a.astype(np.float64)) @ np.abs(case.b.astype(np.float64)))
    assert np.all(np.abs(case.out - case.want()) <= bound + 600 * 2.0**-149)


@pytest.mark.parametrize("others", [0.0, 1.0])
def test_a_denormal_sum_outlives_later_blocks_of_k(others: float) -> None:
    # Sums of the first k must not be lost when later ones have nothing to add to them.
    for low, high in ((1e-40, 1.0), (2.0**-65, 2.0**-66)):
        case = build(Gemm(1, 40, 40, 1100, "float32", False, False), cpu=machine())
        case.a[...], case.b[...] = 0, 0
        case.a[0, :, 0], case.b[0, 0] = low, high
        case.a[0, 1:, 600], case.b[0, 600] = others, others
        case.run()
        np.testing.assert_array_equal(case.out[0, 0], np.float32(low * high))


@pytest.mark.parametrize(
    "spec",
    [
        Gemm(1, 398, 664, 306, "float32", True, False),
        Gemm(1, 1563, 952, 32, "float32", False, True),
        Gemm(1, 413, 157, 2024, "float32", False, True),
    ],
)
def test_the_number_of_workers_changes_no_bit(spec: Gemm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the choice of schedule is part of what is tested
    first = build(spec, cpu=machine(1))
    first.run()
    for workers in (2, 4, 5):
        again = build(spec, cpu=machine(workers))
        again.a[...], again.b[...] = first.a, first.b
        again.run()
        np.testing.assert_array_equal(again.out, first.out)


def test_one_and_two_threads_give_the_same_bits() -> None:
    case = build(Gemm(1, 175, 200, 600, "float32", False, False), cpu=machine())
    case.a[0, 100, 50] = 1e-40  # some blocks are computed without the unit
    configure = global_func("runtime.config_threadpool")
    configure(1, 2)
    case.run()
    two = case.out.copy()
    case.out[...] = 0
    configure(1, 1)
    try:
        case.run()
    finally:
        configure(1, 2)
    np.testing.assert_array_equal(case.out, two)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    shape=st.tuples(
        st.integers(1, 3), st.integers(1, 100), st.integers(1, 150), st.integers(1, 350)
    ),
    layout=st.sampled_from(LAYOUTS),
    scales=st.tuples(st.sampled_from([None, 2.0]), st.sampled_from([None, 0.5])),
    workers=st.integers(1, 3),
)
def test_random_products(
    shape: tuple[int, ...],
    layout: tuple[bool, bool],
    scales: tuple[float | None, float | None],
    workers: int,
) -> None:
    case = build(
        Gemm(*shape, "float32", *layout),
        cpu=machine(workers),
        a_scale=scales[0],
        b_scale=scales[1],
    )
    case.run()
    check(case, case.want() * (scales[0] or 1.0) * (scales[1] or 1.0))


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        (Gemm(1, 1024, 1024, 1024, "float32", False, False), True),
        # What one block of k multiplies is no more work than handing the sums on.
        (Gemm(1, 256, 784, 32, "float32", True, False), False),
        (Gemm(1, 64, 64, 64, "float32", False, True), False),  # packing is most of the work
        (Gemm(1, 8, 8, 1024, "float32", False, False), False),  # mostly zeros of the panels
    ],
)
def test_the_unit_is_chosen_where_it_pays(
    spec: Gemm, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    stages, calls = gemm_tiles.tile_stages, []
    monkeypatch.setattr(gemm_tiles, "tile_stages", lambda *a: calls.append(a) or stages(*a))
    build(spec, cpu=dataclasses.replace(machine(), l2_bytes=2 << 20))
    assert bool(calls) == chosen


def test_the_setting_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    a = mt.randn(256, 256)

    def product(setting: bool | None) -> np.ndarray:
        with config.override(matrix_unit=setting):
            lazy.clear_cache()  # where it is compiled decides
            return (a @ a).numpy()

    on, off = product(True), product(False)
    assert not np.array_equal(on, off)
    np.testing.assert_allclose(on, off, rtol=1e-4, atol=1e-4)
    for virtual, want in ((True, off), (False, on)):
        monkeypatch.setattr(api, "is_virtual", lambda virtual=virtual: virtual)
        np.testing.assert_array_equal(product(None), want)
