"""Train logistic regression, an MLP or a small CNN on MNIST.

    python examples/mnist.py --model cnn
    python examples/mnist.py --model mlp --course --explain

Without the files (``--data``, ``MTVM_DATA``, the user's cache) they are downloaded; without a
network the model trains on synthetic digits, and a loud line says so.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import mnist_data
import mnist_models
import mnist_report

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.utils.data import CorruptedFileError

EPOCHS = {"logreg": 5, "mlp": 5, "cnn": 3}
RATES = {"logreg": 1e-3, "mlp": 1e-3, "cnn": 3e-3}
COURSE_EPOCHS = 10
COURSE_BATCH = 1000


def train_epoch(
    model: nn.Module,
    optimizer: mt.optim.Optimizer,
    batches: Iterable[tuple[mt.Tensor, mt.Tensor]],
) -> tuple[float, float]:
    """One pass over the batches: (mean loss over the samples, loss of the last batch).

    Raises ValueError if there are no batches.
    """
    model.train()
    total, seen = mt.tensor(0.0), 0
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        # Recorded before the step, so that it is part of the step's one native call.  Reading the
        # loss here (.item()) would run the forward pass as a program of its own.
        total += loss.detach() * len(y)
        optimizer.step()
        seen += len(y)
    if not seen:
        raise ValueError("there is nothing to train on: the dataset is empty")
    return total.item() / seen, loss.item()


def accuracy(model: nn.Module, batches: Iterable[tuple[mt.Tensor, mt.Tensor]]) -> float:
    """Share of the samples whose largest output is their label; NaN without samples."""
    model.eval()
    hits = seen = 0
    with mt.no_grad():
        for x, y in batches:
            hits += int((model(x).argmax(1) == y).sum().item())
            seen += len(y)
    return hits / seen if seen else float("nan")


def run(args: argparse.Namespace) -> None:
    """Train and report as the options say."""
    mt.manual_seed(args.seed)
    data = mnist_data.load(args.data, args.batch_size, course=args.course)
    model = mnist_models.build(args.model, args.course)
    optimizer: mt.optim.Optimizer
    if args.course:
        # The assignment's 1e-3 times the sum over a batch of 1000 is 1.0 times the mean.
        optimizer = mt.optim.SGD(model.parameters(), lr=1e-3 * COURSE_BATCH)
    else:
        optimizer = mt.optim.Adam(model.parameters(), lr=args.lr)
    print(model)
    left = args.steps if args.steps is not None else args.epochs * len(data.train)
    history: list[mnist_report.Epoch] = []
    for number in range(1, args.epochs + 1):
        steps = min(left, len(data.train))
        bar = mnist_report.progress(data.train, steps, f"epoch {number}")
        start, before = time.perf_counter(), EVENTS.get("compiles")
        losses = train_epoch(model, optimizer, itertools.islice(bar, steps))
        seconds = time.perf_counter() - start
        compiled = EVENTS.get("compiles") - before
        valid = accuracy(model, data.validation)
        history.append(mnist_report.Epoch(number, *losses, seconds, valid, compiled))
        print(history[-1], flush=True)
        left -= steps
        if not left:
            break
    name = "synthetic" if data.synthetic else "MNIST"
    print(f"test accuracy ({name}): {accuracy(model, data.test):.2%}")
    print(mnist_report.time_per_epoch(history))
    if args.save:
        mt.save(model.state_dict(), args.save)
    if args.plot:
        mnist_report.plot(history, f"{args.model} on {name} digits", args.plot)
    if args.explain:
        print(mt.debug.explain())


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, checked as far as that is possible before any work; exits with 2 otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--model", choices=sorted(EPOCHS), default="mlp")
    add("--epochs", type=int, help="passes over the data (logreg, mlp 5; cnn 3; --course 10)")
    add("--batch-size", type=int, help="images per step (128)")
    add("--lr", type=float, help="Adam's learning rate (1e-3; cnn 3e-3)")
    add("--seed", type=int, default=0, help="of the initial parameters and the order of the images")
    add("--data", help="folder with MNIST's idx files, gzipped or not")
    add("--schedule", choices=("ours", "default"), help="our kernels or TVM's default schedule")
    add("--save", metavar="FILE", help="write the trained parameters (safetensors)")
    add("--plot", metavar="FILE", help="draw loss and accuracy as a PNG")
    add("--explain", action="store_true", help="report what was compiled")
    add("--course", action="store_true", help="the assignment's exact setting (logreg, mlp)")
    add("--steps", type=int, help="stop after so many steps")
    args = parser.parse_args(arguments)
    if args.course and (args.model == "cnn" or args.lr is not None or args.batch_size is not None):
        parser.error("--course has no cnn and fixes --lr and --batch-size")
    if args.epochs is None:
        args.epochs = COURSE_EPOCHS if args.course else EPOCHS[args.model]
    if args.batch_size is None:
        args.batch_size = COURSE_BATCH if args.course else 128
    if args.lr is None:
        args.lr = RATES[args.model]
    for name in ("epochs", "batch_size", "steps"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, but got {value}")
    if not 0 < args.lr < float("inf"):
        parser.error(f"--lr must be a positive number, but got {args.lr}")
    for file in filter(None, (args.save, args.plot)):
        if not Path(file).absolute().parent.is_dir():
            parser.error(f"{file}: there is no such folder to write to")
        if Path(file).is_dir():
            parser.error(f"{file}: is a folder, not a file to write")
    if args.plot and Path(args.plot).suffix.lower() != ".png":
        parser.error(f"--plot draws a PNG; name a file that ends in .png, not {args.plot}")
    if args.plot and not mnist_report.can_plot():
        parser.error("--plot needs matplotlib: pip install 'minitorch_tvm[examples]'")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = parse(arguments)
    schedule = args.schedule or config.CONFIG.schedule
    try:
        with config.override(schedule=schedule):
            run(args)
    except (CorruptedFileError, OSError) as error:
        print(f"mnist.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
