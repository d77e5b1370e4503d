"""``mt.compile``: run a whole training step again without recording it.

A plain loop records every operation at every step and looks the result up among compiled programs.
Only the recording is left to save, and this saves it.  The first calls run the function as it is
and watch: which programs run, which of their inputs are arguments and which are tensors that
outlive the call (parameters, optimizer state, running statistics), where each result goes, which
numbers come from an optimizer's options or a random generator.  Once two calls in a row have done
the same, later calls fill in pointers and numbers and run the programs.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from . import autograd, lazy
from .core import config, errors
from .core.events import EVENTS
from .core.record import record
from .given import Given
from .ir.node import LEAF_HOOKS, MODE, WATCHED, leaf
from .runtime.memory import Buffer
from .script import CHANGED, Refused, Repeat, Script, Watch, flatten, unflatten
from .surroundings import Surroundings
from .tensor import Tensor
from .tensor.sharing import memory_of, show

_READY = 8
"""Kinds of calls that are recognised without looking them up, those that were repeated last."""
_ATTEMPTS = 8
"""Calls in a row that may each differ from the one before it: then the function is given up."""
_KINDS = 64
"""Combinations of shapes and constants for which calls are watched."""
_STATES = 4
"""States of the rest for each of them: where gradients add up, there is one without any."""
_OFTEN = 2048
"""A power of two, see :func:`_repeats`."""


Accept = Callable[[Sequence[Any]], Sequence[Buffer] | None]


def _repeats(number: int) -> int:
    """0 if the call of that number runs the function itself, to see that it still does the same.

    Those are powers of two, and multiples of ``_OFTEN``.
    """
    return number & (number - 1 if number < _OFTEN else _OFTEN - 1)


@record(frozen=False)
class _Entry:
    """What is known of calls with arguments of certain shapes."""

    script: Script | None = None
    ready: bool = False
    # Once it is ready:
    repeat: Repeat = field(init=False)
    accept: Accept = field(init=False)
    given_up: bool = False
    calls: int = 0  # since it became ready
    attempts: int = 0
    moves: int = 0  # calls in a row before which something around the function had changed
    watched_at: int = 0  # the last call that was watched


def _acceptance(given: Given) -> Accept:
    """Finds the memory of arguments that are as ``given`` for certain, as are the settings.

    None says that it takes a closer look: that has :meth:`Compiled._looked_up`.
    """
    settings, grad_enabled = config.CONFIG, MODE.trace.grad_enabled
    expected = [
        (a._node.spec_id, a._node.shape, a._node.dtype.numpy, None)
        if isinstance(a, Tensor)
        else (-1, None, None, a)
        for a in given.with_tensors(given.tensors).args
    ]
    count = len(expected)
    # Those that may be one tensor, which is a kind of its own.
    alike = [
        (i, j)
        for j, (spec_id, *_) in enumerate(expected)
        for i in range(j)
        if expected[i][0] == spec_id >= 0
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
                node = a._node if a._base is None else a.node
                buffer = node.buffer
                if (
                    node.spec_id != spec_id
                    or buffer is None
                    or node.requires_grad
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
        for i, j in alike:
            if args[i] is args[j]:
                return None
        return found

    return accept


def _follow_instead(view: Tensor, originals: dict[int, Tensor]) -> None:
    """Make a view of what stood for an argument one of the argument."""
    while view._base is not None:
        base = originals.get(id(view._base.holder))
        if base is not None:
            view._base, view._seen = memory_of(base), base._version
            return
        view = view._base.holder


class Compiled:
    """A function made by :func:`compile`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # Not its attributes, which may change: __getattr__ looks them up.
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._entries: dict[object, list[_Entry]] = {}
        self._others = _Entry()  # stands for calls of further kinds
        self._ready: tuple[_Entry, ...] = ()  # the last to become so first

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """A copy of the function, of which nothing is known yet."""
        return Compiled(copy.deepcopy(self._function, memo))

    def __getattr__(self, name: str) -> Any:
        """Attributes and methods of the function or module; ``eval()`` and the like return this.

        ``_orig_mod``, PyTorch's name for the module, is that itself.
        """
        if name == "_function":  # of a copy that is being made
            raise AttributeError(name)
        function = self._function
        if name == "_orig_mod" and not isinstance(function, types.FunctionType):
            return function
        value = getattr(function, name)
        if not isinstance(value, types.MethodType) or value.__self__ is not function:
            return value

        @functools.wraps(value)
        def method(*args: Any, **kwargs: Any) -> Any:
            result = value(*args, **kwargs)
            return self if result is function else result

        return method

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """In a class: a method, for which each instance is a constant."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            for entry in self._ready:
                arguments = entry.accept(args)
                if arguments is not None:
                    calls = entry.calls + 1
                    if _repeats(calls):
                        entry.calls = calls
                        result = entry.repeat(arguments, ())
                        if result is not CHANGED:
                            return result
                        entry.calls = calls - 1
                        continue  # another may be of the present state
                    break
        return self._looked_up(args, kwargs)

    def _looked_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call, for arguments of any kind, in any state of things."""
        settings = config.CONFIG
        if MODE.trace.capture is not None or settings.mode == "eager" or settings.anomaly:
            return self._function(*args, **kwargs)
        try:
            given = Given(args, kwargs)
        except RecursionError:
            EVENTS.add("uncaptured_calls")
            reason = "what it is given contains itself"
            errors.warn(f"{self._name} runs the function: {reason}", RuntimeWarning)
            return self._function(*args, **kwargs)
        tensors = given.tensors
        lazy.evaluate([t.node for t in tensors], "compile")
        key = (MODE.trace.grad_enabled, config.CONFIG.program_key, given.key())
        entry = self._entry(key)
        if entry.given_up:
            EVENTS.add("uncaptured_calls")
            if not given.arrays:
                return self._function(*args, **kwargs)
            copies = given.with_tensors(tensors)
            try:
                result = self._function(*copies.args, **copies.kwargs)
            finally:
                copies.hand_back()
            lazy.evaluate(reason="compile")  # the arrays are the caller's again
            return result
        moved = None if entry.script is None else entry.script.moved()
        if entry.ready:
            entry.calls += 1
            if moved is not None:
                entry.ready = False
                entry.moves = entry.moves + 1 if entry.calls == entry.watched_at + 1 else 1
                if entry.moves > _ATTEMPTS:
                    self._give_up(entry, f"{moved} changes from call to call")
                    return self._looked_up(args, kwargs)
            elif _repeats(entry.calls):
                result = entry.repeat([t._node.buffer for t in tensors], tensors)
                if result is not CHANGED:
                    return result
        return self._watch(entry, given, moved)

    def _entry(self, key: object) -> _Entry:
        """What is known of calls of a kind in the present state of things."""
        states = self._entries.get(key)
        if states is None:
            if len(self._entries) >= _KINDS or self._others.given_up:
                if not self._others.given_up:
                    # What has not been repeated would keep its arguments.
                    known = self._entries.items()
                    self._entries = {k: es for k, es in known if any(e.ready for e in es)}
                    self._give_up(
                        self._others,
                        f"it has been called with {_KINDS} combinations of shapes and constants "
                        "(pass numbers that change as tensors)",
                        "for other ones",
                    )
                return self._others
            states = self._entries.setdefault(key, [_Entry()])  # another thread may have, too
        for entry in states:
            if entry.given_up:
                return entry
        for entry in states:
            if entry.script is None or entry.script.fits():
                return entry
        if len(states) < _STATES:
            states.append(_Entry())
        else:  # that of the oldest
            states.append(states.pop(0))
            states[-1].ready = False
        return states[-1]

    def _watch(self, entry: _Entry, arguments: Given, moved: str | None) -> Any:
        """Run the function and see; ``moved`` is what has changed around it since the last time."""
        before, tensors = entry.script, arguments.tensors
        watch = Watch()
        watch.at_end(LEAF_HOOKS, "changes")
        given = list(tensors)
        surroundings = Surroundings(self._function, *arguments.positional_and_named)
        found = set(map(id, surroundings.tensors()))
        if any(t.requires_grad for t in tensors):
            watch.refuse("an argument requires grad")
        elif not found.isdisjoint(map(id, tensors)):
            watch.refuse("an argument is a tensor that it finds without being given it, too")
        else:
            # Values of their own: an argument may also be another one, or a tensor that the
            # function knows without being given it.
            own: dict[int, Tensor] = {}
            for t in tensors:
                if id(t) not in own:
                    node = t._node
                    own[id(t)] = Tensor._wrap(leaf(node.buffer, node.shape, node.dtype))
                    own[id(t)]._strides = t._strides
            given = [own[id(t)] for t in tensors]
        nodes = [t._node for t in given]
        template, results = None, list[Tensor]()
        copies = arguments.with_tensors(given)
        trace = MODE.trace
        trace.capture = watch
        WATCHED.add(trace.thread)
        try:
            try:
                result = self._function(*copies.args, **copies.kwargs)
            finally:
                if copies.hand_back():
                    watch.refuse("it changes a list or dict that it is given")
            try:
                template, results = flatten(result)
            except Refused as refused:
                watch.refuse(str(refused))
            else:
                for t in results:
                    if t._base is not None:
                        _ = t.node  # what it shows in the end is to be computed, too
            lazy.evaluate(reason="compile")
        finally:
            trace.capture = None
            WATCHED.discard(trace.thread)
            changed = {}
            for original, tensor, node in zip(tensors, given, nodes, strict=True):
                if original is not tensor and tensor._node is not node:
                    changed[id(original)] = original, tensor
                elif tensor._base is not None and original._base is None:
                    show(original, tensor, detached=True)  # another has its memory now
            for original, tensor in changed.values():
                watch.refuse("it changes an argument in place")
                with autograd.no_grad():
                    original._assign(tensor._node, "compile")
        EVENTS.add("watched_calls")
        script = None
        try:
            surroundings = Surroundings(self._function, *arguments.positional_and_named)
            script = Script(watch, given, template, results, surroundings)
        except Refused as refused:
            self._give_up(entry, str(refused))
        # What stood for an argument has done its work.
        originals = dict(zip(map(id, given), tensors, strict=True))
        for t in results:
            _follow_instead(t, originals)
        if any(id(t) in originals for t in results):
            results = [originals.get(id(t), t) for t in results]
            result = unflatten(template, results)
        if script is None:
            return result
        if not all(t.is_leaf for t in results):  # those of repeated calls are, too
            result = unflatten(template, [t if t.is_leaf else t.detach() for t in results])
        same = before is not None and before.signature == script.signature
        if entry.ready and not same:
            errors.warn(
                f"{self._name} changed what it does after {entry.calls} calls; its calls are "
                "watched again.  Calls in between did what it did before"
            )
        entry.attempts = 0 if same else entry.attempts + 1
        if not same:
            entry.calls = 0
        entry.script, entry.ready, entry.watched_at = script, same, entry.calls
        if moved is None:
            entry.moves = 0
        self._ready = tuple(e for e in self._ready if e is not entry)
        if same:
            entry.repeat = script.repetition()
            if arguments.is_flat and not script.returns_arguments:
                entry.accept = _acceptance(arguments)
                self._ready = (entry, *self._ready[: _READY - 1])
        if entry.attempts > _ATTEMPTS:
            reason = "every call does something else"
            self._give_up(entry, reason if moved is None else f"{moved} changes from call to call")
        return result

    @property
    def _name(self) -> str:
        return f"mt.compile({getattr(self._function, '__qualname__', self._function)})"

    def _give_up(self, entry: _Entry, reason: str, which: str = "at every call") -> None:
        entry.script, entry.given_up, entry.ready = None, True, False
        self._ready = tuple(e for e in self._ready if e is not entry)
        errors.warn(f"{self._name} runs the function {which}: {reason}", RuntimeWarning)


