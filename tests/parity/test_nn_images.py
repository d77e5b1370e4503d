"""Layers of lines, of image sizes, padding and norms against torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")
TF = torch.nn.functional
RNG = np.random.default_rng(7)

Case = tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]
LAYERS: list[Case] = [
    ("Conv1d", (2, 3, 3), {}, (2, 2, 7)),
    ("Conv1d", (4, 6, 3, 2, 1, 2, 2, False), {}, (4, 9)),
    ("Conv1d", (2, 3, 4), {"padding": "same"}, (2, 2, 7)),
    ("Conv1d", (2, 3, 3), {"padding": "valid"}, (1, 2, 5)),
    ("Conv1d", (2, 3, 3), {"padding": 2, "padding_mode": "replicate"}, (2, 2, 7)),
    ("Conv2d", (2, 3, (2, 3)), {"padding": "same", "padding_mode": "circular"}, (2, 2, 4, 5)),
    ("Conv2d", (2, 3, 3, 2, 1), {"padding_mode": "reflect"}, (2, 4, 5)),
    ("ConvTranspose1d", (4, 6, 3, 2, 1, 1, 2), {}, (2, 4, 5)),
    ("ConvTranspose1d", (2, 3, 3), {"bias": False}, (2, 5)),
    ("ConvTranspose2d", (2, 3, 3), {}, (2, 2, 4, 5)),
    ("ConvTranspose2d", (4, 6, (2, 3), 2, 1, (0, 1), 2, False, 2), {}, (2, 4, 4, 3)),
    ("ConvTranspose2d", (2, 3, 4, 2, 1), {}, (2, 3, 3)),
    ("MaxPool1d", (2,), {}, (2, 3, 7)),
    ("MaxPool1d", (3, 2, 1), {"ceil_mode": True, "dilation": 2}, (3, 8)),
    ("AvgPool1d", (2,), {}, (2, 3, 7)),
    ("AvgPool1d", (3, 2, 1, True, False), {}, (3, 8)),
    ("AdaptiveAvgPool1d", (3,), {}, (2, 2, 7)),
    ("AdaptiveAvgPool1d", (4,), {}, (2, 8)),
    ("AdaptiveMaxPool2d", (2,), {}, (2, 2, 4, 6)),
    ("AdaptiveMaxPool2d", ((None, 1),), {}, (2, 4, 6)),
    ("AdaptiveMaxPool2d", ((3, 8),), {}, (2, 2, 4, 6)),
    ("AvgPool2d", (3, 2, 1, True, True, 5), {}, (2, 6, 7)),
    ("Upsample", (), {"scale_factor": 2}, (2, 2, 3, 4)),
    ("Upsample", (), {"scale_factor": (1.7, 0.6)}, (2, 2, 5, 6)),
    ("Upsample", (), {"size": (7, 3), "mode": "nearest-exact"}, (2, 2, 5, 6)),
    ("Upsample", (), {"size": 5}, (2, 2, 7)),
    ("Upsample", (), {"scale_factor": 2, "mode": "bilinear"}, (2, 2, 3, 4)),
    ("Upsample", (), {"size": (7, 1), "mode": "bilinear", "align_corners": True}, (2, 2, 4, 6)),
    ("Upsample", (), {"scale_factor": 2, "mode": "bicubic"}, (2, 2, 3, 4)),
    ("Upsample", (), {"scale_factor": (1.7, 0.6), "mode": "bicubic"}, (2, 2, 5, 6)),
    ("Upsample", (), {"size": (7, 1), "mode": "bicubic", "align_corners": True}, (2, 2, 4, 6)),
    ("Upsample", (), {"size": (1, 5), "mode": "bicubic"}, (2, 1, 1, 6)),
    ("Upsample", (), {"scale_factor": 1.2, "mode": "bicubic"}, (1, 1, 5, 4)),
    ("Upsample", (), {"scale_factor": 1.7, "mode": "linear"}, (2, 2, 5)),
    (
        "Upsample",
        (),
        {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True},
        (1, 2, 5, 4),
    ),
    ("Upsample", (), {"size": 3, "mode": "area"}, (2, 2, 5, 6)),
    ("Upsample", (), {"size": 3, "mode": "area"}, (2, 2, 5)),
    ("PixelShuffle", (2,), {}, (2, 8, 3, 2)),
    ("PixelUnshuffle", (2,), {}, (2, 4, 6)),
    ("ZeroPad1d", (1,), {}, (2, 3)),
    ("ZeroPad2d", ((1, -1, 0, 2),), {}, (2, 3, 4)),
    ("ConstantPad1d", ((1, 2), 1.5), {}, (2, 3)),
    ("ConstantPad2d", (1, 1.5), {}, (2, 3, 4)),
    ("ReflectionPad1d", ((3, 2),), {}, (2, 4)),
    ("ReflectionPad2d", ((1, 2, 2, 0),), {}, (2, 2, 3, 4)),
    ("ReplicationPad1d", ((5, 1),), {}, (2, 2, 3)),
    ("ReplicationPad2d", (2,), {}, (2, 3, 4)),
    ("CircularPad1d", ((3, 2),), {}, (2, 3)),
    ("CircularPad2d", ((1, 2, 0, 3),), {}, (2, 2, 3, 4)),
    ("Dropout1d", (1.0,), {}, (2, 3, 4)),
    ("Dropout2d", (0.0,), {}, (2, 3, 4, 2)),
    ("InstanceNorm1d", (3,), {}, (3, 5)),
    ("InstanceNorm2d", (3,), {"affine": True, "eps": 0.1}, (2, 3, 4, 5)),
    ("InstanceNorm2d", (3,), {"affine": True, "bias": False}, (3, 4, 5)),
    ("RMSNorm", (4,), {}, (2, 3, 4)),
    ("RMSNorm", ((3, 4),), {"eps": 0.1, "elementwise_affine": False}, (2, 3, 4)),
]


def _results(m: Any, layer: Any, array: Any, weights: Any) -> list[Any]:
    x: Any = m.tensor(array, requires_grad=True)
    y = layer(x)
    loss = (y * m.tensor(weights[: int(np.prod(tuple(y.shape)))]).reshape(y.shape)).sum()
    return [y, *m.autograd.grad(loss, [x, *layer.parameters()])]


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_layers(target: str) -> None:
    # The formulas once by numpy, on everything; some of each kind as compiled programs.
    cases = LAYERS if target == "numpy" else LAYERS[1::4]
    ours, wanted = [], []
    for name, args, kwargs, shape in cases:
        pair = [getattr(m.nn, name)(*args, **kwargs) for m in (mt, torch)]
        assert repr(pair[0]) == repr(pair[1])
        pair[0].double(), pair[1].double()
        state = pair[1].state_dict()
        assert list(pair[0].state_dict()) == list(state)
        pair[0].load_state_dict({k: mt.tensor(v.numpy()) for k, v in state.items()})
        array, weights = RNG.normal(size=shape), RNG.normal(size=1000)
        ours.append(_results(mt, pair[0], array, weights))
        wanted.append(_results(torch, pair[1], array, weights))
    with config.override(target=target):
        mt.eval(*[t for case in ours for t in case])
    for case, mine, other in zip(cases, ours, wanted, strict=True):
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert tuple(a.shape) == tuple(b.shape), case
            # Where torch computes positions in float32, ours are those of the dtype.
            np.testing.assert_allclose(
                a.detach().numpy(), b.detach().numpy(), 1e-9, 1e-11, err_msg=f"{case} {i}"
            )


def test_output_size_of_transposed_convolutions() -> None:
    results = []
    for m in (mt, torch):
        layer = m.nn.ConvTranspose2d(1, 2, 3, stride=2)
        sizes = ((17, 18), (1, 2, 18, 17))
        results.append([tuple(layer(m.zeros(1, 1, 8, 8), output_size=s).shape) for s in sizes])
    assert results[0] == results[1]


def test_positions_of_float32_are_torchs() -> None:
    with config.override(target="numpy"):
        for n, factor in ((7, 1.3), (11, 2.9), (13, 0.7), (10, 3.3), (3, 41.0), (2, 7.0)):
            array = RNG.normal(size=(1, 1, n)).astype(np.float32)
            square = array * array.swapaxes(1, 2)
            ours = F.interpolate(mt.tensor(square[None]), scale_factor=factor, mode="bicubic")
            theirs = TF.interpolate(torch.tensor(square[None]), scale_factor=factor, mode="bicubic")
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), 1e-4, 1e-5)
            for mode in ("nearest", "nearest-exact", "linear"):
                ours = F.interpolate(mt.tensor(array), scale_factor=factor, mode=mode)
                theirs = TF.interpolate(torch.tensor(array), scale_factor=factor, mode=mode)
                np.testing.assert_allclose(ours.numpy(), theirs.numpy(), 1e-5, 1e-6)


def test_dropout_of_channels() -> None:
    mt.manual_seed(0)
    x = mt.ones(64, 4, 3, 2, requires_grad=True)
    y = F.dropout2d(x, 0.25)
    (g,) = mt.autograd.grad(y.sum(), x)
    values = y.detach().numpy()
    assert set(np.unique(values.reshape(256, 6).min(1))) == {0.0, np.float32(4 / 3)}
    assert (values.min((2, 3)) == values.max((2, 3))).all()
    assert 0.15 < (values[:, :, 0, 0] == 0).mean() < 0.35
    np.testing.assert_array_equal(g.numpy(), values)


MISTAKES: list[Any] = [
    lambda m, f: f.pad(m.zeros(2, 3), (1, 1), mode="foo"),
    lambda m, f: f.pad(m.zeros(3), (1, 1), mode="reflect"),
    lambda m, f: f.pad(m.zeros(2, 3), (1, 1, 1, 1), mode="reflect"),
    lambda m, f: f.pad(m.zeros(2, 3), (3, 1), mode="reflect"),
    lambda m, f: f.pad(m.zeros(1, 2, 3), (0, 0, 2, 1), mode="reflect"),
    lambda m, f: f.pad(m.zeros(2, 3), (4, 1), mode="circular"),
    lambda m, f: f.pad(m.zeros(2, 3), (1, 1), mode="reflect", value=1.0),
    lambda m, f: f.pad(m.zeros(2, 0), (1, 1), mode="replicate"),
    lambda m, f: f.conv1d(m.zeros(2, 3), m.zeros(4, 3, 3)),
    lambda m, f: f.conv1d(m.zeros(3), m.zeros(4, 3, 3)),
    lambda m, f: f.conv1d(m.zeros(1, 3, 2), m.zeros(4, 3, 3)),
    lambda m, f: f.conv1d(m.zeros(1, 3, 8), m.zeros(4, 3, 3), stride=(1, 2)),
    lambda m, f: f.conv1d(m.zeros(1, 3, 8), m.zeros(4, 3, 3, 3)),
    lambda m, f: f.conv1d(m.zeros(1, 3, 8), m.zeros(4, 3)),
    lambda m, f: f.conv1d(m.zeros(1, 3, 8), m.zeros(4, 3, 3), stride=0),
    lambda m, f: f.conv1d(m.zeros(1, 3, 8), m.zeros(4, 3, 3), padding="same", stride=2),
    lambda m, f: f.conv1d(m.zeros(1, 3, 8).double(), m.zeros(4, 3, 3)),
    lambda m, f: f.conv_transpose2d(m.zeros(1, 3, 8, 8), m.zeros(4, 3, 3, 3)),
    lambda m, f: f.conv_transpose2d(m.zeros(1, 3, 8, 8), m.zeros(3, 2, 3, 3), output_padding=1),
    lambda m, f: f.conv_transpose2d(m.zeros(1, 3, 8, 8), m.zeros(3, 2, 3, 3), output_padding=-1),
    lambda m, f: f.conv_transpose2d(m.zeros(1, 3, 8, 8), m.zeros(3, 2, 3, 3), groups=2),
    lambda m, f: f.conv_transpose2d(m.zeros(8, 8), m.zeros(3, 2, 3, 3)),
    lambda m, f: f.conv_transpose2d(m.zeros(1, 3, 1, 1), m.zeros(3, 2, 3, 3), padding=2),
    lambda m, f: f.conv_transpose2d(m.zeros(1, 3, 8, 8).double(), m.zeros(3, 2, 3, 3)),
    lambda m, f: f.conv_transpose2d(m.zeros(1, 3, 8, 8), m.zeros(3, 2, 3, 3), m.zeros(3)),
    lambda m, f: m.nn.ConvTranspose2d(3, 2, 3, stride=2)(m.zeros(1, 3, 8, 8), (19, 18)),
    lambda m, f: m.nn.ConvTranspose2d(3, 2, 3, stride=2)(m.zeros(1, 3, 8, 8), (19,)),
    lambda m, f: m.nn.ConvTranspose2d(3, 2, 3, padding_mode="reflect"),
    lambda m, f: f.max_pool1d(m.zeros(8), 2),
    lambda m, f: f.max_pool1d(m.zeros(1, 3, 8), (2, 2)),
    lambda m, f: f.max_pool1d(m.zeros(1, 3, 8), 0),
    lambda m, f: f.max_pool1d(m.zeros(1, 3, 8), 2, padding=2),
    lambda m, f: f.max_pool1d(m.zeros(1, 3, 8), 9),
    lambda m, f: f.max_pool1d(m.zeros(1, 3, 8).to(m.int64), 2),
    lambda m, f: f.max_pool1d(m.zeros(1, 3, 8), 2, 0),
    lambda m, f: f.avg_pool1d(m.zeros(8), 2),
    lambda m, f: f.avg_pool1d(m.zeros(1, 3, 8), 9),
    lambda m, f: f.avg_pool1d(m.zeros(1, 3, 8), (2, 2)),
    lambda m, f: f.avg_pool1d(m.zeros(1, 3, 8), 2, padding=2),
    lambda m, f: f.adaptive_avg_pool1d(m.zeros(8), 2),
    lambda m, f: f.adaptive_avg_pool1d(m.zeros(1, 3, 8), (2, 2)),
    lambda m, f: f.adaptive_avg_pool1d(m.zeros(1, 3, 8), -1),
    lambda m, f: f.adaptive_max_pool2d(m.zeros(3, 8), 2),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8)),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8), size=4, scale_factor=2),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8), size=(4,)),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8), scale_factor=(4,)),
    lambda m, f: f.interpolate(m.zeros(3, 8), scale_factor=2),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8), scale_factor=2, mode="bilinear"),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8), scale_factor=2, mode="linear"),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8), scale_factor=2, mode="foo"),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8), scale_factor=2, align_corners=True),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8), size=0),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8), size=4, recompute_scale_factor=True),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8).to(m.int64), scale_factor=2),
    lambda m, f: f.interpolate(m.zeros(1, 3, 8, 8).to(m.uint8), scale_factor=2),
    lambda m, f: f.pixel_shuffle(m.zeros(1, 3, 8, 8), 2),
    lambda m, f: f.pixel_shuffle(m.zeros(3, 8), 2),
    lambda m, f: f.pixel_shuffle(m.zeros(1, 4, 8, 8), 0),
    lambda m, f: f.pixel_unshuffle(m.zeros(1, 4, 3, 8), 2),
    lambda m, f: f.dropout2d(m.zeros(3, 8, 8), 1.5),
    lambda m, f: f.dropout1d(m.zeros(8), 0.5),
    lambda m, f: m.nn.InstanceNorm2d(3)(m.zeros(3, 8)),
    lambda m, f: m.nn.InstanceNorm2d(3)(m.zeros(2, 4, 8, 8)),
    lambda m, f: m.nn.InstanceNorm2d(3, affine=True)(m.zeros(2, 4, 8, 8)),
    lambda m, f: m.nn.InstanceNorm2d(3)(m.zeros(2, 3, 1, 1)),
    lambda m, f: f.rms_norm(m.zeros(3, 4), (5,)),
    lambda m, f: f.rms_norm(m.zeros(3, 4), (4,), m.zeros(5)),
    lambda m, f: f.rms_norm(m.zeros(3, 4), ()),
    lambda m, f: f.rms_norm(m.zeros(3, 4).to(m.int64), (4,)),
]


def test_mistakes_read_as_in_torch() -> None:
    for number, call in enumerate(MISTAKES):
        found: list[Any] = []
        for m, f in ((mt, F), (torch, TF)):
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    shape = tuple(call(m, f).shape)
                found.append((shape, [str(w.message) for w in caught]))
            except Exception as error:
                found.append((type(error), str(error).split("\n")[0]))
        assert found[0] == found[1], number


def test_what_is_not_supported_says_so() -> None:
    x = mt.zeros(1, 2, 4, 4)
    for call, words in (
        (
            lambda: F.conv_transpose2d(x, x[0, :, None], output_padding=1, dilation=2),
            "output_padding",
        ),
        (lambda: F.interpolate(x, size=3, mode="lanczos"), "mode='lanczos' is not supported"),
        (
            lambda: F.interpolate(x, size=3, mode="bilinear", antialias=True),
            "antialias=True is not supported",
        ),
        (lambda: F.pad(x[0], (-1, 1), mode="reflect"), "negative numbers are not supported"),
        (lambda: F.dropout2d(x[0, 0]), "inputs of 2 dimensions are not supported"),
        (lambda: mt.nn.InstanceNorm2d(2, track_running_stats=True), "is not supported"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            call()
