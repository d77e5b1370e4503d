"""Steps of whole models: training, inference at batch 1, and the course's epoch."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator

from _measure import (
    HERE,
    TURN,
    Answer,
    Limits,
    Side,
    apart,
    closing,
    describe,
    digests_agree,
    ratio,
    spread,
    steps_for,
    table,
    take_turns,
    weights_file,
)
from _rows import INFERENCE, LAYERS_ALONE, OTHERS, ROWS, TRAINED

PEERS = ("torch", "torch.compile", "jax")
OURS = ("ours", "mt.compile")
PIPELINES = ("floats", "floats, one worker", "bytes", "bytes, by the loader")
SIDES = (*PEERS, *OURS)
CHECKED = "20"  # steps whose losses are compared
ROUNDING = 1e-3  # of the norm: allowed difference of a forward pass

HEAD = ["row", "bound", *SIDES, "fastest peer / best of ours", "bound / best of ours"]

Agreement = Callable[[Answer, Answer], str]


def _measured(kind: str, row: str, turns: int, agreement: Agreement, *arguments: str) -> Answer:
    """Times of all sides for a row, void or unavailable ones with the reason, and the bound."""
    sides = {n: Side(kind, n, row, weights_file(row), *arguments) for n in SIDES}
    limits = Side("limits", "limits")
    with closing({**sides, "limits": limits}):
        missing = {n: s.unavailable for n, s in sides.items() if s.unavailable}
        working = {n: s for n, s in sides.items() if not s.unavailable}
        if "torch" not in working:
            return {"missing": missing | dict.fromkeys(working, "torch, the reference, is missing")}
        for name, side in working.items():
            reason = agreement(side.ready, working["torch"].ready)
            if reason:
                missing[name] = f"void: {reason}"
        working = {n: s for n, s in working.items() if n not in missing}
        steps = {}
        for name, side in working.items():
            side.ask(steps=10)
            steps[name] = steps_for(side.ask(steps=10).get("seconds", TURN) / 10)
        answers = take_turns(
            {**working, "limits": limits}, turns, lambda n: {"steps": steps.get(n, 0)}
        )
    measured = Limits(answers.pop("limits", []))
    missing |= dict.fromkeys(working.keys() - answers.keys(), "failed while measured")
    found: Answer = {
        "ms": {n: [1e3 * a["seconds"] / steps[n] for a in t] for n, t in answers.items()},
        "neighbours": {
            n: statistics.median(a["neighbours"] for a in t)
            for n, t in answers.items()
            if "neighbours" in t[0]
        },
        "memory_mib": {n: t[-1]["memory"] for n, t in answers.items()},
        "missing": missing,
        "limits": measured.summary(),
        "ready": {n: {k: v for k, v in s.ready.items() if k != "work"} for n, s in sides.items()},
    }
    work = sides["ours"].ready.get("work")
    if work:
        found["bound_ms"] = 1e3 * measured.bound(work)
        found["work"] = work
    return found


def cells(row: str, found: Answer) -> list[str]:
    """The line of a row, whose ratio it adds to what was found."""
    ms: dict[str, list[float]] = found.get("ms", {})
    bound = found.get("bound_ms")
    line = [row, f"{bound:.3g}" if bound else "-"]
    for name in SIDES:
        missing = "void" if found["missing"].get(name, "").startswith("void") else "n/a"
        line.append(spread(ms[name]) if name in ms else missing)
    best = {n: statistics.median(t) for n, t in ms.items()}
    peer = min((n for n in PEERS if n in best), key=best.__getitem__, default=None)
    ours = min((n for n in OURS if n in best), key=best.__getitem__, default=None)
    if peer and ours:
        found["fastest_peer"], found["best_of_ours"] = peer, ours
        found["speedup"] = ratio(ms[peer], ms[ours])
    line.append(f"{found['speedup']:.2f} ({peer})" if "speedup" in found else "-")
    line.append(f"{bound / best[ours]:.0%}" if bound and ours else "-")
    return line


def _table(rows: list[str], measure: Callable[[str], Answer], results: Answer) -> None:
    def lines() -> Iterator[list[str]]:
        for row in rows:
            results[row] = measure(row)
            yield cells(row, results[row])

    table(HEAD, lines())
    measured = [results[row]["limits"] for row in rows if "limits" in results[row]]
    if measured:
        print(describe(measured))
    for row in rows:
        for name, reason in results[row]["missing"].items():
            print(f"{row}, {name}: {reason}")
        beside = results[row].get("neighbours")
        if beside:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in beside.items())
            print(f"{row}: meanwhile the busy processes did, of what they do alone: {shares}")


def train(rows: list[str], turns: int, results: Answer) -> None:
    """Milliseconds of a training step."""

    def measure(row: str) -> Answer:
        def agreement(ready: Answer, reference: Answer) -> str:
            off = apart(ready["losses"], reference["losses"])
            ready["apart"] = off
            return "" if off <= TRAINED[row].tolerance else f"losses differ by {off:.1e}"

        return _measured("train", row, turns, agreement, CHECKED)

    print("\n## Training step, ms: median (min to max)")
    print(f"Losses of the first {CHECKED} steps agree with torch's within the row's tolerance.")
    _table(rows or list(ROWS), measure, results)


def recurrent(rows: list[str], turns: int, results: Answer) -> None:
    """The same of recurrent layers by themselves, of several sizes."""
    train(rows or list(LAYERS_ALONE), turns, results)


def families(rows: list[str], turns: int, results: Answer) -> None:
    """The same of models of other families, of torch and this package."""
    train(rows or list(OTHERS), turns, results)


def infer(rows: list[str], turns: int, results: Answer) -> None:
    """Milliseconds of a forward pass of one sample, numpy to numpy."""

    def agreement(ready: Answer, reference: Answer) -> str:
        same = digests_agree(ready["digest"], reference["digest"], ROUNDING)
        return "" if same else "outputs differ from torch's"

    print("\n## Forward pass of one sample, ms: median (min to max)")
    _table(rows or list(INFERENCE), lambda row: _measured("infer", row, turns, agreement), results)


def data_folder() -> str:
    """The folder with the MNIST files: MTVM_DATA, or mnist beside the checkout."""
    found = os.environ.get("MTVM_DATA")
    if found is None:
        beside = HERE.parents[2] / "shared" / "mnist"
        found = str(beside) if beside.is_dir() else None
    if found is None:
        raise SystemExit("set MTVM_DATA to the folder with the MNIST idx files")
    return found


def epoch(rows: list[str], turns: int, results: Answer) -> None:
    """Seconds of the course's epoch, and the ratio of each other side to ours."""
    del rows  # there is one
    folder = data_folder()
    others = ("torch", "numpy")
    sides = {n: Side("epoch", n, folder) for n in ("ours", *others, "default")}
    with closing(sides):
        # Losses are compared after 10 steps.  At this learning rate the loss first rises, and
        # float32 rounding is amplified: float64, numpy and torch differ by 0.04 after 50 steps.
        losses = {n: sides[n].ask(steps=10)["loss"] for n in ("ours", *others)}
        differences = [abs(losses["ours"] - losses[n]) for n in others]
        difference = max(differences)
        if not all(d <= 1e-3 for d in differences):  # as NaN is not
            raise SystemExit(f"losses differ by {difference:.1e}: the comparison is void")
        fast = {n: sides[n] for n in ("ours", *others)}
        take_turns(fast, 1, lambda _: {"steps": 50})
        answers = take_turns(fast, turns, lambda _: {"steps": 50})
        # The default schedule takes about a second per step: a few steps give its epoch.
        compiling = sides["default"].ask(steps=2)["seconds"]
        pair = {n: sides[n] for n in ("default", "ours")}
        steps = {"default": 2, "ours": 50}
        slow = take_turns(pair, 3, lambda n: {"steps": steps[n]})
    seconds = {n: [a["seconds"] for a in t] for n, t in answers.items()}
    default = [a["seconds"] / 2 * 50 for a in slow["default"]]
    results |= {
        **seconds,
        "default": default,
        **{f"{n}_over_ours": ratio(seconds[n], seconds["ours"]) for n in others},
        "default_over_ours": ratio(default, [a["seconds"] for a in slow["ours"]]),
        "loss_difference": difference,
    }
    print("\n## Epoch of the course's MLP (50 steps, batch 1000), seconds: median (min to max)")
    print(f"ours             {spread(seconds['ours'])}")
    named = (("torch", "torch eager"), ("numpy", "numpy"), ("default", "default schedule"))
    for name, key in named:
        print(f"{key:<16} {spread(results[name])}   ratio {results[f'{name}_over_ours']:.3g}")
    print(f"(default: from 2 steps at a time; compiling and the first 2 took {compiling:.1f})")
    print(f"difference of the loss after 10 steps from torch's and numpy's: {difference:.1e}")


def pipeline(rows: list[str], turns: int, results: Answer) -> None:
    """Seconds of an epoch on shuffled batches of 1000, by the way from images to steps."""
    del rows
    sides = {n: Side("pipeline", n, data_folder()) for n in PIPELINES}
    with closing(sides):
        take_turns(sides, 1, lambda _: {})
        answers = take_turns(sides, turns, lambda _: {})
    print("\n## Epoch of the course's MLP on shuffled batches, seconds: median (min to max)")
    for name, found in answers.items():
        results[name] = [a["seconds"] for a in found]
        print(f"{name:<20} {spread(results[name])}, loss {found[-1]['loss']:.3f}")
