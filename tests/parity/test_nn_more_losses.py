"""Losses of distances and likelihoods against torch: values, gradients, dtypes, messages."""

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
inf = float("inf")
RNG = np.random.default_rng(3)


def _normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape) * 2


def _uniform(*shape: int) -> np.ndarray:
    return RNG.uniform(0.05, 0.95, shape)


SIGNS = np.array([1, -1, 1, 0, -1])
EDGES = np.array([0.0, 1.0, 0.0, 1.0, 1e-9])
APART = np.array([[1.0, -1.0, 0.0], [0.5, 3.0, -0.5]])

# name, arrays, options; gradients are taken of the first two arrays, where they are float
CASES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    ("smooth_l1_loss", [_normal(4, 3), _normal(4, 3)], {}),
    ("smooth_l1_loss", [APART, APART * 0], {"beta": 0.5}),
    ("smooth_l1_loss", [APART, APART * 0], {"beta": 0.0}),
    ("huber_loss", [_normal(4, 3), _normal(4, 3)], {"delta": 1.5}),
    ("huber_loss", [APART, APART * 0], {"weight": _uniform(2, 3)}),
    ("binary_cross_entropy", [_uniform(4, 3), _uniform(4, 3)], {"weight": _uniform(3)}),
    ("binary_cross_entropy", [EDGES, np.array([1.0, 0.0, 0.0, 1.0, 0.5])], {}),
    ("kl_div", [_normal(4, 3), _uniform(4, 3)], {}),
    ("kl_div", [_normal(4, 3), np.log(_uniform(4, 3))], {"log_target": True}),
    ("poisson_nll_loss", [_normal(4, 3), _uniform(4, 3) * 4], {}),
    ("poisson_nll_loss", [_uniform(4, 3), _uniform(4, 3) * 4], {"log_input": False, "full": True}),
    ("gaussian_nll_loss", [_normal(4, 3), _normal(4, 3), _uniform(4, 3)], {"full": True}),
    ("gaussian_nll_loss", [_normal(4, 3), _normal(4, 3), _uniform(4)], {"eps": 0.5}),
    ("gaussian_nll_loss", [_normal(4, 3), _normal(4, 3), _uniform(4, 1)], {}),
    ("gaussian_nll_loss", [_normal(4, 3), _normal(4, 3)], {"var": 0.3}),
    ("margin_ranking_loss", [_normal(5), _normal(5), SIGNS], {"margin": 0.5}),
    ("margin_ranking_loss", [np.ones(5), np.ones(5), SIGNS], {}),
    ("hinge_embedding_loss", [_normal(5), SIGNS], {"margin": 0.7}),
    ("soft_margin_loss", [_normal(5) * 10, SIGNS], {}),
    ("cosine_embedding_loss", [_normal(5, 3), _normal(5, 3), SIGNS], {"margin": -0.3}),
    ("cosine_embedding_loss", [_normal(3), _normal(3), np.array(-1)], {}),
    ("triplet_margin_loss", [_normal(4, 3), _normal(4, 3), _normal(4, 3)], {"margin": 2.0}),
    ("triplet_margin_loss", [_normal(3), _normal(3), _normal(3)], {"swap": True, "p": 1.0}),
]


