"""Methods that reduce: sums, extremes, norms, products, logsumexp and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core import arguments as arg
from ..core.arguments import Dims
from ..core.dtype import DType
from ..core.spelling import numpy_names
from ..ops import derived as d
from ..ops import norms
from ..ops import pointwise as pw
from . import spectral
from .core import TensorBase, node_of
from .elementwise import tolerances
from .pairs import ValuesIndices

if TYPE_CHECKING:
    from .tensor import Tensor

_PROD_FORMS = ("(*, dtype dtype = None)", "(int dim, bool keepdim = False, *, dtype dtype = None)")


class Reductions(TensorBase):
    """Reductions of :class:`minitorch_tvm.Tensor`.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    >>> x.norm(dim=1)
    tensor([5., 0.], grad_fn=<VectorNormBackward0>)
    >>> x.norm(dim=1).sum().backward()
    >>> x.grad
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """

    __slots__ = ()

    @numpy_names
    def sum(self, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
        """Sum over ``dim`` (an int, several, or all); integers and bools sum as int64."""
        return self._wrap(d.sum(self.node, arg.dims("sum", dim, keepdim=keepdim), keepdim, dtype))

    @numpy_names
    def mean(
        self, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
    ) -> Tensor:
        """Mean over ``dim``; raises RuntimeError for integers."""
        return self._wrap(d.mean(self.node, arg.dims("mean", dim, keepdim=keepdim), keepdim, dtype))

    @numpy_names
    def var(
        self,
        dim: Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> Tensor:
        """Variance over ``dim``, divided by count - correction.

        ``correction`` is 1 unless it is given, or ``unbiased`` False, which may stand alone.

        >>> import minitorch_tvm as mt
        >>> x = mt.tensor([1.0, 3.0])
        >>> x.var(), x.var(0, correction=0), x.var(False)
        (tensor(2.), tensor(1.), tensor(1.))
        """
        over, correction = arg.spread("var", dim, unbiased, correction, keepdim)
        return self._wrap(d.var(self.node, over, correction, keepdim))

    @numpy_names
    def std(
        self,
        dim: Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> Tensor:
        """Square root of :meth:`var`."""
        over, correction = arg.spread("std", dim, unbiased, correction, keepdim)
        return self._wrap(d.std(self.node, over, correction, keepdim))

    @numpy_names
    def max(self, dim: int | Tensor | None = None, keepdim: bool = False) -> Any:
        """Largest element; with ``dim`` a (values, indices) pair; with a tensor, elementwise."""
        return self._extremum(dim, keepdim, lowest=False)

    @numpy_names
    def min(self, dim: int | Tensor | None = None, keepdim: bool = False) -> Any:
        """Smallest element; with ``dim`` a (values, indices) pair; with a tensor, elementwise."""
        return self._extremum(dim, keepdim, lowest=True)

    def _extremum(self, dim: Any, keepdim: bool, lowest: bool) -> Any:
        if isinstance(dim, TensorBase) and keepdim is False:
            pick = d.minimum if lowest else d.maximum
            return self._wrap(pick(self.node, dim.node))
        name = "min" if lowest else "max"
        arg.flag(name, "keepdim", 2, keepdim)
        if dim is None:
            return self._wrap(d.extremum(self.node, None, keepdim, lowest, name))
        axis = arg.integer(name, "dim", 1, dim)
        values, indices = d.extremum_with_index(self.node, axis, keepdim, lowest)
        return ValuesIndices(self._wrap(values), self._wrap(indices))

    @numpy_names
    def amax(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """Largest element over ``dim``; ties share the gradient."""
        return self._wrap(
            d.extremum(self.node, arg.dims("amax", dim, keepdim=keepdim), keepdim, False, "amax")
        )

    @numpy_names
    def amin(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """Smallest element over ``dim``; ties share the gradient."""
        return self._wrap(
            d.extremum(self.node, arg.dims("amin", dim, keepdim=keepdim), keepdim, True, "amin")
        )

    @numpy_names
    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Index (int64) of the largest element along ``dim``; first on ties, NaN wins."""
        return self._arg_extremum(dim, keepdim, lowest=False)

    @numpy_names
    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Index (int64) of the smallest element along ``dim``; first on ties, NaN wins."""
        return self._arg_extremum(dim, keepdim, lowest=True)

    def _arg_extremum(self, dim: Any, keepdim: bool, lowest: bool) -> Tensor:
        name = "argmin" if lowest else "argmax"
        arg.flag(name, "keepdim", 2, keepdim)
        axis = None if dim is None else arg.integer(name, "dim", 1, dim)
        return self._wrap(d.arg_extremum(self.node, axis, keepdim, lowest))

    @numpy_names
    def any(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """True if any element is nonzero."""
        return self._wrap(
            d.any_all(self.node, arg.dims("any", dim, keepdim=keepdim), keepdim, every=False)
        )

    @numpy_names
    def all(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """True if every element is nonzero."""
        return self._wrap(
            d.any_all(self.node, arg.dims("all", dim, keepdim=keepdim), keepdim, every=True)
        )

    def equal(self, other: Tensor) -> bool:
        """True if both have the same shape and elements (evaluates)."""
        x, y = self.node, node_of("equal", "other", 1, other)
        if x.shape != y.shape:
            return False
        return bool(self._wrap(d.any_all(d.compare("eq", x, y), None, False, every=True)))

    def allclose(
        self, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """True if |self - other| <= atol + rtol * |other| everywhere (evaluates)."""
        x, y = self.node, node_of("allclose", "other", 1, other)
        near = pw.is_close(x, y, *tolerances("allclose", rtol, atol, equal_nan))
        return bool(self._wrap(d.any_all(near, None, False, every=True)))

    def norm(
        self,
        p: float | str | None = "fro",
        dim: Dims = None,
        keepdim: bool = False,
        dtype: DType | None = None,
    ) -> Tensor:
        """(sum of |self|**p)**(1 / p) over ``dim``; "fro" is 2; of 0, inf and -inf the limit.

        "nuc" is that of the matrices in two dimensions: the sum of their singular values.  Where
        the norm is 0, so is its gradient, but for "nuc".  Raises RuntimeError for integers.
        """
        if p == "nuc":
            pair = tuple(range(self.ndim)) if dim is None else dim
            return self._wrap(spectral.matrix_norm(self.node, p, pair, keepdim, dtype))
        power = norm_power(p)
        dims = arg.dims("linalg_vector_norm", dim, 3, keepdim)
        return self._wrap(norms.vector_norm(self.node, power, dims, keepdim, dtype))

    @numpy_names
    def prod(
        self, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
    ) -> Tensor:
        """Product along ``dim``, or of all elements; integers and bools multiply as int64."""
        if dim is not None and (isinstance(dim, bool) or not hasattr(dim, "__index__")):
            raise arg.no_such_form("prod", [dim], _PROD_FORMS)
        axis = None if dim is None else arg.integer("prod", "dim", 1, dim)
        arg.flag("prod", "keepdim", 2, keepdim)
        return self._wrap(norms.prod(self.node, axis, keepdim, dtype))

    @numpy_names
    def logsumexp(self, dim: Dims, keepdim: bool = False) -> Tensor:
        """Logarithm of the sum of e ** self over ``dim``, without overflow."""
        dims = arg.one_or_several("logsumexp", "dim", 1, dim)
        arg.flag("logsumexp", "keepdim", 2, keepdim)
        return self._wrap(norms.logsumexp(self.node, dims, keepdim))

    @numpy_names
    def count_nonzero(self, dim: Dims = None) -> Tensor:
        """How many elements over ``dim`` are not zero, as int64."""
        return self._wrap(norms.count_nonzero(self.node, arg.dims("count_nonzero", dim)))

    @numpy_names
    def nansum(
        self, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
    ) -> Tensor:
        """Sum over ``dim`` of what is not NaN."""
        dims = arg.dims("nansum", dim, keepdim=keepdim)
        return self._wrap(norms.nansum(self.node, dims, keepdim, dtype))

    @numpy_names
    def nanmean(
        self, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
    ) -> Tensor:
        """Mean over ``dim`` of what is not NaN; NaN where that is nothing."""
        dims = arg.dims("nanmean", dim, keepdim=keepdim)
        return self._wrap(norms.nanmean(self.node, dims, keepdim, dtype))


def norm_power(p: Any) -> float:
    """The power that ``p`` of :meth:`Tensor.norm` means; raises what PyTorch raises for others."""
    if p is None or p == "fro":
        return 2.0
    if isinstance(p, str):
        raise RuntimeError(f"linalg.matrix_norm: Order {p} not supported.")
    return power_of(p)


def power_of(order: Any) -> float:
    """The order of a vector's norm; TypeError unless it is a number."""
    return float(arg.number("linalg_vector_norm", "ord", 2, order))
