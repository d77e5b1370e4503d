"""Convolutions as products of unfolded images: every way, shapes, and where they are chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_conv import AVX2, CASES, HOST, SMALL, Case, check_fused, check_threads, spec

from minitorch_tvm.compiler import target
from minitorch_tvm.compiler.loops import Builder, Stage
from minitorch_tvm.compiler.schedule.cpu import conv, conv_unfolded
from minitorch_tvm.compiler.schedule.cpu.gemm import Gemm, cycles


class Ways:
    """Which of the ways is taken, and how many there were each time."""

    def __init__(self) -> None:
        self.number = 0
        self.counts: list[int] = []

    def take(self, ways: list[conv_unfolded._Way], below: float) -> list[Stage] | None:
        self.counts.append(len(ways))
        return ways[min(self.number, len(ways) - 1)].stages()


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """All convolutions are products, in the way that the test asks for."""
    found = Ways()
    monkeypatch.setattr(conv_unfolded, "_fastest", found.take)
    for name in ("_ON_UNIT", "_IN_VECTORS", "_WEIGHTS_ON_UNIT", "_WEIGHTS_IN_VECTORS"):
        monkeypatch.setattr(conv, name, float("inf"))
    return found


def check_ways(s: conv.Conv, ways: Ways) -> None:
    """All ways of each direction."""
    ways.number = 0
    Case(s).check()
    # The gradient of weights, the last, is not always such a product.
    counts = dict(zip(("y", "dx", "dw"), ways.counts, strict=False))
    for ways.number in range(1, max(counts.values())):
        others = [name for name, count in counts.items() if count > ways.number]
        Case(s, directions=others).check()


# Without those that are others again with more or fewer channels and pixels.
SHAPES = CASES.keys() - {"second layer", "16 to 16", "64 at 8", "stride 2", "32 pixels", "few taps"}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_direction(name: str, ways: Ways) -> None:
    check_ways(CASES[name], ways)


@pytest.mark.parametrize(
    ("name", "tiles"),
    [("odd everything", 1), ("odd everything", 5), ("dilated and strided", 5), ("rgb", 1)],
)
def test_tiles_of_several(
    name: str, tiles: int, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one has fewer."""
    monkeypatch.setattr(conv_unfolded, "_TILES", tiles)
    check_ways(CASES[name], ways)


def test_all_ways_are_known(ways: Ways) -> None:
    Case(CASES["odd everything"])
    Case(CASES["one by one"])
    Case(CASES["one by one"], lines=False)
    assert ways.counts == [1, 2, 1, 2, 3, 1, 1, 1]  # the last without a gradient of weights


@pytest.mark.parametrize("name", ["odd everything", "dilated and strided", "rgb"])
@pytest.mark.parametrize(
    ("dtype", "cpu"),
    [("float64", AVX2), ("float32", AVX2), ("float64", HOST)],
    ids=lambda value: value if isinstance(value, str) else value.mcpu,
)
def test_dtypes_and_machines(name: str, dtype: str, cpu: target.CpuTarget, ways: Ways) -> None:
    Case(replace(CASES[name], dtype=dtype), cpu).check()


@pytest.mark.parametrize("name", ["first layer", "stride 2", "odd everything"])
def test_fused_producer_and_epilogue(name: str, ways: Ways) -> None:
    check_fused(CASES[name])


