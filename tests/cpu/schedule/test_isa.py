"""Code for other instruction sets: what LLVM makes of the tiles, and results where it can run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy
from minitorch_tvm.compiler import api, native, target
from minitorch_tvm.compiler.schedule.cpu import (
    conv_correlate,
    conv_pixels_plan,
    conv_unfolded,
    conv_weight_tiles,
)
from minitorch_tvm.core import config
from minitorch_tvm.ir.node import MODE
from minitorch_tvm.runtime.executor import Executor

rng = np.random.default_rng(5)
Make = Callable[[], list[mt.Tensor]]


def available(isa: str) -> bool:
    """Whether this machine can run code for the level."""
    try:
        target.host(isa)
    except RuntimeError:
        return False
    return True


def last_target() -> str:
    """What the code that ran last is for."""
    executor = lazy.last_executor()
    assert isinstance(executor, Executor)
    return executor.program.target


@dataclass(frozen=True)
class Isa:
    """An instruction set, and how its assembly shows what it uses."""

    cpu: target.CpuTarget
    multiply_add: str  # pattern of a fused multiply-add of whole vectors, its sum in group 1
    stack: str  # pattern of a whole vector that moves between a register and the stack
    wider: str  # what a machine of this kind does not have
    accumulators: int  # sums in registers, at least, in the tile of a large product


def cpu_of(mcpu: str, feature: str, l1: int, l2: int, triple: str = "") -> target.CpuTarget:
    # Tiles depend on the caches: not on those of the machine that runs this.
    cpu = target.from_features(mcpu, {feature: True})
    return replace(cpu, l1_bytes=l1 << 10, l2_bytes=l2 << 10, triple=triple)


def _x86(mcpu: str, feature: str, register: str, wider: str, accumulators: int) -> Isa:
    cpu = cpu_of(mcpu, feature, 48, 1024)
    return Isa(
        cpu,
        rf"vfmadd\d+ps\t.*%({register}\d+)$",
        rf"(?!.*(?:1to|broadcast)).*(?:\(%rsp\).*%{register}|%{register}\d+, .*\(%rsp\))",
        wider,
        accumulators,
    )


_ARM = cpu_of("cortex-a76", "neon", 64, 512, "aarch64-unknown-linux-gnu")
ISAS = {
    "avx2": _x86("x86-64-v3", "avx2", "ymm", "zmm", 12),
    "avx512": _x86("x86-64-v4", "avx512f", "zmm", "tmm", 20),
    "neon": Isa(
        _ARM, r"fmla\t(v\d+\.4s)", r"(?:str|stp|ldr|ldp)\tq.*\[sp(?:, #|\])", r"\bz\d+\.s", 20
    ),
}


class _CompiledError(Exception):
    """Ends an evaluation before its code, which may be for another machine, is loaded."""


def assembly(make: Make, cpu: target.CpuTarget, monkeypatch: pytest.MonkeyPatch) -> str:
    """The assembly of the program that evaluates what ``make`` records."""
    texts: list[str] = []
    compile_module, compile_graph = native.compile_module, api.compile_graph

    def watched(*arguments: object, **options: object) -> object:
        executable = compile_module(*arguments, **options)
        texts.append(executable.mod.inspect_source("asm"))
        return executable

    def stopped(*arguments: object) -> None:
        compile_graph(*arguments)
        raise _CompiledError

    lazy.clear_cache()
    out = make()
    with monkeypatch.context() as patch:
        patch.setattr(native, "compile_module", watched)
        patch.setattr(native, "object_code", lambda _: b"")  # which nobody links
        patch.setattr(target, "host", lambda isa="host": cpu)
        patch.setattr(api, "compile_graph", stopped)
        with pytest.raises(_CompiledError):
            mt.eval(*out)
    MODE.trace.handles.clear()  # what was not computed is not wanted later, either
    lazy.clear_cache()
    return "\n".join(texts)


def innermost_loops(text: str) -> list[list[str]]:
    """Instructions between a label and a jump back to it that contain no other such pair."""
    labels: dict[str, int] = {}
    lines: list[str] = []
    loops: list[tuple[int, int]] = []
    for line in text.splitlines():
        label = re.match(r"(\.LBB\w+):", line)
        if label:
            labels[label[1]] = len(lines)
        elif re.match(r"\t[a-z]", line):
            lines.append(line.strip())
            start = labels.get(lines[-1].split()[-1])
            if start is not None:
                loops.append((start, len(lines)))
    return [
        lines[a:b]
        for a, b in loops
        if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)
    ]


def check_tile(text: str, isa: Isa, accumulators: int) -> None:
    """The loop with the most sums keeps them, and nothing else, in registers of the full width."""
    assert not re.search(isa.wider, text)
    most: list[str] = []
    for loop in innermost_loops(text):
        sums = [found[1] for x in loop if (found := re.match(isa.multiply_add, x))]
        if sums:
            spilled = [x for x in loop if re.search(isa.stack, x)]
            assert not spilled, "\n".join(loop)
        if len(set(sums)) > len(set(most)):
            most = sums
    assert len(set(most)) >= accumulators
    assert len(most) % len(set(most)) == 0, "some sums take part in more steps than others"


def filled(*shape: int) -> mt.Tensor:
    """Numbers of its own for every tensor, realised."""
    return mt.tensor(rng.standard_normal(shape).astype(np.float32))


def product(form: str, m: int, n: int, k: int) -> tuple[mt.Tensor, mt.Tensor, mt.Tensor]:
    """Operands as they are multiplied, and their product."""
    a = filled(k, m).T if form[0] == "T" else filled(m, k)
    b = filled(n, k).T if form[1] == "T" else filled(k, n)
    return a, b, a @ b


def convolution(which: str, width: int = 20) -> mt.Tensor:
    """The result (y) of a convolution or one of its gradients (dx, dw)."""
    x, w, g = filled(4, 16, 20, width), filled(32, 16, 3, 3), filled(4, 32, 20, width)
    if which == "y":
        return F.conv2d(x, w, padding=1)
    wanted = (x if which == "dx" else w).requires_grad_()
    return mt.autograd.grad(F.conv2d(x, w, padding=1), wanted, g)[0]


FORMS = ("NN", "NT", "TN", "TT")


@pytest.mark.parametrize(("dtype", "letter"), [("int32", "d"), ("int64", "q")])
def test_integers_that_wrap_around_fill_vectors(
    dtype: str, letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are computed with twice as many bits, which must not be seen."""
    x, y = (mt.tensor(np.arange(n, n + 4096).astype(dtype)) for n in (0, 1))
    text = assembly(lambda: [abs((x + y) * y - x), (x * y).sum()], ISAS["avx512"].cpu, monkeypatch)
    loops = [" ".join(loop) for loop in innermost_loops(text)]
    for name in ("vpadd", "vpsub", "vpmull", "vpabs"):
        assert any(f"{name}{letter}\t" in loop and "%zmm" in loop for loop in loops), name
    if dtype == "int64":
        assert not re.search(r"\t(adc|sbb|imul)q\t", "\n".join(loops))


