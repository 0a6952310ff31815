"""One JSON file a benchmark, with the machine it was measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chaos.fingerprint import machine_fingerprint

RESULTS = Path(__file__).parent / "results"


def save(name: str, figures: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, "figures": figures, "machine": machine_fingerprint()}, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    print(f"written to {path}")
    return path
