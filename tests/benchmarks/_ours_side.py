"""This package's side: the plain loop, or mt.compile around the same step."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from _cases import Case, expression
from _program import model, parts, training_step
from _rows import Array, Row, Weights

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.runtime.executor import Executor

# Every case of a kind is another program from the same line: here that is meant.
warnings.filterwarnings("ignore", message=".*compiled .* different programs")


def _maybe_compiled(side: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if side != "mt.compile":
        return function
    if not hasattr(mt, "compile"):
        raise NotImplementedError("this version has no mt.compile")
    return mt.compile(function)  # type: ignore[no-any-return]


def has_disk_cache() -> bool:
    """Whether this version keeps compiled programs on disk."""
    return any(v.name == "MTVM_CACHE_DIR" for v in config.VARIABLES)


def _trainer(side: str, row: Row, net: Any) -> Callable[[Array, Array], Any]:
    step = _maybe_compiled(side, training_step(*parts(mt, row, net)))
    if side == "mt.compile":  # takes arrays as they are
        return step
    return lambda x, y: step(mt.from_numpy(x), mt.from_numpy(y))


def trainer(side: str, row: Row, weights: Weights) -> Callable[[Array, Array], Any]:
    """``step(x, y)`` over numpy batches."""
    return _trainer(side, row, model(mt, row, weights))


def trained(side: str, row: Row, weights: Weights, data: Iterable[tuple[Array, Array]]) -> Any:
    """The bits of the model's state after a step per batch, and how they came about."""
    net = model(mt, row, weights)
    step = _trainer(side, row, net)
    for x, y in data:
        step(x, y)
    state = {name: t.numpy().tobytes() for name, t in net.state_dict().items()}
    return {
        "bits": hashlib.sha256(b"".join(state.values())).hexdigest(),
        "digests": {name: hashlib.sha256(bits).hexdigest()[:12] for name, bits in state.items()},
        "finite": bool(all(np.isfinite(t.detach().numpy()).all() for t in net.parameters())),
        "threads": mt.get_num_threads(),
        "events": EVENTS.snapshot(),
    }


def inferrer(side: str, row: Row, weights: Weights) -> Callable[[Array], Array]:
    """``predict(x)`` from numpy to numpy."""
    net = model(mt, row, weights).eval()
    forward = _maybe_compiled(side, lambda x: net(x))

    def predict(x: Array) -> Array:
        with mt.no_grad():
            given = x if side == "mt.compile" else mt.from_numpy(x)
            return forward(given).numpy()  # type: ignore[no-any-return]

    return predict


def pipeline(
    way: str, row: Row, weights: Weights, images: Array, labels: Array
) -> Callable[[], float]:
    """An epoch on shuffled batches, which returns its last loss: images that are kept as float32
    and gathered by the loader, or kept as bytes, which the compiled step converts, and gathers if
    the loader does not."""
    loss_of, optimizer = parts(mt, row, model(mt, row, weights))
    rng = np.random.default_rng(0)
    mt.manual_seed(0)
    if way == "bytes":
        pixels = mt.from_numpy(images)
        step = mt.compile(training_step(lambda i, y: loss_of(pixels[i], y), optimizer))

        def batches() -> Iterator[tuple[Any, Any]]:
            order = rng.permutation(len(labels))
            for i in range(0, len(order), row.batch):
                chosen = order[i : i + row.batch]
                yield chosen, labels[chosen]
    else:
        if way.startswith("floats"):
            images = images.astype(np.float32) / row.levels
            row = replace(row, levels=0)
        step = mt.compile(training_step(*parts(mt, row, model(mt, row, weights))))
        data = mt.utils.data.TensorDataset(mt.from_numpy(images), mt.from_numpy(labels))
        workers = int("worker" in way)
        batches = mt.utils.data.DataLoader(
            data, row.batch, shuffle=True, num_workers=workers
        ).__iter__

    def epoch() -> float:
        loss = 0.0
        for i, (x, y) in enumerate(batches()):
            value = step(x, y)
            if i % 10 == 9:
                loss = float(value)
        return loss

    return epoch


