"""Tables of what `compare.py --json FILE` measured: `python report.py FILE [page.md ...]`.

Without pages, all tables are printed.  In a page, what stands between `<!-- table: NAME -->` and
`<!-- end -->` is replaced by the table of that name, so that no figure is copied by hand.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import _calls
import _cases
import _loops
import _ops
import _scaling
import _varying
import _writing
from _cases import Case
from _fresh import CACHED, EDITED_SIDES, edited_cells
from _measure import Answer, describe, figure, markdown, ratio, spread
from _steps import HEAD, SIDES, cells
from _work import GOALS, goal_of

MODELS = {
    "logreg": "logistic regression, 1000",
    "mlp-32": "MLP 784-256-100-10, 32",
    "mlp-100": "the same, 100",
    "mlp-1000": "the same, 1000",
    "mlp-wide": "MLP 784-1024-1024-10, 256, Adam",
    "lenet": "LeNet, 64",
    "resnet": "small ResNet with BatchNorm, 32",
    "gpt": "GPT, 4 layers of width 128, 16 x 64",
    "lstm": "LSTM, 2 layers of width 128, 32 x 64",
}
SMALL, THIN, LARGE = 2 * 129**3, 16, 70e6
"""Of products: flops up to which they are small, the side up to which they are thin, large ones."""
CLASSES = {
    "conv": "convolution, forward",
    "conv-input": "convolution, input gradient",
    "conv-weight": "convolution, weight gradient",
    "groups": "convolutions in groups",
    "attention": "causal attention, forward",
    "attention-grad": "causal attention and its gradients",
    "softmax": "softmax",
    "norm": "layer norm",
    "sum": "sums",
    "max": "maxima",
    "transpose": "transposes",
    "gather": "gathers",
    "chain": "elementwise chains",
}
FAR, NEAR, DISTANT = 32 << 20, ", in the caches", ", from memory"
"""Bytes from which on kernels are told apart from those that the caches hold."""
SLOWER = 0.95
"""Times the fastest peer's speed: what is not below counts as not slower."""


