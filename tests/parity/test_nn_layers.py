"""Layers against torch: values, gradients, representations, signatures, state dicts, messages."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")
TF = torch.nn.functional
RNG = np.random.default_rng(7)


def both(*shape: int) -> tuple[Any, Any]:
    """The same float64 numbers here and in torch, both requiring grad."""
    array = RNG.standard_normal(shape)
    return mt.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)


def close(ours: Any, theirs: Any, tolerance: float = 1e-10) -> None:
    assert tuple(ours.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(
        ours.detach().numpy(), theirs.detach().numpy(), rtol=tolerance, atol=tolerance
    )


def copied(ours: Any, theirs: Any) -> None:
    """Give both modules the same float64 weights."""
    ours.double(), theirs.double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert tuple(ours.state_dict()[name].shape) == tuple(value.shape)
    ours.load_state_dict({k: mt.tensor(v.numpy()) for k, v in theirs.state_dict().items()})


MODULES = [
    ("Linear", (4, 3), {}, (5, 4)),
    ("Linear", (4, 3), {"bias": False}, (2, 5, 4)),
    ("Linear", (4, 3), {}, (4,)),
    ("Conv2d", (2, 4, 3), {}, (2, 2, 6, 7)),
    ("Conv2d", (2, 4, (3, 2)), {"stride": 2, "padding": (1, 2)}, (2, 2, 7, 6)),
    ("Conv2d", (4, 6, 3), {"groups": 2, "dilation": 2, "bias": False}, (1, 4, 9, 8)),
    ("Conv2d", (2, 3, 3), {"padding": "same", "dilation": 2}, (2, 2, 6, 5)),
    ("Conv2d", (2, 3, (2, 4)), {"padding": "same"}, (2, 2, 6, 5)),
    ("Conv2d", (2, 3, 3), {"padding": "valid"}, (2, 5, 6)),
    ("MaxPool2d", (2,), {}, (2, 3, 6, 7)),
    ("MaxPool2d", (3,), {"stride": 2, "padding": 1, "ceil_mode": True}, (2, 3, 6, 7)),
    ("MaxPool2d", ((2, 3),), {"dilation": 2, "stride": (1, 2)}, (3, 6, 7)),
    ("AvgPool2d", (2,), {}, (2, 3, 6, 7)),
    ("AvgPool2d", (3,), {"stride": 2, "padding": 1, "ceil_mode": True}, (2, 3, 6, 7)),
    ("AvgPool2d", (3,), {"stride": 2, "padding": 1, "count_include_pad": False}, (3, 6, 7)),
    ("ReLU", (), {}, (3, 4)),
    ("Tanh", (), {}, (3, 4)),
    ("Sigmoid", (), {}, (3, 4)),
    ("Softmax", (), {"dim": 1}, (3, 4)),
    ("LogSoftmax", (), {"dim": -2}, (3, 4, 2)),
    ("Flatten", (), {}, (3, 4, 2)),
    ("Flatten", (0, 1), {}, (3, 4, 2)),
    ("Unflatten", (1, (2, -1)), {}, (3, 4)),
    ("Identity", (), {}, (3, 4)),
    ("Dropout", (0.0,), {}, (3, 4)),
    ("Dropout", (1.0,), {}, (3, 4)),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "shape"), MODULES)
def test_layer_equals_torch(name: str, args: Any, kwargs: Any, shape: Any) -> None:
    ours, theirs = getattr(mt.nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)
    assert repr(ours) == repr(theirs)
    copied(ours, theirs)
    x, tx = both(*shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces a copy for padding="same"
        y, ty = ours(x), theirs(tx)
    close(y, ty)
    weights = RNG.standard_normal(tuple(ty.shape))
    (y * mt.tensor(weights)).sum().backward()
    (ty * torch.tensor(weights)).sum().backward()
    close(x.grad, tx.grad)
    for p, tp in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(p.grad, tp.grad)


@pytest.mark.parametrize(
    "name",
    sorted(
        {m[0] for m in MODULES} - {"Tanh", "Sigmoid"}
        | {
            "CrossEntropyLoss",
            "NLLLoss",
            "MSELoss",
            "L1Loss",
            "BCEWithLogitsLoss",
        }
    ),
)
def test_constructor_has_torchs_arguments_and_defaults(name: str) -> None:
    same_signature(getattr(mt.nn, name).__init__, getattr(torch.nn, name).__init__)


@pytest.mark.parametrize(
    "name",
    [
        "relu",
        "softmax",
        "log_softmax",
        "dropout",
        "cross_entropy",
        "nll_loss",
        "mse_loss",
        "l1_loss",
        "binary_cross_entropy_with_logits",
        "pad",
    ],
)
def test_function_has_torchs_arguments_and_defaults(name: str) -> None:
    same_signature(getattr(F, name), getattr(TF, name))


@pytest.mark.parametrize(
    "name",
    [
        "uniform_",
        "normal_",
        "constant_",
        "zeros_",
        "ones_",
        "kaiming_uniform_",
        "kaiming_normal_",
        "xavier_uniform_",
        "xavier_normal_",
        "calculate_gain",
    ],
)
def test_init_has_torchs_arguments_and_defaults(name: str) -> None:
    same_signature(getattr(mt.nn.init, name), getattr(torch.nn.init, name))


@pytest.mark.parametrize(
    "name",
    [
        "load_state_dict",
        "named_parameters",
        "named_buffers",
        "parameters",
        "buffers",
        "train",
        "named_modules",
        "register_buffer",
        "register_forward_hook",
        "register_forward_pre_hook",
        "zero_grad",
        "requires_grad_",
        "apply",
        "add_module",
        "register_parameter",
        "get_parameter",
    ],
)
def test_module_method_has_torchs_arguments_and_defaults(name: str) -> None:
    same_signature(getattr(mt.nn.Module, name), getattr(torch.nn.Module, name))


def test_clipping_has_torchs_arguments_and_defaults() -> None:
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
        same_signature(getattr(mt.nn.utils, name), getattr(torch.nn.utils, name))


def same_signature(ours: Any, theirs: Any) -> None:
    def described(f: Any) -> list[Any]:
        parameters = inspect.signature(f).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    assert described(ours) == described(theirs)


def models(nn: Any) -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, padding=1)
            self.blocks = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
            self.heads = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Sequential(nn.Tanh())})
            self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3, bias=False))
            self.none = None

        def forward(self, x: Any) -> Any:
            return self.body(x)

    return Net()


def test_model_prints_and_names_its_parts_as_torch_does() -> None:
    ours, theirs = models(mt.nn), models(torch.nn)
    assert repr(ours) == repr(theirs)
    for method in ("named_parameters", "named_modules", "named_children"):
        assert [n for n, _ in getattr(ours, method)()] == [n for n, _ in getattr(theirs, method)()]
    assert list(ours.state_dict(prefix="m.")) == list(theirs.state_dict(prefix="m."))
    empty = [mt.nn.ModuleList(), mt.nn.Sequential(), mt.nn.ModuleDict(), mt.nn.ParameterList()]
    assert [repr(m) for m in empty] == [repr(getattr(torch.nn, type(m).__name__)()) for m in empty]
    listed = mt.nn.ParameterList([mt.zeros(2, 3), 3])
    assert repr(listed) == repr(torch.nn.ParameterList([torch.zeros(2, 3), 3]))
    assert repr(mt.nn.Parameter(mt.zeros(2))) == repr(torch.nn.Parameter(torch.zeros(2)))


def outcome(function: Any) -> tuple[Any, ...]:
    """("ok", shape) or (exception type, first sentence)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function()
    except Exception as error:
        return type(error), str(error)
    return "ok", str(result) if not hasattr(result, "shape") else tuple(result.shape)


