"""What goes wrong in a process of a misused job, imported by every Python process that finds this folder on PYTHONPATH.

``MISUSE`` is "PART OF A COMMAND LINE=WHAT", for processes whose command line has that part:
    hide MODULE    the module is not installed
    unseeded       torch's generators are seeded by process id
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class Hidden:
    """A finder of modules that makes one of them missing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == self._name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def seed_by_process() -> None:
    import torch

    seed_all = torch.manual_seed

    def manual_seed(seed: int) -> torch.Generator:
        return seed_all(seed + os.getpid())

    torch.manual_seed = manual_seed


_WHERE, _, _WHAT = os.environ.get("MISUSE", "").partition("=")
if _WHAT and _WHERE in " ".join(sys.orig_argv):
    if _WHAT == "unseeded":
        seed_by_process()
    else:
        sys.meta_path.insert(0, Hidden(_WHAT.removeprefix("hide ")))
