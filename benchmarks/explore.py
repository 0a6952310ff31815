"""Complete recoveries a minute of the explorer on one core, by what is explored (run: python -m benchmarks.explore)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from random import Random

from benchmarks.results import save
from chaos.explore.cases import Case
from chaos.explore.explorer import Explorer
from chaos.explore.products import Products
from chaos.explore.shapes import SHAPES

CASES = 2000


def spread(cases: Iterator[Case], total: int) -> list[Case]:
    """About CASES of them, evenly from the whole product."""
    return list(islice(cases, 0, None, max(total // CASES, 1)))


def recoveries_a_minute(explorer: Explorer, cases: list[Case]) -> int:
    started_s = time.process_time()
    for case in cases:
        explorer.run(case)
    return round(60 * len(cases) / (time.process_time() - started_s))


def main() -> None:
    figures: dict[str, int | float] = {}
    for name, shape in SHAPES.items():
        started_s = time.process_time()
        explorer = Explorer(shape)
        figures[f"{name}: recording the tape, s of processor time"] = round(time.process_time() - started_s, 3)
        totals, products = explorer.totals, Products(explorer)
        figures[f"{name}: cases of the full products"] = totals.all
        samples = {
            "point x loss set": spread(products.losses(), totals.losses),
            "point x point": spread(products.pairs(), totals.pairs),
            "point x second point": spread(products.again(), totals.again),
            "drawn": [products.draw(Random(f"0 {n}")) for n in range(CASES)],
        }
        for kind, cases in samples.items():
            figures[f"{name}: {kind}, recoveries a minute of processor time"] = recoveries_a_minute(explorer, cases)
    save("explore", figures)


if __name__ == "__main__":
    main()
