"""The one crossing from recorded nodes to executed programs.

Nothing below this module knows of live values; nothing above it knows of programs.  An evaluation
takes every pending value that Python can still reach, orders what leads to them, looks the
structure up among compiled executors, and runs it with one native call.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import sys
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from .compiler import compile_graph, forget
from .compiler.front import reference_program, simplified
from .core import config, errors
from .core.events import EVENTS, log
from .core.record import record
from .ir.graph import Graph, Value
from .ir.node import BUFFER, MODE, SCALAR, Node, others
from .ir.op import Kind
from .ir.trace import Trace
from .ops.composite import expanded
from .runtime import disk
from .runtime.executor import Executor, ReferenceExecutor
from .runtime.memory import Buffer, buffer_of


class Handle(Protocol):
    """What this module needs of a Tensor."""

    _base: Any  # of a view, whose value is to be asked for
    _node: Node

    @property
    def node(self) -> Node: ...


@record
class Check:
    """A condition on data that must hold before anything else is computed from it."""

    ok: Node  # bool[]
    error: Callable[[], Exception]
    place: errors.Provenance | None


class Key:
    """The structure of an evaluation as numbers, hashed once."""

    __slots__ = ("_hash", "_numbers")

    def __init__(self, numbers: tuple[object, ...]) -> None:
        self._numbers = numbers
        self._hash = hash(numbers)

    def __hash__(self) -> int:
        return self._hash

    def extended(self, *more: object) -> Key:
        """That of something made of what this is the key of."""
        return Key((*self._numbers, *more))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._numbers == other._numbers


_FLUSHING = threading.RLock()
_CACHE: OrderedDict[Key, Executor | ReferenceExecutor] = OrderedDict()
_SITES: dict[errors.Provenance, list[Graph]] = {}
_SITE_WARNING = 8
_WORTH_LEAVING = 1 << 19
"""Bytes of results that nobody reads; fewer are not worth another program."""
_reference = weakref.ref
_VISITS = itertools.count(1)
_BY_SEQUENCE = operator.attrgetter("sequence")


def _unlock_in_child() -> None:
    # Another thread of the parent may have held it at the fork; it does not exist here.
    global _FLUSHING
    _FLUSHING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


def track(handle: Handle, node: Node) -> None:
    """Remember that Python holds ``node``; evaluates when too much is pending."""
    if node.pending:
        trace = MODE.trace
        trace.handles.append(_reference(handle))
        if len(trace.values) - trace.derived > config.CONFIG.most_pending:
            too_many(node)


def too_many(node: Node) -> None:
    """Evaluate, with ``node``, what is pending: there is too much of it (see ``most_pending``)."""
    if config.CONFIG.mode == "eager":
        evaluate([node], "eager")
    # A backward() or an update is evaluated whole, however large the model is.
    elif errors.OVERRIDE.place is None:
        evaluate([node], "pending limit")


def check(ok: Node, error: Callable[[], Exception]) -> None:
    """Require the 0-d bool ``ok`` before the next evaluation; otherwise it raises ``error()``."""
    trace = MODE.trace
    trace.checks.append(Check(ok, error, errors.user_place()))
    if trace.capture is not None:
        trace.capture.refuse("a condition on computed values decides whether to go on")


def run_checks() -> None:
    """Evaluate the outstanding conditions of :func:`check`; raises the error of one that fails.

    An optimizer calls this before it rebinds parameters, so that a failure leaves them unchanged.
    """
    trace = MODE.trace
    if trace.checks:
        with _FLUSHING:
            trace.settle()
            _run_checks(trace)


def evaluate(nodes: Iterable[Node] = (), reason: str = "eval") -> Known | None:
    """Compute every live pending value of this thread, and ``nodes``.

    Returns what was computed, if that can be told by positions in the recording.  Raises
    RuntimeError inside :func:`no_sync`, and the error of a failed :func:`check`.
    """
    trace = MODE.trace
    wanted = [n for n in nodes if n.pending]
    if not wanted and not trace.handles and trace.owed is None:
        return None
    with _FLUSHING:
        trace.settle()
        if trace.checks:
            _run_checks(trace)
        roots = {id(n): n for n in wanted if n.pending}  # not computed by another thread since
        _collect(trace.handles, roots)
        if trace.capture is not None:
            trace.capture.tensors(trace.handles)
        if roots and trace.forbidden:
            raise RuntimeError(
                f"evaluation ({reason}) inside no_sync() at {errors.describe(errors.user_place())}"
            )
        if not roots:
            trace.handles.clear()
            trace.restart()
            return None
        EVENTS.count(("evaluations", f"evaluations:{reason}"))
        if "sync" in config.CONFIG.log:
            log("sync", f"{reason}: {len(roots)} values at {errors.describe(errors.user_place())}")
        # Forgotten only when computed: else a value that is still pending would be computed on the
        # way to others, and again later, when its inputs may have been written over.
        count = len(trace.handles)
        known = _flush(roots)
        del trace.handles[:count]
        return known


def idle() -> bool:
    """True while an evaluation of this thread would find nothing to do."""
    trace = MODE.trace
    return not trace.handles and trace.owed is None


def exclusive() -> contextlib.AbstractContextManager[object]:
    """While this is held, no other thread evaluates."""
    return _FLUSHING


def recorded(owed: Iterable[int]) -> tuple[object, ...] | None:
    """What, beside the prefix of its recording, decides what this thread would evaluate now.

    That includes the values at the positions ``owed``, which nobody has recorded yet.  None if
    something else may decide it too.
    """
    settings, trace = config.CONFIG, MODE.trace
    if trace.forbidden or settings.log or settings.mode == "eager":
        return None
    roots: dict[int, Node] = {}
    _collect(trace.handles, roots)
    return _recording(roots, owed)


def executor_of(key: Key) -> Executor | ReferenceExecutor | None:
    """The executor of that structure, if it is in memory."""
    executor = _CACHE.get(key)
    if executor is not None:
        _CACHE.move_to_end(key)
    return executor


def _remember(key: Key, executor: Executor | ReferenceExecutor) -> None:
    """Put one into the cache; what ran longest ago makes way."""
    _CACHE[key] = executor
    while len(_CACHE) > config.CONFIG.cache_size:
        _CACHE.popitem(last=False)


def without(
    key: Key, executor: Executor | ReferenceExecutor, unread: Sequence[int]
) -> Executor | ReferenceExecutor:
    """The program of that structure, but that the outputs ``unread`` are not stored.

    Nobody may read these.  Kernels and bits are the same, and so are outputs that kernels read.
    Where all that can be left out is small, it is the same program.
    """
    if not isinstance(executor, Executor):
        return executor
    program = executor.program
    if sum(program.outputs[i].nbytes for i in unread) < _WORTH_LEAVING:
        return executor
    left = program.unstored(unread)
    if sum(program.outputs[i].nbytes for i in left) < _WORTH_LEAVING:
        return executor
    with _FLUSHING:
        own = key.extended("unread", *left)
        found = executor_of(own)
        if found is None:
            graph = replace(program.graph, unread=left)
            found = _built(graph, len(graph.values))
            _remember(own, found)
        return found


def execute(
    executor: Executor | ReferenceExecutor,
    buffers: list[Node],
    scalars: list[float],
    targets: list[Buffer | None],
    finish: Callable[[list[Buffer]], None],
) -> list[Buffer]:
    """Evaluate all that is pending; returns the results, which ``finish`` is given before."""
    trace = MODE.trace
    count = len(trace.handles)
    try:
        results = executor.run([n.buffer for n in buffers], scalars, targets, finish)
    finally:
        trace.restart()
    del trace.handles[:count]  # see evaluate
    return results


def _collect(handles: list[weakref.ref[Any]], roots: dict[int, Node]) -> None:
    watched = MODE.trace.capture is not None
    for reference in handles:
        handle: Handle | None = reference()
        if handle is not None:
            node = handle.node if watched or handle._base is not None else handle._node
            if node.pending:
                roots[id(node)] = node


def _run_checks(trace: Trace) -> None:
    checks: list[Check] = trace.checks
    trace.checks = []
    unknown = {id(c.ok): c.ok for c in checks if c.ok.pending}
    if unknown:
        EVENTS.add("check_evaluations")
        _flush(unknown)
    for c in checks:
        if not bool(c.ok.buffer.numpy((), c.ok.dtype)):
            error = c.error()
            if c.place is not None:
                error.add_note(f"recorded at {errors.describe(c.place)}")
            raise error


@contextlib.contextmanager
def no_sync() -> Iterator[None]:
    """Raise RuntimeError at any evaluation inside the block, naming its line.

    >>> with no_sync():
    ...     pass
    """
    trace = MODE.trace
    before, trace.forbidden = trace.forbidden, True
    try:
        yield
    finally:
        trace.forbidden = before


def _saved(roots: dict[int, Node]) -> None:
    """Add the values that a later backward() may read: inputs along unfreed autograd paths."""
    stack = [n for n in roots.values() if n.requires_grad]
    seen = set(map(id, stack))
    while stack:
        node = stack.pop()
        if node.freed or node.grad_leaf or not node.pending:
            continue
        past = node.history
        if past is not None:  # of its value backward() has no use
            if id(past) not in seen:
                seen.add(id(past))
                stack.append(past)
            continue
        for x in node.inputs:
            if x.pending:
                roots[id(x)] = x
            if x.requires_grad and id(x) not in seen:
                seen.add(id(x))
                stack.append(x)


def _reachable(roots: Iterable[Node]) -> list[Node]:
    """Pending nodes that lead to ``roots``, the roots included, in the order of recording.

    Marks them with a fresh ``visit`` number.
    """
    visit = next(_VISITS)
    found: list[Node] = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.visit != visit:
            node.visit = visit
            found.append(node)
            for x in node.inputs:
                if x.pending and x.visit != visit:
                    stack.append(x)
    found.sort(key=_BY_SEQUENCE)
    return found


def _other_threads(roots: dict[int, Node], order: list[Node]) -> bool:
    """Join other threads' pending values that share nodes with this evaluation."""
    joined = False
    shared = {id(n) for n in order}
    shared.update(id(x) for n in order for x in n.inputs if not x.pending)
    for trace in others(MODE.trace):
        theirs: dict[int, Node] = {}
        _collect(list(trace.handles), theirs)
        reach = _reachable(theirs.values())
        if any(id(n) in shared or any(id(x) in shared for x in n.inputs) for n in reach):
            roots.update(theirs)
            trace.whole = False  # some of its values are computed before it ends
            joined = True
    return joined


