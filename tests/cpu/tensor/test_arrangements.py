"""Positions, order and structure: what torch does not tell, and larger examples."""

from __future__ import annotations

import numpy as np
import pytest

import minitorch_tvm as mt

SIZE = 3000


def test_searches_of_long_lines(rng: np.random.Generator) -> None:
    line = np.sort(rng.integers(-500, 500, SIZE))
    values = rng.integers(-600, 600, (40, 50))
    results = [
        (mt.searchsorted(mt.tensor(line), mt.tensor(values), side=side), side)
        for side in ("left", "right")
    ]
    few = [1, 7, -3]
    among = [
        mt.isin(mt.tensor(values), mt.tensor(few)),
        mt.isin(mt.tensor(values), mt.tensor(line)),
    ]
    mt.eval(*[r for r, _ in results], *among)
    for result, side in results:
        assert np.array_equal(result.numpy(), np.searchsorted(line, values, side))
    for got, elements in zip(among, (few, line), strict=True):
        assert np.array_equal(got.numpy(), np.isin(values, elements))


def test_running_extremes_and_sums_of_exponentials_of_long_lines(rng: np.random.Generator) -> None:
    a = rng.standard_normal((3, SIZE), np.float32)
    top, low = mt.tensor(a).cummax(1), mt.tensor(a.T).cummin(0)
    total = mt.tensor(a * 40).logcumsumexp(1)
    mt.eval(*top, *low, total)
    assert np.array_equal(top.values.numpy(), np.maximum.accumulate(a, 1))
    assert np.array_equal(low.values.numpy(), np.minimum.accumulate(a.T, 0))
    rows = np.arange(3)[:, None]
    assert np.array_equal(a[rows, top.indices.numpy()], top.values.numpy())
    want = np.logaddexp.accumulate((a * np.float32(40)).astype(np.float64), 1)
    assert np.allclose(total.numpy(), want, rtol=3e-7, atol=1e-5)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_what_goes_to_one_place(rng: np.random.Generator, reduce: str, include_self: bool) -> None:
    base, source = rng.standard_normal((2, 5)), rng.standard_normal((2, 60))
    index = rng.integers(0, 4, (2, 60))
    x, src = (mt.tensor(v, requires_grad=True) for v in (base, source))
    places = mt.tensor(index)
    want = base.copy()
    functions = {"sum": sum, "prod": np.prod, "mean": np.mean, "amax": max, "amin": min}
    for i, j in np.ndindex(2, 5):
        there = [*source[i][index[i] == j]]
        if there:
            want[i, j] = functions[reduce]([base[i, j], *there] if include_self else there)

    def reduced(x: mt.Tensor, src: mt.Tensor) -> mt.Tensor:
        return x.scatter_reduce(1, places, src, reduce, include_self=include_self)

    assert np.allclose(reduced(x, src).detach().numpy(), want, rtol=1e-12)
    assert mt.autograd.gradcheck(reduced, (x, src))


def test_many_products_for_one_place_with_zeros_are_differentiated() -> None:
    src = mt.tensor([2.0, 0.0, 3.0, 0.0, 4.0], requires_grad=True)
    place = mt.tensor([0, 0, 0, 1, 1])
    y = mt.ones(2).scatter_reduce(0, place, src, "prod")
    y.sum().backward()
    assert y.tolist() == [0.0, 0.0]
    assert src.grad.tolist() == [0.0, 6.0, 0.0, 4.0, 0.0]


def test_functions_without_second_derivatives_in_torch(rng: np.random.Generator) -> None:
    x = mt.tensor(rng.standard_normal((4, 3)), requires_grad=True)

    def gradient(f):  # type: ignore[no-untyped-def]
        def g(x: mt.Tensor) -> mt.Tensor:
            (found,) = mt.autograd.grad((f(x) ** 2).sum(), x, create_graph=True)
            return found

        return g

    for f in (
        mt.pdist,
        lambda x: mt.pdist(x, 3.0),
        lambda x: mt.vander(x[0], 5),
        lambda x: x.logcumsumexp(0),
        lambda x: x.scatter_reduce(0, mt.tensor([[0, 1, 0]] * 4), x * 2, "prod"),
        lambda x: x.quantile(0.3, 0),
        lambda x: x.cov(),
        lambda x: x.unfold(0, 2, 1),
    ):
        assert mt.autograd.gradcheck(gradient(f), x)


def test_windows_that_overlap_are_not_written() -> None:
    x = mt.arange(6.0)
    with pytest.raises(NotImplementedError, match="windows that overlap"):
        x.unfold(0, 3, 1).zero_()
    x.unfold(0, 2, 3)[1].zero_()
    assert x.tolist() == [0.0, 1.0, 2.0, 0.0, 0.0, 5.0]


def test_errors_of_what_is_still_to_be_computed_come_when_it_is() -> None:
    mask = mt.tensor([1.0, 2.0, 3.0]) * 2 > 1
    y = mt.zeros(3).masked_scatter(mask, mt.ones(2))
    with pytest.raises(RuntimeError, match="Number of elements of source < number of ones"):
        mt.eval(y)
    y = mt.arange(4.0).quantile(mt.tensor([0.5]) * 3)
    with pytest.raises(RuntimeError, match=r"q values must be in the range \[0, 1\]"):
        mt.eval(y)
    y = mt.tensor([1.0, float("nan")]).histc(3)
    with pytest.raises(RuntimeError, match="range is not finite"):
        mt.eval(y)


def test_what_is_not_evaluated() -> None:
    x = mt.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 0.5]])
    with mt.no_sync():
        results = [
            *x.mode(1),
            *x.nanmedian(1),
            x.quantile(mt.tensor([0.5]), 1),
            x.masked_scatter(x > 1, x),
            mt.bucketize(x, x[0]),
            mt.isin(x, x[1]),
            *x.cummax(1),
        ]
    mt.eval(*results)


@pytest.mark.parametrize("right", [False, True])
def test_what_is_missing_is_the_largest_among_boundaries(right: bool) -> None:
    rng = np.random.default_rng(0)
    for count in (0, 1, 4, 25):
        line = np.append(np.sort(rng.integers(0, 9, count)).astype("f"), [np.nan] * (count // 3))
        values = np.append(rng.integers(-1, 10, 40).astype("f"), np.nan)
        expected = np.searchsorted(line, values, "right" if right else "left")
        found = mt.searchsorted(mt.from_numpy(line), mt.from_numpy(values), right=right)
        np.testing.assert_array_equal(found.numpy(), expected)
        found = mt.bucketize(mt.from_numpy(values), mt.from_numpy(line), right=right)
        np.testing.assert_array_equal(found.numpy(), expected)
