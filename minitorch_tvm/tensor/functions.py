"""Free functions with PyTorch's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.arguments import Dims
from ..core.spelling import numpy_names
from ..ir.node import Node
from ..ops import derived as d
from ..ops import moves as mo
from . import division
from .at_once import joined
from .core import Number, TensorBase, input_of, tensor_of
from .elementwise import is_operand
from .tensor import Tensor


def _as_node_or_number(value: Any) -> Any:
    return value.node if isinstance(value, TensorBase) else value


def _operand(function: str, other: Any) -> None:
    if not is_operand(other):
        raise arg.wrong_kind(function, "other", 2, "Tensor", other)


def _elements(function: str, tensors: Sequence[Tensor]) -> list[Node]:
    if not isinstance(tensors, (tuple, list)):
        raise arg.wrong_kind(function, "tensors", 1, "tuple of Tensors", tensors)
    if not all([issubclass(kind, Tensor) for kind in set(map(type, tensors))]):  # noqa: C419
        i, t = next((i, t) for i, t in enumerate(tensors) if not isinstance(t, Tensor))
        raise TypeError(f"expected Tensor as element {i} in argument 0, but got {type(t).__name__}")
    return [t.node for t in tensors]


_WHERE_FORMS = [
    "(Tensor condition)",
    *(
        f"(Tensor condition, {a} input, {c} other)"
        for a, c in (("Tensor", "Tensor"), ("Number", "Tensor"), ("Tensor", "Number"))
    ),
]


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """``input`` where ``condition`` (bool) holds, else ``other``; all three broadcast.

    Of a condition alone, where it is not zero: ``condition.nonzero(as_tuple=True)`` (evaluates).

    >>> import minitorch_tvm as mt
    >>> mt.where(mt.tensor([True, False, True]))
    (tensor([0, 2]),)
    """
    tensor_of("where", "condition", 1, condition)
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    for value in (input, other):
        if not isinstance(value, (TensorBase, bool, int, float, np.generic)):
            raise arg.no_such_form("where", [condition, input, other], _WHERE_FORMS)
    return Tensor._wrap(
        d.where(condition.node, _as_node_or_number(input), _as_node_or_number(other))
    )


@numpy_names
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors along an existing dimension.

    >>> import minitorch_tvm as mt
    >>> mt.cat([mt.zeros(1, 2), mt.ones(2, 2)]).shape
    torch.Size([3, 2])
    """
    nodes, axis = _elements("cat", tensors), arg.integer("cat", "dim", 2, dim)
    return Tensor._wrap(joined(nodes, axis) or mo.cat(nodes, axis))


@numpy_names
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors of one shape along a new dimension."""
    nodes, axis = _elements("stack", tensors), arg.integer("stack", "dim", 2, dim)
    return Tensor._wrap(joined(nodes, axis, new=True) or mo.stack(nodes, axis))


def split(
    tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Views of consecutive pieces along ``dim``: of one size (the last smaller) or as listed."""
    return tensor.split(split_size_or_sections, dim)


@numpy_names
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most ``chunks`` views of equal size (the last may be smaller) along ``dim``."""
    return input_of("chunk", input).chunk(chunks, dim)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Matrix product of vectors, matrices and batches of matrices."""
    return input_of("matmul", input).matmul(other)


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Product of two matrices."""
    return input_of("mm", input).mm(mat2)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Products of two batches of matrices."""
    return input_of("bmm", input).bmm(mat2)


def _first(function: str, input: Any, other: Any) -> Any:
    """``input``, a tensor, or a number where ``other`` is a tensor; TypeError otherwise."""
    _operand(function, other)
    plain = isinstance(input, (bool, int, float)) and isinstance(other, Tensor)
    return input if plain else input_of(function, input)


def add(input: Any, other: Any, *, alpha: Number = 1) -> Tensor:
    """input + alpha * other; one of them may be a number."""
    x = _first("add", input, other)
    if isinstance(x, Tensor):
        return x.add(other, alpha=alpha)
    return Tensor._wrap(d.add(x, other._scaled("add", other, alpha).node))


def sub(input: Any, other: Any, *, alpha: Number = 1) -> Tensor:
    """input - alpha * other; one of them may be a number.

    >>> import minitorch_tvm as mt
    >>> mt.sub(1, mt.tensor([0.25, 2.0]))
    tensor([ 0.7500, -1.0000])
    """
    x = _first("sub", input, other)
    if isinstance(x, Tensor):
        return x.sub(other, alpha=alpha)
    return Tensor._wrap(d.sub(x, other._scaled("sub", other, alpha).node))


