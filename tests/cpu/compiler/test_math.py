"""The elementary functions over all of float32 and float64, against a wider type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.nn import functional as F

# 64 bits of mantissa on x86, 113 on others; where it is a float64 it can judge float32 only.
WIDE = np.longdouble
needs_wide = pytest.mark.skipif(np.finfo(WIDE).nmant < 60, reason="no type wider than float64")

Array = np.ndarray[Any, Any]


def erf(x: Array) -> Array:
    """exp(-x**2) 2 / sqrt(pi) times the sum of 2**n x**(2n + 1) / (1 3 .. (2n + 1)): no terms
    cancel.  Beyond 7 the distance to 1 is below 1e-22."""
    z = np.minimum(np.abs(x), WIDE(7))
    term, total = z, z
    for n in range(1, 260):
        term = term * (2 * z * z / WIDE(2 * n + 1))
        total = total + term
    value = total * np.exp(-z * z) * 2 / np.sqrt(4 * np.arctan(WIDE(1)))
    return np.copysign(np.where(np.abs(x) >= 7, WIDE(1), value), x)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "erf": erf,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
}


def near(corners: list[float], dtype: type, bits: type) -> Array:
    """Each corner with its fifty neighbours on either side, and all of them negated."""
    places = np.array(corners, dtype).view(bits).astype(object)
    top = 1 << (np.dtype(dtype).itemsize * 8 - 1)
    values = [p + i for p in places for i in range(-50, 51)]
    positive = np.array([v for v in values if 0 <= v < top], bits)
    return np.concatenate([positive, positive | bits(top)]).view(dtype)


def singles() -> Array:
    """Two million evenly spaced bit patterns, and the places where something changes."""
    even = np.arange(0, 1 << 32, 2147, dtype=np.uint64).astype(np.uint32).view(np.float32)
    corners = [
        0.0, 1e-45, 1.1754942e-38, 1.1754944e-38, 0.625, 0.70710677, 1.0, 3.92, 5.6, 9.0, 9.011,
        10.0, 12.64, 16.635532, 87.33654, 88.02969, 88.72283, 88.722839, 103.27893, 103.97208,
        104.0, 3.4028235e38, np.inf, np.nan, 0.7853982, 1.5707964, 3.1415927, 6.2831855,
        # The nearest to a multiple of a quarter of a turn of all:
        16367173.0 * 2.0**72, 16367173.0 * 2.0**73,
    ]  # fmt: skip
    return np.concatenate([even, near(corners, np.float32, np.uint32)])


def doubles() -> Array:
    """As :func:`singles`; more of them between 1e-20 and 1e3, of both signs."""
    even = np.arange(40_000, dtype=np.uint64) * np.uint64((1 << 64) // 40_000)
    middle = np.geomspace(1e-20, 1e3, 40_000)
    corners = [
        0.0, 5e-324, 2.225073858507201e-308, 2.2250738585072014e-308, 1e-20, 1e-9, 1e-3, 0.5,
        0.625, 0.7071067811865476, 1.0, 1.25, 2.857142857142857, 6.0, 19.06, 22.0, 36.7,
        708.3964185322641, 709.782712893384, 745.1332191019411, 1.7976931348623157e308,
        np.inf, np.nan,
    ]  # fmt: skip
    return np.concatenate(
        [even.view(np.float64), middle, -middle, near(corners, np.float64, np.uint64)]
    )


def ulps(got: Array, want: Array) -> Array:
    """Distances in units of the last place of ``got``'s type; 0 where both are equal or NaN."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        off = np.abs(got.astype(WIDE) - want) / np.spacing(np.abs(rounded)).astype(WIDE)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    return np.where(np.isnan(want) | (got == rounded), WIDE(0), off)


def same_zeros(got: Array, want: Array) -> None:
    zero = got == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


def check(name: str, x: Array) -> None:
    got = getattr(mt.tensor(x), name)().numpy()
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](x.astype(WIDE))
    worst = ulps(got, want)
    at = int(np.argmax(worst))
    assert worst[at] <= 4, f"{name}({x[at]!r}) = {got[at]!r}, not {want[at]!r}"
    same_zeros(got, want)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "erf"])
def test_within_four_ulp(name: str) -> None:
    check(name, singles())


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_near_multiples_of_quarters(name: str, rng: np.random.Generator) -> None:
    quarters = np.concatenate([rng.integers(0, 1 << n, 2000) for n in range(1, 60, 3)])
    check(name, (quarters.astype(np.longdouble) * (np.pi / 2)).astype(np.float32))


