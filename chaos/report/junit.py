"""junit.xml: one case per fault occurrence and per check.

What is unknown or invalid is an error, what is false a failure; nothing is ever skipped.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from chaos.report.summary import FaultRow
from verify.checkers import CheckResult, Judgement

_INVALID_WHEN_FALSE = ("reference-equal", "faults-fired", "control")
"""Checks of the experiment, not of the system: when they are false nothing was shown."""


def write_junit(path: Path, scenario: str, faults: Sequence[FaultRow], results: Sequence[CheckResult]) -> None:
    suite = ET.Element("testsuite", name=scenario)
    for fault in faults:
        case = ET.SubElement(suite, "testcase", classname=f"{scenario}.faults", name=f"{fault.label}: {fault.aimed_at}")
        if fault.fired_s is None:
            ET.SubElement(case, "error", message=_clean(f"did not fire: {fault.missed or 'it was never reached'}"))
    for result in results:
        case = ET.SubElement(suite, "testcase", classname=f"{scenario}.checks", name=result.name)
        if result.judgement is not Judgement.TRUE:
            ET.SubElement(case, _element(result), message=_clean(result.reason))
    for tag in ("failure", "error"):
        suite.set(f"{tag}s", str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))
    suite.set("skipped", "0")
    ET.indent(suite)
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _element(result: CheckResult) -> str:
    if result.judgement is Judgement.UNKNOWN or result.name in _INVALID_WHEN_FALSE:
        return "error"
    return "failure"


def _clean(text: str) -> str:
    """XML 1.0 has no control characters; a reason may quote anything a process printed."""
    return "".join(c if c.isprintable() else " " for c in text)
