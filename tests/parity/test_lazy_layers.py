"""Layers that learn the number of their inputs, against torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_nn_layers import same_signature

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")

LAYERS: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "LazyLinear": ((3,), {}, (2, 5)),
    "LazyConv1d": ((4, 3), {"stride": 2}, (2, 3, 9)),
    "LazyConv2d": ((4, 3), {"groups": 2, "padding": 1}, (2, 2, 5, 5)),
    "LazyConv3d": ((4, 2), {"bias": False}, (1, 2, 3, 3, 3)),
    "LazyConvTranspose1d": ((4, 3), {"stride": 2}, (2, 3, 5)),
    "LazyConvTranspose2d": ((4, 3), {"groups": 2}, (2, 6, 5, 5)),
    "LazyConvTranspose3d": ((4, 2), {"bias": False}, (1, 2, 3, 3, 3)),
    "LazyBatchNorm1d": ((), {}, (4, 3)),
    "LazyBatchNorm2d": ((), {"momentum": 0.3}, (2, 3, 4, 4)),
    "LazyBatchNorm3d": ((), {"affine": False}, (2, 3, 2, 2, 2)),
}


def made(lib: Any, name: str) -> Any:
    args, kwargs, _ = LAYERS[name]
    return getattr(lib.nn, name)(*args, **kwargs)


def outcome(call: Callable[[Any], Any], lib: Any) -> Any:
    try:
        result = call(lib)
    except Exception as error:
        # The names of the functions differ: methods there, what does their work here.
        return type(error).__name__, str(error).split("parameter in")[0]
    return result if isinstance(result, (int, bool, list, tuple)) else str(result)


def same(call: Callable[[Any], Any]) -> None:
    assert outcome(call, mt) == outcome(call, torch)


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal(LAYERS[name][2]).astype("float32")
    ours, theirs = made(mt, name), made(torch, name)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    kept = dict(ours.named_parameters())
    first = ours(mt.tensor(x))
    theirs(torch.tensor(x))
    assert (repr(ours), type(ours).__name__) == (repr(theirs), type(theirs).__name__)
    assert not ours._forward_pre_hooks
    assert all(p is kept[n] and type(p) is mt.nn.Parameter for n, p in ours.named_parameters())
    assert [tuple(p.shape) for p in ours.parameters()] == [
        tuple(p.shape) for p in theirs.parameters()
    ]
    # A layer that loads its state before it is called.
    later = made(mt, name)
    state = {k: mt.tensor(v.numpy()) for k, v in theirs.state_dict().items()}
    assert repr(later.load_state_dict(state)) == "<All keys matched successfully>"
    assert type(later).__name__ == name
    np.testing.assert_allclose(
        later(mt.tensor(x)).detach().numpy(),
        theirs(torch.tensor(x)).detach().numpy(),
        rtol=1e-4,
        atol=1e-5,
    )
    if "Norm" not in name:  # there and here, num_features of such a norm stays 0
        assert repr(later) == repr(theirs)
    assert first.shape == later(mt.tensor(x)).shape


@pytest.mark.parametrize("name", LAYERS)
def test_signature(name: str) -> None:
    same_signature(getattr(mt.nn, name).__init__, getattr(torch.nn, name).__init__)


USES: list[Callable[[Any], Any]] = [
    lambda w: w,
    lambda w: w.shape,
    lambda w: w.numel(),
    lambda w: w + 1,
    lambda w: 1 * w,
    lambda w: w.sum(),
    lambda w: w.requires_grad_(False),
    lambda w: (w.requires_grad, w.is_leaf),
    lambda w: w.grad,
    lambda w: str(w.dtype)[-7:],
]


@pytest.mark.parametrize("number", range(len(USES)))
def test_use_of_what_has_no_shape(number: int) -> None:
    same(lambda lib: USES[number](lib.nn.LazyLinear(3).weight))
    same(lambda lib: USES[number](lib.nn.LazyBatchNorm1d().running_mean))


def test_mistakes() -> None:
    same(lambda lib: lib.nn.LazyConv2d(4, 3, groups=2)(lib.ones(1, 3, 5, 5)))
    same(lambda lib: lib.nn.LazyConv2d(4, 3)(lib.ones(3, 5)))
    same(lambda lib: lib.nn.LazyBatchNorm2d()(lib.ones(2, 3)))
    same(lambda lib: lib.nn.Linear(3, 2).load_state_dict(lib.nn.LazyLinear(2).state_dict()))
    same(lambda lib: lib.nn.LazyLinear(2).load_state_dict(lib.nn.LazyLinear(2).state_dict()))
    same(lambda lib: lib.nn.LazyLinear(2).load_state_dict({}))
    same(lambda lib: lib.nn.init.zeros_(lib.nn.LazyLinear(2).weight))


def test_a_model_that_is_optimized_from_the_start() -> None:
    for lib in (mt, torch):
        net = lib.nn.Sequential(lib.nn.LazyLinear(4), lib.nn.Tanh(), lib.nn.LazyLinear(1))
        net.apply(lambda m: None)
        net.zero_grad()
        optimizer = lib.optim.Adam(net.parameters(), lr=0.1)
        x = lib.arange(12.0).reshape(4, 3) / 12
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = (net(x).squeeze(1) - x.sum(1)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 4


def test_copies_and_dtypes() -> None:
    for lib in (mt, torch):
        layer = lib.nn.LazyLinear(3)
        copied = copy.deepcopy(layer)
        layer(lib.ones(4))
        for _ in range(2):
            assert tuple(copied(lib.ones(2, 2)).shape) == (2, 3)
        wide = lib.nn.LazyLinear(3).double()
        assert wide(lib.ones(2).double()).dtype is lib.float64
        assert wide.weight.dtype is lib.float64
        assert layer(lib.ones(4)).requires_grad
        named = lib.nn.LazyLinear(3)
        assert tuple(named(input=lib.ones(2)).shape) == (3,)


def test_parameters_of_ones_own() -> None:
    def shaped(lib: Any) -> Any:
        p = lib.nn.UninitializedParameter(requires_grad=False, dtype=lib.float64)
        buffer = lib.nn.UninitializedBuffer()
        before = repr(p), repr(buffer)
        p.materialize((2, 3))
        buffer.materialize([4])
        return before, tuple(p.shape), str(p.dtype)[-7:], p.requires_grad, tuple(buffer.shape)

    same(shaped)
