"""Lines whose sizes vary are run by programs that have room for several sizes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy, nn, optim, varying
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS

Run = Callable[[], Any]


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    lazy.clear_cache()
    with config.override(varying=True):
        yield
    lazy.clear_cache()


def counted(run: Run) -> tuple[Any, dict[str, int]]:
    """What ``run`` gives, and what it has counted."""
    names = ("padded_programs", "padded_runs", "compiles")
    before = EVENTS.snapshot()
    result = run()
    return result, {n: EVENTS.get(n) - before.get(n, 0) for n in names}


def both(run: Run) -> tuple[Any, dict[str, int], dict[str, int]]:
    """What ``run`` gives as it is, with what has been counted, and that when all is compiled.

    Results must be nearly the same.
    """
    mt.manual_seed(0)
    found, events = counted(run)
    lazy.clear_cache()
    mt.manual_seed(0)
    with config.override(varying=False):
        expected, every = counted(run)
    assert not every["padded_programs"]
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    return found, events, every


def stepped(optimizer: optim.Optimizer, loss: mt.Tensor) -> float:
    """A step of training."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def sizes(count: int, low: int, high: int) -> list[int]:
    return np.random.default_rng(1).integers(low, high, count).tolist()


def test_rows_that_vary_are_run_with_room() -> None:
    def run() -> list[Any]:
        weight = mt.arange(15.0).reshape(3, 5) / 9
        data = [np.random.default_rng(n).normal(size=(n, 3)).astype("f") for n in sizes(30, 20, 60)]
        return [F.gelu(mt.from_numpy(x) @ weight).softmax(0).numpy() for x in data]

    _, events, every = both(run)
    assert every["compiles"] >= 20
    assert events["compiles"] <= 9
    assert events["padded_programs"] >= 14


def test_molecules() -> None:
    def run() -> list[Any]:
        rng = np.random.default_rng(0)
        # Without a bias, whose gradient behind a normalisation is rounding errors alone.
        embed, inner, out = nn.Embedding(9, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 1)
        norm = nn.BatchNorm1d(8)
        parameters = [p for m in (embed, inner, norm, out) for p in m.parameters()]
        optimizer, losses = optim.Adam(parameters, lr=1e-2), []
        for _ in range(25):
            atoms = rng.integers(3, 9, 4)
            n, bonds = int(atoms.sum()), int(rng.integers(30, 60))
            ends = mt.from_numpy(rng.integers(0, n, (2, bonds)))
            x = embed(mt.from_numpy(rng.integers(0, 9, n)))
            h = x + mt.zeros_like(x).index_add(0, ends[1], x[ends[0]])
            h = F.dropout(F.relu(norm(inner(h))), 0.1)
            whole = mt.from_numpy(np.repeat(np.arange(4), atoms))
            y = out(mt.zeros(4, 8).index_add(0, whole, h)).squeeze(1)
            loss = F.smooth_l1_loss(y, mt.from_numpy(rng.normal(size=4).astype("f")))
            losses.append(stepped(optimizer, loss))
        return [*losses, *(p.detach().numpy() for p in parameters), norm.running_var.numpy()]

    _, events, every = both(run)
    assert every["compiles"] >= 20
    assert events["compiles"] <= 17
    assert events["padded_programs"] >= 8


def test_experts_get_what_is_sent_to_them() -> None:
    def run() -> list[Any]:
        gate, experts = nn.Linear(6, 3), nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        optimizer, losses = optim.SGD([*gate.parameters(), *experts.parameters()], lr=0.1), []
        for _ in range(24):
            x = mt.randn(64, 6)
            weight, chosen = gate(x).softmax(-1).max(-1)
            y = mt.zeros_like(x)
            for number, expert in enumerate(experts):
                rows = (chosen == number).nonzero().squeeze(1)
                y = y.index_add(0, rows, expert(x[rows]) * weight[rows, None])
            loss = (y - x.flip(1)).square().mean()
            losses.append(stepped(optimizer, loss))
        return losses

    _, events, every = both(run)
    assert events["padded_programs"] >= 8
    assert events["compiles"] <= every["compiles"] - 5


