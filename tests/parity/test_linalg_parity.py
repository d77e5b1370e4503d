"""Linear algebra in torch and here: dtypes, shapes, values, errors and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from algebra import (
    BY_SINGULAR_VALUES,
    ELIMINATED,
    GRADIENTS,
    ORTHOGONAL,
    TRIANGULAR,
    names,
)

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")  # of old names


def _result(call: str, m: Any) -> Any:
    try:
        value = eval(call, names(m))
    except (NameError, AttributeError):  # no refusal, but a mistake of the call
        raise
    except Exception as error:
        return type(error).__name__.lstrip("_"), str(error)
    return value


def _same(want: Any, got: Any) -> bool:
    if isinstance(want, (tuple, list)):
        named = all(hasattr(want, name) for name in getattr(got, "_fields", ()))
        return named and len(want) == len(got) and all(map(_same, want, got))
    if isinstance(want, str) or isinstance(got, (str, tuple, list, int)):
        return bool(want == got)
    a, b = want.detach().numpy(), got.detach().numpy()
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    tolerance = 1e-5 if a.dtype == np.float32 else 1e-11
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))


CALLS = {
    "triangular": TRIANGULAR,
    "eliminated": ELIMINATED,
    "orthogonal": ORTHOGONAL,
    "singular": BY_SINGULAR_VALUES,
}


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS.keys())
def test_calls(calls: str) -> None:
    pairs = {c: (_result(c, torch), _result(c, mt)) for c in calls.strip().splitlines()}
    assert {call: pair for call, pair in pairs.items() if not _same(*pair)} == {}


def _gradients(m: Any, function: Callable[..., Any]) -> list[Any]:
    """The value, its gradients, and those of a sum of squares of these."""
    given = names(m)
    leaves = [given[name].clone().requires_grad_() for name in "AB"]
    square, other = leaves
    positive = square @ square.mT + 3 * m.eye(3, dtype=m.float64)
    value = function(m, square, other, positive)
    weights = m.cos(m.arange(float(value.numel()), dtype=m.float64)).reshape(value.shape)

    def slopes(total: Any) -> list[Any]:
        found = m.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        return [x for x in found if x is not None]

    first = slopes((value * value * weights).sum())
    return [value, *first, *slopes(sum((x * x).sum() for x in first))]


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_and_second_ones(name: str) -> None:
    want, got = (_gradients(m, GRADIENTS[name]) for m in (torch, mt))
    assert len(want) == len(got)
    for a, b in zip(want, got, strict=True):
        scale = float(a.detach().abs().max())
        np.testing.assert_allclose(b.detach().numpy(), a.detach().numpy(), atol=1e-8 * scale)
