"""numpy arrays in and out: sharing, alignment, strides, byte order, read-only memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import nn
from minitorch_tvm.core.events import EVENTS


def test_from_numpy_shares_memory_both_ways() -> None:
    a = np.arange(6, dtype="f").reshape(2, 3)
    x = mt.from_numpy(a)
    assert x.numpy() is a or np.shares_memory(x.numpy(), a)
    a[0, 0] = 50
    assert x.tolist()[0] == [50.0, 1.0, 2.0]
    x.add_(1)
    x[1] = 7.0
    mt.eval(x)
    assert a.tolist() == [[51.0, 2.0, 3.0], [7.0, 7.0, 7.0]]
    kept = x * 1
    x.mul_(2)
    mt.eval(x, kept)
    assert a.tolist() == [[102.0, 4.0, 6.0], [14.0, 14.0, 14.0]]
    assert kept.tolist() == [[51.0, 2.0, 3.0], [7.0, 7.0, 7.0]]


def test_writes_with_history_reach_the_array() -> None:
    a = np.ones(3, "f")
    w = mt.tensor([2.0, 3.0, 4.0], requires_grad=True)
    x = mt.from_numpy(a)
    x.mul_(w)
    x.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [1.0, 1.0, 1.0]
    mt.eval(x)
    assert a.tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_unaligned_views_of_every_offset(dtype: str) -> None:
    base = (np.arange(64) % 7).astype(dtype)
    views = [base[offset : offset + 33] for offset in range(16)]
    assert len({v.ctypes.data % 64 for v in views}) > 1
    tensors = [mt.from_numpy(v) for v in views]
    doubled = [t + t for t in tensors]
    reduced = [t.sum() for t in tensors]
    mt.eval(*doubled, *reduced)
    for view, t, two, total in zip(views, tensors, doubled, reduced, strict=True):
        assert np.shares_memory(t.numpy(), view)
        np.testing.assert_array_equal(two.numpy(), view + view)
        assert total.item() == view.sum()


def _at(offset: int, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Random numbers that start ``offset`` bytes behind a cache line."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(count + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    array = raw[start : start + count].view(dtype).reshape(shape)
    array[...] = np.random.default_rng(offset).normal(size=shape)
    return array


@pytest.mark.parametrize("offset", [4, 20, 36])
def test_products_and_convolutions_of_unaligned_arrays_copy_nothing(offset: int) -> None:
    copied = EVENTS.get("unaligned_inputs_copied")
    for shape in ((64, 64), (37, 50), (5, 16)):
        a, w = _at(offset, shape), _at(offset, (33, shape[1]))
        x, weight = mt.from_numpy(a), mt.from_numpy(w)
        np.testing.assert_allclose((x @ weight.T).numpy(), a @ w.T, atol=1e-4)
        np.testing.assert_allclose((x.T @ x).numpy(), a.T @ a, atol=1e-4)
        np.testing.assert_allclose(x.softmax(1).sum(1).numpy(), np.ones(shape[0]), atol=1e-5)
        np.testing.assert_array_equal(x.argmax(0).numpy(), a.argmax(0))
        np.testing.assert_array_equal((x.T * 2).numpy(), a.T * 2)
    images = mt.from_numpy(_at(offset, (2, 3, 9, 11))).requires_grad_()
    kernel = mt.from_numpy(_at(offset, (5, 3, 3, 3))).requires_grad_()
    plain = [mt.tensor(t.detach().numpy(), requires_grad=True) for t in (images, kernel)]
    for i, k in ((images, kernel), plain):
        F.max_pool2d(F.conv2d(i, k, padding=1), 2).square().sum().backward()
    for t, p in zip((images, kernel), plain, strict=True):
        np.testing.assert_array_equal(t.grad.numpy(), p.grad.numpy())
    assert EVENTS.get("unaligned_inputs_copied") == copied


def test_elements_that_are_not_aligned_are_copied() -> None:
    records = np.zeros(9, np.dtype([("flag", "u1"), ("value", "f4", (4,))]))
    raw = np.zeros(9 * 4 * 4 + 1, np.uint8)
    array = raw[1:].view("f4").reshape(9, 4)
    assert not array.flags.aligned
    array[...] = np.arange(36).reshape(9, 4)
    records["value"] = array
    copied = EVENTS.get("unaligned_inputs_copied")
    np.testing.assert_array_equal((mt.from_numpy(array) @ mt.ones(4)).numpy(), array.sum(1))
    assert EVENTS.get("unaligned_inputs_copied") == copied + 1
    np.testing.assert_array_equal((mt.tensor(records["value"]) * 2).numpy(), array * 2)


def test_unaligned_memory_written_in_place() -> None:
    base = np.zeros(40, "f")
    tensors = [mt.from_numpy(base[i : i + 2]) for i in range(1, 31, 2)]
    for number, t in enumerate(tensors):
        t.add_(number + 1)
    mt.eval(*tensors)
    want = np.zeros(40)
    want[1:31] = np.repeat(np.arange(1, 16), 2)
    np.testing.assert_array_equal(base, want)


def test_arrays_that_cannot_be_shared_are_copied() -> None:
    frozen = np.arange(4.0)
    frozen.flags.writeable = False
    strided = np.arange(12.0).reshape(3, 4)[:, ::2]
    transposed = np.arange(6.0).reshape(2, 3).T
    negative = np.arange(5.0)[::-1]
    for a in (frozen, strided, transposed, negative):
        x = mt.from_numpy(a)
        np.testing.assert_array_equal((x * 1).numpy(), a)
        before = a.copy()
        x.add_(1)
        np.testing.assert_array_equal(x.numpy(), before + 1)
        np.testing.assert_array_equal(a, before)


def test_foreign_byte_order() -> None:
    swapped = np.arange(4, dtype="f").astype(">f4")
    for x in (mt.tensor(swapped), mt.from_numpy(swapped), mt.as_tensor(swapped)):
        assert x.dtype is mt.float32
        assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_tensor_copies_and_as_tensor_shares() -> None:
    a = np.zeros(3, "f")
    copied, shared, converted = mt.tensor(a), mt.as_tensor(a), mt.as_tensor(a, dtype=mt.float64)
    a[0] = 5
    assert copied.tolist() == [0.0, 0.0, 0.0]
    assert shared.tolist() == [5.0, 0.0, 0.0]
    assert converted.tolist() == [0.0, 0.0, 0.0]
    assert mt.as_tensor(copied) is copied
    assert mt.as_tensor([1, 2]).dtype is mt.int64


def test_empty_and_scalar_arrays() -> None:
    for a in (np.zeros((0, 3), "f"), np.array(2.5), np.zeros((2, 0), "i8")):
        x = mt.from_numpy(a)
        assert tuple(x.shape) == a.shape
        np.testing.assert_array_equal((x + x).numpy(), a + a)


def test_numpy_functions_take_tensors() -> None:
    x = mt.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert np.asarray(x).dtype == np.float32
    assert np.array(x, dtype="d").dtype == np.float64
    assert np.add.reduce(np.asarray(x + 1), axis=None) == 14.0
    copy = np.array(x, copy=True)
    copy[0, 0] = 9
    assert x[0, 0].item() == 1.0
    with pytest.raises(RuntimeError, match="Can't call numpy"):
        np.asarray(mt.ones(2, requires_grad=True))


def test_arithmetic_with_arrays_and_numpy_numbers() -> None:
    x, a = mt.tensor([1.0, 2.0]), np.array([3.0, 5.0])
    cases = [
        (x + a, [4.0, 7.0], mt.float64),
        (a + x, [4.0, 7.0], mt.float64),
        (a - x, [2.0, 3.0], mt.float64),
        (a / x, [3.0, 2.5], mt.float64),
        (a**x, [3.0, 25.0], mt.float64),
        (a > x, [True, True], mt.bool),
        (np.float64(2) * x, [2.0, 4.0], mt.float32),
        (x * np.float64(2), [2.0, 4.0], mt.float32),
        (np.int64(3) - x, [2.0, 1.0], mt.float32),
        (x * np.float32(0.5), [0.5, 1.0], mt.float32),
    ]
    mt.eval(*[t for t, _, _ in cases])
    for t, want, dtype in cases:
        assert isinstance(t, mt.Tensor)
        assert t.dtype is dtype
        assert t.tolist() == want


def test_refused_types() -> None:
    with pytest.raises(TypeError, match=r"expected np.ndarray \(got list\)"):
        mt.from_numpy([1.0])  # type: ignore[arg-type]
    for bad in (np.zeros(2, "c16"), np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]")):
        with pytest.raises(TypeError, match=r"can't convert np\.ndarray of type"):
            mt.from_numpy(bad)
    with pytest.raises(TypeError, match=r"can't convert np\.ndarray of type"):
        mt.tensor(np.zeros(2, "f2"))


def _accumulated(fill: Callable[[Any], mt.Tensor], sync: bool) -> float:
    w, buffer = mt.ones(4, 1, requires_grad=True), np.empty((8, 4), np.float32)
    for turn in range(3):
        buffer[...] = turn
        x = fill(buffer)
        (x @ w).mean().backward()
        if sync:
            mt.eval(w.grad)
    assert w.grad is not None
    return w.grad.sum().item()


def test_memory_given_again_before_it_is_read_warns() -> None:
    with pytest.warns(
        UserWarning, match="before operations recorded earlier have read it"
    ) as caught:
        _accumulated(mt.from_numpy, sync=False)
    assert {w.filename for w in caught} == {__file__}
    buffer = np.zeros(3, np.float32)
    total = mt.from_numpy(buffer) * 2 + mt.from_numpy(buffer)
    buffer[1] = 1.0
    with pytest.warns(UserWarning, match="let mt.tensor"):
        total += mt.from_numpy(buffer)
    assert total.tolist() == [0.0, 4.0, 0.0]


def test_memory_given_again_once_it_was_read_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _accumulated(mt.from_numpy, sync=True) == 12.0
        assert _accumulated(mt.tensor, sync=False) == 12.0
        buffer = np.zeros((3, 4), np.float32)
        layer, kept = nn.Linear(4, 2), []
        optimizer = mt.optim.SGD(layer.parameters(), lr=0.1)
        for turn in range(3):
            buffer[...] = turn
            x = mt.from_numpy(buffer)
            loss = layer(x).sum()
            loss.backward()
            optimizer.step()
            kept.append(layer(mt.from_numpy(buffer)).sum())  # a graph that is kept
            kept[-1].item()
        other = mt.from_numpy(buffer)
        again = mt.from_numpy(buffer)  # nothing reads the first
        for _ in range(4):  # what is still to be read has not changed
            again = mt.from_numpy(buffer) + again * 0
        twice = again * 2
        mt.from_numpy(np.ones(5, np.float32))
        assert twice.sum().item() == other.sum().item() * 2
