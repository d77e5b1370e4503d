"""Activations, losses, recurrent layers and image sizes against closed forms and numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy

POINTS = [-90.0, -4.0, -0.7, -1e-6, 1e-6, 0.3, 2.0, 30.0]


def _log1p_exp(v: float) -> float:
    return max(v, 0.0) + math.log1p(math.exp(-abs(v)))


FORMULAS: dict[str, Callable[[float], float]] = {
    "leaky_relu": lambda v: v if v > 0 else 0.01 * v,
    "silu": lambda v: v / (1 + math.exp(-v)),
    "elu": lambda v: v if v > 0 else math.expm1(v),
    "celu": lambda v: v if v > 0 else math.expm1(v),
    "selu": lambda v: 1.0507009873554805 * (v if v > 0 else 1.6732632423543772 * math.expm1(v)),
    "softplus": _log1p_exp,
    "logsigmoid": lambda v: -_log1p_exp(-v),
    "hardsigmoid": lambda v: min(max(v + 3, 0), 6) / 6,
    "hardswish": lambda v: v * min(max(v + 3, 0), 6) / 6,
    "relu6": lambda v: min(max(v, 0), 6),
    "mish": lambda v: v * math.tanh(_log1p_exp(v)),
    "softsign": lambda v: v / (1 + abs(v)),
}


def test_activations_are_exact_in_float32() -> None:
    x = mt.tensor(POINTS, requires_grad=True)
    ys = [getattr(F, name)(x) for name in FORMULAS]
    slopes = [mt.autograd.grad(y.sum(), x)[0] for y in ys]
    mt.eval(*ys, *slopes)
    for y, slope, (name, formula) in zip(ys, slopes, FORMULAS.items(), strict=True):
        given = [float(np.float32(v)) for v in POINTS]
        exact = [formula(v) for v in given]
        np.testing.assert_allclose(y.detach().numpy(), exact, 1e-6, 1e-37, err_msg=name)
        h = [1e-6 * max(abs(v), 1e-2) for v in given]
        steep = [(formula(v + e) - formula(v - e)) / (2 * e) for v, e in zip(given, h, strict=True)]
        np.testing.assert_allclose(slope.numpy(), steep, 2e-4, 1e-4, err_msg=name)


def test_losses() -> None:
    p, t = mt.tensor([0.0, 0.25, 1.0]), mt.tensor([1.0, 0.5, 1.0])
    found = [
        F.binary_cross_entropy(p, t, reduction="none"),
        F.smooth_l1_loss(p * 4, t, reduction="none", beta=0.5),
        F.huber_loss(p * 4, t, reduction="none", delta=2.0),
        F.kl_div(p, mt.tensor([0.0, 1.0, math.e]), reduction="none"),
        F.gaussian_nll_loss(p, t, mt.tensor([4.0, 1.0, 0.0]), reduction="none", eps=1.0),
        F.triplet_margin_loss(p[:, None], t[:, None], p[:, None], eps=0.0, reduction="none"),
    ]
    mt.eval(*found)
    middle = -0.5 * (math.log(0.25) + math.log(0.75))
    wanted = [
        [100.0, middle, 0.0],
        [0.75, 0.25, 2.75],
        [0.5, 0.125, 4.0],
        [0.0, -0.25, math.e - math.e],
        [math.log(4) / 2 + 1 / 8, 1 / 32, 0.0],
        [2.0, 1.25, 1.0],
    ]
    for y, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y.numpy(), w, 1e-6, 1e-6)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_recurrent_layers_step_by_step() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 2, 3)).astype(np.float32)
    lstm, gru = mt.nn.LSTM(3, 5, bidirectional=True), mt.nn.GRU(3, 5)
    y, (h_n, c_n) = lstm(mt.tensor(x))
    z, g_n = gru(mt.tensor(x))
    mt.eval(y, h_n, c_n, z, g_n)
    for way, suffix in enumerate(("", "_reverse")):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        wi, wh, bi, bh = (getattr(lstm, f"{n}_l0{suffix}").detach().numpy() for n in names)
        h, c = np.zeros((2, 5)), np.zeros((2, 5))
        for t in range(4)[:: 1 - 2 * way]:
            i, f, g, o = np.split(x[t] @ wi.T + bi + h @ wh.T + bh, 4, axis=1)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
            np.testing.assert_allclose(
                y[t, :, 5 * way : 5 * way + 5].detach().numpy(), h, 1e-5, 1e-6
            )
        np.testing.assert_allclose(h_n[way].detach().numpy(), h, 1e-5, 1e-6)
        np.testing.assert_allclose(c_n[way].detach().numpy(), c, 1e-5, 1e-6)
    wi, wh, bi, bh = (p.detach().numpy() for p in gru.parameters())
    h = np.zeros((2, 5))
    for t in range(4):
        (xr, xz, xn), (hr, hz, hn) = (
            np.split(part, 3, axis=1) for part in (x[t] @ wi.T + bi, h @ wh.T + bh)
        )
        r, u = _sigmoid(xr + hr), _sigmoid(xz + hz)
        h = (1 - u) * np.tanh(xn + r * hn) + u * h
        np.testing.assert_allclose(z[t].detach().numpy(), h, 1e-5, 1e-6)
    np.testing.assert_allclose(g_n[0].detach().numpy(), h, 1e-5, 1e-6)


def test_image_sizes() -> None:
    x = mt.tensor([[[[1.0, 2.0], [3.0, 5.0]]]])
    found = [
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(2, 3), mode="bilinear", align_corners=True),
        F.pixel_shuffle(mt.arange(8.0).reshape(1, 4, 1, 2), 2),
        F.pad(x, (1, 0, 1, 0), mode="reflect"),
        F.pad(x, (1, 1, 0, 0), mode="circular"),
        F.conv_transpose2d(x, mt.tensor([[[[1.0, 10.0]]]]), stride=2),
    ]
    mt.eval(*found)
    assert [y[0, 0].tolist() for y in found] == [
        [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 5, 5], [3, 3, 5, 5]],
        [[1, 1.5, 2], [3, 4, 5]],
        [[0, 2, 1, 3], [4, 6, 5, 7]],
        [[5, 3, 5], [2, 1, 2], [5, 3, 5]],
        [[2, 1, 2, 1], [5, 3, 5, 3]],
        [[1, 10, 2, 20], [0, 0, 0, 0], [3, 30, 5, 50]],
    ]


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    ("shape", "amounts"),
    [
        ((2, 40), (3, 0)), ((2, 3, 20), (0, 19)), ((3, 7, 18), (2, 3, 1, 6)),
        ((2, 3, 17, 5), (4, 4, 16, 1)), ((1, 2, 4, 5, 6), (1, 2, 3, 0, 0, 3)), ((4, 1, 33), (1, 1)),
    ],
)  # fmt: skip
def test_padding_with_own_elements(
    mode: Any, shape: tuple[int, ...], amounts: tuple[int, ...]
) -> None:
    """As numpy's, joined and not looked up; of what is there several times gradients are added."""
    lazy.clear_cache()
    rng = np.random.default_rng(0)
    a = rng.normal(size=shape)
    sides = [(0, 0)] * (len(shape) - len(amounts) // 2)
    sides += list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    numpys = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    x = mt.tensor(a, requires_grad=True)
    y = F.pad(x, amounts, mode)
    ct = rng.normal(size=y.shape)
    y.backward(mt.from_numpy(ct))
    grad = x.grad
    assert grad is not None
    mt.eval(y, grad)
    graph = lazy.last_executor().program.graph
    assert not any(v.op.name in ("Take", "ScatterAdd") for v in graph.values)
    np.testing.assert_array_equal(y.detach().numpy(), np.pad(a, sides, numpys))
    from_where = np.pad(np.arange(a.size).reshape(shape), sides, numpys)
    want = np.bincount(from_where.ravel(), ct.ravel(), a.size).reshape(shape)
    np.testing.assert_allclose(grad.numpy(), want, rtol=1e-12, atol=1e-12)


def test_mish_of_large_numbers_has_slope_one() -> None:
    for dtype in (mt.float32, mt.float64):
        x = mt.tensor([21.0, 1e9, 1e30], dtype=dtype, requires_grad=True)
        mt.nn.functional.mish(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [1.0, 1.0, 1.0]
