"""The live view follows the journal: where the run is, what hit it, and how far its recovery has come."""

import io

from rich.console import Console
from scripted_target import ManualClock
from test_checkers import history

from chaos.report.live import Status

ABOUT = {"token": 1, "label": "kill #1", "what": "iteration 3 rank 0: kill at begin"}


def shown(status: Status) -> dict[str, str]:
    out = io.StringIO()
    Console(file=out, width=100).print(status.table())
    return {line[:12].strip(): line[12:].strip() for line in out.getvalue().splitlines()}


def follow(status: Status, *entries: tuple[str, dict[str, object]]) -> dict[str, str]:
    for entry in history(*entries):
        status.follow(entry)
    return shown(status)


def test_a_run_from_its_start_over_a_fault_to_the_next_shadows() -> None:
    clock = ManualClock()
    status = Status(clock=clock)
    view = follow(status, ("ready", {"rank": 0, "pid": 1, "epoch": 1}), ("iteration", {"loss": (2.5).hex()}))
    assert (view["loss"], view["epoch"], view["recovery 0"]) == ("2.5000", "1", "")
    view = follow(status, ("shadows-ready", {"level": "L3", "seconds": 0.5}))
    assert view["shadows"] == "L3 stand by, made in 0.50 s"
    view = follow(status, ("killed", ABOUT))
    clock.now_s += 0.25
    assert shown(status)["recovery 0"] == "detect 0.25 s"
    assert view["fault 1"] == "kill #1: iteration 3 rank 0: kill at begin"
    for name, phase in (("failure", "fence"), ("fenced", "localise"), ("localised", "decide"), ("decided", "promote or fork")):
        assert follow(status, (name, {}))["recovery 0"] == f"{phase} 0.00 s"
    assert follow(status, ("ready", {"epoch": 2}))["recovery 0"] == "reconstruct 0.00 s"
    assert follow(status, ("resumed", {}))["recovery 0"] == "finish 0.00 s"
    view = follow(status, ("recovered", {"action": "finish", "level": "L3", "seconds": 0.103}))
    assert (view["recovery 1"], view["shadows"], view["epoch"]) == ("finish by L3 in 103 ms", "being made", "2")
    follow(status, ("killed", ABOUT), ("failure", {}), ("fenced", {}))
    view = follow(status, ("outcome", {"status": "refused", "reason": "17 of 60"}))
    assert (view["recovery 1"], view["shadows"]) == ("refused", "")
    assert follow(status, ("shadow-ended", {}))["shadows"] == "lost, made again after a pause"
