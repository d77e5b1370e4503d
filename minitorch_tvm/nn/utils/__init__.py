"""Clipping of gradients, parameters as one vector, and norms of weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ... import lazy
from ...autograd import no_grad
from ...core.on_demand import on_demand
from ...ir.node import Node
from ...ir.tape import Amending
from ...ops import build as b
from ...ops import derived as d
from ...ops import powers
from ...tensor import Tensor
from ...tensor.creation import tensor
from ...tensor.functions import cat
from . import rnn
from .norm_hooks import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "spectral_norm",
    "stateless",
    "vector_to_parameters",
    "weight_norm",
]


if TYPE_CHECKING:
    from . import parametrizations, parametrize, stateless
else:
    __getattr__ = on_demand(__name__, "parametrizations", "parametrize", "stateless")


def _listed(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [p.grad for p in _listed(parameters) if p.grad is not None]


def _powers(x: Node, order: float) -> Node:
    """What the norm of several tensors is computed from: a number of one of them."""
    if abs(order) == math.inf:
        return d.extremum(d.absolute(x), None, False, order < 0, "amax")
    if order == 0:
        return d.cast_float(d.any_all(x, None, False, every=False))
    return d.sum(b.mul(x, x) if order == 2 else powers.pow(d.absolute(x), order))


def _norm(parts: list[Node], order: float) -> Node:
    join = d.add
    if abs(order) == math.inf:
        join = d.minimum if order < 0 else d.maximum
    total = functools.reduce(join, parts)
    return total if order in (0, math.inf, -math.inf) else powers.pow(total, 1.0 / order)


@no_grad()
def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The ``norm_type``-norm (a number, or inf) of all elements together, as a 0-d tensor.

    The smallest element is that of -inf, and the number of tensors that are not all zero that of 0.

    With ``error_if_nonfinite`` it is evaluated, and RuntimeError raised if it is not finite.
    ``foreach`` changes nothing.
    """
    listed = _listed(tensors)
    order = float(norm_type)
    if not listed:
        return tensor(0.0)
    total = _norm([_powers(t.node, order) for t in listed], order)
    norm = Tensor._wrap(total)
    if error_if_nonfinite and not math.isfinite(norm.item()):
        raise RuntimeError(
            f"The total norm of order {order} for gradients from `parameters` is non-finite, so "
            "it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return norm


def _scale(gradients: list[Tensor], limit: Node, total: Node) -> None:
    factor = Tensor._wrap(d.clamp(d.div(limit, d.add(total, 1e-6)), None, 1.0))
    for g in gradients:
        g.mul_(factor)


@no_grad()
def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    total_norm: Tensor,
    foreach: bool | None = None,
) -> None:
    """Scale gradients by min(1, max_norm / (total_norm + 1e-6)); ``foreach`` changes nothing."""
    _scale(_gradients(parameters), d.term(float(max_norm), total_norm.dtype), total_norm.node)


@no_grad()
def _change(
    owners: list[Tensor],
    choices: tuple[object, ...],
    values: Sequence[float],
    change: Callable[[list[Tensor]], tuple[Sequence[Node], Node | None]],
) -> Any:
    """Change gradients in place, as ``choices`` say; returns a node that tells of it, or None.

    ``change`` returns the nodes of ``values`` and that.  It is not called for gradients that
    backward() has put off, and that were changed before: they stay put off.
    """
    with lazy.exclusive():
        amending = Amending.of(owners, *choices)
        known = None if amending is None else amending.known
        if amending is not None and known is not None:
            return amending.again(known, values)
    gradients = _gradients(owners)
    numbers, shown = change(gradients)
    if amending is not None and len(numbers) == len(values):
        amending.remember([g.node for g in gradients], numbers, shown)
    return shown


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients so that their common norm is at most ``max_norm``; returns the old norm.

    Nothing is evaluated (unless ``error_if_nonfinite``): clipping joins the training step.
    ``foreach`` changes nothing.

    >>> import minitorch_tvm as mt
    >>> w = mt.zeros(2, requires_grad=True)
    >>> (w * mt.tensor([3.0, 4.0])).sum().backward()
    >>> mt.nn.utils.clip_grad_norm_(w, 1.0)
    tensor(5.)
    >>> w.grad
    tensor([0.6000, 0.8000])
    """
    owners = _listed(parameters)
    limit, order = float(max_norm), float(norm_type)

    def change(gradients: list[Tensor]) -> tuple[Sequence[Node], Node]:
        total = get_total_norm(gradients, order, error_if_nonfinite).node
        number = d.term(limit, total.dtype)
        _scale(gradients, number, total)
        return [number], total

    return Tensor._wrap(_change(owners, ("norm", order, error_if_nonfinite), [limit], change))


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Limit every element of the gradients to [-clip_value, clip_value].

    ``foreach`` changes nothing.
    """
    limit = float(clip_value)

    def change(gradients: list[Tensor]) -> tuple[Sequence[Node], None]:
        numbers = {t: [d.term(n, t) for n in (-limit, limit)] for t in {g.dtype for g in gradients}}
        for g in gradients:
            g._assign(d.clamp(g.node, *numbers[g.dtype]), "clamp_")
        return [n for pair in numbers.values() for n in pair], None

    _change(_listed(parameters), ("value",), [-limit, limit], change)


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of ``parameters``, one behind the other, as one dimension.

    >>> import minitorch_tvm as mt
    >>> mt.nn.utils.parameters_to_vector(mt.nn.Linear(3, 2).parameters()).shape
    torch.Size([8])
    """
    return cat([p.reshape(-1) for p in parameters])


@no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the elements of a vector, in order, to the parameters.

    Raises TypeError unless ``vec`` is a tensor, RuntimeError if it is too short.

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.Linear(2, 1)
    >>> mt.nn.utils.vector_to_parameters(mt.tensor([1.0, 2.0, 3.0]), layer.parameters())
    >>> layer.bias
    Parameter containing:
    tensor([3.], requires_grad=True)
    """
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec).__name__}")
    start = 0
    for p in parameters:
        count = p.numel()
        p.copy_(vec[start : start + count].reshape(p.shape))
        start += count
