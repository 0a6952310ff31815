"""The figures in docs/coding.md are those that were recorded, and a missed target is named."""

from __future__ import annotations

import copy
import json

import pytest

from benchmarks.coding_report import DOCUMENT, FIGURES, TARGETS, Target, document_with, missed_targets, table


def test_the_document_shows_what_was_recorded() -> None:
    recorded = json.loads(FIGURES.read_text())
    text = DOCUMENT.read_text()
    assert document_with(table(recorded["figures"], recorded["machine"]), text) == text


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
        document_with("table", "# Erasure coding")
