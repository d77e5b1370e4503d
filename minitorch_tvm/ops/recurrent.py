"""Recurrent layers: all time steps of one direction of one layer are one op, and so are gradients.

A step needs the one before, so an op per step would be hundreds of kernels that each wait for all
threads.  As one op the steps are a loop in one kernel, of any length.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..core import dtype as dt
from ..core.record import record
from ..ir.build import Build
from ..ir.node import MODE, Node, apply, scalar
from ..ir.op import Kind, Op, Spec, intern
from ..ir.te import TE, Tensor
from . import build as b
from .composite import composite
from .gather import take

GATES = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}
"""Rows of the weights, in hidden sizes."""

KEPT = {"tanh": 0, "relu": 0, "lstm": 4, "gru": 4}
"""Values per step and state that gradients are made of: i, f, g, o; r, z, n, h U_n.T + b."""

WIDTH = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 4}
"""Cotangents per step and state: those of the sums, of a GRU r, z, r n (of the product), n."""


_FAR = 1e30
"""A sum at which gates are shut, or open, whatever is added to it."""

IDLE = {
    "tanh": (0.0,),
    "relu": (-_FAR,),
    "lstm": (-_FAR, _FAR, 0.0, -_FAR),
    "gru": (-_FAR, _FAR, 0.0),
}
"""By gate, the sums of a step for which there is no element of the sequence: they keep an LSTM's
cell and a GRU's state as they are, what a relu makes from growing, and gradients at zero."""


@record
class Layout:
    """Where a recurrence leaves what: numbers of rows f[n, h] of its result.

    States first, one more than steps, then an LSTM's c (only the last one, if nothing is kept for
    gradients), then what is kept, plane by plane.  ``steps`` may be an expression.
    """

    cell: str
    reverse: bool
    keeps: bool
    steps: Any

    def time(self, step: Any) -> Any:
        """The element of the sequence that is read ``step`` steps after the first."""
        return self.steps - 1 - step if self.reverse else step

    def before(self, step: Any) -> Any:
        """The row of the state that a step starts from; c is :attr:`cells` rows further on."""
        return self.steps - step if self.reverse else step

    def after(self, step: Any) -> Any:
        """The row of the state that a step makes."""
        return self.before(step + 1)

    @property
    def outputs(self) -> Any:
        """The first row of the states after steps, in the order of time."""
        return 0 if self.reverse else 1

    @property
    def cells(self) -> Any:
        """The first row of an LSTM's c."""
        return self.steps + 1

    def cell_row(self, state_row: Any) -> Any:
        """The row of c beside that of a state."""
        return self.cells + state_row if self.keeps else self.cells

    def kept(self, plane: int, time: Any) -> Any:
        """The row of a value that is kept of a step."""
        first = self.cells + (self.steps + 1 if self.cell == "lstm" else 0)
        return first + self.steps * plane + time

    @property
    def blocks(self) -> list[Any]:
        """How many rows there are of states, of an LSTM's c, and of each plane that is kept."""
        found = [self.steps + 1]
        if self.cell == "lstm":
            found.append(self.steps + 1 if self.keeps else 1)
        return [*found, *[self.steps] * (KEPT[self.cell] if self.keeps else 0)]

    @property
    def rows(self) -> Any:
        """How many rows there are."""
        return sum(self.blocks)


def row(x: Node, number: int) -> Node:
    """x[number]."""
    return b.reshape(b.narrow(x, 0, number, number + 1), x.shape[1:])


def _stacked(xs: list[Node]) -> Node:
    parts = [b.reshape(x, (1, *x.shape)) for x in xs]
    return parts[0] if len(parts) == 1 else b.cat(parts, 0)


def _columns(x: Node, count: int) -> list[Node]:
    """x [n, count * m] as pieces [n, m]."""
    m = x.shape[1] // count
    return [b.narrow(x, 1, i * m, (i + 1) * m) for i in range(count)]


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
    return (b.mul(o, _tanh(c)), c), (i, f, g, o)


def gru_cell(x: Node, hidden: Node, state: State) -> tuple[State, State]:
    """(new state, what its gradient is made of) of a GRU, from the two products."""
    (xr, xz, xn), (hr, hz, hn) = _columns(x, 3), _columns(hidden, 3)
    r, z = _sigmoid(b.add(xr, hr)), _sigmoid(b.add(xz, hz))
    n = _tanh(b.add(xn, b.mul(r, hn)))
    return (b.add(n, b.mul(z, b.sub(state[0], n))),), (r, z, n, hn)


