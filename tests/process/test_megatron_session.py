"""A training session of two ranks: deterministic, restorable, and equal to Megatron's own step when split for Leto.

Each test sees a mixture of experts, a dense model, the dense one in fp32, the first one in fp16, whose loss scaler skips steps
1, 2 and 5, and two with Muon, whose matrices are not sharded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from leto.core.config import Workload
from leto.megatron.models import MODELS
from leto.megatron.preload import TRAINER_ENVIRONMENT

pytestmark = pytest.mark.process

RANKS = (0, 1)
WORKLOADS = {
    "olmoe": Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=6),
    "qwen": Workload(model="qwen-tiny", data_parallel=2, iterations=6),
    "qwen-fp32": Workload(model="qwen-tiny", data_parallel=2, iterations=6, precision="fp32"),
    "olmoe-fp16": Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=24, precision="fp16"),
    "olmoe-muon": Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=6, optimizer="muon"),
    "qwen-muon-fp32": Workload(model="qwen-tiny", data_parallel=2, iterations=6, precision="fp32", optimizer="muon"),
}
DEADLINE_S = 180.0
SCRIPT = Path(__file__).with_name("megatron_ranks.py")


@pytest.fixture(scope="module")
def seen_by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw with each workload in each experiment of megatron_ranks.py."""
    directory = tmp_path_factory.mktemp("ranks")
    path = os.pathsep.join([str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **TRAINER_ENVIRONMENT, "PYTHONPATH": path}
    processes = []
    try:
        for rank in RANKS:
            with (directory / f"rank{rank}.log").open("wb") as log:
                command = [sys.executable, "-W", "default", str(SCRIPT), str(rank), str(directory)]
                command.append(json.dumps({name: asdict(workload) for name, workload in WORKLOADS.items()}))
                processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        codes = [process.wait(DEADLINE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    logs = [(directory / f"rank{rank}.log").read_text() for rank in RANKS]
    assert codes == [0, 0], "\n".join(logs)
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in RANKS]


@pytest.fixture(params=WORKLOADS)
def workload_name(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture
def workload(workload_name: str) -> Workload:
    return WORKLOADS[workload_name]


@pytest.fixture
def seen(seen_by_rank: list[dict[str, Any]], workload_name: str) -> list[dict[str, Any]]:
    return [seen[workload_name] for seen in seen_by_rank]


@pytest.fixture(params=RANKS)
def rank(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


def differing(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> set[str]:
    assert len(a) == len(b)
    return {name for x, y in zip(a, b, strict=True) for name in x.keys() | y.keys() if x.get(name) != y.get(name)}


def test_two_sessions_are_equal_in_every_bit(seen: list[dict[str, Any]], rank: int) -> None:
    first, second = seen[rank]["deterministic"]["sessions"]
    assert first == second


def test_ranks_start_from_the_same_dense_parameters_and_their_own_experts(seen: list[dict[str, Any]]) -> None:
    a, b = (seen[rank]["deterministic"]["sessions"][0]["initial"] for rank in RANKS)
    parameters = {name for name in a if name.startswith("param/")}
    differs = {name for name in parameters if a[name] != b[name]}
    assert differs == {name for name in parameters if ".experts." in name}


def test_training_changes_the_whole_state(seen: list[dict[str, Any]], rank: int, workload: Workload) -> None:
    spec = MODELS[workload.model]
    first, _, third = seen[rank]["deterministic"]["sessions"][0]["run"]
    changed = differing([first], [third])
    still = {name for name in first if name not in changed}
    # A norm's weight is 1 for a while where it is rounded. Only fp16 has a loss scaler, which skips the first step.
    allowed = {name for name in still if "norm" in name and workload.precision != "fp32"}
    allowed |= set() if workload.precision == "fp16" else {"skipped", "live/loss_scales"}
    allowed |= set() if spec.dropout else {"live/generators"}
    allowed |= set() if spec.moe else {"live/mutable"}
    assert still <= allowed
    state = ("master/", "exp_avg/", "exp_avg_sq/", "step/", "momentum_buffer/")
    assert {name for name in first if name.startswith(state)} <= changed


def test_ranks_agree_on_loss_norm_and_rates(seen: list[dict[str, Any]]) -> None:
    a, b = (seen[rank]["deterministic"]["sessions"][0]["run"] for rank in RANKS)
    for name in ("loss", "grad_norm", "live/learning_rates", "live/scheduler_steps", "live/applied_steps"):
        assert [record[name] for record in a] == [record[name] for record in b]


def test_ranks_read_the_samples_of_an_iteration_together(seen: list[dict[str, Any]], workload: Workload) -> None:
    a, b = (seen[rank]["deterministic"]["sessions"][0]["run"] for rank in RANKS)
    batch = MODELS[workload.model].global_batch
    for first, second in zip(a, b, strict=True):
        last = batch * first["iteration"]
        assert sorted(first["samples"] + second["samples"]) == list(range(last - batch, last))
        assert len(first["samples"]) == len(second["samples"])


def test_a_new_session_continues_from_live_state_and_coded_state(seen: list[dict[str, Any]], rank: int) -> None:
    round_trip = seen[rank]["round_trip"]
    assert round_trip["again"] == round_trip["expected"]


def test_every_part_of_the_live_state_matters(seen: list[dict[str, Any]], rank: int, workload: Workload) -> None:
    """Where it has moved: without dropout nothing draws, only a router has buffers, only fp16 a loss scaler, which skips both
    steps before."""
    spec, skips = MODELS[workload.model], workload.precision == "fp16"
    moved = {
        "generators": spec.dropout > 0,
        "buffers": spec.moe is not None,
        "cursor": True,
        "step": not skips,
        "scales": skips,
    }
    round_trip = seen[rank]["round_trip"]
    assert set(round_trip["forgotten"]) == {part for part, has_moved in moved.items() if has_moved}
    for part, run in round_trip["forgotten"].items():
        assert any(name.startswith("master/") for name in differing(run, round_trip["expected"])), part


def test_chunk_by_chunk_equals_megatrons_step(seen: list[dict[str, Any]], rank: int) -> None:
    """Through a takeover after iteration 3: segments, gradient addresses, rates and clip, casting and gathering are right."""
    chunked = seen[rank]["chunked"]
    for expected, actual in zip(chunked["expected"], chunked["chunked"], strict=True):
        assert actual == expected, f"iteration {expected['iteration']}: {sorted(differing([actual], [expected]))}"


def test_the_update_reads_gradients_only(seen: list[dict[str, Any]], rank: int) -> None:
    assert seen[rank]["chunked"]["gradients_unchanged"] == [True] * 5


def test_only_fp16_skips_steps(seen: list[dict[str, Any]], rank: int, workload: Workload) -> None:
    skipped = {1, 2, 5} if workload.precision == "fp16" else set()
    assert [t for t, skips in enumerate(seen[rank]["chunked"]["skipped"], start=1) if skips] == sorted(skipped)


def test_every_applied_step_clips_and_changes_the_rates(seen: list[dict[str, Any]], rank: int) -> None:
    chunked = seen[rank]["chunked"]
    applied = [not skipped for skipped in chunked["skipped"]]
    assert [0 < float.fromhex(clip) < 1 if clip else False for clip in chunked["clips"]] == applied
    positions = len({sum(applied[:n]) for n in range(5)})  # of the scheduler
    groups = [[group for optimizer in rates for group in optimizer] for rates in chunked["rates"]]
    for group in range(len(groups[0])):
        assert len({rates[group][0] for rates in groups}) == positions  # learning rate
    decays = [{rates[group][1] for rates in groups} for group in range(len(groups[0]))]
    assert {len(decay) for decay in decays} == {1, positions}  # norms never decay, weights do


def test_geometry_exercises_groups_and_partial_chunks(seen: list[dict[str, Any]], rank: int, workload: Workload) -> None:
    geometry = seen[rank]["chunked"]["geometry"]
    chunk_elements, chunks_per_group = 65_536, 5
    assert geometry["groups"] >= 2
    assert geometry["chunks"] % chunks_per_group != 0
    assert geometry["elements"] % chunk_elements != 0
    # With the distributed optimizer a rank has its half of the dense parameters.
    most, least = (1_700_000, 550_000) if workload.optimizer == "muon" else (800_000, 450_000)
    assert least <= geometry["elements"] <= most
    assert (geometry["matrix_elements"] > geometry["elements"] / 2) is (workload.optimizer == "muon")
    assert geometry["param_groups_of_a_chunk"] >= 2
    assert geometry["coded_padding_is_zero"]


def test_coded_and_gathered_bytes_are_apart(seen: list[dict[str, Any]], rank: int, workload: Workload) -> None:
    """In plain Megatron an fp32 parameter is its own master; in retained memory it never is (U31)."""
    aliased = seen[rank]["deterministic"]["masters_are_parameters"]
    assert aliased == [workload.precision == "fp32"] * len(aliased)
    geometry = seen[rank]["chunked"]["geometry"]
    assert geometry["in_coded_memory"]
    assert geometry["parameters_in_derived_memory"]


def test_gradient_pages_are_those_of_owned_shards(seen: list[dict[str, Any]], rank: int, workload: Workload) -> None:
    geometry = seen[rank]["chunked"]["geometry"]
    assert geometry["gradient_pages"] == geometry["gradient_pages_expected"]
    dense = [page for name, page in geometry["gradient_pages"] if name == "gradients/dense0"]
    shared = len(dense) < geometry["allocations"]["gradients/dense0"] // 65_536  # the other rank owns the other half
    assert shared is (workload.optimizer != "muon")


def test_layout_is_the_same_for_whoever_attaches(seen: list[dict[str, Any]], rank: int) -> None:
    first, second = seen[rank]["chunked"]["layout_hashes"]
    assert first == second
