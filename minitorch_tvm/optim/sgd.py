"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.dtype import DType
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops.composite import composite
from .optimizer import Group, Optimizer, check_hyperparameter, full_for, not_differentiable
from .repeated import Reads


class _Numbers(NamedTuple):
    """Runtime scalars of one step, shared by all parameters of a dtype."""

    lr: Node
    decay: Node


class _Momentum(NamedTuple):
    """More of them, where there is momentum."""

    rate: Node
    fresh: Node  # share of the gradient in a new buffer
    settled: Node  # and in an old one


def _direction(p: Node, g: Node, rate: Node, decay: bool, maximize: bool) -> Node:
    g = b.cast(g, p.dtype)
    if maximize:
        g = b.neg(g)
    return b.add(g, b.mul(p, rate)) if decay else g


def _step(p: Node, g: Node, lr: Node, rate: Node, decay: bool, maximize: bool) -> Node:
    return b.sub(p, b.mul(_direction(p, g, rate, decay, maximize), lr))


def _new_momentum(
    p: Node,
    g: Node,
    rate: Node,
    buffer: Node,
    momentum: Node,
    share: Node,
    decay: bool,
    maximize: bool,
    damped: bool,
) -> Node:
    g = _direction(p, g, rate, decay, maximize)
    return b.add(b.mul(buffer, momentum), b.mul(g, share) if damped else g)


def _momentum_step(
    p: Node,
    g: Node,
    lr: Node,
    rate: Node,
    buffer: Node,
    momentum: Node,
    decay: bool,
    maximize: bool,
    nesterov: bool,
) -> Node:
    g = (
        b.add(_direction(p, g, rate, decay, maximize), b.mul(buffer, momentum))
        if nesterov
        else buffer
    )
    return b.sub(p, b.mul(g, lr))


class SGD(Optimizer):
    """p -= lr * g, with momentum, weight decay and Nesterov's variant as in PyTorch.

    g += weight_decay * p;  buffer = momentum * buffer + (1 - dampening) * g (g itself on the
    first step);  g = buffer, or g + momentum * buffer with ``nesterov``;  p -= lr * g.
    ``maximize`` negates g.  ``foreach`` and ``fused`` are accepted and change nothing: all updates
    are one program anyway.  ``differentiable=True`` raises ValueError, as do negative numbers.

    >>> import minitorch_tvm as mt
    >>> w = mt.tensor([1.0], requires_grad=True)
    >>> opt = mt.optim.SGD([w], lr=0.5)
    >>> (w * 3).sum().backward()
    >>> opt.step()
    >>> w
    tensor([-0.5000], requires_grad=True)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        self._check_group(defaults)
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        check_hyperparameter("lr", group["lr"], "learning rate")
        check_hyperparameter("momentum", group["momentum"], "momentum value")
        check_hyperparameter("weight_decay", group["weight_decay"], "weight_decay value")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        not_differentiable(group)

    def _update(self, group: Group) -> None:
        momentum, decay = group["momentum"] != 0, group["weight_decay"] != 0
        damped, nesterov, maximize = group["dampening"] != 0, group["nesterov"], group["maximize"]
        direction = (decay, maximize)
        plain = composite("Sgd", _step, *direction)
        collect = composite("SgdMomentum", _new_momentum, *direction, damped)
        follow = composite("Sgd", _momentum_step, *direction, nesterov)

        def values() -> tuple[float, ...]:
            return (group["lr"], group["weight_decay"])

        def rates() -> tuple[float, ...]:
            return (group["momentum"], 1.0, 1.0 - group["dampening"])

        known: dict[DType, _Numbers] = {}
        more: dict[DType, _Momentum] = {}
        for p in group["params"]:
            grad = p._grad
            if grad is None:
                continue
            node: Node = p.node
            n = known.get(node.dtype)
            if n is None:
                n = known[node.dtype] = _Numbers(*self._numbers(values, node.dtype))
            g: Node = grad.node
            if not momentum:
                p._become(apply(plain, node, g, n.lr, n.decay))
                continue
            state = self.state[p]
            buffer = state.get("momentum_buffer")
            # The first step differs by a number only, so that it is the same program.
            m = more.get(node.dtype)
            if m is None:
                m = more[node.dtype] = _Momentum(*self._numbers(rates, node.dtype))
            share = m.settled
            if buffer is None:
                buffer = state["momentum_buffer"] = full_for(node)
                share = m.fresh
            # A model whose dtype has changed keeps the momenta that it had.
            before, kept = b.cast(buffer.node, node.dtype), buffer.dtype
            buffer._become(b.cast(apply(collect, node, g, n.decay, before, m.rate, share), kept))
            after = b.cast(buffer.node, node.dtype)
            p._become(apply(follow, node, g, n.lr, n.decay, after, m.rate))

    def _add_reads(self, group: Group, reads: Reads) -> bool:
        momentum = group["momentum"] != 0
        reads.choices += (
            momentum,
            group["weight_decay"] != 0,
            group["dampening"] != 0,
            not group["nesterov"],
            not group["maximize"],
        )
        params = reads.add(group["params"])
        if momentum:
            states = self.state
            try:
                reads.tensors += [states[p]["momentum_buffer"] for p in params]
            except KeyError:  # the first step
                return False
        return True

    def _unpacked(self, p: Any, state: Any) -> dict[str, Any]:
        return {k: v for k, v in super()._unpacked(p, state).items() if v is not None}
