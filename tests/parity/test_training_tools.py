"""Averaged weights, norms of gradients, and tools around datasets, against torch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.optim.swa_utils  # as programs for torch name it
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")
pytest.importorskip("torch.optim.swa_utils")

inf, nan = float("inf"), float("nan")


def _model(m: Any) -> Any:
    rng = np.random.default_rng(1)
    net = m.nn.Sequential(m.nn.Linear(3, 4), m.nn.BatchNorm1d(4), m.nn.Linear(4, 2))
    with m.no_grad():
        for p in net.parameters():
            p.copy_(m.tensor(rng.normal(size=tuple(p.shape)).astype(np.float32)))
    return net


def _batches(m: Any, count: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(2)
    return [
        (m.tensor(rng.normal(size=(6, 3)).astype(np.float32)), m.tensor(rng.integers(0, 2, 6)))
        for _ in range(count)
    ]


AVERAGES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "mean": lambda s: {},
    "mean of buffers": lambda s: {"use_buffers": True},
    "ema": lambda s: {"avg_fn": s.get_ema_avg_fn(0.7)},
    "ema of several": lambda s: {"multi_avg_fn": s.get_ema_multi_avg_fn(0.7)},
    "mean of several": lambda s: {"multi_avg_fn": s.get_swa_multi_avg_fn()},
    "own": lambda s: {"avg_fn": lambda old, new, count: old * 0.5 + new * 0.5},
}


@pytest.mark.parametrize("name", AVERAGES)
def test_averaged_models(name: str) -> None:
    def trained(m: Any) -> dict[str, Any]:
        net = _model(m)
        averaged = m.optim.swa_utils.AveragedModel(net, **AVERAGES[name](m.optim.swa_utils))
        optimizer = m.optim.SGD(net.parameters(), lr=0.1)
        schedule = m.optim.swa_utils.SWALR(optimizer, swa_lr=0.02, anneal_epochs=3)
        for x, y in _batches(m, 4):
            optimizer.zero_grad()
            m.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            averaged.update_parameters(net)
            schedule.step()
        m.optim.swa_utils.update_bn(_batches(m, 2), averaged)
        assert averaged.training
        assert averaged.module[1].momentum == 0.1
        state = averaged.state_dict()
        averaged(_batches(m, 1)[0][0]).sum().backward()
        return {k: v.detach().numpy() for k, v in state.items()}

    with config.override(target="cpu" if name == "ema of several" else "numpy"):
        ours = trained(mt)
    theirs = trained(torch)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype
        np.testing.assert_allclose(ours[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_averaging_evaluates_nothing() -> None:
    net = _model(mt)
    averaged = mt.optim.swa_utils.AveragedModel(net)
    with mt.no_sync():
        averaged.update_parameters(net)
        averaged.update_parameters(net)
    assert averaged.n_averaged.item() == 2


@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_rates_of_swalr(strategy: str) -> None:
    def followed(m: Any, epochs: int) -> list[list[float]]:
        ps = [m.zeros(1, requires_grad=True), m.zeros(1, requires_grad=True)]
        optimizer = m.optim.SGD([{"params": [ps[0]]}, {"params": [ps[1]], "lr": 0.5}], lr=0.1)
        make = m.optim.swa_utils.SWALR
        options = {"anneal_epochs": epochs, "anneal_strategy": strategy}
        schedule = make(optimizer, [0.05, 0.2], **options)
        seen = [schedule.get_last_lr()]
        for i in range(12):
            optimizer.step()
            schedule.step()
            if i == 4:
                state = copy.deepcopy(schedule.state_dict())
                schedule.load_state_dict(state)
            seen.append(schedule.get_last_lr())
        return seen

    for epochs in (0, 1, 8):
        np.testing.assert_allclose(followed(mt, epochs), followed(torch, epochs), rtol=1e-9)


def test_signatures() -> None:
    def described(f: Any) -> list[Any]:
        return [(p.name, p.default) for p in inspect.signature(f).parameters.values()]

    swa, theirs = mt.optim.swa_utils, torch.optim.swa_utils
    assert sorted(swa.__all__) == sorted(theirs.__all__)
    for name in swa.__all__:
        assert described(getattr(swa, name)) == described(getattr(theirs, name)), name
    for name in ("WeightedRandomSampler", "StackDataset"):
        ours = getattr(mt.utils.data, name).__init__
        assert described(ours) == described(getattr(torch.utils.data, name).__init__)


GRADIENTS = ([[3.0, 4.0], [0.0, 0.0, 12.0]], [[0.0, 0.0]], [[inf, 1.0]], [[nan], [1.0]])


@pytest.mark.filterwarnings("ignore:.*compiled.*different programs")
@pytest.mark.parametrize("values", GRADIENTS, ids=str)
def test_norms(values: list[list[float]]) -> None:
    def clipped(m: Any) -> list[Any]:
        results, kept = [], []
        for order in (2, 1, 3, 0.5, "inf", -inf, 0, -1):
            ps = [m.nn.Parameter(m.zeros(len(v))) for v in values]
            for p, v in zip(ps, values, strict=True):
                p.grad = m.tensor(v)
            kept += ps
            results.append(m.nn.utils.clip_grad_norm_(iter(ps), 1.0, order))
        if m is mt:
            mt.eval(*results, *[p.grad for p in kept])
        return [t.tolist() for t in (*results, *[p.grad for p in kept])]

    with config.override(target="numpy"):
        results = clipped(mt)
    for ours, theirs in zip(results, clipped(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_parameters_as_a_vector() -> None:
    def moved(m: Any) -> list[Any]:
        net = _model(m)
        vector = m.nn.utils.parameters_to_vector(net.parameters())
        (gradient,) = m.autograd.grad((vector * vector).sum(), [net[0].weight])
        m.nn.utils.vector_to_parameters(vector * 2, net.parameters())
        state = [p.detach().numpy() for p in net.parameters()]
        return [vector.detach().numpy(), gradient.numpy(), *state]

    for ours, theirs in zip(moved(mt), moved(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    with pytest.raises(TypeError, match=r"expected torch\.Tensor, but got: list"):
        mt.nn.utils.vector_to_parameters([1.0], [])


MISTAKES: list[Callable[[Any], Any]] = [
    lambda m: m.optim.swa_utils.get_ema_avg_fn(2.0),
    lambda m: m.optim.swa_utils.get_ema_multi_avg_fn(-1.0),
    lambda m: m.optim.swa_utils.AveragedModel(_model(m), avg_fn=max, multi_avg_fn=max),
    lambda m: m.optim.swa_utils.SWALR(m.optim.SGD(_model(m).parameters()), 0.1, -1),
    lambda m: m.optim.swa_utils.SWALR(m.optim.SGD(_model(m).parameters()), [0.1, 0.2]),
    lambda m: m.optim.swa_utils.SWALR(m.optim.SGD(_model(m).parameters()), 0.1, 1, "x"),
    lambda m: m.utils.data.WeightedRandomSampler([1.0], 0),
    lambda m: m.utils.data.WeightedRandomSampler([1.0], 1, 3),
    lambda m: m.utils.data.WeightedRandomSampler([[1.0]], 1),
    lambda m: list(m.utils.data.WeightedRandomSampler([-1.0, 2.0], 1)),
    lambda m: list(m.utils.data.WeightedRandomSampler([0.0, 0.0], 1)),
    lambda m: m.utils.data.StackDataset(),
    lambda m: m.utils.data.StackDataset([1], a=[2]),
    lambda m: m.utils.data.StackDataset([1], [2, 3]),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_read_as_in_torch(number: int) -> None:
    def outcome(m: Any) -> tuple[Any, str]:
        with pytest.raises(Exception) as caught:
            MISTAKES[number](m)
        return caught.type, str(caught.value)

    assert outcome(mt) == outcome(torch)
