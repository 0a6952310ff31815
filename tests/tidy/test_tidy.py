"""Layering, size and vocabulary of the source, held as tests."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("leto", "chaos", "verify")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_MEDIAN_FUNCTION_LINES = 15

LAYERS = ("leto.core", "leto.device", "leto.memory", "leto.update", "leto.megatron", "leto.runtime", "leto.cli")
"""Each imports only from itself and from those before it."""
NATIVE = "leto._kernels"

CORE_MAY_IMPORT = {"numpy"}
VERIFY_MAY_IMPORT = {"numpy", "xxhash"}
NO_TORCH = ("leto.core", "leto.memory", "leto.device", "verify")
"""Light processes are made of these."""
BENCH_MAY_IMPORT_LETO = ("chaos.targets", "chaos.faults", "chaos.explore", "chaos.planted")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Every imported module with its line, also those inside functions; ``from a import b`` yields ``a`` and ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def layer_of(module: str) -> int | None:
    return next((n for n, layer in enumerate(LAYERS) if is_in(module, layer)), None)


def broken_arrows(module: str, imported: str) -> str | None:
    """Why ``module`` may not import ``imported``, or None."""
    here, there = layer_of(module), layer_of(imported)
    if is_in(module, "leto"):
        if is_in(imported, "chaos") or is_in(imported, "verify"):
            return "the product does not know the bench"
        if here is not None and there is not None and there > here:
            return f"{LAYERS[here]} is to the left of {LAYERS[there]}"
        if is_in(imported, NATIVE) and not is_in(module, "leto.device"):
            return "only leto.device calls kernels"
        if is_in(imported, "megatron") and not is_in(module, "leto.megatron"):
            return "only leto.megatron imports megatron"
    if is_in(module, "verify") and (is_in(imported, "chaos") or (is_in(imported, "leto") and there not in (0, None))):
        return "verify judges what is recorded; it imports leto.core only"
    if is_in(module, "chaos") and there not in (0, None) and not any(is_in(module, p) for p in BENCH_MAY_IMPORT_LETO):
        return "only targets, faults, explore and planted import leto beyond core"
    if is_in(imported, "torch") and any(is_in(module, p) for p in NO_TORCH):
        return "torch does not belong into light processes"
    return None


def test_the_arrows_hold() -> None:
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {imported}: {why}"
        for path in MODULES
        for imported, line in imports_of(path)
        if (why := broken_arrows(module_name(path), imported))
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("leto.core.geometry", "leto.device.base"),
        ("leto.memory.wire", "leto.runtime.trainer"),
        ("leto.runtime.trainer", "verify.ledger"),
        ("leto.cli", "chaos.engine"),
        ("leto.update.executor", "leto._kernels"),
        ("leto.update.executor", "megatron.core"),
        ("verify.compare", "chaos.engine"),
        ("verify.compare", "leto.memory.client"),
        ("chaos.engine", "leto.runtime.coordinator"),
        ("leto.memory.client", "torch"),
    ],
)
def test_a_broken_arrow_would_be_seen(module: str, imported: str) -> None:
    assert broken_arrows(module, imported) is not None


def foreign_imports(package: str) -> set[str]:
    import sys

    roots = {
        name.partition(".")[0]
        for path in MODULES
        if is_in(module_name(path), package)
        for name, _ in imports_of(path)
        if not any(is_in(name, own) for own in PACKAGES)
    }
    return roots - set(sys.stdlib_module_names)


def test_core_and_verify_are_pure() -> None:
    assert foreign_imports("leto.core") <= CORE_MAY_IMPORT
    assert foreign_imports("verify") <= VERIFY_MAY_IMPORT


def test_core_has_no_clock_process_or_io() -> None:
    worldly = {"time", "socket", "subprocess", "threading", "multiprocessing", "random", "signal", "mmap"}
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in MODULES
        if is_in(module_name(path), "leto.core")
        for name, line in imports_of(path)
        if name.partition(".")[0] in worldly
    ]
    assert found == []


def test_importing_leto_imports_nothing_else() -> None:
    tree = ast.parse((ROOT / "leto" / "__init__.py").read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def function_lines(path: Path) -> Iterator[tuple[str, int]]:
    """Functions with their length, docstrings not counted."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
            assert node.end_lineno is not None
            docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if doc else 0
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}", node.end_lineno - node.lineno + 1 - docstring


def test_files_are_short() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in MODULES}
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    lengths = dict(entry for path in MODULES for entry in function_lines(path))
    assert {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES} == {}
    assert sorted(lengths.values())[len(lengths) // 2] <= MAX_MEDIAN_FUNCTION_LINES


FORBIDDEN = {
    "unfinished work": r"\b(TODO|FIXME|XXX|HACK)\b",
    "a shell": r"shell\s*=\s*True",
    "a path of somebody's machine": r"(?<![\w.~-])/(work|home|Users|root)/",
    "a path outside the repository": r"\.\./(shared|prototypes)\b",
    "a numbered design page": r"\b\d-[a-z][a-z-]+\.md\b",
    "a swallowed exception": r"except( Exception| BaseException)?:\s*(\n\s*)?(pass|\.\.\.)\s*$",
}
TEXT_SUFFIXES = {".py", ".cpp", ".h", ".md", ".toml", ".yaml", ".yml", ".sh", ".txt", ".j2", ".cmake", ".pyi"}


def tracked_texts() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    paths = [ROOT / name for name in listing.split("\0") if name]
    return [p for p in paths if p.suffix in TEXT_SUFFIXES and p.exists() and p != Path(__file__)]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_forbidden_words(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = []
    for path in tracked_texts():
        text = path.read_text()
        found += [f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, m.start()) + 1}: {m[0]!r}" for m in pattern.finditer(text)]
    assert found == []


def cited_answers() -> Iterator[tuple[str, str]]:
    for path in [p for p in tracked_texts() if p.suffix in (".py", ".cpp", ".h", ".pyi", ".yaml")]:
        yield from ((number, str(path.relative_to(ROOT))) for number in re.findall(r"\bU\d+\b", path.read_text()))


def defined_answers() -> set[str]:
    """``U1`` has a row of its own; a range like ``U21 to U23`` in a citation names its ends."""
    return set(re.findall(r"^\| (U\d+) \|", (ROOT / "docs" / "protocol.md").read_text(), re.MULTILINE))


def test_every_cited_answer_is_defined() -> None:
    cited = dict(cited_answers())
    assert len(cited) > 20
    assert {number: where for number, where in cited.items() if number not in defined_answers()} == {}
