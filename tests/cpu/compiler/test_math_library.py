"""More elementary functions over float32 and float64, against a wider type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_math import WIDE, doubles, needs_wide, same_zeros, singles, ulps

import minitorch_tvm as mt
from minitorch_tvm.compiler import target
from minitorch_tvm.core import config

Array = np.ndarray[Any, Any]


def _logit(x: Array) -> Array:
    near = 2 * np.arctanh(2 * x - 1)
    return np.where((x > 0.25) & (x < 0.75), near, np.log(x) - np.log1p(-x))


def _sinc(x: Array) -> Array:
    whole = np.rint(x)
    pi = WIDE("3.14159265358979323846264338327950288")
    sign = np.where(np.mod(whole, 2) == 0, 1, -1)
    return np.where(x == 0, 1, sign * np.sin(pi * (x - whole)) / (pi * x))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "log1p": np.log1p,
    "expm1": np.expm1,
    "log2": np.log2,
    "log10": np.log10,
    "exp2": np.exp2,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "logit": _logit,
    "sinc": _sinc,
}


@needs_wide
@pytest.mark.parametrize("isa", ["host", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_within_four_ulp(dtype: str, isa: str) -> None:
    """The last has no fused multiply-adds."""
    try:
        target.host(isa)
    except RuntimeError:
        pytest.skip("not a level of this machine")
    with config.override(isa=isa):
        _check(dtype)


def _check(dtype: str) -> None:
    x = singles() if dtype == "float32" else doubles()
    some = 5 if dtype == "float32" else 50  # of float32 most are vector code of this package
    corners = np.array([0.41421356, 0.5, 0.70710678, 1.0, 2.4142135, 89.415985, 127.99999, -151.0])
    near_zero = np.geomspace(1e-12, 1.0, 3000)
    more = np.concatenate([near_zero, *(corners * (1 + i * 6e-8) for i in range(-9, 10))])
    more = more.astype(x.dtype)
    x = np.concatenate([x[::some], x[-4000:], more, -more])
    t = mt.tensor(x)
    results = {name: getattr(t, name)() for name in FUNCTIONS}
    mt.eval(*results.values())
    for name, y in results.items():
        got = y.numpy()
        with np.errstate(all="ignore"):
            want = FUNCTIONS[name](x.astype(WIDE))
        worst = ulps(got, want)
        at = int(np.argmax(worst))
        assert worst[at] <= 4, f"{name}({x[at]!r}) = {got[at]!r}, not {want[at]!r}"
        same_zeros(got, want)


@needs_wide
@pytest.mark.parametrize("isa", ["host", "x86-64-v2"])
def test_functions_of_two_numbers_within_four_ulp(isa: str, rng: np.random.Generator) -> None:
    anything = rng.integers(0, 1 << 32, (2, 50_000), np.uint32).view(np.float32)
    middle = rng.normal(size=(2, 50_000)).astype(np.float32)
    scaled = middle * np.array([[1.0], [1e-6]], np.float32)
    x, y = np.concatenate([anything, middle, middle * np.float32(1e3), scaled], 1)
    with config.override(isa=isa):
        a, c = mt.tensor(x), mt.tensor(y)
        names = ("atan2", "hypot", "logaddexp", "logaddexp2")
        results = {name: getattr(a, name)(c) for name in names}
        mt.eval(*results.values())
    wide = {"atan2": np.arctan2, **{name: getattr(np, name) for name in names[1:]}}
    for name, got in results.items():
        with np.errstate(all="ignore"):
            want = wide[name](x.astype(WIDE), y.astype(WIDE))
        worst = ulps(got.numpy(), want)
        at = int(np.argmax(worst))
        assert worst[at] <= 4, f"{name}({x[at]!r}, {y[at]!r}) = {got[at]!r}, not {want[at]!r}"


def test_error_and_gamma_functions_against_float64() -> None:
    """Of float32, by those of float64, which the op table compares with others."""
    near = np.concatenate([np.geomspace(1e-12, 1, 20_000), 1 - np.geomspace(6e-8, 0.9, 20_000)])
    more = np.concatenate([near, -near, np.linspace(0, 11, 20_000)]).astype(np.float32)
    x = np.concatenate([singles()[::5], more])
    t = mt.tensor(x)
    for name in ("erfc", "erfinv", "lgamma", "digamma"):
        got, want = getattr(t, name)().numpy(), getattr(t.double(), name)().numpy()
        worst = ulps(got, want)
        at = int(np.argmax(worst))
        assert worst[at] <= 4, f"{name}({x[at]!r}) = {got[at]!r}, not {want[at]!r}"
        same_zeros(got, want)


def test_erfinv_of_float64_inverts_erf() -> None:
    """To what a step of Halley's method from there would change."""
    y = np.concatenate([np.geomspace(1e-300, 0.4, 2000), np.linspace(0.4, 5.8, 2000)])
    x = np.vectorize(math.erf)(y)
    got = mt.tensor(x).erfinv().numpy()
    slope = 2 / math.sqrt(math.pi) * np.exp(-got * got)
    off = np.where(x < 0.5, np.vectorize(math.erf)(got) - x, (1 - x) - np.vectorize(math.erfc)(got))
    inside = x < 1
    assert (np.abs(off / slope)[inside] <= 4 * np.spacing(got)[inside]).all()


