"""Factors of matrices: sizes around panels, errors in time, and what is evaluated when."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS

INDEFINITE = [[1.0, 2.0], [2.0, 1.0]]


@pytest.mark.parametrize("n", [31, 32, 33, 64, 97])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factors_multiply_to_the_matrix(n: int, dtype: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, n, n)).astype(dtype)
    positive = x @ np.swapaxes(x, -1, -2) + n * np.eye(n, dtype=dtype)
    low = mt.linalg.cholesky(mt.tensor(positive)).numpy().astype("float64")
    p, lower, upper = (t.numpy().astype("float64") for t in mt.linalg.lu(mt.tensor(x)))
    inverse = mt.linalg.inv(mt.tensor(positive)).numpy().astype("float64")
    eps = n * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(low @ np.swapaxes(low, -1, -2), positive, atol=eps * 4 * n)
    np.testing.assert_allclose(p @ lower @ upper, x, atol=eps * 8)
    assert abs(lower).max() <= 1
    np.testing.assert_allclose(inverse @ positive, np.stack([np.eye(n)] * 2), atol=eps * 8)


def test_what_is_wrong_is_told_at_the_call() -> None:
    bad = mt.tensor(INDEFINITE) * 1.0  # pending
    before = mt.ones(2) * 2
    with pytest.raises(mt.linalg.LinAlgError, match="leading minor of order 2"):
        mt.linalg.cholesky(bad)
    jittered = mt.linalg.cholesky(bad + 2 * mt.eye(2))
    assert (before + jittered[1, 1]).shape == (2,)
    with pytest.raises(RuntimeError, match=r"\(Batch element 1\): The solver failed"):
        mt.linalg.solve(mt.stack([mt.eye(2), mt.ones(2, 2)]), mt.ones(2, 2, 1))


def test_a_factor_is_computed_once() -> None:
    x = mt.tensor([[4.0, 2.0], [2.0, 5.0]], requires_grad=True)
    low = mt.linalg.cholesky(x)
    count = EVENTS.snapshot()["evaluations"]
    assert low.tolist() == [[2.0, 0.0], [1.0, 2.0]]
    assert EVENTS.snapshot()["evaluations"] == count
    low.sum().backward()
    assert x.grad is not None


def test_where_nothing_may_be_evaluated_it_is_a_condition() -> None:
    x = mt.tensor(INDEFINITE)
    with mt.no_sync():
        factor, found = mt.linalg.cholesky(x), mt.linalg.cholesky_ex(x)
    with pytest.raises(mt.linalg.LinAlgError, match="order 2"):
        factor.sum().item()
    assert found.info.item() == 2


def test_a_captured_call_factors_each_time() -> None:
    @mt.compile
    def size(x: Any) -> Any:
        return mt.linalg.cholesky(x).sum() + mt.linalg.solve(x, mt.ones(2)).sum()

    for scale in (1.0, 4.0, 9.0, 16.0):
        expected = 2 * scale**0.5 + 2 / scale
        assert size(mt.eye(2) * scale).item() == pytest.approx(expected)
    with pytest.raises(mt.linalg.LinAlgError, match="order 1"):
        size(mt.eye(2) * -1.0).item()


def test_what_does_not_raise_evaluates_nothing() -> None:
    x = mt.tensor([[0.0, 2.0], [1.0, 0.0]]) * 1
    with mt.no_sync():
        results = mt.linalg.det(x), *mt.slogdet(x), *mt.linalg.solve_ex(x, mt.eye(2)), mt.logdet(x)
    assert [r.tolist() for r in results[:2]] == [-2.0, -1.0]
    assert np.isnan(results[-1].item())


def test_the_gradient_of_a_singular_determinant_is_made_of_minors() -> None:
    x = mt.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=mt.float64, requires_grad=True)
    mt.linalg.det(x).backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [[4.0, -2.0], [-2.0, 1.0]], rtol=1e-12)
    x.grad = None
    (x * 0).det().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]  # type: ignore[attr-defined]


def test_a_graph_may_have_many_factors_of_one_matrix() -> None:
    x = mt.randn(5, 4, 4, dtype=mt.float64)
    a = x @ x.mT + mt.eye(4, dtype=mt.float64)
    low = mt.linalg.cholesky(a)
    right = mt.randn(5, 4, 3, dtype=mt.float64)
    by_factor, by_lu = mt.cholesky_solve(right, low), mt.linalg.solve(a, right)
    logs = 2 * low.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    assert mt.allclose(by_factor, by_lu)
    assert mt.allclose(logs, mt.logdet(a))


@pytest.mark.parametrize("shape", [(40, 40), (70, 33), (20, 65), (3, 7, 7)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_orthonormal_factors(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape).astype(dtype)
    eps = max(shape) * float(np.finfo(dtype).eps)
    u, s, v = (t.numpy().astype("float64") for t in mt.linalg.svd(mt.tensor(x)))
    q, r = (t.numpy().astype("float64") for t in mt.linalg.qr(mt.tensor(x), "complete"))
    for square in (u, v, q):
        eye = np.broadcast_to(np.eye(square.shape[-1]), square.shape)
        np.testing.assert_allclose(square @ np.swapaxes(square, -1, -2), eye, atol=4 * eps)
    k = s.shape[-1]
    np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ v[..., :k, :], x, atol=20 * eps)
    np.testing.assert_allclose(q @ r, x, atol=10 * eps)
    exact = np.linalg.svd(x.astype("float64"), compute_uv=False)
    np.testing.assert_allclose(s, exact, atol=8 * eps)
    if shape[-1] == shape[-2]:
        symmetric = x + np.swapaxes(x, -1, -2)
        w, z = (t.numpy().astype("float64") for t in mt.linalg.eigh(mt.tensor(symmetric)))
        np.testing.assert_allclose(
            w, np.linalg.eigvalsh(symmetric.astype("float64")), atol=20 * eps
        )
        np.testing.assert_allclose(
            (z * w[..., None, :]) @ np.swapaxes(z, -1, -2), symmetric, atol=30 * eps
        )


def test_small_singular_values_are_accurate() -> None:
    scales = 10.0 ** -np.arange(0.0, 24.0, 6.0)
    x = np.diag(scales) @ (np.eye(4) + 0.1)
    exact = mt.linalg.svdvals(mt.tensor(x)).numpy()
    got = mt.linalg.svdvals(mt.tensor(x.astype("float32"))).numpy()
    np.testing.assert_allclose(got, exact, rtol=1e-5)


def test_factors_of_matrices_without_rank(rng: np.random.Generator) -> None:
    column = rng.standard_normal((6, 1)).astype("float32")
    # What elimination leaves of the last is rounding errors of rounding errors, down to the least.
    ones = np.ones((30, 12))
    for x in (np.zeros((6, 4)), column * np.ones((1, 4)), np.eye(6)[:, :4], ones, 1e18 * ones):
        u, s, v = mt.linalg.svd(mt.tensor(x.astype("float32")), False)
        eye = mt.eye(x.shape[1])
        assert mt.allclose(u.mT @ u, eye, atol=1e-5)
        assert mt.allclose(v @ v.mT, eye, atol=1e-5)
        assert mt.allclose((u * s) @ v, mt.tensor(x.astype("float32")), atol=1e-5)


def test_values_of_what_is_not_finite_are_not_numbers() -> None:
    x = mt.tensor([[1.0, math.nan], [math.nan, 2.0]])
    assert mt.linalg.eigh(x).eigenvalues.isnan().all()
    assert mt.linalg.svdvals(x).isnan().any()
    assert mt.linalg.svdvals(mt.tensor([[math.inf, 0.0], [0.0, 1.0]])).isnan().any()


@pytest.mark.parametrize("settings", [{"schedule": "default"}, {"target": "numpy"}])
def test_other_settings_give_the_same(settings: dict[str, Any], rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 5, 5))
    positive = x @ np.swapaxes(x, -1, -2) + np.eye(5)

    def results() -> list[Any]:
        a, s = mt.tensor(x), mt.tensor(positive)
        found = [mt.linalg.cholesky(s), mt.linalg.inv(a), *mt.linalg.qr(a), mt.linalg.svdvals(a)]
        return [t.numpy() for t in [*found, mt.linalg.eigvalsh(s), mt.linalg.pinv(a)]]

    want = results()
    with config.override(**settings):
        got = results()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
