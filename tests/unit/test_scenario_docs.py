"""docs/scenarios.md against the code: every key, point and kernel, and examples that are valid."""

import inspect
import itertools
import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from chaos import scenario
from chaos.loading import parse_scenario
from chaos.loss import LossClass
from leto.core.failpoints import COPIES, Kernel, Point

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "scenarios.md").read_text()
MODELS = {
    name: model
    for name, model in inspect.getmembers(scenario, inspect.isclass)
    if issubclass(model, BaseModel) and model.__module__ == scenario.__name__ and not name.startswith("_") and name != "Action"
}


def table_after(marker: str) -> list[str]:
    """The rows of the table below a marker, without its head."""
    lines = TEXT.split(f"<!-- {marker} -->\n")[1].splitlines()
    return list(itertools.takewhile(lambda line: line.startswith("|"), lines))[2:]


@pytest.mark.parametrize("name", MODELS)
def test_every_key_is_documented(name: str) -> None:
    rows = [re.match(r"\| `([^`]+)` \| .+ \|$", row) for row in table_after(f"keys: {name}")]
    keys = [field.alias or key for key, field in MODELS[name].model_fields.items()]
    documented = [row[1] for row in rows if row]
    assert len(documented) == len(rows)
    assert sorted(documented) == sorted(keys)


def test_the_points_are_those_of_the_code() -> None:
    assert table_after("generated: points") == [f"| `{p.value}` | {p.meaning} |" for p in Point]


def test_the_kernels_are_those_of_the_code() -> None:
    kinds = {kernel: "copy" if kernel in COPIES else "kernel" for kernel in Kernel}
    assert table_after("generated: kernels") == [f"| {kinds[k]} | `{k.value}` | {k.meaning} |" for k in Kernel]


def test_the_readme_lists_every_scenario() -> None:
    section = (ROOT / "README.md").read_text().partition("## Scenarios")[2].partition("\n## ")[0]
    listed = [name.strip() for row in re.findall(r"^\| ([a-z].*?) \|", section, re.MULTILINE) for name in row.split(",")]
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))


def test_every_class_is_documented() -> None:
    section = TEXT.split("| class | pages | groups |\n")[1]
    rows = itertools.takewhile(lambda line: line.startswith("|"), section.splitlines())
    assert sorted(re.findall(r"^\| `([a-z0-9-]+)` \|", "\n".join(rows), re.MULTILINE)) == sorted(c.value for c in LossClass)


def examples() -> list[tuple[str, str]]:
    return re.findall(r"^```yaml ?(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def whole(kind: str, text: str) -> str:
    """A fragment, completed from the first example."""
    if text.startswith("schema:"):
        return text
    base = yaml.safe_load(next(text for _, text in examples() if text.startswith("schema:")))
    del base["control"]
    fragment = yaml.safe_load(text)
    if kind == "expect":
        return yaml.safe_dump(base | fragment)
    recoveries = sum(_times(fault["when"], base["workload"]["iterations"]) for fault in fragment)
    return yaml.safe_dump(base | {"faults": fragment, "expect": {"recoveries": recoveries, "deadline_s": 30}})


def _times(when: dict[str, int], iterations: int) -> int:
    return iterations // when["every"] if "every" in when else when.get("random", 1)


@pytest.mark.parametrize(("kind", "text"), examples(), ids=lambda part: part[:24].strip())
def test_the_examples_are_valid(kind: str, text: str) -> None:
    parse_scenario(whole(kind, text), "example")


def test_every_fault_has_an_example() -> None:
    text = "\n".join(text for _, text in examples())
    for name in (
        *scenario.FAULTS,
        "cycle",
        "lose-pages",
        "shadows",
        "reason",
        "hold",
        "every",
        "iteration",
        "random",
        "at",
        "phase",
        "rules",
        "rule",
    ):
        assert re.search(rf"\b{name}:", text), name