def _lstm_state(sums: Node, c: Node) -> Node:
    return lstm_cell(sums, (c, c))[0][1]


def _lstm_output(sums: Node, c: Node) -> Node:
    return b.mul(_sigmoid(_columns(sums, 4)[3]), _tanh(c))


def lstm_step(sums: Node, c: Node) -> State:
    """The new (h, c) of :func:`lstm_cell`, recorded as one node each."""
    new = apply(composite("LSTMState", _lstm_state), sums, c)
    return apply(composite("LSTMOutput", _lstm_output), sums, new), new


def gru_step(x: Node, hidden: Node, h: Node) -> Node:
    """The new state of :func:`gru_cell`, recorded as one node."""
    return apply(composite("GRUState", _gru_state), x, hidden, h)


def _gru_state(x: Node, hidden: Node, h: Node) -> Node:
    return gru_cell(x, hidden, (h,))[0][0]


def plain_cell(sums: Node, kind: str) -> Node:
    """The new state of a layer without gates."""
    return _tanh(sums) if kind == "tanh" else apply(b.RELU, sums)


def _lstm_back(dh: Node, dc: Node, c: State, kept: State) -> tuple[Node, Node]:
    """Cotangents of the sums [n, 4 h] and of c before; ``c`` is that before and after."""
    i, f, g, o = kept
    bounded = _tanh(c[1])
    dc = b.add(dc, _of_tanh(b.mul(dh, o), bounded))
    parts = [
        _of_sigmoid(b.mul(dc, g), i),
        _of_sigmoid(b.mul(dc, c[0]), f),
        _of_tanh(b.mul(dc, i), g),
        _of_sigmoid(b.mul(dh, bounded), o),
    ]
    return b.cat(parts, 1), b.mul(dc, f)


def _gru_back(dh: Node, before: Node, kept: State) -> tuple[Node, Node]:
    """Cotangents [n, 4 h], see :data:`WIDTH`, and of h beside the product."""
    r, z, n, hn = kept
    dn = _of_tanh(b.mul(dh, _complement(z)), n)
    dz = _of_sigmoid(b.mul(dh, b.sub(before, n)), z)
    dr = _of_sigmoid(b.mul(dn, hn), r)
    return b.cat([dr, dz, b.mul(dn, r), dn], 1), b.mul(dh, z)


def _plain_back(dh: Node, h: Node, kind: str) -> Node:
    if kind == "tanh":
        return _of_tanh(dh, h)
    zero = b.full_like(h, 0.0)
    return b.where(b.le(h, zero), zero, dh)


