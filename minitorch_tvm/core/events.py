"""Counters of what the system did: compiles, native calls, evaluations, bytes allocated.

Tests assert on them, ``mt.debug`` prints them, and any fallback must show up here.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from dataclasses import field

from . import config
from .record import record


@record(frozen=False)
class Events:
    """Process-wide counters, safe to bump from any thread."""

    # A Counter would do, but assigning to an entry of one takes four times as long.
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    together: dict[tuple[str, ...], int] = field(default_factory=lambda: defaultdict(int))
    """Counts of what counts as several things at once: one entry is changed, not many."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, amount: int = 1) -> None:
        """Add ``amount`` to the counter ``name``."""
        with self._lock:
            self.counts[name] += amount

    def count(self, names: tuple[str, ...]) -> None:
        """Add one to each of several counters."""
        with self._lock:
            self.together[names] += 1

    def get(self, name: str) -> int:
        """Current value of ``name`` (0 if never counted)."""
        return self.snapshot().get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """A copy of all counters."""
        with self._lock:
            counts = dict(self.counts)
            for names, amount in self.together.items():
                for name in names:
                    counts[name] = counts.get(name, 0) + amount
            return counts


EVENTS = Events()


def log(topic: str, text: str) -> None:
    """Print one line to standard error when ``MTVM_LOG`` lists ``topic``."""
    if topic in config.CONFIG.log:
        print(f"minitorch_tvm[{topic}] {text}", file=sys.stderr, flush=True)
