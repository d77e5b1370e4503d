"""The package's own classes of fields: what dataclasses' promise, made sooner."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from typing import Any

import pytest

from minitorch_tvm.core.config import Config
from minitorch_tvm.core.record import record
from minitorch_tvm.debug import KernelTime, Profile
from minitorch_tvm.ir.program import KernelInfo, Output, Program
from minitorch_tvm.utils.data.worker import WorkerInfo


@record
class Point:
    x: int
    y: int = 0


@record
class Named(Point):
    name: str = field(default="p", compare=False)
    hidden: int = field(default=0, repr=False)


@record(eq=False)
class Thing:
    x: int


@record(frozen=False)
class Growing:
    parts: list[int] = field(default_factory=list)


@record
class Nothing:
    pass


@record
class Number:
    value: float


def test_objects_of_equal_fields_and_one_class_are_equal() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 1)
    assert hash(Point(1)) == hash(Point(1, 0))
    assert Point(1) != Named(1)  # another class
    assert Named(1, name="a") == Named(1, name="b") != Named(1, hidden=1)
    assert hash(Named(1, name="a")) == hash(Named(1, name="b"))
    assert Nothing() == Nothing() != Point(1)
    assert len({Nothing(), Nothing(), Point(1), Point(1)}) == 2
    assert Point(1).__eq__(1) is NotImplemented


def test_as_in_tuples_a_nan_equals_itself() -> None:
    nan = float("nan")
    assert Number(nan) == Number(nan) != Number(float("nan"))


def test_of_what_is_not_compared_each_equals_itself_alone() -> None:
    a, b = Thing(1), Thing(1)
    assert a != b
    assert a == a
    assert len({a, b}) == 2


def test_what_may_change_has_no_hash() -> None:
    a, b = Growing(), Growing()
    a.parts.append(1)
    assert a != b
    assert b.parts == []
    with pytest.raises(TypeError, match="unhashable"):
        hash(a)


def test_they_are_written_with_their_fields_and_copied_with_others() -> None:
    assert repr(Named(1)) == "Named(x=1, y=0, name='p')"
    assert replace(Named(1), y=2) == Named(1, 2)
    assert [f.name for f in dataclasses.fields(Named)] == ["x", "y", "name", "hidden"]
    wrong: Any = Point
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        wrong()


def test_what_a_class_says_itself_stays() -> None:
    @record
    class Own:
        x: int

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 7

    assert (repr(Own(1)), hash(Own(1)), Own(1) == Own(1)) == ("own", 7, True)


@pytest.mark.parametrize(
    "kind", [Config, KernelInfo, KernelTime, Output, Profile, Program, WorkerInfo]
)
def test_what_users_are_given_cannot_be_changed(kind: type) -> None:
    given = object.__new__(kind)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field"):
        setattr(given, dataclasses.fields(kind)[0].name, 1)  # type: ignore[arg-type]


@record(sealed=True)
class Sealed:
    x: int
    parts: list[int] = field(default_factory=list)
    later: int = field(default=3, init=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("negative")


def test_what_is_sealed_can_neither_be_changed_nor_lose_anything() -> None:
    given: Any = Sealed(1)
    assert (given.x, given.parts, given.later) == (1, [], 3)
    assert given == Sealed(1) != Sealed(2)
    assert replace(given, x=5).x == 5
    with pytest.raises(ValueError, match="negative"):
        Sealed(-1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        given.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del given.x


def test_fields_are_looked_at_when_somebody_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[type] = []
    original = dataclasses.dataclass

    def dataclass(*args: Any, **options: Any) -> Any:
        def made(cls: type) -> type:
            looked.append(cls)
            return original(*args, **options)(cls)

        return made

    monkeypatch.setattr(dataclasses, "dataclass", dataclass)

    @record
    class Base:
        x: int

    @record
    class Own(Base):
        y: int = 0

    class Plain(Own):
        pass

    assert looked == []
    assert (Plain(1).y, Plain(1, y=2)) == (0, Plain(1, 2))
    assert looked == [Own, Base]
    assert dataclasses.is_dataclass(Base)
    assert copy.deepcopy(Base(3)) == Base(3)
    assert looked == [Own, Base]


def test_threads_may_need_a_class_at_the_same_time() -> None:
    for _ in range(50):

        @record
        class Fresh:
            x: int
            y: tuple[int, ...] = ()
            z: list[int] = field(default_factory=list)

        start = threading.Barrier(4)

        def make(kind: Any = Fresh, start: threading.Barrier = start) -> Any:
            start.wait()
            return kind(1, z=[2])

        with ThreadPoolExecutor(4) as pool:
            made = [f.result() for f in [pool.submit(make) for _ in range(4)]]
        assert made == [Fresh(1, (), [2])] * 4


def test_what_somebody_puts_around_making_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    @record
    class Watched:
        x: int
        y: int = 2

    made: list[int] = []
    original = Watched.__init__

    @functools.wraps(original)
    def noted(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        made.append(self.x)

    monkeypatch.setattr(Watched, "__init__", noted)
    assert (Watched(1), Watched(3, y=4)) == (Watched(1), Watched(3, 4))
    assert made == [1, 3, 1, 3]
