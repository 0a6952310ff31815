"""Observable events: one small interface that the core owns; the journal, the screen and tests listen to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Event:
    """Something that happened. ``fields`` hold JSON values; the listener adds the time.

    Names in use: job-started, ready, iteration, failure, fenced, localised, decided, carried, resumed, repaired, recovered,
    audit, shadows-ready, shadow-ended, shadow-failed, service-ended, job-ended.
    """

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class Observer(Protocol):
    def observe(self, event: Event) -> None: ...


class NoObserver:
    def observe(self, event: Event) -> None:
        return None