def test_powers_are_exact() -> None:
    n = np.arange(-20, 21).astype(np.float32)
    results = (
        mt.tensor(n).exp2(),
        mt.tensor(2.0**n).log2(),
        mt.tensor(10.0 ** np.arange(11)).log10(),
    )
    mt.eval(*results)
    for got, want in zip(results, (2.0**n, n, np.arange(11)), strict=True):
        assert got.tolist() == want.tolist()


@needs_wide
def test_powers_of_any_bits(rng: np.random.Generator) -> None:
    """Rounded once, but for what float64 loses on the way; exact where the result is."""
    near_one = np.exp(rng.uniform(-1e-3, 1e-3, 20_000))
    tiny = np.exp(rng.uniform(-103, -86, 20_000))
    whole = rng.integers(-9, 10, (2, 20_000))
    anything = rng.integers(0, 1 << 32, (2, 100_000), np.uint32).view(np.float32)
    large, small = rng.uniform(-1e5, 1e5, 20_000), rng.uniform(-1.2, 1.2, 20_000)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x = np.concatenate([near_one, tiny, whole[0], anything[0]]).astype(np.float32)
        y = np.concatenate([large, small, whole[1], anything[1]]).astype(np.float32)
    got = (mt.tensor(x) ** mt.tensor(y)).numpy()
    with np.errstate(all="ignore"):
        want = np.power(x.astype(WIDE), y.astype(WIDE))
    assert ulps(got, want).max() <= 0.54
    same_zeros(got, want)


def test_roots_of_what_is_special() -> None:
    x = np.array([4.0, 0.0, -0.0, np.inf, -1.0, np.nan, 1e-45], np.float32)
    got = (mt.tensor(x) ** -0.5).numpy()  # as 1 / sqrt(x), so in PyTorch
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, 1 / np.sqrt(x))


def test_gradients_of_one_divided_by_a_square() -> None:
    """Also where that square's square is too small or too large."""
    x = mt.tensor([0.0, -0.0, 1e-12, 1e12, np.inf, -np.inf, 2.0], requires_grad=True)
    (x**-2).sum().backward()
    want = [-np.inf, np.inf, -2e36, -2e-36, -0.0, 0.0, -0.25]
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-6)


def test_fmod_is_exact(rng: np.random.Generator) -> None:
    """Of any bits, and of what is next to multiples, where a float32 quotient would be rounded."""
    any_bits = rng.integers(0, 1 << 32, (2, 20_000), np.uint32).view(np.float32)
    divisors = rng.normal(size=20_000).astype(np.float32)
    multiples = (rng.integers(1, 1 << 29, 20_000) * divisors.astype(np.float64)).astype(np.float32)
    x = np.concatenate([any_bits[0], multiples, np.nextafter(multiples, np.float32(0))])
    y = np.concatenate([any_bits[1], divisors, divisors])
    got = mt.tensor(x).fmod(mt.tensor(y)).numpy()
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~known)
    np.testing.assert_array_equal(got[known].view(np.uint32), want[known].view(np.uint32))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_do_not_depend_on_where_elements_lie(dtype: str, rng: np.random.Generator) -> None:
    """In vectors, or in what these leave over: where vectors end depends on sizes and threads."""
    x = (rng.uniform(0.001, 0.999, 20_011)).astype(dtype)
    names = [*FUNCTIONS, "exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "sqrt"]

    def results(values: Array) -> list[Array]:
        t = mt.tensor(values)
        found = [*(getattr(t, name)() for name in names), t**1.5, 3.0**t]
        mt.eval(*found)
        return [y.numpy() for y in found]

    whole = results(x)
    for first, count in ((0, 1), (5, 7), (13, 17), (3, 31), (1, 8191)):
        for name, y, part in zip(
            [*names, "power", "power of 3"], whole, results(x[first : first + count]), strict=True
        ):
            np.testing.assert_array_equal(part, y[first : first + count], err_msg=name)
