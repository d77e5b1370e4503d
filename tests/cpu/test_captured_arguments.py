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
    for _ in range(8):
        assert step(tensor(2), 3).tolist() == [6.0, 3.0]
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
    assert len(step._entries) == 1  # the others would keep what they were given


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


def test_one_tensor_given_twice_is_one_tensor() -> None:
    def step(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        return x * (2 if x is y else 3) + y

    compiled = mt.compile(step)
    for n in range(8):
        x, y = tensor(n), tensor(1)
        assert compiled(x, x).tolist() == [3 * n, 3.0]
        assert compiled(x, y).tolist() == [3 * n + 1, 4.0]


@pytest.mark.parametrize("compiled", [False, True])
def test_arguments_that_are_changed_are_what_else_they_are(compiled: bool) -> None:
    kept = tensor(1)

    def both(x: mt.Tensor, y: mt.Tensor) -> mt.Tensor:
        x.add_(y)
        y.add_(x)
        return x * 1

    def known(x: mt.Tensor) -> mt.Tensor:
        kept.add_(1)
        return (x * 2).sum()

    def fails(x: mt.Tensor) -> mt.Tensor:
        x.add_(1)
        raise ValueError("after it has changed x")

    wrap = mt.compile if compiled else (lambda f: f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step, sums, error = wrap(both), wrap(known), wrap(fails)
        for n in range(1, 7):
            x = tensor(n)
            assert step(x, x).tolist() == [4 * n, 4.0]
            assert sums(kept).item() == 2 * (1 + n + 1 + n)
            with pytest.raises(ValueError, match="changed x"):
                error(x)
            assert x.tolist() == [4 * n + 1, 5.0]


def test_named_arguments_come_in_the_callers_order() -> None:
    @mt.compile
    def step(**given: mt.Tensor) -> mt.Tensor:
        first, second = given.values()
        return first * 10 + second

    for _ in range(8):
        assert step(b=tensor(1), a=tensor(2)).tolist() == [12.0, 11.0]
        assert step(a=tensor(2), b=tensor(1)).tolist() == [21.0, 11.0]


def test_modules_may_be_called_like_pythons() -> None:
    settings = types.SimpleNamespace(rate=1.0)

    def step(x: mt.Tensor) -> mt.Tensor:
        return x * settings.rate

    step.__module__ = "code"
    compiled = mt.compile(step)
    for n in range(12):
        settings.rate = 1.0 if n < 8 else 2.0
        assert compiled(tensor(1)).tolist() == [settings.rate] * 2


def test_results_keep_their_types() -> None:
    step = mt.compile(lambda x: collections.OrderedDict(y=x * 2))
    assert {type(step(tensor(n))) for n in range(8)} == {collections.OrderedDict}
    other = mt.compile(lambda x: collections.defaultdict(list, y=x * 2))
    with pytest.warns(RuntimeWarning, match="its result holds a defaultdict"):
        other(tensor(1))


class Hostile:
    """Does what it can to be no argument."""

    scale = 2.0

    def __hash__(self) -> int:
        raise KeyError("no hash")

    def __eq__(self, other: object) -> Any:
        return np.array([True, False])

    def __call__(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def test_odd_arguments() -> None:
    hostile, circle = Hostile(), list[Any]()
    circle.append(circle)
    step = mt.compile(lambda x, y: x * getattr(y, "scale", 1.0))
    before = EVENTS.get("uncaptured_calls")
    for n in range(8):
        assert step(tensor(n), hostile).tolist() == [2 * n, 2.0]
        with pytest.warns(RuntimeWarning, match="what it is given contains itself") as caught:
            assert step(tensor(n), circle).tolist() == [n, 1.0]
        assert caught[0].filename == __file__  # the user's line
    assert EVENTS.get("uncaptured_calls") == before + 8
    divide = mt.compile(lambda x, k: x / float(k))
    for _ in range(8):
        assert divide(tensor(1), np.float32(0.0)).tolist() == [np.inf, np.inf]
        assert divide(tensor(1), np.float32(-0.0)).tolist() == [-np.inf, -np.inf]


def test_methods_may_be_compiled_where_they_are_defined() -> None:
    class Model:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @mt.compile
        def __call__(self, x: mt.Tensor) -> mt.Tensor:
            return x * self.scale

        @mt.compile
        def twice(self, x: mt.Tensor, *, more: float = 0.0) -> mt.Tensor:
            return x * (2 * self.scale) + more

    one, three = Model(1.0), Model(3.0)
    for n in range(8):
        assert one(tensor(n)).tolist() == [n, 1.0]
        assert three(tensor(n)).tolist() == [3 * n, 3.0]
        assert three.twice(tensor(n), more=1.0).tolist() == [6 * n + 1, 7.0]
    three.scale = 5.0
    assert three(tensor(1)).tolist() == [5.0, 5.0]
    assert three.twice(tensor(1)).tolist() == [10.0, 10.0]


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


class Defaults:
    """What a step finds in a class."""

    rate = 1.0

    @property
    def hidden(self) -> float:
        return self._hidden

    def __init__(self) -> None:
        self._hidden = 1.0

    def scaled(self, x: mt.Tensor) -> mt.Tensor:
        return x * self.rate


def _by_class() -> tuple[Step, Callable[[float], None]]:
    class Own(Defaults): ...

    return lambda x: x * Own.rate, lambda value: setattr(Own, "rate", value)


def _by_class_behind_an_object() -> tuple[Step, Callable[[float], None]]:
    class Own(Defaults): ...

    own = Own()
    return lambda x: x * own.rate, lambda value: setattr(Own, "rate", value)


def _by_hiding_what_the_class_has() -> tuple[Step, Callable[[float], None]]:
    own = Defaults()
    return own.scaled, lambda value: setattr(own, "rate", value)


def _by_hiding_a_method() -> tuple[Step, Callable[[float], None]]:
    own = Defaults()
    change = lambda value: setattr(own, "scaled", lambda x: x * value)  # noqa: E731
    return lambda x: own.scaled(x), change


def _by_property() -> tuple[Step, Callable[[float], None]]:
    own = Defaults()
    return lambda x: x * own.hidden, lambda value: setattr(own, "_hidden", value)


def _by_parameter() -> tuple[Step, Callable[[float], None]]:
    """That of a module which is not called."""
    layer = mt.nn.Linear(2, 2)

    def change(value: float) -> None:
        layer.weight = mt.nn.Parameter(mt.eye(2) * value)

    return lambda x: x * layer.weight.detach()[0, 0], change


def _by_argument() -> tuple[Step, Callable[[float], None]]:
    own = types.SimpleNamespace(rate=1.0)
    step = functools.partial(lambda settings, x: x * settings.rate, own)
    return step, lambda value: setattr(own, "rate", value)


CHANGES = [
    *(_by_closure, _by_global, _by_helper, _by_attribute, _by_attributes, _by_self, _by_object),
    *(_by_module, _by_inner_module, _by_hook, _by_other_object, _by_class, _by_property),
    *(_by_class_behind_an_object, _by_hiding_what_the_class_has, _by_hiding_a_method),
    *(_by_parameter, _by_argument),
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


def test_names_that_come_later_are_seen() -> None:
    def step(x: mt.Tensor) -> mt.Tensor:
        try:
            return x * LATER  # type: ignore[name-defined]
        except NameError:
            return x * 1

    compiled = mt.compile(step)
    try:
        for n in range(12):
            if n == 8:
                globals()["LATER"] = 2.0
            assert compiled(tensor(1)).tolist() == ([1.0, 1.0] if n < 8 else [2.0, 2.0])
    finally:
        globals().pop("LATER", None)


def test_variables_that_get_a_value_later_are_seen() -> None:
    def make() -> tuple[Step, Callable[[], None]]:
        def step(x: mt.Tensor) -> mt.Tensor:
            try:
                return x * later
            except NameError:
                return x * 1

        def change() -> None:
            nonlocal later
            later = 2.0

        if False:
            later = 0.0
        return step, change

    function, change = make()
    step, before = mt.compile(function), EVENTS.get("captured_calls")
    for n in range(12):
        if n == 8:
            assert EVENTS.get("captured_calls") == before + 3
            change()
        assert step(tensor(1)).tolist() == ([1.0, 1.0] if n < 8 else [2.0, 2.0])


@pytest.mark.filterwarnings("ignore:.*'x' changes from call to call")
def test_objects_that_are_given_and_changed() -> None:
    batch = types.SimpleNamespace(x=tensor(0), rate=1.0)
    step = mt.compile(lambda b, scale: b.x * (b.rate * scale))
    for n in range(12):
        if n % 4 == 0:
            batch.rate = float(n)
        batch.x = tensor(n)
        assert step(batch, 2.0).tolist() == [n * batch.rate * 2, batch.rate * 2]


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
    (found,) = [w for w in caught if w.category is RuntimeWarning]
    assert "'rate' changes from call to call" in str(found.message)
    assert found.filename == __file__


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
