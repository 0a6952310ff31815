import dataclasses
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leto.core.records import IterationResult
from verify.bits import bits_of, ulp_distance
from verify.compare import Kind, compare_runs
from verify.ledger import Ledger, Record

NAMES = ("param/w", "master/w", "exp_avg/w", "exp_avg_sq/w", "step/w")


def record(t: int, loss: str = "0x1.0000000000000p+0", norm: str = "0x1p+1", **changed: str) -> Record:
    state = {name: f"{name}@{t}" for name in NAMES}
    live = {"data_cursor": str(t)}
    for name, value in changed.items():
        (live if name in live else state)[name.replace("__", "/")] = value
    result = IterationResult(iteration=t, loss=loss, grad_norm=norm, skipped=False, samples=(2 * t, 2 * t + 1))
    return Record(result=result, state=state, live=live)


def run(replace: dict[tuple[int, int], Record | None] | None = None, ranks: int = 2, iterations: int = 3) -> dict[int, Ledger]:
    changes = replace or {}
    ledgers = {}
    for rank in range(ranks):
        records = {t: changes.get((rank, t), record(t)) for t in range(1, iterations + 1)}
        present = {t: r for t, r in records.items() if r is not None}
        ledgers[rank] = Ledger(rank=rank, world_size=ranks, names=NAMES, records=present)
    return ledgers


def test_equal_runs_are_equal() -> None:
    comparison = compare_runs(run(), run(), 3)
    assert comparison.equal
    assert comparison.describe() == "loss exact at 3 of 3, state exact at 3 of 3"


@pytest.mark.parametrize("family", ["param", "master", "exp_avg", "exp_avg_sq"])
def test_runs_that_both_record_nothing_of_a_kind_are_not_equal(family: str) -> None:
    blind = {
        rank: dataclasses.replace(
            ledger,
            records={
                t: dataclasses.replace(r, state={n: d for n, d in r.state.items() if not n.startswith(f"{family}/")})
                for t, r in ledger.records.items()
            },
        )
        for rank, ledger in run().items()
    }
    first = compare_runs(blind, blind, 3).first
    assert first is not None
    assert (first.kind, first.name, first.actual) == (Kind.NAMES, f"{family}/*", "not recorded at all")


def test_the_first_divergence_is_the_earliest_iteration_then_the_lowest_rank() -> None:
    actual = run({(0, 3): record(3, master__w="x"), (1, 2): record(2, param__w="y")})
    first = compare_runs(run(), actual, 3).first
    assert first is not None
    assert (first.iteration, first.rank, first.name) == (2, 1, "param/w")


def test_causes_come_before_what_is_derived() -> None:
    changed = record(2, loss="0x1.0000000000001p+0", param__w="p", master__w="m", step__w="s", data_cursor="d")
    kinds = []
    for _ in range(5):
        first = compare_runs(run(), run({(0, 2): changed}), 3).first
        assert first is not None
        kinds.append((first.kind, first.name))
        result, state, live = changed.result, dict(changed.state), dict(changed.live)
        if first.name == "loss":
            result = record(2).result
        elif first.name == "live/data_cursor":
            live = dict(record(2).live)
        else:
            state[first.name] = record(2).state[first.name]
        changed = Record(result=result, state=state, live=live)
    assert kinds == [
        (Kind.LOSS, "loss"),
        (Kind.CODED, "master/w"),
        (Kind.STATE, "step/w"),
        (Kind.LIVE, "live/data_cursor"),
        (Kind.DERIVED, "param/w"),
    ]


def test_one_ulp_of_the_loss_is_named() -> None:
    comparison = compare_runs(run(), run({(1, 3): record(3, loss="0x1.0000000000001p+0")}), 3)
    assert comparison.first is not None
    assert comparison.first.describe() == (
        "iteration 3, rank 1, loss: 0x1.0000000000001p+0, expected 0x1.0000000000000p+0 (1 ULP)"
    )
    assert (comparison.loss_exact, comparison.state_exact) == (2, 3)


def test_other_samples_are_named_before_what_they_cause() -> None:
    changed = record(2, loss="0x1.0000000000001p+0", master__w="m")
    one_batch_off = dataclasses.replace(changed, result=dataclasses.replace(changed.result, samples=(6, 7)))
    comparison = compare_runs(run(), run({(1, 2): one_batch_off}), 3)
    assert comparison.first is not None
    assert comparison.first.kind is Kind.SAMPLES
    assert comparison.first.describe() == "iteration 2, rank 1, samples: 6,7, expected 4,5"


def test_other_samples_diverge_even_where_no_bit_of_the_state_shows_it() -> None:
    quiet = dataclasses.replace(record(3), result=dataclasses.replace(record(3).result, samples=()))
    comparison = compare_runs(run(), run({(0, 3): quiet}), 3)
    assert comparison.first is not None
    assert (comparison.first.kind, comparison.first.actual) == (Kind.SAMPLES, "none")
    assert (comparison.loss_exact, comparison.state_exact) == (3, 2)


