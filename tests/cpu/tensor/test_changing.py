"""Lines whose operations are others each time are run op by op."""

import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import changing, lazy, nn, optim, sites
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.node import Node, apply, leaf
from minitorch_tvm.ops import build
from minitorch_tvm.ops.composite import composite
from minitorch_tvm.runtime import piecewise

Run = Callable[[], Any]


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """From the fifth structure on, whatever the programs of its ops take to compile."""
    monkeypatch.setattr(changing, "_PIECE", 0.0)
    lazy.clear_cache()
    with config.override(changing=True):
        yield
    lazy.clear_cache()


def counted(run: Run) -> tuple[Any, dict[str, int]]:
    """What ``run`` gives, and what it has counted."""
    names = ("piecewise_programs", "piecewise_runs", "compiles")
    before = EVENTS.snapshot()
    result = run()
    return result, {n: EVENTS.get(n) - before.get(n, 0) for n in names}


def both(run: Run, rtol: float = 1e-5) -> dict[str, int]:
    """What is counted in ``run``, which must give the same as when all is compiled."""
    mt.manual_seed(0)
    found, events = counted(run)
    lazy.clear_cache()
    mt.manual_seed(0)
    with config.override(changing=False):
        expected, every = counted(run)
    assert not every["piecewise_programs"]
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)
    return events


def trained(module: nn.Module, loss: Callable[[int], mt.Tensor], count: int) -> list[Any]:
    """Losses of some steps, and the weights behind them."""
    optimizer = optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for i in range(count):
        optimizer.zero_grad()
        now = loss(i)
        now.backward()
        optimizer.step()
        losses.append(now.item())
    return [losses, *(p.detach().numpy() for p in module.parameters())]


def test_layers_that_are_left_out_at_random() -> None:
    def run() -> list[Any]:
        rng = np.random.default_rng(0)
        layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
            for _ in range(5)
        )

        def loss(_: int) -> mt.Tensor:
            x = mt.from_numpy(rng.normal(size=(6, 8)).astype("f"))
            for layer in layers:
                if rng.random() < 0.5:
                    x = x + layer(F.dropout(x, 0.2))
            return F.cross_entropy(layers[0](x), mt.from_numpy(rng.integers(0, 8, 6)))

        return trained(layers, loss, 25)

    events = both(run)
    assert events["piecewise_runs"] >= events["piecewise_programs"] >= 5


def test_trees() -> None:
    def run() -> list[Any]:
        rng = np.random.default_rng(1)
        embed, join = nn.Embedding(9, 4), nn.Linear(8, 4)

        def meaning(words: int) -> mt.Tensor:
            if words == 1:
                return embed(mt.tensor([int(rng.integers(9))]))
            left = int(rng.integers(1, words))
            return mt.cat([meaning(left), meaning(words - left)], 1) @ join.weight.T + join.bias

        return trained(
            nn.ModuleList([embed, join]),
            lambda _: F.cross_entropy(meaning(int(rng.integers(2, 7))), mt.tensor([1])),
            40,
        )

    events = both(run)
    assert events["piecewise_programs"] >= 5


