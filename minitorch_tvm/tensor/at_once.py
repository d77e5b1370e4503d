"""What is done to computed tensors at once, by numpy or in memory, instead of being recorded.

Where a region begins, how long the parts of a sequence are: such numbers are part of a program,
which is compiled for each.  That pays for the few that a model has.  Where there are more, the
operation is done on memory, and the program behind it is one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Sequence
from ctypes import memmove
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import lazy
from ..core import errors
from ..core.dtype import Category, DType, bool_, int64
from ..core.events import EVENTS
from ..core.shape import Shape, broadcast, numel, without_leading
from ..ir.node import MODE, Node, leaf, others
from ..ir.trace import Prefix, Trace
from ..ops import build as b
from ..ops import gather as ga
from ..ops.movement import Expand, Reshape
from ..runtime.memory import Buffer, buffer_of, join
from ..sites import covers, goes_on, moves, varies

if TYPE_CHECKING:
    from .core import TensorBase
    from .indexing import Region

_LARGE, _EXACT = 1e38, 1 << 53
FEW_BYTES = 1 << 12


def _begins_anywhere(region: Region, shape: Shape) -> bool:
    """True once regions of this size have been used, of such tensors, in several places."""
    return varies((shape, region.sizes, region.steps), region.starts)


def _unwatched(x: Node) -> bool:
    """True if nobody needs to know that something is read from ``x``."""
    trace = MODE.trace
    return trace.capture is None and not (x.requires_grad and trace.grad_enabled)


def is_unshared(node: Node, parts: int = 0) -> bool:
    """True if nothing but its tensor reads a value, and nothing but it and ``parts`` its memory."""
    buffer = node.buffer
    if buffer.borrowed:  # others have the memory that it is a part of
        return False
    # The node: the tensor, the caller's local, this argument, getrefcount's own.
    # The memory: the node, the local and getrefcount's argument; two of each part.
    return sys.getrefcount(node) <= 4 and sys.getrefcount(buffer) <= 3 + 2 * parts


def reshaped(x: Node, shape: Shape) -> Node:
    """The same elements in another shape, in the same memory if they are computed, and few.

    What is updated in place does not take over memory that others have: for many that matters.
    """
    memory = x.buffer
    # As of parts: what reads the user's memory is recorded.
    if memory is None or memory.nbytes > FEW_BYTES or memory.shared or not _unwatched(x):
        return b.reshape(x, shape)
    return x if x.shape == shape else leaf(memory, shape, x.dtype)


def permuted(x: Node, order: Sequence[int]) -> Node:
    """The dimensions in another order; as :func:`reshaped` where no element moves."""
    shape = x.shape
    if x.buffer is not None:
        long = [d for d in order if shape[d] != 1]
        if long == sorted(long):
            return reshaped(x, tuple([shape[d] for d in order]))
    return b.permute(x, order)


def read(x: Node, region: Region) -> Node | None:
    """A region of ``x`` as a part of its memory, a copy or picked; None if it is to be recorded."""
    memory, sizes = x.buffer, region.sizes
    if not numel(sizes):
        return None
    if memory is None or not _unwatched(x):
        return _picked(x, region)
    # Of the user's memory there may be several buffers, of which no two know each other.
    offset = None if memory.shared else region.offset(x.shape)
    if offset is not None:
        size = x.dtype.itemsize
        return leaf(memory.part(offset * size, numel(sizes) * size), region.shape, x.dtype)
    if not _begins_anywhere(region, x.shape):
        return None
    EVENTS.add("regions_copied")
    values = memory.numpy(x.shape, x.dtype)[region.slices()]
    return leaf(buffer_of(values, x.dtype), region.shape, x.dtype)


def _picked(x: Node, region: Region) -> Node | None:
    """A region that begins where data says, if it varies in the user's line; else None.

    So a model that reads its output behind the last of so many tokens has one program.
    """
    if MODE.trace.capture is not None or not moves(x.shape, region.sizes, region.steps):
        return None
    EVENTS.add("regions_picked")
    for axis, (taken, size, n) in enumerate(
        zip(region.slices(), region.sizes, x.shape, strict=True)
    ):
        if size != n:
            positions = np.arange(taken.start, taken.stop, taken.step)
            x = ga.take(x, leaf(buffer_of(positions, int64), (size,), int64), axis)
    return b.reshape(x, region.shape)


def rolled(x: Node, shifts: Sequence[int], axes: Sequence[int]) -> Node | None:
    """``x`` moved by as many places as data says, if they vary in the user's line; else None."""
    if MODE.trace.capture is not None or not numel(x.shape):
        return None
    if not moves(x.shape, (), (1,) * len(x.shape)):
        return None
    EVENTS.add("regions_picked")
    for shift, axis in zip(shifts, axes, strict=True):
        n = x.shape[axis]
        positions = np.arange(n) - shift % n
        x = ga.take(x, leaf(buffer_of(positions % n, int64), (n,), int64), axis)
    return x


