"""Learning rate schedules against torch: rates, momenta, states, messages, signatures."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")


class Fading:
    """A callable object with state."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, epoch: float) -> float:
        return float(self.rate**epoch)


Make = Callable[[Any, Any], Any]

SCHEDULES: dict[str, Make] = {
    "StepLR": lambda s, o: s.StepLR(o, 30, gamma=0.5),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [5, 90, 90, 200], gamma=0.3),
    "ConstantLR": lambda s, o: s.ConstantLR(o, factor=0.25, total_iters=40),
    "LinearLR": lambda s, o: s.LinearLR(o, start_factor=0.1, end_factor=0.7, total_iters=60),
    "LinearLR, default": lambda s, o: s.LinearLR(o),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.97),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, total_iters=70, power=2.0),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 50, eta_min=0.02),
    "LambdaLR": lambda s, o: s.LambdaLR(o, [lambda e: 0.9**e, lambda e: 1.0 / (1 + e)]),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda e: 0.99 if e % 3 else 1.01),
    "WarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 7),
    "WarmRestarts, longer": lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, 3, eta_min=0.01),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, 1.0, total_steps=250),
    "OneCycleLR, lines": lambda s, o: s.OneCycleLR(
        o, [1.0, 2.0], epochs=5, steps_per_epoch=50, anneal_strategy="linear", pct_start=0.4
    ),
    "OneCycleLR, three": lambda s, o: s.OneCycleLR(
        o, 0.3, total_steps=250, three_phase=True, base_momentum=[0.7, 0.8], div_factor=10.0
    ),
    "OneCycleLR, rate only": lambda s, o: s.OneCycleLR(
        o, 1.0, total_steps=250, cycle_momentum=False
    ),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.5, step_size_up=20),
    "CyclicLR, halved": lambda s, o: s.CyclicLR(
        o, [0.01, 0.1], 1.0, step_size_up=15, step_size_down=30, mode="triangular2"
    ),
    "CyclicLR, fading": lambda s, o: s.CyclicLR(
        o, 0.1, 0.5, step_size_up=13, mode="exp_range", gamma=0.99, cycle_momentum=False
    ),
    "CyclicLR, own": lambda s, o: s.CyclicLR(
        o, 0.1, 0.5, 9, scale_fn=Fading(0.9), scale_mode="iterations"
    ),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=20), s.CosineAnnealingLR(o, 100)], [20]
    ),
    "SequentialLR of many": lambda s, o: s.SequentialLR(
        o,
        [
            s.ConstantLR(o, 0.1, 5),
            s.ExponentialLR(o, 0.9),
            s.StepLR(o, 4),
            s.CosineAnnealingWarmRestarts(o, 6),
            s.MultiplicativeLR(o, lambda e: 0.95),
            s.PolynomialLR(o, 50),
            s.MultiStepLR(o, [3, 6]),
        ],
        [3, 10, 25, 60, 80, 150],
    ),
    "SequentialLR of chains": lambda s, o: s.SequentialLR(
        o,
        [
            s.ChainedScheduler([s.ConstantLR(o, 0.5, 4), s.ExponentialLR(o, 0.9)]),
            s.LambdaLR(o, lambda e: 0.5),
        ],
        [30],
    ),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler(
        [s.ConstantLR(o, 0.1, 20), s.ExponentialLR(o, 0.95), s.StepLR(o, 50)], optimizer=o
    ),
}


def _optimizer(lib: Any, kind: str = "SGD") -> Any:
    a, b = lib.zeros(1, requires_grad=True), lib.zeros(1, requires_grad=True)
    options = {"momentum": 0.9} if kind == "SGD" else {}
    return getattr(lib.optim, kind)([{"params": [a]}, {"params": [b], "lr": 0.5}], 0.1, **options)


def _numbers(opt: Any) -> list[float]:
    names = ("lr", "momentum", "betas", "initial_lr", "max_lr", "min_lr", "max_momentum")
    found = [g[n] for g in opt.param_groups for n in names if n in g]
    return [x for v in found for x in (v if isinstance(v, tuple) else (v,))]


def _followed(lib: Any, make: Make, kind: str, steps: int = 240) -> list[list[float]]:
    opt = _optimizer(lib, kind)
    schedule = make(lib.optim.lr_scheduler, opt)
    seen = [_numbers(opt)]
    for i in range(steps):
        opt.step()
        schedule.step()
        if i == 100:  # a change from outside: some schedules keep it
            opt.param_groups[0]["lr"] *= 0.9
        seen.append([*_numbers(opt), *schedule.get_last_lr()])
    return seen


