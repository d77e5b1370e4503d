"""Graphs for tests: from text, and from what a program recorded."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np

from minitorch_tvm import lazy
from minitorch_tvm.core import config
from minitorch_tvm.core import dtype as dt
from minitorch_tvm.ir.graph import Graph, Value, evaluate, verify
from minitorch_tvm.ir.node import BUFFER, SCALAR
from minitorch_tvm.ir.op import Op, intern
from minitorch_tvm.ops import conv, elementwise, matmul, movement, pool, random, reduction

_LINE = re.compile(
    r"%(\d+) = (\w+)(?:\((?P<attributes>[^%]*?)\))?\((?P<inputs>[%\d, ]*)\) : "
    r"(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\](?: -> out(?P<out>\d+))?$"
)
_LEAF = re.compile(
    r"%(\d+) = (buffer|scalar)(?:\(label=\w+\))?\(\) : (?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]"
    r"(?: -> out(?P<out>\d+))?$"
)
_MODULES = (elementwise, movement, reduction, matmul, pool, conv, random)


def _op(name: str, attributes: str) -> Op:
    cls = next(getattr(m, name) for m in _MODULES if hasattr(m, name))
    names = {
        "mt": SimpleNamespace(**{d.name: d for d in dt.ALL}),
        "inf": float("inf"),
        "nan": float("nan"),
    }
    return intern(cls(**eval(f"dict({attributes})", names)))


def parse(text: str) -> Graph:
    """The graph whose text form is ``text``."""
    values: list[Value] = []
    outputs: dict[int, int] = {}
    donated = []
    for line in filter(None, map(str.strip, text.splitlines())):
        overwrite = re.fullmatch(r"out(\d+) overwrites %(\d+)", line)
        if overwrite:
            donated.append((int(overwrite[1]), int(overwrite[2])))
            continue
        leaf = _LEAF.fullmatch(line)
        found = leaf or _LINE.fullmatch(line)
        assert found, line
        shape = tuple(int(n) for n in found["shape"].split(",") if n)
        if leaf:
            op: Op = BUFFER if leaf[2] == "buffer" else SCALAR
            inputs: tuple[int, ...] = ()
        else:
            op = _op(found[2], found["attributes"] or "")
            inputs = tuple(int(x) for x in re.findall(r"%(\d+)", found["inputs"]))
        assert int(found[1]) == len(values), line
        if found["out"]:
            outputs[int(found["out"])] = len(values)
        values.append(Value(op, inputs, shape, dt.by_name(found["dtype"])))
    return Graph(tuple(values), tuple(outputs[i] for i in sorted(outputs)), tuple(donated))


def checked(text: str) -> Graph:
    """:func:`parse` and verify."""
    graph = parse(text)
    verify(graph)
    return graph


def recorded(run: Any) -> list[Graph]:
    """The graphs that ``run()`` evaluates, on the reference executor."""
    lazy.clear_cache()
    with config.override(target="numpy"):
        run()
    return [e.program.graph for e in lazy.executors()]


def results(graph: Graph, seed: int = 0) -> list[Any]:
    """Outputs for random inputs, by numpy."""
    rng = np.random.default_rng(seed)
    leaves = []
    for i in graph.leaves():
        v = graph.values[i]
        x = np.asarray(rng.standard_normal(v.shape) * 3)
        leaves.append(
            np.abs(x * 100).astype(v.dtype.numpy)
            if not v.dtype.is_floating_point
            else x.astype(v.dtype.numpy)
        )
    with np.errstate(all="ignore"):
        return evaluate(graph, leaves, lambda op, xs: op.reference(np, *xs))
