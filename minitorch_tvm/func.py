"""Functions that make functions: gradients and Jacobians of what is passed, as ``torch.func`` has.

Arguments and results may be tensors, or lists, tuples and dicts of them.  What a function finds
without being given it is a constant, unless something outside differentiates by it: the results can
be differentiated again, by an enclosing call or by ``backward()``.  All of them differentiate in
reverse; ``vmap`` is not there.

>>> import minitorch_tvm as mt
>>> mt.func.grad(mt.func.grad(lambda x: x**4))(mt.tensor(2.0))
tensor(48.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from . import autograd
from .autograd import engine
from .autograd.functional import block, gradients, rows_of, twice, zeros_for_none
from .ir.node import MODE
from .nn.module import Module
from .nn.utils import stateless
from .tensor import Tensor

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "vjp",
    "vmap",
]

Function = Callable[..., Any]
Argnums = int | tuple[int, ...]


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """``tree`` with its leaves changed: what is in lists, tuples and dicts."""
    if isinstance(tree, dict):
        return type(tree)((key, _mapped(change, value)) for key, value in tree.items())
    if isinstance(tree, (list, tuple)):
        values = [_mapped(change, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return change(tree)


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(found.append, tree)
    return found


def _filled(tree: Any, values: Sequence[Any]) -> Any:
    """``tree`` with other leaves."""
    rest = iter(values)
    return _mapped(lambda _: next(rest), tree)


class _Level:
    """One differentiation: the tensors that it is by, and whether its results go on from others."""

    def __init__(self) -> None:
        self.outside = MODE.trace.grad_enabled
        self.inputs: list[Tensor] = []
        self._own: set[int] = set()

    def input(self, value: Any) -> Tensor:
        """What the function is given for ``value``."""
        if not isinstance(value, Tensor):
            raise ValueError(f"Thing passed to transform API must be Tensor, got {type(value)}")
        if value.requires_grad and self.outside:
            t = value.clone()
        else:
            t = value.detach().requires_grad_()
            self._own.add(id(t.node))
        self.inputs.append(t)
        return t

    def goes_on(self, tensors: Sequence[Any]) -> bool:
        """Whether something outside may differentiate by what these depend on."""
        if not self.outside:
            return False
        nodes = [t.node for t in tensors if t.requires_grad]
        return any(id(node) not in self._own for node in engine.leaves(nodes))

    def left(self, tree: Any) -> Any:
        """A result as it is outside."""

        def result(t: Any) -> Any:
            if not isinstance(t, Tensor):
                raise RuntimeError(f"Expected tensors, got unsupported type {type(t)}")
            return t if self.goes_on([t]) else t.detach()

        return _mapped(result, tree)


def _chosen(argnums: Argnums, count: int) -> tuple[int, ...]:
    """The places of the arguments to differentiate by."""
    if not isinstance(argnums, (int, tuple)):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")
    places = argnums if isinstance(argnums, tuple) else (argnums,)
    if not places:
        raise RuntimeError("argnums must be non-empty")
    for place in places:
        if not -count <= place < count:
            raise RuntimeError(f"Got argnum={place}, but only {count} positional inputs")
    places = tuple([place % count for place in places])
    if len(set(places)) < len(places):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    return places


def _started(level: _Level, args: tuple[Any, ...], argnums: Argnums) -> tuple[list[Any], Any]:
    """The arguments inside, and those of them that are differentiated by."""
    places, inner = _chosen(argnums, len(args)), list(args)
    for place in places:
        inner[place] = _mapped(level.input, args[place])
    by = tuple([inner[place] for place in places])
    return inner, by if isinstance(argnums, tuple) else by[0]


def _with_aux(function: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise RuntimeError(
            f"{function}: output of function f should be a tuple: (output, aux) if has_aux is True"
        )
    return result


def grad_and_value(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """A function that returns the gradient of ``func`` and its value.

    ``func`` returns a tensor of no dimensions, or with ``has_aux`` a pair of that and something
    else, which is returned beside the value.  ``argnums`` says by which arguments it is
    differentiated: the gradient is like that argument, or a tuple if it is a tuple.  Raises
    RuntimeError for other results, and for places of arguments that are not there.

    >>> import minitorch_tvm as mt
    >>> grad_and_value(lambda x: (x * x).sum())(mt.tensor([1.0, 3.0]))
    (tensor([2., 6.]), tensor(10.))
    """

    @functools.wraps(func)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        level = _Level()
        here = "grad_and_value(f)(*args)"
        with autograd.enable_grad():
            inner, by = _started(level, args, argnums)
            value, aux = _with_aux(here, func(*inner, **kwargs), has_aux)
            if not isinstance(value, Tensor):
                raise RuntimeError(
                    f"{here}: Expected f(*args) to return a Tensor, got {type(value)}"
                )
            if value.ndim:
                raise RuntimeError(
                    f"{here}: Expected f(*args) to return a scalar Tensor, got tensor with "
                    f"{value.ndim} dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
                )
            found = gradients((value,), tuple(level.inputs), None, level.goes_on([value]))
            gradient = _filled(by, zeros_for_none(found, level.inputs))
            value = level.left(value)
            return gradient, (value, level.left(aux)) if has_aux else value

    return differentiated


def grad(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """A function that returns the gradient of ``func``; arguments as of :func:`grad_and_value`.

    With ``has_aux`` it returns the gradient and what ``func`` returns beside its value.

    >>> import minitorch_tvm as mt
    >>> weights = {"w": mt.tensor([1.0, 2.0]), "b": mt.tensor(0.5)}
    >>> grad(lambda p: (p["w"] * 3).sum() + p["b"] ** 2)(weights)
    {'w': tensor([3., 3.]), 'b': tensor(1.)}
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        gradient, value = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return differentiated


