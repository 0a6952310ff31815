"""What the forked children of the tests run, and what their server preloads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = []


def preload() -> None:
    PRELOADED.append(os.getpid())


def preload_with_a_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True, name="lingerer").start()


def preload_that_fails() -> None:
    raise RuntimeError("the weights are not there")


def preload_that_hangs() -> NoReturn:
    wait()


def wait() -> NoReturn:
    while True:
        signal.pause()


def leave(arguments: dict[str, Any], fds: list[int]) -> int | None:
    print("leaving with", arguments["code"])
    return arguments["code"]


def leave_by_exception(arguments: dict[str, Any], fds: list[int]) -> None:
    if arguments["kind"] == "exit":
        sys.exit("no luck")
    raise ValueError("a bad day")


def describe(arguments: dict[str, Any], fds: list[int]) -> None:
    """Tell the test, over the first descriptor, what a child finds around it."""
    found = {
        "preloaded by its parent": PRELOADED[0] == os.getppid(),
        "own group": os.getpgrp() == os.getpid(),
        "own session": os.getsid(0) == os.getpid(),
        "default signals": all(signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGCHLD, signal.SIGTERM)),
        "own descriptors only": open_descriptors() == [0, 1, 2, *sorted(fds)],
        "arguments": arguments,
    }
    os.write(fds[0], json.dumps(found).encode())
    os.write(fds[1], b" second")


def open_descriptors() -> list[int]:
    return [fd for fd in range(256) if Path(f"/proc/self/fd/{fd}").exists()]


def hang(arguments: dict[str, Any], fds: list[int]) -> NoReturn:
    wait()


def fork_helpers(arguments: dict[str, Any], fds: list[int]) -> NoReturn:
    """Two helpers that ignore every polite signal; their pids go to the test. One is a fork, one another program."""
    helper = os.fork()
    if helper == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.write(fds[0], b"%8d" % os.getpid())
        wait()
    program = subprocess.Popen([sys.executable, "-c", "import signal\nwhile True: signal.pause()"])
    os.write(fds[0], b"%8d" % program.pid)
    wait()


def fork_storm(arguments: dict[str, Any], fds: list[int]) -> NoReturn:
    """A family that never stops growing: every member lives briefly and forks the next."""
    os.write(fds[0], b"x")
    while True:
        if os.fork() == 0:
            continue
        time.sleep(0.002)  # a life long enough that several are alive at once
        os._exit(0)


def start_thread_in_child(arguments: dict[str, Any], fds: list[int]) -> int:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return 7
