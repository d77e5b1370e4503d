"""Making tensors, asking what they are, and filling them: calls in torch and here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the words of 2.13"),
    pytest.mark.filterwarnings("ignore"),  # what either side warns about before it refuses
]

CALLS = r"""
T.zeros(size=(2,3)).shape
T.ones(size=(2,)).tolist()
T.empty(2, 3, device="cpu").shape
T.zeros(2, size=(3,))
T.zeros()
T.zeros(2, dtype=T.int64, device="cpu", requires_grad=True)
T.full((2,), 3, device="cpu").tolist()
T.full((2,), 3.0, requires_grad=True).requires_grad
T.full_like(T.zeros(2), 3, device="cpu", requires_grad=True).requires_grad
T.zeros_like(T.ones(2), dtype=T.int64, device="cpu").dtype
T.empty_like(T.ones(2,3)).shape
T.empty_like(3)
T.logspace(0, 2, 3).tolist()
T.logspace(0, 3, 4, base=2).tolist()
T.logspace(0, 3, 4, 2, dtype=T.float64).tolist()
T.logspace(0, 3, -1)
T.linspace(0, 3, 4, device="cpu", requires_grad=True).requires_grad
T.arange(3, device="cpu").tolist()
T.eye(2, requires_grad=True).requires_grad
T.scalar_tensor(3).dtype
T.asarray([1,2]).dtype
T.asarray(np.ones(2)).dtype
T.tensor([1.], pin_memory=False).tolist()
T.tensor([1.], pin_memory=True)
T.zeros(2, pin_memory=True)
T.ones(2).new_zeros(3).shape
T.ones(2).new_zeros((3,2)).shape
T.ones(2).new_zeros(size=(3,)).shape
T.ones(2,dtype=T.int32).new_ones(2).dtype
T.ones(2).new_full((2,2), 7).tolist()
T.ones(2,dtype=T.int64).new_full((2,), 7.5).tolist()
T.ones(2).new_full(2, 7)
T.ones(2).new_tensor([1,2]).dtype
T.ones(2).new_tensor([1,2], dtype=T.int64).dtype
T.ones(2).new_tensor([1,2], requires_grad=True).requires_grad
T.ones(2,dtype=T.int64).new_zeros(2, requires_grad=True)
T.ones(2).new_empty(2,3).shape
T.numel(T.ones(2,3))
T.numel(3)
T.is_floating_point(T.ones(2,dtype=T.int64))
T.is_floating_point(3)
T.is_complex(T.ones(2))
T.is_nonzero(T.tensor([2.]))
T.is_nonzero(T.ones(2))
T.clone(T.ones(2)).tolist()
T.typename(3)
T.ones(2).type()
T.ones(2).type(T.int64).dtype
T.ones(2).type("torch.DoubleTensor").dtype
T.ones(2).type("foo")
T.ones(2).byte().dtype
T.ones(2).element_size(), T.ones(2).nbytes, T.ones(2).itemsize, T.ones(2).ndim
T.ones(2).ndimension()
T.ones(2).is_contiguous(), T.ones(2,3).T.is_contiguous()
T.ones(2,3).T.contiguous().is_contiguous()
T.ones(2).is_signed(), T.ones(2,dtype=T.uint8).is_signed(), T.ones(2,dtype=T.bool).is_signed()
T.ones(2).detach_().requires_grad
T.ones(2).requires_grad_().requires_grad
(T.ones(2,requires_grad=True)*2).retains_grad
T.ones(2,requires_grad=True).retains_grad
[x.retains_grad for x in [T.ones(2,requires_grad=True)*2] if x.retain_grad() is None]
T.finfo(T.float32).eps
repr(T.finfo(T.float64))
T.finfo().max
repr(T.iinfo(T.int32))
T.iinfo(T.uint8).max
T.finfo(T.int32)
T.iinfo(T.float32)
T.iinfo(T.bool)
T.finfo(3)
T.promote_types(T.int32, T.float32)
T.promote_types(3, T.float32)
T.can_cast(T.float32, T.int32)
T.can_cast(T.bool, T.float64)
T.can_cast(3, 4)
T.get_default_dtype()
T.set_default_dtype(T.int32)
T.set_default_dtype(T.float32)
T.set_default_dtype("float32")
isinstance(T.float32, T.dtype)
isinstance(T.device("cpu"), T.device)
T.pi, T.inf, T.e
T.initial_seed() == T.manual_seed(T.initial_seed()).initial_seed()
T.zeros(3).uniform_(2, 1)
T.zeros(3).uniform_(float("nan"), 1)
T.zeros(3).uniform_(-3e38, 3e38)
T.zeros(3).uniform_(2, 2).tolist()
T.zeros(3, dtype=T.int64).uniform_()
T.zeros(3, dtype=T.int64).normal_()
T.zeros(3).normal_(0, -1)
T.zeros(3).normal_(2, 0).tolist()
T.zeros(3).exponential_(0)
T.zeros(3).exponential_(-1)
T.zeros(3,dtype=T.int64).exponential_()
T.zeros(3).bernoulli_(2)
T.zeros(3).bernoulli_(1).tolist()
T.zeros(3,dtype=T.bool).bernoulli_(0).tolist()
T.zeros(3,dtype=T.int64).bernoulli_(T.ones(3)).tolist()
T.zeros(2,3).bernoulli_(T.ones(3)).tolist()
T.zeros(3).random_(3, 2)
T.zeros(3).random_(3, 4).tolist()
T.zeros(3).random_(1).tolist()
T.zeros(3,dtype=T.uint8).random_(0, 300)
T.zeros(3,dtype=T.int32).random_(-2**40, 0)
T.zeros(3,dtype=T.bool).random_(0,1).tolist()
T.zeros(3).random_(0, 2**25)
T.zeros(3, requires_grad=True).uniform_()
T.zeros(3, requires_grad=True).normal_()
T.bernoulli(T.ones(2)).tolist()
T.bernoulli(T.ones(2,dtype=T.int64))
T.bernoulli(T.ones(2), 0.0).tolist()
T.bernoulli(T.ones(2), 2.0)
T.bernoulli(3)
T.normal(0., -1., (2,))
T.normal(2., 0., (2,)).tolist()
T.normal(2, 0, size=(2,), dtype=T.float64).dtype
T.normal(T.ones(3), 0).tolist()
T.normal(T.ones(3), T.zeros(2))
T.normal(T.ones(2,1), T.zeros(3)).shape
T.normal(T.ones(2), -1.)
T.normal(T.ones(2,dtype=T.int64), 1.)
T.normal(1., T.zeros(2,dtype=T.float64)).dtype
T.normal(T.zeros(2), T.zeros(2,dtype=T.float64)).dtype
T.normal(T.ones(2))
T.normal(T.ones(2), 1., (2,))
T.randint_like(T.zeros(2), 3, 4).tolist()
T.randint_like(T.zeros(2), 1).tolist()
T.randint_like(T.zeros(2), 3, dtype=T.int64).dtype
T.randint_like(T.zeros(2), 3, 3)
T.randint(3, (2,), requires_grad=True)
T.randint(3, 4, (2,), dtype=T.float32, requires_grad=True).requires_grad
T.randint(0, 0, (2,))
T.randperm(3, dtype=T.int32).dtype
T.rand(2, device="cpu", generator=T.Generator()).shape
T.rand(size=(2,)).shape
T.randn(2, 3, dtype=T.float64).dtype
T.rand_like(T.zeros(2,dtype=T.int64))
T.randn_like(T.zeros(2), requires_grad=True).requires_grad
T.no_grad()(lambda: T.is_grad_enabled())()
T.enable_grad()(lambda: T.is_grad_enabled())()
T.inference_mode()(lambda: T.is_grad_enabled())()
T.ones(2).bernoulli(0.).tolist()
T.ones(2).data_ptr() != 0
[t.data_ptr() == t.detach().data_ptr() for t in [T.ones(2)]]
T.zeros(0).uniform_().shape
T.tensor(0.).uniform_(3,3).item()
T.zeros(2,3).T.uniform_(2,2).tolist()
"""


def _outcome(m: Any, call: str) -> tuple[Any, ...]:
    try:
        result = eval(call, {"T": m, "np": np})
    except Exception as error:
        return type(error).__name__, str(error).split("\n")[0]
    if isinstance(result, m.Tensor):
        return "tensor", str(result.dtype).split(".")[-1], tuple(result.shape)
    return (repr(result).replace("mt.", "torch."),)


@pytest.mark.parametrize("call", CALLS.strip().splitlines())
def test_same_result_or_refusal(call: str) -> None:
    with config.override(target="numpy"):
        ours = _outcome(mt, call)
    assert ours == _outcome(torch, call)


def test_dtypes_that_are_missing_say_which_there_are() -> None:
    for name in ("float16", "bfloat16", "half", "int8", "int16", "complex64"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': data types are float32"):
            getattr(mt, name)
        assert not hasattr(mt, name)
        assert hasattr(torch, name)
    with pytest.raises(AttributeError, match=r"^module 'minitorch_tvm' has no attribute 'foo'$"):
        _ = mt.foo
    with pytest.raises(NotImplementedError, match="always float32"):
        mt.set_default_dtype(mt.float64)


T, inf, nan = np.float32, float("inf"), float("nan")
CLOSE: list[tuple[Any, Any, dict[str, Any]]] = [
    ([1.0, 2.0], [1.0, 2.0 + 1e-7], {}),
    ([1.0, 2.0], [1.0, 2.1], {}),
    ([[1.0, 2.0]], [[1.0, nan]], {}),
    ([nan], [nan], {}),
    ([nan, inf], [nan, inf], {"equal_nan": True}),
    ([inf], [-inf], {}),
    (1.0, 2.0, {}),
    ([1, 2, 4], [1, 3, 2], {}),
    ([True, False], [True, True], {}),
    ([1.0, 2.0], [1.0], {}),
    ([1.0], [2.0], {"rtol": 0, "atol": 0}),
    ([1.0], [2.0], {"rtol": 0.6, "atol": 0}),
    ([1.0], [2.0], {"rtol": 1}),
    ([1.0], [2.0], {"msg": "said"}),
    ([1.0], [2.0], {"msg": lambda text: "said " + text}),
    ([1.0], [1], {}),
    ([1.0], [1], {"check_dtype": False}),
]


def _verdict(m: Any, actual: Any, expected: Any, options: dict[str, Any]) -> str:
    try:
        m.testing.assert_close(actual, expected, **options)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        # PyTorch does not tell the place of everything that is different.
        return text if "Tensor-likes" in text else text.split("\n\nThe failure")[0]
    return "close"


@pytest.mark.parametrize(("actual", "expected", "options"), CLOSE)
def test_assert_close(actual: Any, expected: Any, options: dict[str, Any]) -> None:
    def verdicts(m: Any) -> list[str]:
        x, y = m.tensor(actual), m.tensor(expected)
        pairs = [(x, y), (y, x), ([x, x], [x, y]), ({"a": x}, {"a": y}), (x.tolist(), y.tolist())]
        return [_verdict(m, a, b, options).replace("mt.", "torch.") for a, b in pairs]

    assert verdicts(mt) == verdicts(torch)


@pytest.mark.parametrize(
    "pair",
    [
        lambda m: (1, 1),
        lambda m: (1, 2),
        lambda m: (1.0, 1),
        lambda m: (True, False),
        lambda m: (None, None),
        lambda m: (m.tensor(1.0), None),
        lambda m: ("a", "b"),
        lambda m: ([1.0], [1.0, 2.0]),
        lambda m: ({"a": 1, "c": 2}, {"b": 1}),
        lambda m: (np.array([1.0]), np.array([2.0])),
        lambda m: (m.zeros(2, requires_grad=True), m.zeros(2)),
        lambda m: (m.zeros(0), m.zeros(0)),
    ],
)
def test_assert_close_of_other_things(pair: Any) -> None:
    ours, theirs = _verdict(mt, *pair(mt), {}), _verdict(torch, *pair(torch), {})
    assert ours == theirs
