"""Rprop (Riedmiller and Braun 1993)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..ir.node import Node, apply
from ..ops import build as b
from ..ops import pointwise as pw
from .optimizer import Group, check_hyperparameter, not_differentiable
from .rules import Formula, RuleOptimizer


def _turns(g: Node, before: Node, maximize: bool) -> tuple[Node, Node, Node]:
    """The gradient to follow, its product with the one before, and zero."""
    g = b.neg(g) if maximize else g
    return g, b.mul(g, before), b.full((), 0.0, g.dtype)


def _sizes(
    g: Node,
    before: Node,
    size: Node,
    down: Node,
    up: Node,
    least: Node,
    most: Node,
    maximize: bool,
) -> Node:
    _, product, zero = _turns(g, before, maximize)
    one = b.full((), 1.0, g.dtype)
    factor = b.where(b.lt(zero, product), up, b.where(b.lt(product, zero), down, one))
    return apply(b.MINIMUM, apply(b.MAXIMUM, b.mul(size, factor), least), most)


def _followed(g: Node, before: Node, maximize: bool) -> Node:
    g, product, zero = _turns(g, before, maximize)
    return b.where(b.lt(product, zero), zero, g)


def _step(g: Node, before: Node, p: Node, size: Node, maximize: bool) -> Node:
    # A gradient of NaN has no sign: the parameter stays.
    return b.sub(p, b.mul(pw.sign(_followed(g, before, maximize)), size))


class Rprop(RuleOptimizer):
    """Steps whose size does not depend on the gradient's, only on how often its sign changes.

    Each element has a step size, ``lr`` at first.  It is multiplied by ``etas[1]`` where the
    gradient has the sign that it had at the step before, and by ``etas[0]`` where it has the other
    (there the gradient counts as zero), and kept within ``step_sizes``; then p -= sign(g) * size.
    ``maximize`` negates g.  ``foreach`` and ``capturable`` are accepted and change nothing;
    ``differentiable=True`` raises ValueError, as do a negative ``lr`` and ``etas`` that are not on
    both sides of 1.

    >>> import minitorch_tvm as mt
    >>> w = mt.tensor([1.0], requires_grad=True)
    >>> opt = mt.optim.Rprop([w], lr=0.1)
    >>> for _ in range(2):
    ...     opt.zero_grad()
    ...     (w * 3).sum().backward()
    ...     opt.step()
    >>> w
    tensor([0.7800], requires_grad=True)
    """

    numbers: ClassVar[tuple[str, ...]] = ("down", "up", "least", "most")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        check_hyperparameter("lr", group["lr"], "learning rate")
        down, up = group["etas"]
        if not 0.0 < down < 1.0 < up:
            raise ValueError(f"Invalid eta values: {down}, {up}")
        not_differentiable(group)

    @staticmethod
    def values(group: Group, state: Mapping[str, Any]) -> tuple[float, ...]:
        return (*group["etas"], *group["step_sizes"])

    def _first(self, name: str, group: Group) -> float:
        return float(group["lr"]) if name == "step_size" else 0.0

    def buffers(self, group: Group) -> tuple[str, ...]:
        return ("prev", "step_size")

    def formulas(self, group: Group) -> list[Formula]:
        options = (bool(group["maximize"]),)
        sizes = ("g", "prev", "step_size", *self.numbers)
        return [
            Formula("step_size", _sizes, sizes, options),
            Formula("p", _step, ("g", "prev", "p", "step_size'"), options),
            Formula("prev", _followed, ("g", "prev"), options),
        ]
