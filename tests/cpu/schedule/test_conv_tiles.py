"""Convolutions on the matrix unit: all three directions, shapes, irregular numbers, threads.

Needs a processor with the unit; the schedules that others use are tested in test_conv.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conv import CASES, HOST, Case, reference, spec

from minitorch_tvm.compiler.loops import Stage
from minitorch_tvm.compiler.schedule.cpu import conv_tiles, conv_weight_tiles, matrix_unit
from minitorch_tvm.compiler.schedule.cpu.bfloat_parts import MIXED, PRODUCTS
from minitorch_tvm.compiler.schedule.cpu.conv import Conv
from minitorch_tvm.compiler.schedule.cpu.conv_axes import forward_axis
from minitorch_tvm.core.tvm_api import global_func


@pytest.fixture(autouse=True)
def on_unit(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Small convolutions too run on the unit; the list names those that do."""
    used: list[str] = []
    correlate, products = conv_tiles.correlate_on_unit, conv_weight_tiles.outer_products_on_unit

    def counted_correlate(name: str, *args: Any) -> list[Stage]:
        used.append(name)
        return correlate(name, *args)

    def counted_products(*args: Any) -> list[Stage]:
        used.append("conv_dw")
        return products(*args)

    monkeypatch.setattr(conv_tiles, "correlate_on_unit", counted_correlate)
    monkeypatch.setattr(conv_weight_tiles, "outer_products_on_unit", counted_products)
    # Less than nothing: where no pixel reads the image, other schedules take no time at all.
    monkeypatch.setattr(conv_tiles.Correlation, "cycles", -1.0)
    monkeypatch.setattr(conv_weight_tiles._Shape, "cycles", -1.0)
    if not HOST.matrix_unit:  # said here, so that any machine sees that the names above are there
        pytest.skip("the processor multiplies no tiles of bfloat16")
    return used


ALL = ["conv", "conv_dx", "conv_dw"]


PLAIN = {name: s for name, s in CASES.items() if s.dilation == (1, 1) and max(s.w, s.h) < 100}


@pytest.mark.parametrize("kind", ["row of three", "column of 3", "column of 4", "mixed column"])
def test_tiles_meet_all_parts_of_the_one(kind: str) -> None:
    # Which part of which tile a register holds, and what is multiplied, smallest products first.
    held: dict[int, tuple[int, int]] = {}
    count = 4 if kind in ("column of 4", "mixed column") else 3
    products = MIXED if kind == "mixed column" else PRODUCTS
    found: dict[int, list[tuple[int, int]]] = {number: [] for number in range(count)}

    def fetch(side: int, part: int, number: int, register: int) -> Any:
        held[register] = (part, number)
        return side

    def product(name: str, total: int, left: int, right: int) -> Any:
        assert name == "tdpbf16ps"
        assert len({total, left, right}) == 3
        assert min(left, right) >= count
        if kind == "row of three":
            left, right = right, left
        (part, number), (other, single) = held[left], held[right]
        assert (number, single) == (total, 0)
        found[total].append((part, other))

    with (
        mock.patch.object(matrix_unit, "unit", product),
        mock.patch.object(matrix_unit, "tile", lambda number: number),
    ):
        if kind == "row of three":
            matrix_unit.multiply_three(fetch)
        else:
            matrix_unit.multiply_column(count, fetch, products)
    assert found == {number: list(products) for number in range(count)}


@pytest.mark.parametrize("s", PLAIN.values(), ids=PLAIN)
def test_every_direction(s: Conv, on_unit: list[str]) -> None:
    case = Case(s)
    assert on_unit == ALL
    case.check()


# Each number of channels with two of outputs, and each of these with two or three of those.
@pytest.mark.parametrize(
    ("channels", "outputs"),
    [
        (channels, outputs)
        for i, channels in enumerate([1, 16, 17, 32, 33])
        for j, outputs in enumerate([3, 16, 32, 80])
        if (i + j) % 2 == 0
    ],
)
def test_channels(channels: int, outputs: int, on_unit: list[str]) -> None:
    s = spec(3, channels, (7, 9), outputs, (3, 2), padding=(1, 1))
    case = Case(s)
    assert on_unit == ALL
    case.check()


