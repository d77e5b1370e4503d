"""What an operation on a small tensor costs to call: torch computes it, this package records it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from _measure import Answer, Side, closing, ratio, spread, table, take_turns

AT_ONCE = 10
"""Calls that are recorded before what they recorded is computed, which is not measured."""


def operations(lib: Any) -> dict[str, Callable[[], Any]]:
    """By name, calls of the library's on tensors of 8192 elements and less, without gradients."""
    nn = lib.nn
    F = nn.functional
    x, y, m = lib.ones(1, 64, 128), lib.ones(1, 64, 128), lib.ones(64, 128)
    heads, image = lib.ones(1, 4, 64, 32), lib.ones(1, 16, 8, 8)
    tokens, labels = lib.zeros(1, 64, dtype=lib.int64), lib.zeros(64, dtype=lib.int64)
    weight, mask = lib.ones(128, 128), lib.ones(1, 64, 128) > 0
    linear, norm, table_of = nn.Linear(128, 128), nn.LayerNorm(128), nn.Embedding(65, 128)
    conv, pool = nn.Conv2d(16, 16, 3, padding=1), nn.MaxPool2d(2)
    batch, fixed = nn.BatchNorm2d(16), nn.BatchNorm2d(16).eval()
    gelu, mean = nn.GELU(), nn.AdaptiveAvgPool2d(1)
    return {
        "x + y": lambda: x + y,
        "x * 2": lambda: x * 2,
        "x / y": lambda: x / y,
        "x ** 2": lambda: x**2,
        "x > 0": lambda: x > 0,
        "x @ w": lambda: x @ weight,
        "x.exp()": lambda: x.exp(),
        "x.softmax(-1)": lambda: x.softmax(-1),
        "x.sum()": lambda: x.sum(),
        "x.mean((2, 3))": lambda: image.mean(dim=(2, 3)),
        "x.var(-1)": lambda: x.var(-1),
        "x.max(-1)": lambda: x.max(dim=-1),
        "x.clamp(0, 1)": lambda: x.clamp(0, 1),
        "where(mask, x, y)": lambda: lib.where(mask, x, y),
        "x.view(...)": lambda: x.view(1, 64, 4, 32),
        "x.transpose(1, 2)": lambda: heads.transpose(1, 2),
        "x.permute(...)": lambda: heads.permute(0, 2, 1, 3),
        "x.transpose(1, 2).reshape(...)": lambda: heads.transpose(1, 2).reshape(1, 64, 128),
        "x.unsqueeze(0)": lambda: x.unsqueeze(0),
        "x.squeeze(0)": lambda: x.squeeze(0),
        "x[0]": lambda: x[0],
        "x[:, :10]": lambda: x[:, :10],
        "x.split(64, 2)": lambda: x.split(64, dim=2),
        "cat([x, y], 1)": lambda: lib.cat([x, y], 1),
        "stack([x, y])": lambda: lib.stack([x, y]),
        "arange(64)": lambda: lib.arange(64),
        "Linear": lambda: linear(x),
        "LayerNorm": lambda: norm(x),
        "Embedding": lambda: table_of(tokens),
        "Conv2d": lambda: conv(image),
        "BatchNorm2d, training": lambda: batch(image),
        "BatchNorm2d, evaluation": lambda: fixed(image),
        "MaxPool2d": lambda: pool(image),
        "AdaptiveAvgPool2d": lambda: mean(image),
        "GELU": lambda: gelu(x),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(
            heads, heads, heads, is_causal=True
        ),
        "cross_entropy": lambda: F.cross_entropy(m, labels),
        "mse_loss": lambda: F.mse_loss(x, y),
    }


def seconds_of(call: Callable[[], Any], compute: Callable[[list[Any]], object]) -> float:
    """The quickest of 20 times, per call; ``compute`` is shown the tensors that were returned."""
    found = []
    for _ in range(20):
        begin = time.perf_counter()
        results = [call() for _ in range(AT_ONCE)]
        found.append((time.perf_counter() - begin) / AT_ONCE)
        compute([t for r in results for t in (r if isinstance(r, tuple) else (r,))])
        del results
    return min(found)


def calls(rows: list[str], turns: int, results: Answer) -> None:
    """Microseconds of a call, of torch and of this package."""
    del rows  # all of them take seconds
    sides = {name: Side("calls", name) for name in ("torch", "ours")}
    with closing(sides):
        for name, side in sides.items():
            if side.unavailable:
                raise SystemExit(f"{name}: {side.unavailable}")
        answers = take_turns(sides, turns, lambda _: {})
    for name in answers["ours"][0]["seconds"]:
        results[name] = {
            side: [1e6 * a["seconds"][name] for a in answers[side]] for side in answers
        }
    print("\n## One call, us: median (min to max)")
    table(HEAD, (cells(name, of) for name, of in results.items()))
    print(summary(results))


HEAD = ["call", "torch, computed", "ours, recorded", "torch / ours"]


def cells(name: str, found: Answer) -> list[str]:
    """A line of the table."""
    return [
        name,
        spread(found["torch"]),
        spread(found["ours"]),
        f"{ratio(found['torch'], found['ours']):.2f}",
    ]


def summary(found: Answer) -> str:
    """All of them together."""
    torch, ours = (
        sum(statistics.median(of[side]) for of in found.values()) for side in ("torch", "ours")
    )
    return f"all {len(found)}: torch {torch:.0f} us, ours {ours:.0f} us"