def work() -> list[tuple[int, int]]:
    """Flops and bytes of every kernel of the program that ran last."""
    return [(k.flops, k.bytes_moved) for k in lazy.last_executor().program.kernels]


def arena() -> float:
    """Bytes of the arena over the lower bound, of the program that ran last."""
    program = lazy.last_executor().program
    return program.arena_bytes / max(program.lower_bound, 1)


def kernel_seconds() -> list[tuple[str, int, int, float]]:
    """Name, flops, bytes and seconds of all threads per call, of each kernel of the program that
    ran last, since this was asked before; it needs MTVM_PROFILE."""
    last = lazy.last_executor().program
    found = next(p for p in mt.debug.profile(reset=True) if p.program is last)
    return [
        (" + ".join(k.name for k in each.kernels), each.flops, each.bytes_moved, each.seconds)
        for each in found.kernels
    ]


def recorded() -> int:
    """Values of the program that ran last, as it was compiled."""
    return len(lazy.last_executor().program.graph.values)


def without_native_code() -> Any:
    """A context in which the program that ran last returns at once: what is left is Python."""
    # (A mock takes 10 us to do nothing.)
    return mock.patch.object(lazy.last_executor(), "_entry", _nothing)


def _nothing(_: object) -> None: ...


@contextmanager
def noted_lookups() -> Iterator[list[float]]:
    """A context that collects when the program of a step that was recorded has been looked up."""
    times: list[float] = []
    look = lazy.executor_of

    def noted(key: Any) -> Any:
        found = look(key)
        times.append(time.perf_counter())
        return found

    with mock.patch.object(lazy, "executor_of", noted):
        yield times


def _expression(case: Case, tensors: list[Any]) -> Any:
    if case.kind == "matmul":
        x, y = (t.T if f == "T" else t for t, f in zip(tensors, case.options["form"], strict=True))
        return x @ y
    if case.kind in ("conv-input", "conv-weight"):
        x, w, g = tensors
        wanted = (x if case.kind == "conv-input" else w).requires_grad_()
        y = mt.nn.functional.conv2d(x, w, **case.options)
        return mt.autograd.grad(y, wanted, g)[0]
    return expression(case)(mt, *tensors)


def _compiled(case: Case, arrays: list[Array]) -> tuple[Executor, tuple[Any, ...], Any]:
    """What computes the case, what it is run with, and the result."""
    ran: list[tuple[Any, ...]] = []
    run = Executor.run

    def watched(self: Executor, *arguments: Any) -> Any:
        ran.append((self, *arguments))
        return run(self, *arguments)

    tensors = [mt.tensor(a) for a in arrays]
    with mock.patch.object(Executor, "run", watched):
        # Transposes and the forward value have no holder now: only what is wanted is computed.
        out = _expression(case, tensors).realize()
    executor, inputs, scalars, targets, *_ = ran[-1]
    return executor, (inputs, scalars, targets), out


def kernel(case: Case, arrays: list[Array]) -> tuple[Callable[[], Any], Callable[[], Array]]:
    """A call that computes the case as a cached step would, and one that reads its result."""
    executor, given, out = _compiled(case, arrays)

    def call() -> None:
        # As with the other sides, nobody keeps the result: its memory is the next one's.
        executor.run(*given, _nothing)

    return call, out.numpy


def native(case: Case, arrays: list[Array]) -> Callable[[], None]:
    """The native part of :func:`kernel` alone, always to the same memory."""
    executor, (inputs, scalars, targets), out = _compiled(case, arrays)
    kept = executor.run(inputs, scalars, targets, _nothing)
    entry, argument = executor._entry, executor._argument

    def call(_: Any = (inputs, kept, out)) -> None:
        entry(argument)

    return call
