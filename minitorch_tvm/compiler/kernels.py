"""Kernels made ready to be called: scheduled and turned into functions once per structure.

A kernel is cut out of its graph, so that its schedule cannot depend on anything but itself, the
machine and the settings.  Kernels that are then equal, such as those of equal layers, share their
functions, within a program and among all programs in memory, and with those of earlier processes
that are on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from weakref import WeakValueDictionary

from ..core import dtype as dt
from ..core.events import EVENTS
from ..core.record import record
from ..core.shape import contiguous_strides
from ..ir.graph import Graph, Value
from ..ir.kernel import FusedGraph, Kernel
from ..ir.node import BUFFER, SCALAR
from ..ir.op import op_of
from ..ir.program import Library, host_name
from ..ir.text import graph_text
from ..ops.movement import Permute, Slice
from .assemble import Functions, entry_functions
from .loops import Memory, Stage
from .lower import KernelCode
from .native import Build, Piece
from .recall import Recall, recalling
from .shelf import PIECES, Compiled, Made, Ready, Shelf, StageInfo, written
from .steps import ENTRY, Function
from .target import CpuTarget

Schedule = Callable[[KernelCode], tuple[str, list[Stage]]]


@record
class Isolated:
    """A kernel in a graph of its own, and the position that each value has in the program's."""

    graph: Graph
    kernel: Kernel
    overwrites: tuple[int, ...]  # inputs whose place outputs take
    passes: bool  # and the anchor's value is stored, but read by no other kernel
    values: tuple[int, ...]
    ahead: dict[int, int]
    """How many bytes of a value are in front of what is read of it; nothing tells these kernels
    apart."""


def _from_the_front(own: list[Value], reads: Iterable[int], inlined: Set[int]) -> dict[int, int]:
    """Have slices of what is read begin at the front of that; returns the bytes in front.

    A loop over time slices one tensor at every step: as their kernels are told where that is by
    the address, they are the same.
    """
    readers: list[list[int]] = [[] for _ in own]
    for i, value in enumerate(own):
        for x in {*value.inputs}:
            readers[x].append(i)
    ahead: dict[int, int] = {}
    for x in reads:
        slices = _only_slices(own, readers, x, inlined)
        if not slices:
            continue
        rank = range(len(own[x].shape))
        first = [min(op.starts[axes[k]] for _, op, axes in slices) for k in rank]
        steps = zip(first, contiguous_strides(own[x].shape), strict=True)
        nbytes = sum(n * stride for n, stride in steps) * own[x].dtype.itemsize
        if not nbytes:
            continue
        ahead[x] = nbytes
        for u, op, axes in slices:
            starts, stops = [*op.starts], [*op.stops]
            for axis, n in zip(axes, first, strict=True):
                starts[axis] -= n
                stops[axis] -= n
            own[u] = replace(own[u], op=op_of(Slice, tuple(starts), tuple(stops), op.steps))
    return ahead


def _only_slices(
    own: list[Value], readers: list[list[int]], x: int, inlined: Set[int]
) -> list[tuple[int, Slice, tuple[int, ...]]]:
    """The slices that are all that is read of ``x``, and in which place each has the axes of ``x``.

    They may be of what ``x`` becomes element by element, or with its axes in another order, if that
    is computed where it is read, not all of it.  There are none if something else is read.
    """
    found = []
    waiting = [(x, tuple(range(len(own[x].shape))))]
    while waiting:
        v, axes = waiting.pop()
        for u in readers[v]:
            op = own[u].op
            if isinstance(op, Slice):
                found.append((u, op, axes))
            elif u not in inlined:
                return []
            elif isinstance(op, Permute):
                waiting.append((u, tuple(map(op.dims.index, axes))))
            elif op.elementwise and all(i == v or own[i].shape == () for i in own[u].inputs):
                waiting.append((u, axes))
            else:
                return []
    return found


