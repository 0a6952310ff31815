"""What can be trained, as the runtime's own table says it. Imports no torch, so that scenarios can be checked without it."""

from __future__ import annotations

from leto.core.config import Workload
from leto.core.errors import ConfigError
from leto.megatron.models import model_spec

_SCENARIO_KEYS = {"data_parallel": ("parallel", "dp"), "expert_parallel": ("parallel", "ep")}


def mistake_in(workload: Workload) -> tuple[tuple[str, ...], str] | None:
    """The key below ``workload`` that names what cannot be trained, and why; None when it can."""
    try:
        model_spec(workload)
    except ConfigError as error:
        key, _, what = str(error).partition(": ")
        return _SCENARIO_KEYS.get(key, (key,)), what
    return None
