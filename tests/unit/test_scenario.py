from pathlib import Path

import pytest

from chaos.cli import app
from chaos.loading import load_scenario, parse_scenario
from chaos.mistakes import ScenarioError
from chaos.scenario import Scenario
from leto.core.failpoints import Kernel, Point

ROOT = Path(__file__).parents[2]
BAD = ROOT / "tests" / "bad_scenarios"
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))

# file, line, key as the message names it, and what the message must offer
MISTAKES = [
    ("alias", 14, "control", "write the value out"),
    ("bad-name", 2, "name", "use lower case letters, digits and single hyphens"),
    ("bad-yaml", 11, "not YAML", "expected ',' or '}'"),
    ("chunk-larger-than-group", 7, "protection.data_pages", "9 is less than chunk_pages (12)"),
    ("chunk-not-3", 7, "protection.chunk_pages", "13 is not a positive multiple of 3"),
    ("control-without-faults", 9, "control", "leave it out"),
    ("control-without-faults", 10, "expect.recoveries", "expect 0 or add faults"),
    ("duplicate-id", 14, "faults[1].id", "ids are unique"),
    ("duplicate-key", 5, "seed", "remove one (the first is on line 4)"),
    ("empty", 1, "the file is empty", ""),
    ("ep-does-not-divide", 6, "workload.parallel.ep", "3 does not divide the 2 data-parallel ranks"),
    ("every-beyond-end", 10, "faults[0].when.every", "it has iterations 1 to 100"),
    (
        "fault-without-body",
        13,
        "faults[0].do[0]",
        "needs exactly one of abort-kernel, torn-copy, kill, natural, cycle, lose-pages",
    ),
    ("iteration-beyond-end", 10, "faults[0].when.iteration", "it has iterations 1 to 100"),
    ("iteration-zero", 10, "faults[0].when.iteration", "greater than or equal to 1"),
    ("kernel-outside-phase", 13, "faults[0].do[0].abort-kernel.kernel", "leave 'phase' out"),
    ("kernel-with-point", 13, "faults[0].do[0].abort-kernel", "leave 'at' out of 'when', or use kill"),
    ("kill-without-point", 13, "faults[0].do[0].kill", "add 'at' to 'when', one of before-first-header"),
    ("later-fault", 13, "faults[0].do[0].flip-bits", "unknown fault; known: abort-kernel, torn-copy, kill, natural, cycle"),
    ("later-key", 10, "faults[0].when.network", "unknown key; known: every, iteration, random, phase, at, shadows"),
    ("list", 1, "[{'schema': 1}] is not a mapping", "write its keys: schema, name"),
    ("missing-key", 15, "expect.deadline_s", "add this key"),
    ("newer-schema", 1, "schema", "known: 1"),
    ("no-such-rank", 11, "faults[0].where.rank", "the workload has ranks 0 to 1"),
    ("no-time", 10, "faults[0].when", "needs exactly one of 'every', 'iteration' and 'random'"),
    ("not-a-copy", 13, "faults[0].do[0].torn-copy.copy", "known: parity-fetch, undo-save, undo-restore, parity-writeback"),
    ("not-a-mapping", 11, "faults[0].where", "write its keys: rank"),
    ("number-is-text", 6, "workload.iterations", "whole number"),
    ("page-not-4k", 7, "protection.page", "is not a multiple of 4 KiB; near it lie 64KiB and 68KiB"),
    ("page-without-unit", 7, "protection.page", "write a number and a unit, like 64KiB or 2MiB"),
    ("pipelined-is-text", 7, "protection.pipelined", "write true or false"),
    ("progress-beyond-1", 13, "faults[0].do[0].abort-kernel.progress", "less than or equal to 1"),
    ("rank-is-text", 11, "faults[0].where.rank", "write 'seeded' or a number from 0"),
    ("tagged-yaml", 4, "not YAML", "could not determine a constructor"),
    ("tier1-too-many", 7, "protection.tier1", "17 is not between 1 and 16"),
    ("tier2-too-many", 7, "protection.tier2", "2 is not 0 or 1"),
    ("two-documents", 16, "not YAML", "another document"),
    ("two-faults-in-one-step", 13, "faults[0].do[0]", "needs exactly one of"),
    ("two-steps", 14, "faults[0].do[1]", "every later step is a 'lose-pages'"),
    ("two-times", 10, "faults[0].when", "needs exactly one of 'every', 'iteration' and 'random'"),
    ("unknown-fault", 13, "faults[0].do[0].abort-kernal", "(did you mean abort-kernel?)"),
    ("unknown-kernel", 13, "faults[0].do[0].abort-kernel.kernel", "(did you mean adam?)"),
    ("unknown-key", 6, "workload.precison", "(did you mean precision?)"),
    ("unknown-point", 10, "faults[0].when.at", "(did you mean before-barrier?)"),
    ("unknown-system", 5, "system", "(did you mean leto?)"),
    ("unknown-top-level-key", 4, "seeds", "(did you mean seed?)"),
    ("unknown-value", 15, "expect.rule", "(did you mean finish?)"),
    ("ended-every", 10, "faults[0].when.at", "write 'iteration: 100' beside it"),
    ("first-header-later", 10, "faults[0].when.at", "write 'iteration: 1' beside it"),
    ("hold-beside-random", 12, "faults[0].hold", "leave 'hold' out"),
    ("hold-beside-seeded-rank", 11, "faults[0].where.rank", "write a number"),
    ("hold-beyond-end", 12, "faults[0].hold[0].iteration", "it has iterations 1 to 100"),
    ("hold-ended-early", 12, "faults[0].hold[0].at", "write 'iteration: 100' beside it"),
    ("hold-far-iteration", 12, "faults[0].hold[0].iteration", "42 is more than one from 40"),
    ("hold-iteration-with-every", 12, "faults[0].hold[0].iteration", "write 'iteration' in 'when', or leave it out here"),
    ("hold-kernel-without-progress", 12, "faults[0].hold[0]", "add the fraction of its output"),
    ("hold-no-such-rank", 12, "faults[0].hold[0].rank", "the workload has ranks 0 to 1"),
    ("hold-not-a-mapping", 12, "faults[0].hold", "write {rank: N, at: POINT}, or a list of holds"),
    ("hold-own-rank", 12, "faults[0].hold[0].rank", "a rank parks at one place"),
    ("hold-point-with-chunk", 12, "faults[0].hold[0]", "leave 'chunk' out"),
    ("hold-twice", 12, "faults[0].hold[1].rank", "a rank parks at one place"),
    ("hold-two-places", 12, "faults[0].hold[0]", "needs exactly one of 'at' and 'kernel'"),
    ("hold-unknown-key", 12, "faults[0].hold[0].att", "(did you mean at?)"),
    ("hold-unknown-point", 12, "faults[0].hold[0].at", "(did you mean begin?)"),
    ("hold-without-place", 12, "faults[0].hold[0]", "needs exactly one of 'at' and 'kernel'"),
    ("kill-rank-not-parked", 13, "faults[0].do[0].kill.rank", "hold it, or kill one of 0"),
    ("random-too-many", 10, "faults[0].when.random", "the workload has 99"),
    ("random-with-kernel", 13, "faults[0].do[0].abort-kernel", "use kill"),
    ("random-with-phase", 10, "faults[0].when.phase", "leave 'phase' out"),
    ("random-with-point", 10, "faults[0].when.at", "leave 'at' out"),
    ("rule-and-rules", 15, "expect.rules", "keep one of them"),
    ("rules-do-not-add-up", 15, "expect.rules", "name 2 recoveries, 'recoveries' says 3"),
    ("rules-zero", 15, "expect.rules.cold", "greater than or equal to 1"),
    ("unknown-rule", 15, "expect.rules.finnish", "(did you mean finish?)"),
    ("lose-first", 13, "faults[0].do[0]", "begin with what ends the rank: abort-kernel, torn-copy, kill, natural, cycle"),
    ("lose-unknown-class", 14, "faults[0].do[1].lose-pages.class", "(did you mean coded?)"),
    ("lose-class-is-list", 14, "faults[0].do[1].lose-pages.class", "['coded'] is unknown; known: coded, derived"),
    ("lose-records", 14, "faults[0].do[1].lose-pages.class", "'records' is unknown; known: coded, derived"),
    ("lose-without-count", 14, "faults[0].do[1].lose-pages.count", "add this key"),
    ("lose-none", 14, "faults[0].do[1].lose-pages.count", "greater than or equal to 1"),
    ("lose-per-group-without-groups", 14, "faults[0].do[1].lose-pages.per", "classes with groups: coded, gradients"),
    ("lose-group-per-rank", 14, "faults[0].do[1].lose-pages.group", "goes with 'per: group'"),
    ("lose-more-than-a-group", 14, "faults[0].do[1].lose-pages.count", "a group has at most 16 pages of class 'tier1'"),
    ("lose-more-than-a-rank", 14, "faults[0].do[1].lose-pages.count", "a rank has at most 12 pages of class 'undo'"),
    (
        "lose-beyond-budget",
        14,
        "faults[0].do[1].lose-pages.count",
        "tier1 solves 16 of a group; lose fewer, or expect 'fallback: refused'",
    ),
    ("lose-more-mirrors", 14, "faults[0].do[1].lose-pages.count", "a rank has at most 3 pages of class 'markers'"),
    ("lose-all-mirrors", 14, "faults[0].do[1].lose-pages.count", "lose fewer, or expect 'fallback: refused'"),
    ("lose-more-in-flight", 14, "faults[0].do[1].lose-pages.count", "a rank has at most 12 pages of class 'in-flight'"),
    ("lose-beside-random", 14, "faults[0].do[1]", "a random kill parks nobody"),
    ("natural-without-point", 13, "faults[0].do[0].natural", "add 'at' to 'when'"),
    ("natural-without-loss", 13, "faults[0].do[0].natural", "add a step 'lose-pages'"),
    ("natural-at-random", 13, "faults[0].do[0].natural", "needs a point"),
    ("natural-at-random", 14, "faults[0].do[1]", "a random kill parks nobody"),
    ("shadows-at-random", 10, "faults[0].when.shadows", "leave 'shadows' out"),
    ("shadows-unknown-level", 10, "faults[0].when.shadows", "known: L3"),
    ("shadows-before-training", 10, "faults[0].when.shadows", "leave it out"),
    ("torn-copy-whole", 13, "faults[0].do[0].torn-copy.progress", "less than 1"),
    ("refused-without-reason", 15, "expect.fallback", "add 'reason'"),
    ("reason-without-refusal", 15, "expect.reason", "write 'fallback: refused' beside it"),
    ("reason-no-expression", 15, "expect.reason", "is not a regular expression"),
    ("skipped-in-bf16", 15, "expect.skipped", "no step of bf16 is skipped; write 'precision: fp16', or leave it out"),
    ("unknown-optimizer", 6, "workload.optimizer", "(did you mean muon?)"),
    ("muon-in-fp16", 6, "workload.optimizer", "write bf16 or fp32"),
    ("muon-kernel-without-muon", 13, "faults[0].do[0].abort-kernel.kernel", "write 'optimizer: muon' in 'workload'"),
    ("muon-hold-without-muon", 12, "faults[0].hold[0].kernel", "write 'optimizer: muon' in 'workload'"),
    ("chunk-beyond-group", 13, "faults[0].do[0].abort-kernel.chunk", "there is no chunk 5; a group has chunks 0 to 4"),
    ("hold-chunk-beyond-group", 12, "faults[0].hold[0].chunk", "there is no chunk 5; a group has chunks 0 to 4"),
    ("chunk-of-a-whole-group", 13, "faults[0].do[0].abort-kernel.chunk", "'parity-fetch' runs once a group; leave 'chunk' out"),
    ("tier2-kernel-without-tier2", 13, "faults[0].do[0].abort-kernel.kernel", "write 'tier2: 1' in 'protection'"),
    ("restore-without-recovery", 13, "faults[0].do[0].abort-kernel", "add a fault of iteration 10 before it"),
    ("recoveries-more-than-faults", 15, "expect.recoveries", "11 recoveries are expected of 10 faults; expect at most 10"),
    ("recoveries-less-than-faults", 15, "expect.recoveries", "9 are expected; expect at least 10"),
    ("recoveries-beside-refusal", 15, "expect.recoveries", "of 10 faults, one of which is refused; expect at most 9"),
    ("skipped-too-many", 15, "expect.skipped", "the workload has iterations 1 to 100"),
]