OPS: list[Callable[[mt.Tensor, mt.Tensor, Any], mt.Tensor]] = [
    lambda x, y, r: x * y + 1.5,
    lambda x, y, r: x - float(r.random()),
    lambda x, y, r: x.reshape(-1).reshape(x.shape) / (1 + y * y),
    lambda x, y, r: x.T @ y,
    lambda x, y, r: (x @ x).tanh(),
    lambda x, y, r: x.softmax(0) + y.detach(),
    lambda x, y, r: mt.where(x > y, x, y.clone()),
    lambda x, y, r: x.flip(0).cumsum(1) * 0.1,
    lambda x, y, r: x[mt.tensor([3, 0, 1, 1])],
    lambda x, y, r: mt.cat([x[:2], y[2:]]),
    lambda x, y, r: x.sort(1).values + y.argsort(0),
    lambda x, y, r: (x.round().to(mt.int64) % 3).to(mt.float32) + y,
    lambda x, y, r: F.layer_norm(x, (4,)) * mt.full((4, 1), 2.0),
    lambda x, y, r: F.dropout(y, 0.5) + mt.rand(4, 4),
    lambda x, y, r: x.mean(1, keepdim=True).expand(4, 4) + y.amax(),
    lambda x, y, r: mt.stack([x[int(r.integers(4))], y[3], x[:, 1], y[2:4, 0].repeat(2)]),
    lambda x, y, r: x[1:3, None].expand(2, 2, 4).reshape(4, 4) - y[:, ::2].repeat(1, 2),
]


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int) -> None:
    """Whatever is recorded, with all that somebody may hold of it."""

    def run() -> list[Any]:
        rng = np.random.default_rng(seed)
        results: list[Any] = []
        kept = mt.from_numpy(rng.normal(size=(4, 4)).astype("f"))
        for _ in range(25):
            values = [kept, mt.from_numpy(rng.normal(size=(4, 4)).astype("f"))]
            values[1].requires_grad_(bool(rng.random() < 0.5))
            for _ in range(rng.integers(2, 9)):
                x, y = (values[int(i)] for i in rng.integers(0, len(values), 2))
                values.append(OPS[int(rng.integers(len(OPS)))](x, y, rng))
            shown = [values[int(i)] for i in rng.integers(2, len(values), 2)]
            shown.append(shown[0].reshape(2, 8))  # a view of a result
            total = sum((s.sum() for s in shown), mt.tensor(0.0))
            if total.requires_grad:
                total.backward()
            kept = (kept * 0.5).copy_(shown[1].detach().tanh())
            results += [s.detach().numpy() for s in (*shown, total, kept)]
            if values[1].grad is not None:
                results.append(values[1].grad.numpy())
        return results

    events = both(run, 1e-4)
    assert events["piecewise_programs"] >= 15


@pytest.mark.parametrize("seed", range(4))
def test_random_updates(seed: int) -> None:
    """In-place operations, whatever else reads what was there before."""

    def run() -> list[Any]:
        rng = np.random.default_rng(seed)
        tensors = [mt.tensor(rng.normal(size=(40, 40)).astype("f")) for _ in range(3)]
        results: list[Any] = []
        for _ in range(25):
            held = []
            for _ in range(rng.integers(3, 9)):
                k, i, j = (int(n) for n in rng.integers(0, (8, 3, 3)))
                x, y = tensors[i], tensors[j]
                if k == 0:
                    x.mul_(0.5).add_(y, alpha=0.25)
                elif k == 1:
                    x += y.T
                elif k == 2:
                    x.lerp_(y, 0.5)
                    y.copy_(x.tanh())
                elif k == 3:
                    x[1:3] = y[7:9] * 0.5
                elif k == 4:
                    held.append(x.clone() + y)
                elif k == 5:
                    held.append(x.reshape(2, 800).sum(1))  # reads a view of what may be written
                elif k == 6:
                    x.sub_(y.flip(0)).tanh_()
                else:
                    tensors[i] = x @ y * 0.02
            mt.eval(*tensors, *held)
            results += [t.numpy().copy() for t in (*held, *tensors)]
        return results

    events = both(run)
    assert events["piecewise_programs"] >= 15


