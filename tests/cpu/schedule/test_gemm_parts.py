"""Products of few, long sums: cut into parts that are added up at the end."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from test_gemm import LAYOUTS, build, check, run_and_check

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import target
from minitorch_tvm.compiler.schedule.cpu import conv, gemm
from minitorch_tvm.compiler.schedule.cpu.gemm import Gemm
from minitorch_tvm.compiler.schedule.cpu.gemm_problem import Problem
from minitorch_tvm.compiler.target import CpuTarget, host


def small() -> CpuTarget:
    """A machine on which small operands are much."""
    return dataclasses.replace(host(), l2_bytes=32 << 10)


def parts(spec: Gemm, cpu: CpuTarget) -> int | None:
    def unused(*_: Any) -> Any:
        raise AssertionError("nothing is read")

    return gemm._parts(gemm._problem(spec, unused, unused, unused), cpu)


@pytest.mark.parametrize(
    ("shape", "dtype", "a_transposed", "b_transposed"),
    [
        (shape, ("float32", "float64")[(i + j // 2) % 2], *layout)
        for i, shape in enumerate([(19, 29, 700), (64, 33, 966), (1, 40, 1200), (5, 1, 4000)])
        for j, layout in enumerate(LAYOUTS)
    ],
)
def test_shapes(
    shape: tuple[int, int, int],
    dtype: str,
    a_transposed: bool,
    b_transposed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nor are dot products to be faster, as they are estimated to be by some machines' caches.
    monkeypatch.setattr(gemm, "_dots_pay", lambda *_: False)
    cpu = dataclasses.replace(small(), matrix_unit=shape[0] == 64 and small().matrix_unit)
    spec = Gemm(1, *shape, dtype, a_transposed, b_transposed)
    for epilogue in ("bias_relu", "accumulate"):
        case = build(spec, cpu=cpu, epilogue=epilogue)
        run_and_check(case, epilogue)
        # One line may be for other schedules, which share out sums as well.
        other = {"gemm_dot", "gemm_stream_sum"} if min(shape[:2]) <= 5 else set()
        assert case.stage_names[-1] in {"gemm_join", *other}


@pytest.mark.parametrize("scales", [(2.0, None), (None, 0.5), (2.0, 0.5)])
def test_operands_that_are_computed(scales: tuple[float | None, float | None]) -> None:
    case = build(
        Gemm(1, 24, 50, 1000, "float32", True, False),
        cpu=small(),
        a_scale=scales[0],
        b_scale=scales[1],
    )
    case.run()
    assert case.stage_names[-1] == "gemm_join"
    check(case, case.want() * (scales[0] or 1.0) * (scales[1] or 1.0))


def test_threads_do_not_change_a_bit() -> None:
    spec = Gemm(1, 64, 48, 2000, "float32", True, False)
    first = build(spec, cpu=dataclasses.replace(small(), workers=1))
    first.run()
    for workers in (2, 5):
        again = build(spec, cpu=dataclasses.replace(small(), workers=workers))
        again.a[...], again.b[...] = first.a, first.b
        again.run()
        np.testing.assert_array_equal(again.out, first.out)


def test_lines_along_sums_are_shared_out_as_a_whole() -> None:
    """Each thread reads its lines of the larger operand, in the order of memory and not twice."""
    cpu = dataclasses.replace(host(), l2_bytes=1 << 20)

    def of(m: int, n: int, a_transposed: bool, b_transposed: bool) -> int | None:
        return parts(Gemm(1, m, n, 4096, "float32", a_transposed, b_transposed), cpu)

    assert of(32, 256, False, True) is of(32, 256, True, True) is of(256, 32, False, False) is None
    assert of(32, 256, False, False) == of(256, 32, True, True) == 4
    assert of(64, 128, False, True) == 4  # not that much larger
    assert of(8, 60, False, True) == 2  # few lines


def test_where_sums_are_cut() -> None:
    """Where operands are larger than the caches and much larger than the result."""
    cpu = dataclasses.replace(host(), l2_bytes=2 << 20)

    def of(m: int, n: int, k: int, batch: int = 1) -> int | None:
        return parts(Gemm(batch, m, n, k, "float32", True, False), cpu)

    assert of(100, 256, 1000) == of(10, 784, 1000) == of(128, 128, 1024) == 2
    # Some 2.8 MB each, or a little less, and each thread as many.
    assert of(512, 128, 2048) == 2
    assert of(512, 128, 3000) == of(10, 784, 3000) == 4
    assert of(10, 784, 4000) == of(64, 64, 25088) == 8  # six divide neither
    assert of(64, 64, 100_000) == 20
    assert of(784, 256, 8000) == 10  # not 12: results of parts would be too large
    assert of(64, 64, 9999) == 3  # two do not divide it
    assert of(64, 64, 10_007) is None  # a prime
    assert of(10, 100, 1000) is None  # small
    assert of(256, 784, 1000) is None  # a large result
    assert of(10_000, 64, 784) is None  # many rows, each a thread's own
    assert of(100, 256, 1000, batch=2) is None


@pytest.mark.parametrize(("l2_bytes", "found"), [(2 << 20, 2), (1 << 20, None)])
def test_larger_results_are_cut_where_a_half_stays_near(l2_bytes: int, found: int | None) -> None:
    """The operands of one half, which a thread fetches once then, are 1.3 MB."""
    cpu = dataclasses.replace(host(), l2_bytes=l2_bytes)

    def of(m: int, n: int, k: int, *layout: bool) -> int | None:
        return parts(Gemm(1, m, n, k, "float32", *(layout or (True, False))), cpu)

    assert of(512, 128, 1024) == of(128, 384, 1024) == found  # ten times the result
    for layout in ((False, False), (False, True), (True, True)):  # lines along the sums
        assert of(100, 256, 784, *layout) is None
    assert of(256, 256, 1024) is None  # eight times
    assert of(1024, 128, 1280) is None  # with operands of 2.9 MB each


def test_where_products_that_are_added_up_are_cut() -> None:
    """Into parts of which both operands fit into half a core's cache."""

    def unused(*_: Any) -> Any:
        raise AssertionError("nothing is read")

    def of(k: int, l2_bytes: int, m: int = 64) -> tuple[int, int]:
        spec = Gemm(8, m, 64, k, "float32", False, True, a_pitch=k, b_pitch=k, summed=True)
        problem = gemm._problem(spec, unused, unused, unused)
        found = set()
        for workers in (1, 2, 16):  # bits do not depend on that
            cpu = target.CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, l2_bytes, workers=workers)
            cut = gemm._near(problem, cpu)
            found.add((cut.batch, cut.k))
        return found.pop() if len(found) == 1 else (0, 0)

    assert of(4032, 2 << 20) == (16, 2016)  # of all of it, threads could pack narrow panels only
    assert of(3136, 2 << 20) == (8, 3136)  # they pack wide ones as it is
    assert of(3136, 2 << 20, m=256) == (8, 3136)
    assert of(3136, 1 << 20) == (32, 784)
    assert of(3137, 1 << 20) == (8, 3137)  # none of 4 to 7 divides it
    assert of(3136, 1 << 20, m=256) == (64, 392)
    assert of(3136, 1 << 18, m=256) == (8, 3136)  # so many parts have more results than operands


