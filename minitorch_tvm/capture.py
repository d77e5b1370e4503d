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
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import autograd, lazy
from .core import config
from .core.dtype import DType
from .core.events import EVENTS
from .core.shape import Shape
from .ir.node import MODE, SCALAR, Node, leaf
from .runtime.memory import Buffer
from .tensor import Tensor, from_numpy

_ATTEMPTS = 8
"""Calls that may differ from each other before the function is no longer watched."""


class Place(NamedTuple):
    """Where a value comes from or goes to.

    ``kind`` is argument, tensor, gradient (of a tensor; entry 1 if there was one before, which is
    changed), run (its entry-th output) or effect (the entry-th number it returns); ``number`` says
    which.
    """

    kind: str
    number: int
    entry: int = 0


class Output(NamedTuple):
    """A result of a program: what it is and the tensors and gradients that become it."""

    shape: Shape
    dtype: DType
    places: tuple[Place, ...]


class Run(NamedTuple):
    """One program: its executor, and where its inputs and outputs are."""

    executor: Any
    inputs: tuple[Place, ...]
    donors: tuple[int, ...]  # per output: position among the inputs, or -1
    scalars: tuple[Place | float, ...]
    outputs: tuple[Output, ...]


@dataclass
class _Watch:
    """What one call of the function did (an observer, see ``ir.node.Capture``)."""

    runs: list[tuple[Any, lazy.Plan]] = field(default_factory=list)
    reads: dict[int, tuple[weakref.ref[Tensor], Node]] = field(default_factory=dict)
    effects: list[Callable[[], Any]] = field(default_factory=list)
    numbers: dict[int, tuple[Node, int, int]] = field(default_factory=dict)
    guards: list[tuple[Node, Callable[[Any], None]]] = field(default_factory=list)
    conditions: list[tuple[Callable[[], object], object]] = field(default_factory=list)
    handles: list[weakref.ref[Any]] = field(default_factory=list)
    refused: str | None = None

    def read(self, tensor: Any) -> None:
        known = self.reads.get(id(tensor))
        # What is still to be computed was made in this call.
        if (known is None or known[0]() is not tensor) and not tensor._node.pending:
            self.reads[id(tensor)] = (weakref.ref(tensor), tensor._node)

    def effect(self, action: Callable[[], Any]) -> int:
        self.effects.append(action)
        return len(self.effects) - 1

    def number(self, node: Node, effect: int, position: int) -> None:
        self.numbers[id(node)] = (node, effect, position)

    def guard(self, node: Node, test: Callable[[Any], None]) -> None:
        self.guards.append((node, test))

    def condition(self, state: Callable[[], object]) -> None:
        self.conditions.append((state, state()))

    def tensors(self, handles: Sequence[weakref.ref[Any]]) -> None:
        self.handles += handles

    def evaluated(self, executor: Any, plan: Any) -> None:
        self.runs.append((executor, plan))

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
        alive = ((ref(), node) for ref, node in watch.reads.values())
        self._entry = [(t, n) for t, n in alive if t is not None and t not in _Same(arguments)]
        if len({id(n) for _, n in self._entry}) < len(self._entry):
            raise Refused("two tensors that outlive it stand for one value")
        gradients = _Same([t._grad for t, _ in self._entry])
        self.state = [t for t, _ in self._entry if t not in gradients]
        self._arguments = [t._node for t in arguments]
        self._made: list[list[Node]] = []
        self.template, results = _flatten(result)
        self._refuse_escapes(watch, [*arguments, *results])
        self.runs = tuple(self._run(watch, executor, plan) for executor, plan in watch.runs)
        self.results = tuple(self._result(t) for t in results)
        self.guards = [(self._source(node), test) for node, test in watch.guards]
        self.cleared: set[int] = set()  # tensors whose gradient the caller must have dropped
        used = {p.number for r in self.runs for p in r.inputs if p.kind == "gradient"}
        self._read_gradients = used
        self._specs = [(t, t._node.spec_id, t._node.requires_grad) for t in self.state]
        # What a program of the call computes can be tested once that has run.
        self._first_guards = [g for g in self.guards if g[0].kind != "run"]
        later = [(p, test) for p, test in self.guards if p.kind == "run"]
        self._steps = [
            _Step(run, self.state, used, [(p.entry, test) for p, test in later if p.number == i])
            for i, run in enumerate(self.runs)
        ]
        del self._entry, self._arguments, self._made  # nodes would keep memory from being reused

    @property
    def signature(self) -> object:
        """Equal for calls that did the same."""
        return (
            repr(self.template),
            [id(t) for t in self.state],
            self.runs,
            self.results,
            len(self.effects),
            [place for place, _ in self.guards],
            [value for _, value in self.conditions],
        )

    @property
    def gradients(self) -> list[int]:
        """Tensors (their numbers) whose gradient is written."""
        places = [p for r in self.runs for o in r.outputs for p in o.places]
        return [p.number for p in places if p.kind == "gradient"]

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
        raise Refused("it makes tensors from Python data: pass them as arguments")

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
            outputs.append(Output(node.shape, node.dtype, tuple(places)))
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
        for number in self.cleared:
            if self.state[number]._grad is not None:
                return False
        return all(self.state[number]._grad is not None for number in self._read_gradients)

    def __call__(self, arguments: Sequence[Tensor]) -> Any:
        """Do what the function did, for other arguments of the same shapes."""
        made: list[list[Buffer]] = []
        for place, test in self._first_guards:
            argument = place.kind == "argument"
            tensor = arguments[place.number] if argument else self.state[place.number]
            node = (_gradient(tensor) if place.kind == "gradient" else tensor)._node
            test(node.buffer.numpy(node.shape, node.dtype))
        values = [action() for action in self.effects]
        for step in self._steps:
            made.append(step(arguments, made, values))
        results = []
        for place in self.results:
            if place.kind == "tensor":
                results.append(self.state[place.number])
            elif place.kind == "argument":
                results.append(arguments[place.number])
            elif place.kind == "run":
                output = self.runs[place.number].outputs[place.entry]
                results.append(_tensor(made[place.number][place.entry], output))
            else:
                gradient = _gradient(self.state[place.number]).node
                results.append(Tensor._wrap(leaf(gradient.buffer, gradient.shape, gradient.dtype)))
        EVENTS.add("captured_calls")
        return _unflatten(self.template, results)


