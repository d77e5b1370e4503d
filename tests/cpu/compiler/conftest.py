"""What tests of the entry of programs need of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from entries import CORES


@pytest.fixture
def whole_machine() -> Iterator[None]:
    """All cores, several of them; allowed again afterwards."""
    before = os.sched_getaffinity(0)
    if len(before) < CORES or CORES < 2:
        pytest.skip("needs all cores of a machine that has several")
    yield
    os.sched_setaffinity(0, before)
