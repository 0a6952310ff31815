"""Epochs of the state manager: whoever is of an ended one is refused, whatever it says of itself."""

import os
from pathlib import Path

import pytest
from pool_processes import TIMEOUT_S, Connect, raw_channel

from leto.core.errors import FencedError
from leto.core.layout import Domain
from leto.core.markers import Phase, Progress, words_of
from leto.memory.client import PoolAgent
from leto.memory.messages import Advance, Hello, Refused, Role, Usage, Welcome
from leto.memory.wire import PeerClosed, close_all


def test_a_connection_of_an_ended_epoch_is_fenced(agent: PoolAgent, connect: Connect) -> None:
    old = connect()
    old.allocate()
    agent.advance(2)
    with pytest.raises(FencedError, match="epoch 1 is not the current epoch 2"):
        old.attach()
    with pytest.raises(PeerClosed):
        old.pool.usage()


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_process_of_another_epoch_is_not_let_in(connect: Connect, epoch: int) -> None:
    with pytest.raises(FencedError, match=f"epoch {epoch} is not the current epoch 1"):
        connect(epoch=epoch)


def test_a_message_that_lies_about_its_epoch_is_fenced(agent: PoolAgent, socket_path: Path) -> None:
    channel = raw_channel(socket_path)
    welcome, fds = channel.request(Hello(epoch=1, rank=0, role=Role.TRAINER), TIMEOUT_S)
    close_all(fds)
    assert isinstance(welcome, Welcome)
    answer, _ = channel.request(Usage(epoch=2), TIMEOUT_S)
    assert isinstance(answer, Refused)
    assert answer.error == "FencedError"
    channel.close()


@pytest.mark.parametrize(
    ("role", "message"), [(Role.TRAINER, Usage(epoch=2)), (Role.AGENT, Advance(epoch=3))], ids=["trainer", "agent"]
)
def test_an_old_connection_cannot_talk_itself_into_the_new_epoch(
    agent: PoolAgent, socket_path: Path, role: Role, message: Advance | Usage
) -> None:
    channel = raw_channel(socket_path)
    _, fds = channel.request(Hello(epoch=1, rank=0, role=role), TIMEOUT_S)
    close_all(fds)
    agent.advance(2)
    answer, _ = channel.request(message, TIMEOUT_S)
    assert (type(answer), answer.error, answer.epoch) == (Refused, "FencedError", 2)
    channel.close()
    agent.advance(3)


@pytest.mark.parametrize("epoch", [0, 1, 1 << 14])
def test_epochs_only_grow_and_end(agent: PoolAgent, epoch: int) -> None:
    with pytest.raises(FencedError, match=f"epoch {epoch} cannot follow epoch 1"):
        agent.advance(epoch)


def test_a_stale_writer_cannot_reach_the_words_of_the_next_epoch(agent: PoolAgent, connect: Connect) -> None:
    """A zombie trainer still has the arena mapped and stores into the words of its own epoch (U5)."""
    zombie = connect()
    agent.advance(2)
    agent.control.write_words(2, words_of(2, Progress(phase=Phase.COMPLETE, iteration=4)))
    zombie.pool.control.write_words(1, words_of(1, Progress(phase=Phase.BEGIN, iteration=5)))
    assert agent.control.read_progress(2) == Progress(phase=Phase.COMPLETE, iteration=4)


def test_marker_pages_of_the_last_epoch_stay_and_older_ones_are_given_back(agent: PoolAgent) -> None:
    for epoch in range(1, 6):
        if epoch > 1:
            agent.advance(epoch)
        agent.control.write_words(epoch, words_of(epoch, Progress(phase=Phase.POST, iteration=epoch)))
    phases = [agent.control.read_progress(epoch).phase for epoch in range(1, 6)]
    assert phases == [Phase.NONE] * 3 + [Phase.POST] * 2


def test_agents_are_given_the_control_arena_only(agent: PoolAgent, socket_path: Path) -> None:
    channel = raw_channel(socket_path)
    welcome, fds = channel.request(Hello(epoch=1, rank=0, role=Role.AGENT), TIMEOUT_S)
    assert welcome.domains == (Domain.CONTROL,)
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in fds] == ["/memfd:leto-control-r0 (deleted)"]
    close_all(fds)
    channel.close()
