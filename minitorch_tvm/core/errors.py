"""Where a mistake was made: the user's source line, kept cheaply and resolved only on failure."""

from __future__ import annotations

import linecache
import sys
import threading
import warnings
from pathlib import Path
from types import CodeType, FrameType

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_PASSED_OVER = (_PACKAGE + "nn/", _PACKAGE + "core/spelling.py")

Provenance = tuple[CodeType, int]


class _Override(threading.local):
    """While backward() runs, every node belongs to the line that called it."""

    place: Provenance | None = None


OVERRIDE = _Override()


class at:
    """What is recorded inside belongs to ``place``.  (No generator, which costs a microsecond.)"""

    def __init__(self, place: Provenance | None) -> None:
        self._place, self._before = place, OVERRIDE.place

    def __enter__(self) -> None:
        OVERRIDE.place = self._place

    def __exit__(self, *_: object) -> None:
        OVERRIDE.place = self._before


def _outwards(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """The first frame outside this package from ``frame`` on, and how many calls out it is."""
    depth = 0
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        depth += 1
    return frame, depth


def user_frame() -> FrameType | None:
    """The innermost frame outside this package."""
    return _outwards(sys._getframe(1))[0]


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the user's line."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def user_place() -> Provenance | None:
    """(code, instruction offset) of the user's current line: two loads, no strings."""
    if OVERRIDE.place is not None:
        return OVERRIDE.place
    frame = user_frame()
    return None if frame is None else (frame.f_code, frame.f_lasti)


def called() -> CodeType | None:
    """The function of this package that the user called.

    Those of ``nn`` are passed over: in PyTorch they are in Python, and what they call counts.  So
    is what gives functions other names of their arguments.
    """
    code: CodeType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        if not frame.f_code.co_filename.startswith(_PASSED_OVER):
            code = frame.f_code
        frame = frame.f_back
    return code


def user_depth() -> int:
    """How many calls out from here the user's frame is."""
    return _outwards(sys._getframe(0))[1]


class Line:
    """The user's line, found where it was the last time: a sixth of the cost of looking for it."""

    __slots__ = ("_depth", "_place")

    def __init__(self) -> None:
        self._place: Provenance | None = None
        self._depth = 0

    def now(self) -> Provenance | None:
        """As :func:`user_place`."""
        place = OVERRIDE.place
        if place is not None:
            return place
        place = self._place
        if place is not None:
            try:
                frame = sys._getframe(self._depth)
                if frame.f_lasti == place[1] and frame.f_code is place[0]:
                    return place
            except ValueError:  # the stack is not that deep
                pass
        place = self._place = user_place()
        self._depth = user_depth() - 1  # it is a call itself
        return place


def line_of(place: Provenance) -> tuple[str, int]:
    """(file name, line number) of a provenance."""
    code, lasti = place
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= lasti < end and number is not None:
            line = number
            break
    return code.co_filename, line


def describe(place: Provenance | None) -> str:
    """``train.py:41 `loss = model(x)` `` or an empty string when the place is unknown."""
    if place is None:
        return ""
    file, line = line_of(place)
    text = linecache.getline(file, line).strip()
    where = f"{Path(file).name}:{line}"
    return f"{where} `{text}`" if text else where


class LinAlgError(RuntimeError):
    """A matrix that has no inverse, or no factors of the kind that was asked for."""
