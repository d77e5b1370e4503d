"""Weight gradients along rows of pixels: shapes, machines, and where they are chosen."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_conv import AVX2, CASES, HOST, SMALL, SSE, Case, check_fused, check_threads, spec

from minitorch_tvm.compiler import target
from minitorch_tvm.compiler.loops import Builder, Stage, load, pointer_buffer, store
from minitorch_tvm.compiler.schedule.cpu import conv, conv_unfolded, conv_weight_rows
from minitorch_tvm.compiler.schedule.cpu.conv_spec import Conv

AVX512 = target.CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 1 << 20)


@pytest.fixture(params=["rows", "flat"])
def along_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Conv]:
    """Whatever fits is computed along rows, as ``request`` says if there is a choice."""
    used: list[Conv] = []
    row_products = conv_weight_rows.row_products

    def counted(p: conv_weight_rows.RowProducts, *rest: Any) -> list[Stage]:
        used.append(p.s)
        return row_products(p, *rest)

    monkeypatch.setattr(conv_unfolded, "_fastest", lambda ways, below: None)
    flat = request.param == "flat"
    estimate = conv_weight_rows.RowProducts.cycles.fget
    assert estimate is not None

    def cycles(p: conv_weight_rows.RowProducts) -> float:
        return float(estimate(p)) - (2e15 if p.flat == flat else 1e15)

    monkeypatch.setattr(conv_weight_rows.RowProducts, "cycles", property(cycles))
    monkeypatch.setattr(conv_weight_rows, "row_products", counted)
    return used


# One image in bands of rows, vectors that end within a row, columns of three residues, and outputs
# that leave the last block short of some: of two register tiles at least.
OWN = {
    "bands": spec(1, 1, (28, 28), 32, (5, 5), padding=(2, 2)),
    "bands of some images": spec(3, 2, (23, 70), 7, (4, 3), (1, 3), (1, 4)),
    "eleven outputs": spec(4, 1, (9, 33), 11, (3, 3), padding=(1, 1)),
    "wide kernel": spec(2, 1, (4, 50), 3, (1, 25), padding=(0, 3)),
    "far taps": spec(2, 1, (40, 90), 5, (3, 3), (2, 3), (7, 9), (5, 7)),
    "short rows": spec(9, 2, (13, 5), 7, (3, 5), padding=(3, 4)),
    "wide borders": spec(8, 1, (3, 21), 4, (2, 3), padding=(1, 6), dilation=(1, 5)),
    "a vector and a half": spec(16, 3, (8, 24), 5, (3, 3), padding=(1, 1)),
}


# Of these, vectors may go on in the next row.  Of others "flat" is "rows", and made but once.
FLATTENED = (
    *("first layer", "whole input", "kernel is padded input", "dilated"),
    *("short rows", "wide borders", "a vector and a half"),
)


def in_ways(*names: str) -> pytest.MarkDecorator:
    """Each of these shapes along rows, and flat if it can be."""
    found = [("rows", name) for name in names]
    found += [("flat", name) for name in names if name in FLATTENED]
    return pytest.mark.parametrize(("along_rows", "name"), found, indirect=["along_rows"])


only_rows = pytest.mark.parametrize("along_rows", ["rows"], indirect=True)


@pytest.mark.parametrize("along_rows", ["flat"], indirect=True)
def test_which_shapes_can_be_flat(along_rows: list[Conv]) -> None:
    shapes = {**CASES, **OWN}
    plans = {name: conv_weight_rows.plan(s, AVX512, in_place=True) for name, s in shapes.items()}
    assert {name for name, p in plans.items() if p is not None and p.flat} == set(FLATTENED)


# What is not computed along rows, such as kernels of one column, test_conv.py compiles.
@in_ways(*(name for name, s in CASES.items() if s.kw > 1), *OWN)
def test_every_shape(name: str, along_rows: list[Conv]) -> None:
    s = {**CASES, **OWN}[name]
    Case(s, directions=("dw",)).check()
    assert along_rows == ([] if conv_weight_rows.plan(s, HOST) is None else [s])


@only_rows
@pytest.mark.parametrize("name", OWN)
def test_gradients_that_are_not_memory_are_copied(name: str, along_rows: list[Conv]) -> None:
    Case(OWN[name], lines=False, directions=("dw",)).check()
    # Sums of all taps of a row, as many words, and two more are in registers.
    fits = OWN[name].kw + 3 <= HOST.vector_registers
    assert along_rows == ([OWN[name]] if fits else [])


def test_most_shapes_fit() -> None:
    declined = {name for name, s in CASES.items() if conv_weight_rows.plan(s, AVX512) is None}
    one_tap = {name for name, s in CASES.items() if s.kw == 1}
    assert one_tap <= declined <= one_tap | {"second layer", "64 at 8", "wide"}
    assert all(conv_weight_rows.plan(s, AVX512) is not None for s in OWN.values())
    assert conv_weight_rows.plan(spec(1, 1, (4, 99), 3, (1, 31)), AVX512) is None


@in_ways("bands of some images", "rgb", "far taps", "wide borders")
@pytest.mark.parametrize(
    ("dtype", "cpu"),
    [*itertools.product(("float64", "float32"), (AVX2, SSE)), ("float64", HOST)],
    ids=lambda value: value if isinstance(value, str) else value.mcpu,
)
def test_dtypes_and_machines(
    name: str, dtype: str, cpu: target.CpuTarget, along_rows: list[Conv]
) -> None:
    Case(replace({**CASES, **OWN}[name], dtype=dtype), cpu, directions=("dw",)).check()
    assert len(along_rows) == 1


@only_rows
@pytest.mark.parametrize("name", ["first layer", "rgb", "dilated and strided"])
def test_fused_producer_and_epilogue(name: str, along_rows: list[Conv]) -> None:
    check_fused(CASES[name], ("dw",))
    assert len(along_rows) == 1


@in_ways("bands", "bands of some images", "eleven outputs", "wide borders")
def test_thread_count_does_not_change_a_bit(name: str, along_rows: list[Conv]) -> None:
    check_threads(OWN[name], ("dw",))
    assert len(along_rows) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_bad_pixel_reaches_exactly_its_products(
    bad: float, stride: int, along_rows: list[Conv]
) -> None:
    """Also at the right edge, where vectors reach over the end of a row."""
    s = spec(2, 3, (10, 21), 5, (3, 3), (stride, stride))
    # The last column that some tap reads, and which do.
    case, column = Case(s, directions=("dw",)), (s.ow - 1) * stride + 2
    case.arrays["x"][1, 2, 4, column] = bad
    case.arrays["ct"][0, 3, 2, s.ow - 1] = bad
    found = case.run()["dw"]
    hit = np.zeros(case.shapes["w"], bool)
    hit[3] = True
    hit[:, 2, :: 1 if stride == 1 else 2, 2] = True
    np.testing.assert_array_equal(~np.isfinite(found), hit)
    assert len(along_rows) == 1


def test_rows_for_which_a_tap_reads_outside_the_image_are_left_out(
    along_rows: list[Conv],
) -> None:
    """Where they are not, an infinite gradient meets the zeros of the border, and makes NaN."""
    lanes = max(HOST.lanes(4), 8)
    s = spec(9, 3, (6, 3 * lanes + 2), 5, (5, 3), padding=(2, 1))
    case = Case(s, directions=("dw",))
    # Where vectors go on in the next row, none of these pixels' has any of the next or last one.
    for pixel, taps in (((0, 1), range(2, 5)), ((5, 5 * lanes // 2 - 10), range(3))):
        case.arrays["ct"][...] = case.start["ct"]
        case.arrays["ct"][:, :, *pixel] = np.inf
        hit = (~np.isfinite(case.run()["dw"])).any(axis=(0, 1, 3))
        assert list(np.flatnonzero(hit)) == list(taps)
    assert len(along_rows) == 1


@pytest.mark.parametrize("lines", [True, False], ids=["in place", "copied"])
def test_what_is_behind_a_row_is_not_summed(lines: bool, along_rows: list[Conv]) -> None:
    """In place, that is the next row: infinity times a border of zeros would be NaN."""
    case = Case(spec(2, 3, (10, 21), 5, (3, 3)), lines=lines, directions=("dw",))
    case.arrays["x"][...] = 1 + np.abs(case.arrays["x"])
    case.arrays["ct"][0, 3, 5, 0] = np.inf
    found = case.run()["dw"]
    assert (found[3] == np.inf).all()
    assert np.isfinite(np.delete(found, 3, axis=0)).all()
    assert len(along_rows) == 1


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    n=st.sampled_from([1, 3, 9, 18]),
    c=st.integers(1, 9),
    o=st.integers(1, 34),
    size=st.tuples(st.integers(1, 18), st.integers(1, 40)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    stride=st.tuples(SMALL, SMALL),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(SMALL, SMALL),
)
def test_any_geometry(
    along_rows: list[Conv],
    n: int,
    c: int,
    o: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    Case(spec(n, c, size, o, kernel, stride, padding, dilation), directions=("dw",)).check()


FLAT = {
    "first layer": (spec(64, 1, (28, 28), 32, (5, 5), padding=(2, 2)), True),
    "a vector and a half": (spec(64, 2, (24, 24), 32, (3, 3), padding=(1, 1)), True),
    "whole vectors": (spec(32, 3, (32, 32), 16, (3, 3), padding=(1, 1)), False),
    "nearly whole vectors": (spec(16, 8, (31, 31), 24, (3, 3), padding=(1, 1)), False),
    "few outputs": (spec(64, 1, (28, 28), 2, (5, 5), padding=(2, 2)), False),
    "stride": (spec(64, 1, (55, 55), 32, (5, 5), (2, 2), (2, 2)), False),
    "bands": (spec(2, 1, (28, 28), 32, (5, 5), padding=(2, 2)), False),
}


@pytest.mark.parametrize("name", FLAT)
def test_where_vectors_go_on_in_the_next_row(name: str) -> None:
    s, flat = FLAT[name]
    found = conv_weight_rows.plan(s, AVX512, in_place=True)
    assert found is not None
    assert found.flat == flat
    found = conv_weight_rows.plan(s, AVX512)
    assert found is not None
    assert not found.flat  # a copy of ct would have gaps


# Where they were measured to be faster than outer products, or not.
CHOSEN = {
    "first layer": (spec(64, 1, (28, 28), 32, (5, 5), padding=(2, 2)), True),
    "three channels": (spec(32, 3, (32, 32), 16, (3, 3), padding=(1, 1)), True),
    "eight channels": (spec(16, 8, (31, 31), 24, (3, 3), padding=(1, 1)), True),
    "one image": (spec(1, 1, (28, 28), 32, (5, 5), padding=(2, 2)), False),
    "stride 2": (spec(32, 16, (32, 32), 32, (3, 3), (2, 2), (1, 1)), False),
    "second layer": (spec(64, 32, (14, 14), 64, (5, 5), padding=(2, 2)), False),
    "middle": (spec(8, 128, (28, 28), 128, (3, 3), padding=(1, 1)), False),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_where_they_are_chosen(name: str) -> None:
    s, chosen = CHOSEN[name]
    memory = pointer_buffer((1 << 16,), "float32", "memory")

    def read(*_: Any) -> Any:
        return load(memory, 0)

    def finish(*index_and_value: Any) -> Any:
        return store(memory, index_and_value[-1], 0)

    stages = conv.conv_grad_weight_stages(s, conv.Access(read, read, finish), Builder(), AVX512)
    assert stages is not None
    assert (stages[0].name == "conv_dw_rows") == chosen


def test_images_stay_whole_where_fewer_outputs_let_them() -> None:
    """Every band fetches and stores all sums again."""
    s = spec(32, 16, (32, 32), 16, (3, 3), padding=(1, 1))
    for l1_bytes, outputs in ((32 << 10, 4), (48 << 10, 8)):
        cpu = replace(HOST, vector_bytes=64, vector_registers=32, l1_bytes=l1_bytes)
        p = conv_weight_rows.plan(s, replace(cpu, l2_bytes=1 << 20), in_place=True)
        assert p is not None
        assert (p.outputs, p.bands) == (outputs, 1)
