"""Side-by-side measurements: `python tests/benchmarks/compare.py WHAT [--json FILE] ...`.

Every side runs in its own process with the same number of threads and they take turns, so that a
drifting machine drifts for all of them.  Medians over the turns, and the ratio turn by turn.

* train: training steps of all models by torch eager, torch.compile, JAX and this package.
* recurrent: the same of recurrent layers by themselves, of several sizes.
* families: the same of models of other families, of torch and this package.
* profile: where the time of our training steps goes, kernel by kernel.
* infer: forward passes of one sample.
* kernels: single kernels against torch, JAX, numpy and the machine's limits; matmul: a few.
* native: large products and convolutions, and what moves memory: native calls alone, against the
  FMA peak, or a copy, between them.
* cold: from the start of the process, and from the call, to the result of the first step; then a
  first step of three fourths of the batch.
* edited: the first call of a program that has changed since the last time, in a new process.
* memory: peak resident memory after 50 steps.
* overhead: Python's share of a step, the cost of a native call, and data loaders.
* calls: what single operations cost to call, in torch and here.
* ops: single operations on half a megabyte, and with their gradients, in torch and here.
* matrices: decompositions of matrices, and with their gradients, in torch and here.
* writing: a GPT that writes a text, so that what it reads grows, in torch and here.
* varying: training steps whose sizes are others each time, in torch and here.
* loops: training loops as people write them, with what surrounds a model, in torch and here.
* scaling: a step, its recording and its compilation as batch, width and depth grow.
* determinism: bits of the weights after --steps steps, by threads, cache and mt.compile; exit
  status 1 if any differ.
* epoch: an epoch of the course's MLP, also in plain numpy and with TVM's default schedules.
* pipeline: one on shuffled batches, from images kept as float32 and from bytes.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import _calls
import _determinism
import _fresh
import _loops
import _ops
import _profile
import _scaling
import _steps
import _varying
import _work
import _writing
from _cases import cases
from _measure import NEIGHBOURS, SCRATCH, Answer, machine, set_threads, use_folder
from _rows import INFERENCE, LAYERS_ALONE, OTHERS, ROWS, SCALED

COMMANDS = {
    "train": _steps.train,
    "profile": _profile.profile,
    "recurrent": _steps.recurrent,
    "families": _steps.families,
    "infer": _steps.infer,
    "kernels": _work.kernels,
    "native": _work.native,
    "matmul": _work.matmul,
    "cold": _fresh.cold,
    "edited": _fresh.edited,
    "memory": _fresh.memory,
    "overhead": _fresh.overhead,
    "calls": _calls.calls,
    "ops": _ops.ops,
    "matrices": _ops.matrices,
    "writing": _writing.writing,
    "varying": _varying.varying,
    "loops": _loops.loops,
    "scaling": _scaling.scaling,
    "epoch": _steps.epoch,
    "pipeline": _steps.pipeline,
    "determinism": _determinism.determinism,
}
ROWS_OF = {
    "infer": INFERENCE,
    "recurrent": tuple(LAYERS_ALONE),
    "families": tuple(OTHERS),
    "scaling": tuple(SCALED),
    "varying": _varying.WAYS,
    "loops": tuple(_loops.MAKERS),
    "ops": tuple(_ops.families()),
    "matrices": tuple(_ops.decompositions()),
} | dict.fromkeys(("calls", "edited", "writing", "matmul", "epoch", "pipeline"), ())
"""Of the commands that do not take those of the table."""


def refusal(what: str, rows: list[str]) -> str:
    """Why a command does not take these rows, or nothing."""
    if what in ("kernels", "native"):
        names = list(cases())
        unknown = [r for r in rows if not any(n.startswith(r) for n in names)]
        return f"no name begins with {', '.join(unknown)}" if unknown else ""
    known = ROWS_OF.get(what, tuple(ROWS))
    unknown = [r for r in rows if r not in known]
    if not unknown:
        return ""
    expected = f"expected {', '.join(known)}" if known else "it takes no rows"
    return f"{what} has no row {', '.join(unknown)}: {expected}"


def positive(text: str) -> int:
    """A number of turns, steps or threads."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="+", choices=list(COMMANDS))
    parser.add_argument("--turns", type=positive, default=15, help="turns per measurement")
    parser.add_argument("--steps", type=positive, default=200, help="training steps of determinism")
    parser.add_argument("--threads", type=positive, default=2, help="cores for every side")
    parser.add_argument(
        "--rows",
        default="",
        help=f"comma separated: {', '.join(ROWS)}; for kernels and native, beginnings of names",
    )
    parser.add_argument("--busy", type=int, default=0, help="processes that only spin, meanwhile")
    parser.add_argument(
        "--beside-torch", action="store_true", help="load torch in this package's processes too"
    )
    parser.add_argument("--json", help="add the results to this file")
    arguments = parser.parse_args()
    rows = [r for r in arguments.rows.split(",") if r]
    for reason in (refusal(what, rows) for what in arguments.what):
        if reason:
            parser.error(reason)
    set_threads(arguments.threads)
    os.environ.update(use_folder(SCRATCH.name))
    path = Path(arguments.json) if arguments.json else None
    results: Answer = json.loads(path.read_text()) if path and path.exists() else {}
    results["machine"] = machine()
    results["machine"] |= {"busy": arguments.busy, "beside_torch": arguments.beside_torch}
    if results["machine"]["load"] > 0.5:
        print("note: other programs use this machine, so the times below are disturbed")
    if results["machine"]["isa"] != "host":
        print("note: MTVM_ISA restricts this package and the limits, not the other sides")
    if arguments.beside_torch:
        os.environ["BENCH_BESIDE"] = "torch"
    for what in arguments.what:
        found = results.setdefault(what, {})
        try:
            with NEIGHBOURS.running(arguments.busy):
                amount = arguments.steps if what == "determinism" else arguments.turns
                COMMANDS[what](rows, amount, found)
        finally:  # what an interrupted run has measured is kept
            if path:
                path.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