@pytest.mark.parametrize("name", ["64 at 8", "odd everything", "one by one"])
def test_thread_count_does_not_change_a_bit(name: str, ways: Ways) -> None:
    check_threads(CASES[name])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_pixel_reaches_exactly_its_window(bad: float, ways: Ways) -> None:
    case = Case(spec(2, 16, (10, 12), 20, (3, 3), padding=(1, 1)))
    case.arrays["x"][1, 5, 4, 7] = bad
    case.arrays["ct"][0, 3, 2, 2] = bad
    found = case.run()
    hit = np.zeros(case.shapes["y"], bool)
    hit[1, :, 3:6, 6:9] = True
    np.testing.assert_array_equal(~np.isfinite(found["y"]), hit)
    back = np.zeros(case.shapes["x"], bool)
    back[0, :, 1:4, 1:4] = True
    np.testing.assert_array_equal(~np.isfinite(found["dx"]), back)
    weights = np.zeros(case.shapes["w"], bool)
    weights[3] = True
    weights[:, 5] = True
    np.testing.assert_array_equal(~np.isfinite(found["dw"]), weights)


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    number=st.integers(0, 2),
    n=st.integers(1, 4),
    c=st.integers(1, 20),
    o=st.integers(1, 34),
    size=st.tuples(st.integers(1, 18), st.integers(1, 18)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(SMALL, SMALL),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(SMALL, SMALL),
)
def test_any_geometry(
    ways: Ways,
    number: int,
    n: int,
    c: int,
    o: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    ways.number = number
    Case(spec(n, c, size, o, kernel, stride, padding, dilation)).check()


# Few channels, weights beyond a core's cache, a kernel of one pixel; and what stays as it was.
# With the matrix unit, and without.
CHOSEN = {
    "first layer": (spec(64, 1, (28, 28), 32, (5, 5), padding=(2, 2)), {"dx"}, {"dx"}),
    "photograph": (spec(4, 3, (112, 112), 64, (7, 7), (2, 2), (3, 3)), {"dx"}, {"dx"}),
    "last": (
        spec(2, 512, (7, 7), 512, (3, 3), padding=(1, 1)),
        {"y", "dx", "dw"},
        {"y", "dx", "dw"},
    ),
    "pixels": (spec(8, 64, (56, 56), 64, (1, 1)), {"y", "dx", "dw"}, {"y", "dx", "dw"}),
    "middle": (spec(8, 128, (28, 28), 128, (3, 3), padding=(1, 1)), set(), set()),
    "second layer": (spec(64, 32, (14, 14), 64, (5, 5), padding=(2, 2)), set(), set()),
}


@pytest.mark.parametrize("unit", [False, True], ids=["vectors", "unit"])
@pytest.mark.parametrize("name", CHOSEN)
def test_where_they_are_chosen(name: str, unit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    s, on_unit, in_vectors = CHOSEN[name]
    found: list[bool] = []

    def fastest(ways: list[Any], below: float) -> list[Stage]:
        found.append(any(way.cycles < below for way in ways))
        return []

    monkeypatch.setattr(conv_unfolded, "_fastest", fastest)
    monkeypatch.setattr(conv_unfolded, "_least", lambda s, cpu: 0.0)
    machine = target.CpuTarget("sapphirerapids", (), 64, 32, 48 << 10, 2 << 20, matrix_unit=unit)

    def unused(*_: Any) -> Any:
        raise AssertionError("estimates read nothing")

    access = conv.Access(*[unused] * 6)
    for generate in (
        conv.conv_forward_stages,
        conv.conv_grad_input_stages,
        conv.conv_grad_weight_stages,
    ):
        try:
            assert generate(s, access, Builder(), machine) == []
        except AssertionError:
            found.append(False)  # what unfolding alone costs was too much
    chosen = {name for name, taken in zip(("y", "dx", "dw"), found, strict=True) if taken}
    assert chosen == (on_unit if unit else in_vectors)


@pytest.mark.parametrize("unit", [False, True], ids=["vectors", "unit"])
def test_estimates_of_products_count_the_batch(unit: bool) -> None:
    machine = target.CpuTarget("sapphirerapids", (), 64, 32, 48 << 10, 2 << 20, matrix_unit=unit)
    one = Gemm(1, 64, 3136, 64, "float32", False, False, a_pitch=64, b_pitch=3136)
    assert cycles(replace(one, batch=8), machine) > 6 * cycles(one, machine)
