"""The one crossing from recorded nodes to executed programs.

Nothing below this module knows of live values; nothing above it knows of programs.  An evaluation
takes every pending value that Python can still reach, orders what leads to them, looks the
structure up among compiled executors, and runs it with one native call.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from . import interim, sites
from .compiler import compile_graph, forget, prepare
from .compiler.front import reference_program, simplified
from .core import collector, config, errors
from .core.bounds import Bounds
from .core.events import EVENTS, log
from .core.interrupts import interrupts_wait
from .core.record import record
from .ir.failed import FAILED, UNTESTED, Failed, confirm, doubted, fail, spoiled, too_large
from .ir.graph import Graph
from .ir.node import MODE, Node, others, traces
from .ir.passed import without_values
from .ir.program import Program
from .ir.trace import Trace
from .plans import Key, Known, Plan, graph_of, kept, linearise, reachable, reusable, saved
from .runtime import disk
from .runtime.executor import Executor, ReferenceExecutor
from .runtime.memory import Buffer, buffer_of


class Handle(Protocol):
    """What this module needs of a Tensor."""

    _base: Any  # of a view, whose value is to be asked for
    _node: Node

    @property
    def node(self) -> Node: ...

    def _unwritten(self, old: Node) -> None: ...


@record
class Check:
    """Positions that are to be inside before anything else is computed from them."""

    ok: Node  # bool[]
    index: Node
    bounds: Bounds
    guarded: weakref.ref[Node]  # the same positions, as those have them who rely on that
    place: errors.Provenance | None
    trace: Trace
    writes: int  # how many of the trace's came before


Runner = Executor | ReferenceExecutor | interim.Runner
"""What runs a program."""

_FLUSHING = threading.RLock()
_CACHE: OrderedDict[Key, Executor | ReferenceExecutor] = OrderedDict()
_INTERIM: OrderedDict[Key, interim.Runner] = OrderedDict()
"""Apart from compiled ones: those must not make way for what takes nothing to make."""
_WORTH_COMPILING: set[Key] = set()
"""Of those that were among them, and have run so often that they are compiled."""
_WORTH_LEAVING = 1 << 19
"""Bytes of results that nobody reads; fewer are not worth another program."""
_reference = weakref.ref


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
        pending = len(trace.values) - trace.derived
        if trace.cut or pending > config.CONFIG.most_pending:
            too_many(node, pending)


def too_many(node: Node, pending: int) -> None:
    """Evaluate, with ``node``, what is pending, if that is too much (see ``most_pending``)."""
    trace, most = MODE.trace, config.CONFIG.most_pending
    if trace.collecting:
        return
    if config.CONFIG.mode == "eager":
        evaluate([node], "eager")
    # A backward() or an update is evaluated whole, however large the model is.
    elif errors.OVERRIDE.place is None and (pending > most or trace.repeats(pending, most)):
        ending = trace.ending()
        evaluate([node], "pending limit")
        trace.cut = ending


def check(ok: Node, index: Node, bounds: Bounds, guarded: Node) -> None:
    """Require, before the next evaluation, the 0-d bool ``ok``: that ``index`` is inside.

    Otherwise the evaluation raises the error of the first position outside, and so does every later
    one that is to compute something from ``guarded``.
    """
    trace, number = MODE.trace, id(guarded)
    reference = weakref.ref(guarded, lambda _: UNTESTED.pop(number, None))
    place, writes = errors.user_place(), len(trace.writes)
    condition = Check(ok, index, bounds, reference, place, trace, writes)
    trace.checks.append(condition)
    UNTESTED[number] = condition


def doubtful() -> bool:
    """True while :func:`require_sound` has something to do."""
    return bool(FAILED or UNTESTED or MODE.trace.checks)


def require_sound(nodes: Iterable[Node] = (), now: bool = True) -> None:
    """Evaluate the outstanding conditions of :func:`check`; raises the error of one that fails.

    Those of other threads, if ``nodes`` depend on them.  Raises, too, if one failed before on which
    ``nodes`` depend.  Whoever is about to give ``nodes`` to a tensor that has a value calls this
    first, so that it keeps the one it has.  Not ``now``: conditions of this thread can wait, as the
    write can be undone (see :func:`written`).
    """
    trace = MODE.trace
    with _FLUSHING:
        if now and trace.checks:
            trace.settle()
            _run_checks(trace)
        if not FAILED and all(c.trace is trace for c in [*UNTESTED.values()]):
            return  # the usual case, without a look at what leads to these
        found = doubted(nodes)
        met = [c for c in _untested(found) if c.trace is not trace]
        if met:
            _judge(met)
        confirm(found)


def written(handle: Handle, old: Node) -> None:
    """Remember what ``handle`` was before it was written to, should what was written be wrong."""
    trace = MODE.trace
    if trace.checks:
        trace.writes.append((handle, old))


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
        if trace.owed is not None:  # what is late need not be recorded yet
            trace.settle()
        if trace.checks:
            _run_checks(trace)
        roots = {id(n): n for n in wanted if n.pending}  # not computed by another thread since
        _collect(trace.handles, roots)
        if trace.capture is not None:
            trace.capture.tensors(trace.handles)
        if roots and trace.forbidden:
            raise _forbidden(reason)
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
        known = _flush(roots, wanted)
        del trace.handles[:count]
        return known


def idle() -> bool:
    """True while an evaluation of this thread would find nothing to do."""
    trace = MODE.trace
    return not trace.handles and trace.owed is None


def awaited(node: Node) -> bool:
    """True if something that this thread has yet to compute reads ``node``."""
    trace = MODE.trace
    # Known references: the caller's local, the argument and getrefcount's.
    if idle() or sys.getrefcount(node) <= 3:
        return False
    with _FLUSHING:
        trace.settle()
        roots: dict[int, Node] = {}
        _collect(trace.handles, roots)
        return any(x is node for n in reachable(roots.values()) for x in n.inputs)


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


def executor_of(key: Key) -> Runner | None:
    """The executor of that structure, if it is in memory, and not to be replaced."""
    executor = _CACHE.get(key)
    if executor is not None:
        _CACHE.move_to_end(key)
        return executor
    instead = _INTERIM.get(key)
    if instead is None:
        return None
    # A captured call keeps its executors.
    if not instead.over and MODE.trace.capture is None and getattr(config.CONFIG, instead.setting):
        _INTERIM.move_to_end(key)
        return instead
    del _INTERIM[key]
    if not instead.provisional:
        _WORTH_COMPILING.add(key)
    return None


def _remember(cache: OrderedDict[Key, Any], key: Key, executor: Any) -> None:
    """Put one into a cache; what ran longest ago makes way."""
    cache[key] = executor
    while len(cache) > config.CONFIG.cache_size:
        cache.popitem(last=False)


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
        assert found is None or isinstance(found, Executor)
        if found is None:
            graph = replace(program.graph, unread=left)
            found = _built(graph, len(graph.values))
            _remember(_CACHE, own, found)
        return found


def execute(
    executor: Runner,
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
    trace = MODE.trace
    watched = trace.capture is not None
    trace.collecting = True
    try:
        for reference in handles:
            handle: Handle | None = reference()
            if handle is not None:
                node = handle.node if watched or handle._base is not None else handle._node
                if node.pending:
                    roots[id(node)] = node
    finally:
        trace.collecting = False


def _run_checks(trace: Trace) -> None:
    # Nobody relies on positions of a call that raised something else, or whose result is dropped.
    trace.checks = [c for c in trace.checks if c.guarded() is not None]
    failed = _judge(trace.checks)
    if failed:
        _undo(trace, failed[0][0].writes)
    trace.checks, trace.writes = [], []  # only now: an interrupt must not come between
    if failed:
        raise failed[0][1].exception()


def _untested(nodes: Iterable[Node]) -> list[Check]:
    """The conditions, of any thread, that guard some of these."""
    return [c for n in nodes if (c := UNTESTED.get(id(n))) is not None and c.guarded() is n]


def _judge(checks: list[Check]) -> list[tuple[Check, Failed]]:
    """Evaluate conditions; what is guarded by one that does not hold fails.  Returns those."""
    unknown = {id(c.ok): c.ok for c in checks if c.ok.pending}
    if unknown:
        if MODE.trace.forbidden:
            raise _forbidden("check")
        EVENTS.add("check_evaluations")
        _flush(unknown, conditions=True)
    # Those that are still pending depend on what failed before.
    known = [c for c in checks if not c.ok.pending]
    wrong = [c for c in known if not c.ok.buffer.numpy((), c.ok.dtype).item()]
    if MODE.trace.capture is not None and not wrong:
        for c in known:
            MODE.trace.capture.holds(c.ok)
    if wrong:
        _forget_recordings()
    failed = []
    for c in wrong:
        index = c.index
        if index.pending:
            if spoiled(reachable([index])):
                continue
            _flush({id(index): index}, conditions=True)
        bad = c.bounds.first_outside(index.buffer.numpy(index.shape, index.dtype))
        cause = Failed("failed", functools.partial(c.bounds.error, bad), c.place)
        guarded = c.guarded()
        if guarded is not None and guarded.pending:
            fail(guarded, cause)
        failed.append((c, cause))
    for c in checks:
        UNTESTED.pop(id(c.guarded()), None)
    return failed


def _undo(trace: Trace, count: int) -> None:
    """Take back all writes since the first ``count``: in PyTorch they would come after the error.

    And let go of how wrong values were made.
    """
    for tensor, old in reversed(trace.writes[count:]):
        tensor._unwritten(old)
    roots: dict[int, Node] = {}
    _collect(trace.handles, roots)
    causes = spoiled(reachable(roots.values()))
    for number in causes.keys() & roots.keys():
        fail(roots[number], causes[number])


def _forbidden(reason: str) -> RuntimeError:
    place = errors.describe(errors.user_place())
    return RuntimeError(f"evaluation ({reason}) inside no_sync() at {place}")


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


def _other_threads(roots: dict[int, Node], order: list[Node]) -> bool:
    """Join other threads' pending values that share nodes with this evaluation."""
    joined = False
    shared = {id(n) for n in order}
    shared.update(id(x) for n in order for x in n.inputs if not x.pending)
    for trace in others(MODE.trace):
        # Views are followed by their own thread: what that records is its own.
        handles = [reference() for reference in list(trace.handles)]
        nodes = [h._node for h in handles if h is not None]
        theirs = {id(n): n for n in nodes if n.pending}
        reach = reachable(theirs.values())
        if any(id(n) in shared or any(id(x) in shared for x in n.inputs) for n in reach):
            roots.update(theirs)
            trace.whole = False  # some of its values are computed before it ends
            joined = True
    return joined


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


