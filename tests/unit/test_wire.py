"""Control messages: strict decoding, descriptors, batches."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leto.core.errors import JobError, WireError
from leto.core.geometry import Page
from leto.core.layout import Allocation, Domain, PageClass
from leto.memory.messages import (
    POOL_CODEC,
    Acknowledged,
    Advance,
    Allocate,
    Attach,
    DomainUsage,
    Hello,
    List,
    ListLost,
    Localise,
    Localised,
    Lost,
    Place,
    Rebuilt,
    Refused,
    Role,
    Table,
    Used,
    Welcome,
    allocation_name,
    batched,
)
from leto.memory.wire import MAX_DESCRIPTORS, MAX_EPOCH, MAX_MESSAGE_BYTES, Channel, Codec, PeerClosed, close_all


@dataclass(frozen=True, kw_only=True)
class Nested:
    flag: bool
    factor: float


@dataclass(frozen=True, kw_only=True)
class Anything:
    """One field of every kind that may cross a channel."""

    epoch: int
    nested: tuple[Nested, ...]
    name: str | None
    carried: Mapping[str, Any]


CODEC = Codec((Anything,))

steady = settings(deadline=None)  # a loaded machine is not a slow codec

epochs = st.integers(0, MAX_EPOCH)
integers = st.integers(-(1 << 63), (1 << 63) - 1)
names = st.text(max_size=40)
hashes = st.text("0123456789abcdef", min_size=16, max_size=16)
allocations = st.builds(Allocation, name=names, page_class=st.sampled_from(PageClass), byte_count=integers)
places = st.builds(
    Place,
    name=names,
    page_class=st.sampled_from(PageClass),
    domain=st.sampled_from(Domain),
    offset=integers,
    byte_count=integers,
)
pages = st.lists(st.builds(Page, names, integers), max_size=5).map(tuple)
usages = st.builds(DomainUsage, domain=st.sampled_from(Domain), used_bytes=integers, capacity_bytes=integers)
json_values = st.recursive(
    st.none() | st.booleans() | integers | st.floats() | names,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
pool_messages = st.one_of(
    st.builds(Hello, epoch=epochs, rank=integers, role=st.sampled_from(Role)),
    st.builds(
        Welcome,
        epoch=epochs,
        layout_hash=st.none() | hashes,
        domains=st.lists(st.sampled_from(Domain), max_size=3).map(tuple),
        lost=integers,
    ),
    st.builds(Allocate, epoch=epochs, layout_hash=hashes, allocations=st.lists(allocations, max_size=5).map(tuple)),
    st.builds(Attach, epoch=epochs, layout_hash=hashes, allocations=st.lists(allocations, max_size=5).map(tuple)),
    st.builds(List, epoch=epochs, first=integers),
    st.builds(Table, epoch=epochs, places=st.lists(places, max_size=5).map(tuple), total=integers),
    st.builds(Used, epoch=epochs, domains=st.lists(usages, max_size=3).map(tuple)),
    st.builds(Localise, epoch=epochs),
    st.builds(
        Localised,
        epoch=epochs,
        found=integers,
        lost=integers,
        control=st.lists(integers, max_size=7).map(tuple),
        seconds=st.floats(0, 1e9),
    ),
    st.builds(ListLost, epoch=epochs, first=integers),
    st.builds(Lost, epoch=epochs, pages=pages, total=integers),
    st.builds(Rebuilt, epoch=epochs, pages=pages),
    st.builds(Acknowledged, epoch=epochs, lost=integers),
    st.builds(Advance, epoch=epochs),
    st.builds(Refused, epoch=epochs, error=names, text=names),
)
anythings = st.builds(
    Anything,
    epoch=epochs,
    nested=st.lists(
        st.builds(Nested, flag=st.booleans(), factor=st.floats(allow_nan=False, allow_infinity=False)), max_size=3
    ).map(tuple),
    name=st.none() | names,
    carried=st.dictionaries(names, st.none() | st.booleans() | integers | names, max_size=4),
)


@steady
@given(pool_messages)
def test_pool_messages_survive_the_wire(message: Any) -> None:
    assert POOL_CODEC.decode(POOL_CODEC.encode(message)) == message


@steady
@given(anythings)
def test_every_kind_of_field_survives_the_wire(message: Anything) -> None:
    decoded = CODEC.decode(CODEC.encode(message))
    assert repr(decoded) == repr(message)  # 0.0 and -0.0 differ


@steady
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_wire_error(datagram: bytes) -> None:
    with pytest.raises(WireError):
        POOL_CODEC.decode(datagram)


@steady
@given(pool_messages, st.data())
def test_a_message_with_one_foreign_value_decodes_exactly_or_is_refused(message: Any, data: st.DataObject) -> None:
    """What is accepted is what was sent: no value is coerced, no key ignored."""
    raw = json.loads(POOL_CODEC.encode(message))
    raw[data.draw(st.sampled_from([*raw, "unheard-of"]))] = data.draw(json_values)
    datagram = json.dumps(raw).encode()
    try:
        decoded = POOL_CODEC.decode(datagram)
    except WireError:
        return
    assert json.loads(POOL_CODEC.encode(decoded)) == raw


HELLO = {"type": "Hello", "epoch": 3, "rank": 0, "role": "trainer"}


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (json.dumps(HELLO | {"type": "Goodbye"}), "unknown message type 'Goodbye'"),
        (json.dumps({k: v for k, v in HELLO.items() if k != "rank"}), "missing or unknown keys: rank"),
        (json.dumps(HELLO | {"colour": 1}), "missing or unknown keys: colour"),
        (json.dumps(HELLO | {"rank": True}), "Hello.rank: True is no int"),
        (json.dumps(HELLO | {"rank": 0.0}), "Hello.rank: 0.0 is no int"),
        (json.dumps(HELLO | {"rank": "0"}), "Hello.rank: '0' is no int"),
        (json.dumps(HELLO | {"rank": 1 << 63}), "is no int"),
        (json.dumps(HELLO | {"rank": None}), "Hello.rank: None is no int"),
        (json.dumps(HELLO | {"role": "king"}), "Hello.role: 'king' is none of trainer, agent, observer"),
        (json.dumps(HELLO | {"role": ["trainer"]}), "Hello.role"),
        (json.dumps(HELLO | {"epoch": -1}), "Hello.epoch: -1 is not an epoch"),
        (json.dumps(HELLO | {"epoch": MAX_EPOCH + 1}), "is not an epoch"),
        (json.dumps(HELLO | {"rank": float("nan")}), "NaN is no JSON number"),
        ('{"type":"Hello","epoch":3,"epoch":3,"rank":0,"role":"trainer"}', "a key appears twice"),
        (json.dumps([HELLO]), "not a JSON object"),
        ("[" * 50_000, "not JSON"),
        ('{"type":"Hello","rank":' + "9" * 5000 + "}", "not JSON"),
        (json.dumps(HELLO) + " " * MAX_MESSAGE_BYTES, "longer than"),
        ("", "not JSON"),
    ],
    ids=lambda value: value[:40],
)
def test_malformed_datagrams_are_refused_with_their_reason(datagram: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason.replace("[", r"\[")):
        POOL_CODEC.decode(datagram.encode())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_beyond_json_are_refused_even_where_anything_goes(number: str) -> None:
    datagram = '{"type":"Anything","epoch":1,"nested":[],"name":null,"carried":{"deep":[%s]}}'
    assert CODEC.decode((datagram % "1.5").encode()).carried == {"deep": [1.5]}
    with pytest.raises(WireError, match="not JSON"):
        CODEC.decode((datagram % number).encode())


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(WireError, match="longer than"):
        POOL_CODEC.encode(Refused(epoch=0, error="", text="x" * MAX_MESSAGE_BYTES))


@steady
@given(st.lists(allocations, max_size=30), st.integers(200, 4000))
def test_batches_keep_order_and_lose_nothing(items: list[Allocation], batch_bytes: int) -> None:
    batches = list(batched(items, allocation_name, batch_bytes))
    assert [item for batch in batches for item in batch] == items
    assert all(batches)


def test_batches_of_any_names_fit_a_datagram_and_so_do_their_answers() -> None:
    biggest = (1 << 63) - 1
    items = [
        Allocation(name="\x00" * 170 + str(n), page_class=PageClass.GRADIENT_PARITY, byte_count=biggest) for n in range(500)
    ]
    batches = list(batched(items, allocation_name))
    assert len(batches) > 1
    for batch in batches:
        POOL_CODEC.encode(Allocate(epoch=MAX_EPOCH, layout_hash="f" * 16, allocations=batch))
        table = tuple(Place(**asdict(a), domain=Domain.CONTROL, offset=biggest) for a in batch)
        POOL_CODEC.encode(Table(epoch=MAX_EPOCH, places=table, total=biggest))


# Channels.


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = Channel.pair(POOL_CODEC)
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def raw_end() -> Iterator[tuple[socket.socket, Channel]]:
    """A bare socket whose other end is a channel."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(right, POOL_CODEC)
    with left:
        yield left, channel
    channel.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def send_raw(sock: socket.socket, datagram: bytes, fds: list[int]) -> None:
    socket.send_fds(sock, [datagram], fds)


