"""Graphs as text that is equal in every process, and tells whatever decides their code."""

from __future__ import annotations

import functools

from ..core.dtype import DType
from .graph import Graph
from .op import Op

_PACKAGE = __name__.partition(".")[0]


class _Unknown(Exception):
    """An attribute or op whose meaning cannot be written as text."""


def text_of(value: object) -> str:
    """An attribute so that different values differ: True from 1, -0.0 from 0.0, 1 from 1.0.

    Raises _Unknown for what is neither a number nor a name, nor made of such.
    """
    kind = type(value)
    if kind in (int, bool, float, str) or value is None:
        return repr(value)
    if isinstance(value, DType):
        return value.name
    if kind is tuple:
        return f"({','.join(text_of(v) for v in value)},)"  # type: ignore[attr-defined]
    raise _Unknown


@functools.lru_cache(maxsize=4096)
def _op_text(op: Op) -> str:
    """Class and attributes.  Raises _Unknown for ops whose code is not among our sources."""
    kind = type(op)
    if kind.__module__.partition(".")[0] != _PACKAGE:
        raise _Unknown
    attributes = ",".join(f"{name}={text_of(v)}" for name, v in op.attributes().items())
    return f"{kind.__module__}.{kind.__qualname__}({attributes})"


def graph_text(graph: Graph) -> str | None:
    """All that a graph says about its program, equal in every process; None if it has no text.

    Unlike ``str(graph)`` it tells attributes of equal text but different type apart.
    """
    try:
        lines = [f"{_op_text(v.op)} {v.inputs} {v.shape} {v.dtype.name}" for v in graph.values]
    except _Unknown:
        return None
    return "\n".join([*lines, *map(repr, (graph.outputs, graph.donated, graph.unread))])
