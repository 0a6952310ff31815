"""The trainer process of one rank and one epoch: attach, carry out the decision, train to the end.

Forked by the fork server with everything imported. It owns no training state: whatever it holds when it is killed is either
in retained memory or made again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from leto.core import plugins
from leto.core.errors import ProtocolViolation
from leto.core.events import Event
from leto.core.failpoints import Point, Site
from leto.core.hooks import TrainerContext
from leto.core.records import IterationResult
from leto.core.recovery import Action, Decision, Row
from leto.core.repair import written_by
from leto.megatron import retained
from leto.memory.client import Pool
from leto.runtime.agent_link import AgentLink, TrainerOrder
from leto.runtime.built import Built, adam_hyper, build, torch_muon
from leto.runtime.iteration import IterationRunner, Updater
from leto.runtime.resume import resume
from leto.update.adam import host_kernels, select_adam
from leto.update.executor import UpdateParts
from leto.update.marks import Marks
from leto.update.record_slots import RecordSlots
from leto.update.repair import rebuild


def main(arguments: Mapping[str, Any], fds: list[int]) -> None:
    """Entry point for the fork server: ``fds`` are the agent's channel and, for rank 0, the store's listening socket."""
    order = TrainerOrder.from_arguments(arguments)
    link = AgentLink(fds[0], order.rank, order.epoch)
    with link.reporting_fatal():
        Trainer(build_ordered(order, fds), order, order.epoch, link).run()


def build_ordered(order: TrainerOrder, fds: list[int]) -> Built:
    listen_fd = fds[1] if len(fds) > 1 else None
    return build(order.config, order.rank, store_port=order.store_port, store_listen_fd=listen_fd)


class Trainer:
    """A built trainer with retained memory beneath it, in ``epoch``."""

    def __init__(self, built: Built, order: TrainerOrder, epoch: int, link: AgentLink) -> None:
        self._built = built
        self._epoch = epoch
        self._link = link
        started_s = time.monotonic()
        self._pool = Pool(order.pool_socket, rank=built.rank, epoch=epoch, timeout_s=built.config.timeouts.ready_s)
        self._decision = self._read_decision()
        self._attach()
        self._attach_s = time.monotonic() - started_s
        self._context = self._load_plugins()
        self._runner = self._build_runner()

    def run(self) -> None:
        self._link.report("ready", pid=os.getpid(), attach_s=self._attach_s)
        self._repair()
        started_s = time.monotonic()
        iteration = resume(
            self._runner,
            decision=self._decision,
            geometry=self._built.coded,
            context=self._context,
            agree=_all_gather_text,
            on_row=self._report_row,
        )
        finish_s = time.monotonic() - started_s
        self._audit(iteration - 1)
        self._link.report("training", iteration=iteration, finish_s=finish_s)
        last = self._built.config.workload.iterations
        for t in range(iteration, last + 1):
            self._runner.run(t)
        self._context.failpoints.reach(Point.ENDED, Site(iteration=last))
        dist.barrier()
        if iteration <= last:
            self._audit(last)
        self._link.report("finished")

    def _repair(self) -> None:
        """Rebuild what was lost, acknowledge it, then go on (R38, U19). Raises Unrecoverable before anything is written."""
        lost = self._pool.lost
        if not lost:
            return
        started_s = time.monotonic()
        built = self._built
        plan = rebuild(
            built.regions,
            built.kernels,
            coded=built.coded,
            gradients=built.gradients,
            classes={a.name: a.page_class for a in built.regions.allocations},
            records=self._runner.records,
            decision=self._decision,
            progress=self._runner.marks.progress(),
            lost=set(lost),
            acknowledge=lambda: self._pool.rebuilt(lost),
        )
        self._link.report(
            "repaired",
            pages=len(lost),
            rebuilt=sum(len(written_by(op)) for op in plan.operations),
            budgets=[asdict(budget) | {"spare_rows": budget.spare_rows} for budget in plan.budgets],
            reconstruct_s=time.monotonic() - started_s,
        )

    def _read_decision(self) -> Decision:
        """The decision that opened this epoch, from retained memory: durable before anybody acts on it (U21)."""
        record = self._pool.control.read_decision()
        if record is None or record[0] != self._epoch:
            raise ProtocolViolation(f"rank {self._built.rank} finds no decision for epoch {self._epoch}")
        return record[1]

    def _attach(self) -> None:
        if self._decision.action is Action.COLD:
            self._built.create(self._pool)
        else:
            self._built.take_over(self._pool)

    def _load_plugins(self) -> TrainerContext:
        """Now, not when it was forked: what a plugin reads (armed faults) is what holds in this epoch."""
        built = self._built
        context = TrainerContext(
            rank=built.rank,
            epoch=self._epoch,
            world_size=built.config.workload.world_size,
            output_dir=built.config.output_dir,
            options=built.config.plugin_options,
            park_word_address=self._pool.control.park_word_address,
            heartbeat_address=self._pool.control.heartbeat_address,
            report=self._forward,
            coded=built.coded,
            gradients=built.gradients,
        )
        for path in built.config.plugins:
            plugins.load(path)(context)
        for listen in context.on_attached:
            listen({name: built.regions.address(name) for name in built.regions.names})
        return context

    def _build_runner(self) -> IterationRunner:
        built = self._built
        marks = Marks(built.kernels, self._pool.control, self._epoch)
        parts = UpdateParts(
            coded=built.coded,
            retained=built.regions,
            kernels=built.kernels,
            adam=built.adam,
            hyper=adam_hyper(built.session),
            marks=marks,
            failpoints=self._context.failpoints,
            gradient_address=retained.GradientAddresses(built.session).of,
            fused=built.adam == built.kernels.adam,  # torch's update (U46) is no pass in which parity could follow
            muon=torch_muon(built.session),
        )
        updater: Updater = plugins.load(built.config.updater)(parts, built.gradients)
        return IterationRunner(
            session=built.session,
            updater=updater,
            marks=marks,
            records=RecordSlots(built.regions),
            context=self._context,
            layout_hash=built.coded.layout_hash(),
            barrier=dist.barrier,
            on_result=self._report_result,
        )

    def _audit(self, iteration: int) -> None:
        for listen in self._context.on_audit:
            listen(iteration, self._runner.updater.audit)

    def _forward(self, event: Event) -> None:
        self._link.report(event.name, **{k: v for k, v in event.fields.items() if k != "rank"})

    def _report_row(self, row: Row, reason: str) -> None:
        self._link.report("resumed", row=row.value, reason=reason)

    def _report_result(self, result: IterationResult) -> None:
        self._link.report(
            "iteration",
            iteration=result.iteration,
            loss=result.loss,
            grad_norm=result.grad_norm,
            skipped=result.skipped,
        )


def _all_gather_text(text: str) -> list[str]:
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return [str(t) for t in texts]


def preload() -> None:
    """For the fork server: everything a trainer imports, and nothing that starts a thread."""
    from leto.megatron.preload import preload as preload_megatron

    preload_megatron()
    torch.set_num_threads(1)
    select_adam(host_kernels())
