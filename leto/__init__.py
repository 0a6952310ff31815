"""Leto: in-place recovery of large-model training, bit for bit.

The package is lazy: importing ``leto`` imports nothing else, and ``leto.ReedSolomon`` loads the native kernels when it is
first asked for. See docs/architecture.md for the rooms.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "ReedSolomon":
        return __import__("leto.device.reed_solomon", fromlist=[name]).ReedSolomon
    raise AttributeError(f"module 'leto' has no attribute {name!r}")
