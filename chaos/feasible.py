"""What a scenario asks for that cannot happen, although no key of it is wrong: found before anybody waits for it.

Its plan alone says how many recoveries there can be. Whether a group or a chunk exists depends on the model, so that is asked
as soon as the first processes have built it: those of the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from chaos.contradictions import GROUPED
from chaos.mistakes import Mistake
from chaos.schedule import Injection, Place, plan_injections
from chaos.targets.aims import aim_of
from chaos.targets.lost_pages import pages_of
from chaos.targets.rank_geometry import RankGeometry
from chaos.yaml_source import Path
from leto.core.errors import ConfigError
from leto.core.failpoints import Kernel
from leto.core.markers import Phase, Progress
from leto.core.wording import numbered

if TYPE_CHECKING:
    from chaos.loss import Loss
    from chaos.scenario import Fault, Scenario


def beyond_plan(scenario: Scenario) -> Iterator[Mistake]:
    """Faults that nothing leads to, and more or fewer recoveries than the faults can have."""
    planned = plan_injections(scenario)
    yield from _never_restored(scenario, planned).items()
    expected, refused = scenario.expect.recoveries, scenario.expect.fallback == "refused"
    most = len(planned) - 1 if refused else len(planned)
    least = 0 if refused else len({i.iteration for i in planned})
    if planned and expected > most:
        refusal = ", one of which is refused" if refused else ""
        yield (
            ("expect", "recoveries"),
            f"{expected} recoveries are expected of {len(planned)} faults{refusal}; expect at most {most}",
        )
    elif expected < least:
        what = f"faults in {least} iterations have a recovery each, {expected} are expected; expect at least {least}"
        yield ("expect", "recoveries"), what


def _never_restored(scenario: Scenario, planned: tuple[Injection, ...]) -> dict[Path, str]:
    """Nothing is restored before something fails, in the iteration of the restore or where another rank is one ahead."""
    failing = {i.iteration for i in planned if i.kernel is not Kernel.UNDO_RESTORE}
    found: dict[Path, str] = {}
    for path, place in _places(scenario, planned):
        if place.kernel is Kernel.UNDO_RESTORE and failing.isdisjoint((place.iteration, place.iteration + 1)):
            what = f"'undo-restore' runs in a recovery only; add a fault of iteration {place.iteration} before it"
            found.setdefault(path, what)
    return found


def beyond_geometry(scenario: Scenario, geometries: Mapping[int, RankGeometry]) -> Iterator[Mistake]:
    """Groups, chunks and pages that the ranks do not have; one mistake a key. ``geometries`` are those of all ranks."""
    planned = plan_injections(scenario)
    found: dict[Path, str] = {}
    for path, place in _places(scenario, planned):
        if place.kernel is Kernel.UNDO_RESTORE and place.group is None and place.chunk is None:
            continue  # parks in whatever chunk was in flight
        try:
            aim_of(place, geometries[place.rank])
        except ConfigError as error:
            key, _, what = str(error).partition(": ")
            found.setdefault((*path, key), f"rank {place.rank}: {what}")
    for path, injection, loss in _losses(scenario, planned):
        wrong = _wrong_in(loss, geometries[injection.rank])
        if wrong is not None:
            found.setdefault((*path, wrong[0]), f"rank {injection.rank}: {wrong[1]}")
    yield from found.items()


def _fault_of(scenario: Scenario, injection: Injection) -> tuple[Path, Fault]:
    return next((("faults", n), fault) for n, fault in enumerate(scenario.faults) if fault.id == injection.fault_id)


def _places(scenario: Scenario, planned: tuple[Injection, ...]) -> Iterator[tuple[Path, Place]]:
    """Every place inside a kernel, with the mapping in the file that aims there."""
    for injection in planned:
        path, fault = _fault_of(scenario, injection)
        held = (((*path, "hold", n), hold) for n, hold in enumerate(injection.holds))
        for where, place in (((*path, *fault.path_of(injection.occurrence)), injection), *held):
            if place.kernel is not None:
                yield where, place


def _losses(scenario: Scenario, planned: tuple[Injection, ...]) -> Iterator[tuple[Path, Injection, Loss]]:
    for injection in planned:
        path, fault = _fault_of(scenario, injection)
        steps = [n for n, step in enumerate(fault.do) if step.lose_pages is not None]
        for n, loss in zip(steps, injection.losses, strict=True):
            yield (*path, "do", n, "lose-pages"), injection, loss


def _wrong_in(loss: Loss, geometry: RankGeometry) -> tuple[str, str] | None:
    """(key, why) of a loss in a class with groups, whose pages do not depend on where the rank stands."""
    name = loss.page_class.value
    if loss.page_class not in GROUPED:
        return None
    sizes = [len(pages) for pages in pages_of(loss.page_class, geometry, (), Progress(phase=Phase.HEADER, iteration=1))]
    if not loss.per_group:
        whole = sum(sizes)
        return ("count", f"has {whole} pages of class {name!r}, {loss.count} are to be lost") if whole < loss.count else None
    if loss.group is not None and loss.group >= len(sizes):
        return "group", f"there is no group {loss.group} of class {name!r}, there are {numbered('group', range(len(sizes)))}"
    groups = range(len(sizes)) if loss.group is None else (loss.group,)
    small = next((group for group in groups if sizes[group] < loss.count), None)
    if small is None:
        return None
    return "count", f"group {small} has {sizes[small]} pages of class {name!r}, {loss.count} are to be lost"
