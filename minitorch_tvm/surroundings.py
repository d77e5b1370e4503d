"""What a captured function finds without being given it: globals, variables of functions around it,
attributes of the objects that it reaches through them.

The names are read off its code: ``self.model.scale`` is a chain that starts at its first argument,
``settings.rate`` one that starts at a global.  What is found in the dictionaries of instances on
the way is looked at before a call is repeated; if a name stands for something else, the function
runs.  Functions that it calls by such names are followed.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from .tensor import Tensor

Chain = tuple[str, str, tuple[str, ...]]
"""Where it starts ("global", "cell" or "local"), the name there, and attributes."""

_MISSING = object()
_CONSTANTS = (int, float, complex, str, bytes, bool)
_FUNCTIONS = 16
"""So many are followed."""


@functools.lru_cache(maxsize=256)
def _chains(code: types.CodeType) -> tuple[Chain, ...]:
    found: dict[Chain, None] = {}
    start: tuple[str, str] | None = None
    names: list[str] = []
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if start is not None and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(name)
            continue
        if start is not None:
            found[(*start, tuple(names))] = None
        start, names = None, []
        if instruction.opname.startswith("LOAD_GLOBAL"):
            start = "global", name
        elif instruction.opname.startswith("LOAD_DEREF"):
            start = "cell", name
        elif instruction.opname.startswith("LOAD_FAST"):  # some load two, which are a tuple
            start = "local", name[-1] if isinstance(name, tuple) else name
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= dict.fromkeys(c for c in _chains(constant) if c[0] != "local")
    return tuple(found)


class Surroundings:
    """What ``function`` finds now, and whether that has changed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._entries: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self._cells: dict[int, tuple[Any, Any]] = {}
        self._seen: dict[int, Any] = {}
        self._follow(function)
        self.entries = list(self._entries.values())
        """Dictionaries, names, and what these stand for."""
        self.cells = list(self._cells.values())
        """Variables of functions around it, and their values."""

    def changed(self) -> str | None:
        """The name of something that is not what it was."""
        for where, name, value in self.entries:
            if not is_same(where.get(name, _MISSING), value):
                return name
        for cell, value in self.cells:
            if not is_same(content(cell), value):
                return next(n for c, n in self._named_cells() if c is cell)
        return None

    def _named_cells(self) -> Iterator[tuple[Any, str]]:
        for function in self._seen.values():
            if isinstance(function, types.FunctionType):
                yield from zip(
                    function.__closure__ or (), function.__code__.co_freevars, strict=True
                )

    def _follow(self, value: Any, owner: Any = _MISSING) -> None:
        """Add what a function finds, whose first argument is ``owner``."""
        if isinstance(value, functools.partial):
            self._follow(value.func)
        elif isinstance(value, types.MethodType):
            self._follow(value.__func__, value.__self__)
        elif isinstance(value, types.FunctionType):
            known = id(value) in self._seen or len(self._seen) >= _FUNCTIONS
            if not known and not _is_own(value):
                self._seen[id(value)] = value
                self._look(value, owner)
        elif not isinstance(value, (type, Tensor)) and callable(value):
            inner = getattr(value, "__dict__", {}).get("__wrapped__")
            call = getattr(type(value), "forward", None) or type(value).__call__
            if isinstance(inner or call, types.FunctionType):
                self._follow(inner or call, value)

    def _look(self, function: types.FunctionType, owner: Any) -> None:
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for kind, name, attributes in _chains(code):
            value: Any = _MISSING
            if kind == "global" and name in function.__globals__:
                value = self._entry(function.__globals__, name)
            elif kind != "global" and name in cells:
                value = content(cells[name])
                if not _is_own(value):
                    self._cells[id(cells[name])] = cells[name], value
            elif kind != "global" and code.co_argcount and name == code.co_varnames[0]:
                value = owner
            for attribute in attributes:
                if isinstance(value, types.ModuleType) and _is_own(value):
                    value = _MISSING
                own = getattr(value, "__dict__", None) if value is not _MISSING else None
                if not isinstance(own, dict) or isinstance(value, Tensor) or attribute not in own:
                    bound = value
                    value = _MISSING
                    if isinstance(getattr(type(bound), attribute, None), types.FunctionType):
                        value = getattr(bound, attribute)  # a method
                    break
                value = self._entry(own, attribute)
            if value is not _MISSING:
                self._follow(value)

    def _entry(self, where: dict[str, Any], name: str) -> Any:
        value = where[name]
        if not _is_own(value):
            self._entries[id(where), name] = where, name, value
        return value


def content(cell: Any) -> Any:
    """The value of a variable, or something that is nothing else."""
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _is_own(value: Any) -> bool:
    """Functions, classes and modules of this package and of numpy are what they are."""
    if isinstance(value, types.ModuleType):
        name = value.__name__
    elif isinstance(value, (types.FunctionType, type)):
        name = value.__module__ or ""
    else:
        return isinstance(value, types.BuiltinFunctionType)
    return name.partition(".")[0] in (__package__, "numpy", "builtins")


def is_same(found: Any, value: Any) -> bool:
    """Whether it is the same object, or a constant like it."""
    if found is value:
        return True
    if type(found) is not type(value) or type(found) not in _CONSTANTS:
        return False
    return bool(found == value) and repr(found) == repr(value)  # 0.0 is not -0.0
