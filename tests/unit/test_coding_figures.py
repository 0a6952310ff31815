"""The figures in docs/coding.md are those that were recorded, and a missed target is named."""

from __future__ import annotations

import copy
import json
from xml.etree import ElementTree

import pytest

from benchmarks import update_report
from benchmarks.bars import LABELS, bars
from benchmarks.coding_report import COMMAND, DOCUMENT, FIGURES, TARGETS, Target, document_with, missed_targets, table

SVG = "{http://www.w3.org/2000/svg}"


def test_the_document_shows_what_was_recorded() -> None:
    recorded = json.loads(FIGURES.read_text())
    text = DOCUMENT.read_text()
    assert document_with(COMMAND, table(recorded["figures"], recorded["machine"]), text) == text


def test_the_recorded_figures_reach_every_target() -> None:
    assert missed_targets(json.loads(FIGURES.read_text())["figures"]) == []


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_missed_target_is_named(target: Target) -> None:
    figures = copy.deepcopy(json.loads(FIGURES.read_text())["figures"])
    row = target.row or figures["best_row"]
    figures["rows"][row][target.operation][target.case][target.ratio] = target.at_least - 0.01
    assert [target.name in line for line in missed_targets(figures)] == [True]


def test_a_row_that_the_processor_lacks_misses_nothing() -> None:
    figures = copy.deepcopy(json.loads(FIGURES.read_text())["figures"])
    del figures["rows"]["avx2"]
    assert missed_targets(figures) == []


def test_a_document_without_its_place_for_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the lines"):
        document_with(COMMAND, "table", "# Erasure coding")


def test_the_document_shows_the_update_that_was_recorded() -> None:
    recorded = json.loads(update_report.FIGURES.read_text())
    shown = update_report.tables(recorded["figures"], recorded["machine"])
    text = DOCUMENT.read_text()
    assert document_with(update_report.COMMAND, shown, text) == text


@pytest.mark.parametrize(("times", "said"), [(2.4, "reached: 2.40"), (2.41, "missed: 2.41")])
def test_a_missed_update_is_called_missed(times: float, said: str) -> None:
    assert update_report.verdict(times) == said


def test_bars_are_as_long_as_their_values_and_say_them() -> None:
    drawn = ElementTree.fromstring(bars(title="a < b", unit="s", series={"one": {"x": 2.0, "y": 1.0}, "two": {"x": 0.5}}))
    lengths = [float(r.get("width", "")) for r in drawn.iter(f"{SVG}rect") if r.get("x") == str(LABELS)]
    assert lengths == pytest.approx([610, 152.5, 305])
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert [text for text in texts if text in ("2", "0.5", "1")] == ["2", "0.5", "1"]
