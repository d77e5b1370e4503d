"""Side-by-side measurements: `python tests/benchmarks/compare.py [epoch] [matmul] [--json FILE]`.

Every side runs in its own process with the same number of threads and they take turns, so that a
drifting machine drifts for all of them.  Medians over the turns, and the ratio turn by turn.

* epoch: one epoch of the course's MLP (50 steps of 1000 images) by this package, by this package
  with TVM's default schedules, and by torch eager; losses must agree.
* matmul: products in all four transpose forms against the machine's FMA peak, numpy and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
THREADS = str(len(os.sched_getaffinity(0)))


class Side:
    """A process that answers one JSON line per request."""

    def __init__(self, *arguments: str) -> None:
        env = dict(os.environ)
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            env[name] = THREADS
        # Idle workers of one side must not spin while another side is timed.
        env.update(OMP_WAIT_POLICY="PASSIVE", KMP_BLOCKTIME="0", GOMP_SPINCOUNT="0")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "_sides.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a side ended with status {self._process.wait()}")
        return dict(json.loads(line))

    def ask(self, **request: object) -> dict[str, float]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def data_folder() -> str:
    """The folder with the MNIST files: MTVM_DATA, or mnist beside the checkout."""
    found = os.environ.get("MTVM_DATA")
    if found is None:
        beside = HERE.parents[2] / "shared" / "mnist"
        found = str(beside) if beside.is_dir() else None
    if found is None:
        raise SystemExit("set MTVM_DATA to the folder with the MNIST idx files")
    return found


def spread(values: list[float]) -> str:
    """median (min to max)."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def epoch(turns: int) -> dict[str, object]:
    """Epoch times, and the ratio of each other side to ours."""
    folder = data_folder()
    sides = {"ours": Side("ours", "epoch", folder), "torch": Side("torch", "epoch", folder)}
    # Losses are compared after 10 steps.  At this learning rate the loss first rises, and float32
    # rounding is amplified: float64, numpy and torch differ by 0.04 after 50 steps.
    first_loss = {name: side.ask(steps=10)["loss"] for name, side in sides.items()}
    for side in sides.values():
        side.ask(steps=50)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, side in sides.items():
            seconds[name].append(side.ask(steps=50)["seconds"])
    for side in sides.values():
        side.close()
    apart = abs(first_loss["ours"] - first_loss["torch"])
    if apart > 1e-3:
        raise SystemExit(f"losses differ by {apart:.1e}: the comparison is void")
    ratios = [t / o for t, o in zip(seconds["torch"], seconds["ours"], strict=True)]
    # The default schedule takes about a second per step: a few steps give its epoch.
    default, ours = Side("default", "epoch", folder), Side("ours", "epoch", folder)
    ours.ask(steps=50)
    first = default.ask(steps=2)["seconds"]
    slow, fast = [], []
    for _ in range(3):
        slow.append(default.ask(steps=2)["seconds"] / 2 * 50)
        fast.append(ours.ask(steps=50)["seconds"])
    default.close()
    ours.close()
    schedule = [a / b for a, b in zip(slow, fast, strict=True)]
    print("\n## Epoch of the course's MLP (50 steps, batch 1000), seconds: median (min to max)")
    print(f"ours             {spread(seconds['ours'])}")
    print(f"torch eager      {spread(seconds['torch'])}   ratio {spread(ratios)}")
    print(f"default schedule {spread(slow)}   ratio {spread(schedule)}")
    print(f"(from 2 steps at a time; compiling and the first 2 took {first:.1f})")
    print(f"difference of the loss after 10 steps from torch's: {apart:.1e}")
    return {
        "ours": seconds["ours"],
        "torch": seconds["torch"],
        "torch_over_ours": ratios,
        "default": slow,
        "default_over_ours": schedule,
        "loss_difference": apart,
    }


SHAPES = [(1000, 256, 784), (500, 1000, 700), (1024, 1024, 1024), (256, 256, 256)]


def matmul(turns: int) -> dict[str, object]:
    """GFLOP/s and share of the FMA peak for every shape and transpose form."""
    sides = {n: Side(n, "matmul") for n in ("ours", "numpy", "torch")}
    probe = Side("peak", "matmul")
    results: dict[str, object] = {}
    print("\n## Products: share of the FMA peak (median of ratios turn by turn), GFLOP/s medians")
    print("| m, n, k | form | ours / peak | ours | numpy | torch | peak |")
    print("|---|---|---|---|---|---|---|")
    for m, n, k in SHAPES:
        repeat = max(1, int(1e9 / (2 * m * n * k)))
        for form in ("NN", "NT", "TN", "TT"):
            rates: dict[str, list[float]] = {name: [] for name in (*sides, "peak")}
            for turn in range(turns + 1):
                rates["peak"].append(probe.ask()["flops"] / 1e9)
                for name, side in sides.items():
                    answer = side.ask(shape=[m, n, k, form], repeat=repeat)
                    rates[name].append(answer["flops"] / 1e9)
                if turn == 0:
                    for list_ in rates.values():
                        list_.clear()
            share = [o / p for o, p in zip(rates["ours"], rates["peak"], strict=True)]
            med = {name: statistics.median(v) for name, v in rates.items()}
            print(
                f"| {m}, {n}, {k} | {form} | {statistics.median(share):.2f} | {med['ours']:.0f} | "
                f"{med['numpy']:.0f} | {med['torch']:.0f} | {med['peak']:.0f} |",
                flush=True,
            )
            results[f"{m}x{n}x{k} {form}"] = rates
    for side in (*sides.values(), probe):
        side.close()
    return results


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["epoch", "matmul"])
    parser.add_argument("--turns", type=int, default=15, help="turns per measurement")
    parser.add_argument("--json", help="write the raw numbers to this file")
    arguments = parser.parse_args()
    results = {w: {"epoch": epoch, "matmul": matmul}[w](arguments.turns) for w in arguments.what}
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
