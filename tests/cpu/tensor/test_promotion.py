"""dtypes of results against a table written out by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import dtype as dt

B, U, I, L, F, D = dt.bool_, dt.uint8, dt.int32, dt.int64, dt.float32, dt.float64
NAN = math.nan
ORDER = (B, U, I, L, F, D)

# Two tensors of equal standing, row with column.
PAIRS = (
    (B, U, I, L, F, D),
    (U, U, I, L, F, D),
    (I, I, I, L, F, D),
    (L, L, L, L, F, D),
    (F, F, F, F, F, D),
    (D, D, D, D, D, D),
)
# A tensor with dimensions (row) and a 0-d tensor (column): only a higher category wins.
WITH_SCALAR_TENSOR = (
    (B, U, I, L, F, D),
    (U, U, U, U, F, D),
    (I, I, I, I, F, D),
    (L, L, L, L, F, D),
    (F, F, F, F, F, F),
    (D, D, D, D, D, D),
)
# A tensor (row) and True, 2, 2.5.
WITH_NUMBER = ((B, L, F), (U, U, F), (I, I, F), (L, L, F), (F, F, F), (D, D, D))


def test_result_type_follows_the_table() -> None:
    for (i, a), (j, b) in itertools.product(enumerate(ORDER), repeat=2):
        x, y = mt.ones(2, dtype=a), mt.ones(2, dtype=b)
        x0, y0 = mt.ones((), dtype=a), mt.ones((), dtype=b)
        assert mt.result_type(x, y) is PAIRS[i][j], (a, b)
        assert mt.result_type(x0, y0) is PAIRS[i][j], (a, b)
        assert mt.result_type(x, y0) is WITH_SCALAR_TENSOR[i][j], (a, b)
        assert mt.result_type(y0, x) is WITH_SCALAR_TENSOR[i][j], (a, b)
    for i, a in enumerate(ORDER):
        for j, number in enumerate((True, 2, 2.5)):
            for x in (mt.ones(2, dtype=a), mt.ones((), dtype=a)):
                assert mt.result_type(x, number) is WITH_NUMBER[i][j], (a, number)
                assert (x + number).dtype is WITH_NUMBER[i][j]
                assert (number * x).dtype is WITH_NUMBER[i][j]
                assert (x == number).dtype is B


def test_dtype_names_and_conversions() -> None:
    assert [repr(d) for d in ORDER] == [
        f"mt.{n}" for n in ("bool", "uint8", "int32", "int64", "float32", "float64")
    ]
    assert (mt.float, mt.double, mt.long, mt.int) == (F, D, L, I)
    assert dt.as_dtype(float) is D
    assert dt.as_dtype(int) is L
    assert dt.as_dtype(bool) is B
    assert dt.as_dtype("float64") is D
    with pytest.raises(TypeError, match="dtype must be a minitorch_tvm dtype, but got 'float16'"):
        mt.zeros(2, dtype="float16")
    x = mt.tensor([1.75, -1.75, 0.0])
    casts: list[tuple[Any, Any, Any]] = [
        (x.int(), I, [1, -1, 0]),
        (x.long(), L, [1, -1, 0]),
        (x.bool(), B, [True, True, False]),
        (x.double(), D, [1.75, -1.75, 0.0]),
        (x.to(mt.tensor(1)), L, [1, -1, 0]),
        (x.to("cpu", dtype=mt.int32), I, [1, -1, 0]),
        (x.type_as(mt.tensor(True)), B, [True, True, False]),
        (mt.tensor([True, False]).float(), F, [1.0, 0.0]),
    ]
    mt.eval(*[t for t, _, _ in casts])
    for t, kind, values in casts:
        assert t.dtype is kind
        assert t.tolist() == values
    assert x.float() is x
    assert x.cpu() is x
    with pytest.raises(AssertionError, match="only device 'cpu' is supported"):
        x.to("cuda")


def test_integers_wrap_and_compare_as_numbers() -> None:
    u = mt.tensor([1, 255], dtype=mt.uint8)
    cases = [
        (u + 1, [2, 0]),
        (u + (-1), [0, 254]),
        (u * 300, [44, 212]),
        (-u, [255, 1]),
        (u - mt.tensor([2, 0], dtype=mt.uint8), [255, 255]),
        (u == 300, [False, False]),
        (u > -1, [True, True]),
        (u < 300, [True, True]),
        (mt.tensor([1], dtype=mt.int32) + 2**31, [-(2**31) + 1]),
        (mt.tensor([2**62]) * 4, [0]),
        (mt.tensor([2**53 + 1]) > 2**53, [True]),
    ]
    mt.eval(*[t for t, _ in cases])
    for t, want in cases:
        assert t.tolist() == want
    for refused in (
        lambda: u.fill_(256),
        lambda: u.masked_fill(u == 1, -1),
        lambda: mt.full((2,), 300, dtype=mt.uint8),
        lambda: mt.tensor([300], dtype=mt.uint8),
    ):
        with pytest.raises(RuntimeError, match="value cannot be converted to type uint8 without"):
            refused()
    for number in (2.75, -2.75, True):
        assert mt.zeros(1, dtype=mt.int32).fill_(number).tolist() == [int(number)]
        assert mt.zeros(1, dtype=mt.bool).fill_(number).tolist() == [True]
    for number in (NAN, math.inf, 1e30):
        with pytest.raises(RuntimeError, match="value cannot be converted to type int64 without"):
            mt.zeros(1, dtype=mt.int64).fill_(number)
    with pytest.raises(OverflowError, match="int too big to convert"):
        u + 2**70
