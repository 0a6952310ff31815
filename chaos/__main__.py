"""``leto-chaos``: the entry point, which can be stopped from its first moment on.

Importing the command takes half a second, in which an interrupt raised as an exception can be swallowed by whoever imports;
nothing has been started by then, so it ends the process at once. The command sets its own handlers afterwards.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def leave_on_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def main() -> None:
    leave_on_signals()
    _refuse_unknown_row()
    from chaos import cli

    cli.main()


def _refuse_unknown_row() -> None:
    """Before the command is imported, which imports the kernels."""
    from chaos.targets.rows import kernel_row
    from chaos.verdict import Verdict
    from leto.core.errors import ConfigError

    try:
        kernel_row()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(Verdict.USAGE.value) from None


if __name__ == "__main__":
    main()
