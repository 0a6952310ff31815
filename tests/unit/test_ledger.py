import os
from pathlib import Path

import numpy as np
import pytest

from leto.core.records import IterationResult, LiveState, LossScale, TensorImage
from verify.ledger import (
    LedgerError,
    LedgerReader,
    LedgerWriter,
    digest,
    live_digests,
    read_ledger,
    read_ledgers,
    replaced_path,
)


def result(t: int, loss: float = 1.5) -> IterationResult:
    return IterationResult(iteration=t, loss=loss.hex(), grad_norm=(0.5).hex(), skipped=False, samples=(2 * t, 2 * t + 1))


def write(path: Path, iterations: range, loss: float = 1.5) -> None:
    writer = LedgerWriter(path, 0, 2)
    for t in iterations:
        writer.write(result(t, loss), {"master/w": f"{t:032x}", "param/w": "b"}, {"data_cursor": "c"})
    writer.close()


def test_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ledger"
    write(path, range(1, 4))
    ledger = read_ledger(path)
    assert (ledger.rank, ledger.world_size, ledger.names) == (0, 2, ("master/w", "param/w"))
    assert list(ledger.records) == [1, 2, 3]
    assert ledger.records[2].result == result(2)
    assert ledger.records[2].state == {"master/w": f"{2:032x}", "param/w": "b"}
    assert ledger.records[2].live == {"data_cursor": "c"}


def test_a_later_epoch_goes_on_and_rewrites(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ledger"
    write(path, range(1, 3))
    write(path, range(2, 5), loss=2.5)
    records = read_ledger(path).records
    assert [float.fromhex(r.result.loss) for r in records.values()] == [1.5, 2.5, 2.5, 2.5]


def test_another_rank_may_not_open_it(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ledger"
    write(path, range(1, 2))
    with pytest.raises(LedgerError, match="belongs to rank 0 of 2"):
        LedgerWriter(path, 1, 2)


def test_other_names_are_refused(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "rank0.ledger", 0, 1)
    writer.write(result(1), {"master/w": "a"}, {})
    with pytest.raises(LedgerError, match="iteration 2 has other tensor names"):
        writer.write(result(2), {"master/v": "a"}, {})
    writer.close()


def test_a_record_that_outgrew_its_slot_is_refused(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "rank0.ledger", 0, 1)
    writer.write(result(1), {"master/w": "a"}, {})
    with pytest.raises(LedgerError, match=r"iteration 2 needs .* bytes, a slot has"):
        writer.write(result(2), {"master/w": "a" * 5000}, {})
    writer.close()


def test_a_hole_is_an_error_that_names_the_iteration(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ledger"
    write(path, range(1, 2))
    write(path, range(3, 4))
    with pytest.raises(LedgerError, match=r"rank0\.ledger: the slot of iteration 2 was never written"):
        read_ledger(path)
    assert list(read_ledger(path, cut_short=True).records) == [1]
    assert LedgerReader(path).record(2) is None


@pytest.mark.parametrize("cut_bytes", [1, 100, 1500])
def test_a_torn_last_slot_is_an_error(tmp_path: Path, cut_bytes: int) -> None:
    path = tmp_path / "rank0.ledger"
    write(path, range(1, 3))
    os.truncate(path, path.stat().st_size - cut_bytes)
    with pytest.raises(LedgerError, match="the slot of iteration 2 is torn"):
        read_ledger(path)
    assert list(read_ledger(path, cut_short=True).records) == [1]


def test_a_slot_of_another_iteration_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ledger"
    write(path, range(1, 3))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"iteration":2', b'"iteration":1'))
    with pytest.raises(LedgerError, match="the slot of iteration 2 holds iteration 1"):
        read_ledger(path)


def test_no_header_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ledger"
    LedgerWriter(path, 0, 1).close()
    with pytest.raises(LedgerError, match="No such file"):
        read_ledger(path)
    path.write_bytes(b'{"schema": 1, "ra')
    with pytest.raises(LedgerError, match="no whole header"):
        read_ledger(path)


def test_all_ranks_by_rank(tmp_path: Path) -> None:
    for rank in (1, 0):
        writer = LedgerWriter(tmp_path / f"rank{rank}.ledger", rank, 2)
        writer.write(result(1), {"master/w": "a"}, {})
        writer.close()
    assert sorted(read_ledgers(tmp_path)) == [0, 1]


def test_digest_sees_every_bit() -> None:
    data = np.zeros(1 << 16, dtype=np.uint8)
    before = digest(data)
    data[-1] ^= 1
    assert before != digest(data)
    assert len(before) == 32


def test_live_digests_name_every_part() -> None:
    def live(generator: str, cursor: int, image: str, tracker: int = 0) -> LiveState:
        return LiveState(
            generators={"torch": generator, "tracker/x": "t"},
            data_cursor=cursor,
            consumed_samples=1,
            scheduler_steps=1,
            applied_steps=1,
            learning_rates=(((0.1, 0.0),),),
            loss_scales=(LossScale(scale=(2.0**16).hex(), growth_tracker=tracker, hysteresis_tracker=2),),
            mutable={"router.bias": TensorImage(dtype="float32", shape=(1,), data=image)},
        )

    base = live_digests(live("a", 1, "AA=="))
    assert {"generators/torch", "generators/tracker/x", "mutable/router.bias", "data_cursor"} < set(base)

    def changed(other: LiveState) -> list[str]:
        return [name for name, value in live_digests(other).items() if base[name] != value]

    assert changed(live("b", 1, "AA==")) == ["generators/torch"]
    assert changed(live("a", 2, "AA==")) == ["data_cursor"]
    assert changed(live("a", 1, "AQ==")) == ["mutable/router.bias"]
    assert changed(live("a", 1, "AA==", 1)) == ["loss_scales"]


def test_a_record_that_is_replaced_by_another_is_kept(tmp_path: Path) -> None:
    """A wrong recording that a recovery makes good must not disappear (U28)."""
    path = tmp_path / "rank0.ledger"
    write(path, range(1, 4))
    write(path, range(2, 3), loss=9.5)
    write(path, range(2, 3))
    records = read_ledger(path).records
    assert [float.fromhex(r.result.loss) for r in records[2].replaced] == [1.5, 9.5]
    assert float.fromhex(records[2].result.loss) == 1.5
    assert (records[1].replaced, records[3].replaced) == ((), ())
    assert LedgerReader(path).record(2) == records[2]


def test_the_same_record_again_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ledger"
    write(path, range(1, 4))
    write(path, range(1, 4))
    assert not replaced_path(path).exists()


def test_a_torn_record_is_replaced_without_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ledger"
    write(path, range(1, 2))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 700])  # the writer died inside its pwrite
    write(path, range(1, 2), loss=2.5)
    assert not replaced_path(path).exists()
    assert float.fromhex(read_ledger(path).records[1].result.loss) == 2.5


def test_evidence_of_a_replaced_record_that_is_torn_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ledger"
    write(path, range(1, 3))
    write(path, range(2, 3), loss=9.5)
    kept = replaced_path(path)
    kept.write_bytes(kept.read_bytes()[:-20])
    with pytest.raises(LedgerError, match="a record was replaced by another one"):
        read_ledger(path)
