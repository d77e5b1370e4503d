"""Bars of this package against the fastest peer: `python figure.py results.json out.png`.

Draws what `compare.py train --json results.json` measured: milliseconds per training step relative
to the fastest peer of each row, with the machine's bound as a mark.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

OURS, PEER, BOUND = "#1f6f8b", "#b9bfc4", "#222222"


def draw(results: dict[str, Any], path: str) -> None:
    """Write the figure; rows without both numbers are left out.

    Raises ValueError if no row is left.
    """
    rows = {n: found for n, found in results.get("train", {}).items() if "speedup" in found}
    if not rows:
        raise ValueError("no row has both a peer's time and ours")
    figure, axes = plt.subplots(
        figsize=(max(4.8, 1.6 + 1.2 * len(rows)), 3.8), layout="constrained"
    )
    for i, found in enumerate(rows.values()):
        peer, ours = found["fastest_peer"], found["best_of_ours"]
        whole = statistics.median(found["ms"][peer])
        labels = ("peer", "ours") if i == 0 else ("", "")
        # The ratio is the median turn by turn, as in the table, not the ratio of medians.
        bars = ((-0.2, 1.0, PEER, whole), (0.2, 1 / found["speedup"], OURS, 0.0))
        for (offset, height, colour, ms), label in zip(bars, labels, strict=True):
            names = {"peer": "fastest peer", "ours": "minitorch_tvm", "": None}
            axes.bar(i + offset, height, 0.38, color=colour, label=names[label])
            ms = ms or statistics.median(found["ms"][ours])
            text = f"{peer}\n{ms:.3g} ms" if colour == PEER else f"{ms:.3g} ms"
            axes.text(i + offset, height + 0.01, text, ha="center", va="bottom", fontsize=6.5)
        if "bound_ms" in found:
            label = "the machine's bound" if i == 0 else None
            height = found["bound_ms"] / whole
            axes.hlines(height, i + 0.01, i + 0.39, colors=BOUND, linewidth=1.5, label=label)
    axes.set_xticks(range(len(rows)), list(rows))
    axes.set_ylabel("time of a training step\n(fastest peer = 1)")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
