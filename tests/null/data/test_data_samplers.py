"""Laws of samplers, batches and splits."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitorch_tvm.random import Generator, default_generator
from minitorch_tvm.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)
from minitorch_tvm.utils.data.sampler import index_batches


def seeded(seed: int) -> Generator:
    generator = Generator()
    generator.manual_seed(seed)
    return generator


@given(n=st.integers(1, 50), seed=st.integers(0, 5))
def test_shuffle_is_a_permutation_that_changes_by_epoch_and_repeats_by_seed(n, seed):
    sampler = RandomSampler(range(n), generator=seeded(seed))
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(n))
    assert all(type(index) is int for index in first)
    again = RandomSampler(range(n), generator=seeded(seed))
    assert [list(again), list(again)] == [first, second]
    if n > 20:  # 1/20! is never
        assert first != second


@given(n=st.integers(1, 20), draws=st.integers(1, 70))
def test_more_samples_than_data_are_whole_permutations(n, draws):
    drawn = list(RandomSampler(range(n), num_samples=draws, generator=seeded(1)))
    assert len(drawn) == draws
    for start in range(0, draws - n + 1, n):
        assert sorted(drawn[start : start + n]) == list(range(n))
    rest = drawn[draws - draws % n :]
    assert len(set(rest)) == len(rest)


def test_replacement_draws_independently():
    drawn = list(RandomSampler(range(10), True, num_samples=5000, generator=seeded(0)))
    counts = collections.Counter(drawn)
    assert set(counts) == set(range(10))
    assert all(400 < count < 600 for count in counts.values())
    assert any(sorted(drawn[i : i + 10]) != list(range(10)) for i in range(0, 5000, 10))


def test_the_global_seed_decides_the_order_when_no_generator_is_given():
    def orders():
        default_generator.manual_seed(7)
        sampler = RandomSampler(range(30))
        return [list(sampler), list(sampler), list(SubsetRandomSampler(range(9)))]

    assert orders() == orders()


@given(n=st.integers(0, 60), size=st.integers(1, 13), drop=st.booleans())
def test_batches_cover_every_index_once(n, size, drop):
    sampler = BatchSampler(SequentialSampler(range(n)), size, drop)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    flat = [index for batch in batches for index in batch]
    assert flat == list(range(n - n % size if drop else n))
    assert all(len(batch) == size for batch in batches[:-1])
    assert all(batches)
    fast = [batch.tolist() for batch in index_batches(sampler)]
    assert fast == batches


@given(n=st.integers(1, 40), size=st.integers(1, 7), drop=st.booleans(), seed=st.integers(0, 3))
def test_the_array_path_gives_the_same_batches_as_iteration(n, size, drop, seed):
    for make in (
        lambda: RandomSampler(range(n), generator=seeded(seed)),
        lambda: RandomSampler(range(n), True, 2 * n, generator=seeded(seed)),
        lambda: SubsetRandomSampler(range(5, 5 + n), generator=seeded(seed)),
    ):
        slow = list(BatchSampler(make(), size, drop))
        assert [b.tolist() for b in index_batches(BatchSampler(make(), size, drop))] == slow


def test_a_subclassed_sampler_keeps_its_own_order():
    class Backwards(SequentialSampler):
        def __iter__(self):
            return iter(range(len(self.data_source) - 1, -1, -1))

    batches = BatchSampler(Backwards(range(5)), 2, False)
    assert [list(batch) for batch in index_batches(batches)] == [[4, 3], [2, 1], [0]]


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
def test_batch_size_must_be_a_positive_int(size):
    with pytest.raises(ValueError, match="batch_size should be a positive integer value, but got"):
        BatchSampler([1], size, False)


def test_sampler_argument_errors():
    with pytest.raises(ValueError, match="drop_last should be a boolean value"):
        BatchSampler([1], 2, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="replacement should be a boolean value"):
        RandomSampler(range(3), replacement=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_samples should be a positive integer value"):
        RandomSampler(range(3), num_samples=0)
    with pytest.raises(ValueError, match=r"got num_samples=0 \(the dataset is empty\)"):
        RandomSampler([])


@given(n=st.integers(2, 40), data=st.data())
def test_random_split_partitions(n, data):
    cut = data.draw(st.integers(0, n))
    parts = random_split(range(n), [cut, n - cut], seeded(2))
    assert [len(part) for part in parts] == [cut, n - cut]
    assert sorted(sample for part in parts for sample in part) == list(range(n))


def test_random_split_fractions_and_errors():
    assert [len(p) for p in random_split(range(10), [0.3, 0.35, 0.35])] == [4, 3, 3]
    same = [[list(p) for p in random_split(range(10), [5, 5], seeded(3))] for _ in range(2)]
    assert same[0] == same[1]
    for wrong in ([3, 4], [0.3, 1.2], [-1, 11]):
        with pytest.raises(ValueError, match="Sum of input lengths does not equal the length"):
            random_split(range(10), wrong)
    with pytest.raises(ValueError, match="Fraction at index 1 is not between 0 and 1"):
        random_split(range(10), [0.5, -0.1, 0.6])
    with pytest.warns(UserWarning, match="Length of split at index 1 is 0"):
        random_split(range(2), [0.9, 0.1])


def test_concat_subset_and_chain():
    both = ConcatDataset([range(3), range(10, 12)])
    assert [both[i] for i in range(-5, 5)] == [0, 1, 2, 10, 11] * 2
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        both[5]
    with pytest.raises(ValueError, match="absolute value of index should not exceed"):
        both[-6]
    with pytest.raises(AssertionError, match="should not be an empty iterable"):
        ConcatDataset([])

    class Stream(IterableDataset[int]):
        def __iter__(self):
            return iter([1, 2])

    with pytest.raises(AssertionError, match="does not support IterableDataset"):
        ConcatDataset([Stream()])
    assert list(Stream() + Stream()) == [1, 2, 1, 2]
    with pytest.raises(AssertionError, match="only supports IterableDataset"):
        list(ChainDataset([range(3)]))
    nested = Subset(Subset(range(10, 20), [1, 3, 5]), np.array([2, 0]))
    assert list(nested) == [15, 11]
    assert nested.__getitems__([0, 1]) == [15, 11]


def test_neighbouring_epochs_use_streams_that_do_not_overlap():
    generator = seeded(0)
    streams = [generator.host_rng().integers(2**63, size=2000) for _ in range(4)]
    assert len(np.unique(np.concatenate(streams))) == 8000


def test_weights_decide_how_often_a_sample_is_drawn():
    weights = [1.0, 0.0, 3.0, 4.0]
    sampler = WeightedRandomSampler(weights, 8000, generator=seeded(0))
    drawn = list(sampler)
    counts = np.bincount(drawn, minlength=4)
    # Within five standard deviations.
    shares = np.array(weights) / 8
    assert (abs(counts - 8000 * shares) <= 5 * np.sqrt(8000 * shares * (1 - shares))).all()
    assert list(sampler) != drawn
    assert list(WeightedRandomSampler(weights, 8000, generator=seeded(0))) == drawn


def test_weighted_without_replacement_no_sample_comes_twice():
    sampler = WeightedRandomSampler([0.1, 0.0, 5.0, 1.0], 3, replacement=False)
    assert sorted(sampler) == [0, 2, 3]
    batches = index_batches(BatchSampler(sampler, 2, False))
    assert [len(batch) for batch in batches] == [2, 1]


def test_weights_that_are_not_enough_are_refused():
    with pytest.raises(RuntimeError, match="not enough"):
        list(WeightedRandomSampler([1.0, 0.0], 2, replacement=False))


def test_datasets_side_by_side():
    assert StackDataset("ab", [1, 2])[1] == ("b", 2)
    assert len(StackDataset("ab", [1, 2])) == 2
    assert StackDataset(x="ab", y=[1, 2])[0] == {"x": "a", "y": 1}
