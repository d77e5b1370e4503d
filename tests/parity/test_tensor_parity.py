"""The same expressions in torch and here: dtypes, shapes, values, gradients, errors and text."""

from __future__ import annotations

import itertools
import operator
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expressions import EXPRESSIONS
from functions import DIFFERENT, FUNCTIONS, POINTS

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

nan, inf = float("nan"), float("inf")


def _described(result: Any) -> Any:
    """dtype, shape and values of tensors inside ``result``; records, does not evaluate."""
    if isinstance(result, (torch.Tensor, mt.Tensor)):
        return result
    if isinstance(result, tuple) and hasattr(result, "indices"):
        return [result.values, result.indices]
    return list(result) if isinstance(result, (list, tuple)) else result


def _run(function: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _described(function(*args))
        except Exception as error:
            return error


def _same(want: Any, got: Any) -> bool:
    if isinstance(want, Exception) or isinstance(got, Exception):
        return type(want) is type(got) and str(want).split("\n")[0] == str(got).split("\n")[0]
    if isinstance(want, list):
        return len(want) == len(got) and all(map(_same, want, got))
    if isinstance(want, torch.Tensor):
        a, b = want.detach().numpy(), got.detach().numpy()
        near = np.allclose(a, b, rtol=1e-6, atol=1e-7, equal_nan=True)
        return a.dtype == b.dtype and a.shape == b.shape and near
    return bool(want == got)


def test_expressions() -> None:
    pairs = {k: (_run(f, torch), _run(f, mt)) for k, f in EXPRESSIONS.items()}
    ours = [t for _, r in pairs.values() for t in (r if isinstance(r, list) else [r])]
    mt.eval(*[t for t in ours if isinstance(t, mt.Tensor)])
    wrong = {k: p for k, p in pairs.items() if not _same(*p)}
    assert not wrong


@pytest.mark.parametrize("point", POINTS)
def test_gradients(point: str) -> None:
    def gradients(m: Any, f: Callable[..., Any]) -> tuple[Any, ...]:
        x, y = (m.tensor(v, requires_grad=True) for v in POINTS[point])
        z = f(m, x, y)
        z.sum().backward()
        return z, x.grad, y.grad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a variance of one element
        pairs = {k: (gradients(torch, f), gradients(mt, f)) for k, f in FUNCTIONS.items()}
    mt.eval(*[t for _, r in pairs.values() for t in r if t is not None])

    def close(a: Any, b: Any) -> bool:
        if a is None or b is None:
            # torch leaves .grad unset where a graph does not reach, so do we.
            return a is b
        return np.allclose(
            a.detach().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6, equal_nan=True
        )

    wrong = {k for k, (want, got) in pairs.items() if not all(map(close, want, got))}
    assert wrong - {name for where, name in DIFFERENT if where == point} == set()


NAMES = ("bool", "uint8", "int32", "int64", "float32", "float64")


def _operands(m: Any) -> dict[str, Any]:
    out: dict[str, Any] = {"True": True, "2": 2, "2.5": 2.5}
    for name in NAMES:
        kind = getattr(m, name)
        out[f"{name} 0-d"] = m.ones((), dtype=kind)
        out[f"{name} 1-d"] = m.ones(2, dtype=kind)
        out[f"{name} 2-d"] = m.ones(1, 2, dtype=kind)
    return out


def _kind(x: Any) -> str:
    return str(x.dtype).split(".")[-1]


def test_promotion_of_every_pair() -> None:
    theirs, ours = _operands(torch), _operands(mt)
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "+": operator.add,
        "*": operator.mul,
        "/": operator.truediv,
        "==": operator.eq,
        "<": operator.lt,
    }
    for a, b in itertools.product(theirs, theirs):
        if "-d" not in a + b:
            continue
        where = f"{a} with {b}"
        want = torch.result_type(theirs[a], theirs[b])
        assert repr(mt.result_type(ours[a], ours[b])) == f"mt.{str(want).split('.')[1]}", where
        for name, f in functions.items():
            assert _kind(f(ours[a], ours[b])) == _kind(f(theirs[a], theirs[b])), f"{name}: {where}"


