"""Which tensors share memory: views and detached tensors, and the one that has what they show."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import lazy
from ..ir.node import MODE, WATCHED, Node
from . import history

if TYPE_CHECKING:
    from .core import TensorBase
    from .tensor import Tensor

_reference = weakref.ref


class Memory:
    """What views hold instead of the tensor that has the memory, which may come to be another.

    Views keep it, and it the tensor; the tensor knows it as long as there are views.
    """

    __slots__ = ("__weakref__", "holder")

    holder: Tensor


def _known(t: TensorBase) -> Memory | None:
    known = getattr(t, "_memory", None)
    return None if known is None else known()


def memory_of(t: TensorBase) -> Memory:
    """What views of ``t`` hold, which has the memory that they show."""
    known = getattr(t, "_memory", None)
    memory = None if known is None else known()
    if memory is None:
        memory = Memory()  # which takes half as long as one with an __init__
        memory.holder = t  # type: ignore[assignment]
        t._memory = _reference(memory)
    return memory


def whole(_: Node, value: Node) -> Node:
    """What a tensor is once ``value`` has been written to all of it."""
    return value


def shows_all(t: TensorBase) -> bool:
    """Whether ``t``, which is no tensor with memory of its own, is all of another one, detached."""
    return t._detached and t._replay is history.detached


def through(
    view: TensorBase, replay: Callable[[Node], Node], write: Callable[[Node, Node], Node]
) -> tuple[Callable[[Node], Node], Callable[[Node, Node], Node]]:
    """How to read from and write to the base of ``view`` what is a part of ``view``."""
    outer_replay, outer_write = view._replay, view._write
    if replay is history.detached and shows_all(view):
        return replay, write

    def read(root: Node) -> Node:
        return replay(outer_replay(root))

    def put(root: Node, value: Node) -> Node:
        return outer_write(root, write(outer_replay(root), value))

    return read, put


def is_of_leaf(t: TensorBase) -> bool:
    """Whether ``t`` is a view of a leaf that requires grad."""
    return t._base is not None and not t._detached and t._base.holder._node.grad_leaf


def left_behind(t: TensorBase) -> bool:
    """Leave the memory of ``t``, which is up to date, to its views: whether there are any.

    They show a tensor of their own from now on, with the value, the history and the place in other
    memory that ``t`` has had.
    """
    memory = _known(t)
    if memory is None:
        return False
    stays = t._wrap(t._node)
    stays._strides, stays._version = t._strides, t._version
    if t._base is not None:
        stays._base, stays._replay, stays._write = t._base, t._replay, t._write
        stays._seen, stays._detached = t._seen, t._detached
    stays._memory, t._memory = t._memory, None
    memory.holder = stays
    return True


def show(t: TensorBase, view: TensorBase, detached: bool) -> None:
    """Make ``t`` show what ``view`` shows; which value it stands for is the caller's to set."""
    t._base, t._replay, t._write = view._base, view._replay, view._write
    t._seen, t._detached, t._strides = view._seen, detached, view._strides


def settled(t: TensorBase) -> bool:
    """Make ``t``, which is about to be written to, no view any more if it is the last one.

    The memory that it shows a part of is not known to anybody else: nobody sees that it is not
    written to.
    """
    memory = t._base
    if not t._detached or memory is None:
        return False
    holder = memory.holder
    # Known references: that of the tensor or the memory, the local and getrefcount's argument.
    if sys.getrefcount(memory) > 3 or sys.getrefcount(holder) > 3 or holder._base is not None:
        return False
    if _is_users(holder._node):
        return False
    _ = t.node  # what has been written so far shows
    t._base = None
    return True


def take(t: TensorBase, value: Tensor) -> None:
    """Give ``t`` the memory of ``value``, but no history; its own stays with what shares it."""
    source, before = value.node, t.node
    owner = _owner(value)
    if value is t or (owner is not None and owner is _owner(t)):
        return
    if WATCHED:
        t._watched()
    shared, own = left_behind(t), t._base is None and source.spec_id == before.spec_id
    capture = MODE.trace.capture
    if capture is not None:
        if shared or source.buffer is not None:
            capture.refuse("it assigns to the data of a tensor, and others share the memory")
        capture.condition(lambda: _known(t) is not None)  # who would keep the memory
    t._base = t._strides = None
    new = history.detached(source)
    if new.pending and own and not _is_users(before):
        new.donor, before.donor = before if before.buffer is not None else before.donor, None
    if before.grad_leaf:
        t._mark_leaf(new, before)
    elif before.requires_grad:
        new = history.with_history(new, before)
    t._node = new
    t._version += 1
    lazy.track(t, new)
    # Both have one memory from now on.  What is trained shall have it itself, as that takes less,
    # and so does the tensor that gets it where nobody but views knows the one that had it.
    # Known references: that of the memory, the local and getrefcount's argument.
    if owner is not None and (not owner.requires_grad or sys.getrefcount(owner) <= 3):
        t._strides = owner._strides
        owner._base, owner._replay, owner._write = memory_of(t), history.detached, whole
        owner._seen, owner._detached = t._version, True
    else:
        show(t, value.detach(), detached=True)


def _is_users(x: Node) -> bool:
    """Whether a value is, or is to be written to, memory of the user's."""
    place = x if x.buffer is not None else x.donor
    return place is not None and bool(place.buffer.shared)


def _owner(t: TensorBase) -> TensorBase | None:
    """The tensor with memory of its own of which ``t`` shows all, or which it is."""
    while t._base is not None and shows_all(t):
        t = t._base.holder
    return t if t._base is None else None
