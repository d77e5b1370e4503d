"""The elementary functions over all of float32, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import minitorch_tvm as mt

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "erf": lambda x: np.vectorize(math.erf, otypes=[np.float64])(x),
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.exp(-np.logaddexp(0.0, -x)),
}


def samples() -> np.ndarray:
    """Two million evenly spaced bit patterns, and the places where something changes."""
    even = np.arange(0, 1 << 32, 2147, dtype=np.uint64).astype(np.uint32)
    corners = np.array(
        [0.0, 1e-45, 1.1754942e-38, 1.1754944e-38, 0.625, 0.70710677, 1.0, 3.92, 9.0, 16.635532,
         87.33654, 88.02969, 88.72283, 88.722839, 103.27893, 103.97208, 104.0,
         3.4028235e38, np.inf, np.nan],
        np.float32,
    ).view(np.uint32)  # fmt: skip
    near = (corners[:, None].astype(np.int64) + np.arange(-50, 51)).ravel()
    near = near[(near >= 0) & (near < 1 << 31)].astype(np.uint32)
    return np.concatenate([even, near, near | np.uint32(1 << 31)]).view(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_four_ulp(name: str) -> None:
    x = samples()
    assert x.size > 2_000_000
    got = getattr(mt.tensor(x), name)().numpy()
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](x.astype(np.float64))
        rounded = want.astype(np.float32)
        ulps = np.abs(got.astype(np.float64) - want) / np.spacing(np.abs(rounded)).astype(float)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    known = ~np.isnan(want) & (got != rounded)
    worst = np.where(known, ulps, 0.0)
    at = int(np.argmax(worst))
    assert worst[at] <= 4, f"{name}({x[at]!r}) = {got[at]!r}, not {want[at]!r}"
    zero = got == 0
    signs = np.signbit(got[zero]) == np.signbit(rounded[zero])
    assert signs.all()
