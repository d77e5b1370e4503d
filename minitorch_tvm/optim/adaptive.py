"""RMSprop, Adagrad (Duchi, Hazan and Singer 2011) and Adadelta (Zeiler 2012)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..ir.node import Node, apply
from ..ops import build as b
from .optimizer import Group, check_hyperparameter, not_differentiable
from .rules import DIRECTION, Formula, RuleOptimizer, direction, mean, mixed, square


def _scaled(
    g: Node, p: Node, decay: Node, eps: Node, v: Node, m: Node | None, *options: bool
) -> Node:
    """The gradient in units of its root mean square, about its mean ``m`` if there is one."""
    if m is not None:
        v = b.sub(v, b.mul(m, m))
    return b.div(direction(g, p, decay, *options), b.add(apply(b.SQRT, v), eps))


def _velocity(
    g: Node, p: Node, decay: Node, eps: Node, v: Node, keep: Node, u: Node, *options: bool
) -> Node:
    return b.add(b.mul(u, keep), _scaled(g, p, decay, eps, v, None, *options))


def _central_velocity(
    g: Node, p: Node, decay: Node, eps: Node, v: Node, keep: Node, u: Node, m: Node, *options: bool
) -> Node:
    return b.add(b.mul(u, keep), _scaled(g, p, decay, eps, v, m, *options))


def _follow(p: Node, u: Node, lr: Node) -> Node:
    return b.sub(p, b.mul(u, lr))


def _step(g: Node, p: Node, decay: Node, eps: Node, v: Node, lr: Node, *options: bool) -> Node:
    return _follow(p, _scaled(g, p, decay, eps, v, None, *options), lr)


def _central_step(
    g: Node, p: Node, decay: Node, eps: Node, v: Node, lr: Node, m: Node, *options: bool
) -> Node:
    return _follow(p, _scaled(g, p, decay, eps, v, m, *options), lr)


def _options(group: Group) -> tuple[bool, bool]:
    return group["weight_decay"] != 0, bool(group["maximize"])


class RMSprop(RuleOptimizer):
    """Steps in units of the gradient's root mean square, a running mean.

    g += weight_decay * p;  v = alpha v + (1 - alpha) g g;  with ``centered``
    m += (1 - alpha) (g - m) and v - m m takes the place of v;  g /= sqrt(v) + eps;  with
    ``momentum`` u = momentum * u + g, else u = g;  p -= lr * u.  ``maximize`` negates g.
    ``foreach`` and ``capturable`` are accepted and change nothing; ``differentiable=True`` raises
    ValueError, as do negative numbers.

    >>> import minitorch_tvm as mt
    >>> w = mt.tensor([1.0], requires_grad=True)
    >>> opt = mt.optim.RMSprop([w], lr=0.1, alpha=0.75)
    >>> (w * 3).sum().backward()
    >>> opt.step()
    >>> w
    tensor([0.8000], requires_grad=True)
    """

    numbers: ClassVar[tuple[str, ...]] = ("decay", "alpha", "rise", "eps", "lr", "momentum")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        check_hyperparameter("lr", group["lr"], "learning rate")
        check_hyperparameter("eps", group["eps"], "epsilon value")
        check_hyperparameter("momentum", group["momentum"], "momentum value")
        check_hyperparameter("weight_decay", group["weight_decay"], "weight_decay value")
        check_hyperparameter("alpha", group["alpha"], "alpha value")
        not_differentiable(group)

    @staticmethod
    def values(group: Group, state: Mapping[str, Any]) -> tuple[float, ...]:
        alpha = group["alpha"]
        decay, momentum = group["weight_decay"], group["momentum"]
        return decay, alpha, 1.0 - alpha, group["eps"], group["lr"], momentum

    def buffers(self, group: Group) -> tuple[str, ...]:
        names = ["square_avg"]
        if group["momentum"] > 0:
            names.append("momentum_buffer")
        if group["centered"]:
            names.append("grad_avg")
        return tuple(names)

    def formulas(self, group: Group) -> list[Formula]:
        options, central = _options(group), bool(group["centered"])
        center = ("grad_avg'",) if central else ()
        made = [Formula("square_avg", square, (*DIRECTION, "square_avg", "alpha", "rise"), options)]
        if central:
            made.append(Formula("grad_avg", mean, (*DIRECTION, "grad_avg", "rise"), options))
        scaled = (*DIRECTION, "eps", "square_avg'")
        if group["momentum"] > 0:
            collect = _central_velocity if central else _velocity
            reads = (*scaled, "momentum", "momentum_buffer", *center)
            made.append(Formula("momentum_buffer", collect, reads, options))
            made.append(Formula("p", _follow, ("p", "momentum_buffer'", "lr")))
        else:
            step = _central_step if central else _step
            made.append(Formula("p", step, (*scaled, "lr", *center), options))
        return made


def _sum(g: Node, p: Node, decay: Node, v: Node, *options: bool) -> Node:
    g = direction(g, p, decay, *options)
    return b.add(v, b.mul(g, g))


class Adagrad(RuleOptimizer):
    """Steps in units of the root of the sum of all squared gradients so far.

    g += weight_decay * p;  v += g g (from ``initial_accumulator_value``);
    p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(v) + eps), t counting from 1.  ``maximize`` negates
    g.  ``foreach`` and ``fused`` are accepted and change nothing; ``differentiable=True`` raises
    ValueError, as do negative numbers.

    >>> import minitorch_tvm as mt
    >>> w = mt.tensor([1.0], requires_grad=True)
    >>> opt = mt.optim.Adagrad([w], lr=0.1)
    >>> (w * 3).sum().backward()
    >>> opt.step()
    >>> w
    tensor([0.9000], requires_grad=True)
    """

    numbers: ClassVar[tuple[str, ...]] = ("decay", "eps", "lr")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)
        # PyTorch's state is there before the first step, too.
        for group in self.param_groups:
            for p in group["params"]:
                self._begin(p, group)

    def _check_group(self, group: Group) -> None:
        check_hyperparameter("lr", group["lr"], "learning rate")
        check_hyperparameter("lr_decay", group["lr_decay"], "lr_decay value")
        check_hyperparameter("weight_decay", group["weight_decay"], "weight_decay value")
        name = "initial_accumulator_value"
        check_hyperparameter(name, group[name], f"{name} value")
        check_hyperparameter("eps", group["eps"], "epsilon value")
        not_differentiable(group)

    @staticmethod
    def values(group: Group, state: Mapping[str, Any]) -> tuple[float, ...]:
        lr = group["lr"] / (1.0 + (state["step"] - 1) * group["lr_decay"])
        return group["weight_decay"], group["eps"], lr

    def _first(self, name: str, group: Group) -> float:
        return float(self.defaults["initial_accumulator_value"])

    def buffers(self, group: Group) -> tuple[str, ...]:
        return ("sum",)

    def formulas(self, group: Group) -> list[Formula]:
        options = _options(group)
        return [
            Formula("sum", _sum, (*DIRECTION, "sum"), options),
            Formula("p", _step, (*DIRECTION, "eps", "sum'", "lr"), options),
        ]


def _delta(g: Node, p: Node, decay: Node, eps: Node, v: Node, steps: Node, *options: bool) -> Node:
    ratio = b.div(apply(b.SQRT, b.add(steps, eps)), apply(b.SQRT, b.add(v, eps)))
    return b.mul(ratio, direction(g, p, decay, *options))


def _squared_steps(steps: Node, delta: Node, keep: Node, share: Node) -> Node:
    return mixed(steps, b.mul(delta, delta), keep, share)


class Adadelta(RuleOptimizer):
    """Steps whose size follows the steps made before, in units of the gradient's size.

    g += weight_decay * p;  v = rho v + (1 - rho) g g;  d = sqrt(u + eps) / sqrt(v + eps) * g;
    u = rho u + (1 - rho) d d;  p -= lr * d.  ``maximize`` negates g.  ``foreach`` and
    ``capturable`` are accepted and change nothing; ``differentiable=True`` raises ValueError, as do
    negative numbers and ``rho`` above 1.
    """

    numbers: ClassVar[tuple[str, ...]] = ("decay", "rho", "rise", "eps", "lr")

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        check_hyperparameter("lr", group["lr"], "learning rate")
        if not 0.0 <= group["rho"] <= 1.0:
            raise ValueError(f"Invalid rho value: {group['rho']}")
        check_hyperparameter("eps", group["eps"], "epsilon value")
        check_hyperparameter("weight_decay", group["weight_decay"], "weight_decay value")
        not_differentiable(group)

    @staticmethod
    def values(group: Group, state: Mapping[str, Any]) -> tuple[float, ...]:
        rho = group["rho"]
        return group["weight_decay"], rho, 1.0 - rho, group["eps"], group["lr"]

    def buffers(self, group: Group) -> tuple[str, ...]:
        return ("square_avg", "acc_delta")

    def formulas(self, group: Group) -> list[Formula]:
        options = _options(group)
        scaled = (*DIRECTION, "eps", "square_avg'", "acc_delta")
        return [
            Formula("square_avg", square, (*DIRECTION, "square_avg", "rho", "rise"), options),
            Formula("delta", _delta, scaled, options),
            Formula("acc_delta", _squared_steps, ("acc_delta", "delta'", "rho", "rise")),
            Formula("p", _follow, ("p", "delta'", "lr")),
        ]
