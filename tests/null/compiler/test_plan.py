"""The arena plan against brute force."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitorch_tvm.compiler import plan
from minitorch_tvm.compiler.homes import Homes
from minitorch_tvm.compiler.plan import ALIGNMENT, Plan, Request

Lives = list[tuple[int, int, int]]  # units of 64 bytes, first kernel, length of life


def requests(lives: Lives, unit: int = 64) -> list[Request]:
    return [Request(i, unit * n, first, first + more) for i, (n, first, more) in enumerate(lives)]


def owners(found: Plan) -> None:
    """Walk through time and mark every unit of the arena with its owner."""
    for k in range(1 + max((p.last for p in found.placements), default=0)):
        taken: dict[int, int] = {}
        for number, p in enumerate(found.placements):
            if p.first <= k <= p.last:
                for unit in range(p.offset // 64, (p.offset + p.nbytes) // 64):
                    assert unit not in taken, (k, unit, p, found.placements[taken[unit]])
                    taken[unit] = number


def optimum(wanted: list[Request]) -> int:
    """Smallest arena: in some order, every range at the lowest offset it fits reaches it."""
    best = sum(r.nbytes for r in wanted)
    for order in itertools.permutations(wanted):
        placed: list[tuple[int, Request]] = []
        for r in order:
            busy = sorted(
                (at, at + p.nbytes) for at, p in placed if p.first <= r.last and r.first <= p.last
            )
            at = 0
            for low, high in busy:
                if low - at >= r.nbytes:
                    break
                at = max(at, high)
            placed.append((at, r))
        best = min(best, max(at + r.nbytes for at, r in placed))
    return best


lives = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 7), st.integers(0, 4)), min_size=1, max_size=24
)


@given(lives, st.sampled_from([1, 2, 3]), st.sampled_from([64, 1 << 14]))
def test_no_byte_has_two_owners(drawn: Lives, workers: int, unit: int) -> None:
    wanted = requests(drawn, unit)
    found = plan.plan(wanted, 12, workers=workers)
    owners(found)
    plan.verify(found)
    assert sorted(p.value for p in found.placements) == list(range(len(wanted)))
    assert found.lower_bound <= found.arena_bytes <= found.naive_bytes
    assert found.naive_bytes == sum(r.nbytes for r in wanted)
    by_hand = max(sum(r.nbytes for r in wanted if r.first <= k <= r.last) for k in range(12))
    assert found.lower_bound == by_hand


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(0, 3)), max_size=5))
def test_close_to_the_optimum_of_tiny_cases(drawn: Lives) -> None:
    wanted = requests(drawn)
    found = plan.plan(wanted, 8)
    best = optimum(wanted) if wanted else 0
    assert found.lower_bound <= best <= found.arena_bytes <= 1.34 * best


def strangers(found: Plan, workers: int) -> int:
    """Bytes that a worker takes over from another, in a step that follows others."""
    owner = np.full(found.arena_bytes // 64, -1)
    for _ in range(2):
        taken = 0
        for p in sorted(found.placements, key=lambda p: p.first):
            begin, count = p.offset // 64, p.nbytes // 64
            share = np.arange(count) * workers // max(count, 1)
            before = owner[begin : begin + count]
            taken += 64 * int(((before >= 0) & (before != share)).sum())
            owner[begin : begin + count] = share
    return taken


def test_lines_are_reused_by_who_used_them_last() -> None:
    """Activations of several widths; some of them wait for the way back."""
    widths = [128, 384, 128, 512, 512, 128, 384, 256, 512, 128, 65] * 4
    lives = [32 - i if i % 3 == 0 and i < 20 else i % 4 for i in range(len(widths))]
    wanted = [
        Request(i, plan.rounded(4096 * n), i, i + 1 + more)
        for i, (n, more) in enumerate(zip(widths, lives, strict=True))
    ]
    total = sum(r.nbytes for r in wanted)
    compact, two, four = (plan.plan(wanted, 60, workers=workers) for workers in (1, 2, 4))
    assert strangers(compact, 2) > total / 6
    assert strangers(two, 2) < total / 100
    assert strangers(four, 4) < strangers(compact, 4) / 2
    assert max(two.arena_bytes, four.arena_bytes) <= 1.05 * two.lower_bound


@given(lives)
def test_homes_take_little_more_memory(drawn: Lives) -> None:
    wanted = requests(drawn, 1 << 16)
    compact, found = (plan.plan(wanted, 12, workers=workers) for workers in (1, 2))
    assert found.arena_bytes <= max(compact.arena_bytes, 1.05 * found.lower_bound)


def test_what_lies_on_top_takes_its_turn_earlier() -> None:
    """A program with convolutions: from the largest on, a twentieth more than needed."""
    drawn = [
        *[(6272, 0, 19), (1568, 1, 17), (3136, 2, 13), (784, 3, 10), (128, 4, 6), (128, 9, 5)],
        *[(784, 12, 3), (3136, 15, 3), (1568, 17, 2), (6272, 19, 2), (200, 2, 0), (784, 4, 0)],
        *[(1600, 18, 0), (25, 21, 0)],
    ]
    found = plan.plan(requests(drawn, 1024), 22)
    assert found.arena_bytes == found.lower_bound


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("tokens", range(20, 60, 3))
def test_a_mask_is_in_nobodys_way(tokens: int, workers: int) -> None:
    """Layers of a GPT whose mask is small, and alive from the second kernel to near the end."""
    wide, mask = tokens * 512, plan.rounded(tokens * tokens)
    scores = plan.rounded(16 * tokens * tokens)
    sizes = [(wide, 0, 1), (3 * wide, 1, 5), (mask, 2, 30), (scores, 3, 4), (scores, 4, 5)]
    sizes += [(wide, 5, 6), (wide, 6, 16), (wide, 7, 8), (4 * wide, 8, 9), (wide, 9, 16)]
    for k in (10, 19, 28):
        sizes += [(wide, k, k + 1), (3 * wide, k + 1, k + 4), (scores, k + 2, k + 3)]
        sizes += [(scores, k + 3, k + 4), (wide, k + 4, k + 5), (wide, k + 5, k + 6)]
        sizes += [(wide, k + 6, k + 15), (wide, k + 6, k + 7), (4 * wide, k + 7, k + 8)]
        sizes += [(wide, k + 8, k + 15)]
    wanted = [Request(i, n, first, last) for i, (n, first, last) in enumerate(sizes)]
    found = plan.plan(wanted, 44, workers=workers)
    assert found.arena_bytes <= 1.05 * found.lower_bound


@given(lives, st.sampled_from([1, 2]))
def test_many_are_placed_as_few(drawn: Lives, workers: int) -> None:
    wanted = requests(drawn, 1 << 14)
    with pytest.MonkeyPatch.context() as patch:
        few = plan.plan(wanted, 12, workers=workers)
        patch.setattr(plan, "_MANY", 0)
        patch.setattr(plan, "_SPARED", 0)
        assert plan.plan(wanted, 12, workers=workers) == few


@given(lives)
def test_of_many_a_little_is_not_looked_for(drawn: Lives) -> None:
    wanted, looked = requests(drawn, 1 << 6), []
    placed = plan._placed

    def counted(*given: Any) -> Any:
        places = placed(*given)
        looked.append(plan._end(places))
        return places

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_MANY", 0)
        patch.setattr(plan, "_placed", counted)
        found = plan.plan(wanted, 12)
    owners(found)
    enough = found.lower_bound + min(found.lower_bound // 20, plan._SPARED)
    # The first that is good enough is the last that is looked for, else the best is taken.
    assert all(end > enough for end in looked[:-1])
    assert found.arena_bytes == min(looked, default=0)


@given(st.data(), st.integers(2, 4), st.integers(0, 40))
def test_the_place_with_the_fewest_strangers(data: st.DataObject, workers: int, cells: int) -> None:
    known = Homes(64 << 10, workers)
    home = st.lists(st.integers(-1, workers - 1), min_size=65, max_size=65)
    known._home[:] = data.draw(home)
    cell = known._cell
    assert cell == 1024
    shares = [cells * w // workers for w in range(workers + 1)]
    starts = data.draw(st.lists(st.integers(0, 60 << 4), min_size=1, max_size=4, unique=True))
    low = np.array(sorted(starts), np.int64) * 64
    high = low + 64 * np.array([data.draw(st.integers(0, 200)) for _ in low])

    def count(offset: int) -> int:
        first = offset // cell
        return sum(
            0 <= known._home[first + c] != w
            for w in range(workers)
            for c in range(*shares[w : w + 2])
            if first + c < len(known._home)
        )

    offset = known.best(cells * cell, low, high)
    assert any(a <= offset <= b for a, b in zip(low, high, strict=True))
    possible = {
        at
        for a, b in zip(low, high, strict=True)
        for at in (a, b, *range(-(-a // cell) * cell, b + 1, cell))
        if at in (a, b) or at <= 64 << 10
    }
    assert count(offset) == min(map(count, possible))
    before = known._home.copy()
    known.settle(cells * cell, offset)
    for c, (was, now) in enumerate(zip(before, known._home, strict=True)):
        share = sum(c - offset // cell >= end for end in shares[1:])
        inside = 0 <= c - offset // cell < cells
        assert now == (share if inside and was < 0 else was)


@given(lives)
def test_without_reuse_nothing_is_shared(drawn: Lives) -> None:
    found = plan.plan(requests(drawn), 12, reuse=False)
    assert found.arena_bytes == found.naive_bytes
    ends = sorted((p.offset, p.offset + p.nbytes) for p in found.placements)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))


@given(lives, st.data())
def test_verify_notices_an_overlap(drawn: Lives, data: st.DataObject) -> None:
    found = plan.plan(requests(drawn), 12)
    clashes = [
        (a, b)
        for a, b in itertools.combinations(found.placements, 2)
        if a.first <= b.last and b.first <= a.last and a.nbytes and b.nbytes
    ]
    if not clashes:
        return
    a, b = data.draw(st.sampled_from(clashes))
    moved = tuple(
        type(p)(p.value, a.offset, p.nbytes, p.first, p.last) if p is b else p
        for p in found.placements
    )
    with pytest.raises(AssertionError, match=r"overlap while both alive|misplaced"):
        plan.verify(Plan(moved, found.arena_bytes, found.naive_bytes, found.lower_bound))


def test_sizes_are_multiples_of_the_alignment() -> None:
    assert [plan.rounded(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
    assert ALIGNMENT == 64
