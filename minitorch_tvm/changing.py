"""What is another program at every step is run op by op.

Layers that are left out at random, trees, decisions that a loop takes by what it has computed: such
steps have ever other structures, few of which come again, though all are made of the same ops.
Compiling each, even from known kernels, takes Python some ten times as long as running its ops.
Once a line has had several structures, further ones are therefore run op by op, by programs of one
op each, or of the few that update something together.  A structure that comes again and again is
compiled.
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
from .ops.movement import Cat, Reshape, Slice
from .plans import Plan, graph_of, linearise
from .runtime.executor import Executor
from .runtime.piecewise import Join, Pieces, PiecewiseExecutor, Runs, View
from .sites import recorded_at, site_of

_LEAST_RUNS, _MOST_RUNS = 2, 8
"""Of a structure; if they would take longer than compiling it, it is compiled, and if there are
more: it will come again."""
_MOST_SIZES = 3
"""With so many a structure has been met: it will be with others, for which there may be room."""
_MOST_STRUCTURES = 4096  # of a line, that are remembered
_MOST_PIECES = 2048
_VIEWS = (Reshape, Detach, Clone, Slice)
"""Ops whose result may be in their input's memory."""
_MOST_JOINED = 1 << 18
"""Bytes of a result that is copied together on one thread."""

# Seconds, estimated: of a program of known kernels, and each of its recorded values; of compiling
# an op beside others; of running one, and of a byte that is stored and read again for it.
_PROGRAM, _PROGRAM_NODE, _PIECE = 5e-3, 150e-6, 10e-3
_CALL, _BYTE = 5e-6, 1 / 10e9


class _Site:
    """A line that has had several structures."""

    def __init__(self, recorded: Iterable[int]) -> None:
        self.spent = sum([_PROGRAM + _PROGRAM_NODE * count for count in recorded])
        """Seconds that programs took to compile that might have been run op by op: those that the
        line had before, of so many values, too."""
        self.shapes: dict[int, set[int]] = {}
        """Of structures the shapes that they have had."""
        self.runs: dict[int, Runs] = {}
        """How often those have run that differ in more than shapes."""


_Key = tuple[Hashable, ...]
_SITES: dict[Hashable, _Site] = {}
_PIECES: dict[_Key, Executor] = {}
_Copied = tuple[tuple[int, ...], View | Join]
"""Of which inputs a result is made without a program, and how."""
_COPIED: dict[_Key, _Copied | None] = {}


def runner(
    plan: Plan, place: Provenance, built: Callable[[Graph], Executor]
) -> PiecewiseExecutor | None:
    """What runs a plan of a line that has ever other structures; None: it is to be compiled."""
    line = site_of(place)
    site = _SITES.get(line) or _SITES.setdefault(line, _Site(recorded_at(line)))
    nodes = [n for n in plan.entries if n.pending]
    compiling = _PROGRAM + _PROGRAM_NODE * len(nodes)
    runs = _runs(site, plan, nodes, compiling)
    if runs is None:
        return None
    outputs = set(map(id, plan.outputs))
    groups = _groups(nodes, outputs)
    keys = [_key(g[0]) if len(g) == 1 else _joint_key(g) for g in groups]
    copied = [
        None if len(group) > 1 else _copied(key, group[0], id(group[0]) in outputs)
        for key, group in zip(keys, groups, strict=True)
    ]
    found = list(zip(keys, groups, copied, strict=True))
    missing = {k: group for k, group, copy in found if copy is None and k not in _PIECES}
    if len(missing) * _PIECE > site.spent:
        site.spent += compiling
        return None
    site.spent -= len(missing) * _PIECE
    _PIECES.update(_made(missing, built))
    pieces = Pieces()
    for key, group, copy in found:
        n = group[0]
        if copy is None:
            inputs = _inputs(group)
            pieces.add(
                _PIECES[key],
                tuple([x.index for x in inputs if x.op is not SCALAR]),
                tuple([x.index for x in inputs if x.op is SCALAR]),
                tuple([n.index for n in group]),
            )
        else:
            which, made_by = copy
            pieces.add(made_by, tuple([n.inputs[i].index for i in which]), (), (n.index,))
    _shorten(_PIECES, _MOST_PIECES)
    _shorten(_COPIED, _MOST_PIECES)
    EVENTS.add("piecewise_programs")
    log("compile", f"{len(nodes)} recorded ops, run one by one at {errors.describe(place)}")
    return PiecewiseExecutor(
        pieces,
        [n.index for n in plan.buffers],
        [n.index for n in plan.entries if n.op is SCALAR],
        [n.index for n in plan.outputs],
        [plan.buffers[d].index if d >= 0 else -1 for d in plan.donors],
        runs,
    )


