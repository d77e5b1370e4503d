"""Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.dtype import DType
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops.composite import composite
from ..tensor import Tensor
from ..tensor.creation import tensor
from .optimizer import Group, Optimizer, check_hyperparameter, full_for, not_differentiable
from .repeated import Reads
from .rules import mean, square


class _Numbers(NamedTuple):
    """Runtime scalars of one step, shared by all parameters of a dtype and age."""

    decay: Node
    rise1: Node  # 1 - beta1
    beta2: Node
    rise2: Node  # 1 - beta2
    size: Node  # lr / (1 - beta1**t)
    scale: Node  # 1 / sqrt(1 - beta2**t)
    eps: Node


def _values(group: Group, state: Mapping[str, Any]) -> tuple[float, ...]:
    """Those of the scalars for parameters as old as that of ``state``."""
    t = state["step"]
    beta1, beta2 = group["betas"]
    lr, decay = group["lr"], group["weight_decay"]
    if group["decoupled_weight_decay"]:
        decay = 1.0 - lr * decay
    return (
        decay,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        lr / (1.0 - beta1**t),
        1.0 / math.sqrt(1.0 - beta2**t),
        group["eps"],
    )


def _older(states: Sequence[dict[str, Any]]) -> None:
    for state in states:
        state["step"] += 1


def _step(
    p: Node, decay: Node, m: Node, v: Node, scale: Node, eps: Node, size: Node, decoupled: bool
) -> Node:
    if decoupled:
        p = b.mul(p, decay)
    spread = b.add(b.mul(apply(b.SQRT, v), scale), eps)
    return b.sub(p, b.mul(b.div(m, spread), size))


def check_adam(group: Group) -> None:
    """ValueError unless the numbers of Adam, or of one of its variants, are in range."""
    check_hyperparameter("lr", group["lr"], "learning rate")
    check_hyperparameter("eps", group["eps"], "epsilon value")
    for i in range(2):
        beta = group["betas"][i]
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
    check_hyperparameter("weight_decay", group["weight_decay"], "weight_decay value")
    not_differentiable(group)


class Adam(Optimizer):
    """Steps of about lr per parameter, from running means of the gradient and of its square.

    g += weight_decay * p;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g g;
    p -= lr / (1 - beta1**t) * m / (sqrt(v) / sqrt(1 - beta2**t) + eps), t counting from 1.
    ``amsgrad`` takes the largest v so far (Reddi et al. 2018), ``decoupled_weight_decay`` shrinks
    p by lr * weight_decay instead of changing g, ``maximize`` negates g.  ``foreach``, ``fused``
    and ``capturable`` are accepted and change nothing; ``differentiable=True`` raises ValueError,
    as do negative numbers and betas outside [0, 1).

    >>> import minitorch_tvm as mt
    >>> w = mt.tensor([1.0], requires_grad=True)
    >>> opt = mt.optim.Adam([w], lr=0.1)
    >>> (w * 3).sum().backward()
    >>> opt.step()
    >>> w
    tensor([0.9000], requires_grad=True)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        check_adam(group)

    def _update(self, group: Group) -> None:
        amsgrad = group["amsgrad"]
        decays, decoupled = group["weight_decay"] != 0, group["decoupled_weight_decay"]
        direction = (decays and not decoupled, group["maximize"])
        running_mean = composite("AdamMean", mean, *direction)
        running_square = composite("AdamSquare", square, *direction)
        step = composite("Adam", _step, decays and decoupled)
        known: dict[tuple[DType, int], _Numbers] = {}
        updated = [p for p in group["params"] if p._grad is not None]
        for p in updated:
            state = self.state[p]
            if not state:
                # PyTorch's order of entries; the buffers exist before the first record.
                state.update(step=0, exp_avg=full_for(p.node), exp_avg_sq=full_for(p.node))
            if amsgrad and "max_exp_avg_sq" not in state:
                state["max_exp_avg_sq"] = full_for(p.node)
        self._effect(functools.partial(_older, [self.state[p] for p in updated]))
        for p in updated:
            state = self.state[p]
            node: Node = p.node
            dtype = node.dtype
            n = known.get((dtype, state["step"]))
            if n is None:
                values = functools.partial(_values, group, state)
                n = known[dtype, state["step"]] = _Numbers(*self._numbers(values, dtype))
            g: Node = b.cast(p._grad.node, dtype)
            first, second = state["exp_avg"], state["exp_avg_sq"]
            m = apply(running_mean, g, node, n.decay, first.node, n.rise1)
            first._become(m)
            v = apply(running_square, g, node, n.decay, second.node, n.beta2, n.rise2)
            second._become(v)
            if amsgrad:
                largest = state["max_exp_avg_sq"]
                v = apply(b.MAXIMUM, largest.node, v)
                largest._become(v)
            p._become(apply(step, node, n.decay, m, v, n.scale, n.eps, n.size))

    def _structure(self) -> object:
        steps = [state["step"] for state in self.state.values() if "step" in state]
        # Parameters of one age share their numbers.
        uniform = not steps or steps.count(steps[0]) == len(steps)
        return super()._structure(), uniform or [step - steps[0] for step in steps]

    def _add_reads(self, group: Group, reads: Reads) -> bool:
        amsgrad = group["amsgrad"]
        choices = reads.choices
        choices += (bool(amsgrad), group["weight_decay"] != 0)
        choices += (bool(group["decoupled_weight_decay"]), bool(group["maximize"]))
        names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: 3 if amsgrad else 2]
        all_states = self.state
        states = [all_states[p] for p in reads.add(group["params"])]
        try:
            for name in names:
                reads.tensors += [state[name] for state in states]
            steps = [state["step"] for state in states]
        except KeyError:  # the first step
            return False
        reads.owners += states
        choices += [step - steps[0] for step in steps]  # equal ages share their numbers
        return True

    def _packed(self, state: dict[str, Any]) -> dict[str, Any]:
        return {k: tensor(float(v)) if k == "step" else v for k, v in state.items()}

    def _unpacked(self, p: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        unpacked = super()._unpacked(p, state)
        if "step" in unpacked:
            step = state["step"]
            unpacked["step"] = int(step.item() if isinstance(step, Tensor) else step)
        return unpacked


class AdamW(Adam):
    """Adam with decoupled weight decay (0.01 by default): p *= 1 - lr * weight_decay first."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )
