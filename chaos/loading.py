"""A scenario from its file: with what a command line replaces, judged by all that is known before a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from chaos import yaml_source
from chaos.contradictions import find_contradictions
from chaos.feasible import beyond_plan
from chaos.mistakes import Origin, ScenarioError, explain
from chaos.scenario import Scenario
from chaos.targets.workloads import mistake_in


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a file with ``dotted.key=value`` overrides. Raises ScenarioError with every mistake found."""
    return open_scenario(path, overrides)[0]


def open_scenario(path: Path, overrides: Sequence[str] = ()) -> tuple[Scenario, Origin]:
    """The same, with what finds the lines of mistakes that only a run shows."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ScenarioError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ScenarioError([f"{path}: not UTF-8 text"]) from None
    return _parse(text, str(path), overrides)


def parse_scenario(text: str, file: str, overrides: Sequence[str] = ()) -> Scenario:
    """Raises ScenarioError. ``file`` is only a name for messages."""
    return _parse(text, file, overrides)[0]


def _parse(text: str, file: str, overrides: Sequence[str]) -> tuple[Scenario, Origin]:
    source = yaml_source.parse(text)
    if source.mistakes:
        raise ScenarioError([f"{file}:{line}: {what}" for line, what in source.mistakes])
    origin = Origin(file, source)
    for override in overrides:
        origin.override(override)
    contradictions = list(find_contradictions(source.data))
    try:
        scenario = Scenario.model_validate(source.data)
    except ValidationError as error:
        raise origin.error([*explain(error, Scenario), *contradictions]) from None
    untrainable = mistake_in(scenario.workload.to_core())
    if untrainable is not None:
        contradictions.append((("workload", *untrainable[0]), untrainable[1]))
    mistakes = contradictions or list(beyond_plan(scenario))
    if mistakes:
        raise origin.error(mistakes)
    return scenario, origin
