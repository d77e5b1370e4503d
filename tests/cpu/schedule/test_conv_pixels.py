"""Convolutions with pixels in vectors: every tile and layout, shapes, and where they are chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_conv import (
    AVX2,
    CASES,
    HOST,
    SMALL,
    SSE,
    Case,
    check_fused,
    check_threads,
    reference,
    spec,
)

from minitorch_tvm.compiler import target
from minitorch_tvm.compiler.schedule.cpu import (
    conv,
    conv_pixels,
    conv_pixels_plan,
    conv_tiles,
    conv_unfolded,
    conv_weight_rows,
)
from minitorch_tvm.compiler.schedule.cpu.conv_axes import forward_axis, gradient_axis
from minitorch_tvm.compiler.schedule.cpu.conv_correlate import correlation
from minitorch_tvm.compiler.schedule.cpu.conv_pixels_plan import PixelCorrelation

Choice = Callable[[PixelCorrelation], Any]

CHOICES: dict[str, Choice] = {
    "fastest": lambda p: p.cycles,
    "rows, many vectors": lambda p: (p.flat, -p.vectors, p.cycles),
    "rows, many outputs": lambda p: (p.flat, -p.outputs, p.units),
    "flat": lambda p: (not p.flat, p.cycles),
    "flat, small groups": lambda p: (not p.flat, p.units, -p.vectors),
    "uneven groups": lambda p: (p.y.units % p.units == 0, p.flat, p.cycles),
    "tiles across rows": lambda p: (p.regular, p.flat, p.cycles),
}


class Chosen:
    """How tiles are chosen, and what has been."""

    def __init__(self) -> None:
        self.key: Choice = CHOICES["fastest"]
        self.problems: list[PixelCorrelation] = []

    def take(self, problems: Sequence[PixelCorrelation]) -> PixelCorrelation | None:
        if not problems:
            return None
        self.problems.append(min(problems, key=self.key))
        return self.problems[-1]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Chosen:
    """All convolutions that can have pixels in vectors do."""
    found = Chosen()
    monkeypatch.setattr(conv, "_IN_PIXELS", -math.inf)
    monkeypatch.setattr(conv_pixels_plan, "_fastest", found.take)
    monkeypatch.setattr(conv_unfolded, "_fastest", lambda ways, below: None)
    monkeypatch.setattr(conv_weight_rows, "plan", lambda *_: None)
    monkeypatch.setattr(conv_tiles, "plan", lambda *_: None)
    return found


# Shapes of which each way to choose tiles is tried; of others the fastest and one in turn.
VARIED = (
    *("first layer", "16 to 16", "stride 2", "rgb", "one by one stride 2", "odd everything"),
    "dilated and strided",
)


def _tried(number: int, name: str) -> list[str]:
    fastest, *others = CHOICES
    if name in VARIED:
        return [fastest, *others]
    return [fastest, others[number % len(others)]]


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, how) for number, name in enumerate(CASES) for how in _tried(number, name)],
)
def test_every_direction(name: str, how: str, chosen: Chosen) -> None:
    chosen.key = CHOICES[how]
    for direction in ("y", "dx"):  # apart, as one of them is often what it was
        Case(CASES[name], directions=(direction,)).check()


def test_all_layouts_are_met(chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and flat, of one stride and two in both directions, even groups and uneven ones, bands,
    channels that leave outputs empty."""
    monkeypatch.setattr("test_conv.Linked", lambda *_, **__: None)  # planning is enough
    for key in CHOICES.values():
        chosen.key = key
        for name in ("first layer", "stride 2", "16 to 16", "rgb", "one by one stride 2"):
            Case(CASES[name], directions=("y", "dx"))
    met = {
        (p.flat, p.x.stride, p.x.input_stride, p.y.units % p.units == 0) for p in chosen.problems
    }
    strides = ((1, 1), (2, 1), (1, 2))
    assert {(f, *s) for f, *s, _ in met} == {(f, *s) for f in (False, True) for s in strides}
    assert {even for *_, even in met} == {False, True}
    assert {p.bands > 1 for p in chosen.problems} == {False, True}
    assert {p.channels % p.outputs > 0 for p in chosen.problems} == {False, True}
    assert {p.in_lines for p in chosen.problems} == {False, True}
    assert {p.regular for p in chosen.problems} == {False, True}


