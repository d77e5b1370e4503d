"""What Linux says of the processor, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minitorch_tvm.core import machine

FILE = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: A processor
cpu MHz\t\t: {clock}
flags\t\t: {flags}

processor\t: 1
flags\t\t: other
"""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    functions = (machine._processor, machine.matrix_unit, machine.identity)
    for function in functions:
        function.cache_clear()
    yield
    for function in functions:
        function.cache_clear()


def pretend(path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path.write_text(text)
    monkeypatch.setattr(machine, "_CPUINFO", str(path))
    for function in (machine._processor, machine.matrix_unit, machine.identity):
        function.cache_clear()


@pytest.mark.parametrize("flags", ["", "fpu avx512f", "amx_bf16 avx512f", "amx_tile amx_int8"])
def test_no_matrix_unit_without_its_flags(
    flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(tmp_path / "cpuinfo", monkeypatch, FILE.format(flags=flags, clock=2000))
    assert not machine.matrix_unit()


def test_identity_is_that_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpuinfo"
    pretend(path, monkeypatch, FILE.format(flags="fpu avx2", clock=2000))
    first = machine.identity()
    assert first is not None
    assert "flags=fpu avx2" in first
    assert "other" not in first
    pretend(path, monkeypatch, FILE.format(flags="fpu avx2", clock=2400))
    assert machine.identity() == first  # clock rates come and go
    pretend(path, monkeypatch, FILE.format(flags="fpu avx512f", clock=2000))
    assert machine.identity() != first


def test_no_identity_where_the_system_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(tmp_path / "cpuinfo", monkeypatch, "processor: 0\n")
    assert machine.identity() is None
    monkeypatch.setattr(machine, "_CPUINFO", str(tmp_path / "nothing"))
    machine._processor.cache_clear()
    machine.identity.cache_clear()
    assert machine.identity() is None
