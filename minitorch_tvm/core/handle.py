"""What registering a hook returns."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class RemovableHandle:
    """Removes a hook: by :meth:`remove`, or at the end of a ``with`` block.

    >>> import minitorch_tvm as mt
    >>> x = mt.ones(2, requires_grad=True)
    >>> with x.register_hook(lambda grad: grad * 10):
    ...     x.sum().backward()
    >>> x.grad
    tensor([10., 10.])
    """

    def __init__(self, remove: Callable[[], object]) -> None:
        self._remove = remove

    def remove(self) -> None:
        """Detach the hook; calling it again does nothing."""
        self._remove()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()
