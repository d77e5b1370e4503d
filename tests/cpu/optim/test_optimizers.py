"""Optimizers: formulas against numpy, one program for all steps, memory in place, state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.core.events import EVENTS

MAKERS: dict[str, Any] = {
    "sgd": lambda p: mt.optim.SGD(p, lr=0.1),
    "momentum": lambda p: mt.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "dampening": lambda p: mt.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "nesterov": lambda p: mt.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: mt.optim.Adam(p, lr=0.1, weight_decay=0.01),
    "amsgrad": lambda p: mt.optim.Adam(p, lr=0.1, amsgrad=True, maximize=True),
    "adamw": lambda p: mt.optim.AdamW(p, lr=0.1),
    "rmsprop": lambda p: mt.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "adagrad": lambda p: mt.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "adadelta": lambda p: mt.optim.Adadelta(p, lr=0.1, weight_decay=0.01),
    "adamax": lambda p: mt.optim.Adamax(p, lr=0.1, weight_decay=0.01),
    "nadam": lambda p: mt.optim.NAdam(p, lr=0.1, weight_decay=0.01),
    "radam": lambda p: mt.optim.RAdam(p, lr=0.1, betas=(0.9, 0.8), weight_decay=0.01),
    "rprop": lambda p: mt.optim.Rprop(p, lr=0.1),
    "asgd": lambda p: mt.optim.ASGD(p, lr=0.1, lambd=0.01, t0=3),
    "adafactor": lambda p: mt.optim.Adafactor(p, lr=0.1, weight_decay=0.01),
}


def programs() -> int:
    return EVENTS.get("compiles") + EVENTS.get("reference_programs")


def model() -> Any:
    mt.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))


X = mt.tensor(np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32))
Y = mt.tensor(np.random.default_rng(0).integers(0, 4, 7))


def train(net: Any, opt: Any, steps: int, fade: float = 1.0) -> list[float]:
    seen = []
    for i in range(steps):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(X), Y)
        loss.backward()
        opt.param_groups[0]["lr"] = 0.1 / (1 + fade * i)
        opt.step()
        seen.append(loss.item())
    return seen


def weights(net: Any) -> list[np.ndarray]:
    return [p.detach().numpy().copy() for p in net.parameters()]


@pytest.mark.parametrize("name", MAKERS)
def test_every_step_with_every_rate_is_one_program(name: str) -> None:
    net = model()
    opt = MAKERS[name](net.parameters())
    before, evaluations = programs(), EVENTS.get("evaluations")
    train(net, opt, 5)
    assert programs() - before == 1
    assert EVENTS.get("evaluations") - evaluations == 5


@pytest.mark.parametrize("name", MAKERS)
def test_memory_is_overwritten_in_place(name: str) -> None:
    net = model()
    opt = MAKERS[name](net.parameters())
    train(net, opt, 2)
    tensors = [*net.parameters()]
    tensors += [t for s in opt.state.values() for t in s.values() if isinstance(t, mt.Tensor)]
    addresses = [t.node.buffer.address for t in tensors]
    declined, allocated = EVENTS.get("donations_declined"), EVENTS.get("bytes_allocated")
    train(net, opt, 5)
    assert [t.node.buffer.address for t in tensors] == addresses
    assert EVENTS.get("donations_declined") == declined
    assert EVENTS.get("bytes_allocated") == allocated


def test_sgd_against_numpy() -> None:
    start = np.random.default_rng(1).standard_normal((3, 2))
    w = mt.tensor(start, requires_grad=True)
    opt = mt.optim.SGD([w], lr=0.1, momentum=0.9, dampening=0.25, weight_decay=0.3)
    p, buffer = start.copy(), None
    for lr in (0.1, 0.05, 0.2):
        opt.zero_grad()
        (w * w * w).sum().backward()
        opt.param_groups[0]["lr"] = lr
        opt.step()
        g = 3 * p * p + 0.3 * p
        buffer = g if buffer is None else 0.9 * buffer + 0.75 * g
        p = p - lr * buffer
    np.testing.assert_allclose(w.detach().numpy(), p, rtol=1e-12)


def test_adam_against_numpy() -> None:
    start = np.random.default_rng(1).standard_normal((3, 2))
    w = mt.tensor(start, requires_grad=True)
    opt = mt.optim.Adam([w], lr=0.1, betas=(0.8, 0.95), eps=1e-4)
    p, m, v = start.copy(), 0.0, 0.0
    for t in range(1, 4):
        opt.zero_grad()
        (w * w * w).sum().backward()
        opt.step()
        g = 3 * p * p
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        p = p - 0.1 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-4)
    np.testing.assert_allclose(w.detach().numpy(), p, rtol=1e-12)


def test_training_lowers_the_loss() -> None:
    net = model()
    seen = train(net, mt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), 30, fade=0)
    assert seen[-1] < 0.5 * seen[0]


@pytest.mark.parametrize("name", MAKERS)
def test_saved_state_continues_bit_for_bit(name: str) -> None:
    net = model()
    opt = MAKERS[name](net.parameters())
    train(net, opt, 3)
    saved = copy.deepcopy((net.state_dict(), opt.state_dict()))
    train(net, opt, 2)
    twin = model()
    again = MAKERS[name](twin.parameters())
    twin.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    before = programs()
    train(twin, again, 2)
    assert programs() == before
    for a, b in zip(weights(net), weights(twin), strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_stay_readable_and_absent_ones_are_skipped() -> None:
    a, b = mt.ones(2, requires_grad=True), mt.ones(2, requires_grad=True)
    opt = mt.optim.SGD([a, b], lr=0.5, momentum=0.9)
    (a * 3).sum().backward()
    opt.step()
    np.testing.assert_array_equal(a.grad.numpy(), 3)
    np.testing.assert_array_equal(a.detach().numpy(), -0.5)
    np.testing.assert_array_equal(b.detach().numpy(), 1)
    assert list(opt.state_dict()["state"]) == [0]
    assert a.is_leaf
    assert a.requires_grad


def test_zero_grad_can_keep_the_tensors() -> None:
    w = mt.ones(2, requires_grad=True)
    opt = mt.optim.SGD([w])
    (w * 3).sum().backward()
    grad = w.grad
    opt.zero_grad(set_to_none=False)
    assert w.grad is grad
    np.testing.assert_array_equal(grad.numpy(), 0)
    opt.zero_grad()
    assert w.grad is None


def test_closure_runs_with_gradients_and_its_loss_is_returned() -> None:
    w = mt.ones(1, requires_grad=True)
    opt = mt.optim.SGD([w], lr=0.5)

    def closure() -> Any:
        opt.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    with mt.no_grad():
        loss = opt.step(closure)
    assert loss.item() == 1
    assert w.item() == 0


def test_step_evaluates_everything_that_is_pending() -> None:
    w = mt.ones(1, requires_grad=True)
    total = mt.zeros(1)
    opt = mt.optim.SGD([w], lr=0.5)
    for _ in range(3):
        opt.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        total += loss.detach()
        opt.step()
        assert not total.node.pending
    with mt.no_sync():
        np.testing.assert_array_equal(total.numpy(), [1.0])


def test_a_step_by_hand_evaluates_everything_that_is_pending() -> None:
    """As programs for PyTorch write optimizers: else the updates of many steps pile up."""

    class Signs(mt.optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @mt.no_grad()
        def step(self, closure: Any = None) -> Any:
            """Its own text."""
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad.sign(), alpha=-group["lr"])
            return "result"

    assert Signs.step.__doc__ == "Its own text."
    net = model()
    opt = Signs(net.parameters(), 0.1)
    seen = []
    for _ in range(4):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(X), Y)
        loss.backward()
        before = programs()
        assert opt.step() == "result"
        seen.append(programs() - before)
        assert not loss.node.pending
        assert not any(p.node.pending for p in net.parameters())
    assert seen[1:] == [0, 0, 0]


def test_values_recorded_before_the_step_keep_the_old_weights() -> None:
    w = mt.tensor([2.0], requires_grad=True)
    opt = mt.optim.SGD([w], lr=1.0)
    (w * w).sum().backward()
    before = w.detach() * 10
    opt.step()
    assert before.item() == 20
    assert w.item() == -2


def test_groups_have_their_own_options() -> None:
    a, b = mt.ones(1, requires_grad=True), mt.ones(1, dtype=mt.float64, requires_grad=True)
    opt = mt.optim.SGD([{"params": a}, {"params": [b], "lr": 0.25}], lr=0.5)
    ((a * 2).sum() + (b * 2).sum()).backward()
    opt.step()
    assert (a.item(), b.item()) == (0, 0.5)
    c = mt.ones(1, requires_grad=True)
    opt.add_param_group({"params": c, "lr": 0.125})
    assert opt.state_dict()["param_groups"][2]["params"] == [2]
    assert [g["lr"] for g in opt.param_groups] == [0.5, 0.25, 0.125]


def test_named_parameters_are_accepted() -> None:
    net = model()
    opt = mt.optim.SGD(net.named_parameters(), lr=0.1)
    assert opt.param_groups[0]["param_names"][0] == "0.weight"
    train(net, opt, 1)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda p: mt.optim.SGD([p], lr=mt.tensor(0.1)), TypeError, "must be a Python number"),
        (lambda p: mt.optim.SGD([p], differentiable=True), ValueError, "not supported"),
        (lambda p: mt.optim.Adam([p], differentiable=True), ValueError, "not supported"),
        (lambda p: mt.optim.SGD([p], lr=float("nan")), ValueError, "Invalid learning rate: nan"),
        (lambda p: mt.optim.Optimizer([p], {}).step(), NotImplementedError, "its update"),
    ],
)
def test_mistakes(call: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        call(mt.ones(2, requires_grad=True))


def test_state_of_another_shape_is_refused() -> None:
    w = mt.ones(2, requires_grad=True)
    opt = mt.optim.SGD([w], momentum=0.9)
    state = {
        "state": {0: {"momentum_buffer": mt.zeros(3)}},
        "param_groups": opt.state_dict()["param_groups"],
    }
    with pytest.raises(ValueError, match="'momentum_buffer' of parameter 0"):
        opt.load_state_dict(state)


def test_schedule_state_continues() -> None:
    def made() -> Any:
        opt = mt.optim.SGD([mt.ones(1, requires_grad=True)], lr=1.0)
        return opt, mt.optim.lr_scheduler.StepLR(opt, 2, gamma=0.5)

    (opt, schedule), (other, resumed) = made(), made()
    for _ in range(3):
        opt.step()
        schedule.step()
    other.load_state_dict(opt.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    for s, o in ((schedule, opt), (resumed, other)):
        o.step()
        s.step()
    assert schedule.get_last_lr() == resumed.get_last_lr() == [0.25]
    with pytest.raises(KeyError, match="initial_lr"):
        mt.optim.lr_scheduler.StepLR(mt.optim.SGD([mt.ones(1, requires_grad=True)]), 2, 0.1, 5)


def test_lambda_objects_are_part_of_the_schedules_state() -> None:
    class Decay:
        def __init__(self, rate: float) -> None:
            self.rate = rate

        def __call__(self, epoch: int) -> float:
            return self.rate**epoch

    def made(rate: float) -> Any:
        opt = mt.optim.SGD([mt.ones(1, requires_grad=True)], lr=1.0)
        return mt.optim.lr_scheduler.LambdaLR(opt, Decay(rate))

    first, second = made(0.5), made(0.1)
    second.load_state_dict(first.state_dict())
    assert second.lr_lambdas[0].rate == 0.5
