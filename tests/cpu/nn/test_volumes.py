"""Volumes: compiled programs against their definitions, and a small network that learns."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import nn


def _correlated(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """The definition, an output element at a time."""
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    kernel = w.shape[2:]
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, d, k, s in zip(x.shape[2:], dilation, kernel, stride, strict=True)
    ]
    y = np.zeros((len(x), len(w), *out))
    per_group = len(w) // groups
    for o, *place in np.ndindex(len(w), *out):
        first = o // per_group * w.shape[1]
        numbers = zip(place, stride, dilation, kernel, strict=True)
        spots = [slice(i * s, i * s + d * (k - 1) + 1, d) for i, s, d, k in numbers]
        window = x[(slice(None), slice(first, first + w.shape[1]), *spots)]
        y[(slice(None), o, *place)] = (window * w[o]).sum((1, 2, 3, 4))
    return y


@pytest.mark.parametrize(
    ("shape", "weight", "stride", "padding", "dilation", "groups"),
    [
        ((2, 1, 5, 9, 8), (3, 1, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1),
        ((1, 4, 6, 5, 7), (6, 2, 2, 3, 1), (2, 1, 3), (0, 2, 0), (3, 1, 1), 2),
        ((2, 3, 4, 8, 8), (5, 3, 4, 4, 4), (4, 4, 4), (0, 0, 0), (1, 1, 1), 1),
        ((1, 2, 1, 4, 4), (2, 2, 5, 1, 1), (1, 1, 1), (2, 0, 0), (1, 1, 1), 1),
    ],
)
def test_convolutions(
    rng: np.random.Generator,
    shape: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> None:
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (shape, weight))
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    y = F.conv3d(mt.tensor(x), mt.tensor(w), **options)
    want = _correlated(x.astype(np.float64), w.astype(np.float64), **options)
    np.testing.assert_allclose(y.numpy(), want, 1e-4, 1e-4)
    # What transposes it has the same products with everything.
    ct = mt.tensor(rng.standard_normal(y.shape).astype(np.float32))
    back = F.conv_transpose3d(ct, mt.tensor(w), **options)
    inside = tuple(slice(0, n) for n in back.shape)  # beyond, no window has been
    product = (back.numpy().astype(np.float64) * x[inside]).sum()
    assert np.isclose(product, (ct.numpy() * want).sum(), 1e-4)


def test_derivatives(rng: np.random.Generator) -> None:
    x = mt.tensor(rng.standard_normal((1, 2, 3, 4, 4)), requires_grad=True)
    w = mt.tensor(rng.standard_normal((2, 2, 2, 3, 2)), requires_grad=True)
    for f in (F.conv3d, F.conv_transpose3d):
        assert mt.autograd.gradcheck(lambda x, w, f=f: f(x, w, stride=(1, 2, 1), padding=1), (x, w))
    for pool in (F.max_pool3d, F.avg_pool3d):
        assert mt.autograd.gradcheck(lambda x, p=pool: p(x, (2, 2, 3), (1, 2, 1), 1), (x,))


def test_windows(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 5, 8, 9)).astype(np.float32)
    out = (2, 4, 3)
    largest, mean = (np.zeros((2, 3, *out)) for _ in range(2))
    for place in itertools.product(*map(range, out)):
        numbers = zip(place, out, x.shape[2:], strict=True)
        window = x[(..., *[slice(i * n // m, -(-(i + 1) * n // m)) for i, m, n in numbers])]
        largest[(..., *place)] = window.max((2, 3, 4))
        mean[(..., *place)] = window.mean((2, 3, 4))
    np.testing.assert_array_equal(F.adaptive_max_pool3d(mt.tensor(x), out).numpy(), largest)
    np.testing.assert_allclose(F.adaptive_avg_pool3d(mt.tensor(x), out).numpy(), mean, 1e-5, 1e-6)
    pairs = x[:, :, :4, :, :8].reshape(2, 3, 2, 2, 4, 2, 4, 2)
    got = F.max_pool3d(mt.tensor(x), 2).numpy()
    np.testing.assert_array_equal(got, pairs.max((3, 5, 7)))
    got = F.avg_pool3d(mt.tensor(x), 2).numpy()
    np.testing.assert_allclose(got, pairs.mean((3, 5, 7)), 1e-5, 1e-6)


def test_a_volume_read_at_its_own_places_is_itself(rng: np.random.Generator) -> None:
    x = mt.tensor(rng.standard_normal((2, 3, 3, 5, 4), np.float32))
    same = mt.eye(3, 4).expand(2, 3, 4)
    for mode, corners in itertools.product(("bilinear", "nearest"), (False, True)):
        grid = F.affine_grid(same, tuple(x.shape), corners)
        y = F.grid_sample(x, grid, mode, "border", corners)
        assert np.allclose(y.numpy(), x.numpy(), atol=1e-5)


def _network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2)),
        *(nn.Conv3d(4, 8, 3, padding=1), nn.InstanceNorm3d(8), nn.ReLU(), nn.Dropout3d(0.1)),
        *(nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(64, 2)),
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_a_network_learns_to_tell_volumes_apart(rng: np.random.Generator, compiled: bool) -> None:
    # Those of one class change along the depth, those of the other along the width.
    labels = rng.integers(0, 2, 16)
    waves = np.cos(np.arange(8) * 2.0)
    clean = [np.broadcast_to(waves if k else waves[:, None, None], (8, 8, 8)) for k in labels]
    volumes = np.stack(clean) + 0.1 * rng.standard_normal((16, 8, 8, 8))
    x = mt.tensor(volumes[:, None].astype(np.float32))
    y = mt.tensor(labels)
    mt.manual_seed(0)
    model = _network()
    optimizer = mt.optim.Adam(model.parameters(), lr=0.02)

    def step(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = mt.compile(step) if compiled else step
    losses = [run(x, y).item() for _ in range(30)]
    assert losses[-1] < 0.1 < 0.4 < losses[0]
    model.eval()
    assert (model(x).argmax(1) == y).all().item()
