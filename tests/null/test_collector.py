"""The garbage collector is put off, and runs again as before."""

from __future__ import annotations

import gc

import pytest

from minitorch_tvm.core import collector


@pytest.fixture(autouse=True)
def _restored():
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.enable()
    if frozen:
        gc.freeze()


def test_it_runs_again_afterwards() -> None:
    with collector.put_off():
        assert not gc.isenabled()
        with collector.put_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_runs_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="no"), collector.put_off():
        raise ValueError("no")
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with collector.put_off():
        pass
    assert not gc.isenabled()


def test_what_stays_is_not_visited_at_once_but_is_by_a_full_collection() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    visits: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            visits.append(info["collected"])

    gc.collect()
    kept = []
    gc.callbacks.append(note)
    try:
        with collector.put_off(stays=True):
            Cycle()
            kept += [[] for _ in range(20_000)]
        young = len(gc.get_objects(0)) + len(gc.get_objects(1))
        kept += [[] for _ in range(2_000)]  # collections of what is young, of which it is none
        assert young < 2_000
        assert not any(visits)
        assert gc.collect() >= 1
    finally:
        gc.callbacks.remove(note)
    assert gc.get_freeze_count() == 0


def test_what_users_have_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        assert frozen
        with collector.put_off(stays=True):
            pass
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()
