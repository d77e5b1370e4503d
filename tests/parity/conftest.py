"""PyTorch as it is when it is imported."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _arguments_are_tested() -> None:
    torch = sys.modules.get("torch")  # tests that need it are skipped where it is not installed
    if torch is not None:
        # Whoever has compiled something with torch.compile has switched it off for the process.
        torch.distributions.Distribution.set_default_validate_args(True)
