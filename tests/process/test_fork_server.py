"""The fork server and the fence: children in milliseconds, every exit told, and nothing that outlives a fence."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from leto.core.errors import JobError
from leto.runtime.fork_client import ForkedChild, ForkServer
from leto.runtime.fork_server import SINGLE_THREAD
from leto.runtime.process import Spawned, describe_code, kill_group, last_line, wait_pidfd

TIMEOUT_S = 20.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}


def start(tmp_path: Path, preload: str = "fork_targets:preload", timeout_s: float = TIMEOUT_S) -> ForkServer:
    return ForkServer.start([preload], log_path=tmp_path / "server.log", timeout_s=timeout_s, env=ENVIRONMENT)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    server = start(tmp_path)
    yield server
    server.close(TIMEOUT_S)


class Child:
    """A child of the server with a pipe to the test."""

    def __init__(self, server: ForkServer, tmp_path: Path, target: str, epoch: int = 1, **arguments: object) -> None:
        self.read_fd, write_fd = os.pipe()
        self.log_path = tmp_path / "child.log"
        self.forked: ForkedChild = server.fork(
            f"fork_targets:{target}",
            arguments,
            epoch=epoch,
            fds=[write_fd, write_fd],
            log_path=self.log_path,
            timeout_s=TIMEOUT_S,
        )
        os.close(write_fd)

    def read(self, byte_count: int) -> bytes:
        """Exactly so many bytes, or what came until every writer was gone."""
        content = b""
        while len(content) < byte_count:
            assert select.select([self.read_fd], [], [], TIMEOUT_S)[0], "the child says nothing"
            piece = os.read(self.read_fd, byte_count - len(content))
            if not piece:
                break
            content += piece
        return content

    def close(self) -> None:
        os.close(self.read_fd)
        self.forked.close()


def group_is_empty(group: int) -> bool:
    """Told by /proc alone, not by what is tested: no member that is not a zombie."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                return False
    return True


# Forking.


def test_twenty_children_exit_and_every_exit_is_told(server: ForkServer, tmp_path: Path) -> None:
    children = [Child(server, tmp_path, "leave", code=n) for n in range(20)]
    for n, child in enumerate(children):
        assert child.forked.ended(TIMEOUT_S)
        assert server.wait_exit(child.forked.pid, TIMEOUT_S).returncode == n
        child.close()
    assert sorted((tmp_path / "child.log").read_text().split()[2::3], key=int) == [str(n) for n in range(20)]


def test_exits_of_others_stay_until_they_are_asked_for(server: ForkServer, tmp_path: Path) -> None:
    child = Child(server, tmp_path, "leave", epoch=3, code=5)
    assert child.forked.ended(TIMEOUT_S)
    other = Child(server, tmp_path, "leave", epoch=3, code=6)
    assert server.wait_exit(other.forked.pid, TIMEOUT_S).returncode == 6
    exited = server.wait_exit(child.forked.pid, TIMEOUT_S)
    assert (exited.pid, exited.epoch, exited.returncode) == (child.forked.pid, 3, 5)
    child.close()
    other.close()


def test_a_child_finds_its_own_session_default_signals_and_its_descriptors_only(server: ForkServer, tmp_path: Path) -> None:
    arguments = {"word": "hello", "list": [1, 2.5, None, {"deep": True}]}
    child = Child(server, tmp_path, "describe", **arguments)
    text = child.read(1 << 16).decode()
    assert text.endswith(" second")
    found = json.loads(text.removesuffix(" second"))
    assert found.pop("arguments") == arguments
    assert found == dict.fromkeys(found, True)
    assert server.wait_exit(child.forked.pid, TIMEOUT_S).returncode == 0
    child.close()


def test_a_signal_is_told_as_a_signal(server: ForkServer, tmp_path: Path) -> None:
    child = Child(server, tmp_path, "hang")
    os.kill(child.forked.pid, signal.SIGUSR1)
    exited = server.wait_exit(child.forked.pid, TIMEOUT_S)
    assert describe_code(exited.returncode) == "was killed by SIGUSR1"
    child.close()


@pytest.mark.parametrize(
    ("kind", "code", "line"), [("raise", 1, "ValueError: a bad day"), ("exit", 1, "no luck")], ids=["raise", "exit"]
)
def test_an_exception_goes_to_the_childs_log(server: ForkServer, tmp_path: Path, kind: str, code: int, line: str) -> None:
    child = Child(server, tmp_path, "leave_by_exception", kind=kind)
    assert server.wait_exit(child.forked.pid, TIMEOUT_S).returncode == code
    assert last_line(child.log_path) == line
    child.close()


