"""Functions that users attach to modules."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from ..autograd import Function, is_grad_enabled
from ..core import errors
from ..core.handle import RemovableHandle
from ..core.record import record
from ..tensor import Tensor

_IDS = itertools.count()


@record
class Hook:
    """One registered function and how it wants to be called."""

    function: Callable[..., Any]
    with_kwargs: bool = False
    always_call: bool = False


def attach(
    hooks: OrderedDict[int, Hook], hook: Hook, prepend: bool, changed: Callable[[], None]
) -> RemovableHandle:
    """Add a hook to those of a module, behind the others or (``prepend``) before them.

    ``changed`` is called when there is another hook, or one less.
    """
    number = next(_IDS)
    hooks[number] = hook
    if prepend:
        hooks.move_to_end(number, last=False)
    changed()

    def remove() -> None:
        if hooks.pop(number, None) is not None:
            changed()

    return RemovableHandle(remove)


class BackwardHooks:
    """Those of a module that see its gradients."""

    def __init__(self) -> None:
        self.before: OrderedDict[int, Hook] = OrderedDict()
        self.full: OrderedDict[int, Hook] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self.before or self.full)


class BackwardHookFunction(Function):
    """Tensors as they are; whoever is to see their gradients may replace them."""

    @staticmethod
    def forward(ctx: Any, see: Callable[..., Any], all_of_them: bool, *tensors: Tensor) -> Any:
        ctx.see = see
        ctx.set_materialize_grads(all_of_them)
        ctx.mark_non_differentiable(*[t for t in tensors if not t.requires_grad])
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, None, *ctx.see(grads))


class WatchedCall:
    """A call of a module with hooks that see its gradients."""

    def __init__(self, module: Any, hooks: BackwardHooks) -> None:
        self._module = module
        self._before = [h.function for h in hooks.before.values()]
        self._full = [h.function for h in hooks.full.values()]
        self._inputs = 0
        self._watches_inputs = False
        self._grad_outputs: Sequence[Any] | None = None

    def entered(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What ``forward`` is called with."""
        self._inputs = len(args)
        if not (self._full and _any_requires_grad(args)):
            return args
        self._watches_inputs = True
        return _seen_by(self._at_inputs, True, args)

    def left(self, result: Any) -> Any:
        """What the call returns."""
        if not isinstance(result, (tuple, Tensor)):
            errors.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of "
                f"Tensors but received {type(result)}"
            )
            return result
        values = result if isinstance(result, tuple) else (result,)
        if not _any_requires_grad(values):
            return result
        made = _seen_by(self._at_outputs, False, values)
        if not isinstance(result, tuple):
            return made[0]
        return made if type(result) is tuple else type(result)(*made)

    def _at_outputs(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self._before:
            grads = _replaced(grads, hook(self._module, grads), "pre hook", "grad_output")
        if self._full and not self._watches_inputs:
            errors.warn(
                "Full backward hook is firing when gradients are computed with respect to module "
                "outputs since no inputs require gradients."
            )
            for hook in self._full:
                answer = hook(self._module, (None,) * self._inputs, grads)
                if answer is not None and any(g is not None for g in answer):
                    raise RuntimeError(
                        "Backward hook for Modules where no input requires gradient should always "
                        "return None or None for all gradients."
                    )
        self._grad_outputs = grads
        return grads

    def _at_inputs(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        seen, self._grad_outputs = self._grad_outputs, None
        if seen is not None:  # else they come from elsewhere, as in a second derivative
            for hook in self._full:
                grads = _replaced(grads, hook(self._module, grads, seen), "hook", "grad_input")
        return grads


def _any_requires_grad(values: Sequence[Any]) -> bool:
    return is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in values)


def _seen_by(
    see: Callable[[tuple[Any, ...]], Sequence[Any]], all_of_them: bool, values: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The same values; ``see`` is given their gradients (None where they are no tensors)."""
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor)]

    def among_all(grads: tuple[Any, ...]) -> list[Any]:
        found = dict(zip(places, grads, strict=True))
        answer = see(tuple([found.get(i) for i in range(len(values))]))
        return [answer[i] for i in places]

    made = BackwardHookFunction.apply(among_all, all_of_them, *[values[i] for i in places])
    results = [*values]
    for place, t in zip(places, made, strict=True):
        results[place] = t
    return tuple(results)


def _replaced(grads: tuple[Any, ...], answer: Any, which: str, what: str) -> tuple[Any, ...]:
    """What a hook makes of gradients."""
    if answer is None:
        return grads
    found = (answer,) if isinstance(answer, Tensor) else answer
    if len(found) != len(grads):
        raise RuntimeError(
            f"Backward {which} returned an invalid number of {what}, got {len(found)}, but "
            f"expected {len(grads)}"
        )
    return tuple(found)
