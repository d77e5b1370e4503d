"""Convolution schedules against a float64 convolution written over kernel taps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from linked import Linked

from minitorch_tvm.compiler import target
from minitorch_tvm.compiler.assemble import Place
from minitorch_tvm.compiler.loops import Builder, Stage, const, load, pointer_buffer, seq, store
from minitorch_tvm.compiler.schedule.cpu import (
    conv,
    conv_axes,
    conv_correlate,
    conv_unfolded,
    conv_weight,
    conv_weight_rows,
)
from minitorch_tvm.compiler.schedule.cpu.conv import (
    Access,
    Conv,
    conv_forward_stages,
    conv_grad_input_stages,
    conv_grad_weight_stages,
)
from minitorch_tvm.core.threads import usable_cores
from minitorch_tvm.core.tvm_api import global_func, tvm

HOST = target.host()
AVX2 = target.CpuTarget("haswell", (), 32, 16, 32 << 10, 256 << 10)
SSE = target.CpuTarget("x86-64", (), 16, 16, 32 << 10, 256 << 10)
SMALL = st.integers(1, 3)


def spec(
    n: int,
    c: int,
    size: tuple[int, int],
    o: int,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    dtype: str = "float32",
) -> Conv:
    return Conv(n, c, *size, o, *kernel, stride, padding, dilation, dtype)


def aligned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, "u1")
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


class Case:
    """The forward and both gradients of one convolution, compiled into one program.

    Outputs are accumulated into, so an element written twice or not at all is wrong.
    """

    def __init__(
        self,
        s: Conv,
        cpu: target.CpuTarget = HOST,
        fused: bool = False,
        lines: bool = True,
        directions: Sequence[str] = ("y", "dx", "dw"),
    ) -> None:
        self.spec, self.directions = s, directions
        x, w, y = (s.n, s.c, s.h, s.w), (s.o, s.c, s.kh, s.kw), (s.n, s.o, s.oh, s.ow)
        self.shapes = {"x": x, "w": w, "ct": y, "bias": (s.o,), "y": y, "dx": x, "dw": w, "pre": y}
        buffers = {k: pointer_buffer(v, s.dtype, k) for k, v in self.shapes.items()}
        self.arrays = {k: aligned(v, s.dtype) for k, v in self.shapes.items()}
        rng = np.random.default_rng(3)
        for array in self.arrays.values():
            array[...] = rng.uniform(-1, 1, array.shape)
        self.start = {k: v.copy() for k, v in self.arrays.items()}

        def read(name: str) -> Any:
            def plain(*i: Any) -> Any:
                return load(buffers[name], *i)

            def relu(*i: Any) -> Any:
                return tvm().tirx.max(plain(*i), const(0.0, s.dtype)) * const(2.0, s.dtype)

            return relu if fused and name != "w" else plain

        def accumulate(name: str) -> Any:
            def write(a: Any, b: Any, c: Any, d: Any, value: Any) -> Any:
                return store(buffers[name], load(buffers[name], a, b, c, d) + value, a, b, c, d)

            return write

        def access(left: str, right: str, result: str, write: Any = None) -> Access:
            own = [
                replace(buffers[k], shape=(*v[:n], math.prod(v[n:])))
                for k in (left, right, result)
                for n, v in ((1 if k in ("w", "dw") else 2, self.shapes[k]),)
            ]
            plain = [lines and (not fused or k == "w") for k in (left, right)]

            def write_line(*i: Any) -> Any:
                return store(own[2], load(own[2], *i[:-1]) + i[-1], *i[:-1])

            return Access(
                read(left),
                read(right),
                write or accumulate(result),
                (lambda *i: load(own[0], *i)) if plain[0] else None,
                (lambda *i: load(own[1], *i)) if plain[1] else None,
                write_line if lines and write is None else None,
            )

        def bias_relu(n: Any, o: Any, i: Any, j: Any, value: Any) -> Any:
            total = value + load(buffers["bias"], o)
            top = tvm().tirx.max(total, const(0.0, s.dtype))
            return seq(
                store(buffers["pre"], total, n, o, i, j), store(buffers["y"], top, n, o, i, j)
            )

        builder = Builder()
        schedules = {
            "y": (conv_forward_stages, access("x", "w", "y", bias_relu if fused else None)),
            "dx": (conv_grad_input_stages, access("ct", "w", "dx")),
            "dw": (conv_grad_weight_stages, access("x", "ct", "dw")),
        }
        found = [
            generate(s, a, builder, cpu) for generate, a in map(schedules.__getitem__, directions)
        ]
        self.stages: list[Stage] = [stage for part in found if part is not None for stage in part]
        assert all(part is not None for part in found)
        if not self.stages:
            return
        places = [*buffers.values(), *builder.scratch]
        shapes = [[int(n) for n in b.shape] for b in builder.scratch]
        self.scratch = [aligned(tuple(n), s.dtype) for n in shapes]

        def place(buffer: Any) -> Place:
            return Place([b.same_as(buffer) for b in places].index(True))

        self.kernel = Linked(self.stages, place, cpu=cpu)

    def run(self) -> dict[str, np.ndarray]:
        for name in ("y", "dx", "dw", "pre"):
            self.arrays[name][...] = self.start[name]
        if self.stages:
            for scratch in self.scratch:
                scratch[...] = np.nan
            memory = [*self.arrays.values(), *self.scratch]
            self.kernel(memory)
        return {k: self.arrays[k].copy() for k in ("y", "dx", "dw", "pre")}

    def check(self, tolerance: float | None = None) -> None:
        found = self.run()
        expected = reference(self.spec, *(self.start[k] for k in ("x", "w", "ct")))
        limit = tolerance or (2e-5 if self.spec.dtype == "float32" else 1e-12)
        for name in self.directions:
            truth = expected[name] + self.start[name]
            scale = max(1.0, float(np.abs(truth).max(initial=0)))
            np.testing.assert_allclose(
                found[name] / scale, truth / scale, rtol=0, atol=limit, err_msg=name
            )


def reference(s: Conv, x: np.ndarray, w: np.ndarray, ct: np.ndarray) -> dict[str, np.ndarray]:
    """Output, input gradient and weight gradient in float64, one kernel tap at a time."""
    x, w, ct = (a.astype("f8") for a in (x, w, ct))
    ph, pw = s.padding
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    y, dx, dw = np.zeros(ct.shape), np.zeros(padded.shape), np.zeros(w.shape)
    lines = ct.reshape(s.n, s.o, s.oh * s.ow)
    for i in range(s.kh):
        for j in range(s.kw):
            first = i * s.dilation[0], j * s.dilation[1]
            rows, columns = (
                slice(at, at + step * count, step)
                for at, step, count in zip(first, s.stride, (s.oh, s.ow), strict=True)
            )
            window, tap = padded[:, :, rows, columns], w[:, :, i, j]
            pixels = window.reshape(s.n, s.c, s.oh * s.ow)
            y += (tap @ pixels).reshape(y.shape)
            dx[:, :, rows, columns] += (tap.T @ lines).reshape(window.shape)
            dw[:, :, i, j] = (lines @ pixels.swapaxes(1, 2)).sum(0)
    return {"y": y, "dx": dx[:, :, ph : ph + s.h, pw : pw + s.w], "dw": dw}


def check_fused(s: Conv, directions: Sequence[str] = ("y", "dx", "dw")) -> None:
    """Behind a relu of its operands, and with a bias and a relu behind it."""
    case = Case(s, fused=True, directions=directions)
    found = case.run()
    relu = {k: 2 * np.maximum(case.start[k], 0) for k in ("x", "ct")}
    expected = reference(s, relu["x"], case.start["w"], relu["ct"])
    if "y" in directions:
        total = expected["y"] + case.start["bias"].astype("f8")[:, None, None]
        np.testing.assert_allclose(found["pre"], total, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found["y"], np.maximum(total, 0), rtol=1e-4, atol=1e-4)
    for name_ in set(directions) - {"y"}:
        truth = expected[name_] + case.start[name_]
        scale = np.abs(truth).max()
        np.testing.assert_allclose(found[name_] / scale, truth / scale, rtol=0, atol=2e-5)


def check_threads(s: Conv, directions: Sequence[str] = ("y", "dx", "dw")) -> None:
    """One thread computes the same bits as all."""
    case = Case(s, directions=directions)
    cores = usable_cores()
    many = case.run()
    configure = global_func("runtime.config_threadpool")
    configure(1, 1)
    try:
        one = case.run()
    finally:
        configure(1, cores)
    for key, value in many.items():
        assert value.tobytes() == one[key].tobytes(), key


@pytest.fixture(autouse=True)
def directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """No convolution is a product of unfolded images, or has pixels in vectors, and no gradient of
    weights is one along rows.

    Those are tested in test_conv_unfolded.py, test_conv_pixels.py and test_conv_weight_rows.py.
    """
    monkeypatch.setattr(conv, "_IN_PIXELS", math.inf)
    monkeypatch.setattr(conv_unfolded, "_fastest", lambda ways, below: None)
    monkeypatch.setattr(conv_weight_rows, "plan", lambda *_: None)


# Batches of eight and more are packed image by image, smaller ones by stages of their own.
CASES = {
    "first layer": spec(9, 1, (28, 28), 32, (5, 5), padding=(2, 2)),
    "second layer": spec(18, 32, (14, 14), 64, (5, 5), padding=(2, 2)),
    "16 to 16": spec(2, 16, (32, 32), 16, (3, 3), padding=(1, 1)),
    "64 at 8": spec(3, 64, (8, 8), 64, (3, 3), padding=(1, 1)),
    "stride 2": spec(9, 16, (32, 32), 32, (3, 3), (2, 2), (1, 1)),
    "rgb": spec(2, 3, (15, 17), 6, (3, 3), padding=(1, 1)),
    "one by one": spec(2, 20, (9, 7), 48, (1, 1)),
    "one by one stride 2": spec(2, 18, (9, 7), 17, (1, 1), (2, 2)),
    "whole input": spec(5, 12, (4, 6), 10, (4, 6)),
    "kernel is padded input": spec(2, 3, (2, 2), 4, (6, 6), padding=(2, 2)),
    "odd everything": spec(11, 19, (13, 11), 35, (3, 2), (2, 3), (1, 2), (2, 1)),
    "dilated": spec(8, 17, (12, 14), 33, (3, 3), padding=(2, 2), dilation=(2, 2)),
    "dilated and strided": spec(10, 5, (14, 16), 9, (3, 3), (2, 4), (3, 2), (2, 2)),
    "stride past kernel": spec(2, 4, (11, 13), 7, (2, 2), (3, 5)),
    "padding past kernel": spec(2, 4, (5, 4), 18, (2, 3), padding=(3, 4)),
    "asymmetric": spec(2, 16, (3, 40), 16, (1, 7), (1, 2), (0, 3)),
    "few taps": spec(3, 32, (7, 9), 16, (2, 2), padding=(1, 1)),
    "32 pixels": spec(2, 32, (9, 7), 48, (1, 1), (2, 2)),
    "patches": spec(2, 3, (16, 16), 24, (8, 8), (8, 8)),
    "one channel": spec(2, 1, (6, 6), 1, (3, 3)),
    "one pixel": spec(1, 40, (1, 1), 40, (1, 1)),
    "border only": spec(2, 33, (1, 1), 17, (1, 1), (3, 3), (1, 1)),
    "columns of border only": spec(2, 33, (16, 1), 32, (1, 1), (2, 2), (1, 1)),
    "border only, dilated": spec(2, 33, (5, 1), 17, (1, 1), (3, 3), (2, 2), (2, 2)),
    "long rows": spec(1, 2, (2, 1200), 40, (3, 3), padding=(1, 1)),
    "wide": spec(1, 128, (5, 5), 80, (3, 3), padding=(1, 1)),
}


def test_rows_are_computed_once_where_blocks_can_be_even() -> None:
    for height, width, tile in ((14, 14, 14), (28, 28, 14), (56, 56, 14), (15, 15, 15), (7, 7, 7)):
        axis = conv_axes.forward_axis(height, height, 3, 1, 1, 1)
        units = conv_correlate._pick_rows(axis, width, conv_correlate.Tile(1, tile, 2), 16)
        assert height % units == 0, (height, units)
        assert 49 <= units * width <= 128 or units == 1


def test_packed_weights_and_sums_are_asked_for() -> None:
    """What lies on many pages: weights to be packed, forward and back, and sums of parts."""
    s = spec(16, 16, (8, 8), 16, (3, 3), padding=(1, 1))
    memory = pointer_buffer((1 << 16,), "float32", "memory")

    def read(*_: Any) -> Any:
        return load(memory, 0)

    def finish(*index_and_value: Any) -> Any:
        return store(memory, index_and_value[-1], 0)

    access = Access(read, read, finish, None, None, None)
    machine = target.CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 1 << 20)
    for generate, number, name in (
        (conv_forward_stages, 0, "w_pack"),
        (conv_grad_input_stages, 0, "w_pack"),
        (conv_grad_weight_stages, -1, "conv_dw_sum"),
    ):
        stages = generate(s, access, Builder(), machine)
        assert stages is not None
        assert stages[number].name == name
        assert "prefetch" in str(stages[number].body)


@pytest.mark.parametrize("name", CASES)
def test_every_direction(name: str) -> None:
    Case(CASES[name]).check()


@pytest.mark.parametrize("name", ["odd everything", "dilated and strided", "rgb"])
def test_float64(name: str) -> None:
    Case(replace(CASES[name], dtype="float64")).check()


@pytest.mark.parametrize("cpu", [AVX2, SSE], ids=["avx2", "sse"])
@pytest.mark.parametrize("name", ["16 to 16", "stride 2", "odd everything"])
def test_narrower_machines(name: str, cpu: target.CpuTarget) -> None:
    Case(CASES[name], cpu).check()


@pytest.mark.parametrize("name", ["first layer", "stride 2", "odd everything"])
def test_fused_producer_and_epilogue(name: str) -> None:
    check_fused(CASES[name])


@pytest.mark.parametrize("name", ["16 to 16", "odd everything", "64 at 8"])
def test_thread_count_does_not_change_a_bit(name: str) -> None:
    check_threads(CASES[name])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_pixel_reaches_exactly_its_window(bad: float) -> None:
    s = spec(2, 16, (10, 12), 20, (3, 3), padding=(1, 1))
    case = Case(s)
    case.start["w"][...] = np.abs(case.start["w"]) + 0.1
    case.arrays["w"][...] = case.start["w"]
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
    if np.isnan(bad):
        assert np.isnan(found["y"][hit]).all()
    else:
        assert (found["y"][hit] == np.inf).all()


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(
    ("columns", "channels"), [(6, 3), (6, 20), (4, 20)], ids=["taps together", "rows", "two tiles"]
)
def test_taps_outside_the_image_are_left_out(
    columns: int, channels: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are not, infinite weights meet the zeros of the border, and make NaN."""
    tile = conv_correlate.Tile(1, columns, 1)
    monkeypatch.setattr(conv_correlate, "pick_tile", lambda *_: tile)
    s = spec(9, channels, (7, 6), 40, (5, 5), (step, 1), padding=(2, 2))
    case = Case(s, directions=("y", "dx"))
    for tap in ((0, 1), (4, 4), (1, 3)):
        case.arrays["w"][...] = case.start["w"]
        case.arrays["w"][:, :, *tap] = np.inf
        found = case.run()
        only = np.zeros(case.shapes["w"])
        only[:, :, *tap] = 1
        hit = reference(s, np.ones(case.shapes["x"]), only, np.ones(case.shapes["ct"]))
        for name in case.directions:
            np.testing.assert_array_equal(~np.isfinite(found[name]), hit[name] > 0, str(tap))


