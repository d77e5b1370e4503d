"""Derivatives of functions of tensors: Jacobians, Hessians, and their products with vectors.

All of them differentiate in reverse.  The rows of a Jacobian are computed one after the other, by
one program: of a function with n output elements that is n times the work of one gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import lazy
from ..ir.node import MODE
from ..ops import moves
from .engine import enable_grad, grad

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

Function = Callable[..., Any]
Tensors = tuple[Any, ...]

_FEW = 8
"""Rows of a Jacobian that are recorded together; of more each is evaluated before the next."""
_OUTPUTS = "outputs of the user-provided function"


def _as_tuple(value: Any, what: str, function: str) -> tuple[bool, Tensors]:
    """Whether ``value`` is a tuple, and its tensors; TypeError for anything else."""
    several = value if isinstance(value, tuple) else (value,)
    for i, t in enumerate(several):
        if not hasattr(t, "node"):
            which = f"value at index {i}" if isinstance(value, tuple) else f"given {what}"
            raise TypeError(
                f"The {what} given to {function} must be either a Tensor or a tuple of Tensors "
                f"but the {which} has type {type(t)}."
            )
    return isinstance(value, tuple), several


def _inputs(given: Tensors, create_graph: bool) -> Tensors:
    """What the function is called with, so that nothing else depends on it."""
    return tuple(
        [
            t.view_as(t) if create_graph and t.requires_grad else t.detach().requires_grad_()
            for t in given
        ]
    )


def _vector(v: Any, function: str, like: Tensors, several: bool, without: str) -> Any:
    """The vector of a product, with the shapes of ``like``; None where it may be left out."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise RuntimeError(f"The vector v can only be None if {without}")
        return None
    _, vector = _as_tuple(v, "v", function)
    if len(vector) != len(like):
        raise RuntimeError(
            f"v is a tuple of invalid length: should be {len(like)} but got {len(vector)}."
            if several
            else "The given v should contain a single Tensor."
        )
    for i, (t, other) in enumerate(zip(vector, like, strict=True)):
        if t.shape != other.shape:
            raise RuntimeError(
                f"{f'Entry {i} in ' if several else ''}v has invalid size: should be "
                f"{other.shape} but got {t.shape}."
            )
    return vector


_ONE_OUTPUT = "the user-provided function returns a single Tensor with a single element."
_ONE_INPUT = "the input to the user-provided function is a single Tensor with a single element."


def gradients(
    outputs: Tensors, inputs: Tensors, cts: Any = None, create_graph: bool = False
) -> Tensors:
    """Those of the outputs that have a history; None for inputs that these do not depend on."""
    pairs = [
        (t, ct)
        for t, ct in zip(outputs, [None] * len(outputs) if cts is None else cts, strict=True)
        if t.requires_grad
    ]
    if not pairs:
        return (None,) * len(inputs)
    roots, given = zip(*pairs, strict=True)
    return grad(roots, inputs, given, True, create_graph, allow_unused=True)


def _differentiable(tensors: Sequence[Any], kind: str) -> None:
    """RuntimeError, as in strict mode, if one of the tensors has no history."""
    for i, t in enumerate(tensors):
        if t is None:
            raise RuntimeError(
                f"The output of the user-provided function is independent of input {i}. This is "
                "not allowed in strict mode."
            )
        if t.requires_grad:
            continue
        if kind == "jacobian":
            raise RuntimeError(
                "While computing the hessian, found that the jacobian of the user-provided "
                f"function with respect to input {i} is independent of the input. This is not "
                "allowed in strict mode. You should ensure that your function is twice "
                "differentiable and that the jacobian depends on the inputs (this would be "
                "violated by a linear function for example)."
            )
        if kind == "gradient":
            raise RuntimeError(
                f"The gradient with respect to input {i} is independent of the inputs of the "
                "user-provided function. This is not allowed in strict mode."
            )
        raise RuntimeError(
            f"Output {i} of the user-provided function does not require gradients. The outputs "
            "must be computed in a differentiable manner from the input when running in strict "
            "mode."
        )


def _filled(
    found: Tensors, like: Tensors, strict: bool, create_graph: bool, independent: str, of: str = ""
) -> Tensors:
    """Zeros for what is None, which strict mode refuses; ``independent`` says what that is of."""
    for i, g in enumerate(found):
        if strict and g is None:
            raise RuntimeError(f"{independent.format(i=i)}. This is not allowed in strict mode.")
        if strict and create_graph and of and not g.requires_grad:
            raise RuntimeError(
                f"The {of} of the user-provided function is independent of input {i}. This is "
                "not allowed in strict mode when create_graph=True."
            )
    return tuple(zeros_for_none(found, like))