def left_out(rng: np.random.Generator, layers: nn.ModuleList) -> mt.Tensor:
    x = mt.ones(4, 8)
    for layer in layers:
        if rng.random() < 0.6:
            x = x + layer(x).tanh()
    return (x + layers[0](x)).sum()


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_parameters_are_updated_in_place(name: str) -> None:
    rng = np.random.default_rng(3)
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
    optimizer = getattr(optim, name)(layers.parameters(), lr=1e-2)
    parameters = list(layers.parameters())
    places: list[int] = []
    met = 0
    for i in range(30):
        optimizer.zero_grad()
        left_out(rng, layers).backward()
        before = EVENTS.get("piecewise_runs")
        optimizer.step()
        if i > 10 and EVENTS.get("piecewise_runs") > before:
            assert [p.data_ptr() for p in parameters] == places
            met += 1
        places = [p.data_ptr() for p in parameters]
    executor = next(e for e in lazy.executors() if isinstance(e, changing.PiecewiseExecutor))
    updates = [r for r in executor._pieces.results if len(r) > 1]
    assert len(updates) == (0 if name == "SGD" else sum(executor.overwrites) // 3)
    assert all(len(r) == 3 for r in updates)
    assert met >= 5


def test_nothing_is_written_over_where_memory_is_lacking() -> None:
    """What raises leaves all as it was, so that it can be asked for again."""
    rng = np.random.default_rng(3)
    tensors = [mt.rand(8, 8) for _ in range(5)]
    buffer, left = piecewise.Buffer, 1 << 30
    raised, executors = 0, set()

    def taken(nbytes: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise MemoryError
        return buffer(nbytes)

    for i in range(40):
        expected = [x.numpy().copy() for x in tensors]
        held = []
        for x, old, k in zip(tensors, expected, rng.integers(0, 4, 5), strict=True):
            if k < 3:
                name = ("tanh", "sin", "square")[k]
                getattr(x, name + "_")()
                getattr(np, name)(old, out=old)
                held.append(x + 1.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(piecewise, "Buffer", taken)
            for allowed in (i % 5, 1 << 30):
                left = allowed
                try:
                    mt.eval(*tensors, *held)
                except MemoryError:
                    raised += 1
        executors.update(e for e in lazy.executors() if isinstance(e, changing.PiecewiseExecutor))
        for x, new in zip(tensors, expected, strict=True):
            np.testing.assert_allclose(x.numpy(), new, rtol=1e-4)
    assert raised >= 5
    assert any(any(e.overwrites) for e in executors)


def test_running_sums_are_not_written_over_what_they_are_of() -> None:
    """Nor by anything else that reads an element behind writing another."""
    rng = np.random.default_rng(3)
    tensors = [mt.rand(8, 8) for _ in range(4)]
    sums = 0
    for _ in range(20):
        for x in tensors:
            (x.tanh_, x.sin_, lambda x=x: x.cumsum_(0))[int(rng.integers(3))]()
        mt.eval(*tensors)
        executor = lazy.executors()[0]
        if isinstance(executor, changing.PiecewiseExecutor):
            p = executor._pieces
            made_by = dict(zip([r[0] for r in p.results], p.made_by, strict=True))
            possible = [made_by[o].overwrites[0] for o in executor._outputs]
            assert list(executor.overwrites) == possible
            sums += possible.count(False)
    assert sums >= 5


def test_what_is_updated_may_have_been_asked_for_its_shape_only() -> None:
    rng = np.random.default_rng(5)
    like = composite("ReshapedLike", lambda x, y: build.reshape(x, y.shape))
    x, runs = mt.rand(8), EVENTS.get("piecewise_runs")
    for _ in range(20):
        y = mt.tensor([[0.0] * 4] * 2)
        shown = mt.Tensor._wrap(apply(like, x.node, y.node)) + several(rng, x).reshape(2, 4)
        y.copy_(x.reshape(2, 4) * 2.0)
        mt.eval(shown, y)
        np.testing.assert_allclose(y.numpy().reshape(8), x.numpy() * 2.0)
    assert EVENTS.get("piecewise_runs") > runs


def test_actions_of_episodes() -> None:
    """Which entries are read is no other size: there is no program with room for several."""

    def run() -> list[Any]:
        rng = np.random.default_rng(2)
        policy = nn.Linear(3, 2)

        def loss(_: int) -> mt.Tensor:
            chosen = []
            for action in rng.integers(0, 2, 6):
                state = mt.from_numpy(rng.normal(size=3).astype("f"))
                chosen.append(F.log_softmax(policy(state), -1)[int(action)])
            return -(mt.stack(chosen) * mt.arange(len(chosen))).sum()

        return trained(policy, loss, 30)

    with config.override(varying=True):
        events = both(run)
    assert events["piecewise_programs"] >= 10


def test_choices_that_are_made_several_times_are_compiled() -> None:
    x = mt.from_numpy(np.ones((2, 8), np.float32))

    def run() -> None:
        for dims in itertools.islice(itertools.permutations(range(4)), 1, 11):
            for _ in range(4):
                (x.reshape(2, 2, 2, 2).permute(dims) * 2.0).sum().item()

    _, events = counted(run)
    assert not events["piecewise_programs"]
    assert events["compiles"] == 10


def test_parts_of_parts() -> None:
    """A composite that only takes parts is one part."""
    x = leaf(None, (6, 4), mt.float32)

    def inner(x: Node) -> Node:
        rows = build.slice(x, [2, 0], [6, 4], [1, 1])
        return build.reshape(build.slice(rows, [1, 0], [3, 4], [1, 1]), (8,))

    node = apply(composite("Inner", inner), x)
    x.index = 0
    assert changing._looked_at(node) == ((0,), (3 * 4 * 4, 8 * 4))
    node = apply(composite("Column", lambda x: build.slice(x, [0, 1], [6, 2], [1, 1])), x)
    assert changing._looked_at(node) is None


def test_what_is_put_side_by_side_is_copied() -> None:
    """Without a program, of which there would be one for each number of parts."""
    rows = [leaf(None, (n, 4), mt.float32) for n in (2, 0, 3)]
    found = changing._looked_at(build.cat(rows, 0))
    assert found is not None
    assert found[0] == (0, 1, 2)
    assert isinstance(found[1], piecewise.Join)
    assert found[1].sizes == [5 * 4 * 4]

    def stacked(x: Node, *others: Node) -> Node:
        last = build.slice(x, [1, 0], [2, 4], [1, 1])
        return build.cat([last, *[build.reshape(y, (1, 4)) for y in others], last], 0)

    flat = [leaf(None, (4,), mt.float32) for _ in range(3)]
    for number, x in enumerate([rows[0], *flat]):
        x.index = number
    found = changing._looked_at(apply(composite("Stacked", stacked), rows[0], *flat))
    assert found is not None
    assert found[0] == (0, 1, 2, 3, 0)
    beside = build.cat([rows[0], rows[0]], 1)  # not one behind the other
    large = build.cat([leaf(None, (1 << 16,), mt.float32)] * 2, 0)
    assert changing._looked_at(beside) is changing._looked_at(large) is None

    def run() -> list[Any]:
        rng = np.random.default_rng(4)
        x = mt.from_numpy(rng.normal(size=(3, 4)).astype("f"))
        results: list[Any] = []
        for _ in range(25):
            parts = [several(rng, x)[int(rng.integers(3))] for _ in range(rng.integers(2, 9))]
            lines = mt.cat([mt.stack(parts), x[1:], x[:0]])
            results += [lines.numpy(), mt.stack([p.sum() for p in parts]).cumsum(0).numpy()]
        return results

    assert both(run)["piecewise_programs"] >= 10


def test_results_have_memory_of_their_own() -> None:
    rng = np.random.default_rng(0)
    x = mt.from_numpy(np.ones((3, 4), np.float32))
    for _ in range(12):
        first = several(rng, x)
        second = first.clone()
        mt.eval(first, second)
        before = first.numpy().copy()
        second += 1.0
        mt.eval(second)
        assert (first.numpy() == before).all()
        np.testing.assert_allclose(second.numpy(), before + 1.0)


def several(rng: np.random.Generator, x: mt.Tensor) -> mt.Tensor:
    """A structure that has hardly been met."""
    for k in rng.integers(0, 4, 10):
        x = (x + 1.0, x * 0.5, x.tanh(), x - x.mean())[k]
    return x


def evaluated(rng: np.random.Generator, x: mt.Tensor) -> None:
    """Always the same line."""
    several(rng, x).sum().item()


def test_what_comes_again_is_compiled() -> None:
    rng = np.random.default_rng(0)
    x = mt.from_numpy(np.ones((3, 4), np.float32))
    for _ in range(6):
        evaluated(rng, x)
    for n in range(1, 12):
        _, events = counted(lambda: evaluated(np.random.default_rng(99), x))
        assert events["piecewise_runs"] == (n <= changing._MOST_RUNS)
        assert events["compiles"] == (n == changing._MOST_RUNS + 1) or n == 1


def test_structures_that_are_run_several_times_are_compiled() -> None:
    """As where many functions are measured, one after the other."""
    rng = np.random.default_rng(0)
    x = mt.from_numpy(np.ones((3, 4), np.float32))

    def run() -> None:
        for seed in rng.integers(0, 1 << 30, 12):
            for _ in range(4):
                evaluated(np.random.default_rng(seed), x)

    _, events = counted(run)
    assert not events["piecewise_programs"]
    assert events["compiles"] == 12


def test_its_programs_are_paid_for_by_those_that_would_have_been_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changing, "_PIECE", 0.02)
    monkeypatch.setattr(changing, "_PROGRAM", 0.02)
    monkeypatch.setattr(changing, "_PROGRAM_NODE", 0.0)
    rng = np.random.default_rng(0)
    x = mt.from_numpy(np.ones((3, 4), np.float32))
    compiled = []
    for _ in range(30):
        _, events = counted(lambda: evaluated(rng, x))
        compiled.append(not events["piecewise_runs"])
    # Six ops (additions, products, tanh, means, differences, a sum) cost as much as six programs.
    # Four structures tell that the line changes, and have paid for the ops of the fifth.
    assert compiled[:4] == [True] * 4
    assert sum(compiled) == 6
    assert not any(compiled[7:])


def test_sizes_that_vary_are_run_with_room() -> None:
    """A structure that was met with other sizes is not run op by op: these would be new each."""
    rng = np.random.default_rng(0)
    with config.override(varying=True):
        for _ in range(6):
            evaluated(rng, mt.ones(3, 4))
        sizes = [5, 90, 33, 64, 20, 41, 57, 38, 71, 16]
        before = EVENTS.get("piecewise_runs")
        for n in sizes:
            evaluated(np.random.default_rng(99), mt.ones(n, 4))
        assert EVENTS.get("piecewise_runs") == before + 3
        assert EVENTS.get("padded_runs") >= 2


def test_what_takes_long_is_compiled() -> None:
    rng = np.random.default_rng(0)
    x = mt.from_numpy(np.ones((1000, 4000), np.float32))
    _, events = counted(lambda: [evaluated(rng, x) for _ in range(8)])
    assert not events["piecewise_programs"]


def test_what_else_is_compiled() -> None:
    rng = np.random.default_rng(0)
    x = mt.from_numpy(np.ones((3, 4), np.float32))
    for settings in ({"changing": False}, {"validate": True}, {"profile": True}):
        lazy.clear_cache()
        with config.override(**settings):
            _, events = counted(lambda: [evaluated(rng, x) for _ in range(8)])
        assert not events["piecewise_programs"]
        assert events["compiles"] == 8

    # One that runs op by op is compiled for a captured call.
    lazy.clear_cache()
    for _ in range(8):
        evaluated(rng, x)

    def step() -> None:
        evaluated(np.random.default_rng(99), x)

    _, events = counted(step)
    assert events["piecewise_runs"] == 1
    captured = mt.compile(lambda x: several(np.random.default_rng(99), x).sum())
    _, events = counted(lambda: [captured(x).item() for _ in range(5)])
    assert not events["piecewise_runs"]
    assert events["compiles"] == 1


def test_a_users_array_is_written_to() -> None:
    rng = np.random.default_rng(0)
    array = np.zeros((3, 4), np.float32)
    x, y = mt.from_numpy(array), mt.ones(3, 4)
    expected = np.zeros((3, 4))
    for n in range(10):
        several(rng, y)
        x += (y + 1.0) * n if rng.random() < 0.5 else (y + y * n).T.T + 1.0 * n - n
        expected += 2.0 * n if np.allclose(x.numpy(), expected + 2.0 * n) else 1.0 + n
        np.testing.assert_allclose(array, expected)


def test_elements_that_are_not_aligned() -> None:
    raw = np.zeros(12 * 4 + 1, np.uint8)
    array = raw[1:].view(np.float32).reshape(3, 4)
    array[...] = np.arange(12).reshape(3, 4) / 12
    x = mt.from_numpy(array)

    def run() -> list[Any]:
        rng = np.random.default_rng(0)
        return [several(rng, x).sum().item() for _ in range(9)]

    assert both(run)["piecewise_runs"] >= 4


def test_what_a_signal_raises_comes_when_results_have_been_told() -> None:
    rng = np.random.default_rng(0)
    x = mt.from_numpy(np.ones((3, 4), np.float32))
    for _ in range(7):
        evaluated(rng, x)

    class Came(Exception):
        pass

    def handler(*_: object) -> None:
        raise Came

    y = several(rng, x) + mt.zeros(200, 3, 4).cumsum(0).sum(0)
    launch = changing.Executor._launch

    def interrupted(self: Any, *given: Any) -> Any:
        late = launch(self, *given)
        return late if late is not None else Came()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(changing.Executor, "_launch", interrupted)
            with pytest.raises(Came):
                y.numpy()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not y.node.pending
    assert np.isfinite(y.numpy()).all()


def test_a_user_can_see_it(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x = mt.from_numpy(np.ones((3, 4), np.float32))
    with config.override(log=frozenset(["compile"])):
        for _ in range(6):
            evaluated(rng, x)
    told = [line for line in capsys.readouterr().err.splitlines() if "one by one" in line]
    assert len(told) == 2
    assert "test_changing.py" in told[0]
    assert mt.debug.explain().splitlines()[-1] == "2 structures, run op by op: 2 calls"


def test_lines_that_are_remembered_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "_MOST_STRUCTURES", 5)
    monkeypatch.setattr(changing, "_MOST_PIECES", 4)
    rng = np.random.default_rng(0)
    x = mt.from_numpy(np.ones((3, 4), np.float32))
    for _ in range(30):
        evaluated(rng, x)
    (site,) = changing._SITES.values()
    assert len(site.shapes) <= 5
    assert len(site.runs) <= 5
    assert len(changing._PIECES) <= 4
    assert len(sites._CHANGING) == 1
