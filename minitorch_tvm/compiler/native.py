"""From a TVM module to native object code."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from ..core.tvm_api import tvm
from .target import CpuTarget

# Storage rewrite hoists local buffers out of the scope that tells TVM their device.  Argument
# checks are off because the entry takes one raw pointer, which the executor builds itself.
_OPTIONS = {"tirx.disable_storage_rewrite": True, "tirx.disable_assert": True}


def compile_module(module: Any, target: CpuTarget) -> Any:
    """Run TVM's lowering passes and LLVM; returns TVM's executable."""
    t = tvm()
    with t.transform.PassContext(config=_OPTIONS):
        return t.compile(module, target=target.tvm_target())


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
