"""``mt.compile``: the same bits as the plain loop, without running the function."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm.core.events import EVENTS

Step = Callable[..., Any]
Make = Callable[[mt.nn.Module], mt.optim.Optimizer]


class Loop:
    """A small model, its optimizer and a counter of calls of its step."""

    def __init__(self, make: Make, dropout: float = 0.0) -> None:
        mt.manual_seed(5)
        layers = [mt.nn.Linear(6, 8), mt.nn.ReLU(), mt.nn.Dropout(dropout), mt.nn.Linear(8, 3)]
        self.model = mt.nn.Sequential(*layers)
        self.optimizer = make(self.model)
        self.calls = 0

    def step(self, x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        self.calls += 1
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def weights(self) -> list[np.ndarray]:
        return [p.detach().numpy().copy() for p in self.model.parameters()]


def sgd(model: mt.nn.Module, **options: Any) -> mt.optim.Optimizer:
    return mt.optim.SGD(model.parameters(), lr=0.1, **options)


OPTIMIZERS: dict[str, Make] = {
    "sgd": sgd,
    "momentum": lambda m: sgd(m, momentum=0.9, dampening=0.5, weight_decay=0.01),
    "nesterov": lambda m: sgd(m, momentum=0.9, nesterov=True),
    "adam": lambda m: mt.optim.Adam(m.parameters(), lr=0.01),
    "adamw": lambda m: mt.optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
}


def batches(count: int, rows: int = 4) -> list[tuple[mt.Tensor, mt.Tensor]]:
    rng = np.random.default_rng(0)
    return [
        (
            mt.tensor(rng.normal(size=(rows, 6)).astype("float32")),
            mt.tensor(rng.integers(0, 3, rows)),
        )
        for _ in range(count)
    ]


def run(loop: Loop, compiled: bool, data: list[tuple[mt.Tensor, mt.Tensor]]) -> list[float]:
    step: Step = mt.compile(loop.step) if compiled else loop.step
    return [step(x, y).item() for x, y in data]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_bits_as_the_plain_loop(name: str) -> None:
    data = batches(14)
    plain, captured = (Loop(OPTIMIZERS[name], dropout=0.3) for _ in range(2))
    mt.manual_seed(1)
    expected = run(plain, False, data)
    mt.manual_seed(1)
    assert run(captured, True, data) == expected
    assert captured.calls < 8, "the function ran again and again"
    for a, b in zip(plain.weights(), captured.weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for p, q in zip(plain.model.parameters(), captured.model.parameters(), strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), q.grad.numpy())


def test_one_native_call_and_no_new_memory() -> None:
    loop = Loop(OPTIMIZERS["momentum"])
    step = mt.compile(loop.step)
    (x, y), *_ = batches(1)
    for _ in range(20):
        step(x, y)
    before = EVENTS.snapshot()
    for _ in range(10):
        step(x, y)
    after = EVENTS.snapshot()
    change = {k: after[k] - before.get(k, 0) for k in after if after[k] != before.get(k, 0)}
    assert change == {"native_calls": 10, "captured_calls": 10}


def test_learning_rates_and_schedulers_act() -> None:
    def make(model: mt.nn.Module) -> mt.optim.Optimizer:
        return mt.optim.SGD(model.parameters(), lr=0.5)

    loops = [Loop(make) for _ in range(2)]
    schedules = [mt.optim.lr_scheduler.StepLR(p.optimizer, 2, 0.5) for p in loops]
    results = []
    for compiled, loop, schedule in zip((False, True), loops, schedules, strict=True):

        def step(
            x: mt.Tensor, y: mt.Tensor, loop: Loop = loop, schedule: Any = schedule
        ) -> mt.Tensor:
            loss = loop.step(x, y)
            schedule.step()
            return loss

        call = mt.compile(step) if compiled else step
        losses = []
        for i, (x, y) in enumerate(batches(12)):
            if i == 9:
                loop.optimizer.param_groups[0]["lr"] = 0.01
            losses.append(call(x, y).item())
        results.append((losses, loop.optimizer.param_groups[0]["lr"], schedule.last_epoch))
    assert results[0] == results[1]


def test_what_the_function_depends_on_is_noticed() -> None:
    def changes(loop: Loop, i: int) -> None:
        if i == 6:
            loop.model.eval()
        elif i == 10:
            loop.model.train()
        elif i == 14:
            loop.model[0].weight.requires_grad_(False)
        elif i == 18:
            loop.optimizer.param_groups[0]["weight_decay"] = 0.1
        elif i == 22:
            state = {k: v.detach() * 0.5 for k, v in loop.model.state_dict().items()}
            loop.model.load_state_dict(state)
        elif i == 26:
            loop.optimizer.load_state_dict(loop.optimizer.state_dict())

    results = []
    for compiled in (False, True):
        loop = Loop(OPTIMIZERS["momentum"], dropout=0.5)
        mt.manual_seed(2)
        call = mt.compile(loop.step) if compiled else loop.step
        losses = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i, (x, y) in enumerate(batches(30)):
                changes(loop, i)
                losses.append(call(x, y).item())
        results.append((losses, [w.tolist() for w in loop.weights()]))
    assert results[0] == results[1]


@pytest.mark.parametrize("clear", ["never", "outside", "zeros"])
def test_gradients_accumulate(clear: str) -> None:
    results = []
    for compiled in (False, True):
        loop = Loop(sgd)

        def step(x: mt.Tensor, y: mt.Tensor, loop: Loop = loop) -> mt.Tensor:
            if clear == "zeros":
                loop.optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(loop.model(x), y)
            loss.backward()
            loop.optimizer.step()
            return loss

        call = mt.compile(step) if compiled else step
        losses = []
        for i, (x, y) in enumerate(batches(20)):
            if clear == "outside" and i < 15:
                loop.optimizer.zero_grad()
            losses.append(call(x, y).item())
        results.append((losses, [p.grad.tolist() for p in loop.model.parameters()]))
    assert results[0] == results[1]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_bad_label_raises_and_changes_nothing(compiled: bool) -> None:
    loop = Loop(OPTIMIZERS["adam"])
    step = mt.compile(loop.step) if compiled else loop.step
    (x, y), *_ = batches(1)
    for _ in range(10):
        step(x, y)
    before, calls = loop.weights(), loop.calls
    captured = EVENTS.get("captured_calls")
    with pytest.raises(IndexError, match="Target 3 is out of bounds") as caught:
        step(x, mt.tensor([0, 1, 3, 2]))
    # The function does what comes before the error, which is raised in its line.
    assert loop.calls == calls + 1
    assert any(entry.name == "step" and str(entry.path) == __file__ for entry in caught.traceback)
    for a, b in zip(before, loop.weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    step(x, y)  # watched: the function has counted its call, which is a change around it
    assert EVENTS.get("captured_calls") == captured
    step(x, y)
    assert EVENTS.get("captured_calls") == captured + compiled


@pytest.mark.parametrize("layer", ["dropout", "norm"])
def test_a_bad_label_leaves_the_rest_as_the_plain_loop_does(layer: str) -> None:
    """Random numbers have been drawn by then, and batches been counted."""
    results = []
    for compiled in (False, True):
        mt.manual_seed(3)
        last = mt.nn.Dropout(0.5) if layer == "dropout" else mt.nn.BatchNorm1d(3)
        model = mt.nn.Sequential(mt.nn.Linear(6, 3), last)
        optimizer = sgd(model)

        def step(
            x: mt.Tensor,
            y: mt.Tensor,
            model: mt.nn.Module = model,
            optimizer: mt.optim.Optimizer = optimizer,
        ) -> mt.Tensor:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        call = mt.compile(step) if compiled else step
        losses = []
        for i, (x, y) in enumerate(batches(9)):
            if i == 6:
                with pytest.raises(IndexError):
                    call(x, mt.tensor([0, 9, 1, 1]))
            losses.append(call(x, y).item())
        results.append((losses, [b.tolist() for b in model.buffers()]))
    assert results[0] == results[1]


def test_every_shape_has_its_own_program_and_results_may_be_nested() -> None:
    loop = Loop(sgd)

    @mt.compile
    def step(x: mt.Tensor, y: mt.Tensor) -> dict[str, Any]:
        out = loop.model(x)
        loss = F.cross_entropy(out, y)
        loop.optimizer.zero_grad()
        loss.backward()
        loop.optimizer.step()
        return {"loss": loss, "more": (out.argmax(1), None, 7)}

    for rows in (4, 5, 4, 5, 4, 5, 4, 5, 4, 5):
        (x, y), *_ = batches(1, rows)
        got = step(x, y)
        assert got["more"][0].shape == (rows,)
        assert got["more"][1:] == (None, 7)
        assert not np.isnan(got["loss"].item())


def test_arrays_are_arguments_and_user_memory_is_written() -> None:
    total = np.zeros(3, np.float32)
    running = mt.from_numpy(total)

    @mt.compile
    def add(x: mt.Tensor) -> mt.Tensor:
        running.add_(x)
        return running * 2

    for i in range(1, 9):
        assert add(np.full(3, i, np.float32)).tolist() == [i * (i + 1)] * 3
    assert total.tolist() == [36.0] * 3


def test_arguments_that_are_one_tensor_are_a_case_of_their_own() -> None:
    @mt.compile
    def difference(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        return x - y * 2

    x, y = mt.tensor([1.0, 2.0]), mt.tensor([10.0, 20.0])
    for _ in range(6):
        assert difference(x, x).tolist() == [-1.0, -2.0]
    for _ in range(6):
        assert difference(x, y).tolist() == [-19.0, -38.0]


def test_an_argument_that_is_also_state_is_not_confused_with_it() -> None:
    scale = mt.tensor([3.0])

    def scaled(x: mt.Tensor) -> mt.Tensor:
        return x * scale

    compiled = mt.compile(scaled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(6):
            assert compiled(scale).tolist() == [9.0]
        for _ in range(6):
            assert compiled(mt.tensor([2.0])).tolist() == [6.0]


def test_what_is_computed_already_may_be_detached() -> None:
    weight = mt.tensor([1.0, 2.0])
    step = mt.compile(lambda x: x.detach() * weight.detach().detach())
    before = EVENTS.get("captured_calls")
    for i in range(8):
        assert step(mt.tensor([3.0, 4.0]) + i).tolist() == [(3.0 + i) * (1 + i), (4.0 + i) * 2]
        weight[0] = 2.0 + i
    assert EVENTS.get("captured_calls") > before


def _distilled(wrap: Callable[[Any], Any]) -> list[float]:
    """Losses of a student whose labels a teacher, trained in the same step, has computed."""
    mt.manual_seed(0)
    teacher, student = mt.nn.Linear(4, 3), mt.nn.Linear(4, 3)
    optimizers = [mt.optim.SGD(net.parameters(), lr=0.1) for net in (teacher, student)]

    def step(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        guess = teacher(x).argmax(1)
        for net, optimizer, labels in zip((teacher, student), optimizers, (y, guess), strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), labels)
            loss.backward()
            optimizer.step()
        return loss

    run, rng = wrap(step), np.random.default_rng(0)
    batches = [(rng.random((5, 4), dtype=np.float32), rng.integers(0, 3, 5)) for _ in range(8)]
    return [float(run(mt.from_numpy(x), mt.from_numpy(y))) for x, y in batches]


def test_labels_that_an_earlier_program_of_the_call_computed() -> None:
    plain = _distilled(lambda step: step)
    before = EVENTS.get("captured_calls")
    assert _distilled(mt.compile) == plain
    assert EVENTS.get("captured_calls") > before


def test_unrecorded_writes_to_what_has_a_history() -> None:
    results = []
    before = EVENTS.get("captured_calls")
    for compiled in (False, True):
        loop = Loop(sgd)

        def step(x: mt.Tensor, y: mt.Tensor, loop: Loop = loop) -> mt.Tensor:
            loop.optimizer.zero_grad()
            h = loop.model[0](x)
            h.data.clamp_(-0.5, 0.5)
            with mt.no_grad():
                h[1:].mul_(2)
            loss = F.cross_entropy(loop.model[3](loop.model[1](h)), y)
            loss.backward()
            loop.optimizer.step()
            return loss

        start = loop.weights()[0]
        call = mt.compile(step) if compiled else step
        results.append([call(x, y).item() for x, y in batches(14)])
        assert not np.array_equal(start, loop.weights()[0])
    assert results[0] == results[1]
    assert EVENTS.get("captured_calls") > before


def test_an_argument_that_is_changed_in_place() -> None:
    x = mt.tensor([1.0])

    @mt.compile
    def grow(x: mt.Tensor) -> mt.Tensor:
        return x.mul_(2) + 1

    with pytest.warns(RuntimeWarning, match="changes an argument in place"):
        assert grow(x).tolist() == [3.0]
    assert x.tolist() == [2.0]
    assert [grow(x).item() for _ in range(4)] == [5.0, 9.0, 17.0, 33.0]


def test_old_gradients_are_read_before_they_are_replaced() -> None:
    results = []
    for compiled in (False, True):
        loop = Loop(sgd)

        def step(x: mt.Tensor, y: mt.Tensor, loop: Loop = loop) -> mt.Tensor:
            with mt.no_grad():
                old = [p.grad * 2 for p in loop.model.parameters() if p.grad is not None]
            loss = loop.step(x, y)
            with mt.no_grad():
                new = [p.grad - g for p, g in zip(loop.model.parameters(), old, strict=False)]
                return loss + sum(((d * d).sum() for d in new), start=mt.zeros(()))

        call = mt.compile(step) if compiled else step
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append([call(x, y).item() for x, y in batches(14)])
    assert results[0] == results[1]


def test_a_gradient_that_somebody_holds_is_not_overwritten() -> None:
    loop = Loop(sgd)
    step = mt.compile(loop.step)
    held = []
    for x, y in batches(14):
        step(x, y)
        held.append((loop.model[0].weight.grad, loop.model[0].weight.grad.numpy().copy()))
    for gradient, values in held:
        np.testing.assert_array_equal(gradient.numpy(), values)


def test_results_that_are_views() -> None:
    compiled = mt.compile(lambda x: ((x * 2.0).reshape(-1), (x + 1.0)[0].detach()))
    before = EVENTS.get("captured_calls")
    for n in range(6):
        flat, row = compiled(mt.full((2, 3), float(n)))
        assert flat.tolist() == [2.0 * n] * 6
        assert row.tolist() == [n + 1.0] * 3
    assert EVENTS.get("captured_calls") > before


KEPT: list[mt.Tensor] = []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda x: x * float((x + 1).sum().item()), "item reads values"),
        (lambda x: KEPT.append(x + 1) or x * 2, "kept by something else"),
        (lambda x: x + mt.tensor([1.0, 2.0]), "pass them as arguments"),
        (lambda x: {"a": x + 1, "b": object()}, "its result holds a object"),
    ],
)
def test_what_cannot_be_repeated_runs_every_time(body: Step, reason: str) -> None:
    calls = 0

    def function(x: mt.Tensor) -> Any:
        nonlocal calls
        calls += 1
        return body(x)

    compiled = mt.compile(function)
    with pytest.warns(RuntimeWarning, match=reason):
        compiled(mt.ones(2))
    before = EVENTS.get("uncaptured_calls")
    compiled(mt.ones(2))
    assert calls == 2
    assert EVENTS.get("uncaptured_calls") == before + 1
    KEPT.clear()


def test_a_change_that_is_found_late_is_reported() -> None:
    """Objects are looked at by identity: what a list holds is seen when the function runs."""
    scale = [1.0]

    @mt.compile
    def function(x: mt.Tensor) -> mt.Tensor:
        return x * scale[0]

    values = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(20):
            scale[0] = 1.0 if i < 5 else 2.0
            values.append(function(mt.ones(1)).item())
    assert [w for w in caught if "changed what it does" in str(w.message)]
    assert values[:3] == [1.0] * 3
    assert values[-1] == 2.0


def test_the_function_is_run_again_at_least_every_2048_calls() -> None:
    scale, ran = [1.0], []

    @mt.compile
    def function(x: mt.Tensor) -> mt.Tensor:
        ran.append(None)
        return x * scale[0]

    numbers = []
    for number in range(1, 6200):
        before = len(ran)
        function(mt.ones(1))
        if len(ran) > before:
            numbers.append(number)
    late = numbers[-3:]
    # The two calls after which it is known are not counted.
    assert late == [2050, 4098, 6146]
    assert len(numbers) < 20
    scale[0] = 2.0
    with pytest.warns(match="changed what it does after"):
        values = [function(mt.ones(1)).item() for _ in range(2048)]
    assert values[0] == 1.0
    assert values[-1] == 2.0


def test_an_error_inside_leaves_nothing_behind() -> None:
    @mt.compile
    def function(x: mt.Tensor) -> mt.Tensor:
        return x @ mt.ones(5)

    for _ in range(2):
        with pytest.raises(RuntimeError):
            function(mt.ones(2))
    assert (mt.ones(2) + 1).tolist() == [2.0, 2.0]


def test_results_that_are_detached_behind_the_step() -> None:
    """They come from a program of the call, not from outside."""
    weight = mt.nn.Parameter(mt.ones(3))
    optimizer = mt.optim.SGD([weight], lr=0.1)

    @mt.compile
    def step(x: mt.Tensor) -> mt.Tensor:
        optimizer.zero_grad()
        loss = (weight * x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = EVENTS.get("captured_calls")
    losses = [step(np.ones(3, np.float32)).item() for _ in range(12)]
    np.testing.assert_allclose(losses, 3 - 0.3 * np.arange(12), atol=1e-5)
    assert EVENTS.get("captured_calls") - before >= 6


def test_arrays_are_the_callers_again_after_a_call_that_is_not_captured() -> None:
    @mt.compile
    def function(x: mt.Tensor) -> mt.Tensor:
        x.sum().item()
        return x * 2

    with pytest.warns(RuntimeWarning, match="reads values"):
        function(np.ones(2, np.float32))
    x = np.ones(2, np.float32)
    doubled = function(x)
    x[:] = 5
    assert doubled.tolist() == [2.0, 2.0]


def test_initialisation_inside_is_not_repeated_silently() -> None:
    weight = mt.nn.Parameter(mt.ones(2))

    @mt.compile
    def function(x: mt.Tensor) -> mt.Tensor:
        mt.nn.init.constant_(weight, 3.0)
        with mt.no_grad():
            weight.add_(x)
        return weight.detach() * 1

    with pytest.warns(RuntimeWarning, match="sets values from the host"):
        values = [function(np.ones(2, np.float32)).tolist() for _ in range(6)]
    assert values == [[4.0, 4.0]] * 6
