"""Functions of positions, order and structure: values, derivatives and errors as in torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from arrangements import CALLS
from orderings import CALLS as OF_ORDER

import minitorch_tvm as mt
from minitorch_tvm import lazy

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")  # of programs on one line

X = [[1.5, -2.0, 0.0, 3.0], [0.5, -1.0, 2.5, 4.0], [3.5, -3.0, 5.0, 0.25]]
K = [[True, False, True, True], [False, False, True, False], [True, True, False, False]]
nan, inf = float("nan"), float("inf")


def _names(m: Any) -> dict[str, Any]:
    """What the calls refer to; x, y and s are leaves."""
    t = m.tensor
    return {
        "T": m,
        "F": m.nn.functional,
        "nn": m.nn,
        "nan": nan,
        "inf": inf,
        "x": t(X, requires_grad=True),
        "y": t([2.0, -1.5, 0.5, 3.0], requires_grad=True),
        "s": t(1.5, requires_grad=True),
        "i": t([[2, 0], [0, 1]]),
        "k": t(K),
        "q": t([3, 1, 2, 3, 3, 2]),
        "e": m.zeros(0, 3),
        "c": m.arange(24.0).reshape(2, 3, 4),
        "v": t([1.0, nan, 3.0, -2.0]),
        "w": t([inf, 1.0, 1.0, -inf, 2.0]),
        "l": t([1.0, 3.0, 5.0, 7.0]),
        "u": t([1, 0, 200], dtype=m.uint8),
        "d": t([1.5, 2.5, 1.5], dtype=m.float64),
    }


def _tensors(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)) and not isinstance(result, (torch.Size, mt.Size)):
        return [t for r in result for t in _tensors(r)]
    return [result]


def _results(m: Any, call: str) -> Any:
    """Values, then gradients and second derivatives of the leaves; or the error."""
    names = _names(m)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = _tensors(eval(call, names))
            if m is mt and lazy.doubtful():
                # Positions that may be outside.
                mt.eval(*[t for t in found if isinstance(t, mt.Tensor)])
        except (NameError, AttributeError):  # no refusal, but a mistake of the call
            raise
        except Exception as error:
            return error
    parts = [t for t in found if getattr(t, "requires_grad", False)]
    if not parts or call.endswith("# inexact"):
        return found
    weights = [m.arange(float(t.numel())).reshape(t.shape) - 2 for t in parts]
    loss = sum((t * t * w).sum() for t, w in zip(parts, weights, strict=True))
    leaves = [names[name] for name in "xys"]
    first = m.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    again = [g for g in first if g is not None and g.requires_grad]
    second: Any = ()
    if again and not call.endswith("# once"):
        norm = sum((g * g).sum() for g in again)
        second = m.autograd.grad(norm, leaves, allow_unused=True)
    return [*found, *first, *second]


def _same(want: Any, got: Any) -> bool:
    if isinstance(want, Exception) or isinstance(got, Exception):
        return type(want) is type(got) and str(want).split("\n")[0] == str(got).split("\n")[0]
    if isinstance(want, list):
        return len(want) == len(got) and all(map(_same, want, got))
    if want is None or got is None:  # no gradient is one of zero
        rest = got if want is None else want
        return rest is None or not bool((rest != 0).any())
    if not hasattr(want, "detach"):
        return bool(want == got)
    a, b = want.detach().numpy(), got.detach().numpy()
    same = a.dtype == b.dtype and a.shape == b.shape
    return same and np.allclose(a, b, rtol=5e-5, atol=1e-5, equal_nan=True)


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the words of 2.13")
@pytest.mark.parametrize("group", [*CALLS, *OF_ORDER])
def test_calls(group: str) -> None:
    calls = (CALLS | OF_ORDER)[group].strip().splitlines()
    pairs = {call: (_results(torch, call), _results(mt, call)) for call in calls}
    got = [t for _, found in pairs.values() if isinstance(found, list) for t in found]
    mt.eval(*[t for t in got if isinstance(t, mt.Tensor)])
    assert {call: pair for call, pair in pairs.items() if not _same(*pair)} == {}
