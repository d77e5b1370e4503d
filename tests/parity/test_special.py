"""The names of ``special`` against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

POINTS = [-np.inf, -3.5, -1.0, -0.25, -0.0, 0.0, 1e-30, 0.3, 0.5, 1.0, 2.0, 9.5, np.inf, np.nan]
ARGUMENTS: dict[str, Any] = {
    "softmax": lambda x: ((x[1:-2], 0), {}),
    "log_softmax": lambda x: ((x[1:-2], 0), {}),
    "logsumexp": lambda x: ((x[:-2], 0), {"keepdim": True}),
    "xlogy": lambda x: ((x, x.flip(0)), {}),
}


@pytest.mark.parametrize("name", mt.special.__all__)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_values_and_gradients(name: str, dtype: str) -> None:
    results = []
    poles = name in ("digamma", "psi")  # at which derivatives there are large numbers, not infinite
    points = [p for p in POINTS if not (poles and p in (-1.0, 0.0))]
    if name == "logit":
        points.remove(-0.0)  # of both zeros the first, at which the slope there is not negative
    for lib in (mt, torch):
        if dtype == "int64":
            x = lib.tensor([2, 1, 3])
            if name in ("softmax", "log_softmax", "logsumexp", "round"):
                return
        else:
            x = lib.tensor(points, dtype=getattr(lib, dtype), requires_grad=True)
        args, kwargs = ARGUMENTS.get(name, lambda x: ((x,), {}))(x)
        y = getattr(lib.special, name)(*args, **kwargs)
        found = [y.detach().numpy()]
        if dtype != "int64":
            found.append(lib.autograd.grad(y.sum(), x)[0].numpy())
        results.append(found)
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        rtol = 1e-8 if dtype == "float64" else 3e-6
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", ["ndtr"])
def test_mistakes(name: str) -> None:
    texts = []
    for lib in (mt, torch):
        with pytest.raises(TypeError) as caught:
            getattr(lib.special, name)(3)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
