"""Planted bugs that live in a trainer: each is a plugin that breaks one answer of the protocol from outside."""

from __future__ import annotations

from leto.core.hooks import TrainerContext
from leto.core.update_plan import Operation
from leto.update.executor import PlanExecutor


def no_undo(context: TrainerContext) -> None:
    """A chunk in flight is not restored: its half-updated elements are updated again."""

    def restore(self: PlanExecutor, op: Operation) -> None:
        return None

    PlanExecutor._restore = restore  # type: ignore[method-assign]
