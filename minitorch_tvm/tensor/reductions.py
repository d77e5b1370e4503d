"""Methods that reduce, beyond sums and extremes: norms, products, logsumexp and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core import arguments as arg
from ..core.arguments import Dims
from ..core.dtype import DType
from ..ops import derived as d
from ..ops import norms
from ..ops import pointwise as pw
from .core import TensorBase, node_of
from .elementwise import tolerances

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

        Where the norm is 0, so is its gradient.  Raises RuntimeError for integers and
        NotImplementedError for "nuc".
        """
        power = norm_power(self.ndim, p)
        dims = arg.dims("linalg_vector_norm", dim, 3, keepdim)
        return self._wrap(norms.vector_norm(self.node, power, dims, keepdim, dtype))

    def prod(
        self, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
    ) -> Tensor:
        """Product along ``dim``, or of all elements; integers and bools multiply as int64."""
        if dim is not None and (isinstance(dim, bool) or not hasattr(dim, "__index__")):
            raise arg.no_such_form("prod", [dim], _PROD_FORMS)
        axis = None if dim is None else arg.integer("prod", "dim", 1, dim)
        arg.flag("prod", "keepdim", 2, keepdim)
        return self._wrap(norms.prod(self.node, axis, keepdim, dtype))

    def logsumexp(self, dim: Dims, keepdim: bool = False) -> Tensor:
        """Logarithm of the sum of e ** self over ``dim``, without overflow."""
        dims = arg.one_or_several("logsumexp", "dim", 1, dim)
        arg.flag("logsumexp", "keepdim", 2, keepdim)
        return self._wrap(norms.logsumexp(self.node, dims, keepdim))

    def count_nonzero(self, dim: Dims = None) -> Tensor:
        """How many elements over ``dim`` are not zero, as int64."""
        return self._wrap(norms.count_nonzero(self.node, arg.dims("count_nonzero", dim)))

    def nansum(
        self, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
    ) -> Tensor:
        """Sum over ``dim`` of what is not NaN."""
        dims = arg.dims("nansum", dim, keepdim=keepdim)
        return self._wrap(norms.nansum(self.node, dims, keepdim, dtype))

    def nanmean(
        self, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
    ) -> Tensor:
        """Mean over ``dim`` of what is not NaN; NaN where that is nothing."""
        dims = arg.dims("nanmean", dim, keepdim=keepdim)
        return self._wrap(norms.nanmean(self.node, dims, keepdim, dtype))


def norm_power(rank: int, p: Any) -> float:
    """The power that ``p`` of :meth:`Tensor.norm` means; raises what PyTorch raises for others."""
    if p is None or p == "fro":
        return 2.0
    if p == "nuc":
        if rank < 2:
            raise RuntimeError(
                "linalg.matrix_norm: The input tensor A must have at least 2 dimensions."
            )
        raise NotImplementedError("the nuclear norm is not supported: it needs singular values")
    if isinstance(p, str):
        raise RuntimeError(f"linalg.matrix_norm: Order {p} not supported.")
    return power_of(p)


def power_of(order: Any) -> float:
    """The order of a vector's norm; TypeError unless it is a number."""
    return float(arg.number("linalg_vector_norm", "ord", 2, order))