def covered(x: Node, region: Region, value: Node) -> Node | None:
    """``x`` with a region that data tells from the rest, if it varies in the user's line.

    None if the write is to be recorded with its place: that of other values than one repeated, too.
    """
    if MODE.trace.capture is not None or not covers(x.shape):
        return None
    while numel(value.shape) != 1:
        if not isinstance(value.op, (Expand, Reshape)) or not value.inputs:
            return None
        (value,) = value.inputs
    EVENTS.add("regions_covered")
    inside = np.ones((1,) * len(x.shape), np.bool_)
    for axis, (taken, size, n) in enumerate(
        zip(region.slices(), region.sizes, x.shape, strict=True)
    ):
        if size != n:
            along = np.zeros(n, np.bool_)
            along[taken] = True
            inside = inside & along.reshape(-1, *(1,) * (len(x.shape) - axis - 1))
    mask = leaf(buffer_of(inside, bool_), inside.shape, bool_)
    return b.where(mask, b.reshape(value, ()), x)


def store(
    t: TensorBase, region: Region, value: Node | float, view: TensorBase | None = None
) -> bool:
    """Write to a region of a computed tensor; False, with nothing done, if that is to be recorded.

    What is still to be computed is waited for once a region has been written in several places.
    ``view``, which may be told, shows the region.
    """
    trace, node = MODE.trace, t._node
    if trace.capture is not None or trace.forbidden or t._base is not None:
        return False
    if node.requires_grad or node.is_scalar or not numel(region.shape):
        return False
    if not _fits(value, node.dtype, region.shape):
        return False
    pending = node.pending or (isinstance(value, Node) and value.pending)
    # What reads the user's memory may do so through another buffer.
    if pending or (node.buffer.shared and not lazy.idle()):
        if not _begins_anywhere(region, node.shape):
            return False
        lazy.evaluate((node, value) if isinstance(value, Node) else (node,), "setitem")
        EVENTS.add("regions_waited_for")
    parts = 0
    if view is not None and view._node.buffer is not None and view._node.buffer.borrowed:
        # The view's, and getrefcount's argument: nothing that is to be computed reads it, and no
        # other tensor has that memory.
        if sys.getrefcount(view._node) > 2 or sys.getrefcount(view._node.buffer) > 2:
            return False
        parts = 1
    if not is_unshared(node, parts) or (node.buffer.shared and others(trace)):
        return False
    if lazy.doubtful():
        lazy.require_sound()
    _put(node, region, value)
    t._version += 1
    return True


def _put(node: Node, region: Region, value: Node | float) -> None:
    """Write a value that fits to memory."""
    memory = node.buffer
    given: Any = value
    if isinstance(value, Node):
        source, size = value.buffer, node.dtype.itemsize
        if value.dtype is node.dtype and source.nbytes == numel(region.shape) * size:
            offset = region.offset(node.shape)
            if offset is not None:  # nothing is repeated, converted or apart
                memmove(memory.address + offset * size, source.address, source.nbytes)
                return
        shape = without_leading(value.shape, len(region.shape))
        given = source.numpy(value.shape, value.dtype).reshape(shape)
        given = np.broadcast_to(given, region.shape).reshape(region.sizes)
    memory.numpy(node.shape, node.dtype)[region.slices()] = given


def _fits(value: Node | float, dtype: DType, shape: Shape) -> bool:
    """True if numpy makes the same of a value as a program does that writes it to such a region."""
    if isinstance(value, Node):
        if value.requires_grad or value.is_scalar:
            return False
        if value.dtype is not dtype and not (
            dtype.is_floating_point
            and value.dtype.category < Category.FLOAT
            and value.buffer is not None
        ):
            return False
        if value.shape == shape:
            return True
        try:
            return broadcast(without_leading(value.shape, len(shape)), shape) == shape
        except RuntimeError:  # which is raised by what records it
            return False
    if type(value) is float:  # numpy warns of those that become infinite
        return dtype.is_floating_point and not _LARGE < abs(value) < math.inf
    if type(value) is not int or dtype.category is Category.BOOL:
        return False
    if dtype.is_floating_point:  # numpy rounds others twice
        return abs(value) <= _EXACT
    limits: Any = np.iinfo(dtype.numpy)
    return bool(limits.min <= value <= limits.max)


