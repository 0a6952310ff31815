"""One-bit bugs planted into a copy of the kernels must be caught by the check that the real ones pass.

The copy is built without Python by tests/native, at another place; nothing of this is in the product.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from leto import _kernels

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 300.0
CHECK_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Plant:
    name: str
    file: str
    before: str
    after: str
    rows: tuple[str, ...]
    """Rows that run the planted code."""


VECTOR_ROWS = ("avx2", "gfni")
PLANTS = (
    Plant(
        name="one bit of a coefficient of the matrix",
        file="points.cpp",
        before="matrix[i] = multiply(scale, matrix[i]);",
        after="matrix[i] = multiply(scale, matrix[i]) ^ (i == 1);",
        rows=("portable", *VECTOR_ROWS),
    ),
    Plant(
        name="one bit of a twiddle of the last layer",
        file="points.cpp",
        before="= at_origin ^ inside;",
        after="= at_origin ^ inside ^ (half == 8 && origin == 16 ? 0x100 : 0);",
        rows=VECTOR_ROWS,
    ),
    Plant(
        name="dispatch to the transform of half the size",
        file="code_planes.h",
        before="transform<V, 3>, transform<V, 4>},",
        after="transform<V, 3>, transform<V, 3>},",
        rows=VECTOR_ROWS,
    ),
    Plant(
        name="one bit of what an update in one pass changes",
        file="adam_block.h",
        before="v_delta[i] = changed_bits(v_old, v[i]);",
        after="v_delta[i] = changed_bits(v_old, v[i]) ^ (i == 255);",
        rows=("portable", *VECTOR_ROWS),
    ),
    Plant(
        name="padding of a chunk counts as changed",
        file="chunk_update.cpp",
        before="std::fill(strips[a] + (last - first), strips[a] + bytes / 4, 0u);",
        after="std::fill(strips[a] + (last - first), strips[a] + bytes / 4, 1u);",
        rows=("portable", *VECTOR_ROWS),
    ),
)


class NativeCheck:
    """tests/native built over a copy of the kernels that may be changed."""

    def __init__(self, folder: Path) -> None:
        self.kernels = folder / "kernels"
        self._build = folder / "build"
        shutil.copytree(ROOT / "kernels", self.kernels)
        # cmake and ninja lie beside the interpreter where pip installed them.
        self._environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        source = ROOT / "tests" / "native"
        self._run("cmake", "-G", "Ninja", "-S", str(source), "-B", str(self._build), f"-DLETO_KERNELS={self.kernels}")

    def passes(self, row: str) -> bool:
        """Builds what changed and checks the row."""
        self._run("cmake", "--build", str(self._build))
        environment = self._environment | {"LETO_KERNEL": row}
        done = subprocess.run(
            [self._build / "code_check"], env=environment, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S
        )
        assert done.returncode in (0, 1), done.stderr
        return done.returncode == 0

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr


def test_planted_bugs_are_caught(tmp_path: Path) -> None:
    native = NativeCheck(tmp_path)
    rows = _kernels.supported_rows
    assert [row for row in rows if not native.passes(row)] == []
    for plant in PLANTS:
        source = native.kernels / plant.file
        original = source.read_text()
        assert original.count(plant.before) == 1, plant
        source.write_text(original.replace(plant.before, plant.after))
        missed = [row for row in plant.rows if row in rows and native.passes(row)]
        source.write_text(original)
        assert missed == [], plant.name