@record(frozen=False)
class Plan:
    """One evaluation: its values in order, and the key they make."""

    entries: list[Node]
    outputs: list[Node]
    key: Key
    buffers: list[Node]
    uses: list[int]  # how often each of them is an input in this evaluation
    scalars: list[float]
    donors: list[int]  # per output: position among ``buffers`` or -1


@record
class Known:
    """What :func:`_planned` found for a recording: values are given by their positions in it."""

    key: Key
    outputs: list[int]
    buffers: list[int]
    uses: list[int]
    scalars: list[int]
    donors: list[int]

    @staticmethod
    def of(plan: Plan, trace: Trace) -> Known | None:
        """None if another thread has met some of the values since this one did."""
        if trace.places(plan.entries) is None:
            return None

        def places(nodes: Iterable[Node]) -> list[int]:
            return [n.at - trace.base for n in nodes]

        return Known(
            plan.key,
            places(plan.outputs),
            places(plan.buffers),
            plan.uses,
            places(n for n in plan.entries if n.op is SCALAR),
            plan.donors,
        )

    def plan(self, trace: Trace) -> Plan:
        """The plan for the values of ``trace``; its ``entries`` are empty."""
        values: list[Callable[[], Any]] = [*trace.values]
        return Plan(
            [],
            [values[p]() for p in self.outputs],
            self.key,
            [values[p]() for p in self.buffers],
            self.uses,
            [values[p]().value for p in self.scalars],
            self.donors,
        )


