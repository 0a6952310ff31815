"""Samples are pure functions of seed and index, and ranks share them without gaps or repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leto.megatron import mcore
from leto.megatron.corpus import tokenizer
from leto.megatron.data import batch, gpt_dataset, sample_index

SEQUENCE = 10
DOCUMENTS = (260, 1, 400, 39)  # lengths; one is shorter than a sample
WINDOWS = 69  # (700 - 1) // 10


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tokens that tell their place: they count up through all documents, from above the special ones."""
    prefix = str(tmp_path_factory.mktemp("text") / "text")
    builder = mcore.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    first = 2
    for length in DOCUMENTS:
        builder.add_document(np.arange(first, first + length, dtype=np.uint16), [length])
        first += length
    builder.finalize(f"{prefix}.idx")
    return mcore.IndexedDataset(prefix)


def dataset(text: Any, *, seed: int = 42, samples: int = WINDOWS) -> Any:
    return gpt_dataset(text, tokenizer(), sequence=SEQUENCE, seed=seed, samples=samples)


def tokens(source: Any, count: int) -> torch.Tensor:
    return batch(source, range(count))["tokens"]


def test_an_epoch_reads_every_token_once(text: Any) -> None:
    read = tokens(dataset(text), WINDOWS)
    assert read.shape == (WINDOWS, SEQUENCE)
    flat = read.flatten().tolist()
    assert len(set(flat)) == len(flat) == WINDOWS * SEQUENCE
    assert flat != sorted(flat)


def test_labels_are_the_next_tokens_and_all_count(text: Any) -> None:
    read = batch(dataset(text), range(WINDOWS))
    assert torch.equal(read["labels"][:, :-1], read["tokens"][:, 1:])
    assert read["loss_mask"].all()
    assert read["position_ids"].tolist() == [list(range(SEQUENCE))] * WINDOWS


def test_a_sample_depends_on_the_index_alone(text: Any) -> None:
    wandering = dataset(text)
    backwards = [wandering[index]["tokens"] for index in reversed(range(WINDOWS))]
    assert torch.equal(torch.stack(backwards[::-1]), tokens(dataset(text), WINDOWS))


def test_seeds_have_orders_of_their_own(text: Any) -> None:
    assert not torch.equal(tokens(dataset(text), WINDOWS), tokens(dataset(text, seed=43), WINDOWS))


def test_a_job_longer_than_the_text_reads_it_again(text: Any) -> None:
    samples = 3 * WINDOWS
    flat = tokens(dataset(text, samples=samples), samples).flatten()
    assert torch.bincount(flat).max() == 3


def test_torchs_generators_are_left_alone(text: Any) -> None:
    before = torch.get_rng_state()
    tokens(dataset(text), WINDOWS)
    assert torch.equal(torch.get_rng_state(), before)


@given(ranks=st.integers(1, 8), micro_batch=st.integers(1, 4), micro_batches=st.integers(1, 4))
def test_ranks_read_consecutive_samples_together(ranks: int, micro_batch: int, micro_batches: int) -> None:
    """After every iteration the job has consumed exactly the samples up to its global batch."""
    cursors = range(micro_batch * micro_batches)
    read = [sample_index(c, rank=r, ranks=ranks, micro_batch=micro_batch) for r in range(ranks) for c in cursors]
    assert sorted(read) == list(range(ranks * len(cursors)))
