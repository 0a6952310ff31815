"""Planted bugs in the judge: comparisons and checkers that look away."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from chaos import verdict
from chaos.planted.planting import Patch, planted
from chaos.planted.recorded import ITERATIONS
from chaos.verdict import Verdict
from verify import checkers, compare, losses
from verify.checkers import Judgement
from verify.compare import Divergence, Kind


def _forgiving(patch: Patch, forgiven: Callable[[Divergence], bool]) -> None:
    """Comparing leaves out what is forgiven."""

    def without(compare_records: Any) -> Any:
        def fewer(*arguments: Any) -> Iterator[Divergence]:
            return (d for d in compare_records(*arguments) if not forgiven(d))

        return fewer

    patch.wrap(compare, "compare_records", without)


def _losses(d: Divergence) -> tuple[float, float] | None:
    return (float.fromhex(d.expected), float.fromhex(d.actual)) if d.kind is Kind.LOSS else None


@planted("INV-X", judged="one ULP of a loss")
def comparator_one_ulp(patch: Patch) -> None:
    """Losses that are a few ULP apart are equal."""
    _forgiving(patch, lambda d: (pair := _losses(d)) is not None and math.isclose(*pair, rel_tol=1e-12))


@planted("INV-X", judged="the sign of zero")
def comparator_negative_zero(patch: Patch) -> None:
    """Losses are compared as numbers, so that -0.0 equals 0.0."""
    _forgiving(patch, lambda d: (pair := _losses(d)) is not None and pair[0] == pair[1])


@planted("INV-X", judged="a NaN where a number was")
def comparator_nan(patch: Patch) -> None:
    """NaN equals anything."""
    _forgiving(patch, lambda d: (pair := _losses(d)) is not None and any(map(math.isnan, pair)))


@planted("INV-X", judged="a missing iteration")
def comparator_missing_iteration(patch: Patch) -> None:
    """An iteration that was not recorded is not compared."""
    _forgiving(patch, lambda d: d.kind is Kind.MISSING)


@planted("INV-X", judged="a missing last iteration")
def comparator_last_iteration(patch: Patch) -> None:
    """The comparison ends before the last iteration."""
    _forgiving(patch, lambda d: d.iteration == ITERATIONS)


@planted("INV-X", judged="the state alone")
def comparator_loss_only(patch: Patch) -> None:
    """Only losses are compared."""
    _forgiving(patch, lambda d: d.kind not in (Kind.LOSS, Kind.MISSING))


@planted("INV-X", judged="derived parameters only")
def comparator_derived(patch: Patch) -> None:
    """Parameters in training precision are not compared."""
    _forgiving(patch, lambda d: d.kind is Kind.DERIVED)


@planted("INV-X", judged="the second rank only")
def comparator_rank_0(patch: Patch) -> None:
    """Only rank 0 is compared."""
    _forgiving(patch, lambda d: d.rank != 0)


@planted("U28", judged="data one batch off")
def comparator_samples(patch: Patch) -> None:
    """Which samples were read is not compared."""
    _forgiving(patch, lambda d: d.kind is Kind.SAMPLES)


@planted("U27", judged="a generator")
def comparator_live(patch: Patch) -> None:
    """Generators and other live state are not compared."""
    _forgiving(patch, lambda d: d.kind is Kind.LIVE)


@planted("U28", judged="a wrong record that a right one replaced")
def comparator_last_record(patch: Patch) -> None:
    """Of an iteration that was recorded twice only the last record is looked at."""
    _forgiving(patch, lambda d: d.kind is Kind.REPLACED)


@planted("INV-X", judged="a tensor that is absent")
def comparator_common_names(patch: Patch) -> None:
    """Only tensors that both runs recorded are compared."""
    _forgiving(patch, lambda d: d.kind is Kind.NAMES)


@planted("U50", judged="a fault that nobody saw parked")
def firing_taken_on_trust(patch: Patch) -> None:
    """A fault counts as fired when the bench says that it fired it."""
    patch.set(checkers, "_fired_properly", lambda history, token, planned: True)


@planted("U51", judged="a lost page that was not found")
def losses_not_followed(patch: Patch) -> None:
    """Pages that were lost and never found are not missed."""
    patch.set(losses, "_difference", lambda rank, lost, found: "")


@planted("U55", judged="an audit that is missing")
def silence_is_consent(patch: Patch) -> None:
    """A check that the history does not reach far enough for is true."""
    patch.set(checkers, "_unknown", checkers._true)


@planted("INV-X", judged="a verdict on what is unknown")
def unknown_passes(patch: Patch) -> None:
    """A run passes when no check is false."""

    def lenient(grade: Any) -> Any:
        return lambda result: Verdict.PASS if result.judgement is Judgement.UNKNOWN else grade(result)

    patch.wrap(verdict, "_grade", lenient)
