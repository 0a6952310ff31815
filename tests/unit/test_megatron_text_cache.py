"""A cache entry is whole and as it was made, or it is made again; what cannot be made is one line and leaves nothing."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import pytest

from leto.core.errors import ConfigError, JobError
from leto.megatron.text_cache import cache_directory, obtain

CONTENT = {"text.bin": b"To be, or not to be" * 1000, "text.idx": b"\x01\x02"}


def write(directory: Path) -> None:
    for name, content in CONTENT.items():
        (directory / name).write_bytes(content)


def never(directory: Path) -> None:
    raise AssertionError(f"{directory} was made again")


def get(entry: Path, make: Callable[[Path], None] = write) -> None:
    obtain(entry, tuple(CONTENT), make)


def contents(entry: Path) -> dict[str, bytes]:
    return {name: (entry / name).read_bytes() for name in CONTENT}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LETO_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/leto"),
        ({"LETO_CACHE_DIR": "", "XDG_CACHE_HOME": ""}, "~/.cache/leto"),
        ({}, "~/.cache/leto"),
    ],
)
def test_the_nearest_name_wins(environment: dict[str, str], expected: str) -> None:
    assert cache_directory(environment) == Path(expected).expanduser()


def test_a_relative_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="the cache directory 'here' is not an absolute path: set LETO_CACHE_DIR to one"):
        cache_directory({"LETO_CACHE_DIR": "here"})


def test_made_once_then_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry = tmp_path / "deep" / "cache" / "entry"
    get(entry)
    get(entry, never)
    assert contents(entry) == CONTENT
    assert os.listdir(entry.parent) == ["entry"]
    assert caplog.records == []


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("name", [*CONTENT, "manifest.json"])
def test_damage_is_mended_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], None]
) -> None:
    entry = tmp_path / "entry"
    get(entry)
    damage(entry / name)
    get(entry)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert f"{entry} is damaged ({name}" in warning.getMessage()
    get(entry, never)
    assert contents(entry) == CONTENT
    assert os.listdir(tmp_path) == ["entry"]


def test_two_that_make_it_at_once_both_find_it(tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    both_inside = Barrier(2, timeout=10)
    failures: list[BaseException] = []

    def slow(directory: Path) -> None:
        both_inside.wait()
        write(directory)

    def run() -> None:
        try:
            get(entry, slow)
            assert contents(entry) == CONTENT
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []
    get(entry, never)
    assert os.listdir(tmp_path) == ["entry"]


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    entry = tmp_path / "file" / "entry"
    with pytest.raises(JobError) as refused:
        get(entry)
    wanted = "set LETO_CACHE_DIR to a directory that can be written"
    assert str(refused.value) == f"data: {entry} cannot be made: File exists; {wanted}"


def test_a_file_in_the_place_of_the_entry_is_one_line(tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    entry.write_text("in the way")
    with pytest.raises(JobError, match="cannot be made: Not a directory; set LETO_CACHE_DIR to"):
        get(entry)
    assert os.listdir(tmp_path) == ["entry"]


def test_a_file_that_the_system_does_not_take_leaves_nothing(tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))  # as on a full disk, write() fails half-way
    try:
        with pytest.raises(JobError, match="cannot be made: File too large; set LETO_CACHE_DIR to"):
            get(entry)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []
    get(entry)
    assert contents(entry) == CONTENT
