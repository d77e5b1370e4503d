"""What a call of a watched function did, and how to do it again without the function.

A :class:`Watch` is told what happens while the function runs.  A :class:`Script` says the same of
any call: where the inputs of the programs come from and where their results go.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from . import lazy, replay
from .core.bounds import Bounds
from .core.dtype import DType, bool_
from .core.record import record
from .core.shape import Shape
from .ir.node import SCALAR, Capture, Node
from .plans import Plan
from .replay import Output, Place, Run, State, gradient_of
from .runtime.memory import Buffer
from .runtime.positions import are_inside
from .surroundings import MISSING, Surroundings, content, is_same
from .tensor import Tensor
from .tensor.sharing import memory_of, through

Repeat = Callable[[Sequence[Buffer], Sequence[Tensor]], Any]
CHANGED = object()

_DictEntry = tuple[dict[str, Any], str, object]
_Look = tuple[Tensor, bool, weakref.ref[Tensor] | None]
"""A tensor whose gradient was looked at or replaced, whether it was missing, and what it was."""
_FirstLook = tuple[weakref.ref[Tensor], bool, weakref.ref[Tensor] | None]


@record(frozen=False)
class Watch(Capture):
    """What one call of the function did (see :class:`Capture`)."""

    runs: list[tuple[Any, Plan]] = field(default_factory=list)
    reads: dict[int, tuple[weakref.ref[Tensor], Node]] = field(default_factory=dict)
    effects: list[Callable[[], Any]] = field(default_factory=list)
    numbers: dict[int, tuple[Node, int, int]] = field(default_factory=dict)
    guards: list[tuple[Node, Bounds]] = field(default_factory=list)
    held: list[Node] = field(default_factory=list)
    gradients: dict[int, _FirstLook] = field(default_factory=dict)
    conditions: list[tuple[Callable[[], object], object]] = field(default_factory=list)
    lasting: dict[tuple[int, str], tuple[dict[str, Any], str]] = field(default_factory=dict)
    entries: dict[tuple[int, str, int], _DictEntry] = field(default_factory=dict)
    handles: list[weakref.ref[Any]] = field(default_factory=list)
    made: set[int] = field(default_factory=set)  # ids of nodes, which the plans keep
    refused: str | None = None

    def read(self, tensor: Any) -> None:
        known = self.reads.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return
        # What is still to be computed, or has been, was made in this call.
        if not tensor._node.pending and id(tensor._node) not in self.made:
            self.reads[id(tensor)] = (weakref.ref(tensor), tensor._node)

    def gradient(self, tensor: Any, missing: bool) -> None:
        known = self.gradients.get(id(tensor))
        if known is None or known[0]() is not tensor:
            found = tensor._gradient
            first = None if found is None else weakref.ref(found)
            self.gradients[id(tensor)] = (weakref.ref(tensor), missing, first)

    def effect(self, action: Callable[[], Any]) -> int:
        self.effects.append(action)
        return len(self.effects) - 1

    def number(self, node: Node, effect: int, position: int) -> None:
        self.numbers[id(node)] = (node, effect, position)

    def guard(self, node: Node, bounds: Bounds) -> None:
        self.guards.append((node, bounds))

    def holds(self, ok: Node) -> None:
        self.held.append(ok)

    def condition(self, state: Callable[[], object]) -> None:
        self.conditions.append((state, state()))

    def at_end(self, where: dict[str, Any], name: str) -> None:
        self.lasting[id(where), name] = (where, name)

    def entry(self, where: dict[str, Any], name: str) -> None:
        value = where[name]
        self.entries[id(where), name, id(value)] = (where, name, value)

    def tensors(self, handles: Sequence[weakref.ref[Any]]) -> None:
        self.handles += handles

    def evaluated(self, executor: Any, plan: Any) -> None:
        self.runs.append((executor, plan))
        self.made.update(map(id, plan.outputs))

    def refuse(self, reason: str) -> None:
        self.refused = self.refused or reason


class Refused(Exception):
    """The function does something that cannot be done again without it."""


class Script:
    """What a call does, without the function."""

    def __init__(
        self,
        watch: Watch,
        arguments: Sequence[Tensor],
        template: Any,
        results: list[Tensor],
        surroundings: Surroundings,
    ) -> None:
        if watch.refused:
            raise Refused(watch.refused)
        self.surroundings = surroundings
        self.lasting = [(w, name, w.get(name, MISSING)) for w, name in watch.lasting.values()]
        self.template = template
        self.effects, self.conditions = watch.effects, watch.conditions
        self.entries = list(watch.entries.values())
        alive = [(ref(), node) for ref, node in watch.reads.values()]
        read = _Same([*arguments, *[t for t, _ in alive]])
        # Tensors of which the gradient only is looked at: it is that of whatever they have then.
        looks: list[_Look] = []
        for ref, missing, first in watch.gradients.values():
            owner = ref()
            if owner is not None:
                looks.append((owner, missing, first))
        owners = [t for t, *_ in looks]
        alive += [(t, t._node) for t in owners if t not in read and not t._node.pending]
        given = _Same(arguments)
        self._entry = [(t, n) for t, n in alive if t is not None and t not in given]
        if len({id(n) for _, n in self._entry}) < len(self._entry):
            raise Refused("two tensors that outlive it stand for one value")
        gradients = _Same([t._grad for t, _ in self._entry])
        self.state = [t for t, _ in self._entry if t not in gradients]
        self._arguments = list(arguments)
        self._made: list[list[Node]] = []
        state = _Same(self.state)
        known = _Same([t for t in [*arguments, *results] if t not in state])
        self._refuse_escapes(watch, [*arguments, *results])
        self._kept = self._kept_gradients(watch, arguments, looks)
        self.runs = tuple(self._run(watch, executor, plan) for executor, plan in watch.runs)
        self.results = tuple(self._result(t) for t in results)
        self.shown = [self._shown(t, results) for t in results]
        self.guards = [
            _Guard(self._source(n), bounds, n.shape, n.dtype) for n, bounds in watch.guards
        ]
        self.held = [self._held(ok) for ok in watch.held]
        # What has a gradient already does something else, unless the function drops it first.
        self.without = [t for t, missing, _ in looks if missing and t not in known]
        dropped = (t for t, missing, _ in looks if not missing and t not in known)
        self.dropped = [t for t in dropped if t._gradient is None]
        places = [p for r in self.runs for p in r.inputs]
        places += [p for r in self.runs for o in r.outputs for p in o.places if p.entry]
        self._returned = {*self.results, *(s.base for s in self.shown if s is not None)}
        self.returns_arguments = any(p.kind == "argument" for p in self._returned)
        places += [p for p in self._returned if p.entry]
        self._read_gradients = {p.number for p in places if p.kind == "gradient"}
        self._specs = [State(t, t._node.spec_id, t._node.requires_grad) for t in self.state]
        del self._entry, self._arguments, self._made  # nodes would keep memory from being reused

    @property
    def signature(self) -> object:
        """Equal for calls that did the same."""
        return (
            repr(self.template),
            [id(t) for t in self.state],
            [id(t) for t in self.without],
            [id(t) for t in self.dropped],
            # The same program may have been compiled again, if it had left the cache.
            [run._replace(executor=None) for run in self.runs],
            self.results,
            [s and s.base for s in self.shown],
            len(self.effects),
            [guard.place for guard in self.guards],
            self.held,
            [value for _, value in self.conditions],
            [id(value) for _, _, value in self.entries],
        )

    # --- from what was watched ---------------------------------------------------------------

    def _refuse_escapes(self, watch: Watch, known: Sequence[Tensor]) -> None:
        # A result may be a view: it keeps what it is a part of.
        bases = [t._base.holder for t in known if t._base is not None]
        bases += [b._base.holder for b in bases if b._base is not None]  # of a detached one
        fine = _Same([*known, *bases, *self.state, *[t._grad for t in self.state]])
        for handle in watch.handles:
            tensor = handle()
            if tensor is not None and tensor not in fine:
                raise Refused("a tensor made in it is kept by something else than its result")

    def _kept_gradients(
        self, watch: Watch, arguments: Sequence[Tensor], looks: Sequence[_Look]
    ) -> _Same:
        """Gradients that were there from the start; all others are computed in the call."""
        outside = _Same([*arguments, *[t for t, _ in self._entry]])
        kept: list[Tensor] = []
        computed: set[int] = set()
        for owner, _, first in looks:
            gradient = owner._grad
            if gradient is None:
                continue
            if first is not None and first() is gradient:
                kept.append(gradient)
                continue
            # What is repeated hands over values, not tensors.
            if (
                gradient in outside
                or id(gradient) in computed
                or gradient._base is not None
                or id(gradient._node) not in watch.made
            ):
                raise Refused("it makes a gradient of a tensor that is something else, too")
            computed.add(id(gradient))
        return _Same(kept)

    def _source(self, node: Node) -> Place:
        for number, argument in enumerate(self._arguments):
            if argument._node is node:
                return Place("argument", number)
        for number, made in enumerate(self._made):
            for entry, output in enumerate(made):
                if output is node:
                    return Place("run", number, entry)
        for tensor, before in self._entry:
            if before is node:
                for number, t in enumerate(self.state):
                    if t is tensor:
                        return Place("tensor", number)
                    if t._grad is tensor:
                        return Place("gradient", number)
        raise Refused(
            "it makes tensors from Python data: pass them as arguments (or it adds to a gradient "
            "from before and drops it: drop gradients before backward())"
        )

    def _run(self, watch: Watch, executor: Any, plan: Plan) -> Run:
        inputs = tuple(self._source(n) for n in plan.buffers)
        scalars: list[Place | float] = []
        for n in plan.entries:
            if n.op is SCALAR:
                known = watch.numbers.get(id(n))
                assert n.value is not None
                scalars.append(n.value if known is None else Place("effect", known[1], known[2]))
        outputs = []
        for node in plan.outputs:
            places = [Place("tensor", i) for i, t in enumerate(self.state) if t._node is node]
            for i, t in enumerate(self.state):
                if t._grad is not None and t._grad._node is node:
                    places.append(Place("gradient", i, int(t._grad in self._kept)))
            outputs.append(Output(node.shape, node.dtype, node.spec_id, tuple(places)))
        self._made.append(plan.outputs)
        return Run(plan.key, executor, inputs, tuple(plan.donors), tuple(scalars), tuple(outputs))

    def _held(self, ok: Node) -> Place:
        """Where a program computes a condition, before anything has changed."""
        place = self._source(ok)
        before = self.runs[: place.number + 1]
        if place.kind != "run" or any(o.places for r in before for o in r.outputs):
            raise Refused("a condition on computed values comes behind what changes others")
        return place

    def _lasting(self, tensor: Tensor) -> Place | None:
        """Where a tensor is that is found again behind a later call."""
        for number, t in enumerate(self._arguments):
            if t is tensor:
                return Place("argument", number)
        for number, t in enumerate(self.state):
            if t is tensor:
                return Place("tensor", number)
            if t._grad is tensor:
                return Place("gradient", number, int(tensor in self._kept))
        return None

    def _result(self, tensor: Tensor) -> Place:
        place = self._lasting(tensor)
        if place is not None:
            return place
        node = tensor._node
        if node.requires_grad and not (node.freed or node.grad_leaf):
            raise Refused("its result still requires grad: call backward() inside, or use no_grad")
        return self._source(node)

    def _shown(self, tensor: Tensor, results: Sequence[Tensor]) -> _Shown | None:
        """How a result is a view of something that can be reached without it, if it is."""
        if tensor._base is None or self._lasting(tensor) is not None:
            return None
        base = tensor._base.holder
        replay, write, detached = tensor._replay, tensor._write, tensor._detached
        while True:
            place = self._lasting(base)
            for number, t in enumerate(results):
                if t is base:
                    place = Place("result", number)
            if place is not None:
                return _Shown(place, replay, write, tensor._strides, detached)
            if base._base is None:
                return None
            replay, write = through(base, replay, write)
            base, detached = base._base.holder, detached or base._detached

    def _lean_runs(self) -> tuple[Run, ...]:
        """The programs, but what is dropped in the call, as gradients behind a step, is not stored.

        The calls that run the function store everything: it might look.
        """
        places = [*self.results, *self.held, *(guard.place for guard in self.guards)]
        places += [p for run in self.runs for p in run.inputs]
        wanted = {(p.number, p.entry) for p in places if p.kind == "run"}
        return tuple(
            run.lean({entry for number, entry in wanted if number == n})
            for n, run in enumerate(self.runs)
        )

    # --- again --------------------------------------------------------------------------------

    def fits(self) -> bool:
        """True while nothing has changed that decides what the function does (see also
        :meth:`moved`): the same tensors with a gradient, say, modules in the same mode."""
        for tensor, spec_id, requires_grad in self._specs:
            node = tensor._node if tensor._base is None else tensor.node
            if node.pending:
                lazy.evaluate([node], "compile")
            if node.spec_id != spec_id or node.requires_grad != requires_grad:
                return False
        for state, value in self.conditions:
            if state() != value:
                return False
        for where, name, value in self.entries:
            if where.get(name) is not value:
                return False
        for tensor in self.without:
            if tensor._gradient is not None:
                return False
        return all(self.state[number]._gradient is not None for number in self._read_gradients)

    def moved(self) -> str | None:
        """What has changed around the function, but not by a call of it."""
        if any(where.get(name, MISSING) is not value for where, name, value in self.lasting):
            return "an attribute or a hook of a module, or a hook of a tensor,"
        name = self.surroundings.changed()
        return None if name is None else f"'{name}'"

    def repetition(self) -> Repeat:
        """What does again what the function did, for other arguments of the same shapes.

        It is given their memory, and the tensors too where one of them is part of the result.  It
        returns CHANGED, with nothing done, where :meth:`fits` and :meth:`moved` are to be asked, or
        where the function would raise an error (random numbers may have been drawn then).
        """
        state = self.state
        # What a program of the call computes can be tested once that has run.
        later = [(g.place, g.bounds) for g in self.guards if g.place.kind == "run"]
        steps = replay.steps(self._lean_runs(), self._specs, later, self._returned)
        (prepare, run), *more = steps
        conditions, entries, effects = self.conditions, self.entries, self.effects
        without, dropped = self.without, self.dropped
        names = [*self.lasting, *self.surroundings.entries]
        present = [entry for entry in names if entry[2] is not MISSING]
        missing = [(where, name) for where, name, value in names if value is MISSING]
        every = self.surroundings.cells
        cells = [(cell, value) for cell, value, _ in every if value is not MISSING]
        empty = [cell for cell, value, _ in every if value is MISSING]
        read = [state[number] for number in self._read_gradients]
        tests = [
            (g.place.number, g.bounds, g.shape, g.dtype)
            for g in self.guards
            if g.place.kind == "argument"
        ]
        kept = [g for g in self.guards if g.place.kind in ("tensor", "gradient")]
        held: list[list[int]] = [[] for _ in steps]
        for place in self.held:
            held[place.number].append(place.entry)
        only, make = self._single(), replay.tensor_of
        views = [(i, shown) for i, shown in enumerate(self.shown) if shown is not None]

        def repeat(arguments: Sequence[Buffer], tensors: Sequence[Tensor]) -> Any:
            made: list[list[Buffer]] = []
            prepared = prepare(arguments, made)
            if prepared is None:
                return CHANGED
            try:
                for where, name, value in entries:
                    if where[name] is not value:
                        return CHANGED
                for within, name, value in present:
                    found = within[name]
                    if found is not value and not is_same(found, value):
                        return CHANGED
                for cell, value in cells:
                    found = cell.cell_contents
                    if found is not value and not is_same(found, value):
                        return CHANGED
            except (KeyError, ValueError):  # there is none any more
                return CHANGED
            for within, name in missing:
                if name in within:
                    return CHANGED
            for cell in empty:
                if content(cell) is not MISSING:
                    return CHANGED
            for condition, value in conditions:
                if condition() != value:
                    return CHANGED
            for owner in without:
                if owner._gradient is not None:
                    return CHANGED
            for owner in read:
                if owner._gradient is None:
                    return CHANGED
            # Where one does not hold, the function does what comes before its error, and raises it.
            for number, bounds, shape, dtype in tests:
                if not are_inside(bounds, arguments[number], shape, dtype):
                    return CHANGED
            for place, bounds, shape, dtype in kept:
                owner = state[place.number]
                node = (gradient_of(owner) if place.kind == "gradient" else owner)._node
                if node.buffer is None or not are_inside(bounds, node.buffer, shape, dtype):
                    return CHANGED
            values = effects
            if effects:
                values = [action() for action in effects]
                if prepared[-1].asked:  # by one of them
                    prepared = prepare(arguments, made)
                    if prepared is None:
                        raise RuntimeError("an effect has changed a tensor that the call uses")
            made.append(run(prepared, values))
            del prepared  # a reference to each buffer
            if held[0] and not _hold(made[0], held[0]):
                return CHANGED
            for number, (prepare_next, run_next) in enumerate(more, 1):
                prepared = prepare_next(arguments, made)
                if prepared is None:
                    raise RuntimeError("another thread has changed a tensor that the call uses")
                made.append(run_next(prepared, values))
                del prepared
                if held[number] and not _hold(made[number], held[number]):
                    return CHANGED
            for owner in dropped:
                owner._gradient = None
            if only is not None:
                number, entry, output = only
                return make(made[number][entry], output)
            results = [self._made_again(place, tensors, made) for place in self.results]
            for i, shown in views:
                self._show(results[i], shown, results, tensors)
            return unflatten(self.template, results)

        return repeat

    def _single(self) -> tuple[int, int, Output] | None:
        """Where the result is, if it is one tensor that a program computes."""
        if isinstance(self.template, _Slot) and self.shown == [None]:
            kind, number, entry = self.results[self.template.number]
            if kind == "run":
                return number, entry, self.runs[number].outputs[entry]
        return None

    def _made_again(
        self, place: Place, arguments: Sequence[Tensor], made: list[list[Buffer]]
    ) -> Tensor:
        kind, number, entry = place
        if kind == "run":
            return replay.tensor_of(made[number][entry], self.runs[number].outputs[entry])
        if kind == "argument":
            return arguments[number]
        if kind == "tensor":
            return self.state[number]
        return gradient_of(self.state[number])

    def _show(
        self,
        result: Tensor,
        shown: _Shown,
        results: Sequence[Tensor],
        arguments: Sequence[Tensor],
    ) -> None:
        """Make a result follow what it is a view of."""
        place, result._replay, result._write, result._strides, result._detached = shown
        if place.kind == "result":
            base = results[place.number]
        else:
            base = self._made_again(place, arguments, [])
        result._base, result._seen = memory_of(base), base._version


def _hold(results: Sequence[Buffer], entries: Sequence[int]) -> bool:
    """Whether all of these 0-d bools are true."""
    return all(results[i].numpy((), bool_).item() for i in entries)


class _Same:
    """Membership by identity: == of tensors compares elements."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._ids = set(map(id, tensors))

    def __contains__(self, tensor: Any) -> bool:
        return id(tensor) in self._ids