def _tensors(function: str, tree: Any) -> tuple[Any, ...]:
    """The tensors that ``func`` has returned; RuntimeError for anything else."""
    found = _leaves(tree)
    for t in found:
        if not isinstance(t, Tensor):
            raise RuntimeError(
                f"{function}: expected f(*primals) to return only tensors, got unsupported type "
                f"{type(t)}"
            )
    return tuple(found)


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """``func(*primals)``, and a function of cotangents, which are like its result.

    That returns a tuple of the products of the cotangents with the Jacobian, one like each of the
    primals.  With ``has_aux``, ``func`` returns a pair, whose second element comes third here.

    >>> import minitorch_tvm as mt
    >>> value, pull = vjp(lambda x: x * x, mt.tensor([1.0, 3.0]))
    >>> pull(mt.tensor([1.0, 1.0]))
    (tensor([2., 6.]),)
    """
    level = _Level()
    here = "vjp(f, *primals)"
    with autograd.enable_grad():
        inner = _mapped(level.input, primals)
        result, aux = _with_aux(here, func(*inner), has_aux)
        outputs = _tensors(here, result)
        shown = level.left(result), level.left(aux) if has_aux else None

    def pull(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        """The products of ``cotangents`` with the Jacobian."""
        cts = _leaves(cotangents)
        if len(cts) != len(outputs):
            raise RuntimeError(
                f"Expected pytree structure of cotangents to be the same as pytree structure of "
                f"outputs to the function: {len(outputs)} tensors, but got {len(cts)}"
            )
        enabled = MODE.trace.grad_enabled
        if create_graph is None:
            create_graph = enabled and (
                level.goes_on(outputs) or any(ct.requires_grad for ct in cts)
            )
        with autograd.enable_grad():
            found = gradients(outputs, tuple(level.inputs), cts, create_graph)
            return _filled(primals, zeros_for_none(found, level.inputs))

    return (shown[0], pull, shown[1]) if has_aux else (shown[0], pull)


def jvp(
    func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> Any:
    """``func(*primals)``, and the product of its Jacobian with ``tangents``, like the primals.

    It is computed by differentiating twice in reverse, so what ``func`` does must have second
    derivatives.  With ``has_aux``, ``func`` returns a pair, whose second element comes third here;
    ``strict`` changes nothing.  Raises RuntimeError unless both are tuples of the same structure.

    >>> import minitorch_tvm as mt
    >>> jvp(mt.sin, (mt.tensor(0.0),), (mt.tensor(2.0),))
    (tensor(0.), tensor(2.))
    """
    here = "jvp(f, primals, tangents)"
    if not isinstance(primals, tuple):
        raise RuntimeError(
            f"{here}: Expected primals to be a tuple. E.g. it should be valid to call f(*primals)."
        )
    directions = tuple(_leaves(tangents))
    if _filled(primals, [0] * len(_leaves(primals))) != _filled(tangents, [0] * len(directions)):
        raise RuntimeError(
            f"{here}: Expected primals and tangents to have the same python structure. For "
            "example, if primals is a tuple of 3 tensors, tangents also must be."
        )
    level = _Level()
    with autograd.enable_grad():
        inner = _mapped(level.input, primals)
        for t, direction in zip(level.inputs, directions, strict=True):
            if t.shape != direction.shape:
                raise RuntimeError(
                    "Trying to set a forward gradient that has a different size than that of the "
                    f"original Tensor, this is not supported. Tensor is of size {[*t.shape]} "
                    f"while the given forward gradient is of size {[*direction.shape]}."
                )
        result, aux = _with_aux(here, func(*inner), has_aux)
        outputs = _tensors(here, result)
        cts = tuple([y.new_zeros(y.shape).requires_grad_() for y in outputs])
        again = level.outside and any(t.requires_grad for t in directions)
        again = again or level.goes_on(outputs)
        back = gradients(outputs, tuple(level.inputs), cts, True)
        found = zeros_for_none(twice(back, cts, directions, again), outputs)
        product = _filled(result, found)
        value = level.left(result)
        return (value, product, level.left(aux)) if has_aux else (value, product)


def jacrev(
    func: Function, argnums: Argnums = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Function:
    """A function that returns the Jacobian of ``func``: for each of its results, by each argument.

    That of a tensor by a tensor is a tensor of shape ``(*result.shape, *argument.shape)``.  It is
    computed row by row; ``chunk_size`` changes nothing.  Other arguments as of
    :func:`grad_and_value`.

    >>> import minitorch_tvm as mt
    >>> jacrev(lambda x: x * x)(mt.tensor([1.0, 3.0]))
    tensor([[2., 0.],
            [0., 6.]])
    """

    @functools.wraps(func)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        level = _Level()
        with autograd.enable_grad():
            inner, by = _started(level, args, argnums)
            result, aux = _with_aux("jacrev(f)(*args)", func(*inner, **kwargs), has_aux)
            _tensors("vjp(f, *primals)", result)

            def derivatives(y: Tensor) -> Any:
                rows = rows_of(y, tuple(level.inputs), level.goes_on([y]))
                return _filled(by, [block(y, x, rows, k) for k, x in enumerate(level.inputs)])

            jacobian = _mapped(derivatives, result)
            return (jacobian, level.left(aux)) if has_aux else jacobian

    return differentiated


def jacfwd(
    func: Function, argnums: Argnums = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Function:
    """As :func:`jacrev`, whose result it has: there is no forward mode, and nothing at random."""
    return jacrev(func, argnums, has_aux=has_aux)


def hessian(func: Function, argnums: Argnums = 0) -> Function:
    """A function that returns the second derivatives of ``func``: :func:`jacrev` of itself.

    >>> import minitorch_tvm as mt
    >>> hessian(lambda x: (x**3).sum())(mt.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacrev(jacrev(func, argnums), argnums)


def vmap(func: Function, *args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError, which says what to do instead."""
    raise NotImplementedError(
        "vmap() is not there: write the function for a batch (operators, matmul, einsum and layers "
        "take further dimensions in front), or stack([f(x) for x in xs])"
    )


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """``module(*args, **kwargs)`` with tensors in place of its parameters and buffers.

    As :func:`.nn.utils.stateless.functional_call`, but they may be in several dicts.  Raises
    ValueError for a name that is in two of them.

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.Linear(2, 1)
    >>> x, weights = mt.tensor([[1.0, 2.0]]), layer.state_dict()
    >>> grad(lambda w: functional_call(layer, w, x).sum())(weights)["weight"]
    tensor([[1., 2.]])
    """
    given: dict[str, Tensor] = {}
    if isinstance(parameter_and_buffer_dicts, Mapping):
        given.update(parameter_and_buffer_dicts)
    elif isinstance(parameter_and_buffer_dicts, (list, tuple)):
        for part in parameter_and_buffer_dicts:
            again = [name for name in part if name in given]
            if again:
                raise ValueError(
                    f"{again} appeared in multiple dictionaries; behavior of functional call is "
                    "ambiguous"
                )
            given.update(part)
    else:
        raise ValueError(
            "Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got "
            f"{type(parameter_and_buffer_dicts)}"
        )
    return stateless.functional_call(
        module, given, args, kwargs, tie_weights=tie_weights, strict=strict
    )
