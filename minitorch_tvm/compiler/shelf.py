"""What a program was made of, as text, so that a later process makes other programs of it.

A program on disk has the object files that it was linked from.  Beside them it tells which kernels
and functions they hold, by names that say what these do: a kernel by the graph that was cut out for
it, a function by its structure.  A kernel that is found needs no schedule and no LLVM; a kernel of
another size, whose functions are found, no LLVM.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from ..core.record import record
from ..ir.program import Found, Library, host_name
from .native import Piece
from .recall import Rows
from .steps import Function
from .target import CpuTarget


@record
class StageInfo:
    """A stage of a kernel; an argument is a value of the isolated graph, or ``~n``: scratch n."""

    tiles: int
    function: Function
    arguments: tuple[int, ...]
    numbers: tuple[int, ...]  # that it is told


@record
class Ready:
    """A kernel whose functions are made, or being made."""

    rule: str
    scratch: tuple[int, ...]  # bytes
    stages: tuple[StageInfo, ...]


@record(eq=False)
class Compiled:
    """A stage function, and the object file that holds it."""

    function: Function
    piece: Piece


@record(eq=False)
class Made:
    """A kernel, its functions, and the object files that hold these and what they call."""

    ready: Ready
    compiled: tuple[Compiled, ...]
    pieces: tuple[Piece, ...]


PIECES: WeakValueDictionary[str, Piece] = WeakValueDictionary()
"""Those of this process by what their code is: from two programs' files, it is one."""


class _Contents(NamedTuple):
    """The kernels, functions and others that a program's file tells of."""

    pieces: list[Piece]
    functions: list[Compiled]
    kernels: Mapping[str, Sequence[Any]]
    named: Mapping[str, int]  # functions, by their number
    others: Mapping[str, int]  # pieces, by theirs
    choices: Mapping[str, Rows]


class Shelf:
    """What earlier programs were made of; ``settings`` decide code beside what it is of."""

    def __init__(self, library: Library, settings: object) -> None:
        self._library, self._settings = library, repr(settings)
        self._contents: dict[int, _Contents] = {}

    def name(self, kind: str, text: str) -> str:
        """What such a thing is found by."""
        whole = "\n".join([self._settings, kind, text])
        return hashlib.sha256(whole.encode()).hexdigest()

    def _open(self, name: str) -> _Contents | None:
        found = self._library.find(name)
        if found is None:
            return None
        contents = self._contents.get(id(found))
        if contents is None:
            contents = self._contents[id(found)] = _read(found)
        return contents

    def kernel(self, name: str) -> Made | None:
        """The kernel of that name."""
        contents = self._open(name)
        row = None if contents is None else contents.kernels.get(name)
        if contents is None or row is None:
            return None
        rule, scratch, stages, pieces = row
        functions = contents.functions
        infos = tuple(
            StageInfo(tiles, functions[f].function, tuple(arguments), tuple(numbers))
            for tiles, f, arguments, numbers in stages
        )
        used = dict.fromkeys(functions[f] for _, f, _, _ in stages)
        return Made(
            Ready(rule, tuple(scratch), infos),
            tuple(used),
            tuple(contents.pieces[i] for i in pieces),
        )

    def function(self, name: str) -> Compiled | None:
        """The function of that name."""
        contents = self._open(name)
        number = None if contents is None else contents.named.get(name)
        return None if contents is None or number is None else contents.functions[number]

    def piece(self, name: str) -> Piece | None:
        """The object file of that name: a helper, or an entry."""
        contents = self._open(name)
        number = None if contents is None else contents.others.get(name)
        return None if contents is None or number is None else contents.pieces[number]

    def choices(self, key: str) -> Rows:
        """What schedules chose for kernels of that ``key``."""
        name = self.name("choice", key)
        contents = self._open(name)
        return [] if contents is None else contents.choices.get(name, [])


def host(library: Library, isa: str) -> CpuTarget | None:
    """The machine, as an earlier process was told by TVM, which takes long to load."""
    known = _HOSTS.get(isa)
    found = library.find(host_name(isa)) if known is None else None
    if found is not None:
        fields = json.loads(found.made)["host"]
        known = _HOSTS[isa] = CpuTarget(**fields | {"mattr": tuple(fields["mattr"])})
    return known


_HOSTS: dict[str, CpuTarget] = {}


def written(
    pieces: Sequence[Piece],
    kernels: Mapping[str, Made],
    functions: Mapping[str, Compiled],
    others: Mapping[str, Piece],
    choices: Mapping[str, Rows],
    machine: CpuTarget,
) -> bytes:
    """The text of what a program with the code of ``pieces`` is made of, by names, and where."""
    numbers = {piece: i for i, piece in enumerate(pieces)}
    listed = dict.fromkeys(c for made in kernels.values() for c in made.compiled)
    listed |= dict.fromkeys(functions.values())
    places = {c.function: i for i, c in enumerate(listed)}

    def number_of(some: Iterable[Piece]) -> list[int]:
        return sorted(numbers[p] for p in some)

    digests = [hashlib.sha256(piece.code).hexdigest() for piece in pieces]
    for digest, piece in zip(digests, pieces, strict=True):
        PIECES.setdefault(digest, piece)
    text = {
        "pieces": [
            [digest, p.symbols, number_of(p.needs), p.helper]
            for digest, p in zip(digests, pieces, strict=True)
        ],
        "functions": [
            [f.symbol, f.dtypes, f.takes, f.structure, numbers[c.piece]]
            for c in listed
            for f in (c.function,)
        ],
        "kernels": {
            name: [
                made.ready.rule,
                made.ready.scratch,
                [[s.tiles, places[s.function], s.arguments, s.numbers] for s in made.ready.stages],
                number_of(made.pieces),
            ]
            for name, made in kernels.items()
        },
        "named": {name: places[c.function] for name, c in functions.items()},
        "others": {name: numbers[piece] for name, piece in others.items()},
        "choices": choices,
        "host": asdict(machine),
    }
    return json.dumps(text, separators=(",", ":")).encode()


def _read(found: Found) -> _Contents:
    text = json.loads(found.made)
    pieces, new = [], []
    for code, (digest, symbols, needs, helper) in zip(found.code, text["pieces"], strict=False):
        piece = PIECES.get(digest)
        if piece is None:
            piece = PIECES[digest] = Piece()
            piece.code, piece.symbols, piece.helper = code, symbols, helper
            new.append((piece, needs))
        pieces.append(piece)
    for piece, needs in new:  # a known one has its own, which may be beside other functions
        piece.needs.update(pieces[i] for i in needs)
    functions = [
        Compiled(Function(symbol, tuple(dtypes), takes, _structure(structure)), pieces[i])
        for symbol, dtypes, takes, structure, i in text["functions"]
    ]
    named = (text[kind] for kind in ("kernels", "named", "others", "choices"))
    return _Contents(pieces, functions, *named)


def _structure(row: Sequence[Any]) -> tuple[object, ...]:
    name, dtypes, *numbers = row
    return name, tuple(dtypes), *numbers
