"""In-place operations and views behave as on shared memory, though no memory is shared."""

from __future__ import annotations

import weakref
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS

SHAPE = (3, 4)


@st.composite
def basic_index(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Integers, slices with positive steps, None and one Ellipsis."""
    items: list[Any] = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["int", "slice", "slice"] if n else ["slice"]))
        if kind == "int":
            items.append(draw(st.integers(-n, n - 1)))
        else:
            bound = st.none() | st.integers(-n - 1, n + 1)
            items.append(slice(draw(bound), draw(bound), draw(st.none() | st.integers(1, 3))))
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), None)
    if len(shape) - sum(i is not None for i in items) >= 0 and draw(st.booleans()):
        items.append(Ellipsis)
    return tuple(items)


def _view(draw: Any, t: Any, a: Any) -> tuple[Any, Any]:
    """The same random view of a tensor and of an array."""
    choice = draw(st.sampled_from(["index", "reshape", "transpose", "unsqueeze", "detach"]))
    if choice == "index":
        index = draw(basic_index(a.shape))
        # numpy gives an element, not a view of it, unless there is an Ellipsis.
        whole = index if Ellipsis in index else (*index, Ellipsis)
        return t[index], a[whole]
    if choice == "transpose" and a.ndim > 1:
        dims = draw(st.permutations(range(a.ndim)))
        return t.permute(dims), a.transpose(dims)
    if choice == "unsqueeze":
        dim = draw(st.integers(0, a.ndim))
        return t.unsqueeze(dim), np.expand_dims(a, dim)
    if choice == "reshape":
        return t.reshape(-1), a.reshape(-1)  # a copy, on both sides, unless evenly spaced
    return t.detach(), a


def _write(draw: Any, t: Any, a: Any) -> None:
    """The same random in-place operation on both."""
    value = float(draw(st.integers(-3, 3)))
    choice = draw(st.sampled_from(["set", "fill", "add", "mul", "copy", "iadd"]))
    if choice == "set":
        index = draw(basic_index(a.shape))
        t[index] = value
        a[index] = value
    elif choice == "fill":
        t.fill_(value)
        a[...] = value
    elif choice == "add":
        t.add_(t)
        a += a.copy()
    elif choice == "mul":
        t.mul_(value)
        a *= value
    elif choice == "copy":
        source = np.arange(a.size, dtype="f").reshape(a.shape)
        t.copy_(mt.tensor(source))
        a[...] = source
    else:
        t += value
        a += np.float32(value)


@hypothesis.given(st.data())
def test_random_programs_of_views_and_writes(data: st.DataObject) -> None:
    start = np.arange(12, dtype="f").reshape(SHAPE)
    root = mt.tensor(start)
    pairs: list[tuple[Any, Any]] = [(root, start.copy())]
    copies: list[tuple[Any, Any]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        t, a = pairs[data.draw(st.integers(0, len(pairs) - 1))]
        action = data.draw(st.sampled_from(["view", "view", "write", "write", "clone", "read"]))
        if action == "view":
            pairs.append(_view(data.draw, t, a))
        elif action == "write":
            if a.ndim == 0:
                t.add_(1)
                a[...] += 1
            else:
                _write(data.draw, t, a)
        elif action == "clone":
            copies.append((t.clone(), a.copy()))
        else:
            copies.append((t * 2, a * 2))
    mt.eval(*[t for t, _ in pairs + copies])
    for t, a in pairs + copies:
        assert tuple(t.shape) == a.shape
        np.testing.assert_array_equal(t.numpy(), a)


@hypothesis.given(st.data())
def test_random_indices_read_and_write(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 5), min_size=0, max_size=3)))
    size = int(np.prod(shape))
    array = np.arange(size, dtype="i8").reshape(shape)
    indices = data.draw(st.lists(basic_index(shape), min_size=1, max_size=4))
    reads = [(mt.tensor(array)[i], array[i]) for i in indices]
    writes = []
    for i in indices:
        t, a = mt.tensor(array), array.copy()
        value = -1 - np.arange(a[i].size).reshape(a[i].shape)
        t[i] = value if a[i].ndim else int(value)
        a[i] = value
        writes.append((t, a))
    mt.eval(*[t for t, _ in reads + writes])
    for t, a in reads + writes:
        assert tuple(t.shape) == np.shape(a)
        np.testing.assert_array_equal(t.numpy(), a)


def test_chain_of_views_writes_through_to_the_base() -> None:
    x = mt.zeros(4, 6)
    v = x[1:3].T[2:5, 1].reshape(3, 1)
    v.add_(1)
    v[0] = 5
    want = np.zeros((4, 6))
    want[2, 2:5] = [5, 1, 1]
    np.testing.assert_array_equal(x.numpy(), want)
    x.mul_(2)
    assert v.tolist() == [[10.0], [2.0], [2.0]]


def test_a_value_read_before_a_write_keeps_its_value() -> None:
    x = mt.tensor([1.0, 2.0])
    y = x * 10
    x[0] = 7.0
    z = x * 10
    x.zero_()
    assert (y.tolist(), z.tolist(), x.tolist()) == ([10.0, 20.0], [70.0, 20.0], [0.0, 0.0])


def test_detach_shares_and_clone_does_not() -> None:
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    shared, copied = x.detach(), x.clone()
    shared[0] = 9.0
    assert x.tolist() == [9.0, 2.0]
    assert x.requires_grad
    assert x.is_leaf
    assert copied.tolist() == [1.0, 2.0]
    with mt.no_grad():
        x.add_(1)
    assert shared.tolist() == [10.0, 3.0]
    assert not shared.requires_grad
    x.data = mt.tensor([4.0, 5.0])
    assert x.tolist() == [4.0, 5.0]
    assert x.is_leaf


def test_copies_are_independent_memory() -> None:
    source = mt.arange(3) + 0
    for target in (mt.zeros(3, dtype=mt.int64).copy_(source), source.clone(), mt.cat([source])):
        before = target.tolist()
        target.numpy()[0] = 99
        assert source.tolist() == [0, 1, 2]
        source.numpy()[1] = 77
        assert target.tolist() == [99, *before[1:]]
        source.numpy()[1] = 1


def test_two_tensors_of_one_value_are_independent_memory() -> None:
    x = mt.tensor([1.0, 2.0])
    a, b = x + 1, x + 1
    mt.eval(a, b)
    a.numpy()[0] = 50.0
    assert b.tolist() == [2.0, 3.0]
    c = x * 1
    d = c.reshape(2)
    mt.eval(c, d)
    c.add_(1)
    assert d.tolist() == [2.0, 3.0]


def test_inplace_methods_return_self_and_keep_dtype() -> None:
    x = mt.tensor([1, -2])
    for call in (
        lambda: x.add_(1),
        lambda: x.sub_(1, alpha=2),
        lambda: x.mul_(True),
        lambda: x.clamp_(min=-1),
        lambda: x.relu_(),
        lambda: x.zero_(),
        lambda: x.fill_(2.5),
    ):
        assert call() is x
        assert x.dtype is mt.int64
    assert x.tolist() == [2, 2]
    y = mt.ones(2)
    before = y
    y += mt.tensor([1.0, 2.0], dtype=mt.float64)
    y /= 2
    y -= 1
    y *= 3
    assert y is before
    assert y.dtype is mt.float32
    assert y.tolist() == [0.0, 1.5]


def test_gradients_through_writes() -> None:
    x = mt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    w = mt.tensor(4.0, requires_grad=True)
    y = x * 2
    y[1] = w * w
    view = y[1:]
    view.mul_(3)
    y.sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    assert x.grad.tolist() == [2.0, 0.0, 6.0]
    assert w.grad.item() == 24.0
    z = mt.zeros(3)
    z.copy_(x)
    assert z.requires_grad
    (z * z).sum().backward()
    assert x.grad.tolist() == [4.0, 4.0, 12.0]


def test_no_grad_keeps_history_out() -> None:
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    kept = mt.zeros(2)
    with mt.no_grad():
        kept.copy_(y)
        same_shape, total, joined = x.view(2), (x * 1)[0].sum(), mt.cat([x])
        kept_too = mt.zeros(2)
        kept_too[...] = y
    for t in (kept, same_shape, total, joined, kept_too):
        assert not t.requires_grad
    assert kept.tolist() == [2.0, 4.0]


def _clamp_data(y: mt.Tensor) -> None:
    y.data.clamp_(-1.0, 1.0)


def _scale_detached(y: mt.Tensor) -> None:
    y.detach().mul_(5.0)


def _add_under_no_grad(y: mt.Tensor) -> None:
    with mt.no_grad():
        y.add_(1)


def _zero_a_view(y: mt.Tensor) -> None:
    with mt.no_grad():
        y[0:1].zero_()


UNRECORDED = [
    (_clamp_data, [1.0, -1.0]),
    (_scale_detached, [10.0, -20.0]),
    (_add_under_no_grad, [3.0, -3.0]),
    (_zero_a_view, [0.0, -4.0]),
]


@pytest.mark.parametrize("mode", ["lazy", "eager"])
@pytest.mark.parametrize(("write", "values"), UNRECORDED)
def test_unrecorded_writes_change_values_and_keep_history(
    write: Any, values: list[float], mode: str
) -> None:
    with config.override(mode=mode):
        x = mt.tensor([1.0, -2.0], requires_grad=True)
        y = x * 2
        write(y)
        assert y.requires_grad
        assert not y.is_leaf
        assert y.grad_fn == "<MulBackward0>"
        (y * y).sum().backward()
    assert y.tolist() == values
    assert x.grad is not None
    assert x.grad.tolist() == [2 * 2 * v for v in values]  # 2 y of the value written, dy/dx of old


@pytest.mark.parametrize("write", [w for w, _ in UNRECORDED[:3]])
def test_what_an_unrecorded_write_replaces_is_not_computed(write: Any) -> None:
    x = mt.tensor([1.0, -2.0], requires_grad=True)
    y = x * 2
    old = weakref.ref(y.node)
    for _ in range(3):
        write(y)
    written = [weakref.ref(i) for i in y.node.inputs]
    assert y.tolist()
    program = lazy.last_executor().program
    assert (len(program.outputs), len(program.kernels), program.arena_bytes) == (1, 1, 0)
    assert all(r() is None for r in written)  # only the way back from the first value is kept
    assert old() is y.node.history
    y.sum().backward()
    assert old() is None


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_replaced_value_that_its_derivative_needs(evaluated: bool) -> None:
    x = mt.tensor([0.5, -1.0], requires_grad=True)
    y = x.exp()
    if evaluated:
        y.realize()
    y.data.zero_()
    assert y.tolist() == [0.0, 0.0]
    with mt.no_grad():
        x.fill_(9.0)
    assert x.tolist() == [9.0, 9.0]
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.exp([0.5, -1.0]), rtol=1e-6)


def test_unrecorded_writes_in_turn_take_over_memory() -> None:
    x = mt.ones(1000, requires_grad=True)
    y = (x * 2).realize()
    for _ in range(2):
        _add_under_no_grad(y)
        y.realize()
    before, address = EVENTS.get("donations_declined"), y.detach().numpy().ctypes.data
    _add_under_no_grad(y)
    y.realize()
    assert EVENTS.get("donations_declined") == before
    assert y.detach().numpy().ctypes.data == address


def test_a_tensor_with_history_keeps_its_kind_when_its_data_is_replaced() -> None:
    y = mt.ones(2, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match=r"must remain float32\[2\], but got float32\[3\]"):
        y.data = mt.ones(3)
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        y[0].detach_()


def test_results_that_change_nothing_are_not_the_same_tensor() -> None:
    x = mt.tensor(2.0, requires_grad=True)
    for y in (x.sum(), x.mean(), x.max(), x.reshape(()), x**1, x.squeeze(), x.amax(), x.expand(())):
        assert not y.is_leaf
        assert y.requires_grad
        y.retain_grad()
    (x * 3).backward()
    assert x.grad is not None
    assert x.grad.item() == 3.0
    plain = mt.tensor([1.0])
    alias = plain.reshape(1)
    alias.requires_grad_()
    assert not plain.requires_grad
    joined = mt.cat([plain]).requires_grad_()
    assert joined.is_leaf
    assert not plain.requires_grad


def test_reshape_of_what_is_not_evenly_spaced_is_a_copy() -> None:
    x = mt.arange(6.0).reshape(2, 3)
    before = x.tolist()
    for copy in (
        x.T.contiguous(),
        x.T.reshape(-1),
        x.T.flatten(),
        x[:, :2].reshape(-1),
        mt.nn.Flatten(0)(x[:, ::2]),
        x.expand(2, 2, 3).contiguous(),
        x.expand(2, 2, 3).reshape(4, 3),
    ):
        copy += 10
        assert copy.is_contiguous()
    assert x.tolist() == before
    for view in (x.reshape(6), x[1].reshape(3, 1), x[:, 1:].flatten(1), x.contiguous(), x.T.T):
        view += 10
    assert x.tolist() == [[30.0, 41.0, 42.0], [43.0, 54.0, 55.0]]


def test_copies_by_reshape_have_gradients_and_follow_nothing() -> None:
    x = mt.arange(6.0).reshape(2, 3).requires_grad_()
    y = x.T.contiguous()
    z = x.T.reshape(6)
    weights = mt.arange(6.0)
    (y.view(6) * weights + z * weights).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]
    with mt.no_grad():
        x.zero_()
    assert y.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert z.tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


def test_writes_to_one_repetition_reach_the_base() -> None:
    x = mt.tensor([[1.0], [2.0]], requires_grad=True)
    y = x * 1
    e = y.expand(3, 2, 4)
    e[1, :, 2].mul_(3)
    e[2, 0, 1:2] = 7
    e.permute(2, 1, 0)[3].T[1:][1].add_(1)
    assert y.tolist() == [[8.0], [7.0]]
    assert e.tolist() == [[[8.0] * 4, [7.0] * 4]] * 3
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0], [3.0]]
    for refused in (e, e[:, 0], e[0], e[0, :, :2], e.permute(1, 0, 2), e[:, 1:, 0].view(3)):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            refused.zero_()
    same = mt.ones(2).expand(2)
    assert same.expand(1, 2).zero_().tolist() == [[0.0, 0.0]]
    assert same.tolist() == [0.0, 0.0]
    empty = mt.ones(1).expand(0)
    assert empty.add_(1).tolist() == []


def test_compiled_functions_see_the_strides_of_arguments() -> None:
    @mt.compile
    def flat(t: mt.Tensor) -> mt.Tensor:
        part = t.reshape(-1)
        part += 1
        return part

    x = mt.arange(6.0).reshape(2, 3)
    assert flat(x.T).tolist() == [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
    assert x.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    y = mt.arange(6.0).reshape(3, 2)
    with pytest.warns(RuntimeWarning, match="changes an argument in place"):
        assert flat(y).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert y.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def test_detached_leaf_follows_its_memory() -> None:
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    d = x.detach().requires_grad_()
    with mt.no_grad():
        x.mul_(10)
    (d * d).sum().backward()
    assert d.is_leaf
    assert d.grad is not None
    assert d.grad.tolist() == [20.0, 40.0]
    assert x.grad is None


def test_detaching_what_is_computed_copies_nothing() -> None:
    x = mt.arange(12.0).reshape(3, 4).realize().requires_grad_()
    row = x[1].realize()
    before = EVENTS.get("evaluations")
    array = x.detach().numpy()
    for detached in (x.detach().detach(), x.data.detach().data, x.detach().requires_grad_().data):
        assert np.shares_memory(detached.numpy(), array)
    assert row.detach().detach().tolist() == [4.0, 5.0, 6.0, 7.0]
    assert EVENTS.get("evaluations") == before


ERRORS = [
    (lambda: mt.ones(2, 3).T.view(6), RuntimeError, "view size is not compatible with input"),
    (lambda: mt.ones(3, 4)[:, :2].view_as(mt.ones(6)), RuntimeError, "view size is not compatible"),
    (lambda: mt.ones(3).expand(2, 3).add_(1), RuntimeError, "unsupported operation: more"),
    (
        lambda: mt.ones(3).add_(mt.ones(2, 3)),
        RuntimeError,
        r"output with shape \[3\] doesn't match",
    ),
    (lambda: mt.ones(3, dtype=mt.int64).add_(0.5), RuntimeError, "result type Float can't be cast"),
    (lambda: mt.ones(3, requires_grad=True).add_(1), RuntimeError, "a leaf Variable that requires"),
    (lambda: mt.ones(3, requires_grad=True)[0].add_(1), RuntimeError, "a view of a leaf Variable"),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_refused_writes(number: int) -> None:
    call, error, words = ERRORS[number]
    with pytest.raises(error, match=words):
        call()
