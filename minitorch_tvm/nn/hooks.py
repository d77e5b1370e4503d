"""Functions that users attach to modules."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

_IDS = itertools.count()


@dataclass(frozen=True)
class Hook:
    """One registered function and how it wants to be called."""

    function: Callable[..., Any]
    with_kwargs: bool = False
    always_call: bool = False


class RemovableHandle:
    """Removes a hook: by :meth:`remove`, or at the end of a ``with`` block."""

    def __init__(self, hooks: OrderedDict[int, Hook], hook: Hook, prepend: bool) -> None:
        self.id = next(_IDS)
        self._hooks = hooks
        hooks[self.id] = hook
        if prepend:
            hooks.move_to_end(self.id, last=False)

    def remove(self) -> None:
        """Detach the hook; calling it again does nothing."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()
