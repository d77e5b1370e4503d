"""Reverse-mode differentiation by recording more of the same graph.

``backward`` walks from the loss to the leaves and calls each op's ``vjp``, which records ordinary
nodes; derivatives of derivatives therefore need no further rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from .. import lazy
from ..core import config, errors
from ..core.arguments import wrong_kind
from ..core.record import record
from ..ir.node import MODE, Node, apply, grad_enabled, leaf
from ..ir.op import Kind, Op, Spec, intern
from ..ir.passed import without_values
from ..ir.tape import remember, tape_of
from ..ops import build
from ..ops.composite import Expandable, expanding
from .anomaly import detects_nan, refuse_nan
from .function import TWICE, Returned

F = TypeVar("F", bound=Callable[..., Any])


class _GradMode(grad_enabled):
    """Context manager and decorator that sets whether operations record gradients."""

    def __call__(self, function: F) -> F:
        enabled = self._enabled

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _GradMode(enabled):
                return function(*args, **kwargs)

        return cast(F, wrapped)


class no_grad(_GradMode):
    """Operations inside record no history; also a decorator.

    >>> with no_grad():
    ...     is_grad_enabled()
    False
    """

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_GradMode):
    """Undo an enclosing :class:`no_grad`; also a decorator."""

    def __init__(self) -> None:
        super().__init__(True)


class inference_mode(_GradMode):
    """As :class:`no_grad` (``mode=False`` leaves gradients on)."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode)


class set_grad_enabled(_GradMode):
    """Switch recording of gradients on or off at once; as a context manager, for a block."""

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise wrong_kind("set_grad_enabled", "enabled", 1, "bool", mode)
        super().__init__(mode)
        self._outer = MODE.trace.grad_enabled
        MODE.trace.grad_enabled = mode

    def __enter__(self) -> None:
        self._before.append(self._outer)
        MODE.trace.grad_enabled = self._enabled

    def __call__(self, function: F) -> F:
        MODE.trace.grad_enabled = self._outer  # as a decorator it acts inside the function only
        return super().__call__(function)


def is_grad_enabled() -> bool:
    """True if operations record history in this thread."""
    return MODE.trace.grad_enabled


def _history(roots: Iterable[Node]) -> list[Node]:
    """Nodes on autograd paths to ``roots``, latest recorded first."""
    found: dict[int, Node] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        if node.history is not None:
            stack.append(node.history)
        elif not node.grad_leaf and (node.again or not node.freed):
            stack.extend(x for x in node.inputs if x.requires_grad)
    return sorted(found.values(), key=lambda n: n.sequence, reverse=True)


def leaves(roots: Iterable[Node]) -> list[Node]:
    """The leaves that a backward pass from ``roots`` would come to."""
    return [node for node in _history(roots) if node.grad_leaf]


_READING: dict[tuple[int, ...], bool] = {}
_MOST_READING = 1 << 16


def _reads(node: Node) -> bool:
    """Whether the derivative of what made ``node`` reads more than the shapes of values."""
    key = (node.op.uid, *[2 * x.spec_id + x.requires_grad for x in node.inputs])
    known = _READING.get(key)
    if known is None:
        if len(_READING) >= _MOST_READING:
            _READING.clear()
        known = _READING[key] = _is_read(node)
    return known


def _is_read(node: Node) -> bool:
    values = [leaf(None, x.shape, x.dtype, x.spec_id) for x in (node, *node.inputs)]
    y, *xs = values
    for stand_in, x in zip(xs, node.inputs, strict=True):
        stand_in.requires_grad = x.requires_grad
    ct = leaf(None, y.shape, y.dtype, y.spec_id)
    with expanding(), grad_enabled(False):
        stack = [g for g in _cotangents(node.op, ct, y, xs, at_once=True) if g is not None]
    seen, saved = set(map(id, stack)), set(map(id, values))
    while stack:
        new = [x for x in stack.pop().inputs if id(x) not in seen]
        seen.update(map(id, new))
        stack += new
    return not seen.isdisjoint(saved)