class _Guard(NamedTuple):
    """Positions that a program reads by, and what they must be."""

    place: Place
    bounds: Bounds
    shape: Shape
    dtype: DType


class _Slot(NamedTuple):
    number: int


class _Shown(NamedTuple):
    """Of a result that is a view: what it shows, and how (see ``Tensor._view``)."""

    base: Place  # an argument, a tensor, a gradient, or a result
    replay: Callable[[Node], Node]
    write: Callable[[Node, Node], Node]
    strides: tuple[int, ...] | None
    detached: bool


def flatten(value: Any) -> tuple[Any, list[Tensor]]:
    """``value`` with tensors replaced by slots, and the tensors, each once."""
    tensors: list[Tensor] = []
    return _template(value, {}, tensors), tensors


def _template(value: Any, slots: dict[int, _Slot], tensors: list[Tensor]) -> Any:
    # No function of its own inside another: one that calls itself is a cycle, which would keep the
    # results of every watched call until Python collects garbage.
    if isinstance(value, Tensor):
        if id(value) not in slots:
            slots[id(value)] = _Slot(len(tensors))
            tensors.append(value)
        return slots[id(value)]
    if type(value) in (dict, OrderedDict):
        return type(value)((k, _template(x, slots, tensors)) for k, x in value.items())
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_template(x, slots, tensors) for x in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Refused(f"its result holds a {type(value).__name__}")


def unflatten(template: Any, tensors: Sequence[Tensor]) -> Any:
    """The opposite of :func:`flatten`."""
    if isinstance(template, _Slot):
        return tensors[template.number]
    if isinstance(template, dict):
        return type(template)((k, unflatten(x, tensors)) for k, x in template.items())
    if isinstance(template, (list, tuple)):
        return type(template)(unflatten(x, tensors) for x in template)
    return template
