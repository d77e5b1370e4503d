"""What is another program at every step is run op by op.

Layers that are left out at random, trees, decisions that a loop takes by what it has computed: such
steps have ever other structures, few of which come again, though all are made of the same ops.
Compiling each, even from known kernels, takes Python some ten times as long as running its ops.
Once a line has had several structures, further ones are therefore run op by op, by programs of one
op each.  A structure that comes again and again is compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from .core import config, errors
from .core.errors import Provenance
from .core.events import EVENTS, log
from .core.shape import numel
from .core.strides import offset_of
from .ir.graph import Graph, Value
from .ir.node import SCALAR, Node, leaf
from .ir.op import Kind, Op
from .ops.composite import expansion
from .ops.elementwise import Clone, Detach
from .ops.movement import Reshape, Slice
from .plans import Plan, graph_of, linearise
from .runtime.executor import Executor
from .runtime.piecewise import Pieces, PiecewiseExecutor, Runs, View
from .sites import site_of

_LEAST_RUNS, _MOST_RUNS = 2, 8
"""Of a structure; if they would take longer than compiling it, it is compiled, and if there are
more: it will come again."""
_MOST_STRUCTURES = 4096  # of a line, that are remembered
_MOST_PIECES = 2048
_VIEWS = (Reshape, Detach, Clone, Slice)
"""Ops whose result may be in their input's memory."""

# Seconds, estimated: of a program of known kernels, and each of its recorded values; of compiling
# an op beside others; of running one, and of a byte that is stored and read again for it.
_PROGRAM, _PROGRAM_NODE, _PIECE = 5e-3, 150e-6, 10e-3
_CALL, _BYTE = 5e-6, 1 / 10e9


class _Site:
    """A line that has had several structures."""

    def __init__(self) -> None:
        self.spent = 0.0
        """Seconds that programs took to compile that might have been run op by op."""
        self.shapes: dict[int, int] = {}
        """Of structures the shapes that they had."""
        self.runs: dict[int, Runs] = {}
        """How often those have run that differ in more than shapes."""


_Key = tuple[Hashable, ...]
_SITES: dict[Hashable, _Site] = {}
_PIECES: dict[_Key, Executor] = {}
_Shown = tuple[int, View]
_SHOWN: dict[_Key, _Shown | None] = {}


def runner(
    plan: Plan, place: Provenance, built: Callable[[Graph], Executor]
) -> PiecewiseExecutor | None:
    """What runs a plan of a line that has ever other structures; None: it is to be compiled."""
    site = _SITES.setdefault(site_of(place), _Site())
    nodes = [n for n in plan.entries if n.pending]
    compiling = _PROGRAM + _PROGRAM_NODE * len(nodes)
    runs = _runs(site, plan, nodes, compiling)
    if runs is None:
        return None
    outputs = set(map(id, plan.outputs))
    keys = [_key(n) for n in nodes]
    shown = [None if id(n) in outputs else _view(k, n) for k, n in zip(keys, nodes, strict=True)]
    found = list(zip(keys, nodes, shown, strict=True))
    missing = {k: n for k, n, view in found if view is None and k not in _PIECES}
    if len(missing) * _PIECE > site.spent:
        site.spent += compiling
        return None
    site.spent -= len(missing) * _PIECE
    _PIECES.update(_made(missing, built))
    pieces = Pieces()
    for key, n, view in found:
        if view is None:
            inputs = n.inputs if len(n.inputs) < 2 else dict.fromkeys(n.inputs)
            pieces.add(
                _PIECES[key],
                tuple([x.index for x in inputs if x.op is not SCALAR]),
                tuple([x.index for x in inputs if x.op is SCALAR]),
                n.index,
            )
        else:
            which, part = view
            pieces.add(part, (n.inputs[which].index,), (), n.index)
    _shorten(_PIECES, _MOST_PIECES)
    _shorten(_SHOWN, _MOST_PIECES)
    EVENTS.add("piecewise_programs")
    log("compile", f"{len(nodes)} recorded ops, run one by one at {errors.describe(place)}")
    return PiecewiseExecutor(
        pieces,
        [n.index for n in plan.buffers],
        [n.index for n in plan.entries if n.op is SCALAR],
        [n.index for n in plan.outputs],
        runs,
    )


