"""Windows, images at computed places, layers that draw noise: derivatives and distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import nn, random
from minitorch_tvm.ops import build as b


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_sampled_images_are_differentiated(
    rng: np.random.Generator, mode: str, padding: str
) -> None:
    x = mt.tensor(rng.standard_normal((2, 2, 4, 3)), requires_grad=True)
    grid = mt.tensor(rng.uniform(-1.6, 1.6, (2, 3, 2, 2)), requires_grad=True)
    for corners in (False, True):
        assert mt.autograd.gradcheck(
            lambda x, g, c=corners: F.grid_sample(x, g, mode, padding, c), (x, grid)
        )


def test_an_image_read_at_its_own_places_is_itself(rng: np.random.Generator) -> None:
    x = mt.tensor(rng.standard_normal((2, 3, 5, 7), np.float32))
    same = mt.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]] * 2)
    results = [
        F.grid_sample(x, F.affine_grid(same, (2, 3, 5, 7), corners), mode, "border", corners)
        for mode in ("bilinear", "nearest", "bicubic")
        for corners in (False, True)
    ]
    mt.eval(*results)
    for y in results:
        assert np.allclose(y.numpy(), x.numpy(), atol=1e-5)


def test_a_convolution_of_windows(rng: np.random.Generator) -> None:
    x = mt.tensor(rng.standard_normal((2, 3, 7, 6)))
    weight = mt.tensor(rng.standard_normal((4, 3, 3, 2)))
    options = {"dilation": (1, 2), "padding": (2, 1), "stride": (2, 1)}
    columns = F.unfold(x, (3, 2), **options)
    want = F.conv2d(x, weight, None, options["stride"], options["padding"], options["dilation"])
    got = (weight.reshape(4, -1) @ columns).reshape(want.shape)
    assert np.allclose(got.numpy(), want.numpy())
    count = F.fold(F.unfold(mt.ones(2, 3, 7, 6), (3, 2), **options), (7, 6), (3, 2), **options)
    back = F.fold(columns, (7, 6), (3, 2), **options)
    assert np.allclose(back.numpy(), (x * count).numpy())


def test_draws_of_one_class_have_its_probability() -> None:
    mt.manual_seed(0)
    logits = mt.tensor([0.0, 1.0, 2.0], requires_grad=True)
    drawn = F.gumbel_softmax(logits.expand(20000, 3), tau=0.5, hard=True)
    assert set(drawn.detach().flatten().tolist()) == {0.0, 1.0}
    want = logits.softmax(0).detach()
    assert np.allclose(drawn.detach().mean(0).numpy(), want.numpy(), atol=0.015)
    drawn[:, 2].sum().backward()
    assert bool((logits.grad != 0).all())
    soft = F.gumbel_softmax(mt.zeros(1000, 4), dim=0)
    assert np.allclose(soft.sum(0).numpy(), 1.0, atol=1e-5)
    assert bool(soft.isfinite().all())


def test_dropout_behind_selu_keeps_mean_and_variance() -> None:
    mt.manual_seed(1)
    x = mt.randn(200, 500)
    for layer in (nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)):
        y = layer(x)
        assert abs(y.mean().item()) < 0.02
        assert abs(y.std().item() - 1) < 0.02
        assert layer.eval()(x) is x
    y = nn.AlphaDropout(0.3)(mt.ones(10000))
    low, high = y.unique().tolist()
    assert abs((y == low).float().mean().item() - 0.3) < 0.02
    scale = 1 / math.sqrt((1.7580993408473766**2 * 0.3 + 1) * 0.7)
    assert math.isclose(high, scale + scale * 1.7580993408473766 * 0.3, rel_tol=1e-6)
    channels = nn.FeatureAlphaDropout(0.5)(mt.ones(50, 8, 3))
    assert bool((channels.amax(2) == channels.amin(2)).all())
    assert len(channels.unique()) == 2


def test_slopes_are_drawn_in_training_only() -> None:
    mt.manual_seed(2)
    layer = nn.RReLU(0.25, 0.75)
    x = mt.full((10000,), -1.0, requires_grad=True)
    y = layer(x)
    slopes = -y.detach().numpy()
    assert slopes.min() >= 0.25
    assert slopes.max() <= 0.75
    assert abs(slopes.mean() - 0.5) < 0.01
    y.sum().backward()
    assert np.allclose(x.grad.numpy(), slopes)
    assert layer(mt.tensor([2.0])).tolist() == [2.0]
    assert layer.eval()(mt.tensor([-1.0])).tolist() == [-0.5]


def test_bilinear_layers(rng: np.random.Generator) -> None:
    layer = nn.Bilinear(4, 3, 5)
    assert {k: tuple(v.shape) for k, v in layer.state_dict().items()} == {
        "weight": (5, 4, 3),
        "bias": (5,),
    }
    assert layer.weight.abs().max().item() <= 0.5
    x, y = (mt.tensor(rng.standard_normal((2, 2, n)), requires_grad=True) for n in (4, 3))
    layer.double()
    want = np.einsum("abi,kij,abj->abk", *(t.detach().numpy() for t in (x, layer.weight, y)))
    got = layer(x, y)
    assert np.allclose(got.detach().numpy(), want + layer.bias.detach().numpy())
    assert mt.autograd.gradcheck(lambda a, b, w: F.bilinear(a, b, w), (x, y, layer.weight))
    assert nn.Bilinear(2, 2, 2, bias=False).bias is None


def test_dictionaries_of_parameters() -> None:
    scales = nn.ParameterDict({"b": mt.ones(2), "a": 3})
    assert list(scales) == ["a", "b"]
    assert isinstance(scales["b"], nn.Parameter)
    assert [name for name, _ in scales.named_parameters()] == ["b"]
    scales["c"] = mt.zeros(1)
    assert list(scales.state_dict()) == ["b", "c"]
    assert list(reversed(scales)) == ["c", "b", "a"]
    assert scales.setdefault("c", 1) is scales["c"]
    assert scales.get("d", 7) == 7
    merged = nn.ParameterDict({"z": mt.ones(1)}) | scales
    assert list(merged.keys()) == ["z", "a", "b", "c"]
    assert scales.popitem()[0] == "c"
    assert "c" not in scales
    assert len(list(scales.values())) == len(scales) == 2
    del scales["b"]
    assert list(scales.parameters()) == []
    scales |= nn.ParameterDict({"y": mt.ones(1)})
    assert list(scales.fromkeys(scales.keys(), 0).items()) == [("a", 0), ("y", 0)]
    scales.clear()
    assert len(scales) == 0
    assert repr(scales) == "ParameterDict()"


@pytest.mark.parametrize("drop", [F.alpha_dropout, F.feature_alpha_dropout])
def test_what_is_missing_stays_missing_where_it_is_dropped(drop: Any) -> None:
    x = mt.full((8, 50), float("nan"))
    assert drop(x, 0.5, training=True).isnan().all().item()


def test_exponential_draws_are_never_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        random, "uniform", lambda shape, dtype, generator: b.full(shape, 0.0, dtype)
    )
    for dtype in (mt.float32, mt.float64):
        assert (mt.empty(3, dtype=dtype).exponential_() > 0).all().item()
