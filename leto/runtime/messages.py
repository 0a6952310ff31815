"""Messages between a trainer and its agent, and their codec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leto.memory.wire import Codec


@dataclass(frozen=True, kw_only=True)
class Report:
    """One-way, trainer to agent: something that happened on ``rank`` in ``epoch``.

    Names: ready, resumed, training, iteration, audit, finished, fatal; the fields are those of the event of the same name.
    """

    epoch: int
    name: str
    fields: Mapping[str, Any]


TRAINER_CODEC = Codec((Report,))
