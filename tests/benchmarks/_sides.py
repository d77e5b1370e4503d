"""One side of a comparison, run in a process of its own: `python _sides.py KIND SIDE ...`.

A side prints one JSON line when it is ready and one per request read from standard input, so that
the caller can take turns between sides (A B A B) while each keeps its own libraries and threads.
What it cannot do is answered with {"unavailable": reason}.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _calls import operations
from _calls import seconds_of as seconds_of_call
from _cases import find
from _loops import looped
from _ops import prepared
from _rows import COURSE, ROWS, SCALED, TRAINED, Array, Batch, Row, Weights, aligned, batches
from _varying import stepper, timed
from _writing import writer

if TYPE_CHECKING:
    from _peak import Probe

Answer = dict[str, Any]
Handler = Callable[[Answer], Answer]
READ_EVERY = 10  # steps between two readings of the loss
LIMIT = 0.006  # seconds of what limits a kernel, behind each of its turns

_MODULES = {
    "torch": "_torch_side",
    "torch.compile": "_torch_side",
    "jax": "_jax_side",
    "numpy": "_numpy_side",
    "ours": "_ours_side",
    "mt.compile": "_ours_side",
    "default": "_ours_side",
}


def framework(side: str) -> Any:
    """The module of a side; imports its library and nothing else, unless BENCH_BESIDE asks."""
    if side == "default":
        os.environ["MTVM_SCHEDULE"] = "default"  # read when the package is imported
    if os.environ.get("BENCH_BESIDE") == "torch" and _MODULES[side] == "_ours_side":
        import torch

        torch.mm(torch.ones(512, 512), torch.ones(512, 512))  # now its threads exist
    return importlib.import_module(_MODULES[side])


def peak_memory() -> float:
    """MiB this process has had resident at most (of this program, not of its parent)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def seconds_of(call: Callable[[], object], repeat: int) -> float:
    """Mean wall time of ``repeat`` calls in a row."""
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def digest(values: Array) -> list[float]:
    """A randomly signed sum, and the norm: results that differ somewhere differ here."""
    flat = values.reshape(-1).astype(np.float64)
    signs = np.random.default_rng(3).choice([-1.0, 1.0], flat.size)
    return [float(signs @ flat), float(np.linalg.norm(flat))]


