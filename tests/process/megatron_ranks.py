"""One of two ranks that run what test_megatron_session asserts on: python megatron_ranks.py RANK DIRECTORY WORKLOADS.

WORKLOADS is a JSON object of leto.core.config.Workload by name.

Both ranks run every experiment with every workload in the same order in one process, because imports and groups take longer
than all of them. What an experiment saw goes to DIRECTORY/rank<N>.json.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leto.megatron.preload import preload

preload()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.optim.adamw import adamw  # noqa: E402

from leto.core.config import Workload  # noqa: E402
from leto.core.geometry import CodedGeometry, Protection, Rule, Segment  # noqa: E402
from leto.core.layout import updater_allocations  # noqa: E402
from leto.core.records import LiveState, Post, UpdateValues, decode_post, encode_record  # noqa: E402
from leto.megatron import mcore, retained  # noqa: E402
from leto.megatron.shards import Shard  # noqa: E402
from leto.megatron.training import TrainingSession, join_process_groups  # noqa: E402
from leto.runtime.built import torch_muon  # noqa: E402
from leto.update.pieces import Matrices  # noqa: E402

PROTECTION = Protection(page_bytes=64 << 10, data_pages=60, tier1_pages=16, tier2_pages=1, chunk_pages=12)
RECORD_SLOT_BYTES = 256 << 10
GARBAGE = 0xA5


def digests(session: TrainingSession) -> dict[str, str]:
    """Every bit of the training state, by name."""
    state = {entry.name: hashlib.sha256(entry.data).hexdigest()[:16] for entry in session.entries()}
    for name, value in asdict(session.live_state()).items():
        state[f"live/{name}"] = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
    return state


def plain(session: TrainingSession, iterations: range) -> list[dict[str, Any]]:
    seen = []
    for iteration in iterations:
        session.compute(iteration)
        seen.append(asdict(session.plain_step(iteration)) | digests(session))
    return seen


# live_state and restore_live in a new process's session, with and without the part that matters.


def coded_of(shard: Shard) -> dict[str, torch.Tensor]:
    return {"master": shard.master.detach()} | {name: kept for name, kept in shard.moments.items() if name != "step"}


def copy_coded(session: TrainingSession) -> list[dict[str, torch.Tensor]]:
    return [{name: tensor.clone() for name, tensor in coded_of(shard).items()} for shard in session.shards]


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """One session's five iterations, which every experiment compares with."""

    initial: dict[str, str]  # digests before the first
    seen: list[dict[str, Any]]  # after each
    coded: list[dict[str, torch.Tensor]]  # after iteration 2, as what follows
    live: LiveState


def train_undisturbed(workload: Workload, rank: int) -> Undisturbed:
    session = TrainingSession(workload, rank=rank)
    initial, seen = digests(session), plain(session, range(1, 3))
    coded, live = copy_coded(session), session.live_state()
    return Undisturbed(initial=initial, seen=seen + plain(session, range(3, 6)), coded=coded, live=live)


def restored(workload: Workload, rank: int, coded: list[dict[str, torch.Tensor]], state: LiveState) -> TrainingSession:
    session = TrainingSession(workload, rank=rank)
    for shard, copies in zip(session.shards, coded, strict=True):
        for name, tensor in coded_of(shard).items():
            tensor.copy_(copies[name])
    session.cast_derived()
    session.gather_derived()
    session.restore_live(state)
    return session


def round_trip(workload: Workload, rank: int, undisturbed: Undisturbed) -> dict[str, Any]:
    """What goes on from iteration 2 in new sessions, with all of the live state and with each part of it forgotten."""
    coded, state = undisturbed.coded, undisturbed.live
    fresh = TrainingSession(workload, rank=rank).live_state()
    forgotten = {
        "generators": {"generators": fresh.generators},
        "buffers": {"mutable": fresh.mutable},
        "cursor": {"data_cursor": 0},
        "step": {"applied_steps": 0},
        "scales": {"loss_scales": fresh.loss_scales},
    }
    moved = {part: changes for part, changes in forgotten.items() if any(getattr(state, k) != v for k, v in changes.items())}

    def go_on(**changes: Any) -> list[dict[str, Any]]:
        return plain(restored(workload, rank, coded, LiveState(**{**vars(state), **changes})), range(3, 5))

    return {
        "expected": undisturbed.seen[2:4],
        "again": go_on(),
        "forgotten": {part: go_on(**changes) for part, changes in moved.items()},
    }


# Leto's split of the step, with torch's AdamW and Muon on slices of the coded arrays in the place of kernels and transactions.


