"""What stands for a value once it is detached or written to, and which history that has."""

from __future__ import annotations

from .. import autograd
from ..core import dtype as dt
from ..ir.node import MODE, Node, apply, leaf
from ..ops import build as b


def without_history(x: Node) -> Node:
    """The same value as a node that records no gradient."""
    with autograd.no_grad():
        return apply(b.DETACH, x)


def with_history(x: Node, old: Node) -> Node:
    """The same value as a node whose cotangent goes where that of ``old`` goes."""
    new = without_history(x)
    new.freed, new.again = old.freed, old.again
    new.history = None if old.freed and not old.again else old.origin
    new.mark(requires_grad=True, grad_leaf=False)
    return new


def written_over(x: Node, old: Node) -> Node:
    """``x``, with a gradient of zeros for the value ``old`` that nothing is left of."""
    return b.where(b.full(x.shape, False, dt.bool_), old, x)


def move_owner(old: Node, new: Node) -> None:
    """A tensor that retains its gradient does so for the value it now stands for."""
    before = old.origin
    if before.owner is not None and new.requires_grad:
        new.owner, before.owner = before.owner, None


def detached(x: Node) -> Node:
    """As :func:`without_history`; what is computed already is not copied but shares its memory."""
    if x.buffer is None or MODE.trace.capture is not None:  # who observes must see what is read
        return without_history(x)
    return leaf(x.buffer, x.shape, x.dtype)
