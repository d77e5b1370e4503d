"""From a TVM module to native object code."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..core.threads import usable_cores
from ..core.tvm_api import tvm
from .target import CpuTarget

# Storage rewrite hoists local buffers out of the scope that tells TVM their device.  Argument
# checks are off because the entry takes one raw pointer, which the executor builds itself.
_OPTIONS = {"tirx.disable_storage_rewrite": True, "tirx.disable_assert": True}

_LEAN = "minitorch_tvm"
_STAGES_PER_MODULE = 4


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


def parts(module: Any) -> list[Any]:
    """The module as several that can be compiled apart: one with the entry, the others of stages.

    LLVM works on one module with one thread, and needs more than twice as long for a program whose
    stages it may all copy into the entry, which gains nothing: a stage's tile runs for
    microseconds.  A module of its own costs some 15 ms, hence several stages in each.
    """
    t = tvm()
    entries: list[Any] = []
    stages: list[Any] = []
    for name, function in module.functions_items():
        settled = "calling_conv" in function.attrs
        (stages if settled else entries).append((name.name_hint, name, function))
    stages.sort(key=lambda item: item[0])  # the order of a map of TVM's depends on addresses
    count = -(-len(stages) // _STAGES_PER_MODULE)
    groups = [entries, *(stages[i::count] for i in range(count))]
    return [t.IRModule({name: f for _, name, f in group}) for group in groups if group]


def compile_parts(
    module: Any,
    target: CpuTarget,
    *,
    blocks: bool = False,
    look: Callable[[Any], None] | None = None,
) -> tuple[bytes, ...]:
    """Object code of all :func:`parts`, made on all cores; ``look`` is shown every executable."""
    pieces = parts(module)
    # Registered before the threads look for it.
    _ = tvm().tirx.get_tir_pipeline("default") if blocks else _lean_pipeline()

    def build(piece: Any) -> bytes:
        executable = compile_module(piece, target, blocks=blocks)
        if look is not None:
            look(executable)
        return object_code(executable)

    with ThreadPoolExecutor(min(len(pieces), usable_cores())) as pool:
        return tuple(pool.map(build, pieces))


def compile_module(module: Any, target: CpuTarget, *, blocks: bool = False) -> Any:
    """Run TVM's lowering passes and LLVM; returns TVM's executable.

    ``blocks`` selects TVM's default pipeline, which the default schedule needs.
    """
    t = tvm()
    pipeline = "default" if blocks else _lean_pipeline()
    with t.transform.PassContext(config=_OPTIONS):
        # tvm.compile would execute TVM's graph level to find out that nothing of it is meant.
        library = t.tirx.build(module, target.tvm_target(), pipeline=pipeline)
    return t.runtime.Executable(library)


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
