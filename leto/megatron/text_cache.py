"""Files that are made once and shared by all runs of a user: whole and as they were made, or made again."""

from __future__ import annotations

import errno
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import xxhash

from leto.core.errors import ConfigError, JobError

_LOG = logging.getLogger(__name__)
_MANIFEST = "manifest.json"


def cache_directory(environment: Mapping[str, str]) -> Path:
    """LETO_CACHE_DIR, else $XDG_CACHE_HOME/leto, else ~/.cache/leto. Raises ConfigError when it is not an absolute path."""
    own, shared = environment.get("LETO_CACHE_DIR"), environment.get("XDG_CACHE_HOME")
    directory = Path(own or Path(shared or Path("~/.cache").expanduser(), "leto"))
    if not directory.is_absolute():
        raise ConfigError(f"data: the cache directory {str(directory)!r} is not an absolute path: set LETO_CACHE_DIR to one")
    return directory


def obtain(entry: Path, files: Sequence[str], make: Callable[[Path], None]) -> None:
    """``entry`` becomes a directory that holds ``files`` as ``make(directory)`` wrote them, if it is not that already.

    ``make`` must write the same bytes whenever it is called: processes that find the entry absent or damaged at once make it
    side by side, and whoever is later replaces files by equal ones. Nobody sees a half-written file. Raises JobError when the
    entry cannot be written; nothing is left of the attempt.
    """
    damage = _damage(entry, files)
    if damage is None:
        return
    if entry.exists():
        _LOG.warning("%s is damaged (%s): making it again", entry, damage)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{entry.name}-", dir=entry.parent) as scratch:
            whole = Path(scratch) / entry.name
            whole.mkdir()
            make(whole)
            recorded = {name: _fingerprint(whole / name) for name in files}
            (whole / _MANIFEST).write_text(json.dumps(recorded, indent=1))
            _install(whole, entry)
    except OSError as error:
        wanted = "set LETO_CACHE_DIR to a directory that can be written"
        raise JobError(f"data: {entry} cannot be made: {error.strerror}; {wanted}") from None


def _install(whole: Path, entry: Path) -> None:
    try:
        whole.rename(entry)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # It exists, damaged or just made by somebody else. Readers may be in it, so no file is ever absent.
        for path in whole.iterdir():
            path.replace(entry / path.name)


def _damage(entry: Path, files: Sequence[str]) -> str | None:
    """The first thing that is not as it was made, None when everything is."""
    try:
        recorded = json.loads((entry / _MANIFEST).read_text())
        changed = [name for name in files if recorded[name] != _fingerprint(entry / name)]
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    except (ValueError, TypeError, KeyError):
        return f"{_MANIFEST} is not whole"
    return f"{changed[0]} has changed" if changed else None


def _fingerprint(path: Path) -> dict[str, int | str]:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": os.path.getsize(path), "xxh3_128": digest.hexdigest()}
