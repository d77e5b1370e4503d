"""Writes to results; most are not recorded: through ``detach()``, ``.data``, under ``no_grad()``.

The latter change values and nothing else: who requires grad, who is a leaf, where gradients, hooks
and ``retain_grad`` belong stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")


def _leaf(m: Any, *values: float) -> Any:
    return m.tensor(list(values or (1.0, -2.0, 3.0)), requires_grad=True)


def _after(y: Any, x: Any, *others: Any) -> list[Any]:
    """What is to be compared once ``y``, made from ``x``, has been written to."""
    flags = [t.requires_grad for t in (y, *others)] + [t.is_leaf for t in (y, *others)]
    values = [t.detach().clone() for t in (y, *others)]
    (y.sum() + (x * 0.5).sum()).backward()
    return [*flags, *values, x.grad]


def through_detach(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    d = y.detach()
    d.mul_(5.0)
    return _after(y, x, d)


def through_data(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y.data.clamp_(-1.0, 1.0)
    return _after(y, x)


def under_no_grad(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    with m.no_grad():
        y.add_(1)
    return _after(y, x)


def nested_no_grad(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    with m.no_grad():
        y.add_(1)
        with m.enable_grad():
            y.mul_(x)
            with m.no_grad():
                y.zero_()
        y[0] = 7.0
    return _after(y, x)


def many_writes(m: Any) -> Any:
    x = _leaf(m)
    y = x * x
    for _ in range(5):
        with m.no_grad():
            y.add_(1)
        y.data.mul_(2)
    return _after(y, x)


def of_a_layer(m: Any) -> Any:
    layer = m.nn.Linear(3, 3)
    with m.no_grad():
        layer.weight.fill_(0.5)
        layer.bias.fill_(1.0)
    h = layer(m.ones(2, 3))
    h.detach().mul_(2.0)
    h.sum().backward()
    return [h, layer.weight.grad, layer.bias.grad]


def evaluated_first(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y.tolist()
    with m.no_grad():
        y.add_(1)
    y.tolist()
    y.data.add_(1)
    return _after(y, x)


def value_is_used_in_products(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y.data.fill_(4.0)
    (y * y).sum().backward()
    return [x.grad]


def of_a_view(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    v = y[0:2]
    with m.no_grad():
        v.zero_()
    return [*_after(v * 3 + y[1:], x), y, v, v.requires_grad, y.requires_grad]


def of_the_base_of_a_view(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    v = y[1:]
    y.data.add_(1)
    return [*_after(v, x), y, v]


def view_of_view(m: Any) -> Any:
    x = _leaf(m, 1.0, 2.0, 3.0, 4.0)
    y = x * 2
    v = y.reshape(2, 2).T[1]
    with m.no_grad():
        v.mul_(10)
    return [*_after(y, x), v, v.requires_grad]


def detached_view(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y[1:].detach().zero_()
    return _after(y, x)


def view_of_detached(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    d = y.detach()
    e = d[1:]
    e[0] = 9.0
    e.detach()[1:].mul_(3)
    return [*_after(y, x, d, e), d.requires_grad]


def detached_twice(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y.data[1:].data.detach()[0:1].fill_(8.0)
    return _after(y, x)


def what_is_written_has_a_history(m: Any) -> Any:
    x, w = _leaf(m), _leaf(m, 4.0, 5.0, 6.0)
    y = x * 2
    with m.no_grad():
        y.copy_(w * 2)
    return [*_after(y, x), w.grad]


def a_detached_tensor_has_its_own_history(m: Any) -> Any:
    x, w = _leaf(m), _leaf(m, 4.0, 5.0, 6.0)
    y = x * 2
    d = y.detach()
    d.mul_(w)
    (d * 3).sum().backward(retain_graph=True)
    return [*_after(y, x, d), w.grad]


def a_detached_tensor_keeps_its_own_history(m: Any) -> Any:
    x, w = _leaf(m), _leaf(m, 4.0, 5.0, 6.0)
    y = x * 2
    d = y.detach()
    d.mul_(w)
    y.data.fill_(2.0)
    d.data.add_(1.0)
    (d * 3).sum().backward(retain_graph=True)
    return [*_after(y, x, d), w.grad]


def views_of_a_detached_tensor_share_its_history(m: Any) -> Any:
    x, w = _leaf(m), _leaf(m, 4.0, 5.0)
    y = x * 2
    d = y.detach()
    e = d[1:]
    e.mul_(w)
    (d * 3).sum().backward(retain_graph=True)
    e.sum().backward()
    return [*_after(y, x, d, e), w.grad]


def a_detached_leaf(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    d = y.detach().requires_grad_()
    with m.no_grad():
        d.mul_(2)
    (d * d).sum().backward()
    return [*_after(y, x, d), d.grad]


def values_used_before(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    z = (y + 1).sum()
    y.data.mul_(3)
    return [*_after(y, x), z]


def hooks_and_retain_grad(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y.retain_grad()
    seen = []
    y.register_hook(lambda g: seen.append(g.clone()))
    before = y * 3
    with m.no_grad():
        y.add_(1)
    y.register_hook(lambda g: g * 10)
    removed = y.register_hook(lambda g: g * 100)
    removed.remove()
    with y.register_hook(lambda g: g * 1000):
        pass
    (before + y * 5).sum().backward()
    return [*seen, y.grad, x.grad]


def retained_by_grad(m: Any) -> Any:
    x = _leaf(m)
    y = x * 3
    y.retain_grad()
    loss = (y * y).sum()
    found = []
    for create in (False, True):
        found += m.autograd.grad(loss, [x], retain_graph=True, create_graph=create)
        found.append(y.grad.detach().clone())
    found += m.autograd.grad(loss, [x, y], retain_graph=True)
    loss.backward()
    return [*found, y.grad, x.grad]


def retain_grad_afterwards(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    before = y * 3
    y.data.mul_(2)
    y.retain_grad()
    (before + y * 5).sum().backward()
    return [y.grad, x.grad]


def retain_grad_of_a_recorded_write(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y.retain_grad()
    with m.no_grad():
        y.add_(1)
    y.mul_(4)
    (y * 5).sum().backward()
    return [y.grad, x.grad]


def retain_grad_of_a_view(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    v = y[1:]
    v.retain_grad()
    with m.no_grad():
        y.add_(1)
    (v * 5).sum().backward()
    return [v.grad, x.grad]


def grad_of(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    before = y * 3
    y.data.add_(1)
    both = m.autograd.grad((before + y * 5).sum(), [x, y], retain_graph=True)
    return [*both, m.autograd.grad(y.sum(), y)[0]]


def backward_to_inputs(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y.data.add_(1)
    (y * 5).sum().backward(inputs=[y])
    return [y.grad, x.grad]


def second_derivatives(m: Any) -> Any:
    x = _leaf(m)
    y = x * x
    with m.no_grad():
        y.add_(1)
    (g,) = m.autograd.grad((y * x).sum(), x, create_graph=True)
    (h,) = m.autograd.grad(g.sum(), x)
    return [g, h, g.requires_grad]


def twice_with_retain_graph(m: Any) -> Any:
    x = _leaf(m)
    y = x * x
    y.data.add_(1)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return [x.grad]


def after_backward(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y.sum().backward()
    with m.no_grad():
        y.mul_(3)
    return [y, y.requires_grad, y.is_leaf, x.grad]


def data_is_assigned(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y.data = m.tensor([5.0, 6.0, 7.0])
    return _after(y, x)


def an_accumulated_gradient_keeps_its_history(m: Any) -> Any:
    x = _leaf(m)
    m.autograd.backward((x * x * x).sum(), create_graph=True)
    (x * 2).sum().backward()
    kept = x.grad
    flags = [kept.requires_grad, kept.is_leaf]
    (g,) = m.autograd.grad(kept.sum(), x)
    return [*flags, kept, g]


def a_zeroed_gradient_has_none(m: Any) -> Any:
    x = _leaf(m)
    optimizer = m.optim.SGD([x], lr=1.0)
    m.autograd.backward((x * x).sum(), create_graph=True)
    kept = x.grad
    optimizer.zero_grad(set_to_none=False)
    return [kept, kept.requires_grad, kept.is_leaf, kept is x.grad]


def detached_in_place(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    z = y * 3
    same = y.detach_() is y
    z.sum().backward()
    return [same, y, y.requires_grad, y.is_leaf, x.grad]


def an_optimizer_writes_to_what_its_parameter_shares(m: Any) -> Any:
    x = m.zeros(4)
    p = x[1:3].detach().requires_grad_()
    optimizer = m.optim.SGD([p], lr=1.0)
    (p * 2).sum().backward()
    optimizer.step()
    return [x, p, p.is_leaf, p.requires_grad]


def zeroed(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y.zero_()
    return _after(y, x)


def filled_in_part(m: Any) -> Any:
    x = _leaf(m)
    y = x * 2
    y[:2].fill_(7.0)
    return _after(y, x)


def copied_over(m: Any) -> Any:
    x = _leaf(m)
    y = x.log()  # NaN, which must not reach the gradient
    y.copy_(m.ones(3))
    return _after(y, x)


def assigned_data_leaves_earlier_handles(m: Any) -> Any:
    a, b = m.nn.Parameter(m.ones(2)), m.nn.Parameter(m.zeros(2))
    a.data, b.data = b.data, a.data
    p = m.nn.Parameter(m.ones(2))
    handle, part = p.detach(), p.data[0]
    handle.mul_(3.0)
    p.data = m.full((2,), 7.0)
    before = [handle.clone(), part.clone(), p.detach().clone()]
    handle.add_(1.0)  # still shared by those that came before, but not by the parameter
    with m.no_grad():
        p.mul_(2.0)
    after = [handle.clone(), p.detach().clone(), p.data.clone()]
    p.data = handle
    return [a, b, *before, *after, p]


def averaged_weights_come_and_go(m: Any) -> Any:
    w = m.nn.Parameter(m.ones(3))
    optimizer, shadow, seen = m.optim.SGD([w], lr=0.5), w.data.clone(), []
    for _ in range(4):
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()
        shadow = shadow * 0.9 + w.data * 0.1
        own, w.data = w.data, shadow
        seen.append((w * 2).detach())
        w.data = own
        seen.append(w.detach().clone())
    return seen


CASES: list[Callable[[Any], Any]] = [
    zeroed,
    filled_in_part,
    copied_over,
    through_detach,
    through_data,
    under_no_grad,
    nested_no_grad,
    many_writes,
    of_a_layer,
    evaluated_first,
    value_is_used_in_products,
    of_a_view,
    of_the_base_of_a_view,
    view_of_view,
    detached_view,
    view_of_detached,
    detached_twice,
    what_is_written_has_a_history,
    a_detached_tensor_has_its_own_history,
    a_detached_tensor_keeps_its_own_history,
    views_of_a_detached_tensor_share_its_history,
    a_detached_leaf,
    values_used_before,
    hooks_and_retain_grad,
    retained_by_grad,
    retain_grad_afterwards,
    retain_grad_of_a_recorded_write,
    retain_grad_of_a_view,
    grad_of,
    backward_to_inputs,
    second_derivatives,
    twice_with_retain_graph,
    after_backward,
    data_is_assigned,
    assigned_data_leaves_earlier_handles,
    averaged_weights_come_and_go,
    an_accumulated_gradient_keeps_its_history,
    a_zeroed_gradient_has_none,
    detached_in_place,
    an_optimizer_writes_to_what_its_parameter_shares,
]


def _plain(result: list[Any]) -> list[Any]:
    return [r.detach().numpy().tolist() if hasattr(r, "detach") else r for r in result]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("case", CASES)
def test_as_in_torch(case: Callable[[Any], Any]) -> None:
    np.testing.assert_equal(_plain(case(mt)), _plain(case(torch)))