def mul(input: Any, other: Any) -> Tensor:
    """input * other; one of them may be a number."""
    product: Tensor = _first("mul", input, other) * other
    return product


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other, rounded down ("floor"), toward zero ("trunc") or not at all (None)."""
    x = _first("div", input, other)
    if isinstance(x, Tensor):
        return x.div(other, rounding_mode=rounding_mode)
    return Tensor._wrap(division.divide(x, other.node, rounding_mode))


def pow(input: Any, exponent: Any) -> Tensor:
    """input ** exponent."""
    if not (isinstance(input, Tensor) or isinstance(exponent, Tensor)):
        forms = ("Tensor input, Tensor", "Number self, Tensor", "Tensor input, Number")
        raise arg.no_such_form("pow", [input, exponent], [f"({f} exponent)" for f in forms])
    result: Tensor = input**exponent
    return result


def neg(input: Tensor) -> Tensor:
    """-input."""
    return -input_of("neg", input)


def abs(input: Tensor) -> Tensor:
    """|input|."""
    return input_of("abs", input).abs()


def exp(input: Tensor) -> Tensor:
    """e ** input."""
    return input_of("exp", input).exp()


def log(input: Tensor) -> Tensor:
    """Natural logarithm."""
    return input_of("log", input).log()


def sqrt(input: Tensor) -> Tensor:
    """Square root."""
    return input_of("sqrt", input).sqrt()


def erf(input: Tensor) -> Tensor:
    """Error function."""
    return input_of("erf", input).erf()


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Zero above the ``diagonal`` of each matrix.

    >>> import minitorch_tvm as mt
    >>> mt.tril(mt.ones(2, 3))
    tensor([[1., 0., 0.],
            [1., 1., 0.]])
    """
    return input_of("tril", input).tril(diagonal)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Zero below the ``diagonal`` of each matrix."""
    return input_of("triu", input).triu(diagonal)


@numpy_names
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The entries ``index`` of dimension ``dim``.

    >>> import minitorch_tvm as mt
    >>> mt.index_select(mt.arange(4), 0, mt.tensor([3, 0, 3]))
    tensor([3, 0, 3])
    """
    return input_of("index_select", input).index_select(dim, index)


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """``value`` where ``mask`` (bool) holds, else ``input``."""
    return input_of("masked_fill", input).masked_fill(mask, value)


def sin(input: Tensor) -> Tensor:
    """Sine of radians."""
    return input_of("sin", input).sin()


def cos(input: Tensor) -> Tensor:
    """Cosine of radians."""
    return input_of("cos", input).cos()


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return input_of("tanh", input).tanh()


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input))."""
    return input_of("sigmoid", input).sigmoid()


def relu(input: Tensor) -> Tensor:
    """max(input, 0)."""
    return input_of("relu", input).relu()


def maximum(input: Tensor, other: Tensor) -> Tensor:
    """Elementwise larger; NaN if either is."""
    return input_of("maximum", input).maximum(other)


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """Elementwise smaller; NaN if either is."""
    return input_of("minimum", input).minimum(other)


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Limit to [min, max]; either may be None."""
    return input_of("clamp", input).clamp(min, max)


@numpy_names
def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(input) normalised along ``dim``; ``dtype`` converts the input first."""
    return input_of("softmax", input).softmax(dim, dtype)


@numpy_names
def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Logarithm of the softmax along ``dim``."""
    return input_of("log_softmax", input).log_softmax(dim, dtype)


@numpy_names
def sum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum over ``dim``."""
    return input_of("sum", input).sum(dim, keepdim, dtype=dtype)


@numpy_names
def mean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Mean over ``dim``."""
    return input_of("mean", input).mean(dim, keepdim, dtype=dtype)


@numpy_names
def var(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Variance over ``dim``, see :meth:`Tensor.var`."""
    return input_of("var", input).var(dim, unbiased, keepdim, correction=correction)


@numpy_names
def std(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Standard deviation over ``dim``, see :meth:`Tensor.var`."""
    return input_of("std", input).std(dim, unbiased, keepdim, correction=correction)


@numpy_names
def max(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Largest element; with ``dim`` a (values, indices) pair."""
    return input_of("max", input).max(dim, keepdim)


@numpy_names
def min(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Smallest element; with ``dim`` a (values, indices) pair."""
    return input_of("min", input).min(dim, keepdim)


@numpy_names
def amax(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Largest element over ``dim``."""
    return input_of("amax", input).amax(dim, keepdim)


@numpy_names
def amin(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Smallest element over ``dim``."""
    return input_of("amin", input).amin(dim, keepdim)


@numpy_names
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the largest element."""
    return input_of("argmax", input).argmax(dim, keepdim)


@numpy_names
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the smallest element."""
    return input_of("argmin", input).argmin(dim, keepdim)


def reshape(input: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape."""
    return input_of("reshape", input).reshape(shape)


def permute(input: Tensor, dims: Sequence[int]) -> Tensor:
    """Reorder the dimensions."""
    return input_of("permute", input).permute(dims)


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Swap two dimensions."""
    return input_of("transpose", input).transpose(dim0, dim1)


@numpy_names
def squeeze(input: Tensor, dim: Dims = None) -> Tensor:
    """Drop dimensions of size one."""
    return input_of("squeeze", input).squeeze(dim)


@numpy_names
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """Insert a dimension of size one."""
    return input_of("unsqueeze", input).unsqueeze(dim)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge the dimensions start_dim..end_dim."""
    return input_of("flatten", input).flatten(start_dim, end_dim)


def broadcast_to(input: Tensor, shape: Sequence[int]) -> Tensor:
    """Expand to ``shape``."""
    return input_of("broadcast_to", input).expand(shape)


def is_tensor(value: object) -> bool:
    """True for tensors."""
    return isinstance(value, TensorBase)


def equal(input: Tensor, other: Tensor) -> bool:
    """True if both have the same shape and elements (evaluates)."""
    return input_of("equal", input).equal(other)


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """True if |input - other| <= atol + rtol * |other| everywhere (evaluates)."""
    return input_of("allclose", input).allclose(other, rtol, atol, equal_nan)


def result_type(input: Any, other: Any) -> dt.DType:
    """dtype of an arithmetic result of the two operands."""
    given = [x.item() if isinstance(x, np.generic) else x for x in (input, other)]
    for x in given:
        if not isinstance(x, (TensorBase, bool, int, float)):
            kinds = ("Tensor tensor, Tensor other", "Number scalar, Tensor tensor")
            forms = [*kinds, "Tensor tensor, Number other", "Number scalar1, Number scalar2"]
            raise arg.no_such_form("result_type", given, [f"({kind})" for kind in forms])
    return d.result_dtype(*map(_as_node_or_number, given))
