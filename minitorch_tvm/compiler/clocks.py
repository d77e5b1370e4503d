"""How long the steps of a program take, as its entry measures it (``MTVM_PROFILE``).

Times in ns are added up for each worker and step; behind them stand the time of whole launches and
how many there were.  A worker's times are neighbours, so that few lines are written by two.
"""

from __future__ import annotations

from .crowd import now
from .loops import Expr, Memory, Stmt, load, pointer_buffer, seq, store

TOTALS = 2
"""Words behind those of workers and steps."""


class Clocks:
    """Statements of the entry that measure what they are put around."""

    def __init__(self, steps: Expr, workers: int) -> None:
        self.memory: Memory = pointer_buffer((1 << 24,), "int64", "clocks")
        self._steps, self._totals = steps, steps * workers

    def step(self, step: Expr, worker: Expr, work: Stmt) -> Stmt:
        """A worker's share of a step."""
        return self._measured(worker * self._steps + step, work)

    def launch(self, work: Stmt) -> Stmt:
        """All of a launch."""
        runs = self._totals + 1
        return seq(
            self._measured(self._totals, work),
            store(self.memory, load(self.memory, runs) + 1, runs),
        )

    def _measured(self, where: Expr, work: Stmt) -> Stmt:
        (begin, know_begin), (end, know_end) = now(), now()
        total = load(self.memory, where) + (end - begin)
        return seq(know_begin, work, know_end, store(self.memory, total, where))
