"""Steps of an optimizer that are not recorded again do what they do when they are."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from either_way import compare

import minitorch_tvm as mt
from minitorch_tvm import lazy, nn
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.nn import functional as F
from minitorch_tvm.optim.optimizer import Optimizer

_KINDS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "maximize": True}),
]
_RULES: list[tuple[str, dict[str, Any]]] = [
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True}),
    ("Adagrad", {"lr": 0.01, "lr_decay": 0.1}),
    ("Adadelta", {"lr": 0.1, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.01}),
    ("RAdam", {"lr": 0.01, "betas": (0.9, 0.8)}),
    ("Rprop", {"lr": 0.01}),
    ("ASGD", {"lr": 0.1, "lambd": 0.1, "t0": 2}),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1}),
]


@contextmanager
def _always_recorded() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimizer, "_reads", lambda self: None)
        yield


def _net() -> Any:
    mt.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def _batch(seed: int, rows: int = 6) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5)).astype(np.float32)
    return mt.from_numpy(x), mt.from_numpy(rng.integers(0, 3, rows))


def _repeats(work: Callable[[], Any]) -> int:
    before = EVENTS.get("repeated_updates")
    work()
    return EVENTS.get("repeated_updates") - before


class _Run:
    """A model in training, and everything that a program keeps of it."""

    def __init__(self, kind: tuple[str, dict[str, Any]], seed: int = 0) -> None:
        self.net = _net()
        self.opt = getattr(mt.optim, kind[0])(self.net.parameters(), **kind[1])
        self.rng = random.Random(seed)
        self.params = list(self.net.parameters())
        self.batches = 0
        self.kept: list[Any] = []
        self.seen: list[Any] = []

    def p(self) -> Any:
        return self.rng.choice(self.params)

    def loss(self, rows: int = 6) -> Any:
        self.batches += 1
        x, y = _batch(self.batches, rows)
        return F.cross_entropy(self.net(x), y)

    def gradients(self, **options: Any) -> Any:
        self.opt.zero_grad()
        loss = self.loss()
        if loss.requires_grad:
            loss.backward(**options)
        return loss

    def step(self) -> None:
        loss = self.gradients()
        self.opt.step()
        self.seen.append(loss.detach().numpy().copy())

    def look(self) -> None:
        """Note all that can be seen."""
        gradients = [p.grad for p in self.params]
        for t in [*self.params, *gradients, *self.net.buffers(), *self.kept]:
            self.seen.append(
                t if t is None else np.array(t.detach().numpy() if isinstance(t, mt.Tensor) else t)
            )
        for p in self.params:
            for value in self.opt.state[p].values():
                self.seen.append(np.array(value.numpy()) if isinstance(value, mt.Tensor) else value)


# --- what may happen between steps ----------------------------------------------------------------


def _no_grad(work: Callable[[], Any]) -> None:
    with mt.no_grad():
        work()


def _keep_view(r: _Run) -> None:
    r.kept.append(r.p().detach())


def _alias(r: _Run) -> None:
    r.kept.append(mt.Tensor(r.p()))


def _gradient_is_a_parameter(r: _Run) -> None:
    r.gradients()
    r.params[2].grad = r.params[2]
    r.opt.step()


def _keep_row(r: _Run) -> None:
    r.kept.append(r.p()[:1])


def _keep_array(r: _Run) -> None:
    r.kept.append(r.p().detach().numpy())


def _keep_gradient(r: _Run) -> None:
    r.kept.append(r.p().grad)


def _keep_gradient_array(r: _Run) -> None:
    g = r.p().grad
    r.kept.append(None if g is None else g.detach().numpy())


def _let_go(r: _Run) -> None:
    r.kept.clear()


def _retain(r: _Run) -> None:
    loss = r.gradients(retain_graph=True)
    r.opt.step()
    if loss.requires_grad:
        r.opt.zero_grad()
        loss.backward()  # with the values from before the step


def _pending_forward(r: _Run) -> None:
    loss = r.loss()
    r.step()
    r.seen.append(loss.item())


def _drop_gradient(r: _Run) -> None:
    r.gradients()
    r.p().grad = None
    r.opt.step()


def _replace_gradient(r: _Run) -> None:
    r.gradients()
    p = r.p()
    p.grad = mt.full(p.shape, 0.5)
    r.opt.step()


def _computed_gradient(r: _Run) -> None:
    r.gradients()
    p = r.p()
    p.grad = p.detach() * 2.0
    r.opt.step()


def _shared_gradient(r: _Run) -> None:
    r.gradients()
    g = mt.full((4,), 0.25)
    for p in r.params:
        if p.shape == (4,):
            p.grad = g
    r.params[0].grad = r.params[0].detach()
    r.opt.step()


def _clip(r: _Run) -> None:
    r.gradients()
    nn.utils.clip_grad_norm_(r.params, 0.1)
    r.opt.step()


def _accumulate(r: _Run) -> None:
    r.gradients()
    loss = r.loss()
    if loss.requires_grad:
        loss.backward()
    r.opt.step()


def _zeros(r: _Run) -> None:
    r.opt.zero_grad(set_to_none=False)
    loss = r.loss()
    if loss.requires_grad:
        loss.backward()
    r.opt.step()


def _again_without_gradients(r: _Run) -> None:
    r.opt.step()


def _evaluated_before(r: _Run) -> None:
    r.seen.append(r.gradients().item())
    r.opt.step()


def _other_batch(r: _Run) -> None:
    r.opt.zero_grad()
    loss = r.loss(rows=3)
    if loss.requires_grad:
        loss.backward()
    r.opt.step()


def _closure(r: _Run) -> None:
    r.seen.append(r.opt.step(r.gradients).item())


def _rate(r: _Run) -> None:
    r.opt.param_groups[0]["lr"] *= 0.5


def _option(r: _Run) -> None:
    group = r.opt.param_groups[0]
    names = [n for n in ("weight_decay", "momentum", "maximize", "amsgrad") if n in group]
    name = r.rng.choice(names)
    old = group[name]
    group[name] = not old if isinstance(old, bool) else (0.0 if old else 0.5)
    if name == "momentum" and not group[name]:
        group["nesterov"] = False


def _freeze(r: _Run) -> None:
    p = r.p()
    p.requires_grad_(not p.requires_grad)


def _scale(r: _Run) -> None:
    p = r.p()
    _no_grad(lambda: p.mul_(0.5))


def _data(r: _Run) -> None:
    p = r.p()
    p.data = p.detach() * 0.75


def _write_array(r: _Run) -> None:
    r.p().detach().numpy()[...] *= 0.9


def _write_between(r: _Run) -> None:
    r.gradients()
    p = r.p()
    _no_grad(lambda: p.add_(0.125))
    r.opt.step()


def _write_view(r: _Run) -> None:
    r.p().detach()[0] = 0.5


def _state(r: _Run) -> None:
    state = r.opt.state[r.p()]
    for name, value in state.items():
        if isinstance(value, mt.Tensor):
            state[name] = value.clone()
            return


def _drop_state(r: _Run) -> None:
    r.opt.state.pop(r.p(), None)


def _load(r: _Run) -> None:
    r.opt.load_state_dict(copy.deepcopy(r.opt.state_dict()))


def _order(r: _Run) -> None:
    r.rng.shuffle(r.opt.param_groups[0]["params"])


def _fewer(r: _Run) -> None:
    params = r.opt.param_groups[0]["params"]
    if len(params) > 2:
        p = params.pop()
        r.opt.add_param_group({"params": [p], "lr": 0.3})


def _hook(r: _Run) -> None:
    p = r.p()
    if p.requires_grad:
        p.register_hook(lambda g: g * 2.0)


def _failing_hook(r: _Run) -> None:
    p = r.p()
    if not p.requires_grad:
        return

    def fail(_: Any) -> None:
        raise ValueError("no")

    remove = p.register_hook(fail).remove
    try:
        r.gradients()
    except ValueError:
        r.seen.append("failed")
    remove()
    r.opt.step()


def _elsewhere(r: _Run) -> None:
    r.gradients()
    p = r.p()
    thread = threading.Thread(target=lambda: r.kept.append((p.detach() + 1.0).tolist()))
    thread.start()
    thread.join()
    r.opt.step()


def _step_elsewhere(r: _Run) -> None:
    thread = threading.Thread(target=r.step)
    thread.start()
    thread.join()


def _double(r: _Run) -> None:
    r.gradients()
    r.opt.step()
    r.opt.step()


_ACTIONS = (
    *(
        _keep_view,
        _alias,
        _gradient_is_a_parameter,
        _keep_row,
        _keep_array,
        _keep_gradient,
        _keep_gradient_array,
        _let_go,
        _retain,
    ),
    *(_pending_forward, _drop_gradient, _replace_gradient, _computed_gradient, _shared_gradient),
    *(_clip, _accumulate, _zeros, _again_without_gradients, _evaluated_before, _other_batch),
    *(_closure, _rate, _option, _freeze, _scale, _data, _write_array, _write_between, _write_view),
    *(_state, _drop_state, _load, _order, _fewer, _hook, _failing_hook, _elsewhere),
    *(_step_elsewhere, _double),
)


def _compare(kind: tuple[str, dict[str, Any]], program: list[Any], seed: int) -> None:
    def seen(program: list[Any]) -> list[Any]:
        run = _Run(kind, seed)
        for action in program:
            action(run)
            run.look()
        return run.seen

    compare(seen, program, _always_recorded)


@pytest.mark.parametrize("action", _ACTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", [_KINDS[0], _KINDS[3], _KINDS[6]], ids=["SGD", "momentum", "Adam"])
def test_whatever_happens_between_steps(kind: Any, action: Any) -> None:
    before = EVENTS.get("repeated_updates")
    with config.override(target="numpy"):
        steps = [_Run.step] * 3
        _compare(kind, [*steps, action, *steps, action, action, *steps, _let_go, *steps], 0)
    assert EVENTS.get("repeated_updates") > before


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    program = [rng.choice((_Run.step, _Run.step, rng.choice(_ACTIONS))) for _ in range(30)]
    with config.override(target="numpy"):
        _compare(rng.choice(_KINDS), [_Run.step, _Run.step, *program], seed)


@pytest.mark.parametrize("kind", _KINDS + _RULES, ids=str)
def test_steps_are_repeated_and_give_the_same_bits(kind: Any) -> None:
    _compare(kind, [_Run.step] * 6, 0)
    run = _Run(kind)
    for _ in range(3):
        run.step()
    assert _repeats(lambda: [run.step() for _ in range(5)]) == 5


def test_a_repeated_step_allocates_nothing_and_keeps_addresses() -> None:
    run = _Run(("AdamW", {"lr": 0.01}))
    for _ in range(4):
        run.step()
    counted = ("allocations", "donations_declined")
    before = [EVENTS.get(name) for name in counted]
    places = [p.node.buffer.address for p in run.params]
    gradients = [p.grad.node.buffer for p in run.params]
    kept = [buffer.address for buffer in gradients]
    del gradients
    assert _repeats(lambda: [run.step() for _ in range(5)]) == 5
    assert [EVENTS.get(name) for name in counted] == before
    assert [p.grad.node.buffer.address for p in run.params] == kept
    own = [p.node.buffer.address == place for p, place in zip(run.params, places, strict=True)]
    assert own.count(False) <= 1  # the norm's weight: its kernel cannot write over what it reads


def test_what_somebody_else_sees_is_not_written_over() -> None:
    run = _Run(_KINDS[0])
    for _ in range(3):
        run.step()
    p = run.params[0]
    for keep in (lambda: p.detach(), lambda: p.detach().numpy(), lambda: mt.Tensor(p.detach())):
        kept = keep()
        before = np.array(kept if isinstance(kept, np.ndarray) else kept.numpy())
        shown = isinstance(kept, mt.Tensor) and kept._base is not None
        run.step()
        after = kept if isinstance(kept, np.ndarray) else kept.numpy()
        assert np.array_equal(before, after) is not shown  # a detached tensor follows its base


def test_steps_are_repeated_again_after_state_was_loaded() -> None:
    run = _Run(("Adam", {"lr": 0.01}))
    for _ in range(3):
        run.step()
    _load(run)
    run.step()
    assert _repeats(lambda: [run.step() for _ in range(3)]) == 3


def test_an_update_that_is_not_known_is_always_recorded() -> None:
    class Sign(mt.optim.SGD):
        calls = 0

        def _update(self, group: dict[str, Any]) -> None:
            self.calls += 1
            super()._update(group)

    net = _net()
    opt = Sign(net.parameters(), lr=0.1)
    for n in range(5):
        x, y = _batch(n)
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    assert opt.calls == 5


def test_a_schedule_takes_effect_in_repeated_steps() -> None:
    w = mt.tensor([0.0], requires_grad=True)
    opt = mt.optim.SGD([w], lr=1.0)
    schedule = mt.optim.lr_scheduler.StepLR(opt, 1, 0.5)
    seen = []
    for _ in range(6):
        opt.zero_grad()
        (w * 2.0).sum().backward()
        opt.step()
        schedule.step()
        seen.append(w.item())
    wanted = np.cumsum([-2.0 * 0.5**n for n in range(6)])
    assert seen == wanted.tolist()


def test_an_interrupted_step_leaves_the_next_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _Run(_KINDS[0])
    for _ in range(3):
        run.step()
    before = [p.detach().numpy().copy() for p in run.params]
    held = run.gradients()

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(lazy.last_executor()), "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.opt.step()
    assert held.requires_grad
    for p, old in zip(run.params, before, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), old)
    x, y = _batch(77)
    run.opt.zero_grad()
    F.cross_entropy(run.net(x), y).backward()
    grads = [p.grad.numpy().copy() for p in run.params]
    run.opt.step()
    for p, old, g in zip(run.params, before, grads, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), old - 0.1 * g, rtol=1e-6, atol=1e-7)


def _stepped(
    tensors: list[Any], gradients: list[Any], opt: Any | None = None, **options: Any
) -> Any:
    """SGD's step with the given gradients, which nothing records."""
    opt = mt.optim.SGD(tensors, lr=0.5, **options) if opt is None else opt
    for t, g in zip(tensors, gradients, strict=True):
        t.grad = g
    opt.step()
    return opt


