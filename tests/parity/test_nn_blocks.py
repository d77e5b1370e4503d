"""What transformers and residual networks are made of, against torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_nn_layers import both, close, copied, outcome, same_signature

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm.ops import normalization

torch = pytest.importorskip("torch")
TF = torch.nn.functional
RNG = np.random.default_rng(11)

LAYERS: list[Any] = [
    ("LayerNorm", (5,), {}, (3, 5)),
    ("LayerNorm", (5,), {"bias": False}, (1, 7, 5)),
    ("LayerNorm", ((3, 5),), {"eps": 0.1}, (2, 3, 5)),
    ("LayerNorm", ([5],), {"elementwise_affine": False}, (5,)),
    ("LayerNorm", (1,), {}, (3, 1)),
    ("LayerNorm", (131,), {}, (13, 131)),
    ("GroupNorm", (2, 6), {}, (3, 6, 4, 5)),
    ("GroupNorm", (3, 3), {"affine": False}, (1, 3, 7)),
    ("GroupNorm", (1, 4), {"bias": False}, (2, 4)),
    ("BatchNorm1d", (5,), {}, (4, 5)),
    ("BatchNorm1d", (5,), {"affine": False, "eps": 0.1}, (3, 5, 7)),
    ("BatchNorm1d", (3,), {"momentum": None}, (1, 3, 2)),
    ("BatchNorm2d", (3,), {}, (4, 3, 5, 7)),
    ("BatchNorm2d", (3,), {"bias": False, "momentum": 0.3}, (1, 3, 3, 3)),
    ("BatchNorm2d", (2,), {"track_running_stats": False}, (2, 2, 1, 3)),
    ("BatchNorm2d", (19,), {}, (1, 19, 2, 1)),
    ("AdaptiveAvgPool2d", (1,), {}, (2, 3, 5, 7)),
    ("AdaptiveAvgPool2d", ((2, 3),), {}, (2, 3, 5, 7)),
    ("AdaptiveAvgPool2d", ((2, None),), {}, (3, 6, 5)),
    ("AdaptiveAvgPool2d", ((3, 2),), {}, (1, 1, 6, 4)),
    ("AdaptiveAvgPool2d", (4,), {}, (1, 2, 3, 2)),
    ("GELU", (), {}, (3, 7)),
    ("GELU", ("tanh",), {}, (3, 7)),
]


def equal_gradients(y: Any, ty: Any, pairs: list[tuple[Any, Any]]) -> None:
    close(y, ty)
    weights = RNG.standard_normal(tuple(ty.shape))
    (y * mt.tensor(weights)).sum().backward()
    (ty * torch.tensor(weights)).sum().backward()
    for ours, theirs in pairs:
        close(ours.grad, theirs.grad, 1e-9)


@pytest.mark.parametrize(("name", "args", "kwargs", "shape"), LAYERS)
def test_layer_equals_torch(name: str, args: Any, kwargs: Any, shape: Any) -> None:
    ours, theirs = getattr(mt.nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)
    assert repr(ours) == repr(theirs)
    copied(ours, theirs)
    for p, tp in zip(ours.parameters(), theirs.parameters(), strict=True):
        drawn = RNG.standard_normal(tuple(p.shape))  # ones and zeros would hide mistakes
        with mt.no_grad(), torch.no_grad():
            p.copy_(mt.tensor(drawn))
            tp.copy_(torch.tensor(drawn))
    x, tx = both(*shape)
    pairs = [(x, tx), *zip(ours.parameters(), theirs.parameters(), strict=True)]
    equal_gradients(ours(x), theirs(tx), pairs)
    for key, value in theirs.state_dict().items():
        close(ours.state_dict()[key], value)
        assert str(ours.state_dict()[key].dtype).replace("mt.", "torch.") == str(value.dtype)
    ours.eval(), theirs.eval()
    for p, tp in pairs:
        p.grad = tp.grad = None
    equal_gradients(ours(x), theirs(tx), pairs)


@pytest.mark.parametrize("momentum", [0.1, 0.75, None])
def test_running_statistics_follow_torchs_over_steps(momentum: float | None) -> None:
    ours = mt.nn.BatchNorm2d(3, momentum=momentum)
    theirs = torch.nn.BatchNorm2d(3, momentum=momentum)
    for step in range(4):
        array = (RNG.standard_normal((5, 3, 2, 3)) * (step + 1) + step).astype(np.float32)
        close(ours(mt.tensor(array)), theirs(torch.tensor(array)), 1e-5)
        if step == 1:  # evaluation changes nothing
            ours.eval()(mt.tensor(array)), theirs.eval()(torch.tensor(array))
            ours.train(), theirs.train()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        close(ours.state_dict()[key], value, 1e-6)
    array = RNG.standard_normal((1, 3, 1, 1)).astype(np.float32)
    close(ours.eval()(mt.tensor(array)), theirs.eval()(torch.tensor(array)), 1e-5)
    ours.reset_running_stats(), theirs.reset_running_stats()
    for key, value in theirs.state_dict().items():
        close(ours.state_dict()[key], value)


def test_statistics_are_updated_without_history_and_in_frozen_runs() -> None:
    x = mt.randn(4, 3, requires_grad=True)
    layer = mt.nn.BatchNorm1d(3)
    layer(x).sum().backward()
    assert not layer.running_mean.requires_grad
    with mt.no_grad():
        before = layer.running_var.numpy().copy()
        layer(x)
    assert (layer.running_var.numpy() != before).all()
    frozen = mt.tensor([0.5, 0.5, 0.5])
    F.batch_norm(x, frozen, None, training=True, momentum=1.0)
    np.testing.assert_allclose(frozen.numpy(), x.detach().numpy().mean(0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "batch_norm"])
def test_a_large_mean_costs_no_digits(name: str) -> None:
    x = (RNG.standard_normal((8, 4, 100)) + 3000).astype(np.float32)
    wide = x.astype(np.float64)
    if name == "layer_norm":
        got, axes = F.layer_norm(mt.tensor(x), (100,)), (2,)
    elif name == "group_norm":
        got, axes = F.group_norm(mt.tensor(x), 1), (1, 2)
    else:
        got, axes = F.batch_norm(mt.tensor(x), None, None, training=True), (0, 2)
    mean, var = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    # The mean itself is rounded to a float32 near 3000, an error of up to 2.4e-4 / 2.
    np.testing.assert_allclose(got.numpy(), (wide - mean) / np.sqrt(var + 1e-5), atol=5e-4)


@pytest.mark.parametrize(
    ("padding", "shape"),
    [
        *itertools.product((None,), [(1,), (7,), (3, 5), (), (0,), (2, 3, 4)]),
        *itertools.product((0, 3, -1), [(3, 5), ()]),
    ],
)
def test_embedding(padding: int | None, shape: Any) -> None:
    ours = mt.nn.Embedding(6, 5, padding_idx=padding)
    theirs = torch.nn.Embedding(6, 5, padding_idx=padding)
    assert repr(ours) == repr(theirs)
    if padding is not None:
        assert ours.weight[padding].tolist() == [0.0] * 5
        assert (ours.weight.detach().numpy() == 0).sum() == 5
    copied(ours, theirs)
    index = RNG.integers(0, 6, shape)
    index[...] = np.where(RNG.random(shape) < 0.3, 3, index)
    for kind in ("int64", "int32"):
        positions = np.asarray(index, kind)
        y, ty = ours(mt.tensor(positions)), theirs(torch.tensor(positions))
        equal_gradients(y, ty, [(ours.weight, theirs.weight)])


def test_embedding_from_pretrained() -> None:
    table = RNG.standard_normal((4, 3))
    ours = mt.nn.Embedding.from_pretrained(mt.tensor(table), padding_idx=1)
    theirs = torch.nn.Embedding.from_pretrained(torch.tensor(table), padding_idx=1)
    assert repr(ours) == repr(theirs)
    assert not ours.weight.requires_grad
    close(ours(mt.tensor([1, 3])), theirs(torch.tensor([1, 3])))
    same_signature(mt.nn.Embedding.from_pretrained, torch.nn.Embedding.from_pretrained)


INDEXING: list[Callable[[Any, Any, Any], Any]] = [
    lambda t, x, i: x.index_select(0, i),
    lambda t, x, i: x.index_select(-1, i),
    lambda t, x, i: t.index_select(x, 1, i[0]),
    lambda t, x, i: x[i],
    lambda t, x, i: x[i - 3],
    lambda t, x, i: x[:, i],
    lambda t, x, i: x[..., i.reshape(2, 2)],
    lambda t, x, i: x[1:, None, i - 3],
    lambda t, x, i: x[None, ..., i, 1:],
    lambda t, x, i: x[::2, ..., i],
    lambda t, x, i: t.tril(x) + t.triu(x, 2),
    lambda t, x, i: x.tril(-1) * x.triu(-2),
    lambda t, x, i: t.tril(x, 100) - t.triu(x, -100),
    lambda t, x, i: t.masked_fill(x, x > 0.5, -2.0),
    lambda t, x, i: t.erf(x),
]


@pytest.mark.parametrize("number", range(len(INDEXING)))
def test_indexing_equals_torch(number: int) -> None:
    x, tx = both(3, 4, 5)
    index = [2, 0, 2, 1]
    y = INDEXING[number](mt, x, mt.tensor(index))
    equal_gradients(y, INDEXING[number](torch, tx, torch.tensor(index)), [(x, tx)])


ATTENTION: list[Any] = [
    ((2, 3, 7, 4), (2, 3, 7, 4), (2, 3, 7, 4), {}),
    ((2, 3, 7, 4), (2, 3, 7, 4), (2, 3, 7, 5), {"is_causal": True}),
    ((1, 1, 5), (1, 1, 5), (1, 1, 2), {"is_causal": True}),
    ((5, 4), (7, 4), (7, 3), {"is_causal": True}),
    ((7, 4), (5, 4), (5, 3), {"is_causal": True, "scale": 0.3}),
    ((3, 5, 4), (3, 6, 4), (3, 6, 4), {"mask": "bool"}),
    ((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 1), {"mask": "float"}),
    ((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 1), {"mask": "blind"}),
    ((1, 65, 16), (1, 65, 16), (1, 65, 16), {"is_causal": True}),
]


@pytest.mark.parametrize(("q", "k", "v", "options"), ATTENTION)
def test_attention(q: Any, k: Any, v: Any, options: dict[str, Any]) -> None:
    pairs = [both(*q), both(*k), both(*v)]
    options = dict(options)
    kind = options.pop("mask", None)
    extra: tuple[Any, ...] = ((), ())
    if kind is not None:
        mask: Any = RNG.standard_normal((q[-2], k[-2]))
        if kind != "float":
            mask = mask > -0.5
            mask[:, 0] = True
        if kind == "blind":
            mask[2] = False
        extra = ((mt.tensor(mask),), (torch.tensor(mask),))
    y = F.scaled_dot_product_attention(*[p[0] for p in pairs], *extra[0], **options)
    ty = TF.scaled_dot_product_attention(*[p[1] for p in pairs], *extra[1], **options)
    equal_gradients(y, ty, pairs)


HEADS: list[Any] = [
    ({"batch_first": True}, (3, 4, 6), None, {"average_attn_weights": False}),
    ({"bias": False}, (4, 6), None, {}),
    ({"dropout": 0.0}, (5, 1, 6), (7, 1, 6), {"need_weights": False}),
    ({"batch_first": True}, (2, 5, 6), (2, 3, 6), {"masks": "float"}),
    ({}, (5, 2, 6), None, {"masks": "bool", "need_weights": False}),
    ({"batch_first": True}, (2, 5, 6), None, {"masks": "heads"}),
    ({"batch_first": True, "kdim": 4, "vdim": 3}, (2, 5, 6), (2, 3, 4), {"masks": "bool"}),
    ({"vdim": 3, "bias": False}, (5, 6), (4, 6), {"average_attn_weights": False}),
    ({"batch_first": True, "add_bias_kv": True}, (2, 5, 6), None, {"masks": "heads"}),
    ({"add_zero_attn": True}, (5, 2, 6), (4, 2, 6), {"need_weights": False}),
    (
        {"batch_first": True, "add_bias_kv": True, "add_zero_attn": True, "kdim": 4},
        (2, 5, 6),
        (2, 3, 4),
        {"masks": "float"},
    ),
]


@pytest.mark.parametrize(("options", "shape", "other", "call"), HEADS)
def test_multihead_attention(options: Any, shape: Any, other: Any, call: Any) -> None:
    ours = mt.nn.MultiheadAttention(6, 2, **options)
    theirs = torch.nn.MultiheadAttention(6, 2, **options)
    assert repr(ours) == repr(theirs)
    copied(ours, theirs)
    pairs = [both(*shape)]
    if other is not None:
        pairs += [both(*other), both(*other[:-1], ours.vdim)]
    inputs = [p[0] for p in pairs] * (3 if other is None else 1)
    their_inputs = [p[1] for p in pairs] * (3 if other is None else 1)
    call = dict(call)
    kind = call.pop("masks", None)
    masks: dict[str, Any] = {}
    if kind is not None:
        first = options.get("batch_first", False)
        n, length = (shape[0], shape[1]) if first else (shape[1], shape[0])
        keys = length if other is None else other[1]
        lead = (2 * n,) if kind == "heads" else ()
        mask = RNG.standard_normal((*lead, length, keys))
        padding = RNG.random((n, keys)) < 0.3
        padding[:, 0] = False
        masks["attn_mask"] = mask if kind == "float" else (mask > 0.5) & (np.arange(keys) > 0)
        masks["key_padding_mask"] = np.where(padding, -1.0, 0.0) if kind == "float" else padding
    y, w = ours(*inputs, **call, **{k: mt.tensor(v) for k, v in masks.items()})
    ty, tw = theirs(*their_inputs, **call, **{k: torch.tensor(v) for k, v in masks.items()})
    if tw is None:
        assert w is None
    else:
        close(w, tw)
    pairs += zip(ours.parameters(), theirs.parameters(), strict=True)
    equal_gradients(y, ty, pairs)


def test_attention_drops_weights() -> None:
    x = mt.ones(1, 64, 64)
    identity = mt.eye(64).reshape(1, 64, 64)
    weights = F.scaled_dot_product_attention(x, x, identity, dropout_p=0.25).numpy() * 64
    kept = weights != 0
    assert abs(kept.mean() - 0.75) < 0.03
    np.testing.assert_allclose(weights[kept], 1 / 0.75, rtol=1e-5)
    gone = F.scaled_dot_product_attention(x, x, identity, dropout_p=1.0)
    assert not gone.numpy().any()


GRADCHECKS: dict[str, tuple[Any, ...]] = {
    "gelu": (F.gelu, (7,)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (7,)),
    "layer_norm": (lambda x, w, c: F.layer_norm(x, (3,), w, c), (2, 3), (3,), (3,)),
    "group_norm": (lambda x, w, c: F.group_norm(x, 2, w, c), (2, 4, 2), (4,), (4,)),
    "batch_norm": (
        lambda x, w, c: F.batch_norm(x, None, None, w, c, training=True),
        (3, 2, 2),
        (2,),
        (2,),
    ),
    "embedding": (lambda w: F.embedding(mt.tensor([1, 0, 1]), w), (3, 2)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (3, 2),
        (3, 2),
        (3, 2),
    ),
    "softmax": (lambda x: F.softmax(x, dim=1), (3, 4)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (2, 2)), (1, 3, 5)),
    "triangle": (lambda x: mt.tril(x) * mt.triu(x, -1), (3, 3)),
}


@pytest.mark.parametrize("name", GRADCHECKS)
def test_first_and_second_derivatives(name: str) -> None:
    function, *shapes = GRADCHECKS[name]
    inputs = tuple(mt.tensor(RNG.standard_normal(s), requires_grad=True) for s in shapes)
    assert mt.autograd.gradcheck(function, inputs)

    def slope(*xs: Any) -> Any:
        y = function(*xs)
        return mt.autograd.grad((y * y).sum(), xs, create_graph=True)

    assert mt.autograd.gradcheck(slope, inputs, atol=1e-4)


def test_a_channel_is_normalised_by_way_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose means differ: the variance between them counts, too."""
    x = RNG.standard_normal((6, 3, 9, 11)) + 10 * RNG.standard_normal((6, 1, 1, 1))
    for least in (9 * 11, 9 * 11 + 1):  # with moments of samples, and without
        monkeypatch.setattr(normalization, "_SAMPLE", least)
        ours, theirs = mt.nn.BatchNorm2d(3, momentum=1.0), torch.nn.BatchNorm2d(3, momentum=1.0)
        close(ours(mt.tensor(x).float()), theirs(torch.tensor(x).float()), 1e-5)
        close(ours.running_mean, theirs.running_mean, 1e-6)
        close(ours.running_var, theirs.running_var, 1e-5)
    monkeypatch.setattr(normalization, "_SAMPLE", 2)
    test_first_and_second_derivatives("batch_norm")


