"""Gradients that exist, or do not, when a captured function is called."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

import minitorch_tvm as mt


def _dropping(at_the_end: bool) -> tuple[mt.Tensor, Callable[[mt.Tensor], mt.Tensor]]:
    w = mt.nn.Parameter(mt.ones(2))
    optimizer = mt.optim.SGD([w], lr=0.125)

    def step(x: mt.Tensor) -> mt.Tensor:
        if not at_the_end:
            optimizer.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        if at_the_end:
            optimizer.zero_grad()
        return loss

    return w, step


@pytest.mark.parametrize("at_the_end", [True, False])
@pytest.mark.parametrize("before", range(2, 10))
def test_a_gradient_from_outside_counts_where_the_function_adds_to_it(
    before: int, at_the_end: bool
) -> None:
    """A function that drops gradients last adds to those that exist; dropped first, they go."""
    results = []
    for compiled in (False, True):
        w, step = _dropping(at_the_end)
        call = mt.compile(step) if compiled else step
        x = mt.ones(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # at a watched call it is given up
            values = []
            for n in range(before + 4):
                if n == before:
                    (w * 8).sum().backward()
                call(x)
                values.append(float(w.detach().numpy()[0]))
        results.append((values, w.grad is None))
    assert results[0] == results[1]
    added = 8 if at_the_end else 0
    expected = [1 - 0.125 * (n + 1 + (added if n >= before else 0)) for n in range(before + 4)]
    assert results[0] == (expected, at_the_end)


def test_a_gradient_that_appears_on_a_parameter_without_one_is_used() -> None:
    results = []
    for compiled in (False, True):
        used, unused = mt.nn.Parameter(mt.ones(2)), mt.nn.Parameter(mt.ones(2))
        optimizer = mt.optim.SGD([used, unused], lr=0.125)

        def step(
            x: mt.Tensor,
            used: mt.Tensor = used,
            optimizer: mt.optim.SGD = optimizer,
        ) -> mt.Tensor:
            used.grad = None
            loss = (used * x).sum()
            loss.backward()
            optimizer.step()
            return loss

        call = mt.compile(step) if compiled else step
        for n in range(8):
            if n == 6:
                unused.grad = mt.ones(2) * 4
            call(mt.ones(2))
        results.append((used.detach().numpy().tolist(), unused.detach().numpy().tolist()))
    assert results[0] == results[1]
    assert results[0][1] == [0.0, 0.0]