def _compare(ours: list[list[float]], theirs: list[list[float]]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-14)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_and_momenta(name: str) -> None:
    for kind in ("SGD", "Adam"):
        _compare(*(_followed(lib, SCHEDULES[name], kind) for lib in (mt, torch)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return round(value, 10) if isinstance(value, float) else value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCHEDULES)
def test_states(name: str) -> None:
    """The states are equal, and what is saved after some steps continues, here and from torch."""
    make, states, followed = SCHEDULES[name], [], []
    for lib in (mt, torch):
        opt = _optimizer(lib)
        schedule = make(lib.optim.lr_scheduler, opt)
        for _ in range(33):
            opt.step()
            schedule.step()
        state = copy.deepcopy(schedule.state_dict())
        states.append(state)
        if lib is mt:
            pickle.dumps(state)
            file = io.BytesIO()
            mt.save(state, file)
            assert _plain(mt.load(io.BytesIO(file.getvalue()))) == _plain(state)
        groups = copy.deepcopy(opt.state_dict())
        opt = _optimizer(mt)
        schedule = make(mt.optim.lr_scheduler, opt)
        opt.load_state_dict(groups)
        schedule.load_state_dict(state)
        seen = []
        for _ in range(40):
            opt.step()
            schedule.step()
            seen.append(_numbers(opt))
        followed.append(seen)
    assert _plain(states[0]) == _plain(states[1])
    _compare(followed[0], followed[1])
    _compare(followed[0], [x[: len(followed[0][0])] for x in _never_saved(make)])


def _never_saved(make: Make) -> list[list[float]]:
    opt = _optimizer(torch)
    schedule = make(torch.optim.lr_scheduler, opt)
    seen = []
    for _ in range(73):
        opt.step()
        schedule.step()
        seen.append(_numbers(opt))
    return seen[33:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [n for n in SCHEDULES if "Sequential" not in n and "Chained" not in n]
)
def test_resumed_by_epoch(name: str) -> None:
    """Constructed with last_epoch, and gone to an epoch by its number."""
    make = SCHEDULES[name]

    def resumed(lib: Any) -> list[list[float]]:
        opt = _optimizer(lib)
        schedule = make(lib.optim.lr_scheduler, opt)
        for _ in range(11):
            opt.step()
            schedule.step()
        class_of = type(schedule)
        scheduler = copy.copy(schedule)
        scheduler.__dict__.clear()
        arguments = _arguments(make)
        class_of.__init__(scheduler, opt, *arguments[0], **arguments[1], last_epoch=10)
        seen = [_numbers(opt)]
        for _ in range(9):
            opt.step()
            scheduler.step()
            seen.append(_numbers(opt))
        for epoch in (3, 50, 51):
            scheduler.step(epoch)
            seen.append(_numbers(opt))
        return seen

    _compare(resumed(mt), resumed(torch))


def _arguments(make: Make) -> tuple[tuple[Any, ...], dict[str, Any]]:
    class Names:
        def __getattr__(self, name: str) -> Any:
            return lambda optimizer, *args, **options: (args, options)

    return make(Names(), None)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"factor": 0.5, "patience": 2},
        {"mode": "max", "patience": 1, "threshold": 0.1},
        {"mode": "max", "patience": 1, "threshold": 0.5, "threshold_mode": "abs"},
        {"threshold_mode": "abs", "patience": 0, "cooldown": 3, "min_lr": [0.01, 0.2]},
        {"factor": 0.1, "patience": 0, "min_lr": 0.05, "eps": 0.02},
    ],
)
def test_plateau(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    values = np.abs(rng.normal(size=200)) * 3 / (1 + np.arange(200) / 20)
    values[17] = np.nan

    def followed(lib: Any) -> tuple[list[list[float]], Any]:
        opt = _optimizer(lib)
        schedule = lib.optim.lr_scheduler.ReduceLROnPlateau(opt, **options)
        seen = []
        for i, value in enumerate(values):
            schedule.step(lib.tensor(value) if i % 50 == 0 else float(value))
            if i == 100:
                state = copy.deepcopy(schedule.state_dict())
                schedule = lib.optim.lr_scheduler.ReduceLROnPlateau(opt, **options)
                schedule.load_state_dict(state)
            seen.append(schedule.get_last_lr())
        return seen, _plain(schedule.state_dict())

    (ours, state), (theirs, expected) = followed(mt), followed(torch)
    _compare(ours, theirs)
    assert len({tuple(x) for x in ours}) > 1
    assert state == expected


def test_fractions_of_epochs() -> None:
    def followed(lib: Any) -> list[list[float]]:
        opt = _optimizer(lib)
        schedule = lib.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 3, 2)
        seen = []
        for epoch in range(20):
            for i in range(4):
                opt.step()
                schedule.step(epoch + i / 4)
                seen.append([*schedule.get_last_lr(), schedule.T_cur, schedule.last_epoch])
        return seen

    _compare(followed(mt), followed(torch))


NAMES = [
    *("StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR"),
    *("CosineAnnealingLR", "CosineAnnealingWarmRestarts", "OneCycleLR", "CyclicLR", "LambdaLR"),
    *("MultiplicativeLR", "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau", "LRScheduler"),
]


