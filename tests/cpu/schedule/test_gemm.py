"""The GEMM schedules against float64 numpy: shapes, layouts, epilogues, other targets, threads."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linked import Linked

from minitorch_tvm.compiler.assemble import Place
from minitorch_tvm.compiler.loops import (
    Builder,
    const,
    load,
    pointer_buffer,
    seq,
    store,
)
from minitorch_tvm.compiler.schedule.cpu import gemm_outer, gemm_tiling
from minitorch_tvm.compiler.schedule.cpu.gemm import Gemm, gemm_stages
from minitorch_tvm.compiler.schedule.cpu.gemm_problem import Panels, Problem
from minitorch_tvm.compiler.target import CpuTarget, host
from minitorch_tvm.core.tvm_api import global_func, tvm

LAYOUTS = ((False, False), (False, True), (True, False), (True, True))
rng = np.random.default_rng(7)


def aligned(values: np.ndarray) -> np.ndarray:
    raw = np.zeros(values.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


@dataclasses.dataclass
class Case:
    """One product: its arrays, in the layout the kernel reads, and how to run it."""

    spec: Gemm
    a: np.ndarray
    b: np.ndarray
    extra: np.ndarray  # read by the epilogue, one per column
    out: np.ndarray
    run: Callable[[], None]
    stage_names: list[str]
    scratch: int  # buffers that the stages share

    def want(self) -> np.ndarray:
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        a = a.swapaxes(1, 2) if self.spec.a_transposed else a
        b = b.swapaxes(1, 2) if self.spec.b_transposed else b
        return a @ b


def build(
    spec: Gemm,
    *,
    cpu: CpuTarget | None = None,
    epilogue: str = "plain",
    shared_b: bool = False,
    a_scale: float | None = None,
    b_scale: float | None = None,
    workers: int = 2,
) -> Case:
    """Compile a product over random operands.

    ``shared_b``: every batch reads the same B.  ``a_scale`` and ``b_scale``: the operand is an
    expression (the stored value times a number), not plain memory.  ``epilogue`` "erase": B is set
    to zero as results are written, one of its elements with each.
    """
    cpu = cpu or host()
    spec = dataclasses.replace(
        spec,
        a_pitch=(spec.m if spec.a_transposed else spec.k) if a_scale is None else None,
        b_pitch=(spec.k if spec.b_transposed else spec.n) if b_scale is None else None,
        b_batched=not shared_b,
    )
    t, dtype = spec.batch, spec.dtype
    shape_a = (t, spec.k, spec.m) if spec.a_transposed else (t, spec.m, spec.k)
    batch_b = 1 if shared_b else t
    shape_b = (batch_b, spec.n, spec.k) if spec.b_transposed else (batch_b, spec.k, spec.n)
    shapes = {"a": shape_a, "b": shape_b, "extra": (spec.n,), "out": (t, spec.m, spec.n)}
    buffers = {name: pointer_buffer(shape, dtype, name) for name, shape in shapes.items()}
    arrays = {
        name: aligned(rng.standard_normal(shape).astype(dtype)) for name, shape in shapes.items()
    }

    def load_a(bt: Any, i: Any, k: Any) -> Any:
        index = (bt, k, i) if spec.a_transposed else (bt, i, k)
        value = load(buffers["a"], *index)
        return value if a_scale is None else value * const(a_scale, dtype)

    def load_b(bt: Any, k: Any, j: Any) -> Any:
        first = const(0) if shared_b else bt
        index = (first, j, k) if spec.b_transposed else (first, k, j)
        value = load(buffers["b"], *index)
        return value if b_scale is None else value * const(b_scale, dtype)

    def write(bt: Any, i: Any, j: Any, value: Any) -> Any:
        if epilogue == "bias_relu":
            value = tvm().tirx.max(value + load(buffers["extra"], j), const(0.0, dtype))
        elif epilogue == "accumulate":
            value = value + load(buffers["out"], bt, i, j)
        elif epilogue == "erase":
            erased = store(
                buffers["b"], const(0.0, dtype), bt, *((j, i) if spec.b_transposed else (i, j))
            )
            return seq(store(buffers["out"], value, bt, i, j), erased)
        return store(buffers["out"], value, bt, i, j)

    builder = Builder()
    stages = gemm_stages(spec, load_a, load_b, write, builder, cpu)
    assert stages is not None
    pairs = [(buffers[name], arrays[name]) for name in shapes]
    for scratch in builder.scratch:
        # NaN (as two bfloat16 too) shows every read of a scratch element that no stage wrote.
        words = np.full([int(n) for n in scratch.shape], 0x7FC07FC0, np.uint32)
        whole = dtype != "float64"
        pairs.append((scratch, aligned(words if whole else np.full(words.shape, np.nan))))

    def run() -> None:
        """No stages, nothing to do."""

    if stages:

        def place(buffer: Any) -> Place:
            return Place([known.same_as(buffer) for known, _ in pairs].index(True))

        kernel = Linked(stages, place, workers, cpu)
        memory = [array for _, array in pairs]

        def run() -> None:
            kernel(memory)

    return Case(
        spec,
        arrays["a"],
        arrays["b"],
        arrays["extra"],
        arrays["out"],
        run,
        [s.name for s in stages],
        len(builder.scratch),
    )


def before_a_wall(array: np.ndarray) -> np.ndarray:
    """A copy that ends where memory does: reading on is a segmentation fault."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    end = pages * mmap.PAGESIZE
    whole = np.frombuffer(memory, np.uint8)
    address, nothing_allowed = ctypes.c_void_p(whole.ctypes.data + end), 0
    protect = ctypes.CDLL(None).mprotect
    assert protect(address, ctypes.c_size_t(mmap.PAGESIZE), nothing_allowed) == 0
    copy: np.ndarray = whole[end - array.nbytes : end].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def check(case: Case, want: np.ndarray) -> None:
    eps = np.finfo(case.spec.dtype).eps
    # Terms and partial sums are of order 1 and sqrt(k): rounding grows like k at most.
    np.testing.assert_allclose(case.out, want, rtol=8 * eps, atol=eps * (16 + 4 * case.spec.k))


