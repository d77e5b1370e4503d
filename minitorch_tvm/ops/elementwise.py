"""Ops that read every input at the output's own index, after broadcasting."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, ClassVar

from ..core import dtype as dt
from ..core.dtype import DType
from ..core.record import record
from ..core.shape import broadcast
from ..ir.build import Build
from ..ir.node import Node
from ..ir.op import Kind, Op, Spec
from ..ir.te import TE, Expr, Tensor


def at(x: Tensor, shape: tuple[int, ...], index: tuple[Expr, ...]) -> Expr:
    """``x`` broadcast to ``shape``, read at ``index``."""
    if x.shape == shape:
        return x[index]
    lead = len(shape) - len(x.shape)
    return x[tuple(0 if n == 1 else i for n, i in zip(x.shape, index[lead:], strict=True))]


class Elementwise(Op):
    """Base: subclasses give ``scalar`` (one element) and ``reference``."""

    elementwise: ClassVar[bool] = True

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        """One output element from one element of each input."""
        raise NotImplementedError

    def infer(self, *inputs: Spec) -> Spec:
        shape = inputs[0].shape
        for other in inputs[1:]:
            shape = broadcast(shape, other.shape)
        return Spec(shape, self.result_dtype(*[s.dtype for s in inputs]))

    def result_dtype(self, *dtypes: DType) -> DType:
        """dtype of the result; raises TypeError when the operands do not fit."""
        first = dtypes[0]
        if any(d is not first for d in dtypes):
            raise TypeError(f"{self.name} expects operands of one dtype, but got {list(dtypes)}")
        return first

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        shape, dtype = self.infer(*[Spec(x.shape, x.dtype) for x in xs])
        return te.compute(shape, dtype, lambda *i: self.scalar(te, *[at(x, shape, i) for x in xs]))


class Float(Elementwise):
    """Base of functions defined on floating point values only."""

    def result_dtype(self, *dtypes: DType) -> DType:
        result = super().result_dtype(*dtypes)
        if not result.is_floating_point:
            raise TypeError(f"{self.name} expects floating point operands, but got {result}")
        return result


class Arithmetic(Elementwise):
    """Base of functions on numbers (bool operands are handled by logical ops)."""

    def result_dtype(self, *dtypes: DType) -> DType:
        result = super().result_dtype(*dtypes)
        if result is dt.bool_:
            raise TypeError(f"{self.name} is not defined on bool tensors")
        return result


class Whole(Arithmetic):
    """Base of functions on integers."""

    def result_dtype(self, *dtypes: DType) -> DType:
        result = super().result_dtype(*dtypes)
        if result.is_floating_point:
            raise TypeError(f"{self.name} expects integers, but got {result}")
        return result


@record(eq=False)
class Add(Arithmetic, kind=Kind.INJECTIVE):
    """add(a: t[*s], b: t[*s]) -> t[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.add(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.add(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return tuple(f.unbroadcast(ct, x.shape) if x.requires_grad else None for x in xs)


@record(eq=False)
class Sub(Arithmetic, kind=Kind.INJECTIVE):
    """sub(a: t[*s], b: t[*s]) -> t[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.sub(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.subtract(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        a, b = xs
        return (
            f.unbroadcast(ct, a.shape) if a.requires_grad else None,
            f.unbroadcast(f.neg(ct), b.shape) if b.requires_grad else None,
        )


@record(eq=False)
class Mul(Arithmetic, kind=Kind.INJECTIVE):
    """mul(a: t[*s], b: t[*s]) -> t[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.mul(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.multiply(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        a, b = xs
        return (
            f.unbroadcast(f.mul(ct, b), a.shape) if a.requires_grad else None,
            f.unbroadcast(f.mul(ct, a), b.shape) if b.requires_grad else None,
        )


@record(eq=False)
class Div(Float, kind=Kind.INJECTIVE):
    """div(a: f[*s], b: f[*s]) -> f[*s].  IEEE division."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.div(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.divide(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        a, b = xs
        da = f.div(ct, b)
        return (
            f.unbroadcast(da, a.shape),
            f.unbroadcast(f.neg(f.mul(da, y)), b.shape) if b.requires_grad else None,
        )


@record(eq=False)
class Pow(Float, kind=Kind.INJECTIVE):
    """pow(x: f[*s], y: f[*s]) -> f[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.pow(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.power(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        base, exponent = xs
        zero, one = f.full_like(base, 0.0), f.full_like(base, 1.0)
        # x**0 is constant even at x = 0, where exponent * x**-1 would be 0 * inf.
        slope = f.mul(exponent, f.pow(base, f.sub(exponent, one)))
        d_base = f.mul(ct, f.where(f.eq(exponent, zero), zero, slope))
        # 0**y is constant for y >= 0, where y * log(0) would be 0 * -inf.
        flat = f.logical_and(f.eq(base, zero), f.le(zero, exponent))
        d_exponent = f.mul(ct, f.where(flat, zero, f.mul(y, f.log(base))))
        return f.unbroadcast(d_base, base.shape), f.unbroadcast(d_exponent, exponent.shape)


class _Extreme(Arithmetic):
    """Base of Maximum and Minimum: ties share the gradient, NaN passes it on, as in PyTorch."""

    def _loses(self, f: Build, a: Node, b: Node) -> Node:
        raise NotImplementedError

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        a, b = xs
        zero = f.full_like(ct, 0.0)
        shared = f.where(f.eq(a, b), f.mul(ct, f.full_like(ct, 0.5)), ct)
        return (
            f.unbroadcast(f.where(self._loses(f, a, b), zero, shared), a.shape),
            f.unbroadcast(f.where(self._loses(f, b, a), zero, shared), b.shape),
        )


@record(eq=False)
class Maximum(_Extreme, kind=Kind.INJECTIVE):
    """maximum(a: t[*s], b: t[*s]) -> t[*s].  NaN if either is NaN."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.maximum(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.maximum(*xs)

    def _loses(self, f: Build, a: Node, b: Node) -> Node:
        return f.lt(a, b)


@record(eq=False)
class Minimum(_Extreme, kind=Kind.INJECTIVE):
    """minimum(a: t[*s], b: t[*s]) -> t[*s].  NaN if either is NaN."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.minimum(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.minimum(*xs)

    def _loses(self, f: Build, a: Node, b: Node) -> Node:
        return f.lt(b, a)


@record(eq=False)
class Neg(Arithmetic, kind=Kind.INJECTIVE):
    """neg(x: t[*s]) -> t[*s], for signed types."""

    def result_dtype(self, *dtypes: DType) -> DType:
        result = super().result_dtype(*dtypes)
        if result.is_unsigned:
            raise TypeError(f"{self.name} is not defined on unsigned integers")
        return result

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.neg(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.negative(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.neg(ct),)


@record(eq=False)
class Abs(Arithmetic, kind=Kind.INJECTIVE):
    """abs(x: t[*s]) -> t[*s].  The gradient at 0 is 0, as in PyTorch."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.abs(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.abs(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        zero = f.full_like(ct, 0.0)
        below = f.where(f.lt(x, zero), f.neg(ct), zero)
        return (f.where(f.lt(zero, x), ct, below),)


@record(eq=False)
class Exp(Float, kind=Kind.INJECTIVE):
    """exp(x: f[*s]) -> f[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.exp(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.exp(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.mul(ct, y),)


@record(eq=False)
class Log(Float, kind=Kind.INJECTIVE):
    """log(x: f[*s]) -> f[*s].  Natural logarithm; -inf at 0, NaN below."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.log(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.log(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.div(ct, xs[0]),)


@record(eq=False)
class Sqrt(Float, kind=Kind.INJECTIVE):
    """sqrt(x: f[*s]) -> f[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.sqrt(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.sqrt(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.div(ct, f.add(y, y)),)


@record(eq=False)
class Tanh(Float, kind=Kind.INJECTIVE):
    """tanh(x: f[*s]) -> f[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.tanh(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.tanh(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.mul(ct, f.sub(f.full_like(y, 1.0), f.mul(y, y))),)


@record(eq=False)
class Sigmoid(Float, kind=Kind.INJECTIVE):
    """sigmoid(x: f[*s]) -> f[*s], 1 / (1 + exp(-x)) without overflow."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.sigmoid(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        (x,) = xs
        e = np.exp(-np.abs(x))
        return np.where(x < 0, e / (1 + e), 1 / (1 + e)).astype(np.asarray(x).dtype)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.mul(ct, f.mul(y, f.sub(f.full_like(y, 1.0), y))),)


@record(eq=False)
class Erf(Float, kind=Kind.INJECTIVE):
    """erf(x: f[*s]) -> f[*s], 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.erf(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        x = np.asarray(xs[0])
        return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        slope = f.mul(f.full_like(x, 2.0 / math.sqrt(math.pi)), f.exp(f.neg(f.mul(x, x))))
        return (f.mul(ct, slope),)


@record(eq=False)
class NormalCdf(Float, kind=Kind.INJECTIVE):
    """normalcdf(x: f[*s]) -> f[*s], erfc(-x / sqrt(2)) / 2: the normal distribution function."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.normal_cdf(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        x = np.asarray(xs[0])
        half = np.vectorize(math.erfc, otypes=[np.float64])(x * -math.sqrt(0.5)) / 2
        return half.astype(x.dtype)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.mul(ct, f.normal_density(xs[0])),)


@record(eq=False)
class NormalDensity(Float, kind=Kind.INJECTIVE):
    """normaldensity(x: f[*s]) -> f[*s], exp(-x**2 / 2) / sqrt(2 pi)."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.normal_density(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        x = np.asarray(xs[0])
        return (np.exp(x * x * -0.5) / math.sqrt(2.0 * math.pi)).astype(x.dtype)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.neg(f.mul(ct, f.mul(xs[0], y))),)


@record(eq=False)
class Sin(Float, kind=Kind.INJECTIVE):
    """sin(x: f[*s]) -> f[*s], x in radians."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.sin(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.sin(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.mul(ct, f.cos(xs[0])),)


@record(eq=False)
class Cos(Float, kind=Kind.INJECTIVE):
    """cos(x: f[*s]) -> f[*s], x in radians."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.cos(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.cos(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.neg(f.mul(ct, f.sin(xs[0]))),)


@record(eq=False)
class Relu(Arithmetic, kind=Kind.INJECTIVE):
    """relu(x: t[*s]) -> t[*s], max(x, 0).  The gradient at 0 is 0; NaN stays NaN."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        (x,) = xs
        return te.select(x <= 0, te.zero_like(x), x)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        (x,) = xs
        return np.where(x <= 0, np.zeros_like(x), x)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        zero = f.full_like(y, 0.0)
        return (f.where(f.le(y, zero), zero, ct),)


@record(eq=False)
class Where(Elementwise, kind=Kind.INJECTIVE):
    """where(c: bool[*s], a: t[*s], b: t[*s]) -> t[*s]."""

    def result_dtype(self, *dtypes: DType) -> DType:
        condition, a, b = dtypes
        if condition is not dt.bool_:
            raise RuntimeError(
                f"where expected condition to be a boolean tensor, but got a tensor with dtype "
                f"{condition.torch_name}"
            )
        return super().result_dtype(a, b)

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.select(xs[0], xs[1], xs[2])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.where(*xs)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        c, a, b = xs
        zero = f.full_like(ct, 0.0)
        return (
            None,
            f.unbroadcast(f.where(c, ct, zero), a.shape) if a.requires_grad else None,
            f.unbroadcast(f.where(c, zero, ct), b.shape) if b.requires_grad else None,
        )


@record(eq=False)
class Cast(Elementwise, kind=Kind.INJECTIVE):
    """cast(x: a[*s]) -> b[*s].  Floating point to integer truncates toward zero."""

    dtype: DType

    def result_dtype(self, *dtypes: DType) -> DType:
        return self.dtype

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.cast(xs[0], self.dtype)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.asarray(xs[0]).astype(self.dtype.name)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.cast(ct, xs[0].dtype) if xs[0].dtype.is_floating_point else None,)


@record(eq=False)
class Detach(Elementwise, kind=Kind.INJECTIVE):
    """detach(x: t[*s]) -> t[*s].  The same value with no history; canonicalisation removes it."""

    differentiable: ClassVar[bool] = False

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return xs[0]

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return xs[0]


@record(eq=False)
class Clone(Elementwise, kind=Kind.INJECTIVE):
    """clone(x: t[*s]) -> t[*s].  The same value with the same history."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return xs[0]

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return xs[0]

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (ct,)


class Comparison(Arithmetic):
    """Base of ops on numbers whose result is bool."""

    differentiable: ClassVar[bool] = False

    def result_dtype(self, *dtypes: DType) -> DType:
        super().result_dtype(*dtypes)
        return dt.bool_


@record(eq=False)
class Eq(Comparison, kind=Kind.INJECTIVE):
    """eq(a: t[*s], b: t[*s]) -> bool[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.equal(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.equal(*xs)


@record(eq=False)
class Ne(Comparison, kind=Kind.INJECTIVE):
    """ne(a: t[*s], b: t[*s]) -> bool[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.not_equal(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.not_equal(*xs)


@record(eq=False)
class Lt(Comparison, kind=Kind.INJECTIVE):
    """lt(a: t[*s], b: t[*s]) -> bool[*s].  False where either is NaN."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return xs[0] < xs[1]

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.less(*xs)


@record(eq=False)
class Le(Comparison, kind=Kind.INJECTIVE):
    """le(a: t[*s], b: t[*s]) -> bool[*s].  False where either is NaN."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return xs[0] <= xs[1]

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.less_equal(*xs)


class Logical(Elementwise):
    """Base of ops on bool tensors."""

    differentiable: ClassVar[bool] = False

    def result_dtype(self, *dtypes: DType) -> DType:
        if any(d is not dt.bool_ for d in dtypes):
            raise TypeError(f"{self.name} expects bool tensors, but got {list(dtypes)}")
        return dt.bool_


@record(eq=False)
class And(Logical, kind=Kind.INJECTIVE):
    """and(a: bool[*s], b: bool[*s]) -> bool[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.all(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.logical_and(*xs)


@record(eq=False)
class Or(Logical, kind=Kind.INJECTIVE):
    """or(a: bool[*s], b: bool[*s]) -> bool[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.any(xs[0], xs[1])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.logical_or(*xs)


@record(eq=False)
class Not(Logical, kind=Kind.INJECTIVE):
    """not(x: bool[*s]) -> bool[*s]."""

    def scalar(self, te: TE, *xs: Expr) -> Expr:
        return te.invert(xs[0])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.logical_not(*xs)
