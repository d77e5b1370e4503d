"""A second ``backward()`` through what saves nothing for it, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS

torch = pytest.importorskip("torch")


def _parameter(m: Any) -> Any:
    return ((m.arange(6.0).reshape(2, 3) + 1) / 6).requires_grad_()


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "slice": lambda m, p: p[0, 1:],
    "view": lambda m, p: p.view(-1),
    "transpose": lambda m, p: p.t(),
    "expand": lambda m, p: p.unsqueeze(0).expand(4, 2, 3),
    "diagonal": lambda m, p: p.diagonal(),
    "unfold": lambda m, p: p.unfold(1, 2, 1),
    "chunk": lambda m, p: p.chunk(2)[1],
    "add": lambda m, p: p + p + 1,
    "sub": lambda m, p: 1 - p,
    "neg": lambda m, p: -p,
    "sum": lambda m, p: p.sum(0),
    "mean": lambda m, p: p.mean(0),
    "cat": lambda m, p: m.cat([p, p[:1]]),
    "stack": lambda m, p: m.stack([p, p]),
    "cumsum": lambda m, p: p.cumsum(0),
    "clone": lambda m, p: p.clone(),
    "double": lambda m, p: p.double(),
    "flip": lambda m, p: p.flip(0),
    "roll": lambda m, p: p.roll(1, 0),
    "repeat": lambda m, p: p.repeat(2, 2),
    "pad": lambda m, p: m.nn.functional.pad(p, (1, 1)),
    "tril": lambda m, p: p.tril(),
    "trace": lambda m, p: m.trace(p),
    "in place": lambda m, p: p.clone().add_(1),
    "bias": lambda m, p: m.nn.functional.linear(m.ones(4, 3), m.ones(2, 3), p[:, 0]),
    "mul": lambda m, p: p * 2,
    "div": lambda m, p: p / 2,
    "square": lambda m, p: (p * p)[0],
    "exp": lambda m, p: p.exp() + 1,
    "abs": lambda m, p: p.abs(),
    "relu": lambda m, p: p.relu().view(-1),
    "max": lambda m, p: p.max(),
    "where": lambda m, p: m.where(m.ones(2, 3) > 0, p, 0 * p),
    "gather": lambda m, p: p[[0, 1], [1, 2]],
    "softmax": lambda m, p: p.softmax(1),
    "linear": lambda m, p: m.nn.functional.linear(m.ones(4, 3), p),
    "norm": lambda m, p: p.norm(),
    "var": lambda m, p: p.var(),
}


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RuntimeError as error:
        return str(error)


def _twice(m: Any, function: Callable[[Any, Any], Any], evaluate: bool) -> list[Any]:
    found = []
    p = _parameter(m)
    y = function(m, p)
    for number in range(3):
        loss = y.sum() if number < 2 else (y * y).sum()
        found.append(_tried(loss.backward))
        found.append(_tried(loss.backward))
        found.append(None if p.grad is None else p.grad.tolist())
        if evaluate:
            found.append(y.tolist())
    return found


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str, evaluate: bool) -> None:
    got, want = (_twice(m, FUNCTIONS[name], evaluate) for m in (mt, torch))
    for a, b in zip(got, want, strict=True):
        if isinstance(b, list):
            np.testing.assert_allclose(a, b, rtol=1e-5)
        else:
            assert a == b


def test_leaves_hooks_and_results_are_found_again() -> None:
    found = []
    for m in (mt, torch):
        p, seen = _parameter(m), []
        row = p[0]
        row.retain_grad()
        rest = row[1:]
        rest.sum().backward()
        p.register_hook(lambda g, seen=seen: seen.append(g.tolist()))
        row.register_hook(lambda g: g * 10)
        rest.tolist()
        (rest * m.tensor([1.0, 2.0])).sum().backward()
        grads = m.autograd.grad(rest.sum(), [row, p], create_graph=True)
        (row * row).sum().backward()
        found.append([seen, p.grad.tolist(), row.grad.tolist(), *[g.tolist() for g in grads]])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_it_is_the_same_in_every_step_of_a_loop() -> None:
    found = []
    for m in (mt, torch):
        p = _parameter(m)
        optimizer = m.optim.SGD([p], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            row, square = p[0], p[1] * p[1]
            (row * 2).sum().backward()
            (row * row).sum().backward()
            square.sum().backward()
            with pytest.raises(RuntimeError, match="a second time"):
                square.sum().backward()
            optimizer.step()
            row.sum().backward()  # the leaf is another value by now
        found.append([p.detach().numpy(), p.grad.numpy()])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_a_view_that_may_be_passed_again_does_not_keep_memory() -> None:
    p = mt.ones(64, requires_grad=True)
    optimizer = mt.optim.SGD([p], lr=0.1)
    for n in range(12):
        loss = p.view(8, 8)[2:].sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if n == 6:
            before = EVENTS.snapshot()
    assert EVENTS.get("donations_declined") == before.get("donations_declined", 0)
    assert EVENTS.get("compiles") == before["compiles"]
    loss.backward()  # of the value of now
    assert p.grad is not None
    assert p.grad.tolist() == [0.0] * 16 + [1.0] * 48


def test_a_long_history() -> None:
    p = mt.ones(2, requires_grad=True)
    with config.override(target="numpy"):
        total = p + p
        for _ in range(2000):
            total = total + p
        loss = total.sum()
        loss.backward()
        assert loss.item() == 4004
        loss.backward()
        assert p.grad is not None
        assert p.grad.tolist() == [4004.0, 4004.0]


def _values(m: Any, draw: random.Random, parameters: list[Any]) -> list[Any]:
    functions: list[Callable[[Any, Any], Any]] = [
        lambda x, y: x[0:1].expand(2, 3),
        lambda x, y: x.t().reshape(2, 3),
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: m.cat([x, y])[1:3],
        lambda x, y: x.mean(0, keepdim=True) + y,
        lambda x, y: m.stack([x, y])[1],
        lambda x, y: x.cumsum(1),
        lambda x, y: x * y,
        lambda x, y: x.tril(),
    ]
    values = list(parameters)
    for _ in range(draw.randint(1, 5)):
        function = draw.choice(functions)
        values.append(function(draw.choice(values), draw.choice(values)))
    return values[len(parameters) :]


def _random_program(m: Any, seed: int) -> list[Any]:
    draw, found = random.Random(seed), []
    p, q = _parameter(m), m.full((2, 3), 0.5).requires_grad_()
    optimizer = m.optim.SGD([p, q], lr=0.1)
    values = _values(m, draw, [p, q])
    for _ in range(draw.randint(2, 5)):
        v, keep, kind = draw.choice(values), draw.random() < 0.2, draw.randrange(3)
        loss = [v.sum(), (v[0] * 2).sum(), (v + p).sum()][kind]
        found.append(_tried(lambda loss=loss, keep=keep: loss.backward(retain_graph=keep)))
        if found[-1] is not None:
            optimizer.zero_grad()
        if draw.random() < 0.3:
            found.append(v.tolist())
        if draw.random() < 0.2:
            optimizer.step()
    return [*found, *[None if x.grad is None else x.grad.tolist() for x in (p, q)], p.tolist()]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    with config.override(target="numpy"):
        got = _random_program(mt, seed)
    want = _random_program(torch, seed)
    if any(isinstance(w, str) and "inplace" in w for w in want):
        return  # what has been overwritten is still there
    for a, b in zip(got, want, strict=True):
        if isinstance(b, list):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert a == b
