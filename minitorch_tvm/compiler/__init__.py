"""From a recorded graph to a native program: canonicalize, fuse, plan, lower, schedule, build."""

from __future__ import annotations

import importlib
import sys

from ..core import collector, config, tvm_api
from ..ir.graph import Graph
from ..ir.program import Library, Program, host_name


def compile_graph(graph: Graph, library: Library | None = None) -> Program:
    """:func:`.api.compile_graph`; the first call imports the stages behind the front."""
    if library is None or not library.has(host_name(config.CONFIG.isa)):
        prepare()  # else TVM may have nothing to do
    name = f"{__name__}.api"
    with collector.put_off(stays=name not in sys.modules):
        program: Program = importlib.import_module(name).compile_graph(graph, library)
    return program


def prepare() -> None:
    """Begin to load what compiling needs, while it is found out what is to be compiled."""
    tvm_api.load_ahead()


def forget() -> None:
    """Let later programs share nothing with earlier ones, whoever still holds these."""
    loaded = sys.modules.get(f"{__name__}.api")
    if loaded is not None:
        loaded.forget()
