"""``leto-chaos``: the referee's command line. A person's mistake is one line on stderr and exit code 2."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from pydantic import BaseModel

from chaos.explore.command import explore
from chaos.loading import load_scenario, open_scenario
from chaos.loss import LossClass
from chaos.mutants import find_run_mutant
from chaos.offline import compare_recorded, rebuild_reports, rows_of
from chaos.planted.command import mutants
from chaos.planted.planting import Mutant, Where
from chaos.planted.runs import deciding_check
from chaos.report.screen import make_screen
from chaos.runs import Finished, Order, describe_error, run_order
from chaos.scenario import FAULTS, Action, Hold, LosePages, Scenario
from chaos.systems import REFERENCES, SYSTEMS, load_target
from chaos.verdict import Verdict
from leto.core.errors import ConfigError
from leto.core.failpoints import COPIES, Kernel, Point
from verify.checkers import Judgement

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="Scenario files.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value, like seed=7.")]


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("leto-chaos"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Makes faults happen at exact points of a training run, proves that they happened, and judges the run bit for bit."""


@app.command()
def run(
    files: Files,
    overrides: Overrides = None,
    plain: Annotated[bool, typer.Option("--plain", help="Stable lines instead of the live screen.")] = False,
    runs_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where artefacts go.")] = Path("runs"),
    mutant: Annotated[str | None, typer.Option(metavar="NAME", help="Plant a bug; the scenario must then fail.")] = None,
) -> None:
    """Run scenarios: reference twice, control, run; then the verdict.

    Exit code: the first that is not 0. 0 pass, 1 fail, 2 usage, 3 unknown, 4 invalid, 5 liveness, 6 residue, 70 internal error.
    """
    try:
        if mutant is not None:
            find_run_mutant(mutant)
    except ConfigError as error:
        raise _refused([str(error)]) from None
    try:
        codes = [_run_file(file, tuple(overrides or ()), plain, runs_dir, mutant) for file in files]
    except SystemExit as stop:  # a signal
        _complain(["interrupted; everything this run started is closed", *getattr(stop, "__notes__", ())])
        raise
    raise typer.Exit(next((code for code in codes if code), 0))


def _run_file(file: Path, overrides: tuple[str, ...], plain: bool, runs_dir: Path, mutant: str | None) -> int:
    try:
        scenario, origin = open_scenario(file, overrides)
        row = os.environ.get("LETO_KERNEL")
        order = Order(scenario=scenario, file=file, overrides=overrides, mutant=mutant, forced_row=row, runs_dir=runs_dir)
        target, reference = load_target(SYSTEMS[scenario.system]), load_target(REFERENCES[scenario.system])
        with make_screen(plain=plain) as screen, origin.placing():
            finished = run_order(order, target, reference, screen)
    except ConfigError as error:
        _complain(str(error).splitlines())
        return Verdict.USAGE.value
    if finished.conclusion.verdict is Verdict.INTERNAL:
        _complain([f"internal error: {finished.conclusion.reason}"])
    if mutant is not None:
        typer.echo(_described_catch(find_run_mutant(mutant), finished))
    typer.echo(f"report: {finished.directory / 'report.html'}")
    if finished.conclusion.exit_code:
        typer.echo(f"repeat: {order.repeat}")
    return finished.conclusion.exit_code


def _described_catch(mutant: Mutant, finished: Finished) -> str:
    """A bug counts as caught when the check that aims at it speaks first, not when the run fails for any reason."""
    expected = mutant.caught_by[Where.PROCESS]
    if deciding_check(finished) == expected:
        return f"planted bug {mutant.name}: caught by {expected}"
    false = [r.name for r in finished.results if r.judgement is Judgement.FALSE]
    instead = f", but {', '.join(false)} failed" if false else ""
    return f"planted bug {mutant.name}: NOT CAUGHT by {expected}{instead}"


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, like runs/update-phase/latest.")],
) -> None:
    """Judge a recorded run again and rebuild its report.html and junit.xml. Exit code: that of the verdict."""
    try:
        rebuilt = rebuild_reports(directory)
    except ConfigError as error:
        raise _refused(str(error).splitlines()) from None
    verdict, reason = rebuilt.judged.conclusion.verdict, rebuilt.judged.conclusion.reason
    typer.echo(f"verdict: {verdict.word} ({verdict.value}): {reason}")
    if rebuilt.recorded != verdict.word:
        typer.echo(f"recorded verdict: {rebuilt.recorded or 'none, the run did not end'}")
    typer.echo(f"report: {directory / 'report.html'}")
    raise typer.Exit(verdict.value)