def _loop(step: Callable[[Array, Array], Any], data: list[Batch]) -> Handler:
    def timed(request: Answer) -> Answer:
        if request.get("smaller"):  # a step of three fourths of a batch
            x, y = (a[: -(-len(a) * 3 // 4)] for a in data[0])
            return {"smaller": seconds_of(lambda: float(step(x, y)), 1)}
        steps, loss = request["steps"], 0.0
        start = time.perf_counter()
        for i in range(steps):
            value = step(*data[i % len(data)])
            if i % READ_EVERY == READ_EVERY - 1 or i == steps - 1:
                loss = float(value)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "loss": loss, "memory": peak_memory()}

    return timed


def load(weights: str) -> Weights:
    """The parameters that the caller wrote."""
    with np.load(weights) as file:
        return {name: file[name] for name in file.files}


def train(side: str, row: str, weights: str, checked: str) -> tuple[Answer, Handler]:
    """Training steps; ready after ``checked`` of them, with their losses."""
    sides = framework(side)
    step = sides.trainer(side, TRAINED[row], load(weights))
    data = batches(TRAINED[row], count=8 if int(checked) > 1 else 1)
    start = time.perf_counter()
    losses = [float(step(*data[0]))]
    ready: Answer = {"first_step": time.perf_counter() - start}
    losses += [float(step(*data[i % len(data)])) for i in range(1, int(checked))]
    ready |= {"losses": losses, "memory": peak_memory()}
    if side == "ours":
        ready |= {"work": sides.work(), "disk_cache": sides.has_disk_cache()}
        ready["arena"] = sides.arena()
    return ready, _loop(step, data)


def profile(side: str, row: str, weights: str) -> tuple[Answer, Handler]:
    """Training steps, and the time of each kernel in them."""
    sides = framework(side)
    step, data = sides.trainer(side, ROWS[row], load(weights)), batches(ROWS[row])
    loop = _loop(step, data)
    loop({"steps": 10})  # now mt.compile repeats what it has watched
    sides.kernel_seconds()

    def timed(request: Answer) -> Answer:
        seconds = loop(request)["seconds"]
        return {"seconds": seconds / request["steps"], "kernels": sides.kernel_seconds()}

    return {}, timed


def weights(side: str, row: str, initial: str, steps: str) -> tuple[Answer, Handler]:
    """Bits of the weights after ``steps`` training steps."""
    data = itertools.islice(itertools.cycle(batches(ROWS[row])), int(steps))
    return framework(side).trained(side, ROWS[row], load(initial), data), lambda _: {}


def infer(side: str, row: str, weights: str) -> tuple[Answer, Handler]:
    """Forward passes of one sample."""
    sides = framework(side)
    predict = sides.inferrer(side, TRAINED[row], load(weights))
    x = batches(TRAINED[row], count=1, size=1)[0][0]
    ready = {"digest": digest(predict(x))}
    if side == "ours":
        ready |= {"work": sides.work()}

    def timed(request: Answer) -> Answer:
        seconds = seconds_of(lambda: predict(x), request["steps"]) * request["steps"]
        return {"seconds": seconds, "memory": peak_memory()}

    return ready, timed


def kernels(side: str) -> tuple[Answer, Handler]:
    """Single kernels by name; only the latest stays in memory."""
    sides, current = framework(side), ""
    call: Callable[[], object] = dict

    def timed(request: Answer) -> Answer:
        nonlocal call, current
        answer: Answer = {}
        if request["case"] != current:
            case = find(request["case"])
            call, read = sides.kernel(case, case.arrays())
            answer["digest"] = digest(read())
            call()
            current = request["case"]
        return answer | {"seconds": seconds_of(call, request["repeat"])}

    return {}, timed


def _copies(nbytes: int) -> list[Probe]:
    """Ways to copy what moves so many bytes."""
    from _peak import copy_peak

    mebibytes = nbytes / 2 / (1 << 20)
    return [copy_peak(mebibytes), *([copy_peak(mebibytes, around=True)] if mebibytes >= 8 else [])]


def _rate(probe: Probe, seconds: float) -> float:
    """Amount per second, over so many."""
    count = max(1, round(seconds / (probe.amount / probe.run())))
    return statistics.harmonic_mean([probe.run() for _ in range(count)])


def native(side: str) -> tuple[Answer, Handler]:
    """Native calls of single kernels by themselves, and behind each turn of them what limits them:
    the FMA peak, or a copy of as many bytes."""
    from _peak import fma_peak

    sides, current, peaks = framework(side), "", [fma_peak()]
    call: Callable[[], object] = dict

    def timed(request: Answer) -> Answer:
        nonlocal call, current, peaks
        if request["case"] != current:
            case = find(request["case"])
            call, current = sides.native(case, case.arrays()), request["case"]
            if not case.flops:
                peaks = _copies(case.nbytes)
        call()
        seconds = seconds_of(call, request["repeat"])
        return {"seconds": seconds, "limit": max(_rate(p, LIMIT) for p in peaks)}

    return {}, timed


def limits(side: str) -> tuple[Answer, Handler]:
    """The machine's limits: flops per second, copied bytes per second by size, launch seconds."""
    from _peak import copy_peak, empty_launch, isa_peaks

    del side
    peaks = isa_peaks()
    copies = {round(2 * m * (1 << 20)): [copy_peak(m)] for m in (0.125, 0.5, 2, 8, 64)}
    copies[max(copies)].append(copy_peak(64, around=True))
    empty = empty_launch()

    def measured(request: Answer) -> Answer:
        copied = {n: max(p.run() for p in ps for _ in range(3)) for n, ps in copies.items()}
        # As long as the kernels it is compared with: bursts of a millisecond run faster.
        flops = {
            isa: statistics.harmonic_mean([p.run() for _ in range(60)]) for isa, p in peaks.items()
        }
        return {"flops": flops, "copy": copied, "launch": seconds_of(empty, 200)}

    measured({})
    return {}, measured


def overhead(side: str, row: str, weights: str) -> tuple[Answer, Handler]:
    """Seconds of a step: whole, without its native call, and until its program is looked up."""
    sides = framework(side)
    step = sides.trainer(side, ROWS[row], load(weights))
    (x, y), *_ = batches(ROWS[row], count=1)

    def once() -> object:
        return step(x, y)

    seconds_of(once, 20)

    def timed(request: Answer) -> Answer:
        gc.collect()
        whole = seconds_of(once, request["steps"])
        with sides.without_native_code():
            python, starts = seconds_of(once, request["steps"]), []
            with sides.noted_lookups() as found:
                for _ in range(request["steps"]):
                    starts.append(time.perf_counter())
                    once()
        answer = {"whole": whole, "python": python}
        if len(found) == len(starts):  # mt.compile records the calls that it watches, if any
            times = zip(starts, found, strict=True)
            answer["recording"] = statistics.mean(end - start for start, end in times)
        return answer

    return {}, timed


def calls(side: str) -> tuple[Answer, Handler]:
    """Seconds of calls of single operations, without gradients."""
    sides = framework(side)
    lib = sides.torch if side == "torch" else sides.mt
    known = operations(lib)

    def compute(results: list[Any]) -> None:
        if side != "torch":
            lib.eval(*results)

    def timed(request: Answer) -> Answer:
        with lib.no_grad():
            return {"seconds": {n: seconds_of_call(c, compute) for n, c in known.items()}}

    timed({})  # compiles
    return {}, timed


def ops(side: str) -> tuple[Answer, Handler]:
    """Single operations by name, alone or with gradients; only the latest stays in memory."""
    sides, current = framework(side), ("", False)
    lib = sides.torch if side == "torch" else sides.mt
    call: Callable[[], list[Any]] = list

    def timed(request: Answer) -> Answer:
        nonlocal call, current
        answer: Answer = {}
        if (request["case"], request["gradients"]) != current:
            current = request["case"], request["gradients"]
            call = prepared(lib, *current)
            found = [t.detach().numpy().reshape(-1).astype(np.float64) for t in call()]
            answer["digest"] = digest(np.concatenate(found))
        return answer | {"seconds": seconds_of(call, request["repeat"])}

    return {}, timed


def writing(side: str, way: str) -> tuple[Answer, Handler]:
    """Seconds of the tokens of a text."""
    sides = framework(side)
    write = writer(sides.torch if side == "torch" else sides.mt, way, side == "mt.compile")
    return {}, lambda request: {"seconds": write()}


def varying(side: str, way: str) -> tuple[Answer, Handler]:
    """Seconds of steps whose sizes vary, and their losses."""
    sides = framework(side)
    step = stepper(sides.torch if side == "torch" else sides.mt, way)
    return {}, lambda request: timed(step)


def loops(side: str, way: str) -> tuple[Answer, Handler]:
    """Seconds of steps of a loop, and their losses."""
    sides = framework(side)
    step = looped(sides.torch if side == "torch" else sides.mt, way)
    return {}, lambda request: timed(step)


def scaling(side: str, row: str, weights: str) -> tuple[Answer, Handler]:
    """Seconds of a step, of its recording, and of the first call; its work."""
    sides = framework(side)
    step = sides.trainer(side, SCALED[row], load(weights))
    (x, y), *_ = batches(SCALED[row], count=1)

    def once() -> object:
        return step(x, y)

    first = seconds_of(once, 1)
    seconds_of(once, 3)
    ready = {"first": first, "work": sides.work(), "recorded": sides.recorded()}

    def timed(request: Answer) -> Answer:
        gc.collect()
        whole = seconds_of(once, request["steps"])
        with sides.without_native_code():
            return {"whole": whole, "python": seconds_of(once, request["steps"])}

    return ready, timed


def loader(side: str, workers: str) -> tuple[Answer, Handler]:
    """Seconds per batch of an epoch of 50 shuffled batches of 1000 images."""
    rng = np.random.default_rng(0)
    x, y = rng.random((50_000, 784), np.float32), rng.integers(0, 10, 50_000)
    if side == "numpy":

        def epoch() -> None:
            order = rng.permutation(len(x))
            for i in range(0, len(x), 1000):
                x[order[i : i + 1000]], y[order[i : i + 1000]]
    else:
        lib = importlib.import_module("torch" if side == "torch" else "minitorch_tvm")
        data = lib.utils.data
        dataset = data.TensorDataset(lib.from_numpy(x), lib.from_numpy(y))
        batched = data.DataLoader(dataset, 1000, shuffle=True, num_workers=int(workers))

        def epoch() -> None:
            for _ in batched:
                pass

    epoch()
    return {}, lambda request: {"seconds": seconds_of(epoch, 1) / 50}


def pipeline(side: str, folder: str) -> tuple[Answer, Handler]:
    """An epoch of the course's MLP on shuffled batches, by three ways from images to steps."""
    from minitorch_tvm.utils.data.idx import read_idx

    images = read_idx(f"{folder}/train-images-idx3-ubyte.gz")[:50000].reshape(-1, 784)
    labels = read_idx(f"{folder}/train-labels-idx1-ubyte.gz")[:50000].astype(np.int64)
    row = replace(COURSE, lr=0.1)  # at the course's rate shuffled batches may diverge
    epoch = framework("mt.compile").pipeline(side, row, _course_weights(), images, labels)
    return {}, lambda _: {"loss": epoch(), "seconds": seconds_of(epoch, 1)}


def _course_weights() -> Weights:
    """As the assignment draws them: W1 W2 W3 b1 b2 b3, weights stored input by output."""
    rng = np.random.RandomState(123)
    shapes = [(784, 256), (256, 100), (100, 10), (256,), (100,), (10,)]
    drawn = [rng.normal(scale=0.1, size=s).astype(np.float32) for s in shapes]
    made: Weights = {}
    for i in range(3):
        made |= {f"{2 * i}.weight": drawn[i].T.copy(), f"{2 * i}.bias": drawn[3 + i]}
    return made


def epoch(side: str, folder: str) -> tuple[Answer, Handler]:
    """The assignment's batches, as bytes: 50 of 1000 images in file order, pixels over 256."""
    sides = framework(side)  # first: it may choose how the package is configured
    from minitorch_tvm.utils.data.idx import read_idx  # reads files only

    row: Row = COURSE
    images = read_idx(f"{folder}/train-images-idx3-ubyte.gz")[:50000].reshape(50, 1000, 784)
    labels = read_idx(f"{folder}/train-labels-idx1-ubyte.gz")[:50000].astype(np.int64)
    data = [(aligned(x), aligned(y)) for x, y in zip(images, labels.reshape(50, 1000), strict=True)]
    return {}, _loop(sides.trainer(side, row, _course_weights()), data)


KINDS: dict[str, Callable[..., tuple[Answer, Handler]]] = {
    f.__name__: f
    for f in (
        *(train, profile, weights, infer, kernels, native, limits, overhead, calls, scaling),
        *(ops, writing, varying, loops, loader, epoch, pipeline),
    )
}


def main() -> None:
    """Get ready, then serve requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer

    def reply(make: Callable[[], Answer]) -> None:
        try:
            answer = make()
        except Exception as error:
            first = next(iter(str(error).splitlines()), "")
            answer = {"unavailable": f"{type(error).__name__}: {first}"}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()

    kind, side, *rest = sys.argv[1:]
    handler: Handler

    def start() -> Answer:
        nonlocal handler
        ready, handler = KINDS[kind](side, *rest)
        return ready

    reply(start)
    for line in sys.stdin:
        gc.collect()
        reply(partial(handler, json.loads(line)))


if __name__ == "__main__":
    main()
