"""Which tensors share memory: after assignments to ``data``, and changes of shape in place."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")


def _parameter(m: Any) -> Any:
    return m.tensor([[1.0, -2.0, 3.0], [0.5, -0.25, 0.125]], requires_grad=True)


def _other(m: Any) -> Any:
    return m.tensor([[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]])


def what_is_assigned_is_shared(m: Any) -> Any:
    p, other = _parameter(m), _other(m)
    p.data = other
    other.add_(1.0)
    p.data.mul_(2.0)
    with m.no_grad():
        p[0].zero_()
    row = other[1]
    row.fill_(7.0)
    return [p, other, row, p.requires_grad, other.requires_grad]


def an_optimizer_writes_to_what_was_assigned(m: Any) -> Any:
    p, other = _parameter(m), _other(m)
    p.data = other
    optimizer = m.optim.SGD([p], lr=0.5, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (p * p).sum().backward()
        optimizer.step()
    return [p, other, p.grad]


def a_part_is_assigned(m: Any) -> Any:
    p, flat = _parameter(m), m.arange(8.0)
    p.data = flat[1:7].view(2, 3)
    optimizer = m.optim.SGD([p], lr=0.5)
    (p * 2.0).sum().backward()
    optimizer.step()
    flat.add_(10.0)
    return [p, flat, p.is_leaf, p.requires_grad]


def parameters_in_one_vector(m: Any) -> Any:
    weight, bias, flat = _parameter(m), m.zeros(2, requires_grad=True), m.arange(8.0)
    weight.data, bias.data = flat[:6].view(2, 3), flat[6:]
    optimizer = m.optim.Adam([weight, bias], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        ((weight.sum(dim=1) + bias) ** 2).sum().backward()
        optimizer.step()
    return [weight, bias, flat]


def parameters_in_a_vector_that_is_gone(m: Any) -> Any:
    p = _parameter(m)
    p.data = m.arange(6.0).view(3, 2).t()
    optimizer = m.optim.SGD([p], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (p * p).sum().backward()
        optimizer.step()
    return [p]


def earlier_views_keep_the_memory(m: Any) -> Any:
    p, other = _parameter(m), _other(m)
    handle, row = p.data, p.detach()[0]
    own = p[1]
    p.data = other
    handle.add_(1.0)
    with m.no_grad():
        p.mul_(3.0)
    row.mul_(2.0)
    return [p, other, handle, row, own]


def earlier_views_of_what_requires_no_grad(m: Any) -> Any:
    x, y = _other(m), m.zeros(2, 3)
    row, column = x[0], x.t()[1]
    x.data = y
    row.add_(1.0)
    y[0, 1] = 9.0
    return [x, y, row, column]


def earlier_views_of_what_is_detached(m: Any) -> Any:
    h = _parameter(m) * 2
    x = h.detach()
    handle, row = x.data, x[0]
    x.data = _other(m)
    handle.add_(1.0)
    x.mul_(3.0)
    row.mul_(5.0)
    return [h, x, handle, row]


def gradients_go_where_they_went(m: Any) -> Any:
    p, other = _parameter(m), _other(m)
    own = p[0]
    p.data = other
    (own * own).sum().backward()
    (p * p).sum().backward()
    return [p.grad, own.requires_grad]


def a_result_shares_what_it_is_given(m: Any) -> Any:
    p, other = _parameter(m), _other(m)
    h = p * 2
    detached = h.detach()
    h.data = other
    detached.add_(1.0)
    h.data.mul_(2.0)
    h.sum().backward()
    return [h, detached, other, p.grad, h.requires_grad]


def back_and_forth(m: Any) -> Any:
    p, shadow, seen = _parameter(m), _other(m), []
    kept = shadow[0]
    for _ in range(5):
        own, p.data = p.data, shadow
        p.data.add_(1.0)
        seen += [p.detach().clone(), own.clone(), kept.clone()]
        p.data = own
        own.mul_(0.5)
        seen += [p.detach().clone(), shadow.clone()]
    return [p, own, shadow, *seen]


def swapped(m: Any) -> Any:
    a, b = _parameter(m), _other(m).requires_grad_()
    first, second = a.data, b.data
    for _ in range(3):
        a.data, b.data = b.data, a.data
        a.data.add_(1.0)
    return [a, b, first, second]


def its_own_data(m: Any) -> Any:
    p, x = _parameter(m), _other(m)
    handle, row = p.detach(), x[0]
    p.data = p.data
    x.data = x
    handle.add_(1.0)
    row.add_(1.0)
    x.t_()
    x.data = x
    x.add_(1.0)
    return [p, handle, x, row]


def one_memory_for_three(m: Any) -> Any:
    a, b, c = _parameter(m), _other(m).requires_grad_(), m.zeros(2, 3)
    a.data = b.data
    c.data = a.data
    c.add_(1.0)
    with m.no_grad():
        a.mul_(2.0)
    (a * b).sum().backward()
    return [a, b, c, a.grad, b.grad]


def an_array_is_left(m: Any) -> Any:
    first, second, third, fourth = (np.arange(n + 3.0, dtype="f") for n in range(4))
    x = m.from_numpy(first)
    x.data = m.ones(3) * 5
    x.add_(1.0)
    y = m.ones(3)
    y.data = m.from_numpy(second)
    y.add_(2.0)
    m.cat([x, y]).tolist()
    part = m.from_numpy(third)[1:].detach()
    part.mul_(3.0)
    whole = m.zeros(3)
    whole.data = m.from_numpy(fourth)[:3]
    whole.add_(1.0)
    m.cat([part, whole]).tolist()
    return [x, y, part, whole, *[a.tolist() for a in (first, second, third, fourth)]]


def a_view_before_a_change_of_shape(m: Any) -> Any:
    x, y, z = _other(m), _other(m), _other(m)
    row, flat, first = x[0], y.view(-1), z[0]
    x.t_()
    x.data = m.zeros(3, 2)
    y.t_()
    y.data = y.data + 1
    y.add_(1.0)
    z.unsqueeze_(0)
    z.add_(1.0)
    z.data = m.zeros(2)
    first.add_(1.0)
    return [x, y, z, row, flat, first]


def handles_before_a_change_of_shape(m: Any) -> Any:
    x = _other(m)
    row, handle = x[0], x.data
    handle.add_(3.0)
    x.t_()
    handle.add_(1.0)
    x.data = m.zeros(3, 2)
    handle.add_(1.0)
    row.add_(1.0)
    return [x, row, handle]


def soft_updates(m: Any) -> Any:
    p, target = _parameter(m), _other(m).requires_grad_()
    optimizer = m.optim.Adam([p], lr=0.1)
    handle = target.data
    for _ in range(3):
        optimizer.zero_grad()
        ((p - target.detach()) ** 2).sum().backward()
        optimizer.step()
        target.data.copy_(0.25 * p.data + 0.75 * target.data)
        handle[0].mul_(1.5)
    return [p, target, handle]


def written_through_data(m: Any) -> Any:
    p, g = _parameter(m), _other(m)
    p.data -= 0.5 * g
    p.data[0] = 3.0
    p.data[1:, 1] = g[1:, 1]
    p.data[p.data > 2.0] = 0.25
    p.data.clamp_(-1.0, 1.0).mul_(2.0)
    p.data.view(-1)[4:].zero_()
    p.data.t()[0].add_(1.0)
    p.data.lerp_(g.data, 0.25)
    p.data[0] += 1.0
    return [p]


CASES: list[Callable[[Any], Any]] = [
    what_is_assigned_is_shared,
    an_optimizer_writes_to_what_was_assigned,
    a_part_is_assigned,
    parameters_in_one_vector,
    parameters_in_a_vector_that_is_gone,
    earlier_views_keep_the_memory,
    earlier_views_of_what_requires_no_grad,
    earlier_views_of_what_is_detached,
    gradients_go_where_they_went,
    a_result_shares_what_it_is_given,
    back_and_forth,
    swapped,
    its_own_data,
    one_memory_for_three,
    an_array_is_left,
    a_view_before_a_change_of_shape,
    handles_before_a_change_of_shape,
    soft_updates,
    written_through_data,
]


def _plain(values: list[Any]) -> list[Any]:
    return [v.detach().numpy() if hasattr(v, "detach") else v for v in values]


@pytest.mark.parametrize("case", CASES)
def test_as_in_torch(case: Callable[[Any], Any]) -> None:
    for got, want in zip(_plain(case(mt)), _plain(case(torch)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def _step(m: Any, tensors: list[Any], step: tuple[str, int, int, int]) -> None:
    name, i, j, k = step
    t, other = tensors[i % len(tensors)], tensors[j % len(tensors)]
    views = [
        lambda x: x[0],
        lambda x: x[1:],
        lambda x: x.t() if x.dim() == 2 else x[..., :2],
        lambda x: x.reshape(-1),
        lambda x: x.detach(),
        lambda x: x.data,
        lambda x: x.unsqueeze(0),
    ]
    view = views[k % len(views)]
    if name == "view":
        tensors.append(view(t))
    elif name == "tensor":
        tensors.append((m.arange(6.0).reshape(2, 3) + k).requires_grad_(k % 2 == 0))
    elif name == "write":
        with m.no_grad():
            t.mul_(2.0).add_(float(k))
    elif name == "data":
        t.data[..., 0] = float(k)
    elif name == "assign":
        t.data = other
    elif name == "assign view":
        t.data = view(other)
    elif name == "assign result":
        t.data = other.detach().contiguous() + 1.0
    elif name == "swap":
        t.data, other.data = other.data, t.data
    elif name == "evaluate":
        t.tolist()
    elif name == "forget" and len(tensors) > 2:
        tensors.remove(tensors[i % len(tensors)])
    elif name == "change shape" and not t.requires_grad:
        t.t_() if t.dim() == 2 else t.unsqueeze_(0)


def _run(m: Any, steps: list[tuple[str, int, int, int]]) -> tuple[list[Any], list[int]]:
    """What the tensors show in the end, and which steps were taken."""
    tensors, taken = [m.arange(6.0).reshape(2, 3).clone(), m.ones(2, 3, requires_grad=True)], []
    for number, step in enumerate(steps):
        try:
            _step(m, tensors, step)
        except (RuntimeError, IndexError):
            continue
        taken.append(number)
    return [*_plain(tensors), *[t.requires_grad for t in tensors]], taken


NAMES = (
    *("view", "view", "view", "write", "data", "assign", "assign view", "assign result"),
    *("swap", "evaluate", "tensor", "change shape"),
)


@pytest.mark.parametrize("seed", range(150))
def test_random_programs(seed: int) -> None:
    draw = random.Random(seed)
    drawn = [
        (draw.choice(NAMES), draw.randrange(60), draw.randrange(60), draw.randrange(60))
        for _ in range(draw.randint(4, 14))
    ]
    steps = [drawn[number] for number in _run(torch, drawn)[1]]
    want, _ = _run(torch, steps)
    with config.override(target="numpy"):
        got, taken = _run(mt, steps)
    if len(taken) < len(steps):  # what has a history cannot get another shape
        return
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b)
