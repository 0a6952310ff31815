"""Which sample a rank reads when.

Nothing here has state that a recovery must rebuild: what a rank reads next is a function of the workload and of the number of
samples it has consumed, which HEADER and POST record (U28).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from leto.megatron import mcore


def gpt_dataset(text: Any, tokenizer: Any, *, sequence: int, seed: int, samples: int) -> Any:
    """Megatron's GPTDataset over all documents of ``text``, an IndexedDataset: ``samples`` or more windows, shuffled by epochs.

    Equal arguments give equal samples in every process. The text must outlive it: samples are read from its mapping.
    """
    config = mcore.GPTDatasetConfig(
        random_seed=seed,
        sequence_length=sequence,
        # Its index takes milliseconds to make. In files, rank 0 would make it and the others find it too early or too late.
        path_to_cache="",
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,  # attention is causal by the layer spec
    )
    documents = np.arange(len(text), dtype=np.int32)
    return mcore.GPTDataset(text, text.path_prefix, documents, samples, mcore.Split.train, config)


def batch(dataset: Any, indices: Sequence[int]) -> dict[str, torch.Tensor]:
    """Samples as [len(indices), sequence] tensors: tokens, labels, loss_mask, position_ids."""
    collated: dict[str, torch.Tensor] = default_collate([dataset[index] for index in indices])
    return collated


def sample_index(cursor: int, *, rank: int, ranks: int, micro_batch: int) -> int:
    """Index of the sample that ``rank`` of ``ranks`` reads after ``cursor`` others.

    Micro-batches are dealt to the ranks in turn, so that the samples of an iteration are consecutive over all ranks.
    """
    dealt, within = divmod(cursor, micro_batch)
    return (dealt * ranks + rank) * micro_batch + within