def test_positions_in_a_text_of_any_length() -> None:
    def run() -> list[Any]:
        embed, mix, out = nn.Embedding(9, 8), nn.Linear(8, 24), nn.Linear(8, 9)
        optimizer = optim.SGD([*embed.parameters(), *mix.parameters()], lr=0.1)
        rng, losses = np.random.default_rng(0), []
        for n in sizes(15, 10, 40):
            tokens = mt.from_numpy(rng.integers(0, 9, (3, n)))
            x = embed(tokens[:, :-1])
            query, key, value = mix(x).view(3, n - 1, 3, 2, 4).permute(2, 0, 3, 1, 4)
            hidden = (tokens[:, :-1] != 0)[:, None, None]
            y = F.scaled_dot_product_attention(query, key, value, attn_mask=hidden)
            scores = out(x + y.transpose(1, 2).flatten(2))
            loss = F.cross_entropy(scores.reshape(-1, 9), tokens[:, 1:].reshape(-1))
            losses += [stepped(optimizer, loss), scores[:, -1].detach().numpy()]
        return losses

    _, events, every = both(run)
    assert events["padded_programs"] >= 5
    assert events["compiles"] < every["compiles"]


def test_lines_of_any_length_are_sorted() -> None:
    """NaN is the largest number, and comes behind what is none but for it."""

    def run() -> list[Any]:
        rng, found = np.random.default_rng(0), []
        for n in sizes(16, 20, 60):
            x = rng.normal(size=(3, n)).astype(np.float32)
            x[rng.random((3, n)) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
            a, b = mt.from_numpy(x), mt.from_numpy(rng.integers(-3, 3, n))
            found += [a.sort(1).values.numpy(), a.sort(1, descending=True).values.numpy()]
            found += [a.topk(4, 1).values.numpy(), a.argsort(1).numpy()]
            found += [b.sort().values.numpy(), b.argsort(descending=True, stable=True).numpy()]
        return found

    _, events, _ = both(run)
    assert events["padded_programs"] >= 20


def test_rows_of_a_few_each() -> None:
    def run() -> list[Any]:
        inner, outer = nn.Embedding(50, 8), nn.Embedding(50, 8)
        noise = mt.arange(50.0) + 1
        optimizer = optim.SGD([*inner.parameters(), *outer.parameters()], lr=0.5)
        losses = []
        for k, n in enumerate(sizes(40, 20, 60)):
            rng = np.random.default_rng(k)
            center, near = (mt.from_numpy(rng.integers(0, 50, n)) for _ in range(2))
            other = mt.multinomial(noise, 5 * n, replacement=True)
            a, b, c = inner(center), outer(near), outer(other).view(n, 5, 8)
            negative = mt.bmm(c, a.unsqueeze(2)).squeeze(2)
            loss = -(F.logsigmoid((a * b).sum(1)) + F.logsigmoid(-negative).sum(1)).mean()
            losses.append(stepped(optimizer, loss))
        return losses

    _, events, every = both(run)
    assert every["compiles"] >= 25
    assert events["compiles"] <= 16
    assert events["padded_programs"] >= 14


def test_labels_of_texts_in_one_line() -> None:
    def run() -> list[Any]:
        table, head = nn.Embedding(9, 8), nn.Linear(8, 9)
        optimizer = optim.Adam([*table.parameters(), *head.parameters()], lr=0.1)
        losses = []
        for k, (n, m) in enumerate(zip(sizes(40, 4, 9), sizes(40, 20, 60)[::-1], strict=True)):
            text = np.random.default_rng(k).integers(0, 9, (n, m))
            labels = mt.from_numpy((text * 2 % 9).reshape(-1))
            scores = head(table(mt.from_numpy(text))).view(-1, 9)
            losses.append(stepped(optimizer, F.cross_entropy(scores, labels)))
        return losses

    _, events, every = both(run)
    assert every["compiles"] >= 25
    assert events["padded_programs"] >= 14


def test_texts_of_any_length_are_convolved() -> None:
    def run() -> list[Any]:
        table, lines, head = nn.Embedding(20, 6), nn.Conv1d(6, 8, 3, padding=1), nn.Linear(8, 3)
        optimizer = optim.SGD([*table.parameters(), *lines.parameters(), *head.parameters()], 0.1)
        losses = []
        for k, n in enumerate(sizes(26, 10, 60)):
            rng = np.random.default_rng(k)
            text = mt.from_numpy(rng.integers(0, 20, (4, n)))
            found = F.max_pool1d(F.relu(lines(table(text).transpose(1, 2))), 3, 2).amax(2)
            labels = mt.from_numpy(rng.integers(0, 3, 4))
            losses.append(stepped(optimizer, F.cross_entropy(head(found), labels)))
        return losses

    _, events, every = both(run)
    assert every["compiles"] >= 18
    assert events["compiles"] <= 12
    assert events["padded_programs"] >= 10


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_texts_of_any_length_are_read_by_recurrent_layers(kind: Any) -> None:
    def run() -> list[Any]:
        table, head = nn.Embedding(20, 6), nn.Linear(16, 3)
        layer = kind(6, 8, batch_first=True, bidirectional=True)
        parameters = [p for part in (table, layer, head) for p in part.parameters()]
        optimizer = optim.SGD(parameters, 0.1)
        losses = []
        for k, n in enumerate(sizes(22, 10, 40)):
            rng = np.random.default_rng(k)
            text = mt.from_numpy(rng.integers(0, 20, (4, n)))
            states, last = layer(table(text))
            last = last[0] if isinstance(last, tuple) else last
            found = head(states.mean(1) + last.transpose(0, 1).reshape(4, 16))
            labels = mt.from_numpy(rng.integers(0, 3, 4))
            losses.append(stepped(optimizer, F.cross_entropy(found, labels)))
        return losses

    _, events, every = both(run)
    assert every["compiles"] >= 15
    assert events["compiles"] <= 12
    assert events["padded_programs"] >= 10


def test_images_of_any_size_have_one_structure() -> None:
    def run() -> list[Any]:
        down, up = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)
        optimizer = optim.SGD([*down.parameters(), *up.parameters()], 0.1)
        losses = []
        for k, (h, w) in enumerate(zip(sizes(24, 10, 30), sizes(24, 30, 60)[::-1], strict=True)):
            image = mt.from_numpy(np.random.default_rng(k).normal(size=(1, 3, h, w)).astype("f"))
            small = F.max_pool2d(F.relu(down(image)), 2)
            large = F.interpolate(small, size=(h, w), mode="nearest")
            losses.append(stepped(optimizer, (up(large) - image[:, :2]).square().mean()))
        return losses

    _, events, _ = both(run)
    assert events["padded_programs"] >= 8
    assert events["compiles"] <= 14


