"""Products whose last columns fill no vector: how these are computed, layouts, choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gemm import LAYOUTS, Case, build, check, run_and_check

from minitorch_tvm.compiler.loops import Builder, Stage, called, const, load, pointer_buffer
from minitorch_tvm.compiler.schedule.cpu import gemm, gemm_edge
from minitorch_tvm.compiler.schedule.cpu.conv_layout import turn
from minitorch_tvm.compiler.schedule.cpu.gemm import Gemm
from minitorch_tvm.compiler.target import CpuTarget, host
from minitorch_tvm.core.threads import usable_cores
from minitorch_tvm.core.tvm_api import global_func

HOST = dataclasses.replace(host(), matrix_unit=False)
LANES = HOST.lanes(4)


@pytest.fixture
def edges() -> Iterator[list[gemm_edge.Beside]]:
    """Whatever has an edge is computed with one; the list has what computes those."""
    found: list[gemm_edge.Beside] = []
    outer_stages = gemm_edge.outer_stages

    def counted(
        *arguments: Any, beside: gemm_edge.Beside | None = None
    ) -> Sequence[gemm_edge.Stage]:
        if beside is not None:
            found.append(beside)
        return outer_stages(*arguments, beside=beside)

    with (
        mock.patch.object(gemm_edge, "_LEAST", 0),
        mock.patch.object(gemm_edge, "_WORTH", float("-inf")),
        mock.patch.object(gemm_edge, "outer_stages", counted),
    ):
        yield found


def product(m: int, n: int, k: int, layout: tuple[bool, bool], dtype: str = "float32") -> Gemm:
    return Gemm(1, m, n, k, dtype, *layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("columns", [1, 2, LANES // 4])
@pytest.mark.parametrize("epilogue", ["bias_relu", "accumulate"])
def test_layouts(
    layout: tuple[bool, bool], columns: int, epilogue: str, edges: list[gemm_edge.Beside]
) -> None:
    case = build(product(70, 3 * LANES + columns, 90, layout), cpu=HOST, epilogue=epilogue)
    run_and_check(case, epilogue)
    (few,) = edges
    # Rows stored along m are vectors; else there are dot products, whose columns are copied if they
    # are not stored along k.
    assert few.stage.name == ("gemm" if layout[0] else "gemm_dot")
    assert bool(few.start) == (layout == (False, False))


@pytest.mark.parametrize("m", [LANES + 1, 2 * LANES, 61])
def test_rows_that_fill_no_vector(m: int, edges: list[object]) -> None:
    """Of a narrow result, the transposed product's columns."""
    # Of longer sums few rows would be dot products.
    case = build(product(m, 8 * LANES, 15 * LANES, (False, True)), cpu=HOST, epilogue="bias_relu")
    run_and_check(case, "bias_relu")
    assert len(edges) == (0 < m % LANES <= LANES // 4)


@pytest.mark.parametrize("extra", [0, LANES // 4 + 1, LANES - 1])
def test_fuller_vectors_are_left_alone(extra: int, edges: list[object]) -> None:
    run_and_check(build(product(48, 32 + extra, 80, (False, True)), cpu=HOST), "plain")
    assert not edges


def test_computed_rows_and_batches_are_left_alone(edges: list[object]) -> None:
    for layout in LAYOUTS:
        spec = product(48, 33, 80, layout)
        for case in (
            build(spec, cpu=HOST, a_scale=2.0),
            build(dataclasses.replace(spec, batch=2), cpu=HOST),
        ):
            case.run()
    assert not edges


@pytest.mark.parametrize("b_transposed", [False, True])
def test_computed_columns_are_copied_once(
    b_transposed: bool, edges: list[gemm_edge.Beside]
) -> None:
    case = build(product(48, 2 * LANES + 1, 80, (False, b_transposed)), cpu=HOST, b_scale=0.5)
    case.run()
    check(case, 0.5 * case.want())
    assert [bool(few.start) for few in edges] == [True]


def test_more_than_a_thread_can_keep_is_left_alone(edges: list[object]) -> None:
    """Of its copy of the few columns."""
    with mock.patch.object(gemm_edge, "_NEAR", 80 * 4 / HOST.l2_bytes):
        for k in (80, 81):
            run_and_check(build(product(48, 2 * LANES + 1, k, (False, False)), cpu=HOST), "plain")
            assert len(edges) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "cpu",
    [
        HOST,
        CpuTarget("haswell", (), 32, 16, 32 << 10, 256 << 10),
        CpuTarget("x86-64", (), 16, 16, 32 << 10, 256 << 10),
    ],
    ids=["host", "avx2", "sse"],
)
def test_dtypes_and_machines(dtype: str, cpu: CpuTarget, edges: list[object]) -> None:
    lanes = cpu.lanes(np.dtype(dtype).itemsize)
    case = build(product(50, 6 * lanes + 1, 130, (False, True), dtype), cpu=cpu)
    run_and_check(case, "plain")
    assert len(edges) == (lanes >= 4)


def test_costly_epilogues_run_along_rows(edges: list[object]) -> None:
    """Behind a transposed product, in a stage of their own; not of the few."""
    spec = dataclasses.replace(product(100, 256, 784, (False, True)), costly=True)
    case = build(spec, cpu=HOST, epilogue="bias_relu")
    run_and_check(case, "bias_relu")
    assert len(edges) == (LANES >= 16)
    if LANES >= 16:
        assert case.stage_names[-2:] == ["gemm", "gemm_finish"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_thread_count_does_not_change_a_bit(layout: tuple[bool, bool], edges: list[object]) -> None:
    case = build(product(100, 6 * LANES + max(1, LANES // 5), 300, layout), cpu=HOST)
    case.run()
    many = case.out.copy()
    configure = global_func("runtime.config_threadpool")
    configure(1, 1)
    try:
        case.run()
    finally:
        configure(1, usable_cores())
    assert case.out.tobytes() == many.tobytes()
    assert len(edges) == 1


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    m=st.integers(1, 150),
    n=st.integers(1, 150),
    k=st.integers(1, 200),
    layout=st.sampled_from(LAYOUTS),
)
def test_any_shape(m: int, n: int, k: int, layout: tuple[bool, bool]) -> None:
    with mock.patch.object(gemm_edge, "_LEAST", 0), mock.patch.object(gemm_edge, "_WORTH", -9.0):
        case: Case = build(product(m, n, k, layout), cpu=HOST, epilogue="accumulate")
        run_and_check(case, "accumulate")


def _edge(spec: Gemm, machine: CpuTarget) -> Any:
    """What a product of memory gives to ``outer_stages`` if it has an edge."""

    def read(*_: object) -> object:
        return const(0.0, "float32")

    pitches = {
        "a_pitch": spec.m if spec.a_transposed else spec.k,
        "b_pitch": spec.k if spec.b_transposed else spec.n,
    }
    spec = dataclasses.replace(spec, **pitches)
    problem = gemm._problem(spec, read, read, lambda *values: gemm.seq([]))
    with (
        mock.patch.object(gemm_edge, "outer_stages", return_value=[]) as used,
        mock.patch.object(gemm_edge, "dot_stages", return_value=["dots"]),
        mock.patch.object(gemm_edge, "stage_in_place", return_value="scalars"),
    ):
        gemm_edge.stages_with_edge(problem, Builder(), machine)
    return used.call_args


# Where it was measured to be faster; and small or even products.
CHOSEN = {
    (100, 256, 784): False,
    (100, 100, 256): True,
    (1024, 65, 128): True,
    (257, 257, 257): True,
    (1000, 100, 256): True,
    (33, 65, 129): False,
    (1000, 256, 784): False,
    (96, 256, 784): False,
}
ANY_LAYOUT = [(257, 257, 257), (1000, 100, 256), (33, 65, 129), (1000, 256, 784)]


@pytest.mark.parametrize(
    ("shape", "layout"),
    [(s, (False, True)) for s in CHOSEN]
    + [(s, layout) for s in ANY_LAYOUT for layout in LAYOUTS if layout != (False, True)],
)
def test_where_it_is_chosen(shape: tuple[int, int, int], layout: tuple[bool, bool]) -> None:
    machine = CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 1 << 20, workers=2)
    m, n, k = shape
    call = _edge(product(m, n, k, layout), machine)
    assert (call is not None) == CHOSEN[shape]


def test_what_is_cut_knows_the_lines_of_the_result() -> None:
    def none(*_: object) -> Any:
        raise AssertionError("nothing is read")

    whole = gemm._problem(Gemm(1, 1000, 100, 256, "float32", False, False), none, none, none)
    for pb in (*gemm_edge._cut(whole, 96), *gemm_edge._cut(whole.swap(), 992)):
        assert pb.result_pitch == pb.swap().result_pitch == 100


@pytest.mark.parametrize("layout", LAYOUTS)
def test_threads_have_no_say_in_it(layout: tuple[bool, bool]) -> None:
    """Dot products add terms in another order than scalars that meet vectors."""
    for m, n, k in ((257, 257, 257), (100, 100, 256), (1000, 100, 256)):
        found = set()
        for workers in (1, 2, 3, 8, 64):
            machine = CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 1 << 20, workers=workers)
            call = _edge(product(m, n, k, layout), machine)
            assert call is not None
            main = call.args[0]
            found.add((main.m, main.n, call.kwargs["beside"].stage))
        assert len(found) == 1


def test_what_the_few_call_is_called_by_all(
    edges: list[gemm_edge.Beside], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their code is part of the others' stage, which is linked with what it calls."""
    memory = load(pointer_buffer((64,), "float32", "memory"), 0)
    turn("float32", 8, (memory, 8), (memory, 8))
    helpers, outer_stages, found = called(), gemm_edge.outer_stages, list[Stage]()

    def calling(*arguments: Any, beside: gemm_edge.Beside) -> Sequence[Stage]:
        few = dataclasses.replace(beside.stage, helpers=helpers)
        stages = outer_stages(*arguments, beside=dataclasses.replace(beside, stage=few))
        found.extend(stages)
        return stages

    monkeypatch.setattr(gemm_edge, "outer_stages", calling)
    build(product(70, 3 * LANES + 1, 90, (False, False)), cpu=HOST, epilogue="bias_relu")
    assert edges
    assert set(helpers) <= set(found[-1].helpers)
