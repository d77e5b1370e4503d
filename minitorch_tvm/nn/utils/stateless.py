"""Calls of modules with other parameters than their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...tensor import Tensor
from ..module import Module

__all__ = ["functional_call"]


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """``module(*args, **kwargs)`` with tensors in place of its parameters and buffers.

    They are given by dotted names; what is not given stays.  ``args`` that is no tuple is one
    argument.  A parameter of several names is replaced under all of them, unless ``tie_weights`` is
    off.  Raises TypeError for values that are no tensors, ValueError if a parameter is given two
    different ones; with ``strict`` RuntimeError for names that are missing or unknown.

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.Linear(2, 1, bias=False)
    >>> functional_call(layer, {"weight": mt.tensor([[1.0, 10.0]])}, mt.tensor([2.0, 3.0]))
    tensor([32.])
    """
    positional = () if args is None else args if isinstance(args, tuple) else (args,)
    named = {} if kwargs is None else kwargs
    with _replaced(module, dict(parameters_and_buffers), tie_weights, strict):
        return module(*positional, **named)


def _owners(module: Module) -> dict[str, tuple[dict[str, Any], str]]:
    """Where each parameter and buffer is kept, by its dotted names."""
    found = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for table in (part._parameters, part._buffers):
            for name, value in table.items():
                if value is not None:
                    found[f"{path}.{name}" if path else name] = table, name
    return found


@contextmanager
def _replaced(
    module: Module, given: dict[str, Any], tie_weights: bool, strict: bool
) -> Iterator[None]:
    owners = _owners(module)
    for name, value in given.items():
        if name == "":
            raise KeyError('tensor name can\'t be empty string ""')
        if not isinstance(value, Tensor):
            raise TypeError(f"{value} is not an instance of torch.Tensor")
    if tie_weights:
        _tie(owners, given)
    if strict:
        _check(module, owners, given)
    places = [(*owners[name], value) for name, value in given.items() if name in owners]
    before = [(table, name, table[name]) for table, name, _ in places]
    try:
        for table, name, value in places:
            table[name] = value
        yield
    finally:
        for table, name, value in before:
            table[name] = value


def _tie(owners: dict[str, tuple[dict[str, Any], str]], given: dict[str, Any]) -> None:
    """Give a tensor of several names the same value under each of them."""
    names: dict[int, list[str]] = {}
    for full, (table, name) in owners.items():
        names.setdefault(id(table[name]), []).append(full)
    for tied in names.values():
        values = [given[name] for name in tied if name in given]
        if any(value is not values[0] for value in values):
            raise ValueError(
                f"functional_call got multiple values for keys {sorted(tied)}, which are tied. "
                "Consider using tie_weights=False"
            )
        if values:
            given.update(dict.fromkeys(tied, values[0]))


def _check(module: Module, owners: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    lines = []
    unexpected, missing = given.keys() - owners.keys(), owners.keys() - given.keys()
    for kind, names in (("Unexpected", unexpected), ("Missing", missing)):
        if names:
            lines.append(f"\n\t{kind} key(s): {', '.join(map(repr, sorted(names)))}.")
    if lines:
        raise RuntimeError(
            f"Error(s) in reparametrizing for {type(module).__name__}:{''.join(lines)}"
        )
