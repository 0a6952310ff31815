"""The trainer process of one rank and one epoch: attach, carry out the decision, train to the end.

Forked by the fork server with everything imported. It owns no training state: whatever it holds when it is killed is either
in retained memory or made again.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from leto.core.config import JobConfig
from leto.core.errors import ConfigError, LetoError, ProtocolViolation
from leto.core.failpoints import Point, Site
from leto.core.geometry import CodedGeometry
from leto.core.hooks import TrainerContext
from leto.core.layout import updater_allocations
from leto.core.records import IterationResult
from leto.core.recovery import Action, Decision, Row
from leto.megatron import retained
from leto.megatron.training import TrainingSession, join_process_groups
from leto.memory.client import Pool
from leto.memory.regions import Regions
from leto.memory.wire import Channel
from leto.core import plugins
from leto.runtime.iteration import IterationRunner, Updater
from leto.runtime.messages import TRAINER_CODEC, Report
from leto.runtime.resume import resume
from leto.update.adam import host_kernels, select_adam
from leto.update.executor import AdamHyper, UpdateParts
from leto.update.marks import Marks
from leto.update.record_slots import RECORD_SLOT_BYTES, RecordSlots

_REPORT_TIMEOUT_S = 10.0
"""An agent that does not read for so long is gone; the trainer then dies of it."""


@dataclass(frozen=True, kw_only=True)
class TrainerOrder:
    """What the agent tells a trainer it forks. ``store_port`` is rank 0's rendezvous store of this generation."""

    config: JobConfig
    rank: int
    epoch: int
    pool_socket: str
    store_port: int

    @staticmethod
    def from_arguments(arguments: Mapping[str, Any]) -> TrainerOrder:
        return TrainerOrder(
            config=JobConfig.from_json(arguments["config"], "job configuration"),
            rank=arguments["rank"],
            epoch=arguments["epoch"],
            pool_socket=arguments["pool_socket"],
            store_port=arguments["store_port"],
        )


class AgentLink:
    """One-way reports to the agent."""

    def __init__(self, channel: Channel, epoch: int) -> None:
        self._channel = channel
        self._epoch = epoch

    def report(self, name: str, **fields: Any) -> None:
        self._channel.send(Report(epoch=self._epoch, name=name, fields=fields), timeout_s=_REPORT_TIMEOUT_S)


def main(arguments: dict[str, Any], fds: list[int]) -> None:
    """Entry point for the fork server: ``fds`` are the agent's channel and, for rank 0, the store's listening socket."""
    order = TrainerOrder.from_arguments(arguments)
    link = AgentLink(Channel(socket.socket(fileno=fds[0]), TRAINER_CODEC), order.epoch)
    try:
        Trainer(order, link, fds[1] if len(fds) > 1 else None).run()
    except LetoError as error:  # deterministic: forking again would only repeat it
        link.report("fatal", rank=order.rank, kind=type(error).__name__, reason=str(error))
        raise


