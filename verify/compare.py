"""Two runs, bit for bit: every loss, every tensor and all live state, of every rank at every iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from leto.core.geometry import CODED_ARRAYS, MOMENTUM_BUFFER
from verify.bits import bits_of, ulp_distance
from verify.ledger import Ledger, Record


class Kind(IntEnum):
    """What diverged, most telling first: causes before what is derived from them."""

    MISSING = 0  # no record, or a record of an iteration that should not exist
    NAMES = 1  # the two runs do not even hold the same tensors
    SAMPLES = 2  # the rank read other data
    LOSS = 3
    RESULT = 4  # gradient norm, skipped
    CODED = 5  # masters and moments
    STATE = 6  # any other tensor, like the step counters
    LIVE = 7  # generators, cursor, scheduler, enrolled buffers
    DERIVED = 8  # parameters in training precision
    REPLACED = 9  # one run recorded the iteration twice, differently: one of the two was wrong


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """One place where two runs differ. ``expected`` and ``actual`` are text: float.hex, a digest, or what is missing."""

    iteration: int
    rank: int
    kind: Kind
    name: str
    expected: str
    actual: str

    def describe(self) -> str:
        return (
            f"iteration {self.iteration}, rank {self.rank}, {self.name}: {self.actual}, expected {self.expected}{self._ulp()}"
        )

    def _ulp(self) -> str:
        if self.name not in _FLOATS or not (self.expected and self.actual):
            return ""
        distance = ulp_distance(float.fromhex(self.expected), float.fromhex(self.actual))
        return " (not a number)" if distance is None else f" ({distance} ULP)"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Iterations count as exact only when every rank is."""

    iterations: int
    loss_exact: int
    state_exact: int
    first: Divergence | None
    first_recorded: Divergence | None  # the first between records that both exist: what is wrong even in a run cut short

    @property
    def equal(self) -> bool:
        return self.first is None

    def describe(self) -> str:
        n = self.iterations
        return f"loss exact at {self.loss_exact} of {n}, state exact at {self.state_exact} of {n}"


_FLOATS = ("loss", "grad_norm")
_LOSS_KINDS = (Kind.MISSING, Kind.LOSS)


def compare_runs(expected: Mapping[int, Ledger], actual: Mapping[int, Ledger], iterations: int) -> Comparison:
    """All ranks of both runs at iterations 1 to ``iterations``, and nothing may lie beyond.

    ``first`` is the least of (iteration, rank, kind, name). A rank of the world that left no ledger in either run is missing.
    """
    ledgers = [*expected.values(), *actual.values()]
    ranks = range(max([1, *(n for ledger in ledgers for n in (ledger.world_size, ledger.rank + 1))]))
    last = max([iterations, *(t for ledger in ledgers for t in ledger.records)])
    first: Divergence | None = None
    first_recorded: Divergence | None = None
    loss_exact = state_exact = 0
    for t in range(1, last + 1):
        found = [d for rank in ranks for d in compare_records(_record(expected, rank, t), _record(actual, rank, t), t, rank)]
        first = first or next(iter(found), None)
        first_recorded = first_recorded or next((d for d in found if d.kind is not Kind.MISSING), None)
        if t <= iterations:
            loss_exact += not any(d.kind in _LOSS_KINDS for d in found)
            state_exact += all(d.kind is Kind.LOSS for d in found)
    return Comparison(
        iterations=iterations,
        loss_exact=loss_exact,
        state_exact=state_exact,
        first=first,
        first_recorded=first_recorded,
    )


def compare_records(expected: Record | None, actual: Record | None, iteration: int, rank: int) -> Iterator[Divergence]:
    """Every difference of one iteration on one rank, ordered by kind, then name. Absent on both sides is a difference too."""
    if expected is None or actual is None:
        yield Divergence(
            iteration=iteration,
            rank=rank,
            kind=Kind.MISSING,
            name="record",
            expected="a record" if expected else "no record",
            actual="a record" if actual else "no record",
        )
        return
    found = [*_unrecorded(expected), *_replaced(expected, " in the expected run"), *_replaced(actual, "")]
    found += _differences(expected, actual)
    for kind, name, wanted, got in sorted(found):
        yield Divergence(iteration=iteration, rank=rank, kind=kind, name=name, expected=wanted, actual=got)


_Found = tuple[Kind, str, str, str]


def _record(run: Mapping[int, Ledger], rank: int, iteration: int) -> Record | None:
    return run[rank].records.get(iteration) if rank in run else None


def _replaced(record: Record, whose: str) -> Iterator[_Found]:
    """What each replaced record of the iteration said that its last one does not say."""
    for before in record.replaced:
        _, name, last, first = min(_differences(record, before), default=(Kind.NAMES, "record", "", ""))
        yield Kind.REPLACED, f"{name} before it was replaced{whose}", last, first


def _unrecorded(record: Record) -> Iterator[_Found]:
    """Families without a single tensor: what nobody recorded would be equal in any two runs."""
    families = {name.partition("/")[0] for name in record.state}
    for family in ("param", *CODED_ARRAYS):
        if family not in families:
            yield Kind.NAMES, f"{family}/*", "present", "not recorded at all"


def _differences(expected: Record, actual: Record) -> Iterator[_Found]:
    yield from _results(expected, actual)
    yield from _digests(expected, actual)


def _results(expected: Record, actual: Record) -> Iterator[_Found]:
    e, a = expected.result, actual.result
    if e.samples != a.samples:
        yield Kind.SAMPLES, "samples", _listed(e.samples), _listed(a.samples)
    if _float_key(e.loss) != _float_key(a.loss):
        yield Kind.LOSS, "loss", e.loss, a.loss
    if _float_key(e.grad_norm) != _float_key(a.grad_norm):
        yield Kind.RESULT, "grad_norm", e.grad_norm, a.grad_norm
    if e.skipped != a.skipped:
        yield Kind.RESULT, "skipped", str(e.skipped), str(a.skipped)


def _listed(samples: tuple[int, ...]) -> str:
    return ",".join(map(str, samples)) or "none"


def _float_key(text: str) -> int | None:
    """Bits of a float.hex; None where there is none, as in the norm of a skipped step."""
    return bits_of(float.fromhex(text)) if text else None


def _digests(expected: Record, actual: Record) -> Iterator[_Found]:
    for e, a, live in ((expected.state, actual.state, False), (expected.live, actual.live, True)):
        for name in sorted({*e, *a}):
            label = f"live/{name}" if live else name
            if name not in e or name not in a:
                yield Kind.NAMES, label, "present" if name in e else "absent", "present" if name in a else "absent"
            elif e[name] != a[name]:
                yield Kind.LIVE if live else _kind_of(name), label, e[name], a[name]


def _kind_of(name: str) -> Kind:
    family = name.partition("/")[0]
    if family in (*CODED_ARRAYS, MOMENTUM_BUFFER):
        return Kind.CODED
    return Kind.DERIVED if family == "param" else Kind.STATE
