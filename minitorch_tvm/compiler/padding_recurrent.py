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
from ..ops.recurrent import IDLE, WIDTH, Recurrence, RecurrenceBackward
from .dims import ONE, Dim, Extent, Refused, room_of, same, varies
from .padder import Padder, Rule
from .room import length_of


def _lacking(i: int, room: int, graph: Graph) -> int:
    """For how many steps of the value ``i`` there is only room."""
    return room - length_of(i, 0, graph)


def _start_of(block: int, op: Recurrence, i: int, graph: Graph) -> int:
    """The first row of a block of what a recurrence over the value ``i`` gives."""
    return int(sum(op.layout(length_of(i, 0, graph)).blocks[:block]))


def _along(p: Padder, lengths: Sequence[int], values: Sequence[float], dtype: dt.DType) -> int:
    """A line of so many elements of each of these values, one value behind the other."""
    pairs = zip(lengths, values, strict=True)
    parts = [p.make(mv.Full((n,), value, dtype), (), [(n,)]) for n, value in pairs]
    return parts[0] if len(parts) == 1 else p.make(mv.Cat(0), parts, [(sum(lengths),)])


class _Steps:
    """The steps of a value of the graph, [steps, ...]: those there are, and room."""

    def __init__(self, p: Padder, i: int, x: int, reverse: bool) -> None:
        dim = p.dims[x][0]
        if len(dim) != 1 or not isinstance(dim[0], Extent):
            raise Refused
        self.p, self.reverse = p, reverse
        self.dim, self.room = dim, room_of(dim)
        self.lacking = p.count(partial(_lacking, i, self.room))

    def placed(self, x: int, other: int) -> int:
        """A value of these steps where the kernel takes them from, and ``other`` where there is
        only room."""
        p = self.p
        behind = [ONE] * (len(p.dims[x]) - 1)
        if self.reverse:
            every: Dim = (self.room,)
            place = p.broadcast(ew.Sub(), p.along([every], 0), self.lacking)
            x = p.taken(x, 0, place, every)
            inside = p.broadcast(ew.Le(), self.lacking, p.along([every, *behind], 0))
        else:
            found = p.inside([self.dim, *behind], (0,))
            assert found is not None
            inside = found
        return p.broadcast(ew.Where(), inside, x, other)

    def seen(self, x: int, v: Value, starts: Sequence[Callable[[Graph], int]]) -> int:
        """Rows of ``x`` where the value at hand has them: blocks begin at ``starts``, behind the
        first, and each of them is as much longer as steps are lacking."""
        p = self.p
        dim = p.whole(p.at, 0, v.shape[0])
        if not varies(dim) or len(dim) != 1:
            raise Refused
        place, ahead = p.along([dim], 0), p.full(int(self.reverse), dt.int32)
        for start in starts:
            reached = p.broadcast(ew.Le(), p.count(start), place)
            ahead = p.broadcast(ew.Add(), ahead, p.broadcast(ew.Cast(dt.int32), reached))
        moved = p.broadcast(ew.Mul(), ahead, self.lacking)
        return p.taken(x, 0, p.broadcast(ew.Add(), place, moved), dim)


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
    i, idle = v.inputs[0], IDLE[op.cell]
    sequence = _Steps(p, i, x, op.reverse)
    given = sequence.placed(x, _along(p, [room_of(hidden)] * len(idle), idle, v.dtype))
    layout = op.layout(sequence.room)
    found = p.make(op, (given, w, h0, *rest), [(layout.rows,), rows, hidden])
    # The only c of an LSTM that keeps nothing is behind as many rows, wherever the states are.
    blocks = 1 if op.reverse and not op.keeps else len(layout.blocks)
    starts = [partial(_start_of, n, op, i) for n in range(1, blocks)]
    seen = sequence.seen(found, v, starts)
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
    given = sequence.placed(ct, p.full(0, v.dtype))
    found = p.make(op, (given, w, states, *last), [(sequence.room + 1,), rows, width])
    # Of a sequence at the end of the room all rows are; else only the last one, of h0.
    starts = [] if op.reverse else [partial(length_of, v.inputs[0], 0)]
    return sequence.seen(found, v, starts)


def _with_room(p: Padder, op: RecurrenceBackward, sequence: _Steps, y: int) -> int:
    """Rows of a forward pass that is not in the graph, where they are if there is room."""
    _, rows, hidden = p.dims[y]
    lengths = op.layout(sequence.room).blocks
    count, blocks = sum(lengths), range(len(lengths))
    every: Dim = (count,)
    position = p.along([every], 0)
    starts = _along(p, lengths, [sum(lengths[:n]) for n in blocks], dt.int32)
    offset = p.broadcast(ew.Sub(), position, starts)
    if op.reverse:
        inside = p.broadcast(ew.Le(), sequence.lacking, offset)
    else:
        ends = _along(p, lengths, lengths, dt.int32)
        ends = p.broadcast(ew.Sub(), ends, sequence.lacking)
        inside = p.broadcast(ew.Lt(), offset, ends)
    ahead = _along(p, lengths, [n + op.reverse for n in blocks], dt.int32)
    place = p.broadcast(ew.Sub(), position, p.broadcast(ew.Mul(), ahead, sequence.lacking))
    found = p.taken(y, 0, place, every)
    # As IDLE sums make them: of an LSTM f, the second plane behind states and cells, is 1.
    other = [float(op.cell == "lstm" and n == 3) for n in blocks]
    rest = _along(p, lengths, other, p.values[y].dtype)
    line = (every, ONE, ONE)
    inside, rest = (p.make(mv.Reshape((count, 1, 1)), (x,), line) for x in (inside, rest))
    return p.make(ew.Where(), (inside, found, rest), [every, rows, hidden])


RECURRENT: dict[type, Rule] = {Recurrence: _recurrence, RecurrenceBackward: _back}
