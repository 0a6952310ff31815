"""A rank that a test leads through updates, deaths and recoveries, beside an oracle that sees what happens to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from chaos.explore.invariants import Account
from chaos.explore.rank import GRADIENTS
from leto.core.errors import Unrecoverable
from leto.core.failpoints import Kernel
from leto.core.geometry import CODED_ARRAYS, Page
from leto.core.layout import PageClass
from leto.core.markers import MIRRORS, Mark, Phase, Progress, Word
from leto.core.records import Post
from leto.core.recovery import Action, Decision, decide
from leto.core.update_plan import Lane, Operation, OpKind, plan_update
from leto.runtime.coordinator import cold_start
from leto.update.executor import PlanExecutor
from leto.update.repair import rebuild
from tests.machine.crash_free import KERNELS, CrashFree
from tests.machine.oracle import Oracle, expected_decision
from tests.machine.peer import Peer
from tests.machine.pooled_rank import PooledProcess, PooledRank
from tests.machine.torn import Killed, Torn, torn_between, with_garbage

PARK_DEADLINE_S = 10.0
LAST_ITERATION = 1 << 20
"""No test comes to its end."""


class ObservedRank:
    """``process`` is the trainer, None while none lives. ``refused`` says why the job has come to its end, None while it runs.

    ``seen`` says what must be; the code that is judged is never asked.
    """

    def __init__(self, rank: PooledRank, model: CrashFree, *, fused: bool, twice: bool = False) -> None:
        """A cold start; ``twice`` when the first one dies before HEADER(1) is durable and loses what it had built."""
        self.rank = rank
        self.seen = Oracle(rank, model)
        self.process: PooledProcess | None = None
        self.refused: str | None = None
        self._model = model
        self._half_published: list[tuple[int, Word, Mark]] = []  # marks that stand in so many mirrors only
        self._peer = Peer()
        self._resuming = False  # the barrier that ends a recovery is ahead
        self._open(cold_start(2))
        rank.allocate()
        self.attach(fused=fused)
        self._build()
        if twice:
            self.die()
            self.lose(self.losable(PageClass.CODED))
            self.decide("level")
            self.attach(fused=fused)
            self.rebuild()
            self._build()
        self._mark(Phase.HEADER, 1)
        self.alive.updater.lend()

    def close(self) -> None:
        """Gives the pool's memory back. What a failed test still holds of a process keeps its own mappings alive."""
        self.process = None
        self.rank.close()

    @property
    def account(self) -> Account:
        return self.seen.account

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
        self._peer.has_come_to(self.account.iteration, Phase.GRADS_PROTECTED)  # a barrier
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
            self._executor.run((op,))
            self._saw(op)
            names.append(op.describe())
        return names

    def complete(self, mirrors: int = MIRRORS, *, by_updater: bool = False) -> None:
        """The rest of the update: by the updater itself, whose lanes run freely, or in the order of the plan."""
        left = [op for op in self._planned if op.index not in self._done]
        if by_updater:
            self.alive.updater.run(self._read_post(self.account.iteration).values, self.alive.marks.progress())
        else:
            self._executor.run(left)
        for op in left:
            self._saw(op)
        self._mark(Phase.COMPLETE, self.account.iteration, mirrors)

    def next_header(self, mirrors: int = MIRRORS) -> None:
        t = self.account.iteration
        self.alive.records.write_header(self._read_post(t).next_header())
        self._mark(Phase.HEADER, t + 1, mirrors)
        if self.process is not None:
            self.process.updater.lend()
            self._end_recovery()

    def _end_recovery(self) -> None:
        if self._resuming:
            self._peer.has_come_to(self.account.iteration, Phase.HEADER)  # a barrier
        self._resuming = False

    def finish_iteration(self) -> None:
        """From wherever it is to the next HEADER."""
        if self.account.phase < Phase.BEGIN:
            self.begin()
        if self.account.phase is Phase.BEGIN:
            self.complete()
        self.next_header()

    def _build(self) -> None:
        """All of a cold start but its mark."""
        for name in CODED_ARRAYS:
            self.alive.write(name, self._model.state(0)[name])
        self.alive.updater.encode_state()
        self.alive.records.write_header(self._model.header(1))

    def _plan(self) -> None:
        """What this process has to do of the update, with the values that are on record."""
        t = self.account.iteration
        update = self._read_post(t).values
        progress, fused = self.alive.marks.progress(), self.alive.parts.fused
        self._planned = plan_update(self.rank.coded, t, progress, skipped=update.skipped, fused=fused)
        self._executor = PlanExecutor(self.alive.parts, update)
        self._done: set[int] = set()

    def _saw(self, op: Operation) -> None:
        self.seen.done(op)
        self._done.add(op.index)
        if op.publish is not None:
            self.seen.marked(op.publish.word, op.publish.mark)

    def _mark(self, phase: Phase, iteration: int, mirrors: int = MIRRORS) -> None:
        mark = Mark(iteration, int(phase))
        if mirrors == MIRRORS:
            self.alive.marks.publish(Word.PHASE, mark)
            self.seen.marked(Word.PHASE, mark)
        else:
            self._publish_in(mirrors, Word.PHASE, mark)
            self.die()

    def _publish_in(self, mirrors: int, word: Word, mark: Mark) -> None:
        self.alive.publish_in(mirrors, word, mark)
        self._half_published.append((mirrors, word, mark))

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
        self.seen.done(op)
        if op.publish is not None and mirrors:
            self._publish_in(mirrors, op.publish.word, op.publish.mark)

    def leave_torn(self, op: Operation, torn: Torn) -> None:
        """The armed kernel parks and is abandoned: what it does afterwards is taken back. COMMIT has no kernel to be in.
        The process can only die now."""
        process = self.alive
        in_parity = torn.in_parity and op.kind is OpKind.UPDATE_AND_PARITY
        process.failpoints.arm_next(torn.progress, Kernel.RS_UPDATE if in_parity else None)
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
        self.seen.lost |= set(pages)

    def decide(self, peer: str) -> Decision | None:
        """What the agent does after a failure that found the other rank at ``peer.WHERE``: lost pages are marked, the decision
        is durable, a new epoch is open. None where it refuses, which it does exactly when every mirror is lost."""
        self.rank.localise()
        assert self.rank.lost() == self.seen.lost, "other pages were localised than were lost"
        left = set(range(MIRRORS)) - self.rank.lost_mirrors
        try:
            progress = self.rank.read_progress()
        except Unrecoverable as refusal:
            assert not left, f"refused although mirrors {left} are left: {refusal}"
            self.refused = str(refusal)
            return None
        assert left, f"read {progress} from no mirror"
        self._see_half_published(left)
        place = self._peer.place(peer, *self.seen.place)
        decision = decide([progress, Progress(iteration=place[0], phase=place[1])], LAST_ITERATION)
        decided, expected = (decision.action, decision.iteration), expected_decision(self.seen.place, place)
        assert decided == expected, f"decided {decided}, not {expected}"
        self._open(decision)
        self._peer.carried(decision.carried[1])
        if Phase.NONE < self.account.phase < Phase.BEGIN and not self._updates:
            self.seen.goes_back_to_header()
        return decision

    def _see_half_published(self, left: set[int]) -> None:
        """A mark counts as soon as one mirror that is left holds it (U4)."""
        for mirrors, word, mark in self._half_published:
            if left & set(range(mirrors)):
                self.seen.marked(word, mark)
        self._half_published = []

    def attach(self, *, fused: bool) -> None:
        """A process whose updates are ``fused`` with their parity, or not; each finishes what the other has begun."""
        self.process = PooledProcess(self.rank, fused=fused)

    def rebuild(self, kernels: Any = KERNELS, torn: Torn | None = None) -> None:
        """Of what was lost. The rank refuses exactly when the budget says so; ``KillInCall`` kernels leave their call torn."""
        beyond, before, lost = self.seen.beyond_the_budget(), self.rank.image(), frozenset(self.seen.lost)
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
        if not self.seen.lost:
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
        self.seen.lost.clear()

    def resume(self) -> None:
        """Carries the decision out as far as it is no choice of the test: to HEADER, or into the update."""
        self._resuming = True
        if self.account.phase is Phase.COMPLETE:
            self.next_header()
        elif self.account.phase is Phase.BEGIN:
            self._plan()
        elif self._updates:
            self.begin()
        else:
            self._read_header(self.account.iteration)
            self.alive.updater.lend()
            self._end_recovery()

    @property
    def _updates(self) -> bool:
        """The decision is to finish the update of its iteration, for which everything is on record."""
        return (self._decision.action, self._decision.iteration) == (Action.FINISH, self.account.iteration)

    def _open(self, decision: Decision) -> None:
        self._decision = decision
        self.rank.open_epoch(decision)


def _collecting(run: Callable[[], None], errors: list[Exception]) -> None:
    try:
        run()
    except Exception as error:
        errors.append(error)
