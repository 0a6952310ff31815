"""Which sample a rank reads when.

Nothing here has state that a recovery must rebuild: what a rank reads next is a function of the seed and of the number of
samples it has consumed, which HEADER and POST record (U28).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from leto.core.errors import ConfigError

Tokens = npt.NDArray[np.int64]


class SampleSource(Protocol):
    """An endless, seekable sequence of samples, the same on every rank."""

    def sample(self, index: int) -> Tokens:
        """Sample ``index`` >= 0: sequence + 1 tokens, a pure function of the index."""
        ...


class ShuffledWindows:
    """Windows of ``sequence`` + 1 tokens that tile the text, in a new random order each epoch. Implements SampleSource."""

    def __init__(self, tokens: npt.NDArray[np.uint16], *, sequence: int, seed: int) -> None:
        self._tokens = tokens
        self._sequence = sequence
        self._seed = seed
        self._windows = (len(tokens) - 1) // sequence  # the last token of a window is the first of the next
        if self._windows < 1:
            raise ConfigError(f"data: {len(tokens)} tokens are less than one sequence of {sequence}")
        self._order_of_epoch = lru_cache(maxsize=2)(self._shuffle)  # two: a batch may straddle epochs

    def sample(self, index: int) -> Tokens:
        epoch, position = divmod(index, self._windows)
        first = int(self._order_of_epoch(epoch)[position]) * self._sequence
        return self._tokens[first : first + self._sequence + 1].astype(np.int64)

    def _shuffle(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.Generator(np.random.PCG64([self._seed, epoch])).permutation(self._windows)


def sample_index(cursor: int, *, rank: int, ranks: int, micro_batch: int) -> int:
    """Index of the sample that ``rank`` of ``ranks`` reads after ``cursor`` others.

    Micro-batches are dealt to the ranks in turn, so that the samples of an iteration are consecutive over all ranks.
    """
    dealt, within = divmod(cursor, micro_batch)
    return (dealt * ranks + rank) * micro_batch + within
