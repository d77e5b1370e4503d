"""Regions that are read and written in random programs, in both libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

SHAPES = [(6,), (5, 4), (3, 4, 2)]


def _index(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    parts: list[Any] = []
    for n in shape[: rng.integers(1, len(shape) + 1)]:
        if rng.random() < 0.5:
            parts.append(int(rng.integers(-n, n)))
        else:
            start = int(rng.integers(0, n))
            stop = int(rng.integers(start + 1, n + 1))
            parts.append(slice(start, stop, int(rng.integers(1, 3))))
    return parts[0] if len(parts) == 1 else tuple(parts)


class Program:
    """Pairs of tensors, ours and torch's, to which the same is done."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.pairs: list[tuple[Any, Any]] = []
        self.arrays: list[tuple[Any, Any]] = []
        for shape in SHAPES:
            values = rng.integers(-4, 5, shape).astype(np.float32)
            if rng.random() < 0.5:
                ours, theirs = values.copy(), values.copy()
                self.arrays.append((ours, theirs))
                self.pairs.append((mt.from_numpy(ours), torch.from_numpy(theirs)))
            else:
                self.pairs.append((mt.tensor(values), torch.tensor(values)))
        self.kept = list(self.pairs)

    def pick(self) -> tuple[Any, Any]:
        number = int(self.rng.integers(len(self.pairs)))
        return self.pairs[number]

    def view(self) -> None:
        a, b = self.pick()
        if a.ndim:
            index = _index(self.rng, tuple(b.shape))
            self.pairs.append((a[index], b[index]))

    def compute(self) -> None:
        a, b = self.pick()
        n = int(self.rng.integers(1, 3))
        kinds = [lambda t: t * n, lambda t: t + t.sum(), lambda t: t.detach(), lambda t: t.clone()]
        kind = kinds[self.rng.integers(len(kinds))]
        self.pairs.append((kind(a), kind(b)))

    def in_place(self) -> None:
        a, b = self.pick()
        n = int(self.rng.integers(-2, 3))
        for t in (a, b):
            t.add_(n)

    def store(self) -> None:
        a, b = self.pick()
        if not a.ndim:
            return
        index = _index(self.rng, tuple(b.shape))
        kind = self.rng.integers(4)
        if kind == 0:
            a[index] = b[index] = float(self.rng.integers(9))
        elif kind == 1:
            a[index] += 1
            b[index] += 1
        else:
            number = int(self.rng.integers(len(self.pairs)))
            c, d = self.pairs[number]
            if kind == 2 or tuple(c.shape) != tuple(b[index].shape):
                c, d = c.sum(), d.sum()
            # What overlaps is copied in no particular order by torch.
            a[index], b[index] = c.clone(), d.clone()

    def look(self) -> None:
        a, b = self.pick()
        np.testing.assert_array_equal(a.numpy(), b.numpy())

    def drop(self) -> None:
        if len(self.pairs) > 4:
            del self.pairs[int(self.rng.integers(len(self.pairs)))]

    def check(self) -> None:
        for a, b in self.pairs + self.kept:
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        for ours, theirs in self.arrays:
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 20):
        program = Program(seed)
        acts = [program.view, program.compute, program.in_place, program.store, program.look]
        acts += [program.drop, program.view, program.store]
        try:
            for _ in range(24):
                acts[program.rng.integers(len(acts))]()
            program.check()
        except AssertionError as error:
            error.add_note(f"of the program with seed {seed}")
            raise
