"""What a captured function is given."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from .tensor import Tensor, from_numpy

Items = list[tuple[Any, Any]]
_SIGNED = (float, complex, np.floating, np.complexfloating)
_CONTAINERS = (tuple, list, dict, OrderedDict, defaultdict)


class _Constant:
    """What is no tensor: equal if it is the same, neither 1 and True nor 0.0 and -0.0.

    What cannot be hashed, or compared, is the same if it is the same object.
    """

    __slots__ = ("_by_value", "_hash", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value  # the reference keeps its id from being used again
        try:
            self._hash, self._by_value = hash(value), True
        except Exception:  # whatever somebody else's __hash__ raises
            self._hash, self._by_value = id(value), False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant) or type(other._value) is not type(self._value):
            return False
        a, b = self._value, other._value
        if a is b:
            return True
        if not self._by_value:
            return False
        try:
            same = bool(a == b)
        except Exception:
            return False
        return same and (not isinstance(a, _SIGNED) or repr(a) == repr(b))

    def __hash__(self) -> int:
        return self._hash


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _is_container(value: Any) -> bool:
    # Of other classes it is not known how to make one.
    kind = type(value)
    return kind in _CONTAINERS or (issubclass(kind, tuple) and hasattr(kind, "_make"))


def _items(container: Any) -> Items:
    return list(container.items() if isinstance(container, dict) else enumerate(container))


def _mapped(
    value: Any,
    tensor: Callable[[Any], Any],
    constant: Callable[[Any], Any],
    container: Callable[[Any, Items], Any],
) -> Any:
    """``value`` with all that it consists of replaced, from the inside out."""
    if _is_tensor(value):
        return tensor(value)
    if not _is_container(value):
        return constant(value)
    items = [(k, _mapped(x, tensor, constant, container)) for k, x in _items(value)]
    return container(value, items)


class Given:
    """The arguments of a call.  Tuples, lists and dicts are looked into."""

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._args, self._kwargs = tuple(args), kwargs
        self.tensors: list[Tensor] = []
        """All tensors; arrays are tensors on their memory."""
        self.arrays = False
        self._map(self._add, lambda value: None, lambda value, items: None)

    def _add(self, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self.arrays = True
            value = from_numpy(value)
        self.tensors.append(value)

    def _map(self, *functions: Any) -> Any:
        """Of all arguments, positional ones first."""
        values = chain(self._args, self._kwargs.values())
        return [_mapped(value, *functions) for value in values]

    def key(self) -> tuple[object, ...]:
        """Equal for arguments that differ in the values of tensors only."""
        tensors = iter(self.tensors)

        def tensor(_: Any) -> object:
            t = next(tensors)
            return t._node.spec_id, t._node.requires_grad, t._strides

        def container(value: Any, items: Items) -> object:
            return type(value), tuple(items)

        found = self._map(tensor, _Constant, container)
        first: dict[int, int] = {}  # which of them are one tensor
        alike = tuple(first.setdefault(id(t), n) for n, t in enumerate(self.tensors))
        return len(self._args), tuple(self._kwargs), alike, *found

    @property
    def positional_and_named(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """As they were given."""
        return self._args, self._kwargs

    @property
    def is_flat(self) -> bool:
        """Whether all are positional, no tensor twice, and none in something else."""
        distinct = len(set(map(id, self.tensors))) == len(self.tensors)
        return distinct and not self._kwargs and not any(map(_is_container, self._args))

    def with_tensors(self, tensors: Sequence[Tensor]) -> Copies:
        """The same arguments, but for the tensors."""
        copies = Copies(self.tensors, tensors)
        following = iter(tensors)
        made = self._map(lambda _: next(following), lambda value: value, copies.of)
        copies.args = made[: len(self._args)]
        copies.kwargs = dict(zip(self._kwargs, made[len(self._args) :], strict=True))
        return copies


class Copies:
    """Arguments with other tensors than were given."""

    def __init__(self, given: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self._originals = {id(t): g for g, t in zip(given, tensors, strict=True)}
        self._containers: list[tuple[Any, Any, Items]] = []

    def of(self, container: Any, items: Items) -> Any:
        """A copy of a container, with these items."""
        if isinstance(container, tuple):
            values = [x for _, x in items]
            return container._make(values) if hasattr(container, "_make") else tuple(values)
        made = copy.copy(container)
        for key, value in items:
            made[key] = value
        self._containers.append((container, made, items))
        return made

    def hand_back(self) -> bool:
        """Do to the containers that were given what has been done to the copies; whether it was
        anything."""
        changed = False
        for container, made, items in self._containers:
            now = _items(made)
            if len(now) == len(items) and all(
                k == key and x is value for (k, x), (key, value) in zip(now, items, strict=True)
            ):
                continue
            changed = True
            restored = [(k, self._originals.get(id(x), x)) for k, x in now]
            container.clear()
            if isinstance(container, dict):
                container.update(restored)
            else:
                container.extend(x for _, x in restored)
        return changed
