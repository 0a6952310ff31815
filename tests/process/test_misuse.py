"""The command held in the wrong way: stopped, killed, started twice, without room, without memory, with aims that miss."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from leto.core.config import JobConfig
from tests.process.jobs import PROTECTION, olmoe
from tests.process.references import References, replaying_bench

pytestmark = pytest.mark.process

HERE = Path(__file__).parent / "misuse"
TIMEOUT_S = 90.0
CLEAN_S = 5.0  # from a signal until nothing is left
SEED = 3

SCENARIO = """\
schema: 1
name: misused
claim: One kill changes no bit; whoever misuses the command is told so and finds nothing left.
seed: 42
system: leto
workload: {model: olmoe-tiny, parallel: {dp: 2, ep: 2}, precision: bf16, iterations: 4, data: shakespeare, seed: 42}
protection: {page: 64KiB, data_pages: 60, tier1: 16, tier2: 1, chunk_pages: 12}
faults:
  - id: kill
    when: {iteration: 2, phase: update}
    where: {rank: 1}
    do: [abort-kernel: {kernel: adam, progress: 0.5}]
expect: {recoveries: 1, rule: finish, fallback: none, deadline_s: 30}
"""
RESTORED_ELSEWHERE = """\
  - id: beside # the chunk in flight is another one
    when: {iteration: 2, phase: update}
    where: {rank: 1}
    do: [abort-kernel: {kernel: undo-restore, progress: 0.5, group: 0, chunk: 4}]
"""
WORKLOAD = olmoe(4)
"""The same, so that a reference of it can be replayed."""


class Bench:
    """A directory in which people run leto-chaos. Every process of it carries ``mark`` in its environment."""

    def __init__(self, directory: Path, recorded: Path | None = None) -> None:
        """``recorded``: ledgers of a reference that is replayed instead of trained."""
        self.directory = directory
        self.temporary = directory / "tmp"
        self.runs = directory / "runs" / "misused"
        self._recorded = recorded
        self.mark = f"MARK={uuid.uuid4()}"
        self.temporary.mkdir(parents=True)
        (directory / "misused.yaml").write_text(SCENARIO)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        command = replaying_bench(self._recorded) if self._recorded else [sys.executable, "-P", "-m", "chaos"]
        argv = [*command, "run", "--plain", *(words or ("misused.yaml",))]
        return subprocess.Popen(
            argv,
            cwd=self.directory,
            env=self.environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        name, _, value = self.mark.partition("=")
        return {**os.environ, name: value, "TMPDIR": str(self.temporary), "PYTHONPATH": str(HERE), **more}

    def run(self, *words: str, **environment: str) -> Ended:
        with self.start(*words, **environment) as process:
            return self.end(process)

    def end(self, process: subprocess.Popen[str]) -> Ended:
        """Asserts that it leaves nothing, ``CLEAN_S`` after its own end at the latest."""
        out, error = process.communicate(timeout=TIMEOUT_S)
        self.wait_until_nothing_is_left(time.monotonic())
        return Ended(process.returncode, out, error)

    def wait_until_nothing_is_left(self, since_s: float) -> float:
        """Seconds from ``since_s`` on. Processes are told by their mark; with the last one its memory is gone."""
        while left := [*self._processes(), *map(str, self.temporary.glob("leto-*"))]:
            assert time.monotonic() - since_s < CLEAN_S, left
            time.sleep(0.02)  # no event tells that a stranger's child is gone
        return time.monotonic() - since_s

    def _processes(self) -> Iterator[str]:
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    if self.mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                        yield f"process {process.name}: {(process / 'cmdline').read_bytes()!r}"
                except (FileNotFoundError, ProcessLookupError, PermissionError):  # ended, or somebody else's
                    continue

    def directories(self) -> list[Path]:
        return [path for path in self.runs.iterdir() if not path.is_symlink()] if self.runs.exists() else []

    def latest_verdict(self) -> str:
        return str(json.loads((self.runs / "latest" / "verdict.json").read_text())["verdict"])


class Ended:
    """How a command ended. A traceback in what it said is a failure of its own."""

    def __init__(self, code: int, out: str, error: str) -> None:
        assert "Traceback" not in out + error, error
        self.code, self.out, self.error = code, out, error


@pytest.fixture
def bench(references: References, tmp_path: Path) -> Bench:
    """In another directory than the project's."""
    return Bench(tmp_path, references.directory(WORKLOAD))


