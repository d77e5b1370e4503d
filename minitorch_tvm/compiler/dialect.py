"""The tensor-expression dialect as loop code: tensors are functions from indices to expressions.

A :class:`Scope` collects the statements that one loop body needs; values read more than once are
bound to variables there, so that shared subexpressions are computed once.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..core import dtype as dt
from ..core.dtype import DType
from ..core.record import record
from ..core.shape import Shape
from ..core.tvm_api import ffi, tvm
from . import angles, doubles, gamma, powers, special
from . import math as elementary
from .loops import Expr, Stmt, cell, const, seq, wrapped
from .scalars import bits_of, is_nan


@record
class Lazy:
    """A tensor that is computed where it is read."""

    shape: Shape
    dtype: DType
    fn: Callable[..., Expr]

    def __getitem__(self, index: Any) -> Expr:
        return self.fn(*(index if isinstance(index, tuple) else (index,)))


@record
class Reduce:
    """A reduction: result[i] = combine over r in extents of fn(i, r)."""

    combine: str
    shape: Shape
    dtype: DType  # of the elements; argmax and argmin give int64
    extents: tuple[int, ...]
    fn: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr]


_VECTORS: dict[str, Callable[[Expr, Callable[[Expr], Expr]], Expr]] = {
    name: getattr(module, name)
    for module, names in (
        (elementary, "exp expm1 log log1p tanh erf sigmoid normal_cdf normal_density"),
        (powers, "exp2 log2 log10 sinh cosh"),
        (angles, "sin cos cos_turns tan asin acos atan"),
        (special, "asinh acosh atanh logit erfc erfinv sinc sinc_slope"),
        (gamma, "lgamma digamma trigamma"),
    )
    for name in names.split()
}
"""Elementary functions of float32, by name."""

_DOUBLES = {name: getattr(doubles, name) for name in ("exp", "log", "tanh", "sigmoid")}
_DOUBLES |= {name: getattr(gamma, f"{name}_of_double") for name in ("digamma", "trigamma")}
"""Those of float64; others call the C library."""

_PAIRS: dict[str, Callable[..., Expr]] = {
    name: getattr(special, name)
    for name in ("atan2", "hypot", "logaddexp", "logaddexp2", "nextafter")
}
"""Functions of two numbers of float32."""

_DOUBLE_PAIRS: dict[str, Callable[..., Expr]] = {
    "logaddexp": special.logaddexp_of_double,
    "logaddexp2": special.logaddexp2_of_double,
    "nextafter": special.nextafter,
}
"""Those of float64, beside what the C library has."""

_MADE_OF_CALLS = {
    name: getattr(special, f"{name}_of_double")
    for name in ("erfinv", "logit", "sinc", "sinc_slope")
}
"""Functions of float64 that the C library does not have, made of others that it has."""

_KNOWN = ("erf", "sin", "cos")
"""Those that TVM hands on to the C library, or to LLVM, as they are."""


def _fma(product: Expr, term: Expr) -> Expr:
    """The product, not rounded, plus the term.

    LLVM contracts a sum of two products on its own, but which of them it rounds differs between
    loops in vectors and what is left behind them, and where these end depends on threads.
    """
    return tvm().ir.Call("tirx.fma", [product.a, product.b, term], ret_ty=product.ty)


def index_key(index: tuple[Expr, ...]) -> tuple[object, ...]:
    """A hashable stand-in for index expressions, equal when they are structurally equal."""
    return tuple(i if isinstance(i, int) else ffi.StructuralKey(i) for i in index)


class Scope:
    """Implements the dialect (``ir.te.TE``) for one loop body."""

    def __init__(self, doubts: list[Expr] | None = None, calls: bool = False) -> None:
        """What is quick but for a few operands, of which it needs a call: with ``doubts`` it is
        computed without, and conditions under which it may be wrong are added to them; with
        ``calls`` it is always called."""
        self.statements: list[Stmt] = []
        self._doubts, self._calls = doubts, calls
        self._guards = 0
        self._cells: set[object] = set()  # loads of memory that is written once, here
        self._products: dict[object, Expr] = {}  # those of products of floating-point numbers

    # --- structure ----------------------------------------------------------------------------

    def keep(self, x: Expr) -> Expr:
        """Bind ``x`` to a variable, unless inside a guard (it may not be safe to compute)."""
        if self._guards or isinstance(x, (int, float)):
            return x
        t = tvm()
        if isinstance(x, (t.ir.Var, t.tirx.IntImm, t.tirx.FloatImm)):
            return x
        if isinstance(x, t.ir.TensorLoad) and ffi.StructuralKey(x) in self._cells:
            return x
        v, statements = cell("v", x)
        self.statements.extend(statements)
        if not isinstance(v, t.ir.Var):
            key = ffi.StructuralKey(v)
            self._cells.add(key)
            product = self._product(x)
            if product is not None:
                self._products[key] = product
        return v

    @property
    def guarded(self) -> bool:
        """True while building an expression that runs only under a condition."""
        return self._guards > 0

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        self._guards += 1
        try:
            yield
        finally:
            self._guards -= 1

    def body(self, *statements: Stmt) -> Stmt:
        """The collected bindings followed by ``statements``."""
        return seq(self.statements, *statements)

    def compute(self, shape: Shape, dtype: DType, fn: Callable[..., Expr]) -> Lazy:
        return Lazy(shape, dtype, fn)

    def reduce(
        self,
        combine: str,
        shape: Shape,
        dtype: DType,
        extents: Sequence[int],
        fn: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr],
    ) -> Any:  # a Reduce, which schedules take apart instead of reading elements
        return Reduce(combine, shape, dtype, tuple(extents), fn)

    def guard(self, condition: Expr, inside: Callable[[], Expr], outside: Expr) -> Expr:
        if isinstance(condition, bool):
            return inside() if condition else outside
        with self._guard():
            value = inside()
        return tvm().tirx.if_then_else(condition, value, outside)

    def branch(
        self, condition: Expr, then: Callable[[], Expr], otherwise: Callable[[], Expr]
    ) -> Expr:
        if isinstance(condition, bool):
            return then() if condition else otherwise()
        with self._guard():
            return tvm().tirx.if_then_else(condition, then(), otherwise())

    # --- scalars ------------------------------------------------------------------------------

    def const(self, value: float | int | bool, dtype: DType) -> Expr:
        if dtype.is_floating_point and value == float("-inf"):
            return -tvm().tirx.infinity(dtype.name)
        if dtype.is_floating_point and value == float("inf"):
            return tvm().tirx.infinity(dtype.name)
        return const(value, dtype.name)

    def literal(self, value: float | int | bool, dtype: DType) -> Expr:
        """A constant value of the graph (one that arithmetic may meet)."""
        x = self.const(value, dtype)
        if isinstance(x, tvm().tirx.FloatImm) and float(x.value) == 0.0:
            # TVM refuses to divide by a literal zero and folds x * 0 to 0, which is wrong for NaN
            # and infinities.  As the root of itself (also for -0.0) it is left to LLVM, which keeps
            # IEEE's rules.
            return tvm().tirx.sqrt(x)
        return x

    def zero_like(self, x: Expr) -> Expr:
        return const(0, str(x.ty.dtype))

    def cast(self, x: Expr, dtype: DType) -> Expr:
        if isinstance(x, int):
            return const(x, dtype.name)
        t = tvm().tirx
        source = str(x.ty.dtype)
        if dtype is dt.bool_ and source != "bool":
            return self.not_equal(x, const(0, source))
        if source == "bool" and dtype is not dt.bool_:
            return t.Select(x, const(1, dtype.name), const(0, dtype.name))
        if dtype is dt.uint8 and source.startswith("float"):
            # Of what is outside, C says nothing; in PyTorch it wraps around.
            return x.astype("int32").astype(dtype.name)
        return x.astype(dtype.name)

    def select(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        if isinstance(condition, bool):
            return a if condition else b
        return tvm().tirx.Select(condition, a, b)

    def all(self, *conditions: Expr) -> Expr:
        rest = [c for c in conditions if c is not True]
        if any(c is False for c in rest):
            return False
        return tvm().tirx.all(*rest) if rest else True

    def any(self, *conditions: Expr) -> Expr:
        rest = [c for c in conditions if c is not False]
        if any(c is True for c in rest):
            return True
        return tvm().tirx.any(*rest) if rest else False

    def invert(self, condition: Expr) -> Expr:
        return tvm().tirx.Not(condition)

    def equal(self, a: Expr, b: Expr) -> Expr:
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return tvm().tirx.EQ(self._like(a, b), self._like(b, a))

    def not_equal(self, a: Expr, b: Expr) -> Expr:
        # TVM's own comparison is ordered: NaN != NaN would be False.
        return tvm().tirx.Not(tvm().tirx.EQ(a, b))

    def is_nan(self, x: Expr) -> Expr:
        return is_nan(x)

    @staticmethod
    def _like(x: Expr, other: Expr) -> Expr:
        return const(x, str(other.ty.dtype)) if isinstance(x, int) else x

    def floordiv(self, a: Expr, b: Expr) -> Expr:
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return tvm().tirx.floordiv(a, b)

    def floormod(self, a: Expr, b: Expr) -> Expr:
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return tvm().tirx.floormod(a, b)

    def div(self, a: Expr, b: Expr) -> Expr:
        return tvm().tirx.Div(a, b)

    def add(self, a: Expr, b: Expr) -> Expr:
        product = self._first_of_two_products(a, b)
        return wrapped(operator.add, a, b) if product is None else _fma(product, b)

    def sub(self, a: Expr, b: Expr) -> Expr:
        product = self._first_of_two_products(a, b)
        return wrapped(operator.sub, a, b) if product is None else _fma(product, -b)

    def add_to_sum(self, total: Expr, value: Expr) -> Expr:
        """A sum so far and one more value: a product is not rounded.

        Where the sum is its start, a zero, LLVM leaves it out, and would have two products to
        choose from at the next value.
        """
        product = self._product(value)
        return wrapped(operator.add, total, value) if product is None else _fma(product, total)

    def _first_of_two_products(self, a: Expr, b: Expr) -> Expr | None:
        """``a`` as a product, if both are products of floating-point numbers."""
        return None if self._product(b) is None else self._product(a)

    def _product(self, x: Expr) -> Expr | None:
        t = tvm()
        if isinstance(x, t.ir.TensorLoad):
            return self._products.get(ffi.StructuralKey(x)) if self._products else None
        plain = isinstance(x, t.tirx.Mul) and dt.by_name(str(x.ty.dtype)).is_floating_point
        return x if plain else None

    def mul(self, a: Expr, b: Expr) -> Expr:
        return wrapped(operator.mul, a, b)

    def neg(self, x: Expr) -> Expr:
        whole = not dt.by_name(str(x.ty.dtype)).is_floating_point
        return self.sub(self.zero_like(x), x) if whole else -x

    def maximum(self, a: Expr, b: Expr) -> Expr:
        a, b = self.keep(a), self.keep(b)
        if not dt.by_name(str(a.ty.dtype)).is_floating_point:
            return tvm().tirx.max(a, b)
        # a unless b is larger or NaN: a NaN in either operand wins.
        return tvm().tirx.Select(tvm().tirx.any(a > b, self.is_nan(a)), a, b)

    def minimum(self, a: Expr, b: Expr) -> Expr:
        a, b = self.keep(a), self.keep(b)
        if not dt.by_name(str(a.ty.dtype)).is_floating_point:
            return tvm().tirx.min(a, b)
        return tvm().tirx.Select(tvm().tirx.any(a < b, self.is_nan(a)), a, b)

    def abs(self, x: Expr) -> Expr:
        dtype = dt.by_name(str(x.ty.dtype))
        if dtype.is_floating_point:
            return tvm().tirx.abs(x)
        if dtype.is_unsigned:
            return x
        # TVM's own lets LLVM assume that the smallest number does not occur.
        x = self.keep(x)
        return tvm().tirx.Select(x < self.zero_like(x), self.neg(x), x)

    def sqrt(self, x: Expr) -> Expr:
        return tvm().tirx.sqrt(x)

    def sin(self, x: Expr) -> Expr:
        return self._elementary("sin", x)

    def cos(self, x: Expr) -> Expr:
        return self._elementary("cos", x)

    def cos_turns(self, x: Expr) -> Expr:
        return self._elementary("cos_turns", x)

    def pow(self, x: Expr, y: Expr) -> Expr:
        if str(x.ty.dtype) == "float32":
            return powers.power(self.keep(x), self.keep(y), self.keep)
        return tvm().tirx.pow(x, y)

    def library(self, function: str, *xs: Expr) -> Expr:
        if len(xs) == 1:
            return self._elementary(function, xs[0])
        single = str(xs[0].ty.dtype) == "float32"
        if function == "fmod":
            return self._fmod(*map(self.keep, xs)) if single else self._called(function, *xs)
        made = (_PAIRS if single else _DOUBLE_PAIRS).get(function)
        return made(*map(self.keep, xs), self.keep) if made else self._called(function, *xs)

    def _fmod(self, x: Expr, y: Expr) -> Expr:
        if self._calls:
            return self._called("fmod", x, y)
        near, doubt = elementary.fmod(x, y, self.keep)
        if self._doubts is not None and not self._guards:
            self._doubts.append(doubt)
            return near
        return tvm().tirx.if_then_else(doubt, self._called("fmod", x, y), near)

    @staticmethod
    def _called(function: str, *xs: Expr) -> Expr:
        dtype = str(xs[0].ty.dtype)
        name = function + "f" if dtype == "float32" else function
        return tvm().tirx.call_pure_extern(dtype, name, *xs)

    def rounded(self, how: str, x: Expr) -> Expr:
        return getattr(tvm().tirx, {"round": "nearbyint"}.get(how, how))(x)

    def quotient(self, a: Expr, b: Expr) -> Expr:
        # Processors trap on a division by zero, and on one whose result is too large.
        t, a, b = tvm().tirx, self.keep(a), self.keep(b)
        zero, one = self.zero_like(b), const(1, str(b.ty.dtype))
        none = self.equal(b, zero)
        if dt.by_name(str(b.ty.dtype)).is_unsigned:
            return t.Select(none, zero, t.truncdiv(a, self.keep(t.Select(none, one, b))))
        opposite = self.equal(b, const(-1, str(b.ty.dtype)))
        divisor = self.keep(t.Select(t.any(none, opposite), one, b))
        return t.Select(none, zero, t.Select(opposite, self.neg(a), t.truncdiv(a, divisor)))

    def sign_bit(self, x: Expr) -> Expr:
        bits, whole = bits_of(str(x.ty.dtype))
        return tvm().tirx.reinterpret(bits, x) < whole(0)

    def bitwise(self, how: str, a: Expr, b: Expr) -> Expr:
        t = tvm().tirx
        if how not in ("left", "right"):
            return getattr(t, f"bitwise_{how}")(a, b)
        # Of distances beyond the number of bits, processors and LLVM have ideas of their own.
        dtype = dt.by_name(str(a.ty.dtype))
        a, b = self.keep(a), self.keep(b)
        width, zero = 8 * dtype.itemsize, self.zero_like(b)
        inside = self.keep(t.all(b >= zero, b < const(width, dtype.name)))
        if how == "left":
            return t.Select(inside, t.shift_left(a, t.Select(inside, b, zero)), zero)
        if dtype.is_unsigned:
            return t.Select(inside, t.shift_right(a, t.Select(inside, b, zero)), zero)
        return t.shift_right(a, t.Select(inside, b, const(width - 1, dtype.name)))

    def _elementary(self, name: str, x: Expr) -> Expr:
        x = self.keep(x)
        if str(x.ty.dtype) == "float32":
            return _VECTORS[name](x, self.keep)
        if name in _DOUBLES:
            return _DOUBLES[name](x, self.keep)
        return self._by_library(name, x)

    def _by_library(self, name: str, x: Expr) -> Expr:
        """An elementary function of float64 as the C library has it, or made of such."""
        t, dtype = tvm().tirx, "float64"
        if name == "cos_turns":
            return t.cos(x * const(2.0 * math.pi, dtype))
        if name == "sigmoid":
            one = const(1.0, str(x.ty.dtype))
            return one / (one + self._called("exp", -x))
        if name == "normal_cdf":
            return self._called("erfc", x * const(-math.sqrt(0.5), dtype)) * const(0.5, dtype)
        if name == "normal_density":
            scale = const(1.0 / math.sqrt(2.0 * math.pi), dtype)
            return doubles.exp(self.keep(x * x * const(-0.5, dtype)), self.keep) * scale
        if name in _MADE_OF_CALLS:
            return _MADE_OF_CALLS[name](x, self._called, self.keep)
        # TVM has rules of its own for some, which lose digits: tanh's those of a small x.
        return getattr(t, name)(x) if name in _KNOWN else self._called(name, x)

    def exp(self, x: Expr) -> Expr:
        return self._elementary("exp", x)

    def log(self, x: Expr) -> Expr:
        return self._elementary("log", x)

    def tanh(self, x: Expr) -> Expr:
        return self._elementary("tanh", x)

    def sigmoid(self, x: Expr) -> Expr:
        return self._elementary("sigmoid", x)

    def erf(self, x: Expr) -> Expr:
        return self._elementary("erf", x)

    def normal_cdf(self, x: Expr) -> Expr:
        return self._elementary("normal_cdf", x)

    def normal_density(self, x: Expr) -> Expr:
        return self._elementary("normal_density", x)

    def bitcast(self, x: Expr, dtype: DType) -> Expr:
        return tvm().tirx.reinterpret(dtype.name, x)

    def bit_or(self, a: Expr, b: Expr) -> Expr:
        return tvm().tirx.bitwise_or(a, b)

    def xor(self, a: Expr, b: Expr) -> Expr:
        return tvm().tirx.bitwise_xor(a, b)

    def shift_left(self, a: Expr, bits: int) -> Expr:
        return tvm().tirx.shift_left(a, const(bits, str(a.ty.dtype)))

    def shift_right(self, a: Expr, bits: int) -> Expr:
        return tvm().tirx.shift_right(a, const(bits, str(a.ty.dtype)))