def _most_blocks(text: str) -> int:
    """Labels within the function that has most of them."""
    return max(Counter(re.findall(r"^\.LBB(\d+)_", text, re.MULTILINE)).values())


def test_results_are_finished_along_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM would unroll a tile's short rows, and gather elements of different ones."""
    other = filled(100, 100)
    text = assembly(
        lambda: [other * product("NN", 100, 100, 10)[2]], ISAS["avx512"].cpu, monkeypatch
    )
    assert re.search(r"vmulps\t", text)
    assert not re.search(r"vgather|vscatter", text)


def test_results_are_finished_in_whole_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to LLVM, each row of a tile got loops of its own, which took it longer than the rest."""
    other = filled(32, 256)
    text = assembly(
        lambda: [other * product("NN", 32, 256, 100)[2]], ISAS["avx512"].cpu, monkeypatch
    )
    found = re.findall(r"vmulps\t.*%([xyz])mm\d+$", text, re.MULTILINE)
    assert set(found) == {"z"}
    assert len(found) <= 16  # vectors of a register tile
    assert _most_blocks(text) < 50


def test_short_lines_of_bytes_are_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM unrolled them and looked for vectors among their elements, for seconds."""
    x = mt.tensor(np.zeros((2, 62), np.uint8))
    text = assembly(lambda: [x[:, 5:40] * (x[:, 5:40] * 2)], ISAS["avx512"].cpu, monkeypatch)
    loops = [loop for loop in innermost_loops(text) if any("mulb" in line for line in loop)]
    assert [len(loop) < 10 for loop in loops] == [True], loops


