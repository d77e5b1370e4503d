"""``mt.compile``: run a whole training step again without recording it.

A plain loop records every operation at every step and looks the result up among compiled programs.
Only the recording is left to save, and this saves it.  The first calls run the function as it is
and watch: which programs run, which of their inputs are arguments and which are tensors that
outlive the call (parameters, optimizer state, running statistics), where each result goes, which
numbers come from an optimizer's options or a random generator.  Once two calls in a row have done
the same, later calls fill in pointers and numbers and run the programs.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import autograd, lazy, replay
from .core import config
from .core.events import EVENTS
from .ir.node import MODE, SCALAR, WATCHED, Node, leaf
from .replay import Output, Place, Run, State, gradient_of
from .runtime.memory import Buffer
from .tensor import Tensor, from_numpy

_READY = 8
"""Kinds of calls that are recognised without looking them up, those that were repeated last."""
_ATTEMPTS = 8
"""Calls that may differ from each other before the function is no longer watched."""


_DictEntry = tuple[dict[str, Any], str, object]


@dataclass
class _Watch:
    """What one call of the function did (an observer, see ``ir.node.Capture``)."""

    runs: list[tuple[Any, lazy.Plan]] = field(default_factory=list)
    reads: dict[int, tuple[weakref.ref[Tensor], Node]] = field(default_factory=dict)
    effects: list[Callable[[], Any]] = field(default_factory=list)
    numbers: dict[int, tuple[Node, int, int]] = field(default_factory=dict)
    guards: list[tuple[Node, Callable[[Any], None]]] = field(default_factory=list)
    gradients: dict[int, tuple[weakref.ref[Tensor], bool]] = field(default_factory=dict)
    conditions: list[tuple[Callable[[], object], object]] = field(default_factory=list)
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
            self.gradients[id(tensor)] = (weakref.ref(tensor), missing)

    def effect(self, action: Callable[[], Any]) -> int:
        self.effects.append(action)
        return len(self.effects) - 1

    def number(self, node: Node, effect: int, position: int) -> None:
        self.numbers[id(node)] = (node, effect, position)

    def guard(self, node: Node, test: Callable[[Any], None]) -> None:
        self.guards.append((node, test))

    def condition(self, state: Callable[[], object]) -> None:
        self.conditions.append((state, state()))

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


class _Script:
    """What a call does, without the function."""

    def __init__(self, watch: _Watch, arguments: Sequence[Tensor], result: Any) -> None:
        if watch.refused:
            raise Refused(watch.refused)
        self.effects, self.conditions = watch.effects, watch.conditions
        self.entries = list(watch.entries.values())
        alive = [(ref(), node) for ref, node in watch.reads.values()]
        read = _Same([*arguments, *[t for t, _ in alive]])
        # Tensors of which the gradient only is looked at: it is that of whatever they have then.
        owners = [t for ref, _ in watch.gradients.values() if (t := ref()) is not None]
        alive += [(t, t._node) for t in owners if t not in read and not t._node.pending]
        self._entry = [(t, n) for t, n in alive if t is not None and t not in _Same(arguments)]
        if len({id(n) for _, n in self._entry}) < len(self._entry):
            raise Refused("two tensors that outlive it stand for one value")
        gradients = _Same([t._grad for t, _ in self._entry])
        self.state = [t for t, _ in self._entry if t not in gradients]
        self._arguments = [t._node for t in arguments]
        self._made: list[list[Node]] = []
        self.template, results = _flatten(result)
        known = _Same([*arguments, *results])
        self._refuse_escapes(watch, [*arguments, *results])
        self.runs = tuple(self._run(watch, executor, plan) for executor, plan in watch.runs)
        self.results = tuple(self._result(t) for t in results)
        self.guards = [(self._source(n), test, n.shape, n.dtype) for n, test in watch.guards]
        found = [(ref(), missing) for ref, missing in watch.gradients.values()]
        # What has a gradient already does something else, unless the function drops it first.
        self.without = [t for t, missing in found if missing and t is not None and t not in known]
        dropped = (t for t, missing in found if not missing and t is not None and t not in known)
        self.dropped = [t for t in dropped if t._gradient is None]
        places = [p for r in self.runs for p in r.inputs]
        places += [p for r in self.runs for o in r.outputs for p in o.places if p.entry]
        used = {p.number for p in places if p.kind == "gradient"}
        self._read_gradients = used
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
            self.runs,
            self.results,
            len(self.effects),
            [place for place, *_ in self.guards],
            [value for _, value in self.conditions],
            [id(value) for _, _, value in self.entries],
        )

    # --- from what was watched ---------------------------------------------------------------

    def _refuse_escapes(self, watch: _Watch, known: Sequence[Tensor]) -> None:
        # A result may be a view: it keeps what it is a part of.
        bases = [t._base for t in known]
        bases += [b._base for b in bases if b is not None]  # of a detached one
        fine = _Same([*known, *bases, *self.state, *[t._grad for t in self.state]])
        for handle in watch.handles:
            tensor = handle()
            if tensor is not None and tensor not in fine:
                raise Refused("a tensor made in it is kept by something else than its result")

    def _source(self, node: Node) -> Place:
        for number, argument in enumerate(self._arguments):
            if argument is node:
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

    def _run(self, watch: _Watch, executor: Any, plan: lazy.Plan) -> Run:
        inputs = tuple(self._source(n) for n in plan.buffers)
        scalars: list[Place | float] = []
        for n in plan.entries:
            if n.op is SCALAR:
                known = watch.numbers.get(id(n))
                assert n.value is not None
                scalars.append(n.value if known is None else Place("effect", known[1], known[2]))
        outputs = []
        known_before = _Same([t for t, _ in self._entry])
        for node in plan.outputs:
            places = [Place("tensor", i) for i, t in enumerate(self.state) if t._node is node]
            for i, t in enumerate(self.state):
                if t._grad is not None and t._grad._node is node:
                    places.append(Place("gradient", i, int(t._grad in known_before)))
            outputs.append(Output(node.shape, node.dtype, node.spec_id, tuple(places)))
        self._made.append(plan.outputs)
        return Run(executor, inputs, tuple(plan.donors), tuple(scalars), tuple(outputs))

    def _result(self, tensor: Tensor) -> Place:
        for number, t in enumerate(self.state):
            if t is tensor:
                return Place("tensor", number)
        node = tensor._node
        if node.requires_grad and not (node.freed or node.grad_leaf):
            raise Refused("its result still requires grad: call backward() inside, or use no_grad")
        return self._source(node)

    def _lean_runs(self) -> tuple[Run, ...]:
        """The programs, but what is dropped in the call, as gradients behind a step, is not stored.

        The calls that run the function store everything: it might look.
        """
        places = [*self.results, *(p for p, *_ in self.guards)]
        places += [p for run in self.runs for p in run.inputs]
        wanted = {(p.number, p.entry) for p in places if p.kind == "run"}
        return tuple(
            run.lean({entry for number, entry in wanted if number == n})
            for n, run in enumerate(self.runs)
        )

    # --- again --------------------------------------------------------------------------------

    def fits(self) -> bool:
        """True while nothing has changed that decides what the function does."""
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

    def repetition(self) -> Repeat:
        """What does again what the function did, for other arguments of the same shapes.

        It is given their memory, and the tensors too where one of them is part of the result.  It
        returns CHANGED, with nothing done, where :meth:`fits` is to be asked first.
        """
        state = self.state
        # What a program of the call computes can be tested once that has run.
        later = [(p, test) for p, test, *_ in self.guards if p.kind == "run"]
        steps = replay.steps(self._lean_runs(), self._specs, later, self.results)
        (prepare, run), *more = steps
        conditions, entries, effects = self.conditions, self.entries, self.effects
        without, dropped = self.without, self.dropped
        read = [state[number] for number in self._read_gradients]
        tests = [
            (p.number, test, shape, dtype)
            for p, test, shape, dtype in self.guards
            if p.kind == "argument"
        ]
        kept = [(p, test) for p, test, *_ in self.guards if p.kind in ("tensor", "gradient")]
        only, make = self._single(), replay.tensor_of

        def repeat(arguments: Sequence[Buffer], tensors: Sequence[Tensor]) -> Any:
            made: list[list[Buffer]] = []
            prepared = prepare(arguments, made)
            if prepared is None:
                return CHANGED
            try:
                for where, name, value in entries:
                    if where[name] is not value:
                        return CHANGED
            except KeyError:
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
            for number, test, shape, dtype in tests:
                test(arguments[number].numpy(shape, dtype))
            for place, test in kept:
                owner = state[place.number]
                node = (gradient_of(owner) if place.kind == "gradient" else owner)._node
                test(node.buffer.numpy(node.shape, node.dtype))
            values = effects
            if effects:
                values = [action() for action in effects]
                if prepared[-1].asked:  # by one of them
                    prepared = prepare(arguments, made)
                    if prepared is None:
                        raise RuntimeError("an effect has changed a tensor that the call uses")
            made.append(run(prepared, values))
            del prepared  # a reference to each buffer
            for prepare_next, run_next in more:
                prepared = prepare_next(arguments, made)
                if prepared is None:
                    raise RuntimeError("another thread has changed a tensor that the call uses")
                made.append(run_next(prepared, values))
                del prepared
            for owner in dropped:
                owner._gradient = None
            if only is not None:
                number, entry, output = only
                return make(made[number][entry], output)
            results = [self._made_again(place, tensors, made) for place in self.results]
            return _unflatten(self.template, results)

        return repeat

    def _single(self) -> tuple[int, int, Output] | None:
        """Where the result is, if it is one tensor that a program computes."""
        if isinstance(self.template, _Slot):
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
        gradient = gradient_of(self.state[number]).node
        return Tensor._wrap(leaf(gradient.buffer, gradient.shape, gradient.dtype))


Repeat = Callable[[Sequence[Buffer], Sequence[Tensor]], Any]
Accept = Callable[[Sequence[Any]], Sequence[Buffer] | None]
CHANGED = object()


class _Same:
    """Membership by identity: == of tensors compares elements."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._ids = set(map(id, tensors))

    def __contains__(self, tensor: Any) -> bool:
        return id(tensor) in self._ids


