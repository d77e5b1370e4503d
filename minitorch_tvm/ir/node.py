"""Recording: nodes of the lazy graph and the one function that appends to it.

A node is a value: a leaf that holds memory, a runtime scalar, or an op applied to nodes.  Nodes are
immutable except that evaluation gives them a buffer and then drops what they no longer need.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..core import errors
from ..core.dtype import DType
from ..core.shape import Shape
from .op import Kind, Op, Spec, intern

if TYPE_CHECKING:
    from types import ModuleType

    from .te import TE, Tensor


@dataclass(frozen=True, eq=False)
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


class Node:
    """One value of the lazy graph."""

    __slots__ = (
        "__weakref__",
        "buffer",
        "donor",
        "dtype",
        "freed",
        "grad_leaf",
        "hooks",
        "inputs",
        "op",
        "owner",
        "place",
        "requires_grad",
        "sequence",
        "shape",
        "value",
    )

    def __init__(
        self, op: Op, inputs: tuple[Node, ...], shape: Shape, dtype: DType, requires_grad: bool
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.shape = shape
        self.dtype = dtype
        self.requires_grad = requires_grad
        self.grad_leaf = False  # gradients accumulate here and go no further
        self.freed = False  # backward has passed and may not pass again
        self.buffer: Any = None  # the realised value (runtime.memory.Buffer)
        self.donor: Node | None = None  # the value whose memory this one may take over
        self.value: float | int | bool | None = None  # of a runtime scalar
        self.place: errors.Provenance | None = None
        self.owner: weakref.ref[Any] | None = None  # the Tensor whose .grad is filled
        self.hooks: list[Callable[[Node], Node | None]] | None = None
        self.sequence = next(_SEQUENCE)

    @property
    def spec(self) -> Spec:
        """Shape and dtype."""
        return Spec(self.shape, self.dtype)

    @property
    def pending(self) -> bool:
        """True until the value has been computed."""
        return self.buffer is None and self.op.kind is not Kind.LEAF

    def __repr__(self) -> str:
        return f"<{self.op} {self.spec}>"


class _Mode(threading.local):
    """Per-thread recording state."""

    grad_enabled: bool = True


MODE = _Mode()

_inferred: dict[tuple[object, ...], Spec] = {}
_INFER_LIMIT = 1 << 16


def apply(op: Op, *inputs: Node) -> Node:
    """Record ``op`` on ``inputs``: infer shape and dtype now, compute later.

    Raises what ``op.infer`` raises, with a line that says which op was recorded on which shapes.
    """
    key: tuple[object, ...] = (op, *[(x.shape, x.dtype) for x in inputs])
    spec = _inferred.get(key)
    if spec is None:
        try:
            spec = op.infer(*[x.spec for x in inputs])
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            _explain(error, op, inputs)
            raise
        if len(_inferred) > _INFER_LIMIT:
            _inferred.clear()
        _inferred[key] = spec
    grad = False
    if MODE.grad_enabled and op.differentiable and spec.dtype.is_floating_point:
        for x in inputs:
            if x.requires_grad:
                grad = True
                break
    node = Node(op, inputs, spec.shape, spec.dtype, grad)
    node.place = errors.user_place()
    return node


def _explain(error: Exception, op: Op, inputs: tuple[Node, ...]) -> None:
    place = errors.describe(errors.user_place())
    operands = ", ".join(str(x.spec) for x in inputs)
    error.add_note(f"recorded {op} on ({operands})" + (f" at {place}" if place else ""))


def scalar(value: float | int | bool, dtype: DType) -> Node:
    """A number whose value is an argument of the program, not part of its key."""
    node = Node(SCALAR, (), (), dtype, False)
    node.value = value
    return node


def leaf(buffer: Any, shape: Shape, dtype: DType) -> Node:
    """A value that already has memory."""
    node = Node(BUFFER, (), shape, dtype, False)
    node.buffer = buffer
    return node
