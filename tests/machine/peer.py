"""The other rank of the job, as far as a decision sees it: a place in the order of marks."""

from __future__ import annotations

from leto.core.markers import Phase, Progress

Place = tuple[int, Phase]
"""Iteration and phase; they compare in the order in which a rank comes to them."""

WHERE = ("level", "behind", "ahead")


class Peer:
    """Barriers and decisions say how far it has come at least; a failure may find it further."""

    def __init__(self) -> None:
        self._at_least: Place = (1, Phase.HEADER)

    def has_come_to(self, iteration: int, phase: Phase) -> None:
        self._at_least = max(self._at_least, (iteration, phase))

    def carried(self, progress: Progress) -> None:
        self._at_least = (progress.iteration, progress.phase)

    def place(self, where: str, iteration: int, phase: Phase) -> Place:
        """Where a failure finds it beside a rank at this place, if barriers and decisions allow that."""
        beside = {"level": (iteration, phase), "behind": _behind(iteration, phase), "ahead": _ahead(iteration, phase)}
        return max(self._at_least, beside[where])


def _behind(iteration: int, phase: Phase) -> Place:
    return (iteration, Phase.GRADS_PROTECTED) if phase >= Phase.BEGIN else (iteration - 1, Phase.BEGIN)


def _ahead(iteration: int, phase: Phase) -> Place:
    """It waits for this rank before it begins, and again before it begins the next update."""
    if phase < Phase.GRADS_PROTECTED:
        return iteration, Phase.GRADS_PROTECTED
    following = {Phase.GRADS_PROTECTED: (iteration, Phase.BEGIN), Phase.BEGIN: (iteration, Phase.COMPLETE)}
    return following.get(phase, (iteration + 1, Phase.HEADER))
