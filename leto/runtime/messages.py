"""Messages between a trainer and its agent, and their codec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leto.memory.wire import Codec


@dataclass(frozen=True, kw_only=True)
class Report:
    """Trainer to agent: something that happened in ``epoch``; the fields always name the rank.

    Names: prepared, ready, resumed, training, iteration, audit, finished, fatal; the fields are those of the event of the
    same name.
    """

    epoch: int
    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Promote:
    """Agent to shadow: take over in ``epoch``, whose decision is durable."""

    epoch: int


TRAINER_CODEC = Codec((Report, Promote))
