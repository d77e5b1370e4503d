"""What grows by an element each time is not compiled each time.

A sequence that is read again with another token has a new shape at every step, so every step is a
new program, which is not needed again soon.  Most are run by programs with room for longer ones
(:mod:`.varying`).  This is for the others.  Compiling one takes hundreds of milliseconds, numpy
often less than ten.  So once a line's programs have grown some times, further ones are run op by op
by their numpy references, and compiled when those have taken as long as compiling takes.  Both
times are estimates: what is computed how must not depend on measured time.
"""

from __future__ import annotations

import math
from typing import ClassVar

from .compiler.front import reference_program
from .core import config, errors
from .core.errors import Provenance
from .core.events import EVENTS, log
from .core.shape import numel
from .ir.graph import Graph, Value
from .ir.op import Kind
from .ops.elementwise import Erf, NormalCdf
from .ops.gather import ScatterAdd
from .ops.matmul import Matmul
from .ops.movement import Expand, Permute, Slice
from .ops.picking import LastPosition
from .ops.pool import PoolBase
from .ops.random import RandomBits
from .ops.scan import ArgSort, Leader, Scan
from .runtime.executor import ReferenceExecutor
from .sites import History

_LEAST_RUNS = 4
"""Runs by numpy that must take less than compiling."""

# Seconds: of a program and each of its nodes; of numpy's call for a node, of an element that it
# reads or writes, of a multiply-add, and of an element or a step that more is done for.
_COMPILE, _COMPILE_NODE = 0.02, 0.5e-3
_CALL, _ELEMENT, _MULTIPLY_ADD, _LONG, _STEP = 8e-6, 1.5e-9, 1 / 15e9, 80e-9, 4e-6

_VIEWS = (Expand, Permute, Slice)  # a reshape may copy
_WARNED: set[str] = set()


class Interim(ReferenceExecutor):
    """Runs a program by numpy as long as compiling it would take longer."""

    setting: ClassVar[str] = "growing"

    def __init__(self, graph: Graph, runs: int, provisional: bool) -> None:
        super().__init__(reference_program(graph))
        self._runs = runs
        self.provisional = provisional
        """Whether it is asked anew what suits the graph when it comes again."""

    @property
    def over(self) -> bool:
        """Whether it has run so often that it had better been compiled."""
        return self.calls >= self._runs


def interim(graph: Graph, history: History, place: Provenance | None) -> Interim | None:
    """What runs a program if those of its line grow; None if it is to be compiled."""
    settings = config.CONFIG
    if not history.grows or not settings.growing:
        return None
    running = sum(_seconds(graph, v) for v in graph.values)
    # Results are copied, to what is theirs.
    running += sum(numel(graph.values[i].shape) for i in graph.outputs) * 2 * _ELEMENT
    runs = compiling_seconds(graph) / max(running, _CALL)
    if runs < _LEAST_RUNS:
        return None
    EVENTS.add("growing_programs")
    where = errors.describe(place)
    log("compile", f"{len(graph.values)} nodes, run by numpy at first, as they grow at {where}")
    if where and where not in _WARNED:
        _WARNED.add(where)
        errors.warn(
            f"{where} computes with ever longer tensors, which makes a new program each time.  New "
            "ones are run op by op by numpy from here on, and compiled if they come again often; "
            "one length, padded, would be faster (MTVM_GROWING=0 compiles all)"
        )
    # Of a new structure it shows with the next program which sizes vary, and that it has room.
    provisional = settings.varying and not history.sizes
    return Interim(graph, 1 if provisional else int(runs), provisional)


def compiling_seconds(graph: Graph) -> float:
    """About how long it takes to compile a graph for which TVM is loaded."""
    return _COMPILE + _COMPILE_NODE * len(graph.values)


def forget() -> None:
    """Start again, as if nobody had been warned."""
    _WARNED.clear()


def _seconds(graph: Graph, v: Value) -> float:
    """About how long numpy takes for a node: infinite where that is not known to be little."""
    op = v.op
    if v.is_leaf:
        return 0.0
    if isinstance(op, _VIEWS):
        return _CALL
    written = numel(v.shape)
    elements = written + sum(numel(graph.values[x].shape) for x in v.inputs)
    found = _CALL + elements * _ELEMENT
    if isinstance(op, Matmul):
        terms = op.sizes(*(graph.values[x].shape for x in v.inputs))[3]
        each = _MULTIPLY_ADD if v.dtype.is_floating_point else _ELEMENT
        return found + written * terms * each
    if isinstance(op, PoolBase):
        return found * op.kernel[0] * op.kernel[1]
    if isinstance(op, (Erf, NormalCdf, RandomBits)):
        return found + written * _LONG
    if isinstance(op, (ArgSort, ScatterAdd, LastPosition)):
        return found + elements * _LONG
    if isinstance(op, (Scan, Leader)):
        return found + v.shape[op.dim] * _STEP
    return math.inf if op.kind in (Kind.COMPLEX, Kind.OPAQUE) else found
