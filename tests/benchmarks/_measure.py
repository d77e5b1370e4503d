"""Running sides in turn, and what their answers amount to."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from _rows import SCALED, TRAINED, weights

HERE = Path(__file__).resolve().parent
SETTLE = 0.02  # seconds: idle OpenMP workers of the side before spin a few milliseconds
SPIN = "24"  # so many bits of cycles OpenBLAS's idle workers spin, by default a tenth of a second
# A table of operations or sizes is no line where these vary: each is to have a program at once.
ALONE = {"MTVM_VARYING": "0", "MTVM_CHANGING": "0"}
TURN = 0.3  # seconds that one request for steps should take
Answer = dict[str, Any]
SCRATCH = tempfile.TemporaryDirectory(prefix="mtvm-bench-")


class Side:
    """A process that answers one JSON line per request.

    ``ready`` is its first answer; after ``unavailable`` is set it answers nothing more.
    """

    def __init__(self, kind: str, name: str, *arguments: str, **environment: str) -> None:
        self.unavailable = ""
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "_sides.py"), kind, name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.ready = self._answer()
        self.unavailable = self.ready.get("unavailable", "")

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.unavailable = f"the process ended with status {self._process.wait()}"
            return {"unavailable": self.unavailable}
        return dict(json.loads(line))

    def ask(self, **request: object) -> Answer:
        """Send a request and wait for its answer, which may be {"unavailable": reason}.

        With neighbours it says how much these have done meanwhile, of what they do alone.
        """
        if self.unavailable:
            return {"unavailable": self.unavailable}
        assert self._process.stdin is not None
        time.sleep(SETTLE)
        before = NEIGHBOURS.done()
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        answer = self._answer()
        if NEIGHBOURS.rate:
            answer["neighbours"] = NEIGHBOURS.rate_since(before) / NEIGHBOURS.rate
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def closing(sides: Mapping[str, Side]) -> Iterator[None]:
    """End the sides in any case."""
    try:
        yield
    finally:
        for side in sides.values():
            side.close()


def set_threads(count: int) -> None:
    """Give every side to come the same ``count`` cores and threads."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, cores)  # inherited; JAX has no other setting
    for name in ("OMP", "OPENBLAS", "MKL", "MTVM", "TVM"):
        os.environ[f"{name}_NUM_THREADS"] = str(len(cores))
    os.environ["OPENBLAS_THREAD_TIMEOUT"] = SPIN


class Neighbours:
    """Other processes that count, one number each in memory that they share with this one."""

    def __init__(self) -> None:
        self._counts = mmap.mmap(-1, mmap.PAGESIZE)
        self._total = memoryview(self._counts).cast("Q")
        self.rate = 0.0
        """What they count per second when they are alone; 0 without any."""

    def done(self) -> tuple[float, int]:
        """The time, and what they have counted."""
        return time.perf_counter(), sum(self._total)

    def rate_since(self, before: tuple[float, int]) -> float:
        """What they have counted per second."""
        now, count = self.done()
        return (count - before[1]) / (now - before[0])

    def _count(self, number: int) -> None:
        while True:
            for _ in range(10_000):
                pass
            self._total[number] += 1

    @contextlib.contextmanager
    def running(self, count: int) -> Iterator[None]:
        """Keep ``count`` of them busy meanwhile, on the same cores."""
        fork = multiprocessing.get_context("fork")
        loops = [fork.Process(target=self._count, args=(n,), daemon=True) for n in range(count)]
        try:
            for loop in loops:
                loop.start()
            if count:
                time.sleep(0.2)
                before = self.done()
                time.sleep(1.0)
                self.rate = self.rate_since(before)
            yield
        finally:
            for loop in loops:
                loop.kill()
                loop.join()


NEIGHBOURS = Neighbours()


def use_folder(folder: str) -> dict[str, str]:
    """Environment that keeps all frameworks' compiled programs in ``folder``, none of before."""
    return {
        "MTVM_CACHE_DIR": f"{folder}/mtvm",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "XDG_CACHE_HOME": f"{folder}/xdg",
    }


def weights_file(row: str) -> str:
    """The row's initial weights, in a file that goes with this process."""
    path = Path(SCRATCH.name) / f"{row}.npz"
    if not path.exists():
        np.savez(path, **weights((TRAINED | SCALED)[row]))  # type: ignore[arg-type]
    return str(path)


def take_turns(
    sides: Mapping[str, Side], turns: int, request: Callable[[str], Answer]
) -> dict[str, list[Answer]]:
    """A B A B: ``turns`` answers of every side; a side that fails once answers no more."""
    answers: dict[str, list[Answer]] = {name: [] for name in sides}
    failed: dict[str, str] = {}
    for _ in range(turns):
        for name, side in sides.items():
            if name in failed:
                continue
            answer = side.ask(**request(name))
            answers[name].append(answer)
            if "unavailable" in answer:
                failed[name] = answer["unavailable"]
                print(f"{name} failed while measured: {failed[name]}", file=sys.stderr)
    return {n: a for n, a in answers.items() if n not in failed}


