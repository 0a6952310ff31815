"""Which row of instructions the native kernels compute with."""

from __future__ import annotations

from leto.core.errors import ConfigError


def kernel_row() -> str:
    """The row of this process, and of every process that it starts: the best one, or the one that LETO_KERNEL names.

    Asked first by every command. Raises ConfigError when this processor does not have the row that is named.
    """
    try:
        from leto import _kernels
    except ImportError as error:
        if str(error).startswith("LETO_KERNEL="):
            raise ConfigError(str(error)) from None
        raise
    return _kernels.row
