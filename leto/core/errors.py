"""The exceptions of Leto.

    LetoError
    ├── ConfigError          what a person wrote is wrong; one clear line, exit code 2
    ├── RetainedStateError   the pool refuses: unknown name, other size, stale epoch, arena full
    │   └── FencedError      the caller belongs to an epoch that a decision has ended (INV-F)
    ├── Unrecoverable        more is lost than the code can solve: leads to the checkpoint fallback (U54)
    ├── UnenrolledState      compute changes state that no record holds (U30): the job refuses to run
    ├── ProtocolViolation    an invariant broke: a bug, the job stops
    ├── WireError            a malformed or unexpected message on a control socket
    └── JobError             the job cannot go on: a process did not start, a deadline passed

Faults are exceptions; our own bugs are asserts.
"""


class LetoError(Exception):
    """Base of every error that Leto raises on purpose."""


class ConfigError(LetoError):
    """Input from a person is invalid; the message names what is wrong and what would be right."""


class RetainedStateError(LetoError):
    """The memory pool refuses a request about retained state."""


class FencedError(RetainedStateError):
    """A message carries an epoch that is not the current one."""


class Unrecoverable(LetoError):
    """More pages are lost than their parity can solve; the message says what and how many."""


class UnenrolledState(LetoError):
    """Compute changed state that no record holds; the message says what it is and how it is enrolled."""


class ProtocolViolation(LetoError):
    """An invariant of docs/protocol.md does not hold. Never repaired, never ignored."""


class WireError(LetoError):
    """A control message is malformed, too long, or not one this peer may send."""


class JobError(LetoError):
    """The job cannot go on: a process failed to start or a wait passed its deadline."""
