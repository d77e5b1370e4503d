"""Lines whose programs grow by an element each time are run by numpy, until that is no gain."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy, nn, optim, sites
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS

pytestmark = pytest.mark.filterwarnings("ignore:.*computes with ever longer tensors")


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    lazy.clear_cache()
    with config.override(growing=True):
        yield
    lazy.clear_cache()


def counted(run: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """What ``run`` gives, and what it has counted."""
    names = ("growing_programs", "reference_calls", "compiles", "native_calls")
    before = EVENTS.snapshot()
    result = run()
    return result, {n: EVENTS.get(n) - before.get(n, 0) for n in names}


def lengths(sizes: Any, weight: mt.Tensor, salt: float = 1.0) -> list[Any]:
    """One line that is evaluated with tensors of these lengths."""
    return [((mt.ones(n, 7) * salt) @ weight).tanh().sum(0).numpy().tolist() for n in sizes]


def test_what_grows_is_run_by_numpy_and_gives_the_same(rng: np.random.Generator) -> None:
    weight = mt.from_numpy(rng.normal(size=(7, 5)).astype(np.float32))
    found, events = counted(lambda: lengths(range(1, 31), weight))
    assert events["compiles"] == 1
    assert events["growing_programs"] == events["reference_calls"] == 29
    assert events["native_calls"] == events["compiles"]
    lazy.clear_cache()
    with config.override(growing=False):
        expected, events = counted(lambda: lengths(range(1, 31), weight))
    assert events["compiles"] == 30
    assert not events["growing_programs"]
    assert not events["reference_calls"]
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_sizes_that_are_used_again_must_grow_more_often() -> None:
    """As those of a comparison: there a size larger by one says little."""
    often, weight = [n for n in range(1, 31) for _ in range(sites._SELDOM + 1)], mt.ones(7, 5)
    mt.eval(weight)
    _, events = counted(lambda: lengths(often, weight))
    assert events["compiles"] == sites._OFTEN
    assert events["growing_programs"] == 30 - sites._OFTEN


def test_layers_use_a_size_as_often_as_they_are() -> None:
    weight = mt.ones(7, 5)
    mt.eval(weight)
    layers = [n for n in range(1, 31) for _ in range(6)]
    _, events = counted(lambda: lengths(layers, weight))
    assert events["compiles"] == 1


def test_what_is_new_where_others_grow_is_looked_at_again_when_it_comes_again() -> None:
    """Of another structure it does not show, the first time, which sizes vary."""
    weight = mt.ones(7, 3)
    mt.eval(weight)

    def run(n: int) -> float:
        x = (mt.ones(n, 7) @ weight).tanh()
        return float((x if n < 18 else x.exp()).sum())

    def all_of(sizes: Any) -> list[float]:
        return [run(n) for n in sizes]

    with config.override(varying=True):
        _, events = counted(lambda: all_of(range(1, 24)))
        assert events["growing_programs"] == 1  # that of 18
        assert events["compiles"] == 4  # of 1, and with room for 16, for 64, and the others' for 64
        assert mt.debug.explain().count("run by numpy: 1 call") == 1
        _, events = counted(lambda: all_of([18, 18, 18]))  # in the same room
    assert events == {"growing_programs": 0, "reference_calls": 0, "compiles": 0, "native_calls": 3}


def test_where_a_text_grows_what_a_step_puts_together_is_recorded() -> None:
    def longer(a: mt.Tensor, b: mt.Tensor) -> mt.Tensor:
        return mt.cat((a, b), 1)

    weight, text = nn.Parameter(mt.ones(2, 2)), mt.ones(1, 1)
    mt.eval(weight, text)
    joined = EVENTS.get("joined_at_once")
    with mt.no_grad():
        for _ in range(4):
            text = longer(text, text.sum(1, keepdim=True))
            mt.eval(text)
        assert EVENTS.get("joined_at_once") == joined + 3
        x = mt.ones(1, 2) * 2
        found = longer(x @ weight, x)
    assert found.node.pending
    assert found.tolist() == [[4.0, 4.0, 2.0, 2.0]]
    assert EVENTS.get("joined_at_once") == joined + 3


def test_a_user_is_told_once_and_where() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weight = mt.ones(7, 2)
        mt.eval(weight)
        lengths(range(1, 31), weight)
        lengths(range(31, 41), weight)
    (told,) = [str(w.message) for w in caught]
    assert told.startswith("test_growing.py:")
    assert "run op by op by numpy" in told
    assert "MTVM_GROWING=0" in told
    assert caught[0].filename == __file__
    assert mt.debug.explain().splitlines()[-1] == "39 growing programs, run by numpy: 39 calls"


def test_what_comes_again_often_is_compiled() -> None:
    weight = mt.ones(7, 3)
    lengths(range(1, 10), weight)
    (key, executor), *_ = reversed(lazy._INTERIM.items())
    runs = executor._runs
    assert 20 < runs < 2000
    _, events = counted(lambda: lengths([9] * (runs + 5), weight))
    assert events["reference_calls"] == runs - 1  # the first time was above
    assert events["compiles"] == 1
    assert events["native_calls"] == 6
    assert key not in lazy._INTERIM
    assert key in lazy._CACHE


@pytest.mark.parametrize(
    "sizes",
    [
        range(2, 40, 2),
        range(20, 5, -1),
        [3, 100, 4, 50, 5, 200, 61, 30, 62, 90],
    ],
)
def test_other_sizes_are_compiled(sizes: Any) -> None:
    _, events = counted(lambda: lengths(sizes, mt.ones(7, 2)))
    assert events["compiles"] == len(sizes)
    assert not events["reference_calls"]


def test_what_takes_numpy_long_is_compiled() -> None:
    big = mt.ones(1000, 1000)

    def product(n: int) -> float:
        return float((mt.ones(500 + n, 1000) @ big).sum())

    _, events = counted(lambda: [product(n) for n in range(8)])
    assert events["compiles"] == 8
    assert not events["growing_programs"]

    def convolved(n: int) -> float:
        return float(F.conv1d(mt.ones(1, 2, 9 + n), mt.ones(3, 2, 3)).sum())

    _, events = counted(lambda: [convolved(n) for n in range(8)])
    assert events["compiles"] == 8
    assert not events["growing_programs"]


def test_windows_take_numpy_as_many_passes_as_they_have_elements() -> None:
    def pooled(n: int) -> float:
        return float(F.max_pool2d(mt.ones(1, 1, 200, 200 + n), 31, 1).sum())

    _, events = counted(lambda: [pooled(n) for n in range(8)])
    assert events["compiles"] == 8
    assert not events["growing_programs"]


def test_so_many_programs_may_grow_in_one_line() -> None:
    functions = [mt.exp, mt.sin, mt.cos, mt.tanh, mt.sqrt, mt.abs, mt.neg, mt.sigmoid, mt.relu]
    functions += [mt.log1p, mt.expm1, mt.erf, mt.floor, mt.ceil]

    def value(f: Callable[[mt.Tensor], mt.Tensor], n: int) -> float:
        return float(f(mt.ones(n)).sum())

    _, events = counted(lambda: [value(f, n) for n in range(1, 7) for f in functions])
    assert events["growing_programs"] >= 2 * len(functions)


def test_a_setting_counts_at_once() -> None:
    lengths(range(1, 10), mt.ones(7, 2))
    with config.override(growing=False):
        _, events = counted(lambda: lengths([9], mt.ones(7, 2)))
    assert not events["reference_calls"]


def test_values_go_when_they_have_been_read() -> None:
    import tracemalloc

    def chain(n: int) -> float:
        x = mt.ones(n, dtype=mt.float64) * 0.5
        for _ in range(100):
            x = x.tanh() * 1.5
        return float(x.sum())

    for n in range(5000, 5004):
        chain(n)
    tracemalloc.start()
    _, events = counted(lambda: chain(5004))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert events["reference_calls"] == 1
    assert peak < 40 * 5004 * 8  # of 200 values


@pytest.mark.parametrize("setting", ["validate", "profile"])
def test_what_is_looked_into_is_compiled(setting: str) -> None:
    with config.override(**{setting: True}):
        _, events = counted(lambda: lengths(range(1, 9), mt.ones(7, 2)))
    assert events["compiles"] == 8
    assert not events["growing_programs"]


def test_captured_calls_are_compiled() -> None:
    weight = mt.ones(7, 2)

    def plain(x: mt.Tensor) -> mt.Tensor:
        return (x @ weight).tanh().sum()

    for n in range(1, 9):
        float(plain(mt.ones(n, 7)))
    assert lazy._INTERIM
    captured = mt.compile(plain)
    for n in range(6, 12):
        x = mt.ones(n, 7)
        mt.eval(x)
        for _ in range(3):
            _, events = counted(lambda x=x: float(captured(x)))
        assert events["native_calls"] == 1
        assert not events["reference_calls"]


def test_compiled_programs_do_not_make_way() -> None:
    weight = mt.ones(7, 2)
    with config.override(cache_size=8):
        mt.eval(weight)
        float(weight.exp().sum())
        lengths(range(1, 40), weight)
        _, events = counted(lambda: float(weight.exp().sum()))
        assert not events["compiles"]
        assert len(lazy._INTERIM) == 8


def test_random_numbers_are_the_same() -> None:
    def run() -> list[Any]:
        mt.manual_seed(3)
        return [F.dropout(mt.ones(n), 0.5).tolist() for n in range(1, 12)]

    found, events = counted(run)
    assert events["growing_programs"] > 4
    lazy.clear_cache()
    with config.override(growing=False):
        assert found == run()


def test_errors_are_the_same() -> None:
    table = mt.ones(5, 2)

    def row(n: int, last: int) -> list[Any]:
        return F.embedding(mt.tensor([0] * n + [last]), table).tolist()

    _, events = counted(lambda: [row(n, 4) for n in range(10)])
    assert events["growing_programs"] >= 4
    with pytest.raises(IndexError, match="index out of range"):
        row(10, 5)
    assert row(11, 4) == [[1.0, 1.0]] * 12


class Model(nn.Module):
    """Scores of the next of 9 tokens: [1, T] -> [1, 9], keys and values kept or not."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.norm = nn.Embedding(9, 8), nn.LayerNorm(8)
        self.mix, self.head = nn.Linear(8, 24), nn.Linear(8, 9)

    def forward(self, tokens: mt.Tensor, kept: list[mt.Tensor] | None) -> mt.Tensor:
        q, k, v = self.mix(self.norm(self.token(tokens))).chunk(3, -1)
        if kept is not None:
            if kept:
                k, v = mt.cat((kept[0], k), 1), mt.cat((kept[1], v), 1)
            kept[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=kept is None)
        return self.head(F.gelu(y[:, -1]))