MISTAKES: list[Any] = [
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4), t.zeros(4).to(t.int64)),
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4), t.zeros(3).to(t.int32)),
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4), t.zeros(3).to(t.uint8)),
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4), t.zeros(3)),
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4), t.zeros(3, 4).to(t.int64)),
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4, 5), t.zeros(3, 6).to(t.int64)),
    lambda t, nn, f: f.cross_entropy(t.zeros(4), t.zeros(3).to(t.int64)),
    lambda t, nn, f: f.cross_entropy(t.zeros(4), t.tensor(7)),
    lambda t, nn, f: f.cross_entropy(t.zeros(4), t.tensor([2]), reduction="none"),
    lambda t, nn, f: f.cross_entropy(t.zeros(4), t.tensor(2), reduction="none"),
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4), t.tensor([1, 5, -1])),
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4), t.tensor([1, 2, 3]), reduction="avg"),
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4), t.tensor([1, 2, 3]), weight=t.ones(3)),
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4), t.zeros(3, 4), ignore_index=1),
    lambda t, nn, f: f.cross_entropy(t.zeros(3, 4), t.tensor([1, 2, 3]), label_smoothing=2.0),
    lambda t, nn, f: f.nll_loss(t.zeros(3, 4), t.tensor([1, 2, 4])),
    lambda t, nn, f: f.mse_loss(t.zeros(3, 4), t.zeros(3)),
    lambda t, nn, f: f.mse_loss(t.zeros(3, 4), t.zeros(4)),
    lambda t, nn, f: f.mse_loss(t.zeros(3), t.zeros(3), reduction="avg"),
    lambda t, nn, f: f.binary_cross_entropy_with_logits(t.zeros(3, 4), t.zeros(3)),
    lambda t, nn, f: f.one_hot(t.tensor([1, 5]), 3),
    lambda t, nn, f: f.one_hot(t.tensor([1, -5]), 3),
    lambda t, nn, f: f.one_hot(t.tensor([1.0]), 3),
    lambda t, nn, f: f.one_hot(t.tensor([[1, 2]])),
    lambda t, nn, f: f.dropout(t.zeros(3), 1.5),
    lambda t, nn, f: nn.Dropout(-0.5),
    lambda t, nn, f: f.linear(t.zeros(3, 4), t.zeros(2, 5)),
    lambda t, nn, f: f.linear(t.zeros(3, 4), t.zeros(2, 4), t.zeros(3)),
    lambda t, nn, f: nn.Conv2d(3, 4, 3, groups=2),
    lambda t, nn, f: nn.Conv2d(4, 3, 3, groups=2),
    lambda t, nn, f: nn.Conv2d(4, 4, 3, groups=0),
    lambda t, nn, f: nn.Conv2d(4, 4, 3, padding="same", stride=2),
    lambda t, nn, f: nn.Conv2d(1, 8, 3)(t.zeros(2, 3, 8, 8)),
    lambda t, nn, f: nn.Conv2d(1, 8, 3)(t.zeros(8, 8)),
    lambda t, nn, f: nn.Conv2d(1, 8, 5)(t.zeros(1, 1, 3, 8)),
    lambda t, nn, f: f.conv2d(t.zeros(1, 4, 4), t.zeros(1, 1, 3, 3), t.zeros(3)),
    lambda t, nn, f: f.conv2d(t.zeros(1, 4, 4), t.zeros(1, 1, 3, 3), padding="foo"),
    lambda t, nn, f: f.max_pool2d(t.zeros(1, 1, 4, 4), 2, padding=2),
    lambda t, nn, f: f.softmax(t.zeros(2, 3), 2),
    lambda t, nn, f: nn.Linear(2, 3).foo,
    lambda t, nn, f: setattr(models(nn), "conv", 3),
    lambda t, nn, f: setattr(nn.Linear(2, 3), "weight", t.zeros(2)),
    lambda t, nn, f: nn.Linear(2, 3).register_parameter("forward", None),
    lambda t, nn, f: nn.Linear(2, 3).register_parameter("a.b", None),
    lambda t, nn, f: nn.Linear(2, 3).register_buffer("", None),
    lambda t, nn, f: nn.Linear(2, 3).register_buffer("q", 3),
    lambda t, nn, f: nn.Linear(2, 3).register_parameter("q", t.zeros(2)),
    lambda t, nn, f: nn.Linear(2, 3).add_module("q", 3),
    lambda t, nn, f: nn.Linear(2, 3).add_module("a.b", None),
    lambda t, nn, f: nn.Linear(2, 3).to(t.int64).weight,
    lambda t, nn, f: nn.Linear(2, 3).train(3),
    lambda t, nn, f: nn.Linear(2, 3).get_submodule("a.b"),
    lambda t, nn, f: nn.Linear(2, 3).get_parameter("q"),
    lambda t, nn, f: nn.Linear(2, 3).get_buffer("weight"),
    lambda t, nn, f: nn.Module()(3),
    lambda t, nn, f: nn.Sequential(3),
    lambda t, nn, f: nn.Sequential(nn.ReLU())[1],
    lambda t, nn, f: nn.ModuleList(nn.ReLU()),
    lambda t, nn, f: nn.Parameter(t.zeros(2).to(t.int64)),
    lambda t, nn, f: nn.Linear(3, 2).load_state_dict({"weight": t.zeros(1), "x": t.zeros(1)}),
    lambda t, nn, f: nn.Linear(3, 2).load_state_dict({"weight": t.zeros(1)}, strict=False),
    lambda t, nn, f: nn.Linear(3, 2).load_state_dict({"bias": t.zeros(2)}, strict=False),
    lambda t, nn, f: nn.Linear(3, 2).load_state_dict({"weight": 3, "bias": t.zeros(2)}),
    lambda t, nn, f: nn.Linear(3, 2).load_state_dict(nn.Linear(3, 2).state_dict()),
    lambda t, nn, f: nn.Linear(3, 2).load_state_dict([1]),
    lambda t, nn, f: nn.init.calculate_gain("foo"),
    lambda t, nn, f: nn.init.kaiming_uniform_(t.zeros(2)),
    lambda t, nn, f: nn.init.kaiming_uniform_(t.zeros(2, 2), mode="foo"),
    lambda t, nn, f: nn.init.normal_(t.zeros(2), std=-1),
    lambda t, nn, f: nn.init.uniform_(t.zeros(2), 2, -1),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_read_as_in_torch(number: int) -> None:
    ours = outcome(lambda: MISTAKES[number](mt, mt.nn, F))
    theirs = outcome(lambda: MISTAKES[number](torch, torch.nn, TF))
    text = str(theirs[1]).replace("torch.int64", "mt.int64")
    assert ours == (theirs[0], text if isinstance(theirs[1], str) else theirs[1])