def _runs(site: _Site, plan: Plan, nodes: Sequence[Node], compiling: float) -> Runs | None:
    """How often a plan has run op by op, and may; None: it may not.

    ``compiling`` is how long that takes.  Structures are told by hashes: were two equal, only what
    runs them would be another.
    """
    structure = hash(tuple([(n.op.name, n.dtype, len(n.shape), *_numbers(n)) for n in nodes]))
    shapes = hash(tuple([n.spec_id for n in plan.entries]))
    met = site.shapes.setdefault(structure, set())
    if shapes not in met:
        if len(met) >= _MOST_SIZES:
            return None  # see :mod:`.varying`
        met.add(shapes)
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


def _copied(key: _Key, node: Node, output: bool) -> _Copied | None:
    """How the result may be made without a program; an output has memory of its own."""
    if key not in _COPIED:
        _COPIED[key] = _looked_at(node)
    found = _COPIED[key]
    return None if output and found is not None and isinstance(found[1], View) else found


def _looked_at(node: Node) -> _Copied | None:
    """Back from the result, through what a composite stands for, to parts of inputs."""
    inputs = node.inputs
    count, shapes = len(inputs), [x.shape for x in inputs]
    steps: Sequence[tuple[Op, tuple[int, ...]]] = [(node.op, tuple(range(count)))]
    result = count
    if node.op.kind is Kind.COMPOSITE:
        ops, chosen, made, _, result = expansion(node, _numbers(node))
        steps = list(zip(ops, chosen, strict=True))
        shapes += made
    else:
        shapes.append(node.shape)

    def source(place: int) -> tuple[int, int] | None:
        """Of which input a value is a part, and from which element on."""
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
        return None if inputs[place].op is SCALAR else (place, offset)

    def part(place: int, offset: int) -> View:
        itemsize = node.dtype.itemsize
        return View(offset * itemsize, numel(shapes[place]) * itemsize)

    op, joined = steps[result - count] if result >= count else (None, ())
    if isinstance(op, Cat):
        if numel(node.shape[: op.dim]) != 1 or part(result, 0).nbytes > _MOST_JOINED:
            return None
        sources = [source(place) for place in joined]
        known = [found for found in sources if found is not None]
        if len(known) < len(joined):
            return None
        parts = [part(place, at) for place, (_, at) in zip(joined, known, strict=True)]
        return tuple([which for which, _ in known]), Join(parts)
    found = source(result)
    return None if found is None else ((found[0],), part(result, found[1]))


_Group = tuple[Node, ...]


def _groups(nodes: Sequence[Node], outputs: set[int]) -> list[_Group]:
    """Ops one by one, but those together that update something by what is updated just before.

    Such as the three of Adam.  Which others had better be together takes as long to find out as it
    saves.
    """
    found: list[_Group] = []
    alone = 0  # updates at the end of ``found``
    for n in nodes:
        if n.donor is None or id(n) not in outputs:
            found.append((n,))
            alone = 0
            continue
        group: _Group = (n,)
        read = n.inputs
        while alone and found[-1][0] in read:
            (before,) = found.pop()
            group = (before, *group)
            read += before.inputs
            alone -= 1
        alone = alone + 1 if len(group) == 1 else 0
        found.append(group)
    return found


