"""Leto: in-place recovery of large-model training, bit for bit.

The package is lazy: importing ``leto`` imports nothing else. See docs/architecture.md for the rooms.
"""

__version__ = "0.1.0"
