"""Connectionist temporal classification: the likelihood of labels that no frame is assigned to.

Formulas: Graves et al., "Connectionist temporal classification" (2006), in logarithms.  Labels are
extended by blanks around each; a path goes on from frame to frame by none, one or, where it does
not leave out a label or the blank between two equal ones, two of their places.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, cast

from ..core import dtype as dt
from ..core.record import record
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, Spec, intern
from ..ir.te import TE, Tensor
from . import build as b
from . import derived as d
from . import picking as pk
from .composite import Composite
from .special import special


@record(eq=False)
class Paths(Op, kind=Kind.OPAQUE):
    """paths(x: f[t, n, s], skip: bool[n, s]) -> f[t, n, s], log of the sums of e**x along paths.

    y[k, :, s] = x[k, :, s] + log(e**y[k-1, :, s] + e**y[k-1, :, s-1] + e**y[k-1, :, s-2]), the last
    term only where ``skip``.  Paths start at the first two places.  In float64.
    """

    def infer(self, *inputs: Spec) -> Spec:
        x, skip = inputs
        if not x.dtype.is_floating_point or skip.dtype is not dt.bool_:
            raise TypeError(f"Paths expects numbers and truths, but got {x} and {skip}")
        if len(x.shape) != 3 or x.shape[1:] != skip.shape:
            raise RuntimeError(f"Paths expects [t, n, s] and [n, s], but got {x} and {skip}")
        return x

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} has a schedule of its own")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        x, skip = xs
        out = np.empty(x.shape, x.dtype)
        before = np.full((x.shape[1], x.shape[2] + 2), -np.inf)
        for k in range(len(x)):
            if k:
                left_out = np.where(skip, before[:, :-2], -np.inf)
                now = np.logaddexp(np.logaddexp(before[:, 2:], before[:, 1:-1]), left_out)
            else:
                now = np.where(np.arange(x.shape[2]) < 2, 0.0, -np.inf)
            before[:, 2:] = now + x[k]
            out[k] = before[:, 2:]
        return out

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        raise RuntimeError("derivative for aten::_ctc_loss_backward is not implemented")


PATHS = intern(Paths())


def _extended(labels: Node, blank: int) -> Node:
    """[n, l] -> [n, 2 * l + 1]: blanks before, between and behind the labels."""
    n, length = labels.shape
    blanks = b.full((n, 2 * length + 1), blank, labels.dtype)
    return b.insert(blanks, labels, (0, 1), (1, 2)) if length else blanks


def _may_skip(places: Node) -> Node:
    """Which places of extended labels are reached from the place two before."""
    n, size = places.shape
    none = b.full((n, min(size, 2)), False, dt.bool_)
    if size < 3:
        return none
    late, early = b.narrow(places, 1, 2, size), b.narrow(places, 1, 0, size - 2)
    return b.cat([none, b.ne(late, early)], 1)  # all blanks are equal


def _emitted(x: Node, places: Node) -> Node:
    """x [t, n, c] at the labels of places [n, s]: [t, n, s]."""
    shape = (x.shape[0], *places.shape)
    return pk.gather(x, b.expand(b.reshape(places, (1, *places.shape)), shape), 2)


def _from_end(last: Node, shape: tuple[int, ...], dim: int) -> Node:
    """``last`` less the position along ``dim``, but not below 0: int64 of this shape."""
    place = b.sub(last, b.iota(shape, dim, dt.int64))
    return d.maximum(place, b.full(shape, 0, dt.int64))


class _Turned:
    """Samples of their own lengths from behind: frames, and places of extended labels."""

    def __init__(self, frames: Node, labels: Node, times: int, size: int) -> None:
        n = frames.shape[0]
        one, two = (b.full((n,), k, dt.int64) for k in (1, 2))
        self.last = b.mul(two, labels)  # the place behind the last label
        self.time = _from_end(b.sub(frames, one), (times, n), 0)
        self.place = _from_end(b.reshape(self.last, (n, 1)), (n, size), 1)

    def times(self, x: Node) -> Node:
        """x [t, n, k] with each sample's frames from behind."""
        return pk.gather(x, b.expand(b.reshape(self.time, (*self.time.shape, 1)), x.shape), 0)

    def places(self, x: Node) -> Node:
        """x [t, n, s] with each sample's places from behind."""
        return pk.gather(x, b.expand(b.reshape(self.place, (1, *self.place.shape)), x.shape), 2)