def mistakes_of(path: Path, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides)
    return caught.value.lines


@pytest.mark.parametrize(("file", "line", "key", "offer"), MISTAKES, ids=[f"{m[0]}-{m[1]}" for m in MISTAKES])
def test_a_mistake_names_file_line_key_and_remedy(file: str, line: int, key: str, offer: str) -> None:
    path = BAD / f"{file}.yaml"
    matching = [m for m in mistakes_of(path) if m.startswith(f"{path}:{line}: {key}")]
    assert len(matching) == 1, mistakes_of(path)
    assert offer in matching[0]
    assert "\n" not in matching[0]


def test_every_bad_scenario_is_in_the_table() -> None:
    assert {path.stem for path in BAD.glob("*.yaml")} == {m[0] for m in MISTAKES}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_the_shipped_scenarios_are_valid_and_named_after_their_file(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert parse_scenario(scenario.resolved_yaml(), "resolved") == scenario


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("Muon", "unknown optimizer 'Muon'; known: adam, muon (did you mean muon?)"),
        ("3", "3 is wrong; write a text"),
        ("{muon: {}}", "{'muon': {}} is wrong; write a text"),
    ],
)
def test_a_mistyped_optimizer_is_one_mistake_and_not_one_of_every_kernel(value: str, says: str) -> None:
    override = f"workload.optimizer={value}"
    assert mistakes_of(ROOT / "scenarios" / "muon.yaml", override) == (f"--set {override}: workload.optimizer: {says}",)


