"""Programs beside others that want the same cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from entries import CORES, Header, with_words

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy
from minitorch_tvm.compiler import crowd, steps
from minitorch_tvm.compiler.crowd import WORDS

pytestmark = pytest.mark.skipif(not crowd.available(), reason="cores are not looked at here")

WORKERS = 2
MS = 10**6
Words = Callable[[np.ndarray[Any, Any]], None]


class Machine:
    """A machine that tells how many threads want to run."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "load"

    def tell(self, runnable: int) -> None:
        """So many threads want to run."""
        self.file.write_text(f"0.25 0.45 0.76 {runnable}/77 23134\n")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("load"))


@pytest.fixture(scope="module")
def end(machine: Machine) -> Words:
    """What the entry does behind a launch."""

    def make(words: Any) -> Any:
        return crowd.Crowd(words, 0, WORKERS, clock=time.CLOCK_THREAD_CPUTIME_ID).end()

    return with_words(make, str(machine.file))


def _now() -> int:
    """Of a clock that stands still while other programs have the core."""
    return time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)


class Program:
    """What a program knows, told that launches took as long as a test says."""

    def __init__(self, end: Words, machine: Machine) -> None:
        self._end, self._machine = end, machine
        self.words = np.zeros(len(WORDS), np.int64)
        self["since"] = _now()

    def __getitem__(self, name: str) -> int:
        return int(self.words[WORDS.index(name)])

    def __setitem__(self, name: str, value: int) -> None:
        self.words[WORDS.index(name)] = value

    def launch(self, took: int) -> None:
        """One launch of so many ns."""
        now = _now()
        self["begun"] = now - took
        self._end(self.words)

    def period(self, took: int, runnable: int, launches: int = 5) -> None:
        """A whole period, in which launches take so many ns; then so many threads want to run."""
        self._machine.tell(runnable)
        for last in range(launches):
            past = 11 * MS if last == launches - 1 else 0
            self["since"] = _now() - past
            self.launch(took)
        assert self["runs"] == self["spent"] == 0  # of the new period


@pytest.fixture
def program(end: Words, machine: Machine) -> Program:
    return Program(end, machine)


@pytest.mark.usefixtures("whole_machine")
@pytest.mark.parametrize(("runnable", "room"), [(1, 1), (CORES, 1), (CORES + 1, 0), (0, 0)])
def test_whether_there_is_a_core_for_every_thread(
    program: Program, runnable: int, room: int
) -> None:
    program["room"] = 1 - room
    program.period(2 * MS, runnable)
    assert program["room"] == room


@pytest.mark.usefixtures("whole_machine")
@pytest.mark.parametrize("text", ["", "nothing of the kind", None])
def test_nothing_is_done_where_the_system_does_not_tell(
    program: Program, machine: Machine, text: str | None
) -> None:
    for alone in (0, 1):
        if text is None:
            machine.file.unlink(missing_ok=True)
        else:
            machine.file.write_text(text)
        program["room"], program["alone"], program["rest"] = 1, alone, 5
        program["since"] = _now() - 11 * MS
        program.launch(2 * MS)
        assert [program[name] for name in ("room", "alone", "short")] == [0, 0, 0]


@pytest.mark.usefixtures("whole_machine")
def test_of_part_of_a_machine_nothing_is_known(program: Program, machine: Machine) -> None:
    os.sched_setaffinity(0, {next(iter(os.sched_getaffinity(0)))})
    for runnable in (1, CORES + 1, CORES + 1):
        program["room"] = 1
        program.period(2 * MS, runnable)
        assert [program[name] for name in ("room", "alone", "short")] == [0, 0, 0]


@pytest.mark.usefixtures("whole_machine")
def test_how_many_cores_there_are_is_asked_once(program: Program) -> None:
    program.period(2 * MS, CORES)
    assert program["cores"] == CORES
    program["cores"], program["room"] = CORES + 1, 1  # as if one were gone since
    program.period(2 * MS, CORES)
    assert program["cores"] == CORES + 1
    assert program["room"] == 0


def test_the_first_period_begins_behind_the_first_launch(
    program: Program, machine: Machine
) -> None:
    machine.tell(CORES + 1)
    program["since"] = 0
    program.launch(100 * MS)
    assert 0 < program["since"] <= _now()
    assert program["spent"] == program["runs"] == 0
    assert program["short"] == 0  # though cores are
    program.launch(3 * MS)
    assert program["spent"] >= 3 * MS
    assert program["runs"] == 1


@pytest.mark.usefixtures("whole_machine")
def test_one_thread_is_tried_when_cores_are_short_twice(program: Program) -> None:
    program.period(2 * MS, CORES)
    assert (program["alone"], program["short"]) == (0, 0)
    program.period(2 * MS, CORES + 1)
    assert (program["alone"], program["short"]) == (0, 1)
    program.period(2 * MS, CORES)
    assert (program["alone"], program["short"]) == (0, 0)
    program.period(2 * MS, CORES + 1)
    program.period(7 * MS, CORES + 1)
    assert program["alone"] == 1
    assert 7 * MS <= program["sharing"] < 8 * MS  # of the second period


