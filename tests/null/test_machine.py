"""What Linux says of the processor, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

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


def forget() -> None:
    """Nothing that was read of the processor is remembered."""
    for function in (machine._processor, machine.matrix_unit, machine.is_virtual, machine.identity):
        function.cache_clear()


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


def pretend(path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path.write_text(text)
    monkeypatch.setattr(machine, "_CPUINFO", str(path))
    forget()


def permission(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """x86 Linux, where the request for the unit ends with ``status``."""
    system = SimpleNamespace(sysname="Linux", machine="x86_64")
    monkeypatch.setattr(machine.os, "uname", lambda: system)
    library = SimpleNamespace(syscall=lambda *_: status)
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda _: library)


@pytest.mark.parametrize("flags", ["", "fpu avx512f", "amx_bf16 avx512f", "amx_tile amx_int8"])
def test_no_matrix_unit_without_its_flags(
    flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permission(0, monkeypatch)
    pretend(tmp_path / "cpuinfo", monkeypatch, FILE.format(flags=flags, clock=2000))
    assert not machine.matrix_unit()


@pytest.mark.parametrize(("status", "permitted"), [(0, True), (-1, False)])
def test_the_system_permits_the_matrix_unit(
    status: int, permitted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permission(status, monkeypatch)
    flags = "fpu amx_tile amx_int8 amx_bf16"
    pretend(tmp_path / "cpuinfo", monkeypatch, FILE.format(flags=flags, clock=2000))
    assert machine.matrix_unit() == permitted
    assert f"matrix unit={permitted}" in str(machine.identity())


@pytest.mark.parametrize(("flags", "virtual"), [("fpu hypervisor", True), ("fpu avx2", False)])
def test_virtual_machines_say_so(
    flags: str, virtual: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(tmp_path / "cpuinfo", monkeypatch, FILE.format(flags=flags, clock=2000))
    assert machine.is_virtual() == virtual


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
    forget()
    assert machine.identity() is None
