"""The explorer: complete recoveries a minute of one core by what is explored, and all of it on every core.

python -m benchmarks.explore            samples only: about a minute
python -m benchmarks.explore --whole    and the exhaustive exploration of every shape: minutes
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from random import Random

from benchmarks.results import save
from chaos.explore.blocks import Order
from chaos.explore.campaign import never_reached
from chaos.explore.cases import Case
from chaos.explore.crew import run_on_crew
from chaos.explore.explorer import Explorer
from chaos.explore.products import Products
from chaos.explore.shapes import SHAPES

CASES = 100
RUNS = 5

Figures = dict[str, int | float | str]


def spread(cases: Iterator[Case], total: int) -> list[Case]:
    """About CASES of them, evenly from the whole product."""
    return list(islice(cases, 0, None, max(total // CASES, 1)))


def recoveries_a_minute(explorer: Explorer, cases: list[Case]) -> int:
    """Of processor time, so that other work on the machine counts as little as it can."""
    started_s = time.process_time()
    for case in cases:
        explorer.run(case)
    return round(60 * len(cases) / (time.process_time() - started_s))


def sampled() -> Figures:
    figures: Figures = {}
    everything: list[int] = []
    for name, shape in SHAPES.items():
        explorer = Explorer(shape)
        totals, products = explorer.totals, Products(explorer)
        figures[f"{name}: cases of the full products"] = totals.all
        samples = {
            "point x loss set": spread(products.losses(), totals.losses),
            "point x point": spread(products.pairs(), totals.pairs),
            "point x second point": spread(products.again(), totals.again),
            "point x step of the agent": spread(products.handed_over(), totals.handed_over),
            "drawn": [products.draw(Random(f"0 {n}")) for n in range(CASES)],
        }
        for kind, cases in samples.items():
            rates = [recoveries_a_minute(explorer, cases) for _ in range(RUNS)]
            figures[f"{name}: {kind}, recoveries a minute of one core, median of {RUNS} runs"] = round(statistics.median(rates))
            everything += rates
    figures["all kinds, recoveries a minute of one core, median"] = round(statistics.median(everything))
    return figures


def whole() -> Figures:
    """Every product of every shape; ends with an error where one case does."""
    jobs, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    started_s, used_s = time.monotonic(), _processor_s()
    order = Order(exhaustive=True, points=0, seed=0)
    results = [run_on_crew(Explorer(shape), order, jobs=jobs, tick=lambda result: None) for shape in SHAPES.values()]
    if not all(result.passed for result in results) or never_reached(results):
        raise SystemExit("the exploration failed: leto-chaos explore --exhaustive says where")
    seconds = time.monotonic() - started_s
    return {
        "exhaustive: cases": sum(result.explored for result in results),
        "exhaustive: cores": jobs,
        "exhaustive: s": round(seconds, 1),
        "exhaustive: s of processor time": round(_processor_s() - used_s, 1),
        "exhaustive: load of the machine when it began": round(load, 1),
    }


def _processor_s() -> float:
    """Of this process and of children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="run the exhaustive exploration as well")
    arguments = parser.parse_args()
    save("explore", sampled() | (whole() if arguments.whole else {}))


if __name__ == "__main__":
    main()