def test_gradients_that_are_one_and_gradients_that_are_two() -> None:
    a, b = mt.zeros(2), mt.zeros(2)
    ones, twos = mt.tensor([1.0, 1.0]), mt.tensor([2.0, 2.0])
    opt = None
    for second in (mt.Tensor(ones), mt.Tensor(ones), twos, twos, ones, twos):
        mt.eval(a, b)
        before = a.tolist()[0], b.tolist()[0]
        opt = _stepped([a, b], [ones, second], opt)
        assert a.tolist() == [before[0] - 0.5] * 2
        assert b.tolist() == [before[1] - 0.5 * second.tolist()[0]] * 2


def test_parameters_in_another_order() -> None:
    a, b = mt.zeros(2), mt.zeros(300)
    gradients = {2: mt.ones(2), 300: mt.ones(300)}
    mt.eval(a, b, *gradients.values())
    opt = None
    for n, order in enumerate(([a, b], [a, b], [b, a], [b, a], [a, b])):
        if opt is not None:
            opt.param_groups[0]["params"] = order
        opt = _stepped(order, [gradients[t.numel()] for t in order], opt)
        assert a.tolist() == [-0.5 * (n + 1)] * 2
        assert b.tolist() == [-0.5 * (n + 1)] * 300


def test_a_parameter_that_is_part_of_another_tensor() -> None:
    whole = mt.zeros(2, 3)
    mt.eval(whole)
    alone, part = mt.zeros(3), whole[0]
    g = mt.ones(3)
    mt.eval(alone, part, g)
    opt = None
    for n, t in enumerate([alone] * 3 + [part] * 3):
        if opt is not None:
            opt.param_groups[0]["params"] = [t]
        opt = _stepped([t], [g], opt)
        assert alone.tolist() == [-0.5 * min(n + 1, 3)] * 3
        assert whole.tolist() == [[-0.5 * max(n - 2, 0)] * 3, [0.0] * 3]


