"""Optimizers and schedules against torch: trajectories, formats, messages, signatures."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(5)
TARGETS = [RNG.standard_normal((3, 4)), RNG.standard_normal(5)]
START = [RNG.standard_normal((3, 4)), RNG.standard_normal(5)]


def parameters(lib: Any) -> list[Any]:
    return [lib.tensor(a, requires_grad=True) for a in START]


def losses(lib: Any, ps: list[Any]) -> Any:
    parts = [((p - lib.tensor(t)) ** 2 * 0.5).sum() for p, t in zip(ps, TARGETS, strict=True)]
    return parts[0] + parts[1] * parts[1] * 0.01


def run(lib: Any, make: Any, steps: int = 6) -> tuple[list[Any], Any]:
    ps = parameters(lib)
    opt = make(lib, ps)
    for i in range(steps):
        opt.zero_grad()
        losses(lib, ps).backward()
        if i == 2:
            ps[1].grad = None  # skipped once
        opt.param_groups[0]["lr"] *= 0.9
        opt.step()
    return ps, opt


def same(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-12)


def plain(value: Any) -> Any:
    """Tensors as rounded lists, so that state dicts of both compare."""
    if hasattr(value, "detach"):
        return np.round(value.detach().numpy().astype(float), 9).tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.01, "weight_decay": 0.3, "maximize": True}),
    ("SGD", {"lr": 0.01, "momentum": 0.5, "foreach": True, "fused": None}),
    ("Adam", {}),
    ("Adam", {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.1, "amsgrad": True}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.2, "amsgrad": True}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.1, "alpha": 0.8, "eps": 1e-3, "weight_decay": 0.1, "foreach": False}),
    ("RMSprop", {"momentum": 0.9, "maximize": True}),
    ("RMSprop", {"momentum": 0.5, "centered": True, "weight_decay": 0.1}),
    ("RMSprop", {"centered": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.7, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {}),
    ("Adamax", {"lr": 0.1, "betas": (0.5, 0.8), "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "momentum_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}),
    ("RAdam", {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.1, "maximize": True}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Rprop", {}),
    ("Rprop", {"lr": 0.3, "etas": (0.3, 1.5), "step_sizes": (0.05, 0.4), "maximize": True}),
    ("ASGD", {}),
    ("ASGD", {"lr": 0.1, "lambd": 0.1, "t0": 2, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.3, "weight_decay": 0.1, "d": 1.5, "eps": (1e-3, 0.1)}),
    ("Adafactor", {"lr": 0.9, "beta2_decay": -0.3, "maximize": True}),
]
NAMES = sorted({name for name, _ in OPTIONS})


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_trajectory_and_state_equal_torchs(name: str, options: dict[str, Any]) -> None:
    def make(lib: Any, ps: list[Any]) -> Any:
        return getattr(lib.optim, name)(ps, **options)

    (ps, opt), (tps, topt) = run(mt, make), run(torch, make)
    same(ps, tps)
    assert repr(opt) == repr(topt)
    assert plain(opt.state_dict()) == plain(topt.state_dict())
    ours, theirs = (o.state_dict()["state"].get(0, {}) for o in (opt, topt))
    assert list(ours) == list(theirs)
    assert opt.state_dict()["param_groups"][0].keys() == topt.state_dict()["param_groups"][0].keys()


@pytest.mark.parametrize("name", ["Rprop", "ASGD", "Adafactor"])
def test_twenty_steps_in_single_precision(name: str) -> None:
    found = []
    for lib in (mt, torch):
        ps = [lib.tensor(a.astype(np.float32), requires_grad=True) for a in START]
        targets = [lib.tensor(t.astype(np.float32)) for t in TARGETS]
        opt = getattr(lib.optim, name)(ps, lr=0.1)
        for _ in range(20):
            opt.zero_grad()
            sum(((p - t) ** 2).sum() for p, t in zip(ps, targets, strict=True)).backward()
            opt.step()
        found.append([p.detach().numpy() for p in ps])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_signature(name: str) -> None:
    def described(f: Any) -> list[Any]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]

    ours, theirs = getattr(mt.optim, name).__init__, getattr(torch.optim, name).__init__
    assert described(ours) == described(theirs)


@pytest.mark.parametrize("name", ["StepLR", "CosineAnnealingLR", "LambdaLR"])
def test_schedule_signature(name: str) -> None:
    def described(f: Any) -> list[Any]:
        return [(p.name, p.default) for p in inspect.signature(f).parameters.values()]

    ours = getattr(mt.optim.lr_scheduler, name).__init__
    assert described(ours) == described(getattr(torch.optim.lr_scheduler, name).__init__)


@pytest.mark.parametrize(("name", "options"), [OPTIONS[i] for i in (3, 10, 17, 20, 27, -7, -4, -2)])
def test_state_of_torch_continues_here(name: str, options: dict[str, Any]) -> None:
    def make(lib: Any, ps: list[Any]) -> Any:
        return getattr(lib.optim, name)(ps, **options)

    tps, topt = run(torch, make, 3)
    state = copy.deepcopy(topt.state_dict())
    state["state"] = {
        i: {k: mt.tensor(v.numpy()) for k, v in s.items()} for i, s in state["state"].items()
    }
    ps = [mt.tensor(p.detach().numpy().copy(), requires_grad=True) for p in tps]
    opt = make(mt, ps)
    opt.load_state_dict(state)
    for lib, parameters_, optimizer in ((mt, ps, opt), (torch, tps, topt)):
        optimizer.zero_grad()
        losses(lib, parameters_).backward()
        optimizer.step()
    same(ps, tps)
    assert plain(opt.state_dict()) == plain(topt.state_dict())


GROUPS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}, {"lr": 0.3, "momentum": 0.0}),
    ("RMSprop", {"momentum": 0.9}, {"lr": 0.3, "momentum": 0, "centered": True, "maximize": True}),
    ("NAdam", {"lr": 0.1}, {"betas": (0.5, 0.8), "weight_decay": 0.1, "momentum_decay": 0.1}),
    ("Adagrad", {"lr": 0.1}, {"lr_decay": 0.5, "eps": 0.1}),
]


@pytest.mark.parametrize(("name", "options", "others"), GROUPS)
def test_groups(name: str, options: dict[str, Any], others: dict[str, Any]) -> None:
    def make(lib: Any, ps: list[Any]) -> Any:
        groups = [{"params": ps[0]}, {"params": [ps[1]], **others}]
        return getattr(lib.optim, name)(groups, **options)

    (ps, opt), (tps, topt) = run(mt, make), run(torch, make)
    same(ps, tps)
    assert repr(opt) == repr(topt)
    assert plain(opt.state_dict()) == plain(topt.state_dict())


MISTAKES: list[Any] = [
    lambda t, p: t.optim.SGD(p, lr=-1),
    lambda t, p: t.optim.SGD(p, momentum=-1),
    lambda t, p: t.optim.SGD(p, weight_decay=-1),
    lambda t, p: t.optim.SGD(p, nesterov=True),
    lambda t, p: t.optim.SGD(p, momentum=0.9, dampening=0.1, nesterov=True),
    lambda t, p: t.optim.Adam(p, lr=-1),
    lambda t, p: t.optim.Adam(p, eps=-1),
    lambda t, p: t.optim.Adam(p, weight_decay=-1),
    lambda t, p: t.optim.Adam(p, betas=(1, 0.0)),
    lambda t, p: t.optim.RMSprop(p, alpha=-1),
    lambda t, p: t.optim.RMSprop(p, momentum=-1),
    lambda t, p: t.optim.Adagrad(p, lr_decay=-1),
    lambda t, p: t.optim.Adagrad(p, initial_accumulator_value=-1),
    lambda t, p: t.optim.Adadelta(p, rho=1.5),
    lambda t, p: t.optim.Adadelta(p, eps=-1),
    lambda t, p: t.optim.Adamax(p, betas=(0.5, 1)),
    lambda t, p: t.optim.NAdam(p, momentum_decay=-1),
    lambda t, p: t.optim.RAdam(p, weight_decay=-1),
    lambda t, p: t.optim.Rprop(p, lr=-1),
    lambda t, p: t.optim.Rprop(p, etas=(1.0, 2.0)),
    lambda t, p: t.optim.ASGD(p, lr=-1),
    lambda t, p: t.optim.ASGD(p, weight_decay=-1),
    lambda t, p: t.optim.Adafactor(p, lr=-1),
    lambda t, p: t.optim.Adafactor(p, beta2_decay=0.1),
    lambda t, p: t.optim.Adafactor(p, eps=(-1.0, 0.1)),
    lambda t, p: t.optim.Adafactor(p, eps=(None, -0.1)),
    lambda t, p: t.optim.Adafactor(p, d=0.5),
    lambda t, p: t.optim.Adafactor(p, weight_decay=-1),
    lambda t, p: t.optim.SGD([]),
    lambda t, p: t.optim.SGD(p[0]),
    lambda t, p: t.optim.SGD([3]),
    lambda t, p: t.optim.SGD([{"params": p}, {"params": p}]),
    lambda t, p: t.optim.SGD([p[0] * 2]),
    lambda t, p: t.optim.SGD([{"x": p}]),
    lambda t, p: t.optim.SGD([{"params": set(p)}]),
    lambda t, p: t.optim.SGD(p).add_param_group(3),
    lambda t, p: t.optim.SGD(p).load_state_dict({"state": {}, "param_groups": []}),
    lambda t, p: t.optim.SGD(p).load_state_dict({"state": {}, "param_groups": [{"params": []}]}),
    lambda t, p: t.optim.lr_scheduler.StepLR(3, 2),
    lambda t, p: t.optim.lr_scheduler.LambdaLR(t.optim.SGD(p), [abs, abs]),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_read_as_in_torch(number: int) -> None:
    def outcome(lib: Any) -> tuple[Any, str]:
        with pytest.raises(Exception) as caught:
            MISTAKES[number](lib, parameters(lib))
        return caught.type, str(caught.value).replace("DoubleTensor", "FloatTensor")

    assert outcome(mt) == outcome(torch)


SCHEDULES: list[Any] = [
    lambda s, o: s.StepLR(o, 3),
    lambda s, o: s.StepLR(o, 2, gamma=0.5),
    lambda s, o: s.CosineAnnealingLR(o, 4),
    lambda s, o: s.CosineAnnealingLR(o, 5, eta_min=0.02),
    lambda s, o: s.LambdaLR(o, lambda e: 0.9**e),
    lambda s, o: s.LambdaLR(o, [lambda e: 0.9**e, lambda e: 1.0 / (1 + e)]),
]


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
def test_rates_equal_torchs(number: int) -> None:
    def rates(lib: Any) -> list[list[float]]:
        a, b = parameters(lib)
        opt = lib.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1)
        schedule = SCHEDULES[number](lib.optim.lr_scheduler, opt)
        seen = [schedule.get_last_lr()]
        for _ in range(13):
            opt.step()
            schedule.step()
            seen.append(schedule.get_last_lr())
            assert seen[-1] == [g["lr"] for g in opt.param_groups]
        return seen

    np.testing.assert_allclose(rates(mt), rates(torch), rtol=1e-12)


def test_stepping_the_schedule_first_warns_as_in_torch() -> None:
    def text(lib: Any) -> str:
        schedule = lib.optim.lr_scheduler.StepLR(lib.optim.SGD(parameters(lib)), 2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            schedule.step()
        assert len(caught) == 1
        return str(caught[0].message).split(". ")[0]

    assert text(mt) == text(torch)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "NAdam"])
def test_a_parameter_named_twice_is_stepped_twice_with_a_warning(name: str) -> None:
    def trained(lib: Any) -> tuple[Any, str]:
        p, q = lib.ones(2, requires_grad=True), lib.ones(2, requires_grad=True)
        with pytest.warns(UserWarning, match="duplicate parameters") as caught:
            opt = getattr(lib.optim, name)([p, q, p], lr=0.1)
        schedule = lib.optim.lr_scheduler.StepLR(opt, 1, 0.5)
        for _ in range(3):
            opt.zero_grad()
            ((p * p * lib.tensor([3.0, -1.0])).sum() + q.sum()).backward()
            opt.step()
            schedule.step()
        both = np.concatenate([t.detach().numpy() for t in (p, q)])
        return both, str(caught[0].message)

    (ours, said), (theirs, words) = trained(mt), trained(torch)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert said == words


@pytest.mark.parametrize("options", [{}, {"nesterov": True, "weight_decay": 0.1}])
def test_momenta_keep_their_dtype_when_a_model_changes_its_own(options: dict[str, Any]) -> None:
    start, x = np.array([[0.5, -1.0, 2.0]], np.float32), np.array([[1.0, 2.0, 3.0]])
    results = []
    libraries: list[Any] = [mt, torch]
    for m in libraries:
        model = m.nn.Linear(3, 1, bias=False)
        model.load_state_dict({"weight": m.tensor(start)})
        optimizer = m.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)
        for turn in range(5):
            if turn == 2:
                model.double()
            kind = m.float64 if turn >= 2 else m.float32
            optimizer.zero_grad()
            model(m.tensor(x, dtype=kind)).pow(2).sum().backward()
            optimizer.step()
        buffer = optimizer.state[model.weight]["momentum_buffer"]
        assert buffer.dtype == m.float32
        results.append((model.weight.detach().numpy(), buffer.numpy()))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_rprop_stays_where_a_gradient_is_missing() -> None:
    gradients = [
        [float("inf"), 1.0, float("nan"), -1.0],
        [1.0, float("nan"), -1.0, -2.0],
        [-1.0, 1.0, 0.0, 3.0],
        [2.0, 1.0, float("inf"), 1.0],
    ]
    found = []
    for lib in (mt, torch):
        p = lib.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
        optimizer = lib.optim.Rprop([p], lr=0.1)
        for g in gradients:
            p.grad = lib.tensor(g)
            optimizer.step()
        found.append(p.detach().numpy())
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert np.isfinite(found[0]).all()
