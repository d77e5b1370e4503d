"""What is looked up instead of being worked out again: the same answers, errors and few nodes."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import nn
from minitorch_tvm.core import dtype as dt
from minitorch_tvm.ir.node import MODE, leaf, once_fitting
from minitorch_tvm.plans import Key

X = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
# Numbers that are equal, and mean different things.
INDICES: list[Any] = [
    *(1, True, np.int64(1), slice(1), slice(0, 1), slice(True), slice(np.int64(1))),
    *((1, 0), (True, 0), (slice(0, 1), 1), (1, slice(0, 1)), (0, None), (None, 0), (0, ...)),
    *((..., 0), (slice(None), 1, 1), (slice(None, None, 2), slice(1, 9)), -1, (-1, -1)),
]


def test_indices_that_are_equal_as_numbers() -> None:
    for order in (INDICES, INDICES[::-1], INDICES):
        for index in order:
            found = mt.tensor(X)[index]
            wanted = X[index]
            assert found.shape == wanted.shape, index
            np.testing.assert_array_equal(found.numpy(), wanted, err_msg=str(index))


def test_parts_of_other_shapes_by_the_same_index() -> None:
    for shape in ((4, 3), (3, 4), (4, 3, 2), (1, 3)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        for size in (1, 2, 3):
            t = mt.tensor(x)
            ends = range(size, shape[1], size)
            for part, wanted in zip(t.split(size, 1), np.split(x, ends, 1), strict=True):
                np.testing.assert_array_equal(part.numpy(), wanted)
            pieces = mt.tensor(x).split((1, shape[1] - 1), dim=-len(shape) + 1)
            assert [p.shape[1] for p in pieces] == [1, shape[1] - 1]


WRONG: list[tuple[Callable[[Any], Any], Any, Any]] = [
    (lambda k: F.max_pool2d(mt.ones(1, 1, 4, 4), k), (2, 2), (2.0, 2.0)),
    (lambda k: F.max_pool2d(mt.ones(1, 1, 4, 4), (2, 2), k), (2, 2), (True, 2)),
    (lambda k: F.conv2d(mt.ones(1, 2, 4, 4), mt.ones(2, 2, 2, 2), None, k), (1, 1), (1.0, 1)),
    (
        lambda k: F.conv2d(mt.ones(1, 2, 4, 4), mt.ones(2, 1, 2, 2), None, 1, 0, 1, k),
        2,
        2.0,
    ),
    (
        lambda k: F.conv_transpose2d(mt.ones(1, 2, 5, 5), mt.ones(2, 2, 2, 2), groups=k),
        2,
        2.0,
    ),
    (lambda k: F.conv1d(mt.ones(1, 2, 5), mt.ones(2, 1, 2), groups=k), 2, 2.0),
    (lambda k: F.adaptive_avg_pool2d(mt.ones(1, 2, 7, 7), k), (3, 3), (3.0, 3.0)),
    (lambda k: F.adaptive_avg_pool2d(mt.ones(1, 2, 6, 6), k), (2, 2), (2.0, 2)),
    (lambda k: F.adaptive_avg_pool2d(mt.ones(2, 6, 6), k), 1, True),
    (lambda k: F.adaptive_max_pool2d(mt.ones(1, 2, 6, 6), k), (2, 2), (2.0, 2.0)),
    (lambda k: F.one_hot(mt.tensor([0, 1]), k), 3, 3.0),
    (lambda k: F.pixel_shuffle(mt.ones(1, 4, 2, 2), k), 2, 2.0),
    (lambda k: F.pad(mt.ones(2, 3), k), (1, 1), (1.0, 1)),
    (lambda k: mt.ones(2, 3).reshape(k), (3, 2), (3.0, 2)),
    (lambda k: mt.ones(2, 3).permute(*k), (1, 0), (1.0, 0)),
    (lambda k: mt.ones(2, 3).transpose(0, k), 1, 1.0),
    (lambda k: mt.ones(2, 4).split(k, 1), (2, 2), (2.0, 2)),
    (lambda k: F.layer_norm(mt.ones(2, 4), k), (4,), (4.0,)),
    (lambda k: F.group_norm(mt.ones(2, 4), k), 2, 2.0),
    (lambda k: mt.ones(4)[k], slice(1), slice(1.0)),
]


@pytest.mark.parametrize(("call", "fits", "wrong"), WRONG)
def test_what_is_equal_to_what_fits(call: Callable[[Any], Any], fits: Any, wrong: Any) -> None:
    for _ in range(2):
        with pytest.raises(TypeError):
            call(wrong)
        fine = call(fits)
        fine = fine if isinstance(fine, tuple) else (fine,)
        assert all(type(n) is int for t in fine for n in t.shape)


def test_checks_are_asked_once_for_what_fits_and_always_for_what_does_not() -> None:
    asked = []

    @once_fitting
    def check(nodes: Any, limit: int) -> None:
        asked.append(limit)
        if nodes[0].shape[0] > limit:
            raise ValueError("too long")

    two, three = (leaf(None, (n,), dt.float32) for n in (2, 3))
    for _ in range(3):
        check((two, None), 2)
        with pytest.raises(ValueError, match="too long"):
            check((three, None), 2)
        check((three, None), 3)
    assert asked == [2, 2, 3, 2, 2]
    check((two, two), 2)
    check((leaf(None, (2,), dt.float64), None), 2)
    assert asked[5:] == [2, 2]


NUMBERS: list[Any] = [
    *(2, -3, 0.5, True, 1 << 31, (1 << 53) + 1, 1e39, -1e39, float("inf"), float("nan"), 300, -1),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_numbers_beside_tensors_of_every_type(dtype: str) -> None:
    values = np.array([0, 1, 3]).astype(dtype)
    for number in NUMBERS:
        for name in ("add", "mul", "lt", "ge", "eq"):
            act = getattr(mt.tensor(values), f"__{name}__")
            given = act(number)
            lifted = mt.result_type(mt.tensor(values), number)
            if name not in ("add", "mul"):
                with np.errstate(over="ignore"):
                    single = lifted is mt.float32 and not isinstance(number, bool)
                    held = float(np.float32(number)) if single else number
                wanted = [getattr(operator, name)(float(v), held) for v in values]
                np.testing.assert_array_equal(given.numpy(), wanted, str((name, number)))
            else:
                assert given.dtype is lifted, (name, number)
        # A 0-d tensor of the same type is converted as numbers are, where it can hold them.
        if lifted is mt.tensor(values).dtype and abs(number) < 256 and number >= 0:
            same = mt.tensor(values) + mt.tensor(number, dtype=lifted)
            np.testing.assert_array_equal((mt.tensor(values) + number).numpy(), same.numpy())


ONE_NODE: dict[str, Callable[[mt.Tensor], Any]] = {
    "mean": lambda x: x.mean(),
    "mean of rows": lambda x: x.mean(dim=1, keepdim=True),
    "var": lambda x: x.var(),
    "std": lambda x: x.std(dim=0),
    "any": lambda x: x.any(),
    "all": lambda x: x.all(dim=1),
    "stack": lambda x: mt.stack([x, x]),
    "avg_pool2d": lambda x: F.avg_pool2d(x.reshape(1, 4, 4), 2).reshape(-1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x.reshape(1, 4, 4), 1).reshape(-1),
}


@pytest.mark.parametrize("name", ONE_NODE)
def test_one_node(name: str) -> None:
    x = mt.tensor(np.arange(16.0, dtype=np.float32).reshape(4, 4))
    mt.eval(x)
    MODE.trace.restart()
    _y = ONE_NODE[name](x)
    reshapes = 3 if "pool" in name else 0  # out, and a batch of an image and back
    assert len(MODE.trace.values) == 1 + 1 + reshapes  # with the leaf


def test_limits_are_one_node_and_their_numbers_arguments() -> None:
    x = mt.tensor([1.0, 2.0, 3.0])
    for low, high in ((None, 2.0), (1.5, None), (1.5, 2.5), (0, 2)):
        MODE.trace.restart()
        y = x.clamp(low, high)
        bounds = sum(e is not None for e in (low, high))
        assert len(MODE.trace.values) == 2 + bounds
        np.testing.assert_array_equal(y.numpy(), np.clip([1.0, 2.0, 3.0], low, high))


def test_keys_of_equal_structure_are_one_object() -> None:
    key = Key.of(1, 2, ("a", 3))
    assert Key.of(1, 2, ("a", 3)) is key
    assert Key.of(1, 2) is not key
    assert Key.of(1).extended(2, ("a", 3)) is key
    assert copy.deepcopy(key) is key
    assert pickle.loads(pickle.dumps(key)) is key


def test_batch_norm_counts_its_calls() -> None:
    layer = nn.BatchNorm1d(3)
    x = mt.randn(4, 3)
    held = layer.state_dict()["num_batches_tracked"]
    for n in range(1, 4):
        layer(x)
        count = layer.num_batches_tracked
        assert count is not None
        assert count.item() == n
        assert count.dtype is mt.int64
    assert held.item() == 3
    layer.eval()
    layer(x)
    assert held.item() == 3


def test_shapes_do_not_share_what_was_found() -> None:
    shapes = ((2, 6), (6, 2), (3, 4), (4, 3), (12,), (2, 2, 3))
    for a, b in itertools.product(shapes, shapes):
        x = np.arange(12.0, dtype=np.float32).reshape(a)
        np.testing.assert_array_equal(mt.tensor(x).reshape(b).numpy(), x.reshape(b))
        np.testing.assert_array_equal(mt.tensor(x).reshape(*b[:-1], -1).numpy(), x.reshape(b))
