"""Planted bugs in how the two lanes of an update run beside each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chaos.planted.planting import Patch, planted, skip
from leto.update.lanes import Lanes


@planted("U35", parts="order of lanes")
def lanes_do_not_wait(patch: Patch) -> None:
    """A lane goes on without what its operation depends on in the other one."""

    def alone(init: Any) -> Any:
        return lambda self, plan, **options: init(self, [replace(op, depends_on=()) for op in plan], **options)

    patch.wrap(Lanes, "__init__", alone)


@planted("U50", parts="halted lane")
def other_lane_goes_on(patch: Patch) -> None:
    """While an armed operation stands parked, the other lane goes on, and marks move under whoever reads them."""
    patch.set(Lanes, "halt", skip)