def _gradient(owner: Tensor) -> Tensor:
    assert owner._grad is not None
    return owner._grad


class _Step:
    """A run that is repeated: its places sorted by kind, numbers replaced by tensors."""

    def __init__(
        self,
        run: Run,
        state: Sequence[Tensor],
        read_gradients: set[int],
        guards: Sequence[tuple[int, Callable[[Any], None]]],
    ) -> None:
        self._executor = run.executor
        self._guards = [(i, test, run.outputs[i]) for i, test in guards]
        inputs = list(enumerate(run.inputs))
        self._arguments = [(i, p.number) for i, p in inputs if p.kind == "argument"]
        self._made = [(i, p.number, p.entry) for i, p in inputs if p.kind == "run"]
        kept = {i: p for i, p in inputs if p.kind in ("tensor", "gradient")}
        self._kept = [(i, state[p.number], p.kind == "gradient") for i, p in kept.items()]
        self._donors = [
            (output, d, state[kept[d].number], kept[d].kind == "gradient")
            for output, d in enumerate(run.donors)
            if d in kept and run.executor.overwrites[output]
        ]
        self._scalars = [0.0 if isinstance(s, Place) else s for s in run.scalars]
        self._numbers = [
            (i, s.number, s.entry) for i, s in enumerate(run.scalars) if isinstance(s, Place)
        ]
        self._targets: list[tuple[int, Tensor, bool, Output]] = []
        self._replaced: list[tuple[int, Tensor, int | None, Output]] = []
        for i, output in enumerate(run.outputs):
            for kind, number, accumulates in output.places:
                owner = state[number]
                if kind == "gradient" and not accumulates:
                    # What nothing reads may be written over.
                    nbytes = run.executor.program.outputs[i].nbytes
                    spare = None if number in read_gradients else nbytes
                    self._replaced.append((i, owner, spare, output))
                else:
                    self._targets.append((i, owner, kind == "gradient", output))
        self._outputs = len(run.outputs)

    def __call__(
        self, arguments: Sequence[Tensor], made: list[list[Buffer]], values: list[Any]
    ) -> list[Buffer]:
        """Run; returns the results."""
        inputs: list[Any] = [None] * (len(self._arguments) + len(self._made) + len(self._kept))
        for i, number in self._arguments:
            inputs[i] = arguments[number]._node.buffer
        for i, number, entry in self._made:
            inputs[i] = made[number][entry]
        for i, owner, is_gradient in self._kept:
            tensor = _gradient(owner) if is_gradient else owner
            inputs[i] = (tensor._node if tensor._base is None else tensor.node).buffer
        scalars = self._scalars.copy()
        for i, number, entry in self._numbers:
            scalars[i] = values[number][entry]
        targets = self._spare()
        self._reuse(inputs, targets)
        results: list[Buffer] = self._executor.run(inputs, scalars, targets, self._hand_over)
        for i, test, output in self._guards:
            test(results[i].numpy(output.shape, output.dtype))
        return results

    def _hand_over(self, results: list[Buffer]) -> None:
        """Give tensors and gradients their new values."""
        for i, owner, is_gradient, output in self._targets:
            tensor = _gradient(owner) if is_gradient else owner
            if results[i] is not tensor._node.buffer:
                _replace(tensor, results[i], output)
            tensor._version += 1
        for i, owner, _, output in self._replaced:
            gradient = owner._grad
            if gradient is None or gradient._node.buffer is not results[i]:
                owner._grad = _tensor(results[i], output)

    def _reuse(self, inputs: list[Buffer], targets: list[Buffer | None]) -> None:
        """Add the buffers of inputs that only the tensors hold which the outputs become."""
        for output, position, owner, is_gradient in self._donors:
            node = (_gradient(owner) if is_gradient else owner)._node
            buffer = inputs[position]
            # Known references: the tensor's, the local and getrefcount's; the node's, the list's,
            # the local and getrefcount's.
            if sys.getrefcount(node) <= 3 and sys.getrefcount(buffer) <= 4 and buffer.array is None:
                targets[output] = buffer

    def _spare(self) -> list[Buffer | None]:
        """Buffers of old gradients that only their tensors hold, by the output to replace them."""
        found: list[Buffer | None] = [None] * self._outputs
        for output, owner, nbytes, _ in self._replaced:
            gradient = owner._grad
            # Known references: the tensor's, the local and getrefcount's.
            if nbytes is None or gradient is None or sys.getrefcount(gradient) > 3:
                continue
            node = gradient._node
            if sys.getrefcount(node) > 3 or node.pending:
                continue
            buffer = node.buffer
            # Known references: the node's, the local and getrefcount's.
            if sys.getrefcount(buffer) <= 3 and buffer.nbytes == nbytes:
                found[output] = buffer
        return found


