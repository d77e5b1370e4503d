"""Threads that the system has put on one core, told apart from those that are better off there."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import apart, native, steps, target
from minitorch_tvm.compiler.loops import on_cpu, pointer_buffer, pointer_type, seq
from minitorch_tvm.core.tvm_api import tvm
from minitorch_tvm.runtime.native import link

pytestmark = pytest.mark.skipif(not apart.available(), reason="threads are not moved here")

CORES = os.cpu_count() or 1
Leave = Callable[[np.ndarray[Any, Any]], None]


def _leave(load_file: Path) -> Leave:
    """What a thread does first in a launch, with the words of :data:`apart.WORDS` in an array."""
    t = tvm()
    words = pointer_buffer((len(apart.WORDS),), "int64", "words")
    pointer = t.tirx.Var("pointer", pointer_type("int64"))
    body = seq(
        t.tirx.DeclBuffer(words.raw, data=pointer),
        apart.Apart(words, 0, str(load_file)).leave(),
    )
    function = t.tirx.PrimFunc([pointer], on_cpu(body)).with_attr("s_tir", True)
    name = f"leave_{load_file.name}"
    module = t.IRModule({t.ir.GlobalVar(name): function.with_attr("global_symbol", name)})
    code = native.object_code(native.compile_module(module, target.host()))
    entry = link(code, entry=name)
    return lambda array: entry(ctypes.c_void_p(array.ctypes.data))


@pytest.fixture(scope="module")
def leave(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Leave]:
    folder = tmp_path_factory.mktemp("load")
    texts = {
        "idle": f"0.25 0.45 0.76 {CORES}/77 23134\n",
        "busy": f"0.25 0.45 0.76 {CORES + 1}/77 23134\n",
        "strange": "nothing of the kind",
    }
    made = {}
    for name, text in texts.items():
        (folder / name).write_text(text)
        made[name] = _leave(folder / name)
    made["missing"] = _leave(folder / "missing")
    return made


@pytest.fixture
def whole_machine() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    if len(before) < CORES or CORES < 2:
        pytest.skip("needs all cores of a machine that has several")
    yield
    os.sched_setaffinity(0, before)


def _core() -> int:
    return int(ctypes.CDLL(None).sched_getcpu())


def _moved(leave: Leave, times: int = 50) -> int:
    """How often a thread was elsewhere at once, having found the caller on its own core."""
    allowed = os.sched_getaffinity(0)
    moved = 0
    for _ in range(times):
        words = np.zeros(len(apart.WORDS), np.int64)
        words[apart.WORDS.index("core")] = before = _core()
        leave(words)
        moved += _core() != before
        assert os.sched_getaffinity(0) == allowed
    return moved


@pytest.mark.usefixtures("whole_machine")
def test_a_thread_leaves_the_callers_core_if_another_is_idle(leave: dict[str, Leave]) -> None:
    # The system may move it meanwhile, too, or back.
    assert _moved(leave["idle"]) >= 30


@pytest.mark.usefixtures("whole_machine")
@pytest.mark.parametrize("load", ["busy", "strange", "missing"])
def test_it_stays_where_all_cores_are_busy_or_that_is_unknown(
    leave: dict[str, Leave], load: str
) -> None:
    assert _moved(leave[load]) <= 10


@pytest.mark.usefixtures("whole_machine")
def test_it_stays_if_the_process_may_not_use_all_cores(leave: dict[str, Leave]) -> None:
    os.sched_setaffinity(0, {_core()})
    assert _moved(leave["idle"], 5) == 0


@pytest.mark.usefixtures("whole_machine")
@pytest.mark.parametrize("which", ["caller", "elsewhere"])
def test_the_caller_and_threads_elsewhere_stay(leave: dict[str, Leave], which: str) -> None:
    words = np.zeros(len(apart.WORDS), np.int64)
    words[apart.WORDS.index("core")] = _core() if which == "caller" else -1
    words[apart.WORDS.index("launches")] = 7
    if which == "caller":
        words[apart.WORDS.index("thread")] = threading.get_ident()
    before = words.copy()
    leave["idle"](words)
    assert (words == before).all()


@pytest.mark.usefixtures("whole_machine")
def test_attempts_become_rare_while_threads_keep_meeting(leave: dict[str, Leave]) -> None:
    words = np.zeros(len(apart.WORDS), np.int64)
    core, launches, tried = (apart.WORDS.index(n) for n in ("core", "launches", "tried"))
    made = []
    for launch in range(1, 20_000):
        words[core], words[launches] = _core(), launch
        leave["busy"](words)
        if words[tried] == launch:
            made.append(launch)
    assert made[0] == 1
    assert 5 <= len(made) <= 40  # some are put off: between the two looks the system moved it
    # Long after, it is as if nothing had been.
    words[core], words[launches] = _core(), launch + 10**6
    leave["busy"](words)
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
        data = executor._steps.numpy((executor._steps.nbytes // 8,), mt.int64)
        first = len(steps._HEADER) - len(apart.WORDS)
        assert data[first + apart.WORDS.index("thread")] == threading.get_ident()
        assert data[first + apart.WORDS.index("launches")] == executor.calls == 2
        assert 0 <= data[first + apart.WORDS.index("core")] < CORES
    finally:
        mt.set_num_threads(with_threads)
        lazy.clear_cache()