@pytest.mark.parametrize(
    ("name", "dtype", "cpu"),
    [
        *(
            (name, *rest)
            for name in ("first layer", "stride 2", "rgb", "dilated")
            for rest in (("float64", AVX2), ("float64", HOST), ("float32", SSE), ("float32", AVX2))
        ),
        ("rgb", "float64", SSE),  # of two lanes: never
    ],
    ids=lambda value: value if isinstance(value, str) else value.mcpu,
)
def test_dtypes_and_machines(name: str, dtype: str, cpu: target.CpuTarget, chosen: Chosen) -> None:
    Case(replace(CASES[name], dtype=dtype), cpu, directions=("y", "dx")).check()
    lanes = cpu.vector_bytes // (4 if dtype == "float32" else 8)
    assert {p.lanes for p in chosen.problems} == ({lanes} if lanes >= 4 else set())


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *zip(["rgb", "first layer"] * 4, CHOICES, strict=False),
        *zip(["stride 2"] * 4, CHOICES, strict=False),
    ],
)
def test_fused_producer_and_epilogue(name: str, how: str, chosen: Chosen) -> None:
    chosen.key = CHOICES[how]
    check_fused(CASES[name], ("y", "dx"))


@pytest.mark.parametrize("cpu", [SSE, HOST], ids=["sse", "host"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [
        ((17, 32), (3, 3), (2, 2), (1, 1), (1, 1)),
        ((9, 64), (3, 3), (1, 2), (0, 0), (1, 1)),
        # 33 pixels would be five vectors of eight, which no row of tiles divides.
        ((8, 62 if HOST.lanes(4) == 8 else 66), (5, 7), (2, 2), (3, 3), (1, 1)),
        ((7, 40), (2, 4), (3, 2), (2, 6), (2, 3)),
        ((5, 42), (1, 2), (2, 2), (0, 2), (1, 1)),
        ((2, 40), (3, 9), (2, 2), (3, 8), (1, 1)),
    ],
)
def test_two_vectors_become_one_of_each_residue(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    cpu: target.CpuTarget,
    chosen: Chosen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, paired_row = [], conv_pixels._Band._paired_row

    def counted(band: Any, c: Any, r: Any) -> Any:
        rows.append(band.p)
        return paired_row(band, c, r)

    monkeypatch.setattr(conv_pixels._Band, "_paired_row", counted)
    chosen.key = CHOICES["rows, many vectors"]
    s = spec(2, 3, size, 5, kernel, stride, padding, dilation)
    case = Case(s, cpu, directions=("y",))
    case.check()
    assert rows == [p for p in chosen.problems if not p.flat]
    assert rows
    case.arrays["x"][1, 2, 1, 0] = case.arrays["x"][0, 0, 0, -1] = np.inf
    assert not np.isnan(case.run()["y"]).any()  # at most once in a sum


@pytest.mark.parametrize("how", CHOICES)
def test_bands_of_one_image(how: str, chosen: Chosen) -> None:
    chosen.key = CHOICES[how]
    for direction in ("y", "dx"):
        Case(spec(1, 3, (29, 18), 7, (3, 3), padding=(1, 1)), directions=(direction,)).check()
        Case(spec(1, 3, (37, 18), 7, (3, 3), (2, 2), (1, 1)), directions=(direction,)).check()
    assert all(p.bands > 1 for p in chosen.problems if p.groups > 1)


@pytest.mark.parametrize("how", CHOICES)
def test_taps_whose_places_are_not_equally_far_apart(how: str, chosen: Chosen) -> None:
    """Those of the two residues of a gradient's columns."""
    chosen.key = CHOICES[how]
    Case(spec(2, 3, (9, 23), 5, (2, 4), (1, 2), (1, 2), (1, 3)), directions=("y", "dx")).check()
    steps = {p.across.step for p in chosen.problems if p.x.stride == 2}
    assert steps == {1}


@pytest.mark.parametrize(("height", "width"), [(160_000, 1), (100_000, 40), (16_000, 1)])
def test_tall_images_are_planned_at_once(
    height: int, width: int, chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every size of groups, with as many bands, had been tried: ten seconds."""
    made = 0
    count = PixelCorrelation._copy_bytes

    def counted(p: PixelCorrelation, groups: int) -> int:
        nonlocal made
        made += 1
        return count(p, groups)

    monkeypatch.setattr(PixelCorrelation, "_copy_bytes", counted)
    y, x = forward_axis(height, height, 9, 1, 4, 1), forward_axis(width, width, 1, 1, 0, 1)
    found = conv_pixels_plan.plan(1, 16, 16, y, x, "float32", 4, HOST)
    assert found is not None
    assert found.bands > 1
    assert made < 50_000


@pytest.mark.parametrize("name", ["first layer", "stride 2", "rgb"])
def test_thread_count_does_not_change_a_bit(name: str, chosen: Chosen) -> None:
    check_threads(CASES[name], ("y", "dx"))


@pytest.mark.parametrize("step", [1, 2])
def test_rows_of_taps_outside_the_image_are_left_out(step: int, chosen: Chosen) -> None:
    """Where they are not, infinite weights meet the zeros of the border, and make NaN."""
    chosen.key = lambda p: (p.flat, p.vectors, p.cycles)  # a tile has pixels of one row
    s = spec(2, 16, (9, 18), 16, (5, 1), (step, 1), (2, 0))
    case = Case(s, directions=("y", "dx"))
    for row in (0, 1, 4):
        case.arrays["w"][...] = case.start["w"]
        case.arrays["w"][:, :, row] = np.inf
        only = np.zeros(case.shapes["w"])
        only[:, :, row] = 1
        hit = reference(s, np.ones(case.shapes["x"]), only, np.ones(case.shapes["ct"]))
        found = case.run()
        for name in case.directions:
            rows = (hit[name] > 0).any(axis=3)
            np.testing.assert_array_equal((~np.isfinite(found[name])).any(axis=3), rows, str(row))
    assert {p.vectors for p in chosen.problems} == {1}


@pytest.mark.parametrize("how", CHOICES)
@pytest.mark.parametrize("step", [1, 2])
def test_a_bad_pixel_reaches_exactly_its_window(step: int, how: str, chosen: Chosen) -> None:
    """Vectors go on behind the end of rows; nothing of that reaches a result."""
    chosen.key = CHOICES[how]
    s = spec(2, 5, (10, 13), 6, (3, 3), (step, step), (1, 1))
    case = Case(s, directions=("y", "dx"))
    read = np.zeros((s.oh, s.ow), bool)
    given = np.zeros((s.h, s.w), bool)
    for i in range(3):
        for j in range(3):
            for y in range(s.oh):
                for x in range(s.ow):
                    at = (y * step + i - 1, x * step + j - 1)
                    read[y, x] |= at == (4, 12)
                    if (y, x) == (2, s.ow - 1) and 0 <= at[0] < s.h and 0 <= at[1] < s.w:
                        given[at] = True
    hit = np.zeros(case.shapes["y"], bool)
    hit[1] = read
    back = np.zeros(case.shapes["x"], bool)
    back[0] = given
    for bad in (np.nan, np.inf):
        case.arrays["x"][1, 4, 4, 12] = bad
        case.arrays["ct"][0, 3, 2, s.ow - 1] = bad
        found = case.run()
        np.testing.assert_array_equal(~np.isfinite(found["y"]), hit)
        np.testing.assert_array_equal(~np.isfinite(found["dx"]), back)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    how=st.sampled_from(sorted(CHOICES)),
    n=st.integers(1, 4),
    c=st.integers(1, 9),
    o=st.integers(1, 18),
    size=st.tuples(st.integers(1, 20), st.integers(1, 40)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(SMALL, st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(SMALL, SMALL),
)
def test_any_geometry(
    chosen: Chosen,
    how: str,
    n: int,
    c: int,
    o: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    chosen.key = CHOICES[how]
    Case(spec(n, c, size, o, kernel, stride, padding, dilation), directions=("y", "dx")).check()


def test_where_they_are_chosen() -> None:
    """Of few channels; not where outputs fill vectors and images are copied for many of them.

    With AVX2 of more, as a tile of outputs needs more broadcasts, and each is an instruction.
    """
    avx512 = target.CpuTarget("skylake-avx512", (), 64, 32, 32 << 10, 1 << 20)
    avx2 = target.CpuTarget("znver3", (), 32, 16, 32 << 10, 512 << 10)

    def both(s: conv.Conv, cpu: target.CpuTarget = avx512) -> tuple[bool, bool]:
        sizes = ((s.h, s.oh, s.kh), (s.w, s.ow, s.kw))
        geometry = list(zip(s.stride, s.padding, s.dilation, strict=True))
        found = []
        for forward in (True, False):
            axes = [
                forward_axis(o, i, k, *g) if forward else gradient_axis(i, o, k, *g)
                for (i, o, k), g in zip(sizes, geometry, strict=True)
            ]
            channels = (s.c, s.o) if forward else (s.o, s.c)
            p = correlation(s.n, *channels, *axes, s.dtype, s.itemsize, cpu)
            inputs = (s.h, s.w) if forward else (s.oh, s.ow)
            found.append(conv._in_pixels(p, inputs, cpu) is not None)
        return found[0], found[1]

    same = {"padding": (1, 1)}
    assert both(spec(16, 8, (31, 31), 24, (3, 3), **same)) == (True, True)
    assert both(spec(32, 3, (32, 32), 16, (3, 3), **same)) == (True, True)
    assert both(spec(32, 16, (32, 32), 32, (3, 3), (2, 2), (1, 1))) == (True, True)
    assert both(spec(64, 1, (28, 28), 32, (5, 5), padding=(2, 2)))[0]
    assert both(spec(64, 32, (14, 14), 64, (5, 5), padding=(2, 2))) == (False, False)
    assert both(spec(8, 128, (28, 28), 128, (3, 3), **same)) == (False, False)
    assert both(spec(9, 16, (30, 30), 16, (3, 3), (3, 3))) == (False, False)

    assert both(spec(32, 16, (32, 32), 16, (3, 3), **same), avx2) == (True, True)
    assert both(spec(32, 32, (16, 16), 32, (3, 3), **same), avx2) == (True, True)
    assert both(spec(64, 32, (14, 14), 64, (5, 5), padding=(2, 2)), avx2) == (True, False)
    # Taps of a residue class are not known beforehand.
    assert both(spec(32, 16, (32, 32), 32, (3, 3), (2, 2), (1, 1)), avx2) == (True, False)
    assert both(spec(8, 64, (56, 56), 64, (3, 3), **same), avx2) == (False, False)
    assert both(spec(8, 128, (28, 28), 128, (3, 3), **same), avx2) == (False, False)


def test_one_image_is_work_for_several_cores() -> None:
    """A whole image that fits was one tile, which took 1.75 times as long on two cores."""
    axis = forward_axis(14, 14, 5, 1, 2, 1)
    cpu = target.CpuTarget("znver3", (), 32, 16, 32 << 10, 512 << 10)
    found = conv_pixels_plan.plan(1, 32, 64, axis, axis, "float32", 4, cpu)
    assert found is not None
    assert found.bands >= 4
