"""Facts about this machine's processor that need no compiler to find out."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

_CPUINFO = "/proc/cpuinfo"
# Clock rates and the like vary from one reading to the next and decide nothing.
_FIELDS = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
    "Features",
)


def cache_bytes(level: int, default: int) -> int:
    """Size of the first core's data cache of ``level``, ``default`` where Linux does not say."""
    for index in range(8):
        folder = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}")
        try:
            if (folder / "level").read_text().strip() != str(level):
                continue
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            size = (folder / "size").read_text().strip()
        except OSError:
            break
        unit = {"K": 1 << 10, "M": 1 << 20}.get(size[-1], 1)
        return int(size.rstrip("KM")) * unit
    return default


def _first_processor(cpuinfo: str) -> list[str]:
    """The lines of one processor that say which instructions it has."""
    found = []
    for line in cpuinfo.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _FIELDS:
            found.append(f"{name.strip()}={value.strip()}")
    return found


# Linux: arch_prctl(ARCH_REQ_XCOMP_PERM, state component of the tile registers), x86-64.
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def matrix_unit() -> bool:
    """True if the processor multiplies tiles of bfloat16 and this process may use them.

    Asks Linux for the permission, which holds for all threads of the process and its forks; without
    it the first such instruction would end the process.
    """
    system = os.uname()
    if system.sysname != "Linux" or system.machine != "x86_64":
        return False
    try:
        with open(_CPUINFO, "rb", buffering=0) as file:
            lines = _first_processor(file.read(1 << 14).decode(errors="replace"))
    except OSError:
        return False
    flags = {word for line in lines if line.startswith("flags=") for word in line[6:].split()}
    if not {"amx_tile", "amx_bf16"} <= flags:
        return False
    syscall = ctypes.CDLL(None).syscall
    syscall.restype = ctypes.c_long
    return bool(syscall(_ARCH_PRCTL, ctypes.c_long(_REQUEST), ctypes.c_long(_TILE_DATA)) == 0)


@functools.cache
def identity() -> str | None:
    """Text that two machines share only if the compiler would describe both in the same way.

    None where the system does not tell (no ``/proc/cpuinfo``): nothing compiled can then be kept
    for a later process, which might run elsewhere.
    """
    try:
        # One processor's entry: the whole file takes long to make on machines of many cores.
        with open(_CPUINFO, "rb", buffering=0) as file:
            lines = _first_processor(file.read(1 << 14).decode(errors="replace"))
    except OSError:
        return None
    if not any(line.startswith(("flags=", "Features=")) for line in lines):
        return None
    system = os.uname()
    more = [f"caches={cache_bytes(1, 0)} {cache_bytes(2, 0)}", f"matrix unit={matrix_unit()}"]
    return "\n".join([system.sysname, system.machine, *lines, *more])
