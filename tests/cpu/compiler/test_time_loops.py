"""Loops that slice a tensor at every step: their kernels are the same, told by addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import kernels
from minitorch_tvm.core import config
from minitorch_tvm.ir.graph import Value
from minitorch_tvm.ir.node import BUFFER
from minitorch_tvm.ir.op import op_of
from minitorch_tvm.ops.elementwise import Exp
from minitorch_tvm.ops.movement import Slice


def _loop(x: Any, gate: Any, w: Any, lib: Any, steps: int) -> Any:
    state, found = x[:, 0] * 0, []
    for t in range(steps):
        before = x[:, max(t - 1, 0)]
        state = lib.tanh(x[:, t] * state + before @ w + gate[:, t, 1:4])
        found.append(state)
    return lib.stack(found, 1)


def _turned_loop(x: Any, gate: Any, w: Any, lib: Any, steps: int) -> Any:
    """The same, of inputs whose first dimension is made that of time."""
    x, gate = x.transpose(0, 1), gate.transpose(0, 1) * 1.5 / 1.5
    state, found = x[0] * 0, []
    for t in range(steps):
        state = lib.tanh(x[t] * state + x[max(t - 1, 0)] @ w + gate[t, :, 1:4])
        found.append(state)
    return lib.stack(found, 1)


def _numpy_loop(x: Any, gate: Any, w: Any, steps: int) -> Any:
    state, found = x[:, 0] * 0, []
    for t in range(steps):
        state = np.tanh(x[:, t] * state + x[:, max(t - 1, 0)] @ w + gate[:, t, 1:4])
        found.append(state)
    return np.stack(found, 1)


@pytest.mark.parametrize("loop", [_loop, _turned_loop])
@pytest.mark.parametrize("grad", [False, True])
def test_longer_loops_need_no_more_kernels(
    loop: Callable[..., Any], grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, made = np.random.default_rng(0), 0
    new = kernels.Kernels._new

    def counted(*given: Any) -> Any:
        nonlocal made
        made += 1
        return new(*given)

    monkeypatch.setattr(kernels.Kernels, "_new", counted)
    counts = []
    for steps in (8, 24):
        lazy.clear_cache()
        made = 0
        x, gate = rng.standard_normal((3, steps, 3)), rng.standard_normal((3, steps, 6))
        w = rng.standard_normal((3, 3))
        given = [mt.tensor(a.astype(np.float32), requires_grad=grad) for a in (x, gate, w)]
        y = loop(*given, mt, steps)
        np.testing.assert_allclose(y.detach().numpy(), _numpy_loop(x, gate, w, steps), atol=1e-4)
        if grad:
            y.sum().backward()
            _ = [p.grad.numpy() for p in given if p.grad is not None]
        assert len(lazy.last_executor().program.kernels) > steps // 4
        counts.append(made)
    assert counts[1] <= counts[0] + 4


def test_steps_of_a_part_are_slices_of_the_whole() -> None:
    array = np.arange(120.0).reshape(2, 10, 6)
    x = mt.tensor(array, requires_grad=True)
    part = x.split([1, 3, 2], 2)[1][:, 1::2]
    y = sum((part[:, t, ::2] * float(t + 1) for t in range(5)), mt.zeros(2, 2, dtype=mt.float64))
    (g,) = mt.autograd.grad(y.sum(), x)
    mt.eval(y, g)
    values = lazy.last_executor().program.graph.values
    slices = [v for v in values if isinstance(v.op, Slice)]
    assert len(slices) >= 5
    assert not any(isinstance(values[v.inputs[0]].op, Slice) for v in slices)
    weights = np.arange(1.0, 6.0)[:, None]
    wanted = np.zeros_like(array)
    wanted[:, 1::2, 1:4:2] = weights
    np.testing.assert_array_equal(g.numpy(), wanted)
    np.testing.assert_array_equal(y.detach().numpy(), (array[:, 1::2, 1:4:2] * weights).sum(1))


def test_what_is_read_anywhere_is_what_is_there() -> None:
    rng = np.random.default_rng(1)
    array = rng.standard_normal((6, 10, 7)).astype(np.float32)
    x = mt.from_numpy(array)
    results, wanted = [], []
    for n in range(60):
        a, b, c = (int(rng.integers(0, size - 2)) for size in array.shape)
        step = 1 + n % 2
        take = (slice(a, a + 2), slice(b, b + 3, step), slice(c, c + 2))
        also = (slice(0, 2), slice(b, b + 3, step), slice(c, c + 2))
        part, other = x[take], x[also]
        results.append(part.exp() - other if n % 3 else part.exp().sum(1))
        this, that = np.exp(array[take]), array[also]
        wanted.append(this - that if n % 3 else this.sum(1))
    mt.eval(*results)
    for found, true in zip(results, wanted, strict=True):
        np.testing.assert_allclose(found.numpy(), true, rtol=1e-5, atol=1e-6)


def test_what_is_read_anywhere_of_what_was_turned() -> None:
    rng = np.random.default_rng(3)
    array = rng.standard_normal((6, 10, 7)).astype(np.float32)
    x = mt.from_numpy(array)
    results, wanted = [], []
    for n in range(60):
        axes, again = rng.permutation(3).tolist(), rng.permutation(3).tolist()
        turned, true = x.permute(*axes), array.transpose(axes)
        if n % 2:
            turned, true = turned.exp() * 0.5, np.exp(true) * 0.5
        if n % 3:
            turned, true = turned.permute(*again), true.transpose(again)
        if n % 5 == 0:  # all of it is wanted, too
            results.append(turned)
            wanted.append(true)
        if n % 7 == 0:
            turned, true = turned * turned, true * true
        starts = [int(rng.integers(0, size - 2)) for size in true.shape]
        take = tuple(slice(a, a + 2, 1 + n % 2) for a in starts)
        if n % 4:
            other, rest = x[:2, 3:5, 4:6], array[:2, 3:5, 4:6]
        else:
            other, rest = turned[1:3, :2, 2:4], true[1:3, :2, 2:4]
        results.append(turned[take].sum(0) + other.sum())
        wanted.append(true[take].sum(0) + rest.sum())
    mt.eval(*results)
    for found, true in zip(results, wanted, strict=True):
        np.testing.assert_allclose(found.numpy(), true, rtol=1e-4, atol=1e-5)


def test_what_is_computed_as_a_whole_is_all_of_it() -> None:
    leaf = Value(BUFFER, (), (4, 6), mt.float32)
    scaled = Value(op_of(Exp), (0,), (4, 6), mt.float32)
    part = Value(op_of(Slice, (2, 3), (4, 5), (1, 1)), (1,), (2, 2), mt.float32)
    for inlined, bytes_ahead in (({1}, {0: 4 * 15}), (set[int](), {})):
        assert kernels._from_the_front([leaf, scaled, part], [0], inlined) == bytes_ahead


def test_what_is_updated_in_place_is_written_where_it_is() -> None:
    array = np.arange(24.0).reshape(2, 12)
    x = mt.tensor(array)
    for n in range(1, 11):
        x.copy_(x + mt.nn.functional.pad(x[:, n : n + 1].expand(2, 3), (9, 0)))
        mt.eval(x)
        array = array + np.pad(np.repeat(array[:, n : n + 1], 3, 1), ((0, 0), (9, 0)))
        np.testing.assert_allclose(x.numpy(), array)


def test_checks_see_the_same_program() -> None:
    rng = np.random.default_rng(2)
    x, gate = (mt.tensor(rng.standard_normal((2, 5, n)), requires_grad=True) for n in (3, 6))
    w = mt.tensor(rng.standard_normal((3, 3)), requires_grad=True)
    for settings in ({"validate": True}, {"poison": True}, {"schedule": "default"}):
        lazy.clear_cache()
        with config.override(**settings):
            y = _loop(x, gate, w, mt, 5)
            wanted = _numpy_loop(*(t.detach().numpy() for t in (x, gate, w)), 5)
            np.testing.assert_allclose(y.detach().numpy(), wanted, rtol=1e-12)
            (g,) = mt.autograd.grad(y.sum(), x)
            assert bool(g.isfinite().all())
    lazy.clear_cache()
    assert mt.autograd.gradcheck(lambda *given: _loop(*given, mt, 5).sum(), (x, gate, w))