@pytest.mark.usefixtures("whole_machine")
def test_threads_share_again_when_cores_are_free(program: Program) -> None:
    program.period(7 * MS, CORES + 1)
    program.period(7 * MS, CORES + 1)
    assert program["alone"] == 1
    # The other thread of this program sleeps, so one less wants to run.
    program.period(5 * MS, CORES)
    assert program["alone"] == 1
    program.period(5 * MS, CORES - 1)
    assert (program["alone"], program["rest"]) == (0, 0)


@pytest.mark.usefixtures("whole_machine")
def test_one_slower_thread_is_given_up_before_its_period_ends(program: Program) -> None:
    rests = []
    for _ in range(6):
        program.period(1 * MS, CORES + 1)
        program.period(1 * MS, CORES + 1)
        assert program["alone"] == 1
        # Three launches lose 3 ms, for which the system alone may be responsible.
        for _ in range(3):
            program["since"] = _now()
            program.launch(2 * MS)
            assert program["alone"] == 1
        program["since"] = _now()
        program.launch(3 * MS)
        assert program["alone"] == program["runs"] == 0
        rests.append(program["rest"])
        for _ in range(rests[-1] - 1):
            program.period(1 * MS, CORES + 1)
            assert program["alone"] == program["short"] == 0
    assert rests == [4, 12, 28, 60, 64, 64]


@pytest.mark.usefixtures("whole_machine")
def test_one_thread_that_is_a_little_slower_is_given_up_at_the_end(program: Program) -> None:
    for _ in range(2):
        program.period(1 * MS, CORES + 1)
    program.period(1 * MS + MS // 2, CORES + 1, launches=4)
    assert (program["alone"], program["rest"]) == (0, 4)


@pytest.mark.usefixtures("whole_machine")
def test_now_and_then_sharing_is_measured_again(program: Program) -> None:
    """First soon: of programs in turn, one may take the other's threads for a crowd."""
    program["penalty"] = 28
    rests = []
    for took in (7, 7, 7, 7, 7, 6):
        for _ in range(2):
            program.period(took * MS, CORES + 1)
        assert took * MS <= program["sharing"] < (took + 1) * MS
        alone = 0
        while program["alone"]:
            program.period(5 * MS, CORES + 1)
            alone += 1
        assert program["rest"] == program["penalty"] == 0
        rests.append(alone)
    assert rests == [4, 12, 28, 60, 64, 64]
    program.period(5 * MS, CORES)
    for _ in range(2):
        program.period(7 * MS, CORES + 1)
    assert (program["alone"], program["rest"]) == (1, 4)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = mt.get_num_threads()
    if before < WORKERS:
        pytest.skip("needs two threads")
    mt.set_num_threads(WORKERS)
    lazy.clear_cache()
    yield
    lazy.clear_cache()
    mt.set_num_threads(before)


def _step() -> Callable[[], list[np.ndarray[Any, Any]]]:
    """Stages of every kind: tiles, tiles taken by threads, several of one tile."""
    rng = np.random.default_rng(3)
    image, weight, x, w = (
        mt.tensor(rng.standard_normal(shape).astype(np.float32))
        for shape in ((8, 16, 20, 20), (32, 16, 3, 3), (300, 500), (500, 400))
    )

    def run() -> list[np.ndarray[Any, Any]]:
        weight.requires_grad_(True).grad = None
        w.requires_grad_(True).grad = None
        loss = F.conv2d(image, weight).relu().mean() + (x @ w).tanh().softmax(1).square().sum()
        loss.backward()
        mt.eval(loss, weight.grad, w.grad)
        return [t.numpy().copy() for t in (loss.detach(), weight.grad, w.grad)]

    return run


@pytest.mark.usefixtures("two_threads")
def test_a_program_computes_the_same_on_one_thread() -> None:
    run = _step()
    expected = run()
    run()
    executor: Any = lazy.last_executor()
    words = Header(executor)
    words["since"] = time.monotonic_ns() + 10**15  # nothing is decided meanwhile
    launches = words["launches"]
    for alone, launched in [(1, 0), (1, 0), (0, 1), (1, 1), (0, 2)]:
        words["alone"] = alone
        for a, b in zip(run(), expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert lazy.last_executor() is executor
        assert words["launches"] == launches + launched
    assert 0 <= time.monotonic_ns() - words["begun"] < 10**12


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads", "whole_machine")
def test_beside_programs_that_keep_all_cores_busy_one_thread_is_tried() -> None:
    run = _step()
    for _ in range(3):
        run()
    executor: Any = lazy.last_executor()
    words = Header(executor)
    spin = "while True: pass"
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(CORES)]
    tried, end = False, time.monotonic() + 30
    try:
        while not tried and time.monotonic() < end:
            run()
            tried = words["sharing"] > 0
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert lazy.last_executor() is executor
    assert tried


def test_programs_of_one_thread_look_at_nothing() -> None:
    alone, shared = (steps.entry_function(n).script() for n in (1, 2))
    assert "clock_gettime" not in alone
    assert steps.entry_helpers(1) == ()
    assert shared.count("clock_gettime") == 2
    assert shared.index("clock_gettime") < shared.index("parallel_launch_point")
