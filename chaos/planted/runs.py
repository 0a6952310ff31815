"""The check of real trainers: a short run with two kills and lost pages, and which of its checks spoke first."""

from __future__ import annotations

from pathlib import Path

from chaos.loading import load_scenario
from chaos.planted.planting import Mutant
from chaos.runs import Finished, Order, run_order
from chaos.systems import REFERENCES, SYSTEMS, load_target
from chaos.verdict import Verdict
from leto.core.errors import ProtocolViolation
from verify.checkers import Judgement
from verify.history import Entry

SCENARIO = Path(__file__).with_name("planted-bugs.yaml")


def check_run(mutant: Mutant | None, runs_dir: Path) -> str | None:
    """Runs the scenario with the bug in its trainers; its artefacts are kept below ``runs_dir``. None when it passes.

    Raises RuntimeError when it comes to no verdict, ConfigError when trainers cannot be run here.
    """
    scenario = load_scenario(SCENARIO, ())
    order = Order(scenario=scenario, file=SCENARIO, mutant=None if mutant is None else mutant.name, runs_dir=runs_dir)
    target, reference = load_target(SYSTEMS[scenario.system]), load_target(REFERENCES[scenario.system])
    finished = run_order(order, target, reference, _NoScreen())
    if finished.conclusion.verdict in (Verdict.INTERNAL, Verdict.UNKNOWN):
        raise RuntimeError(f"{finished.conclusion.verdict.word}: {finished.conclusion.reason}; see {finished.directory}")
    return deciding_check(finished)


def deciding_check(finished: Finished) -> str | None:
    """The check that has something to say first, None for a run that passed.

    A record that differs is older than whatever the run died of later. Beside that it is the check that the verdict rests on; a
    trainer that stopped the job because an invariant broke has caught the bug itself: ``protocol``.
    """
    if any(result.name == "exact" and result.judgement is Judgement.FALSE for result in finished.results):
        return "exact"
    for result in finished.results:
        if finished.conclusion.reason == f"{result.name}: {result.reason}":
            by_itself = result.name == "completed" and ProtocolViolation.__name__ in result.reason
            return "protocol" if by_itself else result.name
    return None


class _NoScreen:
    """A table is being printed: the run says nothing."""

    def __enter__(self) -> _NoScreen:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        return None

    def listen(self, entry: Entry) -> None:
        return None
