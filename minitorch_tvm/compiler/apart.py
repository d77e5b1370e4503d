"""Threads of a launch that the system has put on one core, and how they get apart again.

A thread that has slept is woken, now and then, on the core of the one that wakes it, though another
is idle.  There it stays for some ten milliseconds, until the system balances its load, and short
programs take up to four times as long: the two take turns, and each waits for the other while that
cannot run.  Whoever finds itself on the core of the calling thread therefore leaves it, by
forbidding itself that core for a moment.  Nothing is bound for longer: other programs are left all
of the cores, and the system all of its choices.

It does so only if no more threads want to run than the machine has cores.  Beside a program that
keeps the other cores busy, the two on one core are better off than the one that leaves: every
launch would wait for the other program's share of time to end.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..core.tvm_api import tvm
from .loops import Expr, Memory, Stmt, alloc, const, load, local_buffer, seq, serial, store, when

WORDS = ("thread", "core", "launches", "tried", "patience")
"""What the threads of a program tell each other, in 64-bit words; zeros at first."""

_MASK = 16  # 64-bit words of a set of cores, as the C library declares it
_SOON = 256  # launches after which it is as if nothing had been tried
_MOST = 1 << 16  # launches without another try
_TEXT = 128  # bytes
_LOAD = "/proc/loadavg"
_RUNNABLE = "%*s %*s %*s %d"  # behind three averages, the number of threads that want to run


def _call(kind: str, function: str, *arguments: Any) -> Any:
    return tvm().tirx.call_extern(kind, function, *arguments)


def available() -> bool:
    """Whether this system tells a thread its core, and takes orders about it."""
    return sys.platform == "linux"


class Apart:
    """Statements of the entry; ``words`` holds :data:`WORDS` from ``first`` on."""

    def __init__(self, words: Memory, first: int, load_file: str = _LOAD) -> None:
        self._words, self._first, self._load_file = words, first, load_file

    def _get(self, name: str) -> Expr:
        return load(self._words, self._first + WORDS.index(name))

    def _set(self, name: str, value: Expr) -> Stmt:
        return store(self._words, value, self._first + WORDS.index(name))

    def announce(self) -> Stmt:
        """Before the launch: where the calling thread is."""
        return seq(
            self._set("thread", _call("int64", "pthread_self")),
            self._set("core", _call("int32", "sched_getcpu").astype("int64")),
            self._set("launches", self._get("launches") + const(1, "int64")),
        )

    def leave(self) -> Stmt:
        """By every thread of the launch, first of all: to another core if need be."""
        t = tvm().tirx
        since = self._get("launches") - self._get("tried")
        here = t.all(
            t.EQ(_call("int32", "sched_getcpu").astype("int64"), self._get("core")),
            t.NE(_call("int64", "pthread_self"), self._get("thread")),
            since >= self._get("patience"),
        )
        doubled = t.min(self._get("patience") * 2 + 1, const(_MOST, "int64"))
        again = since < self._get("patience") + const(_SOON, "int64")
        attempt = seq(
            self._set("patience", t.Select(again, doubled, const(0, "int64"))),
            self._set("tried", self._get("launches")),
            self._move(),
        )
        return when(here, attempt)

    def _move(self) -> Stmt:
        t = tvm().tirx
        mask = local_buffer((_MASK,), "int64", "mask")
        text = local_buffer((_TEXT,), "uint8", "text")
        number = local_buffer((4,), "int32", "number")
        cores, runnable, machine, file = range(4)
        letters, size = t.address_of(load(text, 0)), const(8 * _MASK, "uint64")
        word = (self._get("core") >> 6).astype("int32")
        bit = const(1, "int64") << (self._get("core") & 63)

        def allowed(action: str) -> Stmt:
            start = t.address_of(load(mask, 0))
            return t.Evaluate(_call("int32", f"sched_{action}affinity", const(0), size, start))

        def count(i: Expr) -> Stmt:
            own = t.popcount(load(mask, i)).astype("int32")
            return store(number, load(number, cores) + own, cores)

        def look(file: Expr) -> Stmt:
            length = const(_TEXT - 1, "uint64")
            target = t.address_of(load(number, runnable))
            return seq(
                t.Evaluate(_call("int64", "read", file, letters, length)),
                t.Evaluate(_call("int32", "close", file)),
                t.Evaluate(_call("int32", "sscanf", letters, _RUNNABLE, target)),
            )

        idle = t.all(
            # Not only some of them: others may be idle.
            t.EQ(load(number, cores), load(number, machine)),
            load(number, runnable) <= load(number, machine),
        )
        leave = seq(
            store(mask, load(mask, word) & ~bit, word),
            allowed("set"),
            store(mask, load(mask, word) | bit, word),
            allowed("set"),
        )
        return seq(
            [alloc(memory) for memory in (mask, text, number)],
            serial(_MASK, lambda i: store(mask, const(0, "int64"), i), "i"),
            serial(_TEXT, lambda i: store(text, const(0, "uint8"), i), "i"),
            store(number, const(0), cores),
            store(number, const(1 << 30), runnable),
            allowed("get"),
            serial(_MASK, count, "i"),
            store(number, _call("int32", "open", self._load_file, const(os.O_CLOEXEC)), file),
            when(load(number, file) >= 0, look(load(number, file))),
            store(number, _call("int32", "get_nprocs"), machine),
            when(idle, leave),
        )