class Memory:
    """Allocations by name, as a pool would hand them out: zeroed, whole pages, kept across sessions."""

    def __init__(self) -> None:
        self.blocks: dict[str, npt.NDArray[np.uint8]] = {}

    def allocate(self, name: str, byte_count: int) -> None:
        assert byte_count % PROTECTION.page_bytes == 0
        self.blocks.setdefault(name, np.zeros(byte_count, np.uint8))

    def place(self, name: str) -> npt.NDArray[np.uint8]:
        return self.blocks[name]


def attach(workload: Workload, rank: int, memory: Memory) -> tuple[TrainingSession, CodedGeometry]:
    def bind(ddp: Any) -> None:
        for allocation in retained.buffer_allocations(ddp, PROTECTION.page_bytes):
            memory.allocate(allocation.name, allocation.byte_count)
        retained.bind_buffers(ddp, memory.place)

    session = TrainingSession(workload, rank=rank, bind_buffers=bind)
    geometry = retained.coded_geometry(session, PROTECTION)
    gradients = retained.gradient_geometry(session, PROTECTION)
    for allocation in updater_allocations(geometry, gradients, RECORD_SLOT_BYTES):
        memory.allocate(allocation.name, allocation.byte_count)
    retained.bind_optimizer(session, memory.place)
    return session, geometry


