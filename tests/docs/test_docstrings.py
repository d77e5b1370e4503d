"""Every example in a docstring of the package runs and prints what it says."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import minitorch_tvm as mt

MODULES = sorted(
    ["minitorch_tvm", *(m.name for m in pkgutil.walk_packages(mt.__path__, "minitorch_tvm."))]
)
_FINDER = doctest.DocTestFinder(exclude_empty=True)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in _FINDER.find(import_module(name)):
        runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_examples_are_found() -> None:
    found = [t for name in MODULES for t in _FINDER.find(import_module(name)) if t.examples]
    assert len(found) > 30
