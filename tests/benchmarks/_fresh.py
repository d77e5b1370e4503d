"""What a process costs beside its steps: start, memory, Python and data."""

from __future__ import annotations

import compileall
import importlib.util
import tempfile
import time
from collections.abc import Iterator

from _measure import Answer, Side, closing, spread, table, take_turns, use_folder, weights_file
from _rows import EDITED, ROWS
from _steps import SIDES

CACHED = "ours, from disk"
NO_CACHE = "this version keeps no compiled programs on disk"


def _fresh(side: str, row: str, steps: str, folder: str) -> Answer:
    """A new process up to the end of its first ``steps`` steps; after one, a smaller batch."""
    start = time.perf_counter()
    process = Side("train", side, row, weights_file(row), steps, **use_folder(folder))
    seconds = time.perf_counter() - start
    smaller = process.ask(smaller=True) if steps == "1" else {}
    process.close()
    return {**process.ready, **smaller, "start_to_end": seconds}


def _each(row: str, steps: str, turns: int) -> dict[str, list[Answer]]:
    """Answers of every side, programs compiled anew; and of ours when they come from the disk."""
    answers: dict[str, list[Answer]] = {name: [] for name in (*SIDES, CACHED)}
    for _ in range(turns):
        for name in SIDES:
            if answers[name] and "unavailable" in answers[name][-1]:
                continue
            with tempfile.TemporaryDirectory() as folder:
                answers[name].append(_fresh(name, row, steps, folder))
                if name == "ours" and answers[name][-1].get("disk_cache"):
                    answers[CACHED].append(_fresh(name, row, steps, folder))
    return answers


def _collect(
    rows: list[str], steps: str, turns: int, keys: dict[str, str], results: Answer
) -> None:
    """A line per row and quantity; ``keys`` maps its name to the answer's key."""
    rows = rows or list(ROWS)

    def lines() -> Iterator[list[str]]:
        for row in rows:
            answers = _each(row, steps, turns)
            reasons = {
                n: a[-1].get("unavailable", "") if a else NO_CACHE for n, a in answers.items()
            }
            good = {n: a for n, a in answers.items() if not reasons[n]}
            results[row] = {"missing": {n: r for n, r in reasons.items() if r}}
            if "ours" in good:
                results[row]["arena"] = good["ours"][-1]["arena"]
            for label, key in keys.items():
                found = {n: [x[key] for x in a] for n, a in good.items()}
                results[row][label] = found
                yield [row, label, *(spread(found[n]) if n in found else "n/a" for n in answers)]

    table(["row", "", *SIDES, CACHED], lines())
    for row in rows:
        for name, reason in results[row]["missing"].items():
            print(f"{row}, {name}: {reason}")


def _as_installed() -> None:
    """Leave bytecode beside this package's modules, as installers do beside everybody else's."""
    spec = importlib.util.find_spec("minitorch_tvm")
    assert spec is not None
    for folder in spec.submodule_search_locations or ():
        compileall.compile_dir(folder, quiet=1)


def cold(rows: list[str], turns: int, results: Answer) -> None:
    """Seconds to the end of the first step, and of the first one of a smaller batch after it."""
    _as_installed()
    print("\n## Cold start, seconds: median (min to max)")
    keys = {"process": "start_to_end", "call": "first_step", "smaller batch": "smaller"}
    _collect(rows, "1", turns, keys, results)


EDITED_SIDES = ("torch", "jax", "ours", "ours, as it was on disk")


def edited(rows: list[str], turns: int, results: Answer) -> None:
    """Seconds of the first call of a row that somebody has changed since it was run."""
    del rows
    _as_installed()
    print("\n## First call of a changed program, seconds: median (min to max)")

    def lines() -> Iterator[list[str]]:
        for name, (before, _) in EDITED.items():
            found: dict[str, list[float]] = {side: [] for side in EDITED_SIDES}
            for _ in range(turns):
                for side in EDITED_SIDES:
                    with tempfile.TemporaryDirectory() as folder:
                        if side == EDITED_SIDES[-1]:
                            _fresh("ours", before, "2", folder)
                        answer = _fresh(side.partition(",")[0], name, "2", folder)
                        if "first_step" in answer:
                            found[side].append(answer["first_step"])
            results[name] = {side: times for side, times in found.items() if times}
            yield edited_cells(name, results[name])

    table(["row: change", *EDITED_SIDES], lines())


def edited_cells(name: str, found: Answer) -> list[str]:
    """A line of the table."""
    return [name, *(spread(found[side]) if side in found else "n/a" for side in EDITED_SIDES)]


def memory(rows: list[str], turns: int, results: Answer) -> None:
    """MiB resident at most, after 50 steps."""
    print("\n## Peak resident memory after 50 steps, MiB: median (min to max)")
    _collect(rows, "50", turns, {"peak": "memory"}, results)
    arenas = {row: found["arena"] for row, found in results.items() if "arena" in found}
    over = ", ".join(f"{row} {share:.3f}" for row, share in arenas.items())
    print(f"Arenas over their lower bounds: {over}")


def _answers(sides: dict[str, Side], turns: int, **request: object) -> dict[str, list[Answer]]:
    with closing(sides):
        return take_turns(sides, turns, lambda _: dict(request))


def overhead(rows: list[str], turns: int, results: Answer) -> None:
    """Microseconds of Python in a step, of a native call, and milliseconds per batch loaded."""
    print("\n## Overhead: median (min to max)")
    for row in rows or ["mlp-32", "mlp-1000"]:
        sides = {n: Side("overhead", n, row, weights_file(row)) for n in ("ours", "mt.compile")}
        for name, side in sides.items():
            if side.unavailable:
                print(f"{row}, {name}: n/a, {side.unavailable}")
        for name, found in _answers(sides, turns, steps=200).items():
            parts = {
                "whole": "step",
                "python": "step without its native call",
                "recording": "of that, recording, hashing and lookup",
            }
            for part, what in parts.items():
                times = [1e6 * a[part] for a in found if part in a]
                if times:
                    results[f"{row} {name} {part} us"] = times
                    print(f"{row}, {name}: {what} {spread(times)} us")
    limits = _answers({"limits": Side("limits", "limits")}, turns)["limits"]
    launches = [1e6 * a["launch"] for a in limits]
    results["empty native call us"] = launches
    print(f"empty native call that wakes every thread: {spread(launches)} us")
    loaders = {
        f"{side}, {workers} workers": Side("loader", side, workers)
        for side, workers in (("numpy", "0"), ("ours", "0"), ("ours", "1"), ("torch", "0"))
    }
    for name, found in _answers(loaders, min(turns, 5)).items():
        times = [1e3 * a["seconds"] for a in found]
        results[f"loader {name} ms"] = times
        print(f"batch of 1000 shuffled images, {name}: {spread(times)} ms")