PRINTED: list[Any] = [
    *(1.0, 3, True, 2.5, nan, inf, -inf, 1e-5, 1e9, 123456.0, -0.0),
    *([1.0, 2.0, 3.0], [1.0, 2.5], [1, 2, 300], [-1, 20], [True, False], [nan, 1.0], [nan, 1.5]),
    *([inf, -inf, 1.0], [inf, nan], [-inf, nan], [nan, 0.0], [0.0, -0.0], [nan, -inf, 0.0, 1e-3]),
    *([1e-5, 1e5], [1e-5], [1e8], [1e9, 1.0], [1e5, 1.0], [1001.0, 1.0], [1000.0, 1.0]),
    *([1001.5, 1.0], [0.0, 0.0], [0.0, 1e-5], [0.0001, 0.1], [0.00011], [1e-40], [3.4e38]),
    *([123456789.0], [16777216.0, 0.5], [0.0, 1e4], [99999.5], [nan, 1e9], [inf, 1e-9, 1.0]),
    *([0.1] * 30, list(range(100)), [float(i) for i in range(100)], [1.5 * i for i in range(50)]),
    *([True] * 40, [], [[], []], [[1.0, 2.0], [3.0, 4.0]], [[1, 2], [30, 4]], [[[[1.0]]]]),
    *([[[1.0, 2.5], [3.0, 4.0]], [[1.0, 2.0], [3.0, -4.0]]], [[nan, 2.0], [1e10, 3.0]]),
    *(np.zeros((50, 50), "f"), np.arange(1001), np.arange(1001.0), np.zeros((1001, 1), "f")),
    *(np.zeros((7, 7, 30)), np.zeros((2, 2, 500), "i4"), np.zeros((0, 3)), np.zeros((0,), "i8")),
    *(np.zeros((2, 0), "i4"), np.zeros((0,)), np.zeros(3, "u1"), np.array([1, 2], "i4")),
    *(np.array(5, "u1"), np.array(2.5), np.array([[True, False]]), np.zeros((1, 1200), "f")),
    *(np.array([1e300]), np.array([1e-300, 1.0]), np.array([0.1] * 1001)),
    *(np.array([1.0] * 1000 + [1e-7]), np.array([[-1e-3, 1e3]]), np.arange(24.0).reshape(2, 3, 4)),
    *(np.random.default_rng(0).normal(size=s).astype(k) for s in ((3, 4), (6, 400)) for k in "df"),
    np.random.default_rng(0).normal(size=(40, 3, 20)) * 1e5,
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"precision": 2},
    {"sci_mode": True},
    {"sci_mode": False, "precision": 6},
    {"linewidth": 40},
    {"threshold": 5, "edgeitems": 1},
]


def _text(value: Any) -> str:
    text = repr(value).replace("torch.", "mt.")
    # "torch.float64" is longer than "mt.float64", so the line before it may break sooner.
    return re.sub(r",\n +(dtype|requires_grad)", r", \1", text) if "dtype=" in text else text


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_printing(options: dict[str, Any]) -> None:
    default = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80}
    for m in (torch, mt):
        m.set_printoptions(**{**default, "sci_mode": None, **options})
    try:
        for data in PRINTED:
            theirs, ours = torch.tensor(data), mt.tensor(data)
            assert _text(ours) == _text(theirs)
            assert str(ours) == repr(ours)
            if ours.is_floating_point():
                assert _text(ours.requires_grad_()) == _text(theirs.requires_grad_())
    finally:
        for m in (torch, mt):
            m.set_printoptions(**default, sci_mode=None)


def test_printing_results_of_operations() -> None:
    for m in (torch, mt):
        x = m.tensor([1.0, 2.0], requires_grad=True)
        assert re.sub(r"<\w+>", "<>", repr(x * 2)) == "tensor([2., 4.], grad_fn=<>)"
        assert f"{m.tensor(1.5)} {m.tensor(2.5):.2f} {m.tensor([3])}" == "1.5 2.50 tensor([3])"


def test_factories_have_the_same_defaults() -> None:
    for name in ("zeros", "ones", "empty", "rand", "randn"):
        theirs, ours = getattr(torch, name)(2, 3), getattr(mt, name)(2, 3)
        assert (_kind(ours), tuple(ours.shape)) == (_kind(theirs), tuple(theirs.shape))
        assert tuple(getattr(mt, name)((2, 3)).shape) == (2, 3)
    assert _kind(mt.randint(0, 5, (3,))) == _kind(torch.randint(0, 5, (3,)))
    assert _kind(mt.randperm(5)) == _kind(torch.randperm(5))
    assert repr(mt.ones(2, 3).shape) == repr(torch.ones(2, 3).shape)
    assert mt.ones(2, 3).size().numel() == 6
