import pytest
from test_checkers import history

from verify.checkers import CheckResult, Judgement
from verify.growth import nothing_grows

FIRST = {"processes": 8, "descriptors": 448, "private_bytes": 1000 << 20}


def judged(*samples: dict[str, int], waited: bool = True) -> CheckResult:
    entries = []
    for token, sample in enumerate(samples, start=1):
        about = {"token": token, "label": f"kill #{token}"}
        entries += [("gate-opened", {**about, "level": "L3"})] if waited else []
        entries.append(("resources", {**about, **sample}))
    return nothing_grows(history(*entries))


def test_a_job_that_holds_what_it_held_before_the_first_fault_does_not_grow() -> None:
    less = {"processes": 8, "descriptors": 440, "private_bytes": 1200 << 20}
    result = judged(FIRST, less, FIRST)
    assert result.judgement is Judgement.TRUE
    assert result.reason == "before each of 3 faults: 8 processes, 448 descriptors, at most 1200 MiB of private memory"


@pytest.mark.parametrize(
    ("key", "value"), [("processes", 9), ("descriptors", 449), ("private_bytes", (1250 << 20) + 1)], ids=lambda v: str(v)
)
def test_one_thing_more_is_growth(key: str, value: int) -> None:
    result = judged(FIRST, FIRST, {**FIRST, key: value})
    assert (result.judgement, result.reason) == (
        Judgement.FALSE,
        f"{value} {key} before kill #3, {FIRST[key]} before kill #1",
    )


def test_faults_that_did_not_wait_for_shadows_find_other_processes_and_show_nothing() -> None:
    assert judged(FIRST, {**FIRST, "processes": 10}, waited=False).judgement is Judgement.UNKNOWN
