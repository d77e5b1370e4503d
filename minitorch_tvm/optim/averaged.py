"""ASGD (Polyak and Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..ir.node import Node
from ..ops import build as b
from ..tensor import Tensor
from .optimizer import Group, check_hyperparameter, not_differentiable
from .rules import DIRECTION, Formula, RuleOptimizer, direction, towards


def _step(g: Node, p: Node, decay: Node, shrink: Node, eta: Node, *options: bool) -> Node:
    return b.sub(b.mul(p, shrink), b.mul(direction(g, p, decay, *options), eta))


def _average(p: Node, average: Node, mu: Node) -> Node:
    return b.where(b.eq(mu, b.full((), 1.0, mu.dtype)), p, towards(average, p, mu))


def _single(value: float) -> float:
    """As PyTorch keeps it, in a tensor of one element."""
    return float(np.float32(value))


class ASGD(RuleOptimizer):
    """Gradient descent that also averages the parameters of late steps, in ``state[p]["ax"]``.

    g += weight_decay * p;  p = (1 - lambd eta) p - eta g;  ax += mu (p - ax), with
    eta = lr / (1 + lambd lr t)**alpha and mu = 1 / max(1, t - t0), both of the step before (lr and
    1 at first).  ``maximize`` negates g.  ``foreach`` and ``capturable`` are accepted and change
    nothing; ``differentiable=True`` raises ValueError, as do a negative ``lr`` and
    ``weight_decay``.

    >>> import minitorch_tvm as mt
    >>> w = mt.tensor([1.0], requires_grad=True)
    >>> opt = mt.optim.ASGD([w], lr=0.1)
    >>> (w * 3).sum().backward()
    >>> opt.step()
    >>> w, opt.state[w]["ax"]
    (tensor([0.7000], requires_grad=True), tensor([0.7000]))
    """

    counters: ClassVar[dict[str, float]] = {
        "step": 0,
        "eta": 0.0,
        "mu": 1.0,
        "_eta": 0.0,  # these two are of the step that is being made
        "_mu": 1.0,
    }
    numbers: ClassVar[tuple[str, ...]] = ("decay", "shrink", "eta", "mu")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        check_hyperparameter("lr", group["lr"], "learning rate")
        check_hyperparameter("weight_decay", group["weight_decay"], "weight_decay value")
        not_differentiable(group)

    def _begin(self, p: Tensor, group: Group) -> dict[str, Any]:
        state = self.state[p]
        if not state:
            state.update(step=0, eta=_single(group["lr"]))
        return super()._begin(p, group)

    @staticmethod
    def advance(group: Group, states: Sequence[dict[str, Any]]) -> None:
        lr, lambd, alpha, t0 = (group[name] for name in ("lr", "lambd", "alpha", "t0"))
        for state in states:
            step = state["step"] = state["step"] + 1
            state["_eta"], state["_mu"] = state["eta"], state["mu"]
            state["eta"] = _single(lr / (1 + lambd * lr * step) ** alpha)
            state["mu"] = _single(1 / max(1, step - t0))

    @staticmethod
    def values(group: Group, state: Mapping[str, Any]) -> tuple[float, ...]:
        eta = state["_eta"]
        return group["weight_decay"], 1 - group["lambd"] * eta, eta, state["_mu"]

    def buffers(self, group: Group) -> tuple[str, ...]:
        return ("ax",)

    def formulas(self, group: Group) -> list[Formula]:
        options = group["weight_decay"] != 0, bool(group["maximize"])
        return [
            Formula("p", _step, (*DIRECTION, "shrink", "eta"), options),
            Formula("ax", _average, ("p'", "ax", "mu")),
        ]

    def _packed(self, state: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in super()._packed(state).items() if not k.startswith("_")}
