"""Views of views, what is written through them, and what many small tensors become."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.node import MODE


def _index(rnd: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for n in shape[: rnd.randint(1, len(shape))]:
        kind = rnd.random()
        if kind < 0.15:
            found.append(None)
        if kind < 0.5 and n:
            found.append(rnd.randrange(-n, n))
        else:
            start = rnd.randint(0, n)
            found.append(slice(start, rnd.randint(start, n), rnd.choice([1, 1, 2, 3])))
    return (*found, ...) if rnd.random() < 0.3 else tuple(found)


@pytest.mark.parametrize("seed", range(40))
def test_parts_of_parts_are_numpys(seed: int) -> None:
    rnd = random.Random(seed)
    shape = tuple(rnd.randint(1, 4) for _ in range(rnd.randint(1, 3)))
    array = np.zeros(shape)
    whole = mt.zeros(shape, dtype=mt.float64) if seed % 2 else mt.tensor(array)
    known: list[tuple[mt.Tensor, Any]] = [(whole, array)]
    before: list[tuple[mt.Tensor, Any]] = []
    for step in range(12):
        x, a = rnd.choice(known)
        if not a.ndim:
            continue
        index = _index(rnd, a.shape)
        act = rnd.random()
        if act < 0.5:
            x[index], a[index] = float(step), float(step)
        elif act < 0.6:
            x[index] += 1.0
            a[index] += 1.0
        elif act < 0.7:
            before.append((x * 2, a * 2))
        else:
            part, of_array = x[index], a[index]
            known.append((part, of_array if isinstance(of_array, np.ndarray) else a[(*index, ...)]))
    for x, a in known + before:
        np.testing.assert_array_equal(x.numpy(), a)


@pytest.mark.parametrize("nothing", [slice(0, 0), slice(1, 1)])
def test_nothing_of_a_dimension_that_a_part_adds(nothing: slice) -> None:
    x = mt.zeros(3, 2)
    part = x[1, None][nothing]
    assert part.shape == (0, 2)
    part += 1
    assert x.sum().item() == 0


def test_gradients_pass_the_parts_between() -> None:
    x = mt.ones(3, 4, requires_grad=True)
    row = x[1]
    seen: list[Any] = []
    row.register_hook(lambda g: seen.append(g.tolist()))
    (g,) = mt.autograd.grad(row[2] * 3, row, retain_graph=True)
    assert g.tolist() == [0.0, 0.0, 3.0, 0.0]
    (row[2] * 3).backward()
    assert seen == [[0.0, 0.0, 3.0, 0.0]] * 2
    assert x.grad is not None
    assert x.grad.sum().item() == 3
    with mt.no_grad():
        x[0][1] = 5.0
        constant = x[0]
    assert not constant[1].requires_grad  # though in grad mode now, and of what requires it
    assert constant[1].item() == 5
    own = mt.zeros(4)[1:]
    own.requires_grad_()
    (own[0] * 2).backward()
    assert own.grad is not None
    assert own.grad.tolist() == [2.0, 0.0, 0.0]


def test_letters_that_are_set_one_by_one_are_data() -> None:
    letters, net = "abcdefghij", nn.Linear(10, 2)
    rnd, compiles = random.Random(0), 0
    weight, bias = net.weight.detach().numpy(), net.bias.detach().numpy()
    for number in range(30):
        word = [rnd.randrange(10) for _ in range(4)]
        if number == 6:
            compiles = EVENTS.get("compiles")
        code = mt.zeros(len(word), 1, len(letters))
        for i, letter in enumerate(word):
            code[i][0][letter] = 1
        with mt.no_grad():
            found = net(code).sum(0).numpy()
        np.testing.assert_allclose(found[0], sum(weight[:, k] + bias for k in word), rtol=1e-5)
    assert EVENTS.get("compiles") == compiles


def test_gradients_of_a_stack_read_what_they_are_of() -> None:
    """Not all that was stacked, each: recording would take longer by the square."""
    reads = []
    for count in (10, 40):
        parts = [mt.full((), float(i), requires_grad=True) for i in range(count)]
        mt.eval(*parts)
        MODE.trace.restart()
        (mt.stack(parts) * mt.arange(float(count))).sum().backward()
        nodes = [n for n in (value() for value in MODE.trace.values) if n is not None]
        reads.append(sum(len(n.inputs) for n in nodes))
        assert [p.grad.item() for p in parts if p.grad is not None] == [*range(count)]
    assert reads[1] <= 5 * reads[0]
    twice = mt.tensor([1.0, 2.0], requires_grad=True)
    (g,) = mt.autograd.grad((mt.stack([twice, twice * 3], 1) ** 3).sum(), twice, create_graph=True)
    (second,) = mt.autograd.grad(g.sum(), twice)
    np.testing.assert_allclose(g.detach().numpy(), 3 * (1 + 27) * np.array([1.0, 4.0]), rtol=1e-6)
    np.testing.assert_allclose(second.numpy(), 6 * (1 + 27) * np.array([1.0, 2.0]), rtol=1e-6)
    mixed = mt.ones(2, dtype=mt.float64, requires_grad=True)
    mt.stack([mt.ones(2), mixed]).sum().backward()
    assert mixed.grad is not None
    assert mixed.grad.dtype is mt.float64


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_many_computed_tensors_are_joined_in_memory(dim: int) -> None:
    arrays = [np.full((2, 3), i, np.float32) for i in range(12)]
    tensors = [mt.tensor(a) for a in arrays]
    joined = EVENTS.get("joined_at_once")
    np.testing.assert_array_equal(mt.cat(tensors, dim).numpy(), np.concatenate(arrays, dim))
    np.testing.assert_array_equal(mt.stack(tensors, dim).numpy(), np.stack(arrays, dim))
    assert EVENTS.get("joined_at_once") == joined + 2
    kept = mt.cat(tensors, dim)
    tensors[0] += 7  # which what is joined does not follow
    assert kept.min().item() == 0
    assert mt.cat(tensors, dim).max().item() == 11
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        mt.cat([*tensors, mt.zeros(4, 4)], dim)
    with pytest.raises(TypeError, match="expected Tensor as element 12 in argument 0, but got int"):
        mt.cat([*tensors, 3], dim)  # type: ignore[list-item]
    watched = [*tensors, mt.ones(2, 3, requires_grad=True)]
    mt.cat(watched, dim).sum().backward()
    assert watched[-1].grad is not None
    assert watched[-1].grad.sum().item() == 6


def test_a_draw_is_computed_once() -> None:
    net = nn.Linear(4, 3)
    mt.eval(*net.parameters())
    chosen = []
    for number in range(6):
        state = mt.tensor([[0.1, 0.2, 0.3, float(number)]])
        weights = net(state).softmax(1)
        evaluated, checked = EVENTS.get("evaluations"), EVENTS.get("check_evaluations")
        action = weights.multinomial(1)
        chosen.append(weights.log().gather(1, action))
        assert action.T.reshape(1).item() in (0, 1, 2)
        assert EVENTS.get("evaluations") == evaluated + 1
        assert EVENTS.get("check_evaluations") == checked
    mt.stack(chosen).sum().backward()
    assert net.weight.grad is not None
    drawn = mt.tensor([0.5, 0.5]).multinomial(3, replacement=True)
    assert mt.arange(2).gather(0, drawn).shape == (3,)
    for replacement in (False, True):
        with pytest.raises(RuntimeError, match=r"sum of probabilities <= 0|n_sample > prob_dist"):
            mt.zeros(2, 0).multinomial(1, replacement=replacement)


def test_computed_tensors_are_seen_in_another_shape_at_once() -> None:
    x = mt.tensor(np.arange(6.0).reshape(1, 6))
    for seen in (
        x.reshape(2, 3),
        x.view(6),
        x.T,
        x.permute(1, 0),
        x.unsqueeze(0),
        x[0],
        x.mT[:, 0],
    ):
        assert not seen.node.pending
        np.testing.assert_array_equal(seen.flatten().numpy(), np.arange(6.0))
    row = x.view(6)
    before = row * 2
    row[3] = 9.0
    assert x.tolist() == [[0, 1, 2, 9, 4, 5]]
    assert before.tolist() == [0, 2, 4, 6, 8, 10]
    x.mul_(2)
    assert row.tolist() == [0, 2, 4, 18, 8, 10]
    assert x.reshape(2, 3).T.node.pending  # elements move
    many = mt.tensor(np.zeros((64, 16)))
    assert many.view(-1).node.pending  # as an update in place could not take over its memory


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int32, np.int64])
def test_whole_numbers_are_written_to_floats_at_once(kind: Any) -> None:
    most = 1 if kind is np.bool_ else np.iinfo(kind).max
    values = np.array([0, 1, most, most - most // 3], kind)
    for dtype in (mt.float32, mt.float64):
        x = mt.zeros(2, 4, dtype=dtype)
        mt.eval(x)
        x[1] = mt.tensor(values)
        assert not x.node.pending
        assert x.tolist() == [[0.0] * 4, values.astype(dtype.numpy).tolist()]
