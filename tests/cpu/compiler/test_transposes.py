"""Elementwise kernels that read permuted memory, against numpy."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler.target import host
from minitorch_tvm.core import config

transpose_rule = import_module("minitorch_tvm.compiler.schedule.cpu.transpose")


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((256, 784), (1, 0)),
        ((129, 85), (1, 0)),
        ((3, 64, 15, 14), (0, 2, 3, 1)),  # two dimensions that stay neighbours
        ((5, 40, 3, 50), (3, 0, 2, 1)),
        ((20, 30, 40), (2, 1, 0)),
        ((20, 30, 40), (1, 2, 0)),
        ((2, 4096, 16), (0, 2, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_permuted_reads(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    dtype: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whatever the caches of the machine that runs the tests.
    monkeypatch.setattr(transpose_rule, "_streams", lambda *_: False)
    lazy.clear_cache()
    a = (rng.standard_normal(shape) * 100).astype(dtype)
    turned = a.transpose(dims)
    b = (rng.standard_normal(turned.shape) * 100).astype(dtype)
    line = b.reshape(-1, b.shape[-1])[0].copy()
    x, y, z = mt.from_numpy(a), mt.from_numpy(b), mt.from_numpy(line)
    got = (x.permute(dims) * 2 + y * z).realize()
    assert lazy.last_executor().program.kernels[0].rule == "transpose"
    np.testing.assert_allclose(got.numpy(), turned * 2 + b * line, rtol=1e-6)
    np.testing.assert_array_equal(x.permute(dims).contiguous().numpy(), turned)


@pytest.mark.parametrize("streams", [True, False])
def test_squares_of_whole_lines_are_always_taken(
    streams: bool, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Only where a vector is part of a line may walking along the result be better."""
    monkeypatch.setattr(transpose_rule, "_streams", lambda *_: streams)
    lazy.clear_cache()
    a = rng.standard_normal((256, 784)).astype(np.float32)
    np.testing.assert_array_equal((mt.from_numpy(a).T * 2).numpy(), a.T * 2)
    whole = 4 * host(config.CONFIG.isa).lanes(4) == 64
    rule = "transpose" if whole or not streams else "elementwise"
    assert [k.rule for k in lazy.last_executor().program.kernels] == [rule]


@pytest.mark.parametrize(
    ("rows", "row_bytes", "megabytes", "streams"),
    [(256, 3136, 7, True), (256, 3136, 3, False), (256, 8192, 7, False), (300, 3136, 7, False)],
)
def test_few_streams_from_memory(rows: int, row_bytes: int, megabytes: int, streams: bool) -> None:
    cpu = replace(host(), l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=8 << 20)
    assert transpose_rule._streams(rows, row_bytes, megabytes << 20, cpu) == streams


def test_an_update_by_a_transpose_happens_once() -> None:
    """Its squares would overlap and update twice; the rule leaves it to another."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((130, 70)), rng.standard_normal((70, 130))
    x, y = mt.tensor(a), mt.tensor(b)
    mt.eval(x, y)
    x.sub_(y.T * 0.5)
    np.testing.assert_allclose(x.numpy(), a - 0.5 * b.T, rtol=1e-14)
    rules = [k.rule for k in lazy.last_executor().program.kernels]
    assert rules == ["elementwise"]
