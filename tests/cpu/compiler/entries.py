"""Parts of the entry of programs, compiled and called by themselves, and what it has noted."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import minitorch_tvm as mt
from minitorch_tvm.compiler import crowd, native, steps, target
from minitorch_tvm.compiler.assemble import Functions
from minitorch_tvm.compiler.loops import on_cpu, pointer_buffer, pointer_type, seq
from minitorch_tvm.core.tvm_api import tvm
from minitorch_tvm.runtime.native import link

CORES = os.cpu_count() or 1


def with_words(make: Callable[[Any], Any], load_file: str = "") -> Callable[[np.ndarray], None]:
    """Statements on an array of 64-bit words; the system's load is read from a file."""
    t = tvm()
    words = pointer_buffer((64,), "int64", "words")
    pointer = t.tirx.Var("pointer", pointer_type("int64"))
    body = seq(t.tirx.DeclBuffer(words.raw, data=pointer), make(words))
    function = t.tirx.PrimFunc([pointer], on_cpu(body)).with_attr("s_tir", True)
    made: dict[str, Any] = {"part": function.with_attr("global_symbol", "part")}
    functions = Functions(made.__setitem__)
    functions.need(crowd.deciding(load_file))
    module = t.IRModule({t.ir.GlobalVar(name): f for name, f in made.items()})
    entry = link(native.object_code(native.compile_module(module, target.host())))["part"]
    return lambda array: entry(ctypes.c_void_p(array.ctypes.data))


class Header:
    """The words that a program's array begins with, by name."""

    def __init__(self, executor: Any) -> None:
        self._words = executor._steps.numpy((executor._steps.nbytes // 8,), mt.int64)

    def __getitem__(self, name: str) -> int:
        return int(self._words[steps._HEADER.index(name)])

    def __setitem__(self, name: str, value: int) -> None:
        self._words[steps._HEADER.index(name)] = value