def run_and_check(case: Case, epilogue: str) -> None:
    """Run a case once, and compare it with what its epilogue makes of the product."""
    before, want = case.out.astype(np.float64), case.want()
    case.run()
    if epilogue == "bias_relu":
        want = np.maximum(want + case.extra, 0.0)
    elif epilogue == "accumulate":
        want = before + want
    check(case, want)


WALLED = [(1, 33, 35, 39), (1, 31, 65, 130), (2, 70, 3, 20)]


@pytest.mark.parametrize(("a_transposed", "b_transposed"), LAYOUTS)
@pytest.mark.parametrize("shape", WALLED, ids=lambda s: "x".join(map(str, s)))
def test_nothing_behind_an_operand_is_read(
    shape: tuple[int, ...], a_transposed: bool, b_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.aligned", before_a_wall)
    case = build(Gemm(*shape, "float32", a_transposed, b_transposed))
    case.run()
    check(case, case.want())


SHAPES = [
    (1, 1, 1, 1),
    (1, 7, 13, 5),
    (1, 97, 101, 89),
    (1, 64, 10, 100),
    (1, 10, 64, 37),
    (1, 1, 130, 71),
    (1, 130, 1, 71),
    (1, 1, 1, 300),
    (2, 31, 33, 17),
    (3, 40, 20, 3),
]


@pytest.mark.parametrize(("a_transposed", "b_transposed"), LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_shapes(shape: tuple[int, ...], a_transposed: bool, b_transposed: bool) -> None:
    case = build(Gemm(*shape, "float32", a_transposed, b_transposed))
    case.run()
    check(case, case.want())


@pytest.mark.parametrize(("a_transposed", "b_transposed"), LAYOUTS)
def test_float64(a_transposed: bool, b_transposed: bool) -> None:
    case = build(Gemm(1, 61, 83, 47, "float64", a_transposed, b_transposed))
    case.run()
    check(case, case.want())


@pytest.mark.parametrize(("a_transposed", "b_transposed"), LAYOUTS)
def test_large_k_is_summed_in_blocks(
    a_transposed: bool, b_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_tiling, "_by_part", lambda *_: None)
    monkeypatch.setattr(gemm_tiling, "_crosses_well", lambda _: False)  # or they stay in place
    # Several blocks of k (the last one odd), of row groups and of panel groups.
    small_cache = dataclasses.replace(host(), l1_bytes=8 << 10, l2_bytes=32 << 10)
    spec = Gemm(2, 145, 170, 333, "float32", a_transposed, b_transposed)
    case = build(spec, cpu=small_cache)
    assert (case.stage_names[0], case.stage_names[-1]) == ("gemm_pack", "gemm")
    case.run()
    check(case, case.want())
    fused = build(spec, cpu=small_cache, a_scale=2.0, b_scale=0.5, epilogue="accumulate")
    before = fused.out.astype(np.float64)
    fused.run()
    check(fused, before + fused.want())


@pytest.mark.parametrize(("a_transposed", "b_transposed"), LAYOUTS)
def test_operands_far_apart_in_memory(a_transposed: bool, b_transposed: bool) -> None:
    # Rows 4096 bytes apart, and operands large enough that scattered rows are packed.
    case = build(Gemm(1, 129, 165, 1024, "float32", a_transposed, b_transposed))
    case.run()
    check(case, case.want())


# Each value of one argument meets each of any other.
@pytest.mark.parametrize(
    ("shape", "batch", "a_transposed", "dtype"),
    [
        ((20, 1000, 701), 1, False, "float32"),
        ((20, 1000, 701), 2, True, "float64"),
        ((33, 2100, 450), 1, True, "float64"),
        ((33, 2100, 450), 2, False, "float32"),
        ((17, 1030, 333), 1, True, "float32"),
        ((17, 1030, 333), 2, False, "float64"),
        ((110, 184, 801), 1, False, "float64"),
        ((110, 184, 801), 2, True, "float32"),
    ],
)
def test_panels_are_packed_part_by_part(
    shape: tuple[int, int, int],
    batch: int,
    a_transposed: bool,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the thread that uses them, for one block of k after the other."""
    parts: list[int] = []
    fill = Panels.fill_part

    def watched(self: Panels, bt: Any, panels: Any, steps: Any) -> Any:
        parts.append(self.memory.shape[2])
        return fill(self, bt, panels, steps)

    monkeypatch.setattr(Panels, "fill_part", watched)
    monkeypatch.setattr(gemm_tiling, "_keeps", lambda *_: False)
    monkeypatch.setattr(gemm_tiling, "_may_own", lambda *_: False)
    monkeypatch.setattr(gemm_tiling, "_stays", lambda *_: False)
    monkeypatch.setattr(gemm_outer, "fastest", lambda pb, cpu: (*gemm_tiling.choose(pb, cpu), pb))
    cpu = dataclasses.replace(host(), matrix_unit=False, l1_bytes=16 << 10, l2_bytes=64 << 10)
    cpu = dataclasses.replace(cpu, vector_bytes=32, vector_registers=16)
    for epilogue in ("bias_relu", "accumulate"):
        case = build(Gemm(batch, *shape, dtype, a_transposed, False), cpu=cpu, epilogue=epilogue)
        run_and_check(case, epilogue)
        assert "gemm_pack" not in case.stage_names
    assert parts
    assert max(parts) < shape[2] // 2


@pytest.mark.parametrize(("m", "packed"), [(36, 0), (100, 0), (128, 1), (129, 1)])
def test_short_rows_stored_transposed_are_read_where_they_are(m: int, packed: int) -> None:
    """Others are packed, by a stage if several tiles need them."""
    cpu = dataclasses.replace(host(), matrix_unit=False, l1_bytes=48 << 10, l2_bytes=1 << 20)
    case = build(Gemm(1, m, 300, 300, "float32", True, False), cpu=cpu)
    assert case.scratch == packed + ("gemm_pack" in case.stage_names)
    case.run()
    check(case, case.want())


@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("m", [7, 10])
def test_few_rows_and_columns_on_many_pages(
    m: int, a_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Lines of the columns are 4000 bytes apart: a tile reads a part of 32 of them at a time.
    few = m if host().vector_registers == 32 else m // 2  # rows, all in one tile
    spec, blocks, found = (
        Gemm(1, few, 1000, 101, "float32", a_transposed, False),
        [],
        gemm_tiling._k_block,
    )

    def watched(*arguments: Any) -> int:
        blocks.append(found(*arguments))
        return blocks[-1]

    monkeypatch.setattr(gemm_tiling, "_k_block", watched)
    case = build(spec)
    assert case.stage_names == ["gemm"]
    assert blocks[0] == 32
    case.run()
    check(case, case.want())
    monkeypatch.setattr(gemm_tiling, "_PAGES", 1 << 20)
    whole = build(spec)
    assert blocks[-1] != 32
    whole.a[...], whole.b[...] = case.a, case.b
    whole.run()
    np.testing.assert_array_equal(case.out, whole.out)  # only the order of reading differs


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("shape", [(1, 1030, 515), (1, 1024, 512), (3, 300, 1101), (1, 2500, 129)])
def test_a_large_matrix_is_streamed(shape: tuple[int, ...], column: bool) -> None:
    """One row times whole rows of it, or the same transposed."""
    batch, n, k = shape
    m, n = (n, 1) if column else (1, n)
    for transposed in (False, True):  # the vector, which is the same in memory
        forms = (True, transposed) if column else (transposed, False)
        spec = Gemm(batch, m, n, k, "float32", *forms)
        case = build(spec)
        assert case.stage_names == ["gemm_stream", "gemm_stream_sum"]
        case.run()
        check(case, case.want())
        scales = {"b_scale" if column else "a_scale": 0.5}  # the vector is computed on the way
        fused = build(spec, epilogue="accumulate", **scales)
        before = fused.out.astype(np.float64)
        fused.run()
        assert fused.stage_names == ["gemm_stream", "gemm_stream_sum"]
        check(fused, before + 0.5 * fused.want())


def test_small_or_computed_matrices_are_not_streamed() -> None:
    for spec, scale in (
        (Gemm(1, 1, 300, 200, "float32", False, False), None),
        (Gemm(1, 1, 1030, 515, "float32", False, False), 0.5),
    ):
        case = build(spec, cpu=dataclasses.replace(host(), l2_bytes=1 << 20), b_scale=scale)
        assert "gemm_stream" not in case.stage_names
        case.run()
        check(case, case.want() * (scale or 1.0))


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("shape", [(1, 40, 70, 50), (2, 33, 129, 65), (1, 40, 16, 90)])
def test_a_small_product_is_one_stage(
    shape: tuple[int, ...], b_transposed: bool, computed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = dataclasses.replace(host(), workers=2, matrix_unit=False)
    spec, scale = Gemm(*shape, "float32", False, b_transposed), 0.5 if computed else None

    def made() -> Case:
        return build(spec, cpu=cpu, b_scale=scale, epilogue="accumulate")

    one = made()
    assert one.stage_names == ["gemm"]
    before = one.out.copy()
    one.run()
    check(one, before + one.want() * (scale or 1.0))
    for shares in ("_may_own", "_keeps"):
        monkeypatch.setattr(gemm_tiling, shares, lambda *_: False)
    two = made()
    in_place = not b_transposed and not computed
    assert two.stage_names == (["gemm"] if in_place else ["gemm_pack", "gemm"])
    two.a[...], two.b[...], two.out[...] = one.a, one.b, before
    two.run()
    np.testing.assert_array_equal(one.out, two.out)


@pytest.mark.parametrize(
    ("shape", "dtype", "b_transposed"),
    [
        ((1, 150, 200, 90), "float32", False),
        ((1, 150, 200, 90), "float64", True),
        ((1, 149, 301, 89), "float32", True),
        ((1, 149, 301, 89), "float64", False),
    ],
)
def test_rows_that_every_thread_packs(
    shape: tuple[int, ...], dtype: str, b_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored along m, for tiles with all rows; same bits as from a stage that packs them."""
    spec = Gemm(*shape, dtype, True, b_transposed)
    cpu = dataclasses.replace(host(), l1_bytes=16 << 10, l2_bytes=1 << 20, matrix_unit=False)
    monkeypatch.setattr(gemm_tiling, "_stays", lambda *_: False)  # columns read in place
    monkeypatch.setattr(gemm_tiling, "_NEAR_ROWS_SHARE", 1.0)
    monkeypatch.setattr(gemm_tiling, "_STAGE_CYCLES", 1e6)

    def made() -> Case:
        return build(spec, cpu=cpu, epilogue="accumulate")

    one = made()
    assert one.stage_names == ["gemm"]
    before = one.out.copy()
    one.run()
    check(one, before + one.want())
    monkeypatch.setattr(gemm_outer, "keeps_rows", lambda *_: False)
    two = made()
    assert two.stage_names == ["gemm_pack_rows", "gemm"]
    two.a[...], two.b[...], two.out[...] = one.a, one.b, before
    two.run()
    np.testing.assert_array_equal(one.out, two.out)


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> CpuTarget:
    """Threads pack panels, and keep them for all of their tiles that need the same ones."""
    monkeypatch.setattr(gemm_tiling, "_may_own", lambda *_: False)  # tiles with all rows
    monkeypatch.setattr(gemm_tiling, "_stays", lambda *_: False)  # columns read in place
    monkeypatch.setattr(gemm_tiling, "_keeps", lambda *_: True)
    return dataclasses.replace(
        host(), l1_bytes=32 << 10, l2_bytes=128 << 10, workers=2, matrix_unit=False
    )


# Each layout and each shape with operands that are computed, and with others.
@pytest.mark.parametrize(
    ("shape", "layout", "computed"),
    [
        (shape, layout, (i + j) % 2 == 1)
        for i, shape in enumerate(
            [(1, 150, 300, 96), (2, 100, 230, 97), (1, 170, 400, 23), (3, 120, 40, 64)]
        )
        for j, layout in enumerate(LAYOUTS)
    ],
)
def test_threads_keep_the_panels_they_have_packed(
    shape: tuple[int, ...],
    layout: tuple[bool, bool],
    computed: bool,
    keeping: CpuTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, scale = Gemm(*shape, "float32", *layout), 0.5 if computed else None

    def made() -> Case:
        return build(spec, cpu=keeping, b_scale=scale, epilogue="accumulate")

    one = made()
    assert "gemm_pack" not in one.stage_names
    before = one.out.copy()
    one.run()
    check(one, before + one.want() * (scale or 1.0))
    monkeypatch.setattr(gemm_tiling, "_keeps", lambda *_: False)
    two = made()
    assert "gemm_pack" in two.stage_names
    two.a[...], two.b[...], two.out[...] = one.a, one.b, before
    two.run()
    np.testing.assert_array_equal(one.out, two.out)


@pytest.mark.parametrize("b_transposed", [False, True])
def test_panels_are_packed_once_for_all_rows(b_transposed: bool, keeping: CpuTarget) -> None:
    spec = Gemm(1, 96, 300, 96, "float32", False, b_transposed)
    case = build(spec, cpu=dataclasses.replace(keeping, workers=1), epilogue="erase", workers=1)
    want = case.want()
    case.run()
    check(case, want)
    assert not case.b.any()


def test_rows_near_by_are_not_packed() -> None:
    # k innermost nowhere: the rows are read across, the columns as they are.
    small, large = (Gemm(1, n, n, n, "float32", True, False) for n in (40, 144))
    for spec, packed in ((small, False), (large, True)):
        case = build(spec, cpu=dataclasses.replace(host(), l1_bytes=32 << 10, matrix_unit=False))
        assert bool(case.stage_names[1:] or case.scratch) is packed
        case.run()
        check(case, case.want())


@pytest.mark.parametrize("m", [1, 5, 40])
def test_shared_operand_and_accumulating_epilogue(m: int) -> None:
    # out += product finds an element that is written twice or not at all; B is packed once.
    case = build(Gemm(3, m, 50, 40, "float32", False, False), epilogue="accumulate", shared_b=True)
    before = case.out.astype(np.float64)
    case.run()
    check(case, before + case.want())


@pytest.mark.parametrize(("a_transposed", "b_transposed"), [LAYOUTS[0], LAYOUTS[3]])
@pytest.mark.parametrize("shape", [(1, 53, 100, 29), (1, 70, 3, 64)])
def test_fused_operands_and_epilogue(
    shape: tuple[int, ...], a_transposed: bool, b_transposed: bool
) -> None:
    spec = Gemm(*shape, "float32", a_transposed, b_transposed)
    case = build(spec, epilogue="bias_relu", a_scale=0.5, b_scale=3.0)
    case.run()
    check(case, np.maximum(1.5 * case.want() + case.extra, 0.0))


def test_empty_sum_writes_zeros_through_the_epilogue() -> None:
    case = build(Gemm(2, 5, 7, 0, "float32", False, False), epilogue="bias_relu")
    case.run()
    np.testing.assert_array_equal(case.out, np.broadcast_to(np.maximum(case.extra, 0), (2, 5, 7)))


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5)])
def test_empty_result_needs_no_stage(shape: tuple[int, ...]) -> None:
    assert build(Gemm(*shape, "float32", False, False)).stage_names == []


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
def test_other_dtypes_are_declined(dtype: str) -> None:
    def unused(*_: Any) -> Any:
        raise AssertionError("a declined product must not be lowered")

    spec = Gemm(1, 4, 4, 4, dtype, False, False)
    assert gemm_stages(spec, unused, unused, unused, Builder(), host()) is None


_SMALLER = {
    "avx2": (32, 16, ("-avx512f", "-avx512vl", "-avx512bw", "-avx512dq")),
    "sse": (16, 16, ("-avx512f", "-avx2", "-avx", "-fma")),
    "neon-sized": (16, 32, ()),
}


@pytest.mark.parametrize("name", _SMALLER)
@pytest.mark.parametrize("shape", [(1, 50, 45, 33), (1, 3, 29, 40)])
def test_other_vector_sizes(name: str, shape: tuple[int, ...]) -> None:
    vector_bytes, registers, mattr = _SMALLER[name]
    cpu = dataclasses.replace(
        host(),
        vector_bytes=vector_bytes,
        vector_registers=registers,
        mattr=mattr,
        matrix_unit=False,
    )
    case = build(Gemm(*shape, "float32", False, True), cpu=cpu)
    case.run()
    check(case, case.want())


@pytest.mark.parametrize("shape", [(1, 40, 50, 30), (1, 2, 50, 40)])
def test_nan_and_infinity_reach_exactly_their_row_and_column(shape: tuple[int, ...]) -> None:
    case = build(Gemm(*shape, "float32", False, True))
    case.a[0, 1, 3] = np.nan
    case.b[0, 49, 29] = np.inf  # last column, last step of the vectorised part
    case.run()
    want = case.want()
    np.testing.assert_array_equal(np.isnan(case.out), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(case.out), np.isinf(want))
    assert np.isnan(want).sum() == 50


@pytest.mark.parametrize(
    "spec",
    [
        Gemm(1, 75, 200, 300, "float32", True, True),
        Gemm(1, 10, 500, 64, "float32", False, True),
        Gemm(5, 33, 20, 40, "float64", False, False),
    ],
)
def test_one_and_two_threads_give_the_same_bits(spec: Gemm) -> None:
    case = build(spec)
    configure = global_func("runtime.config_threadpool")
    configure(1, 2)
    case.run()
    two = case.out.copy()
    case.out[...] = 0
    configure(1, 1)
    try:
        case.run()
    finally:
        configure(1, 2)
    np.testing.assert_array_equal(case.out, two)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 120), st.integers(1, 90)),
    layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(["float32", "float64"]),
    scales=st.tuples(st.sampled_from([None, 2.0]), st.sampled_from([None, 0.5])),
)
def test_random_products(
    shape: tuple[int, ...],
    layout: tuple[bool, bool],
    dtype: str,
    scales: tuple[float | None, float | None],
) -> None:
    case = build(Gemm(*shape, dtype, *layout), a_scale=scales[0], b_scale=scales[1])
    case.run()
    check(case, case.want() * (scales[0] or 1.0) * (scales[1] or 1.0))


