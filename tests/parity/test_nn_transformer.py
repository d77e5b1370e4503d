"""Transformer encoders, initialisation and vectors of parameters against torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(7)

LAYERS: list[tuple[dict[str, Any], tuple[int, ...], str]] = [
    ({}, (5, 2, 8), ""),
    ({"batch_first": True, "activation": "gelu", "norm_first": True}, (2, 5, 8), "padding"),
    ({"bias": False, "layer_norm_eps": 0.1}, (5, 8), "mask"),
]


def _numbers(m: Any, model: Any, array: Any, masks: dict[str, Any], weights: Any) -> list[Any]:
    x: Any = m.tensor(array, requires_grad=True)
    y = model(x, **{k: m.tensor(v) for k, v in masks.items()})
    loss = (y * m.tensor(weights)).sum()
    return [y, *m.autograd.grad(loss, [x, *model.parameters()])]


def test_encoders() -> None:
    ours, wanted = [], []
    for options, shape, kind in LAYERS:
        pair = []
        for m in (mt, torch):
            layer = m.nn.TransformerEncoderLayer(8, 2, 6, 0.0, **options)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch announces that it is not nested
                norm = m.nn.LayerNorm(8) if kind else None
                pair.append(m.nn.TransformerEncoder(layer, 2, norm).double())
        assert repr(pair[0]) == repr(pair[1])
        state = pair[1].state_dict()
        assert list(pair[0].state_dict()) == list(state)
        for value in state.values():
            value += torch.tensor(RNG.normal(size=tuple(value.shape)) * 0.1)
        pair[0].load_state_dict({k: mt.tensor(v.numpy()) for k, v in state.items()})
        masks: dict[str, Any] = {}
        if kind == "padding":
            masks["src_key_padding_mask"] = np.array([[False] * 5, [False] * 3 + [True] * 2])
        if kind == "mask":
            masks["mask"] = np.triu(np.ones((5, 5), bool), 1)
        array, weights = RNG.normal(size=shape), RNG.normal(size=shape)
        ours.append(_numbers(mt, pair[0], array, masks, weights))
        wanted.append(_numbers(torch, pair[1], array, masks, weights))
    with config.override(target="numpy"):
        mt.eval(*[t for case in ours for t in case])
    for case, mine, other in zip(LAYERS, ours, wanted, strict=True):
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            np.testing.assert_allclose(
                a.detach().numpy(), b.detach().numpy(), 1e-8, 1e-10, err_msg=f"{case} {i}"
            )


DECODED: list[tuple[dict[str, Any], tuple[int, ...], tuple[int, ...], str]] = [
    ({}, (5, 2, 8), (4, 2, 8), ""),
    ({"batch_first": True, "activation": "gelu", "norm_first": True}, (2, 5, 8), (2, 4, 8), "pad"),
    ({"bias": False, "layer_norm_eps": 0.1}, (5, 8), (4, 8), "mask"),
    ({"batch_first": True}, (2, 5, 8), (2, 5, 8), "causal"),
]


def test_encoders_and_decoders() -> None:
    ours, wanted = [], []
    for options, source, target, kind in DECODED:
        pair = []
        for m in (mt, torch):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pair.append(m.nn.Transformer(8, 2, 1, 2, 6, 0.0, **options).double())
        assert repr(pair[0]) == repr(pair[1])
        state = pair[1].state_dict()
        assert list(pair[0].state_dict()) == list(state)
        for value in state.values():
            value += torch.tensor(RNG.normal(size=tuple(value.shape)) * 0.1)
        pair[0].load_state_dict({k: mt.tensor(v.numpy()) for k, v in state.items()})
        a, b, weights = (RNG.normal(size=shape) for shape in (source, target, target))
        masks: dict[str, Any] = {}
        if kind == "pad":
            hidden = np.array([[False] * 5, [False] * 3 + [True] * 2])
            masks["src_key_padding_mask"] = masks["memory_key_padding_mask"] = hidden
            masks["tgt_key_padding_mask"] = hidden[:, 1:]
        elif kind == "mask":
            masks["tgt_mask"] = np.triu(np.ones((4, 4), bool), 1)
            masks["memory_mask"] = np.arange(20).reshape(4, 5) % 3 == 1
            masks["src_mask"] = np.where(np.eye(5) > 0, -0.5, 0.0)
        for m, model, found in ((mt, pair[0], ours), (torch, pair[1], wanted)):
            given = {k: m.tensor(v) for k, v in masks.items()}
            if kind == "causal":
                mask = m.nn.Transformer.generate_square_subsequent_mask(5, dtype=m.float64)
                given |= {"tgt_mask": mask, "tgt_is_causal": True, "src_mask": mask}
            x, y = m.tensor(a, requires_grad=True), m.tensor(b, requires_grad=True)
            z = model(x, y, **given)
            loss = (z * m.tensor(weights)).sum()
            found.append([z, *m.autograd.grad(loss, [x, y, *model.parameters()])])
    with config.override(target="numpy"):
        mt.eval(*[t for case in ours for t in case])
    for case, mine, other in zip(DECODED, ours, wanted, strict=True):
        for i, (p, q) in enumerate(zip(mine, other, strict=True)):
            np.testing.assert_allclose(
                p.detach().numpy(), q.detach().numpy(), 1e-8, 1e-10, err_msg=f"{case} {i}"
            )


def test_initialisation() -> None:
    for shape in ((3, 5), (5, 3), (4, 2, 3)):
        q = mt.nn.init.orthogonal_(mt.empty(*shape, dtype=mt.float64), gain=2.0).numpy()
        q = q.reshape(shape[0], -1)
        product = q @ q.T if shape[0] <= q.shape[1] else q.T @ q
        np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-12)
    for shape, groups in (((4, 2, 3), 2), ((3, 5, 2, 3), 1), ((6, 2, 1, 2, 3), 3)):
        found = [m.nn.init.dirac_(m.empty(*shape), groups).tolist() for m in (mt, torch)]
        assert found[0] == found[1]
    found = [m.nn.init.eye_(m.empty(2, 3)).tolist() for m in (mt, torch)]
    assert found[0] == found[1]
    sparse = mt.nn.init.sparse_(mt.empty(10, 4), 0.25, std=2.0).numpy()
    assert (sparse == 0).sum(0).tolist() == [3] * 4
    assert len({tuple(column) for column in (sparse == 0).T}) > 1
    for mean, std, a, b in ((0.0, 1.0, -2.0, 2.0), (1.0, 2.0, 1.5, 2.0), (0.0, 1.0, 2.5, 9.0)):
        mt.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn = mt.nn.init.trunc_normal_(mt.empty(4000), mean, std, a, b).numpy()
            wanted = torch.nn.init.trunc_normal_(torch.empty(4000), mean, std, a, b).numpy()
        assert a <= drawn.min() <= drawn.max() <= b
        assert abs(drawn.mean() - wanted.mean()) < 0.1 * wanted.std()
        assert abs(drawn.std() / wanted.std() - 1) < 0.1


MISTAKES: list[Any] = [
    lambda m: m.nn.TransformerEncoderLayer(8, 2, activation="sin"),
    lambda m: m.nn.TransformerEncoderLayer(8, 3),
    lambda m: m.nn.TransformerEncoderLayer(8, 2)(m.zeros(5, 2, 7)),
    lambda m: m.nn.TransformerDecoderLayer(8, 2, activation="sin"),
    lambda m: m.nn.Transformer(8, 2, 1, 1, 4)(m.zeros(5, 2, 8), m.zeros(4, 3, 8)),
    lambda m: m.nn.Transformer(8, 2, 1, 1, 4)(m.zeros(5, 2, 8), m.zeros(4, 2, 6)),
    lambda m: m.nn.init.eye_(m.zeros(2)),
    lambda m: m.nn.init.dirac_(m.zeros(2, 2)),
    lambda m: m.nn.init.dirac_(m.zeros(3, 2, 2), 2),
    lambda m: m.nn.init.orthogonal_(m.zeros(2)),
    lambda m: m.nn.init.sparse_(m.zeros(2), 0.5),
    lambda m: m.nn.init.trunc_normal_(m.zeros(2), 5.0),
    lambda m: m.nn.utils.vector_to_parameters(3, []),
]


def test_mistakes_read_as_in_torch() -> None:
    for number, call in enumerate(MISTAKES):
        found: list[Any] = []
        for m in (mt, torch):
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    shape = tuple(call(m).shape)
                found.append((shape, [str(w.message) for w in caught]))
            except Exception as error:
                found.append((type(error), str(error).split("\n")[0]))
        assert found[0] == found[1], number
