"""Single kernels against torch, JAX, numpy and the machine's limits."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from _cases import Case, cases, course_products
from _measure import (
    ALONE,
    Answer,
    Limits,
    Side,
    closing,
    digests_agree,
    figure,
    ratio,
    spread,
    table,
    take_turns,
)

SIDES = ("ours", "torch", "jax", "numpy")
TURN = 0.02  # seconds of repeated calls per turn
REFINED = 3  # times that the number of calls in a turn is estimated
ROUNDING = 1e-3  # of the norm
# Flops, and flops per byte, of the kernels that should come near the FMA peak.
LARGE, INTENSIVE = 2 * 255**3, 10
# Shares of their limits that native calls should reach (of attention, none is asked for).
GOALS = {"matmul": 0.92, "conv": 0.85, "memory": 0.85}


def _measure(case: Case, sides: dict[str, Side], limits: Side, turns: int) -> Answer:
    missing: dict[str, str] = {}
    repeat: dict[str, int] = {}
    digests = {}
    for name, side in sides.items():
        answer = side.ask(case=case.name, repeat=1)
        if "unavailable" in answer:
            missing[name] = answer["unavailable"]
            continue
        digests[name] = answer["digest"]
        reference = digests.get("torch", answer["digest"])
        if not digests_agree(answer["digest"], reference, ROUNDING):
            missing[name] = "void: the result differs from torch's"
            continue
        for _ in range(REFINED):  # the first calls after a pause are the slowest
            count = min(1000, max(1, round(TURN / max(answer["seconds"], 1e-9))))
            answer = side.ask(case=case.name, repeat=count)
        repeat[name] = count
    working = {n: s for n, s in sides.items() if n not in missing}
    answers = take_turns(
        {**working, "limits": limits},
        turns,
        lambda n: {"case": case.name, "repeat": repeat.get(n, 0)},
    )
    by_turn = answers.pop("limits", [])
    measured = Limits(by_turn)
    seconds = {n: [a["seconds"] for a in t] for n, t in answers.items()}
    missing |= dict.fromkeys(working.keys() - seconds.keys(), "failed while measured")
    found: Answer = {
        "seconds": seconds,
        "missing": missing,
        "limit_seconds": measured.seconds(case.flops, case.nbytes),
        "flops": case.flops,
        "bytes": case.nbytes,
        "limits": measured.summary(),
    }
    medians = {n: statistics.median(t) for n, t in seconds.items()}
    if "ours" in medians:
        least = [Limits([a]).seconds(case.flops, case.nbytes) for a in by_turn]
        found["share"] = ratio(least, seconds["ours"])
        peer = min((n for n in medians if n != "ours"), key=medians.__getitem__, default=None)
        if peer:
            found["fastest_peer"], found["speedup"] = peer, ratio(seconds[peer], seconds["ours"])
    return found


def _cells(case: Case, found: Answer) -> list[str]:
    amount, unit = (case.flops, "GFLOP/s") if case.flops else (case.nbytes, "GB/s")
    rates = [figure(amount / found["limit_seconds"] / 1e9)]
    for name in SIDES:
        times = found["seconds"].get(name)
        rates.append(figure(amount / statistics.median(times) / 1e9) if times else "n/a")
    share = f"{found['share']:.0%}" if "share" in found else "-"
    peer = f"{found['speedup']:.2f} ({found['fastest_peer']})" if "speedup" in found else "-"
    return [case.name, unit, *rates, share, peer]


def _run(wanted: dict[str, Case], turns: int, results: Answer) -> None:
    # torch answers first: the others' results are compared with its.
    sides = {n: Side("kernels", n, **ALONE) for n in ("torch", "ours", "jax", "numpy")}
    limits = Side("limits", "limits")

    def lines() -> Iterator[list[str]]:
        for name, case in wanted.items():
            results[name] = _measure(case, sides, limits, turns)
            yield _cells(case, results[name])

    print("\n## Single kernels (medians)")
    with closing({**sides, "limits": limits}):
        head = ["kernel", "unit", "limit", *SIDES, "ours / limit", "fastest peer / ours"]
        table(head, lines())
    missing: dict[tuple[str, str], list[str]] = {}
    for name in wanted:
        for side, reason in results[name]["missing"].items():
            missing.setdefault((side, reason), []).append(name)
    for (side, reason), names in missing.items():
        print(f"{side}: {reason} ({', '.join(names)})")


def kernels(rows: list[str], turns: int, results: Answer) -> None:
    """All cases, or those whose names begin with one of ``rows``."""
    wanted = {n: c for n, c in cases().items() if not rows or n.startswith(tuple(rows))}
    _run(wanted, turns, results)


def goal_of(case: Case) -> str:
    """Which of the goals is that of a case."""
    if not case.flops:
        return "memory"
    return case.kind if case.kind.startswith(("matmul", "attention")) else "conv"


def native(rows: list[str], turns: int, results: Answer) -> None:
    """Native calls alone against what limits them, measured between them.

    Large products and convolutions: the FMA peak.  What only moves memory: a copy of as many bytes.
    Or, of all cases, those of ``rows``.
    """
    near = [
        c
        for c in cases().values()
        if goal_of(c) in GOALS
        if not c.flops or c.flops >= max(LARGE, INTENSIVE * c.nbytes)
    ]
    wanted = [c for c in cases().values() if c.name.startswith(tuple(rows))] if rows else near
    side = Side("native", "ours", **ALONE)

    def measure(case: Case) -> Answer:
        seconds = 0.0
        for repeat in (1, 3):
            seconds = side.ask(case=case.name, repeat=repeat)["seconds"]
        repeat = max(1, round(TURN / seconds))
        answers = take_turns({"ours": side}, turns, lambda _: {"case": case.name, "repeat": repeat})
        rates = [(case.flops or case.nbytes) / a["seconds"] for a in answers["ours"]]
        return {"rate": rates, "limit": [a["limit"] for a in answers["ours"]]}

    def lines() -> Iterator[list[str]]:
        for case in wanted:
            found = results[case.name] = measure(case)
            rates, limits = ([x / 1e9 for x in found[k]] for k in ("rate", "limit"))
            shares = [100 * a / b for a, b in zip(rates, limits, strict=True)]
            found["share"] = statistics.median(shares) / 100
            unit = "GFLOP/s" if case.flops else "GB/s"
            limit = figure(statistics.median(limits))
            yield [case.name, unit, spread(rates), limit, spread(shares)]

    print("\n## Native calls alone, and their limits between them: median (min to max)")
    with closing({"ours": side}):
        if side.unavailable:
            raise SystemExit(side.unavailable)
        table(["kernel", "unit", "rate", "limit", "share, %"], lines())
    for kind, goal in GOALS.items():
        shares = [results[c.name]["share"] for c in wanted if goal_of(c) == kind]
        if shares:
            print(f"{kind}: {sum(s >= goal for s in shares)} of {len(shares)} reach {goal:.0%}")


def matmul(rows: list[str], turns: int, results: Answer) -> None:
    """Four products, each operand as it is and transposed."""
    del rows
    _run(course_products(), turns, results)
