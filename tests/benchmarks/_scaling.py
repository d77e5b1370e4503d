"""Whether cost grows as the work does: an mlp over three decades of batch, width and depth."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from _measure import (
    Answer,
    Limits,
    Side,
    closing,
    figure,
    steps_for,
    table,
    take_turns,
    weights_file,
)
from _rows import SCALED

HEAD = [
    "mlp",
    "Mflop",
    "values",
    "step, ms",
    "of the bound",
    "Python, us",
    "per value, us",
    "first call, s",
    "per value, ms",
]


def _measured(row: str, turns: int) -> Answer:
    """Medians of one size."""
    side, limits = Side("scaling", "ours", row, weights_file(row)), Side("limits", "limits")
    with closing({"side": side, "limits": limits}):
        if side.unavailable:
            return {"missing": side.unavailable}
        steps = steps_for(side.ask(steps=3)["whole"])
        answers = take_turns({"ours": side, "limits": limits}, turns, lambda _: {"steps": steps})
    bound = Limits(answers["limits"]).bound(side.ready["work"])
    whole, python = (statistics.median(a[n] for a in answers["ours"]) for n in ("whole", "python"))
    return {
        "flops": sum(flops for flops, _ in side.ready["work"]),
        "values": side.ready["recorded"],
        "step": whole,
        "bound": bound,
        "python": python,
        "first": side.ready["first"],
    }


def cells(row: str, found: Answer) -> list[str]:
    """The line of a size."""
    values = found["values"]
    return [
        row,
        figure(found["flops"] / 1e6),
        str(values),
        figure(1e3 * found["step"]),
        f"{found['bound'] / found['step']:.0%}",
        figure(1e6 * found["python"]),
        figure(1e6 * found["python"] / values),
        figure(found["first"]),
        figure(1e3 * found["first"] / values),
    ]


def scaling(rows: list[str], turns: int, results: Answer) -> None:
    """A line per size; programs are compiled anew."""
    print("\n## Growth: training steps of an mlp in the plain loop, medians")

    def lines() -> Iterator[list[str]]:
        for row in rows or sorted(SCALED, key=lambda name: name.split("-")[0]):
            found = results[row] = _measured(row, turns)
            if "missing" in found:
                yield [row, found["missing"], *[""] * (len(HEAD) - 2)]
                continue
            yield cells(row, found)

    table(HEAD, lines())
