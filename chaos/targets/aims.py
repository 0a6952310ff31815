"""Where an armed kernel parks on a rank: pure, from the rank's geometry. Trainers ask it, and the bench before they do."""

from __future__ import annotations

from chaos.schedule import Place
from chaos.targets.rank_geometry import RankGeometry
from leto.core.errors import ConfigError
from leto.core.failpoints import Kernel
from leto.core.geometry import CodedGeometry, Rule
from leto.core.wording import numbered

KERNELS_OF_GROUPS = (Kernel.RS_ENCODE, Kernel.PARITY_FETCH, Kernel.PARITY_WRITEBACK, Kernel.TIER2)
"""Run once a group; all others once a chunk."""
_RULES = {Kernel.ADAM: Rule.ADAMW, Kernel.MUON_MOMENTUM: Rule.MUON_MOMENTUM, Kernel.MUON_APPLY: Rule.MUON_APPLY}


def aim_of(place: Place, geometry: RankGeometry) -> tuple[int, int | None]:
    """Group and chunk in which the kernel of ``place`` parks; the chunk, of all of the rank, is None of KERNELS_OF_GROUPS.

    A place without group or chunk takes its draw modulo the real count of those in which the kernel runs. Raises ConfigError,
    which begins with the key, where it does not run.
    """
    assert place.kernel is not None
    coded, name = geometry.coded, place.kernel.value
    hit = _chunks_hit(coded, place.kernel)
    groups = range(coded.group_of(hit.start), coded.group_of(hit.stop - 1) + 1)
    if place.kernel is Kernel.RS_ENCODE:
        groups = range(geometry.gradients.group_count)
    group = groups[place.group_draw % len(groups)] if place.group is None else place.group
    if group not in groups:
        raise ConfigError(f"group: {name!r} does not run in group {group}, it does in {numbered('group', groups)}")
    if place.kernel in KERNELS_OF_GROUPS:
        return group, None
    chunks = coded.chunks_of(group)
    first, stop = max(chunks.start, hit.start), min(chunks.stop, hit.stop)
    chunk = first + place.chunk_draw % (stop - first) if place.chunk is None else chunks.start + place.chunk
    if not first <= chunk < stop:
        there = numbered("chunk", range(first - chunks.start, stop - chunks.start))
        raise ConfigError(f"chunk: {name!r} does not run in chunk {place.chunk} of group {group}, it does in {there}")
    return group, chunk


def _chunks_hit(coded: CodedGeometry, kernel: Kernel) -> range:
    """The chunks in which a kernel runs: those of its rule, or all."""
    rule = _RULES.get(kernel)
    return next((region.chunks for region in coded.regions if region.rule is rule), range(coded.chunk_count))
