"""What goes wrong in a process of a misused job, imported by every Python process that finds this folder on PYTHONPATH.

``MISUSE`` is "PART OF A COMMAND LINE=WHAT", for processes whose command line has that part:
    hide MODULE    the module is not installed
    own weights    every process initialises weights of its own
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


def initialise_by_process() -> None:
    import torch

    normal = torch.nn.init.normal_

    def normal_(tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
        return normal(tensor, mean, std * (1 + os.getpid() / 1000))

    torch.nn.init.normal_ = normal_


_WHERE, _, _WHAT = os.environ.get("MISUSE", "").partition("=")
if _WHAT and _WHERE in " ".join(sys.orig_argv):
    if _WHAT == "own weights":
        initialise_by_process()
    else:
        sys.meta_path.insert(0, Hidden(_WHAT.removeprefix("hide ")))
