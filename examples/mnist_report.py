"""What ``mnist.py`` shows while and after it trains."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Epoch:
    """One epoch: mean loss over its samples, loss of its last batch, accuracy in [0, 1]."""

    number: int
    loss: float
    last_loss: float
    seconds: float  # training only
    accuracy: float
    compiled: int  # programs compiled while it trained

    def __str__(self) -> str:
        return (
            f"epoch {self.number}: loss {self.loss:.4f}, last batch {self.last_loss:.4f}, "
            f"{self.seconds:.2f} s, validation accuracy {self.accuracy:.2%}"
        )


def progress(batches: Iterable[Any], total: int, label: str) -> Iterator[Any]:
    """Pass the batches on, and show how far they are on a terminal: by tqdm if it is installed."""
    if not sys.stderr.isatty():
        yield from batches
    elif importlib.util.find_spec("tqdm") is not None:
        from tqdm import tqdm

        yield from tqdm(batches, desc=label, total=total, unit="batch", leave=False)
    else:
        yield from _plain(batches, total, label)


def _plain(batches: Iterable[Any], total: int, label: str) -> Iterator[Any]:
    shown = 0.0
    for number, batch in enumerate(batches, 1):
        yield batch
        now = time.monotonic()
        if now - shown > 0.1:
            shown = now
            print(f"\r{label}: {number}/{total}", end="", file=sys.stderr, flush=True)
    print(f"\r{' ' * (len(label) + 2 * len(str(total)) + 3)}\r", end="", file=sys.stderr)


def time_per_epoch(epochs: Sequence[Epoch]) -> str:
    """Training seconds per epoch; the first, which also compiles or loads, stands apart."""
    compiled = epochs[0].compiled
    programs = "1 program" if compiled == 1 else f"{compiled} programs"
    how = f"{programs} compiled" if compiled else "nothing compiled: all from the cache"
    text = f"time per epoch: first {epochs[0].seconds:.3f} s ({how})"
    if len(epochs) > 1:
        later = statistics.median(e.seconds for e in epochs[1:])
        text += f", later {later:.3f} s (median)"
    return text


def can_plot() -> bool:
    """True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def plot(epochs: Sequence[Epoch], title: str, path: str) -> None:
    """Draw loss and accuracy over the epochs into a PNG file.  Raises OSError if it cannot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    numbers = [e.number for e in epochs]
    left.plot(numbers, [e.loss for e in epochs], marker="o", label="mean of the epoch")
    left.plot(numbers, [e.last_loss for e in epochs], marker=".", label="last batch")
    left.set(xlabel="epoch", ylabel="training loss", xticks=numbers)
    left.legend()
    right.plot(numbers, [100 * e.accuracy for e in epochs], marker="o")
    right.set(xlabel="epoch", ylabel="validation accuracy in %", xticks=numbers)
    figure.savefig(path, format="png")
