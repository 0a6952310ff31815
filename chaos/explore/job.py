"""A job of several ranks in one process: the real iteration, recovery and repair over memory that outlives crashes.

Ranks run nested instead of side by side: one that comes to the barrier runs the next one that has not come there, and goes on
when nobody is left. That is a legal order, it is always the same, and it needs no threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from chaos.explore.agent import hand_over
from chaos.explore.invariants import Account, Invariants
from chaos.explore.lanes import OneThreadUpdater, Plan
from chaos.explore.memory import MarkerImage
from chaos.explore.muon import MuonSteps, torch_muon
from chaos.explore.rank import KERNELS, Process, RetainedRank
from chaos.explore.session import Session
from chaos.explore.shapes import Shape
from chaos.explore.steps import Crash, Driver, Steps, Target, Through
from leto.core.geometry import Page
from leto.core.hooks import TrainerContext
from leto.core.layout import HEADER_RECORDS, POST_RECORDS
from leto.core.records import RECORD_SLOTS, Header, IterationResult, Post, encode_record
from leto.core.recovery import Action, Decision, Row
from leto.core.repair import RepairPlan
from leto.runtime.coordinator import Coordinator, ReadProgress, cold_start
from leto.runtime.iteration import IterationRunner
from leto.runtime.resume import resume
from leto.update.executor import PlanExecutor, UpdateParts
from leto.update.record_slots import RECORD_SLOT_BYTES, RecordSlots
from leto.update.repair import rebuild

RANKS = 2


@dataclass(frozen=True, kw_only=True)
class RankImage:
    """One rank at a crash."""

    memory: Mapping[str, bytes]
    markers: MarkerImage
    account: Account


class RecordSteps(RecordSlots):
    """Record slots whose writes are steps."""

    def __init__(self, rank: RetainedRank, steps: Steps) -> None:
        super().__init__(rank.memory)
        self._addresses = {name: rank.memory.address(name) for name in (HEADER_RECORDS, POST_RECORDS)}
        self._steps = steps

    def write_header(self, header: Header) -> None:
        write = super().write_header
        name = f"write HEADER({header.iteration})"
        self._steps.write(name, (HEADER_RECORDS,), lambda: self._place(HEADER_RECORDS, header), lambda: write(header))

    def write_post(self, post: Post) -> None:
        write = super().write_post
        name = f"write POST({post.iteration})"
        self._steps.write(name, (POST_RECORDS,), lambda: self._place(POST_RECORDS, post), lambda: write(post))

    def _place(self, name: str, record: Header | Post) -> tuple[Target, ...]:
        slot = self._addresses[name] + record.iteration % RECORD_SLOTS * RECORD_SLOT_BYTES
        return ((slot, len(encode_record(record, RECORD_SLOT_BYTES))),)


class Trainer:
    """One process of one rank in one epoch."""

    def __init__(self, job: Job, number: int, decision: Decision, driver: Driver) -> None:
        self._job = job
        self._rank = rank = job.ranks[number]
        self._number = number
        self._decision = decision
        self._steps = Steps(rank.memory, KERNELS, driver, job.invariants.watch(number))
        muon = MuonSteps(self._steps, torch_muon()) if rank.coded.matrices else None
        process = Process(rank, self._steps, self._steps, fused=job.shape.fused, muon=muon)
        self._session = Session(number, rank, self._steps, job.shape.skips)
        self._context = TrainerContext(
            rank=number,
            epoch=rank.epoch,
            world_size=len(job.ranks),
            output_dir="",
            options={},
            park_word_address=0,
            heartbeat_address=0,
            report=lambda event: None,
            failpoints=self._steps,
        )
        self._runner = IterationRunner(
            session=self._session,
            updater=OneThreadUpdater(process.parts, rank.gradients, partial(job.run_plan, number)),
            marks=process.marks,
            records=RecordSteps(rank, self._steps),
            context=self._context,
            layout_hash=job.layout_hash,
            barrier=lambda: job.barrier(number),
            on_result=lambda result: job.tell(number, result),
        )

    def resume(self) -> int:
        """Repair, then the decision; the iteration to compute next."""
        if self._decision.action is Action.COLD:
            self._session.initialise()
        self._repair()
        return resume(
            self._runner,
            decision=self._decision,
            geometry=self._rank.coded,
            context=self._context,
            agree=self._agree,
            on_row=lambda row, reason: self._job.on_row(self._number, row),
        )

    def iterate(self, iteration: int) -> None:
        self._runner.run(iteration)

    def _repair(self) -> None:
        rank = self._rank
        if not rank.lost:
            return
        plan = rebuild(
            rank.memory,
            self._steps,
            coded=rank.coded,
            gradients=rank.gradients,
            classes=rank.classes,
            records=self._runner.records,
            decision=self._decision,
            progress=self._runner.marks.progress(),
            lost=rank.lost,
            acknowledge=rank.rebuilt,
        )
        self._job.on_repair(self._number, plan)

    def _agree(self, text: str) -> list[str]:
        """What the other ranks say is in their records."""
        target = self._decision.target
        others = (RecordSlots(r.memory).read_post(target) for n, r in enumerate(self._job.ranks) if n != self._number)
        return [text, *(repr(post.values) for post in others)]


def in_plan_order(number: int, executor: PlanExecutor, parts: UpdateParts, plan: Plan) -> None:
    executor.run(plan)


class Job:
    """Ranks, the agent that decides for them, and what is noticed on the way: ``rows`` and ``repairs`` by rank, ``told``
    results by (rank, iteration)."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.ranks = [RetainedRank(shape.segments, shape.protection, shape.matrices) for _ in range(RANKS)]
        self.layout_hash = self.ranks[0].coded.layout_hash()
        self.invariants = Invariants(self.ranks, shape.skips)
        self.at_barrier: Callable[[int], None] = lambda number: None
        self.run_plan: Callable[[int, PlanExecutor, UpdateParts, Plan], None] = in_plan_order
        self.forget()

    def forget(self) -> None:
        """A new course of events begins."""
        self._coordinator = Coordinator(len(self.ranks), self.shape.iterations)
        self.rows: list[tuple[int, Row]] = []
        self.repairs: list[tuple[int, RepairPlan]] = []
        self.told: dict[tuple[int, int], IterationResult] = {}
        self._waiting: list[int] = []
        for rank in self.ranks:
            rank.lost = frozenset()
            rank.lost_mirrors = ()

    def start(self) -> Decision:
        return cold_start(len(self.ranks))

    def fail(self, agent: Driver | None = None) -> Decision:
        """All processes are gone: read all marks, decide, open the next epoch. ``agent`` may let the agent die meanwhile.

        A decision to give up (CHECKPOINT) opens nothing.
        """
        self.invariants.at_failure()
        decision = self._decide()
        if decision.action is Action.CHECKPOINT:
            return decision
        if agent is not None:
            self._hand_over_twice(decision, agent)
        for number, rank in enumerate(self.ranks):
            rank.open_epoch(decision, number, carried=agent is not None)
            account, carried = self.invariants.accounts[number], decision.carried[number]
            account.iteration, account.phase = carried.iteration, carried.phase
        return decision

    def _decide(self) -> Decision:
        return self._coordinator.decide([self._reader(rank) for rank in self.ranks])

    @staticmethod
    def _reader(rank: RetainedRank) -> ReadProgress:
        return lambda: rank.markers.read(rank.epoch, rank.lost_mirrors)

    def _hand_over_twice(self, decision: Decision, agent: Driver) -> None:
        """The first agent dies on the way; the second one remembers nothing of it."""
        markers = [rank.markers for rank in self.ranks]
        (epoch,) = {rank.epoch for rank in self.ranks}
        before = self.start()
        for each in markers:
            each.begin_epoch(epoch, before)
        with contextlib.suppress(Crash):
            hand_over(markers, epoch + 1, decision, agent)
            raise AssertionError("the hand-over was to be interrupted")
        for number, each in enumerate(markers):
            if each.read_decision() not in ((epoch, before), (epoch + 1, decision)):
                raise AssertionError(f"rank {number} reads a decision that nobody made: {each.read_decision()}")
        self._coordinator = Coordinator(len(self.ranks), self.shape.iterations)
        again = self._decide()
        if again != decision:
            raise AssertionError(f"the next agent decides {again}, not {decision}")
        hand_over(markers, epoch + 1, again, Through())

    def recover(self, decision: Decision, drivers: Sequence[Driver], first: int = 0) -> Callable[[], None]:
        """One generation of trainers, until each waits to go on training; returns what does that, to the end of the job.
        ``first`` is the rank that begins. Raises Crash where a driver does, and Unrecoverable before anything is written."""
        order = [first, *(n for n in range(len(self.ranks)) if n != first)]
        trainers = {n: Trainer(self, n, decision, drivers[n]) for n in order}
        following: set[int] = set()
        self._together(order, lambda n: following.add(trainers[n].resume()))
        (iteration,) = following

        def train() -> None:
            for t in range(iteration, self.shape.iterations + 1):
                self._together(order, lambda n, t=t: trainers[n].iterate(t))  # type: ignore[misc]

        return train

    def run(self, decision: Decision, drivers: Sequence[Driver], first: int = 0) -> None:
        """One generation of trainers, to the end of the job."""
        self.recover(decision, drivers, first)()

    def _together(self, order: Sequence[int], do: Callable[[int], None]) -> None:
        self._do = do
        self._waiting = list(order)
        while self._waiting:
            do(self._waiting.pop(0))

    def barrier(self, number: int) -> None:
        self.at_barrier(number)
        if self._waiting:
            self._do(self._waiting.pop(0))

    def tell(self, number: int, result: IterationResult) -> None:
        self.told[number, result.iteration] = result

    def on_row(self, number: int, row: Row) -> None:
        self.rows.append((number, row))

    def on_repair(self, number: int, plan: RepairPlan) -> None:
        self.repairs.append((number, plan))

    def lose(self, number: int, pages: frozenset[Page]) -> None:
        rank = self.ranks[number]
        rank.memory.lose(pages)
        rank.lost |= pages

    def lose_mirrors(self, number: int, mirrors: tuple[int, ...], seen: Account) -> None:
        """``seen`` is the account of what the mirrors that are left say."""
        self.ranks[number].lost_mirrors = mirrors
        self.invariants.accounts[number] = seen.copy()

    def image(self, number: int) -> RankImage:
        rank = self.ranks[number]
        return RankImage(
            memory=rank.memory.image(), markers=rank.marker_image(), account=self.invariants.accounts[number].copy()
        )

    def restore(self, number: int, image: RankImage) -> None:
        rank = self.ranks[number]
        rank.memory.restore(image.memory)
        rank.markers.restore(image.markers)
        rank.epoch = image.markers.epoch
        self.invariants.accounts[number] = image.account.copy()