def test_an_unknown_target_ends_the_child_and_not_the_server(server: ForkServer, tmp_path: Path) -> None:
    child = Child(server, tmp_path, "no_such_target")
    assert server.wait_exit(child.forked.pid, TIMEOUT_S).returncode == 1
    assert "no_such_target" in last_line(child.log_path)
    child.close()
    Child(server, tmp_path, "leave", code=0).close()


def test_a_child_may_start_threads(server: ForkServer, tmp_path: Path) -> None:
    child = Child(server, tmp_path, "start_thread_in_child")
    assert server.wait_exit(child.forked.pid, TIMEOUT_S).returncode == 7
    child.close()


def test_a_log_that_cannot_be_opened_is_refused_before_the_fork(server: ForkServer, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="No such file or directory"):
        Child(server, tmp_path / "nowhere", "leave", code=0)
    Child(server, tmp_path, "leave", code=0).close()


def test_a_log_path_that_no_file_can_have_is_refused_too(server: ForkServer, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="null byte"):
        Child(server, tmp_path / "nul\0", "leave", code=0)
    Child(server, tmp_path, "leave", code=0).close()


def test_a_fork_of_an_older_epoch_is_refused(server: ForkServer, tmp_path: Path) -> None:
    Child(server, tmp_path, "leave", epoch=4, code=0).close()
    with pytest.raises(JobError, match="a fork of epoch 3 is asked after one of epoch 4"):
        Child(server, tmp_path, "leave", epoch=3, code=0)


# Starting and ending.


def test_a_failing_preload_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"exit code 1; last log line: RuntimeError: the weights are not there"):
        start(tmp_path, "fork_targets:preload_that_fails")


def test_a_preload_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="No module named 'no_such_module'"):
        start(tmp_path, "no_such_module:preload")


def test_a_hanging_preload_ends_at_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="too short for the fork server to preload fork_targets:preload_that_hangs"):
        start(tmp_path, "fork_targets:preload_that_hangs", timeout_s=1.0)


def test_a_server_with_threads_does_not_fork(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"has 2 threads"):
        start(tmp_path, "fork_targets:preload_with_a_thread")