_MODES = ("default", "lite", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
_BACKENDS = ("inductor", "eager", "aot_eager", "cudagraphs", "tvm")


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """``model``, a function or a module, without the cost of recording it at every call.

    For a training step: forward, ``backward()`` and ``optimizer.step()``.  Arguments are tensors or
    arrays, also in tuples, lists and dicts (other values are constants: a call with another value
    is another program); results are tensors, detached, in tuples, lists or dicts.  Parameters,
    optimizer state, running statistics, gradients, the learning rate, schedulers called inside and
    random numbers behave as without it.

    Other effects on Python's state happen only in the calls that run the function: the first two or
    three for each combination of shapes, every call whose number is a power of two or a multiple
    of 2048, and calls before which something has changed that it finds without being given
    it: globals, variables of functions around it, attributes of the objects and classes that it
    reaches through them or its arguments, attributes and hooks of modules.  That is told by
    identity, for numbers and strings by value: what lists, dictionaries, arrays, slots and default
    arguments hold, and what files and the environment say, is only seen at calls of such numbers (a
    change is reported by a warning then).  What cannot be repeated (reading values inside, keeping
    tensors made inside) is reported by a RuntimeWarning, and the function then runs at every call,
    as it does once it has been called with 64 combinations of shapes and constants.

    ``compile(model)`` has the model's attributes and methods (``parameters()``, ``eval()``), and is
    the model itself with ``disable=True``.  Without a function it returns a decorator.  The other
    arguments are there so that scripts run as they are, and change nothing.  Raises RuntimeError
    for modes and backends that PyTorch does not know, and for a mode beside ``options``;
    NotImplementedError for a backend that is a function, which would be given PyTorch's graphs.

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
    if model is not None and not callable(model):
        raise TypeError(f"mt.compile expects a function or a module, got {type(model).__name__}")
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    if callable(backend):
        raise NotImplementedError("compile(): backend must be a name: there are no FX graphs here")
    if backend is not None and backend not in _BACKENDS:
        raise RuntimeError(
            f"Invalid backend: {backend!r}, see `torch._dynamo.list_backends()` for available "
            "backends."
        )
    if mode is not None and mode not in _MODES and backend in (None, "inductor"):
        known = ", ".join(_MODES)
        raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {known}")

    def made(function: Callable[..., Any]) -> Any:
        return function if disable else Compiled(function)

    return made if model is None else made(model)
