"""Causal attention leaves out what is hidden: the same bits as all of it, in less time."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import target, triangles
from minitorch_tvm.compiler.schedule.cpu.gemm_triangles import Triangles
from minitorch_tvm.compiler.schedule.cpu.rows import _Block
from minitorch_tvm.core import config
from minitorch_tvm.core.tvm_api import tvm
from minitorch_tvm.nn import functional as F
from minitorch_tvm.ops.attention import attention_weights

Array = np.ndarray[Any, Any]


def attend(sizes: tuple[int, int, int, int, int], dtype: str) -> list[Array]:
    """Attention of ``batch, queries, keys, width, values' width``, and its gradients."""
    rng = np.random.default_rng(0)
    n, t, s, d, e = sizes
    shapes = (n, t, d), (n, s, d), (n, s, e), (n, t, e)
    *inputs, g = (mt.tensor(rng.standard_normal(shape).astype(dtype)) for shape in shapes)
    for x in inputs:
        x.requires_grad_()
    y = F.scaled_dot_product_attention(*inputs, is_causal=True)
    y.backward(g)
    results = [y.detach(), *(x.grad for x in inputs)]
    mt.eval(*results)
    return [r.numpy().copy() for r in results if r is not None]


def expected(sizes: tuple[int, int, int, int, int]) -> list[Array]:
    """The same by formula, in float64."""
    rng = np.random.default_rng(0)
    n, t, s, d, e = sizes
    shapes = (n, t, d), (n, s, d), (n, s, e), (n, t, e)
    q, k, v, g = (rng.standard_normal(shape) for shape in shapes)
    scores = np.where(np.tri(t, s) > 0, q @ k.swapaxes(1, 2) / np.sqrt(d), -np.inf)
    p = np.exp(scores - scores.max(2, keepdims=True))
    p /= p.sum(2, keepdims=True)
    dp = g @ v.swapaxes(1, 2)
    ds = p * (dp - (dp * p).sum(2, keepdims=True)) / np.sqrt(d)
    return [p @ v, ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ g]


def triangular() -> int:
    """How many products of the last program are known to be triangular."""
    kernels = lazy.last_executor().program.kernels
    return sum(k.name.startswith("triangularmatmul") for k in kernels)


# One to many tiles, odd everywhere, more keys than queries and fewer, rows of several walks, sums
# that are cut, rows that are copied because they are a power of two apart.
SIZES = [
    (2, 5, 5, 3, 3),
    (3, 64, 64, 32, 32),
    (2, 31, 31, 31, 17),
    (1, 64, 80, 16, 24),
    (2, 80, 64, 16, 24),
    (2, 129, 129, 20, 64),
    (1, 257, 333, 40, 100),
    (1, 1024, 1024, 128, 16),
    (1, 40, 40, 300, 300),
]


