"""Clients that send nonsense, too much, or too many: they are turned away, and nobody else notices."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from pool_client import LAYOUT
from pool_processes import TIMEOUT_S, Connect, Observe, descriptors, raw_channel

from leto.core.errors import JobError
from leto.core.layout import Allocation, PageClass
from leto.memory.client import PoolAgent
from leto.memory.messages import POOL_CODEC, Advance, Allocate, Hello, List, Refused, Role, Usage, Used
from leto.memory.state_manager import MAX_CONNECTIONS
from leto.memory.wire import MAX_MESSAGE_BYTES, PeerClosed, close_all
from leto.runtime.process import Spawned


@pytest.mark.parametrize(
    "datagram",
    [
        b"\x00\xff nonsense",
        b"{}",
        b'{"type":"Advance","epoch":"1"}',
        b'{"type":"Hello","epoch":1,"rank":1,"role":"trainer"}',
        POOL_CODEC.encode(Usage(epoch=1)),
        POOL_CODEC.encode(Used(epoch=1, domains=())),
        b" " * (MAX_MESSAGE_BYTES + 4096),
    ],
    ids=["bytes", "empty", "type", "rank", "before-hello", "answer", "long"],
)
def test_a_malformed_message_ends_its_connection_and_no_other(connect: Connect, socket_path: Path, datagram: bytes) -> None:
    trainer = connect()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rude:
        rude.settimeout(TIMEOUT_S)
        rude.connect(str(socket_path))
        rude.send(datagram)
        answer = POOL_CODEC.decode(rude.recv(1 << 16))
        assert answer.error == "WireError"
        assert rude.recv(1 << 16) == b""
    trainer.allocate()


@pytest.mark.parametrize(
    ("role", "message"),
    [
        (Role.TRAINER, Advance(epoch=2)),
        (Role.OBSERVER, Allocate(epoch=1, layout_hash=LAYOUT, allocations=())),
        (Role.AGENT, Allocate(epoch=1, layout_hash=LAYOUT, allocations=())),
        (Role.TRAINER, Hello(epoch=1, rank=0, role=Role.AGENT)),
    ],
    ids=["trainer-advances", "observer-allocates", "agent-allocates", "second-hello"],
)
def test_a_role_may_say_only_its_own_messages(agent: PoolAgent, socket_path: Path, role: Role, message: Advance) -> None:
    channel = raw_channel(socket_path)
    _, fds = channel.request(Hello(epoch=1, rank=0, role=role), TIMEOUT_S)
    close_all(fds)
    answer, _ = channel.request(message, TIMEOUT_S)
    assert (type(answer), answer.error, answer.epoch) == (Refused, "WireError", 1)
    with pytest.raises(PeerClosed):
        channel.receive(TIMEOUT_S)
    channel.close()


def test_descriptors_sent_by_a_client_are_refused_and_closed(manager: Spawned, agent: PoolAgent, socket_path: Path) -> None:
    before = descriptors(manager.pid)
    channel = raw_channel(socket_path)
    channel.send(Hello(epoch=1, rank=0, role=Role.TRAINER), [channel.fileno()] * 5)
    answer, _ = channel.receive(TIMEOUT_S)
    assert answer.text == "this channel takes no descriptors"
    with pytest.raises(PeerClosed):
        channel.receive(TIMEOUT_S)
    channel.close()
    assert len(descriptors(manager.pid)) == len(before)


def test_a_client_that_does_not_read_cannot_stall_the_others(connect: Connect, observe: Observe, socket_path: Path) -> None:
    trainer = connect()
    trainer.allocate([Allocation(name=f"tier1/{n}", page_class=PageClass.TIER1, byte_count=4096) for n in range(400)], LAYOUT)
    deaf = raw_channel(socket_path)
    _, fds = deaf.request(Hello(epoch=1, rank=0, role=Role.OBSERVER), TIMEOUT_S)
    close_all(fds)
    with suppress(JobError, PeerClosed):  # its own queue fills too, once the manager has dropped it
        for _ in range(2000):
            deaf.send(List(epoch=1, first=0), timeout_s=TIMEOUT_S)
    assert len(observe().table()) == 400
    deaf.close()


def test_more_clients_than_allowed_are_turned_away_and_places_are_given_back(
    connect: Connect, observe: Observe, socket_path: Path
) -> None:
    connect()
    with ExitStack() as crowd:
        for _ in range(MAX_CONNECTIONS - 2):  # the agent and the pool hold two places
            channel = raw_channel(socket_path)
            crowd.callback(channel.close)
            _, fds = channel.request(Hello(epoch=1, rank=0, role=Role.OBSERVER), TIMEOUT_S)
            close_all(fds)
        with pytest.raises(PeerClosed):
            observe()
    observe().usage()
