"""The frozen configuration of a job, and its JSON form (the one way it crosses a process border)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, cast, get_type_hints

from leto.core.errors import ConfigError
from leto.core.geometry import Protection

DEFAULT_UPDATER = "leto.update.updater:ChunkUpdater"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained. ``model`` names an entry of leto.megatron.models.

    ``optimizer`` is ``adam`` (AdamW, sharded over the data-parallel ranks) or ``muon`` (Muon for matrices, AdamW for the rest,
    not sharded).
    """

    model: str
    data_parallel: int
    expert_parallel: int = 1
    precision: str = "bf16"
    optimizer: str = "adam"
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

    def __post_init__(self) -> None:
        for f in fields(self):
            if getattr(self, f.name) <= 0:
                raise ConfigError(f"{f.name}: {getattr(self, f.name):g} is not positive")


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """One job. ``plugins`` are import paths ``module:function``, called in each trainer with its TrainerContext;
    ``manager_plugins`` likewise in each state manager with its ManagerContext, ``agent_plugins`` in the node agent with one a
    rank.

    ``updater`` is the import path of the class that runs the update phase. ``output_dir`` receives the trainers' logs and what
    plugins write.
    """

    name: str
    workload: Workload
    protection: Protection
    output_dir: str
    device_bytes: int = 8 << 30  # capacity of a rank's device arena
    host_bytes: int = 2 << 30  # capacity of a rank's host arena
    shadows: bool = True  # keep a warm generation ready to take over
    updater: str = DEFAULT_UPDATER
    plugins: tuple[str, ...] = ()
    manager_plugins: tuple[str, ...] = ()
    agent_plugins: tuple[str, ...] = ()
    plugin_options: Mapping[str, Any] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        for name in ("device_bytes", "host_bytes"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is not positive")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True)

    @staticmethod
    def from_json(text: str, source: str) -> JobConfig:
        """Raises ConfigError that names ``source`` and the key."""
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{source}:{error.lineno}: not JSON: {error.msg}") from None
        job: JobConfig = _decode(JobConfig, raw, source, "")
        return job

    @staticmethod
    def load(path: Path) -> JobConfig:
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not UTF-8 text") from None
        return JobConfig.from_json(text, str(path))


def _decode(cls: type[Any], raw: Any, source: str, key: str) -> Any:
    """The dataclass from its JSON object; what is left out takes its default."""
    hints = get_type_hints(cls)
    prefix = f"{key}." if key else ""
    values = {
        name: _value(hints[name], value, source, prefix + name) for name, value in _known(cls, raw, source, prefix).items()
    }
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {key + ': ' if key else ''}{error}") from None


def _value(hint: Any, value: Any, source: str, key: str) -> Any:
    """A field of one of the types that a configuration has."""
    if is_dataclass(hint):
        return _decode(cast(type[Any], hint), value, source, key)
    if hint == tuple[str, ...] and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if hint == Mapping[str, Any] and isinstance(value, dict):
        return value
    if hint is float and type(value) in (int, float) and math.isfinite(value):  # exact: a bool is an int to isinstance
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise ConfigError(f"{source}: {key}: {json.dumps(value):.80} is not {_IN_WORDS[hint]}")


_IN_WORDS = {
    int: "a whole number",
    bool: "true or false",
    float: "a finite number",
    str: "a text",
    tuple[str, ...]: "a list of texts",
    Mapping[str, Any]: "an object",
}


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