@pytest.mark.parametrize(
    ("isa", "unit"), [("host", False), ("host", True), ("x86-64-v3", False)], ids=str
)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_same_bits_as_all_of_it(
    sizes: tuple[int, int, int, int, int], isa: str, unit: bool
) -> None:
    """With memory filled with NaN beforehand: what is left out is neither read nor missing."""
    if unit and not target.host(isa).matrix_unit:
        pytest.skip("no matrix unit")
    dtype = "float64" if sizes[1] == 31 else "float32"
    with config.override(isa=isa, poison=True, matrix_unit=unit):
        lazy.clear_cache()
        part = attend(sizes, dtype)
        assert triangular() == 6
        lazy.clear_cache()
        with mock.patch.object(triangles, "hidden_in", return_value={}):
            whole = attend(sizes, dtype)
        assert triangular() == 0
    # Rows of four to eight vectors are added up in shorter steps where some are left out, and a
    # matrix unit may pay for the whole of these products, but not for a part.
    rounded = unit and sizes in ((1, 257, 333, 40, 100), (1, 1024, 1024, 128, 16))
    short = 4 <= sizes[2] // target.host(isa).lanes(8 if dtype == "float64" else 4) < 8
    for a, b in zip(part, whole, strict=True):
        if short or rounded:
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(a, b)
    if sizes[1] * sizes[2] < 10000:
        for a, b in zip(part, expected(sizes), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("rows", ["", "lower", "upper"])
@pytest.mark.parametrize("columns", ["", "lower", "upper"])
@pytest.mark.parametrize("result", ["", "lower", "upper"])
def test_steps_cover_all_terms(rows: str, columns: str, result: str) -> None:
    """By going through all tiles and blocks of k of a small product, and of its transpose."""
    m, n, k = 11, 9, 10
    fits = {"": lambda i, j: True, "lower": operator.ge, "upper": operator.le}
    some = Triangles(rows, columns, result)
    assert some.swap().swap() == some
    for triangle, (height, width) in ((some, (m, n)), (some.swap(), (n, m))):
        row, column = fits[triangle.rows], fits[triangle.columns]
        for i0 in range(0, height, 4):
            for j0 in range(0, width, 3):
                for k0 in range(0, k, 5):
                    found = triangle.steps((i0, 4), (j0, 3), (k0, 5))
                    first, behind = (0, 5) if found is None else map(_value, found)
                    wanted = any(
                        fits[triangle.result](i, j)
                        for i in range(i0, i0 + 4)
                        for j in range(j0, j0 + 3)
                    )
                    terms = [
                        p
                        for p in range(5)
                        if any(row(i, k0 + p) for i in range(i0, i0 + 4))
                        and any(column(k0 + p, j) for j in range(j0, j0 + 3))
                    ]
                    if wanted and terms:
                        assert first <= min(terms)
                        assert behind > max(terms)
                    elif not wanted:
                        assert behind <= first


def _value(expression: Any) -> int:
    """The number that an expression of literals is."""
    if isinstance(expression, int):
        return expression
    return int(tvm().sym.Analyzer().simplify(expression))


def with_infinite(values: slice, cotangents: slice) -> list[Array]:
    """Attention over 256 positions and its gradients, of infinite values and cotangents there."""
    q, k, v, g = (mt.randn(2, 256, 64) for _ in range(4))
    v[:, values], g[:, cotangents] = float("inf"), float("inf")
    mt.eval(q, k, v, g)
    lazy.clear_cache()
    for x in (q, k, v):
        x.requires_grad_()
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    dq, dk, dv = mt.autograd.grad(y, (q, k, v), g)
    return [t.detach().numpy() for t in (y, dq, dk, dv)]


NONE = slice(0, 0)


def test_terms_of_hidden_keys_are_left_out() -> None:
    """0 times infinity is NaN, so what is finite has not met it."""
    y, *_ = with_infinite(slice(200, 256), NONE)
    assert np.isfinite(y[:, :128]).all()
    assert not np.isfinite(y[:, 200:]).any()


def test_terms_of_queries_that_do_not_see_a_key_are_left_out() -> None:
    """Of keys' sums over queries, and of the rows that are packed for them."""
    *_, dv = with_infinite(NONE, slice(0, 64))
    assert np.isfinite(dv[:, 160:]).all()
    assert not np.isfinite(dv[:, :64]).any()


def test_results_behind_the_diagonal_are_left_out() -> None:
    """The gradient of weights would be infinite there, and rows go through all of it."""
    with mock.patch.object(_Block, "_seen", return_value=None):
        _, dq, *_ = with_infinite(slice(200, 256), NONE)
    assert np.isfinite(dq[:, :128]).all()
    assert not np.isfinite(dq[:, 200:]).any()


def test_rows_end_at_the_diagonal() -> None:
    """The same where products compute everything."""
    with mock.patch.object(Triangles, "steps", return_value=None):
        _, dq, *_ = with_infinite(slice(200, 256), NONE)
    assert np.isfinite(dq[:, :128]).all()
    assert not np.isfinite(dq[:, 200:]).any()


def test_what_the_user_sees_is_what_arithmetic_says() -> None:
    """Rows of NaN are NaN to their end, and hidden zeros times infinity are NaN."""
    q, k, other = mt.randn(4, 256, 16), mt.randn(4, 256, 16), mt.ones(4, 256, 256)
    q[:, 10, 3], other[:, 20, 200] = float("nan"), float("inf")
    mt.eval(q, k, other)
    lazy.clear_cache()
    weights = mt.Tensor._wrap(attention_weights(q.node, k.node, None, True, 1.0))
    scaled = weights * other
    mt.eval(weights, scaled)
    assert triangles.hidden_in(lazy.last_executor().program.graph)  # the mask is known
    found = weights.numpy()
    assert np.isnan(found[:, 10]).all()
    assert np.isnan(scaled.numpy()[:, 20, 200]).all()
    want = q.numpy().astype(np.float64) @ k.numpy().astype(np.float64).swapaxes(1, 2)
    want = np.where(np.tri(256) > 0, want, -np.inf)
    want = np.exp(want - want.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)


def test_validated_programs_compute_everything() -> None:
    """The reference knows of no triangles; it is compared with all that kernels store."""
    lazy.clear_cache()
    with config.override(validate=True):
        attend((1, 33, 33, 8, 8), "float32")
        assert triangular() == 0


@pytest.mark.parametrize("sizes", [(40, 40, 40), (30, 50, 20), (64, 16, 48)])
@pytest.mark.parametrize("where", ["rows", "columns", "result"])
@pytest.mark.parametrize("triangle", ["lower", "upper"])
def test_estimates_know_how_much_is_left(
    sizes: tuple[int, int, int], where: str, triangle: str
) -> None:
    m, n, k = sizes
    some = Triangles(**{where: triangle})
    taken = 0
    tiles = [(i0, j0) for i0 in range(0, m, 7) for j0 in range(0, n, 16)]
    for i0, j0 in tiles:
        found = some.steps((i0, 7), (j0, 16), (0, k))
        begin, stop = (0, k) if found is None else map(_value, found)
        taken += max(stop - begin, 0)
    assert some.share(sizes, (7, 16)) == pytest.approx(taken / (k * len(tiles)))


def test_programs_are_known_by_what_was_recorded(tmp_path: Path) -> None:
    """What is derived from a program, such as one that stores less, is found on disk by later
    processes, which load the program and have not looked for triangles."""
    with config.override(cache_dir=str(tmp_path)):
        lazy.clear_cache()
        attend((1, 33, 33, 8, 8), "float32")
        compiled = lazy.last_executor().program.graph
        lazy.clear_cache()
        attend((1, 33, 33, 8, 8), "float32")
        found = lazy.last_executor().program.graph
    assert triangular() == 6
    assert found == compiled
    assert not any(isinstance(v.op, triangles.TriangularMatmul) for v in compiled.values)
