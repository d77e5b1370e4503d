"""Positions, movement and order: values, gradients, second derivatives and errors as in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from positions import CALLS, FOR_BOTH, FUNCTIONS, TWICE, I, K, X, Y

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")  # of uint8 masks, of programs on one line


def _leaves(m: Any) -> tuple[Any, Any, Any, Any]:
    x, y = (m.tensor(v, requires_grad=True) for v in (X, Y))
    return x, y, m.tensor(I), m.tensor(K)


def _tensors(result: Any) -> list[Any]:
    return [t for r in result for t in _tensors(r)] if isinstance(result, list) else [result]


def _close(want: Any, got: Any) -> bool:
    if want is None or got is None:
        return want is got
    a, b = want.detach().numpy(), got.detach().numpy()
    same = a.dtype == b.dtype and a.shape == b.shape
    return same and np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def _derivatives(m: Any, name: str) -> list[Any]:
    x, y, i, k = _leaves(m)
    z = FUNCTIONS[name](m, x, y, i, k)
    weights = m.arange(float(z.numel())).reshape(z.shape) - 2
    loss, twice = (z * z * weights).sum(), name in TWICE.split(", ")
    first = m.autograd.grad(loss, (x, y), create_graph=twice, allow_unused=True)
    if not twice:
        return [z, *first]
    given = [g for g in first if g is not None]
    sum((g * g).sum() for g in given).backward()
    return [z, *first, x.grad, y.grad]


def test_values_gradients_and_second_derivatives() -> None:
    pairs = {k: (_derivatives(torch, k), _derivatives(mt, k)) for k in FUNCTIONS}
    mt.eval(*[t for _, got in pairs.values() for t in got if t is not None])
    wrong = {k for k, p in pairs.items() if not all(map(_close, *p))}
    assert not wrong


def test_integers_bools_and_what_is_evaluated() -> None:
    pairs = {k: [_tensors(f(m, *_leaves(m))) for m in (torch, mt)] for k, f in FOR_BOTH.items()}
    mt.eval(*[t for _, got in pairs.values() for t in got])
    wrong = {k for k, (a, b) in pairs.items() if len(a) != len(b) or not all(map(_close, a, b))}
    assert not wrong


def _refusal(m: Any, call: str) -> tuple[str, str]:
    x, y, i, k = _leaves(m)
    names = {"T": m, "x": x.detach(), "y": y.detach(), "i": i, "k": k}
    with pytest.raises(Exception) as caught:
        eval(call, names)
    return caught.type.__name__, str(caught.value).split("\n")[0]


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the words of 2.13")
@pytest.mark.parametrize("call", CALLS.strip().splitlines())
def test_a_wrong_call_is_refused_in_the_same_words(call: str) -> None:
    assert _refusal(mt, call) == _refusal(torch, call)


def test_views_are_views_where_torch_has_them() -> None:
    calls = (
        lambda x: x.diagonal(),
        lambda x: x.unbind(1)[0],
        lambda x: x.movedim(0, 1),
        lambda x: x.narrow(1, 0, 2),
        lambda x: x.unflatten(1, (2, 2)),
        lambda x: x.flip(0),
        lambda x: x[[0]],
        lambda x: x.diag(),
        lambda x: x.repeat(1, 1),
    )
    shared = []
    for m in (torch, mt):
        x = m.zeros(3, 4)
        found = []
        for call in calls:
            view = call(x)
            view += 1
            found.append((bool((x != 0).any()), view.is_contiguous(), view.stride()))
            x.zero_()
        shared.append(found)
    assert shared[0] == shared[1]
