"""The state manager as a process: it outlives its clients, fences epochs, survives nonsense and leaves nothing behind."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from pool_client import ALLOCATIONS, LAYOUT, PAGE_BYTES, pattern

from leto.core.errors import FencedError, JobError, RetainedStateError, WireError
from leto.core.geometry import Page
from leto.core.layout import Allocation, Domain, PageClass
from leto.core.markers import Phase, Progress, words_of
from leto.memory.client import Pool, PoolAgent, PoolObserver
from leto.memory.messages import POOL_CODEC, Advance, Allocate, Hello, List, Refused, Role, Usage, Used, Welcome
from leto.memory.regions import Regions
from leto.memory.state_manager import MAX_CONNECTIONS, READY, ManagerSpec, command
from leto.memory.wire import MAX_MESSAGE_BYTES, Channel, PeerClosed, close_all
from leto.runtime.process import Spawned, wait_pidfd
from leto.runtime.state_managers import start_state_manager

pytestmark = pytest.mark.process

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
def observe(agent: PoolAgent, socket_path: Path) -> Iterator[Callable[[], PoolObserver]]:
    """Connects observers of the current epoch, and closes them."""
    with ExitStack() as stack:

        def observe() -> PoolObserver:
            observer = PoolObserver(socket_path, rank=0, epoch=agent.epoch, page_bytes=PAGE_BYTES, timeout_s=TIMEOUT_S)
            return stack.enter_context(observer)

        yield observe


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


# Retaining.


def test_bytes_outlive_a_killed_trainer_and_reach_the_next_epoch(agent: PoolAgent, connect: Connect, socket_path: Path) -> None:
    client = start_client("write", socket_path, epoch=1)
    client.kill()
    assert client.wait(TIMEOUT_S) == -signal.SIGKILL
    agent.advance(2)
    trainer = connect()
    assert trainer.pool.layout_hash == LAYOUT
    trainer.attach()
    for position, allocation in enumerate(ALLOCATIONS):
        content = trainer.bytes(allocation.name)
        assert content.size == allocation.byte_count
        assert np.all(content == pattern(position))
        del content


def test_two_processes_see_the_same_page(connect: Connect, observe: Callable[[], PoolObserver]) -> None:
    trainer, observer = connect(), observe()
    trainer.allocate()
    trainer.bytes("tier1/0")[PAGE_BYTES] = 77
    assert observer.table().keys() == {a.name for a in ALLOCATIONS}
    assert observer.bytes("tier1/0")[PAGE_BYTES] == 77


def test_allocations_lie_apart_in_their_domains(connect: Connect, observe: Callable[[], PoolObserver]) -> None:
    connect().allocate()
    observer = observe()
    places = [observer.table()[a.name] for a in ALLOCATIONS]
    assert [(p.domain, p.offset) for p in places] == [
        (Domain.DEVICE, 0),
        (Domain.DEVICE, 4 * PAGE_BYTES),
        (Domain.HOST, 0),
    ]
    usage = observer.usage()
    assert (usage[Domain.DEVICE].used_bytes, usage[Domain.DEVICE].capacity_bytes) == (5 * PAGE_BYTES, DEVICE_BYTES)
    assert (usage[Domain.HOST].used_bytes, usage[Domain.HOST].capacity_bytes) == (2 * PAGE_BYTES, HOST_BYTES)


def test_a_second_cold_start_gets_the_same_places_and_what_is_missing(
    agent: PoolAgent, connect: Connect, observe: Callable[[], PoolObserver]
) -> None:
    connect().allocate(ALLOCATIONS[:2])
    before = dict(observe().table())
    agent.advance(2)
    connect().allocate()
    after = observe().table()
    assert {name: after[name] for name in before} == before
    assert after["tier1/0"].offset == 0


def test_thousands_of_allocations_go_in_batches(connect: Connect, observe: Callable[[], PoolObserver]) -> None:
    many = [Allocation(name=f"gradient-parity/{n}", page_class=PageClass.GRADIENT_PARITY, byte_count=4096) for n in range(3000)]
    trainer = connect()
    trainer.allocate(many)
    table = observe().table()
    assert list(table) == [a.name for a in many]
    assert sorted(p.offset for p in table.values()) == list(range(0, 3000 * 4096, 4096))


@pytest.mark.parametrize(
    ("asked", "layout", "reason"),
    [
        (
            replace(ALLOCATIONS[0], byte_count=PAGE_BYTES),
            LAYOUT,
            "'master' is retained as 32768 bytes of coded.* as 8192 bytes",
        ),
        (replace(ALLOCATIONS[0], page_class=PageClass.DERIVED), LAYOUT, "'master' is retained as .* of coded.* of derived"),
        (replace(ALLOCATIONS[0], name="mister"), LAYOUT, "'mister' is not retained"),
        (ALLOCATIONS[0], "another", "layout 'another' asked, layout 'layout-of-test' is retained"),
    ],
)
def test_attaching_to_something_else_is_refused(connect: Connect, asked: Allocation, layout: str, reason: str) -> None:
    trainer = connect()
    trainer.allocate()
    with pytest.raises(RetainedStateError, match=reason):
        trainer.attach([asked], layout)
    trainer.attach()  # a refusal keeps the connection


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (
            [Allocation(name="big", page_class=PageClass.CODED, byte_count=DEVICE_BYTES)],
            "67112960 more bytes of device memory asked, 67067904 of 67108864 are free",
        ),
        ([Allocation(name="odd", page_class=PageClass.CODED, byte_count=4097)], "4097 bytes are not whole pages"),
        ([Allocation(name="none", page_class=PageClass.CODED, byte_count=0)], "0 bytes are not whole pages"),
        ([Allocation(name="", page_class=PageClass.CODED, byte_count=4096)], "name of 0 characters"),
        ([Allocation(name="twice", page_class=PageClass.CODED, byte_count=4096)] * 2, "asked for twice"),
        ([replace(ALLOCATIONS[0], byte_count=PAGE_BYTES)], "retained as 32768"),
    ],
    ids=["full", "odd", "empty", "unnamed", "twice", "size"],
)
def test_a_refused_allocation_retains_nothing(
    connect: Connect, observe: Callable[[], PoolObserver], asked: list[Allocation], reason: str
) -> None:
    trainer = connect()
    trainer.allocate()
    small = Allocation(name="small", page_class=PageClass.CODED, byte_count=4096)
    with pytest.raises(RetainedStateError, match=reason):
        trainer.allocate([small, *asked], LAYOUT)
    assert set(observe().table()) == {a.name for a in ALLOCATIONS}


def test_views_keep_a_trainer_from_unmapping_what_they_read(connect: Connect) -> None:
    trainer = connect()
    trainer.allocate()
    view = trainer.bytes("undo")
    with pytest.raises(BufferError):
        trainer.close()
    assert view[0] == 0
    del view
    trainer.close()


# Taking over.


def test_tensors_built_on_reserved_addresses_see_retained_memory_after_the_takeover(agent: PoolAgent, connect: Connect) -> None:
    connect().allocate()
    active = connect()
    active.attach()
    active.bytes("master")[:] = 3
    regions = Regions(PAGE_BYTES)
    regions.reserve(ALLOCATIONS)
    views = {name: regions.bytes(name) for name in regions.names}
    for view in views.values():
        view[:] = 9  # a warm-up writes wherever it likes
    assert active.bytes("master").max() == 3
    agent.advance(2)
    promoted = connect(regions=regions)
    promoted.pool.attach_all(regions, LAYOUT)
    assert {name: (view.min(), view.max()) for name, view in views.items()} == {
        "master": (3, 3),
        "undo": (0, 0),
        "tier1/0": (0, 0),
    }
    views["undo"][5] = 1
    assert active.bytes("undo")[5] == 1
    views.clear()


def test_dropping_frees_the_scratch_memory_and_nothing_that_is_attached(connect: Connect) -> None:
    regions = Regions(PAGE_BYTES)
    regions.reserve(ALLOCATIONS)
    trainer = connect(regions=regions)
    trainer.allocate(ALLOCATIONS[:1])
    for name in regions.names:
        regions.bytes(name)[:] = 7
    regions.drop()
    assert [int(regions.bytes(name).max()) for name in regions.names] == [7, 0, 0]


def test_a_reserved_name_keeps_its_size(connect: Connect) -> None:
    regions = Regions(PAGE_BYTES)
    regions.reserve(ALLOCATIONS)
    address = regions.address("undo")
    regions.reserve(ALLOCATIONS)
    assert regions.address("undo") == address
    assert regions.page_address(Page("tier1/0", 1)) == regions.address("tier1/0") + PAGE_BYTES
    with pytest.raises(RetainedStateError, match="'undo' is reserved as 8192 bytes of undo, asked for as 16384 bytes"):
        regions.reserve([replace(ALLOCATIONS[1], byte_count=2 * PAGE_BYTES)])
    with pytest.raises(RetainedStateError, match="'mister' is not reserved"):
        regions.bytes("mister")
    regions.close()


# Fencing.


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


# Nonsense.


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


def test_a_client_that_does_not_read_cannot_stall_the_others(
    connect: Connect, observe: Callable[[], PoolObserver], socket_path: Path
) -> None:
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
    connect: Connect, observe: Callable[[], PoolObserver], socket_path: Path
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


# The process itself.


def test_the_process_is_light_and_cannot_write_what_it_retains(manager: Spawned, connect: Connect) -> None:
    trainer = connect()
    trainer.allocate()
    trainer.bytes("master")[:] = 1
    maps = Path(f"/proc/{manager.pid}/maps").read_text()
    assert not re.search("numpy|torch", maps)
    assert {line.split()[1] for line in maps.splitlines() if "memfd:leto-" in line} == {"r--s"}
    status = Path(f"/proc/{manager.pid}/status").read_text()
    resident_kib = int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])
    assert resident_kib <= 40 << 10
    assert "Threads:\t1\n" in status


def test_only_its_user_can_reach_the_socket(manager: Spawned, socket_path: Path) -> None:
    assert socket_path.stat().st_mode & 0o777 == 0o600
    assert socket_path.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    (folder / "open").mkdir()
    (folder / "open").chmod(0o755)
    with pytest.raises(JobError, match="mode 0700"):
        start(folder, folder / "open" / "r0")


def test_a_path_that_is_too_long_or_taken_is_one_clear_line(manager: Spawned, folder: Path, socket_path: Path) -> None:
    with pytest.raises(JobError, match="rank 0: AF_UNIX path too long"):
        start(folder, folder / ("x" * 120))
    with pytest.raises(JobError, match="Address already in use"):
        start(folder, socket_path)
    assert socket_path.exists()


def test_an_orderly_end_leaves_nothing_behind(folder: Path, socket_path: Path) -> None:
    manager = start(folder, socket_path)
    assert sorted(d for d in descriptors(manager.pid) if "memfd" in d) == [
        f"/memfd:leto-{domain}-r0 (deleted)" for domain in ("control", "device", "host")
    ]
    manager.stop(TIMEOUT_S)
    assert manager.returncode == 0
    assert not socket_path.exists()
    assert not leto_memory_of_this_process()
    manager.close()


def test_managers_end_with_their_parent_and_the_last_one_removes_the_folder(folder: Path) -> None:
    """The parent was killed, so nobody else can."""
    sockets = folder / "sockets"
    sockets.mkdir(mode=0o700)
    program = (
        "import os, signal, sys; from pathlib import Path; from leto.runtime.state_managers import start_state_manager as s;"
        "from leto.memory.state_manager import ManagerSpec;"
        "spec = ManagerSpec(rank=0, device_bytes=4096, host_bytes=4096, page_bytes=4096);"
        "start = lambda path: s(path, spec, log_path=Path(sys.argv[2]), timeout_s=20.0);"
        "managers = [start(Path(sys.argv[1]) / name) for name in ('r0', 'r1')];"
        "os.write(1, b'%8d%8d' % tuple(m.pid for m in managers)); signal.pause()"
    )
    argv = [sys.executable, "-c", program, sockets, folder / "log"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pidfds = [os.pidfd_open(int(parent.stdout.read(8))) for _ in range(2)]
        assert sorted(path.name for path in sockets.iterdir()) == ["r0", "r1"]
        parent.kill()
    for pidfd in pidfds:
        assert wait_pidfd(pidfd, TIMEOUT_S)
        os.close(pidfd)
    assert not sockets.exists()


def test_for_a_parent_that_is_gone_already_it_only_removes_the_folder(folder: Path) -> None:
    """The parent made the folder and was killed before its first manager came up."""
    somebody_else = 1
    sockets = folder / "sockets"
    sockets.mkdir(mode=0o700)
    spec = ManagerSpec(rank=0, device_bytes=4096, host_bytes=4096, page_bytes=4096)
    argv = command(sockets / "r0", spec, parent_pid=somebody_else, ready_fd=1)
    done = subprocess.run(argv, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, READY, b"")
    assert not sockets.exists()


@pytest.mark.parametrize("limit", [resource.RLIMIT_FSIZE, resource.RLIMIT_AS])
def test_memory_that_the_system_does_not_grant_is_one_line(folder: Path, socket_path: Path, limit: int) -> None:
    """A limit that only the arena of 8 GiB passes."""
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (4 << 30, hard))
    try:
        with pytest.raises(JobError, match=r"last log line: .*: leto-device-r0: an arena of 8589934592 bytes is refused: "):
            start(folder, socket_path, device_bytes=8 << 30)
    finally:
        resource.setrlimit(limit, (soft, hard))
    assert not socket_path.exists()


def leto_memory_of_this_process() -> list[str]:
    """Arenas of rank 0 that this process still maps or holds."""
    own = descriptors(os.getpid()) + Path("/proc/self/maps").read_text().splitlines()
    return [entry for entry in own if "memfd:leto-" in entry]


def test_a_client_that_closes_holds_no_memory(connect: Connect, agent: PoolAgent) -> None:
    trainer = connect()
    trainer.allocate()
    assert leto_memory_of_this_process()
    trainer.close()
    agent.close()
    assert not leto_memory_of_this_process()


def test_a_wrong_rank_is_an_error(agent: PoolAgent, socket_path: Path) -> None:
    with pytest.raises(WireError, match="rank 1 says Hello to the state manager of rank 0"):
        PoolAgent(socket_path, rank=1, epoch=1, timeout_s=TIMEOUT_S)
