"""The check of single parts: what each promises to those that build on it."""

from __future__ import annotations

from chaos.planted import between_epochs, between_lanes


def broken_promise() -> str | None:
    """The first promise that does not hold, None when all do."""
    promises = {**between_epochs.PROMISES, **between_lanes.PROMISES}
    return next((name for name, holds in promises.items() if not holds()), None)
