"""Recording: nodes of the lazy graph and the one function that appends to it.

A node is a value: a leaf that holds memory, a runtime scalar, or an op applied to nodes.  Nodes are
immutable except that evaluation gives them a buffer and then drops what they no longer need.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..core import errors
from ..core.bounds import Bounds
from ..core.dtype import DType
from ..core.record import record
from ..core.shape import Shape
from .op import Kind, Op, Spec, intern
from .trace import Key, Prefix, Result, Trace

if TYPE_CHECKING:
    from types import ModuleType

    from .te import TE, Tensor


@record(eq=False)
class Leaf(Op, kind=Kind.LEAF):
    """A value that exists before the program runs: a buffer or a runtime scalar."""

    label: str
    differentiable: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.label

    def infer(self, *inputs: Spec) -> Spec:
        raise AssertionError("leaves carry their shape")

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError("leaves are not computed")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        raise AssertionError("leaves are not computed")


BUFFER = intern(Leaf("buffer"))
SCALAR = intern(Leaf("scalar"))

_SEQUENCE = itertools.count()


def new_sequence() -> int:
    """A number for what is recorded now, larger than those of all nodes there are."""
    return next(_SEQUENCE)


_reference = weakref.ref
_frame = sys._getframe
_new = object.__new__


_SPEC_IDS: dict[tuple[Shape, DType], int] = {}
_NEW_SPEC_IDS = itertools.count()  # the size of the table would do for one thread only


def _spec_id(shape: Shape, dtype: DType) -> int:
    """A small number for each combination of shape and dtype: cheap to hash."""
    known = _SPEC_IDS.get((shape, dtype))
    return _SPEC_IDS.setdefault((shape, dtype), next(_NEW_SPEC_IDS)) if known is None else known


class Node:
    """One value of the lazy graph."""

    # Defaults that most nodes keep: not storing them halves the cost of a node.
    grad_leaf = False
    """Gradients accumulate here and go no further."""
    freed = False
    """Backward has passed and may not pass again, as what it reads is not kept any more."""
    again = False
    """Of one that is freed: it may, as it reads no values (see :mod:`.passed`)."""
    buffer: Any = None
    """The realised value (runtime.memory.Buffer)."""
    donor: Node | None = None
    """The value whose memory this one may take over."""
    history: Node | None = None
    """The value that takes this one's cotangent, where its own inputs do not: what a tensor stood
    for before something was written to it unrecorded."""
    call: Call | None = None
    """Of a node that stands for a call of a function of the user's: what makes its cotangents."""
    value: float | int | bool | None = None
    """Of a runtime scalar."""
    place: errors.Provenance | None = None
    owner: weakref.ref[Any] | None = None
    """The Tensor whose .grad is filled."""
    hooks: list[Callable[[Node | None], Node | None]] | None = None
    pending = True
    """Until the value has been computed."""
    at = -1
    """Its place in the recording of a thread (see :mod:`minitorch_tvm.ir.trace`)."""
    entry = 0
    """What it adds to a recording that it enters, as :meth:`Trace.entry` says; 0: not asked yet."""
    # Scratch of graph traversals (under the evaluation lock): the last one that came by, the
    # number it gave, and how often it met this node as an input.
    visit = 0
    sound = 0
    """When it was last known that nothing that failed leads here (see :mod:`.failed`)."""
    index = 0
    uses = 0

    def __init__(
        self,
        op: Op,
        inputs: tuple[Node, ...],
        shape: Shape,
        dtype: DType,
        requires_grad: bool,
        spec_id: int | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.shape = shape
        self.dtype = dtype
        self.requires_grad = requires_grad
        self.sequence: float = next(_SEQUENCE)
        self.spec_id = _spec_id(shape, dtype) if spec_id is None else spec_id

    @property
    def spec(self) -> Spec:
        """Shape and dtype."""
        return Spec(self.shape, self.dtype)

    @property
    def origin(self) -> Node:
        """The value that hooks and gradients of a tensor on this one belong to."""
        past = self.history
        return self if past is None or past.call is not None else past

    @property
    def is_scalar(self) -> bool:
        """True for a number that is an argument of the program."""
        return self.op is SCALAR

    def mark(self, requires_grad: bool, grad_leaf: bool) -> None:
        """Change what autograd makes of this value, from now on."""
        self.requires_grad, self.grad_leaf, self.entry = requires_grad, grad_leaf, 0
        MODE.trace.marked(self)

    def __repr__(self) -> str:
        return f"<{self.op} {self.spec}>"


class Call(Protocol):
    """A call of a function whose gradient the user defines (``autograd.Function``)."""

    saved: int
    """How many of the call's inputs, the first ones, are what its gradient reads."""
    title: str
    """What errors call its gradient."""

    def cotangents(self, cts: dict[int, Node]) -> Sequence[Node | None]:
        """Those of the call's inputs, from those of its results by number."""

    def release(self) -> None:
        """Let go of what was saved: no gradient is asked for again."""


class Capture(Protocol):
    """What an observer of a recorded function is told (see :func:`minitorch_tvm.compile`)."""

    def read(self, tensor: Any) -> None:
        """The value of ``tensor`` is used, or about to be replaced."""

    def gradient(self, tensor: Any, missing: bool) -> None:
        """The gradient of ``tensor`` is looked at, and may be missing, or it is replaced."""

    def effect(self, action: Callable[[], Any]) -> int:
        """``action`` has been run and is to be run again whenever the function is; its number."""

    def number(self, node: Node, effect: int, position: int) -> None:
        """The scalar ``node`` is an entry of what an effect returned."""

    def guard(self, node: Node, bounds: Bounds) -> None:
        """The positions that ``node`` holds are, and must be whenever the function is run."""

    def holds(self, ok: Node) -> None:
        """The 0-d bool ``ok``, which has been computed, is true, and must be whenever the function
        is run."""

    def condition(self, state: Callable[[], object]) -> None:
        """What happens may depend on Python's ``state()``."""

    def entry(self, where: dict[str, Any], name: str) -> None:
        """What happens may depend on an entry of a dictionary, by identity."""

    def at_end(self, where: dict[str, Any], name: str) -> None:
        """The same for an entry that the function may change: as it is when the call is over."""

    def tensors(self, handles: Sequence[weakref.ref[Any]]) -> None:
        """Tensors recorded since the last evaluation, before the next."""

    def evaluated(self, executor: Any, plan: Any) -> None:
        """A program has run."""

    def refuse(self, reason: str) -> None:
        """What happens cannot be run again without the function."""


class _Mode(threading.local):
    """Per-thread recording state, in one place: a look-up costs as much as a call."""

    def __init__(self) -> None:
        trace = self.trace = Trace()
        with _TRACES_LOCK:
            for ident in set(_TRACES) - {t.ident for t in threading.enumerate()}:
                del _TRACES[ident]
            _TRACES[threading.get_ident()] = trace


_TRACES_LOCK = threading.Lock()
_TRACES: dict[int, Trace] = {}


def _unlock_in_child() -> None:
    # Another thread of the parent may have held it at the fork; it does not exist here.
    global _TRACES_LOCK
    _TRACES_LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


def traces() -> list[Trace]:
    """Those of all threads."""
    with _TRACES_LOCK:
        return list(_TRACES.values())


def others(trace: Trace) -> list[Trace]:
    """Those of other threads that have something to evaluate."""
    if len(_TRACES) == 1:
        return []
    with _TRACES_LOCK:
        return [t for t in _TRACES.values() if t is not trace and t.handles]


MODE = _Mode()


class grad_enabled:
    """Whether operations inside record gradients."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._before: list[bool] = []

    def __enter__(self) -> None:
        trace = MODE.trace
        self._before.append(trace.grad_enabled)
        trace.grad_enabled = self._enabled

    def __exit__(self, *_: object) -> None:
        # An interrupt comes where a call ends: what was is there again before anything is called.
        MODE.trace.grad_enabled = self._before[-1]
        self._before.pop()


WATCHED: set[int] = set()
"""Threads (numbers of their traces) in which somebody watches what a function does."""

_inferred: dict[tuple[int, ...], tuple[Result, Result]] = {}
"""Without and with gradients."""
_INFER_LIMIT = 1 << 16


def apply(op: Op, *inputs: Node) -> Node:
    """Record ``op`` on ``inputs``: infer shape and dtype now, compute later.

    Raises what ``op.infer`` raises, with a line that says which op was recorded on which shapes.
    """
    trace = MODE.trace
    if trace.expanding:  # on stand-ins, or while a program is compiled
        if op.kind is Kind.COMPOSITE:
            return op.expand(*inputs)
        shape, dtype, spec_id, grad = _result(op, inputs)
        node = Node(op, inputs, shape, dtype, grad, spec_id)
        node.place = errors.user_place()
        return node
    base = trace.base
    # Positions that are negative or too large, of values that are not in the recording, are in no
    # key.  A list for any number of inputs takes as long as all the rest of the look-up.
    count = len(inputs)
    key: Key
    if count == 1:
        (x,) = inputs
        key = (op.uid, trace.grad_enabled, x.at - base)
    elif count == 2:
        x, y = inputs
        key = (op.uid, trace.grad_enabled, x.at - base, y.at - base)
    elif count == 3:
        x, y, z = inputs
        key = (op.uid, trace.grad_enabled, x.at - base, y.at - base, z.at - base)
    else:
        key = (op.uid, trace.grad_enabled, *[x.at - base for x in inputs])
    after = trace.prefix.next
    if after.key != key:
        after = trace.prefix.others.get(key) or _entered(trace, op, inputs)
    # As Node(), in two thirds of the time.
    node = _new(Node)
    node.op, node.inputs = op, inputs
    node.shape, node.dtype, node.spec_id, node.requires_grad = after.result
    node.sequence = next(_SEQUENCE)
    values = trace.values
    node.at = base + len(values)
    reference = _reference(node)
    trace.prefix = after
    values.append(reference)  # at once: an interrupt must not come between the two
    place: errors.Provenance | None = after.place
    try:
        frame = _frame(after.depth)
        if frame.f_lasti != after.place[1] or frame.f_code is not after.place[0]:
            place = _place_of(after)
    except ValueError:  # the stack is not that deep
        place = _place_of(after)
    node.place = place
    return node


def _place_of(after: Prefix) -> errors.Provenance | None:
    """Where the value that is being recorded comes from.

    The user's frame is looked for, which takes six times as long as to find it where it was.
    """
    place = errors.OVERRIDE.place
    if place is None:
        place = errors.user_place()
        if place is not None:
            after.place, after.depth = place, errors.user_depth() - 2
    return place


def _entered(trace: Trace, op: Op, inputs: tuple[Node, ...]) -> Prefix:
    """What follows when ``op`` is recorded; those of its inputs that are new enter first."""
    base, count = trace.base, len(trace.values)
    positions = []
    for x in inputs:
        place = x.at - base
        positions.append(place if 0 <= place < count else trace.position(x))
    key = (op.uid, trace.grad_enabled, *positions)
    prefix = trace.prefix
    return prefix.following(key) or prefix.follow(
        key, Prefix(prefix, op, positions, _result(op, inputs))
    )


def _result(op: Op, inputs: tuple[Node, ...]) -> Result:
    """Shape and dtype of a new value, their number, and whether gradients flow through it."""
    known = _inferred.get((op.uid, *[x.spec_id for x in inputs]))
    if known is None:
        known = _infer(op, inputs)
    return known[MODE.trace.grad_enabled and any(x.requires_grad for x in inputs)]


def _infer(op: Op, inputs: tuple[Node, ...]) -> tuple[Result, Result]:
    """What is made where no gradients flow, and where they do; remembered."""
    try:
        shape, dtype = op.infer(*[x.spec for x in inputs])
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        _explain(error, op, inputs)
        raise
    if len(_inferred) > _INFER_LIMIT:
        _inferred.clear()
    differentiable = op.differentiable and dtype.is_floating_point
    number = _spec_id(shape, dtype)
    without = (shape, dtype, number, False)
    result = (without, (shape, dtype, number, True) if differentiable else without)
    _inferred[(op.uid, *[x.spec_id for x in inputs])] = result
    return result


def once_fitting(check: Callable[..., None]) -> Callable[..., None]:
    """``check(nodes, *options)``, asked once per shapes and dtypes of the nodes, and options.

    It raises unless they fit, for no other reason; a None among the nodes is one of them.  Options
    are compared, so that True is 1.

    >>> from minitorch_tvm.core.dtype import float32
    >>> ask = once_fitting(lambda nodes, rank: print("asked"))
    >>> ask((leaf(None, (2,), float32), None), 1), ask((leaf(None, (2,), float32), None), 1)
    asked
    (None, None)
    """
    fitting: set[tuple[object, ...]] = set()

    @functools.wraps(check)
    def ask(nodes: Sequence[Node | None], *options: object) -> None:
        key = (*[None if n is None else n.spec_id for n in nodes], *options)
        if key not in fitting:
            check(nodes, *options)
            if len(fitting) >= _MOST_FITTING:
                fitting.clear()
            fitting.add(key)

    return ask


_MOST_FITTING = 4096


def _explain(error: Exception, op: Op, inputs: tuple[Node, ...]) -> None:
    place = errors.describe(errors.user_place())
    operands = ", ".join(str(x.spec) for x in inputs)
    error.add_note(f"recorded {op} on ({operands})" + (f" at {place}" if place else ""))


def scalar(value: float | int | bool, dtype: DType) -> Node:
    """A number whose value is an argument of the program, not part of its key."""
    node = leaf(None, (), dtype)
    node.op = SCALAR
    node.value = value
    node.entry -= 4  # as Trace.entry says of a number
    return node


LEAF_HOOKS = {"changes": 0}
"""How often a hook of a tensor that is no result has come or gone: it changes what calls do."""


def effect(action: Callable[[], Any]) -> Any:
    """Run a side effect of a training step on Python's state; returns its result."""
    result = action()
    capture = MODE.trace.capture
    if capture is not None:
        capture.effect(action)
    return result


def numbers(produce: Callable[[], Sequence[float]], dtype: DType) -> list[Node]:
    """Runtime scalars with the values that ``produce`` returns now, and at every later step."""
    nodes = [scalar(v, dtype) for v in produce()]
    capture = MODE.trace.capture
    if capture is not None:
        number = capture.effect(produce)
        for position, node in enumerate(nodes):
            capture.number(node, number, position)
    return nodes


def leaf(buffer: Any, shape: Shape, dtype: DType, spec_id: int | None = None) -> Node:
    """A value that already has memory; ``spec_id``, if known, tells its shape and dtype."""
    # As Node(), in half of the time: every argument and result of a small program passes here.
    node = _new(Node)
    node.op = BUFFER
    node.inputs = ()
    node.shape = shape
    node.dtype = dtype
    node.requires_grad = False
    node.sequence = next(_SEQUENCE)
    if spec_id is None:
        spec_id = _spec_id(shape, dtype)
    node.spec_id = spec_id
    node.entry = -2 - 8 * spec_id  # as Trace.entry says of memory without gradients
    node.pending = False
    node.buffer = buffer
    return node