def _cotangents(
    op: Op, ct: Node, y: Node, inputs: Sequence[Node], at_once: bool
) -> Sequence[Node | None]:
    """Those of an op's inputs; of a composite one node each, unless ``at_once``."""
    if op.kind is not Kind.COMPOSITE or type(op).vjp is not Op.vjp:
        return op.vjp(build, ct, y, *inputs)
    if not at_once:
        return _later(op, ct, tuple(inputs))
    return [
        _cotangent(op, i).expand(ct, *inputs) if x.requires_grad else None
        for i, x in enumerate(inputs)
    ]


def _passable(history: Sequence[Node]) -> set[int]:
    """Ids of those of a history that may be passed again: nothing that leads to them is read.

    >>> import minitorch_tvm as mt
    >>> x = mt.ones(3, requires_grad=True)
    >>> first, rest = x[0], x[1:]
    >>> [(first * 2).backward() for _ in range(2)], (rest * rest).sum().backward(), x.grad
    ([None, None], None, tensor([4., 2., 2.]))
    """
    found: set[int] = set()
    for node in reversed(history):  # inputs first
        if node.grad_leaf:
            found.add(id(node))
            continue
        past = node.history
        for x in node.inputs if past is None else (past,):
            if x.requires_grad and id(x) not in found:
                break
        else:  # which few come to
            gone = node.call is not None or (node.freed and not node.again)
            if not gone and (past is not None or not _reads(node)):
                found.add(id(node))
    return found


def _leading(history: Sequence[Node], wanted: Callable[[Node], bool]) -> set[int]:
    """Ids of those of a history from which cotangents go on to a wanted value."""
    found: set[int] = set()
    for node in reversed(history):  # inputs first
        before = node.inputs if node.history is None else (node.history,)
        if wanted(node) or any(id(x) in found for x in before):
            found.add(id(node))
    return found


def cotangents(
    roots: Sequence[tuple[Node, Node]],
    wanted: Callable[[Node], bool],
    retain_graph: bool,
    create_graph: bool,
    unhooked: dict[int, Node] | None = None,
    checks: bool = False,
) -> dict[int, tuple[Node, Node]]:
    """Propagate (node, cotangent) pairs; returns id -> (node, cotangent) of the wanted nodes.

    ``unhooked`` gets what hooks of results were given.  With ``checks`` each is evaluated.
    """
    for node, _ in roots:
        if not node.requires_grad:
            raise RuntimeError(
                "element 0 of tensors does not require grad and does not have a grad_fn"
            )
    found: dict[int, tuple[Node, Node]] = {}
    flowing: dict[int, Node] = {}
    returned: dict[int, dict[int, Node]] = {}  # to calls of users' functions, by result
    empty: set[int] = set()  # whose readers gave no cotangent: users' functions are asked even so
    leading: set[int] | None = None
    place_before, errors.OVERRIDE.place = errors.OVERRIDE.place, errors.user_place()
    grad_before, MODE.trace.grad_enabled = MODE.trace.grad_enabled, create_graph
    try:
        for node, ct in roots:
            _accumulate(flowing, node, ct)
        history = _history(n for n, _ in roots)
        passable = set() if retain_graph else _passable(history)
        for node in history:
            if id(node) not in flowing:
                if id(node) in empty:
                    _tell_of_none(node)
                if id(node) in empty and node.call is None and not node.grad_leaf:
                    before = node.inputs if node.history is None else (node.history,)
                    empty.update(id(x) for x in before if x.requires_grad)
                if id(node) not in empty or node.call is None:
                    continue
                flowing[id(node)] = node  # of a call only whether there is something matters
            ct = flowing.pop(id(node))
            if unhooked is not None and node.hooks and not node.grad_leaf:
                unhooked[id(node)] = ct
            for hook in tuple(node.hooks or ()):
                replaced = hook(ct)
                if replaced is not None:
                    ct = replaced
            if wanted(node):
                found[id(node)] = (node, ct)
            if node.grad_leaf:
                continue
            if node.freed and not node.again:
                raise RuntimeError(TWICE)
            inputs = node.inputs
            grads: Sequence[Node | None]
            if isinstance(node.op, Returned) and node.history is not None:
                call, inputs, grads = node.history, (), ()
                cts, index = returned.setdefault(id(call), {}), node.op.index
                cts[index] = build.add(cts[index], ct) if index in cts else ct
                flowing[id(call)] = ct  # its turn comes behind that of all of its results
            elif node.history is not None:
                inputs, grads = (node.history,), (ct,)
            elif node.call is not None:
                if leading is None:
                    leading = _leading(history, wanted)
                if id(node) not in leading:  # PyTorch does not ask it, either
                    continue
                grads = node.call.cotangents(returned.get(id(node), {}))
            else:
                grads = _cotangents(node.op, ct, node, inputs, at_once=node.again)
            if checks and node.history is None:
                refuse_nan(node, grads)
            for x, g in zip(inputs, grads, strict=True):
                if x.requires_grad and g is not None:
                    _accumulate(flowing, x, g)
                elif x.requires_grad:
                    empty.add(id(x))
            if not retain_graph:
                node.freed, node.again = True, id(node) in passable
                if not node.again:
                    node.history = None
                if node.call is not None:
                    node.call.release()
                if not node.pending:
                    kept = node.again and node.history is None
                    node.inputs = without_values(node) if kept else ()
    except BaseException:
        MODE.trace.whole = False  # part of the graph may be used up
        raise
    finally:
        errors.OVERRIDE.place = place_before
        MODE.trace.grad_enabled = grad_before
    return found


