"""``leto-chaos explore``: exit code 0 when every case ended bit for bit and every mark was reached, 1 otherwise, 2 on usage."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
from typing import Annotated, Any

import typer

from chaos.explore import reached
from chaos.explore.blocks import Order
from chaos.explore.campaign import Result, never_reached
from chaos.explore.cases import parse_case
from chaos.explore.crew import run_on_crew
from chaos.explore.explorer import Explorer, Failed
from chaos.explore.least import Failure, describe
from chaos.explore.muon import check_torch
from chaos.explore.shapes import SHAPES, find_shape
from chaos.verdict import Verdict
from leto.core.errors import ConfigError

TELL_EVERY_S = 5.0
POINTS = 5000


def explore(
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="The products in full: minutes.")] = False,
    points: Annotated[
        int | None, typer.Option(metavar="M", min=0, help="Cases drawn over all shapes: 5000, none with --exhaustive.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="What is drawn.")] = 0,
    shape: Annotated[str | None, typer.Option(metavar="NAME", help=f"Only one of {', '.join(SHAPES)}.")] = None,
    case: Annotated[str | None, typer.Option(metavar="CASE", help="One case, as a failure prints it; needs --shape.")] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes; the cores of this one if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Enumerate crash points x losses of the update protocol in one process; every one must come back bit for bit."""
    try:
        names = list(SHAPES) if shape is None else [find_shape(shape).name]
        for name in names:
            if SHAPES[name].matrices:
                check_torch(f"shape {name}", "--shape with another one")
        if case is not None:
            raise typer.Exit(_repeat(shape, case))
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(Verdict.USAGE.value) from None
    if points is None:
        points = 0 if exhaustive else POINTS
    orders = [Order(exhaustive=exhaustive, points=share, seed=seed) for share in _shares(points, len(names))]
    jobs = jobs or len(os.sched_getaffinity(0))
    results = []
    for name, order in zip(names, orders, strict=True):
        results.append(_explored(name, order, jobs))
        if not as_json:
            _print(results[-1])
    missing = never_reached(results) if shape is None else []  # no shape reaches all of them
    passed = not missing and all(result.passed for result in results)
    if as_json:
        typer.echo(json.dumps(_as_json(results, missing, passed), indent=2))
    else:
        _print_marks(results, missing)
        typer.echo(_verdict(results, missing, passed=passed, exhaustive=exhaustive, of_all=shape is None))
    raise typer.Exit(0 if passed else Verdict.FAIL.value)


def _shares(points: int, shapes: int) -> list[int]:
    return [points // shapes + (n < points % shapes) for n in range(shapes)]


def _explored(name: str, order: Order, jobs: int) -> Result:
    told_s = time.monotonic()

    def tick(result: Result) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > TELL_EVERY_S:
            told_s = time.monotonic()
            typer.echo(f"{name}: {result.explored} of {result.total} explored, {result.drawn} drawn", err=True)

    try:
        explorer = Explorer(SHAPES[name])
    except Failed as error:
        return Result(shape=name, formula="", total=0, unlike_plan=str(error))
    return run_on_crew(explorer, order, jobs=jobs, tick=tick)


def _repeat(shape: str | None, text: str) -> int:
    """Raises ConfigError."""
    if shape is None:
        raise ConfigError(f"--case needs --shape, one of {', '.join(SHAPES)}")
    case = parse_case(text)
    try:
        explorer = Explorer(SHAPES[shape])
    except Failed as failure:
        typer.echo(f"failed: {failure}")
        return Verdict.FAIL.value
    try:
        marks = explorer.run(case)
    except Failed as failure:
        typer.echo(f"{describe(explorer, case)}\nfailed: {failure}")
        return Verdict.FAIL.value
    typer.echo(describe(explorer, case))
    typer.echo(f"as it must be: {', '.join(sorted(marks))}")
    return 0


def repeat_line(shape: str, failure: Failure) -> str:
    return f"leto-chaos explore --shape {shape} --case {shlex.quote(str(failure.case))}"


def _print(result: Result) -> None:
    typer.echo(f"{result.shape}: {result.formula} = {result.total}")
    beyond = f"{result.drawn} drawn from the product of everything"
    rate = f"{result.seconds:.1f} s, {result.cases_a_minute:.0f} recoveries a minute"
    typer.echo(f"  explored {result.explored} / {result.total}, and {beyond}; {rate}")
    for failure in result.failures:
        typer.echo(f"  FAILED: {failure.description}\n    {failure.message}\n    repeat: {repeat_line(result.shape, failure)}")
    if result.unlike_plan is not None:
        typer.echo(f"  FAILED: {result.unlike_plan}")


def _print_marks(results: list[Result], missing: list[str]) -> None:
    seen = sum((result.reached for result in results), Counter[str]())
    typer.echo("marks, and how often they were reached")
    for mark in reached.REQUIRED:
        typer.echo(f"  {seen[mark]:8}  {mark}")
    for mark in missing:
        typer.echo(f"  FAILED: never reached: {mark}")


def _verdict(results: list[Result], missing: list[str], *, passed: bool, exhaustive: bool, of_all: bool) -> str:
    """``pass: 307,277 of 307,277 recoveries exact, 50 of 50 marks reached``. Marks are demanded of all shapes together."""
    run = sum(result.explored + result.drawn for result in results)
    planned = sum(result.total + result.drawn for result in results) if exhaustive else run
    exact = run - sum(len(result.failures) for result in results)
    marks = f", {len(reached.REQUIRED) - len(missing)} of {len(reached.REQUIRED)} marks reached" if of_all else ""
    return f"{'pass' if passed else 'FAIL'}: {exact:,} of {planned:,} recoveries exact{marks}"


_FIGURES = ("shape", "formula", "total", "explored", "drawn", "seconds", "unlike_plan")


def _as_json(results: list[Result], missing: list[str], passed: bool) -> dict[str, Any]:
    shapes = []
    for result in results:
        failures = [
            {"case": str(f.case), "description": f.description, "message": f.message, "repeat": repeat_line(result.shape, f)}
            for f in result.failures
        ]
        figures = {key: getattr(result, key) for key in _FIGURES}
        counted = {"cases_a_minute": round(result.cases_a_minute), "reached": dict(result.reached)}
        shapes.append({**figures, **counted, "failures": failures})
    return {"passed": passed, "never_reached": missing, "shapes": shapes}
