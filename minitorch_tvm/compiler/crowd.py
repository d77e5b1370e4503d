"""Programs beside others that want the same cores: one thread instead of all.

When more threads want to run than there are cores, the system takes a core from a program in the
middle of its step, for milliseconds, and at the next barrier all of its threads wait for the one
that lost it.  Short steps then take many times as long as one thread alone would need.

The entry therefore looks, a hundred times a second, whether cores are short; if they are, it runs
on the calling thread alone, as long as that is faster.  Whether it is, is measured: of sixteen
threads that lose one core, the other fifteen are still faster than one.  Which thread computes a
tile has no influence on its values, so results do not change.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from ..core.tvm_api import tvm
from .loops import (
    Expr,
    Helper,
    Memory,
    Parts,
    Stmt,
    alloc,
    bind,
    const,
    load,
    local_buffer,
    pointer_buffer,
    seq,
    store,
    var,
    when,
)

_UNKNOWN = -(1 << 30)  # if the process may not use all cores, or the system tells nothing
MASK = 16
"""64-bit words of a set of cores, as the C library declares it."""

WORDS = (
    *("alone", "room", "begun", "since", "spent", "runs", "cores"),
    *("short", "sharing", "rest", "penalty", "trust"),
)
"""What a program knows, in 64-bit words; zeros at first.

Whether it runs on one thread, and whether there was a core for every thread when it looked; times
in ns: when the launch began, when the current period did, and how much of that was spent in how
many launches; how many cores the machine has, asked once, as the answer takes longer than all else
(where cores come and go, it is then as if nothing were known); whether cores were short at the end
of the last period; how long a launch took while threads shared it; how many periods are left until
that is measured again; and how many it were after the last time that one thread was slower, and the
last time that it was faster.
"""

_PERIOD = 10_000_000  # ns between looks, of which each takes some microseconds
_SLICE = 4_000_000  # ns for which a system may take a core away: less than that says nothing
_REST = 64  # periods, at most, until what was found is measured again
_MONOTONIC = 1  # Linux's number of the clock that nobody sets
_TEXT = 128  # bytes
_LOAD = "/proc/loadavg"
_RUNNABLE = "%*s %*s %*s %d"  # behind three averages, the number of threads that want to run


def call(kind: str, function: str, *arguments: Any) -> Any:
    """Call a function of the C library."""
    return tvm().tirx.call_extern(kind, function, *arguments)


def clear(address: Expr, nbytes: int) -> Stmt:
    """Fill memory with zeros."""
    t = tvm().tirx
    return t.Evaluate(call("uint64", "memset", address, const(0), const(nbytes, "uint64")))


def now(clock: int = _MONOTONIC) -> tuple[Expr, list[Stmt]]:
    """The time of one of the system's clocks in ns, and the statements that read it."""
    t = tvm().tirx
    time = local_buffer((2,), "int64", "time")  # seconds and ns
    read = call("int32", "clock_gettime", const(clock), t.address_of(load(time, 0)))
    value = load(time, 0) * const(10**9, "int64") + load(time, 1)
    at, know = bind("now", value)
    return at, [alloc(time), t.Evaluate(read), know]


def available() -> bool:
    """Whether this system tells how many threads want to run, and where a thread is."""
    return sys.platform == "linux"


