"""A campaign on several processes: each records a tape of its own and runs the blocks that this process hands out.

A worker dies with this process (PR_SET_PDEATHSIG) and is ended here on every way out, so that an interrupt leaves nothing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from chaos.explore.blocks import Block, Order, Place, Share
from chaos.explore.campaign import Campaign, Result, Tick
from chaos.explore.explorer import Explorer
from chaos.explore.shapes import SHAPES
from leto.core.errors import JobError
from leto.device.linux import die_with_parent

BLOCK_DEADLINE_S = 300.0
"""A block takes a fraction of a second. A worker that says nothing for so long hangs."""
END_DEADLINE_S = 10.0


@dataclass(frozen=True)
class _Worker:
    process: SpawnProcess
    channel: Connection


def run_on_crew(explorer: Explorer, order: Order, *, jobs: int, tick: Tick) -> Result:
    """The result is the same for every number of ``jobs``. Raises JobError when a worker ends or hangs."""
    campaign = Campaign(explorer, order, tick)
    with _crew(explorer.shape.name, order, jobs) as workers:
        busy = {worker.channel: worker for worker in workers if _hand_out(campaign, worker)}
        while busy:
            ready = wait(list(busy), BLOCK_DEADLINE_S)
            if not ready:
                raise JobError(f"no worker of the explorer has done anything for {BLOCK_DEADLINE_S:g} s")
            for channel in ready:
                worker = busy[channel]  # type: ignore[index]
                campaign.done(_block_of(worker))
                if not _hand_out(campaign, worker):
                    del busy[worker.channel]
    return campaign.result()


def _hand_out(campaign: Campaign, worker: _Worker) -> bool:
    place = campaign.next_place()
    if place is not None:
        worker.channel.send(place)
    return place is not None


def _block_of(worker: _Worker) -> Block:
    try:
        block = worker.channel.recv()
    except EOFError:
        worker.process.join(END_DEADLINE_S)
        raise JobError(f"{worker.process.name} ended with exit code {worker.process.exitcode}") from None
    assert isinstance(block, Block), block
    return block


@contextlib.contextmanager
def _crew(shape: str, order: Order, jobs: int) -> Iterator[list[_Worker]]:
    spawn = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    try:
        for number in range(jobs):
            ours, theirs = spawn.Pipe()
            arguments = (theirs, os.getpid(), shape, order)
            process = spawn.Process(target=_work, args=arguments, name=f"explorer {number}", daemon=True)
            workers.append(_Worker(process, ours))
            process.start()
            theirs.close()  # so that the end of the worker is the end of the channel
        yield workers
    finally:
        for worker in workers:
            worker.channel.close()
            _end(worker.process)


def _end(process: SpawnProcess) -> None:
    if process.pid is None:  # never started
        return
    process.kill()
    process.join(END_DEADLINE_S)
    process.close()


def _work(channel: Connection, parent_pid: int, shape: str, order: Order) -> None:
    """A worker, to the end of its channel. An interrupt from the terminal is for the process that hands out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent_pid)
    share = Share(Explorer(SHAPES[shape]), order)
    with contextlib.suppress(EOFError):
        while True:
            place: Place = channel.recv()
            channel.send(share.run(place))