def _flush(
    roots: dict[int, Node], wanted: Iterable[Node] = (), conditions: bool = False
) -> Known | None:
    """Compute ``roots``, but those that depend on what failed, of which none may be ``wanted``.

    If they are ``conditions``, nothing else is computed from them, and the recording goes on.
    """
    trace = MODE.trace
    recording = _recording(roots)
    known: Known | None = None
    if recording is not None:
        known = trace.prefix.known.get(recording)
    executor = None if known is None else executor_of(known.key)
    finished = False
    try:
        if known is not None and executor is not None:
            EVENTS.count(("repeated_plans", "cache_hits"))
            # What is late is an input once, not once per use, which matters to who may write over
            # it, and may be an output.
            if trace.late and (known.overwrites or not known.found(trace)):
                trace.settle()
            plan = known.plan(trace)
        else:
            if _refuse_large(roots, wanted):
                return _flush(roots, wanted, conditions)
            plan = _planned(roots, wanted, conditions)
            if not roots:
                return None
            executor = executor_of(plan.key)
            known = None if recording is None else Known.of(plan, trace)
            if known is not None:
                trace.prefix.remember(recording, known)
            if executor is None:
                executor = _made(plan)
            else:
                EVENTS.add("cache_hits")
        if max(plan.donors, default=-1) < 0:
            targets: list[Buffer | None] = [None] * len(plan.outputs)
        else:
            listed = 1 if plan.entries else 0  # another reference to each
            uses = [n + listed for n in plan.uses]
            overwrites, still_read = executor.overwrites, kept(plan.outputs)
            targets = reusable(plan.buffers, uses, plan.donors, overwrites, still_read)

        def finish(results: list[Buffer]) -> None:
            if trace.capture is not None:
                trace.capture.evaluated(executor, plan)
            computed(plan.outputs, results)

        executor.run([n.buffer for n in plan.buffers], plan.scalars, targets, finish)
        finished = True
    finally:
        if not (finished and conditions):
            trace.restart()
    return known


