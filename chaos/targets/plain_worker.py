"""One rank of the reference: plain Megatron with torch's own AdamW, and no Leto at all (U46).

    python -m chaos.targets.plain_worker CONFIG.json RANK

Writes its ledger and reports events as JSON lines on the descriptor the configuration names. Being the first to have built
the model, it also says which groups and chunks there will be where Leto trains it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chaos.targets.rank_geometry import RankGeometry, geometry_path
from leto.core.config import Workload
from leto.core.errors import LetoError
from leto.core.events import Event
from leto.core.geometry import Protection
from leto.device.linux import die_with_parent
from leto.megatron.preload import preload
from verify.ledger import LedgerWriter, digest, ledger_path, live_digests


@dataclass(frozen=True, kw_only=True)
class PlainConfig:
    """What the target tells its workers. Descriptors are inherited; ``store_fd`` is a listening socket on ``store_port``."""

    workload: Workload
    protection: Protection
    output_dir: str
    ledger_dir: str
    parent_pid: int
    store_fd: int
    store_port: int
    event_fds: tuple[int, ...]  # by rank
    collective_timeout_s: float

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2))

    @staticmethod
    def load(path: Path) -> PlainConfig:
        raw = json.loads(path.read_text())
        typed = {"workload": Workload(**raw["workload"]), "protection": Protection(**raw["protection"])}
        return PlainConfig(**{**raw, **typed, "event_fds": tuple(raw["event_fds"])})


def main(config_path: str, rank: int) -> None:
    config = PlainConfig.load(Path(config_path))
    die_with_parent(config.parent_pid)
    try:
        preload()
    except LetoError as error:  # of this machine or its settings: a line says all
        sys.exit(str(error))
    _train(config, rank)


def _train(config: PlainConfig, rank: int) -> None:
    import torch.distributed as dist

    from leto.megatron.retained import coded_geometry, gradient_geometry
    from leto.megatron.training import TrainingSession, join_process_groups

    workload = config.workload
    join_process_groups(workload, store=_store(config, rank), rank=rank, timeout_s=config.collective_timeout_s)
    session = TrainingSession(workload, rank=rank)
    coded, gradients = coded_geometry(session, config.protection), gradient_geometry(session, config.protection)
    RankGeometry(coded=coded, gradients=gradients).write(geometry_path(Path(config.output_dir), rank))
    ledger = LedgerWriter(ledger_path(Path(config.ledger_dir), rank), rank, workload.world_size)
    with os.fdopen(config.event_fds[rank], "w", buffering=1) as events:  # its end is the end of this process
        _report(events, Event("ready", {"rank": rank, "pid": os.getpid(), "epoch": 0}))
        for iteration in range(1, workload.iterations + 1):
            session.compute(iteration)
            result = session.plain_step(iteration)
            state = {entry.name: digest(entry.data) for entry in session.entries()}
            ledger.write(result, state, live_digests(session.live_state()))
            _report(events, Event("iteration", {"rank": rank, "iteration": iteration, "loss": result.loss}))
        ledger.close()
        dist.barrier()  # rank 0 hosts the store: nobody leaves before everybody is done
        dist.destroy_process_group()


def _store(config: PlainConfig, rank: int) -> Any:
    """The parent bound and listens already, so that no port is ever guessed."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    return TCPStore(
        "127.0.0.1",
        config.store_port,
        config.workload.world_size,
        is_master=rank == 0,
        timeout=timedelta(seconds=config.collective_timeout_s),
        master_listen_fd=config.store_fd if rank == 0 else None,
    )


def _report(events: Any, event: Event) -> None:
    events.write(json.dumps({"name": event.name, "fields": dict(event.fields)}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
