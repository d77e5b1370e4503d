"""What is joined or inserted along the innermost dimension is stored piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy
from minitorch_tvm.compiler import streams
from minitorch_tvm.compiler.fuse import fuse
from minitorch_tvm.compiler.lower import KernelCode
from minitorch_tvm.compiler.schedule.cpu.pieces import pieces
from minitorch_tvm.core import config

Make = Callable[[Any, Any], Any]

CASES: dict[str, tuple[Make, Make]] = {
    "two": (
        lambda x, y: mt.cat([x, y], -1),
        lambda x, y: np.concatenate([x, y], -1),
    ),
    "parts of them": (
        lambda x, y: mt.cat([x[..., 3:], y[..., :5], x], -1) * 2,
        lambda x, y: np.concatenate([x[..., 3:], y[..., :5], x], -1) * 2,
    ),
    "a part of both": (
        lambda x, y: mt.cat([x, y], -1)[..., 7:-3] + 1,
        lambda x, y: np.concatenate([x, y], -1)[..., 7:-3] + 1,
    ),
    "many": (
        lambda x, y: mt.cat([x, y] * 6, -1),
        lambda x, y: np.concatenate([x, y] * 6, -1),
    ),
    "too many": (
        lambda x, y: mt.cat([x, y] * 12, -1),
        lambda x, y: np.concatenate([x, y] * 12, -1),
    ),
    "none of one": (
        lambda x, y: mt.cat([x[..., :0], x, y[..., :0], y, x[..., :0]], -1),
        lambda x, y: np.concatenate([x, y], -1),
    ),
    "rolled": (lambda x, y: x.roll(5, -1) - y, lambda x, y: np.roll(x, 5, -1) - y),
    "padded": (
        lambda x, y: F.pad(x, (2, 3), value=-1.5).abs(),
        lambda x, y: np.abs(np.pad(x, [(0, 0)] * (x.ndim - 1) + [(2, 3)], constant_values=-1.5)),
    ),
    "cropped and padded": (
        lambda x, y: F.pad(x, (-2, 3)),
        lambda x, y: np.pad(x[..., 2:], [(0, 0)] * (x.ndim - 1) + [(0, 3)]),
    ),
    "beside a broadcast": (
        lambda x, y: mt.cat([x, y], -1) + y[..., :1],
        lambda x, y: np.concatenate([x, y], -1) + y[..., :1],
    ),
}


@pytest.mark.parametrize("isa", ["", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize("shape", [(11,), (20_000,), (7, 19), (3, 40_000), (300, 64), (4, 5, 33)])
@pytest.mark.parametrize("case", CASES)
def test_against_numpy(
    case: str, shape: tuple[int, ...], isa: str, rng: np.random.Generator
) -> None:
    compute, reference = CASES[case]
    a, b = (rng.normal(size=shape).astype("float32") for _ in range(2))
    with config.override(poison=True, **({"isa": isa} if isa else {})):
        got = compute(mt.from_numpy(a), mt.from_numpy(b)).numpy()
    np.testing.assert_array_equal(got, reference(a, b))


def test_gradients(rng: np.random.Generator) -> None:
    x = mt.tensor(rng.normal(size=(3, 20)), requires_grad=True)
    y = mt.tensor(rng.normal(size=(3, 17)), requires_grad=True)
    assert mt.autograd.gradcheck(lambda x, y: F.pad(mt.cat([x, y[:, 2:], x], 1), (1, -2)), (x, y))


def _pieces(made: mt.Tensor) -> list[tuple[int, int]]:
    lazy.clear_cache()  # else, as this line has had other sizes, what runs has room for several
    mt.eval(made)
    graph = lazy.last_executor().program.graph
    (kernel,) = fuse(graph).kernels
    return pieces(KernelCode(graph, kernel, (), False), made.shape[-1])


def test_where_pieces_begin() -> None:
    x, y = (mt.from_numpy(np.zeros((3, n))) for n in (20, 30))
    found = [
        _pieces(mt.cat([x, y], 1)),
        _pieces(mt.cat([x, y], 1)[:, 4:44] + 1),
        _pieces(mt.cat([x, y], 1)[:, 4:44:2] + 1),
        _pieces(mt.cat([x, x]) + 1),
        _pieces(F.pad(y, (5, 15))),
        _pieces(mt.cat([x[:, :3], y[:, :3]], 1)),
    ]
    assert found == [
        [(0, 20), (20, 30)],
        [(0, 16), (16, 24)],
        [(0, 20)],  # every other element
        [(0, 20)],  # below each other
        [(0, 5), (5, 30), (35, 15)],
        [(0, 6)],  # short
    ]


@pytest.mark.parametrize(("count", "cut"), [(2, 2), (16, 16), (17, 1), (40, 1)])
def test_so_many_are_cut(count: int, cut: int) -> None:
    xs = [mt.from_numpy(np.zeros((3, 9))) for _ in range(count)]
    with mt.no_sync():  # or many would be joined at once
        joined = mt.cat(xs, 1)
    assert len(_pieces(joined)) == cut


def test_results_around_the_caches(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(streams, "_FAR", 0)
    monkeypatch.setattr(streams, "_SHARE", 0)
    a, b = (rng.normal(size=(60, n)).astype("float32") for n in (37, 64))
    lazy.clear_cache()
    try:
        for case in ("two", "padded", "rolled"):
            compute, reference = CASES[case]
            y = b if case == "two" else a[:, ::-1].copy()
            got = compute(mt.from_numpy(a), mt.from_numpy(y)).numpy()
            np.testing.assert_array_equal(got, reference(a, y))
    finally:
        lazy.clear_cache()