class Trainer:
    """Everything of one rank, wired together."""

    def __init__(self, order: TrainerOrder, link: AgentLink, store_listen_fd: int | None) -> None:
        self._order = order
        self._link = link
        self._regions = Regions(order.config.protection.page_bytes)
        self._pool = Pool(order.pool_socket, rank=order.rank, epoch=order.epoch, timeout_s=order.config.timeouts.ready_s)
        self._decision = self._read_decision()
        self._cold = self._decision.action is Action.COLD
        self._context = self._load_plugins()
        self._join(store_listen_fd)
        self._session = self._build_session()
        self._runner, self._geometry = self._build_runner()

    def run(self) -> None:
        order = self._order
        self._link.report("ready", rank=order.rank, pid=os.getpid())
        iteration = resume(
            self._runner,
            decision=self._decision,
            geometry=self._geometry,
            context=self._context,
            agree=_all_gather_text,
            on_row=self._report_row,
        )
        self._audit(iteration - 1)
        self._link.report("training", rank=order.rank, iteration=iteration)
        for t in range(iteration, order.config.workload.iterations + 1):
            self._runner.run(t)
        self._context.failpoints.reach(Point.ENDED, Site(iteration=order.config.workload.iterations))
        dist.barrier()
        if iteration <= order.config.workload.iterations:
            self._audit(order.config.workload.iterations)
        self._link.report("finished", rank=order.rank)

    def _read_decision(self) -> Decision:
        """The decision that opened this epoch, from retained memory: durable before anybody acts on it (U21)."""
        record = self._pool.control.read_decision()
        if record is None or record[0] != self._order.epoch:
            raise ProtocolViolation(f"rank {self._order.rank} finds no decision for epoch {self._order.epoch}")
        return record[1]

    def _load_plugins(self) -> TrainerContext:
        order = self._order
        context = TrainerContext(
            rank=order.rank,
            epoch=order.epoch,
            world_size=order.config.workload.world_size,
            output_dir=order.config.output_dir,
            options=order.config.plugin_options,
            park_word_address=self._pool.control.park_word_address,
            heartbeat_address=self._pool.control.heartbeat_address,
            report=lambda event: self._link.report(event.name, **event.fields),
        )
        for path in order.config.plugins:
            plugins.load(path)(context)
        return context

    def _join(self, store_listen_fd: int | None) -> None:
        workload, timeouts = self._order.config.workload, self._order.config.timeouts
        store = dist.TCPStore(
            "127.0.0.1",
            self._order.store_port,
            workload.world_size,
            is_master=store_listen_fd is not None,
            timeout=timedelta(seconds=timeouts.collective_s),
            wait_for_workers=False,
            master_listen_fd=store_listen_fd,
        )
        join_process_groups(workload, store=store, rank=self._order.rank, timeout_s=timeouts.collective_s)

    def _build_session(self) -> TrainingSession:
        config = self._order.config

        def bind(ddp: Any) -> None:
            self._obtain(retained.buffer_allocations(ddp, config.protection.page_bytes))
            retained.bind_buffers(ddp, self._regions.bytes, initial=self._cold)

        return TrainingSession(config.workload, rank=self._order.rank, bind_buffers=bind)

    def _build_runner(self) -> tuple[IterationRunner, CodedGeometry]:
        order, session = self._order, self._session
        geometry = CodedGeometry(protection=order.config.protection, segments=retained.coded_segments(session))
        gradients = retained.gradient_geometry(session, order.config.protection)
        self._context.coded, self._context.gradients = geometry, gradients
        self._obtain(updater_allocations(geometry, gradients, RECORD_SLOT_BYTES))
        retained.bind_optimizer(session, self._regions.bytes, initial=self._cold)
        for listen in self._context.on_attached:
            listen({name: self._regions.address(name) for name in self._regions.names})
        kernels = host_kernels()
        adam, _ = select_adam(kernels)
        marks = Marks(kernels, self._pool.control, order.epoch)
        parts = UpdateParts(
            coded=geometry,
            retained=self._regions,
            kernels=kernels,
            adam=adam,
            hyper=_adam_hyper(session),
            marks=marks,
            failpoints=self._context.failpoints,
            gradient_address=retained.GradientAddresses(session).of,
        )
        updater: Updater = plugins.load(order.config.updater)(parts, gradients)
        runner = IterationRunner(
            session=session,
            updater=updater,
            marks=marks,
            records=RecordSlots(self._regions),
            context=self._context,
            layout_hash=geometry.layout_hash(),
            barrier=dist.barrier,
            on_result=self._report_result,
        )
        return runner, geometry

    def _obtain(self, allocations: Any) -> None:
        """A cold start creates, every later epoch attaches and never creates (U41)."""
        config = self._order.config
        identity = hashlib.sha256(repr((config.workload, config.protection)).encode()).hexdigest()[:16]
        self._pool.obtain(self._regions, allocations, identity, create=self._cold)

    def _audit(self, iteration: int) -> None:
        for listen in self._context.on_audit:
            listen(iteration, self._runner.updater.audit)

    def _report_row(self, row: Row, reason: str) -> None:
        self._link.report("resumed", rank=self._order.rank, row=row.value, reason=reason)

    def _report_result(self, result: IterationResult) -> None:
        self._link.report(
            "iteration",
            rank=self._order.rank,
            iteration=result.iteration,
            loss=result.loss,
            grad_norm=result.grad_norm,
            skipped=result.skipped,
        )


def _adam_hyper(session: TrainingSession) -> AdamHyper:
    """Betas and epsilon, which must be the same for every parameter group."""
    groups = [g for one in session.optimizer.chained_optimizers for g in one.optimizer.param_groups]
    found = {(*g["betas"], g["eps"]) for g in groups}
    if len(found) != 1:
        raise ConfigError(f"parameter groups have different betas or eps: {sorted(found)}")
    beta1, beta2, eps = found.pop()
    return AdamHyper(beta1=beta1, beta2=beta2, eps=eps)


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
