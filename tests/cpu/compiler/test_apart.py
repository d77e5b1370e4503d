"""Threads that the system has put on one core, told apart from those that are better off there."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from entries import CORES, Header, with_words

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import apart, crowd, steps
from minitorch_tvm.compiler.loops import load

pytestmark = pytest.mark.skipif(not crowd.available(), reason="threads are not moved here")

Leave = Callable[[np.ndarray[Any, Any]], None]


ROOM = len(apart.WORDS)  # the word behind those


@pytest.fixture(scope="module")
def leave() -> Leave:
    """What a thread does first in a launch, with :data:`apart.WORDS` in an array."""
    return with_words(lambda words: apart.Apart(words, 0, load(words, ROOM) > 0).leave())


def _words(room: bool = True) -> np.ndarray[Any, Any]:
    words = np.zeros(ROOM + 1, np.int64)
    words[ROOM] = room
    return words


def _core() -> int:
    return int(ctypes.CDLL(None).sched_getcpu())


def _moved(leave: Leave, room: bool) -> int:
    """How often of 50 times a thread was elsewhere at once, having found the caller on its core."""
    allowed = os.sched_getaffinity(0)
    moved = 0
    for _ in range(50):
        words = _words(room)
        words[apart.WORDS.index("core")] = before = _core()
        leave(words)
        moved += _core() != before
        assert os.sched_getaffinity(0) == allowed
    return moved


@pytest.mark.usefixtures("whole_machine")
def test_a_thread_leaves_the_callers_core_if_another_is_idle(leave: Leave) -> None:
    # The system may move it meanwhile, too, or back.
    assert _moved(leave, room=True) >= 30


@pytest.mark.usefixtures("whole_machine")
def test_it_stays_where_cores_are_short_or_that_is_unknown(leave: Leave) -> None:
    assert _moved(leave, room=False) <= 10


@pytest.mark.usefixtures("whole_machine")
@pytest.mark.parametrize("which", ["caller", "elsewhere"])
def test_the_caller_and_threads_elsewhere_stay(leave: Leave, which: str) -> None:
    words = _words()
    words[apart.WORDS.index("core")] = _core() if which == "caller" else -1
    words[apart.WORDS.index("launches")] = 7
    if which == "caller":
        words[apart.WORDS.index("thread")] = threading.get_ident()
    before = words.copy()
    leave(words)
    assert (words == before).all()


@pytest.mark.usefixtures("whole_machine")
def test_attempts_become_rare_while_threads_keep_meeting(leave: Leave) -> None:
    words = _words()
    core, launches, tried = (apart.WORDS.index(n) for n in ("core", "launches", "tried"))
    made = []
    for launch in range(1, 20_000):
        words[core], words[launches] = _core(), launch
        leave(words)
        if words[tried] == launch:
            made.append(launch)
    assert made[0] == 1
    assert 5 <= len(made) <= 40  # some are put off: between the two looks the system moved it
    # Long after, it is as if nothing had been.
    words[core], words[launches] = _core(), launch + 10**6
    leave(words)
    assert words[apart.WORDS.index("patience")] == 0


def test_every_thread_of_a_launch_looks_where_it_is_first() -> None:
    before, launch = steps.entry_function(2).script().split("parallel_launch_point")
    assert before.count("sched_getcpu") == 1  # the caller's
    assert "setaffinity" not in before
    assert launch.index("sched_getcpu") < launch.index("sched_setaffinity")
    assert launch.index("sched_setaffinity") < launch.index("pthread_mutex_trylock")
    assert "sched_" not in steps.entry_function(1).script()


def test_programs_say_where_their_caller_is() -> None:
    with_threads = mt.get_num_threads()
    mt.set_num_threads(2)
    try:
        lazy.clear_cache()
        x = mt.ones(600, 600).realize()
        for _ in range(2):
            (x @ x).realize()
        executor: Any = lazy.last_executor()
        words = Header(executor)
        assert words["thread"] == threading.get_ident()
        assert words["launches"] == executor.calls == 2
        assert 0 <= words["core"] < CORES
    finally:
        mt.set_num_threads(with_threads)
        lazy.clear_cache()