@app.command()
def compare(
    expected: Annotated[Path, typer.Argument(metavar="A", help="A run, or a directory of ledgers: what is right.")],
    actual: Annotated[Path, typer.Argument(metavar="B", help="Another one: what is judged.")],
) -> None:
    """Compare two recorded runs bit for bit, or any two directories of ledgers. Exit code: 0 equal, 1 divergent, 2 usage."""
    try:
        comparison, rows = compare_recorded(expected, actual), rows_of(expected, actual)
    except ConfigError as error:
        raise _refused([str(error)]) from None
    if comparison.first is not None:
        typer.echo(f"divergent: first at {comparison.first.describe()}")
    typer.echo(comparison.describe())
    if len(rows) > 1:
        typer.echo(f"computed by different kernels: {', '.join(rows)}")
    raise typer.Exit(0 if comparison.equal else Verdict.FAIL.value)


@app.command()
def validate(files: Files, overrides: Overrides = None) -> None:
    """Check scenario files; print every mistake with its line."""
    mistakes: list[str] = []
    for file in files:
        try:
            load_scenario(file, overrides or ())
            typer.echo(f"{file}: valid")
        except ConfigError as error:
            mistakes += str(error).splitlines()
    if mistakes:
        raise _refused(mistakes)


@app.command("list-faults")
def list_faults() -> None:
    """What can be injected, with the keys of each fault, and what a fault can wait for."""
    for name, field in zip(FAULTS, Action.model_fields.values(), strict=True):
        (model,) = (a for a in getattr(field.annotation, "__args__", ()) if a is not type(None))
        typer.echo(_described(name, model))
    typer.echo(_described("lose-pages", LosePages))
    typer.echo(_described("hold", Hold))
    typer.echo(f"{'page classes':14} {', '.join(page_class.value for page_class in LossClass)}")


def _described(name: str, model: type[BaseModel]) -> str:
    keys = [f"{f.alias or key}{'' if f.is_required() else '?'}" for key, f in model.model_fields.items()]
    return f"{name:14} {{{', '.join(keys)}}}  {' '.join((model.__doc__ or '').replace('``', '').split())}"


@app.command("list-points")
def list_points() -> None:
    """Where a fault can hit, in the order of one iteration t: points between operations, and inside kernels."""
    for point in Point:
        typer.echo(f"point   {point.value:20} {point.meaning}")
    for kernel in Kernel:
        typer.echo(f"{'copy' if kernel in COPIES else 'kernel':7} {kernel.value:20} {kernel.meaning}")


@app.command()
def schema() -> None:
    """JSON Schema of scenario files, for editors."""
    typer.echo(json.dumps(Scenario.model_json_schema(by_alias=True), indent=2))


app.command()(explore)
app.command()(mutants)


def _complain(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line, err=True)


def _refused(lines: Iterable[str]) -> typer.Exit:
    _complain(lines)
    return typer.Exit(Verdict.USAGE.value)


def main() -> None:
    """Entry point of the console script. What nobody else caught is our own mistake: one line, exit code 70."""
    for number in _STOP_SIGNALS:
        signal.signal(number, _stop)
    try:
        app()
    except Exception as error:
        _complain([f"internal error: {describe_error(error)}"])
        raise SystemExit(Verdict.INTERNAL.value) from None


def _stop(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, once: a second signal must not cut short what the first one cleans up."""
    for each in _STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)
