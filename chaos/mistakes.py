"""What is wrong with a scenario, said so that it can be put right: file, line, key, remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from chaos.yaml_source import Path, Source, dotted
from leto.core.errors import ConfigError
from leto.core.wording import one_of

Mistake = tuple[Path, str]


class ScenarioError(ConfigError):
    """Everything that is wrong with a scenario; ``lines`` holds one line a mistake."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class Infeasible(ConfigError):
    """What a valid scenario asks for cannot happen in what it trains; ``Origin`` finds the lines of ``mistakes``."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(f"{dotted(path)}: {what}" for path, what in mistakes))
        self.mistakes = tuple(mistakes)


class Origin:
    """Where the values of a scenario come from: lines of a file, and overrides of the command line."""

    def __init__(self, file: str, source: Source) -> None:
        self._file, self._source = file, source
        self._overridden: dict[Path, str] = {}

    def override(self, text: str) -> None:
        """Apply one ``dotted.key=value``. Raises ScenarioError when it cannot be placed."""
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ScenarioError([f"--set {text}: write key=value, like workload.iterations=20"])
        path = tuple(int(part) if part.isdecimal() else part for part in re.split(r"[.\[]", key.replace("]", "")))
        try:
            parsed = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):
            raise ScenarioError([f"--set {text}: {value!r} is not a YAML value"]) from None
        if not _place(self._source.data, path, parsed):
            raise ScenarioError([f"--set {text}: there is no {dotted(path[:-1])!r} to set {path[-1]!r} in"])
        self._overridden[path] = f"--set {text}"

    @contextmanager
    def placing(self) -> Iterator[None]:
        """What turns out inside to be infeasible is raised as ScenarioError, with its lines."""
        try:
            yield
        except Infeasible as error:
            raise self.error(error.mistakes) from None

    def error(self, mistakes: Iterable[Mistake]) -> ScenarioError:
        placed = sorted({(self._source.line_of(path), self._line(path, what)) for path, what in mistakes})
        return ScenarioError([line for _, line in placed])

    def _line(self, path: Path, what: str) -> str:
        where = next((o for p, o in self._overridden.items() if path[: len(p)] == p), None)
        where = where or f"{self._file}:{self._source.line_of(path)}"
        return f"{where}: {dotted(path)}: {what}" if path else f"{where}: {what}"


def _place(data: Any, path: Path, value: Any) -> bool:
    for part in path[:-1]:
        inner = child(data, part)
        if inner is None and isinstance(data, dict):
            inner = data[part] = {}
        data = inner
    last = path[-1]
    if isinstance(data, dict) and isinstance(last, str):
        data[last] = value
        return True
    if isinstance(data, list) and isinstance(last, int) and last < len(data):
        data[last] = value
        return True
    return False


def child(data: Any, part: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(part)
    if isinstance(data, list) and isinstance(part, int) and part < len(data):
        return data[part]
    return None


def dig(data: Any, *path: str | int) -> Any:
    for part in path:
        data = child(data, part)
    return data


def explain(error: ValidationError, root: type[BaseModel]) -> Iterator[Mistake]:
    """The mistakes in pydantic's report, in words that name a remedy."""
    errors = error.errors(include_url=False)
    for e in errors:
        path: Path = tuple(e["loc"])
        if e["type"] == "too_short" and e["ctx"]["actual_length"] == 0 and e["input"]:
            continue  # the items are there, each with its own mistake
        yield path, _explain_one(e["type"], e["msg"], e.get("ctx", {}), e["input"], path, root)


def _explain_one(kind: str, message: str, context: dict[str, Any], given: Any, path: Path, root: type[BaseModel]) -> str:
    if kind == "extra_forbidden":
        model = _model_at(root, path[:-1])
        noun = "unknown fault" if model.__name__ in ("Action", "Do") else "unknown key"
        return f"{noun}; {one_of(_keys(model), str(path[-1]))}"
    if kind == "missing":
        return "is missing; add this key"
    if kind == "value_error":
        return str(context["error"])
    if kind == "too_short":
        return "is empty; write a fault, or a cycle of faults"
    if kind in ("enum", "literal_error"):
        known = re.findall(r"'([^']*)'", context["expected"]) or [context["expected"]]
        return f"{given!r} is unknown; {one_of(known, str(given))}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{given!r} is not a mapping; write its keys: {', '.join(_keys(_model_at(root, path)))}"
    if kind == "string_type":
        return f"{given!r} is wrong; write a text"
    if kind == "bool_type":
        return f"{given!r} is wrong; write true or false"
    return f"{given!r} is wrong; {message[0].lower()}{message[1:].replace('valid integer', 'whole number')}"


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    for part in path:
        for name, field in model.model_fields.items():
            if part in (name, field.alias):
                model = _inner_model(field.annotation) or model
    return model


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _inner_model(argument))), None)
