"""Lost pages in real processes: touching one kills, exactly the lost ones are found, and their marks outlive failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from losing_client import DATA, LAYOUT, PAGE_BYTES, PARITY, allocations, pattern
from pool_processes import TIMEOUT_S

from chaos.faults.hand_over import MANAGER_PLUGIN, HandOver, agent_path, install_in_agent, manager_path, trainer_path
from chaos.faults.memory import can_poison, poison
from leto.core.errors import JobError, RetainedStateError, Unrecoverable
from leto.core.geometry import OS_PAGE_BYTES, Page
from leto.core.hooks import ManagerContext
from leto.core.layout import CONTROL_BYTES, MARKERS, Domain, control_page
from leto.core.markers import Phase, Progress, StepDone, step_mark, words_of
from leto.device.linux import populate_read
from leto.memory.client import Pool, PoolAgent, PoolObserver
from leto.memory.regions import Regions
from leto.memory.state_manager import ManagerSpec
from leto.runtime.process import Spawned
from leto.runtime.state_managers import start_state_manager

pytestmark = pytest.mark.skipif(can_poison() is not None, reason=f"pages cannot be poisoned here: {can_poison()}")

PAGES = 9


class Losing:
    """A state manager, and a trainer that has filled its memory; pages can be lost."""

    def __init__(self, folder: Path, pages: int) -> None:
        self.folder = folder
        self.socket_path = folder / "r0"
        spec = ManagerSpec(
            rank=0,
            device_bytes=64 << 20,
            host_bytes=64 << 20,
            page_bytes=PAGE_BYTES,
            plugins=(MANAGER_PLUGIN,),
            plugin_options={"memory_dir": str(folder)},
        )
        self.manager = start_state_manager(self.socket_path, spec, log_path=folder / "log", timeout_s=TIMEOUT_S)
        self.agent = PoolAgent(self.socket_path, rank=0, epoch=0, timeout_s=TIMEOUT_S)
        self.agent.advance(1)
        arenas = {Domain.CONTROL: (self.agent.control.address, CONTROL_BYTES)}
        install_in_agent(ManagerContext(rank=0, options={"memory_dir": str(folder)}, mappings=arenas))
        script = Path(__file__).with_name("losing_client.py")
        argv = [sys.executable, script, self.socket_path, folder, str(pages)]
        self.trainer = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.answer() == b"ready\n"

    def answer(self) -> bytes:
        assert self.trainer.stdout is not None
        return self.trainer.stdout.readline()

    def touch(self, page: Page) -> bytes:
        """What the trainer finds there; empty when it died of looking."""
        assert self.trainer.stdin is not None
        self.trainer.stdin.write(f"{page.allocation} {page.page_index}\n".encode())
        self.trainer.stdin.flush()
        return self.answer()

    def observer(self, page_bytes: int = PAGE_BYTES) -> PoolObserver:
        return PoolObserver(self.socket_path, rank=0, epoch=self.agent.epoch, page_bytes=page_bytes, timeout_s=TIMEOUT_S)

    def processes(self) -> list[HandOver]:
        """Those that are alive, the state manager first."""
        paths = [manager_path(self.folder, 0), agent_path(self.folder, 0)]
        if self.trainer.poll() is None:
            paths.append(trainer_path(self.folder, 0))
        return [HandOver.read(path) for path in paths]

    def lose(self, *pages: Page, page_bytes: int = PAGE_BYTES) -> None:
        with self.observer(page_bytes) as observer:
            observer.table()
            poison(observer, self.processes(), pages, epoch=self.agent.epoch)

    def lose_mirrors(self, *mirrors: int) -> None:
        self.lose(*(Page(MARKERS, mirror) for mirror in mirrors))

    def kill_trainer(self) -> None:
        self.trainer.kill()
        self.trainer.wait(TIMEOUT_S)

    def next_trainer(self) -> Pool:
        """Of the next epoch."""
        self.agent.advance(self.agent.epoch + 1)
        return Pool(self.socket_path, rank=0, epoch=self.agent.epoch, timeout_s=TIMEOUT_S)

    def close(self) -> None:
        self.kill_trainer()
        assert self.trainer.stdin is not None and self.trainer.stdout is not None
        self.trainer.stdin.close()
        self.trainer.stdout.close()
        os.close(HandOver.read(agent_path(self.folder, 0)).userfaultfd)
        self.agent.close()
        self.manager.stop(TIMEOUT_S)
        self.manager.close()


@pytest.fixture
def losing(folder: Path, request: pytest.FixtureRequest) -> Iterator[Losing]:
    losing = Losing(folder, getattr(request, "param", PAGES))
    yield losing
    losing.close()


def found_by_the_next_trainer(pool: Pool, pages: int = PAGES) -> dict[str, list[int]]:
    """First byte of every page, which must be alike throughout the page."""
    regions = Regions(PAGE_BYTES)
    pool.obtain(regions, allocations(pages), LAYOUT, create=False)
    found = {}
    for name in (DATA, PARITY):
        content = regions.bytes(name).reshape(pages, PAGE_BYTES)
        assert np.all(content == content[:, :1])
        found[name] = content[:, 0].tolist()
        del content
    regions.close()
    return found


LOST = (Page(DATA, 0), Page(DATA, 4), Page(DATA, 5), Page(PARITY, 3), Page(PARITY, PAGES - 1))


def test_touching_a_lost_page_is_sigbus_and_its_neighbours_are_well(losing: Losing) -> None:
    losing.lose(Page(DATA, 4))
    assert losing.touch(Page(DATA, 3)) == b"%d\n" % pattern(3)
    assert losing.touch(Page(DATA, 5)) == b"%d\n" % pattern(5)
    assert losing.touch(Page(DATA, 4)) == b""
    assert losing.trainer.wait(TIMEOUT_S) == -signal.SIGBUS


def test_exactly_the_lost_pages_of_both_domains_are_found(losing: Losing) -> None:
    losing.lose(*LOST)
    losing.kill_trainer()
    localised = losing.agent.localise()
    assert (localised.found, localised.lost) == (len(LOST), len(LOST))
    assert localised.seconds > 0
    assert losing.agent.lost() == LOST


def test_nothing_lost_is_nothing_found(losing: Losing) -> None:
    assert (losing.agent.localise().found, losing.agent.lost()) == (0, ())
    with losing.next_trainer() as pool:
        assert pool.lost == ()


def test_one_bad_page_of_the_operating_system_loses_the_code_page_around_it(losing: Losing) -> None:
    per_page = PAGE_BYTES // OS_PAGE_BYTES
    losing.lose(Page(DATA, 2 * per_page + 1), Page(PARITY, 6 * per_page), page_bytes=OS_PAGE_BYTES)
    losing.agent.localise()
    assert losing.agent.lost() == (Page(DATA, 2), Page(PARITY, 6))
    losing.kill_trainer()
    with losing.next_trainer() as pool:  # what was intact of them is gone as well
        found = found_by_the_next_trainer(pool)
    assert [found[DATA][2], found[PARITY][6]] == [0, 0]


def test_marks_come_before_memory_and_outlive_failures_until_the_page_is_rebuilt(losing: Losing) -> None:
    losing.lose(*LOST)
    losing.kill_trainer()
    losing.agent.localise()
    expected = {name: [0 if Page(name, k) in LOST else pattern(k) for k in range(PAGES)] for name in (DATA, PARITY)}
    for _ in range(2):  # the first of them dies before it has rebuilt anything
        with losing.next_trainer() as pool:
            assert pool.lost == LOST
            assert found_by_the_next_trainer(pool) == expected
    with losing.next_trainer() as pool:
        pool.rebuilt(LOST[:2])
        assert pool.lost == LOST[2:]
    with losing.next_trainer() as pool:
        assert pool.lost == LOST[2:]
        pool.rebuilt(LOST[2:])
    assert losing.agent.localise().lost == 0


def test_a_later_failure_adds_to_the_marks(losing: Losing) -> None:
    losing.lose(LOST[0])
    losing.agent.localise()
    losing.lose(LOST[3])
    losing.kill_trainer()
    localised = losing.agent.localise()
    assert (localised.found, localised.lost) == (1, 2)
    losing.lose(LOST[0])  # lost again before anybody has rebuilt it
    assert losing.agent.localise().found == 0
    assert losing.agent.lost() == (LOST[0], LOST[3])


def test_only_marked_pages_can_be_acknowledged(losing: Losing) -> None:
    losing.lose(LOST[0])
    losing.kill_trainer()
    losing.agent.localise()
    with losing.next_trainer() as pool:
        with pytest.raises(RetainedStateError, match="page 1 of 'master' is not marked"):
            pool.rebuilt([LOST[0], Page(DATA, 1)])
        assert losing.agent.lost() == (LOST[0],)


@pytest.mark.parametrize("losing", [700], indirect=True)
def test_more_marks_than_fit_a_datagram_go_in_batches(losing: Losing) -> None:
    lost = tuple(Page(DATA, k) for k in range(700))
    losing.lose(*lost)
    losing.kill_trainer()
    assert losing.agent.localise().found == 700
    with losing.next_trainer() as pool:
        assert pool.lost == lost
        pool.rebuilt(lost)
    assert losing.agent.lost() == ()


BEGUN = Progress(phase=Phase.BEGIN, iteration=5, step=step_mark(5, 2, StepDone.UPDATED).ordinal, fetched=1)


@pytest.mark.parametrize("mirrors", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_lost_mirrors_are_found_and_the_others_speak(losing: Losing, mirrors: tuple[int, ...]) -> None:
    agent = losing.agent
    agent.control.write_words(1, words_of(1, BEGUN))
    losing.lose_mirrors(*mirrors)
    lost = agent.localise().control
    assert [control_page(1, index) for index in lost] == [Page(MARKERS, mirror) for mirror in mirrors]
    assert all(populate_read(agent.control.address + index * OS_PAGE_BYTES, OS_PAGE_BYTES) for index in lost)
    assert agent.control.read_progress(1, lost) == BEGUN
    assert losing.agent.lost() == ()  # nobody is to rebuild them


def test_a_trainer_dies_of_publishing_into_a_lost_mirror(losing: Losing) -> None:
    losing.lose_mirrors(1)
    assert losing.touch(Page(MARKERS, 1)) == b""
    assert losing.trainer.wait(TIMEOUT_S) == -signal.SIGBUS


def test_all_mirrors_lost_is_refused_and_nothing_is_loaded(losing: Losing) -> None:
    losing.agent.control.write_words(1, words_of(1, BEGUN))
    losing.lose_mirrors(0, 1, 2)
    with pytest.raises(Unrecoverable, match="all 3 mirrors of the epoch 1 marker are lost"):
        losing.agent.control.read_progress(1, losing.agent.localise().control)


def test_the_next_epoch_has_whole_mirrors(losing: Losing) -> None:
    agent = losing.agent
    agent.control.write_words(1, words_of(1, BEGUN))
    losing.lose_mirrors(0, 2)
    carried = agent.control.read_progress(1, agent.localise().control)
    losing.kill_trainer()
    agent.advance(2)
    agent.control.write_words(2, words_of(2, carried))
    assert agent.localise().control == ()
    assert agent.control.read_progress(2) == BEGUN
    losing.lose_mirrors(2)  # of this epoch: they are lost anew, and the older ones are no business of it
    assert agent.control.read_progress(2, agent.localise().control) == BEGUN
    agent.advance(3)  # gives the pages of the first epoch back
    assert agent.localise().control == ()


def test_a_dead_process_cannot_lose_pages(losing: Losing) -> None:
    processes = losing.processes()
    losing.kill_trainer()
    with losing.observer() as observer:
        observer.table()
        with pytest.raises(OSError, match=f"process {processes[-1].pid}, whose memory"):
            poison(observer, processes, LOST, epoch=1)
    assert losing.agent.localise().found == 0


def test_a_plugin_that_cannot_be_found_is_one_clear_line(folder: Path) -> None:
    spec = ManagerSpec(rank=0, device_bytes=4096, host_bytes=4096, page_bytes=4096, plugins=("chaos.faults.hand_over:no",))
    with pytest.raises(JobError, match="rank 0: cannot import"):
        start_state_manager(folder / "r0", spec, log_path=folder / "log", timeout_s=TIMEOUT_S)


def test_a_state_manager_with_the_plugin_stays_light(losing: Losing) -> None:
    maps = Path(f"/proc/{losing.manager.pid}/maps").read_text()
    assert "numpy" not in maps
    assert "[userfaultfd]" in " ".join(links(losing.manager))


def links(process: Spawned) -> list[str]:
    folder = Path(f"/proc/{process.pid}/fd")
    return [os.readlink(link) for link in folder.iterdir()]
