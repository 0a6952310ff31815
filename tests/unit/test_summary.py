"""What the report says of a recovery, its losses, shadows and resources, from the journal alone."""

import pytest
from test_checkers import history

from chaos.report.figures import recovery_figure, resource_figure
from chaos.report.summary import PHASES, loss_rows, recovery_rows, resource_rows, shadow_rows

ABOUT = {"token": 1, "label": "kill #1", "what": "iteration 3"}
TOLD = {"fence_s": 0.5, "localise_s": 0.25, "promote_s": 0.5, "attach_s": 0.25, "reconstruct_s": 0.125, "finish_s": 0.5}
BUDGET = {"code_word": "group 0", "pages": 6, "lost_pages": 3, "lost_rows": 1, "rows": 4, "spare_rows": 0}
HISTORY = history(
    ("started", {"iterations": 9}),
    ("shadows-ready", {"epoch": 1, "level": "L3", "seconds": 0.5}),
    ("lose", {**ABOUT, "rank": 1, "page_class": "coded", "pages": ["master:1", "master:2", "exp_avg:0"]}),
    ("lose", {**ABOUT, "rank": 1, "page_class": "tier1", "pages": ["tier1/0:3"]}),
    (
        "resources",
        {
            **ABOUT,
            "processes": 8,
            "descriptors": 448,
            "private_bytes": 3 << 20,
            "proportional_bytes": 5 << 20,
            "shm_files": 1,
            "shm_bytes": 1 << 19,
        },
    ),
    ("killed", ABOUT),
    ("failure", {"rank": 1, "cause": "was killed by SIGKILL"}),
    ("fenced", {"epoch": 1, "seconds": 0.5}),
    ("decided", {"epoch": 2, "action": "finish", "iteration": 3, "reason": "BEGIN"}),
    ("resumed", {"rank": 1, "row": "restore-and-redo", "reason": "chunk 3"}),
    ("repaired", {"rank": 1, "epoch": 2, "pages": 4, "rebuilt": 3, "budgets": [BUDGET], "reconstruct_s": 0.125}),
    ("recovered", {"epoch": 2, "seconds": 2.5, "action": "finish", "level": "L3", "phases": TOLD}),
)


def test_the_phases_of_a_recovery_add_up_to_the_time_that_the_bench_saw() -> None:
    (row,) = recovery_rows(HISTORY)
    assert (row.level, row.decided, row.resumed, row.total_s) == ("L3", "finish 3", ("rank 1: restore-and-redo",), 6.0)
    assert sum(row.phases_s.values()) == pytest.approx(6.0)
    seen = {"detect": 1.0, "decide": 1.0 - 0.25}
    assert row.phases_s == pytest.approx({p: seen.get(p, TOLD.get(f"{p}_s", 2.125)) for p in PHASES})


def test_a_recovery_that_was_hit_is_timed_from_its_last_hit() -> None:
    again = [("killed", ABOUT), *((e.name, dict(e.fields)) for e in HISTORY[6:])]
    (row,) = recovery_rows(history(*((e.name, dict(e.fields)) for e in HISTORY[:-1]), *again))
    assert row.total_s == 6.0
    assert row.phases_s["detect"] == 1.0


def test_losses_say_what_their_repair_took() -> None:
    coded, tier1 = loss_rows(HISTORY)
    assert (coded.page_class, coded.pages, coded.rebuilt) == (
        "coded",
        ("master:1", "master:2", "exp_avg:0"),
        "3 rebuilt, 1 not needed",
    )
    assert coded.budgets == ("group 0: 3 pages and 1 rows of 4, no check possible",)
    assert tier1.pages == ("tier1/0:3",)
    unrepaired = loss_rows(HISTORY[:5])
    assert [(row.rebuilt, row.budgets) for row in unrepaired] == [("", ()), ("", ())]


def test_lost_mirrors_are_carried_over_and_took_no_parity() -> None:
    """A repair that comes later is another loss's."""
    lost = ("lose", {**ABOUT, "rank": 1, "page_class": "markers", "pages": ["markers:0"]})
    repaired = next((e.name, dict(e.fields)) for e in HISTORY if e.name == "repaired")
    (row,) = loss_rows(history(lost, ("carried", {"rank": 1, "epoch": 2, "pages": ["markers:0"]}), repaired))
    assert (row.pages, row.rebuilt, row.budgets) == (("markers:0",), "carried over from the others", ())
    (refused,) = loss_rows(history(lost, repaired))
    assert refused.rebuilt == ""


def test_shadows_and_resources() -> None:
    (shadows,) = shadow_rows(HISTORY)
    assert (shadows.epoch, shadows.level, shadows.made_in_s, shadows.ready_s) == (1, "L3", 0.5, 1.0)
    (resources,) = resource_rows(HISTORY)
    assert (resources.processes, resources.descriptors, resources.private_mib, resources.proportional_mib) == (8, 448, 3.0, 5.0)
    assert (resources.shm_files, resources.shm_mib) == (1, 0.5)


def test_the_figures_show_every_phase_and_what_is_held() -> None:
    bars = recovery_figure(recovery_rows(HISTORY))
    assert all(f'"name":"{phase}"' in bars for phase in PHASES)
    assert '"barmode":"stack"' in bars
    assert "descriptors" in resource_figure(resource_rows(HISTORY))
