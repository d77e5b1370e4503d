"""weight_norm, spectral_norm and parametrizations against torch: training, formats, messages."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_nn_layers import same_signature

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")

NORMS = [
    lambda lib, layer, **k: lib.nn.utils.weight_norm(layer, **k),
    lambda lib, layer, **k: lib.nn.utils.spectral_norm(layer, **k),
    lambda lib, layer, **k: lib.nn.utils.parametrizations.weight_norm(layer, **k),
    lambda lib, layer, **k: lib.nn.utils.parametrizations.spectral_norm(layer, **k),
]
KINDS = ["weight", "spectral", "parametrized weight", "parametrized spectral"]


def discriminator(lib: Any, norm: Callable[..., Any]) -> Any:
    """That of SNGAN, small, and a transposed convolution."""
    nn = lib.nn
    return nn.Sequential(
        norm(lib, nn.Conv2d(3, 6, 3, stride=2, padding=1)),
        nn.LeakyReLU(0.1),
        norm(lib, nn.ConvTranspose2d(6, 4, 2, stride=2)),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        norm(lib, nn.Linear(4 * 8 * 8, 1)),
    )


def temporal(lib: Any, norm: Callable[..., Any]) -> Any:
    """Blocks of a temporal convolutional network."""
    nn = lib.nn
    layers: list[Any] = []
    for i, (a, b) in enumerate([(3, 5), (5, 5)]):
        layers += [norm(lib, nn.Conv1d(a, b, 2, dilation=2**i, padding=2**i)), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(5 * 11, 1))


def both(build: Callable[[Any], Any]) -> tuple[Any, Any]:
    ours, theirs = build(mt), build(torch)
    state = {k: mt.tensor(v.numpy()) for k, v in theirs.state_dict().items()}
    assert repr(ours.load_state_dict(state)) == "<All keys matched successfully>"
    return ours, theirs


def close(ours: Any, theirs: Any, rtol: float = 2e-4) -> None:
    a, b = (np.asarray(t.detach().tolist()) for t in (ours, theirs))
    np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5)


def states(ours: Any, theirs: Any) -> None:
    mine, other = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(other)
    for name, value in mine.items():
        assert value.shape == other[name].shape, name
        close(value, other[name])


@pytest.mark.parametrize("norm", NORMS, ids=KINDS)
@pytest.mark.parametrize("model", [discriminator, temporal])
def test_training(model: Callable[..., Any], norm: Callable[..., Any], rng: Any) -> None:
    torch.manual_seed(0)
    ours, theirs = both(lambda lib: model(lib, norm))
    shape = (4, 3, 8, 8) if model is discriminator else (4, 3, 8)
    inputs = [rng.standard_normal(shape).astype("float32") for _ in range(4)]
    for lib, net in ((mt, ours), (torch, theirs)):
        optimizer = lib.optim.Adam(net.parameters(), lr=1e-2)
        for x in inputs:
            optimizer.zero_grad()
            (net(lib.tensor(x)) - 1).square().mean().backward()
            optimizer.step()
    states(ours, theirs)
    ours.eval()
    theirs.eval()
    for _ in range(2):
        close(ours(mt.tensor(inputs[0])), theirs(torch.tensor(inputs[0])))
    states(ours, theirs)


@pytest.mark.parametrize("norm", NORMS, ids=KINDS)
@pytest.mark.parametrize("dim", [0, 1, 3, -2])
def test_dimensions(norm: Callable[..., Any], dim: int, rng: Any) -> None:
    if norm is NORMS[1] and dim < 0:
        pytest.skip("refused there")
    ours, theirs = both(lambda lib: norm(lib, lib.nn.Conv2d(2, 3, 2), dim=dim))
    x = rng.standard_normal((2, 2, 4, 4)).astype("float32")
    for _ in range(2):
        close(ours(mt.tensor(x)), theirs(torch.tensor(x)))
    states(ours, theirs)


@pytest.mark.parametrize("dim", [None, -1])
def test_one_length_for_all(dim: int | None, rng: Any) -> None:
    for norm in NORMS[::2]:
        ours, theirs = both(lambda lib, f=norm: f(lib, lib.nn.Linear(3, 2), dim=dim))
        close(ours(mt.ones(1, 3)), theirs(torch.ones(1, 3)))


@pytest.mark.parametrize("norm", NORMS[1::2], ids=KINDS[1::2])
def test_arguments_of_spectral_norm(norm: Callable[..., Any], rng: Any) -> None:
    def build(lib: Any) -> Any:
        return norm(lib, lib.nn.Linear(5, 4), n_power_iterations=3, eps=1e-3)

    ours, theirs = both(build)
    x = rng.standard_normal((2, 5)).astype("float32")
    for _ in range(2):
        close(ours(mt.tensor(x)), theirs(torch.tensor(x)))
    states(ours, theirs)


def outcome(call: Callable[[Any], Any], lib: Any) -> str:
    try:
        result = call(lib)
    except Exception as error:
        # There, a sentence about weight_norm follows that here is not in every copy's message.
        text = str(error).split("  If you were")[0]
        return f"{type(error).__name__}: {text}".replace("mt.float", "torch.float")
    if isinstance(result, lib.Tensor):
        return str(np.asarray(result.detach().tolist()).round(4))
    if isinstance(result, lib.nn.Module):
        return f"{type(result).__name__} {list(result.state_dict())} {result}"
    return repr(result)


def same(call: Callable[[Any], Any]) -> None:
    assert outcome(call, mt) == outcome(call, torch)


def twice(norm: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda lib: norm(lib, norm(lib, lib.nn.Linear(3, 2)))


@pytest.mark.parametrize("norm", NORMS, ids=KINDS)
def test_formats_and_mistakes(norm: Callable[..., Any]) -> None:
    same(lambda lib: norm(lib, lib.nn.Linear(3, 2)))
    same(lambda lib: norm(lib, lib.nn.Linear(3, 2), name="foo"))
    same(lambda lib: norm(lib, lib.nn.Linear(3, 2)).weight.requires_grad)
    same(lambda lib: copy.deepcopy(norm(lib, lib.nn.Linear(3, 2))))
    same(lambda lib: [n for n, _ in norm(lib, lib.nn.Linear(3, 2)).named_parameters()])
    same(lambda lib: norm(lib, lib.nn.Linear(3, 2), n_power_iterations=0).weight.shape)
    if norm is not NORMS[1]:  # there: a message of permute()
        same(lambda lib: norm(lib, lib.nn.Linear(3, 2), dim=5))
    same(lambda lib: norm(lib, lib.nn.Linear(3, 2), name="bias"))


@pytest.mark.parametrize("norm", NORMS, ids=KINDS)
def test_the_same_norm_twice(norm: Callable[..., Any]) -> None:
    if norm is NORMS[2]:
        pytest.skip("there: a TypeError of a method that is private; here: of forward()")
    same(twice(norm))


def test_removal() -> None:
    def removed(lib: Any, norm: str) -> Any:
        layer = getattr(lib.nn.utils, norm)(lib.nn.Linear(3, 2))
        return getattr(lib.nn.utils, f"remove_{norm}")(layer)

    for norm in ("weight_norm", "spectral_norm"):
        same(lambda lib, n=norm: removed(lib, n))
        same(lambda lib, n=norm: [*removed(lib, n)._forward_pre_hooks])
        same(lambda lib, n=norm: getattr(lib.nn.utils, f"remove_{n}")(lib.nn.Linear(3, 2)))
        same(lambda lib, n=norm: isinstance(removed(lib, n).weight, lib.nn.Parameter))
    layer = mt.nn.Linear(3, 2)
    before = layer.weight.detach().clone()
    mt.nn.utils.remove_weight_norm(mt.nn.utils.weight_norm(layer))
    close(layer.weight, before)


def test_older_weights_are_loaded() -> None:
    def loaded(lib: Any) -> Any:
        older = lib.nn.utils.weight_norm(lib.nn.Linear(3, 2))
        model = lib.nn.Sequential(lib.nn.utils.parametrizations.weight_norm(lib.nn.Linear(3, 2)))
        state = {f"0.{name}": value for name, value in older.state_dict().items()}
        answer = repr(model.load_state_dict(state))
        x = lib.ones(1, 3)
        return answer, bool(lib.allclose(model(x), older(x))), sorted(state)

    same(loaded)


class _Ones:
    """Modules of either library, by what they do."""

    def __init__(self, lib: Any) -> None:
        class Symmetric(lib.nn.Module):
            def forward(self, x: Any) -> Any:
                return x.triu() + x.triu(1).transpose(-1, -2)

        class Doubled(lib.nn.Module):
            def forward(self, x: Any) -> Any:
                return 2 * x

            def right_inverse(self, x: Any) -> Any:
                return x / 2

        class Sum(lib.nn.Module):
            def forward(self, x: Any, y: Any) -> Any:
                return x + y

            def right_inverse(self, x: Any) -> Any:
                return x / 2, x / 2

        class Shorter(lib.nn.Module):
            def forward(self, x: Any) -> Any:
                return x[0]

        class Wider(lib.nn.Module):
            def forward(self, x: Any) -> Any:
                return x.double()

        class Number(lib.nn.Module):
            def forward(self, x: Any) -> Any:
                return 3

        class BackToNumber(Doubled):
            def right_inverse(self, x: Any) -> Any:
                return 3

        class BackToWider(Doubled):
            def right_inverse(self, x: Any) -> Any:
                return x.double()

        class BackToShorter(Doubled):
            def right_inverse(self, x: Any) -> Any:
                return x[0]

        class BackToMixed(Doubled):
            def right_inverse(self, x: Any) -> Any:
                return x, 3

        self.kinds = {k: v for k, v in locals().items() if isinstance(v, type)}


_KINDS = [*_Ones(mt).kinds]


def registered(lib: Any, *kinds: str, unsafe: bool = False) -> Any:
    layer = lib.nn.Linear(3, 3)
    with lib.no_grad():
        layer.weight.copy_(lib.arange(9.0).reshape(3, 3))
    made = _Ones(lib).kinds
    for kind in kinds:
        module = made[kind]()
        lib.nn.utils.parametrize.register_parametrization(layer, "weight", module, unsafe=unsafe)
    return layer


@pytest.mark.parametrize("kind", _KINDS)
def test_registering(kind: str) -> None:
    same(lambda lib: registered(lib, kind))
    same(lambda lib: registered(lib, kind).weight)
    same(lambda lib: registered(lib, "Doubled", kind))
    same(lambda lib: registered(lib, kind, unsafe=True))


def test_assigning_and_removing() -> None:
    def assigned(lib: Any, *kinds: str) -> Any:
        layer = registered(lib, *kinds)
        layer.weight = lib.ones(3, 3)
        return layer

    def removed(lib: Any, *kinds: str, leave: bool = True, name: str = "weight") -> Any:
        layer = registered(lib, *kinds)
        return lib.nn.utils.parametrize.remove_parametrizations(layer, name, leave)

    for kinds in (("Doubled",), ("Doubled", "Doubled"), ("Sum",), ("Symmetric",)):
        same(lambda lib, k=kinds: assigned(lib, *k).weight)
        same(lambda lib, k=kinds: [p.tolist() for p in assigned(lib, *k).parameters()][1:])
        same(lambda lib, k=kinds: removed(lib, *k))
        same(lambda lib, k=kinds: removed(lib, *k).weight)
        same(lambda lib, k=kinds: removed(lib, *k, leave=False).weight)
        same(lambda lib, k=kinds: removed(lib, *k, name="bias").weight)
    same(lambda lib: setattr(registered(lib, "Sum"), "weight", lib.nn.Parameter(lib.ones(3, 3))))
    same(lambda lib: pickle.dumps(registered(lib, "Sum")))
    same(lambda lib: lib.nn.utils.parametrize.ParametrizationList([], lib.ones(1)))


def test_optimizers_keep_their_parameters() -> None:
    for lib in (mt, torch):
        layer = lib.nn.Linear(3, 3)
        weight = layer.weight
        register = lib.nn.utils.parametrize.register_parametrization
        register(layer, "weight", _Ones(lib).kinds["Doubled"]())
        assert layer.parametrizations.weight.original is weight
        lib.nn.utils.parametrize.remove_parametrizations(layer, "weight")
        assert layer.weight is weight


def test_copies_are_independent() -> None:
    def copied(lib: Any) -> Any:
        layer = registered(lib, "Doubled")
        other = copy.deepcopy(layer)
        other.weight = lib.zeros(3, 3)
        return layer.weight

    same(copied)
    layer = registered(mt, "Doubled")
    other = copy.deepcopy(layer)
    mt.nn.utils.parametrize.remove_parametrizations(other, "weight")
    close(layer.weight, other.weight)  # torch removes the attribute of both


def test_questions() -> None:
    def asked(lib: Any) -> Any:
        p = lib.nn.utils.parametrize
        layer, plain = registered(lib, "Doubled"), lib.nn.Linear(1, 1)
        names = [p.type_before_parametrizations(m).__name__ for m in (layer, plain)]
        facts = [
            p.is_parametrized(m, *n) for m in (layer, plain) for n in ((), ("weight",), ("b",))
        ]
        first = layer.weight is layer.weight
        with p.cached():
            with p.cached():
                value = layer.weight
            inner = layer.weight is value
        return names, facts, first, inner, layer.weight is value

    same(asked)


def test_transfer() -> None:
    def moved(lib: Any) -> Any:
        to = lib.nn.Linear(3, 3)
        p = lib.nn.utils.parametrize
        p.transfer_parametrizations_and_params(registered(lib, "Doubled", "Symmetric"), to)
        return p.transfer_parametrizations_and_params(lib.nn.Linear(3, 3), to)

    same(moved)
    same(lambda lib: moved(lib).weight)


def test_signatures() -> None:
    utils = "weight_norm spectral_norm remove_weight_norm remove_spectral_norm"
    for name in utils.split():
        if name != "weight_norm":
            same_signature(getattr(mt.nn.utils, name), getattr(torch.nn.utils, name))
    for part in ("parametrize", "parametrizations"):
        ours, theirs = getattr(mt.nn.utils, part), getattr(torch.nn.utils, part)
        for name in ours.__all__:
            if isinstance(getattr(ours, name), type):
                continue
            same_signature(getattr(ours, name), getattr(theirs, name))


def test_the_warning() -> None:
    for lib in (mt, torch):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lib.nn.utils.weight_norm(lib.nn.Linear(3, 2))
        assert [w.category for w in caught] == [FutureWarning]


def test_compiled_steps() -> None:
    answers = []
    for compiled in (False, True):
        mt.manual_seed(0)
        net = discriminator(mt, NORMS[3])
        optimizer = mt.optim.SGD(net.parameters(), lr=0.1)

        def step(x: Any, net: Any = net, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = mt.compile(step) if compiled else step
        losses = [run(mt.full((2, 3, 8, 8), float(i))).item() for i in range(6)]
        answers.append((losses, net[0].weight.tolist()))
    assert answers[0] == answers[1]