def _tell_of_none(node: Node) -> None:
    """Call the hooks of a value that gets no gradient, as a user's function has returned None."""
    for hook in tuple(node.hooks or ()):
        if hook(None) is not None:
            raise RuntimeError("can't replace a None gradient with a non-None value")


def _used_up(roots: Sequence[tuple[Node, Node]]) -> None:
    for node, _ in roots:
        MODE.trace.used_up(node)


@record(eq=False)
class Cotangent(Expandable, kind=Kind.COMPOSITE):
    """The cotangent of one input of a composite, from that of its result: (ct, *inputs) -> ct_i.

    It is a composite itself, so derivatives of derivatives need no further rule.
    """

    of: Op
    index: int

    @property
    def name(self) -> str:
        return f"{self.of.name}Backward"

    def infer(self, *inputs: Spec) -> Spec:
        return inputs[1 + self.index]

    def expand(self, *xs: Node) -> Node:
        ct, *inputs = xs
        of = cast(Expandable, self.of)
        known = of.cotangent(self.index, ct, *inputs)
        if known is not None:
            return known
        create_graph = MODE.trace.grad_enabled
        with grad_enabled(True):
            # Stand-ins at which the walk ends; they vanish when the program is simplified.
            ends = [apply(build.CLONE, x) for x in inputs]
            for end in ends:
                flows = end.dtype.is_floating_point
                end.mark(requires_grad=flows, grad_leaf=flows)
            wanted = ends[self.index]
            result = of.expand(*ends)
            found: dict[int, tuple[Node, Node]] = {}
            if result.requires_grad:
                found = cotangents([(result, ct)], lambda n: n is wanted, True, create_graph)
            for end, x in zip(ends, inputs, strict=True):
                end.mark(requires_grad=x.requires_grad, grad_leaf=False)
        if id(wanted) not in found:
            return build.full(wanted.shape, 0.0, wanted.dtype)
        return found[id(wanted)][1]


@functools.lru_cache(maxsize=4096)
def _cotangent(of: Op, index: int) -> Cotangent:
    return intern(Cotangent(of, index))


def _later(op: Op, ct: Node, inputs: tuple[Node, ...]) -> tuple[Node | None, ...]:
    """Cotangents of a composite's inputs, as one node each."""
    return tuple(
        apply(_cotangent(op, i), ct, *inputs) if x.requires_grad else None
        for i, x in enumerate(inputs)
    )


def _accumulate(flowing: dict[int, Node], node: Node, ct: Node) -> None:
    before = flowing.get(id(node))
    flowing[id(node)] = ct if before is None else build.add(before, ct)


