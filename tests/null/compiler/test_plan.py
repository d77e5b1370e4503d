"""The arena plan against brute force."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitorch_tvm.compiler import plan
from minitorch_tvm.compiler.plan import ALIGNMENT, Plan, Request

Lives = list[tuple[int, int, int]]  # units of 64 bytes, first kernel, length of life


def requests(lives: Lives) -> list[Request]:
    return [Request(i, 64 * n, first, first + more) for i, (n, first, more) in enumerate(lives)]


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


@given(lives)
def test_no_byte_has_two_owners(drawn: Lives) -> None:
    wanted = requests(drawn)
    found = plan.plan(wanted, 12)
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