def run_server(parent_pid: int, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A server without a client, to its end."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        fd = right.fileno()
        argv = [sys.executable, "-m", "leto.runtime.fork_server", "--channel-fd", str(fd), "--parent-pid", str(parent_pid)]
        return subprocess.run(argv, env=env, pass_fds=[fd], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_math_libraries_must_be_single_threaded_before_anything_is_imported() -> None:
    done = run_server(os.getpid(), {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"})
    assert done.returncode == 1
    assert done.stderr == "the fork server needs OMP_NUM_THREADS=1 in its environment before anything is imported\n"


def test_it_does_not_start_for_an_agent_that_is_gone_already() -> None:
    somebody_else = 1
    done = run_server(somebody_else, {**os.environ, **SINGLE_THREAD})
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "", "")


def test_closing_the_server_ends_its_children_and_their_helpers(tmp_path: Path) -> None:
    server = start(tmp_path)
    child = Child(server, tmp_path, "fork_helpers")
    child.read(16)
    server.close(TIMEOUT_S)
    assert child.forked.ended()
    assert group_is_empty(child.forked.pid)
    child.close()


def test_killing_the_server_ends_its_children(tmp_path: Path) -> None:
    server = start(tmp_path)
    children = [Child(server, tmp_path, "hang") for _ in range(3)]
    os.kill(server.process.pid, signal.SIGKILL)
    for child in children:
        assert child.forked.ended(TIMEOUT_S)
        child.close()
    with pytest.raises(JobError, match="the fork server was killed by SIGKILL"):
        server.fork("fork_targets:leave", {"code": 0}, epoch=1, log_path=tmp_path / "child.log", timeout_s=TIMEOUT_S)
    server.close(TIMEOUT_S)


def test_the_server_ends_with_the_agent(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from leto.runtime.fork_client import ForkServer as F;"
        "f = F.start(['fork_targets:preload'], log_path=Path(sys.argv[1]), timeout_s=20.0);"
        "c = f.fork('fork_targets:hang', {}, epoch=1, log_path=Path(sys.argv[1]), timeout_s=20.0);"
        "os.write(1, b'%8d%8d' % (f.process.pid, c.pid)); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path / "log"], stdout=subprocess.PIPE, env=ENVIRONMENT) as agent:
        assert agent.stdout is not None
        text = agent.stdout.read(16)
        pidfds = [os.pidfd_open(int(text[:8])), os.pidfd_open(int(text[8:]))]
        agent.kill()
    for pidfd in pidfds:
        assert wait_pidfd(pidfd, TIMEOUT_S)
        os.close(pidfd)


# The fence.


def test_the_fence_holds_for_helpers_that_outlive_the_child(server: ForkServer, tmp_path: Path) -> None:
    """The trainer dies by itself; a helper it forked goes on until the group is fenced (INV-F)."""
    child = Child(server, tmp_path, "fork_helpers")
    helpers = [os.pidfd_open(int(child.read(8))) for _ in range(2)]
    os.kill(child.forked.pid, signal.SIGKILL)
    assert child.forked.ended(TIMEOUT_S)
    assert not any(wait_pidfd(helper, 0.0) for helper in helpers)
    child.forked.fence(TIMEOUT_S)
    assert all(wait_pidfd(helper, 0.0) for helper in helpers)
    assert group_is_empty(child.forked.pid)
    child.forked.fence(TIMEOUT_S)  # of an empty group: nothing to do
    for helper in helpers:
        os.close(helper)
    child.close()


def test_the_fence_ends_a_stopped_child(server: ForkServer, tmp_path: Path) -> None:
    child = Child(server, tmp_path, "hang")
    os.kill(child.forked.pid, signal.SIGSTOP)
    child.forked.fence(TIMEOUT_S)
    assert child.forked.ended()
    child.close()


def test_the_fence_catches_a_family_that_keeps_forking(server: ForkServer, tmp_path: Path) -> None:
    child = Child(server, tmp_path, "fork_storm")
    child.read(1)
    child.forked.fence(TIMEOUT_S)
    assert group_is_empty(child.forked.pid)
    assert child.read(1) == b""  # no process of the family is left to hold the pipe
    child.close()


def test_a_signal_that_was_sent_is_not_a_fence(server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process stuck in the kernel does not obey SIGKILL for a while; signals that do nothing stand for it."""
    child = Child(server, tmp_path, "hang")
    with monkeypatch.context() as deaf:
        deaf.setattr(os, "killpg", lambda group, number: None)
        deaf.setattr(signal, "pidfd_send_signal", lambda pidfd, number: None)
        with pytest.raises(JobError, match=f"process {child.forked.pid} of group {child.forked.pid} outlived SIGKILL by 0.2 s"):
            child.forked.fence(0.2)
    child.forked.fence(TIMEOUT_S)
    child.close()


def test_the_fence_takes_milliseconds(server: ForkServer, tmp_path: Path) -> None:
    child = Child(server, tmp_path, "hang")
    begin = time.monotonic()
    child.forked.fence(TIMEOUT_S)
    assert time.monotonic() - begin < 1.0
    child.close()


def test_killing_one_group_leaves_the_others_alone(server: ForkServer, tmp_path: Path) -> None:
    victim, bystander = Child(server, tmp_path, "hang"), Child(server, tmp_path, "hang")
    kill_group(victim.forked.pid, TIMEOUT_S)
    assert victim.forked.ended()
    assert not bystander.forked.ended(0.0)
    bystander.forked.fence(TIMEOUT_S)
    victim.close()
    bystander.close()


# Spawned.


def spawn(tmp_path: Path, program: str) -> Spawned:
    return Spawned.start("helper", [sys.executable, "-c", program], log_path=tmp_path / "log")


def test_a_spawned_process_leads_its_group_and_writes_its_log(tmp_path: Path) -> None:
    process = spawn(tmp_path, "import os; print(os.getpgrp() == os.getsid(0) == os.getpid())")
    assert process.wait(TIMEOUT_S) == 0
    assert last_line(process.log_path) == "True"
    process.close()


def test_stop_asks_first_and_kills_later(tmp_path: Path) -> None:
    polite = spawn(tmp_path, "import signal; signal.pause()")
    polite.stop(TIMEOUT_S)
    assert polite.returncode == -signal.SIGTERM
    polite.close()
    program = "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True)\nwhile True: signal.pause()"
    deaf = spawn(tmp_path, program)
    deadline = time.monotonic() + TIMEOUT_S
    while last_line(deaf.log_path) != "deaf":
        assert time.monotonic() < deadline
        assert not deaf.ended(0.01)
    deaf.stop(0.1)
    assert deaf.returncode == -signal.SIGKILL
    deaf.close()


def test_a_program_that_does_not_exist_is_a_job_error(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="helper: cannot start"):
        Spawned.start("helper", [str(tmp_path / "nothing")], log_path=tmp_path / "log")


def test_how_it_ended_is_told_with_the_last_words_of_this_run(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("words of an earlier run\n")
    silent = spawn(tmp_path, "raise SystemExit(3)")
    silent.wait(TIMEOUT_S)
    assert re.fullmatch(r"ended with exit code 3; last log line: none \(.*\)", silent.describe_end())
    silent.close()
    loud = spawn(tmp_path, "print('a'); print('b'); print()")
    loud.wait(TIMEOUT_S)
    assert "exit code 0; last log line: b (" in loud.describe_end()
    loud.close()
