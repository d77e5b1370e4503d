"""What is left of a history that backward() has passed and may pass again: no value is kept for it.

PyTorch frees what operations have saved; those that save nothing (views, sums of tensors) can be
differentiated again.  Their nodes, too, let go of the values that they were made from, whose memory
others are to have.
"""

from __future__ import annotations

from .node import Node, leaf


def without_values(node: Node) -> tuple[Node, ...]:
    """What stands for the inputs of ``node``, of which its derivative reads the shapes only."""
    made: dict[int, Node] = {}
    stack = [*node.inputs]
    while stack:
        x = stack[-1]
        unknown: list[Node] = []
        if _is_passed(x):
            unknown = [i for i in x.inputs if id(i) not in made]
        if unknown:
            stack += unknown
            continue
        stack.pop()
        if id(x) not in made:
            made[id(x)] = _stand_in(x, made)
    return tuple([made[id(x)] for x in node.inputs])


def _is_passed(x: Node) -> bool:
    """Whether a value that may never be computed stands between others."""
    return x.requires_grad and not x.grad_leaf and x.pending and x.history is None


def _stand_in(x: Node, made: dict[int, Node]) -> Node:
    if x.requires_grad and not (x.grad_leaf or x.pending):
        return x
    stand_in = leaf(None, x.shape, x.dtype, x.spec_id)
    stand_in.sequence, stand_in.requires_grad = x.sequence, x.requires_grad
    if not x.requires_grad:
        return stand_in
    if x.hooks is None:
        x.hooks = []  # one list, for hooks that are still to come
    stand_in.owner, stand_in.hooks, stand_in.history = x.owner, x.hooks, x.history
    stand_in.grad_leaf = x.grad_leaf
    if not x.grad_leaf:
        stand_in.op, stand_in.freed, stand_in.again = x.op, True, True
    if _is_passed(x):
        stand_in.inputs = tuple([made[id(i)] for i in x.inputs])
    return stand_in
