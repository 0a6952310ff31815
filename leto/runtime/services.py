"""What outlives every trainer of a job on this node: one state manager a rank, and the fork server."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from leto.core import plugins
from leto.core.config import JobConfig
from leto.core.errors import JobError
from leto.core.hooks import ManagerContext
from leto.core.layout import CONTROL_BYTES, Domain
from leto.megatron.preload import TRAINER_ENVIRONMENT
from leto.memory.client import PoolAgent
from leto.memory.state_manager import ManagerSpec
from leto.runtime.fork_client import ForkServer
from leto.runtime.process import Spawned
from leto.runtime.state_managers import start_state_manager

PRELOAD = "leto.runtime.trainer:preload"


class Services:
    """Started in ``__enter__``, gone with their sockets after ``__exit__``. ``pools`` hold the control arenas, by rank."""

    def __init__(self, config: JobConfig, log_dir: Path) -> None:
        self._config = config
        self._log_dir = log_dir
        self._resources = ExitStack()
        self._told_ended: set[str] = set()
        self.managers: list[Spawned] = []
        self.pools: list[PoolAgent] = []
        self.pool_sockets: list[Path] = []
        self.fork_server: ForkServer

    def __enter__(self) -> Self:
        """Raises JobError when one of them does not come up; nothing is left behind then."""
        with ExitStack() as undo:
            undo.push(self._resources)
            self._start()
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._resources.__exit__(kind, error, trace)

    @property
    def pids(self) -> dict[str, int]:
        return {process.name: process.pid for process in (self.fork_server.process, *self.managers)}

    def newly_ended_managers(self) -> Iterator[Spawned]:
        """State managers that ended since the last call. What they retained is gone once trainers unmap it."""
        for manager in self.managers:
            if manager.name not in self._told_ended and manager.ended():
                self._told_ended.add(manager.name)
                yield manager

    def _start(self) -> None:
        config, timeouts = self._config, self._config.timeouts
        try:
            sockets = Path(tempfile.mkdtemp(prefix="leto-"))  # mode 0700
        except OSError as error:
            raise JobError(f"no folder for sockets: {error.filename}: {error.strerror}; set TMPDIR to another one") from None
        self._resources.callback(shutil.rmtree, sockets, ignore_errors=True)
        for rank in range(config.workload.world_size):
            self._start_manager(rank, sockets / f"r{rank}")
        self.fork_server = ForkServer.start(
            [PRELOAD],
            log_path=self._log_dir / "fork-server.log",
            timeout_s=timeouts.start_s,
            env={**os.environ, **TRAINER_ENVIRONMENT},
        )
        self._resources.callback(self.fork_server.close, timeouts.stop_s)

    def _start_manager(self, rank: int, socket_path: Path) -> None:
        config, timeouts = self._config, self._config.timeouts
        manager = start_state_manager(
            socket_path,
            ManagerSpec(
                rank=rank,
                device_bytes=config.device_bytes,
                host_bytes=config.host_bytes,
                page_bytes=config.protection.page_bytes,
                plugins=config.manager_plugins,
                plugin_options=config.plugin_options,
            ),
            log_path=self._log_dir / f"state-manager-{rank}.log",
            timeout_s=timeouts.start_s,
        )
        self._resources.callback(_stop, manager, timeouts.stop_s)
        pool = PoolAgent(socket_path, rank=rank, epoch=0, timeout_s=timeouts.start_s)
        self._resources.callback(pool.close)
        self._call_agent_plugins(pool)
        self.managers.append(manager)
        self.pools.append(pool)
        self.pool_sockets.append(socket_path)

    def _call_agent_plugins(self, pool: PoolAgent) -> None:
        mappings = {Domain.CONTROL: (pool.control.address, CONTROL_BYTES)}
        context = ManagerContext(rank=pool.rank, options=self._config.plugin_options, mappings=mappings)
        for path in self._config.agent_plugins:
            plugins.load(path)(context)


def _stop(manager: Spawned, timeout_s: float) -> None:
    manager.stop(timeout_s)
    manager.close()
