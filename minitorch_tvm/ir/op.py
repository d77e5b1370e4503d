"""The contract of an op: everything true of it, and nothing about hardware.

An op is a frozen dataclass (``eq=False``) whose fields are its attributes (axes, strides, a cast's
target: all part of the program key).  Ops of equal attributes are one object, see :func:`intern`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from ..core.dtype import DType
from ..core.shape import Shape

if TYPE_CHECKING:
    from types import ModuleType

    from .build import Build
    from .node import Node
    from .te import TE, Tensor


class Kind(Enum):
    """What fusion knows about an op."""

    LEAF = "leaf"  # no computation: an input, a scalar
    INJECTIVE = "injective"  # each output element reads a bounded number of elements
    REDUCTION = "reduction"  # many input elements per output element
    COMPLEX = "complex"  # matmul, convolution: has a schedule of its own
    OPAQUE = "opaque"  # never fused
    COMPOSITE = "composite"  # stands for several ops until a program is compiled


class Spec(NamedTuple):
    """Shape and dtype of a value."""

    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


class Op:
    """Base of all ops.  Subclasses are frozen dataclasses; fields are attributes.

    No abstract base class: asking whether an op is of one takes four times as long, and compiling
    a program asks some 100,000 times.
    """

    kind: ClassVar[Kind]
    elementwise: ClassVar[bool] = False
    """Reads every input at the output's own index (after broadcasting)."""
    differentiable: ClassVar[bool] = True
    """False where the gradient is zero or undefined (comparisons, argmax, integer results)."""
    uid: int = -1

    def __init_subclass__(cls, kind: Kind | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if kind is not None:
            cls.kind = kind

    @property
    def name(self) -> str:
        """Name used in text forms and messages: the class name."""
        return type(self).__name__

    @property
    def grad_name(self) -> str:
        """What PyTorch calls the derivative, where tensors are printed."""
        return f"{self.name}Backward0"

    def attributes(self) -> dict[str, object]:
        """Attribute names and values, in declaration order."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def __str__(self) -> str:
        shown = {k: repr(v) if isinstance(v, str) else v for k, v in self.attributes().items()}
        inside = ", ".join(f"{k}={v}" for k, v in shown.items())
        return f"{self.name}({inside})" if inside else self.name

    def infer(self, *inputs: Spec) -> Spec:
        """Shape and dtype of the result; raises with PyTorch's wording."""
        raise NotImplementedError

    def expand(self, *xs: Node) -> Node:
        """Record the primitive ops that a composite stands for."""
        raise AssertionError(f"{self} stands for itself")

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        """Cotangents of the inputs as nodes of the same graph (None: no gradient flows).

        Those of inputs that do not require grad are ignored and may be left out.
        ``f`` holds the functions that record ops, so that families need not import each other.
        """
        raise RuntimeError(f"derivative for {self.name} is not implemented")

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        """The result as a tensor expression."""
        raise NotImplementedError

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        """The result by numpy: test oracle, constant folding, reference executor."""
        raise NotImplementedError


O = TypeVar("O", bound=Op)
_INTERNED: dict[object, Op] = {}
_UIDS = itertools.count()  # the size of the table would do for one thread only


def _frozen(value: object) -> object:
    # Attribute values compare by bits: -0.0 differs from 0.0, True from 1, and NaN equals itself.
    if isinstance(value, tuple):
        return tuple(_frozen(v) for v in value)
    return (type(value), value.hex()) if isinstance(value, float) else (type(value), value)


def intern(op: O) -> O:
    """Return the one object that stands for ops of this class and these attributes.

    Ops therefore compare by identity; ``uid`` numbers them.
    """
    key = (type(op), _frozen(tuple(op.attributes().values())))
    found = _INTERNED.get(key)
    if found is None:
        object.__setattr__(op, "uid", next(_UIDS))
        found = _INTERNED.setdefault(key, op)
    return found  # type: ignore[return-value]


@functools.lru_cache(maxsize=8192, typed=True)
def op_of(cls: Callable[..., Op], *attributes: object) -> Op:
    """:func:`intern` of a new op, all of whose attributes that are tuples hold ints.

    What is asked for at every step is looked up, not made and compared.  2.0 in a tuple would be
    found where 2 is: TypeError.  Not for floats, of which two that are equal may differ in bits.
    """
    return intern(cls(*map(_whole, attributes)))


def _whole(attribute: Any) -> Any:
    if isinstance(attribute, tuple):
        return tuple([_whole(n) if isinstance(n, tuple) else int(index(n)) for n in attribute])
    return attribute