def _loss(x: Node, labels: Node, frames: Node, lengths: Node, blank: int, finite: bool) -> Node:
    times, n, _ = x.shape
    none, never = (b.full((n,), number, x.dtype) for number in (0.0, math.inf))
    zero = b.full_like(lengths, 0)
    unlabelled = b.eq(lengths, zero)
    loss = b.where(unlabelled, none, never)  # of no frames
    if times and n:
        places = _extended(labels, blank)
        y = apply(PATHS, _emitted(x, places), _may_skip(places))
        turned = _Turned(frames, lengths, 1, places.shape[1])
        time = b.expand(b.reshape(turned.time, (1, n, 1)), (1, *places.shape))
        end = b.reshape(pk.gather(y, time, 0), places.shape)
        last = b.reshape(turned.last, (n, 1))
        before = b.reshape(_from_end(last, (n, 2), 1), (n, 2))
        ends = pk.gather(end, before, 1)
        blank_last, label_last = (b.reshape(b.narrow(ends, 1, k, k + 1), (n,)) for k in (0, 1))
        label_last = b.where(unlabelled, b.full_like(label_last, -math.inf), label_last)
        found = b.neg(apply(special("logaddexp"), blank_last, label_last))
        loss = b.where(b.eq(frames, zero), loss, found)
    return b.where(b.eq(loss, never), none, loss) if finite else loss


def _gradient(
    ct: Node, x: Node, labels: Node, frames: Node, lengths: Node, blank: int, finite: bool
) -> Node:
    """e**x less the likelihood of each label at each frame, given the labels: as of log_softmax."""
    times, n, _ = x.shape
    places = _extended(labels, blank)
    size = places.shape[1]
    turned = _Turned(frames, lengths, times, size)
    emitted = _emitted(x, places)
    ahead = apply(PATHS, emitted, _may_skip(places))
    behind = pk.gather(places, turned.place, 1)
    back = apply(PATHS, _emitted(turned.times(x), behind), _may_skip(behind))
    back = turned.places(turned.times(back))
    loss = _loss(x, labels, frames, lengths, blank, False)
    least, none = b.full((), -math.inf, x.dtype), b.full((), 0.0, x.dtype)
    on_path = b.logical_not(b.logical_or(b.eq(ahead, least), b.eq(back, least)))
    place = b.iota((n, size), 1, dt.int64)
    on_path = b.logical_and(on_path, b.le(place, b.reshape(turned.last, (n, 1))))
    here = b.sub(b.add(b.add(ahead, back), b.reshape(loss, (1, n, 1))), emitted)
    likely = b.where(on_path, b.exp(b.where(on_path, here, none)), none)
    index = b.expand(b.reshape(places, (1, n, size)), likely.shape)
    labelled = pk.scatter(b.full(x.shape, 0.0, x.dtype), index, likely, 2, True)
    found = b.mul(b.sub(b.exp(x), labelled), b.reshape(ct, (1, n, 1)))
    lost = b.eq(loss, b.full((), math.inf, x.dtype))
    of_lost = b.full((), 0.0 if finite else math.nan, x.dtype)
    found = b.where(b.reshape(lost, (1, n, 1)), of_lost, found)
    frame = b.iota((times, n, 1), 0, dt.int64)
    return b.where(b.lt(frame, b.reshape(frames, (1, n, 1))), found, none)


class Ctc(Composite, kind=Kind.COMPOSITE):
    """ctc(x: f[t, n, c], labels: int64[n, l], frames: int64[n], lengths: int64[n]) -> f[n]."""

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node | None:
        if index or not all(inputs[0].shape[:2]):
            return None
        blank, finite = cast("tuple[int, bool]", self.static)
        return _gradient(ct, *cast("tuple[Node, Node, Node, Node]", inputs), blank, finite)


def ctc_loss(x: Node, labels: Node, frames: Node, lengths: Node, blank: int, finite: bool) -> Node:
    """The negative log-likelihood of each sample; ``finite``: 0 in place of inf."""
    op = intern(Ctc("CtcLoss", _loss, (blank, finite)))
    return apply(op, x, labels, frames, lengths)
