"""A rank that a test leads through updates, deaths and recoveries, with an account of what was seen.

The account knows which marks were published and which pages were lost, and nothing else: what every page must hold, whether a
recovery must be refused and what is to be decided is said from it and from ``crash_free``, never by the code that is judged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from chaos.explore.invariants import Account
from chaos.explore.rank import GRADIENTS
from leto.core.errors import Unrecoverable
from leto.core.geometry import CODED_ARRAYS, Page
from leto.core.layout import TIER2, PageClass, gradient_parity, parity_slot, tier1
from leto.core.markers import MIRRORS, STEPS_PER_CHUNK, Mark, Phase, Word
from leto.core.records import Post
from leto.core.recovery import Action, Decision, decide
from leto.core.update_plan import Lane, Operation, plan_update
from leto.runtime.coordinator import cold_start
from leto.update.executor import PlanExecutor
from leto.update.repair import rebuild
from tests.machine.crash_free import KERNELS, CrashFree, values
from tests.machine.pooled_rank import PooledProcess, PooledRank
from tests.machine.torn import Killed, Torn, torn_between, with_garbage

PARK_DEADLINE_S = 10.0
LAST_ITERATION = 1 << 20
"""No test comes to its end."""


class ObservedRank:
    """``process`` is the trainer, None while none lives. ``refused`` says why the job has come to its end, None while it runs.

    ``lost`` are the pages that were lost since a process acknowledged the last ones.
    """

    def __init__(self, rank: PooledRank, model: CrashFree) -> None:
        self.rank = rank
        self.account = Account()
        self.lost: set[Page] = set()
        self.process: PooledProcess | None = None
        self.refused: str | None = None
        self._model = model
        self._committed: set[int] = set()  # chunks, in this iteration
        self._half_published: list[tuple[int, Word, Mark]] = []  # marks that stand in so many mirrors only
        self._open(cold_start(1))
        rank.allocate()
        self.attach()
        self._build()

    def close(self) -> None:
        """Gives the pool's memory back. What a failed test still holds of a process keeps its own mappings alive."""
        self.process = None
        self.rank.close()

    @property
    def alive(self) -> PooledProcess:
        assert self.process is not None, "no process lives"
        return self.process

    # One iteration (U49). Where ``mirrors`` are less than all, the process dies with the mark in so many.

    def compute(self, until: Phase) -> None:
        """From HEADER on, or from where it is, to OWNED, POST or GRADS_PROTECTED."""
        t = self.account.iteration
        if self.account.phase < Phase.OWNED:
            self.alive.write(GRADIENTS, self._model.gradient(t))
            self._mark(Phase.OWNED, t)
        if self.account.phase < Phase.POST <= until:
            self.alive.updater.protect_gradients(t)
            self.alive.records.write_post(self._model.post(t))
            self._mark(Phase.POST, t)
        if self.account.phase < Phase.GRADS_PROTECTED <= until:
            self._mark(Phase.GRADS_PROTECTED, t)

    def begin(self, mirrors: int = MIRRORS) -> None:
        self.compute(Phase.GRADS_PROTECTED)
        self._mark(Phase.BEGIN, self.account.iteration, mirrors)
        if self.process is not None:
            self._plan()

    def next_operation(self, lane: Lane) -> Operation | None:
        """Of a lane in an update; None where there is none, or it has to wait for the other lane."""
        if self.process is None or self.account.phase is not Phase.BEGIN:
            return None
        op = next((op for op in self._planned if op.lane is lane and op.index not in self._done), None)
        return op if op is not None and self._done.issuperset(op.depends_on) else None

    def operate(self, count: int, lane: Lane) -> list[str]:
        """Up to so many operations, with their marks; what they were."""
        names = []
        for _ in range(count):
            op = self.next_operation(lane)
            if op is None:
                break
            self._do(op)
            names.append(op.describe())
        return names

    def complete(self, mirrors: int = MIRRORS) -> None:
        for op in self._planned:  # its own order is a legal one
            if op.index not in self._done:
                self._do(op)
        self._mark(Phase.COMPLETE, self.account.iteration, mirrors)

    def next_header(self, mirrors: int = MIRRORS) -> None:
        t = self.account.iteration
        self.alive.records.write_header(self._read_post(t).next_header())
        self._mark(Phase.HEADER, t + 1, mirrors)
        if self.process is not None:
            self.process.updater.lend()

    def finish_iteration(self) -> None:
        """From wherever it is to the next HEADER."""
        if self.account.phase < Phase.BEGIN:
            self.begin()
        if self.account.phase is Phase.BEGIN:
            self.complete()
        self.next_header()

    def _build(self) -> None:
        """A cold start."""
        for name in CODED_ARRAYS:
            self.alive.write(name, self._model.state(0)[name])
        self.alive.updater.encode_state()
        self.alive.records.write_header(self._model.header(1))
        self._mark(Phase.HEADER, 1)
        self.alive.updater.lend()

    def _plan(self) -> None:
        """What this process has to do of the update, with the values that are on record."""
        t = self.account.iteration
        update = self._read_post(t).values
        self._planned = plan_update(self.rank.coded, t, self.alive.marks.progress(), skipped=update.skipped)
        self._executor = PlanExecutor(self.alive.parts, update)
        self._done: set[int] = set()

    def _do(self, op: Operation) -> None:
        self._executor.run((op,))
        self._seen_unmarked(op)
        self._done.add(op.index)
        if op.publish is not None:
            self._seen(op.publish.word, op.publish.mark)

    def _mark(self, phase: Phase, iteration: int, mirrors: int = MIRRORS) -> None:
        mark = Mark(iteration, int(phase))
        if mirrors == MIRRORS:
            self.alive.marks.publish(Word.PHASE, mark)
            self._seen(Word.PHASE, mark)
        else:
            self._publish_in(mirrors, Word.PHASE, mark)
            self.die()

    def _publish_in(self, mirrors: int, word: Word, mark: Mark) -> None:
        self.alive.publish_in(mirrors, word, mark)
        self._half_published.append((mirrors, word, mark))

    def _seen_unmarked(self, op: Operation) -> None:
        if op.target_slot != op.source_slot:
            self.account.filled = parity_slot(op.target_slot)

    def _seen(self, word: Word, mark: Mark) -> None:
        if word is Word.PHASE and mark.ordinal == Phase.BEGIN:
            self._committed = set()
        elif word is Word.STEP and mark.ordinal % STEPS_PER_CHUNK == 0:
            self._committed.add(mark.ordinal // STEPS_PER_CHUNK - 1)
        self.account.marked(self.rank, word, mark.iteration, mark.ordinal)

    # Records.

    def _read_post(self, iteration: int) -> Post:
        post = self.alive.records.read_post(iteration)
        assert post == self._model.post(iteration), f"POST({iteration}) is another record"
        return post

    def _read_header(self, iteration: int) -> None:
        header = self.alive.records.read_header(iteration)
        assert header == self._model.header(iteration), f"HEADER({iteration}) is another record"

    # Dying.

    def die(self) -> None:
        self.alive.close()
        self.process = None

    def leave_done(self, op: Operation, mirrors: int) -> None:
        """The operation is done, its mark is in so many mirrors. The process can only die now."""
        self._executor.run_unmarked(op)
        self._seen_unmarked(op)
        if op.publish is not None and mirrors:
            self._publish_in(mirrors, op.publish.word, op.publish.mark)

    def leave_torn(self, op: Operation, torn: Torn) -> None:
        """The armed kernel parks and is abandoned: what it does afterwards is taken back. COMMIT has no kernel to be in.
        The process can only die now."""
        process = self.alive
        process.failpoints.progress = torn.progress
        errors: list[Exception] = []
        kernel = threading.Thread(target=_collecting, args=(lambda: self._executor.run_unmarked(op), errors), daemon=True)
        kernel.start()
        deadline = time.monotonic() + PARK_DEADLINE_S
        while process.control.park_token != process.TOKEN and kernel.is_alive():
            assert time.monotonic() < deadline, f"{op.describe()}: the armed kernel did not park"
            time.sleep(0)
        parked = self.rank.image()
        process.control.clear_park()
        kernel.join(PARK_DEADLINE_S)
        assert not kernel.is_alive(), f"{op.describe()} did not end"
        if errors:
            raise errors[0]
        self.rank.put(with_garbage(parked, self.rank.image()) if torn.garbage else parked)

    # Losses and recovery.

    def losable(self, kind: PageClass) -> list[Page]:
        """All pages of a class; of coded state in the order of columns, so that neighbours share a group."""
        if kind is PageClass.CODED:
            groups = range(self.rank.coded.group_count)
            return [placed.page for group in groups for placed in self.rank.coded.group_pages(group)]
        names = [name for name, of in self.rank.classes.items() if of is kind]
        return [page for name in names for page in self.rank.pages_of(name)]

    def lose(self, pages: list[Page]) -> None:
        self.rank.lose(pages)
        self.lost |= set(pages)

    def decide(self) -> Decision | None:
        """What the agent does after a failure: lost pages are marked, the decision is durable, a new epoch is open. None where
        it refuses, which it does exactly when every mirror is lost."""
        self.rank.localise()
        assert self.rank.lost() == self.lost, "other pages were localised than were lost"
        left = set(range(MIRRORS)) - self.rank.lost_mirrors
        try:
            progress = self.rank.read_progress()
        except Unrecoverable as refusal:
            assert not left, f"refused although mirrors {left} are left: {refusal}"
            self.refused = str(refusal)
            return None
        assert left, f"read {progress} from no mirror"
        self._see_half_published(left)
        decision = decide([progress], LAST_ITERATION)
        decided, expected = (decision.action, decision.iteration), self._expected_decision()
        assert decided == expected, f"decided {decided}, not {expected}"
        self._open(decision)
        if self.account.phase < Phase.BEGIN:
            self.account.phase = min(self.account.phase, Phase.HEADER)  # its compute phase is redone
        return decision

    def _see_half_published(self, left: set[int]) -> None:
        """A mark counts as soon as one mirror that is left holds it (U4)."""
        for mirrors, word, mark in self._half_published:
            if left & set(range(mirrors)):
                self._seen(word, mark)
        self._half_published = []

    def attach(self) -> None:
        self.process = PooledProcess(self.rank)

    def rebuild(self, kernels: Any = KERNELS, torn: Torn | None = None) -> None:
        """Of what was lost. The rank refuses exactly when the budget says so; ``KillInCall`` kernels leave their call torn."""
        beyond, before, lost = self._beyond_the_budget(), self.rank.image(), frozenset(self.lost)
        self.refused, killed = self._rebuild(kernels)
        if self.refused is not None:
            assert beyond is not None, f"refused within the budget: {self.refused}"
            assert self.rank.image() == before, "wrote before it refused"
            self.die()
            return
        assert beyond is None, f"went on although {beyond}"
        if killed:
            assert torn is not None
            self.rank.put(torn_between(before, self.rank.image(), torn))
        kept = self.rank.blanked(before, lost)
        assert self.rank.blanked(self.rank.image(), lost) == kept, "wrote pages that were not lost"

    def _rebuild(self, kernels: Any) -> tuple[str | None, bool]:
        """Why it refused, and whether it was killed."""
        if not self.lost:
            return None, False
        try:
            rebuild(
                self.alive.regions,
                kernels,
                coded=self.rank.coded,
                gradients=self.rank.gradients,
                classes=self.rank.classes,
                records=self.alive.records,
                decision=self._decision,
                progress=self.alive.marks.progress(),
                lost=self.rank.lost(),
                acknowledge=self._acknowledge,
            )
        except Unrecoverable as refusal:
            return str(refusal), False
        except Killed:
            return None, True
        return None, False

    def _acknowledge(self) -> None:
        self.rank.retained.rebuilt(tuple(self.rank.lost()))
        self.lost = set()

    def resume(self) -> None:
        """Carries the decision out as far as it is no choice of the test: to HEADER, or into the update."""
        if self._decision.action is Action.COLD:
            self._build()
        elif self._decision.action is Action.FINISH:
            self._plan()
        elif self.account.phase is Phase.COMPLETE:
            self.next_header()
        else:
            self._read_header(self.account.iteration)
            self.alive.updater.lend()

    def _open(self, decision: Decision) -> None:
        self._decision = decision
        self.rank.open_epoch(decision)

    def _expected_decision(self) -> tuple[Action, int]:
        t = self.account.iteration
        if self.account.phase is Phase.NONE:
            return Action.COLD, 0
        if self.account.phase is Phase.BEGIN:
            return Action.FINISH, t
        return Action.RESTART, t + (self.account.phase is Phase.COMPLETE)

    # What must be.

    @property
    def _updating(self) -> bool:
        return self.account.phase is Phase.BEGIN

    @property
    def _reads_gradients(self) -> bool:
        return self._updating and not values(self.account.iteration).skipped

    def _beyond_the_budget(self) -> str | None:
        """Which code word lost more than its parity can solve, or which record."""
        if self.account.phase is Phase.NONE:
            return None
        for page in self.lost:
            if self.rank.classes[page.allocation] is PageClass.RECORDS:
                return f"{page} is a record"
        for group in range(self.rank.coded.group_count):
            speaking = self.account.parity_of(group)
            rows = self._lost_of(speaking)
            if speaking == tier1(group) and rows == 1 and self._tier2_of(group) not in (None, *self.lost):
                rows = 0
            data = [placed.page for placed in self.account.boundary(self.rank, group)]
            if self._unsolvable(data, rows):
                return f"group {group} lost more than its parity solves"
        for group in range(self.rank.gradients.group_count if self._reads_gradients else 0):
            data = [placed.page for placed in self.rank.gradients.group_pages(group)]
            if self._unsolvable(data, self._lost_of(gradient_parity(group))):
                return f"gradient group {group} lost more than its parity solves"
        return None

    def _unsolvable(self, data: list[Page], lost_rows: int) -> bool:
        lost = len(self.lost & set(data))
        return lost > 0 and lost + lost_rows > self.rank.coded.protection.tier1_pages

    def _lost_of(self, allocation: str) -> int:
        return sum(page.allocation == allocation for page in self.lost)

    def _tier2_of(self, group: int) -> Page | None:
        return Page(TIER2, group) if self.rank.coded.protection.tier2_pages else None

    def wrong_pages(self) -> list[str]:
        """Pages that do not hold what they must, of those that are not lost."""
        must = self._must_hold() if self.account.phase is not Phase.NONE else iter(())
        wrong = [page for page, content in must if page not in self.lost and self.rank.read(page) != content]
        return [f"page {page.page_index} of {page.allocation}" for page in wrong]

    def _must_hold(self) -> Iterator[tuple[Page, bytes]]:
        for group in range(self.rank.coded.group_count):
            yield from self._group_must_hold(group)
        if self.account.phase is Phase.GRADS_PROTECTED or self._reads_gradients:
            for group in range(self.rank.gradients.group_count):
                yield from self._gradients_must_hold(group)

    def _group_must_hold(self, group: int) -> Iterator[tuple[Page, bytes]]:
        """INV-P, byte for byte: the last committed boundary, and the parity that speaks for it."""
        t = self.account.iteration - (self.account.phase < Phase.BEGIN)  # the update that stands, or is under way
        older = frozenset(self.rank.coded.chunks_of(group)) - self._committed if self._updating else frozenset()
        boundary = self.account.boundary(self.rank, group)
        for placed, kept in zip(self.rank.coded.group_pages(group), boundary, strict=True):
            chunk = self._chunk_at(group, placed.column)
            yield kept.page, self._model.page(t - (chunk in older), placed.page)
        rows, speaking = self._model.rows(t, group, older), self.account.parity_of(group)
        yield from ((Page(speaking, k), row) for k, row in enumerate(rows))
        tier2 = self._tier2_of(group)
        if speaking == tier1(group) and tier2 is not None:
            yield tier2, self._model.tier2(t, group, older)

    def _chunk_at(self, group: int, column: int) -> int:
        return self.rank.coded.chunks_of(group).start + column // self.rank.coded.protection.chunk_pages

    def _gradients_must_hold(self, group: int) -> Iterator[tuple[Page, bytes]]:
        t = self.account.iteration
        for placed in self.rank.gradients.group_pages(group):
            yield placed.page, self._model.page(t, placed.page)
        rows = self._model.gradient_rows(t, group)
        yield from ((Page(gradient_parity(group), k), row) for k, row in enumerate(rows))


def _collecting(run: Callable[[], None], errors: list[Exception]) -> None:
    try:
        run()
    except Exception as error:
        errors.append(error)
