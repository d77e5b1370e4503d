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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import autograd, lazy
from .core import config
from .core.events import EVENTS
from .ir.node import MODE, WATCHED, leaf
from .runtime.memory import Buffer
from .script import CHANGED, Refused, Repeat, Script, Watch, flatten, unflatten
from .tensor import Tensor, from_numpy

_READY = 8
"""Kinds of calls that are recognised without looking them up, those that were repeated last."""
_ATTEMPTS = 8
"""Calls that may differ from each other before the function is no longer watched."""


Accept = Callable[[Sequence[Any]], Sequence[Buffer] | None]


@dataclass
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


def _follow_instead(view: Tensor, originals: dict[int, Tensor]) -> None:
    """Make a view of what stood for an argument one of the argument."""
    while view._base is not None:
        base = originals.get(id(view._base))
        if base is not None:
            view._base, view._seen = base, base._version
            return
        view = view._base


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
        watch = Watch()
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
        template, results = None, list[Tensor]()
        handed = iter(given)
        own = args
        args = [next(handed) if isinstance(a, Tensor) else a for a in args]
        trace = MODE.trace
        trace.capture = watch
        WATCHED.add(trace.thread)
        try:
            result = self._function(*args, **kwargs)
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
        EVENTS.add("watched_calls")
        for original, tensor, node in zip(tensors, given, nodes, strict=True):
            if original is not tensor and tensor._node is not node:
                watch.refuse("it changes an argument in place")
                with autograd.no_grad():
                    original._assign(tensor._node, "compile")
        script = None
        try:
            script = Script(watch, given, template, results)
        except Refused as refused:
            self._give_up(entry, str(refused))
        # What stood for an argument has done its work.
        originals = dict(zip(map(id, given), tensors, strict=True))
        for t in results:
            _follow_instead(t, originals)
        if any(id(t) in originals for t in results):
            result = unflatten(template, [originals.get(id(t), t) for t in results])
        if script is None:
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
            if not (kwargs or script.returns_arguments):
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
