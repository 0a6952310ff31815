import xml.etree.ElementTree as ET
from pathlib import Path

from chaos.report.junit import write_junit
from chaos.report.summary import FaultRow
from verify.checkers import CheckResult, Judgement


def fault(number: int, fired_s: float | None) -> FaultRow:
    where = "iteration 3, rank 0"
    return FaultRow(label=f"kill #{number}", aimed_at=where, found_at=(), damage="", fired_s=fired_s, missed="")


def check(name: str, judgement: Judgement) -> CheckResult:
    return CheckResult(name=name, judgement=judgement, reason=f"<{name}> \x1b[31m& so on\n")


def written(tmp_path: Path, faults: list[FaultRow], results: list[CheckResult]) -> ET.Element:
    write_junit(tmp_path / "junit.xml", "small", faults, results)
    return ET.parse(tmp_path / "junit.xml").getroot()


def test_one_case_per_occurrence_and_per_check(tmp_path: Path) -> None:
    suite = written(tmp_path, [fault(1, 0.5), fault(2, 0.9)], [check("exact", Judgement.TRUE)])
    names = [case.get("name") for case in suite]
    assert names == ["kill #1: iteration 3, rank 0", "kill #2: iteration 3, rank 0", "exact"]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("3", "0", "0", "0")


def test_false_is_a_failure_and_the_rest_are_errors(tmp_path: Path) -> None:
    checks = [
        check("exact", Judgement.FALSE),
        check("parity", Judgement.UNKNOWN),
        check("control", Judgement.FALSE),
        check("reference-equal", Judgement.FALSE),
    ]
    suite = written(tmp_path, [fault(1, None)], checks)
    assert [[child.tag for child in case] for case in suite] == [["error"], ["failure"], ["error"], ["error"], ["error"]]
    assert (suite.get("failures"), suite.get("errors")) == ("1", "4")


def test_reasons_survive_as_text_without_control_characters(tmp_path: Path) -> None:
    suite = written(tmp_path, [], [check("exact", Judgement.FALSE)])
    assert suite[0][0].get("message") == "<exact>  [31m& so on "
