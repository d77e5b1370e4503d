"""Every test starts from one seed and with the compiler's verifiers on."""

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

# Tests, and the processes they start, compile what they run: a program kept by an earlier run would
# hide a compiler that no longer works, and the user's folder is not theirs to fill.
os.environ["MTVM_CACHE_DIR"] = "0"

import hypothesis
import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config

hypothesis.settings.register_profile(
    "suite", deadline=None, derandomize=True, database=None, max_examples=40
)
hypothesis.settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """A parametrised line evaluates many programs on purpose; in users' code that is a mistake."""
    config.addinivalue_line("filterwarnings", r"ignore:.*compiled \d+ different programs")


def pytest_collection_finish() -> None:
    """What has been imported stays: tests that collect garbage need not look at it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    # A matrix unit is used in virtual machines, too, and what is tested is what is compiled;
    # processes that tests start go by the defaults.
    mt.manual_seed(0)
    with config.override(
        check=True, matrix_unit=True, growing=False, varying=False, changing=False
    ):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """numpy's generator, the same numbers in every test."""
    return np.random.default_rng(0)


@pytest.fixture
def assert_refused() -> Callable[[Callable[[], Any], type[Exception], str], None]:
    """A check that a call raises this very exception, no subclass, with these words in its text."""

    def check(call: Callable[[], Any], error: type[Exception], words: str) -> None:
        with pytest.raises(error) as caught:
            call()
        assert caught.type is error
        assert words in str(caught.value)

    return check
