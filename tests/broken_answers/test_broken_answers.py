"""Answers of docs/protocol.md broken on purpose, one patch each: the explorer must find each and tell it in its least case.

A patch names the answer and what it does instead, the shape to explore, and what the first failure must say, as a regular
expression. It is applied to a copy of the sources and explored there; the case that is found must pass on the sources as they
are.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from leto import _kernels

ROOT = Path(__file__).parents[2]
PACKAGES = ("leto", "chaos", "verify")
FOUND_WITHIN_S = 60
QUICKEST = "u2-restore-only-when-updated"
"""In every run of the tests, the others at night."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The head of a patch."""

    patch: Path
    answer: str
    broken: str
    explore: str
    tells: str

    @classmethod
    def read(cls, patch: Path) -> Broken:
        head, found, _ = patch.read_text().partition("\n\n--- a/")
        fields = dict(line.split(": ", 1) for line in head.splitlines())
        assert found, f"{patch.name}: no empty line between its head and the difference"
        return cls(patch=patch, **{name.lower(): text for name, text in fields.items()})


ALL = [Broken.read(patch) for patch in sorted(Path(__file__).parent.glob("*.patch"))]


def names(broken: Broken) -> str:
    return broken.patch.stem


def test_there_are_at_least_three() -> None:
    assert len(ALL) >= 3
    assert QUICKEST in map(names, ALL)


@pytest.mark.parametrize("broken", ALL, ids=names)
def test_a_patch_still_applies_and_names_an_answer(broken: Broken) -> None:
    applied = subprocess.run(
        ["git", "apply", "--check", str(broken.patch)], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert applied.returncode == 0, f"make it again: {applied.stderr}"
    numbers = re.findall(r"\bU\d+\b", broken.answer)
    defined = re.findall(r"^\| (U\d+) \|", (ROOT / "docs" / "protocol.md").read_text(), re.MULTILINE)
    assert numbers and set(numbers) <= set(defined)


@pytest.fixture
def patched(broken: Broken, tmp_path: Path) -> Path:
    """The sources with the answer broken; native code as it is built."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_kernels.__file__, tmp_path / "leto")
    subprocess.run(["git", "apply", str(broken.patch)], cwd=tmp_path, timeout=30, check=True)
    return tmp_path


def explore(sources: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``leto-chaos explore`` of these sources. Without ``site``, which would find the installed ones first."""
    path = os.pathsep.join([str(sources), sysconfig.get_path("purelib"), str(Path(_kernels.__file__).parents[1])])
    command = [sys.executable, "-S", "-m", "chaos", "explore", "--jobs", "1", *arguments]
    return subprocess.run(
        command,
        cwd=sources,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=FOUND_WITHIN_S,
        check=False,
    )


@pytest.mark.parametrize(
    "broken",
    [pytest.param(b, marks=() if b.patch.stem == QUICKEST else pytest.mark.slow, id=b.patch.stem) for b in ALL],
)
def test_a_broken_answer_is_found_and_told_in_its_least_case(broken: Broken, patched: Path) -> None:
    explored = explore(patched, "--shape", broken.explore, "--json")
    assert explored.returncode == 1, explored.stderr
    (shape,) = json.loads(explored.stdout)["shapes"]
    failure = shape["failures"][0]
    print(f"{failure['description']}\n  {failure['message']}\n  {failure['repeat']}")
    assert re.fullmatch(broken.tells, failure["description"])
    assert explore(patched, *repeated(failure["repeat"])).returncode == 1
    subprocess.run(["git", "apply", "--reverse", str(broken.patch)], cwd=patched, timeout=30, check=True)
    assert explore(patched, *repeated(failure["repeat"])).returncode == 0, "it fails without the patch as well"


def repeated(line: str) -> list[str]:
    command, explore_command, *arguments = shlex.split(line)
    assert (command, explore_command) == ("leto-chaos", "explore")
    return arguments
