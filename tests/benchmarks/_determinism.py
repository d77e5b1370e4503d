"""Whether a row's weights are the same bits however its program was made and run.

Every way is a process of its own: one thread and all of them, programs compiled anew and found on
disk, the plain loop and ``mt.compile``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from _measure import Answer, Side, table, use_folder, weights_file
from _rows import ROWS

SIDES = ("ours", "mt.compile")


def _ways() -> list[tuple[int, str, str]]:
    """Threads, side and cache; what is cold comes before what is warm of the same kind."""
    threads = int(os.environ["MTVM_NUM_THREADS"])
    if threads < 2:
        raise SystemExit("determinism compares one thread with several: use --threads 2 or more")
    return [(n, side, cache) for n in (threads, 1) for side in SIDES for cache in ("cold", "warm")]


def _doubt(answer: Answer, way: tuple[int, str, str]) -> str:
    """Why an answer does not show what it should: empty if it does."""
    threads, side, cache = way
    if "unavailable" in answer:
        return str(answer["unavailable"])
    if not answer["finite"]:
        return "weights are not finite"
    events: dict[str, int] = answer["events"]
    if answer["threads"] != threads:
        return f"{answer['threads']} threads instead of {threads}"
    if (events.get("compiles", 0) == 0) != (cache == "warm"):
        return f"{events.get('compiles', 0)} programs compiled with a {cache} cache"
    if (events.get("captured_calls", 0) > 0) != (side == "mt.compile"):
        return f"{events.get('captured_calls', 0)} steps run from a capture"
    return ""


def _answers(row: str, steps: int) -> dict[str, Answer]:
    """What every way of running the row ends with."""
    found: dict[str, Answer] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for way in _ways():
            threads, side, cache = way
            folder = Path(scratch) / f"{threads}-{side}"
            folder.mkdir(exist_ok=True)
            count = {f"{name}_NUM_THREADS": str(threads) for name in ("MTVM", "TVM")}
            process = Side(
                *("weights", side, row, weights_file(row), str(steps)),
                **use_folder(str(folder)),
                **count,
            )
            process.close()
            answer = dict(process.ready)
            answer["doubt"] = _doubt(answer, way)
            found[f"threads {threads}, {side}, {cache}"] = answer
    return found


def _differences(answers: dict[str, Answer]) -> dict[str, list[str]]:
    """The tensors in which a way differs from the first."""
    reference, *_ = (a for a in answers.values() if not a["doubt"])
    digests = reference["digests"]
    return {
        way: [name for name, bits in a["digests"].items() if bits != digests[name]]
        for way, a in answers.items()
        if not a["doubt"]
    }


def determinism(rows: list[str], steps: int, results: Answer) -> None:
    """Bits of the weights after ``steps`` steps; SystemExit if any differ or could not be had."""
    rows = rows or list(ROWS)
    problems: list[str] = []

    def lines() -> Iterator[list[str]]:
        for row in rows:
            answers = _answers(row, steps)
            doubts = {way: a["doubt"] for way, a in answers.items() if a["doubt"]}
            apart = _differences(answers) if len(doubts) < len(answers) else {}
            results[row] = {"steps": steps, "ways": answers}
            for way, reason in doubts.items():
                problems.append(f"{row}, {way}: {reason}")
            for way, names in apart.items():
                if names:
                    problems.append(f"{row}, {way}: differs in {', '.join(names)}")
            same = sum(not names for names in apart.values())
            bits = {a["bits"][:12] for way, a in answers.items() if way in apart}
            verdict = "yes" if same == len(answers) else "NO"
            yield [row, str(steps), f"{same} of {len(answers)}", verdict, ", ".join(sorted(bits))]

    print(f"\n## Weights after {steps} steps: {len(_ways())} processes per row")
    table(["row", "steps", "agree with the first", "bit-identical", "sha256"], lines())
    for problem in problems:
        print(problem)
    if problems:
        raise SystemExit(1)
