"""Which tiles and stages products get: chosen from sizes and the target alone, without running."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from minitorch_tvm.compiler.loops import Builder, const, load, pointer_buffer, seq, store
from minitorch_tvm.compiler.schedule.cpu import gemm, gemm_outer, gemm_requests, gemm_tiling
from minitorch_tvm.compiler.schedule.cpu.gemm import Gemm, gemm_stages
from minitorch_tvm.compiler.schedule.cpu.gemm_problem import Panels, Problem
from minitorch_tvm.compiler.target import CpuTarget
from minitorch_tvm.core.tvm_api import tvm

ZEN = CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 1 << 20, workers=2)


@pytest.mark.parametrize(
    ("shape", "workers", "kept"),
    [
        ((256, 1024, 1024), 2, True),
        ((500, 1000, 700), 2, True),
        ((256, 1024, 1024), 16, False),  # as many threads as panels: most would pack one
        ((1024, 1024, 4096), 2, False),  # a panel would fill most of the cache
    ],
)
def test_where_threads_pack_panels(shape: tuple[int, int, int], workers: int, kept: bool) -> None:
    tiling = _tiling(*shape, False, workers=workers, l2_bytes=1 << 20)
    assert tiling.own_panels == kept
    assert tiling.row_group * tiling.mr < shape[0]


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        (256, True),  # a stage's panels would come from the other core's cache, for so few rows
        (4096, False),  # and here more of them serve for a block of rows that is read
    ],
)
def test_threads_keep_panels_that_few_rows_use(rows: int, kept: bool) -> None:
    l2 = 512 << 10
    cpu = dataclasses.replace(ZEN, vector_bytes=32, vector_registers=16, l1_bytes=32 << 10)
    pb, _, _ = _chosen(rows, 1024, 1024, False, 2, l2)
    tiling = gemm_tiling.choose(pb, dataclasses.replace(cpu, l2_bytes=l2))[1]
    assert not tiling.direct
    assert tiling.own_panels == kept
    assert (tiling.panel_group * tiling.nr * pb.k * pb.itemsize <= 0.4 * l2) == kept
    assert tiling.panel_group * tiling.nr * tiling.k_block * pb.itemsize <= 0.35 * l2


@pytest.mark.parametrize(
    ("shape", "b_transposed", "by_part"),
    [
        ((16, 4096, 4096), False, True),
        ((100, 2048, 4096), False, True),
        ((16, 4096, 4096), True, False),  # its panels are transposed
        ((500, 1000, 4000), False, False),  # sums of all rows would not stay near
        ((16, 4096, 512), False, False),  # panels of all k do
        ((16, 200, 4096), False, False),  # too few panels for two threads
    ],
)
def test_few_rows_have_their_panels_packed_part_by_part(
    shape: tuple[int, int, int], b_transposed: bool, by_part: bool
) -> None:
    l2 = 512 << 10
    cpu = dataclasses.replace(ZEN, vector_bytes=32, vector_registers=16, l1_bytes=32 << 10)
    pb, _, _ = _chosen(*shape, b_transposed, 2, l2)
    t = gemm_tiling.choose(pb, dataclasses.replace(cpu, l2_bytes=l2))[1]
    assert t.by_part == by_part
    if by_part:
        assert t.own_panels
        assert not gemm_tiling.is_alone(pb, t)
        assert t.k_block < pb.k
        assert t.row_group * t.mr >= pb.m
        width = t.panel_group * t.nr * pb.itemsize
        assert width >= 512
        assert width * t.k_block <= l2 // 2


@pytest.mark.parametrize("m", [16, 30, 96, 180, 240])
@pytest.mark.parametrize("kp", [0, 1, 12])
def test_each_step_of_the_next_block_is_asked_for_once(
    m: int, kp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many blocks of rows share it out; after the last block, the next panels' first."""
    cpu = CpuTarget("x86-64-v3", (), 32, 16, 32 << 10, 512 << 10, workers=2)
    memory = pointer_buffer((4096, 4096), "float32", "b")
    simplify = tvm().sym.Analyzer().simplify
    asked: list[tuple[int, int]] = []

    def column(_: Any, k: Any, j: Any) -> Any:
        asked.append((int(simplify(k)), int(simplify(j))))
        return load(memory, k, j)

    def all_of(extent: int, body: Any, _: str) -> Any:
        return seq([body(const(i)) for i in range(extent)])

    def if_so(condition: Any, then: Any) -> Any:
        if not int(simplify(condition)):
            asked[:] = asked[:known]
        return then

    monkeypatch.setattr(gemm_requests, "serial", all_of)
    monkeypatch.setattr(gemm_requests, "when", if_so)
    pb = dataclasses.replace(_chosen(m, 4096, 4096, False, 2, 1 << 20)[0], col=column)
    t = gemm_tiling.choose(pb, cpu)[1]
    assert t.by_part
    columns = Panels.of_thread(pb, cpu, t.panel_group, t.k_block, t.nr, t.nr)
    blocks = -(-m // t.mr)
    requests = gemm_requests.Requests(pb, t, cpu, columns, blocks, t.panel_group, t.k_block)
    for part in range(-(-t.k_block // 16)):
        for block in range(blocks):
            known = len(asked)
            requests.for_panels(*(const(n) for n in (0, block, 0, kp, part)))
    last = kp == -(-4096 // t.k_block) - 1
    first, step = (0 if last else (kp + 1) * t.k_block), -(-16 // blocks)
    assert {j for _, j in asked} == {t.panel_group * t.nr * last + c for c in range(0, t.nr, 16)}
    steps = [k for k, j in asked if j == asked[0][1]]
    end = min(4096, first + t.k_block)
    assert set(range(first, end)) <= set(steps)
    assert max(steps) < end + step
    within = [k for k in steps if k < end - 1]  # what would be behind the end is the last
    assert len(within) == len(set(within))


def test_rows_from_memory_are_read_for_more_panels() -> None:
    """Stored along m, they are packed: of 64 MiB, a block is kept near for a group of panels."""
    cpu = dataclasses.replace(ZEN, vector_bytes=32, vector_registers=16, l1_bytes=32 << 10)
    cpu = dataclasses.replace(cpu, l2_bytes=512 << 10)
    problems = (
        _chosen(m, 4096, 4096, False, 2, 1 << 20, a_transposed=True)[0] for m in (960, 4096)
    )
    few, many = (gemm_tiling.choose(pb, cpu)[1] for pb in problems)
    assert few.mr * few.k_block * 4 > cpu.l1_bytes // 2 >= many.mr * many.k_block * 4
    assert many.panel_group > few.panel_group


@pytest.mark.parametrize(("workers", "k"), [(2, 32), (2, 100), (5, 32)])
def test_few_tiles_are_shared_out_evenly(workers: int, k: int) -> None:
    """A weight gradient of 100 x 256: 17 blocks of six rows would leave a core idle."""
    tiling = _tiling(100, 256, k, False, workers, 1 << 20, a_transposed=True)
    assert tiling.direct
    assert tiling.panel_group * tiling.nr >= 256
    assert tiling.row_group == 1
    assert -(-100 // tiling.mr) % workers == 0


@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("n", [255, 256, 257])
def test_products_that_stay_in_caches_have_no_packing_stage(
    n: int, a_transposed: bool, b_transposed: bool
) -> None:
    """Nothing comes from another core: tiles or threads pack rows and columns, or read them."""
    spec = Gemm(1, n, n, n, "float32", a_transposed, b_transposed)
    assert _stage_names(spec, ZEN) == ["gemm"]


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        # One group of panels, which every thread packs, or reads where they are.
        ((1024, 384, 128), ["gemm"]),
        ((1000, 100, 256), ["gemm"]),
        # Two of them, of which a stage packs each once.
        ((1024, 512, 256), ["gemm_pack", "gemm"]),
        ((256, 32, 784), ["gemm"]),
        # One, but packing it twice is more than a little of the product.
        ((128, 32, 4096), ["gemm_pack", "gemm"]),
    ],
    ids=str,
)
def test_where_a_stage_packs_panels(shape: tuple[int, int, int], names: list[str]) -> None:
    assert _stage_names(Gemm(1, *shape, "float32", False, True), ZEN) == names


@pytest.mark.parametrize("b_transposed", [False, True])
def test_columns_that_a_stage_would_pack_are_read_in_place(b_transposed: bool) -> None:
    """If they are stored along n, though packing them is cheaper by itself."""
    names = _stage_names(Gemm(1, 512, 128, 1024, "float32", False, b_transposed), ZEN)
    assert names == (["gemm_pack", "gemm"] if b_transposed else ["gemm"])


@pytest.mark.parametrize("a_transposed", [False, True])
def test_a_group_is_packed_by_a_stage_where_its_size_is_told(a_transposed: bool) -> None:
    """Of weight gradients it is the batch, and memory of a thread has one size."""
    tiling = _tiling(1000, 256, 100, False, l2_bytes=1 << 20, a_transposed=a_transposed)
    assert not tiling.direct
    assert tiling.panel_group * tiling.nr >= 256
    assert tiling.own_panels != a_transposed


@pytest.mark.parametrize(("pitch", "copied"), [(256, False), (512, False), (1024, True)])
def test_rows_are_copied_where_they_would_evict_each_other(pitch: int, copied: bool) -> None:
    """Eight rows 4096 bytes apart lie in the same places of a first-level cache."""
    pb, cpu, tiling = _chosen(1000, 256, 200, True, 2, 1 << 20)
    pb = dataclasses.replace(pb, row_pitch=pitch)
    tiling = dataclasses.replace(tiling, mr=8, panel_group=2, own_panels=False)
    compute = gemm_outer._Compute(pb, tiling, None, None, cpu)
    assert (compute.strip is not None) == copied


@pytest.mark.parametrize(
    ("m", "k", "near"),
    [
        (100, 300, True),
        (129, 300, False),  # rows of more than 512 bytes
        (100, 500, False),  # of each k a line, of which the cache holds 768
        (128, 80, False),  # lines 512 bytes apart, of which it holds 96
        (64, 40, True),  # all that there is fits
    ],
)
def test_rows_stored_along_m_are_read_in_place_if_a_block_stays_near(
    m: int, k: int, near: bool
) -> None:
    pb, cpu, _ = _chosen(m, 300, k, False, 2, 1 << 20, a_transposed=True)
    assert gemm_tiling.in_place(pb, cpu, 6) == near


@pytest.mark.parametrize(
    ("m", "n", "k", "isa", "mib", "again"),
    [
        (128, 512, 1024, 64, 2, True),
        (128, 513, 1024, 64, 2, False),  # too many panels
        (128, 256, 600, 64, 1, True),
        (128, 257, 600, 64, 1, False),
        (128, 256, 1500, 64, 2, False),  # more than stays in the second-level cache
        (136, 256, 1000, 64, 2, False),  # more than 512 bytes of each k
        (128, 128, 1024, 32, 2, False),  # small tiles leave less time for lines
        (64, 64, 1024, 32, 2, True),
    ],
)
def test_few_columns_have_rows_read_from_the_second_level_cache(
    m: int, n: int, k: int, isa: int, mib: int, again: bool
) -> None:
    pb, cpu, _ = _chosen(m, n, k, False, 2, mib << 20, a_transposed=True)
    cpu = dataclasses.replace(cpu, vector_bytes=isa, vector_registers=32 if isa == 64 else 16)
    assert gemm_tiling.in_place(pb, cpu, 6) == again


@pytest.mark.parametrize(("pitch", "direct"), [(256, True), (1024, False)])
def test_columns_in_place_may_fill_a_second_level_cache(pitch: int, direct: bool) -> None:
    """784 lines a kilobyte apart have as many places there, of 4096 bytes a fourth of them."""
    pb, cpu, _ = _chosen(100, 256, 784, False, 2, 1 << 20)
    tiling = gemm_tiling.choose(dataclasses.replace(pb, col_pitch=pitch), cpu)[1]
    assert tiling.direct == direct


@pytest.mark.parametrize("unit", [False, True])
def test_threads_have_no_say_in_what_schedule_is_chosen(unit: bool) -> None:
    """By these numbers: other schedules add terms in another order."""

    def none(*_: Any) -> Any:
        raise AssertionError("nothing is read for an estimate")

    for m, n, k, b_transposed in (
        (100, 256, 32, False),
        (200, 96, 128, False),
        (128, 256, 128, False),
        (256, 784, 32, False),
        (133, 160, 410, False),
        (256, 256, 256, True),
        (257, 257, 257, True),
        (240, 256, 300, True),
    ):
        b_pitch = k if b_transposed else n
        spec = Gemm(1, m, n, k, "float32", True, b_transposed, a_pitch=m, b_pitch=b_pitch)
        problem = gemm._problem(spec, none, none, none)
        found = set()
        for workers in (1, 2, 3, 8, 64):
            cpu = CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 1 << 20, unit, workers)
            found.add((gemm._cycles(problem, cpu)[1], gemm_tiling.fastest(problem, cpu)[0]))
        assert len(found) == 1, (m, n, k)


def _tiling(
    m: int,
    n: int,
    k: int,
    b_transposed: bool,
    workers: int = 2,
    l2_bytes: int = 2 << 20,
    batch: int = 1,
    shared_b: bool = False,
    a_transposed: bool = False,
) -> gemm_tiling.Tiling:
    """How a product of float32 is cut for cores with AVX-512."""
    sizes = m, n, k, b_transposed, workers, l2_bytes, batch, shared_b, a_transposed
    return _chosen(*sizes)[2]


def _chosen(
    m: int,
    n: int,
    k: int,
    b_transposed: bool,
    workers: int,
    l2_bytes: int,
    batch: int = 1,
    shared_b: bool = False,
    a_transposed: bool = False,
) -> tuple[Problem, CpuTarget, gemm_tiling.Tiling]:
    cpu = CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, l2_bytes, workers=workers)

    def none(*_: Any) -> Any:
        raise AssertionError("nothing is read while a tiling is chosen")

    pb = Problem(
        *(batch, m, n, k, "float32", none, none, not a_transposed, b_transposed),
        *(m if a_transposed else k, k if b_transposed else n, none, True, not shared_b, False),
    )
    return pb, cpu, gemm_tiling.choose(pb, cpu)[1]


@pytest.mark.parametrize(("n", "rows_first"), [(480, True), (2048, False)])
def test_threads_have_rows_of_their_own_where_columns_are_few(n: int, rows_first: bool) -> None:
    """Who comes next finds rows where it wrote them; else panels stay in a core's cache."""
    pb, cpu, tiling = _chosen(1024, n, 256, False, 2, 1 << 20)
    tiling = dataclasses.replace(tiling, own_panels=False)
    compute = gemm_outer._Compute(pb, tiling, None, None, cpu)
    assert compute.rows_first == rows_first
    tiles = compute.row_groups * compute.panel_groups
    groups = (compute.row_groups, compute.panel_groups)
    found = [gemm_outer.place(tile, groups, rows_first, False)[2:] for tile in range(tiles)]
    assert len(set(found)) == tiles
    half = found[: tiles // 2]
    rows = {row for row, _ in half}
    panels = {panel for _, panel in half}
    assert compute.panel_groups > 1
    assert abs(len(rows) - compute.row_groups / (2 if rows_first else 1)) <= 1
    assert abs(len(panels) - compute.panel_groups / (1 if rows_first else 2)) <= 1


def test_columns_that_batches_share_are_packed_once() -> None:
    kept = [
        _tiling(256, 1024, 700, True, 2, 1 << 20, 4, shared).own_panels for shared in (False, True)
    ]
    assert kept == [True, False]


def _stage_names(spec: Gemm, cpu: CpuTarget) -> list[str]:
    """The stages of a product of memory."""
    pitches = {
        "a_pitch": spec.m if spec.a_transposed else spec.k,
        "b_pitch": spec.k if spec.b_transposed else spec.n,
    }
    a, b, c = (pointer_buffer((1 << 24,), "float32", name) for name in "abc")
    stages = gemm_stages(
        dataclasses.replace(spec, **pitches),
        lambda bt, i, k: load(a, bt + i * pitches["a_pitch"] + k),
        lambda bt, k, j: load(b, bt + j * pitches["b_pitch"] + k),
        lambda bt, i, j, value: store(c, value, bt + i * spec.n + j),
        Builder(),
        cpu,
    )
    assert stages is not None
    return [stage.name for stage in stages]


@pytest.mark.parametrize("n", [600, 1024])
def test_few_rows_are_multiplied_from_the_other_side(n: int) -> None:
    """Both operands transposed: as it stands rows are packed, the other way results are turned."""
    assert "gemm_pack_rows" in _stage_names(Gemm(1, n, n, n, "float32", True, True), ZEN)
    # As it stands, all of B would be packed for a fourth of the multiply-adds.
    few = _stage_names(Gemm(1, n // 4, n, n, "float32", True, True), ZEN)
    assert "gemm_pack_rows" not in few


def test_results_that_stay_near_are_turned_instead_of_rows_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both operands transposed, and lines of the result stay near until they are whole."""
    for n in (256, 512):
        pb, _, _ = _chosen(n, n, n, True, 2, 1 << 20, a_transposed=True)
        assert gemm_tiling.fastest(pb, ZEN)[2].swapped, n
    monkeypatch.setattr(gemm_tiling, "_WIDE_TURNED_CYCLES", gemm_tiling._TURNED_CYCLES)
    assert not gemm_tiling.fastest(pb, ZEN)[2].swapped
    # Rows of a ninth element leave a single one behind a square.
    assert gemm_tiling._turning(pb.swap(), ZEN, 9) == gemm_tiling._TURNED_CYCLES


@pytest.mark.parametrize(("n", "part"), [(500, 1024), (512, 512)])
def test_columns_in_place_share_half_the_places(n: int, part: int) -> None:
    """Lines 2048 bytes apart meet 64 sets of 2048: 1024 of them would need all 16 places."""
    t = _tiling(128, n, 1024, False, a_transposed=True)
    assert t.direct
    assert t.k_block == part
    if part < 1024:  # and no other group of rows finds them there
        assert t.row_group * t.mr >= 128
        assert t.panel_group * t.nr < n // 2


def test_threads_share_no_lines_of_turned_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 96 of 100 columns, a tile that has some would end within lines of the result."""
    pb, cpu, _ = _chosen(1000, 96, 256, False, 2, 2 << 20, a_transposed=True)
    pb = dataclasses.replace(pb.swap(), row_pitch=100, whole=100)
    assert pb.result_pitch == 100
    t = gemm_tiling.choose(pb, cpu)[1]
    assert t.direct
    assert t.row_group * t.mr >= 96
    monkeypatch.setattr(gemm_tiling, "_SHARED_CYCLES", 0)
    assert gemm_tiling.choose(pb, cpu)[1].row_group * t.mr < 96


def test_parts_of_rows_that_a_thread_packs_cross_no_lines() -> None:
    """With AVX-512, if little is added to the block of a row and all rows are little."""
    pb, cpu, t = _chosen(256, 256, 256, False, 2, 2 << 20, a_transposed=True)
    assert gemm_tiling.own_rows(pb, t)

    def pitch(mr: int, **changed: Any) -> int:
        tile = dataclasses.replace(t, mr=mr)
        return gemm_tiling.packed_pitch(pb, dataclasses.replace(cpu, **changed), tile)

    assert [pitch(mr) for mr in (4, 5, 6, 8, 9, 12, 13, 16)] == [4, 5, 8, 8, 9, 16, 16, 16]
    assert pitch(13, l2_bytes=512 << 10) == 13
    assert pitch(13, vector_bytes=32) == 13
    part = dataclasses.replace(t, mr=13, panel_group=1, row_group=2)  # a stage packs them for all
    assert gemm_tiling.packed_pitch(pb, cpu, part) == 13


def test_packed_rows_have_their_pitch(monkeypatch: pytest.MonkeyPatch) -> None:
    made, row_blocks = [], gemm_outer.row_blocks

    def watched(*arguments: Any) -> Any:
        made.append((arguments[2], row_blocks(*arguments)))
        return made[-1][1]

    monkeypatch.setattr(gemm_outer, "row_blocks", watched)
    wide = dataclasses.replace(ZEN, l2_bytes=2 << 20)
    # Its own, and a stage's.
    for m, n, k, mr, pitch in ((256, 256, 256, 13, 16), (600, 136, 700, 14, 14)):
        _stage_names(Gemm(1, m, n, k, "float32", True, False), wide)
        rows, blocks = made.pop()
        assert (rows, blocks.shape[3]) == (mr, pitch)


def test_vectors_that_cross_lines_are_read_in_place_where_that_is_cheap() -> None:
    pb, _, packed = _chosen(255, 255, 255, False, 2, 2 << 20)
    intel = dataclasses.replace(ZEN, mcpu="emeraldrapids", l2_bytes=2 << 20)
    assert not packed.direct
    assert gemm_tiling.choose(pb, intel)[1].direct
    assert not gemm_tiling.choose(pb, dataclasses.replace(intel, mcpu="znver5"))[1].direct


def test_panels_that_many_rows_use_stay_in_the_first_level_cache() -> None:
    """Three rows by seven vectors waste no lane, but would fetch 7 lines for 21 multiply-adds."""
    tiling = _tiling(100, 100, 256, True)
    assert tiling.own_panels
    assert tiling.mr >= 8
    assert 256 * tiling.nr * 4 <= 48 << 10


def test_threads_own_equal_groups_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three panels of four, and the last alone, would send one thread to the other's columns."""
    assert _tiling(100, 256, 100, False).panel_group in (1, 2, 4)
    monkeypatch.setattr(gemm_tiling, "_UNEVEN", 0)
    assert _tiling(100, 256, 100, False).panel_group == 3


def test_threads_share_no_lines_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 400 bytes: a tile that has some of the columns would end within lines."""
    tiling = _tiling(100, 100, 14, False)
    assert tiling.panel_group * tiling.nr >= 100
    monkeypatch.setattr(gemm_tiling, "_SHARED_CYCLES", 0)
    assert _tiling(100, 100, 14, False).panel_group == 1


@pytest.mark.parametrize("b_transposed", [False, True])
def test_little_products_have_few_sums_in_a_tile(b_transposed: bool) -> None:
    """LLVM takes as long for many, though all of it is over in a microsecond."""
    little = _tiling(32, 100, 10, b_transposed)
    assert little.mr * little.nv <= 8
    larger = _tiling(32, 100, 100, b_transposed)
    assert larger.mr * larger.nv > 8


@pytest.mark.parametrize(("k", "whole"), [(256, True), (300, False), (2048, False)])
def test_panels_near_the_first_level_cache_have_no_parts_of_k(k: int, whole: bool) -> None:
    """A tile of one panel reads it for one row block after the other, its rows once."""

    def none(*_: Any) -> Any:
        raise AssertionError("nothing is read")

    spec = Gemm(1, 100, 32, k, "float32", False, True, a_pitch=k, b_pitch=k)
    problem = gemm._problem(spec, none, none, none)
    cpu = CpuTarget("x86-64-v4", (), 64, 32, 32 << 10, 1 << 20, False, 2)
    tile = gemm_tiling.Tiling(25, 1, 1, 16, False, 0, 0, 0)
    assert (gemm_tiling._alone(problem, cpu, tile).k_block == k) == whole
