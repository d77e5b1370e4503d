"""Threads of a launch that the system has put on one core, and how they get apart again.

A thread that has slept is woken, now and then, on the core of the one that wakes it, though another
is idle.  There it stays for some ten milliseconds, until the system balances its load, and short
programs take up to four times as long: the two take turns, and each waits for the other while that
cannot run.  Whoever finds itself on the core of the calling thread therefore leaves it, by
forbidding itself that core for a moment.  Nothing is bound for longer: other programs are left all
of the cores, and the system all of its choices.

It does so only if no more threads want to run than the machine has cores (:mod:`.crowd`).  Beside a
program that keeps the other cores busy, the two on one core are better off than the one that
leaves: every launch would wait for the other program's share of time to end.
"""

from __future__ import annotations

from ..core.tvm_api import tvm
from .crowd import MASK, Words, call, clear
from .loops import Expr, Memory, Stmt, alloc, const, load, local_buffer, seq, store, when

WORDS = ("thread", "core", "launches", "tried", "patience")
"""What the threads of a program tell each other, in 64-bit words; zeros at first."""

_SOON = 256  # launches after which it is as if nothing had been tried
_MOST = 1 << 16  # launches without another try


class Apart:
    """Statements of the entry; ``words`` holds :data:`WORDS` from ``first`` on."""

    def __init__(self, words: Memory, first: int, room: Expr) -> None:
        """``room``: whether there was a core for every thread when the entry looked."""
        self._words, self._room = Words(WORDS, words, first), room

    def announce(self) -> Stmt:
        """Before the launch: where the calling thread is."""
        return seq(
            self._words.set(
                thread=call("int64", "pthread_self"),
                core=call("int32", "sched_getcpu").astype("int64"),
                launches=self._words["launches"] + 1,
            )
        )

    def leave(self) -> Stmt:
        """By every thread of the launch, first of all: to another core if need be."""
        t, words = tvm().tirx, self._words
        since = words["launches"] - words["tried"]
        here = t.all(
            t.EQ(call("int32", "sched_getcpu").astype("int64"), words["core"]),
            t.NE(call("int64", "pthread_self"), words["thread"]),
            self._room,
            since >= words["patience"],
        )
        doubled = t.min(words["patience"] * 2 + 1, const(_MOST, "int64"))
        again = since < words["patience"] + const(_SOON, "int64")
        attempt = seq(
            words.set(
                patience=t.Select(again, doubled, const(0, "int64")), tried=words["launches"]
            ),
            self._move(),
        )
        return when(here, attempt)

    def _move(self) -> Stmt:
        t = tvm().tirx
        mask = local_buffer((MASK,), "int64", "mask")
        size, start = const(8 * MASK, "uint64"), t.address_of(load(mask, 0))
        words = self._words
        word = (words["core"] >> 6).astype("int32")
        bit = const(1, "int64") << (words["core"] & 63)

        def allowed(action: str) -> Stmt:
            return t.Evaluate(call("int32", f"sched_{action}affinity", const(0), size, start))

        return seq(
            alloc(mask),
            clear(start, 8 * MASK),
            allowed("get"),
            store(mask, load(mask, word) & ~bit, word),
            allowed("set"),
            store(mask, load(mask, word) | bit, word),
            allowed("set"),
        )
