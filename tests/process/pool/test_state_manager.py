"""The state manager as a process: light, its user's alone, ends with its parent, and leaves nothing behind."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from pool_processes import TIMEOUT_S, Connect, descriptors, start

from leto.core.errors import JobError, WireError
from leto.memory.client import PoolAgent
from leto.memory.state_manager import READY, ManagerSpec, command
from leto.runtime.process import Spawned, wait_pidfd


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
    """A limit that only the arena of 4 TiB passes, not this process, which it holds for as well."""
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (2 << 40, hard))
    try:
        with pytest.raises(JobError, match=r"last log line: .*: leto-device-r0: an arena of 4398046511104 bytes is refused: "):
            start(folder, socket_path, device_bytes=4 << 40)
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
