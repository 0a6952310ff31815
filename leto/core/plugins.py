"""Import paths ``module:name`` from a job's configuration, resolved."""

from __future__ import annotations

import importlib
from typing import Any

from leto.core.errors import ConfigError


def load(path: str) -> Any:
    """The object that ``module:name`` names, among what is installed and in PYTHONPATH; never in the working directory.
    Raises ConfigError when there is none."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{path!r} is not an import path of the form module:name")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"cannot import {path!r}: {error}") from error
    if not hasattr(module, name):
        raise ConfigError(f"cannot import {path!r}: module {module_name} has no {name!r}")
    return getattr(module, name)
