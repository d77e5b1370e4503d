"""A barrier stands where a stage touches what an unfinished one writes, and nowhere else."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from minitorch_tvm.compiler.assemble import Functions, Place, StageCall, _waits, assemble
from minitorch_tvm.compiler.loops import Memory, Stage, load, parallel_stage, pointer_buffer, store
from minitorch_tvm.compiler.steps import _HEADER


def _copy(name: str, source: Memory, to: Memory) -> Stage:
    return parallel_stage(name, 8, lambda t: store(to, load(source, t), t))


def _calls(dependent: bool, tiles: int = 8) -> list[StageCall]:
    """Two stages, of which the second reads what the first writes if it is ``dependent``."""
    a, b, c, d = order = [pointer_buffer((8,), "float32", name) for name in "abcd"]
    calls = []
    functions = Functions(lambda symbol, function: None)
    for name, source, to in (("first", a, b), ("second", b if dependent else c, d)):
        function, buffers, (numbers,) = functions.of(_copy(name, source, to))
        slots = [[m.same_as(buffer) for m in order].index(True) for buffer in buffers]
        places = [Place(n, nbytes=32, written=order[n] is to) for n in slots]
        calls.append(StageCall(tiles, function, tuple(places), numbers=numbers))
    return calls


@pytest.mark.parametrize("dependent", [True, False])
def test_lowered_programs_keep_the_barriers_they_need(dependent: bool) -> None:
    # Of each step: where its runs start, their number, tiles, whether all threads wait, and calls
    # of one thread alone.
    words = np.frombuffer(assemble(_calls(dependent), 2).steps, np.int64)
    first = len(_HEADER)
    runs = first + 5 * 2
    assert words[first:runs].tolist() == [runs, 1, 8, int(dependent), 8, runs + 3, 1, 8, 0, 8]


@pytest.mark.parametrize(
    ("tiles", "cycles", "dependent", "workers"),
    [
        (8, 1e6, True, 2),
        (8, 100.0, True, 1),
        (8, 15_000.0, True, 1),  # a barrier more than
        (8, 15_000.0, False, 2),
        (1, 1e6, False, 1),
    ],
)
def test_short_programs_stay_on_the_calling_thread(
    tiles: int, cycles: float, dependent: bool, workers: int
) -> None:
    assert assemble(_calls(dependent, tiles), 2, cycles).workers == workers


@pytest.mark.parametrize(
    ("a", "b", "conflict"),
    [
        (Place(1, 0, 64), Place(1, 64, 64), False),
        (Place(1, 0, 65), Place(1, 64, 64), True),
        (Place(1, 0, 64, written=False), Place(1, 0, 64, written=False), False),
        (Place(1, 0, 64, written=False), Place(1, 0, 64), True),
        (Place(1, 0, 64), Place(2, 0, 64), False),
        (Place(1, 0, 64, written=False), Place(2, 0, 64, alias=1), True),
        (Place(1), Place(1, 1 << 40, 8), True),
    ],
)
def test_conflicts(a: Place, b: Place, conflict: bool) -> None:
    assert a.conflicts(b) is conflict
    assert b.conflicts(a) is conflict


def test_waits_separate_all_conflicts_and_no_wait_is_idle() -> None:
    rng = random.Random(0)
    for _ in range(300):
        steps = [
            [
                Place(rng.randrange(2), rng.randrange(4) * 8, 8, rng.random() < 0.4)
                for _ in range(rng.randrange(1, 4))
            ]
            for _ in range(rng.randrange(1, 8))
        ]
        waits = _waits(steps)
        for i, j in itertools.combinations(range(len(steps)), 2):
            if any(a.conflicts(b) for a in steps[i] for b in steps[j]):
                assert any(waits[i:j])
        starts = [0, *(i + 1 for i, w in enumerate(waits) if w)]
        for begin, end in itertools.pairwise(starts):
            group = [p for s in steps[begin:end] for p in s]
            assert any(a.conflicts(b) for a in group for b in steps[end])
