"""The explorer's own account: what ran is what the plan counts, cases can be repeated, refusals and mistakes are told apart."""

import itertools
import json
import multiprocessing
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from random import Random

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.explore import command
from chaos.explore.blocks import BLOCK_CASES, MOST_FAILURES, Order, Share
from chaos.explore.campaign import Campaign, Result, never_reached, run_campaign
from chaos.explore.cases import Again, AgentDies, Case, Point, parse_case
from chaos.explore.crew import run_on_crew
from chaos.explore.explorer import Explorer
from chaos.explore.invariants import Violated
from chaos.explore.job import Job
from chaos.explore.least import Failure
from chaos.explore.memory import Markers
from chaos.explore.products import Products
from chaos.explore.reached import REQUIRED
from chaos.explore.shapes import SHAPES
from leto.core.errors import ConfigError
from leto.core.recovery import Action
from leto.update.executor import PlanExecutor


@cache
def explorer_of(shape: str) -> Explorer:
    """For tests that leave the code as it is: a tape is recorded once."""
    return Explorer(SHAPES[shape])


@pytest.fixture(params=list(SHAPES))
def explorer(request: pytest.FixtureRequest) -> Explorer:
    return explorer_of(request.param)


LARGEST = ("narrow", "pipelined")
PRODUCTS = ("losses", "pairs", "again", "handed_over")
ENUMERATED = [
    pytest.param(shape, product, marks=[pytest.mark.slow] if product == "again" and shape in LARGEST else [])
    for shape, product in itertools.product(SHAPES, PRODUCTS)
]


@pytest.mark.parametrize(("shape", "product"), ENUMERATED)
def test_the_enumeration_has_as_many_cases_as_the_plan(shape: str, product: str) -> None:
    explorer = explorer_of(shape)
    cases = list(getattr(Products(explorer), product)())
    assert len(cases) == getattr(explorer.totals, product)
    assert len(cases) == len(set(cases))


def test_every_step_of_the_tape_is_a_step_of_the_plan(explorer: Explorer) -> None:
    planned = explorer.totals.steps
    for tape in explorer.tape.ranks:
        assert [frame.name for frame in tape.frames[:-1]] == [step.name for step in planned]
        assert [frame.states for frame in tape.frames[:-1]] == [step.states for step in planned]
        assert [frame.on_path for frame in tape.frames[:-1]] == [step.on_path for step in planned]


def test_a_spread_over_the_products_is_exact(explorer: Explorer) -> None:
    products = Products(explorer)
    for cases, step in (
        (products.losses(), 797),
        (products.pairs(), 997),
        (products.again(), 997),
        (products.handed_over(), 797),
    ):
        for case in islice(cases, 0, None, step):
            explorer.run(case)


def test_ranks_apart_by_a_barrier_are_never_paired(explorer: Explorer) -> None:
    for case in islice(Products(explorer).pairs(), 0, None, 50):
        places = [explorer.tape.at_barriers(n, point) for n, point in enumerate(case.points)]
        assert max(passed for passed, _ in places) <= min(come for _, come in places)


def test_drawn_cases_follow_the_seed(explorer: Explorer) -> None:
    products = Products(explorer)
    first, again, other = ([products.draw(Random(f"{seed} {n}")) for n in range(20)] for seed in (1, 1, 2))
    assert first == again != other


DRAWN = 80
"""Of every shape. ``leto-chaos explore`` draws hundreds, beside every point once."""


def test_cases_drawn_of_all_shapes_are_exact_and_reach_every_mark() -> None:
    seen = set[str]()
    for explorer in map(explorer_of, SHAPES):
        products = Products(explorer)
        for n in range(DRAWN):
            seen |= explorer.run(products.draw(Random(f"3 {n}")))
    assert seen == set(REQUIRED)


def test_a_case_is_read_back_from_its_text() -> None:
    plain = Case((Point(102, 2), Point(97, 0)), ("coded-budget", "none"))
    mirrors = replace(plain, losses=("mirrors-02", "mirrors-01+split"))
    again = Case((Point(1, 0), Point(2, 1)), then=Again(1, Point(5, 1)))
    more = replace(again, then=Again(0, Point(5, 1), "top-up"))
    agent = replace(again, then=AgentDies(Point(3, 11)))
    cases = [plain, mirrors, again, more, agent]
    assert [parse_case(str(case)) for case in cases] == cases


