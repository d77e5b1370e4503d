"""Modules that are imported when somebody first asks for them: most programs need none of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType


def on_demand(
    package: str, *names: str, otherwise: Callable[[str], Exception] | None = None
) -> Callable[[str], ModuleType]:
    """The ``__getattr__`` of a package that imports these of its modules on demand.

    What ``otherwise`` gives is raised for any other name.

    >>> ask = on_demand("minitorch_tvm.utils.data", "mnist")
    >>> ask("mnist").MNIST.__name__
    'MNIST'
    >>> ask("nothing")
    Traceback (most recent call last):
    AttributeError: module 'minitorch_tvm.utils.data' has no attribute 'nothing'
    """

    def found(name: str) -> ModuleType:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        if otherwise is not None:
            raise otherwise(name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return found