def test_elements_that_vectors_leave_have_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM wrote the four columns that are left of 100 out for each of 16 rows."""
    other = filled(32, 100)
    text = assembly(
        lambda: [other * product("NN", 32, 100, 10)[2]], ISAS["avx512"].cpu, monkeypatch
    )
    assert _most_blocks(text) < 50


def test_convolutions_are_finished_along_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to LLVM, vectors held pixels of different channels, which were scattered."""
    cpu = target.from_features("sapphirerapids", {"avx512f": True}, matrix=True)
    cpu = replace(cpu, l1_bytes=48 << 10, l2_bytes=2 << 20, workers=2)
    x, w = filled(2, 16, 32, 32), filled(16, 16, 3, 3)
    text = assembly(lambda: [F.conv2d(x, w, padding=1).relu()], cpu, monkeypatch)
    assert "tdpbf16ps" in text
    assert text.count("vscatter") < 20  # of weights, once


def test_rows_of_28_pixels_are_finished_in_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """16, 8 and 4: of the 12 that were left, vectors held pixels of different rows."""
    x, w, bias = filled(2, 1, 28, 28), filled(32, 1, 5, 5), filled(32, 1, 1)
    text = assembly(
        lambda: [(F.conv2d(x, w, padding=2) + bias).relu()], ISAS["avx512"].cpu, monkeypatch
    )
    assert not re.search(r"vgather|vscatter", text)


def test_sums_along_rows_stay_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows whose number it knew, LLVM unrolled so many that it ran out of registers."""
    x, ct = filled(1, 16, 32, 32), filled(1, 16, 32, 32)  # four rows at a time
    w = filled(16, 16, 3, 3).requires_grad_(True)

    def gradient() -> list[mt.Tensor]:
        return [mt.autograd.grad(F.conv2d(x, w, padding=1), w, ct)[0]]

    monkeypatch.setattr(conv_weight_tiles, "vector_cycles", lambda *_: np.inf)
    monkeypatch.setattr(conv_unfolded, "_fastest", lambda ways, below: None)
    text = assembly(gradient, ISAS["avx512"].cpu, monkeypatch)
    loops = [loop for loop in innermost_loops(text) if any("vfmadd" in line for line in loop)]
    sizes = [sum("vfmadd" in line for line in loop) for loop in loops]
    assert sizes == [2 * 8 * 3]  # vectors of a row, outputs, taps
    assert not any(re.match(r"vmov\w+\s+%zmm", line) for loop in loops for line in loop)


def test_copies_of_images_ask_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of 16 channels lie on as many pages."""
    assert "prefetcht0" in assembly(lambda: [convolution("dw")], ISAS["avx512"].cpu, monkeypatch)
    cpu = target.from_features("sapphirerapids", {"avx512f": True}, matrix=True)
    cpu = replace(cpu, l1_bytes=48 << 10, l2_bytes=2 << 20, workers=2)
    x, w = filled(8, 32, 16, 16), filled(32, 32, 3, 3)
    text = assembly(lambda: [F.conv2d(x, w, padding=1)], cpu, monkeypatch)
    assert "tdpbf16ps" in text
    assert "prefetcht0" in text


