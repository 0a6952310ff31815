"""The bench: makes faults happen at exact points, proves that they happened, and reports the verdict."""