@pytest.mark.parametrize(
    ("images", "much"), [(2, gemm._MUCH), (8, gemm._MUCH), (17, 0.1), (18, 4.0), (40, 0.2)]
)
def test_a_weight_gradient_of_pixels_is_summed_over_images(
    images: int, much: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart, fastest = much != gemm._MUCH, gemm.fastest
    if apart:  # of a cache of 1 MiB
        much *= (1 << 20) / host().l2_bytes

    def shared(pb: Problem, cpu: CpuTarget) -> Any:
        cost, tiling, found = fastest(pb, cpu)
        tiling = dataclasses.replace(tiling, own_panels=tiling.own_panels and not apart)
        return cost, tiling, found

    monkeypatch.setattr(gemm, "fastest", shared)
    monkeypatch.setattr(gemm, "_MUCH", much)
    if apart:
        monkeypatch.setattr(gemm, "_suits_unit", lambda *_: False)
    monkeypatch.setattr(conv, "_WEIGHTS_ON_UNIT", float("inf"))
    monkeypatch.setattr(conv, "_WEIGHTS_IN_VECTORS", float("inf"))
    joined, join = [], gemm._joined

    def noted(pb: Problem, *rest: Any) -> Any:
        joined.append((pb.batch, pb.row_pitch, pb.col_pitch))
        return join(pb, *rest)

    monkeypatch.setattr(gemm, "_joined", noted)
    lazy.clear_cache()
    rng = np.random.default_rng(8)
    x = rng.standard_normal((images, 48, 40, 40)).astype(np.float32)
    ct = rng.standard_normal((images, 64, 40, 40)).astype(np.float32)
    w = mt.zeros(64, 48, 1, 1, requires_grad=True)
    y = mt.nn.functional.conv2d(mt.tensor(x), w)
    (found,) = mt.autograd.grad(y, w, mt.tensor(ct))
    want = np.einsum("nohw,nchw->oc", ct.astype(np.float64), x.astype(np.float64))
    np.testing.assert_allclose(found.numpy()[:, :, 0, 0], want, rtol=1e-5, atol=1e-3)
    ((products, *pitches),) = joined
    assert pitches == [1600, 1600]  # read where they are
    least = 1600 * (48 + 64) * 4 / (much * host().l2_bytes)
    if apart:
        assert least <= products / images < 2 * (least + 1)
    lazy.clear_cache()
