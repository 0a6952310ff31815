"""From HEADER(t+1) to the next update the updater's buffers are no help: lent, half lent, or taken back (U13).

As many pages as the code can solve are lost at each edge: no spare row is left to tell a repair that it trusts a wrong buffer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from chaos.explore.rank import InMemoryRank
from leto.core import repair as planning
from leto.core.geometry import Page
from leto.core.layout import LENT_CLASSES, parity_slot, tier1
from leto.core.markers import Mark, Phase, Word
from leto.core.recovery import Action
from tests.crash.test_chunk_transactions import T, rank_of
from tests.crash.test_repair import H1, lose, plan_of, repair, run_to_the_end, start

SIZES = [3 * 2048 * 2]  # three groups


def lent_names(rank: InMemoryRank) -> list[str]:
    return sorted(name for name, page_class in rank.classes.items() if page_class in LENT_CLASSES)


def mark(rank: InMemoryRank, phase: Phase) -> None:
    rank.process().marks.publish(Word.PHASE, Mark(T + 1, phase))


def activations(rank: InMemoryRank, names: list[str]) -> None:
    """What compute leaves in what it was lent."""
    garbage = np.random.default_rng(T)
    for name in names:
        rank.memory.bytes(name)[:] = garbage.integers(0, 256, rank.memory.bytes(name).size, dtype=np.uint8)


def half_lent(rank: InMemoryRank) -> None:
    mark(rank, Phase.HEADER)
    names = lent_names(rank)
    activations(rank, names[: len(names) // 2])


def lent(rank: InMemoryRank) -> None:
    mark(rank, Phase.HEADER)
    rank.process().updater.lend()


def computing(rank: InMemoryRank) -> None:
    lent(rank)
    activations(rank, lent_names(rank))


def owned(rank: InMemoryRank) -> None:
    computing(rank)
    mark(rank, Phase.OWNED)


def gradients_encoded(rank: InMemoryRank) -> None:
    owned(rank)
    rank.process().updater.protect_gradients(T + 1)


def post(rank: InMemoryRank) -> None:
    gradients_encoded(rank)
    mark(rank, Phase.POST)


def protected(rank: InMemoryRank) -> None:
    post(rank)
    mark(rank, Phase.GRADS_PROTECTED)


EDGES = (half_lent, lent, computing, owned, gradients_encoded, post, protected)


def recovered(edge: Callable[[InMemoryRank], None], *, of_each_buffer: int = 0) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """State and both tiers after update T, and after a crash at the edge with H1 coded pages of every group lost."""
    rank = rank_of(SIZES)
    start(rank)
    expected = run_to_the_end(rank)
    edge(rank)
    decision = rank.crash()
    assert (decision.action, decision.iteration) == (Action.RESTART, T + 1)
    coded = {placed.page for g in range(rank.coded.group_count) for placed in rank.coded.group_pages(g)[:H1]}
    buffers = {Page(name, k) for name in lent_names(rank) for k in range(of_each_buffer)}
    lose(rank, coded | buffers)
    plan = plan_of(rank, decision, coded | buffers)
    assert {page for page, _ in plan.left} == buffers
    repair(rank, plan)
    return expected, rank.durable()


@pytest.mark.parametrize("edge", EDGES)
def test_tier_1_alone_speaks(edge: Callable[[InMemoryRank], None]) -> None:
    expected, found = recovered(edge, of_each_buffer=2)
    assert found == expected


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("slot", [0, 1])
def test_a_repair_that_trusted_a_buffer_would_be_seen(
    edge: Callable[[InMemoryRank], None], slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusting = planning._Standing(speaking=parity_slot(slot), tiers_hold=True)
    assert planning._at_rest(0).speaking == tier1(0)
    monkeypatch.setattr(planning, "_at_rest", lambda group: trusting)
    expected, found = recovered(edge)
    assert found != expected
