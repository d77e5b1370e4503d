"""Products, norms and reductions against numpy; einsum runs as matrix products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.nn import functional as F
from minitorch_tvm.ops.movement import Permute

EQUATIONS = (
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("bji,bjk->bik", (2, 3, 4), (2, 3, 5)),
    ("ij,ij->i", (2, 3), (2, 3)),
    ("i,j->ji", (2,), (3,)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("...ij,...jk->...ik", (5, 1, 2, 3), (4, 3, 2)),
    ("ij->ji", (2, 3)),
    ("iji->j", (3, 2, 3)),
    ("ij->", (2, 3)),
    ("kj,ij->ik", (4, 3), (2, 3)),
    ("ij,kj->ik", (0, 3), (2, 3)),
)


def test_einsum(rng: np.random.Generator) -> None:
    arrays = [[rng.normal(size=s) for s in shapes] for _, *shapes in EQUATIONS]
    results = [
        mt.einsum(e[0], [mt.tensor(a) for a in xs]) for e, xs in zip(EQUATIONS, arrays, strict=True)
    ]
    mt.eval(*results)
    for (equation, *_), xs, got in zip(EQUATIONS, arrays, results, strict=True):
        want = np.einsum(equation, *xs)
        assert got.numpy().shape == want.shape, equation
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12, err_msg=equation)


def test_einsum_of_attention_moves_nothing_that_a_product_can_read() -> None:
    q, k = mt.ones(2, 4, 16, 8), mt.ones(2, 4, 16, 8)
    mt.eval(q, k)
    mt.eval(mt.einsum("bhqd,bhkd->bhqk", q, k))
    (kernel,) = lazy.last_executor().program.kernels
    assert kernel.name == "matmul"


def test_einsum_is_never_its_operand() -> None:
    x = mt.ones(2, 2)
    mt.einsum("ij->ij", x).zero_()
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]


ORDERS = (0, 1, 2, 3, 0.5, -1, -2, math.inf, -math.inf)


def test_norms(rng: np.random.Generator) -> None:
    a = rng.normal(size=(3, 4))
    a[0, 0] = 0
    x = mt.tensor(a)
    got: list[Any] = [x.norm(p, dim=1) for p in ORDERS] + [x.norm(), mt.norm(x, 3, (0, 1), True)]
    got += [mt.linalg.norm(x, p) for p in (None, "fro", 1, -1, math.inf, -math.inf)]
    mt.eval(*got)
    with np.errstate(divide="ignore"):
        want: list[Any] = [np.linalg.norm(a, p, axis=1) for p in ORDERS]
    want += [np.linalg.norm(a), np.linalg.norm(a.ravel(), 3).reshape(1, 1)]
    want += [np.linalg.norm(a, p) for p in (None, "fro", 1, -1, math.inf, -math.inf)]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-12)
    for order in (2, -2, "nuc"):
        got = mt.linalg.matrix_norm(x, order)
        np.testing.assert_allclose(got.numpy(), np.linalg.norm(a, order), rtol=1e-12)


def test_the_gradient_of_a_norm_of_zeros_is_zero() -> None:
    for p in (2, 1, 3, 0.5, math.inf):
        x = mt.zeros(3, requires_grad=True)
        x.norm(p).backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_products_and_their_gradients(rng: np.random.Generator) -> None:
    a = rng.normal(size=(5, 3, 7))
    x = mt.tensor(a, requires_grad=True)
    results = [x.prod(), *[x.prod(dim) for dim in range(3)], x.logsumexp((0, 2))]
    mt.eval(*results)
    want = [a.prod(), *[a.prod(dim) for dim in range(3)], np.log(np.exp(a).sum((0, 2)))]
    for g, w in zip(results, want, strict=True):
        np.testing.assert_allclose(g.detach().numpy(), w, rtol=1e-12)
    y = mt.tensor([2.0, 0.0, 3.0, 0.0, 5.0], requires_grad=True)
    (y[:3].prod() + y.prod()).backward()
    assert y.grad is not None
    assert y.grad.tolist() == [0.0, 6.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("count", [1, 2, 17, 1000, 100_003, 300_000])
def test_dot_products_are_sums(count: int, dtype: str, rng: np.random.Generator) -> None:
    lazy.clear_cache()  # else a program may run that has room for several sizes
    a, b = ((1000 * rng.normal(size=count)).astype(dtype) for _ in range(2))
    x, y = mt.from_numpy(a), mt.from_numpy(b)
    got = [mt.dot(x, y), x[None] @ y[:, None], mt.dot(x, x.flip(0)), mt.einsum("i,i->", x, y)]
    mt.eval(*got)
    assert not any("matmul" in k.name for k in lazy.last_executor().program.kernels) or count == 1
    whole = dtype == "int32"
    p, q = (c if whole else c.astype("float64") for c in (a, b))  # whole numbers wrap around
    slack = 0 if whole else np.finfo(dtype).eps * math.sqrt(count) * (np.abs(p) @ np.abs(q))
    for g, w in zip(got, [p @ q, p @ q, p @ p[::-1], p @ q], strict=True):
        assert abs(g.item() - w) <= slack
    if not whole:
        a[-1], b[-1] = 0, math.inf
        assert math.isnan(mt.dot(mt.tensor(a), mt.tensor(b)).item())


@pytest.mark.parametrize("shape", [(37, 20), (64, 3), (5, 9, 16), (6, 4, 33)])
def test_products_down_columns(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """They are those of rows, bit for bit, and rows are read as they lie in memory."""
    lazy.clear_cache()
    a = rng.normal(size=shape).astype("float32")
    x = mt.from_numpy(a)
    for dim in range(len(shape) - 1):
        got = x.prod(dim)
        mt.eval(got)
        assert not any(isinstance(v.op, Permute) for v in lazy.last_executor().program.graph.values)
        lines = np.ascontiguousarray(np.moveaxis(a, dim, -1))
        np.testing.assert_array_equal(got.numpy(), mt.from_numpy(lines).prod(-1).numpy())
        np.testing.assert_allclose(got.numpy(), a.astype("float64").prod(dim), rtol=1e-5)
    assert x.prod(0, keepdim=True).shape == (1, *shape[1:])


def test_distances(rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    x, y = mt.tensor(a), mt.tensor(b)
    results = [mt.cdist(x, y), mt.cdist(x, y, 1), F.cosine_similarity(x[:, None], y[None], dim=2)]
    results += [mt.outer(x[0], y[0]), mt.inner(x, y), mt.addmm(y[:4, :1], x, y.T[:, :2], beta=2)]
    mt.eval(*results)
    gaps = a[:, None] - b[None]
    lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    want = [np.linalg.norm(gaps, axis=2), np.abs(gaps).sum(2), a @ b.T / lengths]
    want += [np.outer(a[0], b[0]), a @ b.T, 2 * b[:4, :1] + a @ b.T[:, :2]]
    for g, w in zip(results, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-12)


def test_gradients_of_distances_of_many_rows(rng: np.random.Generator) -> None:
    """Made of products; against differences of all pairs, one of which is none."""
    a, b, up = rng.normal(size=(2, 1, 31, 5)), rng.normal(size=(3, 8, 5)), rng.normal(size=(31, 8))
    a[1, 0, 4] = b[2, 3]
    x, y = mt.tensor(a, requires_grad=True), mt.tensor(b, requires_grad=True)
    distances = mt.cdist(x, y)
    assert distances.shape == (2, 3, 31, 8)
    (distances * mt.tensor(up)).sum().backward()
    gaps = a[..., :, None, :] - b[..., None, :, :]
    lengths = np.linalg.norm(gaps, axis=-1)
    np.testing.assert_allclose(distances.detach().numpy(), lengths, rtol=1e-12)
    flows = gaps * (up / np.where(lengths == 0, np.inf, lengths))[..., None]
    np.testing.assert_allclose(x.grad.numpy(), flows.sum((1, 3))[:, None], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(y.grad.numpy(), -flows.sum((0, 2)), rtol=1e-9, atol=1e-12)


def test_second_derivatives_of_distances(rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(30, 3)), rng.normal(size=(4, 3))
    found = []
    for rows in (30, 20):  # the second time in parts, which need no products
        x = mt.tensor(a, requires_grad=True)
        parts = [mt.cdist(x[i : i + rows], mt.tensor(b)) for i in range(0, 30, rows)]
        loss = sum((p**3).sum() for p in parts)
        (slope,) = mt.autograd.grad(loss, x, create_graph=True)
        (slope**2).sum().backward()
        found.append(x.grad.numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


def test_gradients_of_distances_of_rows_far_from_zero(rng: np.random.Generator) -> None:
    """To the last digits of the differences, not of the rows; and one that is infinite does not
    spoil those of the others."""
    a = (1000 + rng.normal(size=(50, 4))).astype(np.float32)
    b = (1000 + rng.normal(size=(40, 4))).astype(np.float32)
    x, y = mt.tensor(a, requires_grad=True), mt.tensor(b, requires_grad=True)
    mt.cdist(x, y).sum().backward()
    gaps = a.astype(np.float64)[:, None] - b[None]
    flows = gaps / np.linalg.norm(gaps, axis=2)[..., None]
    np.testing.assert_allclose(x.grad.numpy(), flows.sum(1), atol=1e-4)
    np.testing.assert_allclose(y.grad.numpy(), -flows.sum(0), atol=1e-4)
    b[3, 2] = np.inf
    y = mt.tensor(b, requires_grad=True)
    mt.cdist(mt.tensor(a), y).sum().backward()
    rest = np.arange(40) != 3
    np.testing.assert_allclose(y.grad.numpy()[rest], -flows.sum(0)[rest], atol=1e-4)


def test_distances_of_rows_without_columns_keep_the_history() -> None:
    x = mt.zeros(2, 0, requires_grad=True)
    distances = mt.cdist(x, mt.zeros(5, 3, 0))
    assert distances.tolist() == [[[0.0] * 3] * 2] * 5
    distances.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (2, 0)
