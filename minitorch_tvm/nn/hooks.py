"""Functions that users attach to modules."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.handle import RemovableHandle

_IDS = itertools.count()
_CHANGES = [0]


def changed() -> None:
    """Note that an attribute of a module, or a hook, is another than before."""
    _CHANGES[0] += 1


def changes() -> int:
    """How often that has been noted."""
    return _CHANGES[0]


@dataclass(frozen=True)
class Hook:
    """One registered function and how it wants to be called."""

    function: Callable[..., Any]
    with_kwargs: bool = False
    always_call: bool = False


def attach(hooks: OrderedDict[int, Hook], hook: Hook, prepend: bool) -> RemovableHandle:
    """Add a hook to those of a module, behind the others or (``prepend``) before them."""
    number = next(_IDS)
    hooks[number] = hook
    if prepend:
        hooks.move_to_end(number, last=False)
    changed()

    def remove() -> None:
        hooks.pop(number, None)
        changed()

    return RemovableHandle(remove)