@pytest.mark.parametrize(("name", "args"), [("Linear", (300, 40)), ("Conv2d", (6, 40, 5))])
def test_default_initialisation_has_torchs_bounds(name: str, args: Any) -> None:
    mt.manual_seed(0)
    ours, theirs = getattr(mt.nn, name)(*args), getattr(torch.nn, name)(*args)
    fan = int(np.prod(ours.weight.shape[1:]))
    for key, value in theirs.state_dict().items():
        drawn = ours.state_dict()[key].numpy()
        bound = 1 / np.sqrt(fan)
        assert np.abs(drawn).max() <= bound
        assert np.abs(drawn).max() > 0.85 * float(value.abs().max())
        if key == "weight":
            assert abs(drawn.std() - float(value.std())) < 0.03 * float(value.std())


@pytest.mark.parametrize("gain", ["linear", "conv2d", "sigmoid", "tanh", "relu", "selu"])
def test_gains(gain: str) -> None:
    assert mt.nn.init.calculate_gain(gain) == torch.nn.init.calculate_gain(gain)
    assert mt.nn.init.calculate_gain("leaky_relu", 0.3) == torch.nn.init.calculate_gain(
        "leaky_relu", 0.3
    )


@pytest.mark.parametrize(
    ("window", "schedule"),
    [
        ({"kernel_size": 2}, "ours"),
        ({"kernel_size": 3, "stride": 1}, "ours"),
        ({"kernel_size": 3, "stride": 2, "padding": 1}, "ours"),
        ({"kernel_size": (2, 3), "stride": (1, 2), "dilation": 2}, "ours"),
        ({"kernel_size": 9, "stride": 3}, "ours"),
        ({"kernel_size": 2}, "default"),  # which takes seconds to compile
    ],
)
def test_windows_with_several_nans(window: dict[str, Any], schedule: str) -> None:
    """The last of them gets the gradient."""
    array = RNG.integers(0, 4, (2, 2, 16, 16)).astype(np.float32)
    special = RNG.choice([np.nan, np.inf, -np.inf], array.shape)
    array = np.where(RNG.random(array.shape) < 0.3, special, array).astype(np.float32)
    x, tx = mt.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    with config.override(schedule=schedule):
        y, ty = F.max_pool2d(x, **window), TF.max_pool2d(tx, **window)
        given = RNG.integers(1, 9, tuple(ty.shape)).astype(np.float32)
        y.backward(mt.tensor(given))
        ty.backward(torch.tensor(given))
        close(y, ty)
        close(x.grad, tx.grad)


