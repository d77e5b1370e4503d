"""Dataclasses that are made when the first of their objects is."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import MISSING
from operator import attrgetter
from typing import Any, TypeVar, overload

from typing_extensions import dataclass_transform

_Class = TypeVar("_Class", bound=type)
_COMPLETING = threading.RLock()
_FIELDS, _COMPARED = "__dataclass_fields__", "_compared"


@overload
def record(cls: _Class, /) -> _Class: ...
@overload
def record(
    *, frozen: bool = True, eq: bool = True, sealed: bool = False
) -> Callable[[_Class], _Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(
    cls: Any = None, /, *, frozen: bool = True, eq: bool = True, sealed: bool = False
) -> Any:
    """``dataclasses.dataclass`` for this package's own classes, of which there are some 200.

    That one looks at fields, and writes and compiles five methods, of each in every process, 0.4 to
    0.6 ms.  Most of these classes are ops, few of which are in a program.  So fields are looked at
    when the first object is made, or when somebody asks for them; then ``__init__`` is compiled.
    The other methods are the same functions for all classes.  ``frozen``, the default, is for
    whoever checks types; when fields are set, it is checked of those that are ``sealed``, as what
    users are given is: that takes ``__init__`` three times as long.  ``eq=False`` leaves objects
    equal to themselves alone.  Fields, ``replace`` and the rest are dataclasses', but for
    ``kw_only`` and ``InitVar``, which nobody here has a use for.

    >>> @record
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1) == Point(1, 0), Point(2)
    (True, Point(x=2, y=0))
    """

    def made(cls: Any) -> Any:
        own = vars(cls)
        if "__init__" not in own:
            cls.__init__ = _first_init(cls, sealed)
        if "__repr__" not in own:
            cls.__repr__ = _repr
        if eq:
            setattr(cls, _COMPARED, _Later(cls, _COMPARED))
            cls.__eq__ = _eq
            if "__hash__" not in own:
                cls.__hash__ = _hash if frozen else None
        if sealed:
            cls.__setattr__, cls.__delattr__ = _set_nothing, _delete_nothing
        setattr(cls, _FIELDS, _Later(cls, _FIELDS))
        return cls

    return made if cls is None else made(cls)


class _Later:
    """What a class has for a name until it is complete: whoever asks for that completes it."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, instance: object, kind: Any) -> Any:
        _complete(self.owner)
        return getattr(kind if instance is None else instance, self.name)


def _first_init(cls: Any, sealed: bool) -> Any:
    compiled: Any = None

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal compiled
        if compiled is None:  # somebody may have put something around this one
            compiled = _init(cls, sealed)
            if vars(cls)["__init__"] is __init__:
                cls.__init__ = compiled
        compiled(self, *args, **kwargs)

    return __init__


def _complete(cls: Any) -> None:
    with _COMPLETING:  # each name has what stands for it until it has what it is to have
        if not isinstance(vars(cls)[_FIELDS], _Later):
            return
        eq = isinstance(vars(cls).get(_COMPARED), _Later)
        # Without a text it would write one, from the signature: a fourth of its time.
        undocumented = cls.__doc__ is None
        if undocumented:
            cls.__doc__ = cls.__name__
        dataclasses.dataclass(init=False, eq=False, repr=False)(cls)
        if undocumented:
            cls.__doc__ = None
        if eq:
            names = [f.name for f in dataclasses.fields(cls) if f.compare]
            # Of one name this would not make a tuple, in which a NaN equals itself.
            cls._compared = attrgetter(*((*names, *names[:1]) or ("__class__",)))


def _init(cls: Any, sealed: bool) -> Any:
    """The function that sets all fields."""
    known: dict[str, Any] = {"_absent": MISSING, "_set": object.__setattr__}
    parameters, lines = [], []
    for f in dataclasses.fields(cls):
        value = f.name
        if f.default_factory is not MISSING:
            known[f"_make_{f.name}"] = f.default_factory
            value = f"_make_{f.name}()"
            if f.init:
                parameters.append(f"{f.name}=_absent")
                value += f" if {f.name} is _absent else {f.name}"
        elif f.default is not MISSING:
            known[f"_default_{f.name}"] = f.default
            if f.init:
                parameters.append(f"{f.name}=_default_{f.name}")
            else:
                value = f"_default_{f.name}"
        elif f.init:
            parameters.append(f.name)
        else:
            continue  # for somebody else to set
        line = f"_set(self, {f.name!r}, {value})" if sealed else f"self.{f.name} = {value}"
        lines.append(f"    {line}")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    text = "\n".join([f"def __init__({', '.join(['self', *parameters])}):", *lines, "    return"])
    exec(text, known)
    made = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


def _set_nothing(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete_nothing(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _eq(self: Any, other: Any) -> bool:
    if other is self:
        return True
    if other.__class__ is not self.__class__:
        return NotImplemented
    return bool(self._compared(self) == self._compared(other))


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _repr(self: Any) -> str:
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"
