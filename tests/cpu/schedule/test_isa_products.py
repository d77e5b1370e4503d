"""Code of matrix products for other instruction sets: what LLVM makes of their loops."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from test_isa import (
    FORMS,
    ISAS,
    Make,
    assembly,
    check_tile,
    cpu_of,
    filled,
    innermost_loops,
    product,
)

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler.schedule.cpu import (
    gemm,
    gemm_outer,
    gemm_problem,
    gemm_requests,
    gemm_tiling,
)
from minitorch_tvm.compiler.steps import ENTRY


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(
    ("shape", "form"),
    [*(((97, 101, 89), form) for form in FORMS), *(((30, 47, 2000), f) for f in ("NT", "TN"))],
    ids=str,
)
def test_products_stay_in_registers(
    name: str, form: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    isa = ISAS[name]
    text = assembly(lambda: [product(form, *shape)[2]], isa.cpu, monkeypatch)
    # Few rows and columns leave less choice.
    check_tile(text, isa, isa.accumulators if shape[0] > 90 else isa.accumulators // 2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(1023, 1025, 1021), (1000, 256, 784)], ids=["odd", "even"])
def test_little_is_executed_beside_multiply_adds(
    form: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's 24 have 20 loads beside them with AVX2; few other instructions are allowed.

    They count where a core's second thread takes half of what it can begin.
    """
    cpu = cpu_of("znver3", "avx2", 32, 512)
    text = assembly(lambda: [product(form, *shape)[2]], cpu, monkeypatch)
    check_tile(text, ISAS["avx2"], 12)
    loops = [(sum("vfmadd" in x for x in loop), loop) for loop in innermost_loops(text)]
    terms, loop = max(loops, key=lambda found: found[0])
    assert len(loop) <= 2.2 * terms
    assert sum("prefetch" in x for x in loop) <= 3  # a line of columns per step, one of rows