def test_levels_of_a_network_are_not_many_sizes() -> None:
    """A line that resizes to six sizes in one program does so in the next; few sizes stay known."""
    before = EVENTS.get("compiles")
    for turn in range(3):
        for size in (4, 6, 5):
            level = mt.from_numpy(np.full((1, 2, size, size), turn, "f"))
            for _ in range(5):
                level = F.interpolate(level + 1, size=2 * level.shape[-1], mode="nearest")
            assert (level.numpy() == turn + 5).all()
    assert EVENTS.get("compiles") - before == 3


def test_words_behind_a_mask() -> None:
    """Of texts of any number and length some words are picked, and all are labelled."""

    def run() -> list[Any]:
        rng = np.random.default_rng(0)
        embed, out = nn.Embedding(9, 8), nn.Linear(8, 9)
        optimizer, losses = optim.Adam([*embed.parameters(), *out.parameters()], lr=1e-2), []
        for texts, length in zip(sizes(24, 5, 12), reversed(sizes(24, 8, 30)), strict=True):
            tokens = mt.from_numpy(rng.integers(0, 9, (texts, length)))
            hidden = embed(tokens)
            mask = tokens > 4
            loss = F.cross_entropy(out(hidden[mask]), tokens[mask])
            scores = out(hidden)[:, :-1]
            loss = loss + F.cross_entropy(scores.reshape(-1, 9), tokens[:, 1:].reshape(-1))
            losses.append(stepped(optimizer, loss))
        return losses

    _, events, every = both(run)
    assert events["padded_programs"] >= 8
    assert events["compiles"] <= every["compiles"] - 4


