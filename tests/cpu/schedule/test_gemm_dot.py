"""Products by dot products along k: results, tiles of sums, and where they are chosen."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import pytest
from test_gemm import LAYOUTS, build, run_and_check

from minitorch_tvm.compiler.loops import Builder, load, pointer_buffer, store
from minitorch_tvm.compiler.schedule.cpu import gemm, gemm_dot
from minitorch_tvm.compiler.schedule.cpu.gemm import Gemm, gemm_stages
from minitorch_tvm.compiler.schedule.cpu.gemm_problem import Problem
from minitorch_tvm.compiler.target import CpuTarget, host

LANES = host().lanes(4)
AVX512 = CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 1 << 20, workers=2)
AVX2 = CpuTarget("x86-64-v3", (), 32, 16, 32 << 10, 512 << 10, workers=2)
NEON = CpuTarget("generic", (), 16, 32, 64 << 10, 512 << 10, workers=2)


@pytest.mark.parametrize(
    ("shape", "a_transposed", "epilogue"),
    [
        (shape, n % 2 == number // 2, epilogue)
        for number, shape in enumerate([(7, 40, 90), (13, 37, 5003), (16, 50, 1024), (11, 6, 4111)])
        for n, epilogue in enumerate(["plain", "bias_relu", "accumulate", "plain"])
    ],
)
def test_several_passes_over_columns(
    shape: tuple[int, int, int], a_transposed: bool, epilogue: str
) -> None:
    """Rows that do not fit into registers at once; sums longer than the nearest cache."""
    m, n, k = shape
    cpu = dataclasses.replace(host(), l1_bytes=16 << 10, l2_bytes=64 << 10)
    case = build(Gemm(1, m, n, k, "float32", a_transposed, True), cpu=cpu, epilogue=epilogue)
    run_and_check(case, epilogue)
    # Where rows are a vector, of a machine of shorter ones, they are outer products.
    if m <= cpu.lanes(4) and k >= 16 * cpu.lanes(4):
        assert case.stage_names[-1] == "gemm_dot"


@pytest.mark.parametrize(
    ("rows", "columns", "layout", "epilogue"),
    [
        (rows, columns, layout, ("plain", "bias_relu")[(i // 2 + k) % 2])
        for i, rows in enumerate(range(LANES + 1, 2 * LANES, max(1, LANES // 4)))
        for j, columns in enumerate([1, 4, 61])
        for k, layout in enumerate(LAYOUTS)
        if (i + j + k) % 2 == 0
    ],
)
def test_dot_products_of_more_than_a_vector_of_rows(
    rows: int, columns: int, layout: tuple[bool, bool], epilogue: str
) -> None:
    """As rows and as columns; k leaves a part of a vector."""
    k = 20 * LANES + 3
    with mock.patch.object(gemm, "_dots_pay", gemm_dot.may_suit):
        cpu = dataclasses.replace(host(), matrix_unit=False)
        for m, n in ((rows, columns), (columns, rows)):
            case = build(Gemm(1, m, n, k, "float32", *layout), cpu=cpu, epilogue=epilogue)
            run_and_check(case, epilogue)
            narrow = (n, not layout[0]) if n == rows else (m, layout[1])
            if columns > LANES and narrow[1]:
                assert case.stage_names[-1] == "gemm_dot"


@pytest.mark.parametrize("layout", [(False, True), (True, True), (False, False)])
@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize(
    ("cpu", "columns", "k", "dots"),
    [
        (AVX2, 8, 784, True),  # a vector's worth: always
        (AVX2, 10, 784, True),  # less than two vectors, of which outer products compute all
        (AVX2, 15, 784, False),  # they are almost full
        (AVX2, 10, 100, False),  # adding up the lanes of sums is too much
        (AVX512, 16, 784, True),
        (AVX512, 20, 784, True),
        (AVX512, 31, 784, False),
    ],
)
def test_narrow_results_are_dot_products(
    cpu: CpuTarget, columns: int, k: int, dots: bool, workers: int, layout: tuple[bool, bool]
) -> None:
    """Whatever number of threads there is, if the wide operand is stored along the sums."""
    memory = pointer_buffer((1000 * k,), "float32", "memory")

    def element(*_: Any) -> Any:
        return load(memory, 0)

    a_transposed, b_transposed = layout
    stages = gemm_stages(
        Gemm(
            *(1, 1000, columns, k, "float32", *layout),
            a_pitch=1000 if a_transposed else k,
            b_pitch=k if b_transposed else columns,
        ),
        element,
        element,
        lambda bt, i, j, value: store(memory, value, 0),
        Builder(),
        dataclasses.replace(cpu, workers=workers),
    )
    assert stages is not None
    assert ("gemm_dot" in [s.name for s in stages]) == (dots and not a_transposed)


@pytest.mark.parametrize("cpu", [AVX2, AVX512, NEON])
@pytest.mark.parametrize("columns", [1, 3, 1000])
@pytest.mark.parametrize("rows", range(1, 33))
def test_sums_of_dot_products_stay_in_registers(cpu: CpuTarget, columns: int, rows: int) -> None:
    def none(*_: Any) -> Any:
        raise AssertionError("nothing is read while a tile is chosen")

    pb = Problem(
        *(1, rows, columns, 784, "float32", none, none, True, True, 784, 784, none),
        *(True, True, False),
    )
    tile = gemm_dot._tile(pb, cpu)
    assert tile.rows * tile.columns + tile.columns + 1 <= cpu.vector_registers
    assert 1 <= tile.columns <= columns
    assert (tile.passes - 1) * tile.rows < rows <= tile.passes * tile.rows
    assert tile.rows * tile.columns <= 8 or pb.terms >= 1 << 17  # a little product
