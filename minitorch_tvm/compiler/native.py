"""From TVM's functions to native object code."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import PriorityQueue
from types import TracebackType
from typing import Any

from ..core.threads import usable_cores
from ..core.tvm_api import prepare_linking, tvm
from .loops import count_statements, importing
from .target import CpuTarget

# Storage rewrite hoists local buffers out of the scope that tells TVM their device.  Argument
# checks are off because the entry takes one raw pointer, which the executor builds itself.
_OPTIONS = {"tirx.disable_storage_rewrite": True, "tirx.disable_assert": True}

_LEAN = "minitorch_tvm"
# LLVM's work for a function is about that of so many statements, and one for each of its own.
_FUNCTION = 50
# How much is compiled at a time.  Threads begin the sooner, the less the first pieces hold; later
# ones are larger, as each costs some 5 ms beside its functions, but not so large that a thread
# would wait long for the last of another: at the end they are such a share of what is left.
_SMALLEST, _LARGEST, _SHARE = 300, 800, 2
# LLVM's levels: of stages, and of the entry and what it calls beside them (see :mod:`.steps`).  Of
# the latter a program has one object file: what TVM has run when a module is loaded, which does
# nothing, is left in it, and two such files cannot be linked together.
_LEVEL, _ENTRY_LEVEL = 3, 0


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


# TVM adds conversions between float and half to every module, as weak functions, which LLVM would
# optimise and translate: a fourth of the time that a short stage takes.  No type of this package
# is half, so nothing calls them.  A common variable of a name takes a weak function's place in
# LLVM's linker, and may be in any number of object files.
_HALVES = "\n".join(f"@{name} = common global i8 0" for name in ("__truncsfhf2", "__extendhfsf2"))


def _without_halves(function: Any) -> Any:
    """The function; the module that it is in has no conversions of halves."""
    return function.with_body(importing(_HALVES, function.body))


class Piece:
    """Some functions that make one object file; ``code`` is empty until it is there."""

    def __init__(self, functions: Mapping[str, Any] | None = None) -> None:
        self.functions: dict[str, Any] = dict(functions or {})
        self.symbols = list(self.functions)  # of all functions, also when they are compiled
        self.helper = ""  # the name of the only one, if stages call it
        self.work = 0  # for LLVM, in statements
        self.needs: set[Piece] = set()  # that its functions call into
        self.code = b""

    def module(self) -> Any:
        """The functions as TVM's module."""
        t = tvm()
        functions = dict(self.functions)
        first = next(iter(functions))
        functions[first] = _without_halves(functions[first])
        return t.IRModule({t.ir.GlobalVar(name): f for name, f in functions.items()})


def with_needed(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces and all that they need, directly or not: what can be linked."""
    found: dict[Piece, None] = {}
    waiting = list(pieces)[::-1]
    while waiting:
        piece = waiting.pop()
        if piece not in found:
            found[piece] = None
            waiting.extend(piece.needs)
    return list(found)


class Build:
    """Turns functions into object code while others are still being scheduled.

    LLVM works on one module with one thread, and needs more than twice as long for a program whose
    stages it may all copy into the entry, which gains nothing: a stage's tile runs for
    microseconds.  A module of its own costs some 5 ms, hence several stages in each.  Which ones
    depends on what they are and in which order they come, so the same program makes the same
    pieces.
    """

    def __init__(
        self,
        target: CpuTarget,
        *,
        blocks: bool = False,
        look: Callable[[Any], None] | None = None,
    ) -> None:
        """``blocks``: as for :func:`compile_module`; ``look`` is shown every executable."""
        self.pieces: list[Piece] = []
        self._target, self._blocks, self._look = target, blocks, look
        self._open = Piece()
        self._filled = 0  # pieces that were as large as they may be
        self._work, self._to_come = 0, float("inf")  # so far, and an estimate
        self._pool = ThreadPoolExecutor(usable_cores())
        # The largest first: at the end no thread is to have one alone.
        self._waiting: PriorityQueue[tuple[int, int, Piece, int]] = PriorityQueue()
        self._coming: list[Future[None]] = []

    def __enter__(self) -> Build:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        for piece in self.pieces:
            piece.functions.clear()  # code may be kept; TVM's trees are large

    def add(self, symbol: str, function: Any) -> Piece:
        """Compile a stage function, together with others; returns where its code will be."""
        piece = self._open
        work = _FUNCTION + count_statements(function.body)
        piece.functions[symbol] = function
        piece.symbols.append(symbol)
        piece.work += work
        self._work += work
        share = (piece.work + self._to_come) / _SHARE
        if piece.work >= min(_LARGEST, _SMALLEST * (self._filled + 1), max(_SMALLEST, share)):
            self._filled += 1
            self.close()
        return piece

    def add_alone(self, symbol: str, function: Any) -> Piece:
        """Compile a function that others call, apart from them.

        Of memory that has a name here and another one there TVM tells LLVM that it is not the same:
        true of a call, but not once LLVM puts the function's body in its place.
        """
        piece = Piece({symbol: function})
        piece.work = _FUNCTION + count_statements(function.body)
        self._work += piece.work
        return self._submit(piece, _LEVEL)

    def expect(self, made: int, kernels: int) -> None:
        """So many kernels have been added; behind the next one at most so many will come."""
        if made:
            self._to_come = self._work / made * kernels

    def close(self) -> None:
        """Compile what has been added, apart from what comes next."""
        if self._open.functions:
            piece, self._open = self._open, Piece()
            self._submit(piece, _LEVEL)

    def entry(self, functions: Mapping[str, Any]) -> Piece:
        """Compile the entry and what comes with it, by themselves and without optimising."""
        return self._submit(Piece(functions), _ENTRY_LEVEL)

    def finish(self) -> None:
        """Compile what is left, and wait for everything."""
        self.close()
        prepare_linking()
        for future in self._coming:
            future.result()

    def _submit(self, piece: Piece, level: int) -> Piece:
        if not self.pieces:  # registered before the threads look for it
            _ = tvm().tirx.get_tir_pipeline("default") if self._blocks else _lean_pipeline()
        self.pieces.append(piece)
        self._waiting.put((-piece.work, len(self.pieces), piece, level))
        self._coming.append(self._pool.submit(self._make_one))
        return piece

    def _make_one(self) -> None:
        *_, piece, level = self._waiting.get_nowait()
        self._make(piece, level)

    def _make(self, piece: Piece, level: int) -> None:
        executable = compile_module(piece.module(), self._target, blocks=self._blocks, level=level)
        if self._look is not None:
            self._look(executable)
        piece.code = object_code(executable)


def compile_module(
    module: Any, target: CpuTarget, *, blocks: bool = False, level: int = _LEVEL
) -> Any:
    """Run TVM's lowering passes and LLVM; returns TVM's executable.

    ``blocks`` selects TVM's default pipeline, which the default schedule needs.
    """
    t = tvm()
    pipeline = "default" if blocks else _lean_pipeline()
    with t.transform.PassContext(config=_OPTIONS):
        # tvm.compile would execute TVM's graph level to find out that nothing of it is meant.
        library = t.tirx.build(module, target.tvm_target(level), pipeline=pipeline)
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