def _result(m: Any, f: Any, name: str, arrays: list[np.ndarray], options: dict[str, Any]) -> Any:
    tensors = [m.tensor(a) for a in arrays]
    given = {k: m.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    wanted = [t for t in tensors[:3] if t.dtype is m.float64]
    for t in wanted:
        t.requires_grad_()
    y = getattr(f, name)(*tensors, **given)
    weights = np.random.default_rng(1).uniform(0.5, 1.5, tuple(y.shape))
    return y, *m.autograd.grad((y * m.tensor(weights)).sum(), wanted)


@pytest.mark.filterwarnings("ignore:reduction. 'mean'")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_values_and_gradients(reduction: str) -> None:
    cases = CASES if reduction == "none" else CASES[::3]
    ours = [_result(mt, F, n, a, {**o, "reduction": reduction}) for n, a, o in cases]
    with config.override(target="cpu" if reduction == "none" else "numpy"):
        mt.eval(*[t for result in ours for t in result])
    for (name, arrays, options), mine in zip(cases, ours, strict=True):
        other = _result(torch, TF, name, arrays, {**options, "reduction": reduction})
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert tuple(a.shape) == tuple(b.shape)
            np.testing.assert_allclose(
                a.detach().numpy(),
                b.detach().numpy(),
                rtol=1e-8,  # torch's bound of 1e-12 is one of float32
                atol=1e-12,
                err_msg=f"{name} {options} {i}",
            )


def test_pairwise_distance() -> None:
    x, y = _normal(4, 3), _normal(4, 3)
    x[0] = y[0] - 1e-6
    orders: list[Any] = [2.0, 1.0, 3.0, 0.5, 0.0, inf, -1.0, -inf]
    ours, wanted = [], []
    for p in orders:
        for m, f, found in ((mt, F, ours), (torch, TF, wanted)):
            a, b = m.tensor(x, requires_grad=True), m.tensor(y, requires_grad=True)
            z: Any = f.pairwise_distance(a, b, p=p, keepdim=p == 1)
            found.append((z, *(m.autograd.grad(z.sum(), (a, b)) if p else ())))
    with config.override(target="numpy"):
        mt.eval(*[t for case in ours for t in case])
    for p, mine, other in zip(orders, ours, wanted, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert tuple(a.shape) == tuple(b.shape)
            # Of the first row, distances are rounding errors.
            where = slice(None) if a is mine[0] and p > 0 else slice(1, None)
            np.testing.assert_allclose(
                a.detach().numpy()[where], b.detach().numpy()[where], rtol=1e-9, atol=1e-9
            )
    zero: Any = mt.zeros(2, 3, requires_grad=True)
    grads = [
        mt.autograd.grad(F.pairwise_distance(zero, zero, p, 0.0).sum(), zero)[0] for p in (2, 3)
    ]
    assert [g.abs().sum().item() for g in grads] == [0.0, 0.0]


def test_modules_pass_their_options_on() -> None:
    rows = [_normal(5, 3) for _ in range(3)]
    cases: list[tuple[str, dict[str, Any], list[np.ndarray]]] = [
        ("BCELoss", {"weight": _uniform(3), "reduction": "sum"}, [_uniform(4, 3), _uniform(4, 3)]),
        ("KLDivLoss", {"log_target": True, "reduction": "batchmean"}, rows[:2]),
        ("SmoothL1Loss", {"beta": 0.3, "reduction": "sum"}, rows[:2]),
        ("HuberLoss", {"delta": 0.3, "reduction": "sum"}, rows[:2]),
        (
            "PoissonNLLLoss",
            {"log_input": False, "full": True, "eps": 0.1},
            [_uniform(4), _uniform(4)],
        ),
        ("GaussianNLLLoss", {"full": True, "eps": 0.3}, [_normal(4), _normal(4), _uniform(4)]),
        ("CosineEmbeddingLoss", {"margin": 0.3}, [*rows[:2], SIGNS]),
        ("MarginRankingLoss", {"margin": 0.3}, [_normal(5), _normal(5), SIGNS]),
        ("HingeEmbeddingLoss", {"margin": 0.3, "reduction": "sum"}, [_normal(5), SIGNS]),
        ("SoftMarginLoss", {"reduction": "sum"}, [_normal(5), SIGNS]),
        ("TripletMarginLoss", {"margin": 2.0, "p": 3.0, "eps": 0.1, "swap": True}, rows),
        ("CosineSimilarity", {"dim": 0, "eps": 0.1}, rows[:2]),
        ("PairwiseDistance", {"p": 1.0, "eps": 0.1, "keepdim": True}, rows[:2]),
    ]
    ours, wanted = [], []
    for name, options, arrays in cases:
        pair = []
        for m, found in ((mt, ours), (torch, wanted)):
            given = {k: m.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
            pair.append(getattr(m.nn, name)(**given))
            found.append(pair[-1](*[m.tensor(a) for a in arrays]))
        assert repr(pair[0]) == repr(pair[1])
        assert list(pair[0].state_dict()) == list(pair[1].state_dict())
    with config.override(target="numpy"):
        mt.eval(*ours)
    for a, b in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10)


def test_what_is_no_probability_is_never_a_number() -> None:
    x = mt.tensor([-0.5, 1.5, 0.5]) * 1
    y = F.binary_cross_entropy(x, mt.tensor([0.0, 1.0, 1.0]), reduction="none")
    v = F.gaussian_nll_loss(mt.zeros(3), mt.zeros(3), x, reduction="none")
    assert np.isnan(y.numpy()).tolist() == [True, True, False]
    assert np.isnan(v.numpy()).tolist() == [True, False, False]


MISTAKES: list[Any] = [
    lambda m, f: f.binary_cross_entropy(m.ones(2, 3), m.ones(3)),
    lambda m, f: f.binary_cross_entropy(m.tensor([1.5, 0.0]), m.ones(2)),
    lambda m, f: f.binary_cross_entropy(m.ones(2), m.ones(2).double()),
    lambda m, f: f.binary_cross_entropy(m.ones(2).to(m.int64), m.ones(2).to(m.int64)),
    lambda m, f: f.binary_cross_entropy(m.ones(2), m.ones(2), m.ones(3, 2), reduction="none"),
    lambda m, f: f.binary_cross_entropy(m.ones(2), m.ones(2), reduction="avg"),
    lambda m, f: f.smooth_l1_loss(m.ones(2), m.ones(2), beta=-1),
    lambda m, f: f.smooth_l1_loss(m.ones(2).to(m.int64), m.ones(2).to(m.int64)),
    lambda m, f: f.smooth_l1_loss(m.ones(2), m.ones(2).double()),
    lambda m, f: f.smooth_l1_loss(m.ones(2, 3), m.ones(3) * 2),
    lambda m, f: f.smooth_l1_loss(m.ones(2, 3), m.ones(2)),
    lambda m, f: f.huber_loss(m.ones(2), m.ones(2), delta=0),
    lambda m, f: f.huber_loss(m.ones(2), m.ones(2).double()),
    lambda m, f: f.huber_loss(m.ones(2), m.ones(2), weight=m.ones(3)),
    lambda m, f: f.kl_div(m.ones(2).to(m.int64), m.ones(2), reduction="sum"),
    lambda m, f: f.kl_div(m.ones(2), m.ones(2), reduction="avg"),
    lambda m, f: f.kl_div(m.tensor(-1.0), m.tensor(1.0), reduction="batchmean"),
    lambda m, f: f.cosine_embedding_loss(m.ones(2, 3), m.ones(2, 3), m.ones(2, 1)),
    lambda m, f: f.cosine_embedding_loss(m.ones(3), m.ones(3), m.ones(1)),
    lambda m, f: f.cosine_embedding_loss(m.ones(2, 3), m.ones(2, 3), m.ones(2), reduction="avg"),
    lambda m, f: f.margin_ranking_loss(m.ones(2), m.ones(2, 2), m.ones(2)),
    lambda m, f: f.margin_ranking_loss(*[m.ones(2).to(m.int64)] * 3),
    lambda m, f: f.triplet_margin_loss(m.ones(2), m.ones(2, 2), m.ones(2)),
    lambda m, f: f.triplet_margin_loss(m.ones(2), m.ones(2), m.ones(2), margin=-1),
    lambda m, f: f.gaussian_nll_loss(m.ones(2, 3), m.ones(2, 3), m.ones(3)),
    lambda m, f: f.gaussian_nll_loss(m.ones(2), m.ones(2), m.tensor([1.0, -1.0])),
    lambda m, f: f.gaussian_nll_loss(m.ones(2), m.ones(2), -1.0),
    lambda m, f: f.gaussian_nll_loss(m.ones(2), m.ones(2), 1.0, reduction="avg"),
    lambda m, f: f.soft_margin_loss(m.ones(2).to(m.int64), m.ones(2).to(m.int64)),
    lambda m, f: f.pairwise_distance(m.ones(2, 3).to(m.int64), m.zeros(3).to(m.int64)),
    lambda m, f: m.nn.TripletMarginLoss(margin=-1),
]


def test_mistakes_read_as_in_torch() -> None:
    for number, call in enumerate(MISTAKES):
        found: list[Any] = []
        for m, f in ((mt, F), (torch, TF)):
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    y = call(m, f)
                told = [str(w.message) for w in caught]
                found.append((str(y.dtype).split(".")[-1], np.round(y.numpy(), 6).tolist(), told))
            except Exception as error:
                found.append((type(error), str(error).split("\n")[0]))
        assert found[0] == found[1], number
