"""What positions must be: class labels and indices, by which programs read and write memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .record import record

_UNSIGNED = {size: np.dtype(f"uint{8 * size}") for size in (1, 2, 4, 8)}


@record
class Bounds:
    """``low <= position < end`` (or the position is ``spared``), else ``error(position)``.

    >>> import numpy as np
    >>> labels = Bounds(0, 10, lambda bad: IndexError(f"there is no class {bad}"), spared=-100)
    >>> labels.test(np.array([3, -100, 9]))
    >>> labels.test(np.array([3, 10]))
    Traceback (most recent call last):
        ...
    IndexError: there is no class 10
    """

    low: int
    end: int
    error: Callable[[int], Exception]
    spared: int | None = None

    def first_outside(self, positions: Any) -> int:
        """The first of an array of integers that is outside: one is."""
        outside = positions[self._outside(positions)]
        assert outside.size, "a failed check found no wrong position"
        return int(outside.flat[0])

    def test(self, positions: Any) -> None:
        """Raise the error of the first of an array of integers that is outside, if any is."""
        if not self.hold(positions):
            raise self.error(self.first_outside(positions))

    def hold(self, positions: Any) -> bool:
        """Whether no element of an array of integers is outside."""
        if not positions.size:
            return True
        # argmin() and argmax() take a third of the time of min() and max() for those of a batch.
        if self.low == 0:  # as unsigned numbers, negative ones are large: one pass over them
            unsigned = positions.view(_UNSIGNED[positions.itemsize])
            inside = unsigned.item(unsigned.argmax()) < self.end
        else:
            least, most = positions.item(positions.argmin()), positions.item(positions.argmax())
            inside = self.low <= least and most < self.end
        return inside or not self._outside(positions).any()

    def covers(self, least: int, most: int) -> bool:
        """Whether no integer from ``least`` to ``most`` is outside."""
        return self.low <= least and most < self.end

    def _outside(self, positions: Any) -> Any:
        outside = (positions < self.low) | (positions >= self.end)
        return outside if self.spared is None else outside & (positions != self.spared)