@pytest.mark.parametrize("form", ["NN", "NT"])
def test_narrow_last_panels_cost_the_others_nothing(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seven panels that a thread keeps: two tiles in one function, whose sums were spilled."""
    cpu = cpu_of("znver3", "avx2", 32, 512)
    text = assembly(lambda: [product(form, 1000, 100, 256)[2]], cpu, monkeypatch)
    check_tile(text, ISAS["avx2"], 12)
    loops = [(sum("vfmadd" in x for x in loop), loop) for loop in innermost_loops(text)]
    whole, narrow = sorted((loop for terms, loop in loops if terms == 24), key=len)
    assert sum("broadcast" in x for x in whole) == 12
    assert len(whole) <= 2.2 * 24
    assert sum("broadcast" in x for x in narrow) == 24


def test_many_rows_are_asked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 13 in a tile one in each step, which LLVM must not unroll: every sum would exist twice."""
    monkeypatch.setattr(gemm, "_dots_pay", lambda *_: False)
    x, w = filled(1000, 784), filled(10, 784)
    text = assembly(lambda: [x @ w.T], cpu_of("znver3", "avx2", 32, 512), monkeypatch)
    loops = [(sum("vfmadd" in x for x in loop), loop) for loop in innermost_loops(text)]
    (loop,) = (loop for terms, loop in loops if terms == 13)
    assert not [x for x in loop if re.search(ISAS["avx2"].stack, x)]
    assert sum("prefetch" in x for x in loop) == 2  # the panel's line, too


def test_columns_of_dot_products_share_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of five was computed for itself, in 32 bits: 57 instructions for 20 multiply-adds."""
    x, w = filled(1000, 784), filled(10, 784)
    text = assembly(lambda: [x @ w.T], cpu_of("znver3", "avx2", 32, 512), monkeypatch)
    loops = [(sum("vfmadd" in x for x in loop), loop) for loop in innermost_loops(text)]
    terms, loop = max(loops, key=lambda found: found[0])
    assert not any("broadcast" in x for x in loop)
    assert not any(re.search(ISAS["avx2"].stack, x) for x in loop)
    assert len(loop) <= 2 * terms


@pytest.mark.parametrize(("at_once", "more"), [(0, 1), (16, 0)])
def test_rows_that_a_block_copies_are_asked_for(
    at_once: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 4096 bytes apart: a core waited for each line of the copy, a fourth of the time."""
    monkeypatch.setattr(gemm_outer, "_AT_ONCE", at_once)
    cpu = cpu_of("znver3", "avx2", 32, 512)
    text = assembly(lambda: [product("NN", 1000, 1000, 1024)[2]], cpu, monkeypatch)
    assert "memcpy" in text
    loops = [(sum("vfmadd" in x for x in loop), loop) for loop in innermost_loops(text)]
    _, loop = max(loops, key=lambda found: found[0])
    assert sum("prefetch" in x for x in loop) == 2 + more  # a line of the panel in each step


def test_the_next_block_of_a_panel_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is multiplied, memory would have nothing to do: each block asks for its share."""
    cpu = cpu_of("znver3", "avx2", 32, 512)

    def made() -> list[mt.Tensor]:
        return [product("NN", 16, 4096, 4096)[2]]

    every = assembly(made, cpu, monkeypatch).count("prefetch")
    monkeypatch.setattr(gemm_requests.Requests, "_for_next_block", lambda *_: [])
    assert every > assembly(made, cpu, monkeypatch).count("prefetch")


def test_rows_in_place_share_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 13 rows had a register of its own, most of them on the stack."""
    a, b = filled(8, 64, 64), filled(8, 64, 32)
    text = assembly(lambda: [a @ b], ISAS["avx512"].cpu, monkeypatch)
    pattern = r"vbroadcastss\t-?\d*\((%\w+)"
    rows = [re.findall(pattern, "\n".join(loop)) for loop in innermost_loops(text)]
    most = max(rows, key=len)
    assert len(most) >= 24
    assert len(set(most)) == 1


def test_what_products_by_multiply_adds_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed rows, from another cache, and what finishing reads, of many elements."""
    cpu = ISAS["avx512"].cpu
    cpu = replace(cpu, mattr=(*cpu.mattr, "+prfchw"))  # there since 2014, but not part of v4
    a, b, c, other = (filled(512, 512) for _ in range(4))
    bias = filled(512)

    def asks(make: Make, request: str = "prefetcht0") -> tuple[int, int, int]:
        """In the loop with the most multiply-adds, these and requests; and requests in all."""
        lazy.clear_cache()
        text = assembly(make, cpu, monkeypatch)
        loops = innermost_loops(text)
        found = [(sum("vfmadd" in x for x in q), sum(request in x for x in q)) for q in loops]
        return *max(found), text.count(request)

    vectors = 4 * 2  # of a panel, in both steps of a turn
    inside = 6 * vectors, vectors + 1
    terms, alone, every = asks(lambda: [a.T @ b])
    assert (terms, alone) == inside
    # What else is asked for is so once for a line of k, outside the loop.
    assert asks(lambda: [a.T @ b + bias]) == (*inside, every)
    assert asks(lambda: [a.T @ b + other]) == (*inside, every + 1)
    assert asks(lambda: [a.T @ b + other * c]) == (*inside, every + 2)
    # Of columns stored along k, which packing does not ask for, eight.
    with monkeypatch.context() as patch:  # as it stands
        patch.setattr(gemm_tiling, "_WIDE_TURNED_CYCLES", gemm_tiling._TURNED_CYCLES)
        assert asks(lambda: [a.T @ b.T]) == (*inside, vectors + 1 + 8)
    # Columns that the thread packs next, a line of each k, unless finishing reads more than that.
    x, y, z = filled(256, 1024), filled(256, 1024), [filled(1024, 1024) for _ in range(3)]
    ahead, few = 16, 2  # of 24 lines, two of a result for each of 16 of k
    *_, none = asks(lambda: [x.T @ y])  # lines 4096 bytes apart, of which the caches would keep few
    monkeypatch.setattr(gemm_requests, "evict_each_other", lambda *_: False)
    *found, every = asks(lambda: [x.T @ y])
    assert (tuple(found), none) == (inside, every - ahead)
    assert asks(lambda: [x.T @ y + z[0]]) == (*inside, every + few)
    instead = asks(lambda: [x.T @ y + z[0] * z[1] * z[2]])
    assert instead == (*inside, every + 3 * few - ahead)
    # What is overwritten is asked for to be written.
    assert asks(lambda: [z[0].add_(x.T @ y * z[1])], "prefetchw") == (terms, 0, few)
    assert asks(lambda: [z[2] + x.T @ y * z[1]], "prefetchw") == (terms, 0, 0)
    assert asks(lambda: [z[1].add_(x.T @ y * z[2])]) == (*inside, every + few - ahead)
    # Rows stored along k, in place: those of the next block, at once or, if many, one in a turn.
    left, right = filled(1000, 784), filled(784, 256)
    for at_once, more in ((0, 1), (16, 0)):
        with monkeypatch.context() as patch:
            patch.setattr(gemm_outer, "_AT_ONCE", at_once)
            assert asks(lambda: [left @ right])[:2] == (terms, vectors + more)
    # Rows stored along m, in place: a line of each k.
    assert asks(lambda: [filled(380, 100).T @ filled(380, 512)])[1] == vectors + 2


def test_transposed_products_are_turned_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tiles are columns of the result, of which rows would be gathered."""
    a, b = filled(1024, 512), filled(128, 1024)
    text = assembly(lambda: [a.T @ b.T], ISAS["avx512"].cpu, monkeypatch)
    assert "vfmadd" in text
    assert not re.search(r"vgather|vscatter", text)


def test_six_columns_of_a_result_are_finished_in_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of a transposed product has so many with AVX2, which were written one by one."""
    other, cpu = filled(256, 1024), cpu_of("znver3", "avx2", 32, 512)
    text = assembly(lambda: [other * product("NT", 256, 1024, 784)[2]], cpu, monkeypatch)
    assert re.search(r"vmulps\t.*%xmm\d+$", text, re.MULTILINE)
    assert not re.search(r"vgather|vscatter", text)


@pytest.mark.parametrize("m", [8, 11, 14])
def test_tiles_of_one_vector_keep_each_sum_once(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_problem, "FEW_TERMS", 0)
    isa = ISAS["avx2"]
    text = assembly(lambda: [product("NT", m, 8, 50)[2]], isa.cpu, monkeypatch)
    check_tile(text, isa, m)


@pytest.mark.parametrize(
    "shape", [(256, 1024, 1024), (50, 256, 784), (128, 256, 784), (75, 256, 784)], ids=str
)
def test_last_rows_of_a_transposed_product_are_finished_in_loops(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written out one by one, they were more code than all else, and took seconds to compile."""
    cpu = cpu_of("znver3", "avx2", 32, 512)
    text = assembly(lambda: [product("NT", *shape)[2]], cpu, monkeypatch)
    modules = re.split(r'^\t\.file\t"', text, flags=re.MULTILINE)
    stages = [module for module in modules if f"_{ENTRY}:" not in module]
    instructions = re.findall(r"^\t[a-z]", "".join(stages), re.MULTILINE)
    assert len(instructions) < 1300


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        ("NN", (1000, 100, 10)),
        ("NN", (256, 1024, 10)),
        ("NN", (257, 100, 48)),
        ("NN", (33, 65, 129)),
        ("NT", (16, 4096, 4096)),
        ("TN", (384, 128, 1024)),
    ],
    ids=str,
)
def test_what_llvm_does_to_other_loops_spills_no_sums(
    form: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It unrolled loops over a k of known length, and looked for vectors in rows that are left."""
    cpu = cpu_of("znver3", "avx2", 32, 512)
    text = assembly(lambda: [product(form, *shape)[2]], cpu, monkeypatch)
    check_tile(text, ISAS["avx2"], 11)