def _refuse_large(roots: dict[int, Node], wanted: Iterable[Node]) -> bool:
    """Take what no memory can hold out of ``roots``; raises the error of one that is ``wanted``.

    Whoever still holds it would otherwise wait for it with everything that he asks for.
    """
    found = [(n, cause) for n in roots.values() if (cause := too_large(n)) is not None]
    if not found:
        return False
    _forget_recordings()
    for node, cause in found:
        del roots[id(node)]
        fail(node, cause)
    for node in wanted:
        if isinstance(node.op, Failed):
            raise node.op.exception()
    return True


def _forget_recordings() -> None:
    """No recording tells of what fails."""
    MODE.trace.restart()
    for trace in traces():
        trace.whole = trace is MODE.trace


def computed(outputs: list[Node], results: list[Buffer]) -> None:
    """Give nodes their values, and let go of how they were computed."""
    for node, buffer in zip(outputs, results, strict=True):
        donor = node.donor
        if donor is not None:
            if donor.buffer.shared:
                with interrupts_wait():  # half of it could not be done again
                    node.buffer = _write_through(donor, buffer)
                    node.donor, node.pending = None, False
                buffer = node.buffer
            node.donor = None
        node.buffer = buffer
        node.pending = False
        done = node.freed or node.grad_leaf or not node.requires_grad
        if done or node.history is not None:
            node.inputs = without_values(node) if node.again and node.history is None else ()


