"""Tensors, models and optimizers through pickle: values, types and what belongs together stay."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import nn, optim
from minitorch_tvm.nn import functional as F


def _through(x: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(x, protocol))


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        return self.head(self.norm(self.embedding(x)))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "array",
    [
        np.float32([[1, -0.0, np.nan], [np.inf, 1e-45, 3]]),
        np.float64(0.1),
        np.zeros((0, 3), np.int64),
        np.int32([3, -4]),
        np.uint8([0, 255]),
        np.array([True, False]),
    ],
    ids=lambda a: str(a.dtype),
)
def test_values_and_types(array: Any, protocol: int) -> None:
    t = mt.tensor(array)
    back = _through(t, protocol)
    assert type(back) is mt.Tensor
    assert back.dtype is t.dtype
    assert back.shape == t.shape
    assert back.numpy().tobytes() == t.numpy().tobytes()
    assert not back.requires_grad


def test_pending_values_and_views_are_computed() -> None:
    t = mt.arange(6.0).reshape(2, 3)
    back = _through((t * 2).transpose(0, 1))
    np.testing.assert_array_equal(back.numpy(), [[0, 6], [2, 8], [4, 10]])
    back.zero_()
    assert t.sum().item() == 15


def test_what_requires_grad_becomes_a_leaf_without_gradient() -> None:
    w = mt.ones(2, requires_grad=True)
    (w * 3).sum().backward()
    for value in (w, w * 2):
        back = _through(value)
        assert back.requires_grad
        assert back.is_leaf
        assert back.grad is None
        (back * back).sum().backward()
        np.testing.assert_array_equal(back.grad.numpy(), 2 * value.detach().numpy())
    assert w.grad is not None


def test_one_tensor_stays_one() -> None:
    t = mt.ones(2)
    a, b = _through([t, t])
    assert a is b


def test_a_model_computes_the_same_and_is_independent() -> None:
    mt.manual_seed(0)
    model, x = _Tied(), mt.tensor([1, 2, 6])
    F.cross_entropy(model(x), x).backward()
    twin = _through(model)
    assert type(twin.norm.weight) is nn.Parameter
    assert twin.head.weight is twin.embedding.weight
    assert len(list(twin.parameters())) == len(list(model.parameters()))
    assert all(p.grad is None for p in twin.parameters())
    model.eval()
    twin.eval()
    np.testing.assert_array_equal(twin(x).detach().numpy(), model(x).detach().numpy())
    with mt.no_grad():
        twin.head.weight.zero_()
    assert model.head.weight.abs().sum().item() > 0


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_training_goes_on_where_it_was(kind: str) -> None:
    mt.manual_seed(1)
    model = _Tied()
    options = {"momentum": 0.9} if kind == "SGD" else {}
    opt = getattr(optim, kind)(model.parameters(), lr=0.1, **options)
    scheduler = optim.lr_scheduler.StepLR(opt, 2)
    x, y = mt.tensor([0, 3, 5]), mt.tensor([1, 2, 6])

    def train(model: Any, opt: Any, scheduler: Any) -> list[float]:
        losses = []
        for _ in range(3):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            scheduler.step()
            losses.append(loss.item())
        return losses

    train(model, opt, scheduler)
    # Together: what the optimizer updates are the parameters of the model.
    others = _through((model, opt, scheduler))
    assert others[1].param_groups[0]["params"][0] is next(others[0].parameters())
    assert train(*others) == train(model, opt, scheduler)


def test_a_generator_goes_on_where_it_was() -> None:
    g = mt.Generator().manual_seed(5)
    mt.rand(3, generator=g).realize()
    for twin in (_through(g), copy.deepcopy(g)):
        assert twin.initial_seed() == 5
        assert twin.get_state() == g.get_state()
    twin = _through(g)
    np.testing.assert_array_equal(
        mt.rand(3, generator=twin).numpy(), mt.rand(3, generator=g).numpy()
    )


def test_a_subclass_keeps_its_attributes() -> None:
    p = _Named(mt.ones(2))
    p.name = "scale"
    back = _through(p)
    assert type(back) is _Named
    assert back.name == "scale"


class _Named(nn.Parameter):
    name: str


def test_a_shallow_copy_still_shares_memory() -> None:
    t = mt.tensor([1.0, 2.0], requires_grad=True)
    (t * 3).sum().backward()
    other = copy.copy(t)
    assert type(other) is mt.Tensor
    assert other.grad is not None
    assert other.detach().numpy().ctypes.data == t.detach().numpy().ctypes.data


def _total(model: Any, x: Any) -> Any:
    return model(x).detach().sum()


def test_models_go_to_other_processes() -> None:
    mt.manual_seed(2)
    model, x = nn.Linear(3, 2), mt.ones(4, 3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(_total, (model, x))
    assert found.item() == _total(model, x).item()


def test_reading_values_for_pickle_is_noticed_by_compile() -> None:
    @mt.compile
    def step(x: mt.Tensor) -> mt.Tensor:
        pickle.dumps(x * 2)
        return x + 1

    with pytest.warns(RuntimeWarning, match="reads values"):
        step(mt.ones(2))
