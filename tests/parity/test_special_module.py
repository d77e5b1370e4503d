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
    "multigammaln": lambda x: ((x, 2), {}),
}


@pytest.mark.parametrize("name", mt.special.__all__)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_values_and_gradients(name: str, dtype: str) -> None:
    results = []
    # At the poles, derivatives there are large numbers instead of infinite ones.
    poles = name in ("digamma", "psi", "multigammaln")
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


def test_gamma_of_several_dimensions() -> None:
    def outcome(call: Any, lib: Any) -> Any:
        try:
            y = call(lib)
        except Exception as error:
            return type(error).__name__, str(error)
        return str(y.dtype)[-7:], [float(f"{v:.5g}") for v in y.tolist()]

    for call in (
        lambda lib: lib.mvlgamma(lib.tensor([0.2, 1.0, 3.0, 1e4]), 3),
        lambda lib: lib.tensor([2, 3]).mvlgamma(p=2),
        lambda lib: lib.tensor([2.0]).mvlgamma_(1),
        lambda lib: lib.tensor([2.0]).double().mvlgamma(4),
        lambda lib: lib.mvlgamma(lib.tensor([2.0]), 0),
        lambda lib: lib.mvlgamma(lib.tensor([2.0]), 1.5),
        lambda lib: lib.mvlgamma(lib.tensor([2.0]), True),
        lambda lib: lib.mvlgamma(lib.tensor([True]), 1),
        lambda lib: lib.mvlgamma(3, 1),
    ):
        assert outcome(call, mt) == outcome(call, torch)


@pytest.mark.parametrize("name", ["ndtr"])
def test_mistakes(name: str) -> None:
    texts = []
    for lib in (mt, torch):
        with pytest.raises(TypeError) as caught:
            getattr(lib.special, name)(3)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