def floats_at(address: int, count: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


def update_in_chunks(session: TrainingSession, geometry: CodedGeometry, memory: Memory, values: UpdateValues) -> None:
    arrays = [torch.from_numpy(memory.place(name)).view(torch.float32) for name in ("master", "exp_avg", "exp_avg_sq")]
    gradients = retained.GradientAddresses(session)
    muon = torch_muon(session)
    matrices = Matrices(geometry, lambda name: int(memory.place(name).ctypes.data), gradients.of)
    for chunk in range(geometry.chunk_count):
        rule = geometry.region_of(chunk).rule
        if rule is not Rule.ADAMW:
            assert muon is not None
            (muon.momentum if rule is Rule.MUON_MOMENTUM else muon.apply)(matrices.pieces(chunk, values))
            continue
        for segment in geometry.chunk_segments(chunk):
            gradient = floats_at(gradients.of(segment), segment.count)
            if values.clip:
                gradient = gradient * float.fromhex(values.clip)
            update_slice(session, segment, arrays, gradient, values)


def update_slice(
    session: TrainingSession, segment: Segment, arrays: list[torch.Tensor], gradient: torch.Tensor, values: UpdateValues
) -> None:
    master, exp_avg, exp_avg_sq = (array[segment.first : segment.stop] for array in arrays)
    lr, weight_decay = values.learning_rates[segment.optimizer][segment.param_group]
    beta1, beta2 = session.spec.adam_betas
    adamw(
        [master],
        [gradient],
        [exp_avg],
        [exp_avg_sq],
        [],
        [torch.tensor(float(values.applied_step - 1))],
        foreach=False,
        fused=False,
        amsgrad=False,
        maximize=False,
        beta1=beta1,
        beta2=beta2,
        lr=lr,
        weight_decay=weight_decay,
        eps=1e-8,
    )


def in_chunks(
    session: TrainingSession, geometry: CodedGeometry, memory: Memory, iteration: int
) -> tuple[dict[str, Any], Post, bool]:
    """One iteration in Leto's order (U49) without its protocol: what it saw, POST, whether gradients stayed as they were."""
    session.compute(iteration)
    values, result = session.prepare_update(iteration)
    post = Post(
        iteration=iteration,
        layout_hash=geometry.layout_hash(),
        next_live=session.live_state(),
        values=values,
        result=result,
    )
    before = gradient_bytes(memory)
    if not values.skipped:
        update_in_chunks(session, geometry, memory, values)
    unchanged = before == gradient_bytes(memory)
    session.set_applied_steps(values.applied_step)
    session.cast_derived()
    session.gather_derived()
    assert session.live_state() == post.next_live, "live state moved after POST"
    return asdict(result) | digests(session), post, unchanged


def gradient_bytes(memory: Memory) -> str:
    blocks = [block for name, block in sorted(memory.blocks.items()) if name.startswith("gradients/")]
    return hashlib.sha256(b"".join(block.tobytes() for block in blocks)).hexdigest()


def chunked(workload: Workload, rank: int, undisturbed: Undisturbed) -> dict[str, Any]:
    memory = Memory()
    session, geometry = attach(workload, rank, memory)
    runs = [in_chunks(session, geometry, memory, iteration) for iteration in range(1, 4)]
    post = decode_post(encode_record(runs[-1][1], RECORD_SLOT_BYTES), 3)
    # A new session is built over the same addresses, then what was retained is there again, as after a takeover; what derives
    # from the masters is lost.
    held = {name: block.copy() for name, block in memory.blocks.items() if not name.startswith("derived/")}
    del session
    taken_over, same = attach(workload, rank, memory)
    for name, block in memory.blocks.items():
        block[:] = held.get(name, GARBAGE)
    taken_over.cast_derived()
    taken_over.gather_derived()
    taken_over.restore_live(post.next_live)
    runs += [in_chunks(taken_over, same, memory, iteration) for iteration in range(4, 6)]
    return {
        "expected": undisturbed.seen,
        "chunked": [seen for seen, _, _ in runs],
        "gradients_unchanged": [unchanged for _, _, unchanged in runs],
        "skipped": [post.values.skipped for _, post, _ in runs],
        "clips": [post.values.clip for _, post, _ in runs],
        "rates": [post.values.learning_rates for _, post, _ in runs],
        "layout_hashes": [geometry.layout_hash(), same.layout_hash()],
        "geometry": describe(taken_over, same, memory),
    }


def describe(session: TrainingSession, geometry: CodedGeometry, memory: Memory) -> dict[str, Any]:
    """Sizes, and whether gradient pages are exactly those that hold owned gradients."""
    addresses = retained.GradientAddresses(session)
    covered = set()
    for name, block in memory.blocks.items():
        first = block.ctypes.data
        for segment in (*geometry.segments, *geometry.matrices):
            offset = addresses.of(segment) - first
            if name.startswith("gradients/") and 0 <= offset < len(block):
                last = offset + 4 * segment.count - 1
                covered |= {(name, page) for page in range(offset // PROTECTION.page_bytes, last // PROTECTION.page_bytes + 1)}
    pages = {(p.allocation, p.page_index) for p in retained.gradient_geometry(session, PROTECTION).pages}
    arrays = {name: region.element_count for region in geometry.regions for name in region.arrays}
    tails = [memory.place(name).view(np.float32)[count:] for name, count in arrays.items()]
    coded = [tensor for shard in session.shards for tensor in coded_of(shard).values()]
    coded_in_place = [any(inside(tensor, memory.place(name)) for name in arrays) for tensor in coded]
    derived = [block for name, block in memory.blocks.items() if name.startswith("derived/")]
    derived_in_place = [any(inside(shard.derived, block) for block in derived) for shard in session.shards]
    spanning = [len({(s.optimizer, s.param_group) for s in geometry.chunk_segments(c)}) for c in range(geometry.chunk_count)]
    return {
        "elements": sum(segment.count for segment in (*geometry.segments, *geometry.matrices)),
        "matrix_elements": sum(matrix.count for matrix in geometry.matrices),
        "chunks": geometry.chunk_count,
        "groups": geometry.group_count,
        "gradient_pages": sorted(pages),
        "gradient_pages_expected": sorted(covered),
        "allocations": {name: len(block) for name, block in memory.blocks.items()},
        "in_coded_memory": all(coded_in_place),
        "parameters_in_derived_memory": all(derived_in_place),
        "coded_padding_is_zero": not any(tail.any() for tail in tails),
        "param_groups_of_a_chunk": max(spanning),
        "parameters": sum(parameter.numel() for parameter in session.model.parameters()),
    }


def inside(tensor: torch.Tensor, block: npt.NDArray[np.uint8]) -> bool:
    offset = tensor.data_ptr() - block.ctypes.data
    return 0 <= offset <= len(block) - tensor.nbytes


def deterministic(workload: Workload, rank: int, undisturbed: Undisturbed) -> dict[str, Any]:
    again = TrainingSession(workload, rank=rank)
    sessions = [
        {"initial": undisturbed.initial, "run": undisturbed.seen[:3]},
        {"initial": digests(again), "run": plain(again, range(1, 4))},
    ]
    aliased = [shard.master.data_ptr() == shard.derived.data_ptr() for shard in again.shards]
    return {"sessions": sessions, "masters_are_parameters": aliased}


EXPERIMENTS: tuple[Callable[[Workload, int, Undisturbed], dict[str, Any]], ...] = (deterministic, round_trip, chunked)


def run(rank: int, store: dist.Store, workload: Workload) -> dict[str, Any]:
    join_process_groups(workload, store=store, rank=rank, timeout_s=60)
    undisturbed = train_undisturbed(workload, rank)
    seen = {experiment.__name__: experiment(workload, rank, undisturbed) for experiment in EXPERIMENTS}
    dist.barrier()
    mcore.parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    return seen


def main(rank: int, directory: Path, workloads: dict[str, Workload]) -> None:
    seen = {}
    for name, workload in workloads.items():
        store = dist.FileStore(str(directory / f"{name}.store"), workload.world_size)
        seen[name] = run(rank, store, workload)
    (directory / f"rank{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    wanted = {name: Workload(**fields) for name, fields in json.loads(sys.argv[3]).items()}
    main(int(sys.argv[1]), Path(sys.argv[2]), wanted)