def test_a_parameter_on_the_memory_of_an_array() -> None:
    for follower in (False, True):
        array = np.zeros(3, np.float32)
        own, g = mt.zeros(3), mt.ones(3)
        mt.eval(own, g)
        opt = None
        for _ in range(3):
            opt = _stepped([own], [g], opt)
        t = mt.from_numpy(array)
        kept = t.detach() if follower else None
        assert opt is not None
        opt.param_groups[0]["params"] = [t]
        for n in range(3):
            _stepped([t], [g], opt)
            assert array.tolist() == [-0.5 * (n + 1)] * 3
        assert kept is None or kept.tolist() == array.tolist()


def test_a_gradient_that_was_left_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    t, g = mt.zeros(3), mt.ones(3)
    mt.eval(t, g)
    opt = _stepped([t], [g])
    for _ in range(2):
        _stepped([t], [g], opt)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    late = mt.ones(3) + 1.0
    with monkeypatch.context() as patch:
        patch.setattr(type(lazy.last_executor()), "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mt.eval(late)
    _stepped([t], [late], opt)
    assert t.tolist() == [-2.5] * 3


def test_no_sync_holds_for_repeated_steps() -> None:
    run = _Run(_KINDS[0])
    for _ in range(3):
        run.step()
    with pytest.raises(RuntimeError, match="no_sync"), lazy.no_sync():
        run.step()


def test_a_copy_of_an_optimizer_starts_anew() -> None:
    run = _Run(_KINDS[2])
    for _ in range(4):
        run.step()
    other = copy.deepcopy(run.opt)
    assert not other._known_steps
    params = [p for g in other.param_groups for p in g["params"]]
    for p in params:
        p.grad = mt.ones(*p.shape)
    other.step()
    assert not np.array_equal(params[0].detach().numpy(), run.params[0].detach().numpy())


def test_no_more_kinds_of_steps_are_remembered_than_a_few() -> None:
    run = _Run(_KINDS[0])
    with config.override(target="numpy"):
        for n in range(60):
            run.opt.zero_grad()
            run.loss(rows=2 + n % 30).backward()
            run.opt.step()
    assert 0 < len(run.opt._known_steps) <= 16
