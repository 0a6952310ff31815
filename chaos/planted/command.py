"""``leto-chaos mutants``: exit code 0 when every planted bug is caught by the checker named for it, 1 otherwise, 2 on usage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from chaos.explore.muon import check_torch
from chaos.mutants import MUTANTS, find_mutant
from chaos.planted.planting import Mutant, Where
from chaos.planted.runs import check_run
from chaos.planted.trial import NO_BUG, Trial, timed, try_in_process
from chaos.systems import REFERENCES, SYSTEMS, load_target
from chaos.verdict import Verdict
from leto.core.errors import ConfigError

Places = list[tuple[Mutant | None, Where]]


def mutants(
    in_process: Annotated[bool, typer.Option("--in-process", help="Leave out those that start trainers: a minute.")] = False,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="This planted bug; repeatable.")] = None,
    runs_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where artefacts of runs go.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Plant every known bug, one after the other; each must be caught by the checker named for it, first of all checkers."""
    try:
        places = _places(only or (), in_process)
        _check_installed(places)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(Verdict.USAGE.value) from None
    try:
        trials = _try_all(places, runs_dir, tell=not as_json)
    except SystemExit:  # a signal
        typer.echo("interrupted; everything this run started is closed", err=True)
        raise
    typer.echo(json.dumps(_as_json(trials), indent=2) if as_json else _summary(trials))
    raise typer.Exit(0 if all(trial.passed for trial in trials) else Verdict.FAIL.value)


def _places(only: Sequence[str], in_process: bool) -> Places:
    """All, or those named. Where all are run, no bug is tried first: nothing may be found then. Raises ConfigError."""
    chosen = [find_mutant(name, "--only") for name in only] or list(MUTANTS.values())
    found: Places = []
    for where in Where:
        if in_process and not where.in_process:
            continue
        planted = [m for m in chosen if where in m.caught_by]
        found += [] if only or not planted else [(None, where)]
        found += [(m, where) for m in planted]
    tried = {m.name for m, _ in found if m is not None}
    left_out = [m.name for m in chosen if m.name not in tried]
    if only and left_out:
        raise ConfigError(f"--only {left_out[0]}: this planted bug needs trainers; leave out --in-process")
    return found


_BESIDE_TORCH = (Where.MUON, Where.KERNEL)


def _check_installed(places: Places) -> None:
    """Raises ConfigError."""
    for where in _BESIDE_TORCH:
        if any(where is place for _, place in places):
            check_torch(f"the check of {where.value} bugs", "--only with another one")
    if any(where is Where.PROCESS for _, where in places):
        for path in (*SYSTEMS.values(), *REFERENCES.values()):
            load_target(path)


def _try_all(places: Places, runs_dir: Path, *, tell: bool) -> list[Trial]:
    """One after the other; each is told when it is done."""
    trials = []
    for mutant, where in places:
        trials.append(_tried(mutant, where, runs_dir))
        if tell:
            typer.echo(_row(trials[-1]))
    return trials


def _tried(mutant: Mutant | None, where: Where, runs_dir: Path) -> Trial:
    if where.in_process:
        return try_in_process(mutant, where)
    return timed(mutant, where, lambda: check_run(mutant, runs_dir))


_COLUMNS = "{:43} {:9} {:42} {:42} {:>6}"


def _row(trial: Trial) -> str:
    mark = "" if trial.passed else "  FAILED"
    caught_by = "crashed" if trial.crash else trial.caught_by or "-"
    return _COLUMNS.format(trial.name, trial.where.value, caught_by, trial.expected or "-", f"{trial.seconds:.1f}") + mark


def _caught(trials: Iterable[Trial]) -> dict[str, bool]:
    """By planted bug: whether it is caught everywhere it was tried."""
    caught: dict[str, bool] = {}
    for trial in trials:
        if trial.name != NO_BUG:
            caught[trial.name] = caught.get(trial.name, True) and trial.passed
    return caught


def _summary(trials: Sequence[Trial]) -> str:
    caught = _caught(trials)
    return "\n".join([f"caught {sum(caught.values())} / {len(caught)}", *_failures(trials)])


def _failures(trials: Iterable[Trial]) -> Iterator[str]:
    yield from (f"FAILED: {trial.describe()}" for trial in trials if not trial.passed)


def _as_json(trials: Sequence[Trial]) -> dict[str, Any]:
    caught = _caught(trials)
    told = [{**_about(t), **asdict(t), "where": t.where.value, "passed": t.passed} for t in trials]
    passed = all(t.passed for t in trials)
    return {"passed": passed, "caught": sum(caught.values()), "total": len(caught), "trials": told}


def _about(trial: Trial) -> dict[str, str]:
    mutant = MUTANTS.get(trial.name)
    return {} if mutant is None else {"bug": mutant.bug, "against": mutant.against}
