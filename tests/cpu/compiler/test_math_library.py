"""Elementary functions of the C library over float32 and float64, against a wider type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_math import WIDE, doubles, needs_wide, same_zeros, singles, ulps

import minitorch_tvm as mt

Array = np.ndarray[Any, Any]
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
}


@needs_wide
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_within_four_ulp(dtype: str) -> None:
    x = singles() if dtype == "float32" else doubles()
    near_zero = np.geomspace(1e-12, 1.0, 3000).astype(x.dtype)
    x = np.concatenate([x[::50], x[-4000:], near_zero, -near_zero])
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
