"""Functions in torch and here: dtypes, shapes, values, signs of zeros, errors and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import ALIASES, BITS, ELEMENTWISE, PRODUCTS, REDUCTIONS, SPECIAL, names
from functions import POINTS
from gradients import DIFFERENT, FUNCTIONS

import minitorch_tvm as mt
from minitorch_tvm import lazy

torch = pytest.importorskip("torch")


def _result(call: str, module: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = eval(call, names(module))
            if module is mt and lazy.doubtful():
                mt.eval(value)  # integers that may have been divided by zero
            return value
        except (NameError, AttributeError):  # no refusal, but a mistake of the call
            raise
        except Exception as error:
            return error


def _same(want: Any, got: Any) -> bool:
    if isinstance(want, Exception) or isinstance(got, Exception):
        return type(want) is type(got) and str(want).split("\n")[0] == str(got).split("\n")[0]
    if isinstance(want, tuple):
        return all(map(_same, want, got))
    a, b = want.detach().numpy(), got.detach().numpy()
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool((a == b).all())
    signs = (np.signbit(a) == np.signbit(b)) | np.isnan(a)
    near = np.allclose(a, b, rtol=2e-6, atol=1e-6, equal_nan=True)
    return near and bool((signs | (a != 0)).all())


CALLS = {
    "each": ELEMENTWISE,
    "aliases": ALIASES,
    "bits": BITS,
    "special": SPECIAL,
    "all": REDUCTIONS,
    "@": PRODUCTS,
}


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS.keys())
def test_calls(calls: list[str]) -> None:
    pairs = {call: (_result(call, torch), _result(call, mt)) for call in calls}
    mt.eval(*[got for _, got in pairs.values() if isinstance(got, mt.Tensor)])
    assert {call: pair for call, pair in pairs.items() if not _same(*pair)} == {}


@pytest.mark.parametrize("point", POINTS)
def test_gradients(point: str) -> None:
    def gradients(m: Any, f: Callable[..., Any]) -> tuple[Any, ...]:
        x, y = (m.tensor(v, requires_grad=True) for v in POINTS[point])
        z = f(m, x, y)
        z.sum().backward()
        return z, x.grad, y.grad

    pairs = {k: (gradients(torch, f), gradients(mt, f)) for k, f in FUNCTIONS.items()}
    mt.eval(*[t for _, got in pairs.values() for t in got if t is not None])

    def close(a: Any, b: Any) -> bool:
        if a is None or b is None:
            return a is b
        a, b = a.detach().numpy(), b.detach().numpy()
        return bool(np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True))

    wrong = {k for k, (want, got) in pairs.items() if not all(map(close, want, got))}
    assert wrong == {name for where, name in DIFFERENT if where == point}