@pytest.mark.parametrize(
    ("stride", "kernel", "channels"),
    [
        ((2, 2), (3, 3), (5, 16)),
        ((2, 2), (2, 5), (40, 9)),
        ((1, 3), (3, 3), (40, 9)),
        ((1, 3), (2, 5), (5, 16)),
        ((4, 2), (3, 3), (5, 16)),
        ((4, 2), (2, 5), (40, 9)),
    ],
)
def test_strides(
    stride: tuple[int, int], kernel: tuple[int, int], channels: tuple[int, int], on_unit: list[str]
) -> None:
    padding = (kernel[0] // 2, kernel[1] // 2)
    case = Case(spec(3, channels[0], (12, 17), channels[1], kernel, stride, padding))
    assert on_unit == ALL
    case.check()


@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
@pytest.mark.parametrize(("images", "height"), [(1, 29), (3, 17)])
def test_bands_of_an_image(
    images: int, height: int, stride: tuple[int, int], on_unit: list[str]
) -> None:
    s = spec(images, 18, (height, 13), 20, (5, 3), stride, padding=(2, 1))
    y, x = forward_axis(s.oh, s.h, 5, stride[0], 2, 1), forward_axis(s.ow, s.w, 3, stride[1], 1, 1)
    correlation = conv_tiles.plan(images, 18, 20, y, x, "float32", HOST)
    products = conv_weight_tiles.plan(s, HOST)
    assert correlation is not None
    assert correlation.bands > 1
    assert products is not None
    assert products.bands > 1
    Case(s).check()


def test_an_image_too_large_for_the_cache_is_cut(on_unit: list[str]) -> None:
    small = replace(HOST, l2_bytes=512 << 10)
    s = spec(16, 32, (24, 40), 32, (3, 3), padding=(1, 1))
    case = Case(s, small)
    assert on_unit == ALL
    case.check()


def test_operands_computed_on_the_way(on_unit: list[str]) -> None:
    s = spec(9, 20, (9, 11), 36, (3, 3), padding=(1, 1))
    case = Case(s, fused=True)
    assert on_unit == ALL
    found = case.run()
    start = case.start
    x, ct = (np.maximum(start[k], 0) * 2 for k in ("x", "ct"))
    truth = reference(s, x, start["w"], ct)
    total = truth["y"] + start["bias"][None, :, None, None]
    for name, want in (("pre", total), ("y", np.maximum(total, 0))):
        np.testing.assert_allclose(found[name], want, atol=2e-5 * np.abs(total).max())
    for name in ("dx", "dw"):
        want = truth[name] + start[name]
        np.testing.assert_allclose(found[name], want, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, 1e-40])
@pytest.mark.parametrize("where", ["x", "w", "ct"])
@pytest.mark.parametrize("others", [1.0, 0.0])
@pytest.mark.parametrize(("stride", "channels"), [(1, (18, 34)), (2, (5, 7))])
def test_irregular_numbers(
    value: float,
    where: str,
    others: float,
    stride: int,
    channels: tuple[int, int],
    on_unit: list[str],
) -> None:
    """One such number among ordinary ones, or among zeros."""
    s = spec(3, channels[0], (6, 7), channels[1], (3, 3), (stride, stride), padding=(1, 1))
    case = Case(s)
    assert on_unit == ALL
    for name in ("y", "dx", "dw"):
        case.start[name][...] = 0
    for name in ("x", "w", "ct"):
        case.start[name] *= np.float32(others if name == where else 1.0)
    case.start[where][1, 2, 0, 1] = value
    for name in ("x", "w", "ct"):
        case.arrays[name][...] = case.start[name]
    found = case.run()
    with np.errstate(all="ignore"):
        truth = reference(s, *(case.start[k] for k in ("x", "w", "ct")))
        for name, want in truth.items():
            if name == "dx" and where == "w" and not np.isfinite(value):
                # Like all schedules here, these multiply weights with the zeros around ct, too.
                continue
            want32 = want.astype(np.float32)
            np.testing.assert_array_equal(np.isnan(found[name]), np.isnan(want32), err_msg=name)
            np.testing.assert_array_equal(np.isinf(found[name]), np.isinf(want32), err_msg=name)
            finite = np.isfinite(want32)
            scale = max(float(np.abs(want32[finite]).max(initial=0)), 1e-38)
            np.testing.assert_allclose(
                found[name][finite] / scale, want32[finite] / scale, atol=2e-5, err_msg=name
            )