def _recording(roots: dict[int, Node], owed: Iterable[int] = ()) -> tuple[object, ...] | None:
    """What, beside the prefix of this thread's trace, decides the plan that computes ``roots``.

    None if something else may decide it too.
    """
    trace = MODE.trace
    if not trace.whole or trace.capture is not None:
        return None
    for other in others(trace):
        if any(handle() is not None for handle in list(other.handles)):
            return None
    base, count = trace.base, len(trace.values)
    found: list[object] = [config.CONFIG.program_key]
    donors: list[object] = []
    for node in roots.values():
        position, donor = node.at - base, node.donor
        if not 0 <= position < count:
            return None
        found.append(position)
        if donor is not None:
            taken = donor.at - base
            donors += (position, taken if 0 <= taken < count else -1)
    found += owed
    return *found, None, *donors


def _flush(roots: dict[int, Node]) -> Known | None:
    trace = MODE.trace
    recording = _recording(roots)
    known: Known | None = None
    if recording is not None:
        known = trace.prefix.known.get(recording)
    executor = None if known is None else _CACHE.get(known.key)
    try:
        if known is not None and executor is not None:
            EVENTS.count(("repeated_plans", "cache_hits"))
            plan = known.plan(trace)
            _CACHE.move_to_end(known.key)
        else:
            plan = _planned(roots)
            executor = _CACHE.get(plan.key)
            known = None if recording is None else Known.of(plan, trace)
            if known is not None:
                trace.prefix.known[recording] = known
            if executor is None:
                executor = _compile(plan)
                _remember(plan.key, executor)
            else:
                EVENTS.add("cache_hits")
                _CACHE.move_to_end(plan.key)
        listed = 1 if plan.entries else 0  # another reference to each
        uses = [n + listed for n in plan.uses]
        overwrites, still_read = executor.overwrites, kept(plan.outputs)
        targets = reusable(plan.buffers, uses, plan.donors, overwrites, still_read)

        def finish(results: list[Buffer]) -> None:
            if trace.capture is not None:
                trace.capture.evaluated(executor, plan)
            computed(plan.outputs, results)

        executor.run([n.buffer for n in plan.buffers], plan.scalars, targets, finish)
    finally:
        trace.restart()
    return known


