"""Activations against torch: values, gradients, kinks, special values, second derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")
TF = torch.nn.functional
nan, inf = float("nan"), float("inf")

CASES: list[tuple[str, dict[str, Any]]] = [
    ("leaky_relu", {}),
    ("leaky_relu", {"negative_slope": -0.5}),
    ("silu", {}),
    ("elu", {}),
    ("elu", {"alpha": 1.7}),
    ("celu", {"alpha": 0.5}),
    ("selu", {}),
    ("softplus", {}),
    ("softplus", {"beta": 3.0, "threshold": 2.0}),
    ("logsigmoid", {}),
    ("hardtanh", {}),
    ("hardtanh", {"min_val": -0.5, "max_val": 3.0}),
    ("relu6", {}),
    ("hardsigmoid", {}),
    ("hardswish", {}),
    ("mish", {}),
    ("softsign", {}),
    ("tanhshrink", {}),
    ("hardshrink", {}),
    ("softshrink", {"lambd": 1.0}),
    ("threshold", {"threshold": 0.5, "value": -2.0}),
    ("softmin", {"dim": 0}),
    ("glu", {"dim": 0}),
]
KINKS = [-200.0, -30.0, -3.0, -1.0, -0.5, -1e-4, -0.0, 0.0, 1e-4, 0.5, 1.0, 3.0, 6.0, 200.0]
# What torch loses there: 1 / exp(200) is not 0, and no product of 0 and infinity is wanted.
SPARED = {"silu": (-inf, -200.0, inf), "mish": (-inf, -200.0, inf), "hardswish": (-inf,)}


def _random() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(40,)) * 4


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_values_and_gradients(dtype: str) -> None:
    array = np.concatenate([_random(), KINKS]).astype(dtype)
    ours, wanted = [], []
    for name, options in CASES:
        # Of one, torch has no second derivative.
        twice = dtype == "float64" and name != "hardsigmoid"
        for m, f, results in ((mt, F, ours), (torch, TF, wanted)):
            x: Any = m.tensor(array, requires_grad=True)
            y: Any = getattr(f, name)(x, **options)
            (g,) = m.autograd.grad((y * y).sum() + y.sum(), x, create_graph=twice)
            (h,) = m.autograd.grad(g.sum(), x) if g.requires_grad else (g,)
            results.append((name, y, g, h[: -len(KINKS)]))
    mt.eval(*[t for case in ours for t in case[1:]])
    for mine, other in zip(ours, wanted, strict=True):
        # torch's derivative of hardsigmoid is a sixth in float32, whatever the type.
        double = dtype == "float64" and mine[0] != "hardsigmoid"
        for order, (a, b) in enumerate(zip(mine[1:], other[1:], strict=True)):
            assert str(a.dtype)[3:] == str(b.dtype)[6:]
            np.testing.assert_allclose(
                a.detach().numpy(),
                b.detach().numpy(),
                rtol=2e-11 if double else 2e-6 * (1 + 10 * order),
                atol=1e-12 if double else 1e-6,
                err_msg=f"{mine[0]} {order}",
            )


def test_small_values_are_exact_in_float32() -> None:
    array = np.array([-1e-3, -1e-5, -1e-7, 1e-5, -20.0, -87.0, -100.0], np.float32)
    names = ("elu", "selu", "celu", "softplus", "logsigmoid", "mish", "silu")
    ours = [getattr(F, name)(mt.tensor(array)) for name in names]
    mt.eval(*ours)
    for name, y in zip(names, ours, strict=True):
        exact = getattr(TF, name)(torch.tensor(array).double()).numpy()
        np.testing.assert_allclose(y.numpy(), exact, rtol=1e-6, atol=1e-43, err_msg=name)


def test_special_values() -> None:
    array = np.array([-inf, inf, nan, -200.0, 200.0], np.float32)
    ours = []
    names = [c for c in CASES if c[0] not in ("glu", "softmin")]
    for name, options in names:
        x = mt.tensor(array, requires_grad=True)
        y = getattr(F, name)(x, **options)
        ours += [y, *mt.autograd.grad(y.sum(), x)]
    mt.eval(*ours)
    for i, (name, options) in enumerate(names):
        tx = torch.tensor(array, requires_grad=True)
        ty = getattr(TF, name)(tx, **options)
        ty.sum().backward()
        kept = [v not in SPARED.get(name, ()) for v in array]
        for a, b in zip(ours[2 * i : 2 * i + 2], (ty, tx.grad), strict=True):
            np.testing.assert_allclose(
                a.detach().numpy()[kept], b.detach().numpy()[kept], rtol=1e-6, err_msg=name
            )


@pytest.mark.parametrize(
    ("shape", "size"), [((3, 4, 2), 4), ((3, 4), 1), ((5,), 1), ((), 1), ((0, 4), 4)]
)
def test_prelu(shape: tuple[int, ...], size: int) -> None:
    array = np.random.default_rng(1).normal(size=shape)
    if array.size:
        array.flat[0] = inf if array.size > 1 else 1.0
    found = []
    for m, f in ((mt, F), (torch, TF)):
        x = m.tensor(array, requires_grad=True)
        w: Any = m.tensor(np.linspace(-0.5, 0.5, size), requires_grad=True)
        y: Any = f.prelu(x, w)
        y.sum().backward()
        found.append([t.detach().numpy() for t in (y, x.grad, w.grad)])
    for a, b in zip(*found, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_modules_print_and_compute_as_torchs() -> None:
    array = np.random.default_rng(1).normal(size=(4, 6)) * 3
    ours, wanted = [], []
    for name, args in (
        ("LeakyReLU", (0.2, True)),
        ("SiLU", ()),
        ("Mish", (True,)),
        ("ELU", (2.0, True)),
        ("CELU", (0.5,)),
        ("SELU", (True,)),
        ("Softplus", (2,)),
        ("ReLU6", ()),
        ("Hardtanh", (-2, 2, True)),
        ("Hardsigmoid", ()),
        ("Hardswish", (True,)),
        ("Softsign", ()),
        ("LogSigmoid", ()),
        ("Tanhshrink", ()),
        ("Hardshrink", (0.3,)),
        ("Softshrink", ()),
        ("Threshold", (0.1, 20.0, True)),
        ("PReLU", (6,)),
        ("GLU", ()),
        ("Softmin", (1,)),
    ):
        a, b = getattr(mt.nn, name)(*args), getattr(torch.nn, name)(*args)
        assert repr(a) == repr(b)
        assert list(a.state_dict()) == list(b.state_dict())
        a.double(), b.double()
        x, tx = mt.tensor(array), torch.tensor(array)
        ours.append(a(x))
        wanted.append(b(tx))
        assert (ours[-1] is x) == (wanted[-1] is tx), name
    with config.override(target="numpy"):
        mt.eval(*ours)
    for y, ty in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(y.detach().numpy(), ty.detach().numpy(), rtol=1e-12)


def _long(m: Any) -> Any:
    return m.tensor([1, 2, 7])


NAMES = [
    "leaky_relu",
    "silu",
    "elu",
    "celu",
    "selu",
    "softplus",
    "logsigmoid",
    "hardsigmoid",
    "hardswish",
    "mish",
    "hardshrink",
    "softshrink",
    "relu6",
    "hardtanh",
    "softsign",
]
MISTAKES: list[Any] = [
    *[lambda m, f, n=n: getattr(f, n)(_long(m)) for n in NAMES],
    lambda m, f: f.glu(m.zeros(2, 3)),
    lambda m, f: f.glu(m.zeros(())),
    lambda m, f: f.glu(m.zeros(2, 4), 3),
    lambda m, f: f.glu(_long(m), 0),
    lambda m, f: f.glu(m.zeros(2, 4).to(m.int64)),
    lambda m, f: f.celu(m.zeros(2), 0),
    lambda m, f: f.hardtanh(m.zeros(2), 2, 1),
    lambda m, f: f.hardtanh(m.tensor([True])),
    lambda m, f: f.hardtanh(_long(m).to(m.uint8)),
    lambda m, f: f.relu6(_long(m).to(m.uint8)),
    lambda m, f: f.softshrink(m.zeros(2), -1.0),
    lambda m, f: f.threshold(_long(m), 1, 5),
    lambda m, f: m.nn.Hardtanh(2, 1),
    lambda m, f: f.prelu(_long(m), m.ones(1)),
    lambda m, f: f.prelu(m.ones(2, 3), m.ones(4)),
    lambda m, f: f.prelu(m.ones(3), m.ones(3)),
    lambda m, f: f.prelu(m.ones(()), m.ones(3)),
    lambda m, f: f.prelu(m.ones(2, 3), m.ones(1, 3)),
    lambda m, f: f.silu([1.0]),
    lambda m, f: f.elu(m.zeros(2, requires_grad=True), inplace=True),
]


def test_mistakes_read_as_in_torch() -> None:
    for number, call in enumerate(MISTAKES):
        found: list[Any] = []
        for m, f in ((mt, F), (torch, TF)):
            try:
                y = call(m, f)
                found.append((str(y.dtype).split(".")[-1], y.tolist()))
            except Exception as error:
                found.append((type(error), str(error).split("\n")[0]))
        assert found[0] == found[1], number
