"""A plugin that leaves a trainer no memory to train in."""

from __future__ import annotations

import resource
from pathlib import Path

from leto.core.hooks import TrainerContext

SPARE_BYTES = 1 << 20


def starve(context: TrainerContext) -> None:
    """From now on this process may map ``SPARE_BYTES`` more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
