"""Layers and functions of volumes against torch: values, first and second gradients, mistakes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")
TF = torch.nn.functional
RNG = np.random.default_rng(11)

Case = tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]
LAYERS: list[Case] = [
    ("Conv3d", (2, 3, 3), {}, (2, 2, 4, 5, 6)),
    ("Conv3d", (4, 6, (2, 3, 1), (2, 1, 2), (1, 2, 0), (1, 2, 1), 2, False), {}, (4, 4, 6, 5)),
    ("Conv3d", (2, 3, (4, 3, 2)), {"padding": "same"}, (2, 2, 4, 3, 5)),
    ("Conv3d", (1, 3, (3, 2, 2)), {"padding": "valid", "dilation": 2}, (1, 1, 6, 4, 3)),
    ("Conv3d", (3, 3, 2, 2), {"groups": 3}, (2, 3, 4, 4, 4)),
    ("Conv3d", (2, 3, (1, 3, 3)), {"padding": (0, 1, 1)}, (1, 2, 3, 4, 4)),
    ("Conv3d", (2, 2, 3), {"padding": 1, "padding_mode": "circular"}, (2, 3, 4, 3)),
    ("Conv3d", (2, 2, 2), {"padding": "same", "padding_mode": "reflect"}, (1, 2, 3, 4, 3)),
    ("ConvTranspose3d", (2, 3, 3), {}, (2, 2, 3, 4, 2)),
    ("ConvTranspose3d", (2, 3, 2, 2), {"bias": False}, (2, 3, 2, 3)),
    (
        "ConvTranspose3d",
        (4, 6, (3, 2, 3), (3, 1, 2), (2, 0, 1), (2, 0, 1), 2, True, (2, 3, 1)),
        {},
        (2, 4, 3, 2, 3),
    ),
    ("ConvTranspose3d", (2, 2, (2, 1, 1), (4, 1, 1), 0, (3, 0, 0)), {}, (1, 2, 3, 2, 2)),
    ("MaxPool3d", (2,), {}, (2, 2, 4, 5, 6)),
    ("MaxPool3d", ((3, 2, 3), (2, 1, 2), 1), {"ceil_mode": True, "dilation": 2}, (2, 7, 6, 8)),
    ("MaxPool3d", ((1, 2, 2),), {}, (2, 2, 3, 8, 8)),
    ("AvgPool3d", (2,), {}, (2, 2, 4, 5, 6)),
    ("AvgPool3d", ((3, 2, 3), 2, 1, True, False), {}, (2, 6, 5, 7)),
    ("AvgPool3d", (3, (2, 1, 3), (1, 0, 1), True, True), {}, (2, 6, 5, 7)),
    ("AvgPool3d", (2, 1), {"divisor_override": 3}, (2, 3, 4, 3)),
    ("AdaptiveAvgPool3d", (1,), {}, (2, 2, 3, 4, 5)),
    ("AdaptiveAvgPool3d", ((2, None, 3),), {}, (2, 2, 3, 4, 5)),
    ("AdaptiveAvgPool3d", ((2, 2, 3),), {}, (2, 4, 4, 6)),
    ("AdaptiveMaxPool3d", (2,), {}, (2, 2, 4, 4, 6)),
    ("AdaptiveMaxPool3d", ((3, 2, None),), {}, (2, 4, 5, 3)),
    ("BatchNorm3d", (3,), {}, (2, 3, 3, 4, 2)),
    ("BatchNorm3d", (3,), {"affine": False, "track_running_stats": False}, (1, 3, 3, 4, 2)),
    ("InstanceNorm3d", (3,), {}, (2, 3, 3, 4, 2)),
    ("InstanceNorm3d", (3,), {"affine": True, "eps": 0.1}, (3, 3, 4, 2)),
    ("Dropout3d", (1.0,), {}, (2, 3, 4, 2, 3)),
    ("Dropout3d", (0.0,), {}, (3, 4, 2, 3)),
    ("Upsample", (), {"scale_factor": 2}, (2, 2, 3, 4, 2)),
    ("Upsample", (), {"size": (5, 3, 7), "mode": "nearest-exact"}, (1, 2, 3, 4, 2)),
    ("Upsample", (), {"scale_factor": 2, "mode": "trilinear"}, (1, 2, 3, 4, 2)),
    ("Upsample", (), {"size": (2, 7, 5), "mode": "trilinear"}, (1, 2, 3, 4, 2)),
    (
        "Upsample",
        (),
        {"size": (2, 7, 1), "mode": "trilinear", "align_corners": True},
        (1, 2, 3, 4, 2),
    ),
    ("Upsample", (), {"size": (2, 3, 2), "mode": "area"}, (1, 2, 3, 4, 4)),
    ("ZeroPad3d", ((1, -1, 0, 2, 1, 0),), {}, (2, 3, 4, 3)),
    ("ConstantPad3d", (1, 1.5), {}, (1, 2, 3, 4, 2)),
    ("ReflectionPad3d", ((1, 2, 2, 0, 1, 1),), {}, (2, 2, 3, 4, 3)),
    ("ReplicationPad3d", (2,), {}, (2, 3, 4, 3)),
    ("CircularPad3d", ((1, 2, 0, 3, 2, 1),), {}, (2, 2, 3, 4, 2)),
]


def _grads(m: Any, call: Any, arrays: list[Any], weights: Any) -> list[Any]:
    """The result, its gradients, and those of a sum over the squares of these."""
    inputs = [m.tensor(a, requires_grad=True) for a in arrays]
    y = call(*inputs)
    ct = m.tensor(weights[: int(np.prod(tuple(y.shape)))]).reshape(y.shape)
    first = m.autograd.grad((y * y * ct).sum(), inputs, create_graph=True)
    second = m.autograd.grad(sum((g * g).sum() for g in first), inputs)
    return [y, *first, *second]


def _compare(ours: list[list[Any]], wanted: list[list[Any]], cases: list[Any]) -> None:
    for case, mine, other in zip(cases, ours, wanted, strict=True):
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert tuple(a.shape) == tuple(b.shape), case
            np.testing.assert_allclose(
                a.detach().numpy(), b.detach().numpy(), 1e-8, 1e-9, err_msg=f"{case} {i}"
            )


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_layers(target: str) -> None:
    # The formulas once by numpy, on everything; one of each kind as a compiled program.
    cases = LAYERS if target == "numpy" else [*{c[0]: c for c in LAYERS}.values()]
    ours, wanted = [], []
    for name, args, kwargs, shape in cases:
        pair = [getattr(m.nn, name)(*args, **kwargs) for m in (mt, torch)]
        assert repr(pair[0]) == repr(pair[1])
        pair[0].double(), pair[1].double()
        state = pair[1].state_dict()
        assert list(pair[0].state_dict()) == list(state)
        arrays = [RNG.normal(size=shape), *[RNG.normal(size=p.shape) for p in pair[1].parameters()]]
        weights = RNG.normal(size=4000)
        names = list(dict(pair[1].named_parameters()))

        def call(m: Any, layer: Any, names: Any = names) -> Any:
            def run(x: Any, *parameters: Any) -> Any:
                for n, p in zip(names, parameters, strict=True):
                    layer._parameters[n] = p
                return layer(x)

            return run

        ours.append(_grads(mt, call(mt, pair[0]), arrays, weights))
        wanted.append(_grads(torch, call(torch, pair[1]), arrays, weights))
    with config.override(target=target):
        mt.eval(*[t for case in ours for t in case])
    _compare(ours, wanted, cases)


def test_running_statistics() -> None:
    array = RNG.normal(2.0, 3.0, size=(3, 2, 3, 4, 5))
    layers = [m.nn.BatchNorm3d(2, dtype=m.float64) for m in (mt, torch)]
    for layer, m in zip(layers, (mt, torch), strict=True):
        layer(m.tensor(array)).sum()
    for name in ("running_mean", "running_var"):
        found, wanted = (getattr(layer, name).numpy() for layer in layers)
        np.testing.assert_allclose(found, wanted, 1e-12)


_SMALL = st.integers(1, 3)


@st.composite
def _convolutions(draw: Any) -> tuple[Any, ...]:
    """(transposed, shapes of input and weight, options), which fit together."""
    transposed, groups = draw(st.booleans()), draw(st.integers(1, 2))
    triple = st.tuples(_SMALL, _SMALL, _SMALL)
    kernel, stride, dilation = draw(triple), draw(triple), draw(triple)
    padding = draw(st.tuples(*[st.integers(0, k) for k in kernel]))
    c, o = draw(_SMALL), draw(_SMALL)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    more = draw(st.tuples(*[st.integers(0, 3)] * 3))
    options: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }
    if transposed:
        options["output_padding"] = draw(st.tuples(*[st.integers(0, s - 1) for s in stride]))
        size = [1 + m + -(-2 * p // s) for m, p, s in zip(more, padding, stride, strict=True)]
        weight = (c * groups, o, *kernel)
    else:
        size = [max(1, k - 2 * p) + m for k, p, m in zip(spans, padding, more, strict=True)]
        weight = (o * groups, c, *kernel)
    return transposed, (draw(_SMALL), c * groups, *size), weight, options


@given(_convolutions())
@settings(max_examples=60, deadline=None)
def test_convolutions_of_any_shape(drawn: tuple[Any, ...]) -> None:
    transposed, shape, weight, options = drawn
    name = "conv_transpose3d" if transposed else "conv3d"
    rng = np.random.default_rng(0)
    outputs = weight[1] * options["groups"] if transposed else weight[0]
    arrays = [rng.normal(size=s) for s in (shape, weight, (outputs,))]
    weights = rng.normal(size=100_000)
    ours = _grads(mt, lambda *t: getattr(F, name)(*t, **options), arrays, weights)
    wanted = _grads(torch, lambda *t: getattr(TF, name)(*t, **options), arrays, weights)
    with config.override(target="numpy"):
        mt.eval(*ours)
    _compare([ours], [wanted], [drawn])


@st.composite
def _pools(draw: Any) -> tuple[str, tuple[int, ...], dict[str, Any]]:
    """(name, shape, options), which fit together."""
    name = draw(st.sampled_from(["max_pool3d", "avg_pool3d"]))
    triple = st.tuples(_SMALL, _SMALL, _SMALL)
    kernel = draw(triple)
    options: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": draw(triple),
        "padding": draw(st.tuples(*[st.integers(0, k // 2) for k in kernel])),
        "ceil_mode": draw(st.booleans()),
    }
    spans = kernel
    if name == "max_pool3d":
        options["dilation"] = draw(triple)
        if max(options["dilation"]) > 1:  # torch writes anywhere if a window is all padding
            options["padding"] = (0, 0, 0)
        spans = tuple(d * (k - 1) + 1 for d, k in zip(options["dilation"], kernel, strict=True))
    else:
        options["count_include_pad"] = draw(st.booleans())
        options["divisor_override"] = draw(st.sampled_from([None, None, 3, -2]))
    # Of means, padding does not make up for what an input is smaller than a window.
    margins = options["padding"] if name == "max_pool3d" else (0, 0, 0)
    size = [
        max(1, k - 2 * p) + draw(st.integers(0, 4)) for k, p in zip(spans, margins, strict=True)
    ]
    return name, (draw(_SMALL), 2, *size), options


@given(_pools())
@settings(max_examples=60, deadline=None)
def test_pools_of_any_shape(drawn: tuple[Any, ...]) -> None:
    name, shape, options = drawn
    rng = np.random.default_rng(0)
    arrays, weights = [rng.normal(size=shape)], rng.normal(size=100_000)
    ours = _grads(mt, lambda x: getattr(F, name)(x, **options), arrays, weights)
    wanted = _grads(torch, lambda x: getattr(TF, name)(x, **options), arrays, weights)
    with config.override(target="numpy"):
        mt.eval(*ours)
    _compare([ours], [wanted], [drawn])


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grids(mode: str, padding: str) -> None:
    arrays = [RNG.normal(size=(2, 2, 3, 4, 2)), RNG.uniform(-1.5, 1.5, size=(2, 2, 3, 2, 3))]
    ours, wanted = [], []
    for corners in (False, True):
        for m, f, results in ((mt, F, ours), (torch, TF, wanted)):
            inputs = [m.tensor(a, requires_grad=True) for a in arrays]
            y = f.grid_sample(*inputs, mode, padding, corners)
            results.append([y, *m.autograd.grad((y * y).sum(), inputs)])
    _compare(ours, wanted, [False, True])


def test_grids_of_affine_maps() -> None:
    theta = RNG.normal(size=(2, 3, 4))
    for corners in (False, True):
        ours, wanted = (
            f.affine_grid(m.tensor(theta), (2, 1, 3, 2, 4), corners).numpy()
            for m, f in ((mt, F), (torch, TF))
        )
        np.testing.assert_allclose(ours, wanted, 1e-12, 1e-12)


def test_equal_elements_and_what_is_no_number() -> None:
    # Which element of a window gets the gradient: as in torch, the first of equal ones, or the
    # last that is no number.
    array = RNG.integers(0, 3, size=(2, 2, 5, 6, 7)).astype(np.float32)
    array[RNG.random(array.shape) < 0.05] = np.nan
    array[0, 0, 0] = -np.inf
    for name, args in (
        ("max_pool3d", (2,)),
        ("max_pool3d", (3, 2, 1)),
        ("adaptive_max_pool3d", ((2, 4, 3),)),
    ):
        found = []
        for m, f in ((mt, F), (torch, TF)):
            x = m.tensor(array, requires_grad=True)
            y = getattr(f, name)(x, *args)
            weights = np.arange(1, y.numel() + 1, dtype=np.float32).reshape(tuple(y.shape))
            y.backward(m.tensor(weights))
            found.append((y.detach().numpy(), x.grad.numpy()))
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b)


def test_nothing_in_a_batch() -> None:
    for m, f in ((mt, F), (torch, TF)):
        x = m.zeros(0, 2, 4, 4, 4, requires_grad=True)
        w = m.zeros(3, 2, 3, 3, 3, requires_grad=True)
        y = f.max_pool3d(f.conv3d(x, w, padding=1), 2)
        assert tuple(y.shape) == (0, 3, 2, 2, 2)
        y.sum().backward()
        assert tuple(x.grad.shape) == tuple(x.shape)
        assert not w.grad.numpy().any()
        z = f.conv_transpose3d(x.detach(), m.ones(2, 1, 2, 2, 2), stride=2)
        assert tuple(z.shape) == (0, 1, 8, 8, 8)
        assert tuple(f.avg_pool3d(x.detach(), 2).shape) == (0, 2, 2, 2, 2)
        assert tuple(f.adaptive_avg_pool3d(x.detach(), (3, 1, 0)).shape) == (0, 2, 3, 1, 0)


MISTAKES = """
f.conv3d(z(2, 8), z(3, 2, 3, 3, 3))
f.conv3d(z(1, 1, 1, 1, 1, 1), z(3, 2, 3, 3, 3))
f.conv3d(X, z(3, 2))
f.conv3d(X, z(3, 2, 3, 3))
f.conv3d(X, W, stride=0)
f.conv3d(X, W, stride=(1, 1))
f.conv3d(X, W, stride=())
f.conv3d(X, W, padding=-1)
f.conv3d(X, W, padding=(1, 1, 1, 1))
f.conv3d(X, W, padding="same", stride=2)
f.conv3d(X, W, padding="foo")
f.conv3d(X, W, dilation=0)
f.conv3d(X, W, dilation=-1)
f.conv3d(X, W, groups=0)
f.conv3d(X, W, groups=2)
f.conv3d(X, z(1, 1, 3, 3, 3), groups=2)
f.conv3d(X, z(3, 1, 3, 3, 3))
f.conv3d(X[0], z(3, 1, 3, 3, 3))
f.conv3d(X, W, z(4))
f.conv3d(X, W, z(3, 1))
f.conv3d(X, W, z(3).double())
f.conv3d(X.double(), W)
f.conv3d(X > 0, W > 0)
f.conv3d(X, z(3, 2, 9, 2, 2))
f.conv3d(X, z(3, 2, 3, 3, 0))
f.conv3d(X[..., :0], W)
f.conv3d(X[..., :0], W, padding=2)
f.conv_transpose3d(X, z(4, 3, 3, 3, 3))
f.conv_transpose3d(X, V, output_padding=1)
f.conv_transpose3d(X, V, output_padding=-1)
f.conv_transpose3d(X, V, output_padding=2, stride=2)
f.conv_transpose3d(X, V, output_padding=(1, 1))
f.conv_transpose3d(X, z(3, 2, 3, 3, 3), groups=2)
f.conv_transpose3d(z(8), V)
f.conv_transpose3d(z(1, 2, 1, 1, 1), V, padding=2)
f.conv_transpose3d(X.double(), V)
f.conv_transpose3d(X, V, z(3))
f.conv_transpose3d(X, V, z(2).double())
f.conv_transpose3d(X, V, stride=0)
f.conv_transpose3d(X, V, dilation=0)
f.conv_transpose3d(X, V, padding=-1)
f.conv_transpose3d(X[..., :0], V)
f.conv_transpose3d(X, V[:, :0])
f.conv_transpose3d(X, z(2, 2, 0, 1, 1))
f.conv_transpose3d(X, z(2, 2, 3, 3))
m.nn.Conv3d(3, 4, 3, groups=2)
m.nn.Conv3d(3, 4, 3, padding="same", stride=2)
m.nn.Conv3d(3, 4, -1)
m.nn.Conv3d(2, 2, 9, padding=9, padding_mode="reflect")(X)
m.nn.Conv3d(2, 2, 3, padding=1, padding_mode="reflect")(z(2, 2))
m.nn.ConvTranspose3d(3, 4, 3, padding_mode="reflect")
m.nn.ConvTranspose3d(2, 2, 3, stride=2)(X, (19, 19, 19))
m.nn.ConvTranspose3d(2, 2, 3, stride=2)(X, (18, 18, 18, 18))
m.nn.ConvTranspose3d(2, 2, 3, stride=2)(X, (1, 2, 18, 17, 18))
f.max_pool3d(z(8, 8), 2)
f.max_pool3d(X, 0)
f.max_pool3d(X, -1)
f.max_pool3d(X, 2, 0)
f.max_pool3d(X, 2, -1)
f.max_pool3d(X, 2, padding=2)
f.max_pool3d(X, 2, padding=-1)
f.max_pool3d(X, 2, dilation=0)
f.max_pool3d(X, 3, dilation=4)
f.max_pool3d(X, (9, 2, 2))
f.max_pool3d(X, (2, 2))
f.max_pool3d(X, ())
f.max_pool3d(X, 2, (2, 2))
f.max_pool3d(X, 2, padding=(0, 0))
f.max_pool3d(X, 2, dilation=(1, 1))
f.max_pool3d(X, 2.5)
f.max_pool3d(3, 2)
f.max_pool3d(X > 0, 2)
f.max_pool3d(X.long(), 2)
f.max_pool3d(X[:, :0], 2)
f.avg_pool3d(z(8, 8), 2)
f.avg_pool3d(X, 0)
f.avg_pool3d(X, 2, -1)
f.avg_pool3d(X, 2, padding=2)
f.avg_pool3d(X, (9, 2, 2))
f.avg_pool3d(X, (9, 2, 2), padding=(4, 0, 0))
f.avg_pool3d(X, (2, 2))
f.avg_pool3d(X, 2, (2, 2))
f.avg_pool3d(X, 2, padding=(0, 0))
f.avg_pool3d(X, 2, divisor_override=0)
f.avg_pool3d(X > 0, 2)
f.avg_pool3d(X[..., :0], 2)
f.adaptive_avg_pool3d(z(8, 8), 2)
f.adaptive_avg_pool3d(X, -1)
f.adaptive_avg_pool3d(X, (2, 2))
f.adaptive_avg_pool3d(X.long(), 2)
f.adaptive_avg_pool3d(X[:, :0], 2)
f.adaptive_avg_pool2d(X[0, ..., :0], 2)
f.adaptive_max_pool3d(z(8, 8), 2)
f.adaptive_max_pool3d(X, -1)
f.adaptive_max_pool3d(X, (2, 2))
f.adaptive_max_pool3d(X.long(), 2)
f.adaptive_max_pool3d(X[..., :0], 2)
f.dropout3d(X, 1.5)
m.nn.BatchNorm3d(2)(X[0])
m.nn.BatchNorm3d(2)(z(1, 2, 1, 1, 1))
m.nn.InstanceNorm3d(2)(z(1, 2, 3))
m.nn.InstanceNorm3d(3, affine=True)(X)
f.pad(X, (1, 1), mode="reflect")
f.pad(X, (0, 0, 0, 0, 8, 0), mode="reflect")
f.pad(X, (9, 0, 0, 0, 0, 0), mode="circular")
f.interpolate(X, size=(2, 3), mode="trilinear")
f.interpolate(X, size=0)
f.interpolate(X, size=2, mode="bilinear")
f.interpolate(X, size=2, mode="bicubic")
f.interpolate(X[0], size=2, mode="trilinear")
f.interpolate(X.long(), size=2)
f.interpolate(X.long(), size=2, mode="trilinear")
f.interpolate(X.long(), size=2, mode="area")
f.interpolate(X, size=2, mode="trilinear", antialias=True)
f.interpolate(X[..., :0], size=2, mode="area")
f.grid_sample(X, z(1, 2, 2, 2, 2), align_corners=False)
f.grid_sample(X, z(2, 2, 2, 2, 3), align_corners=False)
f.grid_sample(X, z(1, 2, 2, 3), align_corners=False)
f.grid_sample(X, z(1, 2, 2, 2, 3), "bicubic", align_corners=False)
f.grid_sample(X[..., :0], z(1, 2, 2, 2, 3), align_corners=False)
f.grid_sample(X.long(), z(1, 2, 2, 2, 3).long(), align_corners=False)
f.affine_grid(z(1, 2, 3), (1, 2, 2, 2, 2), False)
f.affine_grid(z(2, 3, 4), (1, 2, 2, 2, 2), False)
f.affine_grid(z(1, 3, 4), (1, 2, 2, 2, 0), False)
"""


@pytest.mark.parametrize("text", MISTAKES.split("\n")[1:-1])
def test_mistakes_read_as_in_torch(text: str) -> None:
    found: list[Any] = []
    for m, f in ((mt, F), (torch, TF)):
        names = {"m": m, "f": f, "z": m.zeros, "X": m.zeros(1, 2, 8, 8, 8)}
        names |= {"W": m.zeros(3, 2, 3, 3, 3), "V": m.zeros(2, 2, 3, 3, 3)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(tuple(eval(text, names).shape))
        except Exception as error:
            found.append((type(error), str(error).split("\n")[0]))
    assert found[0] == found[1]
