"""Adamax (Kingma and Ba 2015), NAdam (Dozat 2016) and RAdam (Liu et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..ir.node import Node, apply
from ..ops import build as b
from .adam import check_adam
from .optimizer import Group, check_hyperparameter
from .rules import DIRECTION, Formula, RuleOptimizer, direction, mean, square


class _Variant(RuleOptimizer):
    """What the three have in common."""

    def _check_group(self, group: Group) -> None:
        check_adam(group)
        if "momentum_decay" in group:
            check_hyperparameter("momentum_decay", group["momentum_decay"], "momentum_decay value")

    def buffers(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _means(self, group: Group) -> tuple[list[Formula], tuple[bool, bool], bool]:
        """The running means, what becomes of the gradient, and whether the weights shrink."""
        decays, decoupled = group["weight_decay"] != 0, bool(group["decoupled_weight_decay"])
        options = decays and not decoupled, bool(group["maximize"])
        squares = (*DIRECTION, "exp_avg_sq", "beta2", "rise2")
        formulas = [
            Formula("exp_avg", mean, (*DIRECTION, "exp_avg", "rise1"), options),
            Formula("exp_avg_sq", square, squares, options),
        ]
        return formulas, options, decays and decoupled


def _largest(g: Node, p: Node, decay: Node, u: Node, keep: Node, eps: Node, *options: bool) -> Node:
    size = b.add(apply(b.ABS, direction(g, p, decay, *options)), eps)
    return apply(b.MAXIMUM, b.mul(u, keep), size)


def _adamax_step(p: Node, m: Node, u: Node, size: Node) -> Node:
    return b.sub(p, b.mul(b.div(m, u), size))


class Adamax(_Variant):
    """Adam with the largest of the recent gradients in the place of their root mean square.

    g += weight_decay * p;  m += (1 - beta1) (g - m);  u = max(beta2 u, |g| + eps);
    p -= lr / (1 - beta1**t) * m / u, t counting from 1.  ``maximize`` negates g.  ``foreach`` and
    ``capturable`` are accepted and change nothing; ``differentiable=True`` raises ValueError, as do
    negative numbers and betas outside [0, 1).

    >>> import minitorch_tvm as mt
    >>> w = mt.tensor([1.0], requires_grad=True)
    >>> opt = mt.optim.Adamax([w], lr=0.1)
    >>> (w * 3).sum().backward()
    >>> opt.step()
    >>> w
    tensor([0.9000], requires_grad=True)
    """

    numbers: ClassVar[tuple[str, ...]] = ("decay", "rise1", "beta2", "eps", "size")

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)

    @staticmethod
    def values(group: Group, state: Mapping[str, Any]) -> tuple[float, ...]:
        beta1, beta2 = group["betas"]
        size = group["lr"] / (1.0 - beta1 ** state["step"])
        return group["weight_decay"], 1.0 - beta1, beta2, group["eps"], size

    def buffers(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_inf")

    def formulas(self, group: Group) -> list[Formula]:
        options = group["weight_decay"] != 0, bool(group["maximize"])
        return [
            Formula("exp_avg", mean, (*DIRECTION, "exp_avg", "rise1"), options),
            Formula("exp_inf", _largest, (*DIRECTION, "exp_inf", "beta2", "eps"), options),
            Formula("p", _adamax_step, ("p", "exp_avg'", "exp_inf'", "size")),
        ]


def _spread(v: Node, scale: Node, eps: Node) -> Node:
    return b.add(b.mul(apply(b.SQRT, v), scale), eps)


def _nadam_step(
    g: Node,
    p: Node,
    decay: Node,
    m: Node,
    v: Node,
    scale: Node,
    eps: Node,
    now: Node,
    ahead: Node,
    shrink: Node,
    shrinks: bool,
    *options: bool,
) -> Node:
    g = direction(g, p, decay, *options)
    if shrinks:
        p = b.mul(p, shrink)
    step = b.add(b.mul(g, now), b.mul(m, ahead))
    return b.sub(p, b.div(step, _spread(v, scale, eps)))


def _momentum(group: Group, step: int) -> float:
    """NAdam's share of the mean at a step."""
    return float(group["betas"][0] * (1.0 - 0.5 * 0.96 ** (step * group["momentum_decay"])))