def test_long_rows_and_large_results_ask_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is written as well; what is short, or stays in the caches, is not asked for."""
    cpu = target.from_features("sapphirerapids", {"avx512f": True}, matrix=True)
    cpu = replace(cpu, l1_bytes=48 << 10, l2_bytes=2 << 20, workers=2)

    def asks(make: Make) -> tuple[int, int]:
        text = assembly(make, cpu, monkeypatch)
        return text.count("prefetcht0"), text.count("prefetchw")

    long, short = filled(8, 1024), filled(8, 256)
    read, written = asks(lambda: [F.softmax(long, dim=1)])
    assert read >= 4  # a line for each vector of a step
    assert written >= 4
    assert asks(lambda: [F.softmax(short, dim=1)]) == (0, 0)
    large, small = filled(1600, 64), filled(1000, 64)
    assert asks(lambda: [large @ large.T])[1] >= 2
    assert asks(lambda: [small @ small.T])[1] == 0


def test_what_finishing_a_product_reads_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the unit's products, of as many elements as the result has: not for a bias."""
    cpu = target.from_features("sapphirerapids", {"avx512f": True}, matrix=True)
    cpu = replace(cpu, l1_bytes=48 << 10, l2_bytes=2 << 20, workers=2)
    a, b, other, bias = filled(512, 256), filled(512, 256), filled(256, 256), filled(256)

    def asks(make: Make) -> int:
        # What is in memory already would not be compiled.
        lazy.clear_cache()
        text = assembly(make, cpu, monkeypatch)
        assert "tdpbf16ps" in text
        return text.count("prefetcht0")

    alone = asks(lambda: [a.T @ b])
    assert asks(lambda: [a.T @ b + bias]) == alone
    assert asks(lambda: [a.T @ b + other]) > alone


def test_parts_of_sums_are_merged_in_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    x = filled(4096, 512)
    text = assembly(lambda: [x.sum(0), x.amax(0)], ISAS["avx512"].cpu, monkeypatch)
    assert "reduce_merge" in text
    assert not re.search(r"vaddss|vmaxss|vgather", text)


