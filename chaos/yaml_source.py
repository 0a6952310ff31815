"""YAML with line numbers: plain data, and the line on which every key and item stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Where a value stands: keys and list positions from the root."""


@dataclass
class Source:
    """Parsed text. ``lines`` maps paths to line numbers from 1; ``mistakes`` are those of the YAML itself."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    mistakes: list[tuple[int, str]] = field(default_factory=list)

    def line_of(self, path: Path) -> int:
        """The line of the path, or of its nearest ancestor that stands in the text."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def parse(text: str) -> Source:
    """Never raises for what a person wrote; look at ``mistakes`` before using ``data``."""
    source = Source()
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            source.mistakes.append((1, "the file is empty"))
        else:
            source.data = _Builder(loader, source).build(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        source.mistakes.append((mark.line + 1 if mark else 1, f"not YAML: {error.problem or error.context}"))
    except yaml.YAMLError as error:
        source.mistakes.append((1, f"not YAML: {' '.join(str(error).split())}"))
    finally:
        loader.dispose()
    return source


class _Builder:
    """Builds plain data from nodes and keeps their lines."""

    def __init__(self, loader: yaml.SafeLoader, source: Source) -> None:
        self._loader = loader
        self._source = source
        self._built: set[int] = set()

    def build(self, node: yaml.Node, path: Path) -> Any:
        self._source.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._built:
            line = self._source.line_of(path)  # the node itself stands at its anchor
            return self._source.mistakes.append((line, f"{dotted(path)}: is an alias; write the value out"))
        self._built.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, position)) for position, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                self._refuse(key_node, "a key must be text")
                continue
            if key in built:
                first = self._source.lines[(*path, key)]
                where = dotted((*path, key))
                self._refuse(key_node, f"{where}: twice in this mapping; remove one (the first is on line {first})")
                continue
            self._source.lines[(*path, key)] = key_node.start_mark.line + 1
            built[key] = self.build(value_node, (*path, key))
        return built

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            return self._refuse(node, f"not YAML: {error}")

    def _refuse(self, node: yaml.Node, what: str) -> None:
        self._source.mistakes.append((node.start_mark.line + 1, what))


def dotted(path: Path) -> str:
    """``faults[0].when.every``"""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
