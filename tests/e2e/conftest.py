"""The examples are imported as they lie in the checkout; data is MNIST where it can be found."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from planned import PlannedError

from minitorch_tvm import lazy
from minitorch_tvm.compiler import api, native
from minitorch_tvm.ir.node import MODE
from minitorch_tvm.utils.data import MNIST, SyntheticDigits
from minitorch_tvm.utils.data.images import ImageDataset

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))


@pytest.fixture(scope="session")
def digits() -> tuple[ImageDataset, ImageDataset]:
    """MNIST from ``MTVM_DATA`` or ``../shared/mnist``, else 60,000 and 10,000 synthetic digits."""
    shared = ROOT.parent / "shared" / "mnist"
    folder = os.environ.get("MTVM_DATA") or (str(shared) if shared.is_dir() else None)
    if folder is None:
        return SyntheticDigits(True), SyntheticDigits(False)
    return MNIST(folder, True), MNIST(folder, False)


@pytest.fixture(scope="session")
def few_digits() -> tuple[ImageDataset, ImageDataset]:
    """1,200 and 300 synthetic digits, for runs of a few steps."""
    return SyntheticDigits(True, 1200), SyntheticDigits(False, 300)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Programs, of which nothing is compiled, as their plan does not depend on that."""
    found: list[Any] = []
    compile_graph = api.compile_graph

    def stopped(*arguments: Any) -> None:
        found.append(compile_graph(*arguments))
        raise PlannedError

    lazy.clear_cache()
    monkeypatch.setattr(native.Build, "_make", lambda *_: None)
    monkeypatch.setattr(api, "compile_graph", stopped)
    yield found
    MODE.trace.handles.clear()  # what was not computed is not wanted later, either
    lazy.clear_cache()