def isolate(fused: FusedGraph, kernel: Kernel) -> Isolated:
    """Cut a kernel out of its graph: what it reads from memory becomes a leaf."""
    graph, read = fused.graph, set(kernel.reads)
    position: dict[int, int] = {}
    # Numbered as they are met on the way from the members, not as they were recorded: what was
    # recorded earlier for another reader may stand anywhere in the program.
    for member in kernel.members:
        waiting = [member]
        while waiting:
            v = waiting[-1]
            inputs = () if v in read else graph.values[v].inputs
            unknown = [x for x in inputs if x not in position]
            if unknown:
                waiting += reversed(unknown)
            else:
                position.setdefault(waiting.pop(), len(position))

    def local(several: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(position[v] for v in several)

    own = []
    for v in position:
        value = graph.values[v]
        if v in read:
            op = SCALAR if value.op is SCALAR else BUFFER
            own.append(Value(op, (), value.shape, value.dtype))
        else:
            own.append(Value(value.op, local(value.inputs), value.shape, value.dtype, value.place))
    donors = (d for out, d in fused.in_place.items() if graph.outputs[out] in kernel.stores)
    overwrites = tuple(sorted(position[d] for d in donors if d in position))
    # What takes the place of an input writes where that is.
    inlined = {position[v] for v in {*kernel.inlined} - {*kernel.stores}}
    ahead = _from_the_front(own, {position[v] for v in read} - {*overwrites}, inlined)
    rows = kernel.rows
    if rows is not None:
        rows = replace(
            rows,
            places={position[v]: place for v, place in rows.places.items()},
            hidden=tuple(sorted((position[v], number) for v, number in rows.hidden)),
        )
    return Isolated(
        Graph(tuple(own), local(kernel.stores)),
        Kernel(
            None if kernel.anchor is None else position[kernel.anchor],
            local(kernel.members),
            tuple(sorted(local(kernel.inlined))),
            tuple(sorted(local(kernel.reads))),
            tuple(sorted(local(kernel.stores))),
            rows,
        ),
        overwrites,
        bool(overwrites) and kernel.anchor in kernel.stores and kernel.anchor not in fused.read,
        tuple(position),
        ahead,
    )


# Kernels live as long as a program that calls them: whoever drops all programs starts anew.
_MADE: WeakValueDictionary[object, Made] = WeakValueDictionary()
# The same of functions: kernels that differ in numbers which these are told share them.
_COMPILED: WeakValueDictionary[object, Compiled] = WeakValueDictionary()
# As long as a kernel that calls a helper lives, its helper is the only one of that name.  What all
# programs have in common is here, too.
_HELPERS: WeakValueDictionary[object, Piece] = WeakValueDictionary()


def forget_all() -> None:
    """Share nothing of what has been made so far, though programs that call it may live on."""
    for known in (_MADE, _COMPILED, _HELPERS, PIECES):
        known.clear()


class Kernels:
    """The kernels of one program on their way through a build."""

    def __init__(
        self,
        build: Build,
        schedule: Schedule,
        settings: object,
        library: Library | None = None,
    ) -> None:
        """``settings``: what decides a kernel's code beside itself; None: share with no other.

        ``library`` has what earlier processes made.
        """
        self._build, self._schedule, self._settings = build, schedule, settings
        self._shelf: Shelf | None = None
        if library is not None and settings is not None:
            self._shelf = Shelf(library, settings)
        self._own: dict[object, Made] = {}
        self._names: dict[str, Made] = {}  # of kernels, for later processes
        self._pieces: dict[str, Piece] = {}  # by symbol
        self._admitted: set[Piece] = set()  # that the program is linked from
        self._defined: dict[str, Piece] = {}  # all symbols that these hold
        self._helpers: set[str] = set()
        self._entries: dict[str, Piece] = {}
        self._compiled: dict[object, Compiled] = {}  # by structure
        self._recall: Recall | None = None
        self.functions = Functions(self._add, self._has_helper, self._find)

    def _admits(self, *pieces: Piece) -> bool:
        """Whether the program may be linked from these, too, with what they need: nothing in it may
        be there twice."""
        new: dict[Piece, None] = {}
        waiting = list(pieces)
        while waiting:
            piece = waiting.pop()
            if piece not in new and piece not in self._admitted:
                new[piece] = None
                waiting += piece.needs
        symbols = [symbol for piece in new for symbol in piece.symbols]
        if len({*symbols}) < len(symbols) or not self._defined.keys().isdisjoint(symbols):
            return False
        for piece in new:
            self._admitted.add(piece)
            self._defined.update(dict.fromkeys(piece.symbols, piece))
            if piece.helper:
                self._helpers.add(piece.helper)
                self._pieces[piece.helper] = piece
        return True

    def _shared(self, kind: str, name: str) -> Piece | None:
        """The object file of a helper or an entry, of an earlier program, or an earlier process."""
        piece = _HELPERS.get((self._settings, name)) if self._settings is not None else None
        if piece is None and self._shelf is not None:
            piece = self._shelf.piece(self._shelf.name(kind, name))
        return piece

    def _has_helper(self, name: str) -> bool:
        self._helpers.add(name)
        if name in self._defined:
            return True
        piece = self._shared("helper", name)
        if piece is None or not self._admits(piece):
            return False
        self._pieces[name] = piece
        return True

    def _find(self, function: Function) -> bool:
        """Whether a function need not be made."""
        if self._settings is None:
            return False
        piece = self._defined.get(function.symbol)  # somebody who needs it brought it
        compiled = _COMPILED.get((self._settings, function.structure))
        if compiled is not None and piece is not compiled.piece:
            compiled = compiled if piece is None and self._admits(compiled.piece) else None
        if compiled is None and piece is not None:
            compiled = Compiled(function, piece)
        if compiled is None and self._shelf is not None:
            compiled = self._shelf.function(self._function_name(function))
            if compiled is not None and not self._admits(compiled.piece):
                compiled = None
        if compiled is None:
            return False
        self._use(compiled)
        return True

    def _function_name(self, function: Function) -> str:
        assert self._shelf is not None
        return self._shelf.name("function", repr(function.structure))

    def _use(self, compiled: Compiled) -> None:
        self._compiled.setdefault(compiled.function.structure, compiled)
        self._pieces[compiled.function.symbol] = compiled.piece

    def _add(self, symbol: str, function: object) -> None:
        add = self._build.add_alone if symbol in self._helpers else self._build.add
        piece = self._pieces[symbol] = self._defined[symbol] = add(symbol, function)
        self._admitted.add(piece)
        if symbol in self._helpers:
            piece.helper = symbol

    def entry(self, workers: int, cpu: CpuTarget, timed: bool) -> Piece:
        """What programs of so many workers have in common, compiled or being compiled."""
        name = f"{ENTRY} of {workers}"
        piece = self._entries.get(name) or self._shared("entry", name)
        if piece is None:
            piece = self._build.entry(entry_functions(workers, cpu, timed))
        self._entries[name] = piece
        return piece

    def all_ready(self, kernels: Sequence[Isolated]) -> list[Ready]:
        """The functions of all kernels, from wherever they can be had."""
        found = []
        with contextlib.ExitStack() as stack:
            if self._shelf is not None:
                self._recall = stack.enter_context(recalling(self._shelf.choices))
            for n, kernel in enumerate(kernels, 1):
                self._build.expect(len(self._own), len(kernels) - n)
                found.append(self._ready(kernel))
        return found

    def _ready(self, isolated: Isolated) -> Ready:
        rows = isolated.kernel.rows
        places = None if rows is None else tuple(sorted(rows.places.items()))
        key = (
            self._settings,
            isolated.graph,
            isolated.kernel,
            isolated.overwrites,
            isolated.passes,
            places,  # which the rows' comparison leaves out
        )
        made = self._own.get(key)
        if made is None:
            name = None if self._shelf is None else self._kernel_name(self._shelf, isolated)
            made = self._own[key] = self._known(key, name) or self._new(isolated)
            if name is not None:
                self._names[name] = made
        return made.ready

    @staticmethod
    def _kernel_name(shelf: Shelf, isolated: Isolated) -> str | None:
        """What a kernel is found by in other processes; None if its graph has no text."""
        graph, kernel = graph_text(isolated.graph), isolated.kernel
        if graph is None:
            return None
        parts: list[object] = [isolated.overwrites, isolated.passes]
        parts += [kernel.anchor, kernel.members, kernel.inlined, kernel.reads, kernel.stores]
        rows = kernel.rows
        if rows is not None:
            parts += [rows.shape, rows.reduced, sorted(rows.places.items()), rows.hidden]
        return shelf.name("kernel", "\n".join([graph, *map(repr, parts)]))

    def _known(self, key: object, name: str | None) -> Made | None:
        """The kernel as an earlier program, or an earlier process, made it."""
        made = _MADE.get(key) if self._settings is not None else None
        shelved = False
        if made is None and self._shelf is not None and name is not None:
            made = self._shelf.kernel(name)
            shelved = made is not None
        if made is None or not self._admits(*made.pieces):
            return None
        if shelved:
            EVENTS.add("disk_kernels")
        for compiled in made.compiled:
            self._use(compiled)
        return made

    def _new(self, isolated: Isolated) -> Made:
        code = KernelCode(isolated.graph, isolated.kernel, isolated.overwrites, isolated.passes)
        rule, stages = self._schedule(code)
        infos, used = [], []
        for stage in stages:
            function, buffers, turns = self.functions.of(stage)
            arguments = tuple(_argument(code, b) for b in buffers)
            infos += [StageInfo(stage.tiles, function, arguments, numbers) for numbers in turns]
            piece = self._pieces[function.symbol]
            compiled = Compiled(function, piece)
            used.append(self._compiled.setdefault(function.structure, compiled))
            # Who links one function of a piece links them all, with what they call.
            needs = piece.needs
            needs.update(self._pieces[helper.name] for helper in stage.helpers)
            around = self._pieces.get(function.called, piece)  # a known one is needed already
            if around is not piece:
                around.needs.add(piece)
                needs.add(around)
        scratch = tuple(m.count * dt.by_name(m.dtype).itemsize for m in code.builder.scratch)
        symbols = [info.function.symbol for info in infos]
        symbols += [helper.name for stage in stages for helper in stage.helpers]
        pieces = dict.fromkeys(self._pieces[symbol] for symbol in symbols)
        return Made(Ready(rule, scratch, tuple(infos)), tuple(used), tuple(pieces))

    def finish(self) -> tuple[Made | Piece, ...]:
        """What later programs may share, now that the build is finished."""
        if self._settings is not None:
            _MADE.update(self._own)
            for structure, compiled in self._compiled.items():
                _COMPILED[(self._settings, structure)] = compiled
            for name in self._helpers:
                _HELPERS[(self._settings, name)] = self._pieces[name]
            for name, entry in self._entries.items():
                _HELPERS[(self._settings, name)] = entry
        return (*self._own.values(), *self._entries.values())

    def pieces(self) -> list[Piece]:
        """The object files that hold the functions."""
        found = dict.fromkeys(p for made in self._own.values() for p in made.pieces)
        return list(found | dict.fromkeys(self._pieces.values()))

    def written(
        self, pieces: Sequence[Piece], host: CpuTarget, isa: str
    ) -> tuple[bytes, tuple[str, ...]]:
        """What later processes may use of a program with the code of these, as text, and the names
        by which they ask for it."""
        shelf = self._shelf
        if shelf is None:
            return b"", ()
        functions = {self._function_name(c.function): c for c in self._compiled.values()}
        others = {shelf.name("helper", name): self._pieces[name] for name in self._helpers}
        linked = set(pieces)
        for name, piece in self._entries.items():
            if piece in linked:  # else another number of workers was guessed
                others[shelf.name("entry", name)] = piece
        used = {} if self._recall is None else self._recall.used
        choices = {shelf.name("choice", key): rows() for key, rows in used.items()}
        text = written(pieces, self._names, functions, others, choices, host)
        return text, (*self._names, *functions, *others, *choices, host_name(isa))


def _argument(code: KernelCode, buffer: Memory) -> int:
    for n, scratch in enumerate(code.builder.scratch):
        if scratch.same_as(buffer):
            return ~n
    v = code.value_of(buffer)
    assert v is not None, f"unknown buffer {buffer}"
    return v