def test_all_mistakes_of_a_file_are_reported_together() -> None:
    text = (BAD / "unknown-key.yaml").read_text().replace("rank: seeded", "rank: 9").replace("64KiB", "5KiB")
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, "f")
    keys = [line.split(": ")[1] for line in caught.value.lines]
    assert keys == ["workload.precison", "protection.page", "faults[0].where.rank"]


def update_phase(*overrides: str) -> Scenario:
    return load_scenario(ROOT / "scenarios" / "update-phase.yaml", overrides)


def test_values_arrive() -> None:
    scenario = update_phase()
    assert scenario.protection.to_core().page_bytes == 64 << 10
    assert not scenario.protection.to_core().pipelined
    assert load_scenario(ROOT / "scenarios" / "pipelined.yaml").protection.to_core().pipelined
    assert scenario.workload.to_core().world_size == 2
    actions = [scenario.faults[0].action_of(n) for n in (1, 2, 3, 4)]
    assert [a.name for a in actions] == ["abort-kernel", "abort-kernel", "torn-copy", "abort-kernel"]
    assert actions[0].abort_kernel is not None
    assert actions[0].abort_kernel.kernel is Kernel.ADAM
    assert actions[0] == actions[3]


def with_fault(text: str) -> Scenario:
    whole = (ROOT / "scenarios" / "between-ranks.yaml").read_text()
    head = whole.partition("faults:\n")[0]
    return parse_scenario(f"{head}faults:\n{text}\nexpect: {{recoveries: 1, deadline_s: 30}}\n", "f")