def _replace(tensor: Tensor, result: Buffer, output: Output) -> None:
    """Give a tensor a new value."""
    old = tensor._node
    if old.buffer.shared:
        # The user's own array, as PyTorch's from_numpy promises.
        target = old.buffer.numpy(old.shape, old.dtype)
        target[...] = result.numpy(output.shape, output.dtype)
        return
    new = leaf(result, output.shape, output.dtype)
    if old.grad_leaf:
        tensor._mark_leaf(new, old)
    tensor._node = new


class _Same:
    """Membership by identity: == of tensors compares elements."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._ids = set(map(id, tensors))

    def __contains__(self, tensor: Any) -> bool:
        return id(tensor) in self._ids


def _tensor(buffer: Buffer, output: Output) -> Tensor:
    return Tensor._wrap(leaf(buffer, output.shape, output.dtype))


class _Slot(NamedTuple):
    number: int


def _flatten(value: Any) -> tuple[Any, list[Tensor]]:
    """``value`` with tensors replaced by slots, and the tensors."""
    tensors: list[Tensor] = []

    def walk(v: Any) -> Any:
        if isinstance(v, Tensor):
            tensors.append(v)
            return _Slot(len(tensors) - 1)
        if isinstance(v, dict):
            return {k: walk(x) for k, x in v.items()}
        if isinstance(v, (list, tuple)) and type(v) in (list, tuple):
            return type(v)(walk(x) for x in v)
        if v is None or isinstance(v, (bool, int, float, str)):
            return v
        raise Refused(f"its result holds a {type(v).__name__}")

    return walk(value), tensors


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
    given_up: bool = False
    calls: int = 0  # since it became ready
    attempts: int = 0


class Compiled:
    """A function made by :func:`compile`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._entries: dict[object, _Entry] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if MODE.capture is not None or config.CONFIG.mode == "eager":
            return self._function(*args, **kwargs)
        args = tuple(from_numpy(a) if isinstance(a, np.ndarray) else a for a in args)
        tensors = [a for a in args if isinstance(a, Tensor)]
        lazy.evaluate([t.node for t in tensors], "compile")
        key = self._key(args, kwargs)
        entry = self._entries.setdefault(key, _Entry())
        if entry.given_up:
            EVENTS.add("uncaptured_calls")
            return self._function(*args, **kwargs)
        if entry.ready and entry.script is not None:
            entry.calls += 1
            # At powers of two the function runs itself, to see that it still does the same.
            if not entry.script.fits():
                entry.ready = False
            elif entry.calls & (entry.calls - 1):
                return entry.script(tensors)
        return self._watch(entry, tensors, args, kwargs)

    def _key(self, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
        parts: list[object] = [MODE.grad_enabled, config.CONFIG.program_key]
        for a in [*args, *[x for item in sorted(kwargs.items()) for x in item]]:
            if isinstance(a, Tensor):
                parts.append((a._node.spec_id, a._node.requires_grad, a._strides))
            else:
                parts.append((type(a), a))
        return tuple(parts)

    def _watch(
        self, entry: _Entry, tensors: Sequence[Tensor], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        before = entry.script
        dropped = set()
        if before is not None:
            dropped = {
                id(before.state[i]) for i in before.gradients if before.state[i]._grad is None
            }
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
        args = [next(handed) if isinstance(a, Tensor) else a for a in args]
        MODE.capture = watch
        try:
            result = self._function(*args, **kwargs)
            lazy.evaluate(reason="compile")
        finally:
            MODE.capture = None
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
        script.cleared = {i for i in script.gradients if id(script.state[i]) in dropped}
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
        if entry.attempts > _ATTEMPTS:
            self._give_up(entry, "every call does something else")
        return result

    @property
    def _name(self) -> str:
        return f"mt.compile({getattr(self._function, '__qualname__', self._function)})"

    def _give_up(self, entry: _Entry, reason: str) -> None:
        entry.script, entry.given_up = None, True
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
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss
    """
    return Compiled(function)
