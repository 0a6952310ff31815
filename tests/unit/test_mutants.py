"""The registry of planted bugs, how bugs are planted and judged, and the command that runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import chaos.cli
from chaos.loading import load_scenario
from chaos.mutants import MUTANTS, find_run_mutant
from chaos.planted import trial
from chaos.planted.explored import Crashed, checker_of
from chaos.planted.planting import Mutant, Patch, Where, planted
from chaos.planted.runs import SCENARIO, deciding_check
from chaos.runs import Finished
from chaos.targets import planted as plugins
from chaos.verdict import conclude
from leto.core.errors import ConfigError
from verify.checkers import CheckResult, Judgement

PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
WELL_KNOWN = """
    no-undo undo-refilled-early commit-before-parity parity-of-the-wrong-column parity-in-place swap-forgotten
    write-back-marked-before-the-copy write-back-marked-before-tier-2 tier-1-trusted-after-a-commit begin-late barrier-skipped
    clip-recomputed lr-recomputed adam-step-not-retained rng-not-restored data-cursor-one-off lent-buffers-trusted no-recast
    zero-fill header-rng clip-in-place decay-of-the-first-parameter child-still-maps marks-cleared-before-the-rebuild
    stale-epoch-accepted signalled-not-reaped one-rank-restarts-while-another-finishes spare-rows-not-checked stale-parity
    comparator-one-ulp comparator-missing-iteration comparator-nan comparator-negative-zero