def _runs(site: _Site, plan: Plan, nodes: Sequence[Node], compiling: float) -> Runs | None:
    """How often a plan has run op by op, and may; None: it may not.

    ``compiling`` is how long that takes.  Structures are told by hashes: were two equal, only what
    runs them would be another.
    """
    structure = hash(tuple([(n.op.name, n.dtype, len(n.shape), *_numbers(n)) for n in nodes]))
    shapes = hash(tuple([n.spec_id for n in plan.entries]))
    if site.shapes.setdefault(structure, shapes) != shapes:
        return None  # see :mod:`.varying`
    digest = plan.key.digest()
    runs = site.runs.get(digest)
    if runs is None:
        extra = len(nodes) * _CALL + sum([numel(n.shape) * n.dtype.itemsize for n in nodes]) * _BYTE
        runs = site.runs[digest] = Runs(min(compiling / extra, _MOST_RUNS))
        _shorten(site.shapes, _MOST_STRUCTURES)
        _shorten(site.runs, _MOST_STRUCTURES)
    return runs if runs.most >= _LEAST_RUNS else None


def _shorten(known: dict[Any, Any], most: int) -> None:
    for key in [*itertools.islice(known, max(0, len(known) - most))]:
        del known[key]


def _numbers(node: Node) -> list[int]:
    return [x.index for x in node.inputs]


def _view(key: _Key, node: Node) -> _Shown | None:
    """Which part of which input's memory the result may be; None: it has memory of its own."""
    if key not in _SHOWN:
        _SHOWN[key] = _looked_at(node)
    return _SHOWN[key]


def _looked_at(node: Node) -> _Shown | None:
    # Back from the result, through what a composite stands for.
    inputs = node.inputs
    count, shapes = len(inputs), [x.shape for x in inputs]
    steps: Sequence[tuple[Op, tuple[int, ...]]] = [(node.op, tuple(range(count)))]
    place = count
    if node.op.kind is Kind.COMPOSITE:
        ops, chosen, made, _, place = expansion(node, _numbers(node))
        steps = list(zip(ops, chosen, strict=True))
        shapes += made
    else:
        shapes.append(node.shape)
    offset = 0
    while place >= count:
        op, places = steps[place - count]
        if type(op) not in _VIEWS:  # what is derived of one reads more
            return None
        if isinstance(op, Slice):
            before = offset_of(shapes[places[0]], op.starts, shapes[place], op.steps)
            if before is None:
                return None
            offset += before
        (place,) = places
    if inputs[place].op is SCALAR:
        return None
    itemsize = node.dtype.itemsize
    return place, View(offset * itemsize, numel(node.shape) * itemsize)


def _key(node: Node) -> _Key:
    """What the program of an op depends on."""
    inputs = node.inputs
    kinds = [
        4 * x.spec_id + 2 * (x.op is SCALAR) + (x.requires_grad and not x.pending) for x in inputs
    ]
    if len(inputs) > 1 and len(set(inputs)) < len(inputs):
        kinds += [inputs.index(x) for x in inputs]
    return (config.CONFIG.program_key, node.op.uid, *kinds)


def _made(missing: dict[_Key, Node], built: Callable[[Graph], Executor]) -> dict[_Key, Executor]:
    """The programs of ops."""
    graphs = {k: _graph(n) for k, n in missing.items()}
    # Their kernels are compiled at the same time, and known as long as that program is.
    together = built(_together(graphs.values())) if len(graphs) > 1 else None
    found: dict[_Key, Executor] = {k: built(graph) for k, graph in graphs.items()}
    del together
    return found


def _graph(node: Node) -> Graph:
    """That of one op."""
    stand_ins: dict[Node, Node] = {}
    for x in node.inputs:
        if x not in stand_ins:
            stand_in = stand_ins[x] = leaf(None, x.shape, x.dtype, x.spec_id)
            if x.op is SCALAR:
                stand_in.op = SCALAR
            stand_in.requires_grad = x.requires_grad and not x.pending
    alone = Node(
        node.op,
        tuple([stand_ins[x] for x in node.inputs]),
        node.shape,
        node.dtype,
        False,
        node.spec_id,
    )
    alone.place = node.place
    return graph_of(linearise([alone], {id(alone): alone}))


def _together(graphs: Iterable[Graph]) -> Graph:
    values: list[Value] = []
    outputs: list[int] = []
    for graph in graphs:
        first = len(values)
        values += [
            Value(v.op, tuple([x + first for x in v.inputs]), v.shape, v.dtype, v.place)
            for v in graph.values
        ]
        outputs += [o + first for o in graph.outputs]
    return Graph(tuple(values), tuple(outputs))


def forget() -> None:
    """Start again, as if nothing had been compiled."""
    _SITES.clear()
    _PIECES.clear()
    _SHOWN.clear()