@pytest.mark.parametrize(
    "name",
    [
        "LayerNorm",
        "GroupNorm",
        "BatchNorm1d",
        "BatchNorm2d",
        "Embedding",
        "GELU",
        "MultiheadAttention",
    ],
)
def test_constructors_have_torchs_arguments(name: str) -> None:
    same_signature(getattr(mt.nn, name).__init__, getattr(torch.nn, name).__init__)


@pytest.mark.parametrize(
    "name", ["layer_norm", "group_norm", "batch_norm", "embedding", "adaptive_avg_pool2d"]
)
def test_functions_have_torchs_arguments(name: str) -> None:
    ours, theirs = getattr(F, name), getattr(TF, name)
    if name == "adaptive_avg_pool2d":  # torch annotates its argument with None
        assert list(ours.__annotations__)[:2] == ["input", "output_size"]
        return
    same_signature(ours, theirs)


MISTAKES: list[Any] = [
    lambda t, nn, f: f.embedding(t.tensor([0, 5]), t.zeros(5, 3)),
    lambda t, nn, f: f.embedding(t.tensor([0, -1]), t.zeros(5, 3)),
    lambda t, nn, f: f.embedding(t.tensor([1.0]), t.zeros(5, 3)),
    lambda t, nn, f: f.embedding(t.tensor([1]), t.zeros(5)),
    lambda t, nn, f: f.embedding(t.tensor([1]), t.zeros(5, 3), padding_idx=5),
    lambda t, nn, f: nn.Embedding(5, 3, padding_idx=-6),
    lambda t, nn, f: nn.Embedding.from_pretrained(t.zeros(5)),
    lambda t, nn, f: t.zeros(4, 5).index_select(0, t.tensor([-1])),
    lambda t, nn, f: t.zeros(4, 5).index_select(2, t.tensor([1])),
    lambda t, nn, f: t.zeros(4, 5).index_select(0, t.tensor([1.0])),
    lambda t, nn, f: t.zeros(4, 5).index_select(0, t.tensor([[1]])),
    lambda t, nn, f: t.zeros(4, 5)[t.tensor([7])],
    lambda t, nn, f: t.zeros(4, 5)[:, t.tensor([1, -6])],
    lambda t, nn, f: t.zeros(4, 5)[t.tensor([1.0])],
    lambda t, nn, f: t.zeros(4)[:, t.tensor([1])],
    lambda t, nn, f: f.gelu(t.tensor([1])),
    lambda t, nn, f: f.gelu(t.zeros(1), approximate="x"),
    lambda t, nn, f: f.layer_norm(t.zeros(4, 5), (4,)),
    lambda t, nn, f: f.layer_norm(t.zeros(4, 5), ()),
    lambda t, nn, f: f.layer_norm(t.zeros(4, 5), (5,), t.ones(4)),
    lambda t, nn, f: f.layer_norm(t.zeros(4, 5), (5,), t.ones(5), t.ones(4)),
    lambda t, nn, f: f.layer_norm(t.zeros(4, 5).to(t.int64), (5,)),
    lambda t, nn, f: nn.BatchNorm2d(5)(t.zeros(4, 5)),
    lambda t, nn, f: nn.BatchNorm1d(5)(t.zeros(1, 5, 1, 1)),
    lambda t, nn, f: nn.BatchNorm1d(5)(t.zeros(1, 5)),
    lambda t, nn, f: nn.BatchNorm2d(4)(t.zeros(2, 5, 2, 2)),
    lambda t, nn, f: f.batch_norm(t.zeros(4, 5), None, None),
    lambda t, nn, f: f.batch_norm(t.zeros(4, 5), t.ones(4), t.ones(5)),
    lambda t, nn, f: f.batch_norm(t.zeros(4, 5), t.ones(5), t.ones(5), t.ones(3)),
    lambda t, nn, f: f.batch_norm(t.zeros(4, 5), t.ones(5), t.ones(5), None, t.ones(3)),
    lambda t, nn, f: nn.GroupNorm(3, 5),
    lambda t, nn, f: f.group_norm(t.zeros(2, 5), 2),
    lambda t, nn, f: f.group_norm(t.zeros(2, 4), 2, t.ones(3)),
    lambda t, nn, f: f.adaptive_avg_pool2d(t.zeros(2, 3, 4, 4), -1),
    lambda t, nn, f: f.adaptive_avg_pool2d(t.zeros(2, 3, 4, 4), (1, 2, 3)),
    lambda t, nn, f: f.scaled_dot_product_attention(t.zeros(4), t.zeros(4), t.zeros(4)),
    lambda t, nn, f: f.scaled_dot_product_attention(*[t.zeros(3, 4)] * 3, t.zeros(3, 3), 0.0, True),
    lambda t, nn, f: f.scaled_dot_product_attention(*[t.zeros(3, 4)] * 3, dropout_p=1.5),
    lambda t, nn, f: f.scaled_dot_product_attention(
        t.zeros(3, 4), t.zeros(3, 4).to(t.float64), t.zeros(3, 4)
    ),
    lambda t, nn, f: f.scaled_dot_product_attention(
        *[t.zeros(3, 4)] * 3, t.zeros(3, 3).to(t.int64)
    ),
    lambda t, nn, f: t.zeros(2, 2).masked_fill(t.zeros(2, 2), 1.0),
    lambda t, nn, f: t.zeros(2, 2).masked_fill(t.zeros(2, 2).to(t.int64), 1.0),
    lambda t, nn, f: t.tril(t.zeros(3)),
    lambda t, nn, f: nn.MultiheadAttention(5, 2),
    lambda t, nn, f: nn.MultiheadAttention(0, 2),
    lambda t, nn, f: nn.MultiheadAttention(4, 2)(*[t.zeros(n, 1, 4) for n in (2, 3, 5)]),
    lambda t, nn, f: nn.MultiheadAttention(4, 2, batch_first=True)(
        *[t.zeros(2, n, 4) for n in (2, 3, 5)]
    ),
    lambda t, nn, f: nn.MultiheadAttention(4, 2, kdim=3)(*[t.zeros(2, 1, 4)] * 3),
    lambda t, nn, f: nn.MultiheadAttention(4, 2, vdim=3)(*[t.zeros(2, 1, 4)] * 3),
    lambda t, nn, f: nn.MultiheadAttention(4, 2, vdim=3)(
        *[t.zeros(*s) for s in ((2, 1, 4), (3, 1, 4), (5, 1, 3))]
    ),
    lambda t, nn, f: nn.MultiheadAttention(4, 2)(*[t.zeros(2, 2, 2, 4)] * 3),
    lambda t, nn, f: nn.MultiheadAttention(4, 2)(*[t.zeros(2, 2, 5)] * 3),
    lambda t, nn, f: nn.MultiheadAttention(4, 2)(*[t.zeros(2, 2, 4)] * 3, is_causal=True),
    lambda t, nn, f: nn.MultiheadAttention(4, 2)(*[t.zeros(2, 3, 4)] * 3, attn_mask=t.zeros(3, 3)),
    lambda t, nn, f: t.triu(t.zeros(3)),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_read_as_in_torch(number: int) -> None:
    theirs = outcome(lambda: MISTAKES[number](torch, torch.nn, TF))
    assert outcome(lambda: MISTAKES[number](mt, mt.nn, F)) == theirs


@pytest.mark.parametrize(
    ("options", "words"),
    [({"max_norm": 1.0}, "max_norm"), ({"sparse": True}, "sparse=True"),
     ({"scale_grad_by_freq": True}, "scale_grad_by_freq=True")],
)  # fmt: skip
def test_unsupported_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"Embedding: {words} is not supported"):
        mt.nn.Embedding(3, 2, **options)
    with pytest.raises(ValueError, match=f"embedding: {words} is not supported"):
        F.embedding(mt.tensor([0]), mt.zeros(3, 2), **options)


