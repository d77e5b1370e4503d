"""Whether gradients are those of finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core import dtype as dt
from ..core import errors
from .engine import as_list, grad


class GradcheckError(RuntimeError):
    """Raised by :func:`gradcheck` when the two gradients differ."""


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare gradients with central differences, (f(x + eps) - f(x - eps)) / (2 eps).

    ``inputs`` is a float64 tensor or a tuple; those that require grad are checked, elementwise,
    against a fixed random weighting of ``func``'s outputs.  Returns True, or raises
    :class:`GradcheckError` (False if ``raise_exception`` is off).  Warns about inputs of lower
    precision, whose rounding errors are larger than the differences that are compared.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([1.0, 2.0], dtype=mt.float64, requires_grad=True)
    >>> mt.autograd.gradcheck(mt.exp, x)
    True
    """
    given = tuple(as_list(inputs))
    checked = [i for i, t in enumerate(given) if hasattr(t, "node") and t.requires_grad]
    if not checked:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them "
            "have requires_grad=True."
        )
    for i in checked:
        if given[i].dtype is not dt.float64:
            errors.warn(
                f"Input #{i} requires gradient and is not a double precision floating point. This "
                "check will likely fail if all the inputs are not of double precision floating "
                f"point: use .double() (float64; got {given[i].dtype.name})."
            )
    rng = np.random.default_rng(0)
    outputs = [o for o in as_list(func(*given)) if o.requires_grad]
    if not outputs:
        raise GradcheckError("gradcheck: no output of the function requires grad")
    weights = [rng.uniform(0.5, 1.5, tuple(o.shape)) for o in outputs]
    cts = [o.new_tensor(w) for o, w in zip(outputs, weights, strict=True)]
    analytic = grad(outputs, [given[i] for i in checked], cts, allow_unused=True)
    values = [np.array(t.detach().numpy()) if hasattr(t, "node") else t for t in given]

    def total(which: int, moved: np.ndarray) -> float:
        args = [
            t.new_tensor(moved if i == which else values[i]).requires_grad_(t.requires_grad)
            if hasattr(t, "node")
            else t
            for i, t in enumerate(given)
        ]
        results = [o for o in as_list(func(*args)) if o.requires_grad]
        pairs = zip(results, weights, strict=True)
        return float(sum((o.detach().numpy() * w).sum() for o, w in pairs))

    for i, g in zip(checked, analytic, strict=True):
        numeric = np.zeros(values[i].shape)
        for place in np.ndindex(values[i].shape):
            up, down = values[i].copy(), values[i].copy()
            up[place] += eps
            down[place] -= eps
            numeric[place] = (total(i, up) - total(i, down)) / (2 * eps)
        exact = np.zeros(values[i].shape) if g is None else g.detach().numpy()
        if not np.allclose(exact, numeric, rtol=rtol, atol=atol):
            if not raise_exception:
                return False
            raise GradcheckError(
                f"Jacobian mismatch for input {i}:\nnumerical:{numeric}\nanalytical:{exact}"
            )
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare derivatives of gradients with central differences, as :func:`gradcheck` does.

    The gradients of ``func``'s outputs, weighted by ``grad_outputs`` (tensors of their shapes;
    random ones if None), are taken for a function of ``inputs`` and of those weights.  Results and
    errors are those of :func:`gradcheck`.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([1.0, 2.0], dtype=mt.float64, requires_grad=True)
    >>> mt.autograd.gradgradcheck(mt.exp, x)
    True
    """
    given = tuple(as_list(inputs))
    if grad_outputs is None:
        rng = np.random.default_rng(1)
        outputs = [o for o in as_list(func(*given)) if o.requires_grad]
        cts = [o.new_tensor(rng.uniform(-1.0, 1.0, tuple(o.shape))) for o in outputs]
        weights = [ct.requires_grad_() for ct in cts]
    else:
        weights = as_list(grad_outputs)
    count = len(given)
    wanted = [i for i, t in enumerate(given) if hasattr(t, "node") and t.requires_grad]

    def gradients(*args: Any) -> list[Any]:
        outputs = [o for o in as_list(func(*args[:count])) if o.requires_grad]
        sources = [args[i] for i in wanted]
        found = grad(outputs, sources, args[count:], create_graph=True, allow_unused=True)
        return [g for g in found if g is not None and g.requires_grad]

    return gradcheck(gradients, (*given, *weights), eps, atol, rtol, raise_exception)
