"""Samples are pure functions of seed and index, and ranks share them without gaps or repeats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leto.core.errors import ConfigError
from leto.megatron.data import ShuffledWindows, sample_index

TOKENS = np.arange(1000, dtype=np.uint16)
SEQUENCE = 10
WINDOWS = 99  # (1000 - 1) // 10


def windows(seed: int = 42) -> ShuffledWindows:
    return ShuffledWindows(TOKENS, sequence=SEQUENCE, seed=seed)


def test_an_epoch_reads_every_window_once() -> None:
    source = windows()
    starts = [int(source.sample(index)[0]) for index in range(WINDOWS)]
    assert sorted(starts) == [window * SEQUENCE for window in range(WINDOWS)]
    assert starts != sorted(starts)


def test_a_sample_is_consecutive_tokens_with_one_more_to_predict() -> None:
    sample = windows().sample(5)
    assert sample.dtype == np.int64
    assert list(sample) == list(range(sample[0], sample[0] + SEQUENCE + 1))


@given(st.integers(0, 10 * WINDOWS))
def test_a_sample_depends_on_the_index_alone(index: int) -> None:
    wandering = windows()
    wandering.sample(7 * WINDOWS)  # another epoch first
    assert np.array_equal(wandering.sample(index), windows().sample(index))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return [int(windows(seed).sample(epoch * WINDOWS + position)[0]) for position in range(WINDOWS)]

    orders = [order(42, 0), order(42, 1), order(43, 0)]
    assert len({tuple(o) for o in orders}) == 3


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="10 tokens are less than one sequence of 10"):
        ShuffledWindows(TOKENS[:10], sequence=10, seed=0)


@given(ranks=st.integers(1, 8), micro_batch=st.integers(1, 4), micro_batches=st.integers(1, 4))
def test_ranks_read_consecutive_samples_together(ranks: int, micro_batch: int, micro_batches: int) -> None:
    """After every iteration the job has consumed exactly the samples up to its global batch."""
    cursors = range(micro_batch * micro_batches)
    read = [sample_index(c, rank=r, ranks=ranks, micro_batch=micro_batch) for r in range(ranks) for c in cursors]
    assert sorted(read) == list(range(ranks * len(cursors)))
