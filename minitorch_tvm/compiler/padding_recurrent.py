"""Rules of :mod:`.padding` for recurrent layers whose number of steps varies.

Steps for which there is only room come after the others: a layer that goes backward in time has its
sequence at the end of the room.  They are given sums that close gates, so that states which pass
through them are finite, and gradients stay what they are, exactly.  Results are rows, of
states, cells and what gradients need, block by block, of which each is longer where there is room:
others see them in the original's places, but for the gradient, which reads them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..core import dtype as dt
from ..ir.graph import Graph, Value
from ..ops import elementwise as ew
from ..ops import movement as mv
from ..ops.recurrent import GATES, IDLE, KEPT, WIDTH, Layout, Recurrence, RecurrenceBackward
from .dims import ONE, Dim, Extent, Refused, room_of, same, varies
from .padder import Padder, Rule
from .room import length_of


def _lacking(i: int, room: int, graph: Graph) -> int:
    """For how many steps of the value ``i`` there is only room."""
    return room - length_of(i, 0, graph)


def _first_of(block: int, i: int, cell: str, keeps: bool, graph: Graph) -> int:
    """The first row of a block behind that of states."""
    layout = Layout(cell, False, keeps, length_of(i, 0, graph))
    if cell == "lstm":
        return int(layout.cells if block == 0 else layout.kept(block - 1, 0))
    return int(layout.kept(block, 0))


class _Steps:
    """The steps of a value of the graph, [steps, ...]: those there are, and room."""

    def __init__(self, p: Padder, i: int, x: int, reverse: bool) -> None:
        dim = p.dims[x][0]
        if len(dim) != 1 or not isinstance(dim[0], Extent):
            raise Refused
        self.p, self.reverse = p, reverse
        self.dim, self.room = dim, room_of(dim)
        self.lacking = p.count(partial(_lacking, i, self.room))

    def placed(self, x: int) -> tuple[int, int]:
        """A value of these steps where the kernel takes them from, and which of them there are."""
        p = self.p
        others = [ONE] * (len(p.dims[x]) - 1)
        if not self.reverse:
            inside = p.inside([self.dim, *others], (0,))
            assert inside is not None
            return x, inside
        every: Dim = (self.room,)
        place = p.broadcast(ew.Sub(), p.along([every], 0), self.lacking)
        moved = p.taken(x, 0, place, every)
        place = p.broadcast(ew.Sub(), p.along([every, *others], 0), self.lacking)
        return moved, p.broadcast(ew.Le(), p.full(0, dt.int32), place)

    def rows(self, x: int, dim: Dim, steps_ahead: int) -> int:
        """Rows of ``x`` at positions ``steps_ahead`` times as far on as steps are lacking."""
        p = self.p
        if not varies(dim) or len(dim) != 1:
            raise Refused
        moved = p.broadcast(ew.Mul(), steps_ahead, self.lacking)
        return p.taken(x, 0, p.broadcast(ew.Add(), p.along([dim], 0), moved), dim)

    def behind(self, dim: Dim, starts: Sequence[Callable[[Graph], int]]) -> int:
        """How many of these are at or before each position, and one if the sequence is at the end
        of the room."""
        p = self.p
        place, count = p.along([dim], 0), p.full(int(self.reverse), dt.int32)
        for start in starts:
            reached = p.broadcast(ew.Le(), p.count(start), place)
            count = p.broadcast(ew.Add(), count, p.broadcast(ew.Cast(dt.int32), reached))
        return count


def _of_one_size(p: Padder, w: int, hidden: Dim) -> None:
    if any(map(varies, (*p.dims[w], hidden))):
        raise Refused


def _recurrence(p: Padder, op: Recurrence, v: Value, xs: Sequence[int]) -> int:
    x, w, h0, *rest = xs
    steps, rows, _ = p.dims[x]
    hidden = p.dims[h0][1]
    _of_one_size(p, w, hidden)
    for state in (h0, *(rest if op.cell == "lstm" else ())):
        same(p.dims[state][0], rows)
    if not varies(steps):
        return p.make(op, xs, [(v.shape[0],), rows, hidden])
    i = v.inputs[0]
    sequence = _Steps(p, i, x, op.reverse)
    given, inside = sequence.placed(x)
    dtype, size = v.dtype, room_of(hidden)
    shut = [p.make(mv.Full((size,), sums, dtype), (), [hidden]) for sums in IDLE[op.cell]]
    line = shut[0]
    if len(shut) > 1:
        line = p.make(mv.Cat(0), shut, [(GATES[op.cell] * size,)])
    given = p.broadcast(ew.Where(), inside, given, line)
    every: Dim = (op.layout(sequence.room).rows,)
    found = p.make(op, (given, w, h0, *rest), [every, rows, hidden])
    # The only c of an LSTM that keeps nothing is behind as many rows, wherever the states are.
    blocks = KEPT[op.cell] + (op.cell == "lstm") if op.keeps else int(op.cell == "lstm")
    if op.reverse and not op.keeps:
        blocks = 0
    starts = [partial(_first_of, n, i, op.cell, op.keeps) for n in range(blocks)]
    dim = p.whole(p.at, 0, v.shape[0])
    seen = sequence.rows(found, dim, sequence.behind(dim, starts))
    p.sources[seen] = found
    return seen


def _back(p: Padder, op: RecurrenceBackward, v: Value, xs: Sequence[int]) -> int:
    ct, w, y, *last = xs
    steps, rows, hidden = p.dims[ct]
    _of_one_size(p, w, hidden)
    for state in last:
        same(p.dims[state][0], rows)
    width: Dim = (WIDTH[op.cell] * room_of(hidden),)
    if not varies(steps):
        return p.make(op, xs, [(v.shape[0],), rows, width])
    sequence = _Steps(p, v.inputs[0], ct, op.reverse)
    states = p.sources.get(y)
    if states is None or p.values[states].shape[0] != op.layout(sequence.room).rows:
        states = _with_room(p, op, sequence, y)
    given, inside = sequence.placed(ct)
    given = p.broadcast(ew.Where(), inside, given, p.full(0, v.dtype))
    found = p.make(op, (given, w, states, *last), [(sequence.room + 1,), rows, width])
    dim = p.whole(p.at, 0, v.shape[0])
    # Of a sequence at the end of the room all rows are; else only the last one, of h0.
    starts = [] if op.reverse else [partial(length_of, v.inputs[0], 0)]
    return sequence.rows(found, dim, sequence.behind(dim, starts))


def _with_room(p: Padder, op: RecurrenceBackward, sequence: _Steps, y: int) -> int:
    """Rows of a forward pass that is not in the graph, where they are if there is room."""
    _, rows, hidden = p.dims[y]
    lstm, room = op.cell == "lstm", sequence.room
    lengths = [room + 1] * (1 + lstm) + [room] * KEPT[op.cell]
    count = sum(lengths)
    every: Dim = (count,)

    def line(values: Sequence[float | int], dtype: dt.DType) -> int:
        """A value for each block, along its rows."""
        pairs = zip(lengths, values, strict=True)
        parts = [p.make(mv.Full((n,), value, dtype), (), [(n,)]) for n, value in pairs]
        return parts[0] if len(parts) == 1 else p.make(mv.Cat(0), parts, [every])

    starts = [sum(lengths[:k]) for k in range(len(lengths))]
    position = p.along([every], 0)
    offset = p.broadcast(ew.Sub(), position, line(starts, dt.int32))
    if op.reverse:
        inside = p.broadcast(ew.Le(), sequence.lacking, offset)
    else:
        ends = p.broadcast(ew.Sub(), line(lengths, dt.int32), sequence.lacking)
        inside = p.broadcast(ew.Lt(), offset, ends)
    ahead = line([k + op.reverse for k in range(len(lengths))], dt.int32)
    place = p.broadcast(ew.Sub(), position, p.broadcast(ew.Mul(), ahead, sequence.lacking))
    found = p.taken(y, 0, place, every)
    # As IDLE sums make them: of an LSTM f, the second plane behind states and cells, is 1.
    rest = line([float(lstm and k == 3) for k in range(len(lengths))], p.values[y].dtype)
    shape = (count, 1, 1)
    inside, rest = (p.make(mv.Reshape(shape), (x,), [every, ONE, ONE]) for x in (inside, rest))
    return p.make(ew.Where(), (inside, found, rest), [every, rows, hidden])


RECURRENT: dict[type, Rule] = {Recurrence: _recurrence, RecurrenceBackward: _back}