def test_random_numbers_are_the_same_bits() -> None:
    def run() -> list[Any]:
        found = []
        for n in sizes(20, 20, 50):
            found += [(mt.rand(n, 3) + mt.zeros(n, 1)).numpy(), (mt.rand(2, n, 4) * 1).numpy()]
        return found

    found, events, _ = both(run)
    assert events["padded_programs"] >= 10
    with config.override(varying=False):
        mt.manual_seed(0)
        for got, want in zip(found, run(), strict=True):
            np.testing.assert_array_equal(got, want)


def test_results_are_kept_and_inputs_are_what_they_were() -> None:
    data = [np.full((n, 3), i, np.float32) for i, n in enumerate(sizes(40, 20, 60))]
    copies = [x.copy() for x in data]

    def run() -> list[Any]:
        return [(mt.from_numpy(x) * 2 + mt.arange(len(x))[:, None]) for x in data]

    def evaluated() -> list[Any]:
        found = run()
        for y in found:
            mt.eval(y)
        return [y.numpy() for y in found]

    def one_by_one() -> list[Any]:
        found = []
        for x in data:
            found.append(mt.from_numpy(x) * 2 + mt.arange(len(x))[:, None])
            mt.eval(found[-1])
        return [y.numpy() for y in found]

    for way in (evaluated, one_by_one):
        results, events = counted(way)
        for x, y in zip(copies, results, strict=True):
            np.testing.assert_array_equal(y, x * 2 + np.arange(len(x))[:, None])
    assert events["padded_programs"] >= 10
    for x, y in zip(copies, data, strict=True):
        np.testing.assert_array_equal(x, y)


def test_what_is_written_in_place_is_written_to_the_users_array() -> None:
    before = EVENTS.get("padded_programs")
    for number, n in enumerate(sizes(30, 20, 60)):
        array = np.arange(n * 2, dtype=np.float32).reshape(n, 2)
        x = mt.from_numpy(array)
        x *= 3
        x += x.sum(0)
        mt.eval(x)
        want = np.arange(n * 2, dtype=np.float32).reshape(n, 2) * 3
        np.testing.assert_allclose(array, want + want.sum(0), err_msg=str(number))
    assert EVENTS.get("padded_programs") - before >= 10


def test_what_is_not_run_with_room() -> None:
    """The last batch of an epoch, sizes that have not been met, captured calls, other settings."""
    weight = mt.from_numpy(np.ones((3, 4), np.float32))

    def lengths(found: Any) -> None:
        for n in found:
            (mt.ones(n, 3).tanh() @ weight).sum(0).numpy()

    _, events = counted(lambda: lengths([32, 20] * 8))
    assert events == {"padded_programs": 0, "padded_runs": 0, "compiles": 2}
    lazy.clear_cache()
    _, events = counted(lambda: lengths([1, 4, 16, 64, 256, 1024, 2048]))
    assert events["compiles"] == 7
    lazy.clear_cache()
    _, events = counted(lambda: lengths([512, 256, 128, 64, 32, 8]))
    assert events["compiles"] == 6
    for settings in ({"varying": False}, {"validate": True}, {"profile": True}):
        lazy.clear_cache()
        with config.override(**settings):
            _, events = counted(lambda: lengths(sizes(12, 20, 60)))
        assert events["compiles"] == len(set(sizes(12, 20, 60)))
        assert not events["padded_programs"]

    @mt.compile
    def captured(x: mt.Tensor) -> mt.Tensor:
        return (x.tanh() @ weight).sum(0)

    lazy.clear_cache()
    data = [mt.from_numpy(np.ones((n, 3), np.float32)) for n in sizes(12, 20, 60)]
    _, events = counted(lambda: [captured(x) for x in data for _ in "123"])
    assert not events["padded_runs"]