def _inputs(group: _Group) -> Iterable[Node]:
    """What comes from outside, each once, in the order in which it is read first."""
    if len(group) == 1:
        inputs = group[0].inputs
        return inputs if len(inputs) < 2 else dict.fromkeys(inputs)
    found: dict[Node, None] = {}
    for n in group:
        for x in n.inputs:
            if x not in group:
                found[x] = None
    return found


def _donor(node: Node) -> Node | None:
    """Which input's memory an update of something may take; none, where others compute that."""
    donor = node.donor
    return donor if donor is not None and not donor.pending and donor in node.inputs else None


def _key(node: Node) -> _Key:
    """What the program of an op depends on."""
    inputs = node.inputs
    kinds = [
        4 * x.spec_id + 2 * (x.op is SCALAR) + (x.requires_grad and not x.pending) for x in inputs
    ]
    if len(inputs) > 1 and len(set(inputs)) < len(inputs):
        kinds += [-1 - inputs.index(x) for x in inputs]  # no kinds of further inputs
    if node.donor is not None:
        donor = _donor(node)
        kinds.append(-1 if donor is None else -2 - inputs.index(donor))
    return (config.CONFIG.program_key, node.op.uid, *kinds)


def _joint_key(group: _Group) -> _Key:
    """What the program of several ops depends on."""
    number: dict[Node, int] = {}
    key: list[Hashable] = [config.CONFIG.program_key]
    for n in group:
        key.append(n.op.uid)
        for x in n.inputs:
            if x not in number:
                number[x] = len(number)
                past = x.requires_grad and not x.pending
                key.append(-4 * x.spec_id - 2 * (x.op is SCALAR) - past - 1)
            key.append(number[x])
        donor = _donor(n)
        key.append(-1 if donor is None else number[donor])
        number[n] = len(number)
    return tuple(key)


def _made(missing: dict[_Key, _Group], built: Callable[[Graph], Executor]) -> dict[_Key, Executor]:
    """The programs of ops."""
    graphs = {k: _graph(group) for k, group in missing.items()}
    # Their kernels are compiled at the same time, and known as long as that program is.
    together = built(_together(graphs.values())) if len(graphs) > 1 else None
    found: dict[_Key, Executor] = {k: built(graph) for k, graph in graphs.items()}
    del together
    return found


def _graph(group: _Group) -> Graph:
    """That of some ops, of which all are results."""
    stand_ins: dict[Node, Node] = {}
    for x in _inputs(group):
        stand_in = stand_ins[x] = leaf(None, x.shape, x.dtype, x.spec_id)
        if x.op is SCALAR:
            stand_in.op = SCALAR
        stand_in.requires_grad = x.requires_grad and not x.pending
    alone: list[Node] = []
    for n in group:
        inputs = tuple([stand_ins[x] for x in n.inputs])
        made = stand_ins[n] = Node(n.op, inputs, n.shape, n.dtype, False, n.spec_id)
        made.place = n.place
        donor = _donor(n)
        made.donor = None if donor is None else stand_ins[donor]
        alone.append(made)
    return graph_of(linearise(alone, {id(n): n for n in alone}))


def _together(graphs: Iterable[Graph]) -> Graph:
    values: list[Value] = []
    outputs: list[int] = []
    donated: list[tuple[int, int]] = []
    for graph in graphs:
        first = len(values)
        values += [
            Value(v.op, tuple([x + first for x in v.inputs]), v.shape, v.dtype, v.place)
            for v in graph.values
        ]
        donated += [(o + len(outputs), x + first) for o, x in graph.donated]
        outputs += [o + first for o in graph.outputs]
    return Graph(tuple(values), tuple(outputs), tuple(donated))


def forget() -> None:
    """Start again, as if nothing had been compiled."""
    _SITES.clear()
    _PIECES.clear()
    _COPIED.clear()
