"""Pure core: values and functions from values to values.

Standard library and numpy only; no torch, clock, I/O or process. Every decision of the system is taken here and
returns its reason; executors elsewhere carry it out.
"""