def test_state_counts_apart_from_loss() -> None:
    comparison = compare_runs(run(), run({(1, 1): record(1, exp_avg__w="x")}), 3)
    assert (comparison.loss_exact, comparison.state_exact) == (3, 2)


@pytest.mark.parametrize("gap", [{(0, 2): None}, {(1, 3): None}])
def test_a_missing_iteration_is_a_divergence(gap: dict[tuple[int, int], Record | None]) -> None:
    comparison = compare_runs(run(), run(gap), 3)
    (rank, iteration) = next(iter(gap))
    assert comparison.first is not None
    assert (comparison.first.kind, comparison.first.iteration, comparison.first.rank) == (Kind.MISSING, iteration, rank)
    assert (comparison.loss_exact, comparison.state_exact) == (2, 2)


def test_missing_on_both_sides_is_a_divergence_too() -> None:
    assert not compare_runs(run({(0, 2): None}), run({(0, 2): None}), 3).equal
    assert not compare_runs({}, {}, 3).equal


def test_an_iteration_beyond_the_end_is_a_divergence() -> None:
    first = compare_runs(run(), run(iterations=4), 3).first
    assert first is not None
    assert (first.kind, first.iteration) == (Kind.MISSING, 4)


def test_a_missing_rank_is_a_divergence() -> None:
    first = compare_runs(run(), run(ranks=1), 3).first
    assert first is not None
    assert (first.kind, first.iteration, first.rank) == (Kind.MISSING, 1, 1)


def test_other_names_are_a_divergence() -> None:
    odd = record(1)
    renamed = dataclasses.replace(odd, state={("v" if k == "step/w" else k): v for k, v in odd.state.items()})
    first = compare_runs(run(), run({(0, 1): renamed}), 3).first
    assert first is not None
    assert (first.kind, first.name, first.actual) == (Kind.NAMES, "step/w", "absent")


def test_the_norm_of_a_skipped_step_is_compared() -> None:
    skipped = record(2, norm="")
    assert compare_runs(run({(0, 2): skipped}), run({(0, 2): skipped}), 3).equal
    first = compare_runs(run(), run({(0, 2): skipped}), 3).first
    assert first is not None
    assert first.name == "grad_norm"


def test_negative_zero_and_nan_are_told_apart() -> None:
    assert not compare_runs(run({(0, 1): record(1, loss="0x0.0p+0")}), run({(0, 1): record(1, loss="-0x0.0p+0")}), 3).equal
    assert compare_runs(run({(0, 1): record(1, loss="nan")}), run({(0, 1): record(1, loss="nan")}), 3).equal
    assert not compare_runs(run(), run({(0, 1): record(1, loss="nan")}), 3).equal


def test_ulp_distance_by_hand() -> None:
    assert ulp_distance(1.0, 1.0) == 0
    assert ulp_distance(0.0, -0.0) == 1
    assert ulp_distance(5e-324, 0.0) == 1
    assert ulp_distance(5e-324, -5e-324) == 3
    assert ulp_distance(1.0, math.nextafter(1.0, 2.0)) == 1
    assert ulp_distance(1.7976931348623157e308, math.inf) == 1
    assert ulp_distance(math.nan, 1.0) is None
    assert ulp_distance(math.nan, math.nan) == 0
    other_nan = struct.unpack("<d", struct.pack("<Q", bits_of(math.nan) | 1))[0]
    assert ulp_distance(math.nan, other_nan) is None


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_ulp_distance_is_a_distance(a: float, b: float) -> None:
    forth = ulp_distance(a, b)
    assert forth == ulp_distance(b, a)
    assert (forth == 0) == (bits_of(a) == bits_of(b))


def test_a_record_that_was_replaced_is_a_divergence_though_the_last_one_is_right() -> None:
    first_said = dataclasses.replace(record(2), state={**record(2).state, "step/w": "wrong"})
    replaced = dataclasses.replace(record(2), replaced=(first_said,))
    comparison = compare_runs(run(), run({(1, 2): replaced}), 3)
    assert comparison.first is not None
    assert (comparison.first.kind, comparison.first.iteration, comparison.first.rank) == (Kind.REPLACED, 2, 1)
    assert comparison.first.describe().startswith("iteration 2, rank 1, step/w before it was replaced: wrong, expected ")
    assert comparison.state_exact == 2
    of_reference = compare_runs(run({(1, 2): replaced}), run(), 3).first
    assert of_reference is not None
    assert of_reference.name == "step/w before it was replaced in the expected run"


def test_a_rank_of_the_world_that_left_nothing_in_either_run_is_missing() -> None:
    first = compare_runs({0: run()[0]}, {0: run()[0]}, 3).first
    assert first is not None
    assert (first.kind, first.rank) == (Kind.MISSING, 1)
