"""From a recorded graph to a native program: canonicalize, fuse, plan, lower, schedule, build."""

from __future__ import annotations

import importlib

from ..core import collector, tvm_api
from ..ir.graph import Graph
from ..ir.program import Program


def compile_graph(graph: Graph) -> Program:
    """:func:`.api.compile_graph`; the first call imports the stages behind the front."""
    tvm_api.load_ahead()
    with collector.put_off():
        program: Program = importlib.import_module(f"{__name__}.api").compile_graph(graph)
    return program