def _lines(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(markdown(head, rows))


def brief(results: Answer) -> str:
    """Milliseconds of a training step of every side, and the ratios, for the README."""
    names = ("PyTorch", "torch.compile", "JAX", "this package", "with `mt.compile`")

    def row(name: str, found: Answer) -> Iterator[str]:
        ms = {side: statistics.median(times) for side, times in found.get("ms", {}).items()}
        yield MODELS[name]
        yield from (figure(ms[side]) if side in ms else "" for side in SIDES)
        yield from cells(name, found)[-2:]

    head = ["model, batch", *names, "fastest other / best of ours", "of the machine's bound"]
    return _lines(head, (row(*item) for item in results["train"].items()))


def _steps(measured: Answer) -> str:
    return _lines(HEAD, (cells(*item) for item in measured.items()))


def train(results: Answer) -> str:
    """Training steps: milliseconds, median (min to max), and the machine's limits meanwhile."""
    limits = describe([found["limits"] for found in results["train"].values()])
    return f"{_steps(results['train'])}\n\n{limits}."


def recurrent(results: Answer) -> str:
    """The same of recurrent layers by themselves: kind, states, batch, steps."""
    return _steps(results["recurrent"])


def families(results: Answer) -> str:
    """The same of models of other families."""
    return _steps(results["families"])


def infer(results: Answer) -> str:
    """The same of a forward pass of one sample."""
    return _steps(results["infer"])


def _fresh(measured: Answer, labels: Iterable[str]) -> str:
    columns = [*SIDES, CACHED]

    def row(name: str, label: str) -> Iterator[str]:
        found = measured[name].get(label, {})
        yield name
        yield label
        yield from (spread(found[c]) if c in found else "" for c in columns)

    rows = (row(name, label) for name in measured for label in labels)
    return _lines(["row", "", *columns], rows)


def cold(results: Answer) -> str:
    """First steps: seconds, median (min to max)."""
    return _fresh(results["cold"], ("process", "call", "smaller batch"))


def edited(results: Answer) -> str:
    """First calls of changed programs: seconds, median (min to max)."""
    found = results["edited"]
    return _lines(["row: change", *EDITED_SIDES], (edited_cells(*item) for item in found.items()))


def memory(results: Answer) -> str:
    """Peak resident memory: MiB, median (min to max)."""
    return _fresh(results["memory"], ("peak",))


def _kind(case: Case) -> str:
    if case.kind != "matmul":
        return CLASSES["groups" if case.options.get("groups", 1) > 1 else case.kind]
    if case.flops >= LARGE:
        return f"products of {LARGE / 1e6:.0f} MFLOP and more"
    sides = {size for shape in case.shapes for size in shape}
    if min(sides) <= THIN and max(sides) > THIN:
        return f"products with a side of at most {THIN}"
    return "products up to 129 cubed" if case.flops <= SMALL else "other products"


def kernels(results: Answer) -> str:
    """Kernels by class: shares of the machine's limit, and against the fastest peer."""
    known = _cases.cases()
    classes: dict[str, list[Answer]] = {}
    for name, found in results["kernels"].items():
        if "speedup" in found:
            classes.setdefault(_kind(known[name]), []).append(found)

    def between(values: list[float], show: Callable[[float], str]) -> list[str]:
        return [show(statistics.median(values)), f"{show(min(values))} to {show(max(values))}"]

    def against_torch_and_jax(found: Answer) -> float:
        seconds = found["seconds"]
        return min(ratio(seconds[n], seconds["ours"]) for n in ("torch", "jax") if n in seconds)

    def row(name: str, of: list[Answer]) -> Iterator[str]:
        yield name
        yield str(len(of))
        yield from between([f["share"] for f in of], lambda x: f"{x:.0%}")
        yield from between([f["speedup"] for f in of], lambda x: f"{x:.2f}")
        yield str(sum(f["speedup"] >= SLOWER for f in of))
        yield str(sum(against_torch_and_jax(f) >= SLOWER for f in of))

    every = [f for of in classes.values() for f in of]
    head = ["class", "cases", "share of the limit, median", "from, to"]
    head += ["fastest peer / ours, median", "from, to", "not slower", "without numpy"]
    return _lines(head, (row(*item) for item in [*classes.items(), ("all", every)]))


def native(results: Answer) -> str:
    """Native calls alone, by class: shares of what limits them, measured between them."""
    known = _cases.cases()
    classes: dict[tuple[str, float], list[float]] = {}
    for name, found in results["native"].items():
        case, kind = known[name], CLASSES.get(known[name].kind, "products of 255 cubed and more")
        if case.kind == "matmul":
            kind += ", A transposed" if case.options["form"][0] == "T" else ", A as it is"
        elif not case.flops:
            kind += NEAR if case.nbytes < FAR else DISTANT
        classes.setdefault((kind, GOALS[goal_of(case)]), []).append(found["share"])

    def row(of: tuple[str, float], shares: list[float]) -> Iterator[str]:
        kind, goal = of
        yield kind
        yield str(len(shares))
        yield f"{statistics.median(shares):.0%}"
        yield f"{min(shares):.0%} to {max(shares):.0%}"
        yield f"{sum(s >= goal for s in shares)} reach {goal:.0%}"

    head = ["class", "cases", "share of the limit, median", "from, to", "goal"]
    return _lines(head, (row(*item) for item in classes.items()))


def calls(results: Answer) -> str:
    """What single operations cost to call."""
    found = results["calls"]
    lines = _lines(_calls.HEAD, (_calls.cells(*item) for item in found.items()))
    return f"{lines}\n\n{_calls.summary(found).capitalize()}."


def ops(results: Answer) -> str:
    """Single operations, by family."""
    return _lines(_ops.SUMMARY, _ops.summary(results["ops"]))


def writing(results: Answer) -> str:
    """A GPT that writes."""
    return _lines(_writing.HEAD, (_writing.cells(*item) for item in results["writing"].items()))


def varying(results: Answer) -> str:
    """Steps whose sizes vary."""
    return _lines(_varying.HEAD, (_varying.cells(*item) for item in results["varying"].items()))


def loops(results: Answer) -> str:
    """Training loops as people write them."""
    return _lines(_loops.HEAD, _loops.lines(results["loops"]))


def scaling(results: Answer) -> str:
    """Growth of a step, its recording and its compilation."""
    measured = {row: found for row, found in results["scaling"].items() if "missing" not in found}
    return _lines(_scaling.HEAD, (_scaling.cells(*item) for item in measured.items()))


TABLES: dict[str, Callable[[Answer], str]] = {
    "brief": brief,
    "train": train,
    "infer": infer,
    "cold": cold,
    "edited": edited,
    "memory": memory,
    "kernels": kernels,
    "native": native,
    "calls": calls,
    "ops": ops,
    "writing": writing,
    "varying": varying,
    "loops": loops,
    "scaling": scaling,
    "recurrent": recurrent,
    "families": families,
}
_PLACE = re.compile(r"(<!-- table: (\w+) -->\n)(?:(?!<!-- end -->).)*(<!-- end -->)", re.DOTALL)


def filled(page: str, results: Answer) -> str:
    """A page with its tables as they should be.  Raises KeyError for one that is not known."""
    return _PLACE.sub(lambda m: f"{m[1]}{TABLES[m[2]](results)}\n{m[3]}", page)


if __name__ == "__main__":
    measured = json.loads(Path(sys.argv[1]).read_text())
    for path in map(Path, sys.argv[2:]):
        path.write_text(filled(path.read_text(), measured))
    if len(sys.argv) == 2:
        for title, make in TABLES.items():
            if ("train" if title == "brief" else title) in measured:
                print(f"\n## {title}\n\n{make(measured)}")