class _Slot(NamedTuple):
    number: int


def _flatten(value: Any) -> tuple[Any, list[Tensor]]:
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
    if isinstance(value, dict):
        return {k: _template(x, slots, tensors) for k, x in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_template(x, slots, tensors) for x in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Refused(f"its result holds a {type(value).__name__}")


def _unflatten(template: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(template, _Slot):
        return tensors[template.number]
    if isinstance(template, dict):
        return {k: _unflatten(x, tensors) for k, x in template.items()}
    if isinstance(template, (list, tuple)):
        return type(template)(_unflatten(x, tensors) for x in template)
    return template


@dataclass
class _Entry:
    """What is known of calls with arguments of certain shapes."""

    script: _Script | None = None
    ready: bool = False
    # Once it is ready:
    repeat: Repeat = field(init=False)
    accept: Accept = field(init=False)
    given_up: bool = False
    calls: int = 0  # since it became ready
    attempts: int = 0


def _constant(value: Any) -> object:
    """Equal for arguments that are the same constant: neither 1 and True nor 0.0 and -0.0."""
    if isinstance(value, float):
        return type(value), value.hex()
    if isinstance(value, tuple):
        return type(value), *map(_constant, value)
    return type(value), value


def _acceptance(args: Sequence[Any]) -> Accept:
    """Finds the memory of arguments that are as ``args`` for certain, as are the settings.

    None says that it takes a closer look: that has :meth:`Compiled._looked_up`.
    """
    settings, grad_enabled, count = config.CONFIG, MODE.trace.grad_enabled, len(args)
    expected = [
        (a._node.spec_id, a._node.shape, a._node.dtype.numpy, None)
        if isinstance(a, Tensor)
        else (-1, None, None, a)
        for a in args
    ]

    def accept(args: Sequence[Any]) -> Sequence[Buffer] | None:
        trace = MODE.trace
        if (
            config.CONFIG is not settings
            or len(args) != count
            or trace.grad_enabled is not grad_enabled
            or trace.capture is not None
            or not lazy.idle()
        ):
            return None
        found = []
        for i, (spec_id, shape, dtype, constant) in enumerate(expected):
            a = args[i]
            if type(a) is Tensor:
                node = a._node
                buffer = node.buffer
                if (
                    node.spec_id != spec_id
                    or buffer is None
                    or node.requires_grad
                    or a._base is not None
                    or a._strides is not None
                ):
                    return None
                found.append(buffer)
            elif spec_id < 0:
                if a is not constant:
                    return None
            elif (
                type(a) is np.ndarray
                and a.dtype is dtype
                and a.shape == shape
                and a.flags.carray  # aligned, writeable, C-contiguous
            ):
                found.append(Buffer.around(a, True))
            else:
                return None
        return found

    return accept


class Compiled:
    """A function made by :func:`compile`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._entries: dict[object, _Entry] = {}
        self._ready: tuple[_Entry, ...] = ()  # the last to become so first

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            for entry in self._ready:
                arguments = entry.accept(args)
                if arguments is not None:
                    calls = entry.calls + 1
                    # At powers of two the function runs itself, to see that it still does the same.
                    if calls & (calls - 1):
                        entry.calls = calls
                        result = entry.repeat(arguments, ())
                        if result is not CHANGED:
                            return result
                        entry.calls = calls - 1
                    break
        return self._looked_up(args, kwargs)

    def _looked_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call, for arguments of any kind, in any state of things."""
        if MODE.trace.capture is not None or config.CONFIG.mode == "eager":
            return self._function(*args, **kwargs)
        arrays = any(isinstance(a, np.ndarray) for a in args)
        args = tuple(from_numpy(a) if isinstance(a, np.ndarray) else a for a in args)
        tensors = [a for a in args if isinstance(a, Tensor)]
        lazy.evaluate([t.node for t in tensors], "compile")
        key = self._key(args, kwargs)
        entry = self._entries.setdefault(key, _Entry())
        if entry.given_up:
            EVENTS.add("uncaptured_calls")
            result = self._function(*args, **kwargs)
            if arrays:  # they are the caller's again
                lazy.evaluate(reason="compile")
            return result
        if entry.ready and entry.script is not None:
            entry.calls += 1
            if not entry.script.fits():
                entry.ready = False
            elif entry.calls & (entry.calls - 1):
                result = entry.repeat([t._node.buffer for t in tensors], tensors)
                if result is not CHANGED:
                    return result
        return self._watch(entry, tensors, args, kwargs)

    def _key(self, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
        parts: list[object] = [MODE.trace.grad_enabled, config.CONFIG.program_key, len(args)]
        for a in [*args, *[x for item in sorted(kwargs.items()) for x in item]]:
            if isinstance(a, Tensor):
                parts.append((a._node.spec_id, a._node.requires_grad, a._strides))
            else:
                parts.append(_constant(a))
        return tuple(parts)

    def _watch(
        self, entry: _Entry, tensors: Sequence[Tensor], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        before = entry.script
        watch = _Watch()
        if any(isinstance(v, Tensor) for v in kwargs.values()):
            watch.refuse("tensors are passed by keyword")
        given = list(tensors)
        if any(t.requires_grad for t in tensors):
            watch.refuse("an argument requires grad")
        else:
            # Values of their own: an argument may also be another one, or a tensor that the
            # function knows without being given it.
            given = [
                Tensor._wrap(leaf(t._node.buffer, t._node.shape, t._node.dtype)) for t in given
            ]
            for tensor, t in zip(given, tensors, strict=True):
                tensor._strides = t._strides
        nodes = [t._node for t in given]
        handed = iter(given)
        own = args
        args = [next(handed) if isinstance(a, Tensor) else a for a in args]
        trace = MODE.trace
        trace.capture = watch
        WATCHED.add(trace.thread)
        try:
            result = self._function(*args, **kwargs)
            lazy.evaluate(reason="compile")
        finally:
            trace.capture = None
            WATCHED.discard(trace.thread)
        EVENTS.add("watched_calls")
        for original, tensor, node in zip(tensors, given, nodes, strict=True):
            if original is not tensor and tensor._node is not node:
                watch.refuse("it changes an argument in place")
                with autograd.no_grad():
                    original._assign(tensor._node, "compile")
        tensors = given
        try:
            script = _Script(watch, tensors, result)
        except Refused as refused:
            self._give_up(entry, str(refused))
            return result
        same = before is not None and before.signature == script.signature
        if entry.ready and not same:
            warnings.warn(
                f"{self._name} changed what it does after {entry.calls} calls; its calls are "
                "watched again.  Calls in between did what it did before",
                stacklevel=3,
            )
        if not same:
            entry.attempts += 1
            entry.calls = 0
        entry.script, entry.ready = script, same
        self._ready = tuple(e for e in self._ready if e is not entry)
        if same:
            entry.repeat, entry.accept = script.repetition(), _acceptance(own)
            if not kwargs and not any(place.kind == "argument" for place in script.results):
                self._ready = (entry, *self._ready[: _READY - 1])
        if entry.attempts > _ATTEMPTS:
            self._give_up(entry, "every call does something else")
        return result

    @property
    def _name(self) -> str:
        return f"mt.compile({getattr(self._function, '__qualname__', self._function)})"

    def _give_up(self, entry: _Entry, reason: str) -> None:
        entry.script, entry.given_up = None, True
        self._ready = tuple(e for e in self._ready if e is not entry)
        warnings.warn(
            f"{self._name} runs the function at every call: {reason}", RuntimeWarning, stacklevel=4
        )


def compile(function: Callable[..., Any]) -> Compiled:
    """``function``, without the cost of recording it at every call.

    For a training step: forward, ``backward()`` and ``optimizer.step()``.  Arguments are tensors or
    arrays (other values are constants: a call with another value is another program); results are
    tensors, detached, in tuples, lists or dicts.  Parameters, optimizer state, running statistics,
    gradients, the learning rate, schedulers called inside and random numbers behave as without it.

    Other effects on Python's state happen only in the calls that run the function: the first two
    or three for each combination of shapes, and then every call whose number is a power of two, to
    see that it still does the same (a change is reported by a warning).  A Python number that is
    not an argument keeps its value.  What cannot be repeated (reading values inside, keeping
    tensors made inside) is reported by a RuntimeWarning, and the function then runs at every call.

    Example::

        @mt.compile
        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

    Dropped behind the step, large gradients are not stored when the call is repeated.
    """
    return Compiled(function)
