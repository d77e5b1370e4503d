"""Arguments of a captured function, and what it finds without being given it."""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import capture
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.surroundings import Surroundings

Step = Callable[..., Any]
REPEATED = 6  # of twelve calls: the first two are watched, then the first, second, fourth, eighth


class Batch(NamedTuple):
    """As data loaders give them."""

    x: Any
    y: Any


def tensor(n: int) -> mt.Tensor:
    return mt.tensor([float(n), 1.0])


def array(n: int) -> Any:
    return np.array([float(n), 1.0], np.float32)


def captured(function: Step, give: Callable[[int], tuple[Any, dict[str, Any]]]) -> int:
    """How many of twelve calls are repeated, all with the plain function's results."""
    compiled = mt.compile(function)
    before = EVENTS.get("captured_calls")
    for n in range(12):
        args, kwargs = give(n)
        expected = function(*args, **kwargs)
        found = compiled(*give(n)[0], **give(n)[1])
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    return EVENTS.get("captured_calls") - before


# --- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tensor, array])
@pytest.mark.parametrize(
    ("function", "around"),
    [
        (lambda batch: mt.as_tensor(batch[0]) * batch[1], lambda x, y: (((x, y),), {})),
        (lambda batch: mt.as_tensor(batch[0]) * batch[1], lambda x, y: (([x, y],), {})),
        (lambda batch: mt.as_tensor(batch.x) * batch.y, lambda x, y: ((Batch(x, y),), {})),
        (
            lambda batch: mt.as_tensor(batch["x"]) * batch["y"],
            lambda x, y: (({"x": x, "y": y},), {}),
        ),
        (
            lambda batch: mt.as_tensor(batch["x"]) * batch["y"][0],
            lambda x, y: ((collections.OrderedDict(x=x, y=[y]),), {}),
        ),
        (lambda x, y: mt.as_tensor(x) * y, lambda x, y: ((x,), {"y": y})),
        (lambda *, x, y: mt.as_tensor(x) * y, lambda x, y: ((), {"y": y, "x": x})),
        (lambda x, scales: mt.as_tensor(x) * scales[1], lambda x, y: ((x, [2.0, 3.0]), {})),
    ],
    ids=["tuple", "list", "named", "dict", "nested", "keyword", "keywords", "numbers"],
)
def test_tensors_and_arrays_wherever_they_are(make: Any, function: Step, around: Any) -> None:
    def give(n: int) -> tuple[Any, dict[str, Any]]:
        return around(make(n), make(n + 1))

    plain = function
    if make is array:  # an array that is given is a tensor inside

        def plain(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    assert captured(plain, give) == REPEATED


def test_what_surrounds_tensors_decides() -> None:
    @mt.compile
    def step(batch: Any, scale: float = 1.0) -> mt.Tensor:
        x, *more = batch
        return x * scale + sum(more)

    for n in range(8):
        assert step([tensor(n)]).tolist() == [n, 1.0]
        assert step((tensor(n), tensor(1))).tolist() == [n + 1, 2.0]
        assert step([tensor(n)], scale=3.0).tolist() == [3 * n, 3.0]
        assert step([tensor(n), 1]).tolist() == [n + 1, 2.0]
        assert step([tensor(n), True]).tolist() == [n + 1, 2.0]


def test_batches_are_not_kept() -> None:
    """A key that held the tensors of a batch would hold all of them."""
    step = mt.compile(lambda batch: batch[0] * 2 + batch[1])
    kept = []
    for n in range(10):
        x = tensor(n)
        kept.append(weakref.ref(x))
        step((x, tensor(1)))
    del x
    gc.collect()
    assert [ref() for ref in kept[:-1]] == [None] * 9
    assert len(step._entries) == 1


def test_objects_that_cannot_be_hashed_are_constants_by_identity() -> None:
    @dataclasses.dataclass
    class Options:
        scale: float

    twice, thrice = Options(2.0), Options(3.0)
    step = mt.compile(lambda x, options: x * options.scale)
    for n in range(8):
        assert step(tensor(n), twice).tolist() == [2 * n, 2.0]
        assert step(tensor(n), thrice).tolist() == [3 * n, 3.0]
        assert step(tensor(n), options=thrice).tolist() == [3 * n, 3.0]
    assert len(step._entries) == 3


def test_numbers_that_differ_in_every_call_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_KINDS", 8)
    step = mt.compile(lambda x, i: x * i)
    for i in range(8):
        assert step(tensor(1), i).tolist() == [i, i]
    with pytest.warns(RuntimeWarning, match="for other ones: it has been called with 8 comb"):
        assert step(tensor(1), 8).tolist() == [8.0, 8.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        for i in range(40):
            assert step(tensor(1), i).tolist() == [i, i]
        before = EVENTS.get("captured_calls")
        for _ in range(12):
            assert step(tensor(2), 3).tolist() == [6.0, 3.0]
    assert EVENTS.get("captured_calls") > before  # what was known before goes on
    assert len(step._entries) == 8


@pytest.mark.parametrize("compiled", [False, True])
def test_containers_that_the_function_changes(compiled: bool) -> None:
    def pop(batch: dict[str, Any], log: list[Any]) -> mt.Tensor:
        y = batch.pop("y")
        log.append(batch["x"])
        return batch["x"] * y

    step = mt.compile(pop) if compiled else pop
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(6):
            batch, log = {"x": tensor(n), "y": tensor(2)}, [0]
            assert step(batch, log).tolist() == [2 * n, 1.0]
            assert [*batch] == ["x"]
            assert log[1] is batch["x"]
    messages = [str(w.message) for w in caught if w.category is RuntimeWarning]
    assert len(messages) == compiled
    assert all("changes a list or dict that it is given" in m for m in messages)


# --- surroundings -------------------------------------------------------------------------------

RATE = 1.0
SETTINGS = types.SimpleNamespace(rate=1.0, inner=types.SimpleNamespace(rate=1.0))


def _helper(x: mt.Tensor) -> mt.Tensor:
    return x * RATE


class Trainer:
    """What a step finds by way of ``self``."""

    def __init__(self) -> None:
        self.rate, self.calls = 1.0, 0
        self.inner = types.SimpleNamespace(rate=1.0)

    def step(self, x: mt.Tensor) -> mt.Tensor:
        self.calls += 1
        return x * self.rate * self.inner.rate + self.offset()

    def offset(self) -> float:
        return getattr(self, "base", -0.0)


class Scaled(mt.nn.Module):
    """A module with a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rate = mt.nn.Identity(), 1.0

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        return self.layer(x) * self.rate


def _by_closure() -> tuple[Step, Callable[[float], None]]:
    rate = 1.0

    def step(x: mt.Tensor) -> mt.Tensor:
        return x * rate

    def change(value: float) -> None:
        nonlocal rate
        rate = value

    return step, change


def _by_global() -> tuple[Step, Callable[[float], None]]:
    return lambda x: x * RATE, lambda value: globals().update(RATE=value)


def _by_helper() -> tuple[Step, Callable[[float], None]]:
    return lambda x: _helper(x), lambda value: globals().update(RATE=value)


def _by_attribute() -> tuple[Step, Callable[[float], None]]:
    return lambda x: x * SETTINGS.rate, lambda value: setattr(SETTINGS, "rate", value)


def _by_attributes() -> tuple[Step, Callable[[float], None]]:
    step = functools.partial(lambda scale, x: x * scale * SETTINGS.inner.rate, 1.0)
    return step, lambda value: setattr(SETTINGS.inner, "rate", value)


def _by_self() -> tuple[Step, Callable[[float], None]]:
    trainer = Trainer()
    return trainer.step, lambda value: setattr(trainer, "rate", value)


def _by_object() -> tuple[Step, Callable[[float], None]]:
    trainer = Trainer()
    return trainer.step, lambda value: setattr(trainer, "inner", types.SimpleNamespace(rate=value))


def _by_module() -> tuple[Step, Callable[[float], None]]:
    model = Scaled()
    return lambda x: model(x), lambda value: setattr(model, "rate", value)


def _by_inner_module() -> tuple[Step, Callable[[float], None]]:
    model = mt.nn.Sequential(mt.nn.Identity(), Scaled())
    return model, lambda value: setattr(model[1], "rate", value)


def _by_hook() -> tuple[Step, Callable[[float], None]]:
    model = mt.nn.Identity()
    handles: list[Any] = []

    def change(value: float) -> None:
        while handles:
            handles.pop().remove()
        handles.append(model.register_forward_hook(lambda m, args, y: y * value))

    return lambda x: model(x), change


def _by_other_object() -> tuple[Step, Callable[[float], None]]:
    """Another model behind the same name."""
    trainer = types.SimpleNamespace(model=Scaled())

    def change(value: float) -> None:
        trainer.model = Scaled()
        trainer.model.rate = value

    return lambda x: trainer.model(x), change


CHANGES = [
    *(_by_closure, _by_global, _by_helper, _by_attribute, _by_attributes, _by_self, _by_object),
    *(_by_module, _by_inner_module, _by_hook, _by_other_object),
]


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "RATE", 1.0)
    monkeypatch.setattr(SETTINGS, "rate", 1.0)
    monkeypatch.setattr(SETTINGS, "inner", types.SimpleNamespace(rate=1.0))


@pytest.mark.parametrize("make", CHANGES, ids=[f.__name__[4:] for f in CHANGES])
def test_what_is_another_is_seen_at_once(make: Any) -> None:
    function, change = make()
    step = mt.compile(function)
    before = EVENTS.get("captured_calls")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (1.0, 2.0, -0.0, 0.0, 5.0):
            change(value)
            for n in range(9):
                expected = [n * value, value]
                found = step(tensor(n)).numpy()
                np.testing.assert_array_equal(found, np.array(expected, np.float32))
                np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    assert EVENTS.get("captured_calls") - before >= 5 * 4


def test_what_the_function_itself_changes_does_not_count() -> None:
    trainer = Trainer()
    step = mt.compile(trainer.step)
    before = EVENTS.get("captured_calls")
    for n in range(12):
        assert step(tensor(n)).tolist() == [n, 1.0]
    assert EVENTS.get("captured_calls") == before + REPEATED
    assert trainer.calls == 12 - REPEATED


def test_names_that_stand_for_something_else_do_not_count() -> None:
    """An attribute of a result is called like a global that changes all the time."""
    step = mt.compile(lambda x: x.RATE if hasattr(x, "RATE") else x * 2)
    before = EVENTS.get("captured_calls")
    for n in range(12):
        globals()["RATE"] = float(n)
        assert step(tensor(n)).tolist() == [2 * n, 2.0]
    assert EVENTS.get("captured_calls") == before + REPEATED


def test_modes_that_come_back_are_known() -> None:
    """A model that is evaluated between epochs is not watched again for it."""
    model = mt.nn.Sequential(mt.nn.Identity(), mt.nn.Dropout(0.5))
    step = mt.compile(lambda x: model(x).sum())
    for _ in range(20):
        step(tensor(1))
    watched = EVENTS.get("watched_calls")
    for _ in range(3):
        model.eval()
        model(tensor(1))
        model.train()
        step(tensor(1))
    assert EVENTS.get("watched_calls") == watched


def test_modules_that_are_not_called_do_not_count() -> None:
    """A metric, say, that counts in an attribute between the steps."""
    model, other = Scaled(), Scaled()
    step = mt.compile(lambda x: model(x) * 2)
    before = EVENTS.get("captured_calls")
    for n in range(12):
        other.rate = float(n)
        assert step(tensor(n)).tolist() == [2 * n, 2.0]
    assert EVENTS.get("captured_calls") == before + REPEATED


def test_what_a_module_changes_in_its_own_calls_does_not_count() -> None:
    class Counted(mt.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: mt.Tensor) -> mt.Tensor:
            self.calls += 1
            return x * 2

    model = Counted()
    step = mt.compile(lambda x: model(x))
    before = EVENTS.get("captured_calls")
    for n in range(12):
        assert step(tensor(n)).tolist() == [2 * n, 2.0]
    assert EVENTS.get("captured_calls") == before + REPEATED
    assert model.calls == 12 - REPEATED


@pytest.mark.parametrize("matters", [False, True])
def test_what_changes_from_call_to_call_is_reported(matters: bool) -> None:
    settings = types.SimpleNamespace(rate=0.0)
    step = mt.compile(lambda x: x * (settings.rate if matters else (settings.rate, 2.0)[1]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(40):
            settings.rate = float(n)
            assert step(tensor(1)).tolist() == ([n, n] if matters else [2.0, 2.0])
    (message,) = [str(w.message) for w in caught if w.category is RuntimeWarning]
    assert "'rate' changes from call to call" in message


def test_a_name_that_changes_now_and_then_is_not_given_up() -> None:
    settings = types.SimpleNamespace(rate=0.0)
    step = mt.compile(lambda x: x * settings.rate)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(30):
            settings.rate = float(epoch)
            for _ in range(6):
                assert step(tensor(1)).tolist() == [epoch, epoch]


def test_variables_without_a_value_and_functions_that_call_each_other() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    def never() -> Any:
        return later

    found = Surroundings(lambda: (even, never))
    assert found.changed() is None
    later = 1
    assert found.changed() == "later"
    assert Surroundings(lambda: (even, never)).changed() is None
    assert Surroundings(print).entries == []
