"""Recurrent layers: all time steps of one direction of one layer as one op."""

from __future__ import annotations

from ..core import dtype as dt
from ..core.record import record
from ..ir.node import Node, apply, scalar
from ..ir.op import Kind, Spec, intern
from . import build as b
from .composite import Expandable
from .gather import take

GATES = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}
"""Rows of the weights, in hidden sizes."""


def _part(x: Node, axis: int, start: int, stop: int) -> Node:
    starts, stops = [0] * len(x.shape), list(x.shape)
    starts[axis], stops[axis] = start, stop
    return b.slice(x, starts, stops, [1] * len(x.shape))


def _last(x: Node) -> Node:
    """x[-1]."""
    return b.reshape(_part(x, 0, x.shape[0] - 1, x.shape[0]), x.shape[1:])


def _stacked(xs: list[Node]) -> Node:
    parts = [b.reshape(x, (1, *x.shape)) for x in xs]
    return parts[0] if len(parts) == 1 else b.cat(parts, 0)


def _columns(x: Node, count: int) -> list[Node]:
    """x [n, count * m] as pieces [n, m]."""
    m = x.shape[1] // count
    return [_part(x, 1, i * m, (i + 1) * m) for i in range(count)]


def _sigmoid(x: Node) -> Node:
    return apply(b.SIGMOID, x)


def _tanh(x: Node) -> Node:
    return apply(b.TANH, x)


def _complement(x: Node) -> Node:
    return b.sub(b.full_like(x, 1.0), x)


def _of_sigmoid(ct: Node, y: Node) -> Node:
    return b.mul(ct, b.mul(y, _complement(y)))


def _of_tanh(ct: Node, y: Node) -> Node:
    return b.mul(ct, _complement(b.mul(y, y)))


State = tuple[Node, ...]
"""What a step leaves behind: h, of an LSTM (h, c)."""


def lstm_cell(sums: Node, state: State) -> tuple[State, State]:
    """(new state, what its gradient is made of) of an LSTM, from the sums of both products."""
    i, f, g, o = _columns(sums, 4)
    i, f, g, o = _sigmoid(i), _sigmoid(f), _tanh(g), _sigmoid(o)
    c = b.add(b.mul(f, state[1]), b.mul(i, g))
    bounded = _tanh(c)
    return (b.mul(o, bounded), c), (i, f, g, o, bounded)


def gru_cell(x: Node, hidden: Node, state: State) -> tuple[State, State]:
    """(new state, what its gradient is made of) of a GRU, from the two products."""
    (xr, xz, xn), (hr, hz, hn) = _columns(x, 3), _columns(hidden, 3)
    r, z = _sigmoid(b.add(xr, hr)), _sigmoid(b.add(xz, hz))
    n = _tanh(b.add(xn, b.mul(r, hn)))
    return (b.add(n, b.mul(z, b.sub(state[0], n))),), (r, z, n, hn)


def plain_cell(sums: Node, kind: str) -> Node:
    """The new state of a layer without gates."""
    return _tanh(sums) if kind == "tanh" else apply(b.RELU, sums)


@record(eq=False)
class Recurrence(Expandable, kind=Kind.COMPOSITE):
    """recurrence(x: f[t, n, g h], u: f[t, n, g h], w: f[g h, h], h0: f[n, h], ...) -> f[t, n, h].

    x is the product of the inputs, h w.T + u that of the states; ``cell`` says how both make the
    next state.  An LSTM also takes c0: f[n, h], and its last c follows the t states.  u only exists
    for a GRU, as elsewhere x takes it up.  Numbers 0, 1, ... t - 1 follow, by which steps are read.
    """

    cell: str
    reverse: bool

    @property
    def name(self) -> str:
        return {"lstm": "Lstm", "gru": "Gru"}.get(self.cell, "Rnn")

    def infer(self, *inputs: Spec) -> Spec:
        t, n, _ = inputs[0].shape
        last = len(inputs) - t  # numbers follow
        steps = t + 1 if self.cell == "lstm" else t
        return Spec((steps, n, inputs[last - 1].shape[-1]), inputs[0].dtype)

    def _order(self, count: int) -> list[int]:
        order = list(range(count))
        return order[::-1] if self.reverse else order

    def _taken(
        self, xs: tuple[Node, ...]
    ) -> tuple[Node, Node | None, Node, State, tuple[Node, ...]]:
        """x, u (if any), w, state, numbers."""
        own = len(xs) - xs[0].shape[0]
        if self.cell == "gru":
            return xs[0], xs[1], xs[2], xs[3:own], xs[own:]
        return xs[0], None, xs[1], xs[2:own], xs[own:]

    def _run(self, xs: tuple[Node, ...]) -> tuple[list[State], list[State]]:
        """States before each step and after the last, and what gradients are made of."""
        x, u, w, state, numbers = self._taken(xs)
        states, kept = [state], []
        for t in self._order(x.shape[0]):
            # At a position that is a number of the program all steps have the same kernels; a slice
            # would make some for each.
            now, hidden = take(x, numbers[t], 0), b.matmul(state[0], w, False, True)
            own: State = ()
            if u is not None:
                state, own = gru_cell(now, b.add(hidden, take(u, numbers[t], 0)), state)
            elif self.cell == "lstm":
                state, own = lstm_cell(b.add(hidden, now), state)
            else:
                state = (plain_cell(b.add(hidden, now), self.cell),)
            states.append(state)
            kept.append(own)
        return states, kept

    def expand(self, *xs: Node) -> Node:
        states, _ = self._run(xs)
        hs = [s[0] for s in states[1:]]
        hs = hs[::-1] if self.reverse else hs
        return _stacked([*hs, states[-1][1]] if self.cell == "lstm" else hs)

    def _step_back(
        self, dh: Node, rest: State, before: State, after: State, own: State
    ) -> tuple[Node, Node, Node | None, State]:
        """Cotangents of x, of the product of the states, of h beside that product, and of c."""
        if self.cell == "lstm":
            i, f, g, o, bounded = own
            dc = b.add(rest[0], _of_tanh(b.mul(dh, o), bounded))
            parts = [
                _of_sigmoid(b.mul(dc, g), i),
                _of_sigmoid(b.mul(dc, before[1]), f),
                _of_tanh(b.mul(dc, i), g),
                _of_sigmoid(b.mul(dh, bounded), o),
            ]
            sums = b.cat(parts, 1)
            return sums, sums, None, (b.mul(dc, f),)
        if self.cell == "gru":
            r, z, n, hn = own
            dn = _of_tanh(b.mul(dh, _complement(z)), n)
            dz = _of_sigmoid(b.mul(dh, b.sub(before[0], n)), z)
            dr = _of_sigmoid(b.mul(dn, hn), r)
            hidden = b.cat([dr, dz, b.mul(dn, r)], 1)
            return b.cat([dr, dz, dn], 1), hidden, b.mul(dh, z), ()
        h = after[0]
        if self.cell == "tanh":
            sums = _of_tanh(dh, h)
        else:
            zero = b.full_like(h, 0.0)
            sums = b.where(b.le(h, zero), zero, dh)
        return sums, sums, None, ()

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node | None:
        x, _, w, _, numbers = self._taken(inputs)
        count = x.shape[0]
        states, kept = self._run(inputs)
        rest: State = (_last(ct),) if self.cell == "lstm" else ()
        later: Node | None = None
        of_x: dict[int, Node] = {}
        of_hidden: dict[int, Node] = {}
        order = self._order(count)
        for step in reversed(range(count)):
            t = order[step]
            dh = take(ct, numbers[t], 0) if later is None else b.add(take(ct, numbers[t], 0), later)
            of_x[t], of_hidden[t], beside, rest = self._step_back(
                dh, rest, states[step], states[step + 1], kept[step]
            )
            later = b.matmul(of_hidden[t], w, False, False)
            later = later if beside is None else b.add(later, beside)
        name = ("x", "u", "w", "h") if self.cell == "gru" else ("x", "w", "h", "c")
        if name[index] == "x":
            return _stacked([of_x[t] for t in range(count)])
        if name[index] == "u":
            return _stacked([of_hidden[t] for t in range(count)])
        if name[index] == "h":
            return later
        if name[index] == "c":
            return rest[0]
        # One product over all steps, instead of as many sums of products; its left operand is what
        # the gradients of inputs are made of, too.
        left = _stacked([of_hidden[t] for t in range(count)])
        right = _stacked([states[order.index(t)][0] for t in range(count)])
        left, right = (b.reshape(m, (count * m.shape[1], m.shape[2])) for m in (left, right))
        return b.matmul(left, right, True, False)


def recurrence(cell: str, reverse: bool, *xs: Node) -> Node:
    """Records :class:`Recurrence`."""
    numbers = [scalar(t, dt.int64) for t in range(xs[0].shape[0])]
    return apply(intern(Recurrence(cell, reverse)), *xs, *numbers)
