"""``leto``: the runtime itself, without the bench."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from leto.core.config import JobConfig, Workload
from leto.core.errors import ConfigError, LetoError
from leto.core.events import Event
from leto.core.geometry import Protection
from leto.device.rows import kernel_row

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="The runtime itself, without the bench."
)

EXIT_CODES = {"completed": 0, "failed": 1, "refused": 1}
_EXIT_USAGE = 2
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class JsonLines:
    """Writes every event as one JSON line to a descriptor, at once; on stderr too that the job is protected no more."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def observe(self, event: Event) -> None:
        if event.name == "service-ended":
            what = f"{event.fields['service']} {event.fields['cause']}; training goes on, but its next failure ends it"
            print(f"leto: no longer protected: {what}", file=sys.stderr, flush=True)  # noqa: T201
        line = json.dumps({"event": event.name, **event.fields}, separators=(",", ":")) + "\n"
        remaining = line.encode()
        while remaining:
            remaining = remaining[os.write(self._fd, remaining) :]


@app.callback()
def _root() -> None:
    """Leto: in-place recovery of large-model training, bit for bit."""


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="JOB.json", help="Job configuration, JSON; 'leto example' prints one.")],
    events_fd: Annotated[int, typer.Option(help="Inherited descriptor that receives events as JSON lines.")] = 1,
    parent_pid: Annotated[int, typer.Option(help="End when this parent process ends.")] = 0,
) -> None:
    """Run one job to its end: exit 0 completed, 1 failed or refused, 2 for a configuration that is wrong.

    SIGINT and SIGTERM stop it and everything it started: exit 130 and 143.
    """
    from leto.runtime.node_agent import NodeAgent
    from leto.runtime.process import die_with_parent

    for number in _STOP_SIGNALS:
        signal.signal(number, _stop)
    if parent_pid:
        die_with_parent(parent_pid, signal.SIGTERM)
    job = JobConfig.load(config)
    _check_descriptor(events_fd)
    try:
        end = NodeAgent(job, JsonLines(events_fd)).run()
    except ConfigError as error:
        raise ConfigError(f"{config}: {error}") from None
    if end.reason:
        print(f"leto: {end.status}: {end.reason}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(EXIT_CODES[end.status])


@app.command()
def example() -> None:
    """Print a whole job configuration with every key, to start from."""
    job = JobConfig(
        name="example",
        workload=Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=100),
        protection=Protection(page_bytes=64 << 10, data_pages=60, chunk_pages=12),
        output_dir="example-job",
    )
    print(job.to_json())  # noqa: T201


def _check_descriptor(fd: int) -> None:
    try:
        os.fstat(fd)
    except OSError:
        raise ConfigError(f"--events-fd {fd}: no descriptor of this number is open") from None


def _stop(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, once: a second signal must not cut short what the first one cleans up."""
    for each in _STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> None:
    """Console entry point: a person's mistake is one line on stderr."""
    try:
        kernel_row()
        app(standalone_mode=True)
    except LetoError as error:
        print(f"leto: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(_EXIT_USAGE)


if __name__ == "__main__":
    main()