def _result(several: bool, tensors: Sequence[Any], create_graph: bool) -> Any:
    kept = tuple([t if create_graph else t.detach() for t in tensors])
    return kept if several else kept[0]


def vjp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """``func(*inputs)``, and the product of the vector ``v`` with its Jacobian.

    ``v`` has the shapes of the outputs; for a single number it may be left out.  With
    ``create_graph`` the results can be differentiated; with ``strict`` RuntimeError is raised where
    they do not depend on the inputs, instead of zeros.

    >>> import minitorch_tvm as mt
    >>> vjp(lambda x: x * x, mt.tensor([1.0, 2.0]), mt.ones(2))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with enable_grad():
        several, given = _as_tuple(inputs, "inputs", "vjp")
        xs = _inputs(given, create_graph)
        many, ys = _as_tuple(func(*xs), _OUTPUTS, "vjp")
        if strict:
            _differentiable(ys, "outputs")
        vector = _vector(v, "vjp", ys, many, _ONE_OUTPUT)
        found = gradients(ys, xs, vector, create_graph)
        independent = "The output of the user-provided function is independent of input {i}"
        product = _filled(found, xs, strict, create_graph, independent, "jacobian")
    return _result(many, ys, create_graph), _result(several, product, create_graph)


def jvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """``func(*inputs)``, and the product of its Jacobian with the vector ``v``.

    ``v`` has the shapes of the inputs.  It is computed by differentiating twice: the product of a
    vector with the Jacobian is linear in the vector.  Other arguments as those of :func:`vjp`.

    >>> import minitorch_tvm as mt
    >>> jvp(lambda x: x * x, mt.tensor([1.0, 2.0]), mt.tensor([1.0, 0.0]))
    (tensor([1., 4.]), tensor([2., 0.]))
    """
    with enable_grad():
        _, given = _as_tuple(inputs, "inputs", "jvp")
        xs = _inputs(given, create_graph)
        vector = _vector(v, "jvp", xs, isinstance(inputs, tuple), _ONE_INPUT)
        if vector is None:
            vector = (xs[0].new_ones(xs[0].shape),)
        many, ys = _as_tuple(func(*xs), _OUTPUTS, "jvp")
        if strict:
            _differentiable(ys, "outputs")
        cts = tuple([y.new_zeros(y.shape).requires_grad_() for y in ys])
        back = gradients(ys, xs, cts, True)
        if strict:
            _differentiable(back, "gradient")
        found = twice(back, cts, vector, create_graph)
        independent = (
            "The gradient with respect to the input is independent of entry {i} in the "
            "grad_outputs when using the double backward trick to compute forward mode gradients"
        )
        product = _filled(found, ys, strict, create_graph, independent, "jacobian")
    return _result(many, ys, create_graph), _result(many, product, create_graph)


def twice(first: Tensors, by: Tensors, vector: Tensors, create_graph: bool) -> Tensors:
    """The product of ``vector`` with the Jacobian of first gradients by some of their inputs."""
    pairs = [(g, v) for g, v in zip(first, vector, strict=True) if g is not None]
    if not pairs:
        return (None,) * len(by)
    roots, given = zip(*pairs, strict=True)
    return gradients(roots, by, given, create_graph)


def zeros_for_none(found: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Gradients, with zeros for those that there are none of."""
    return [t.new_zeros(t.shape) if g is None else g for g, t in zip(found, like, strict=True)]


def rows_of(y: Any, xs: Tensors, create_graph: bool) -> list[list[Any]]:
    """The gradients of each element of ``y`` by the inputs, None where there are none."""
    count = y.numel()
    trace = MODE.trace
    one_by_one = count > _FEW and trace.capture is None and not trace.forbidden
    if one_by_one:
        lazy.evaluate([y.node], "jacobian")
    rows = []
    for j in range(count):
        ct = np.zeros(y.shape, y.dtype.numpy)
        ct.reshape(-1)[j] = 1
        found = gradients((y,), xs, (y.new_tensor(ct),), create_graph)
        if one_by_one:
            lazy.evaluate([g.node for g in found if g is not None], "jacobian")
        rows.append([*found])
    return rows


def _checked_strategy(strict: bool, vectorize: bool, strategy: str, hint: str) -> None:
    if strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError(
            f'Expected strategy to be either "forward-mode" or "reverse-mode".{hint}'
        )
    if strategy == "forward-mode":
        raise NotImplementedError(
            'there is no forward mode: leave strategy="reverse-mode", whose results are the same'
        )
    if strict and vectorize:
        raise RuntimeError(
            "torch.autograd.functional.jacobian: `strict=True` and `vectorized=True` are not "
            "supported together. Please either set `strict=False` or `vectorize=False`."
        )


