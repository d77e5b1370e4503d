"""Operands of the matrix unit: float32 as sums of three bfloat16, packed as tiles.

A float32 has 24 significant bits, a bfloat16 has 8 and the same exponents: every float32 that is
not close to underflow is the exact sum of three bfloat16, ``x = x1 + x2 + x3``, each at most 2**-8
of the one before.

An operand is a number of lines along k: rows of the left one, columns of the right one.  It is
packed into panels of 32 lines, in blocks of 32 k, as the unit's tiles: 16 lines of 16 pairs
(k, k + 16), or 16 pairs of 16 columns.  Some blocks of k make a visit; for each visit to a panel
the largest magnitude is noted, or NaN if an element is *irregular*: infinite, NaN, or so small or
large that its parts would leave the range of normal numbers, which the unit takes for zero.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    Expr,
    Memory,
    Stage,
    Stmt,
    Var,
    alloc,
    ceil_div,
    const,
    load,
    load_first,
    local_buffer,
    minimum,
    parallel_stage,
    prefetch,
    ramp,
    seq,
    serial,
    splat,
    store,
    vectorized,
    when,
)
from .conv_layout import div, mod, transpose_rows

LANES = 16  # float32 in one row of a tile
EDGE = 32  # lines of a panel, and k of a block: two tiles each way
HALVES = 2
PARTS = 3  # bfloat16 that make one float32
# The products of parts (of a row, of a column) that are formed, smallest first.
PRODUCTS = ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0))
# The same for operands of :func:`mixed_words`, which are two tiles instead of three.
MIXED = ((1, 0), (0, 0), (0, 1))
MIXED_PARTS = 2
BLOCK_BYTES = PARTS * 2 * EDGE**2  # of 32 lines and 32 k
_AHEAD = 2  # blocks of k between the prefetch of an element and its packing
_SQUARE = 8  # transposed at once
# Folding is more code in every function that packs; it must save this share of the products.
_WORTH_FOLDING = 0.04
# Magnitudes whose three parts are normal numbers, and that cannot overflow when rounded.
_SMALLEST, _LARGEST = 2.0**-103, 2.0**100


@record
class Packed:
    """Tiles ``[panel, block of k, part, half, 16 x 16 pairs]`` and their magnitudes.

    The magnitude of a visit to a panel, ``[panel, visit, 0]``, is the largest of its elements, NaN
    if any is irregular; behind it stand the smallest that is not zero (infinity if all are), and 0
    if all parts but the first are zero (numbers of 8 bits, such as pixels), else 1.
    """

    tiles: Memory
    magnitude: Memory


def packed_memory(panels: int, blocks: int, visits: int, make: Callable[..., Memory]) -> Packed:
    """Memory for a packed operand; ``make(shape, dtype, name)`` declares one block of it."""
    return Packed(
        make((panels, blocks, PARTS, HALVES, LANES * LANES), "uint32", "tiles"),
        make((panels, visits, 3), "float32", "magnitude"),
    )


def folded_tiles(k: int) -> int:
    """Tiles that hold a folded last block's products, or 0 where that would save little."""
    rest, every = k % EDGE, len(PRODUCTS)
    if not 0 < rest <= LANES:
        return 0
    tiles = ceil_div(every, EDGE // rest)
    return tiles if (every - tiles) / every >= _WORTH_FOLDING * ceil_div(k, EDGE) else 0


# Statements and the vector that they fetch, from (row, first column) of a block.
_Vector = Callable[[Expr, Expr], tuple[list[Stmt], Expr]]
_At = tuple[Expr, Expr]  # the first line and the first k of a block


@record
class Operand:
    """One operand as lines of k: rows of the left, columns of the right."""

    is_row: bool
    lines: int
    k: int
    natural: bool  # neighbours in memory are neighbours in a tile's row
    pitch: Expr | None  # elements between lines of memory; None if elements are computed
    element: Callable[[Expr, Expr, Expr], Expr]  # (bt, line, k)
    visit: int  # blocks of k in one
    folds: bool = False  # a last block of few k holds the operands of :data:`PRODUCTS`, one tile
    mixed: bool = False  # a block has 16 k, of which :func:`mixed_words` make two tiles a half

    @property
    def plain(self) -> bool:
        """Whether elements are memory."""
        return self.pitch is not None

    @property
    def folded(self) -> int:
        """How many tiles the last block's products fill if it is folded, else 0."""
        return folded_tiles(self.k) if self.folds else 0

    @property
    def panels(self) -> int:
        """Panels of 32 lines; the last may be filled up with zeros."""
        return ceil_div(self.lines, EDGE)

    @property
    def depth(self) -> int:
        """How many k are a block."""
        return LANES if self.mixed else EDGE

    @property
    def blocks(self) -> int:
        """Blocks of 32 k, or of 16."""
        return ceil_div(self.k, self.depth)

    @property
    def visits(self) -> int:
        """Visits of at most ``visit`` blocks."""
        return ceil_div(self.blocks, self.visit)

    def stage(self, packed: Packed) -> Stage:
        """The stage that packs everything, for an operand that all batches share."""

        def body(tile: Var) -> Stmt:
            place = (tile // self.visits, tile % self.visits)
            return self.pack(packed, const(0), place, place)

        return parallel_stage("split", self.panels * self.visits, body)

    def count(self, visit: Expr) -> Expr:
        """Blocks of k in a visit."""
        if self.blocks % self.visit == 0:
            return self.visit
        return minimum(self.visit, self.blocks - visit * self.visit)

    def pack(
        self,
        packed: Packed,
        bt: Expr,
        source: tuple[Expr, Expr],
        to: tuple[Expr, Expr],
    ) -> Stmt:
        """Pack the (panel, visit) ``source`` of the operand as the one ``to`` of ``packed``."""
        panel, visit = source
        blocks = (visit * self.visit, self.count(visit))
        return self.pack_blocks(packed, bt, panel, blocks, (to[0], to[1] * self.visit), to)

    def pack_blocks(
        self,
        packed: Packed,
        bt: Expr,
        panel: Expr,
        blocks: tuple[Expr, Expr],
        place: tuple[Expr, Expr],
        to: tuple[Expr, Expr],
    ) -> Stmt:
        """Pack blocks (the first, their number) of a panel from the block ``place`` of ``packed``.

        ``to`` is where their magnitude goes.
        """
        first, count = blocks
        range_ = Range()
        block = local_buffer((EDGE, EDGE), "float32", "block")

        def one(b: Expr) -> Stmt:
            kb = first + b
            origin = (panel * EDGE, kb * self.depth)
            # The next panel's first blocks come after this one's last.
            over = b + _AHEAD >= count
            next_panel = tvm().tirx.Select(over, panel + 1, panel)
            next_block = kb + _AHEAD - tvm().tirx.Select(over, count, const(0))
            later = (next_panel * EDGE, next_block * EDGE)

            def put(vector: _Vector) -> Stmt:
                lines = minimum(EDGE, self.lines - origin[0]) if self.lines_end else EDGE
                return self._split(packed, (place[0], place[1] + b), vector, range_, lines)

            def from_block(r: Expr, c: Expr) -> tuple[list[Stmt], Expr]:
                return [], load(block, r, ramp(c, LANES))

            def choose(inside: Stmt, edge: Stmt) -> Stmt:
                # Rows are read one by one, as many as there are.
                whole = self.whole(None if self.is_row and self.natural else panel, kb)
                if isinstance(whole, bool):
                    return inside if whole else edge
                return when(whole, inside, edge)

            lines = minimum(EDGE, self.lines - origin[0])
            ks = minimum(self.depth, self.k - origin[1])
            size = (lines, ks) if self.is_row else (ks, lines)
            if not self.plain:
                fill = self._fill_computed(block, bt, size, origin)
            elif self.natural:
                fill = self._fill_edge(block, bt, size, origin)
            else:
                edge = self._fill_turned(block, bt, size, origin, later)
                fill = choose(self._fill_turned(block, bt, None, origin, later), edge)
            split = put(from_block)
            folds = self._is_folded(kb)
            if folds is not False:
                at = (place[0], place[1] + b)
                split = when(folds, self._fold(packed, at, block, range_), split)
            if self.natural and self.plain:
                inside = put(lambda r, c: self._vector(bt, origin, later, r, c))
                return choose(inside, seq(alloc(block), fill, split))
            return seq(alloc(block), fill, split)

        size = range_.size()
        return seq(
            range_.start(),
            serial(count, one, "kb"),
            size[0],
            [store(packed.magnitude, x, *to, i) for i, x in enumerate(size[1])],
        )

    @property
    def lines_end(self) -> bool:
        """Whether a panel may have fewer lines than others."""
        return self.lines % EDGE != 0

    def whole(self, panel: Expr | None, kb: Expr) -> Expr | bool:
        """Whether a block lies inside the operand; without ``panel``, whether its k do."""
        if (self.lines < EDGE and panel is not None) or self.k < EDGE:
            return False
        conditions = []
        if self.lines_end and panel is not None:
            conditions.append(panel < self.lines // EDGE)
        if self.k % EDGE:
            conditions.append(kb < self.k // EDGE)
        return tvm().tirx.all(*conditions) if conditions else True

    def _is_folded(self, kb: Expr) -> Expr | bool:
        """Whether a block is the last one, and folded."""
        return tvm().tirx.EQ(kb, const(self.k // EDGE)) if self.folded else False

    def _at(self, bt: Expr, origin: tuple[Expr, Expr], r: Expr, c: Expr) -> Expr:
        """The element in row r, column c of the block in the orientation of its tiles."""
        line, k = (r, c) if self.is_row else (c, r)
        return self.element(bt, origin[0] + line, origin[1] + k)

    def _vector(
        self, bt: Expr, origin: tuple[Expr, Expr], later: tuple[Expr, Expr], r: Expr, c: Expr
    ) -> tuple[list[Stmt], Expr]:
        """A vector read in place."""
        line = local_buffer((LANES,), "float32", "line")
        fill = vectorized(LANES, lambda v: store(line, self._at(bt, origin, r, c + v), v), "v")
        # Rows of a block lie far apart, more of them than the hardware follows.
        ahead = prefetch(self._at(bt, later, r, c))
        return [alloc(line), fill, ahead], load(line, ramp(0, LANES))

    def _fill_computed(self, block: Memory, bt: Expr, size: tuple[Expr, Expr], origin: _At) -> Stmt:
        """Elements that are computed, so many rows and columns of them, and zeros behind."""
        rows, cols = size
        nothing = splat(const(0.0, "float32"), LANES)
        clear = serial(
            EDGE * HALVES,
            lambda i: store(block, nothing, div(i, HALVES), ramp(mod(i, HALVES) * LANES, LANES)),
            "i",
        )

        def put(r: Expr, c: Expr) -> Stmt:
            return store(block, self._at(bt, origin, r, c), r, c)

        if self.natural:
            copy = serial(rows, lambda r: serial(cols, lambda c: put(r, c), "c"), "r")
        else:
            copy = serial(cols, lambda c: serial(rows, lambda r: put(r, c), "r"), "c")
        return seq(clear, copy)

    def _fill_edge(self, block: Memory, bt: Expr, size: tuple[Expr, Expr], origin: _At) -> Stmt:
        """A block of so many rows and columns as it lies in memory, and zeros behind."""
        rows, cols = size

        def half(i: Expr) -> Stmt:
            r, c = div(i, HALVES), mod(i, HALVES) * LANES
            # Rows that do not exist are others without their elements.
            count = tvm().tirx.Select(r < rows, cols - c, const(0))
            element = self._at(bt, origin, minimum(r, rows - 1), c)
            return store(block, load_first(element, LANES, count), r, ramp(c, LANES))

        # One loop: LLVM would copy the body of a short inner one as often as that runs.
        return serial(EDGE * HALVES, half, "i")

    def _fill_turned(
        self, block: Memory, bt: Expr, size: tuple[Expr, Expr] | None, origin: _At, later: _At
    ) -> Stmt:
        """The same, transposed as squares in registers, asking for lines of a later block.

        A whole block has no size.
        """
        count = EDGE // _SQUARE
        share = EDGE // (count * count)  # rows of the later block

        def square(s: Expr) -> Stmt:
            r0, c0 = div(s, count) * _SQUARE, mod(s, count) * _SQUARE

            def fill(memory: Memory, c: Expr) -> Stmt:
                if size is None:
                    return vectorized(
                        _SQUARE,
                        lambda r: store(memory, self._at(bt, origin, r0 + r, c0 + c), c, r),
                        "v",
                    )
                rows, cols = size
                inside = tvm().tirx.Select(c0 + c < cols, rows - r0, const(0))
                element = self._at(bt, origin, r0, minimum(c0 + c, cols - 1))
                return store(memory, load_first(element, _SQUARE, inside), c, ramp(0, _SQUARE))

            def write(r: Expr, line: Expr) -> Stmt:
                return store(block, line, r0 + r, ramp(c0, _SQUARE))

            asks = [ask(s * share + i, c) for i in range(share) for c in (0, LANES)]
            return seq(asks, transpose_rows(_SQUARE, "float32", fill, write))

        def ask(i: Expr, c: int) -> Stmt:
            line, k = (c, i) if self.is_row else (i, c)
            return prefetch(self.element(bt, later[0] + line, later[1] + k))

        # One loop, for the same reason.
        return serial(count * count, square, "s")

    def _fold(self, packed: Packed, where: tuple[Expr, Expr], block: Memory, range_: Range) -> Stmt:
        """Put the operands of all products of a block of few k side by side along k.

        There they are numbers of one part, and one product of tiles adds several of parts: as many
        as the k fit into a block, so that one to three tiles hold what otherwise takes six.
        """
        rest = mod(self.k, EDGE)
        each = const(EDGE) // rest
        tiles = (const(len(PRODUCTS) - 1) + each) // each
        side = 0 if self.is_row else 1
        # Lines of k, or k of lines; vectors of 16 k may run over what follows or past the block.
        shape = (PARTS, EDGE, EDGE + LANES) if self.is_row else (PARTS, EDGE, EDGE)
        folded = local_buffer(shape, "float32", "folded")
        nothing = splat(const(0.0, "float32"), LANES)

        def copies(x: Expr, put: Callable[[Expr, Expr, Expr], Stmt]) -> list[Stmt]:
            statements: list[Stmt] = []
            x = register(x, statements)
            statements += range_.note(x)
            found = parts(x, statements, range_)
            for number, product in enumerate(PRODUCTS):
                tile = const(number) // each
                first = (number - tile * each) * rest
                statements.append(put(tile, first, found[product[side]]))
            return statements

        def line(r: Expr) -> list[Stmt]:
            return copies(
                load(block, r, ramp(0, LANES)),
                lambda tile, first, part: store(folded, part, tile, r, ramp(first, LANES)),
            )

        def step(k: Expr, half: Expr) -> list[Stmt]:
            at = ramp(half * LANES, LANES)
            return copies(
                load(block, k, at),
                lambda tile, first, part: store(folded, part, tile, first + k, at),
            )

        # One loop each: LLVM would copy the bodies of short inner ones as often as those run.
        def word(i: Expr) -> Stmt:
            tile, half, row = div(i, HALVES * LANES), mod(div(i, LANES), HALVES), mod(i, LANES)
            if self.is_row:
                sources = [(half * LANES + row, 0), (half * LANES + row, LANES)]
            else:
                sources = [(row, half * LANES), (row + LANES, half * LANES)]
            low, high = (_bits(load(folded, tile, r, ramp(c, LANES))) for r, c in sources)
            value = (low >> _words(16)) | high
            return store(packed.tiles, value, *where, tile, half, ramp(row * LANES, LANES))

        across = shape[2] // LANES

        def clear(i: Expr) -> Stmt:
            r, v = div(i, across), mod(i, across)
            return store(folded, nothing, div(r, EDGE), mod(r, EDGE), ramp(v * LANES, LANES))

        if self.is_row:
            fill = serial(EDGE, lambda r: seq(line(r)), "r")
        else:
            count = rest * HALVES
            fill = serial(count, lambda i: seq(step(div(i, HALVES), mod(i, HALVES))), "k")
        return seq(
            alloc(folded),
            serial(tiles * (EDGE * across), clear, "i"),
            fill,
            serial(tiles * (HALVES * LANES), word, "i"),
        )

    def _split(
        self,
        packed: Packed,
        where: tuple[Expr, Expr],
        vector: _Vector,
        range_: Range,
        lines: Expr,
    ) -> Stmt:
        """Store the three parts of a block of so many lines and note its range.

        What lies in further rows does not matter: the unit passes over them.
        """

        def put(row: Expr, half: Expr, part: int, word: Expr) -> Stmt:
            return store(packed.tiles, word, *where, part, half, ramp(row * LANES, LANES))

        def mixed(row: Expr, half: Expr) -> Stmt:
            before, vector_ = vector(row, half * LANES)
            statements, words = mixed_words(vector_, range_)
            puts = [put(row, half, i, word) for i, word in enumerate(words)]
            return seq(before, statements, puts)

        def pair(row: Expr, half: Expr) -> Stmt:
            # Row 'row' of a tile: its lanes pair the k of this vector with those 16 further on.
            if self.is_row:
                sources = [(half * LANES + row, 0), (half * LANES + row, LANES)]
            else:
                sources = [(row, half * LANES), (row + LANES, half * LANES)]
            found = [vector(r, c) for r, c in sources]
            before = [statement for fetch, _ in found for statement in fetch]

            def put_pair(part: int, word: Expr) -> Stmt:
                return put(row, half, part, word)

            return seq(before, split_pair(found[0][1], found[1][1], range_, put_pair))

        if self.mixed:
            return serial(LANES * HALVES, lambda i: mixed(div(i, HALVES), mod(i, HALVES)), "i")

        if self.is_row:
            return serial(lines, lambda i: pair(mod(i, LANES), div(i, LANES)), "i")
        return serial(LANES * HALVES, lambda i: pair(div(i, HALVES), mod(i, HALVES)), "i")


def _words(value: int) -> Expr:
    return splat(const(value, "uint32"), LANES)


def _bits(x: Expr) -> Expr:
    return tvm().tirx.reinterpret(f"uint32x{LANES}", x)


def register(value: Expr, statements: list[Stmt], dtype: str = "float32") -> Expr:
    """A vector computed once; LLVM keeps its memory in a register."""
    memory = local_buffer((LANES,), dtype, "x")
    statements += [alloc(memory), store(memory, value, ramp(0, LANES))]
    return load(memory, ramp(0, LANES))


def parts(x: Expr, statements: list[Stmt], range_: Range) -> tuple[Expr, Expr, Expr]:
    """The three bfloat16 (as float32) whose sum is x.

    Half a unit of the last place added to the bits rounds to nearest, ties away from zero, and the
    differences are exact.
    """

    def rounded(value: Expr) -> Expr:
        bits = (_bits(value) + _words(0x8000)) & _words(0xFFFF0000)
        return register(tvm().tirx.reinterpret(f"float32x{LANES}", bits), statements)

    first = rounded(x)
    rest = register(x - first, statements)
    statements.append(range_.note_rest(rest))
    second = rounded(rest)
    return first, second, register(rest - second, statements)


def split_pair(
    low: Expr, high: Expr, range_: Range, put: Callable[[int, Expr], Stmt]
) -> list[Stmt]:
    """``put(part, word)`` with the three parts of two vectors, side by side in words."""
    statements: list[Stmt] = []
    split = []
    for value in (low, high):
        x = register(value, statements)
        statements += range_.note(x)
        split.append(parts(x, statements, range_))
    for part, (a, b) in enumerate(zip(*split, strict=True)):
        statements.append(put(part, (_bits(a) >> _words(16)) | _bits(b)))
    return statements


def mixed_words(value: Expr, range_: Range) -> tuple[list[Stmt], tuple[Expr, Expr]]:
    """Two words for every element, of parts x1 and x2, and x3 and x1.

    The sum over a word's halves of products of the left operand's (x1, x2) and the right one's
    (y1, y2) is x1 y1 + x2 y2, and so on: three products of tiles (:data:`MIXED`) are all six of
    parts, where a tile's row has room for 16 k twice.
    """
    statements: list[Stmt] = []
    x = register(value, statements)
    statements += range_.note(x)
    first, second, third = (_bits(part) for part in parts(x, statements, range_))
    shift = _words(16)
    return statements, ((first >> shift) | second, (third >> shift) | first)


class Range:
    """Running range of magnitudes, as the bits of floats (which are ordered as the numbers are)."""

    def __init__(self) -> None:
        self.top = local_buffer((LANES,), "uint32", "top")
        self.low = local_buffer((LANES,), "uint32", "low")
        self.rest = local_buffer((LANES,), "uint32", "rest")

    def start(self) -> list[Stmt]:
        """Nothing seen yet."""
        every = ramp(0, LANES)
        return [
            alloc(self.top),
            alloc(self.low),
            alloc(self.rest),
            store(self.rest, _words(0), every),
            store(self.top, _words(0), every),
            store(self.low, _words(0xFFFFFFFF), every),
        ]

    def note(self, x: Expr) -> list[Stmt]:
        """Take a vector into account."""
        every, t = ramp(0, LANES), tvm().tirx
        statements: list[Stmt] = []
        magnitude = register(_bits(x) & _words(0x7FFFFFFF), statements, "uint32")
        # Less one, zeros become the largest number: they are regular, however small.
        less = register(magnitude - _words(1), statements, "uint32")
        top, low = load(self.top, every), load(self.low, every)
        return [
            *statements,
            store(self.top, t.Select(top > magnitude, top, magnitude), every),
            store(self.low, t.Select(low < less, low, less), every),
        ]

    def note_rest(self, rest: Expr) -> Stmt:
        """Take what the first part leaves of a vector into account."""
        every = ramp(0, LANES)
        return store(self.rest, load(self.rest, every) | _bits(rest), every)

    def size(self) -> tuple[Stmt, tuple[Expr, Expr, Expr]]:
        """Statements, then largest magnitude, smallest and exactness as in :class:`Packed`."""
        t = tvm().tirx
        names = ("all_top", "all_low", "all_rest")
        top, low, rest = (local_buffer((1,), "uint32", name) for name in names)

        def lane(i: Expr) -> Stmt:
            a, b = load(self.top, i), load(self.low, i)
            return seq(
                store(top, t.Select(load(top, 0) > a, load(top, 0), a), 0),
                store(low, t.Select(load(low, 0) < b, load(low, 0), b), 0),
                store(rest, load(rest, 0) | load(self.rest, i), 0),
            )

        statements = seq(
            [alloc(memory) for memory in (top, low, rest)],
            store(top, const(0, "uint32"), 0),
            store(low, const(0xFFFFFFFF, "uint32"), 0),
            store(rest, const(0, "uint32"), 0),
            serial(LANES, lane, "lane"),
        )
        regular = t.all(
            load(top, 0) <= const(_pattern(_LARGEST), "uint32"),
            load(low, 0) >= const(_pattern(_SMALLEST) - 1, "uint32"),
        )
        word = t.Select(regular, load(top, 0), const(0x7FC00000, "uint32"))
        nothing = t.EQ(load(low, 0), const(0xFFFFFFFF, "uint32"))
        one = const(1, "uint32")
        least = t.Select(nothing, const(0x7F800000, "uint32"), load(low, 0) + one)
        # What is left of -0.0 is -0.0.
        exact = t.EQ(load(rest, 0) & const(0x7FFFFFFF, "uint32"), const(0, "uint32"))
        return statements, (
            t.reinterpret("float32", word),
            t.reinterpret("float32", least),
            t.Select(exact, const(0.0, "float32"), const(1.0, "float32")),
        )


def _pattern(value: float) -> int:
    return int(np.float32(value).view(np.uint32))