@record(eq=False)
class Recurrence(Op, kind=Kind.OPAQUE):
    """recurrence(x: f[t, n, g h], w: f[g h, h], h0: f[n, h], ...) -> f[rows, n, h].

    x is the product of the inputs, h w.T that of the states; ``cell`` says how both make the next
    state.  Last comes c0: f[n, h] of an LSTM, and of a GRU u: f[3 h], which is added to h w.T.
    What the rows are says :class:`Layout`.  With ``keeps`` the result holds what gradients need, by
    which it is not differentiated.
    """

    cell: str
    reverse: bool
    keeps: bool

    @property
    def name(self) -> str:
        return {"lstm": "Lstm", "gru": "Gru"}.get(self.cell, "Rnn")

    def layout(self, steps: Any) -> Layout:
        """Where what is, if there are so many steps."""
        return Layout(self.cell, self.reverse, self.keeps, steps)

    def infer(self, *inputs: Spec) -> Spec:
        x, _, h0 = inputs[:3]
        return Spec((self.layout(x.shape[0]).rows, *h0.shape), x.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} has a schedule of its own")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        x, w, h, *last = xs
        at = self.layout(len(x))
        out = np.zeros((at.rows, *h.shape), x.dtype)
        out[at.before(0)] = h
        c = last[0] if self.cell == "lstm" else None
        if c is not None and self.keeps:
            out[at.cell_row(at.before(0))] = c
        for step in range(len(x)):
            t, hidden = at.time(step), h @ w.T
            kept: list[Any] = []
            if self.cell == "gru":
                xs_, hs = np.split(x[t], 3, 1), np.split(hidden + last[0], 3, 1)
                r, z = (_logistic(np, xs_[i] + hs[i]) for i in range(2))
                n = np.tanh(xs_[2] + r * hs[2])
                h, kept = n + z * (h - n), [r, z, n, hs[2]]
            elif self.cell == "lstm":
                i, f, g, o = np.split(x[t] + hidden, 4, 1)
                i, f, g, o = _logistic(np, i), _logistic(np, f), np.tanh(g), _logistic(np, o)
                c = f * c + i * g
                h, kept = o * np.tanh(c), [i, f, g, o]
                out[at.cell_row(at.after(step))] = c
            else:
                sums = x[t] + hidden
                h = np.tanh(sums) if self.cell == "tanh" else np.maximum(sums, 0)
            out[at.after(step)] = h
            for plane, value in enumerate(kept if self.keeps else ()):
                out[at.kept(plane, t)] = value
        return out

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        x, w, h0 = xs[:3]
        steps, n, rows = x.shape
        h, at = h0.shape[1], self.layout(steps)
        outputs = b.narrow(ct, 0, at.outputs, at.outputs + steps)
        last = row(ct, at.cell_row(at.before(steps))) if self.cell == "lstm" else None
        if MODE.trace.grad_enabled or not self.keeps:
            # Of an op's gradient as one op there is no derivative, so it is made of others.
            back, states = _unrolled(self, outputs, last, *xs)
        else:
            op = intern(RecurrenceBackward(self.cell, self.reverse))
            back = apply(op, outputs, w, y, *([] if last is None else [last]))
            states = y
        # Reshaped first, a part is one in memory.
        flat = b.reshape(back, ((steps + 1) * n, back.shape[2]))
        every = b.narrow(flat, 0, 0, steps * n)
        of_hidden = b.narrow(every, 1, 0, rows)
        of_x = every
        if self.cell == "gru":
            of_x = b.cat([b.narrow(every, 1, 0, 2 * h), b.narrow(every, 1, 3 * h, 4 * h)], 1)
        ends = b.narrow(flat, 0, steps * n, (steps + 1) * n)
        first = n if self.reverse else 0
        states = b.reshape(states, (states.shape[0] * n, h))
        before = b.narrow(states, 0, first, first + steps * n)
        found: list[Node | None] = [
            b.reshape(of_x, x.shape),
            b.matmul(of_hidden, before, True, False) if w.requires_grad else None,
            b.add(b.narrow(ends, 1, 0, h), row(ct, at.before(0))) if h0.requires_grad else None,
        ]
        if self.cell == "lstm":
            found.append(b.narrow(ends, 1, h, 2 * h))
        if self.cell == "gru":
            found.append(b.sum(of_hidden, (0,), False) if xs[3].requires_grad else None)
        return tuple(found)


