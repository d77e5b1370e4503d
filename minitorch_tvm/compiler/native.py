"""From a TVM module to native object code."""

from __future__ import annotations

import functools
import os
import tempfile
from typing import Any

from ..core.tvm_api import tvm
from .target import CpuTarget

# Storage rewrite hoists local buffers out of the scope that tells TVM their device.  Argument
# checks are off because the entry takes one raw pointer, which the executor builds itself.
_OPTIONS = {"tirx.disable_storage_rewrite": True, "tirx.disable_assert": True}

_LEAN = "minitorch_tvm"


@functools.cache
def _lean_pipeline() -> str:
    """Register the passes that loop nests without blocks need, and nothing else.

    TVM's default pipeline also lowers blocks, infers buffer sizes and simplifies.  The simplifier
    is left out on purpose: it applies algebra to floating point (x - x becomes 0, x != x False)
    and substitutes bound values wherever they are used, so that chains double in size at every
    step.  LLVM simplifies by IEEE's rules.
    """
    t = tvm()
    lower = t.tirx.transform

    def lowered(module: Any, _: Any) -> Any:
        return t.ir.transform.Sequential(
            [
                lower.NarrowDataType(32),
                lower.VectorizeLoop(True),
                lower.UnrollLoop(),
                lower.AnnotateEntryFunc(),
                lower.SplitHostDevice(),
                lower.MakePackedAPI(),
            ]
        )(module)

    passes = t.transform.module_pass(lowered, opt_level=0)
    finish = t.tirx.compilation_pipeline
    t.tirx.register_tir_pipeline(
        _LEAN,
        lambda: (passes, finish.finalize_host_passes, finish.finalize_device_passes),
    )
    return _LEAN


def compile_module(module: Any, target: CpuTarget, *, blocks: bool = False) -> Any:
    """Run TVM's lowering passes and LLVM; returns TVM's executable.

    ``blocks`` selects TVM's default pipeline, which the default schedule needs.
    """
    t = tvm()
    pipeline = "default" if blocks else _lean_pipeline()
    with t.transform.PassContext(config=_OPTIONS):
        return t.compile(module, target=target.tvm_target(), tir_pipeline=pipeline)


def object_code(executable: Any) -> bytes:
    """The executable as the bytes of a relocatable object file."""
    descriptor, path = tempfile.mkstemp(suffix=".o", prefix="mtvm")
    os.close(descriptor)
    try:
        executable.mod.write_to_file(path, "o")
        with open(path, "rb") as file:
            return file.read()
    finally:
        os.unlink(path)