def test_the_smallest_and_the_largest_so_far_have_room_where_others_had() -> None:
    weight = mt.arange(12.0).reshape(3, 4)
    order = [20, 40, 22, 31, 27, 25, 41, 19, 90, 18]

    def run() -> list[Any]:
        return [((mt.ones(n, 3) / n).tanh() @ weight).sum(0).numpy() for n in order]

    _, events, _ = both(run)
    assert events["padded_runs"] == events["padded_programs"] == 5
    assert events["compiles"] == 5 + 3  # of the last five, 25, 41 and 90 need new room


def test_what_grows_has_room_for_more() -> None:
    """A text that is read again with another token is few programs."""

    def run() -> list[Any]:
        embed, mix, out = nn.Embedding(9, 8), nn.Linear(8, 24), nn.Linear(8, 9)
        tokens, found = mt.tensor([[3]]), []
        with mt.no_grad():
            for _ in range(40):
                x = embed(tokens)
                q, k, v = mix(x).view(1, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                scores = out(x + y.transpose(1, 2).flatten(2))[:, -1]
                tokens = mt.cat((tokens, scores.argmax(-1, keepdim=True)), 1)
                found += [scores.numpy(), tokens.numpy()]
        return found

    _, events, every = both(run)
    assert every["compiles"] >= 40
    assert events["compiles"] <= 9
    assert events["padded_programs"] >= 30


def test_what_grows_and_has_no_rule_is_run_by_numpy() -> None:
    before = EVENTS.snapshot()
    grids = [np.random.default_rng(n).normal(size=(3, n)) for n in range(2, 30)]
    with config.override(growing=True), pytest.warns(UserWarning, match="ever longer"):
        found = [mt.from_numpy(x).flatten().sort().values.numpy() for x in grids]
    for x, values in zip(grids, found, strict=True):
        np.testing.assert_array_equal(values, np.sort(x.ravel()))
    assert EVENTS.get("padded_programs") == before.get("padded_programs", 0)
    assert EVENTS.get("growing_programs") - before.get("growing_programs", 0) >= 20


def test_what_is_asked_for_may_be_another_value_each_time() -> None:
    """Programs of equal operations differ in which of their values are results."""

    def run() -> list[Any]:
        found = []
        for k, n in enumerate(sizes(40, 20, 60)):
            x = mt.from_numpy(np.linspace(-1, 1, n, dtype=np.float32))
            values = [x.exp(), x.sin(), x.exp().sin()]
            kept = values[k % 3]
            total = sum(v.sum() for v in values)
            del values
            found += [total.item(), kept.numpy()]
        return found

    _, events, _ = both(run)
    assert events["padded_programs"] >= 8


def test_nothing_at_all_beside_what_varies() -> None:
    def run() -> list[Any]:
        weight, found = mt.arange(20.0).reshape(5, 4), []
        for n in (7, 40, 22, 31, 27, 25, 30):
            x = mt.from_numpy(np.ones((n, 4), np.float32)).requires_grad_()
            (x[:0].sum() + (x * x).sum()).backward()
            found.append(x.grad.numpy())
            found.append(F.linear(x.detach()[None][:0], weight).numpy())
        return found

    _, events, _ = both(run)
    assert events["padded_programs"] >= 2


def test_sizes_of_one_among_others() -> None:
    """Rows for one of several experts: sometimes it is one, and sometimes there are many."""

    def run() -> list[Any]:
        rng, weight = np.random.default_rng(0), mt.arange(12.0).reshape(3, 4) / 9
        found = []
        for _ in range(40):
            n, m = (int(1 if rng.random() < 0.3 else s) for s in rng.integers(2, 30, 2))
            few, many = (mt.from_numpy(rng.normal(size=(s, 3)).astype("f")) for s in (n, m))
            y = mt.zeros(30, 4).index_add(0, mt.arange(n), few @ weight)
            y = y.index_add(0, mt.arange(m), (many @ weight).softmax(0))
            found.append(y.numpy())
        return found

    _, events, every = both(run)
    assert events["padded_programs"] >= 12
    assert events["compiles"] <= every["compiles"] - 10


def test_sizes_that_shrink_to_one() -> None:
    def run() -> list[Any]:
        other = mt.arange(6.0).reshape(1, 6)
        lengths = [5, 9, 1, 7, 12, 1, 6, 8, 2, 1, 3, 11, 1, 4]
        data = [np.arange(n * 6, dtype="f").reshape(n, 6) for n in lengths]
        return [(mt.from_numpy(x) * other).softmax(0).sum().item() for x in data]

    _, events, _ = both(run)
    assert events["padded_programs"] >= 4


def test_a_size_that_comes_often_gets_its_own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varying, "compiling_seconds", lambda graph: 4.0)
    monkeypatch.setattr(varying, "_seconds", lambda graph: 2.0)
    weight = mt.ones(3, 4)
    order = [20, 40, 22, 31, 27, *[25] * 8]
    _, events = counted(lambda: [(mt.ones(n, 3).tanh() @ weight).sum(0).numpy() for n in order])
    # Five sizes as they are, one with room, and in the end one more as it is.
    assert events["padded_programs"] == 1
    assert events["padded_runs"] == varying._LEAST_RUNS
    assert events["compiles"] == 7


