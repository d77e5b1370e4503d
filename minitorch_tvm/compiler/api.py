"""The pipeline of the compiler, in order."""

from __future__ import annotations

from ..ir.graph import Graph
from ..ir.program import Program


def reference_program(graph: Graph) -> Program:
    """A program without native code, for the reference executor."""
    return Program(
        graph=graph,
        code=b"",
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
        stage_functions=0,
        seconds={},
    )


def compile_graph(graph: Graph) -> Program:
    """Compile a graph to native code."""
    raise RuntimeError("no native compiler yet")
