"""What a person sees while a scenario runs. Both screens listen to the journal and to nothing else."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from chaos.report.live import Status
from verify.history import Entry


class Screen(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def listen(self, entry: Entry) -> None: ...


def line_for(entry: Entry) -> str | None:
    """The stable line of an entry, None for entries that are not shown one by one."""
    f = entry.fields
    if entry.name == "started":
        return f"{entry.job}: started, {f['iterations']} iterations"
    if entry.name == "killed":
        seen = f"; {f['where']}" if "where" in f else ""
        return f"{entry.job}: fault {f['label']}: fired at {f['what']}{seen}"
    if entry.name == "released":
        return f"{entry.job}: fault {f['label']}: pages lost at {f['what']}; the rank goes on"
    if entry.name == "missed":
        return f"{entry.job}: fault not fired: {f['reason']}"
    if entry.name == "recovered":
        return f"{entry.job}: recovered by {f['action']} in {f['seconds']:.2f} s, epoch {f['epoch']}, {f['level']}"
    if entry.name == "outcome":
        return f"{entry.job}: {f['status']}{': ' + f['reason'] if f['reason'] else ''}"
    if entry.name == "check":
        return f"check {f['check']}: {f['judgement']}: {f['reason']}"
    if entry.name == "verdict":
        return f"verdict: {f['verdict']} ({f['exit_code']}): {f['reason']}"
    return None


class PlainScreen:
    """Stable lines, one per phase, fault, recovery, check and verdict."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        return None

    def listen(self, entry: Entry) -> None:
        line = line_for(entry)
        if line is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveScreen:
    """The same lines above a bar a job and the state of the one under way."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._status: Status | None = None  # of the job under way
        self._live = Live(console=console, get_renderable=self._view, refresh_per_second=10)
        self._plain = PlainScreen(self._live.console)
        self._tasks: dict[str, TaskID] = {}

    def _view(self) -> RenderableType:
        return self._bars if self._status is None else Group(self._bars, self._status.table())

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._live.stop()

    def listen(self, entry: Entry) -> None:
        if self._status is not None:
            self._status.follow(entry)
        if entry.name == "started":
            self._status = Status()
            self._tasks[entry.job] = self._bars.add_task(entry.job, total=entry.fields["iterations"])
        elif entry.name == "iteration":
            self._bars.update(self._tasks[entry.job], completed=entry.fields["iteration"])
        else:
            if entry.name == "outcome":
                self._bars.stop_task(self._tasks[entry.job])
            self._plain.listen(entry)


def make_screen(*, plain: bool) -> Screen:
    """The live screen on a terminal, plain lines anywhere else."""
    console = Console()
    return PlainScreen(console) if plain or not console.is_terminal else LiveScreen(console)
