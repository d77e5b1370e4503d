"""What schedules chose for kernels that are alike, as earlier processes remember it.

A choice that was made for another size is kept where that costs little, as its code is there
already.  Whoever compiles a program says where to look for choices of earlier processes, and takes
with the program those that it went by.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Rows = list[list[int]]
"""Numbers that a choice is made of, for each."""


class Recall:
    """The choices of one program, by what they are for, and where to find others."""

    def __init__(self, find: Callable[[str], Rows]) -> None:
        self.find = find
        self.used: dict[str, Callable[[], Rows]] = {}


_PRESENT: Recall | None = None


@contextlib.contextmanager
def recalling(find: Callable[[str], Rows]) -> Iterator[Recall]:
    """While this is held, schedules are told what ``find`` gives.  One program is compiled at a
    time."""
    global _PRESENT
    _PRESENT = Recall(find)
    try:
        yield _PRESENT
    finally:
        _PRESENT = None


def earlier(key: object) -> Rows:
    """Choices of an earlier process for ``key``, whose text is equal in all of them."""
    return [] if _PRESENT is None else _PRESENT.find(repr(key))


def use(key: object, rows: Callable[[], Rows]) -> None:
    """Remember that the program goes by the choices for ``key``."""
    if _PRESENT is not None:
        _PRESENT.used[repr(key)] = rows