@pytest.mark.parametrize("keeps", [False, True])
def test_a_model_writes_the_same_text(keeps: bool) -> None:
    model = Model().eval()

    def write() -> tuple[list[int], list[Any]]:
        tokens, scores = mt.tensor([[3]]), []
        kept: list[mt.Tensor] | None = [] if keeps else None
        with mt.no_grad():
            for _ in range(40):
                found = model(tokens[:, -1:] if keeps else tokens, kept)
                tokens = mt.cat((tokens, found.argmax(-1, keepdim=True)), 1)
                scores.append(found[0].tolist())
        return tokens[0].tolist(), scores

    (text, scores), events = counted(write)
    assert events["growing_programs"] >= 20
    lazy.clear_cache()
    with config.override(growing=False):
        expected, exact = write()
    assert text == expected
    np.testing.assert_allclose(scores, exact, rtol=1e-4, atol=1e-6)


def test_training_on_what_grows_gives_the_same() -> None:
    def train() -> list[Any]:
        mt.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for n in range(1, 25):
            loss = (model(mt.ones(n, 4)) - mt.arange(n).view(-1, 1) / n).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return [*mt.stack(losses).tolist(), *model[0].weight.flatten().tolist()]

    found, events = counted(train)
    assert events["growing_programs"] >= 10
    lazy.clear_cache()
    with config.override(growing=False):
        np.testing.assert_allclose(found, train(), rtol=2e-5, atol=1e-7)