def computed(outputs: list[Node], results: list[Buffer]) -> None:
    """Give nodes their values, and let go of how they were computed."""
    for node, buffer in zip(outputs, results, strict=True):
        donor = node.donor
        if donor is not None:
            if donor.buffer.shared:
                buffer = _write_through(donor, buffer)
            node.donor = None
        node.buffer = buffer
        node.pending = False
        done = node.freed or node.grad_leaf or not node.requires_grad
        if done or node.history is not None:
            node.inputs = ()


def _write_through(donor: Node, result: Buffer) -> Buffer:
    """Copy a new value into the user's own array, as PyTorch's ``from_numpy`` promises."""
    shared: Buffer = donor.buffer
    # Known references: the donee's, the caller's local, this argument, getrefcount's.
    if sys.getrefcount(donor) > 4:
        # Somebody (saved history) still needs the old value: it moves to memory of its own.
        donor.buffer = buffer_of(shared.numpy(donor.shape, donor.dtype), donor.dtype)
    shared.numpy(donor.shape, donor.dtype)[...] = result.numpy(donor.shape, donor.dtype)
    return shared


def _planned(roots: dict[int, Node]) -> Plan:
    """The plan that computes ``roots``, and what a later backward() may read."""
    _saved(roots)
    found = _reachable(roots.values())
    if others(MODE.trace) and _other_threads(roots, found):
        _saved(roots)
        found = _reachable(roots.values())
    return _linearise(found, roots)


def _linearise(order: list[Node], roots: dict[int, Node]) -> Plan:
    """Number the values of an evaluation, leaves before their first reader, and build its key."""
    visit = next(_VISITS)
    entries: list[Node] = []
    buffers: list[Node] = []
    scalars: list[float] = []
    # One flat sequence, hashed once: each value starts with a negative number that tells its kind
    # (and how many inputs follow).
    key: list[object] = [config.CONFIG.program_key]
    outputs: list[Node] = []
    donors: list[int] = []
    number = 0
    for node in order:
        inputs = node.inputs
        for x in inputs:
            if x.visit != visit:
                x.visit = visit
                x.index = number
                x.uses = 0
                number += 1
                entries.append(x)
                if x.op is SCALAR:
                    scalars.append(x.value)  # type: ignore[arg-type]
                    key += (-2, x.spec_id)
                else:
                    buffers.append(x)
                    key += (-1, x.spec_id)
            x.uses += 1
        key += (-8 - len(inputs), node.op.uid)
        key += [x.index for x in inputs]
        node.visit = visit
        node.index = number
        node.uses = 0
        number += 1
        entries.append(node)
        if id(node) in roots:
            outputs.append(node)
            donor = node.donor
            taken = donor.index if donor is not None and donor.visit == visit else -1
            donors.append(taken)
            key += (-4, taken)
    position = {n.index: i for i, n in enumerate(buffers)}
    slots = [position.get(d, -1) for d in donors]
    uses = [n.uses for n in buffers]
    return Plan(entries, outputs, Key(tuple(key)), buffers, uses, scalars, slots)