@pytest.mark.parametrize("unit", [False, True], ids=["vectors", "unit"])
def test_places_that_are_read_first_are_not_asked_for(
    unit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an element that does not exist, a place would be read behind the end of memory."""
    cpu = target.from_features("sapphirerapids", {"avx512f": True}, matrix=unit)
    cpu = replace(cpu, l1_bytes=48 << 10, l2_bytes=1 << 20, workers=2)
    a, b, other = filled(512, 512), filled(512, 500), filled(512, 512)
    columns = mt.tensor(np.arange(500))

    def asks(make: Make) -> int:
        lazy.clear_cache()
        return assembly(make, cpu, monkeypatch).count("prefetch")

    alone = asks(lambda: [a @ b])
    assert asks(lambda: [a @ b + other[:, columns]]) == alone
    assert asks(lambda: [a @ b + other[:, :500]]) > alone


def test_passes_over_columns_ask_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = ISAS["avx512"].cpu

    def asks(rows: int, columns: int) -> int:
        a, b = (mt.tensor(rng.random((n, 1024), dtype=np.float32)) for n in (rows, columns))
        return assembly(lambda: [a @ b.T], cpu, monkeypatch).count("prefetcht1")

    # Some rows are multiplied in passes over columns that are near; one row has but one pass.
    assert asks(16, 1024) > 0
    assert asks(1, 1024) == 0


def test_transposes_beside_others_are_finished_in_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    x, other = (mt.tensor(rng.random((1024, 1024), dtype=np.float32)) for _ in range(2))
    text = assembly(lambda: [x.T - other], ISAS["avx512"].cpu, monkeypatch)
    # LLVM's own loop over a row of a square took vectors across rows.
    assert not re.search(r"vgather|vscatter|vinsertps|vpinsrd|vextractps", text)
    assert re.search(r"vsubps\t.*zmm", text)


ELEMENTARY = (
    *("exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "tanh", "sigmoid", "erf"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("erfc", "erfinv", "logit", "sinc", "lgamma", "digamma"),
)
PAIRS = ("atan2", "hypot", "logaddexp", "logaddexp2", "nextafter")


@pytest.mark.parametrize("name", ISAS)
def test_elementary_functions_call_nobody(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the C library for each element is what makes them slow."""
    x = mt.rand(64, 64)
    wide = x.double()
    mt.eval(x, wide)

    def made() -> list[mt.Tensor]:
        powers = [x**1.5, x**x, 3.0**x, wide.exp(), wide.log(), wide.tanh(), wide.sigmoid()]
        pairs = [getattr(mt, function)(x, x.T) for function in PAIRS]
        return [*(getattr(mt, function)(x) for function in ELEMENTARY), *pairs, *powers]

    text = assembly(made, ISAS[name].cpu, monkeypatch)
    library = {function + "f" for function in (*ELEMENTARY, *PAIRS, "pow")}
    library |= {"exp", "log", "tanh", "sin", "cos", "erf", "erfc"}
    assert not library & set(re.findall(r"[a-z]\w*", text))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("which", ["y", "dx", "dw"])
def test_convolutions_stay_in_registers(
    name: str, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 70 pixels are so wide that those at the ends, which need fewer taps, get no code."""
    isa = ISAS[name]
    width = 20 if which == "dw" else 70
    check_tile(assembly(lambda: [convolution(which, width)], isa.cpu, monkeypatch), isa, 10)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("which", ["y", "dx"])
def test_ends_of_rows_stay_in_registers(
    name: str, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pixel of ten at either end takes no part in a step, be it of a tap or of a row of three."""
    isa = ISAS[name]
    monkeypatch.setattr(conv_correlate, "pick_tile", lambda *_: conv_correlate.Tile(1, 10, 1))
    monkeypatch.setattr(conv_pixels_plan, "plan", lambda *_: None)
    monkeypatch.setattr(conv_unfolded, "_fastest", lambda ways, below: None)
    steps = set()
    for loop in innermost_loops(assembly(lambda: [convolution(which)], isa.cpu, monkeypatch)):
        sums = [found[1] for x in loop if (found := re.match(isa.multiply_add, x))]
        if sums:
            assert not [x for x in loop if re.search(isa.stack, x)], "\n".join(loop)
            steps.add((len(set(sums)), len(sums)))
    assert steps in ({(9, 9), (10, 10)}, {(10, 29)})


@pytest.mark.parametrize(
    ("images", "weights", "stride", "sums"),
    [
        ((32, 32, 16, 16), (32, 32, 3, 3), 1, 12),
        # Four vectors to a row, which three do not divide.
        ((32, 16, 32, 32), (16, 16, 3, 3), 1, 12),
        # So few taps that LLVM would make one piece of all.
        ((32, 3, 32, 32), (16, 3, 3, 3), 1, 8),
        ((4, 3, 112, 112), (64, 3, 7, 7), 2, 12),
        # Vectors go on in the next row.
        ((64, 32, 14, 14), (64, 32, 5, 5), 1, 12),
    ],
    ids=["16 wide", "32 wide", "3 channels", "stride 2", "flat"],
)
def test_convolutions_with_pixels_in_vectors_do_little_else(
    images: tuple[int, ...],
    weights: tuple[int, ...],
    stride: int,
    sums: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of twelve multiply-adds with AVX2 three vectors and four broadcasts are fetched."""
    x, w = filled(*images), filled(*weights)
    padding = weights[-1] // 2

    def convolved() -> list[mt.Tensor]:
        return [F.conv2d(x, w, stride=stride, padding=padding)]

    text = assembly(convolved, cpu_of("znver3", "avx2", 32, 512), monkeypatch)
    check_tile(text, ISAS["avx2"], sums)
    loops = [(len([x for x in loop if "vfmadd" in x]), loop) for loop in innermost_loops(text)]
    terms, loop = max(loops, key=lambda found: found[0])
    assert len(loop) <= 1.9 * terms


@pytest.mark.parametrize(
    ("images", "weights", "stride"),
    [
        ((32, 16, 32, 32), (16, 16, 3, 3), 1),  # along rows: four outputs, three taps
        ((4, 3, 112, 112), (64, 3, 7, 7), 2),  # outer products, of runs of 21 in six
        ((64, 32, 14, 14), (64, 32, 5, 5), 1),
    ],
    ids=["rows", "short runs", "outer"],
)
def test_weight_gradients_fill_sixteen_registers(
    images: tuple[int, ...],
    weights: tuple[int, ...],
    stride: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, w, padding = filled(*images), filled(*weights).requires_grad_(), weights[-1] // 2
    size = (images[-1] - 1) // stride + 1
    g = filled(images[0], weights[0], size, size)

    def gradient() -> list[mt.Tensor]:
        return [mt.autograd.grad(F.conv2d(x, w, stride=stride, padding=padding), [w], g)[0]]

    text = assembly(gradient, cpu_of("znver3", "avx2", 32, 512), monkeypatch)
    check_tile(text, ISAS["avx2"], 12)
    loops = [(len([x for x in loop if "vfmadd" in x]), loop) for loop in innermost_loops(text)]
    terms, loop = max(loops, key=lambda found: found[0])
    assert len(loop) <= 1.9 * terms


def test_weight_gradients_of_short_rows_stay_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM makes one piece of the eight pixels of a row, and fetched all of them first."""
    isa = ISAS["avx2"]
    cpu = cpu_of("znver3", "avx2", 32, 512)
    lines = assembly(lambda: [convolution("dw", 8)], cpu, monkeypatch).splitlines()
    terms = [number for number, line in enumerate(lines) if "vfmadd" in line]
    assert len(terms) == 8 * 12
    spilled = [x for x in lines[terms[0] : terms[-1]] if re.search(isa.stack, x)]
    assert not spilled, "\n".join(spilled)


@pytest.mark.parametrize("name", ISAS)
def test_chains_and_softmax_use_whole_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    isa = ISAS[name]
    x, y = filled(64, 1000), filled(64, 1000)
    chain = assembly(lambda: [(x * y + 1.0).relu() * 0.5 - y], isa.cpu, monkeypatch)
    softmax = assembly(lambda: [F.softmax(x, dim=1)], isa.cpu, monkeypatch)
    for text in (chain, softmax):
        loops = innermost_loops(text)
        assert any(re.match(isa.multiply_add, line) for loop in loops for line in loop)
        assert not re.search(isa.wider, text)
    # A row is divided once, not element by element.
    assert re.search(r"divss|fdiv\ts", softmax)
    assert not re.search(r"divps|fdiv\tv", softmax)


@pytest.mark.parametrize("kind", ["sum", "amax", "var"])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_of_any_length_are_read_in_vectors(
    kind: str, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 784 had a second way, by gathers, lest positions wrap around at 2**31.

    Extrema were stored by mask, and the next step waited for each store.
    """
    x = filled(64, 784)
    text = assembly(lambda: [getattr(x, kind)(axis)], ISAS["avx512"].cpu, monkeypatch)
    assert "vgather" not in text
    assert not re.search(r"vmov[au]p[sd]\t%zmm\d+, .*\{%k\d\}$", text, re.MULTILINE)
    if kind == "amax":
        assert re.search(r"vmaxps\t.*%zmm", text)


@pytest.mark.parametrize("isa", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_restricted_machines_compute_the_same(isa: str) -> None:
    if not available(isa):
        pytest.skip(f"this processor is below {isa}")
    with config.override(isa=isa):
        for number, form in enumerate(FORMS):
            # Every second shape with each form, the others at the next level.
            shapes = ((97, 101, 89), (1, 33, 70), (14, 8, 51), (5, 300, 65))
            for m, n, k in shapes[(number + number // 2 + int(isa[-1])) % 2 :: 2]:
                a, b, out = product(form, m, n, k)
                mt.eval(out)
                assert last_target().startswith(isa)
                want = a.numpy().astype("f8") @ b.numpy().astype("f8")
                np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=2e-5)
        x = filled(9, 1037)
        wide = x.numpy().astype("f8")
        powers = np.exp(wide - wide.max(1, keepdims=True))
        np.testing.assert_allclose(
            F.softmax(x, dim=1).numpy(), powers / powers.sum(1, keepdims=True), rtol=2e-6, atol=1e-9
        )
        got = (x * x + 1.0).relu() * 0.5 - x
        np.testing.assert_allclose(got.numpy(), (wide**2 + 1) * 0.5 - wide, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("isa", "stride"),
    [("x86-64-v2", 2), ("x86-64-v3", 1), ("x86-64-v3", 2), ("x86-64-v4", 1)],
)
def test_restricted_machines_convolve(isa: str, stride: int) -> None:
    if not available(isa):
        pytest.skip(f"this processor is below {isa}")
    n, c, size, o, tap = 3, 17, 13, 35, 3
    out = (size + 2 - tap) // stride + 1
    with config.override(isa=isa):
        x = filled(n, c, size, size).requires_grad_()
        w, g = filled(o, c, tap, tap).requires_grad_(), filled(n, o, out, out)
        y = F.conv2d(x, w, stride=stride, padding=1)
        dx, dw = (t.numpy() for t in mt.autograd.grad(y, (x, w), g))
        found = {"y": y.detach().numpy(), "dx": dx, "dw": dw}
    x8, w8, g8 = (t.detach().numpy().astype("f8") for t in (x, w, g))
    padded = np.pad(x8, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = {"y": np.zeros(g8.shape), "dx": np.zeros(padded.shape), "dw": np.zeros(w8.shape)}
    for i in range(tap):
        for j in range(tap):
            at = np.s_[:, :, i : i + stride * out : stride, j : j + stride * out : stride]
            want["y"] += np.einsum("ncyx,oc->noyx", padded[at], w8[:, :, i, j])
            want["dx"][at] += np.einsum("noyx,oc->ncyx", g8, w8[:, :, i, j])
            want["dw"][:, :, i, j] = np.einsum("noyx,ncyx->oc", g8, padded[at])
    want["dx"] = want["dx"][:, :, 1:-1, 1:-1]
    for name, truth in want.items():
        scale = np.abs(truth).max()
        np.testing.assert_allclose(found[name] / scale, truth / scale, atol=3e-6, err_msg=name)


def test_a_level_the_processor_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    host = target.host.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(target, "global_func", lambda _: lambda: {"avx2": False, "sse4.2": True})
    with pytest.raises(RuntimeError, match=r"MTVM_ISA=x86-64-v3: this processor lacks avx2, bmi"):
        host("x86-64-v3")


def test_targets_are_resolved() -> None:
    for isa in ISAS.values():
        assert isa.cpu.tvm_target().attrs["mcpu"] == isa.cpu.mcpu
    assert "aarch64" in str(ISAS["neon"].cpu.tvm_target())
    assert [isa.cpu.vector_bytes for isa in ISAS.values()] == [32, 64, 16]


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("setting", [None, False, True])
def test_where_the_matrix_unit_is_used(
    setting: bool | None, virtual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = filled(256, 256), filled(256, 256)
    cpu = target.from_features("sapphirerapids", {"avx512f": True}, matrix=True)
    monkeypatch.setattr(api, "is_virtual", lambda: virtual)
    with config.override(matrix_unit=setting):
        text = assembly(lambda: [a @ b], cpu, monkeypatch)
    used = not virtual if setting is None else setting
    assert ("tdpbf16ps" in text) == used
