"""Faults, each with how it fires and how it proves that it fired."""
