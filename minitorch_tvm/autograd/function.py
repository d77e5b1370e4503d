"""Functions whose gradient users define: :class:`Function`.

A call is two kinds of nodes.  One stands for the call itself: it is never computed, has the
arguments as inputs, and knows whom to ask for their cotangents.  Each result is a value as any
other, whose ``history`` is the call.  See docs/decisions/40-functions-of-users.md.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ..core import errors
from ..core.dtype import DType, float32
from ..core.record import record
from ..core.shape import Shape
from ..ir.node import MODE, Node, apply, grad_enabled, new_sequence
from ..ir.op import Kind, Op, Spec, intern
from ..ir.te import TE, Tensor
from ..ops import build
from ..ops.composite import Expandable

TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


@record(eq=False)
class Called(Op, kind=Kind.OPAQUE):
    """Stands for a call: (what is saved, arguments) -> nothing that anybody computes."""

    saved: int

    def infer(self, *inputs: Spec) -> Spec:
        return Spec((), float32)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} reached the compiler")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        raise AssertionError(f"{self} reached the executor")


@record(eq=False)
class Returned(Expandable, kind=Kind.COMPOSITE):
    """A result of a call: the value that the function returned."""

    title: str
    index: int

    @property
    def name(self) -> str:
        return self.title

    @property
    def grad_name(self) -> str:
        return f"{self.title}Backward"

    def infer(self, *inputs: Spec) -> Spec:
        return inputs[0]

    def expand(self, *xs: Node) -> Node:
        return apply(build.CLONE, *xs)


@functools.lru_cache(maxsize=1024)
def _called(saved: int) -> Called:
    return intern(Called(saved))


@functools.lru_cache(maxsize=1024)
def _returned(title: str, index: int) -> Returned:
    return intern(Returned(title, index))


def _result(value: Node, title: str, index: int, call: Node) -> Node:
    """``value`` with a gradient that is the concern of ``call``."""
    with grad_enabled(False):
        node = apply(_returned(title, index), value)
    node.history = call
    node.mark(requires_grad=True, grad_leaf=False)
    return node


class _Output(NamedTuple):
    """A result that was saved.  It refers to the call, which must not hold it."""

    number: int
    value: Node
    node: weakref.ref[Node]


class FunctionCtx:
    """What ``forward`` leaves for ``backward``: attributes of any name, and saved tensors."""

    to_save: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()
    """For each argument of ``forward``, whether it is a tensor that requires grad."""
    _dirty: tuple[Any, ...] = ()
    _constant: tuple[Any, ...] = ()
    _materializes = True
    _saved: tuple[Node | _Output | None, ...] | None = ()
    _wrap: Callable[[Node], Any]
    _call: weakref.ref[Node] | None = None
    _title = ""

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep arguments, results or other tensors (or None) for :attr:`saved_tensors`.

        They are kept as they are when ``forward`` is over, whatever is written to them later.
        Raises TypeError for anything else.
        """
        for place, t in enumerate(tensors):
            if t is not None and not hasattr(t, "node"):
                raise TypeError(
                    f"save_for_backward can only save variables, but argument {place} is of type "
                    f"{type(t).__name__}"
                )
        self.to_save = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved, with its history; RuntimeError once ``backward`` has passed.

        Empty while ``forward`` runs, as in PyTorch.
        """
        if self._saved is None:
            raise RuntimeError(TWICE)
        return tuple(self._shown(entry) for entry in self._saved)

    def _shown(self, entry: Node | _Output | None) -> Any:
        if not isinstance(entry, _Output):
            return None if entry is None else self._wrap(entry)
        node, call = entry.node(), None if self._call is None else self._call()
        if node is None:
            node = entry.value
            if call is not None:
                node = _result(node, self._title, entry.number, call)
        return self._wrap(node)

    def mark_dirty(self, *args: Any) -> None:
        """Name the arguments that ``forward`` has written to; it must return them."""
        self._dirty = args

    def mark_non_differentiable(self, *args: Any) -> None:
        """Name results that require no grad; ``backward`` is given zeros for them."""
        self._constant = args

    def set_materialize_grads(self, value: bool) -> None:
        """Whether ``backward`` is given zeros (the default) or None for results without one."""
        self._materializes = value


class _Call:
    """What gradients need of a call: its arguments and results, and who answers."""

    def __init__(
        self,
        backward: Callable[..., Any],
        ctx: FunctionCtx,
        arguments: Sequence[Spec | None],
        results: Sequence[tuple[Shape, DType] | None],
        saved: int,
    ) -> None:
        """``arguments`` are None where they are no tensors, and so are ``results``."""
        self._backward, self._ctx = backward, ctx
        self._arguments, self._results = arguments, results
        self.saved = saved
        self.title = f"{ctx._title}Backward"

    def release(self) -> None:
        self._ctx._saved = None

    def cotangents(self, cts: Mapping[int, Node]) -> list[Node | None]:
        ctx = self._ctx
        given = []
        for index, result in enumerate(self._results):
            ct = cts.get(index)
            if ct is None and result is not None and ctx._materializes:
                ct = build.full(result[0], 0, result[1])
            given.append(None if ct is None else ctx._wrap(ct))
        answer = self._backward(ctx, *given)
        grads = answer if isinstance(answer, tuple) else (answer,)
        wanted, title = len(self._arguments), self.title
        if len(grads) < wanted or any(g is not None for g in grads[wanted:]):
            raise RuntimeError(
                f"function {title} returned an incorrect number of gradients (expected {wanted}, "
                f"got {len(grads)})"
            )
        found: list[Node | None] = [None] * self.saved
        tensors = 0
        for place, (spec, g) in enumerate(zip(self._arguments, grads, strict=False)):
            if g is not None and not hasattr(g, "node"):
                raise RuntimeError(f"expected Variable or None (got {type(g).__name__})")
            if spec is None and g is not None:
                raise RuntimeError(
                    f"function {title} returned a gradient different than None at position "
                    f"{place + 1}, but the corresponding forward input was not a Variable"
                )
            if ctx.needs_input_grad[place]:
                assert spec is not None
                found.append(None if g is None else _fitting(g.node, spec, title, tensors))
            tensors += spec is not None
        return found


def _fitting(ct: Node, spec: Spec, title: str, index: int) -> Node:
    """A gradient that the user returned, as one of a value of that shape and dtype."""
    lead = len(ct.shape) - len(spec.shape)
    if lead < 0 or any(n not in (1, m) for n, m in zip(spec.shape, ct.shape[lead:], strict=True)):
        raise RuntimeError(
            f"Function {title} returned an invalid gradient at index {index} - got "
            f"{list(ct.shape)} but expected shape compatible with {list(spec.shape)}"
        )
    if ct.requires_grad and (ct.grad_leaf or not MODE.trace.grad_enabled):
        ct = apply(build.CLONE, ct)  # a parameter, say, which must not become a .grad itself
    return build.cast(build.unbroadcast(ct, spec.shape), spec.dtype)


class Function:
    """Base class of functions whose gradient is not that of the operations that they consist of.

    A subclass defines ``forward(ctx, *args)`` and ``backward(ctx, *grads)`` as static methods, and
    is called by :meth:`apply`.  ``forward`` is run without recording gradients; ``backward`` gets
    one gradient for each result of ``forward``, and returns one for each argument: a tensor of the
    argument's shape (a broadcast one is summed, another dtype converted), or None.  Where it
    consists of differentiable operations, so is the gradient.  ``forward(*args)`` may also come
    without ``ctx``, which ``setup_context(ctx, inputs, output)`` then prepares.

    >>> import minitorch_tvm as mt
    >>> class Clipped(mt.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x, limit):
    ...         ctx.save_for_backward(x)
    ...         ctx.limit = limit
    ...         return x.clamp(-limit, limit)
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         (x,) = ctx.saved_tensors
    ...         return grad * (x.abs() < 2 * ctx.limit), None
    >>> x = mt.tensor([0.5, 1.5, 2.5], requires_grad=True)
    >>> y = Clipped.apply(x, 1.0)
    >>> y
    tensor([0.5000, 1.0000, 1.0000], grad_fn=<ClippedBackward>)
    >>> y.sum().backward()
    >>> x.grad
    tensor([1., 1., 0.])

    Tensors in lists and dicts, as arguments or results, are no tensors to it, as in PyTorch.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        errors.warn(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all "
            "static, so you should invoke them on the class itself. Instantiating an autograd "
            "function will raise an error in a future version of PyTorch.",
            DeprecationWarning,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. Please use "
            "new-style autograd function with static forward method. (Example: "
            "https://pytorch.org/docs/stable/autograd.html#torch.autograd.Function)"
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """The results: a tensor, or a tuple of them and of other values."""
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Save what ``backward`` needs, behind a ``forward`` that has no ``ctx``."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The gradients of the arguments of ``forward``, from those of its results."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD."
        )

    vjp = backward

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the function; what it returns is connected with what it was given."""
        separate = cls.setup_context is not Function.setup_context
        if kwargs or separate:
            args = _bound(cls.forward, separate, args, kwargs)
        ctx = FunctionCtx()
        tensors = [a if hasattr(a, "node") else None for a in args]
        nodes = [None if t is None else t.node for t in tensors]  # before it writes to them
        needs = ctx.needs_input_grad = tuple([n is not None and n.requires_grad for n in nodes])
        start = new_sequence()
        before = MODE.trace.grad_enabled
        with grad_enabled(False):
            if separate:
                outputs = cls.forward(*args)
                cls.setup_context(ctx, args, outputs)
            else:
                outputs = cls.forward(ctx, *args)
        results = outputs if isinstance(outputs, tuple) else (outputs,)
        _check_dirty(ctx, tensors, nodes, results, before)
        made = _connected(cls, ctx, tensors, nodes, results, start, before and any(needs))
        return tuple(made) if isinstance(outputs, tuple) else made[0]


def _bound(
    forward: Callable[..., Any], separate: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """All arguments by their places."""
    from inspect import signature  # few calls need it

    given = args if separate else (None, *args)
    bound = signature(forward).bind(*given, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(f"forward() has arguments by name only: {', '.join(bound.kwargs)}")
    return bound.args if separate else bound.args[1:]


def _is_among(t: Any, those: Sequence[Any]) -> bool:
    return any(t is other for other in those)


def _check_dirty(
    ctx: FunctionCtx,
    tensors: Sequence[Any],
    nodes: Sequence[Node | None],
    results: tuple[Any, ...],
    enabled: bool,
) -> None:
    """Raise RuntimeError where what was written to cannot have the history of the call."""
    for t in ctx._dirty:
        if not _is_among(t, tensors):
            errors.warn(
                "ctx.mark_dirty() received a tensor that was not an input. Only input Tensors that "
                "have been mutated should be passed to ctx.mark_dirty()."
            )
        elif not _is_among(t, results):
            raise RuntimeError(
                "Some elements marked as dirty during the forward method were not returned as "
                "output. The inputs that are modified inplace must all be outputs of the Function."
            )
        elif enabled and any(
            n and n.grad_leaf for n, a in zip(nodes, tensors, strict=True) if a is t
        ):
            raise RuntimeError(
                "a leaf Variable that requires grad has been used in an in-place operation."
            )


def _connected(
    cls: type[Function],
    ctx: FunctionCtx,
    tensors: Sequence[Any],
    nodes: Sequence[Node | None],
    results: tuple[Any, ...],
    start: int,
    recorded: bool,
) -> list[Any]:
    """The results as the caller gets them: with their history, if the call is ``recorded``.

    What has been computed since ``start`` is the function's own.
    """
    differentiable = [
        recorded
        and hasattr(r, "node")
        and r.dtype.is_floating_point
        and not _is_among(r, ctx._constant)
        for r in results
    ]
    written = [t for t in ctx._dirty if _is_among(t, tensors)]
    number: dict[int, int] = {}
    for index, r in enumerate(results):
        if differentiable[index] and (_is_among(r, written) or not _is_among(r, tensors)):
            number.setdefault(id(r), index)
    kept = _kept(ctx, dict(zip(map(id, tensors), nodes, strict=True)), number)
    ctx._title = cls.__name__
    first = next((t for t in (*tensors, *results) if hasattr(t, "node")), None)
    if first is None:
        return list(results)
    ctx._wrap = first._wrap
    call = None
    if recorded:
        saved = list({id(n): n for n in kept if isinstance(n, Node)}.values())
        edges = [n for n in nodes if n is not None and n.requires_grad]
        call = apply(_called(len(saved)), *saved, *edges)
        ctx._call = weakref.ref(call)
        call.call = _Call(
            cls.backward if cls.vjp is Function.vjp else cls.vjp,
            ctx,
            [None if n is None else n.spec for n in nodes],
            [(r._node.shape, r._node.dtype) if hasattr(r, "node") else None for r in results],
            len(saved),
        )
    values: list[Any] = [r.node if hasattr(r, "node") else None for r in results]
    made: list[Any] = []
    for index, (r, value) in enumerate(zip(results, values, strict=True)):
        if value is None:
            made.append(r)
            continue
        given = None
        if call is not None and differentiable[index]:
            given = _result(value, ctx._title, index, call)
        if _is_among(r, written):
            made.append(r if given is None or _is_among(r, made) else r._assign(given, "apply"))
            continue
        # What is not of the function's own making stays as it is, and shares its memory.
        own = r._base is None and value.sequence > start and not value.requires_grad
        handed = r if own and not _is_among(r, (*tensors, *made)) else r.detach()
        if given is not None:
            handed._adopt(given)
        made.append(handed)
    ctx._saved = tuple(
        [
            _Output(entry, values[entry], weakref.ref(made[entry]._node))
            if isinstance(entry, int)
            else entry
            for entry in kept
        ]
    )
    ctx.to_save = ()
    return made


def _kept(
    ctx: FunctionCtx, arguments: Mapping[int, Node | None], number: Mapping[int, int]
) -> list[Node | int | None]:
    """What is saved: values as they are now, those of arguments as they were, and the numbers of
    results, which lead to the call."""
    kept: list[Node | int | None] = []
    for t in ctx.to_save:
        if t is None or id(t) in number:
            kept.append(None if t is None else number[id(t)])
        else:
            kept.append(arguments.get(id(t)) or t.node)
    return kept


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a ``backward`` that does not consist of differentiable operations.

    It is run without recording gradients; differentiating what it returns raises RuntimeError.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        with grad_enabled(False):
            outputs = backward(ctx, *grads)
        sources = [g for g in grads if g is not None and g.requires_grad]
        if not MODE.trace.grad_enabled or not sources:
            return outputs
        if isinstance(outputs, tuple):
            return _Final.apply(len(outputs), *outputs, *sources)
        return _Final.apply(1, outputs, *sources)[0]

    return wrapped


class _Final(Function):
    """The first of the arguments, which cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> Any:
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )
