"""The garbage collector is put off, and runs again as before."""

from __future__ import annotations

import gc

import pytest

from minitorch_tvm.core import collector


@pytest.fixture(autouse=True)
def _restored():
    yield
    gc.enable()


def test_it_runs_again_afterwards() -> None:
    with collector.put_off():
        assert not gc.isenabled()
        with collector.put_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_runs_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="no"), collector.put_off():
        raise ValueError("no")
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with collector.put_off():
        pass
    assert not gc.isenabled()