def test_weight_gradients_read_what_a_tile_needs_of_gradients_in_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 64 outputs a pixel's lay 256 bytes from the next one's, of which a tile takes 64."""
    shapes: list[tuple[int, ...]] = []
    layout = conv_weight.ChannelsLast

    def noted(*sizes: Any) -> Any:
        made = layout(*sizes)
        shapes.append(made.image_shape)
        return made

    monkeypatch.setattr(conv_weight, "ChannelsLast", noted)
    monkeypatch.setattr(conv_weight, "pick_tile", lambda *_: conv_correlate.Tile(1, 6, 2))
    Case(spec(9, 16, (7, 6), 64, (3, 3), padding=(1, 1)), AVX2, directions=("dw",)).check()
    assert shapes == [(1, *shapes[0][1:3], 16), (4, 7, 6, 16)]


@pytest.mark.parametrize("images", [2, 9])
def test_pixels_with_which_no_tap_reads_the_image_are_left_out(
    images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile = conv_correlate.Tile(1, 16, 1)  # a tap's channels
    monkeypatch.setattr(conv_weight, "pick_tile", lambda *_: tile)
    s = spec(images, 16, (7, 6), 20, (5, 5), padding=(2, 2))
    case = Case(s, directions=("dw",))
    for pixel in ((0, 1), (6, 5), (3, 3)):
        case.arrays["ct"][...] = case.start["ct"]
        case.arrays["ct"][:, :, *pixel] = np.inf
        only = np.zeros(case.shapes["ct"])
        only[:, :, *pixel] = 1
        hit = reference(s, np.ones(case.shapes["x"]), np.ones(case.shapes["w"]), only)["dw"]
        np.testing.assert_array_equal(~np.isfinite(case.run()["dw"]), hit > 0, str(pixel))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    inputs=st.integers(1, 12),
    geometry=st.tuples(st.integers(1, 6), SMALL, st.integers(0, 5), SMALL),
    units=st.integers(1, 6),
    forward=st.booleans(),
)
@example(inputs=1, geometry=(1, 2, 1, 1), units=2, forward=True)  # one before, one behind
def test_the_share_of_taps_that_are_needed(
    inputs: int, geometry: tuple[int, int, int, int], units: int, forward: bool
) -> None:
    kernel, stride, padding, dilation = geometry
    outputs = (inputs + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    if outputs < 1:
        return
    sizes = (outputs, inputs) if forward else (inputs, outputs)
    make = conv_axes.forward_axis if forward else conv_axes.gradient_axis
    axis = make(*sizes, *geometry)
    needed = []
    for residue in range(axis.stride):
        taps = axis.taps(residue)
        for first in range(0, axis.units, units):
            group = range(first, min(first + units, axis.units))
            for tap in range(taps.count):
                at = [u * axis.input_stride + taps.base + tap * axis.advance for u in group]
                needed.append(any(0 <= y < axis.inputs for y in at))
    found = conv_axes.share(axis, units)
    assert found == (sum(needed) / len(needed) if needed else 1)


def test_empty_batches_and_channels() -> None:
    base = spec(0, 3, (6, 6), 4, (3, 3))
    case = Case(base)
    found = case.run()
    assert found["y"].size == 0
    np.testing.assert_array_equal(found["dw"], case.start["dw"])
    case = Case(replace(base, n=2, c=0))
    np.testing.assert_array_equal(case.run()["y"], case.start["y"])
    case = Case(replace(base, n=2, o=0))
    np.testing.assert_array_equal(case.run()["dx"], case.start["dx"])


def test_buffers_beyond_32_bit_indices_are_declined() -> None:
    s = spec(64, 64, (1024, 1024), 64, (3, 3))

    def never(*index: Any) -> Any:
        raise AssertionError(index)

    access = Access(never, never, never)
    assert conv_forward_stages(s, access, Builder(), HOST) is None
    assert conv_grad_input_stages(s, access, Builder(), HOST) is None
    assert conv_grad_weight_stages(s, access, Builder(), HOST) is None


def test_kernel_larger_than_input_has_no_output() -> None:
    s = spec(2, 3, (2, 2), 4, (5, 5))
    assert (s.oh, s.ow) == (0, 0)
    case = Case(s)
    np.testing.assert_array_equal(case.run()["dx"], case.start["dx"])


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    n=st.sampled_from([1, 3, 9, 18]),
    c=st.integers(1, 34),
    o=st.integers(1, 34),
    size=st.tuples(st.integers(1, 18), st.integers(1, 18)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(SMALL, SMALL),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(SMALL, SMALL),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_any_geometry(
    n: int,
    c: int,
    o: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    dtype: str,
) -> None:
    Case(spec(n, c, size, o, kernel, stride, padding, dilation, dtype)).check()
