"""A state manager for a test, with whoever connects to it; all of it ends with the test."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pool_client import PAGE_BYTES
from pool_processes import TIMEOUT_S, Connect, Observe, Trainer, start

from leto.memory.client import Pool, PoolAgent, PoolObserver
from leto.memory.regions import Regions
from leto.runtime.process import Spawned


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, because a socket's path has at most 107 bytes; mode 0700."""
    with tempfile.TemporaryDirectory(prefix="leto-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def socket_path(folder: Path) -> Path:
    return folder / "r0"


@pytest.fixture
def manager(folder: Path, socket_path: Path) -> Iterator[Spawned]:
    manager = start(folder, socket_path)
    yield manager
    manager.stop(TIMEOUT_S)
    manager.close()


@pytest.fixture
def agent(manager: Spawned, socket_path: Path) -> Iterator[PoolAgent]:
    agent = PoolAgent(socket_path, rank=0, epoch=0, timeout_s=TIMEOUT_S)
    agent.advance(1)
    yield agent
    agent.close()


@pytest.fixture
def connect(agent: PoolAgent, socket_path: Path) -> Iterator[Connect]:
    """Connects trainers of the current epoch, and closes them."""
    with ExitStack() as stack:

        def connect(epoch: int | None = None, regions: Regions | None = None) -> Trainer:
            at = agent.epoch if epoch is None else epoch
            trainer = Trainer(Pool(socket_path, rank=0, epoch=at, timeout_s=TIMEOUT_S), regions)
            stack.callback(trainer.close)
            return trainer

        yield connect


@pytest.fixture
def observe(agent: PoolAgent, socket_path: Path) -> Iterator[Observe]:
    """Connects observers of the current epoch, and closes them."""
    with ExitStack() as stack:

        def observe() -> PoolObserver:
            observer = PoolObserver(socket_path, rank=0, epoch=agent.epoch, page_bytes=PAGE_BYTES, timeout_s=TIMEOUT_S)
            return stack.enter_context(observer)

        yield observe