def joined(nodes: Sequence[Node], dim: int, new: bool = False) -> Node | None:
    """Tensors joined in memory; None if that is to be recorded.

    So are many that are computed already, as samples are: each would be an argument of the program.
    And so are those of which how many, how long or which are the same varies: a sequence that
    grows, a sample in which some come twice.  Each would need a program, and what reads the result
    would, too.  Lines and layers that each join other sizes do not vary: each is compared with
    itself.  ``new``: along a dimension that they do not have.
    """
    if not nodes:
        return None
    trace = MODE.trace
    if trace.forbidden or trace.capture is not None:
        return None
    if trace.grad_enabled and any([n.requires_grad for n in nodes]):  # noqa: C419  a list is faster
        return None
    key = (new, dim, *[n.spec_id for n in nodes])
    form = _FORMS.get(key)
    if form is None:
        if len(_FORMS) >= _MOST_FORMS:
            _FORMS.clear()
        form = _FORMS[key] = _form(nodes, dim, new)
    if not form:
        return None
    axis, kind, sizes, shape = form
    dtype = nodes[0].dtype
    many = len(nodes) >= _MANY and numel(shape) * dtype.itemsize <= _MOST_COPIED
    if not (many and all([n.buffer is not None for n in nodes])):  # noqa: C419
        seen: dict[int, int] = {}
        same = tuple([seen.setdefault(id(n), i) for i, n in enumerate(nodes)])
        where = kind, _parameters(trace), _line()
        several = varies(where, (sizes, same)) or goes_on(
            where, sizes, [n.buffer is not None for n in nodes]
        )
        if not several or any(n.is_scalar for n in nodes):
            return None
        lazy.evaluate(nodes, "cat")
    EVENTS.add("joined_at_once")
    if numel(shape[:axis]) == 1:
        buffer = Buffer(numel(shape) * dtype.itemsize)
        join(buffer, [(n.buffer.address, n.buffer.nbytes) for n in nodes])
        return leaf(buffer, shape, dtype)
    arrays = [n.buffer.numpy(n.shape, dtype) for n in nodes]
    array = np.stack(arrays, axis) if new else np.concatenate(arrays, axis)
    return leaf(buffer_of(array, dtype), shape, dtype)


_MANY, _MOST_COPIED = 8, 1 << 22
"""Tensors that are joined at once if they are computed; bytes that one thread copies."""
_Form = tuple[int, Hashable, tuple[Shape, ...], Shape]
"""The dimension, what is alike of all tensors that may be joined, their sizes along it, and the
result's shape."""
_FORMS: dict[tuple[int, ...], _Form | tuple[()]] = {}
_MOST_FORMS = 4096


def _line() -> tuple[str, int] | None:
    """The user's current line."""
    frame = errors.user_frame()
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _parameters(trace: Trace) -> int:
    """How many parameters this recording has read: another layer reads others.

    A loop reads the same ones again, though its data may be new every time.
    """
    prefix: Prefix | None = trace.prefix
    while prefix is not None and _parameters not in prefix.known:
        prefix = prefix.before
    # Of an earlier join; each value is looked at once, however many joins there are.
    count, length = (0, 0) if prefix is None else prefix.known[_parameters]
    if prefix is not trace.prefix:
        read = [value() for value in trace.values[length:]]
        count += sum(n is not None and n.grad_leaf for n in read)
        trace.prefix.remember(_parameters, (count, len(trace.values)))
    return int(count)


def _form(nodes: Sequence[Node], dim: int, new: bool) -> _Form | tuple[()]:
    """How tensors of these shapes are joined; nothing if they are not, or promoted."""
    rank = len(nodes[0].shape) + new
    if not -rank <= dim < rank:
        return ()
    axis = dim % rank
    skipped = axis + (not new)
    kinds = {(n.dtype, n.shape[:axis], n.shape[skipped:]) for n in nodes}
    if len(kinds) > 1 or len({len(n.shape) for n in nodes}) > 1:
        return ()
    sizes = tuple(n.shape[axis:skipped] for n in nodes)
    size = len(nodes) if new else sum(n for (n,) in sizes)
    front, behind = nodes[0].shape[:axis], nodes[0].shape[skipped:]
    return axis, (new, axis, *kinds), sizes, (*front, size, *behind)
