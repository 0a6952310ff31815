"""Which pages of a rank are coded together, written down by its first trainer for whoever aims at it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leto.core.geometry import CodedGeometry, GradientGeometry, Matrix, Page, Protection, Segment
from leto.core.hooks import TrainerContext


@dataclass(frozen=True, kw_only=True)
class RankGeometry:
    """What a rank's trainer knows of its pages and an observer does not: which are coded together."""

    coded: CodedGeometry
    gradients: GradientGeometry

    def to_json(self) -> dict[str, Any]:
        return {
            "protection": asdict(self.coded.protection),
            "segments": [asdict(segment) for segment in self.coded.segments],
            "matrices": [asdict(matrix) for matrix in self.coded.matrices],
            "gradient_pages": [asdict(page) for page in self.gradients.pages],
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> RankGeometry:
        protection = Protection(**raw["protection"])
        segments = tuple(Segment(**segment) for segment in raw["segments"])
        matrices = tuple(Matrix(**matrix) for matrix in raw["matrices"])
        pages = tuple(Page(**page) for page in raw["gradient_pages"])
        return RankGeometry(
            coded=CodedGeometry(protection=protection, segments=segments, matrices=matrices),
            gradients=GradientGeometry(protection=protection, pages=pages),
        )

    @staticmethod
    def read(path: Path) -> RankGeometry:
        return RankGeometry.from_json(json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(self.to_json()))
        whole.replace(path)


def geometry_path(directory: Path, rank: int) -> Path:
    return directory / f"geometry-{rank}.json"


def install_geometry(context: TrainerContext) -> None:
    """Plugin: the geometry of a rank is the same in every epoch, so the first trainer writes it. Option ``memory_dir``."""
    path = geometry_path(Path(context.options["memory_dir"]), context.rank)
    if path.exists():
        return
    assert context.coded is not None and context.gradients is not None, "the geometry is known before plugins are loaded"
    RankGeometry(coded=context.coded, gradients=context.gradients).write(path)


GEOMETRY_PLUGIN = f"{__name__}:{install_geometry.__name__}"
