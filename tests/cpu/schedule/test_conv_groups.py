"""Convolutions in groups, in every schedule that one group may have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_conv import SMALL, reference, spec

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import target
from minitorch_tvm.compiler.loops import Builder, Stage, const, pointer_buffer, seq, var
from minitorch_tvm.compiler.schedule import cpu as schedules
from minitorch_tvm.compiler.schedule.cpu import (
    conv,
    conv_pixels,
    conv_pixels_plan,
    conv_weight_rows,
)
from minitorch_tvm.compiler.schedule.cpu.conv_axes import forward_axis
from minitorch_tvm.compiler.schedule.cpu.conv_groups import each_group
from minitorch_tvm.compiler.schedule.cpu.conv_spec import Conv
from minitorch_tvm.core.threads import usable_cores
from minitorch_tvm.core.tvm_api import global_func
from minitorch_tvm.nn import functional as F

# Of one group.
CASES = {
    "depthwise": replace(spec(9, 1, (12, 33), 1, (3, 3), padding=(1, 1)), groups=17),
    "one image": replace(spec(1, 1, (56, 56), 1, (3, 3), padding=(1, 1)), groups=5),
    "small images": replace(spec(5, 1, (7, 7), 1, (5, 5), padding=(2, 2)), groups=40),
    "rows that fill no vector": replace(spec(4, 1, (28, 28), 1, (3, 3), padding=(1, 1)), groups=3),
    "stride 2": replace(spec(2, 1, (17, 20), 1, (3, 3), (2, 2), (1, 1)), groups=9),
    "two outputs of a channel": replace(spec(3, 1, (9, 16), 2, (3, 3), padding=(1, 1)), groups=6),
    "one output of two channels": replace(spec(3, 2, (9, 16), 1, (3, 3)), groups=6),
    "in rows": replace(spec(3, 1, (1, 75), 1, (1, 9), padding=(0, 4)), groups=8),
    "odd everything": replace(spec(11, 5, (13, 11), 3, (3, 2), (2, 3), (1, 2), (2, 1)), groups=3),
    "many channels": replace(spec(8, 20, (10, 9), 18, (3, 3), padding=(1, 1)), groups=2),
    "many channels, few images": replace(spec(2, 20, (10, 9), 33, (3, 3)), groups=3),
    "pixels": replace(spec(4, 12, (8, 8), 7, (1, 1)), groups=3),
    "pixels, stride 2": replace(spec(4, 12, (9, 8), 7, (1, 1), (2, 2)), groups=3),
    "a factor for each channel": replace(spec(4, 1, (9, 8), 1, (1, 1)), groups=20),
    "stride past kernel": replace(spec(2, 2, (11, 13), 3, (2, 2), (3, 5)), groups=2),
}


@pytest.fixture(autouse=True)
def scheduled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is left to the schedule that knows no vectors."""
    rules = tuple(rule for rule in schedules.RULES if rule is not schedules.generic)
    monkeypatch.setattr(schedules, "RULES", rules)
    lazy.clear_cache()
    yield
    lazy.clear_cache()


class Groups:
    """Operands of a convolution in groups, and what is made of them."""

    def __init__(self, s: Conv) -> None:
        self.s = s
        rng = np.random.default_rng(3)

        def some(*shape: int) -> np.ndarray:
            return rng.uniform(-1, 1, shape).astype(s.dtype)

        self.x = some(s.n, s.groups * s.c, s.h, s.w)
        self.w = some(s.groups * s.o, s.c, s.kh, s.kw)
        self.ct = some(s.n, s.groups * s.o, s.oh, s.ow)

    def truth(self) -> dict[str, np.ndarray]:
        """Group by group, in float64."""
        s, every = self.s, []
        for g in range(s.groups):
            inputs, outputs = (slice(g * n, (g + 1) * n) for n in (s.c, s.o))
            own = (self.x[:, inputs], self.w[outputs], self.ct[:, outputs])
            every.append(reference(s, *own))
        axes = {"y": 1, "dx": 1, "dw": 0}
        return {k: np.concatenate([found[k] for found in every], axis) for k, axis in axes.items()}

    def computed(self) -> dict[str, np.ndarray]:
        s = self.s
        x, w = (mt.tensor(a, requires_grad=True) for a in (self.x, self.w))
        y = F.conv2d(x, w, None, s.stride, s.padding, s.dilation, s.groups)
        dx, dw = mt.autograd.grad(y, [x, w], mt.tensor(self.ct))
        return {"y": y.detach().numpy(), "dx": dx.numpy(), "dw": dw.numpy()}

    def check(self) -> None:
        found, limit = self.computed(), 2e-5 if self.s.dtype == "float32" else 1e-12
        for name, truth in self.truth().items():
            scale = max(1.0, float(np.abs(truth).max(initial=0)))
            np.testing.assert_allclose(
                found[name] / scale, truth / scale, rtol=0, atol=limit, err_msg=name
            )


def _outputs_in_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "_IN_PIXELS", math.inf)
    monkeypatch.setattr(conv_weight_rows, "plan", lambda *_: None)


def _pixels_in_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "_IN_PIXELS", -math.inf)
    monkeypatch.setattr(conv, "_WEIGHTS_IN_VECTORS", math.inf)


