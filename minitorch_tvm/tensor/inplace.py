"""In-place forms of elementwise methods: each ends in an assignment of the new value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ..ops import build as b
from ..ops import derived as d
from ..ops import pointwise as pw
from ..ops import powers
from .core import Number, node_of
from .elementwise import Elementwise

if TYPE_CHECKING:
    from .tensor import Tensor

Operand = Any


class InPlace(Elementwise):
    """Methods that replace each element, of :class:`minitorch_tvm.Tensor`.

    They raise RuntimeError for a leaf that requires grad, and for a result of another kind than
    the tensor (floating point, integer, bool) or of another shape.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([1.5, -2.5])
    >>> x.floor_().neg_()
    tensor([-1.,  3.])
    """

    __slots__ = ()

    def exp_(self) -> Self:
        """e ** self, in place."""
        return self._assign(d.unary_float(b.EXP, self.node), "exp_")

    def log_(self) -> Self:
        """Natural logarithm, in place."""
        return self._assign(d.unary_float(b.LOG, self.node), "log_")

    def sqrt_(self) -> Self:
        """Square root, in place."""
        return self._assign(d.unary_float(b.SQRT, self.node), "sqrt_")

    def tanh_(self) -> Self:
        """Hyperbolic tangent, in place."""
        return self._assign(d.unary_float(b.TANH, self.node), "tanh_")

    def sigmoid_(self) -> Self:
        """1 / (1 + exp(-self)), in place."""
        return self._assign(d.unary_float(b.SIGMOID, self.node), "sigmoid_")

    def erf_(self) -> Self:
        """Error function, in place."""
        return self._assign(d.unary_float(b.ERF, self.node), "erf_")

    def sin_(self) -> Self:
        """Sine, in place."""
        return self._assign(d.unary_float(b.SIN, self.node), "sin_")

    def cos_(self) -> Self:
        """Cosine, in place."""
        return self._assign(d.unary_float(b.COS, self.node), "cos_")

    def neg_(self) -> Self:
        """-self, in place."""
        return self._assign(d.neg(self.node), "neg_")

    def abs_(self) -> Self:
        """|self|, in place."""
        return self._assign(d.absolute(self.node), "abs_")

    def square_(self) -> Self:
        """self * self, in place."""
        return self._assign(powers.pow(self.node, 2), "square_")

    def floor_(self) -> Self:
        """The largest integer not above, in place."""
        return self._assign(self.floor().node, "floor_")

    def ceil_(self) -> Self:
        """The smallest integer not below, in place."""
        return self._assign(self.ceil().node, "ceil_")

    def trunc_(self) -> Self:
        """The integer part, in place."""
        return self._assign(self.trunc().node, "trunc_")

    def frac_(self) -> Self:
        """self - self.trunc(), in place."""
        return self._assign(self.frac().node, "frac_")

    def sign_(self) -> Self:
        """-1, 0 or 1, in place."""
        return self._assign(self.sign().node, "sign_")

    def reciprocal_(self) -> Self:
        """1 / self, in place."""
        return self._assign(self.reciprocal().node, "reciprocal_")

    def rsqrt_(self) -> Self:
        """1 / sqrt(self), in place."""
        return self._assign(self.rsqrt().node, "rsqrt_")

    def log1p_(self) -> Self:
        """Logarithm of 1 + self, in place."""
        return self._assign(self.log1p().node, "log1p_")

    def expm1_(self) -> Self:
        """e ** self - 1, in place."""
        return self._assign(self.expm1().node, "expm1_")

    def exp2_(self) -> Self:
        """2 ** self, in place."""
        return self._assign(self.exp2().node, "exp2_")

    def log2_(self) -> Self:
        """Logarithm to base 2, in place."""
        return self._assign(self.log2().node, "log2_")

    def log10_(self) -> Self:
        """Logarithm to base 10, in place."""
        return self._assign(self.log10().node, "log10_")

    def tan_(self) -> Self:
        """Tangent, in place."""
        return self._assign(self.tan().node, "tan_")

    def asin_(self) -> Self:
        """Arc sine, in place."""
        return self._assign(self.asin().node, "asin_")

    def acos_(self) -> Self:
        """Arc cosine, in place."""
        return self._assign(self.acos().node, "acos_")

    def atan_(self) -> Self:
        """Arc tangent, in place."""
        return self._assign(self.atan().node, "atan_")

    def sinh_(self) -> Self:
        """Hyperbolic sine, in place."""
        return self._assign(self.sinh().node, "sinh_")

    def cosh_(self) -> Self:
        """Hyperbolic cosine, in place."""
        return self._assign(self.cosh().node, "cosh_")

    def round_(self, *, decimals: int = 0) -> Self:
        """The nearest number with so many ``decimals``, in place."""
        return self._assign(self.round(decimals=decimals).node, "round_")

    def nan_to_num_(
        self, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
    ) -> Self:
        """Numbers instead of NaN and the infinities, in place."""
        return self._assign(self.nan_to_num(nan, posinf, neginf).node, "nan_to_num_")

    def pow_(self, exponent: Operand) -> Self:
        """self **= exponent."""
        return self._assign(powers.pow(self.node, self._other("pow_", exponent)), "pow_")

    def floor_divide_(self, other: Operand) -> Self:
        """self //= other."""
        return self._assign(self.floor_divide(other).node, "floor_divide_")

    def remainder_(self, other: Operand) -> Self:
        """self %= other."""
        return self._assign(self.remainder(other).node, "remainder_")

    def fmod_(self, other: Operand) -> Self:
        """What is left of self / other, with the sign of self, in place."""
        return self._assign(self.fmod(other).node, "fmod_")

    __ipow__ = pow_
    __ifloordiv__ = floor_divide_
    __imod__ = remainder_

    # --- tests: ones and zeros of the tensor's own type -----------------------------------------

    def _told(self, kind: str, other: Operand, name: str) -> Self:
        truth = d.compare(kind, self.node, self._other(name, other))
        return self._assign(b.cast(truth, self.dtype), name)

    def eq_(self, other: Operand) -> Self:
        """self == other, in place."""
        return self._told("eq", other, "eq_")

    def ne_(self, other: Operand) -> Self:
        """self != other, in place."""
        return self._told("ne", other, "ne_")

    def lt_(self, other: Operand) -> Self:
        """self < other, in place."""
        return self._told("lt", other, "lt_")

    def le_(self, other: Operand) -> Self:
        """self <= other, in place."""
        return self._told("le", other, "le_")

    def gt_(self, other: Operand) -> Self:
        """self > other, in place."""
        return self._told("gt", other, "gt_")

    def ge_(self, other: Operand) -> Self:
        """self >= other, in place."""
        return self._told("ge", other, "ge_")

    def logical_not_(self) -> Self:
        """1 where an element is zero, else 0, in place."""
        return self._told("eq", 0, "logical_not_")

    def logical_and_(self, other: Tensor) -> Self:
        """1 where neither element is zero, else 0, in place."""
        truth = pw.logical_and(self.node, node_of("logical_and_", "other", 1, other))
        return self._assign(b.cast(truth, self.dtype), "logical_and_")

    def logical_or_(self, other: Tensor) -> Self:
        """1 where at least one element is not zero, else 0, in place."""
        truth = pw.logical_or(self.node, node_of("logical_or_", "other", 1, other))
        return self._assign(b.cast(truth, self.dtype), "logical_or_")

    def logical_xor_(self, other: Tensor) -> Self:
        """1 where exactly one element is zero, else 0, in place."""
        truth = pw.logical_xor(self.node, node_of("logical_xor_", "other", 1, other))
        return self._assign(b.cast(truth, self.dtype), "logical_xor_")

    # --- limits and blends ----------------------------------------------------------------------

    def clamp_min_(self, min: Operand) -> Self:
        """The larger of self and ``min``, in place."""
        return self._assign(self.clamp_min(min).node, "clamp_min_")

    def clamp_max_(self, max: Operand) -> Self:
        """The smaller of self and ``max``, in place."""
        return self._assign(self.clamp_max(max).node, "clamp_max_")

    def lerp_(self, end: Tensor, weight: Operand) -> Self:
        """self += weight * (end - self)."""
        return self._assign(self.lerp(end, weight).node, "lerp_")

    def addcmul_(self, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Self:
        """self += value * tensor1 * tensor2."""
        return self._assign(self.addcmul(tensor1, tensor2, value=value).node, "addcmul_")

    def addcdiv_(self, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Self:
        """self += value * tensor1 / tensor2."""
        return self._assign(self.addcdiv(tensor1, tensor2, value=value).node, "addcdiv_")