PADDED: list[dict[str, Any]] = [
    {"kernel_size": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 5), "stride": (1, 2), "padding": (1, 2), "dilation": (2, 1)},
]


@pytest.mark.parametrize("window", PADDED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_padded_windows_of_minus_infinity(window: dict[str, Any], dtype: str) -> None:
    """Their first element gets the gradient, not the border."""
    array = np.where(RNG.random((2, 2, 9, 11)) < 0.7, -np.inf, RNG.normal(size=(2, 2, 9, 11)))
    array = array.astype(dtype)
    array[0] = -np.inf
    x, tx = mt.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    y, ty = F.max_pool2d(x, **window), TF.max_pool2d(tx, **window)
    y.sum().backward()
    ty.sum().backward()
    close(y, ty)
    close(x.grad, tx.grad)


@pytest.mark.parametrize("amounts", [(1, 2), (0, 1, 2, 0), (-1, 2, 1, -2), (1, 1, 1, 1, 1, 1)])
def test_pad(amounts: tuple[int, ...]) -> None:
    x, tx = both(2, 4, 5)
    y, ty = F.pad(x, amounts, value=1.5), TF.pad(tx, amounts, value=1.5)
    close(y, ty)
    (y * y).sum().backward()
    (ty * ty).sum().backward()
    close(x.grad, tx.grad)


@pytest.mark.parametrize("norm", [2.0, 1.0, 3.0, float("inf")])
def test_clip_grad_norm(norm: float) -> None:
    pairs = [both(3, 4), both(5)]
    for x, tx in pairs:
        (x * x).sum().backward()
        (tx * tx).sum().backward()
    ours = mt.nn.utils.clip_grad_norm_([x for x, _ in pairs], 1.5, norm)
    close(ours, torch.nn.utils.clip_grad_norm_([t for _, t in pairs], 1.5, norm))
    for x, tx in pairs:
        close(x.grad, tx.grad)
    mt.nn.utils.clip_grad_value_(pairs[0][0], 0.1)
    torch.nn.utils.clip_grad_value_(pairs[0][1], 0.1)
    close(pairs[0][0].grad, pairs[0][1].grad)


@pytest.mark.parametrize("shape", [(0, 2), (0, 2, 3), (2, 2, 0)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_of_nothing(shape: tuple[int, ...], momentum: float | None) -> None:
    found = []
    for lib in (torch, mt):
        layer, x = lib.nn.BatchNorm1d(2, momentum=momentum), lib.zeros(shape, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        grads = [p.grad.tolist() for p in (layer.weight, layer.bias, x)]
        state = {name: value.tolist() for name, value in layer.state_dict().items()}
        found.append((tuple(y.shape), grads, state, layer.eval()(lib.ones(1, 2)).shape))
    assert found[0] == found[1]
