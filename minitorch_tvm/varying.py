"""What varies in size is not compiled for every size.

Positives among candidates, atoms of molecules, tokens that are sent to one of several layers: how
many there are is another number at every step, and in what is computed from them a step is another
program.  Once a line has had some programs of one structure, sizes between those that it had are
run by a program that has room for them (:mod:`.compiler.padding`).  So are sizes that grow by an
element each time, with room for more to come.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .compiler.lower import flops_of
from .compiler.padding import padded
from .compiler.room import Padded, Varying
from .core import config, errors
from .core.errors import Provenance
from .core.events import EVENTS, log
from .core.shape import numel
from .growing import compiling_seconds
from .ir.graph import Graph
from .ir.op import Kind
from .plans import Key
from .runtime.executor import Executor
from .runtime.padded import PaddedExecutor
from .sites import History

_LEAST_RUNS = 4
"""Of a graph by one with room; where they would take longer than compiling it, it is compiled."""
_MOST = 16
"""Graphs with room that are kept for a structure."""
_REFUSALS = 4
"""After so many in a row a structure is compiled as it is; sizes may be equal by chance."""

# Seconds of an element that is read or written, and of a multiply-add.
_ELEMENT, _MULTIPLY_ADD = 0.1e-9, 1 / 50e9


Compiled = Callable[[Graph, Key], Executor]


def runner(
    graph: Graph, history: History, place: Provenance | None, compiled: Compiled
) -> PaddedExecutor | None:
    """What runs a graph whose sizes are among those of a line; None if it is to be compiled."""
    roomy = with_room(graph, history)
    if roomy is None:
        return None
    executor = compiled(roomy.padded.graph, roomy.key)
    EVENTS.add("padded_programs")
    where = errors.describe(place)
    log("compile", f"{len(graph.values)} nodes, run with room for other sizes at {where}")
    padded = roomy.padded
    told, given, results = padded.numbers(graph), padded.inputs(graph), padded.results(graph)
    return PaddedExecutor(padded.graph, told, given, results, executor, roomy.runs)


class Roomy:
    """A graph with room for several sizes, and what is known of it."""

    def __init__(self, padded: Padded, settings: tuple[object, ...]) -> None:
        self.padded, self.settings = padded, settings
        self.key = Key.of(settings, "with room", padded.graph)
        # About half of what is computed is wasted.
        extra = _seconds(padded.graph) / 2
        self.runs = int(compiling_seconds(padded.graph) / max(extra, 1e-6))
        """How often a graph may be run by this one before it is worth a program of its own.

        Estimated, not measured: what is computed how must not depend on time."""


def with_room(graph: Graph, history: History) -> Roomy | None:
    """One with room for sizes like those of a line's programs, that can compute ``graph``.

    None if that is to be compiled as it is.
    """
    if not history.sizes:  # of a new structure it does not show yet which vary
        return None
    settings = config.CONFIG.program_key
    values = graph.values
    sizes = {values[i].shape[k] for i, k in history.sizes if i in history.sources}
    among = history.between and not history.grows
    rooms = partial(room, fine=len(sizes) < 2) if among else more_room
    varying = Varying(history.sizes, history.values, history.starts, rooms)
    known: list[Roomy] = [r for r in history.roomy if r.settings == settings]
    for loose in (False, True):
        for found in known:
            if found.padded.serves(graph, varying, loose=loose):
                history.refused = 0
                return found if found.runs >= _LEAST_RUNS else None
    # Of a size of one it does not show whether it is one that varies, or one that broadcasts.
    if history.refused >= _REFUSALS or any(values[i].shape[k] < 2 for i, k in history.sizes):
        return None
    made = padded(graph, varying)
    if made is None:
        history.refused += 1
        return None
    found, history.refused = Roomy(made, settings), 0
    history.roomy = [*history.roomy[1 - _MOST :], found]
    return found if found.runs >= _LEAST_RUNS else None


_LEAST = 16
"""Room; of less there is no more to gain than it costs to compile for it."""


def room(size: int, most: int, *, fine: bool) -> int:
    """Of a few numbers, the largest not much above ``most``, the least that ``size`` fits in.

    >>> [room(n, 90, fine=True) for n in (90, 73, 72, 40, 7, 1)]
    [96, 96, 72, 48, 24, 24]
    >>> [room(n, 90, fine=False) for n in (90, 72, 48, 40, 7, 1)]
    [96, 96, 48, 48, 24, 24]
    """
    step = 1 << max(0, most.bit_length() - 3)
    found = -(-most // step) * step
    while found >= 2 * _LEAST:
        half = -(-found // 2)
        if size > half:
            middle = -(-3 * found // 4)
            return middle if fine and size <= middle else found
        found = half
    return found


def more_room(size: int, most: int) -> int:
    """For a size that is the largest one so far, and grows.

    >>> [more_room(n, n) for n in (3, 17, 64, 65, 300)]
    [16, 64, 64, 128, 512]
    """
    del most
    found = _LEAST
    while found < size:
        found *= 4 if found < 64 else 2  # small ones cost little
    return found


def _seconds(graph: Graph) -> float:
    elements = terms = 0
    for v in graph.values:
        if v.is_leaf:
            continue
        elements += numel(v.shape) + sum(numel(graph.values[x].shape) for x in v.inputs)
        if v.op.kind is Kind.COMPLEX:
            terms += flops_of(graph, v) // 2
    return elements * _ELEMENT + terms * _MULTIPLY_ADD