@pytest.mark.parametrize(
    ("shape", "apart"), [((2, 32, 256, 400), True), ((2, 320, 300, 70), False)]
)
def test_costly_epilogues_of_transposed_products_run_along_the_users_rows(
    shape: tuple[int, ...], apart: bool
) -> None:
    """There is no vector in the few elements that a tile of such a product has in a row."""
    cpu = dataclasses.replace(host(), matrix_unit=False)
    spec = Gemm(*shape, "float32", False, True)
    names = {}
    for costly in (False, True):
        case = build(dataclasses.replace(spec, costly=costly), cpu=cpu, epilogue="accumulate")
        before = case.out.copy()
        case.run()
        check(case, case.want() + before)
        names[costly] = case.stage_names
    assert "gemm_finish" not in names[False]
    assert ("gemm_finish" in names[True]) == apart


@pytest.mark.parametrize(("mr", "narrow"), [(9, False), (9, True), (6, True)])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((65, 90, 33), "float32"),
        ((41, 57, 20), "float64"),
        ((100, 48, 64), "float64"),
        ((130, 23, 40), "float32"),
    ],
)
def test_tiles_that_are_turned(
    shape: tuple[int, int, int], mr: int, narrow: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transposed products, whose tiles have more rows than squares, or fewer; the last has few."""
    turned: list[tuple[int, ...]] = []
    turn = gemm_outer._Compute._turned

    def watched(self: Any, out: Any) -> Any:
        turned.append(out.shape)
        return turn(self, out)

    monkeypatch.setattr(gemm_tiling, "LARGE", 0)
    monkeypatch.setattr(gemm_tiling, "choose", functools.partial(_transposed_tiling, mr))
    monkeypatch.setattr(gemm_outer._Compute, "_turned", watched)
    cpu = dataclasses.replace(host(), matrix_unit=False)
    if narrow:
        width = 16 if mr > 8 else 32
        cpu = dataclasses.replace(cpu, vector_bytes=width, vector_registers=30)
    for epilogue in ("bias_relu", "accumulate"):
        case = build(Gemm(1, *shape, dtype, True, True), cpu=cpu, epilogue=epilogue)
        run_and_check(case, epilogue)
    assert turned


def _transposed_tiling(mr: int, pb: Problem, cpu: CpuTarget) -> tuple[float, gemm_tiling.Tiling]:
    """The tiling of one product and of its transpose, of which the latter is said to be faster."""
    lanes = cpu.lanes(pb.itemsize)
    nv = 1 if pb.n < 2 * lanes else 2
    tiling = gemm_tiling.Tiling(mr, nv, nv, lanes, False, pb.k, 2, 1)
    return float(not pb.swapped), tiling
