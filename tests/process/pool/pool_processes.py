"""A state manager and its clients, as processes and as connections of the test."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pool_client import ALLOCATIONS, LAYOUT, PAGE_BYTES

from leto.core.layout import Allocation
from leto.memory.client import Pool, PoolObserver
from leto.memory.messages import POOL_CODEC
from leto.memory.regions import Regions
from leto.memory.state_manager import ManagerSpec
from leto.memory.wire import Channel
from leto.runtime.process import Spawned
from leto.runtime.state_managers import start_state_manager

TIMEOUT_S = 20.0
DEVICE_BYTES = 64 << 20
HOST_BYTES = 16 << 20


class Trainer:
    """A pool with regions of its own."""

    def __init__(self, pool: Pool, regions: Regions | None = None) -> None:
        self.pool = pool
        self.regions = regions or Regions(PAGE_BYTES)

    def allocate(self, allocations: Sequence[Allocation] = ALLOCATIONS, layout: str = LAYOUT) -> None:
        self.pool.obtain(self.regions, allocations, layout, create=True)

    def attach(self, allocations: Sequence[Allocation] = ALLOCATIONS, layout: str = LAYOUT) -> None:
        self.pool.obtain(self.regions, allocations, layout, create=False)

    def bytes(self, name: str) -> npt.NDArray[np.uint8]:
        return self.regions.bytes(name)

    def close(self) -> None:
        self.regions.close()
        self.pool.close()


Connect = Callable[..., Trainer]
Observe = Callable[[], PoolObserver]


def start(folder: Path, socket_path: Path, device_bytes: int = DEVICE_BYTES) -> Spawned:
    return start_state_manager(
        socket_path,
        ManagerSpec(rank=0, device_bytes=device_bytes, host_bytes=HOST_BYTES, page_bytes=PAGE_BYTES),
        log_path=folder / "manager.log",
        timeout_s=TIMEOUT_S,
    )


def start_client(mode: str, socket_path: Path, epoch: int) -> subprocess.Popen[bytes]:
    """Returns once the client has done its work."""
    script = Path(__file__).with_name("pool_client.py")
    client = subprocess.Popen([sys.executable, script, mode, socket_path, str(epoch)], stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.read(5) == b"done\n"
    client.stdout.close()
    return client


def raw_channel(socket_path: Path) -> Channel:
    return Channel.connect(str(socket_path), POOL_CODEC, TIMEOUT_S)


def descriptors(pid: int) -> list[str]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # the listing's own descriptor
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found