@pytest.mark.parametrize(
    "text",
    [
        *("", "102.2", "102.2,97.0", "102.2,97.0/none,none/2:5.1", "a.b,c.d/none,none"),
        *("1.0,1.0/mirrors-3,none", "1.0,1.0/none,none/0:5.1+split", "1.0,1.0/none,none/agent:5.1+top-up"),
    ],
)
def test_a_text_that_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not like"):
        parse_case(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("102.2,96.0/none,none", "a barrier keeps"),
        ("102.9,97.0/none,none", "rank 0 has no point 102.9"),
        ("102.2,97.0/none,none/0:5000.1", "no step 5000"),
        ("102.2,97.0/parity-one,none", "rank 0 cannot lose parity-one here"),
    ],
)
def test_a_case_that_cannot_be_is_a_persons_mistake(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explorer_of("narrow").run(parse_case(text))


def test_the_decision_of_a_case_is_that_of_its_marks() -> None:
    explorer = explorer_of("narrow")
    ends = [len(tape.frames) - 1 for tape in explorer.tape.ranks]
    actions = {
        (Point(0, 1), Point(0, 0)): Action.COLD,
        (Point(92, 0), Point(92, 0)): Action.RESTART,
        (Point(102, 1), Point(97, 0)): Action.FINISH,
        (Point(ends[0], 0), Point(ends[1], 0)): Action.ENDED,
    }
    assert {points: explorer.decide(points).action for points in actions} == actions


def test_a_mark_in_lost_mirrors_only_was_never_made() -> None:
    """BEGIN(2) in the first mirror only: with it lost nobody has begun, and no other mirror changes that."""
    explorer = explorer_of("narrow")
    begin = next(n for n, frame in enumerate(explorer.tape.ranks[0].frames) if frame.name == "BEGIN(2)")
    points = (Point(begin, 1), Point(begin, 0))
    found = {lost: explorer.decide(points, (lost, ())).action for lost in ((), (0,), (1,), (2,), (1, 2), (0, 2), (0, 1))}
    without_first = {lost: Action.RESTART if 0 in lost else Action.FINISH for lost in found}
    assert found == without_first
    assert explorer.decide((Point(begin, 2), points[1]), ((0, 2), ())).action is Action.FINISH
    assert explorer.decide(points, ((0, 1, 2), ())).action is Action.CHECKPOINT


def test_what_a_second_crash_loses_is_exactly_what_is_left_of_the_budget() -> None:
    explorer = explorer_of("narrow")
    text = "102.2,97.0/split,none/0:1.1"
    assert "solved with no spare row" in explorer.run(parse_case(f"{text}+top-up"))
    assert "refused at H1 + 1" in explorer.run(parse_case(f"{text}+top-up-beyond"))


def test_an_agent_that_decides_otherwise_the_second_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = explorer_of("narrow")
    monkeypatch.setattr(Markers, "write_decision", lambda self, epoch, decision: None)
    message = explorer.fails(parse_case("102.2,97.0/none,none/agent:0.1"))
    assert message is not None
    assert "reads a decision that nobody made" in message


def test_ranks_more_than_one_iteration_apart_break_inv_1() -> None:
    job = Job(SHAPES["narrow"])
    job.invariants.accounts[0].iteration, job.invariants.accounts[1].iteration = 3, 2
    job.invariants.at_failure()
    job.invariants.accounts[1].iteration = 1
    with pytest.raises(Violated, match=r"INV-1: ranks are at iterations \[3, 1\]"):
        job.invariants.at_failure()


def test_the_command_repeats_one_case() -> None:
    found = CliRunner().invoke(app, ["explore", "--shape", "narrow", "--case", "102.2,97.0/coded-budget,none/0:1.1"])
    assert found.exit_code == 0, found.output
    assert "rank 0 dies in step 102 (adam of group 0 chunk 0: torn at 0.3, the rest old), loses coded-budget" in found.output
    assert "rolled back a torn chunk" in found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "round"], "--shape round: no such shape"),
        (["--case", "1.0,1.0/none,none"], "--case needs --shape"),
        (["--shape", "wide", "--case", "1,1"], "not like"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    found = CliRunner().invoke(app, ["explore", *arguments])
    assert found.exit_code == 2
    assert message in found.output
    assert len(found.output.splitlines()) == 1


def test_a_mark_that_nobody_reached_is_named() -> None:
    *most, last = REQUIRED
    results = [Result(shape="some", formula="", total=0, reached=Counter(marks)) for marks in (most[:9], most[9:])]
    assert never_reached(results) == [last]
    results[0].reached[last] += 1
    assert never_reached(results) == []


ALL = len(REQUIRED)
MISSING, *MOST = REQUIRED
FAILURE = Failure(case=parse_case("1.0,1.0/none,none"), description="", message="")


def result_of(explored: int, *, marks: Sequence[str] = REQUIRED, failures: int = 0) -> Result:
    found = [FAILURE] * failures
    return Result(shape="some", formula="", total=2000, explored=explored, drawn=5, reached=Counter(marks), failures=found)


@pytest.mark.parametrize(
    ("arguments", "result", "verdict"),
    [
        (["--exhaustive"], result_of(2000), f"pass: 2,005 of 2,005 recoveries exact, {ALL} of {ALL} marks reached"),
        ([], result_of(300), f"pass: 305 of 305 recoveries exact, {ALL} of {ALL} marks reached"),
        ([], result_of(300, marks=MOST), f"FAIL: 305 of 305 recoveries exact, {ALL - 1} of {ALL} marks reached"),
        (["--shape", "narrow"], result_of(300, marks=MOST), "pass: 305 of 305 recoveries exact"),
        (["--exhaustive", "--shape", "narrow"], result_of(1000, failures=3), "FAIL: 1,002 of 2,005 recoveries exact"),
    ],
)
def test_the_last_line_is_the_verdict(
    arguments: list[str], result: Result, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark is demanded of all shapes together."""
    monkeypatch.setattr(command, "SHAPES", {"narrow": SHAPES["narrow"]})
    monkeypatch.setattr(command, "Explorer", lambda shape: None)
    monkeypatch.setattr(command, "run_on_crew", lambda *arguments, **options: result)
    found = CliRunner().invoke(app, ["explore", *arguments])
    assert found.stdout.splitlines()[-1] == verdict
    assert found.exit_code == (0 if verdict.startswith("pass") else 1)
    told = json.loads(CliRunner().invoke(app, ["explore", *arguments, "--json"]).stdout)
    assert told["passed"] is (found.exit_code == 0)
    assert told["never_reached"] == ([MISSING] if len(result.reached) == ALL - 1 and "--shape" not in arguments else [])
    assert len(told["shapes"][0]["failures"]) == len(result.failures)


def test_a_shape_with_matrices_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = CliRunner().invoke(app, ["explore"])
    assert (found.exit_code, found.stdout) == (2, "")
    absent = "needs torch, which is not installed: pip install 'leto-chaos[train]'"
    assert found.stderr == f"shape muon {absent}, or --shape with another one\n"


def test_any_number_of_processes_finds_the_same() -> None:
    explorer = explorer_of("skipping")
    order = Order(exhaustive=False, points=20, seed=5)
    alone = run_campaign(explorer, exhaustive=False, points=20, seed=5, tick=lambda result: None)
    together = run_on_crew(explorer, order, jobs=2, tick=lambda result: None)
    assert replace(together, seconds=0.0) == replace(alone, seconds=0.0)
    assert alone.explored > 2 * BLOCK_CASES  # several blocks


def test_what_is_kept_of_failures_does_not_depend_on_who_finds_them_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanExecutor, "_restore", lambda self, op: None)
    explorer, order = Explorer(SHAPES["wide"]), Order(exhaustive=False, points=0, seed=5)
    alone = run_campaign(explorer, exhaustive=False, points=0, seed=5, tick=lambda result: None)
    campaign, shares = Campaign(explorer, order, lambda result: None), [Share(explorer, order) for _ in range(3)]
    while places := [(share, place) for share in shares if (place := campaign.next_place()) is not None]:
        for block in reversed([share.run(place) for share, place in places]):
            campaign.done(block)
    assert replace(campaign.result(), seconds=0.0) == replace(alone, seconds=0.0)
    assert len(alone.failures) == MOST_FAILURES


def test_an_interrupt_leaves_no_worker() -> None:
    """Neither of this process's own, nor one that goes on alone: a worker's channel ends with the process that hands out."""
    explorer, order = explorer_of("skipping"), Order(exhaustive=True, points=0, seed=0)

    def interrupt(result: Result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_crew(explorer, order, jobs=2, tick=interrupt)
    assert multiprocessing.active_children() == []