@pytest.mark.parametrize("name", NAMES)
def test_signature(name: str) -> None:
    def described(f: Any) -> list[Any]:
        return [(p.name, p.default) for p in inspect.signature(f).parameters.values()]

    ours = getattr(mt.optim.lr_scheduler, name).__init__
    theirs = getattr(torch.optim.lr_scheduler, name).__init__
    assert described(ours) == described(theirs)
    assert sorted(mt.optim.lr_scheduler.__all__) == sorted(torch.optim.lr_scheduler.__all__)


MISTAKES: list[Make] = [
    lambda s, o: s.ConstantLR(o, factor=1.5),
    lambda s, o: s.LinearLR(o, start_factor=0),
    lambda s, o: s.LinearLR(o, end_factor=2),
    lambda s, o: s.MultiplicativeLR(o, 3),
    lambda s, o: s.MultiplicativeLR(o, [abs]),
    lambda s, o: s.CosineAnnealingWarmRestarts(o, 0),
    lambda s, o: s.CosineAnnealingWarmRestarts(o, 2, 0),
    lambda s, o: s.CosineAnnealingWarmRestarts(o, 2, 1, "a"),
    lambda s, o: s.CosineAnnealingWarmRestarts(o, 2).step(-1),
    lambda s, o: s.OneCycleLR(o, 1.0),
    lambda s, o: s.OneCycleLR(3, 1.0),
    lambda s, o: s.OneCycleLR(o, 1.0, total_steps=0),
    lambda s, o: s.OneCycleLR(o, 1.0, epochs=2, steps_per_epoch=1.5),
    lambda s, o: s.OneCycleLR(o, 1.0, total_steps=5, pct_start=2.0),
    lambda s, o: s.OneCycleLR(o, 1.0, total_steps=5, anneal_strategy="x"),
    lambda s, o: s.OneCycleLR(o, [1.0], total_steps=5),
    lambda s, o: [x.step() for x in [s.OneCycleLR(o, 1.0, total_steps=5)] * 6],
    lambda s, o: s.CyclicLR(o, 1.0, 2.0, mode="x"),
    lambda s, o: s.CyclicLR(o, [1.0], 2.0),
    lambda s, o: s.SequentialLR(o, [], []),
    lambda s, o: s.SequentialLR(o, [s.StepLR(o, 1)], [3]),
    lambda s, o: s.SequentialLR(o, [3], []),
    lambda s, o: s.ChainedScheduler([]),
    lambda s, o: s.ChainedScheduler([s.ReduceLROnPlateau(o)]),
    lambda s, o: s.ReduceLROnPlateau(o, factor=1.0),
    lambda s, o: s.ReduceLROnPlateau(o, mode="x"),
    lambda s, o: s.ReduceLROnPlateau(o, threshold_mode="x"),
    lambda s, o: s.ReduceLROnPlateau(o, min_lr=[1.0]),
    lambda s, o: s.ReduceLROnPlateau(3),
    lambda s, o: s.ReduceLROnPlateau(o).step(),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_read_as_in_torch(number: int) -> None:
    def outcome(lib: Any) -> tuple[Any, str]:
        with pytest.raises(Exception) as caught:
            MISTAKES[number](lib.optim.lr_scheduler, _optimizer(lib))
        return caught.type, str(caught.value)

    assert outcome(mt) == outcome(torch)


def test_cycled_momentum_needs_an_optimizer_that_has_one() -> None:
    for lib in (mt, torch):
        opt = lib.optim.SGD([lib.zeros(1, requires_grad=True)], lr=0.1)
        del opt.defaults["momentum"]
        for make in (SCHEDULES["CyclicLR"], SCHEDULES["OneCycleLR"]):
            with pytest.raises(ValueError, match="optimizer must support momentum or beta1"):
                make(lib.optim.lr_scheduler, opt)


def _by_hand(lib: Any, like: Any) -> Any:
    class ByHand(lib.optim.Optimizer):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None:
            """Nothing."""

    return ByHand(like.param_groups[0]["params"], {"lr": 0.1})


def test_warnings_come_where_torch_has_them() -> None:
    def counts(lib: Any) -> list[int]:
        found = []
        s = lib.optim.lr_scheduler
        actions: list[Callable[[Any], Any]] = [
            lambda o: s.ExponentialLR(o, 0.5).step(),
            lambda o: s.SequentialLR(o, [s.StepLR(o, 1), s.StepLR(o, 1)], [1]).step(),
            lambda o: SCHEDULES["ChainedScheduler"](s, o).step(),
            lambda o: s.CosineAnnealingWarmRestarts(o, 5).step(),
            lambda o: s.ExponentialLR(o, 0.5).get_lr(),
            lambda o: s.ReduceLROnPlateau(o).step(1.0),
            lambda o: [x for x in [s.LinearLR(o)] if o.step() or x.step(2)],
            lambda o: [x for x in [s.LinearLR(_by_hand(lib, o))] if x.step()],
            lambda o: [x for x in [s.LinearLR(_by_hand(lib, o))] if x.optimizer.step() or x.step()],
        ]
        for action in actions:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                action(_optimizer(lib))
            found.append(len(caught))
        return found

    assert counts(mt) == counts(torch)
