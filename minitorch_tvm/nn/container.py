"""Modules that hold modules (or parameters) in order or by name."""

from __future__ import annotations

import itertools
import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, Self

from ..core import config
from ..ir import passage
from ..ir.node import MODE, WATCHED
from ..tensor import Tensor
from .module import Module, _indent, reads_of
from .parameter import Parameter


def _position(index: Any, length: int) -> int:
    """A non-negative position; raises IndexError in PyTorch's words."""
    at = operator.index(index)
    if not -length <= at < length:
        raise IndexError(f"index {at} is out of range")
    return at % length


class _Ordered(Module):
    """Children named "0", "1", ...: what Sequential and ModuleList share."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._modules.values())

    def __contains__(self, module: object) -> bool:
        return any(m is module for m in self._modules.values())

    def _key(self, index: Any) -> str:
        keys = list(self._modules)
        return keys[_position(index, len(keys))]

    def _renumber(self, modules: Iterable[Module | None]) -> None:
        listed = [*modules]
        self._modules.clear()
        for position, module in enumerate(listed):
            self.add_module(str(position), module)

    def __setitem__(self, index: int, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._modules[self._key(index)] = module

    def __delitem__(self, index: int | slice) -> None:
        keys = list(self._modules)
        gone = keys[index] if isinstance(index, slice) else [self._key(index)]
        self._renumber([m for k, m in self._modules.items() if k not in gone])

    def append(self, module: Module) -> Self:
        """Add ``module`` at the end; returns self."""
        self.add_module(str(len(self)), module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Put ``module`` before position ``index``; returns self."""
        if not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        listed = list(self._modules.values())
        if not -len(listed) <= index <= len(listed):
            raise IndexError(f"Index out of range: {index}")
        listed.insert(index, module)
        self._renumber(listed)
        return self

    def pop(self, index: int = -1) -> Any:
        """Remove and return the module at ``index``."""
        module = self._modules[self._key(index)]
        del self[index]
        return module

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add several modules at the end; returns self."""
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"{type(self).__name__}.extend should be called with an iterable, but got "
                f"{type(modules).__name__}"
            )
        for module in list(modules):
            self.append(module)
        return self

    __iadd__ = extend


class Sequential(_Ordered):
    """Calls its children one after the other.

    Takes modules, or one ordered dict of them.  An index gives a child, a slice a Sequential.

    >>> import minitorch_tvm as mt
    >>> net = mt.nn.Sequential(mt.nn.Linear(4, 3), mt.nn.ReLU())
    >>> net[1]
    ReLU()
    >>> len(net[:1])
    1
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for position, module in enumerate(args):
                self.add_module(str(position), module)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(dict(list(self._modules.items())[index]))
        return self._modules[self._key(index)]

    def forward(self, input: Any) -> Any:
        """The last child's result."""
        if not WATCHED and isinstance(input, Tensor) and config.CONFIG.mode != "eager":
            choices: list[object] = []
            tensors = [input]
            if reads_of(self._modules.values(), choices, tensors):
                return self._recorded(input, choices, tensors)
        return self._in_turn(input)

    def _in_turn(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        return input

    _plain, _calls_children = ((), ()), True

    def _recorded(self, input: Tensor, choices: list[object], tensors: list[Tensor]) -> Any:
        """What the children record in turn; as a whole, if they did it before."""
        trace = MODE.trace
        nodes = [t._node if t._base is None else t.node for t in tensors]
        latest = passage.Latest.of(trace, choices, nodes)
        if latest is not None:
            return Tensor._wrap(latest.record(trace, nodes))
        key = passage.key_of(trace, choices, nodes)
        try:
            known = trace.prefix.known.get(key)
        except TypeError:  # an option has no hash
            key = known = None
        start, base, count = trace.prefix, trace.base, len(trace.values)
        if known:
            new = nodes[0].at == -1  # as a batch is; nothing else is told from the latest
            node = known.record(trace, nodes)
            if new:
                passage.Latest.note(trace, start, choices, nodes, known)
            return Tensor._wrap(node)
        result = self._in_turn(input)
        # Nothing has been evaluated, and nothing is there that the prefix does not tell.
        if key is not None and known is None and trace.base == base and trace.whole:
            # A view is more than its value.
            plain = isinstance(result, Tensor) and result._base is None and result._strides is None
            # Nor has anything been written to what was given.
            plain = plain and all(t._node is n for t, n in zip(tensors, nodes, strict=True))
            found = plain and passage.Passage.since(trace, start, count, nodes, result._node)
            start.remember(key, found or False)
        return result


class ModuleList(_Ordered):
    """A list of modules.

    >>> import minitorch_tvm as mt
    >>> mt.nn.ModuleList([mt.nn.ReLU(), mt.nn.ReLU()])
    ModuleList(
      (0-1): 2 x ReLU()
    )
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self._modules.values())[index])  # type: ignore[arg-type]
        return self._modules[self._key(index)]

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def _child_lines(self) -> list[str]:
        lines = []
        start = 0
        for text, run in itertools.groupby(repr(m) for m in self):
            count = len(list(run))
            last = start + count - 1
            label = f"({start}): " if count == 1 else f"({start}-{last}): {count} x "
            lines.append(label + _indent(text))
            start += count
        return lines


class ModuleDict(Module):
    """A dictionary of modules, in order of insertion.

    >>> import minitorch_tvm as mt
    >>> heads = mt.nn.ModuleDict({"a": mt.nn.Linear(2, 3)})
    >>> [name for name, _ in heads.named_parameters()]
    ['a.weight', 'a.bias']
    """

    def __init__(
        self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None
    ) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def items(self) -> Any:
        """(name, module) pairs."""
        return self._modules.items()

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Remove and return the module called ``key``."""
        return self._modules.pop(key)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace modules from a mapping or from (name, module) pairs."""
        for name, module in dict(modules).items():
            self[name] = module


class ParameterList(Module):
    """A list of parameters; tensors are made parameters, other values are only kept.

    >>> import minitorch_tvm as mt
    >>> len(list(mt.nn.ParameterList([mt.zeros(2), mt.ones(3)]).parameters()))
    2
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)([self[i] for i in range(*index.indices(self._size))])
        return getattr(self, str(_position(index, self._size)))

    def __setitem__(self, index: int, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            value = Parameter(value)
        setattr(self, str(_position(index, self._size)), value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._size))

    def append(self, value: Any) -> Self:
        """Add ``value`` at the end; returns self."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add several values at the end; returns self."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(
                f"ParameterList.extend should be called with an iterable, but got "
                f"{type(values).__name__}"
            )
        for value in list(values):
            self.append(value)
        return self

    __iadd__ = extend

    def __repr__(self) -> str:
        lines = [
            f"  ({position}): {_described(value, value.dtype.name)}"
            if isinstance(value, Tensor)
            else f"  ({position}): Object of type: {type(value).__name__}"
            for position, value in enumerate(self)
        ]
        return "ParameterList(\n  " + "\n  ".join(lines) + "\n)" if lines else "ParameterList()"


def _described(value: Tensor, dtype: str) -> str:
    """What PyTorch prints of a tensor in a container of parameters."""
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"{kind} containing: [torch.{dtype} of size {'x'.join(map(str, value.shape))}]"


class ParameterDict(Module):
    """A dictionary of parameters; tensors are made parameters, other values are only kept.

    Keys are strings, in order of insertion; TypeError is raised for others.

    >>> import minitorch_tvm as mt
    >>> scales = mt.nn.ParameterDict({"a": mt.ones(2), "b": mt.zeros(3)})
    >>> [name for name, _ in scales.named_parameters()]
    ['a', 'b']
    """

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def _known(self, key: Any) -> str:
        if not isinstance(key, str):
            raise TypeError(
                "Index given to ParameterDict cannot be used as a key as it is not a string (type "
                f"is '{type(key).__name__}'). Open an issue on github if you need non-string keys."
            )
        return key

    def __getitem__(self, key: str) -> Any:
        return getattr(self, self._known(key))

    def __setitem__(self, key: str, value: Any) -> None:
        self._keys[self._known(key)] = None
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            value = Parameter(value)
        setattr(self, key, value)

    def __delitem__(self, key: str) -> None:
        del self._keys[self._known(key)]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __or__(self, other: ParameterDict) -> ParameterDict:
        copied = self.copy()
        copied.update(other)
        return copied

    def __ror__(self, other: ParameterDict) -> ParameterDict:
        copied = other.copy()
        copied.update(self)
        return copied

    def __ior__(self, other: ParameterDict) -> Self:
        self.update(other)
        return self

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("ParameterDict should not be called.")

    def copy(self) -> ParameterDict:
        """Another dictionary with the same parameters."""
        return ParameterDict(OrderedDict(self.items()))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, which is ``default`` from now on if there was none."""
        if key not in self:
            self[key] = default
        return self[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` if there is none."""
        return getattr(self, key) if key in self._keys else default

    def pop(self, key: str) -> Any:
        """Remove and return the value of ``key``."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the latest (key, value) pair."""
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def clear(self) -> None:
        """Remove all."""
        for key in list(self._keys):
            del self[key]

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """A dictionary with these keys and one value."""
        return ParameterDict((key, default) for key in keys)

    def keys(self) -> Any:
        """The keys."""
        return self._keys.keys()

    def values(self) -> Any:
        """The values."""
        return (self[key] for key in self._keys)

    def items(self) -> Any:
        """(key, value) pairs."""
        return ((key, self[key]) for key in self._keys)

    def update(self, parameters: Any) -> None:
        """Add or replace values from pairs, or from a mapping: by its keys' order if plain."""
        if not isinstance(parameters, Iterable):
            raise TypeError(
                "ParametersDict.update should be called with an iterable of key/value pairs, but "
                f"got {type(parameters).__name__}"
            )
        if isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict):
            parameters = sorted(parameters.items())
        elif isinstance(parameters, (Mapping, ParameterDict)):
            parameters = parameters.items()
        for position, pair in enumerate(parameters):
            if not isinstance(pair, Iterable):
                raise TypeError(
                    f"ParameterDict update sequence element #{position} should be Iterable; "
                    f"is{type(pair).__name__}"
                )
            parts = tuple(pair)
            if len(parts) != 2:
                raise ValueError(
                    f"ParameterDict update sequence element #{position} has length {len(parts)}; 2 "
                    "is required"
                )
            self[parts[0]] = parts[1]

    def __repr__(self) -> str:
        lines = [
            f"    ({key}): {_described(value, f'{value.dtype.torch_name}Tensor')}"
            if isinstance(value, Tensor)
            else f"    ({key}): Object of type: {type(value).__name__}"
            for key, value in self.items()
        ]
        return "ParameterDict(\n" + "\n".join(lines) + "\n)" if lines else "ParameterDict()"
