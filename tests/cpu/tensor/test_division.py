"""Whole quotients and remainders: against Python's own, and integers divided by zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.compiler.dialect import Scope
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS


def test_integers_divide_as_in_python() -> None:
    values = [-7, -6, -1, 0, 1, 5, 6, 7]
    divisors = [-3, -2, -1, 1, 2, 3, 100]
    pairs = [(a, b) for a in values for b in divisors]
    results = []
    for dtype in (mt.int32, mt.int64):
        x, y = (mt.tensor(list(v), dtype=dtype) for v in zip(*pairs, strict=True))
        results += [x // y, x % y, x.fmod(y), x.div(y, rounding_mode="trunc"), 7 // y, 7 % y]
        assert {r.dtype for r in results[-6:]} == {dtype}
    mt.eval(*results)
    wanted = [
        [a // b for a, b in pairs],
        [a % b for a, b in pairs],
        [int(math.fmod(a, b)) for a, b in pairs],
        [int(a / b) for a, b in pairs],
        [7 // b for _, b in pairs],
        [7 % b for _, b in pairs],
    ]
    for got, want in zip(results, wanted * 2, strict=True):
        assert got.tolist() == want


def test_floats_divide_as_in_python(rng: np.random.Generator) -> None:
    a = np.concatenate([rng.normal(0, 100, 300), rng.integers(-20, 20, 300) * 0.1, [1e20, 0.3]])
    b = np.concatenate([rng.normal(0, 3, 300), np.tile([0.1, -0.1, 0.3], 100), [-0.7, 0.1]])
    x, y = mt.tensor(a), mt.tensor(b)
    results = x // y, x % y, x.fmod(y)
    mt.eval(*results)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    assert results[0].tolist() == [p // q for p, q in pairs]
    assert results[1].tolist() == [p % q for p, q in pairs]
    assert results[2].tolist() == [math.fmod(p, q) for p, q in pairs]


@pytest.mark.parametrize("isa", ["", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize("shape", [(30_000,), (40, 500), (300, 3, 11)])
def test_large_quotients_among_small_ones(
    shape: tuple[int, ...], isa: str, rng: np.random.Generator
) -> None:
    """Some rows have none, some one, and some NaN, infinities, and zeros of both signs."""
    a = rng.normal(0, 100, shape).astype("float32").reshape(-1)
    b = rng.choice(np.array([0.1, -0.3, 2, 3, 1e-3, -7.25], "float32"), a.size)
    odd = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e20, 3e38, 1e-45], "float32")
    at = rng.choice(a.size // 3, 64, replace=False)
    a[at], b[at] = (rng.choice(odd, 64) for _ in range(2))
    a[-1], b[-1], a[-2], b[-2] = 3e38, 1e-3, -1e30, 7.0
    a, b = a.reshape(shape), b.reshape(shape)
    x, y = mt.from_numpy(a), mt.from_numpy(b)
    with config.override(**({"isa": isa} if isa else {})):
        results = [x.fmod(y), x % y, x // y, mt.exp(x.fmod(0.3)), (x % 3) + y]
        mt.eval(*results)
        in_place = mt.tensor(a)
        mt.eval(in_place)
        in_place %= y
        mt.eval(in_place)
    with np.errstate(all="ignore"):
        rest = np.fmod(a, b)
        below = (rest != 0) & ((rest < 0) != (b < 0))
        modulus = np.where(below, rest + b, rest)
        third = np.fmod(a, np.float32(3))
        third = np.where(third < 0, third + np.float32(3), third)
        tenths = np.exp(np.fmod(a, np.float32(0.3)))
    assert_same_bits(results[0], rest)
    assert_same_bits(results[1], modulus)
    assert_same_bits(in_place, modulus)
    assert_same_bits(results[4], third + b)
    np.testing.assert_allclose(results[3].numpy(), tenths, rtol=1e-6)
    with config.override(target="numpy"):
        want = (mt.from_numpy(a) // mt.from_numpy(b)).numpy()
    np.testing.assert_array_equal(results[2].numpy(), want)


def assert_same_bits(got: mt.Tensor, want: np.ndarray[Any, Any]) -> None:
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got.numpy()), ~known)
    words = (x[known].view(np.uint32) for x in (got.numpy(), want))
    np.testing.assert_array_equal(*words)


def test_small_quotients_need_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of most elements has none; a kernel of few elements, and one in place, is one."""
    called: list[tuple[bool, bool]] = []
    fmod = Scope._fmod

    def spied(scope: Scope, x: Any, y: Any) -> Any:
        called.append((scope._doubts is not None, scope._calls))
        return fmod(scope, x, y)

    monkeypatch.setattr(Scope, "_fmod", spied)
    quick, sure, either = (True, False), (False, True), (False, False)
    for count, want in ((20_011, {quick, sure}), (2_011, {either})):
        x = mt.from_numpy(np.ones(count, "float32"))
        called.clear()
        mt.eval(x.fmod(0.7) * 3)
        assert set(called) == want


def test_the_lowest_integer_by_minus_one_wraps() -> None:
    for dtype, low in ((mt.int32, -(2**31)), (mt.int64, -(2**63))):
        x = mt.tensor([low, low + 1], dtype=dtype)
        results = x // -1, x % -1, x.fmod(mt.tensor(-1, dtype=dtype))
        mt.eval(*results)
        assert [r.tolist() for r in results] == [[low, -low - 1], [0, 0], [0, 0]]


def test_integers_by_zero_are_refused() -> None:
    x, zero = mt.tensor([3, 4]), mt.tensor([1, 0])
    for refused in (
        lambda: x // 0,
        lambda: x % zero,
        lambda: x.fmod(0),
        lambda: 5 // zero,
        lambda: x.div(zero, rounding_mode="trunc"),
        lambda: x.clone().floor_divide_(0),
        lambda: mt.tensor([1], dtype=mt.uint8) // 256,  # as a uint8
    ):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            refused()
    assert (x / 0).tolist() == [math.inf, math.inf]
    assert (mt.tensor([1.0, -1.0]) // 0).tolist() == [math.inf, -math.inf]


def test_a_divisor_still_to_be_computed_is_refused_when_it_is_known() -> None:
    x, zero = mt.tensor([3, 4]), mt.tensor([2, 1]) - 1
    quotient, fine = x // zero, x + 1
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        mt.eval(fine)
    assert fine.tolist() == [4, 5]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        quotient.tolist()
    assert (x // (zero + 1)).tolist() == [1, 4]
    before = EVENTS.get("check_evaluations")
    assert (10 // mt.arange(1, 4)).tolist() == [10, 5, 3]  # known not to be zero
    rows = mt.tensor([[2], [3]], dtype=mt.int32).T  # wider, and moved
    assert (mt.tensor([7, 8]) // rows).tolist() == [[3, 2]]
    assert EVENTS.get("check_evaluations") == before


def test_in_place_forms_write_to_what_is_viewed() -> None:
    x = mt.tensor([[7.5, -7.5], [3.0, 4.0]])
    row = x[0]
    row //= 2
    row %= 3
    x[1].sqrt_().round_()
    x[:, 1].pow_(2).neg_()
    assert x.tolist() == [[0.0, -4.0], [2.0, -4.0]]
    with pytest.raises(RuntimeError, match="can't be cast"):
        mt.tensor([1]).exp_()
