"""A trainer's end of its channel to the agent: what it was told to be, what it says, and the promotion of a shadow."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from leto.core.config import JobConfig
from leto.core.errors import LetoError, ProtocolViolation
from leto.memory.wire import Channel, close_all
from leto.runtime.messages import TRAINER_CODEC, Promote, Report

_REPORT_TIMEOUT_S = 10.0
"""An agent that does not read for so long is gone; the trainer then dies of it."""

_IDLE_S = 3600.0
"""A shadow waits this long at a time; it dies with its parents, so it need not give up by itself."""


@dataclass(frozen=True, kw_only=True)
class TrainerOrder:
    """What the agent tells a trainer it forks. ``store_port`` is rank 0's rendezvous store of this generation.

    ``epoch`` of a shadow is the one in which it was forked; it takes over in a later one.
    """

    config: JobConfig
    rank: int
    epoch: int
    pool_socket: str
    store_port: int

    @staticmethod
    def from_arguments(arguments: Mapping[str, Any]) -> TrainerOrder:
        return TrainerOrder(
            config=JobConfig.from_json(arguments["config"], "job configuration"),
            rank=arguments["rank"],
            epoch=arguments["epoch"],
            pool_socket=arguments["pool_socket"],
            store_port=arguments["store_port"],
        )


class AgentLink:
    """Reports to the agent; nothing a trainer does waits for an answer, but a shadow waits to be promoted."""

    def __init__(self, channel_fd: int, rank: int, epoch: int) -> None:
        self._channel = Channel(socket.socket(fileno=channel_fd), TRAINER_CODEC)
        self._rank = rank
        self._epoch = epoch

    def report(self, name: str, **fields: Any) -> None:
        report = Report(epoch=self._epoch, name=name, fields={"rank": self._rank, **fields})
        self._channel.send(report, timeout_s=_REPORT_TIMEOUT_S)

    def wait_for_promotion(self) -> int:
        """The epoch in which this shadow becomes a trainer; from then on it reports under it.

        Raises PeerClosed when the agent is gone.
        """
        while not self._channel.readable(_IDLE_S):
            pass
        promote, fds = self._channel.receive(_REPORT_TIMEOUT_S)
        close_all(fds)
        assert isinstance(promote, Promote), promote
        self._epoch = promote.epoch
        return self._epoch

    @contextmanager
    def reporting_fatal(self) -> Iterator[None]:
        """A LetoError is deterministic: forking again would only repeat it, so the agent is told. Its words say all, unless it
        is a bug of ours."""
        try:
            yield
        except LetoError as error:
            self.report("fatal", kind=type(error).__name__, reason=str(error))
            if isinstance(error, ProtocolViolation):
                raise
            raise SystemExit(str(error)) from None
