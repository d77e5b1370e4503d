"""Operators: reflected, with numbers, comparisons, logic, powers, products, and who refuses."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

NAN, INF = math.nan, math.inf


def _check(cases: list[tuple[Any, Any]], rtol: float = 1e-6) -> None:
    mt.eval(*[t for t, _ in cases])
    for t, want in cases:
        np.testing.assert_allclose(t.numpy(), np.array(want), rtol=rtol)


def test_arithmetic_with_numbers_on_both_sides() -> None:
    x, n = mt.tensor([1.0, 4.0]), mt.tensor([3, -7])
    _check(
        [
            (x + 1, [2, 5]),
            (1 + x, [2, 5]),
            (x - 1, [0, 3]),
            (1 - x, [0, -3]),
            (x * 3, [3, 12]),
            (3 * x, [3, 12]),
            (x / 2, [0.5, 2]),
            (2 / x, [2, 0.5]),
            (x**2, [1, 16]),
            (2**x, [2, 16]),
            (-x, [-1, -4]),
            (+x, [1, 4]),
            (abs(n), [3, 7]),
            (n / 2, [1.5, -3.5]),
            (n / mt.tensor([2, 0]), [1.5, -INF]),
            (x.add(n, alpha=2), [7, -10]),
            (x.sub(1, alpha=2), [-1, 2]),
            (mt.mul(x, n), [3, -28]),
            (mt.div(x, x), [1, 1]),
            (x.square(), [1, 16]),
        ]
    )


def test_powers() -> None:
    x = mt.tensor([0.0, 2.0, -3.0, NAN], dtype=mt.float64)
    with np.errstate(all="ignore"):
        a = x.numpy()
        exponents = (-2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 2.5, 2.0, -3)
        cases = [(x**e, a ** float(e)) for e in exponents]
        # A square root of -0.0 aside, halves are roots: NaN below zero.
        _check(cases, 1e-12)
    n = mt.tensor([2, -3, 0])
    _check([(n**e, n.numpy() ** e) for e in (0, 1, 2, 5)])
    assert (n**2).dtype is mt.int64
    assert (n**2.0).dtype is mt.float32
    y = mt.tensor([0.0, 2.0], requires_grad=True)
    (y**0).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [0.0, 0.0]
    e = mt.tensor([0.0, 2.0], requires_grad=True)
    (mt.tensor([0.0, 0.0]) ** e).sum().backward()
    assert e.grad is not None
    assert e.grad.tolist() == [0.0, 0.0]


def test_comparisons() -> None:
    x, y = mt.tensor([1.0, NAN, 3.0]), mt.tensor([1.0, NAN, 2.0])
    a, b = x.numpy(), y.numpy()
    cases = []
    for op in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        cases += [(op(x, y), op(a, b)), (op(x, 1), op(a, 1)), (op(1, x), op(1, a))]
        cases.append((getattr(x, op.__name__)(y), op(a, b)))
    _check(cases)
    assert all(t.dtype is mt.bool for t, _ in cases)
    assert (x == "a") is False
    assert (x != None) is True  # noqa: E711
    assert x.isnan().tolist() == [False, True, False]


def test_logic() -> None:
    p, q = mt.tensor([True, True, False, False]), mt.tensor([True, False, True, False])
    _check(
        [
            (p & q, [True, False, False, False]),
            (p | q, [True, True, True, False]),
            (p ^ q, [False, True, True, False]),
            (~p, [False, False, True, True]),
            (True & q, [True, False, True, False]),
            (q | False, [True, False, True, False]),
            (True ^ q, [False, True, False, True]),
            (p + q, [True, True, True, False]),
            (p * q, [True, False, False, False]),
            (mt.maximum(p, q), [True, True, True, False]),
            (mt.minimum(p, q), [True, False, False, False]),
            (mt.tensor([0, 2]).logical_not(), [True, False]),
            (p < q, [False, False, True, False]),
        ]
    )
    assert (p + q).dtype is mt.bool
    assert (p + 1).dtype is mt.int64


def test_products() -> None:
    rng = np.random.default_rng(0)
    shapes = [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 2)),
        ((5, 2, 3), (5, 3, 4)),
        ((4, 1, 2, 3), (5, 3, 1)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
    ]
    cases = []
    for s, t in shapes:
        a, b = rng.normal(size=s), rng.normal(size=t)
        cases.append((mt.tensor(a) @ mt.tensor(b), a @ b))
    _check(cases, 1e-12)


def test_where_and_softmax() -> None:
    x = mt.tensor([[1e4, 0.0], [-INF, 1.0]])
    soft = np.array([[1.0, 0.0], [0.0, 1.0]])
    _check(
        [
            (mt.where(x > 0, x, 0.0), [[1e4, 0], [0, 1]]),
            (mt.where(x > 0, 1.0, x), [[1, 0], [-INF, 1]]),
            (x.softmax(1), soft),
            (mt.log_softmax(x, -1), [[0, -1e4], [-INF, 0]]),
            (mt.softmax(mt.tensor([2.0, 2.0]), 0), [0.5, 0.5]),
            (mt.sigmoid(mt.tensor([-1e4, 0.0, 1e4])), [0, 0.5, 1]),
        ]
    )


@pytest.mark.parametrize("schedule", ["ours", "default"])
@pytest.mark.parametrize("dtype", [mt.uint8, mt.int32, mt.int64])
def test_integers_to_the_power_of_integers_wrap(dtype: Any, schedule: str) -> None:
    signed = dtype is not mt.uint8
    bits = dtype.itemsize * 8
    bases = [0, 1, 2, 3, 7, 255, *([-1, -2, -3, -(1 << bits - 1)] if signed else [])]
    exponents = [0, 1, 2, 5, 8, 63, 64, 127, *([-1, -2, -3, -(1 << bits - 1)] if signed else [])]
    half = 1 << bits - 1 if signed else 0

    def power(x: int, y: int) -> int:
        if y < 0:
            return x ** (-y % 2) if x in (1, -1) else 0
        return (pow(x, y, 1 << bits) + half) % (1 << bits) - half

    with mt.core.config.override(schedule=schedule):
        x, y = mt.tensor(bases, dtype=dtype), mt.tensor(exponents, dtype=dtype)
        z = x[:, None] ** y
        assert z.dtype is dtype
        assert z.tolist() == [[power(i, j) for j in exponents] for i in bases]


def test_integer_powers_promote() -> None:
    x = mt.tensor([2, 3])
    assert (x.int() ** mt.tensor([40, 2])).tolist() == [2**40, 9]
    assert (x ** mt.tensor([True, False])).tolist() == [2, 1]
    assert (2**x).tolist() == [4, 8]
    assert (x ** mt.tensor(-1)).tolist() == [0, 0]
    assert (mt.tensor([True]) ** x).tolist() == [1, 1]
    assert (2.0**x).tolist() == [4.0, 8.0]
    assert not (x**x).requires_grad


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: mt.ones(3) + mt.ones(4), RuntimeError, r"The size of tensor a \(3\) must match"),
    (lambda: mt.ones(2) + "a", TypeError, "unsupported operand type"),
    (lambda: mt.ones(2) + None, TypeError, "unsupported operand type"),
    (lambda: mt.ones(2) & mt.ones(2), NotImplementedError, "bitwise_and_cpu.* for 'Float'"),
    (lambda: ~mt.ones(2), TypeError, "only implemented on integer and Boolean-type tensors"),
    (lambda: -mt.tensor([True]), RuntimeError, "Negation, the `-` operator, on a bool tensor"),
    (lambda: mt.tensor([True]) - True, RuntimeError, "Subtraction, the `-` operator, with two"),
    (lambda: mt.tensor([2]) ** -1, RuntimeError, "Integers to negative integer powers are not"),
    (lambda: mt.tensor([True]) ** mt.tensor([True]), NotImplementedError, '"pow" not implemented'),
    (lambda: mt.ones(2, 3) @ mt.ones(4, 5), RuntimeError, r"cannot be multiplied \(2x3 and 4x5\)"),
    (lambda: mt.ones(2, 2, 3) @ mt.ones(2, 4, 3), RuntimeError, "Expected size for first two"),
    (lambda: mt.ones(2) @ 3, TypeError, "unsupported operand type"),
    (lambda: mt.ones(2, 2, 2).mm(mt.ones(2, 2)), RuntimeError, "self must be a matrix"),
    (lambda: mt.ones(2, 2, 2).bmm(mt.ones(2, 2)), RuntimeError, "batch2 must be a 3D tensor"),
    (lambda: mt.ones(2).clamp(), RuntimeError, "At least one of 'min' or 'max' must not be None"),
    (lambda: mt.where(mt.ones(2), 1, 2), RuntimeError, "expected condition to be a boolean"),
    (lambda: mt.tensor([1]).mean(), RuntimeError, "could not infer output dtype"),
    (lambda: mt.tensor([1]).std(), RuntimeError, "std and var only support floating point"),
    (lambda: mt.zeros(0).max(), RuntimeError, "Expected reduction dim to be specified"),
    (lambda: mt.zeros(0, 2).max(0), IndexError, r"max\(\): Expected reduction dim 0 to have"),
    (lambda: mt.zeros(2, 0).amin(1), IndexError, r"amin\(\): Expected reduction dim 1 to have"),
    (lambda: mt.tensor([True]).argmax(), RuntimeError, r"argmax\(\): does not support bool"),
    (lambda: mt.zeros(2).sum(1), IndexError, r"Dimension out of range \(expected to be in range"),
    (lambda: mt.zeros(2).sum((0, 0)), RuntimeError, "dim 0 appears multiple times"),
    (lambda: mt.zeros(2)[2], IndexError, "index 2 is out of bounds for dimension 0 with size 2"),
    (lambda: mt.zeros(2)[0, 0], IndexError, "too many indices for tensor of dimension 1"),
    (lambda: mt.zeros(2)[::-1], ValueError, "step must be greater than zero"),
    (lambda: mt.zeros(2)[::0], ValueError, "slice step cannot be zero"),
    (lambda: mt.zeros(())[0], IndexError, "invalid index of a 0-dim tensor"),
    (lambda: mt.zeros(2)[1.0], IndexError, r"only integers, slices .* \(got float\)"),
    (lambda: mt.zeros(2)[mt.zeros(2)], IndexError, "must be long, int, byte or bool tensors"),
    (lambda: mt.zeros(2)[[0], [0, 0]], IndexError, "too many indices for tensor of dimension 1"),
    (lambda: mt.zeros(2)[..., ...], IndexError, "an index can only have a single ellipsis"),
    (lambda: mt.zeros(2).__setitem__(0, mt.ones(2)), RuntimeError, "expand|expanded size"),
    (lambda: mt.zeros(2).reshape(3), RuntimeError, r"shape '\[3\]' is invalid for input of size 2"),
    (lambda: mt.zeros(2).reshape(-1, -1), RuntimeError, "only one dimension can be inferred"),
    (lambda: mt.zeros(2, 2).permute(0, 0), RuntimeError, "duplicate dims are not allowed"),
    (lambda: mt.zeros(2, 2, 2).t(), RuntimeError, r"t\(\) expects a tensor with <= 2 dimensions"),
    (lambda: mt.zeros(2).view(mt.int64), TypeError, r"view\(dtype\) is not supported"),
    (lambda: mt.cat([]), ValueError, "expected a non-empty list of Tensors"),
    (lambda: mt.cat([mt.zeros(())]), RuntimeError, "zero-dimensional tensor"),
    (lambda: mt.stack([mt.zeros(2), mt.zeros(3)]), RuntimeError, "stack expects each tensor"),
    (lambda: mt.zeros(3).split(0), RuntimeError, "split_size can only be 0 if dimension size is"),
    (lambda: mt.zeros(3).split([1, 1]), RuntimeError, "split_sizes to sum exactly to 3"),
    (lambda: mt.zeros(3).chunk(0), RuntimeError, "chunk expects `chunks` to be greater than 0"),
    (lambda: mt.zeros(2).item(), RuntimeError, "a Tensor with 2 elements cannot be converted"),
    (lambda: float(mt.zeros(2)), ValueError, "only one element tensors can be converted"),
    (lambda: bool(mt.zeros(2)), RuntimeError, "Boolean value of Tensor with more than one value"),
    (lambda: bool(mt.zeros(0)), RuntimeError, "Boolean value of Tensor with no values"),
    (lambda: len(mt.zeros(())), TypeError, r"len\(\) of a 0-d tensor"),
    (lambda: list(mt.zeros(())), TypeError, "iteration over a 0-d tensor"),
    (lambda: range(3)[mt.tensor(1.0)], TypeError, "only integer tensors of a single element"),
    (lambda: mt.tensor([[1, 2], [3]]), ValueError, r"expected sequence of length 2 at dim 1 \(got"),
    (lambda: mt.tensor([1, [2]]), TypeError, "cannot be interpreted"),
    (lambda: mt.tensor("a"), TypeError, "new.*: invalid data type 'str'"),
    (lambda: mt.tensor([1, None]), RuntimeError, "Could not infer dtype of NoneType"),
    (lambda: mt.tensor(2**70), ValueError, "Overflow when unpacking long long"),
    (lambda: mt.zeros(-1), RuntimeError, "zeros: Dimension size must be non-negative."),
    (lambda: mt.zeros(1.5), TypeError, "must be tuple of ints, not float"),
    (lambda: mt.arange(5, 0), RuntimeError, "upper bound and lower bound inconsistent"),
    (lambda: mt.arange(0, 5, 0), RuntimeError, "step must be nonzero"),
    (lambda: mt.zeros(2).to("cuda"), AssertionError, "only device 'cpu' is supported"),
    (lambda: mt.exp(3), TypeError, r"exp\(\): argument 'input' \(position 1\) must be Tensor"),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number: int) -> None:
    call, error, words = ERRORS[number]
    with pytest.raises(error, match=words):
        call()


def test_an_error_names_the_users_line() -> None:
    with pytest.raises(RuntimeError) as caught:
        mt.ones(2, 3) @ mt.ones(4, 5)
    (note,) = caught.value.__notes__
    assert note.startswith("recorded Matmul(ta=False, tb=False) on (float32[2, 3], float32[4, 5])")
    assert "test_operators.py:" in note
    assert "mt.ones(2, 3) @ mt.ones(4, 5)" in note


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: mt.where(mt.tensor([1, 0], dtype=mt.uint8), mt.ones(2), 0.0),
            "where received a uint8 condition tensor",
        ),
        (
            lambda: mt.ones(2).where(mt.tensor([2, 0], dtype=mt.uint8), 0.0),
            "where received a uint8 condition tensor",
        ),
    ],
)
def test_a_condition_of_bytes_is_taken_with_a_warning(call: Any, words: str) -> None:
    with pytest.warns(UserWarning, match=words) as caught:
        result = call()
    assert caught[0].filename == __file__
    assert result.tolist() == [1.0, 0.0]


def test_a_number_that_no_type_holds_is_refused_where_it_is_used() -> None:
    """What is recorded is still evaluated; nothing is left that fails later."""
    a = mt.tensor([1.0])
    b = a + 1
    with pytest.raises(OverflowError, match="int too big to convert"):
        a * 10**400
    with pytest.raises(OverflowError, match="int too big to convert"):
        a.fill_(10**400)
    assert b.tolist() == [2.0]
    assert a.tolist() == [1.0]


def test_numbers_beyond_float32() -> None:
    a = mt.tensor([2.0, -1.0])
    inf = math.inf
    for result, expected in (
        (a * 1e300, [inf, -inf]),
        (a - 1e39, [-inf, -inf]),
        (1e39 / a, [inf, -inf]),
        (a / -1e39, [-0.0, 0.0]),
        (a**1e39, [inf, 1.0]),
        (a * math.inf, [inf, -inf]),
        (a.double() * 1e300, [2e300, -1e300]),
        (a * 3.4e38 / 3.4e38, [inf, -1.0]),
    ):
        assert result.tolist() == expected
    for refused in (
        lambda: mt.full((2,), 1e39),
        lambda: a.fill_(-1e39),
        lambda: a.__setitem__(0, 1e300),
        lambda: a.clamp(max=1e39),
        lambda: mt.where(a > 0, a, 1e39),
    ):
        with pytest.raises(RuntimeError, match="cannot be converted to type float32 without"):
            refused()
    assert a.tolist() == [2.0, -1.0]
