"""The examples are imported as they lie in the checkout; data is MNIST where it can be found."""

import os
import sys
from pathlib import Path

import pytest

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
