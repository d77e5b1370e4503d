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


@functools.cache
def memory_bytes() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@functools.cache
def _processor() -> dict[str, str]:
    """What Linux says of the first processor and its instructions; empty where it does not."""
    try:
        # One processor's entry: the whole file takes long to make on machines of many cores.
        with open(_CPUINFO, "rb", buffering=0) as file:
            text = file.read(1 << 14).decode(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {k.strip(): v.strip() for k, _, v in pairs if k.strip() in _FIELDS}


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
    if not {"amx_tile", "amx_bf16"} <= set(_processor().get("flags", "").split()):
        return False
    syscall = ctypes.CDLL(None).syscall
    syscall.restype = ctypes.c_long
    return bool(syscall(_ARCH_PRCTL, ctypes.c_long(_REQUEST), ctypes.c_long(_TILE_DATA)) == 0)


@functools.cache
def is_virtual() -> bool:
    """True if this is a virtual machine, as far as its processor says so."""
    return "hypervisor" in _processor().get("flags", "").split()


@functools.cache
def identity() -> str | None:
    """Text that two machines share only if the compiler would describe both in the same way.

    None where the system does not tell (no ``/proc/cpuinfo``): nothing compiled can then be kept
    for a later process, which might run elsewhere.
    """
    found = _processor()
    if not {"flags", "Features"} & set(found):
        return None
    system = os.uname()
    caches = " ".join(str(cache_bytes(level, 0)) for level in (1, 2, 3))
    more = [f"caches={caches}", f"matrix unit={matrix_unit()}"]
    lines = (f"{name}={value}" for name, value in found.items())
    return "\n".join([system.sysname, system.machine, *lines, *more])
