"""Gradients of tensors that have been updated since they were used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")


def _step(lib: Any, p: Any) -> None:
    p.grad = lib.ones(2)
    lib.optim.SGD([p], lr=0.1).step()
    p.grad = None


UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "sub_": lambda lib, p: p.sub_(0.1),
    "copy_": lambda lib, p: p.copy_(lib.zeros(2)),
    "data": lambda lib, p: p.data.mul_(2),
    "new data": lambda lib, p: setattr(p, "data", lib.zeros(2)),
    "step": _step,
}
QUESTIONS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "grad": lambda lib, loss, p, q: lib.autograd.grad(loss, [q, p]),
    "unused": lambda lib, loss, p, q: lib.autograd.grad(loss, [p, q], allow_unused=True),
    "twice": lambda lib, loss, p, q: lib.autograd.grad(loss, [p, p]),
    "backward": lambda lib, loss, p, q: (loss.backward(inputs=[p]), p.grad, q.grad)[1:],
    "plain": lambda lib, loss, p, q: (loss.backward(), p.grad, q.grad)[1:],
}


@pytest.mark.parametrize("ask", QUESTIONS)
@pytest.mark.parametrize("update", UPDATES)
def test_a_leaf_that_was_updated_is_found(update: str, ask: str) -> None:
    found = []
    for lib in (torch, mt):
        p, q = (lib.nn.Parameter(lib.ones(2) * n) for n in (1, 2))
        loss = (p * 3).sum() + (q * 5).sum()
        with lib.no_grad():
            UPDATES[update](lib, p)
        loss = loss + (p * 4).sum()  # the same leaf, another value
        answer = QUESTIONS[ask](lib, loss, p, q)
        found.append([None if g is None else g.tolist() for g in answer])
    assert found[0] == found[1]


def test_what_is_differentiated_by_may_come_from_a_generator() -> None:
    found = []
    for m in (mt, torch):
        leaves = [m.tensor([float(n)], requires_grad=True) for n in (2, 3)]
        product = (leaves[0] * leaves[1]).sum()
        product.backward(inputs=(t for t in leaves[:1]), retain_graph=True)
        assert leaves[1].grad is None
        grads = m.autograd.grad(product, (t for t in leaves))
        found.append([leaves[0].grad.item(), *[g.item() for g in grads]])
    assert found[0] == found[1] == [3.0, 3.0, 2.0]