def test_one_hold_may_stand_without_a_list() -> None:
    fault = "  - {{id: a, when: {{iteration: 3, at: begin}}, where: {{rank: 0}}, hold: {}, do: [kill: {{rank: 1}}]}}"
    one, listed = (with_fault(fault.format(hold)) for hold in ("{rank: 1, at: cast}", "[{rank: 1, at: cast}]"))
    assert one == listed
    assert (one.faults[0].hold[0].rank, one.faults[0].hold[0].at) == (1, Point.CAST)
    assert parse_scenario(one.resolved_yaml(), "resolved") == one


def test_what_recoveries_are_expected_of() -> None:
    assert update_phase().expect.counted_rules == {"finish": 10}
    mixed = load_scenario(ROOT / "scenarios" / "first-and-last.yaml")
    assert mixed.expect.counted_rules == {"cold": 1, "finish": 2, "ended": 1}
    assert load_scenario(ROOT / "scenarios" / "random-kills.yaml").expect.counted_rules is None


def test_overrides_replace_values() -> None:
    scenario = update_phase("seed=7", "workload.iterations=30", "faults.0.when.every=3", "faults[0].where.rank=1")
    assert (scenario.seed, scenario.workload.iterations) == (7, 30)
    assert (scenario.faults[0].when.every, scenario.faults[0].where.rank) == (3, 1)
    assert parse_scenario(scenario.resolved_yaml(), "resolved") == scenario


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=x", "--set seed=x: seed: 'x' is wrong; input should be a whole number"),
        ("sede=7", "--set sede=7: sede: unknown key; known: schema, name"),
        ("workload.iterations=0", "--set workload.iterations=0: workload.iterations: 0 is wrong"),
        ("faults.3.id=a", "--set faults.3.id=a: there is no 'faults[3]' to set 'id' in"),
        ("name.x=a", "--set name.x=a: there is no 'name' to set 'x' in"),
        ("seed", "--set seed: write key=value"),
        ("seed=[", "--set seed=[: '[' is not a YAML value"),
    ],
)
def test_a_wrong_override_names_itself(override: str, message: str) -> None:
    lines = mistakes_of(ROOT / "scenarios" / "update-phase.yaml", override)
    assert [line for line in lines if line.startswith(message)], lines


def test_an_override_that_contradicts_the_file_names_the_line_it_contradicts() -> None:
    (line,) = mistakes_of(ROOT / "scenarios" / "update-phase.yaml", "workload.iterations=5")
    assert "update-phase.yaml:10: faults[0].when.every: 10 is beyond the workload; it has iterations 1 to 5" in line


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert mistakes_of(tmp_path / "none.yaml") == (f"{tmp_path / 'none.yaml'}: No such file or directory",)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert mistakes_of(tmp_path / "bytes.yaml") == (f"{tmp_path / 'bytes.yaml'}: not UTF-8 text",)


def test_the_command_line_prints_every_mistake_and_exits_with_2() -> None:
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["validate", str(BAD / "unknown-key.yaml"), str(SCENARIOS[0]), str(BAD / "empty.yaml")])
    assert done.exit_code == 2
    assert done.stdout == f"{SCENARIOS[0]}: valid\n"
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [
        f"{BAD / 'unknown-key.yaml'}:6",
        f"{BAD / 'empty.yaml'}:1",
    ]
