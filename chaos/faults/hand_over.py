"""Plugins by which the processes that map retained memory let the bench poison pages of theirs (U51).

A poisoned page is lost in one mapping only, and only the process that has it can create the userfaultfd for it. So each state
manager, each trainer and, for control arenas, the agent creates one and writes where it is, with the addresses of what it maps;
the bench takes the descriptor with pidfd_getfd. Nothing here is on any path of the product. Option (JobConfig.plugin_options):

    memory_dir     where the hand-overs are written: manager-<rank>.json, agent-<rank>.json, trainer-<rank>.json of the
                   newest epoch
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos.faults.userfaultfd import Userfaultfd
from leto.core.hooks import ManagerContext, TrainerContext
from leto.core.layout import PARK_WORD_OFFSET, Domain
from leto.memory.messages import Place


@dataclass(frozen=True, kw_only=True)
class HandOver:
    """What one process hands over: the addresses of whole arenas, and of allocations where those are mapped one by one."""

    pid: int
    userfaultfd: int  # in that process
    arenas: Mapping[str, int] = field(default_factory=dict)
    allocations: Mapping[str, int] = field(default_factory=dict)

    def address_of(self, place: Place) -> int | None:
        """First byte of the allocation in that process, None where it does not map it."""
        if place.domain.value in self.arenas:
            return self.arenas[place.domain.value] + place.offset
        return self.allocations.get(place.name)

    def write(self, path: Path) -> None:
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(asdict(self)))
        whole.replace(path)

    @staticmethod
    def read(path: Path) -> HandOver:
        return HandOver(**json.loads(path.read_text()))


def manager_path(memory_dir: Path, rank: int) -> Path:
    return memory_dir / f"manager-{rank}.json"


def agent_path(memory_dir: Path, rank: int) -> Path:
    return memory_dir / f"agent-{rank}.json"


def trainer_path(memory_dir: Path, rank: int) -> Path:
    return memory_dir / f"trainer-{rank}.json"


def install_in_manager(context: ManagerContext) -> None:
    _hand_over_arenas(context, manager_path(Path(context.options["memory_dir"]), context.rank))


def install_in_agent(context: ManagerContext) -> None:
    _hand_over_arenas(context, agent_path(Path(context.options["memory_dir"]), context.rank))


def _hand_over_arenas(context: ManagerContext, path: Path) -> None:
    arenas = {domain.value: address for domain, (address, _) in context.mappings.items()}
    HandOver(pid=os.getpid(), userfaultfd=Userfaultfd.create().fd, arenas=arenas).write(path)


def install_in_trainer(context: TrainerContext) -> None:
    path = trainer_path(Path(context.options["memory_dir"]), context.rank)
    path.unlink(missing_ok=True)  # the one of an older epoch speaks of a dead process

    arenas = {Domain.CONTROL.value: context.park_word_address - PARK_WORD_OFFSET}

    def write(addresses: Mapping[str, int]) -> None:
        handed = HandOver(pid=os.getpid(), userfaultfd=Userfaultfd.create().fd, arenas=arenas, allocations=addresses)
        handed.write(path)

    context.on_attached.append(write)


AGENT_PLUGIN = f"{__name__}:{install_in_agent.__name__}"
MANAGER_PLUGIN = f"{__name__}:{install_in_manager.__name__}"
TRAINER_PLUGIN = f"{__name__}:{install_in_trainer.__name__}"