def test_what_takes_long_is_compiled() -> None:
    """Of so many elements those in the rest would take longer than compiling."""
    weight = mt.full((512, 512), 1e-3)

    def run() -> list[Any]:
        return [(mt.ones(n, 512) @ weight).sum().item() for n in sizes(9, 8_000, 12_000)]

    _, events, _ = both(run)
    assert not events["padded_programs"]


def test_programs_follow_the_settings() -> None:
    weight = mt.ones(3, 4)

    def run() -> list[Any]:
        return [(mt.ones(n, 3).tanh() @ weight).sum(0).numpy() for n in sizes(12, 20, 60)]

    first, before = counted(run)
    with config.override(fuse=False):
        second, events = counted(run)
    assert events["compiles"]
    assert before["padded_runs"]
    assert events["padded_runs"]
    np.testing.assert_allclose(first, second, rtol=1e-5)


def test_a_user_can_see_it(capsys: pytest.CaptureFixture[str]) -> None:
    weight = mt.ones(3, 4)
    with config.override(log=frozenset({"compile"})):
        for n in (20, 40, 22, 31, 27, 25, 33, 25):
            (mt.ones(n, 3).tanh() @ weight).sum(0).numpy()
    told = [line for line in capsys.readouterr().err.splitlines() if "with room" in line]
    assert len(told) == 2
    assert "test_varying.py:" in told[0]
    last = mt.debug.explain().splitlines()[-1]
    assert last == "2 sizes, run by programs with room for others: 3 calls"


def test_conditions_are_tested(rng: np.random.Generator) -> None:
    """A wrong position raises, and those that are no position of the user's do not."""
    table = nn.Embedding(7, 3)
    before = EVENTS.get("padded_programs")
    for number, n in enumerate(sizes(24, 20, 60)):
        index = mt.from_numpy(rng.integers(0, 7, n))
        mt.eval(table(index * 1))
        with pytest.raises(IndexError, match="out of range"):
            mt.eval(table(index + (7 if number % 2 else -7)))
    assert EVENTS.get("padded_programs") - before >= 20