class NAdam(_Variant):
    """Adam that looks ahead, as Nesterov's momentum does.

    g += weight_decay * p;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g g;
    mu(t) = beta1 (1 - 0.96**(t momentum_decay) / 2), M(t) the product of mu(1) to mu(t);
    p -= lr ((1 - mu(t)) / (1 - M(t)) g + mu(t+1) / (1 - M(t+1)) m) / (sqrt(v / (1 - beta2**t)) +
    eps).  ``decoupled_weight_decay`` shrinks p by lr * weight_decay instead of changing g,
    ``maximize`` negates g.  ``foreach`` and ``capturable`` are accepted and change nothing;
    ``differentiable=True`` raises ValueError, as do negative numbers and betas outside [0, 1).
    """

    counters: ClassVar[dict[str, float]] = {"step": 0, "mu_product": 1.0}
    numbers: ClassVar[tuple[str, ...]] = (
        *("decay", "shrink", "rise1", "beta2", "rise2", "scale", "eps", "now", "ahead"),
    )

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)

    @staticmethod
    def advance(group: Group, states: Sequence[dict[str, Any]]) -> None:
        for state in states:
            state["step"] += 1
            # As a saved state has it: in float32.
            share = np.float32(_momentum(group, state["step"]))
            state["mu_product"] = float(np.float32(state["mu_product"]) * share)

    @staticmethod
    def values(group: Group, state: Mapping[str, Any]) -> tuple[float, ...]:
        t, product = state["step"], state["mu_product"]
        lr, decay = group["lr"], group["weight_decay"]
        beta1, beta2 = group["betas"]
        ahead = _momentum(group, t + 1)
        return (
            decay,
            1.0 - lr * decay,
            1.0 - beta1,
            beta2,
            1.0 - beta2,
            1.0 / math.sqrt(1.0 - beta2**t),
            group["eps"],
            lr * (1.0 - _momentum(group, t)) / (1.0 - product),
            lr * ahead / (1.0 - product * ahead),
        )

    def formulas(self, group: Group) -> list[Formula]:
        formulas, options, shrinks = self._means(group)
        reads = (*DIRECTION, "exp_avg'", "exp_avg_sq'", "scale", "eps", "now", "ahead", "shrink")
        return [*formulas, Formula("p", _nadam_step, reads, (shrinks, *options))]


def _radam_step(
    p: Node, m: Node, v: Node, rectified: Node, eps: Node, size: Node, shrink: Node, shrinks: bool
) -> Node:
    if shrinks:
        p = b.mul(p, shrink)
    one = b.full((), 1.0, p.dtype)
    # One program for all steps, whether they are rectified yet or not.
    spread = b.where(b.eq(rectified, one), b.add(apply(b.SQRT, v), eps), one)
    return b.sub(p, b.mul(b.div(m, spread), size))


class RAdam(_Variant):
    """Adam whose first steps are smaller, as long as few gradients tell their size.

    g += weight_decay * p;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g g;  with
    n = 2 / (1 - beta2) - 1 and r = n - 2 t beta2**t / (1 - beta2**t), t counting from 1:
    p -= lr m / (1 - beta1**t), which from r > 5 on is multiplied by
    sqrt((r - 4) (r - 2) n / ((n - 4) (n - 2) r)) sqrt(1 - beta2**t) / (sqrt(v) + eps).
    ``decoupled_weight_decay`` shrinks p by lr * weight_decay instead of changing g, ``maximize``
    negates g.  ``foreach`` and ``capturable`` are accepted and change nothing;
    ``differentiable=True`` raises ValueError, as do negative numbers and betas outside [0, 1).
    """

    numbers: ClassVar[tuple[str, ...]] = (
        *("decay", "shrink", "rise1", "beta2", "rise2", "rectified", "eps", "size"),
    )

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)

    @staticmethod
    def values(group: Group, state: Mapping[str, Any]) -> tuple[float, ...]:
        t, lr, decay = state["step"], group["lr"], group["weight_decay"]
        beta1, beta2 = group["betas"]
        left = 1.0 - beta2**t
        most = 2.0 / (1.0 - beta2) - 1.0
        reach = most - 2.0 * t * beta2**t / left
        size = lr / (1.0 - beta1**t)
        rectified = reach > 5.0
        if rectified:
            share = (reach - 4.0) * (reach - 2.0) * most
            size *= math.sqrt(share / ((most - 4.0) * (most - 2.0) * reach) * left)
        shrink = 1.0 - lr * decay
        return (
            *(decay, shrink, 1.0 - beta1, beta2, 1.0 - beta2),
            *(float(rectified), group["eps"], size),
        )

    def formulas(self, group: Group) -> list[Formula]:
        formulas, _, shrinks = self._means(group)
        reads = ("p", "exp_avg'", "exp_avg_sq'", "rectified", "eps", "size", "shrink")
        return [*formulas, Formula("p", _radam_step, reads, (shrinks,))]