class Words:
    """Named 64-bit words, from the element ``first`` of memory on."""

    def __init__(self, names: Sequence[str], memory: Memory, first: int = 0) -> None:
        self.memory = memory
        self._at = {name: first + i for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> Expr:
        return load(self.memory, self._at[name])

    def set(self, **values: Expr | int) -> list[Stmt]:
        """Change some of them."""
        return [
            store(
                self.memory,
                const(value, "int64") if isinstance(value, int) else value,
                self._at[name],
            )
            for name, value in values.items()
        ]


def _excess(words: Words, load_file: str) -> tuple[Expr, Stmt]:
    """Threads that want to run beyond the cores, below 0 if cores are idle, or _UNKNOWN."""
    t = tvm().tirx
    mask = local_buffer((MASK,), "int64", "mask")
    text = local_buffer((_TEXT,), "uint8", "text")
    number = local_buffer((2,), "int32", "number")
    runnable, file = range(2)
    start, letters, found = (t.address_of(load(m, 0)) for m in (mask, text, number))
    size, length = const(8 * MASK, "uint64"), const(_TEXT - 1, "uint64")
    read = seq(
        t.Evaluate(call("int64", "read", load(number, file), letters, length)),
        t.Evaluate(call("int32", "close", load(number, file))),
        t.Evaluate(call("int32", "sscanf", letters, _RUNNABLE, found)),
    )
    # With only some of the cores, others may be idle, or all who wait may wait for these.
    cores = call("int32", "__sched_cpucount", size, start)
    machine = words["cores"].astype("int32")
    known = t.all(load(number, runnable) > 0, t.EQ(cores, machine))
    value = t.if_then_else(known, load(number, runnable) - machine, const(_UNKNOWN))
    excess, know = bind("excess", value)
    return excess, seq(
        [alloc(memory) for memory in (mask, text, number)],
        clear(start, 8 * MASK),
        clear(letters, _TEXT),
        store(number, const(0), runnable),
        t.Evaluate(call("int32", "sched_getaffinity", const(0), size, start)),
        store(number, call("int32", "open", load_file, const(os.O_CLOEXEC)), file),
        when(load(number, file) >= 0, read),
        when(
            t.EQ(words["cores"], const(0, "int64")),
            seq(words.set(cores=call("int32", "get_nprocs").astype("int64"))),
        ),
        know,
    )


def _decide(load_file: str) -> Parts:
    """Behind a launch: begin a new period, and run on one thread in it or on all."""
    words = Words(WORDS, pointer_buffer((len(WORDS),), "int64", "words"))
    now, workers = var("now", "int64"), var("workers")
    excess, look = _excess(words, load_file)
    room = (excess <= 0).astype("int64") - (excess <= _UNKNOWN).astype("int64")
    body = seq(
        when(
            now - words["since"] > const(_PERIOD, "int64"),
            seq(
                look,
                words.set(room=room),
                # The first period begins behind the first launch, which may find nothing in caches.
                when(words["since"] > 0, _end_of_period(words, excess, workers)),
            ),
            _give_up(words),
        ),
        words.set(since=now, spent=0, runs=0),
    )
    return Parts([words.memory.raw], [now, workers], body)


def _end_of_period(words: Words, excess: Expr, workers: Expr) -> Stmt:
    mean, rest = words["spent"] // words["runs"], words["rest"]
    # Behind a launch the other threads still wait for the next: they are counted.  The first such
    # period may have been short of cores in its last moment only, the second is measured.
    short = when(
        words["short"] > 0,
        seq(
            words.set(sharing=mean, alone=1, trust=_longer(words["trust"])),
            words.set(rest=words["trust"]),
        ),
        seq(words.set(short=1)),
    )
    sharing = when(excess > 0, short, seq(words.set(short=0, trust=0)))
    # While the calling thread works alone, the others sleep, unless another program of this process
    # has used them just before: then cores look short when they are not, until sharing is measured.
    again = seq(words.set(alone=0, short=0, rest=0))
    alone = when(
        excess + (workers - 1) <= 0,
        seq(again, words.set(trust=0)),
        when(
            rest <= 0,
            again,
            when(mean > words["sharing"], _give_up(words), seq(words.set(penalty=0))),
        ),
    )
    return seq(
        words.set(rest=tvm().tirx.max(rest - 1, const(0, "int64"))),
        when(words["alone"] > 0, alone, when(rest <= 0, sharing)),
    )


def _give_up(words: Words) -> Stmt:
    """Share although cores are short: for a while, and longer each time."""
    longer = _longer(words["penalty"])
    return seq(
        words.set(alone=0, short=0, penalty=longer, trust=0), words.set(rest=words["penalty"])
    )


def _longer(periods: Expr) -> Expr:
    """4 periods at first, 12, 28, 60, and no more than the most."""
    return tvm().tirx.min(periods * 2 + 4, const(_REST, "int64"))


def deciding(load_file: str = _LOAD) -> Helper:
    """``share_or_not(words, now, workers)``: decides what the next launches do."""
    return Helper("share_or_not", lambda: _decide(load_file))


DECIDE = deciding()


class Crowd:
    """Statements of the entry; ``words`` holds :data:`WORDS` from ``first`` on."""

    def __init__(self, words: Memory, first: int, workers: int, clock: int = _MONOTONIC) -> None:
        """``clock``: the system's number of the one that times are taken from."""
        self._words = Words(WORDS, words, first)
        self._workers, self._clock = workers, clock

    @property
    def alone(self) -> Expr:
        """Whether the calling thread should run the program by itself."""
        return self._words["alone"] > 0

    @property
    def room(self) -> Expr:
        """Whether there was a core for every thread that wanted to run, a period ago at most."""
        return self._words["room"] > 0

    def begin(self) -> Stmt:
        """Before a launch."""
        at, know = now(self._clock)
        return seq(know, self._words.set(begun=at))

    def end(self) -> Stmt:
        """After a launch: what it took is added up, and now and then it is decided anew."""
        words = self._words
        at, know = now(self._clock)
        address = tvm().tirx.address_of(words[WORDS[0]])
        over = at - words["since"] > const(_PERIOD, "int64")
        lost = words["spent"] - words["sharing"] * words["runs"]
        slower = tvm().tirx.all(self.alone, lost > const(_SLICE, "int64"))
        return seq(
            know,
            words.set(spent=words["spent"] + (at - words["begun"]), runs=words["runs"] + 1),
            when(
                tvm().tirx.any(over, slower),
                DECIDE.call(address, at, const(self._workers)),
            ),
        )