# Stopped in the middle

Moment = tuple[str, str, float]
"""A job and an entry of its journal, and so many seconds after it: a signal comes whenever it likes."""

COMING_UP: Moment = ("", "", 1.0)  # the command itself
STARTED: Moment = ("run", "started", 3.0)  # the agent, the state managers and the fork server come up
DECIDED: Moment = ("run", "decided", 0.3)
SPANS: Sequence[Moment] = (
    COMING_UP,
    STARTED,
    ("run", "job-started", 0.2),
    ("run", "iteration", 0.3),
    DECIDED,
    ("", "verdict", 0.1),  # reports are written
)
MORE_SPANS: Sequence[Moment] = (
    ("run", "ready", 0.3),
    ("run", "killed", 0.1),
    ("run", "fenced", 0.1),
    ("run", "recovered", 0.2),
)
"""Between those above, where the same processes run."""


def moments(seed: int, spans: Sequence[Moment]) -> list[Moment]:
    draw = random.Random(seed)
    return [(job, name, round(draw.uniform(0.0, span_s), 3)) for job, name, span_s in spans]


def describe(moment: Moment) -> str:
    return f"{moment[1] or 'spawn'}+{moment[2]:g}s"


def wait_for(bench: Bench, process: subprocess.Popen[str], moment: Moment) -> None:
    job, name, delay_s = moment
    deadline = time.monotonic() + TIMEOUT_S
    while name and not any((e["job"], e["name"]) == (job, name) for e in journal(bench)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, moment
        time.sleep(0.005)  # the journal is a file
    time.sleep(delay_s)


def journal(bench: Bench) -> Iterator[dict[str, Any]]:
    """Whole entries of the one run, as far as it is."""
    for run in bench.directories():
        path = run / "journal.jsonl"
        if path.exists():
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    yield json.loads(line)


def signal_group(process: subprocess.Popen[str]) -> None:
    """As a terminal does for Ctrl-C."""
    os.killpg(process.pid, signal.SIGINT)


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def terminate(process: subprocess.Popen[str]) -> None:
    process.terminate()


STOPS = (signal_group, terminate, interrupt)


@pytest.mark.parametrize(
    ("moment", "stop"),
    [
        pytest.param(moment, STOPS[k % len(STOPS)], marks=pytest.mark.slow if k >= len(SPANS) else ())
        for k, moment in enumerate(moments(SEED, [*SPANS, *MORE_SPANS]))
    ],
    ids=lambda value: value.__name__ if callable(value) else describe(value),
)
def test_stopped_it_leaves_an_unfinished_run_and_nothing_else(bench: Bench, moment: Moment, stop: Any) -> None:
    with bench.start() as process:
        wait_for(bench, process, moment)
        since_s = time.monotonic()
        stop(process)
        _, error = process.communicate(timeout=TIMEOUT_S)
        bench.wait_until_nothing_is_left(since_s)
    number = signal.SIGTERM if stop is terminate else signal.SIGINT
    assert not (bench.runs / "latest").is_symlink()
    if not bench.directories():  # before its handlers were there: nothing had been started
        assert process.returncode in (-number, 128 + number)
        return
    assert process.returncode == 128 + number
    (run,) = bench.directories()
    assert error == f"interrupted; everything this run started is closed\nunfinished run: runs/misused/{run.name}\n"
    assert list(journal(bench))[-1]["name"] == "interrupted"


def test_the_reference_is_stopped_like_everything_else(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.start() as process:
        wait_for(bench, process, ("reference", "ready", 0.0))
        since_s = time.monotonic()
        signal_group(process)
        process.communicate(timeout=TIMEOUT_S)
        bench.wait_until_nothing_is_left(since_s)
    assert process.returncode == 130


@pytest.mark.parametrize("moment", moments(SEED + 1, [COMING_UP, STARTED, STARTED, DECIDED]), ids=describe)
def test_killed_it_takes_everything_with_it(bench: Bench, moment: Moment) -> None:
    """Killed between iterations it is where the store's socket is looked at, below."""
    with bench.start() as process:
        wait_for(bench, process, moment)
        since_s = time.monotonic()
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
        bench.wait_until_nothing_is_left(since_s)
    assert not (bench.runs / "latest").is_symlink()


def test_after_a_stop_and_a_kill_the_next_runs_pass_and_two_at_once_keep_apart(bench: Bench) -> None:
    for stop in (interrupt, subprocess.Popen.kill):
        with bench.start() as process:
            wait_for(bench, process, ("run", "started", 1.0))
            stop(process)
            bench.end(process)
        for run in bench.directories():
            run.rename(bench.directory / f"unfinished-{run.name}")
    with bench.start() as first, bench.start() as second:
        for process in (first, second):
            out, error = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, out + error
            assert "report: runs/misused/" in out  # relative, as the directory was given
    bench.wait_until_nothing_is_left(time.monotonic())
    assert len(bench.directories()) == 2
    assert bench.latest_verdict() == "pass"
    assert (bench.runs / "latest").resolve() in bench.directories()


# No room, no memory, nothing installed


@pytest.mark.parametrize(
    ("runs_dir", "reason"), [("file/runs", "file/runs/misused: Not a directory"), ("/sys/runs", "/sys/runs: ")]
)
def test_a_runs_directory_that_cannot_be_is_one_line(bench: Bench, runs_dir: str, reason: str) -> None:
    """Below a file, and where nobody may create one, not even root."""
    (bench.directory / "file").touch()
    ended = bench.run("misused.yaml", "--runs-dir", runs_dir)
    assert (ended.code, ended.out) == (2, "")
    assert ended.error.startswith(f"--runs-dir {runs_dir}: {reason}")
    assert ended.error.count("\n") == 1


@pytest.mark.parametrize(
    ("room_bytes", "code", "reason"),
    [
        (256, 2, "--runs-dir runs: runs/misused/[^ ]*: File too large\n"),
        (6000, 70, "internal error: .*File too large.*\n"),
    ],
)
def test_a_disk_without_room_is_one_line(bench: Bench, room_bytes: int, code: int, reason: str) -> None:
    """No file can grow beyond the limit: before the run begins it is the person's directory, later the run breaks."""
    ended = bench.run(FILE_BYTES=str(room_bytes))
    assert ended.code == code, ended.out + ended.error
    assert re.fullmatch(reason, ended.error)


@pytest.mark.parametrize(
    ("misuse", "code", "reason"),
    [
        ("replaying_bench.py=hide torch", 2, "needs torch, which is not installed: pip install 'leto-chaos"),
        ("leto.cli=hide leto", 5, "the agent ended with exit code 1: .*No module named 'leto'"),
        ("state_manager=hide leto.memory.wire", 5, "state manager of rank 0 ended with exit code 1; last log line: .*"),
        ("fork_server=hide torch", 5, "the fork server ended with exit code 1; last log line: .*No module named 'torch'"),
    ],
)
def test_a_process_that_does_not_come_up_is_named_with_its_last_word(bench: Bench, misuse: str, code: int, reason: str) -> None:
    ended = bench.run(MISUSE=misuse)
    assert ended.code == code, ended.out + ended.error
    assert re.search(reason, ended.out + ended.error)


def train(directory: Path, job: JobConfig) -> tuple[int, str]:
    """Exit code and last word of the runtime by itself; asserts that nothing is left."""
    bench = Bench(directory)
    (directory / "job.json").write_text(job.to_json())
    argv = [sys.executable, "-P", "-m", "leto.cli", "train", "job.json"]
    done = subprocess.run(
        argv, cwd=directory, env=bench.environment({}), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    bench.wait_until_nothing_is_left(time.monotonic())
    return done.returncode, done.stderr


def job(**fields: Any) -> JobConfig:
    return JobConfig(
        name="misused",
        workload=WORKLOAD,
        protection=PROTECTION,
        output_dir="out",
        **fields,
    )


def test_a_device_that_is_too_small_says_how_much_was_asked_and_is_free(tmp_path: Path) -> None:
    code, said = train(tmp_path, job(device_bytes=1 << 20))
    assert code == 1
    assert re.fullmatch(
        r"leto: failed: rank \d: RetainedStateError: rank \d: \d+ more bytes of device memory asked,"
        r" \d+ of 1048576 are free\n",
        said,
    )


def test_trainers_without_memory_are_a_crash_loop_with_their_last_word(tmp_path: Path) -> None:
    code, said = train(tmp_path, job(plugins=("starving:starve",)))
    assert code == 1
    assert re.fullmatch(
        r"leto: refused: 4 failures without a completed iteration: a crash loop, .*;"
        r" rank \d (ended with exit code \d+|was killed by SIGABRT): .*\n",
        said,
    )


def test_the_store_listens_on_a_socket_that_was_handed_over(bench: Bench) -> None:
    """No port is chosen by number, so none can be in use: the agent binds any, rank 0 inherits what listens already."""
    with bench.start() as process:
        wait_for(bench, process, ("run", "iteration", 0.0))
        ready = [e["fields"] for e in journal(bench) if e["name"] == "ready" and e["job"] == "run"]
        (rank_0,) = (e["pid"] for e in ready if e["rank"] == 0)
        listening = listening_inodes()
        held = {path.readlink().name for path in Path(f"/proc/{rank_0}/fd").iterdir()}
        assert {f"socket:[{inode}]" for inode in listening} & held
        process.kill()
        bench.end(process)


def listening_inodes() -> set[str]:
    """Of TCP sockets on the loopback interface that listen."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[1].startswith("0100007F:") and row[3] == "0A"}


# Aims that miss, references that are none


def test_a_fault_that_never_comes_up_is_invalid_and_never_a_pass(bench: Bench) -> None:
    before, expect = SCENARIO.split("expect:")
    restored = RESTORED_ELSEWHERE + "expect:" + expect
    (bench.directory / "beside.yaml").write_text(
        before.replace("progress: 0.5", "progress: 0.5, group: 0, chunk: 0") + restored
    )
    ended = bench.run("beside.yaml")
    assert ended.code == 4, ended.out
    assert "verdict: invalid (4): faults-fired: 1 of 2 faults did not fire, first beside #1 (iteration 2 rank 1): " in ended.out


@pytest.mark.parametrize("replayed", [False, True], ids=["the reference", "the system under test"])
def test_an_aim_at_nothing_is_refused_by_the_first_that_have_built_the_model(
    bench: Bench, tmp_path: Path, replayed: bool
) -> None:
    if not replayed:
        bench = Bench(tmp_path / "trained")
    beyond = SCENARIO.replace("progress: 0.5", "progress: 0.5, group: 99")
    (bench.directory / "beyond.yaml").write_text(beyond)
    line = 1 + beyond[: beyond.index("group: 99")].count("\n")
    what = "rank 1: 'adam' does not run in group 99, it does in groups 0 to 1"
    ended = bench.run("beyond.yaml")
    assert (ended.code, ended.error) == (2, f"beyond.yaml:{line}: faults[0].do[0].abort-kernel.group: {what}\n")
    assert bench.directories() == []


def test_a_reference_that_differs_from_itself_is_unknown(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ended = bench.run("misused.yaml", "--set", "workload.iterations=2", MISUSE="plain_worker=own weights")
    assert ended.code == 3, ended.out
    assert "verdict: unknown (3): the reference does not equal itself: iteration 1, rank 0, loss: " in ended.out
    assert not [e for e in journal(bench) if e["job"] == "run"]  # nothing can be judged, so nothing is run
