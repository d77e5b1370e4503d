"""What the schedules need to know about the machine, and TVM's description of it.

Schedules derive tile sizes from these numbers only, so a kernel for another machine is a matter of
another :class:`CpuTarget`.  Data caches are those of one core, as Linux reports them.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from ..core.machine import cache_bytes, matrix_unit
from ..core.record import record
from ..core.tvm_api import global_func, tvm


@record
class CpuTarget:
    """One CPU: LLVM's name for it and the sizes that tile choices depend on."""

    mcpu: str
    mattr: tuple[str, ...]
    vector_bytes: int  # widest useful SIMD register
    vector_registers: int  # as many as tiles may count on
    l1_bytes: int
    l2_bytes: int
    matrix_unit: bool = False  # multiplies tiles of bfloat16 (Intel AMX), and schedules use it
    workers: int = 1  # threads that will share a stage
    triple: str = ""  # LLVM's name for a system that is not this one
    l3_bytes: int = 0  # of all cores

    def lanes(self, itemsize: int) -> int:
        """Elements of ``itemsize`` bytes in one vector register."""
        return max(1, self.vector_bytes // itemsize)

    @property
    def row_bytes(self) -> int:
        """The longest row of one value that is worked on as a whole: a few of them stay in L2."""
        return self.l2_bytes // 4

    def tvm_target(self, level: int = 3) -> Any:
        """The TVM target with every feature resolved (never "native"), at a level of LLVM's."""
        spec: dict[str, object] = {"kind": "llvm", "mcpu": self.mcpu, "opt-level": level}
        if self.triple:
            spec["mtriple"] = self.triple
        if self.mattr:
            spec["mattr"] = list(self.mattr)
        return tvm().target.Target(spec)

    @property
    def key(self) -> str:
        """Text that tells what the generated code is for; a program remembers it."""
        return f"{self.triple}{self.mcpu}{''.join(self.mattr)}/{self.vector_bytes}"


# What LLVM may use at each level of x86-64, as far as a processor could lack it.
_LEVELS = {
    "x86-64-v2": {"popcnt", "sse4.2", "ssse3"},
    "x86-64-v3": {"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}


@functools.cache
def host(isa: str = "host") -> CpuTarget:
    """The machine this process runs on, or as much of it as a lesser one has.

    ``isa`` is "host" or a level of x86-64, which takes the matrix unit away too.  Whether a unit
    that is there is used depends on the settings (``compiler/api.py``).  RuntimeError: the
    processor lacks instructions of that level.

    >>> host().vector_bytes >= 16
    True
    """
    mcpu = str(tvm().target.codegen.llvm_get_system_cpu())
    features = {
        str(k): bool(v) for k, v in global_func("tvm.codegen.llvm.GetHostCPUFeatures")().items()
    }
    if isa == "host":
        return from_features(mcpu, features, matrix_unit())
    needed: set[str] = set()
    for level, more in _LEVELS.items():
        needed |= more
        if level == isa:
            break
    lacking = sorted(f for f in needed if not features.get(f))
    if lacking:
        raise RuntimeError(f"MTVM_ISA={isa}: this processor lacks {', '.join(lacking)}")
    return from_features(isa, dict.fromkeys(needed, True))


def from_features(mcpu: str, features: dict[str, bool], matrix: bool = False) -> CpuTarget:
    """Derive the target from LLVM's CPU name and feature table; ``matrix``: AMX may be used."""
    mattr: tuple[str, ...] = ()
    if features.get("avx512f"):
        # LLVM prefers 256-bit vectors on most AVX-512 machines; the GEMM tile needs all 512.
        vector_bytes, registers, mattr = 64, 32, ("-prefer-256-bit",)
    elif features.get("avx2"):
        vector_bytes, registers = 32, 16
    elif features.get("neon") or os.uname().machine in ("aarch64", "arm64"):
        # Of 32: LLVM loads scalars in pairs, and an element of a vector is no operand of its own
        # there as a broadcast from memory is on x86.  Tiles that need the last two spill.
        vector_bytes, registers = 16, 30
    else:
        # Of 16: without fused multiply-adds a product needs a register, and so does its scalar.
        vector_bytes, registers = 16, 14
    matrix = matrix and bool(features.get("avx512f"))
    if matrix:
        mattr += ("+amx-tile", "+amx-bf16")
    return CpuTarget(
        mcpu=mcpu,
        mattr=mattr,
        vector_bytes=vector_bytes,
        vector_registers=registers,
        l1_bytes=cache_bytes(1, 32 << 10),
        l2_bytes=cache_bytes(2, 512 << 10),
        matrix_unit=matrix,
        l3_bytes=cache_bytes(3, 0),
    )
