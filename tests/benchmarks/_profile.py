"""Where the time of a training step goes: kernels beside what the machine allows."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence

from _measure import Answer, Limits, Side, closing, figure, table, take_turns, weights_file
from _rows import ROWS

QUARTERS = 4
STEPS = 0.06  # seconds of a turn: short, so that the machine's phases are told apart


def _means(turns: Sequence[Answer]) -> tuple[float, list[float]]:
    """Seconds of a step, and of all threads in each kernel."""
    kernels = zip(*(t["kernels"] for t in turns), strict=True)
    return (
        statistics.mean(t["seconds"] for t in turns),
        [statistics.mean(seconds for *_, seconds in same) for same in kernels],
    )


def _row(row: str, turns: int) -> Answer:
    side = Side("profile", "mt.compile", row, weights_file(row), MTVM_PROFILE="1")
    limits = Side("limits", "limits")
    with closing({"ours": side, "limits": limits}):
        if side.unavailable:
            raise SystemExit(side.unavailable)
        steps = max(2, round(STEPS / side.ask(steps=10)["seconds"]))
        both = {"ours": side, "limits": limits}
        answers = take_turns(both, QUARTERS * turns, lambda _: {"steps": steps})
    measured = Limits(answers["limits"])
    ordered = sorted(answers["ours"], key=lambda answer: answer["seconds"])
    (fast, fast_kernels), (slow, slow_kernels) = (
        _means(part) for part in (ordered[:turns], ordered[-turns:])
    )
    threads = len(os.sched_getaffinity(0))
    by_name: dict[str, list[float]] = {}
    kernels = ordered[0]["kernels"]
    for (name, flops, nbytes, _), *seconds in zip(kernels, fast_kernels, slow_kernels, strict=True):
        bound = threads * measured.seconds(flops, nbytes)
        known = by_name.setdefault(name, [0.0] * 5)
        for i, amount in enumerate((1, flops, *seconds, bound)):
            known[i] += amount
    return {"step": [fast, slow], "kernels": by_name, "limits": measured.summary()}


def profile(rows: list[str], turns: int, results: Answer) -> None:
    """Kernels of equal name together; of both threads, in the quickest and the slowest steps."""
    print("\n## Kernels of training steps, us of all threads together")
    for row in rows or list(ROWS):
        found = results[row] = _row(row, turns)
        fast, slow = (1e3 * seconds for seconds in found["step"])
        print(
            f"\n{row}: a step of the fastest quarter takes {fast:.3g} ms, of the last {slow:.3g}\n"
        )
        order = sorted(found["kernels"].items(), key=lambda item: -item[1][2])
        lines = []
        for name, (count, flops, quick, late, bound) in order:
            times = [figure(1e6 * x) for x in (bound, quick, late)]
            share = f"{bound / quick:.0%}"
            lines.append([name, f"{count:.0f}", figure(flops / 1e6), *times, share])
        head = ["kernels", "number", "Mflop", "bound", "fastest", "slowest", "bound / fastest"]
        table(head, lines)
