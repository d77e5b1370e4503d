"""Reductions over every set of dimensions, and the functions that rearrange."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

NAN, INF = math.nan, math.inf
CUBE = np.random.default_rng(1).normal(size=(2, 3, 4)).round(2)


def _dims() -> list[Any]:
    chosen: list[Any] = [None, 0, -1, (0, -1), (-2, 0)]
    return chosen + [c for n in (1, 2, 3) for c in itertools.combinations(range(3), n)]


def _check(cases: list[tuple[Any, Any]]) -> None:
    mt.eval(*[t for t, _ in cases])
    for t, want in cases:
        want = np.asarray(want)
        assert t.numpy().dtype == want.dtype
        assert tuple(t.shape) == want.shape
        np.testing.assert_allclose(t.numpy(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("sum", np.sum),
        ("mean", np.mean),
        ("amax", np.max),
        ("amin", np.min),
        ("var", lambda a, **k: np.var(a, ddof=1, **k)),
        ("std", lambda a, **k: np.std(a, ddof=1, **k)),
        ("any", lambda a, **k: np.any(a > 0, **k)),
        ("all", lambda a, **k: np.all(a > -1.5, **k)),
    ],
)
def test_every_combination_of_dims(name: str, oracle: Callable[..., Any]) -> None:
    x = mt.tensor(CUBE)
    x = x > 0 if name == "any" else x > -1.5 if name == "all" else x
    cases = []
    for dims, keepdim in itertools.product(_dims(), (False, True)):
        got = getattr(x, name)(dim=dims, keepdim=keepdim)
        cases.append((got, oracle(CUBE, axis=dims, keepdims=keepdim)))
    _check(cases)


def test_max_and_min_along_a_dimension() -> None:
    for name, pick, find in (("max", np.max, np.argmax), ("min", np.min, np.argmin)):
        cases = []
        for dim, keepdim in itertools.product((0, 1, 2, -1), (False, True)):
            pair = getattr(mt.tensor(CUBE), name)(dim, keepdim)
            values, indices = pair
            assert pair.values is values
            assert pair.indices is indices
            cases.append((values, pick(CUBE, axis=dim, keepdims=keepdim)))
            cases.append((indices, find(CUBE, axis=dim, keepdims=keepdim)))
        cases.append((getattr(mt.tensor(CUBE), name)(), pick(CUBE)))
        cases.append((getattr(mt.tensor(CUBE), f"arg{name}")(), find(CUBE)))
        _check(cases)


def test_ties_and_nan() -> None:
    x = mt.tensor([[1.0, 3.0, 3.0], [NAN, 5.0, NAN], [-INF, -INF, -INF]])
    assert x.argmax(1).tolist() == [1, 0, 0]
    assert x.argmin(1).tolist() == [0, 0, 0]
    assert x.argmax().item() == 3
    values, indices = x.max(1)
    np.testing.assert_array_equal(values.numpy(), [3.0, NAN, -INF])
    assert indices.tolist() == [1, 0, 0]
    assert math.isnan(x.max().item())
    assert math.isnan(x.amin().item())
    np.testing.assert_array_equal(x.amax(0).numpy(), [NAN, 5.0, NAN])


def test_gradients_of_extrema() -> None:
    def gradient(f: Callable[[mt.Tensor], mt.Tensor], data: list[float]) -> list[float]:
        x = mt.tensor(data, requires_grad=True)
        f(x).backward()
        return x.grad.tolist()  # type: ignore[union-attr,no-any-return]

    tied = [1.0, 3.0, 3.0]
    assert gradient(lambda x: x.max(), tied) == [0.0, 0.5, 0.5]
    assert gradient(lambda x: x.amax(0), tied) == [0.0, 0.5, 0.5]
    assert gradient(lambda x: x.max(0).values, tied) == [0.0, 1.0, 0.0]
    assert gradient(lambda x: -x.min(0).values, [2.0, -1.0, -1.0]) == [0.0, -1.0, 0.0]
    assert gradient(lambda x: x.max(), [1.0, NAN, 2.0]) == [0.0, 1.0, 0.0]
    assert gradient(lambda x: mt.maximum(x, mt.tensor([1.0, 0.0, 9.0])).sum(), tied) == [0.5, 1, 0]
    assert gradient(lambda x: mt.maximum(x, mt.tensor([NAN, 0.0, 9.0])).sum(), tied) == [1, 1, 0]
    assert gradient(lambda x: x.clamp(1, 3).sum(), [0.0, 1.0, 3.5]) == [0.0, 1.0, 0.0]
    assert gradient(lambda x: x.clamp(min=0).sum(), [-1.0, 0.0, NAN]) == [0.0, 1.0, 0.0]
    assert gradient(lambda x: x.abs().sum(), [-2.0, 0.0, 2.0]) == [-1.0, 0.0, 1.0]
    assert gradient(lambda x: x.relu().sum(), [-2.0, 0.0, 2.0]) == [0.0, 0.0, 1.0]
    assert gradient(lambda x: x.std(), [2.0, 2.0, 2.0]) == [0.0, 0.0, 0.0]


def test_clamp_limits_and_passes_nan() -> None:
    x = mt.tensor([-2.0, 0.5, 2.0, NAN])
    cases = [
        (x.clamp(-1, 1), [-1.0, 0.5, 1.0, NAN]),
        (x.clamp(max=1), [-2.0, 0.5, 1.0, NAN]),
        (x.clip(1, -1), [-1.0, -1.0, -1.0, NAN]),
        (x.clamp(mt.tensor([0.0, 1.0, 3.0, 0.0])), [0.0, 1.0, 3.0, NAN]),
        (x.clamp(min=NAN), [NAN] * 4),
    ]
    mt.eval(*[t for t, _ in cases])
    for t, want in cases:
        np.testing.assert_array_equal(t.numpy(), np.array(want, "f"))


def test_integer_and_bool_reductions() -> None:
    assert mt.tensor([True, True]).sum().dtype is mt.int64
    assert mt.tensor([200, 100], dtype=mt.uint8).sum().item() == 300
    assert mt.tensor([1.5, 2.5]).sum(dtype=mt.int64).item() == 3
    assert mt.tensor([1, 2]).mean(dtype=mt.float64).item() == 1.5
    assert mt.tensor([[False, True]]).max(1).values.tolist() == [True]
    assert mt.tensor([1, 2]).max().dtype is mt.int64


def test_nothing_to_reduce() -> None:
    e = mt.zeros(0, 3)
    assert e.sum().item() == 0.0
    assert e.sum(0).tolist() == [0.0] * 3
    assert math.isnan(e.mean().item())
    assert tuple(e.amax(1).shape) == (0,)
    assert e.all().item() is True
    assert e.any().item() is False
    s = mt.tensor(3.0)
    for t in (s.sum(0), s.mean(-1), s.amax(), s.max(0).values):
        assert t.item() == 3.0
    with pytest.warns(UserWarning, match=r"var\(\): degrees of freedom is <= 0. Correction"):
        assert math.isnan(s.var().item())
    assert s.argmax(0).item() == 0


def test_var_corrections() -> None:
    x = mt.tensor([1.0, 2.0, 4.0, 9.0], dtype=mt.float64)
    a = x.numpy()
    for got, want in (
        (x.var(), a.var(ddof=1)),
        (x.var(unbiased=False), a.var()),
        (x.var(correction=2), a.var(ddof=2)),
        (x.std(0, False), a.std()),
        (mt.std(x, correction=0), a.std()),
        (mt.var(x, 0, keepdim=True), a.var(ddof=1)),
    ):
        assert got.item() == pytest.approx(want, rel=1e-12)
    for compute, name in ((mt.tensor([1.0, 2.0]).var, "var"), (mt.tensor([1.0, 2.0]).std, "std")):
        with pytest.warns(UserWarning, match=rf"{name}\(\): degrees of freedom is <= 0") as caught:
            assert compute(correction=2).item() == INF
        assert caught[0].filename == __file__
    for wrong in (
        lambda: x.var(0, True, correction=1),
        lambda: x.var(False, True),
        lambda: mt.std(x, 0, 2),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="received an invalid combination of arguments"):
            wrong()


def test_shapes_against_numpy() -> None:
    x, a = mt.tensor(CUBE), CUBE
    _check(
        [
            (x.reshape(6, -1), a.reshape(6, 4)),
            (x.view((4, 3, 2)), a.reshape(4, 3, 2)),
            (x.permute(2, 0, 1), a.transpose(2, 0, 1)),
            (x.permute((-1, -2, -3)), a.T),
            (x.transpose(0, -1), a.swapaxes(0, 2)),
            (x.T, a.T),
            (x.mT, a.swapaxes(1, 2)),
            (x[0].t(), a[0].T),
            (x[0, 0].expand(2, -1), np.stack([a[0, 0]] * 2)),
            (x[:, :1].expand_as(x), np.repeat(a[:, :1], 3, 1)),
            (mt.broadcast_to(x[0], (2, 3, 4)), np.stack([a[0]] * 2)),
            (x[:, None].squeeze(1), a),
            (x[:1].squeeze(), a[0]),
            (x[:1, :1].squeeze((0, 1)), a[0, 0]),
            (x.unsqueeze(-1), a[..., None]),
            (x.flatten(), a.ravel()),
            (x.flatten(1), a.reshape(2, 12)),
            (x.flatten(0, 1), a.reshape(6, 4)),
            (mt.cat([x, x * 2, x[:1]]), np.concatenate([a, a * 2, a[:1]])),
            (mt.cat([x, x], -1), np.concatenate([a, a], -1)),
            (mt.stack([x, x + 1], 1), np.stack([a, a + 1], 1)),
            (mt.stack([x, x], -1), np.stack([a, a], -1)),
            *zip(x.split(3, 2), np.split(a, [3], 2), strict=True),
            *zip(mt.split(x, [1, 3], 2), np.split(a, [1], 2), strict=True),
            *zip(x.chunk(2, 1), np.split(a, [2], 1), strict=True),
            (x.where(x > 0, -1.0), np.where(a > 0, a, -1.0)),
            (x.masked_fill(x > 0, 7), np.where(a > 0, 7.0, a)),
        ]
    )


def test_split_pieces_are_views() -> None:
    x = mt.zeros(5)
    first, second = x.split([2, 3])
    second.fill_(1)
    first[0] = 7
    assert x.tolist() == [7.0, 0.0, 1.0, 1.0, 1.0]
    assert [tuple(t.shape) for t in mt.zeros(0, 2).split(3)] == [(0, 2)]
    assert [t.numel() for t in mt.arange(7).chunk(3)] == [3, 3, 1]


def test_facts() -> None:
    x = mt.zeros(2, 3, dtype=mt.float64)
    assert (x.ndim, x.dim(), x.numel(), x.nelement(), len(x)) == (2, 2, 6, 6, 2)
    assert (x.nbytes, x.element_size(), x.size(-1), x.device.type) == (48, 8, 3, "cpu")
    assert x.is_contiguous()
    assert x.contiguous() is x
    assert (x.stride(), x.stride(0), x.T.stride(), x.T.stride(-1)) == ((3, 1), 3, (1, 3), 3)
    assert not x.T.is_contiguous()
    assert x.T.contiguous().stride() == (2, 1)
    assert x.is_floating_point()
    assert mt.is_tensor(x)
    assert not mt.is_tensor(3)
    assert mt.equal(x, mt.zeros(2, 3, dtype=mt.float64))
    assert not mt.equal(x, mt.zeros(3, 2))
    assert mt.allclose(x, x + 1e-9)
    assert len({x, mt.zeros(1)}) == 2


def test_creation() -> None:
    _check(
        [
            (mt.arange(5), np.arange(5)),
            (mt.arange(5, 0, -2), np.array([5, 3, 1])),
            (mt.arange(0.0, 1.0, 0.1, dtype=mt.float64), np.arange(0.0, 1.0, 0.1)),
            (mt.arange(3, dtype=mt.float64), np.arange(3.0)),
            (mt.linspace(0, 1, 5, dtype=mt.float64), np.linspace(0, 1, 5)),
            (mt.eye(2, 3, dtype=mt.float64), np.eye(2, 3)),
            (mt.full((2,), True), np.array([True, True])),
            (mt.full((), 2), np.array(2)),
            (mt.zeros_like(mt.ones(2, dtype=mt.int32)), np.zeros(2, "i4")),
            (mt.ones_like(mt.ones(2), dtype=mt.float64), np.ones(2)),
            (mt.full_like(mt.ones(2, dtype=mt.int64), 3), np.array([3, 3])),
            (mt.empty(2, 0, dtype=mt.float64), np.zeros((2, 0))),
            (mt.tensor([mt.tensor(1.0), mt.tensor(2.0)]), np.array([1, 2], "f")),
            (mt.tensor([[1, 2.5], [True, 0]]), np.array([[1, 2.5], [1, 0]], "f")),
            (mt.tensor([np.float64(1.5)]), np.array([1.5])),
            (mt.Tensor([1, 2]), np.array([1, 2], "f")),
            (mt.tensor([]), np.array([], "f")),
        ]
    )
