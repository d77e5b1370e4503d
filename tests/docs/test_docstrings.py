"""Every example in a docstring of the package runs and prints what it says."""

from __future__ import annotations

import doctest
import inspect
import pkgutil
from importlib import import_module
from typing import Any

import pytest

import minitorch_tvm as mt

MODULES = sorted(
    ["minitorch_tvm", *(m.name for m in pkgutil.walk_packages(mt.__path__, "minitorch_tvm."))]
)


class Finder(doctest.DocTestFinder):
    """Finds examples of decorated functions as well."""

    def _from_module(self, module: Any, object: Any) -> bool:
        return bool(super()._from_module(module, inspect.unwrap(object)))


_FINDER = Finder(exclude_empty=True)


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
