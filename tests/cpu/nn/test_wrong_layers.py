"""Layers, losses and data sets refuse wrong arguments with PyTorch's exceptions and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import nn
from minitorch_tvm.utils.data import TensorDataset

f64, i64 = mt.float64, mt.int64


def _image(*shape: int, dtype: Any = None) -> mt.Tensor:
    return mt.ones(*(shape or (1, 1, 4, 4)), dtype=dtype)


def _weight(*shape: int, dtype: Any = None) -> mt.Tensor:
    return mt.ones(*(shape or (1, 1, 2, 2)), dtype=dtype)


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # linear
    (
        lambda: nn.Linear(3, 2)(mt.ones(4, 3, dtype=f64)),
        RuntimeError,
        "mat1 and mat2 must have the same dtype, but got Double and Float",
    ),
    (
        lambda: nn.Linear(3, 2, bias=False)(mt.ones(4, 3, dtype=f64)),
        RuntimeError,
        "expected m1 and m2 to have the same dtype, but got: double != float",
    ),
    (
        lambda: F.linear(mt.ones(4, 3), mt.ones(2, 3), mt.ones(2, dtype=f64)),
        RuntimeError,
        "self and mat2 must have the same dtype, but got Double and Float",
    ),
    (
        lambda: F.linear(mt.ones(4, 3), mt.ones(2, 3, 2)),
        RuntimeError,
        "t() expects a tensor with <= 2 dimensions, but self is 3D",
    ),
    (lambda: nn.Linear(-1, 2), RuntimeError, "negative dimension -1: [2, -1]"),
    (lambda: nn.Linear(2**40, 2**40), RuntimeError, "Storage size calculation overflowed"),
    # convolution
    (
        lambda: F.conv2d(_image(), _weight(), stride=0),
        RuntimeError,
        "non-positive stride is not supported",
    ),
    (
        lambda: F.conv2d(_image(), _weight(), padding=-1),
        RuntimeError,
        "negative padding is not supported",
    ),
    (
        lambda: F.conv2d(_image(), _weight(), dilation=0),
        RuntimeError,
        "dilation should be greater than zero, but got [0, 0]",
    ),
    (
        lambda: F.conv2d(_image(), _weight(1, 1, 0, 2)),
        RuntimeError,
        "kernel size should be greater than zero, but got kernel_height: 0 kernel_width: 2",
    ),
    (
        lambda: F.conv2d(_image(), _weight(2, 2)),
        RuntimeError,
        "weight should have at least three dimensions",
    ),
    (
        lambda: F.conv2d(_image(), _weight(1, 1, 2)),
        RuntimeError,
        "expected stride to be a single integer value or a list of 1 values to match the "
        "convolution dimensions, but got stride=[1, 1]",
    ),
    (
        lambda: F.conv2d(_image(), _weight(), stride=(1, 1, 1)),
        RuntimeError,
        "expected stride to be a single integer value or a list of 2 values to match the "
        "convolution dimensions, but got stride=[1, 1, 1]",
    ),
    (
        lambda: F.conv2d(_image(), _weight(2, 1, 2, 2), mt.ones(3)),
        RuntimeError,
        "expected bias to be 1-dimensional with 2 elements, but got bias of size [3] instead",
    ),
    (
        lambda: F.conv2d(_image(), _weight(), mt.ones(1, dtype=f64)),
        RuntimeError,
        "Input type (float) and bias type (double) should be the same",
    ),
    (
        lambda: F.conv2d(_image(dtype=f64), _weight()),
        RuntimeError,
        "expected scalar type Double but found Float",
    ),
    (
        lambda: F.conv2d(_image(1, 2, 4, 4), _weight(3, 1, 2, 2), groups=2),
        RuntimeError,
        "Given groups=2, expected weight to be divisible by 2 at dimension 0",
    ),
    # pooling
    (lambda: F.max_pool2d(_image(), 0), RuntimeError, "stride should not be zero"),
    (
        lambda: F.max_pool2d(_image(), 0, 1),
        RuntimeError,
        "kernel size should be greater than zero, but got kH: 0 kW: 0",
    ),
    (
        lambda: F.avg_pool2d(_image(), 2, -1),
        RuntimeError,
        "stride should be greater than zero, but got dH: -1 dW: -1",
    ),
    (
        lambda: F.avg_pool2d(_image(), 2, padding=-1),
        RuntimeError,
        "pad must be non-negative, but got pad: -1",
    ),
    (
        lambda: F.max_pool2d(_image(), (2, 2, 2)),
        RuntimeError,
        "max_pool2d: kernel_size must either be a single int, or a tuple of two ints",
    ),
    (
        lambda: F.max_pool2d(_image(), "a"),
        TypeError,
        "max_pool2d(): argument 'kernel_size' (position 2) must be tuple of ints, not str",
    ),
    (
        lambda: F.max_pool2d(mt.ones(4, 4), 2),
        RuntimeError,
        "non-empty 3D or 4D (batch mode) tensor expected for input",
    ),
    (
        lambda: F.avg_pool2d(mt.ones(4, 4), 2),
        RuntimeError,
        "non-empty 3D or 4D (batch mode) tensor expected for input",
    ),
    (
        lambda: F.max_pool2d(mt.ones(1, 0, 4, 4), 2),
        RuntimeError,
        "tensor with optional 0 dim batch size for input, but got:[1, 0, 4, 4]",
    ),
    (
        lambda: F.avg_pool2d(_image(dtype=mt.int32), 2),
        NotImplementedError,
        "\"avg_pool2d\" not implemented for 'Int'",
    ),
    (
        lambda: F.max_pool2d(_image(dtype=mt.bool), 2),
        NotImplementedError,
        "\"max_pool2d\" not implemented for 'Bool'",
    ),
    # normalisation
    (
        lambda: nn.LayerNorm(3)(mt.ones(2, 3, dtype=f64)),
        RuntimeError,
        "mixed dtype (CPU): all inputs must share same datatype.",
    ),
    (
        lambda: F.layer_norm(mt.ones(2, 3), 3),
        TypeError,
        "layer_norm(): argument 'normalized_shape' (position 2) must be tuple of ints, not int",
    ),
    # losses and activations
    (
        lambda: F.cross_entropy(mt.ones(2, 3, dtype=i64), mt.tensor([0, 1])),
        NotImplementedError,
        "\"log_softmax_lastdim_kernel_impl\" not implemented for 'Long'",
    ),
    (
        lambda: F.mse_loss(mt.tensor([1]), mt.tensor([1])),
        NotImplementedError,
        "\"mse_cpu\" not implemented for 'Long'",
    ),
    (
        lambda: F.mse_loss(mt.ones(2), 3),
        TypeError,
        "mse_loss(): argument 'target' (position 2) must be Tensor, not int",
    ),
    (
        lambda: nn.ReLU()(3),
        TypeError,
        "relu(): argument 'input' (position 1) must be Tensor, not int",
    ),
    (
        lambda: F.cross_entropy(mt.zeros(2, 3), [0, 1]),
        TypeError,
        "cross_entropy_loss(): argument 'target' (position 2) must be Tensor, not list",
    ),
    # data sets
    (
        lambda: TensorDataset(mt.ones(2), 3),
        TypeError,
        "TensorDataset expects Tensors or numpy arrays, but got int at position 1",
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_wrong_layer_is_refused_in_pytorchs_words(number: int, assert_refused: Any) -> None:
    assert_refused(*REFUSED[number])


@pytest.mark.parametrize("dtype", [mt.uint8, mt.int32, mt.int64])
@pytest.mark.parametrize("schedule", ["ours", "default"])
def test_integers_have_a_largest_element(dtype: Any, schedule: str) -> None:
    lowest = int(np.iinfo(dtype.name).min)
    x = mt.tensor([[[lowest, lowest, 3], [lowest, lowest, 7]]], dtype=dtype)
    with mt.core.config.override(schedule=schedule):
        assert F.max_pool2d(x, 2, 1).tolist() == [[[lowest, 7]]]
        assert F.max_pool2d(x, 2, 2, 1).tolist() == [[[lowest, 3], [lowest, 7]]]