@pytest.mark.parametrize("width", [1, 10, 16, 17, 64, 1000])
def test_softmax_within_some_ulp(width: int, rng: np.random.Generator) -> None:
    """Four of an exponential, and what a sum and a division, or a reciprocal, add."""
    x = rng.normal(0, 10, (300, width)).astype(np.float32)
    x[0], x[1, 0], x[2] = 0, 200, -np.inf
    x[2, 0] = 3
    got = F.softmax(mt.tensor(x), dim=1).numpy()
    shifted = (x - x.max(1, keepdims=True)).astype(np.float64)  # as it is rounded
    powers = np.exp(shifted)
    want = powers / powers.sum(1, keepdims=True)
    np.testing.assert_array_less(np.abs(got - want), 8 * np.spacing(want.astype(np.float32)))
    assert (got[1:3, 0] == 1).all()  # alone beside what is negligible


def test_erf_within_four_ulp() -> None:
    x = singles()
    got = mt.tensor(x).erf().numpy()
    with np.errstate(invalid="ignore"):  # a signalling NaN
        want = np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64))
    assert ulps(got, want).max() <= 4
    same_zeros(got, want)


@needs_wide
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64_within_four_ulp(name: str) -> None:
    check(name, doubles())


@needs_wide
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pow_within_four_ulp(dtype: str, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(0, 4, 5000), np.exp(rng.uniform(-40, 40, 5000))])
    y = np.concatenate([rng.uniform(-30, 30, 5000), rng.uniform(-3, 3, 5000)])
    special = [0.0, -0.0, 1.0, -1.0, 2.0, -2.5, 3.0, np.inf, -np.inf, np.nan]
    pairs = np.array([(a, b) for a in special for b in special]).T
    x, y = (np.concatenate([a, b]).astype(dtype) for a, b in zip((x, y), pairs, strict=True))
    got = (mt.tensor(x) ** mt.tensor(y)).numpy()
    with np.errstate(all="ignore"):
        want = np.power(x.astype(WIDE), y.astype(WIDE))
    assert ulps(got, want).max() <= 4
    same_zeros(got, want)


def below(x: Array) -> Array:
    """The normal distribution function, in float64."""
    return np.vectorize(math.erfc, otypes=[np.float64])(x.astype(np.float64) * -math.sqrt(0.5)) / 2


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_all_float32(approximate: str) -> None:
    """Its error, and that of its gradient, are a few of the last place of what they are made of."""
    x = np.concatenate([singles(), np.linspace(-14, 14, 200_001, dtype=np.float32)])
    t = mt.tensor(x, requires_grad=True)
    got = F.gelu(t, approximate)
    got.sum().backward()
    with np.errstate(all="ignore"):  # signalling NaNs
        wide = x.astype(np.float64)
        if approximate == "none":
            share, slope = below(x), np.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)
        else:
            scale = math.sqrt(2 / math.pi)
            inner = np.tanh(scale * (wide + 0.044715 * wide**3))
            share = (1 + inner) / 2
            slope = (1 - inner**2) / 2 * scale * (1 + 3 * 0.044715 * wide**2)
        value, gradient = wide * share, share + wide * slope
        size = np.maximum(np.abs(wide), 1e-30)
        assert np.nanmax(np.abs(got.detach().numpy() - value) / size) <= 2.0**-22.5
        known = np.isfinite(gradient) & (np.abs(wide) < 1e18)  # x**2 may overflow beyond
        assert np.abs(t.grad.numpy() - gradient)[known].max() <= 2.0**-20
    found = got.detach().numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(value))
    negative = (x < 0) & np.isfinite(x)
    assert (found[negative] <= 0).all()
    assert (found[negative & (x < -12.7)] == 0).all()


def test_the_normal_distribution_keeps_nan_whatever_its_payload() -> None:
    bits = np.array([0x7FC00000, 0x7FC00001, 0x7FFFFFFF, 0xFFC001FF, 0x7F800001], np.uint32)
    x = mt.tensor(np.tile(bits, 8).view(np.float32), requires_grad=True)
    y = F.gelu(x)
    y.sum().backward()
    assert np.isnan(y.detach().numpy()).all()
    assert np.isnan(x.grad.numpy()).all()


@needs_wide
def test_gelu_is_exact_to_the_last_digits_of_its_argument() -> None:
    x = np.concatenate([-np.geomspace(1e-20, 40, 2000), np.geomspace(1e-20, 40, 2000), [0.0]])
    got = F.gelu(mt.tensor(x)).numpy()
    wide = x.astype(WIDE)
    want = wide / 2 * (1 + erf(wide / np.sqrt(WIDE(2))))
    # 1 + erf cancels below zero: what remains is known to the last place of 1, times the argument.
    assert (np.abs(got - want) <= 2 * np.spacing(np.abs(x))).all()