@pytest.mark.parametrize("power", [40, 58, 62, 70])
@pytest.mark.parametrize("channels", [(18, 34), (16, 12)])
def test_small_channels_beside_ordinary_ones(power: int, channels: tuple[int, int]) -> None:
    """Sums of small numbers only keep the accuracy of float32."""
    s = spec(3, channels[0], (6, 7), channels[1], (3, 3), padding=(1, 1))
    case = Case(s)
    x, w, ct = (case.start[name] for name in ("x", "w", "ct"))
    for array in (x[:, 1], x[:, :, :4], w[3], w[:, 5], ct[:, 3], ct[:, :, :4]):
        array *= np.float32(2.0**-power)
    for name in ("y", "dx", "dw"):
        case.start[name][...] = 0
    for name in ("x", "w", "ct"):
        case.arrays[name][...] = case.start[name]
    found = case.run()
    truth = reference(s, x, w, ct)
    bounds = reference(s, np.abs(x), np.abs(w), np.abs(ct))
    for name, want in truth.items():
        # Below the normal numbers, half a unit of the last place is 2**-150.
        bound = 2.0**-20 * bounds[name] + 600 * 2.0**-149
        assert np.all(np.abs(found[name] - want) <= bound), name


@pytest.mark.parametrize("first", [0, 1])
def test_a_denormal_weight_gradient_outlives_other_images(first: int) -> None:
    # Parts sum several images; sums that the unit would take for zero must not be lost.
    s = spec(40, 18, (6, 7), 34, (3, 3), padding=(1, 1))
    case = Case(s)
    for name in ("x", "ct", "dw"):
        case.start[name][...] = 0
    case.start["x"][first, 2, 3, 3], case.start["ct"][first, 4, 3, 3] = 2.0**-65, 2.0**-66
    case.start["x"][2:, 1], case.start["ct"][2:, 1] = 1, 1
    for name in ("x", "ct"):
        case.arrays[name][...] = case.start[name]
    found = case.run()["dw"]
    assert found[4, 2, 1, 1] == np.float32(2.0**-131)
    np.testing.assert_allclose(
        found, reference(s, *(case.start[k] for k in ("x", "w", "ct")))["dw"]
    )


def test_thread_count_does_not_change_a_bit() -> None:
    case = Case(spec(18, 32, (14, 14), 64, (5, 5), padding=(2, 2)))
    configure = global_func("runtime.config_threadpool")
    configure(1, 2)
    two = case.run()
    configure(1, 1)
    try:
        one = case.run()
    finally:
        configure(1, 2)
    for name in ("y", "dx", "dw"):
        np.testing.assert_array_equal(one[name], two[name])


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 20),
    channels=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    size=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    data=st.data(),
)
def test_random_shapes(
    n: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    kernel: tuple[int, int],
    data: st.DataObject,
) -> None:
    padding = tuple(
        data.draw(st.integers(max(0, (k - m + 1) // 2), k))
        for k, m in zip(kernel, size, strict=True)
    )
    stride = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    Case(spec(n, channels[0], size, channels[1], kernel, stride, padding)).check()


def test_two_parts_in_a_line_are_as_accurate_as_multiply_adds(on_unit: list[str]) -> None:
    # Up to 16 channels; the same sums by vectors, whose errors are those of float32.
    s = spec(4, 16, (12, 12), 16, (5, 5), padding=(2, 2))
    cases = Case(s), Case(s, replace(HOST, matrix_unit=False))
    assert on_unit == ALL
    found = []
    for case in cases:  # of equal numbers
        for name in ("y", "dx", "dw"):
            case.start[name][...] = 0
        found.append(case.run())
    truth = reference(s, *(cases[0].start[k] for k in ("x", "w", "ct")))
    for name in ("y", "dx"):
        unit, vectors = (np.abs(f[name] - truth[name]).mean() for f in found)
        assert unit <= vectors, name