def steps_for(seconds: float, turn: float = TURN) -> int:
    """Steps that take about ``turn`` seconds: tens, so that losses are read alike."""
    return min(500, max(10, round(turn / max(seconds, 1e-9) / 10) * 10))


class Limits:
    """The machine's limits as measured in the turns of one comparison."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        found = list(answers)
        if not found:
            raise SystemExit("the machine's limits could not be measured")
        self.isa = {
            isa: statistics.median(a["flops"][isa] for a in found) for isa in found[0]["flops"]
        }
        self.flops = max(self.isa.values())
        self.launch = statistics.median(a["launch"] for a in found)
        self.copy = {
            int(n): statistics.median(a["copy"][n] for a in found) for n in found[0]["copy"]
        }

    def bandwidth(self, nbytes: float) -> float:
        """Bytes per second of a copy that moves as much or more, so that a bound stays a bound."""
        return max(rate for n, rate in self.copy.items() if n >= nbytes or n == max(self.copy))

    def seconds(self, flops: float, nbytes: float) -> float:
        """The least time for this work: the larger of arithmetic and memory traffic."""
        return max(flops / self.flops, nbytes / self.bandwidth(nbytes))

    def bound(self, work: Iterable[Iterable[float]]) -> float:
        """The least time for kernels that run one after the other."""
        return sum(self.seconds(flops, nbytes) for flops, nbytes in work)

    def summary(self) -> Answer:
        """For the JSON file."""
        copies = {f"{n / (1 << 20):g} MiB": rate / 1e9 for n, rate in self.copy.items()}
        return {
            "fma_gflops": {isa: rate / 1e9 for isa, rate in self.isa.items()},
            "copy_gb_per_s": copies,
            "launch_us": self.launch * 1e6,
        }


def describe(limits: Iterable[Answer]) -> str:
    """A line about the machine's limits: medians of several summaries."""
    found = list(limits)

    def median(kind: str, name: str) -> str:
        return figure(statistics.median(f[kind][name] for f in found))

    peaks = ", ".join(f"{isa} {median('fma_gflops', isa)}" for isa in found[0]["fma_gflops"])
    copies = ", ".join(f"{n} {median('copy_gb_per_s', n)}" for n in found[0]["copy_gb_per_s"])
    launch = figure(statistics.median(f["launch_us"] for f in found))
    return (
        f"Limits: multiply-adds, GFLOP/s: {peaks}; copies, read plus written, GB/s: {copies}; "
        f"empty native call: {launch} us"
    )


def machine() -> Answer:
    """What the numbers hold for: processor, threads and versions."""
    model = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")
    versions = {"python": platform.python_version()}
    for name in ("minitorch_tvm", "apache-tvm", "numpy", "torch", "jax", "jaxlib"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "processor": model or platform.processor(),
        "isa": os.environ.get("MTVM_ISA", "host"),
        "matrix unit": os.environ.get("MTVM_MATRIX_UNIT", "auto"),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions,
        "load": os.getloadavg()[0],  # of the minute before: above 0.5, somebody else is at work
    }


def figure(value: float) -> str:
    """Three digits, never an exponent for large numbers."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def spread(values: list[float]) -> str:
    """median (min to max)."""
    return f"{figure(statistics.median(values))} ({figure(min(values))} to {figure(max(values))})"


def ratio(over: list[float], under: list[float]) -> float:
    """Median of the ratios turn by turn, which a drifting clock does not touch."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def markdown(head: list[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def table(head: list[str], rows: Iterable[list[str]]) -> None:
    """Print a table row by row, as the rows are measured."""
    for line in markdown(head, rows):
        print(line, flush=True)


def apart(losses: list[float], reference: list[float]) -> float:
    """Largest relative difference of two loss curves.

    It is infinite if a loss is not a finite number, or if one curve is longer.
    """
    if len(losses) != len(reference):
        return math.inf
    found = [abs(a - b) / max(abs(b), 0.1) for a, b in zip(losses, reference, strict=True)]
    return max(x if math.isfinite(x) else math.inf for x in found)  # max() may pass over NaN


def digests_agree(a: list[float], b: list[float], tolerance: float) -> bool:
    """Whether two results are the same up to rounding (signed sum and norm of each).

    Results that are not finite agree with nothing.
    """
    limit = tolerance * max(b[1], 1e-6)
    pairs = zip(a, b, strict=True)
    return math.isfinite(limit) and all(abs(x - y) <= limit for x, y in pairs)
