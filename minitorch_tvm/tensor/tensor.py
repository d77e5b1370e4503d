"""The public Tensor class: operators, and methods beside those of its bases."""

from __future__ import annotations

import builtins
import weakref
from typing import Any, Self

from .. import lazy
from ..core import arguments as arg
from ..core import config
from ..core import dtype as dt
from ..core.dtype import DType
from ..core.shape import broadcast
from ..core.spelling import numpy_names
from ..core.switches import check_format
from ..ir.node import MODE, Node
from ..ops import build as b
from ..ops import derived as d
from ..ops import network as net
from ..ops import powers
from . import advanced, division, formatting, gathering
from .activations import Activations
from .aliases import Aliases
from .bits import Bits
from .core import Number, TensorBase, node_of
from .draws import Draws
from .elementwise import accepts, is_operand, wrong_keyword
from .factors import Factors
from .host import copied
from .legacy import leaf_for
from .ordering import Ordering
from .placement import Placement
from .products import Products
from .reductions import Reductions
from .shapes import Shapes
from .special import Special

Operand = Any

_new = object.__new__
_reference = weakref.ref


class Tensor(
    Aliases,
    Bits,
    Special,
    Activations,
    Factors,
    Products,
    Reductions,
    Ordering,
    Placement,
    Draws,
    Shapes,
):
    """A multi-dimensional array whose operations are recorded and evaluated together.

    Create one with :func:`minitorch_tvm.tensor` and friends.  Values are computed when they are
    needed: at ``optimizer.step()``, ``item()``, ``numpy()``, ``print`` and the like.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (x @ x).sum().item()
    54.0
    """

    __slots__ = ()

    def __init__(self, *data: Any) -> None:
        """A copy of numbers as float32, zeros if sizes are given; the value of another tensor."""
        first = data[0] if len(data) == 1 else None
        self._attach(first.node if isinstance(first, TensorBase) else leaf_for(data, dt.float32))

    @staticmethod
    def _wrap(node: Node) -> Tensor:
        t = _new(Tensor)
        # As _attach and lazy.track: most operations end here.
        t._node = node
        t._gradient = t._strides = t._base = None
        t._version = 0
        if node.pending:
            trace = MODE.trace
            trace.handles.append(_reference(t))
            pending = len(trace.values) - trace.derived
            if trace.cut or pending > config.CONFIG.most_pending:
                lazy.too_many(node, pending)
        return t

    def __repr__(self) -> str:
        return formatting.render(self)

    # --- arithmetic -------------------------------------------------------------------------

    def _term(self, function: str, other: Any) -> Operand:
        """``other`` if it is an operand of arithmetic; TypeError, naming the method, if not."""
        if not is_operand(other):
            raise arg.wrong_kind(function, "other", 1, "Tensor", other)
        return other

    _accepts = staticmethod(accepts)

    def __add__(self, other: Operand) -> Tensor:
        if not self._accepts(other):
            return NotImplemented
        return self._wrap(d.add(self.node, self._operand(other)))

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Tensor:
        if not self._accepts(other):
            return NotImplemented
        return self._wrap(d.sub(self.node, self._operand(other)))

    def __rsub__(self, other: Operand) -> Tensor:
        if not self._accepts(other):
            return NotImplemented
        return self._wrap(d.sub(self._operand(other), self.node))

    def __mul__(self, other: Operand) -> Tensor:
        if not self._accepts(other):
            return NotImplemented
        return self._wrap(d.mul(self.node, self._operand(other)))

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Tensor:
        if not self._accepts(other):
            return NotImplemented
        return self._wrap(d.div(self.node, self._operand(other)))

    def __rtruediv__(self, other: Operand) -> Tensor:
        if not self._accepts(other):
            return NotImplemented
        return self._wrap(d.div(self._operand(other), self.node))

    def __pow__(self, other: Operand) -> Tensor:
        if not self._accepts(other):
            return NotImplemented
        return self._wrap(powers.pow(self.node, self._operand(other)))

    def __rpow__(self, other: Operand) -> Tensor:
        if not self._accepts(other):
            return NotImplemented
        return self._wrap(powers.pow(self._operand(other), self.node))

    def __matmul__(self, other: Tensor) -> Tensor:
        if not isinstance(other, TensorBase):
            return NotImplemented
        return self._wrap(d.matmul(self.node, other.node))

    def __neg__(self) -> Tensor:
        return self._wrap(d.neg(self.node))

    def __pos__(self) -> Tensor:
        if self.dtype is dt.bool_:
            raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
        return self

    def positive(self) -> Tensor:
        """+self, which is self; RuntimeError for bool."""
        return +self

    def __abs__(self) -> Tensor:
        return self._wrap(d.absolute(self.node))

    def _compare(self, kind: str, other: Operand) -> Tensor:
        return self._wrap(d.compare(kind, self.node, self._operand(other)))

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return self._compare("eq", other) if self._accepts(other) else NotImplemented

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return self._compare("ne", other) if self._accepts(other) else NotImplemented

    def __lt__(self, other: Operand) -> Tensor:
        return self._compare("lt", other) if self._accepts(other) else NotImplemented

    def __le__(self, other: Operand) -> Tensor:
        return self._compare("le", other) if self._accepts(other) else NotImplemented

    def __gt__(self, other: Operand) -> Tensor:
        return self._compare("gt", other) if self._accepts(other) else NotImplemented

    def __ge__(self, other: Operand) -> Tensor:
        return self._compare("ge", other) if self._accepts(other) else NotImplemented

    __hash__ = TensorBase.__hash__

    def add(self, other: Operand, *, alpha: Number = 1) -> Tensor:
        """self + alpha * other."""
        return self + self._scaled("add", other, alpha)

    def sub(self, other: Operand, *, alpha: Number = 1) -> Tensor:
        """self - alpha * other."""
        return self - self._scaled("sub", other, alpha)

    def _scaled(self, function: str, other: Operand, alpha: Number) -> Operand:
        self._term(function, other)
        if type(alpha) is not int and type(alpha) is not float:
            alpha = arg.number(function, "alpha", None, alpha)
        if alpha == 1 and alpha is not True:
            return other
        factor = self._operand(other)
        kind = d.result_dtype(self.node, factor)
        if alpha is True or alpha is False:
            if kind is not dt.bool_:
                raise RuntimeError("Boolean alpha only supported for Boolean results.")
        elif isinstance(alpha, float) and not kind.is_floating_point:
            raise RuntimeError(
                "For integral input tensors, argument alpha must not be a floating point number."
            )
        if function.startswith("sub"):
            d.no_bools(self.node, factor)
        return other * alpha

    def mul(self, other: Operand) -> Tensor:
        """self * other."""
        return self * self._term("mul", other)

    def div(self, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
        """self / other, rounded down ("floor"), toward zero ("trunc") or not at all (None).

        Rounded, integers stay integers, and RuntimeError is raised where they are divided by 0.
        """
        if rounding_mode is None:
            return self / self._term("div", other)
        if not isinstance(rounding_mode, str):
            forms = ["(Tensor other)", "(Tensor other, *, str rounding_mode)"]
            raise wrong_keyword("div", "rounding_mode", rounding_mode, forms, (other,))
        value = self._operand(self._term("div", other))
        return self._wrap(division.divide(self.node, value, rounding_mode))

    def pow(self, exponent: Operand) -> Tensor:
        """self ** exponent."""
        return self._wrap(powers.pow(self.node, self._other("pow", exponent)))

    def matmul(self, other: Tensor) -> Tensor:
        """self @ other: vectors, matrices and batches of them."""
        return self._wrap(d.matmul(self.node, node_of("matmul", "other", 1, other)))

    def mm(self, mat2: Tensor) -> Tensor:
        """Product of two matrices."""
        return self._wrap(d.mm(self.node, node_of("mm", "mat2", 1, mat2)))

    def bmm(self, mat2: Tensor) -> Tensor:
        """Products of two batches of matrices."""
        return self._wrap(d.bmm(self.node, node_of("bmm", "mat2", 1, mat2)))

    def neg(self) -> Tensor:
        """-self."""
        return -self

    def eq(self, other: Operand) -> Tensor:
        """self == other, elementwise."""
        return self._wrap(d.compare("eq", self.node, self._other("eq", other)))

    def ne(self, other: Operand) -> Tensor:
        """self != other, elementwise."""
        return self._wrap(d.compare("ne", self.node, self._other("ne", other)))

    def lt(self, other: Operand) -> Tensor:
        """self < other, elementwise."""
        return self._wrap(d.compare("lt", self.node, self._other("lt", other)))

    def le(self, other: Operand) -> Tensor:
        """self <= other, elementwise."""
        return self._wrap(d.compare("le", self.node, self._other("le", other)))

    def gt(self, other: Operand) -> Tensor:
        """self > other, elementwise."""
        return self._wrap(d.compare("gt", self.node, self._other("gt", other)))

    def ge(self, other: Operand) -> Tensor:
        """self >= other, elementwise."""
        return self._wrap(d.compare("ge", self.node, self._other("ge", other)))

    def logical_not(self) -> Tensor:
        """True where an element is zero (or False)."""
        return self == 0 if self.dtype is not dt.bool_ else ~self

    # --- elementwise functions --------------------------------------------------------------

    def abs(self) -> Tensor:
        """|self|."""
        return self.__abs__()

    def exp(self) -> Tensor:
        """e ** self."""
        return self._wrap(d.unary_float(b.EXP, self.node))

    def log(self) -> Tensor:
        """Natural logarithm."""
        return self._wrap(d.unary_float(b.LOG, self.node))

    def sqrt(self) -> Tensor:
        """Square root; NaN below zero."""
        return self._wrap(d.unary_float(b.SQRT, self.node))

    def tanh(self) -> Tensor:
        """Hyperbolic tangent."""
        return self._wrap(d.unary_float(b.TANH, self.node))

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-self))."""
        return self._wrap(d.unary_float(b.SIGMOID, self.node))

    def erf(self) -> Tensor:
        """Error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to self."""
        return self._wrap(d.unary_float(b.ERF, self.node))

    def sin(self) -> Tensor:
        """Sine of radians."""
        return self._wrap(d.unary_float(b.SIN, self.node))

    def cos(self) -> Tensor:
        """Cosine of radians."""
        return self._wrap(d.unary_float(b.COS, self.node))

    def relu(self) -> Tensor:
        """max(self, 0)."""
        return Tensor._wrap(d.relu(self.node))

    def square(self) -> Tensor:
        """self * self."""
        return self._wrap(powers.pow(self.node, 2))

    def maximum(self, other: Tensor) -> Tensor:
        """Elementwise larger; NaN if either is."""
        return self._wrap(d.maximum(self.node, node_of("maximum", "other", 1, other)))

    def minimum(self, other: Tensor) -> Tensor:
        """Elementwise smaller; NaN if either is."""
        return self._wrap(d.minimum(self.node, node_of("minimum", "other", 1, other)))

    def clamp(self, min: Operand = None, max: Operand = None) -> Tensor:
        """Limit to [min, max], two numbers or two tensors; either may be None."""
        low = None if min is None else self._bound("clamp", "min", min)
        high = None if max is None else self._bound("clamp", "max", max)
        if isinstance(low, Node) is not isinstance(high, Node) and not (
            low is None or high is None
        ):
            forms = [f"({kind} min = None, {kind} max = None)" for kind in ("Tensor", "Number")]
            raise arg.no_such_form("clamp", [min, max], forms)
        return self._wrap(d.clamp(self.node, low, high))

    clip = clamp

    def where(self, condition: Tensor, other: Operand) -> Tensor:
        """self where ``condition`` holds, else ``other``."""
        chosen = node_of("where", "condition", 1, condition)
        return self._wrap(d.where(chosen, self.node, self._operand(other)))

    def masked_fill(self, mask: Tensor, value: Operand) -> Tensor:
        """``value`` (a number, or a 0-d tensor) where ``mask`` holds, else self.

        Raises RuntimeError for a mask that is not bool and for a value with dimensions.
        """
        chosen = node_of("masked_fill", "mask", 1, mask)
        if chosen.dtype is not dt.bool_:
            raise RuntimeError(
                "masked_fill_ only supports boolean masks, but got mask with dtype "
                f"{chosen.dtype.scalar_name}"
            )
        filler = d.lift(self._operand(value), self.dtype)
        if filler.shape:
            raise RuntimeError(
                "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
                f"{len(filler.shape)} dimension(s)."
            )
        return self._wrap(b.where(chosen, filler, self.node))

    def tril(self, diagonal: builtins.int = 0) -> Tensor:
        """Zero above the ``diagonal`` (0 is the main one, k > 0 lies above it) of each matrix."""
        return self._wrap(d.triangle(self.node, arg.integer("tril", "diagonal", 1, diagonal), True))

    def triu(self, diagonal: builtins.int = 0) -> Tensor:
        """Zero below the ``diagonal`` (0 is the main one, k > 0 lies above it) of each matrix."""
        return self._wrap(
            d.triangle(self.node, arg.integer("triu", "diagonal", 1, diagonal), False)
        )

    @numpy_names
    def index_select(self, dim: builtins.int, index: Tensor) -> Tensor:
        """The entries ``index`` (int32 or int64 vector) of dimension ``dim``, as a copy.

        Raises IndexError for positions outside [0, size), at the next evaluation if ``index`` is
        itself still to be computed.
        """
        axis = arg.integer("index_select", "dim", 1, dim)
        positions = node_of("index_select", "index", 2, index)
        return self._wrap(gathering.index_select(self.node, axis, positions))

    def __getitem__(self, index: Any) -> Tensor:
        """A part of this tensor: a view, or a copy where tensors, lists or masks are in the index.

        Integers, slices with positive steps, None and Ellipsis give a view.  Tensors (int32 or
        int64) and lists of positions broadcast with each other and may repeat positions; their
        dimensions replace those that they index, or go to the front if those are apart.  A mask
        (bool) stands for the positions where it holds: it is evaluated then, as the shape of the
        result depends on it.  Raises IndexError for positions out of range, at the next evaluation
        if they are still to be computed.

        >>> import minitorch_tvm as mt
        >>> x = mt.tensor([[1, 2], [3, 4], [5, 6]])
        >>> x[mt.arange(3), [1, 0, -1]]
        tensor([2, 3, 6])
        >>> x[x > 2]
        tensor([3, 4, 5, 6])
        """
        if advanced.is_advanced(index):
            return self._wrap(advanced.read(self.node, index))
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write to a part of this tensor; what is at one position twice counts the last time.

        The index is as that of reading.  A single mask is not evaluated if the value, a number for
        instance, fits whatever the mask selects.

        >>> import minitorch_tvm as mt
        >>> x = mt.arange(5)
        >>> x[x > 2] = 0
        >>> x[[0, 1]] += 5
        >>> x
        tensor([5, 6, 2, 0, 0])
        """
        if advanced.is_advanced(index):
            self._write_at(index, value)
        else:
            super().__setitem__(index, value)

    @numpy_names
    def softmax(self, dim: builtins.int, dtype: DType | None = None) -> Tensor:
        """exp(self) normalised to sum to one along ``dim``; ``dtype`` converts self first."""
        x = self if dtype is None else self.to(dtype)
        return self._wrap(net.softmax(x.node, arg.integer("softmax", "dim", 1, dim)))

    @numpy_names
    def log_softmax(self, dim: builtins.int, dtype: DType | None = None) -> Tensor:
        """Logarithm of :meth:`softmax`, computed stably."""
        x = self if dtype is None else self.to(dtype)
        return self._wrap(net.log_softmax(x.node, arg.integer("log_softmax", "dim", 1, dim)))

    def clone(self, *, memory_format: Any = None) -> Tensor:
        """A copy that keeps the history; it is row-major, whatever layout is asked for."""
        check_format("clone", memory_format, self.ndim)
        return self._wrap(d.clone(self.node))

    # --- dtype ------------------------------------------------------------------------------

    def type_as(self, other: Tensor) -> Tensor:
        """Convert to the dtype of ``other``."""
        return self.to(node_of("type_as", "other", 1, other).dtype)

    def float(self) -> Tensor:
        """Convert to float32."""
        return self.to(dt.float32)

    def double(self) -> Tensor:
        """Convert to float64."""
        return self.to(dt.float64)

    def int(self) -> Tensor:
        """Convert to int32 (truncating)."""
        return self.to(dt.int32)

    def long(self) -> Tensor:
        """Convert to int64 (truncating)."""
        return self.to(dt.int64)

    def bool(self) -> Tensor:
        """Convert to bool: True where nonzero."""
        return self.to(dt.bool_)

    # --- in-place ---------------------------------------------------------------------------

    def add_(self, other: Operand, *, alpha: Number = 1) -> Self:
        """self += alpha * other."""
        return self._assign(self.add(other, alpha=alpha).node, "add_")

    def sub_(self, other: Operand, *, alpha: Number = 1) -> Self:
        """self -= alpha * other."""
        return self._assign(self.sub(other, alpha=alpha).node, "sub_")

    def mul_(self, other: Operand) -> Self:
        """self *= other."""
        return self._assign((self * other).node, "mul_")

    def div_(self, other: Operand, *, rounding_mode: str | None = None) -> Self:
        """self /= other."""
        return self._assign(self.div(other, rounding_mode=rounding_mode).node, "div_")

    def clamp_(self, min: Operand = None, max: Operand = None) -> Self:
        """Limit to [min, max] in place."""
        return self._assign(self.clamp(min, max).node, "clamp_")

    clip_ = clamp_

    def masked_fill_(self, mask: Tensor, value: Operand) -> Self:
        """``value`` where ``mask`` holds, in place."""
        return self._assign(self.masked_fill(mask, value).node, "masked_fill_")

    def relu_(self) -> Self:
        """max(self, 0) in place."""
        return self._assign(self.relu().node, "relu_")

    def zero_(self) -> Self:
        """Set every element to zero."""
        return self.fill_(0)

    def fill_(self, value: Operand) -> Self:
        """Set every element to ``value``, a number or a 0-d tensor."""
        if not self._accepts(value):
            raise arg.no_such_form("fill_", [value], ["(Tensor value)", "(Number value)"])
        filler = d.lift(self._operand(value), self.dtype)
        if filler.shape:
            raise RuntimeError(
                "fill_ only supports 0-dimension value tensor but got tensor with "
                f"{len(filler.shape)} dimensions."
            )
        return self._assign(b.expand(filler, self._node.shape), "fill_")

    def copy_(self, source: Operand) -> Self:
        """Set the elements to those of ``source`` (broadcast, converted), or to a number."""
        if isinstance(source, (bool, int, float)):
            return self.fill_(source)
        node = node_of("copy_", "other", 1, source)
        if copied(self, node):
            return self
        broadcast(self._node.shape, node.shape)
        value = b.expand(b.cast(node, self.dtype), self._node.shape)
        if value is node:
            value = d.clone(value)  # memory of its own, once computed
        return self._assign(value, "copy_")

    __iadd__ = add_
    __isub__ = sub_
    __imul__ = mul_
    __itruediv__ = div_
