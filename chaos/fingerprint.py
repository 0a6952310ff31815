"""Where a run took place: what must be equal for two runs to be comparable, but for the kernels: all give the same bits."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from chaos.targets.rows import kernel_row

_DISTRIBUTIONS = ("leto-chaos", "torch", "megatron-core", "numpy", "xxhash")


def fingerprint(resolved_scenario: str) -> dict[str, Any]:
    """The machine and the scenario that ran on it."""
    return machine_fingerprint() | {"scenario_sha256": hashlib.sha256(resolved_scenario.encode()).hexdigest()}


def machine_fingerprint() -> dict[str, Any]:
    """JSON values; what this host does not tell is null."""
    model, flags = _processor()
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _DISTRIBUTIONS},
        "machine": platform.machine(),
        "cpu_model": model,
        "cpu_flags": flags,
        "kernel": platform.release(),
        "kernel_row": kernel_row(),
        "git_revision": _git_revision(),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> tuple[str | None, list[str]]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None, []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return fields.get("model name"), sorted(fields.get("flags", "").split())


def _git_revision() -> str | None:
    """Revision of the tree this code runs from, with ``-dirty`` when it was changed."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
