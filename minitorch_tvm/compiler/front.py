"""The part of the compiler that every process needs: what identifies a program.

A process that finds its programs on disk goes no further, and never imports the rest.
"""

from __future__ import annotations

import sys

from ..core import collector, config
from ..ir import graph as ir
from ..ir.graph import Graph
from ..ir.program import Program
from .canonicalize import canonicalize


def show(level: int, title: str, value: object) -> None:
    """Print ``value`` to standard error if ``MTVM_DEBUG`` is at least ``level``."""
    if config.CONFIG.debug >= level:
        print(f"--- {title}\n{value}", file=sys.stderr)


def reference_program(graph: Graph) -> Program:
    """A program without native code, for the reference executor."""
    return Program(
        graph=graph,
        code=(),
        entry="",
        scalar_format="",
        scalars=0,
        inputs=0,
        outputs=(),
        arena_bytes=0,
        naive_bytes=0,
        lower_bound=0,
        kernels=(),
        placements=(),
        steps=b"",
        steps_nbytes=0,
        stage_functions=0,
        seconds={},
    )


def simplified(recorded: Graph) -> Graph:
    """The first stage, apart from the others: its result is what identifies a program."""
    show(3, "recorded", recorded)
    with collector.put_off():
        graph = canonicalize(recorded)
    show(3, "canonical", graph)
    if config.CONFIG.check:
        ir.verify(recorded)
        ir.verify(graph)
    return graph
