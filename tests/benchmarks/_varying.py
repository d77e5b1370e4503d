"""Training steps whose sizes, or operations, are others each time: programs that do not recur."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _measure import ALONE, Answer, Side, apart, closing, spread, table, take_turns

WAYS = (
    *("molecules", "experts", "masked", "candidates", "lengths", "pairs", "lines", "images"),
    *("read", "packed", "dropped", "trees", "sampled"),
)
"""Graphs of as many atoms and bonds as they have; rows that are sent to one of four layers; a
transformer that guesses hidden tokens only; boxes around positives, with the hardest negatives;
texts of 20 to 60 tokens; words of which each has five others drawn beside it; texts of 10 to 60
tokens that are convolved; images of 40 to 100 by 40 to 100 pixels in a small U-Net; texts of 10 to
60 tokens that an LSTM reads in both directions, and packed ones, each of a length of its own;
layers of which a fifth is left out at random; trees of 4 to 11 words; a decoder that is given the
right word or its own, by chance."""
AGREEMENT = 1e-3  # of losses of the first turn
STEPS = 100  # of a process's first turn, and of each later one
WIDTH = 128


def stepper(lib: Any, way: str) -> Callable[[], Any]:
    """A training step on new data; the same data for every library."""
    lib.manual_seed(0)
    return _MAKERS[way](lib, np.random.default_rng(0))


def trained(lib: Any, parameters: Any, loss_of: Callable[[], Any]) -> Callable[[], Any]:
    """A step of Adam on the loss."""
    optimizer = lib.optim.Adam(list(parameters), lr=1e-4)

    def step() -> Any:
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def started(lib: Any, *modules: Any) -> list[Any]:
    """Their parameters, with numbers that do not depend on the library."""
    rng = np.random.default_rng(1)
    parameters = [p for m in modules for p in m.parameters()]
    with lib.no_grad():
        for p in parameters:
            scale = 0.1 if p.ndim == 1 else p[0].numel() ** -0.5
            value = rng.normal(size=tuple(p.shape)) * scale
            p.copy_(lib.tensor(value.astype(np.float32)))
    return parameters


def _molecules(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    nn = lib.nn
    embed, out = nn.Embedding(20, 64), nn.Linear(64, 1)
    layers = [
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64))
        for _ in range(3)
    ]

    def loss() -> Any:
        atoms = rng.integers(10, 30, 32)
        starts = np.cumsum(atoms) - atoms
        bonds = (atoms * 2.2).astype(np.int64)
        ends = (rng.random((2, bonds.sum())) * np.repeat(atoms, bonds)).astype(np.int64)
        source, target = (lib.tensor(e) for e in ends + np.repeat(starts, bonds))
        x = embed(lib.tensor(rng.integers(0, 20, atoms.sum())))
        for layer in layers:
            x = layer(x + lib.zeros_like(x).index_add(0, target, x[source])).relu()
        whole = lib.tensor(np.repeat(np.arange(32), atoms))
        y = out(lib.zeros(32, 64).index_add(0, whole, x)).squeeze(1)
        wanted = lib.tensor(rng.normal(size=32).astype(np.float32))
        return nn.functional.l1_loss(y, wanted)

    return trained(lib, started(lib, embed, out, *layers), loss)


def _experts(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    nn = lib.nn
    gate, out = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 10)
    experts = [
        nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH)) for _ in range(4)
    ]

    def loss() -> Any:
        x = lib.tensor(rng.normal(size=(256, WIDTH)).astype(np.float32))
        weight, chosen = gate(x).softmax(-1).max(-1)
        y = lib.zeros_like(x)
        for number, expert in enumerate(experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                y = y.index_add(0, rows, expert(x[rows]) * weight[rows].unsqueeze(1))
        return nn.functional.cross_entropy(out(y), lib.tensor(rng.integers(0, 10, 256)))

    return trained(lib, started(lib, gate, out, *experts), loss)


def _masked(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    nn = lib.nn
    embed, head = nn.Embedding(2000, WIDTH), nn.Linear(WIDTH, 2000)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 256, dropout=0.0, batch_first=True)

    def loss() -> Any:
        tokens = lib.tensor(rng.integers(3, 2000, (16, 64)))
        hidden = lib.tensor(rng.random((16, 64)) < 0.15)
        seen = tokens.masked_fill(hidden, 1)
        return nn.functional.cross_entropy(head(layer(embed(seen))[hidden]), tokens[hidden])

    return trained(lib, started(lib, embed, head, layer), loss)


def _candidates(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    nn, functional = lib.nn, lib.nn.functional
    body = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU()),
    )
    classes, boxes = nn.Conv2d(64, 21, 1), nn.Conv2d(64, 4, 1)

    def loss() -> Any:
        x = body(lib.tensor(rng.normal(size=(8, 3, 64, 64)).astype(np.float32)))
        scores = classes(x).flatten(2).transpose(1, 2).reshape(-1, 21)
        places = boxes(x).flatten(2).transpose(1, 2).reshape(-1, 4)
        labels = lib.tensor(rng.integers(1, 21, 512) * (rng.random(512) < 0.1))
        wanted = lib.tensor(rng.random((512, 4)).astype(np.float32))
        positive = labels > 0
        count = int(positive.sum())
        losses = functional.cross_entropy(scores, labels, reduction="none")
        hardest = losses.detach().masked_fill(positive, 0.0).topk(3 * count).indices
        total = losses[positive].sum() + losses[hardest].sum()
        return total / count + functional.smooth_l1_loss(places[positive], wanted[positive])

    return trained(lib, started(lib, body, classes, boxes), loss)


def _lengths(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    nn = lib.nn
    embed, head = nn.Embedding(1000, WIDTH), nn.Linear(WIDTH, 2)
    layers = nn.Sequential(
        *(nn.TransformerEncoderLayer(WIDTH, 4, 256, dropout=0.0, batch_first=True) for _ in "12")
    )

    def loss() -> Any:
        tokens = lib.tensor(rng.integers(0, 1000, (16, rng.integers(20, 61))))
        scores = head(layers(embed(tokens)).mean(1))
        return nn.functional.cross_entropy(scores, lib.tensor(rng.integers(0, 2, 16)))

    return trained(lib, started(lib, embed, head, layers), loss)


def _pairs(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    inner, outer = lib.nn.Embedding(5000, 64), lib.nn.Embedding(5000, 64)

    def loss() -> Any:
        count = int(rng.integers(800, 1100))
        center, near = (lib.tensor(rng.integers(0, 5000, count)) for _ in range(2))
        others = lib.tensor(rng.integers(0, 5000, 5 * count))
        a, b, c = inner(center), outer(near), outer(others).view(count, 5, 64)
        apart_from = lib.bmm(c, a.unsqueeze(2)).squeeze(2)
        logsigmoid = lib.nn.functional.logsigmoid
        return -(logsigmoid((a * b).sum(1)) + logsigmoid(-apart_from).sum(1)).mean()

    return trained(lib, started(lib, inner, outer), loss)


def _lines(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    nn = lib.nn
    embed, line, head = nn.Embedding(200, 64), nn.Conv1d(64, 64, 5, padding=2), nn.Linear(64, 5)

    def loss() -> Any:
        tokens = lib.tensor(rng.integers(0, 200, (32, rng.integers(10, 60))))
        found = nn.functional.relu(line(embed(tokens).transpose(1, 2))).amax(2)
        return nn.functional.cross_entropy(head(found), lib.tensor(rng.integers(0, 5, 32)))

    return trained(lib, started(lib, embed, line, head), loss)


def _images(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    nn, resized = lib.nn, lib.nn.functional.interpolate

    def block(channels: int, results: int, stride: int = 1) -> Any:
        return nn.Sequential(
            nn.Conv2d(channels, results, 3, stride, 1), nn.BatchNorm2d(results), nn.ReLU()
        )

    whole, half, quarter = block(3, 16), block(16, 32, 2), block(32, 64, 2)
    up, out, classes = block(96, 32), block(48, 16), nn.Conv2d(16, 4, 1)

    def loss() -> Any:
        height, width = (int(n) for n in rng.integers(40, 100, 2))
        x = lib.tensor(rng.normal(size=(2, 3, height, width)).astype(np.float32))
        x = whole(x)
        y = half(x)
        z = up(lib.cat([resized(quarter(y), size=y.shape[2:]), y], 1))
        scores = classes(out(lib.cat([resized(z, size=x.shape[2:]), x], 1)))
        return nn.functional.cross_entropy(
            scores, lib.tensor(rng.integers(0, 4, (2, height, width)))
        )

    return trained(lib, started(lib, whole, half, quarter, up, out, classes), loss)


def _read(lib: Any, rng: np.random.Generator, packed: bool = False) -> Callable[[], Any]:
    nn, rnn = lib.nn, lib.nn.utils.rnn
    embed, head = nn.Embedding(1000, 64), nn.Linear(2 * WIDTH, 2)
    layer = nn.LSTM(64, WIDTH, batch_first=True, bidirectional=True)

    def loss() -> Any:
        length = int(rng.integers(10, 61))
        lengths = rng.integers(5, length + 1, 32).tolist()
        lengths[0] = length
        text = embed(lib.tensor(rng.integers(0, 1000, (32, length))))
        if packed:
            text = rnn.pack_padded_sequence(text, lengths, batch_first=True, enforce_sorted=False)
        states, (last, _) = layer(text)
        found = lib.cat([last[0], last[1]], 1) if packed else states.mean(1)
        return nn.functional.cross_entropy(head(found), lib.tensor(rng.integers(0, 2, 32)))

    return trained(lib, started(lib, embed, head, layer), loss)


def _packed(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    return _read(lib, rng, packed=True)


def _dropped(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    nn = lib.nn
    layers = [
        nn.Sequential(
            *(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))
        )
        for _ in range(12)
    ]
    head = nn.Linear(WIDTH, 10)

    def loss() -> Any:
        x = lib.tensor(rng.normal(size=(64, WIDTH)).astype(np.float32))
        for layer in layers:
            if rng.random() < 0.8:
                x = x + layer(x)
        return nn.functional.cross_entropy(head(x), lib.tensor(rng.integers(0, 10, 64)))

    return trained(lib, started(lib, head, *layers), loss)


def _trees(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    nn = lib.nn
    embed, join, out = nn.Embedding(100, WIDTH), nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def meaning(words: int) -> Any:
        if words == 1:
            return embed(lib.tensor([int(rng.integers(100))]))
        left = int(rng.integers(1, words))
        return lib.tanh(join(lib.cat([meaning(left), meaning(words - left)], 1)))

    def loss() -> Any:
        scores = out(meaning(int(rng.integers(4, 12))))
        return nn.functional.cross_entropy(scores, lib.tensor([int(rng.integers(5))]))

    return trained(lib, started(lib, embed, join, out), loss)


def _sampled(lib: Any, rng: np.random.Generator) -> Callable[[], Any]:
    nn = lib.nn
    embed, cell, out = nn.Embedding(50, WIDTH), nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, 50)

    def loss() -> Any:
        text = lib.tensor(rng.integers(0, 50, (32, 12)))
        state, word, total = lib.zeros(32, WIDTH), text[:, 0], 0.0
        for place in range(1, 12):
            state = cell(embed(word), state)
            scores = out(state)
            total = total + nn.functional.cross_entropy(scores, text[:, place])
            word = text[:, place] if rng.random() < 0.5 else scores.argmax(1)
        return total

    return trained(lib, started(lib, embed, cell, out), loss)


_MAKERS = {
    "molecules": _molecules,
    "experts": _experts,
    "masked": _masked,
    "candidates": _candidates,
    "lengths": _lengths,
    "pairs": _pairs,
    "lines": _lines,
    "images": _images,
    "read": _read,
    "packed": _packed,
    "dropped": _dropped,
    "trees": _trees,
    "sampled": _sampled,
}


def timed(step: Callable[[], Any]) -> Answer:
    """Seconds and losses of so many steps."""
    seconds, losses = [], []
    for _ in range(STEPS):
        begin = time.perf_counter()
        losses.append(step().item())
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds, "losses": losses}


def varying(rows: list[str], turns: int, results: Answer) -> None:
    """Milliseconds per step of a process's first steps, and of later ones."""
    sides = {"torch": {}, "ours": {}, "ours, all compiled": ALONE}
    compared("varying", rows or list(WAYS), sides, turns, results)
    print(f"\n## Sizes and operations that vary, ms per step, {STEPS} steps per turn")
    table(HEAD, (cells(*item) for item in results.items()))