def _write_through(donor: Node, result: Buffer) -> Buffer:
    """Copy a new value into the user's own array, as PyTorch's ``from_numpy`` promises."""
    shared: Buffer = donor.buffer
    # Known references: the donee's, the caller's local, this argument, getrefcount's.
    if sys.getrefcount(donor) > 4:
        # Somebody (saved history) still needs the old value: it moves to memory of its own.
        donor.buffer = buffer_of(shared.numpy(donor.shape, donor.dtype), donor.dtype)
    shared.numpy(donor.shape, donor.dtype)[...] = result.numpy(donor.shape, donor.dtype)
    return shared


def _planned(roots: dict[int, Node], wanted: Iterable[Node], conditions: bool) -> Plan:
    """The plan that computes ``roots``, and what a later backward() may read.

    Leaves out, also of ``roots``, what depends on what failed.
    """
    saved(roots)
    found = reachable(roots.values())
    joined = not conditions and others(MODE.trace) and _other_threads(roots, found)
    if joined:
        saved(roots)
        found = reachable(roots.values())
    if not conditions and UNTESTED:  # of other threads
        met = _untested(found)
        if met:
            _judge(met)
            for node in [n for n in roots.values() if not n.pending]:
                del roots[id(node)]
            found = reachable(roots.values())
    causes = spoiled(found) if FAILED else None
    if causes:
        for node in wanted:
            if id(node) in causes:
                raise causes[id(node)].exception()
        for number in causes:
            roots.pop(number, None)
        found = reachable(roots.values())
    plan = linearise(found, roots)
    if joined:
        # Gradients that another thread has put off will compute some of these values again: what
        # these are from must stay.
        plan.donors = [-1] * len(plan.donors)
    return plan


