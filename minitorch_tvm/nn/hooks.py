"""Functions that users attach to modules."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..core.handle import RemovableHandle
from ..core.record import record

_IDS = itertools.count()


@record
class Hook:
    """One registered function and how it wants to be called."""

    function: Callable[..., Any]
    with_kwargs: bool = False
    always_call: bool = False


def attach(
    hooks: OrderedDict[int, Hook], hook: Hook, prepend: bool, changed: Callable[[], None]
) -> RemovableHandle:
    """Add a hook to those of a module, behind the others or (``prepend``) before them.

    ``changed`` is called when there is another hook, or one less.
    """
    number = next(_IDS)
    hooks[number] = hook
    if prepend:
        hooks.move_to_end(number, last=False)
    changed()

    def remove() -> None:
        if hooks.pop(number, None) is not None:
            changed()

    return RemovableHandle(remove)
