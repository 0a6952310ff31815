"""What a trainer can build before it may touch retained memory (level L3 of paper 6): groups, model, optimizer, kernels.

Everything lies over reserved addresses whose contents are scratch until ``take_over`` maps retained pages beneath them, so
nothing in Python is rebound at takeover, and an idle shadow cannot write what it has not mapped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.optim import AdamW, Muon, Optimizer

from leto.core.config import JobConfig
from leto.core.errors import ConfigError
from leto.core.geometry import CodedGeometry, GradientGeometry
from leto.core.layout import PageClass, updater_allocations
from leto.device.host_kernels import HostKernels
from leto.megatron import retained
from leto.megatron.training import TrainingSession, join_process_groups
from leto.memory.client import Pool
from leto.memory.regions import Regions
from leto.update.adam import host_kernels, select_adam
from leto.update.executor import AdamHyper, ChunkAdam
from leto.update.muon import MuonHyper, TorchMuon
from leto.update.record_slots import RECORD_SLOT_BYTES

_INITIAL = (PageClass.CODED, PageClass.DERIVED)
"""Classes whose initial values a cold start carries from scratch into retained memory; everything else starts as zeros."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """One rank's trainer, complete but for retained memory."""

    config: JobConfig
    rank: int
    regions: Regions
    session: TrainingSession
    coded: CodedGeometry
    gradients: GradientGeometry
    kernels: HostKernels
    adam: ChunkAdam

    def warm_up(self) -> None:
        """One iteration on scratch memory, so that the first one after a takeover pays for nothing lazy; then the scratch is
        given back. What it moved (generators, counters, buffers) is restored with the header. Collective."""
        self.session.compute(1)
        self.session.prepare_update(1)
        self.session.cast_derived()
        self.session.gather_derived()
        self.regions.drop()

    def create(self, pool: Pool) -> None:
        """A cold start: retained memory is made and receives the initial values, of one allocation after the other, so that the
        state is not held a third time."""
        for allocation in self.regions.allocations:
            values = self.regions.bytes(allocation.name).copy() if allocation.page_class in _INITIAL else None
            pool.obtain(self.regions, [allocation], self._identity(), create=True)
            if values is not None:
                self.regions.bytes(allocation.name)[:] = values

    def take_over(self, pool: Pool) -> None:
        """Retained values win. Never creates: an allocation that is not there is an error (U41)."""
        pool.attach_all(self.regions, self._identity())
        for allocation in self.regions.allocations:
            if allocation.page_class is PageClass.DERIVED:
                self.regions.bytes(allocation.name)[:] = 0  # padding derives from nothing (U31); the rest is gathered anew

    def _identity(self) -> str:
        """Retained memory belongs to one workload under one protection."""
        return hashlib.sha256(repr((self.config.workload, self.config.protection)).encode()).hexdigest()[:16]


def build(config: JobConfig, rank: int, *, store_port: int, store_listen_fd: int | None) -> Built:
    """Join the generation's groups and build everything over reserved addresses. Collective."""
    _join(config, rank, store_port, store_listen_fd)
    regions = Regions(config.protection.page_bytes)

    def bind(ddp: Any) -> None:
        regions.reserve(retained.buffer_allocations(ddp, config.protection.page_bytes))
        retained.bind_buffers(ddp, regions.bytes)

    session = TrainingSession(config.workload, rank=rank, bind_buffers=bind)
    coded = retained.coded_geometry(session, config.protection)
    gradients = retained.gradient_geometry(session, config.protection)
    regions.reserve(updater_allocations(coded, gradients, RECORD_SLOT_BYTES))
    retained.bind_optimizer(session, regions.bytes)
    kernels = host_kernels()
    adam, _ = select_adam(kernels)
    return Built(
        config=config,
        rank=rank,
        regions=regions,
        session=session,
        coded=coded,
        gradients=gradients,
        kernels=kernels,
        adam=adam,
    )


def _join(config: JobConfig, rank: int, store_port: int, store_listen_fd: int | None) -> None:
    workload, timeouts = config.workload, config.timeouts
    store = dist.TCPStore(
        "127.0.0.1",
        store_port,
        workload.world_size,
        is_master=store_listen_fd is not None,
        timeout=timedelta(seconds=timeouts.collective_s),
        wait_for_workers=False,
        master_listen_fd=store_listen_fd,
    )
    join_process_groups(workload, store=store, rank=rank, timeout_s=timeouts.collective_s)


def adam_hyper(session: TrainingSession) -> AdamHyper:
    """Betas and epsilon, which must be the same for every parameter group."""
    beta1, beta2, eps = _uniform((*g["betas"], g["eps"]) for g in _groups(session, AdamW))
    return AdamHyper(beta1=beta1, beta2=beta2, eps=eps)


def torch_muon(session: TrainingSession) -> TorchMuon | None:
    """Muon as the session's own is set, None where it has none."""
    groups = _groups(session, Muon)
    if not groups:
        return None
    names = [f.name for f in fields(MuonHyper)]
    values = _uniform(tuple(g[name] for name in names) for g in groups)
    assert all(g["nesterov"] for g in groups)
    return TorchMuon(MuonHyper(**dict(zip(names, values, strict=True))))


def _groups(session: TrainingSession, kind: type[Optimizer]) -> list[dict[str, Any]]:
    inner = [one.optimizer for one in session.optimizer.chained_optimizers]
    return [group for optimizer in inner if isinstance(optimizer, kind) for group in optimizer.param_groups]


def _uniform(settings: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """What all parameter groups are set to."""
    found = set(settings)
    if len(found) != 1:
        raise ConfigError(f"parameter groups have different settings: {sorted(map(str, found))}")
    return found.pop()