def _made(plan: Plan) -> Runner:
    """The executor of a structure that is not in memory; from now on it is."""
    place = errors.user_place()
    # Captured calls keep their executors, and have been asked to be fast.
    worth = plan.key in _WORTH_COMPILING
    compiled = worth or MODE.trace.capture is not None
    instead: interim.Runner | None = None
    history: sites.History | None = None
    if not compiled:
        instead = interim.in_pieces(plan, place, _alone)
    if instead is None:
        if config.CONFIG.target != "numpy" and disk.empty():
            prepare()
        with collector.put_off():
            recorded = graph_of(plan)
            if not worth:
                history = sites.note(recorded, place)
        if config.CONFIG.target == "numpy":
            EVENTS.add("reference_programs")
            reference = ReferenceExecutor(reference_program(recorded))
            _remember(_CACHE, plan.key, reference)
            return reference
        if history is not None and not compiled:
            instead = interim.as_others(recorded, history, place, _compiled)
    if instead is not None:
        executor: Runner = instead
        _remember(_INTERIM, plan.key, instead)
    else:
        if history is not None:
            sites.compiling(recorded, place)
        executor = _alone(recorded)
        _WORTH_COMPILING.discard(plan.key)
        _remember(_CACHE, plan.key, executor)
    if history is not None:
        history.runner = _reference(executor)
    return executor


def _compiled(graph: Graph, key: Key) -> Executor:
    executor = executor_of(key)
    if executor is None:
        executor = _alone(graph)
        _remember(_CACHE, key, executor)
    assert isinstance(executor, Executor)
    return executor


def _alone(graph: Graph) -> Executor:
    return _built(simplified(graph), len(graph.values))


def _built(graph: Graph, nodes: int) -> Executor:
    """The executor of a simplified graph that was recorded as so many nodes."""
    entry = disk.entry_for(graph)
    program = entry.load() if entry is not None else None
    executor = None
    if program is not None and entry is not None:
        executor = _linked(program, entry)
    if executor is None:
        if entry is not None:
            executor = _linked(compile_graph(graph, entry.others), entry)
        if executor is None:
            executor = Executor(compile_graph(graph))
        EVENTS.add("compiles")
        if entry is not None:
            entry.store(executor.program)
    program = executor.program
    log(
        "compile",
        f"{nodes} nodes, {len(program.kernels)} kernels, arena "
        f"{program.arena_bytes} bytes, {sum(program.seconds.values()):.3f} s "
        f"({', '.join(program.seconds)}) at {errors.describe(errors.user_place())}",
    )
    return executor


def _linked(program: Program, entry: disk.Entry) -> Executor | None:
    """The executor of a program that is, or may be made of what is, on disk."""
    try:
        return Executor(program)
    except RuntimeError as error:  # that of the linker
        entry.refused(error)
        return None


def executors() -> list[Runner]:
    """Executors in memory: interim ones, then the others, each least recently used first."""
    return [*_INTERIM.values(), *_CACHE.values()]


def last_executor() -> Executor | ReferenceExecutor:
    """The executor that ran last.  Raises RuntimeError before the first evaluation."""
    if not _CACHE:
        raise RuntimeError("nothing has been evaluated yet")
    return next(reversed(_CACHE.values()))


def clear_cache() -> None:
    """Forget all that was compiled (tests and benchmarks)."""
    forget()
    _CACHE.clear()
    _INTERIM.clear()
    _WORTH_COMPILING.clear()
    sites.forget()
    interim.forget()