"""
"""The bugs that a system of this kind has had, or would have first."""

LIVENESS = {"completed", "recoveries", "deadline", "faults-fired", "control", "residue"}
"""Checks of a run that planted code which merely crashes turns false as well."""


def test_the_registry_has_what_every_system_of_this_kind_gets_wrong() -> None:
    assert set(WELL_KNOWN.split()) - MUTANTS.keys() == set()
    assert len(MUTANTS) >= 40


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda m: m.name)
def test_a_planted_bug_says_what_it_is_and_what_catches_it(mutant: Mutant) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", mutant.name)
    assert mutant.bug.endswith(".")
    assert re.search(rf"\| {mutant.against} \||\*\*{mutant.against}\*\*", PROTOCOL), mutant.against
    assert mutant.caught_by
    assert mutant.caught_by.get(Where.PROCESS) not in LIVENESS


def test_names_are_taken_once() -> None:
    assert all(name == mutant.name for name, mutant in MUTANTS.items())
    bugs = [mutant.bug for mutant in MUTANTS.values()]
    assert len(set(bugs)) == len(bugs)


NEEDS_TORCH = ("rng-not-restored", "data-cursor-one-off")


@pytest.mark.parametrize("mutant", [m for m in MUTANTS.values() if m.name not in NEEDS_TORCH], ids=lambda m: m.name)
def test_a_bug_changes_something_and_is_taken_out_again(mutant: Mutant) -> None:
    with Patch() as patch:
        mutant.plant(patch)
        replaced = list(patch._before)
        assert replaced
        assert all(vars(owner)[name] is not before for owner, name, before in replaced)
    assert all(vars(owner)[name] is before for owner, name, before in replaced)


def test_what_is_replaced_twice_comes_back_as_it_was() -> None:
    class Owner:
        value = 1

    with Patch() as patch:
        patch.set(Owner, "value", 2)
        patch.wrap(Owner, "value", lambda value: value + 1)
        assert Owner.value == 3
    assert Owner.value == 1
    with Patch() as patch, pytest.raises(KeyError):
        patch.set(Owner, "valeu", 2)


def test_trainers_are_given_a_plugin_by_the_name_of_the_bug() -> None:
    assert callable(plugins.no_undo)
    assert MUTANTS["no-undo"].plugin == "chaos.targets.planted:no_undo"
    with pytest.raises(ConfigError, match="did you mean no-undo"):
        plugins.no_undoo  # noqa: B018


def test_a_bug_that_no_run_catches_is_not_run() -> None:
    with pytest.raises(ConfigError, match=re.escape("--mutant parity-in-place: this planted bug is explored without trainers")):
        find_run_mutant("parity-in-place")


def test_the_scenario_of_planted_bugs_is_valid_and_short() -> None:
    scenario = load_scenario(SCENARIO, ())
    assert len(scenario.faults) == 2
    assert scenario.workload.iterations <= 5


# What counts as caught


@pytest.mark.parametrize(
    ("message", "checker"),
    [
        ("the job without crashes: Violated: INV-P: parity/0 of rank 0 does not encode the last boundary", "INV-P"),
        ("rank 1 ends with other bytes in master", "bytes"),
        ("Unrecoverable: spare parity row 2 contradicts the data with 1 pages reconstructed", "spare row"),
        ("Unrecoverable: 5 of 9 pages of group 0 are lost, 4 solvable", "refused"),
        ("went on although it had to refuse: 5 of 9 pages", "refusal"),
        ("ProtocolViolation: POST(2): the slot holds a torn record or one of iteration 0", "protocol"),
    ],
)
def test_an_exploration_names_the_checker_that_fired(message: str, checker: str) -> None:
    assert checker_of(message) == checker


@pytest.mark.parametrize("message", ["KeyError: ''", "TypeError: f() takes 1 positional argument but 3 were given"])
def test_an_error_of_planted_code_is_no_checkers_word(message: str) -> None:
    with pytest.raises(Crashed):
        checker_of(message)


def test_either_of_two_checkers_may_be_the_first() -> None:
    mutant = MUTANTS["tier-2-forgotten"]
    assert mutant.caught_by[Where.EXPLORED] == "bytes or spare row"
    for checker, passed in (("bytes", True), ("spare row", True), ("INV-P", False), (None, False)):
        assert trial.timed(mutant, Where.EXPLORED, lambda checker=checker: checker).passed is passed


def _result(name: str, judgement: Judgement, reason: str = "") -> CheckResult:
    return CheckResult(name=name, judgement=judgement, reason=reason)


def _finished(*results: CheckResult) -> Finished:
    all_of_them = (_result("reference-equal", Judgement.TRUE), *results)
    return Finished(directory=Path(), conclusion=conclude(all_of_them), results=all_of_them)


def test_the_check_of_a_run_is_the_one_that_decides() -> None:
    fired, exact = _result("faults-fired", Judgement.FALSE, "missed"), _result("exact", Judgement.FALSE, "diverged")
    assert deciding_check(_finished(fired, exact)) == "exact"
    died = _result("recoveries", Judgement.FALSE, "rank 0 failed by itself")
    assert deciding_check(_finished(died, exact)) == "exact"
    assert deciding_check(_finished(died, fired)) == "recoveries"
    assert deciding_check(_finished(fired)) == "faults-fired"
    assert deciding_check(_finished(_result("exact", Judgement.TRUE))) is None


def test_a_trainer_that_stops_itself_has_caught_the_bug() -> None:
    stopped = _result("completed", Judgement.FALSE, "failed: rank 0: ProtocolViolation: live state moved")
    crashed = _result("completed", Judgement.FALSE, "failed: rank 0: TypeError: no")
    assert deciding_check(_finished(stopped)) == "protocol"
    assert deciding_check(_finished(crashed)) == "completed"


# The command


def ask(*words: str) -> Result:
    return CliRunner().invoke(chaos.cli.app, ["mutants", *words])


NAN = MUTANTS["comparator-nan"].caught_by[Where.JUDGED]


def crash() -> str | None:
    raise TypeError("of its own")


def test_a_bug_that_is_caught_exits_0() -> None:
    done = ask("--only", "comparator-nan", "--only", "blind-audit")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "caught 2 / 2"


@pytest.mark.parametrize(
    ("check", "found"),
    [
        (lambda: None, "not caught"),
        (lambda: "one ULP of a loss", "caught by one ULP of a loss"),
        (crash, "crashed: TypeError: of its own"),
    ],
    ids=["nothing", "another checker", "a crash"],
)
def test_what_is_not_caught_by_the_checker_named_exits_1(
    check: Callable[[], str | None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(trial.CHECKS, Where.JUDGED, check)
    done = ask("--only", "comparator-nan")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-2:] == [
        "caught 0 / 1",
        f"FAILED: comparator-nan, judged: {found}, expected {NAN}",
    ]


def test_a_check_that_fires_without_a_bug_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    @planted("INV-X", judged="always")
    def no_change(patch: Patch) -> None:
        """Nothing."""

    monkeypatch.setattr("chaos.planted.command.MUTANTS", {"no-change": no_change})
    monkeypatch.setitem(trial.CHECKS, Where.JUDGED, lambda: "always")
    done = ask()
    assert done.exit_code == 1
    caught, failed = done.stdout.splitlines()[-2:]
    assert (caught, failed) == ("caught 1 / 1", "FAILED: (no bug), judged: caught by always, expected nothing")


def test_a_bug_counts_once_and_only_when_it_is_caught_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trial.CHECKS, Where.EXPLORED, lambda: None)
    done = ask("--only", "spare-rows-not-checked")
    assert done.exit_code == 1
    assert "caught 0 / 1" in done.stdout.splitlines()
    assert len([line for line in done.stdout.splitlines() if line.startswith("spare-rows-not-checked")]) == 2


def test_what_was_found_is_also_to_be_had_as_json() -> None:
    done = ask("--json", "--only", "comparator-nan")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    (one,) = told.pop("trials")
    assert told == {"passed": True, "caught": 1, "total": 1}
    assert (one["name"], one["where"], one["caught_by"], one["passed"]) == ("comparator-nan", "judged", NAN, True)


def test_mistakes_are_one_line_and_exit_2(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = ask("--only", "no-undoo")
    assert unknown.exit_code == 2
    assert unknown.stderr.startswith("--only no-undoo: no such planted bug; known: ")
    assert unknown.stderr.endswith(" (did you mean no-undo?)\n")
    needs = ask("--in-process", "--only", "no-regather")
    assert (needs.exit_code, needs.stderr) == (
        2,
        "--only no-regather: this planted bug needs trainers; leave out --in-process\n",
    )
    with monkeypatch.context() as without_torch:
        without_torch.setattr("importlib.util.find_spec", lambda name: None)
        beside = ask("--in-process", "--only", "blind-audit")
    assert beside.exit_code == 2
    assert beside.stderr.startswith("the check of kernel bugs needs torch, which is not installed: pip install")
    monkeypatch.setattr("chaos.systems._TRAINING", ("no_such_module",))
    absent = ask("--only", "no-regather")
    assert absent.exit_code == 2
    assert "needs no_such_module, which is not installed" in absent.stderr