WAYS = {
    "fastest": lambda monkeypatch: None,
    "outputs in vectors": _outputs_in_vectors,
    "pixels in vectors": _pixels_in_vectors,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_every_direction(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WAYS[way](monkeypatch)
    Groups(CASES[name]).check()


@pytest.mark.parametrize("name", ["depthwise", "odd everything", "many channels"])
def test_float64(name: str) -> None:
    Groups(replace(CASES[name], dtype="float64")).check()


def test_ways_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of single channels, pixels are in vectors; of many, outputs are."""
    met = []

    def noted(module: object, name: str) -> None:
        inner = getattr(module, name)

        def outer(*args: object, **kwargs: object) -> object:
            met.append(name)
            return inner(*args, **kwargs)

        monkeypatch.setattr(module, name, outer)

    noted(conv_pixels, "correlate_pixels")
    noted(conv, "correlate")
    noted(conv_weight_rows, "row_products")
    noted(conv, "outer_products")
    for name in ("depthwise", "small images", "one image", "stride 2"):
        Groups(CASES[name]).computed()
        assert sorted(met) == ["correlate_pixels", "correlate_pixels", "row_products"], name
        met.clear()
    Groups(replace(spec(16, 64, (8, 8), 64, (3, 3), padding=(1, 1)), groups=2)).computed()
    assert sorted(met) == ["correlate", "correlate", "outer_products"]


def test_groups_are_work_to_share_out() -> None:
    """One image of one group is cut into bands, of many groups it is not."""
    axes = (forward_axis(56, 56, 3, 1, 1, 1),) * 2

    def bands(groups: int) -> int:
        machine = target.CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 2 << 20)
        found = conv_pixels_plan.plan(1, 1, 1, *axes, "float32", 4, machine, groups)
        assert found is not None
        return found.bands

    assert bands(96) == 1 < bands(1)


def test_what_is_fused() -> None:
    """What is computed of the operands, and behind, is of the right channel."""
    s = CASES["two outputs of a channel"]
    g, channels = Groups(s), s.groups * s.c
    scale = np.arange(1, channels + 1, dtype="f").reshape(1, channels, 1, 1) / channels
    bias = np.arange(s.groups * s.o, dtype="f")
    x = mt.tensor(g.x) * mt.tensor(scale)
    y = F.relu(F.conv2d(x, mt.tensor(g.w), mt.tensor(bias), 1, s.padding, 1, s.groups))
    g.x = g.x * scale
    truth = np.maximum(g.truth()["y"] + bias.reshape(1, -1, 1, 1), 0)
    np.testing.assert_allclose(y.numpy(), truth, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["depthwise", "one image", "odd everything", "many channels"])
def test_thread_count_does_not_change_a_bit(name: str) -> None:
    g, cores = Groups(CASES[name]), usable_cores()
    many = g.computed()
    configure = global_func("runtime.config_threadpool")
    configure(1, 1)
    try:
        one = g.computed()
    finally:
        configure(1, cores)
    for key, value in many.items():
        assert value.tobytes() == one[key].tobytes(), key


def test_a_bad_pixel_reaches_its_channel_only() -> None:
    g = Groups(CASES["depthwise"])
    g.x[2, 4, 5, 6] = np.inf
    g.w = np.abs(g.w) + np.float32(0.1)
    g.ct[0, 3, 2, 2] = np.nan
    found = g.computed()
    hit = np.zeros(found["y"].shape, bool)
    hit[2, 4, 4:7, 5:8] = True
    np.testing.assert_array_equal(~np.isfinite(found["y"]), hit)
    back = np.zeros(found["dx"].shape, bool)
    back[0, 3, 1:4, 1:4] = True
    np.testing.assert_array_equal(~np.isfinite(found["dx"]), back)
    kernels = np.flatnonzero(~np.isfinite(found["dw"]).all((1, 2, 3)))
    assert kernels.tolist() == [3, 4]


def test_empty_groups() -> None:
    s = CASES["many channels"]
    for empty in (replace(s, n=0), replace(s, c=0)):
        Groups(empty).check()


def test_memory_of_groups() -> None:
    """Parts of memory follow each other, and their positions are those of all of it."""
    whole = pointer_buffer((3, 4, 5), "float32", "memory")
    for g in range(3):
        own = whole.part(const(g))
        assert (own.shape, own.count) == ((4, 5), 20)
        at = own.flat((2, 3))
        assert int(at) == int(own.line.flat((at,))) == g * 20 + 13


def test_stages_that_are_not_alike_are_refused() -> None:
    def queued(group: object, builder: Builder) -> list[Stage]:
        return [Stage("s", 1, var("tile"), seq(), queue=var("queue"))]

    with pytest.raises(AssertionError, match="tiles are not alike"):
        each_group(2, queued, Builder())


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    n=st.sampled_from([1, 3, 9]),
    groups=st.integers(2, 20),
    channels=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    size=st.tuples(st.integers(1, 20), st.integers(1, 36)),
    geometry=st.tuples(*[st.tuples(n, n) for n in (st.integers(1, 5), SMALL, SMALL, SMALL)]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_any_geometry(
    n: int,
    groups: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    geometry: tuple[tuple[int, int], ...],
    dtype: str,
) -> None:
    """``geometry``: kernel, stride, padding and dilation."""
    s = spec(n, channels[0], size, channels[1], *geometry, dtype=dtype)
    if s.oh and s.ow:
        Groups(replace(s, groups=groups)).check()