# --- whole blocks -------------------------------------------------------------------------------


def gpt(t: Any, nn: Any, f: Any) -> Any:
    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.body = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: Any) -> Any:
            n, s, c = x.shape
            parts = self.qkv(self.ln1(x)).split(c, dim=2)
            q, k, v = (p.view(n, s, self.heads, c // self.heads).transpose(1, 2) for p in parts)
            y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).contiguous().view(n, s, c))
            return x + self.body(self.ln2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(11, 12), nn.Embedding(7, 12)
            self.blocks = nn.Sequential(Block(12, 3))
            self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 11, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, x: Any) -> Any:
            h = self.tokens(x) + self.places(t.arange(x.shape[1]))
            return self.head(self.norm(self.blocks(h)))

    return GPT()


def resnet(t: Any, nn: Any, f: Any) -> Any:
    class Basic(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
            self.short = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(f.relu(self.bn1(self.conv1(x)))))
            return f.relu(y + self.short(x))

    return nn.Sequential(Basic(3, 5, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4))


@pytest.mark.parametrize("make", [gpt, resnet])
def test_training_follows_torch(make: Any) -> None:
    ours, theirs = make(mt, mt.nn, F), make(torch, torch.nn, TF)
    assert repr(ours) == repr(theirs)
    copied(ours, theirs)
    if make is gpt:
        optimizers = [
            (m.optim.AdamW(n.parameters(), lr=0.01)) for m, n in ((mt, ours), (torch, theirs))
        ]
    else:
        optimizers = [
            m.optim.SGD(n.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
            for m, n in ((mt, ours), (torch, theirs))
        ]
    for _ in range(4):
        if make is gpt:
            x, y = RNG.integers(0, 11, (3, 7)), RNG.integers(0, 11, (3, 7))
        else:
            x, y = RNG.standard_normal((6, 3, 7, 7)), RNG.integers(0, 4, 6)
        losses = []
        for m, net, function, optimizer in (
            (mt, ours, F, optimizers[0]),
            (torch, theirs, TF, optimizers[1]),
        ):
            out = net(m.tensor(x))
            loss = function.cross_entropy(out.reshape(-1, out.shape[-1]), m.tensor(y).reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert math.isclose(*losses, rel_tol=1e-9)
    for key, value in theirs.state_dict().items():
        close(ours.state_dict()[key], value, 1e-7)
    ours.eval(), theirs.eval()
    with mt.no_grad(), torch.no_grad():
        one = x[:1]  # a batch of one
        close(ours(mt.tensor(one)), theirs(torch.tensor(one)), 1e-7)
