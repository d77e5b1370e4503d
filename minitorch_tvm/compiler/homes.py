"""Places in the arena at which threads find what they have written themselves.

A worker computes a contiguous share of most values (:mod:`.queues`), so that the lines of a value
end up in its core's caches by shares.  Where such lines become those of another value, of another
size or a little further on, some of its share are in another core's caches, and are fetched from
there only to be overwritten.  Cores that share no cache are some 150 ns apart.

So every line of the arena is given a home, the worker whose share the first value that was placed
there has it in, and values are placed where the lines of their shares are at home.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]

# Bytes of a share that are worth it.
_SMALL = 16 << 10
# As many parts has the arena, of which one has one home; but not smaller ones than this.
_CELLS, _LEAST = 4096, 1024


class Homes:
    """The worker whose caches hold a part of the arena, for every part."""

    def __init__(self, nbytes: int, workers: int) -> None:
        self._workers = workers
        self._cell = max(_LEAST, -(-nbytes // (_CELLS * _LEAST)) * _LEAST)
        self._home = np.full(nbytes // self._cell + 1, -1, np.int16)

    def keeps(self, nbytes: int) -> bool:
        """Whether it matters whose caches a value is in: its shares are not small."""
        return self._workers > 1 and nbytes >= _SMALL * self._workers

    def _shares(self, nbytes: int) -> list[int]:
        """The cells at which the shares of a value begin and end, from its first on."""
        return [nbytes * w // self._workers // self._cell for w in range(self._workers + 1)]

    def _strangers(self, nbytes: int) -> Offsets:
        """How many cells would be another worker's, for each cell that a value may begin at.

        The last is that behind the arena, where nobody lives.
        """
        shares, cells = self._shares(nbytes), len(self._home)
        found = np.zeros(cells + 1, np.int64)
        for worker in range(self._workers):
            other = np.zeros(cells + 1 + shares[-1], np.int64)
            np.cumsum((self._home >= 0) & (self._home != worker), out=other[1 : cells + 1])
            other[cells + 1 :] = other[cells]
            begin, end = shares[worker : worker + 2]
            found += other[end : end + cells + 1] - other[begin : begin + cells + 1]
        return found

    def best(self, nbytes: int, low: Offsets, high: Offsets) -> int:
        """The offset for a value in one of these gaps with the fewest strangers.

        ``low``: where gaps begin; ``high``: the last places where it fits into them.  Of several,
        one in the smallest gap, if possible at its edge, which leaves one gap and not two.
        """
        strangers = self._strangers(nbytes)
        last = len(strangers) - 1
        first, after = -(-low // self._cell), np.minimum(high // self._cell + 1, last)
        edges = strangers[np.minimum(np.stack([low, high]) // self._cell, last)]
        inner = np.full(len(low), strangers.max() + 1)
        some = first < after
        # The least of each range; what lies between two ranges is a range, too.
        ranges = np.stack([first[some], after[some]], 1)
        if len(ranges):
            inner[some] = np.minimum.reduceat(strangers, ranges.ravel())[::2]
        least = np.minimum(inner, edges.min(0))
        gap = np.lexsort((low, high - low, least))[0]
        for offset, count in zip((low[gap], high[gap]), edges[:, gap], strict=True):
            if count == least[gap]:
                return int(offset)
        within = strangers[first[gap] : after[gap]]
        return int(first[gap] + np.argmin(within)) * self._cell

    def settle(self, nbytes: int, offset: int) -> None:
        """Give what has no home in a value's place one."""
        start, shares = offset // self._cell, self._shares(nbytes)
        for worker in range(self._workers):
            part = self._home[start + shares[worker] : start + shares[worker + 1]]
            part[part < 0] = worker
