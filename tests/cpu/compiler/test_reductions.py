"""Every path of the reduction, elementwise and window schedules, against float64 numpy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler.schedule.cpu.elementwise import GRAIN
from minitorch_tvm.compiler.target import host
from minitorch_tvm.core.tvm_api import global_func
from minitorch_tvm.nn import functional as F

# (The package gives the name to the schedule.)
reduction = sys.modules["minitorch_tvm.compiler.schedule.cpu.reduction"]

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((7,), (0,)),
    ((1,), (0,)),
    ((67,), (0,)),  # lanes and a tail
    ((130,), (0,)),
    ((3, 1), (1,)),
    ((5, 131), (1,)),
    ((131, 5), (0,)),
    ((37, 300), (0,)),  # full column blocks and a remainder
    ((4, 7, 129), (1,)),
    ((4, 7, 129), (0, 2)),
    ((4, 7, 129), (0, 1)),
    ((2, 3, 5, 7), (1, 3)),
    ((2, 1, 5, 1), (1, 2)),
    ((100_003,), (0,)),  # parts, the last of them shorter
    ((131_072,), (0,)),
    ((200_003, 3), (0,)),
    ((3, 100_003), (1,)),
    ((40_009, 2, 2), (0, 2)),
    ((1, 70_001), (0,)),
    ((2, 33, 1031), (1, 2)),
    ((1024, 512), (0,)),  # parts whose results are merged in blocks
    ((1031, 100), (0,)),  # the last of them smaller
    ((700, 5, 39), (0,)),
]


def both_ways(run: Any) -> list[np.ndarray]:
    """``run()`` on two threads and on one."""
    configure = global_func("runtime.config_threadpool")
    outs = []
    try:
        for threads in (2, 1):
            configure(1, threads)
            outs.append(run())
    finally:
        configure(1, 2)
    return outs


@pytest.mark.parametrize("length", [1, 3, 17, 64, 65, 100, 150])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_wins_wherever_it_stands(
    length: int, dtype: str, axis: int, rng: np.random.Generator
) -> None:
    """In vectors, in what they leave, before and after any number; and infinities are numbers."""
    a = rng.standard_normal((length + 3, length)).astype(dtype)
    np.fill_diagonal(a, np.nan)
    a[length:] = [[np.inf], [-np.inf], [-0.0]]
    x = mt.tensor(a if axis else a.T.copy())
    for found, want in ((x.amax(axis), a.max(1)), (x.amin(axis), a.min(1))):
        np.testing.assert_array_equal(found.numpy(), want)


@pytest.mark.parametrize(("shape", "dims"), SHAPES, ids=str)
def test_sums_and_extrema(
    shape: tuple[int, ...], dims: tuple[int, ...], rng: np.random.Generator
) -> None:
    a = rng.standard_normal(shape)
    count = a.size // max(1, np.prod([n for d, n in enumerate(shape) if d not in dims], dtype=int))
    kinds = [("float32", 1e-7), ("float64", 1e-15)]
    if SHAPES.index((shape, dims)) % 2:
        del kinds[1]  # of vectors half as long: every second shape has tails of those, too
    for dtype, epsilon in kinds:
        x = mt.tensor(a.astype(dtype))
        exact = a.astype(dtype).astype("float64")

        def run(x: mt.Tensor = x) -> list[mt.Tensor]:
            outs = [x.sum(dims), x.amax(dims, keepdim=True), x.amin(dims), (x * x).sum(dims) * 2]
            mt.eval(*outs)
            return [t.numpy() for t in outs]

        two, one = both_ways(run)
        for a2, a1 in zip(two, one, strict=True):
            np.testing.assert_array_equal(a2, a1)
        bound = 4 * epsilon * np.sqrt(count) * np.abs(exact).sum(dims) + 1e-30
        assert (np.abs(two[0] - exact.sum(dims)) <= bound).all()
        np.testing.assert_array_equal(two[1], exact.max(dims, keepdims=True))
        np.testing.assert_array_equal(two[2], exact.min(dims))
        np.testing.assert_allclose(two[3], 2 * (exact**2).sum(dims), rtol=40 * epsilon * 10)
    whole = mt.tensor((a * 100).astype("int64"))
    np.testing.assert_array_equal(whole.sum(dims).numpy(), (a * 100).astype("int64").sum(dims))
    np.testing.assert_array_equal(
        whole.int().amax(dims).numpy(), (a * 100).astype("int32").max(dims)
    )


@pytest.mark.parametrize("shape", [(5, 131), (131, 5), (3, 70_001), (1, 1), (4, 3, 33)])
def test_argmax_takes_the_first_of_equals_and_nan(
    shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    a = rng.integers(0, 4, shape).astype("float32")
    for d in range(len(shape)):
        x = mt.tensor(a)
        np.testing.assert_array_equal(x.argmax(d).numpy(), a.argmax(d))
        np.testing.assert_array_equal(x.argmin(d, keepdim=True).numpy(), a.argmin(d, keepdims=True))
    bad = a.copy().reshape(-1)
    bad[rng.integers(0, bad.size, 2)] = np.nan
    bad = bad.reshape(shape)
    for d in range(len(shape)):
        np.testing.assert_array_equal(mt.tensor(bad).argmax(d).numpy(), bad.argmax(d))
        np.testing.assert_array_equal(mt.tensor(bad).argmin(d).numpy(), bad.argmin(d))


@pytest.mark.parametrize("shape", [(7,), (5, 131), (131, 5), (200_003,), (3, 100_003)])
def test_one_nan_anywhere_shows(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    for position in (0, -1, int(np.prod(shape)) // 2):
        a = rng.standard_normal(shape).astype("float32")
        a.reshape(-1)[position] = np.nan
        x = mt.tensor(a)
        for d in range(len(shape)):
            np.testing.assert_array_equal(x.amax(d).numpy(), a.max(d))
            np.testing.assert_array_equal(x.amin(d).numpy(), a.min(d))
        assert np.isnan(x.sum().item())


@pytest.mark.parametrize(
    ("shape", "dims", "want"), [((0, 3), (0,), (3,)), ((3, 0), (1,), (3,)), ((0,), (0,), ())]
)
def test_empty_sums_are_zero(
    shape: tuple[int, ...], dims: tuple[int, ...], want: tuple[int, ...]
) -> None:
    for x in (mt.zeros(*shape), mt.zeros(*shape, dtype=mt.int64)):
        np.testing.assert_array_equal((x.sum(dims) + 1).numpy(), np.ones(want))
    assert mt.zeros(*shape).exp().numpy().shape == shape
    assert mt.zeros(0, 3).amax(1).numpy().shape == (0,)
    assert (mt.zeros(0, 3) @ mt.zeros(3, 2)).numpy().shape == (0, 2)
    np.testing.assert_array_equal((mt.zeros(2, 0) @ mt.zeros(0, 3)).numpy(), np.zeros((2, 3)))
    assert mt.cat([mt.zeros(0, 3), mt.ones(2, 3)]).sum().item() == 6


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((), ()),
        ((1,), (17,)),
        ((13, 1), (1, 11)),
        ((2 * GRAIN + 3,), ()),
        ((3, 2 * GRAIN + 5), (3, 1)),  # few long rows
        ((3, 2 * GRAIN + 5), (2 * GRAIN + 5,)),
        ((GRAIN + 1, 3), (1, 3)),
        ((7, 1, 5, 1), (1, 3, 1, 2)),
        ((1, 1), (5, 7)),
    ],
    ids=str,
)
def test_elementwise_of_any_shape(
    left: tuple[int, ...], right: tuple[int, ...], rng: np.random.Generator
) -> None:
    a = np.asarray(rng.standard_normal(left))
    b = np.asarray(rng.standard_normal(right))

    def run() -> np.ndarray:
        return (mt.tensor(a) * mt.tensor(b) + mt.tensor(a)).numpy()

    two, one = both_ways(run)
    np.testing.assert_allclose(two, a * b + a, rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(two, one)


def windows(a: np.ndarray, k: int, s: int, p: int, d: int, ceil: bool, fill: float) -> np.ndarray:
    """All windows of the last two dimensions, one after another: [n, c, oh, ow, k * k]."""

    def count(n: int) -> int:
        room = n + 2 * p - d * (k - 1) - 1
        out = (-(-room // s) if ceil else room // s) + 1
        return out - 1 if ceil and (out - 1) * s >= n + p else out

    oh, ow = count(a.shape[2]), count(a.shape[3])
    wide = np.pad(a, ((0, 0), (0, 0), (p, p + s * k), (p, p + s * k)), constant_values=fill)
    out = np.empty((*a.shape[:2], oh, ow, k * k))
    for y in range(oh):
        for x in range(ow):
            view = wide[:, :, y * s : y * s + d * k : d, x * s : x * s + d * k : d]
            out[:, :, y, x] = view[:, :, :k, :k].reshape(*a.shape[:2], k * k)
    return out


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(
    ("k", "s", "p", "d"), [(2, 2, 0, 1), (3, 2, 1, 1), (2, 3, 1, 2), (3, 1, 0, 2)]
)
def test_pooling_windows(
    k: int, s: int, p: int, d: int, ceil: bool, rng: np.random.Generator
) -> None:
    a = rng.standard_normal((2, 3, 11, 8))
    a[0, 1, 4, 5] = np.nan
    want = windows(a, k, s, p, d, ceil, -np.inf).max(-1)
    got = F.max_pool2d(mt.tensor(a), k, s, p, d, ceil_mode=ceil).numpy()
    np.testing.assert_array_equal(got, want)
    if d == 1 and not ceil:
        want = windows(a, k, s, p, 1, False, 0.0).mean(-1)
        got = F.avg_pool2d(mt.tensor(a), k, s, p).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_casts_out_of_range_do_not_crash() -> None:
    x = mt.tensor(np.array([1e30, -1e30, np.nan, np.inf, -np.inf, 3.7, -3.7]), dtype=mt.float64)
    for dtype in (mt.int32, mt.int64, mt.uint8, mt.bool):
        x.to(dtype).realize()
    np.testing.assert_array_equal(x.int().numpy()[5:], [3, -3])


def test_long_chains_compile_quickly() -> None:
    x = y = mt.tensor(np.linspace(-1, 1, 50))
    want = x.numpy().copy()
    for _ in range(150):
        y = y * 0.5 + y * y * 0.25
        want = want * 0.5 + want * want * 0.25
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-12, atol=1e-300)
    seconds = sum(lazy.last_executor().program.seconds.values())
    assert seconds < 10

    y = x
    want = x.numpy().copy()
    for i in range(60):
        y = mt.cat([y[1:], y[:1] * 0.5]) + y
        want = np.concatenate([want[1:], want[:1] * 0.5]) + want
        if i % 3 == 0:
            y, want = y * 0.5, want * 0.5
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-12)
    seconds = sum(lazy.last_executor().program.seconds.values())
    assert seconds < 20


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((10_000_000,), (0,)),
        ((3, 1_000_003), (1,)),
        ((1_000_000, 8), (0,)),
        ((400_003, 3), (0,)),
        ((500, 300, 40), (0, 1)),
        ((300, 7, 3000), (0, 2)),
        ((3000, 5, 300, 2), (0, 2)),
        ((300_000, 100), (0,)),
    ],
    ids=str,
)
def test_long_sums_keep_their_digits(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    tenth = np.float32(0.1)
    x = mt.tensor(np.full(shape, tenth))
    count = int(np.prod([shape[d] for d in dims]))
    two, one = both_ways(lambda: x.sum(dims).numpy())
    np.testing.assert_array_equal(two, one)
    np.testing.assert_allclose(two.astype(float), float(tenth) * count, rtol=5e-6)


@pytest.mark.parametrize(
    ("shape", "dim", "stages"),
    [((1024, 512), 0, 2), ((1024, 128), 0, 2), ((1000, 784), 1, 1), ((3, 131_072), 1, 3)],
)
def test_what_is_cut_into_parts(shape: tuple[int, int], dim: int, stages: int) -> None:
    """Columns that are a few times as many as their terms, too; rows only if they are few."""
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    base = mt.tensor(x)
    lazy.clear_cache()
    found = base.sum(dim).numpy()
    np.testing.assert_allclose(found, x.astype(np.float64).sum(dim), rtol=1e-5, atol=1e-3)
    (kernel,) = lazy.last_executor().program.kernels
    assert kernel.stages == stages


@pytest.mark.parametrize("shape", [(1031, 300), (8, 1000), (3, 129, 517), (77, 4100), (5, 40_000)])
def test_columns_that_come_from_memory(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """In long pieces of several rows at a time, in the order of before."""
    a = rng.standard_normal(shape)
    a.flat[rng.integers(0, a.size, 3)] = np.nan
    axis = len(shape) - 2
    pieces: list[bool] = []
    wide = reduction._Work.wide.fget
    assert wide is not None

    def noted(w: reduction._Work) -> bool:
        pieces.append(wide(w))
        return pieces[-1]

    monkeypatch.setattr(reduction._Work, "wide", property(noted))

    def run(dtype: str) -> list[np.ndarray]:
        x = mt.tensor(np.nan_to_num(a * 100).astype(dtype) if dtype == "int32" else a.astype(dtype))
        outs = [x.sum(axis), (x * x).sum(axis, keepdim=True) * 2, x.amax(axis), x.argmin(axis)]
        mt.eval(*outs)
        return [t.numpy() for t in outs]

    other = {(1031, 300): ["float64"], (3, 129, 517): ["int32"], (8, 1000): ["float64", "int32"]}
    for dtype in ("float32", *other.get(shape, [])):
        found = []
        for far in (12.0, 0.0):
            monkeypatch.setattr(reduction, "_FAR", far)
            monkeypatch.setattr(reduction, "_FAR_APART", far)
            lazy.clear_cache()
            pieces.clear()
            two, one = both_ways(lambda dtype=dtype: run(dtype))
            assert any(pieces) == (far == 0)
            for x, y in zip(two, one, strict=True):
                np.testing.assert_array_equal(x, y)
            found.append(two)
        (total, squares, *extrema), (far_total, far_squares, *far_extrema) = found
        for near, there in zip((total, *extrema), (far_total, *far_extrema), strict=True):
            assert near.tobytes() == there.tobytes()
        # Whether LLVM contracts a square with the addition depends on the loop around.
        np.testing.assert_allclose(squares, far_squares, rtol=1e-5)


_FEW = reduction._COLUMNS * host().lanes(4)  # columns that registers have results for


@pytest.mark.parametrize(
    ("columns", "caches", "long"),
    [(2048, 2, True), (2048, 1, False), (1000, 2, False), (1000, 12, True), (_FEW, 12, False)],
)
def test_which_columns_are_reduced_by_long_pieces(
    columns: int, caches: int, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those from memory, and those beyond a core's own cache if rows are a page or more apart."""
    wide = reduction._Work.wide.fget
    assert wide is not None
    found: list[bool] = []

    def noted(w: reduction._Work) -> bool:
        found.append(wide(w))
        return found[-1]

    monkeypatch.setattr(reduction._Work, "wide", property(noted))
    rows = -(-caches * host().l2_bytes // (4 * columns))
    x = mt.from_numpy(np.ones((rows, columns), np.float32))
    lazy.clear_cache()
    assert (x.sum(0).numpy() == rows).all()
    assert set(found) == {long}


@pytest.mark.parametrize("n", [(1 << 31) - 1, 1 << 31, 2_147_484_000])
def test_more_elements_than_32_bits_count(n: int) -> None:
    a = np.zeros(n, np.uint8)  # of which the system keeps the pages that are written
    a[[0, n // 2, -1]] = 3, 5, 9
    x = mt.from_numpy(a)
    assert (x.sum().item(), x.amax().item(), x.argmax().item()) == (17, 9, n - 1)
