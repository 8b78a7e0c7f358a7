"""Batches depend on seed and step alone; every epoch sees every window once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwh_core.data.errors import DataError
from hwh_core.data.loader import BatchLoader, probe_starts, sequences_for_probe
from hwh_core.data.permutation import permute
from hwh_core.data.store import TokenStore


@pytest.fixture(scope="module")
def store(data):
    return TokenStore.open(data.store)


@given(st.integers(1, 3000), st.integers(0, 2**70), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_permute_is_a_permutation(size, seed, epoch):
    image = permute(np.arange(size), size, (seed, epoch))
    assert np.array_equal(np.sort(image), np.arange(size))


@given(st.integers(10**8, 2**62), st.integers(0, 2**32), st.data())
@settings(max_examples=40, deadline=None)
def test_permute_needs_no_table_at_any_size(size, seed, draw):
    positions = np.asarray(draw.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=20, unique=True)))
    image = permute(positions, size, (seed, 0))
    assert len(set(image.tolist())) == len(positions)
    assert image.min() >= 0
    assert image.max() < size
    assert image[:1].tolist() == permute(positions[:1], size, (seed, 0)).tolist()


def test_permute_looks_random():
    """Order, neighbours and epochs are unrelated: correlations of 20,000 points stay within 5 standard errors."""
    size = 20_000
    first, second = (permute(np.arange(size), size, (7, epoch)) for epoch in (0, 1))
    for a, b in ((np.arange(size), first), (first[1:], first[:-1]), (first, second), (first % 2, second % 2)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(size)
    assert abs(int((first == second).sum()) - 1) <= 6
    halves = first.reshape(20, -1) < size // 2
    assert abs(halves.mean(axis=1) - 0.5).max() < 0.1


def test_permute_is_pinned():
    """A change here changes the data order of every training: raise ORDER_VERSION with it."""
    assert permute(np.arange(10), 10, (0, 0)).tolist() == [2, 4, 8, 9, 1, 0, 6, 7, 3, 5]
    with pytest.raises(ValueError, match="positions"):
        permute(np.asarray([10]), 10, (0, 0))


@given(st.integers(3, 40), st.integers(20, 200), st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_an_epoch_sees_every_token_once_as_target(store, batch_size, length, seed):
    loader = BatchLoader(store, length, batch_size, seed)
    steps = -(-2 * loader.num_windows // batch_size)
    windows = np.concatenate([loader.windows(step) for step in range(steps)])
    first, second = windows[: loader.num_windows], windows[loader.num_windows : 2 * loader.num_windows]
    assert np.array_equal(np.sort(first), np.arange(loader.num_windows))
    assert np.array_equal(np.sort(second), np.arange(loader.num_windows))
    assert loader.num_windows < 8 or not np.array_equal(first, second)


def test_a_batch_is_text_of_the_store(store):
    loader = BatchLoader(store, 32, 4, seed=3)
    batch = loader.batch(5)
    assert batch.shape == (4, 33)
    assert batch.dtype == np.int64
    for row, window in zip(batch, loader.windows(5), strict=True):
        assert row.tolist() == store.tokens[window * 32 : window * 32 + 33].tolist()


@given(st.integers(0, 10**9), st.integers(0, 2**40))
@settings(max_examples=20, deadline=None)
def test_a_batch_depends_on_seed_and_step_alone(store, step, seed):
    loader = BatchLoader(store, 16, 3, seed)
    expected = loader.batch(step)
    loader.batch(step + 1)
    assert np.array_equal(loader.batch(step), expected)
    assert np.array_equal(BatchLoader(TokenStore.open(store.folder), 16, 3, seed).batch(step), expected)


def test_order_does_not_depend_on_the_batch_size(store):
    small = np.concatenate([BatchLoader(store, 16, 2, 1).batch(step) for step in range(12)])
    large = np.concatenate([BatchLoader(store, 16, 8, 1).batch(step) for step in range(3)])
    assert np.array_equal(small, large)
    assert not np.array_equal(small, np.concatenate([BatchLoader(store, 16, 2, 2).batch(s) for s in range(12)]))


def test_fingerprint_tells_loaders_apart(store):
    base = BatchLoader(store, 16, 2, 1)
    assert base.fingerprint == BatchLoader(store, 16, 2, 1).fingerprint
    others = [BatchLoader(store, *values).fingerprint for values in ((17, 2, 1), (16, 3, 1), (16, 2, 0))]
    assert len({base.fingerprint, *others}) == 4


def test_impossible_loaders(store):
    with pytest.raises(DataError, match="too few for one window"):
        BatchLoader(store, len(store.tokens), 1, 0)
    with pytest.raises(DataError, match="positive length"):
        BatchLoader(store, 0, 1, 0)
    with pytest.raises(ValueError, match="negative"):
        BatchLoader(store, 16, 1, 0).batch(-1)


def test_probe_windows_lie_inside_documents_of_the_source(store):
    starts = probe_starts(store, 100, 12, seed=0, source="long")
    spans = store.documents("long")
    assert len(set(starts.tolist())) == 12
    for start in starts:
        assert any(first <= start and start + 100 <= end for first, end in spans)
    ordered = np.sort(starts)
    assert (np.diff(ordered) >= 100).all()
    sequences = sequences_for_probe(store, 100, 12, seed=0, source="long")
    assert sequences.shape == (12, 100)
    assert sequences.dtype == np.int64
    assert store.eos_token_id not in sequences
    assert np.array_equal(sequences, sequences_for_probe(store, 100, 12, seed=0, source="long"))
    assert not np.array_equal(sequences, sequences_for_probe(store, 100, 12, seed=1, source="long"))


def test_probe_windows_cross_documents_only_when_they_must(store):
    length = int((store.documents()[:, 1] - store.documents()[:, 0]).max()) + 1
    sequences = sequences_for_probe(store, length, 3, seed=0)
    assert sequences.shape == (3, length)
    assert all(store.eos_token_id in row for row in sequences)
    with pytest.raises(DataError, match=r"source 'long' of token store .* holds 1 windows of"):
        sequences_for_probe(store, length, 3, seed=0, source="long")
    with pytest.raises(DataError, match="are to be probed; lower"):
        sequences_for_probe(store, length, 10_000, seed=0)