def test_descriptors_arrive_in_order_and_close_on_exec(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    files = [os.memfd_create(f"leto-test-{n}") for n in range(3)]
    left.send(Advance(epoch=1), files)
    message, received = right.receive(1.0)
    assert message == Advance(epoch=1)
    assert [os.fstat(fd).st_ino for fd in received] == [os.fstat(fd).st_ino for fd in files]
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in received)
    close_all(files + received)


def test_the_kernels_limit_of_descriptors_fits_one_datagram(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send(Advance(epoch=1), [left.fileno()] * MAX_DESCRIPTORS)
    _, received = right.receive(1.0)
    assert len(received) == MAX_DESCRIPTORS
    close_all(received)
    with pytest.raises(WireError, match="254 descriptors"):
        left.send(Advance(epoch=1), [left.fileno()] * (MAX_DESCRIPTORS + 1))


@pytest.mark.parametrize(
    "datagram", [b"{}", b"\xff", b"[" * 60_000, b" " * (MAX_MESSAGE_BYTES + 100)], ids=["type", "utf8", "deep", "long"]
)
def test_a_malformed_datagram_leaks_no_descriptor(raw_end: tuple[socket.socket, Channel], datagram: bytes) -> None:
    sock, channel = raw_end
    before = open_descriptors()
    send_raw(sock, datagram, [sock.fileno()] * 3)
    with pytest.raises(WireError):
        channel.receive(1.0)
    assert open_descriptors() == before


def test_a_message_after_a_malformed_one_is_still_read(raw_end: tuple[socket.socket, Channel]) -> None:
    sock, channel = raw_end
    sock.send(b"garbage")
    sock.send(POOL_CODEC.encode(Advance(epoch=2)))
    with pytest.raises(WireError):
        channel.receive(1.0)
    assert channel.receive(1.0) == (Advance(epoch=2), [])


def test_nothing_to_receive_ends_at_the_deadline(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(JobError, match=r"no message within 0\.01 s"):
        ends[0].receive(0.01)


def test_a_closed_peer_is_told_apart_from_silence(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    right.close()
    with pytest.raises(PeerClosed):
        left.receive(1.0)
    with pytest.raises(PeerClosed):
        left.send(Advance(epoch=1))


def test_what_a_peer_said_before_it_closed_is_heard(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    right.send(Advance(epoch=7))
    right.close()
    assert left.receive(1.0) == (Advance(epoch=7), [])
    with pytest.raises(PeerClosed):
        left.receive(1.0)


def test_a_peer_that_does_not_read_costs_a_deadline_not_a_hang(ends: tuple[Channel, Channel]) -> None:
    left, _ = ends
    with pytest.raises(JobError, match="does not read"):
        for _ in range(10_000):
            left.send(Advance(epoch=1), timeout_s=0.01)


def test_a_request_whose_answer_is_late_ends_the_channel(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    with pytest.raises(JobError, match="no message"):
        left.request(Advance(epoch=1), 0.01)
    with pytest.raises(PeerClosed):
        left.request(Advance(epoch=2), 0.01)
    assert right.receive(1.0) == (Advance(epoch=1), [])
