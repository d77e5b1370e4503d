"""Adafactor (Shazeer and Stern 2018)."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

from ..core.limits import finfo
from ..core.shape import Shape
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops import derived as d
from ..tensor import Tensor
from .optimizer import Group, check_hyperparameter
from .repeated import Reads
from .rules import Formula, RuleOptimizer, towards


def _root_mean_square(x: Node) -> Node:
    return apply(b.SQRT, d.mean(b.mul(x, x)))


def _rows(g: Node, v: Node, share: Node) -> Node:
    return towards(v, d.mean(b.mul(g, g), -1, True), share)


def _columns(g: Node, v: Node, share: Node) -> Node:
    return towards(v, d.mean(b.mul(g, g), -2, True), share)


def _squares(g: Node, v: Node, share: Node) -> Node:
    return towards(v, b.mul(g, g), share)


def _eps(x: Node, eps: Node, usual: bool) -> Node:
    return b.full((), finfo(x.dtype).eps, x.dtype) if usual else eps


def _moved(
    g: Node,
    p: Node,
    v: Node,
    rate: Node,
    eps1: Node,
    eps2: Node,
    limit: Node,
    shrink: Node,
    usual: bool,
    maximize: bool,
) -> Node:
    """The new parameter, where ``v`` is an estimate of squared gradients."""
    eps1 = _eps(p, eps1, usual)
    update = b.div(g, apply(b.SQRT, apply(b.MAXIMUM, v, b.mul(eps1, eps1))))
    large = b.div(_root_mean_square(update), limit)
    excess = apply(b.MAXIMUM, large, b.full((), 1.0, p.dtype))
    size = b.mul(apply(b.MAXIMUM, _root_mean_square(p), eps2), rate)
    step = b.mul(update, b.div(size, excess))
    p = b.mul(p, shrink)
    return b.add(p, step) if maximize else b.sub(p, step)


def _moved_by_factors(
    g: Node, p: Node, row: Node, column: Node, rate: Node, eps1: Node, *rest: Any
) -> Node:
    *_, usual, _ = rest
    mean = d.mean(row, -2, True)
    v = b.div(b.mul(row, column), apply(b.MAXIMUM, mean, _eps(p, eps1, usual)))
    return _moved(g, p, v, rate, eps1, *rest)


class Adafactor(RuleOptimizer):
    """Adam without a mean of gradients, whose mean of squares is a row times a column.

    With t counting from 1, rho = min(lr, t**-0.5), beta = 1 - t**beta2_decay: the running means
    (factor beta) of g g over the last dimension, R, and over the one before, C, give
    v = R C / max(mean R, eps[0]); of a parameter with fewer than two dimensions v is the running
    mean of g g.  u = g / sqrt(max(v, eps[0]**2));
    p = (1 - lr weight_decay) p - rho max(eps[1], rms(p)) u / max(1, rms(u) / d).
    ``eps[0]`` is by default the distance from 1 to the next number of the parameter's dtype.
    ``maximize`` negates g; ``foreach`` is accepted and changes nothing.  Negative numbers and a
    positive ``beta2_decay`` raise ValueError.

    >>> import minitorch_tvm as mt
    >>> w = mt.ones(2, 3, requires_grad=True)
    >>> opt = mt.optim.Adafactor([w], lr=0.1)
    >>> (w * 3).sum().backward()
    >>> opt.step()
    >>> w[0], opt.state[w]["row_var"].shape
    (tensor([0.9000, 0.9000, 0.9000], grad_fn=<ReshapeBackward0>), torch.Size([2, 1]))
    """

    numbers: ClassVar[tuple[str, ...]] = ("share", "rate", "eps1", "eps2", "limit", "shrink")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        if not isinstance(group["lr"], Tensor) and not group["lr"] >= 0.0:
            raise ValueError(f"Learning rate should be >= 0 but is: {group['lr']}")
        check_hyperparameter("lr", group["lr"], "learning rate")
        if not group["beta2_decay"] <= 0.0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {group['beta2_decay']}")
        first, second = group["eps"]
        if first is not None and not first >= 0.0:
            raise ValueError(f"epsilon1 should be >= 0 but is: {first}")
        if not second >= 0.0:
            raise ValueError(f"epsilon2 should be >= 0 but is: {second}")
        if not group["d"] >= 1.0:
            raise ValueError(f"Clipping threshold d should be >= 1 but is: {group['d']}")
        if not group["weight_decay"] >= 0.0:
            raise ValueError(f"weight_decay should be >= 0 but is: {group['weight_decay']}")

    @staticmethod
    def values(group: Group, state: Mapping[str, Any]) -> tuple[float, ...]:
        step, lr = state["step"], group["lr"]
        first, second = group["eps"]
        rate, shrink = min(lr, 1 / step**0.5), 1 - lr * group["weight_decay"]
        return step ** group["beta2_decay"], rate, first or 0.0, second, group["d"], shrink

    def buffers(self, group: Group) -> tuple[str, ...]:
        return ("row_var", "col_var") if group["factored"] else ("variance",)

    def formulas(self, group: Group) -> list[Formula]:
        options = (group["eps"][0] is None, bool(group["maximize"]))
        numbers = self.numbers[1:]
        if not group["factored"]:
            return [
                Formula("variance", _squares, ("g", "variance", "share")),
                Formula("p", _moved, ("g", "p", "variance'", *numbers), options),
            ]
        means = ("row_var'", "col_var'")
        return [
            Formula("row_var", _rows, ("g", "row_var", "share")),
            Formula("col_var", _columns, ("g", "col_var", "share")),
            Formula("p", _moved_by_factors, ("g", "p", *means, *numbers), options),
        ]

    def _shape(self, p: Tensor, name: str) -> Shape:
        shape = tuple(p.shape)
        if name == "row_var":
            return (*shape[:-1], 1)
        return (*shape[:-2], 1, shape[-1]) if name == "col_var" else shape

    def _update(self, group: Group) -> None:
        for part in _parts(group):
            super()._update(part)

    def _add_reads(self, group: Group, reads: Reads) -> bool:
        return all(super(Adafactor, self)._add_reads(part, reads) for part in _parts(group))


def _parts(group: Group) -> Iterator[Group]:
    """Parameters with rows and columns, and others; options are read from the group itself."""
    for factored in (True, False):
        params = [p for p in group["params"] if (p.ndim > 1) is factored and p.numel()]
        yield cast(Group, ChainMap({"params": params, "factored": factored}, group))
