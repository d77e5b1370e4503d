"""Tensor functions refuse wrong arguments with PyTorch's exceptions and words.

The words were taken from PyTorch 2.13; tests/parity compares many more calls with PyTorch itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import arguments as arg

f64, i64 = mt.float64, mt.int64

REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # products
    (
        lambda: mt.ones(2, 3) @ mt.ones(3, 2, dtype=f64),
        RuntimeError,
        "expected m1 and m2 to have the same dtype, but got: float != double",
    ),
    (
        lambda: mt.ones(2, 3) @ mt.ones(3, dtype=f64),
        RuntimeError,
        "addmv input tensors must have the same dtype, but got Double, Float, and Double",
    ),
    (
        lambda: mt.ones(3) @ mt.ones(3, dtype=f64),
        RuntimeError,
        "dot : expected both vectors to have same dtype, but found Float and Double",
    ),
    (
        lambda: mt.ones(2, 2, 3) @ mt.ones(2, 3, 2, dtype=i64),
        RuntimeError,
        "expected scalar type Float but found Long",
    ),
    (
        lambda: mt.ones(2, 2, 3) @ mt.ones(4),
        RuntimeError,
        "size mismatch, got input (4), mat (4x3), vec (4)",
    ),
    # sizes
    (lambda: mt.zeros(-1), RuntimeError, "zeros: Dimension size must be non-negative."),
    (
        lambda: mt.ones(2, -3),
        RuntimeError,
        "Trying to create tensor with negative dimension -3: [2, -3]",
    ),
    (
        lambda: mt.zeros(1.5),
        TypeError,
        "zeros(): argument 'size' (position 1) must be tuple of ints, not float",
    ),
    (
        lambda: mt.zeros((2, 1.5)),
        TypeError,
        "zeros(): argument 'size' failed to unpack the object at pos 2 with error \"type must be "
        'tuple of ints,but got float"',
    ),
    (
        lambda: mt.zeros(mt.tensor(1.5)),
        TypeError,
        "zeros(): argument 'size' (position 1) must be tuple of ints, not Tensor",
    ),
    (
        lambda: mt.full(2, 1.0),
        TypeError,
        "full(): argument 'size' (position 1) must be tuple of ints, not int",
    ),
    (
        lambda: mt.full((2,), "a"),
        TypeError,
        "full(): argument 'fill_value' (position 2) must be Number, not str",
    ),
    (lambda: mt.zeros(2**40, 2**40), RuntimeError, "Storage size calculation overflowed"),
    (
        lambda: mt.arange("a"),
        TypeError,
        "arange(): argument 'end' (position 1) must be Number, not str",
    ),
    (lambda: mt.eye(-1), RuntimeError, "n must be greater or equal to 0, got -1"),
    (lambda: mt.linspace(0, 1, -1), RuntimeError, "number of steps must be non-negative"),
    (lambda: mt.arange(float("inf")), RuntimeError, "unsupported range: 0 -> inf"),
    (lambda: mt.randperm(-1), RuntimeError, "Trying to create tensor with negative dimension -1"),
    # kernels that PyTorch does not have for a dtype
    (lambda: mt.rand(2, dtype=i64), NotImplementedError, '"check_uniform_bounds" not impl'),
    (lambda: mt.randn(2, dtype=i64), NotImplementedError, '"normal_kernel_cpu" not implemented'),
    (
        lambda: mt.tensor([True]).abs(),
        NotImplementedError,
        "\"abs_cpu\" not implemented for 'Bool'",
    ),
    (
        lambda: mt.tensor([1]).softmax(0),
        NotImplementedError,
        "\"softmax_lastdim_kernel_impl\" not implemented for 'Long'",
    ),
    (
        lambda: mt.ones(2, 2, dtype=i64).log_softmax(0),
        NotImplementedError,
        "\"log_softmax_kernel_impl\" not implemented for 'Long'",
    ),
    # dimensions
    (
        lambda: mt.ones(2).sum("a"),
        TypeError,
        "sum() received an invalid combination of arguments - got (str), but expected one of:",
    ),
    (lambda: mt.ones(2).mean(dim="a"), TypeError, "mean() received an invalid combination"),
    (lambda: mt.ones(2).max(1.5), TypeError, "max() received an invalid combination"),
    (lambda: mt.min(mt.ones(2), mt.ones(2), True), TypeError, "min() received an invalid comb"),
    (
        lambda: mt.ones(2).softmax(dim=1.5),
        TypeError,
        "softmax(): argument 'dim' (position 1) must be int, not float",
    ),
    (
        lambda: mt.ones(2).argmax(True),
        TypeError,
        "argmax(): argument 'dim' (position 1) must be int, not bool",
    ),
    (
        lambda: mt.ones(2).amax((0, "a")),
        TypeError,
        "amax(): argument 'dim' failed to unpack the object at pos 2",
    ),
    (lambda: mt.ones(0).amax(), RuntimeError, "amax(): Expected reduction dim to be specified"),
    # movement
    (lambda: mt.cat([mt.zeros(2), 3]), TypeError, "expected Tensor as element 1 in argument 0"),
    (lambda: mt.stack([mt.zeros(2), 3]), TypeError, "expected Tensor as element 1 in argument 0"),
    (
        lambda: mt.cat(mt.ones(2)),
        TypeError,
        "cat(): argument 'tensors' (position 1) must be tuple of Tensors, not Tensor",
    ),
    (
        lambda: mt.stack([mt.ones(2)], "a"),
        TypeError,
        "stack(): argument 'dim' (position 2) must be int, not str",
    ),
    (
        lambda: mt.ones(4).reshape(2, 1.5),
        TypeError,
        "reshape(): argument 'shape' failed to unpack the object at pos 2",
    ),
    (
        lambda: mt.ones(2, 2).permute("a"),
        TypeError,
        "permute(): argument 'dims' (position 1) must be tuple of ints, not str",
    ),
    (
        lambda: mt.ones(2).unsqueeze(1.5),
        TypeError,
        "unsqueeze(): argument 'dim' (position 1) must be int, not float",
    ),
    (lambda: mt.ones(2).size("a"), TypeError, "size(): argument 'dim' (position 1) must be int"),
    # masks as indices
    (
        lambda: mt.ones(3)[mt.tensor([True, False])],
        IndexError,
        "The shape of the mask [2] at index 0 does not match the shape of the indexed tensor [3] "
        "at index 0",
    ),
    (
        lambda: mt.ones(3)[mt.tensor([[True], [False]])],
        IndexError,
        "too many indices for tensor of dimension 1",
    ),
    (
        lambda: mt.ones(3).__setitem__(mt.tensor([True, False, True]), mt.ones(3)),
        RuntimeError,
        "shape mismatch: value tensor of shape [3] cannot be broadcast to indexing result of "
        "shape [2]",
    ),
    # other operands
    (
        lambda: mt.where(True, 1, 2),
        TypeError,
        "where(): argument 'condition' (position 1) must be Tensor, not bool",
    ),
    (
        lambda: mt.maximum(mt.zeros(2), 1),
        TypeError,
        "maximum(): argument 'other' (position 2) must be Tensor, not int",
    ),
    (lambda: mt.exp(3), TypeError, "exp(): argument 'input' (position 1) must be Tensor, not int"),
    (lambda: mt.mm(mt.ones(2, 2), 3), TypeError, "mm(): argument 'mat2' (position 2) must be Ten"),
    (lambda: mt.ones(2).add(None), TypeError, "add(): argument 'other' (position 1) must be Tens"),
    (
        lambda: mt.ones(2).add(1, alpha="a"),
        TypeError,
        "add(): argument 'alpha' must be Number, not str",
    ),
    (lambda: mt.where(mt.tensor([True]), "a", 1), TypeError, "where() received an invalid combin"),
    (
        lambda: mt.ones(2).masked_fill(mt.tensor([True, False]), mt.ones(2)),
        RuntimeError,
        "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with 1 dim",
    ),
    (lambda: mt.ones(3).fill_("a"), TypeError, "fill_() received an invalid combination"),
    (lambda: mt.ones(3).copy_("a"), TypeError, "copy_(): argument 'other' (position 1) must be"),
    (
        lambda: mt.ones(3).__setitem__(0, "a"),
        TypeError,
        "can't assign a str to a torch.FloatTensor",
    ),
    (lambda: mt.tensor([1, "a"]), TypeError, "new(): invalid data type 'str'"),
    (lambda: mt.zeros_like(3), TypeError, "zeros_like(): argument 'input' (position 1) must be"),
    # autograd and random numbers
    (
        lambda: mt.ones(1, requires_grad=True).backward("a"),
        TypeError,
        "gradients can be either Tensors or None, but got str",
    ),
    (
        lambda: mt.autograd.grad(mt.ones(2), mt.ones(2)),
        RuntimeError,
        "element 0 of tensors does not require grad and does not have a grad_fn",
    ),
    (lambda: mt.Generator().manual_seed("a"), RuntimeError, "manual_seed expected a long, but"),
    (lambda: mt.set_grad_enabled("a"), TypeError, "set_grad_enabled(): argument 'enabled'"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_wrong_call_is_refused_in_pytorchs_words(number: int, assert_refused: Any) -> None:
    assert_refused(*REFUSED[number])


def test_integers_of_other_kinds_are_dimensions_and_sizes() -> None:
    zero, two = mt.tensor(0), mt.tensor(2)
    assert mt.ones(2, 3).sum(zero).shape == (3,)
    assert mt.ones(2, 3).softmax(zero).shape == (2, 3)
    assert mt.zeros(two, 3).shape == (2, 3)
    assert arg.dims("sum", [0, two]) == (0, 2)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_integers_of_numpy_are_indices(kind: Any) -> None:
    x = mt.arange(5)
    assert x[kind(3)].item() == 3
    x[kind(1)] = 7
    assert x.tolist() == [0, 7, 2, 3, 4]


def test_numbers_fill_and_copy() -> None:
    x = mt.zeros(2)
    assert x.copy_(3).tolist() == [3.0, 3.0]
    assert x.fill_(mt.tensor(4)).tolist() == [4.0, 4.0]
    assert mt.randint(5, (2, 3)).shape == (2, 3)


def test_gradcheck_says_that_it_wants_double_precision() -> None:
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    with pytest.warns(UserWarning, match=r"Input #0 requires gradient and is not a double prec"):
        assert not mt.autograd.gradcheck(mt.exp, x, raise_exception=False)