def _graph_of(plan: Plan) -> Graph:
    entries, outputs = plan.entries, plan.outputs
    if any(n.op.kind is Kind.COMPOSITE and n.pending for n in entries):
        entries, outputs = expanded(entries, outputs)
    position = {id(n): i for i, n in enumerate(entries)}
    values = []
    for n in entries:
        if n.pending:
            inputs = tuple(position[id(x)] for x in n.inputs)
            values.append(Value(n.op, inputs, n.shape, n.dtype, n.place))
        else:
            op = SCALAR if n.op is SCALAR else BUFFER
            values.append(Value(op, (), n.shape, n.dtype, n.place))
    donated = tuple((o, position[id(plan.buffers[d])]) for o, d in enumerate(plan.donors) if d >= 0)
    return Graph(tuple(values), tuple(position[id(n)] for n in outputs), donated)


def _compile(plan: Plan) -> Executor | ReferenceExecutor:
    recorded = _graph_of(plan)
    _note_site(recorded, errors.user_place())
    if config.CONFIG.target == "numpy":
        EVENTS.add("reference_programs")
        return ReferenceExecutor(reference_program(recorded))
    return _built(simplified(recorded), len(recorded.values))


def _built(graph: Graph, nodes: int) -> Executor:
    """The executor of a simplified graph that was recorded as so many nodes."""
    entry = disk.entry_for(graph)
    program = entry.load() if entry is not None else None
    if program is None:
        program = compile_graph(graph)
        EVENTS.add("compiles")
        if entry is not None:
            entry.store(program)
    log(
        "compile",
        f"{nodes} nodes, {len(program.kernels)} kernels, arena "
        f"{program.arena_bytes} bytes, {sum(program.seconds.values()):.3f} s "
        f"({', '.join(program.seconds)}) at {errors.describe(errors.user_place())}",
    )
    return Executor(program)


def _note_site(graph: Graph, place: errors.Provenance | None) -> None:
    """Warn once about a line that compiles again and again, naming what differs."""
    if place is None:
        return
    seen = _SITES.setdefault(place, [])
    seen.append(graph)
    if len(seen) == _SITE_WARNING + 1:
        previous = seen[-2]
        difference = f"{len(previous.values)} values before, {len(graph.values)} now"
        for i, (a, b) in enumerate(zip(previous.values, graph.values, strict=False)):
            if a != b:
                difference = f"value {i} was {a.op} : {a.spec}, now {b.op} : {b.spec}"
                where = errors.describe(b.place)
                if where:
                    difference += f" (recorded at {where})"
                break
        warnings.warn(
            f"{errors.describe(place)} compiled {len(seen)} different programs; the last two "
            f"differ: {difference}",
            stacklevel=2,
        )
    del seen[: -(_SITE_WARNING + 1)]


def kept(outputs: Iterable[Node]) -> set[int]:
    """Ids of the leaves that will be read by what is left of the history of ``outputs``."""
    found: set[int] = set()
    for n in outputs:
        if n.requires_grad and not n.freed and not n.grad_leaf:
            found.update(map(id, n.inputs))
    return found


def reusable(
    buffers: list[Node],
    uses: list[int],
    donors: list[int],
    overwrites: Sequence[bool],
    kept: set[int],
) -> list[Buffer | None]:
    """Buffers that outputs may overwrite: their old value is read by this program only.

    A donor is reachable from its donee, from inputs of nodes in this evaluation (``uses`` times),
    from ``buffers`` and from the local below.  Any further reference means that somebody may still
    read it.
    """
    reuse: list[Buffer | None] = []
    for position, possible in zip(donors, overwrites, strict=True):
        if position < 0:
            reuse.append(None)
            continue
        donor = buffers[position]
        # +1 each: buffers, donee.donor, the local, getrefcount's argument.
        known = uses[position] + 4
        # The memory itself: donor.buffer and getrefcount's argument; a numpy view counts too.
        free = (
            not donor.buffer.shared
            and id(donor) not in kept
            and sys.getrefcount(donor) <= known
            and sys.getrefcount(donor.buffer) <= 2
        )
        if not free:
            EVENTS.add("donations_declined")
        reuse.append(donor.buffer if free and possible else None)
    return reuse


def executors() -> list[Executor | ReferenceExecutor]:
    """Compiled executors in memory, least recently used first."""
    return list(_CACHE.values())


def last_executor() -> Executor | ReferenceExecutor:
    """The executor that ran last.  Raises RuntimeError before the first evaluation."""
    if not _CACHE:
        raise RuntimeError("nothing has been evaluated yet")
    return next(reversed(_CACHE.values()))


def clear_cache() -> None:
    """Forget all that was compiled (tests and benchmarks)."""
    forget()
    _CACHE.clear()
    _SITES.clear()
