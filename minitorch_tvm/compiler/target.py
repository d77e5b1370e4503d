"""What the schedules need to know about the machine, and TVM's description of it.

Schedules derive tile sizes from these numbers only, so a kernel for another machine is a matter of
another :class:`CpuTarget`.  Data caches are those of one core, as Linux reports them.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

from ..core.machine import cache_bytes, matrix_unit
from ..core.tvm_api import global_func, tvm


@dataclass(frozen=True)
class CpuTarget:
    """One CPU: LLVM's name for it and the sizes that tile choices depend on."""

    mcpu: str
    mattr: tuple[str, ...]
    vector_bytes: int  # widest useful SIMD register
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    matrix_unit: bool = False  # multiplies tiles of bfloat16 (Intel AMX), and may be used
    workers: int = 1  # threads that will share a stage

    def lanes(self, itemsize: int) -> int:
        """Elements of ``itemsize`` bytes in one vector register."""
        return max(1, self.vector_bytes // itemsize)

    def tvm_target(self) -> Any:
        """The TVM target with every feature resolved (never "native")."""
        spec: dict[str, object] = {"kind": "llvm", "mcpu": self.mcpu}
        if self.mattr:
            spec["mattr"] = list(self.mattr)
        return tvm().target.Target(spec)

    @property
    def key(self) -> str:
        """Text that identifies the generated code: part of every cache key."""
        return f"{self.mcpu}{''.join(self.mattr)}/{self.vector_bytes}"


@functools.cache
def host() -> CpuTarget:
    """The machine this process runs on."""
    mcpu = str(tvm().target.codegen.llvm_get_system_cpu())
    features = {
        str(k): bool(v) for k, v in global_func("tvm.codegen.llvm.GetHostCPUFeatures")().items()
    }
    return from_features(mcpu, features)


def from_features(mcpu: str, features: dict[str, bool]) -> CpuTarget:
    """Derive the target from LLVM's CPU name and feature table."""
    mattr: tuple[str, ...] = ()
    if features.get("avx512f"):
        # LLVM prefers 256-bit vectors on most AVX-512 machines; the GEMM tile needs all 512.
        vector_bytes, registers, mattr = 64, 32, ("-prefer-256-bit",)
    elif features.get("avx2"):
        vector_bytes, registers = 32, 16
    elif features.get("neon") or os.uname().machine in ("aarch64", "arm64"):
        vector_bytes, registers = 16, 32
    else:
        vector_bytes, registers = 16, 16
    matrix = bool(features.get("avx512f")) and matrix_unit()
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
    )
