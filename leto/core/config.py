"""The frozen configuration of a job, and its JSON form (the one way it crosses a process border)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from leto.core.errors import ConfigError
from leto.core.geometry import Protection

DEFAULT_UPDATER = "leto.update.updater:ChunkUpdater"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained. ``model`` names an entry of leto.megatron.models."""

    model: str
    data_parallel: int
    expert_parallel: int = 1
    precision: str = "bf16"
    iterations: int
    data: str = "shakespeare"
    seed: int = 42

    @property
    def world_size(self) -> int:
        """Expert parallelism splits the data-parallel ranks; it adds none."""
        return self.data_parallel


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Every wait has a deadline; seconds."""

    start_s: float = 120.0  # fork server and state managers ready
    ready_s: float = 60.0  # a forked trainer attached and in its first iteration
    fence_s: float = 20.0  # all processes of a failed generation gone
    iteration_s: float = 120.0  # between two completed iterations
    collective_s: float = 60.0  # one gloo collective
    stop_s: float = 10.0  # orderly end


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """One job. ``plugins`` are import paths ``module:function``, called in each trainer with its TrainerContext.

    ``updater`` is the import path of the class that runs the update phase. ``output_dir`` receives the trainers' logs and what
    plugins write.
    """

    name: str
    workload: Workload
    protection: Protection
    output_dir: str
    device_bytes: int = 8 << 30  # capacity of a rank's device arena
    host_bytes: int = 2 << 30  # capacity of a rank's host arena
    updater: str = DEFAULT_UPDATER
    plugins: tuple[str, ...] = ()
    plugin_options: Mapping[str, Any] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True)

    @staticmethod
    def from_json(text: str, source: str) -> JobConfig:
        """Raises ConfigError that names ``source`` and the key."""
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{source}:{error.lineno}: not JSON: {error.msg}") from None
        raw = _known(JobConfig, raw, source, "")
        raw["workload"] = Workload(**_known(Workload, raw.get("workload"), source, "workload."))
        raw["protection"] = Protection(**_known(Protection, raw.get("protection"), source, "protection."))
        raw["timeouts"] = Timeouts(**_known(Timeouts, raw.get("timeouts", {}), source, "timeouts."))
        raw["plugins"] = tuple(raw.get("plugins", ()))
        return JobConfig(**raw)

    @staticmethod
    def load(path: Path) -> JobConfig:
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        return JobConfig.from_json(text, str(path))


def _known(cls: type[Any], raw: Any, source: str, prefix: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: {prefix.rstrip('.') or 'the file'} must be an object")
    names = {f.name: f for f in fields(cls)}
    for key in raw:
        if key not in names:
            raise ConfigError(f"{source}: unknown key {prefix}{key}; known: {', '.join(sorted(names))}")
    for name, f in names.items():
        required = f.default is f.default_factory  # both MISSING
        if required and name not in raw:
            raise ConfigError(f"{source}: missing key {prefix}{name}")
    return dict(raw)
