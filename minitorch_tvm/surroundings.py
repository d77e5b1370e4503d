"""What a captured function finds without being given it: globals, variables of functions around it,
attributes of the objects that it reaches through them.

The names are read off its code: ``self.model.scale`` is a chain that starts at its first argument,
``settings.rate`` one that starts at a global.  What is found in the dictionaries of instances on
the way is looked at before a call is repeated; if a name stands for something else, the function
runs.  Functions that it calls by such names are followed.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .tensor import Tensor

Chain = tuple[str, str, tuple[str, ...]]
"""Where it starts ("global", "cell" or "local"), the name there, and attributes."""

MISSING = object()
_CONSTANTS = (int, float, complex, str, bytes, bool)
_FUNCTIONS = 16
"""So many are followed."""
_KNOWN = {__package__, "numpy", *sys.stdlib_module_names} - {"__main__"}
_TABLES = ("_parameters", "_buffers", "_modules")


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
        if start is not None and instruction.opname == "COPY":  # of a.b += c, which reads a.b too
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
    """What ``function`` finds now, given these arguments, and whether that has changed."""

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> None:
        self._entries: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
        self._cells: dict[int, tuple[Any, Any, str]] = {}
        self._seen: dict[int, Any] = {}
        # A module of the user's may be called like one of Python's.
        self._known = _KNOWN - {(getattr(function, "__module__", None) or "").partition(".")[0]}
        self._known |= {__package__}
        self._follow(function, args, kwargs or {})
        self.entries = list(self._entries.values())
        """Dictionaries, names, and what these stand for."""
        self.cells = list(self._cells.values())
        """Variables of functions around it, their values and names."""

    def changed(self) -> str | None:
        """The name of something that is not what it was."""
        for where, name, value in self.entries:
            if not is_same(where.get(name, MISSING), value):
                return name
        for cell, value, name in self.cells:
            if not is_same(content(cell), value):
                return name
        return None

    def tensors(self) -> list[Tensor]:
        """The tensors among what it finds."""
        values = [value for _, _, value in self.entries] + [value for _, value, _ in self.cells]
        return [value for value in values if isinstance(value, Tensor)]

    def _follow(self, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Add what a function finds that is called so."""
        if isinstance(value, functools.partial):
            self._follow(value.func, (*value.args, *args), {**value.keywords, **kwargs})
        elif isinstance(value, types.MethodType):
            self._follow(value.__func__, (value.__self__, *args), kwargs)
        elif isinstance(value, types.FunctionType):
            known = id(value) in self._seen or len(self._seen) >= _FUNCTIONS
            if not known and not self._is_known(value):
                self._seen[id(value)] = value
                self._look(value, args, kwargs)
        elif not isinstance(value, (type, Tensor)) and callable(value):
            inner = getattr(value, "__dict__", {}).get("__wrapped__")
            call = getattr(type(value), "forward", None) or type(value).__call__
            if isinstance(inner, types.FunctionType):
                self._follow(inner, args, kwargs)
            elif isinstance(call, types.FunctionType):
                self._follow(call, (value, *args), kwargs)

    def _look(self, function: types.FunctionType, args: Sequence[Any], kwargs: Any) -> None:
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        given = {**dict(zip(code.co_varnames[: code.co_argcount], args, strict=False)), **kwargs}
        for kind, name, attributes in _chains(code):
            value: Any = MISSING
            if kind == "global":
                if not hasattr(builtins, name):
                    value = self._entry(function.__globals__, name)
            elif name in cells:
                value = content(cells[name])
                if not self._is_known(value):
                    self._cells[id(cells[name])] = cells[name], value, name
            else:
                value = given.get(name, MISSING)
            # What surprises in other people's classes is none of the function's errors.
            with contextlib.suppress(Exception):
                for attribute in attributes:
                    value = self._attribute(value, attribute)
                if value is not MISSING:
                    self._follow(value, (), {})

    def _attribute(self, value: Any, name: str) -> Any:
        """An attribute, if it is in the dictionary of an instance, or of its class."""
        if value is MISSING or isinstance(value, Tensor) or self._is_known(value):
            return MISSING
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            tables = [own.get(table) for table in _TABLES]  # of modules
            for where in (own, *tables):
                if isinstance(where, dict) and name in where:
                    return self._entry(where, name)
            self._entry(own, name)  # it may come to hide what the class has
        of_class = isinstance(value, type)
        for kind in (value if of_class else type(value)).__mro__:
            if name in vars(kind):
                found = self._entry(vars(kind), name, id(kind))
                if isinstance(found, types.FunctionType):
                    return found if of_class else types.MethodType(found, value)
                if isinstance(found, (classmethod, staticmethod)):
                    return getattr(value, name)
                # A property, say, is a function that is called with it.
                getter = found.fget if isinstance(found, property) else None
                if isinstance(getter, types.FunctionType):
                    self._follow(getter, (value,), {})
                return MISSING if hasattr(found, "__get__") else found
        return MISSING

    def _is_known(self, value: Any) -> bool:
        """Functions, classes and modules of this package and of Python are what they are."""
        if isinstance(value, types.ModuleType):
            name = value.__name__
        elif isinstance(value, (types.FunctionType, type)):
            name = value.__module__ or ""
        else:
            return isinstance(value, types.BuiltinFunctionType)
        return name.partition(".")[0] in self._known

    def _entry(self, where: Mapping[str, Any], name: str, of: int | None = None) -> Any:
        value = where.get(name, MISSING)
        if not self._is_known(value):
            self._entries[id(where) if of is None else of, name] = where, name, value
        return value


def content(cell: Any) -> Any:
    """The value of a variable, or something that is nothing else."""
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return MISSING


def is_same(found: Any, value: Any) -> bool:
    """Whether it is the same object, or a constant like it."""
    if found is value:
        return True
    if type(found) is not type(value) or type(found) not in _CONSTANTS:
        return False
    return bool(found == value) and repr(found) == repr(value)  # 0.0 is not -0.0
