"""What is another program at every step is run op by op.

Layers that are left out at random, trees, decisions that a loop takes by what it has computed: such
steps have ever other structures, few of which come again, though all are made of the same ops.
Compiling each, even from known kernels, takes Python some 40 microseconds per operation.  Once a
line has had several structures, further ones are therefore run op by op, by programs of one op
each.  A structure that comes again and again is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from .core import config, errors
from .core.errors import Provenance
from .core.events import EVENTS, log
from .core.shape import numel
from .ir.graph import Graph, Value
from .ir.node import SCALAR, Node, leaf
from .ops.elementwise import Clone, Detach
from .ops.movement import Reshape
from .plans import Plan, graph_of, linearise
from .runtime.executor import Executor
from .runtime.piecewise import Pieces, PiecewiseExecutor, Runs
from .sites import site_of

_LEAST_RUNS, _MOST_RUNS = 2, 8
"""Of a structure; if they would take longer than compiling it, it is compiled, and if there are
more: it will come again."""
_MOST_STRUCTURES = 4096  # of a line, that are remembered
_MOST_PIECES = 2048
_SAME = (Reshape, Detach, Clone)
"""Ops whose result may be their input's memory."""

# Seconds, estimated: of a program of known kernels, and each of its recorded values; of compiling
# an op beside others; of running one, and of a byte that is stored and read again for it.
_PROGRAM, _PROGRAM_NODE, _PIECE = 5e-3, 150e-6, 10e-3
_CALL, _BYTE = 5e-6, 1 / 10e9


class _Site:
    """A line that has had several structures."""

    def __init__(self) -> None:
        self.spent = 0.0
        """Seconds that programs took to compile that might have been run op by op."""
        self.seen: dict[int, tuple[int, Runs]] = {}
        """Of structures the sizes that they had, and how often they have run."""


_Key = tuple[Hashable, ...]
_SITES: dict[Hashable, _Site] = {}
_ITSELF: _Key = ()
_PIECES: dict[_Key, Executor] = {}


def runner(
    plan: Plan, place: Provenance, built: Callable[[Graph], Executor]
) -> PiecewiseExecutor | None:
    """What runs a plan of a line that has ever other structures; None: it is to be compiled."""
    site = _SITES.setdefault(site_of(place), _Site())
    nodes = [n for n in plan.entries if n.pending]
    structure = hash(tuple([(n.op.name, n.dtype, len(n.shape), *_numbers(n)) for n in nodes]))
    sizes = plan.key.digest()
    known = site.seen.get(structure)
    if known is not None and known[0] != sizes:
        return None  # see :mod:`.varying`
    program = _PROGRAM + _PROGRAM_NODE * len(nodes)
    if known is None:
        extra = len(nodes) * _CALL + sum([numel(n.shape) * n.dtype.itemsize for n in nodes]) * _BYTE
        known = sizes, Runs(min(program / extra, _MOST_RUNS))
        if len(site.seen) >= _MOST_STRUCTURES:
            site.seen.clear()
        site.seen[structure] = known
    runs = known[1]
    if runs.most < _LEAST_RUNS:
        return None
    outputs = set(map(id, plan.outputs))
    keys = [_key(n, id(n) in outputs) for n in nodes]
    missing = {k: n for k, n in zip(keys, nodes, strict=True) if k not in _PIECES and k != _ITSELF}
    if len(missing) * _PIECE > site.spent:
        site.spent += program
        return None
    site.spent -= len(missing) * _PIECE
    _PIECES.update(_made(missing, built))
    executors = tuple([_PIECES.get(k) for k in keys])
    for key in [*_PIECES][: max(0, len(_PIECES) - _MOST_PIECES)]:
        del _PIECES[key]
    EVENTS.add("piecewise_programs")
    log("compile", f"{len(nodes)} recorded ops, run one by one at {errors.describe(place)}")
    return PiecewiseExecutor(
        Pieces(
            executors,
            tuple([tuple([x.index for x in _distinct(n) if x.op is not SCALAR]) for n in nodes]),
            tuple([tuple([x.index for x in _distinct(n) if x.op is SCALAR]) for n in nodes]),
            tuple([n.index for n in nodes]),
        ),
        [n.index for n in plan.buffers],
        [n.index for n in plan.entries if n.op is SCALAR],
        [n.index for n in plan.outputs],
        runs,
    )


def _numbers(node: Node) -> list[int]:
    return [x.index for x in node.inputs]


def _distinct(node: Node) -> Iterable[Node]:
    """Its inputs, each once."""
    inputs = node.inputs
    return inputs if len(inputs) < 2 else dict.fromkeys(inputs)


def _key(node: Node, is_output: bool) -> _Key:
    """What the program of an op depends on; ``_ITSELF`` if its result is its input's memory."""
    inputs = node.inputs
    if not is_output and isinstance(node.op, _SAME) and inputs[0].op is not SCALAR:
        return _ITSELF
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
