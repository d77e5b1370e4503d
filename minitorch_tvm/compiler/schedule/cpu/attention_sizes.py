"""How attention is cut into tiles, and the products of tiles."""

from __future__ import annotations

import itertools

from ....core.dtype import DType
from ....core.record import record
from ...loops import NEAR, Helper, Parts, ceil_div, load, pointer_buffer, store, var
from ...target import CpuTarget
from .register_tile import Vectors, register_tile

_ROWS = 32
"""Queries that are taken together, at most."""

TERMS = 128
"""Keys of a product after which its sums are put down: what is read stays near for more rows."""

# Of the second-level cache: for scores of some queries, and for what gradients of some keys need.
_SCORES, _KEYS = 0.25, 0.6
# Tiles of gradients, so that some cores have work each, if there are as many heads.
_TILES = 8


@record
class Sizes:
    """Sizes of ``heads`` independent attentions, and of their tiles."""

    dtype: str
    lanes: int
    heads: int
    queries: int
    keys: int
    width: int  # of queries and keys
    values: int  # width of values
    causal: bool
    mr: int  # rows of a register tile
    widest: int  # and vectors, at most
    rows: int  # queries that are taken together
    own: int  # keys of a tile of gradients
    chunk: int  # of which so many are taken together

    @classmethod
    def of(
        cls,
        cpu: CpuTarget,
        dtype: DType,
        sizes: tuple[int, int, int, int, int],
        causal: bool,
        gradients: bool,
    ) -> Sizes:
        """``sizes``: heads, queries, keys, width, width of values."""
        heads, queries, keys, width, values = sizes
        lanes, itemsize = cpu.lanes(dtype.itemsize), dtype.itemsize
        large = cpu.vector_registers >= 32
        panel = 2 * lanes
        mr, widest = (min(8, panel), 3) if large else (min(4, panel), 2)
        padded = ceil_div(keys, panel) * panel
        rows, own, chunk = _ROWS, padded, padded
        if gradients:
            own = ceil_div(padded, ceil_div(_TILES, heads) * panel) * panel
            each = itemsize * (3 * (width + lanes) + 2 * (values + lanes) + 2 * rows)
            most = max(1, int(_KEYS * cpu.l2_bytes) // each // panel) * panel
            chunks = ceil_div(own, most)
            chunk = ceil_div(ceil_div(own, chunks), panel) * panel
        else:
            most = int(_SCORES * cpu.l2_bytes) // (itemsize * padded)
            rows = max(mr, min(rows, most // mr * mr))
        return cls(
            *(dtype.name, lanes, heads, queries, keys, width, values, causal),
            *(mr, widest, rows, own, chunk),
        )

    @property
    def panel(self) -> int:
        """Keys of a panel."""
        return 2 * self.lanes

    @property
    def panels(self) -> int:
        """Of all keys; the last may have some behind the last key."""
        return ceil_div(self.keys, self.panel)

    @property
    def padded(self) -> int:
        """Keys of all panels."""
        return self.panels * self.panel

    @property
    def blocks(self) -> int:
        """Of queries; the last one may have some behind the last query."""
        return ceil_div(self.queries, self.rows)

    @property
    def splits(self) -> int:
        """Tiles of gradients that share the keys of a head."""
        return ceil_div(self.padded, self.own)

    @property
    def most_heads(self) -> int:
        """For which positions in all memory are numbers of 32 bits."""
        lines = self.queries + 2 * self.padded + self.rows
        return NEAR // (lines * (self.whole(self.width) + self.whole(self.values)))

    def whole(self, width: int) -> int:
        """A width in whole vectors."""
        return ceil_div(width, self.lanes) * self.lanes

    @property
    def line(self) -> int:
        """Elements from one query's scores to the next one's: not a power of two."""
        return self.chunk + self.lanes

    def parts(self, width: int) -> list[tuple[int, int]]:
        """(first, vectors) of the register tiles that cover a width."""
        vectors = self.whole(width) // self.lanes
        count = ceil_div(vectors, self.widest)
        ends = [vectors * n // count for n in range(count + 1)]
        return [(a * self.lanes, b - a) for a, b in itertools.pairwise(ends)]

    def scores(self, width: int) -> Helper:
        """Rows of ``width`` times a panel."""
        return self._product(2, (width, 1), self.panel, self.line, again=False)

    def combined(self, width: int, vectors: int) -> Helper:
        """Add rows of scores times lines of ``width``."""
        return self._product(vectors, (self.line, 1), width, width, again=True)

    def turned(self, width: int, vectors: int) -> Helper:
        """Add columns of scores times lines of ``width``."""
        return self._product(vectors, (1, self.line), width, width, again=True)

    def _product(
        self, vectors: int, a: tuple[int, int], b_line: int, c_line: int, *, again: bool
    ) -> Helper:
        """C = A B, or C + A B: takes their addresses, and how many terms there are.

        ``a``: elements from a row, and a term, to the next.
        """
        row, term = a

        def make() -> Parts:
            own, lanes = Vectors(self.dtype, self.lanes), self.lanes
            left = pointer_buffer((1 << 24,), self.dtype, "left")
            right = pointer_buffer((1 << 16, b_line), self.dtype, "right")
            sums = pointer_buffer((self.mr, c_line), self.dtype, "sums")
            terms = var("terms")
            body = register_tile(
                own,
                (self.mr, vectors),
                terms,
                lambda r, k: load(left, k * term + r * row),
                lambda k, v: load(right, k, own.at(v * lanes)),
                lambda r, v: load(sums, r, own.at(v * lanes)) if again else own.zero,
                lambda r, v, value: store(sums, value, r, own.at(v * lanes)),
            )
            return Parts([left.raw, right.raw, sums.raw], [terms], body)

        numbers = (self.mr, vectors, row, term, b_line, c_line, int(again))
        return Helper("_".join(map(str, ("attention", self.dtype, *numbers))), make)
