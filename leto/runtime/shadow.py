"""The shadow trainer of one rank (paper 3, 6; R16): everything a trainer has but retained memory, waiting to take over.

Shadows of all ranks take over together, because the process groups they have built are among themselves (U38). An idle one
has dropped its scratch memory and is stopped by the agent, so it costs neither memory nor time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from leto.runtime.agent_link import AgentLink, TrainerOrder
from leto.runtime.trainer import Trainer, build_ordered


def main(arguments: Mapping[str, Any], fds: list[int]) -> None:
    """Entry point for the fork server: ``fds`` as for a trainer."""
    started_s = time.monotonic()
    order = TrainerOrder.from_arguments(arguments)
    link = AgentLink(fds[0], order.rank, order.epoch)
    with link.reporting_fatal():
        built = build_ordered(order, fds)
        built.warm_up()
        link.report("prepared", level="L3", seconds=time.monotonic() - started_s)
        epoch = link.wait_for_promotion()
        Trainer(built, order, epoch, link).run()