def compared(
    what: str, ways: list[str], kinds: dict[str, dict[str, str]], turns: int, results: Answer
) -> None:
    """Measure steps of each kind of side, which is its name and settings, in turn."""
    for way in ways:
        # A program that is found on disk would not be the first.
        sides = {
            name: Side(what, name.split(",")[0], way, MTVM_CACHE_DIR="0", **settings)
            for name, settings in kinds.items()
        }
        with closing(sides):
            for name, side in sides.items():
                if side.unavailable:
                    raise SystemExit(f"{name}: {side.unavailable}")
            first = take_turns(sides, 1, lambda _: {})
            later = take_turns(sides, turns, lambda _: {})
        theirs = first["torch"][0]["losses"]
        for name in sides:
            error = apart(first[name][0]["losses"], theirs)
            results[f"{way}, {name}"] = {
                "first": [1e3 * statistics.mean(first[name][0]["seconds"])],
                "later": [1e3 * statistics.mean(a["seconds"]) for a in later[name]],
                "error": error,
            }


HEAD = ["steps, by what", "first steps", "later ones", "losses differ by"]


def cells(name: str, found: Answer) -> list[str]:
    """A line of the table; no times of a side that computes something else."""
    times = [f"{found['first'][0]:.3g}", spread(found["later"])]
    return [
        name,
        *(times if found["error"] <= AGREEMENT else ["void"] * 2),
        f"{found['error']:.1e}",
    ]