def _initial(outputs: Sequence[Any], given: Sequence[Any] | None) -> list[tuple[Node, Node]]:
    """Pair each output with its cotangent (ones for a scalar)."""
    if given is None:
        given = [None] * len(outputs)
    if len(given) != len(outputs):
        raise RuntimeError(
            f"got {len(outputs)} tensors and {len(given)} gradients; their numbers must match"
        )
    pairs = []
    for number, (t, g) in enumerate(zip(outputs, given, strict=True)):
        node = t.node
        if not node.requires_grad:
            raise RuntimeError(
                f"element {number} of tensors does not require grad and does not have a grad_fn"
            )
        if g is None:
            if t.numel() != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            ct = build.full(node.shape, 1.0, node.dtype)
        elif not hasattr(g, "node"):
            raise TypeError(f"gradients can be either Tensors or None, but got {type(g).__name__}")
        else:
            ct = g.node
            if ct.shape != node.shape:
                raise RuntimeError(
                    f"Mismatch in shape: grad_output[{number}] has a shape of {g.shape} and "
                    f"output[{number}] has a shape of {t.shape}."
                )
            ct = build.cast(ct, node.dtype)
        pairs.append((node, ct))
    return pairs


class Afterwards:
    """A hook that is called when a leaf's ``.grad`` is there; it changes no gradient on its way."""

    def __init__(self, hook: Callable[[Any], None]) -> None:
        self._hook = hook

    def __call__(self, ct: Node | None) -> None:
        return None

    def done(self, leaf: Any) -> None:
        """Tell it."""
        answer = self._hook(leaf)
        if hasattr(answer, "node"):
            raise RuntimeError("Tensor post accumulate grad hooks should return None.")
        if answer is not None:
            raise TypeError(f"expected Variable, but hook returned '{type(answer).__name__}'")


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of ``tensors`` with respect to the leaves to their ``.grad``.

    ``tensors`` and ``grad_tensors`` are tensors or sequences of them; the latter may be left out
    for scalars.  With ``inputs``, only those tensors' ``.grad`` change.  Raises RuntimeError in
    PyTorch's words when a tensor has no history or its graph was used already.
    """
    outputs = as_list(tensors)
    given = chosen = None
    if grad_tensors is not None:
        given = as_list(grad_tensors)
    if inputs is not None:
        leaves = as_list(inputs)
        if not leaves:
            raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
        chosen = _among(leaves)
    if lazy.doubtful():
        _require_sound(outputs, given)
    keep = create_graph if retain_graph is None else retain_graph
    trace = MODE.trace
    call: tuple[object, ...] = ()
    plain = given is None and chosen is None and not create_graph and len(outputs) == 1
    if trace.whole and plain and not config.CONFIG.anomaly:
        root: Node = outputs[0].node  # which may record what it shows
        call = "backward", root.at - trace.base, keep
        known = tape_of(trace.prefix, call)
        if known is not None and known.play(trace, root, keep):
            return
    start, base, count = trace.prefix, trace.base, len(trace.values)

    def wanted(node: Node) -> bool:
        if chosen is not None:
            return chosen(node) is not None
        return node.owner is not None

    pairs = _initial(outputs, given)
    history = _history([pairs[0][0]]) if call else []
    found = cotangents(pairs, wanted, keep, create_graph, None, detects_nan())
    if trace.base == base:  # no hook has evaluated
        trace.derived += len(trace.values) - count
    if call:
        remember(trace, start, count, history, call, list(found.values()))
    if not keep:
        _used_up(pairs)
    for node, ct in found.values():
        owner: Any = chosen(node) if chosen is not None else node.owner and node.owner()
        if owner is not None:
            owner._accumulate_grad(ct)
            for hook in tuple(node.hooks or ()):
                if isinstance(hook, Afterwards):
                    hook.done(owner)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """Gradients of ``outputs`` with respect to ``inputs``, each a tensor or several, as a tuple.

    ``.grad`` is untouched, but of results that retain theirs.  Hooks of a result among ``inputs``
    change what leads on from it, not its gradient here.
    With ``create_graph`` the results can be differentiated again.  An input that the outputs do
    not depend on gives None if ``allow_unused``, zeros if ``materialize_grads``, else RuntimeError.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor(3.0, requires_grad=True)
    >>> (g,) = mt.autograd.grad(x * x, x, create_graph=True)
    >>> mt.autograd.grad(g, x)[0].item()
    2.0
    """
    if not only_inputs:
        raise ValueError("only_inputs=False is not supported")
    if is_grads_batched:
        raise ValueError("is_grads_batched=True is not supported")
    sources, roots = as_list(inputs), as_list(outputs)
    _require_tensors(sources, roots)
    given = None if grad_outputs is None else as_list(grad_outputs)
    source = _among(sources)
    if lazy.doubtful():
        _require_sound(roots, given)
    keys = [id(source(t.node.origin)) for t in sources]
    keep = create_graph if retain_graph is None else retain_graph
    call = _call(sources, roots, given, keep, create_graph)
    trace = MODE.trace
    start, base, count = trace.prefix, trace.base, len(trace.values)
    known = tape_of(start, call) if call else None
    if known is not None:
        again = known.gradients(trace, [t.node for t in roots], source, keep)
        if again is not None:
            return tuple([t._wrap(ct) for t, ct in zip(sources, again, strict=True)])
    pairs = _initial(roots, given)
    for t in sources:
        if not t.node.requires_grad:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
    history = _history([node for node, _ in pairs]) if call else []
    found: dict[int, Node] = {}

    def wanted(node: Node) -> bool:
        return source(node) is not None or (node.owner is not None and not node.grad_leaf)

    unhooked: dict[int, Node] = {}
    ends = cotangents(pairs, wanted, keep, create_graph, unhooked, detects_nan())
    for node, ct in ends.values():
        retaining: Any = None if node.owner is None or node.grad_leaf else node.owner()
        if retaining is not None:
            retaining._accumulate_grad(ct)
        if source(node) is None:
            continue
        ct = unhooked.get(id(node), ct)
        key = id(source(node))
        if key in found:
            with set_grad_enabled(create_graph):
                ct = build.add(found[key], ct)
        found[key] = ct
    if call and trace.base == base and {*ends} == {id(t.node) for t in sources}:
        remember(trace, start, count, history, call, [ends[id(t.node)] for t in sources])
    if not keep:
        _used_up(pairs)
    results = []
    for t, own in zip(sources, keys, strict=True):
        entry = found.get(own)
        if entry is not None:
            results.append(t._wrap(entry))
        elif materialize_grads:
            results.append(t._wrap(build.full(t.node.shape, 0.0, t.node.dtype)))
        elif allow_unused:
            results.append(None)
        else:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
    return tuple(results)


def _call(
    sources: Sequence[Any],
    roots: Sequence[Any],
    given: Sequence[Any] | None,
    *options: bool,
) -> tuple[object, ...]:
    """Equal for calls of :func:`grad` that record the same behind equal recordings; empty if that
    cannot be told."""
    trace = MODE.trace
    tensors = [*sources, *roots, *(given or ())]
    if not trace.whole or config.CONFIG.anomaly or not all(hasattr(t, "node") for t in tensors):
        return ()
    places = trace.places([t.node for t in tensors])
    if places is None or len({*places[: len(sources)]}) < len(sources):
        return ()
    return "grad", trace.grad_enabled, len(sources), len(roots), *options, *places


def _among(tensors: Sequence[Any]) -> Callable[[Node], Any]:
    """Tells which of these tensors a value is, or was before the tensor was updated; else None."""
    values = {id(t.node.origin): t for t in tensors}
    leaves = {id(t): t for t in tensors}

    def found(node: Node) -> Any:
        now = values.get(id(node))
        if now is not None or not node.grad_leaf or node.owner is None:
            return now
        return leaves.get(id(node.owner()))

    return found


def _require_sound(outputs: Sequence[Any], given: Sequence[Any] | None) -> None:
    """Raise the error of wrong positions that gradients would depend on."""
    tensors = [t for t in (*outputs, *(given or ())) if hasattr(t, "node")]
    lazy.require_sound([t.node for t in tensors], now=not MODE.trace.forbidden)


def _require_tensors(sources: list[Any], roots: list[Any]) -> None:
    """Raise, as PyTorch does, unless something is differentiated by something."""
    if not sources:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    for t in sources:
        if not hasattr(t, "node"):
            kind = type(t).__name__
            raise RuntimeError(f"all inputs have to be Tensors or GradientEdges, but got {kind}")
    for t in roots:
        if not hasattr(t, "node"):
            raise AssertionError("Expected output to be a torch.Tensor")


def as_list(value: Any) -> list[Any]:
    """Several tensors, of anything that gives them, or one."""
    return [value] if hasattr(value, "node") else list(value)