def _logistic(np: ModuleType, x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


@record(eq=False)
class RecurrenceBackward(Op, kind=Kind.OPAQUE):
    """(ct: f[t, n, h], w: f[g h, h], y: f[rows, n, h], ...) -> f[t + 1, n, width h].

    Cotangents of what a :class:`Recurrence` that keeps adds up in each step, from those of its
    states; of an LSTM also that of the last c: f[n, h].  In the last row are those of h0, and of
    c0 beside it, and zeros behind them.
    """

    cell: str
    reverse: bool

    @property
    def name(self) -> str:
        return {"lstm": "LstmBackward", "gru": "GruBackward"}.get(self.cell, "RnnBackward")

    def layout(self, steps: Any) -> Layout:
        """Where in ``y`` what is, if there are so many steps."""
        return Layout(self.cell, self.reverse, True, steps)

    def infer(self, *inputs: Spec) -> Spec:
        steps, n, h = inputs[0].shape
        return Spec((steps + 1, n, WIDTH[self.cell] * h), inputs[0].dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} has a schedule of its own")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        ct, w, y, *last = xs
        steps, n, h = ct.shape
        at = self.layout(steps)
        out = np.zeros((steps + 1, n, WIDTH[self.cell] * h), ct.dtype)
        later = np.zeros((n, h), ct.dtype)
        rest = last[0] if last else later
        for step in reversed(range(steps)):
            t, before, after = at.time(step), at.before(step), at.after(step)
            dh = ct[t] + later
            kept = [y[at.kept(plane, t)] for plane in range(KEPT[self.cell])]
            if self.cell == "lstm":
                i, f, g, o = kept
                bounded = np.tanh(y[at.cell_row(after)])
                dc = rest + dh * o * (1 - bounded * bounded)
                parts = [dc * g * i * (1 - i), dc * y[at.cell_row(before)] * f * (1 - f)]
                parts += [dc * i * (1 - g * g), dh * bounded * o * (1 - o)]
                rest, beside = dc * f, 0
            elif self.cell == "gru":
                r, z, m, hm = kept
                dm = dh * (1 - z) * (1 - m * m)
                parts = [dm * hm * r * (1 - r), dh * (y[before] - m) * z * (1 - z), dm * r, dm]
                beside = dh * z
            else:
                s = y[after]
                parts = [dh * (1 - s * s) if self.cell == "tanh" else np.where(s <= 0, 0, dh)]
                beside = 0
            out[t] = np.concatenate(parts, 1)
            later = out[t][:, : len(w)] @ w + beside
        out[steps][:, :h] = later
        if last:
            out[steps][:, h : 2 * h] = rest
        return out


STEPWISE = (Recurrence, RecurrenceBackward)
"""Ops whose kernels go on from step to step."""


def _stepped(cell: str, now: Node, state: State, *xs: Node) -> tuple[State, State]:
    """A step as ops of its own, from its row of the inputs' product: the state, what is kept."""
    hidden = b.matmul(state[0], xs[1], False, True)
    if cell == "gru":
        return gru_cell(now, b.add(hidden, xs[3]), state)
    sums = b.add(hidden, now)
    return lstm_cell(sums, state) if cell == "lstm" else ((plain_cell(sums, cell),), ())


def _unrolled(op: Recurrence, ct: Node, last: Node | None, *xs: Node) -> tuple[Node, Node]:
    """What :class:`RecurrenceBackward` gives, and states in its order, by an op for each step."""
    x, w, h0 = xs[:3]
    steps, at = x.shape[0], op.layout(x.shape[0])
    # At a position that is a number of the program all steps have the same kernels; a slice would
    # make some for each.
    numbers = [scalar(t, dt.int64) for t in range(steps)]
    state: State = (h0, xs[3]) if op.cell == "lstm" else (h0,)
    states, kept = [state], []
    for step in range(steps):
        state, own = _stepped(op.cell, take(x, numbers[at.time(step)], 0), state, *xs)
        states.append(state)
        kept.append(own)
    later: Node | None = None
    dc = last
    found: dict[int, Node] = {}
    for step in reversed(range(steps)):
        t = at.time(step)
        dh = take(ct, numbers[t], 0)
        dh = dh if later is None else b.add(dh, later)
        beside: Node | None = None
        if op.cell == "lstm":
            assert dc is not None
            c = (states[step][1], states[step + 1][1])
            found[t], dc = _lstm_back(dh, dc, c, kept[step])
        elif op.cell == "gru":
            found[t], beside = _gru_back(dh, states[step][0], kept[step])
        else:
            found[t] = _plain_back(dh, states[step + 1][0], op.cell)
        later = b.matmul(b.narrow(found[t], 1, 0, w.shape[0]), w, False, False)
        later = later if beside is None else b.add(later, beside)
    assert later is not None
    ends = later
    if op.cell == "lstm":
        assert dc is not None
        ends = b.cat([later, dc, later, later], 1)
    elif op.cell == "gru":
        ends = b.cat([later] * 4, 1)
    hs = [s[0] for s in states]
    return (
        _stacked([*(found[t] for t in range(steps)), ends]),
        _stacked(hs[::-1] if op.reverse else hs),
    )


def projected(
    reverse: bool, sums: Node, weight: Node, h: Node, c: Node, projection: Node
) -> tuple[Node, list[Node]]:
    """As :func:`recurrence` of an LSTM whose states h are ``projection`` times the output.

    Each step is recorded: what a step reads of the one before is the result of a product.
    """
    steps = range(sums.shape[0])
    outputs: dict[int, Node] = {}
    for t in reversed(steps) if reverse else steps:
        state, c = lstm_step(b.add(row(sums, t), b.matmul(h, weight, False, True)), c)
        h = outputs[t] = b.matmul(state, projection, False, True)
    return _stacked([outputs[t] for t in steps]), [h, c]


def recurrence(cell: str, reverse: bool, *xs: Node) -> tuple[Node, list[Node]]:
    """(states f[t, n, h] after each step, the last ones: h, of an LSTM also c)."""
    if xs[0].shape[0] == 1:  # the weight is read once: packing it would take longer than the step
        state: State = (xs[2], xs[3]) if cell == "lstm" else (xs[2],)
        state, _ = _stepped(cell, row(xs[0], 0), state, *xs)
        return _stacked([state[0]]), list(state)
    keeps = MODE.trace.grad_enabled and any(x.requires_grad for x in xs)
    op = Recurrence(cell, reverse, keeps)
    rows, steps = apply(intern(op), *xs), xs[0].shape[0]
    at = op.layout(steps)
    y = b.narrow(rows, 0, at.outputs, at.outputs + steps)
    final = [row(y, at.time(steps - 1))]
    if cell == "lstm":
        final.append(row(rows, at.cell_row(at.before(steps))))
    return y, final