def jacobian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The derivatives of every output element of ``func`` by every input element.

    Of one tensor by one tensor it is a tensor of shape ``(*output.shape, *input.shape)``; where
    inputs or outputs are tuples, a tuple: of the outputs first, of the inputs inside.  Rows of more
    than eight output elements are evaluated as they come, by one program; ``vectorize`` changes
    nothing.  Other arguments as those of :func:`vjp`.  Raises NotImplementedError for
    ``strategy="forward-mode"``.

    >>> import minitorch_tvm as mt
    >>> jacobian(lambda x: x * x, mt.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    hint = (
        ' Hint: If your function has more outputs than inputs, "forward-mode" tends to be more '
        'performant. Otherwise, prefer to use "reverse-mode".'
    )
    _checked_strategy(strict, vectorize, strategy, hint)
    with enable_grad():
        several, given = _as_tuple(inputs, "inputs", "jacobian")
        xs = _inputs(given, create_graph)
        many, ys = _as_tuple(func(*xs), _OUTPUTS, "jacobian")
        if strict:
            _differentiable(ys, "outputs")
        result = []
        for i, y in enumerate(ys):
            rows = rows_of(y, xs, create_graph)
            if strict and rows:
                independent = (
                    f"Output {i} of the user-provided function is independent of input {{i}}"
                )
                of = "jacobian" if create_graph else ""
                for row in rows:
                    _filled(tuple(row), xs, strict, create_graph, independent, of)
            result.append(
                _result(several, [block(y, x, rows, k) for k, x in enumerate(xs)], create_graph)
            )
    return tuple(result) if many else result[0]


def block(y: Any, x: Any, rows: list[list[Any]], k: int) -> Any:
    """The derivatives of one output by one input."""
    shape = (*y.shape, *x.shape)
    if all(row[k] is None for row in rows):
        return x.new_zeros(shape)
    return x._wrap(moves.stack([row[k].node for row in rows], 0)).reshape(shape)


def _one_number(result: Any, function: str, strict: bool) -> Any:
    many, ys = _as_tuple(result, _OUTPUTS, function)
    if strict:
        _differentiable(ys, "outputs")
    if many:
        raise RuntimeError(f"The function given to {function} should return a single Tensor")
    if ys[0].numel() != 1:
        raise RuntimeError(
            f"The Tensor returned by the function given to {function} should contain a single "
            "element"
        )
    return ys[0].squeeze()


def hessian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The second derivatives of ``func``, which returns one number.

    Of one input it is a tensor of shape ``(*input.shape, *input.shape)``, of a tuple of inputs a
    tuple of tuples.  Arguments as those of :func:`jacobian`.

    >>> import minitorch_tvm as mt
    >>> hessian(lambda x: (x**3).sum(), mt.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    _checked_strategy(strict, vectorize, outer_jacobian_strategy, "")
    several, given = _as_tuple(inputs, "inputs", "hessian")

    def gradient(*xs: Any) -> Any:
        found = jacobian(lambda *x: _one_number(func(*x), "hessian", strict), xs, create_graph=True)
        if strict:
            _differentiable(found, "jacobian")
        return found

    blocks = jacobian(gradient, given, create_graph, strict)
    return blocks if several else blocks[0][0]


def vhp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """``func(*inputs)``, one number, and the product of the vector ``v`` with its Hessian.

    ``v`` has the shapes of the inputs.  Other arguments as those of :func:`vjp`.

    >>> import minitorch_tvm as mt
    >>> vhp(lambda x: (x**3).sum(), mt.tensor([1.0, 2.0]), mt.ones(2))
    (tensor(9.), tensor([ 6., 12.]))
    """
    independent = "The jacobian of the user-provided function is independent of input {i}"
    return _by_hessian("vhp", func, inputs, v, create_graph, strict, independent)


def hvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """As :func:`vhp`, the product of the Hessian with ``v``: it is symmetric."""
    independent = (
        "The hessian of the user-provided function is independent of entry {i} in the grad_jacobian"
    )
    return _by_hessian("hvp", func, inputs, v, create_graph, strict, independent)


def _by_hessian(
    name: str,
    func: Function,
    inputs: Any,
    v: Any,
    create_graph: bool,
    strict: bool,
    independent: str,
) -> tuple[Any, Any]:
    with enable_grad():
        several, given = _as_tuple(inputs, "inputs", name)
        xs = _inputs(given, create_graph)
        vector = _vector(v, name, xs, several, _ONE_INPUT)
        if vector is None:
            vector = (xs[0].new_ones(xs[0].shape),)
        result = func(*xs)
        y = _one_number(result, name, strict)
        first = gradients((y,), xs, None, True)
        if strict:
            _differentiable(first, "jacobian")
        found = twice(first, xs, vector, create_graph)
        product = _filled(found, xs, strict, create_graph, independent, "hessian")
    return _result(False, (result,), create_graph), _result(several, product, create_graph)
